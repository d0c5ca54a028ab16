//! A mount of cffs under test: served by a process of ours, which must not report errors.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::cleanup::{Cleanup, Guard};
use crate::mount_table::{is_mounted, unmount_when_idle};
use crate::process::run;
use crate::server::Server;

/// Takes the log of the mounts of an image: what the programs on it do not notice, it tells.
pub struct MountLog(PathBuf);

impl MountLog {
    /// An empty log in this file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn new(path: PathBuf) -> Result<MountLog> {
        fs::write(&path, "").with_context(|| format!("cannot write {}", path.display()))?;
        Ok(MountLog(path))
    }

    /// Begins anew.
    ///
    /// # Errors
    /// When a mount has logged an error since the last time, with the first of them.
    pub fn expect_no_errors(&self) -> Result<()> {
        let text = fs::read_to_string(&self.0).with_context(|| format!("cannot read {}", self.0.display()))?;
        fs::write(&self.0, "")?;
        let errors: Vec<&str> = text.lines().filter(|l| l.contains(" ERROR ") || l.contains("panicked")).collect();
        if let Some(first) = errors.first() {
            bail!("the mount logged {} errors, first: {first}", errors.len());
        }
        Ok(())
    }
}

/// A mount and the process that serves it; goes when dropped.
pub struct Watched {
    root: PathBuf,
    // In the order in which they have to go.
    guard: Guard,
    server: Server,
}

impl Watched {
    /// Mounts `image` at `root`, and waits until it is.
    ///
    /// # Errors
    /// When it is not mounted within `limit`.
    pub fn start(
        cffs: &str,
        options: &str,
        image: &str,
        root: &Path,
        log: &MountLog,
        limit: Duration,
    ) -> Result<Watched> {
        let mut command = Command::new(cffs);
        command.args(["mount", "-f", "-o", options, image]).arg(root);
        command.stderr(OpenOptions::new().append(true).open(&log.0)?);
        let mut server = Server::start(command)?;
        let guard = Guard::new(Cleanup::Unmount(root.to_owned()));
        let ready = server.wait_until(limit, || is_mounted(root));
        let serves = ready.and_then(|()| rustix::fs::statfs(root).context("the mount does not serve"));
        if let Err(e) = serves {
            let said = fs::read_to_string(&log.0).unwrap_or_default();
            return Err(e.context(said.trim().to_owned()));
        }
        Ok(Watched { root: root.to_owned(), guard, server })
    }

    /// The process that serves it, for who ends it at a moment of his own.
    ///
    /// # Errors
    /// Never on a system where process ids are positive.
    pub fn pid(&self) -> Result<Pid> {
        i32::try_from(self.server.pid()).ok().and_then(Pid::from_raw).context("no process id")
    }

    /// Unmounts in an orderly way, and waits for the end of the process.
    ///
    /// # Errors
    /// When it cannot be unmounted within `limit`, or the process tells of an error.
    pub fn unmount(self, limit: Duration) -> Result<()> {
        let status = self.unmount_by(&["umount"], limit)?.wait_end(limit)?;
        ensure!(status.success(), "the mount process ended with {status}");
        Ok(())
    }

    /// Unmounts by a program, which gets the directory as its last word. Returns the process that served the mount.
    ///
    /// # Errors
    /// When it cannot be unmounted within `limit`.
    pub fn unmount_by(self, program: &[&str], limit: Duration) -> Result<Server> {
        let root = self.root.to_string_lossy();
        run(&[program, &[root.as_ref()]].concat(), limit).context("cannot unmount")?;
        self.guard.disarm();
        Ok(self.server)
    }

    /// Unmounts as [`unmount_when_idle`] does. Returns the process that served the mount.
    ///
    /// # Errors
    /// Those of [`unmount_when_idle`].
    pub fn unmount_by_system_call(self, limit: Duration) -> Result<Server> {
        unmount_when_idle(&self.root, limit)?;
        self.guard.disarm();
        Ok(self.server)
    }

    /// Kills the process, as a crash of the machine would, unless that was done before, and clears the mount away.
    ///
    /// # Errors
    /// When it does not end within `limit`.
    pub fn kill(self, limit: Duration) -> Result<()> {
        let _ = kill_process(self.pid()?, Signal::KILL);
        self.server.wait_end(limit)?;
        run(&["umount", "-l", &self.root.to_string_lossy()], limit)?;
        self.guard.disarm();
        Ok(())
    }
}
