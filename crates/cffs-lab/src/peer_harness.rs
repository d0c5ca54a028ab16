//! What measurements of the program share: a directory for images that goes away with them, mounts, results as JSON.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::cleanup::{Cleanup, Guard};
use crate::mount_table::is_mounted;
use crate::process::run;
use crate::server::Server;

/// The program that is measured, and where its images are.
pub struct Harness {
    /// The cffs program.
    pub cffs: String,
    /// A directory of its own, gone at the end.
    pub dir: PathBuf,
    _guard: Guard,
}

/// A mount of the program.
pub struct Mounted {
    /// Where.
    pub root: PathBuf,
    server: Server,
    guard: Guard,
}

impl Harness {
    /// A harness for the program `cffs` below the directory `dir`.
    ///
    /// # Errors
    /// The program is not there, or the directory cannot be made.
    pub fn new(name: &str, dir: &Path, cffs: &Path) -> Result<Harness> {
        let cffs = std::path::absolute(cffs)?;
        ensure!(cffs.is_file(), "{} is not there (cargo build --release, or --cffs)", cffs.display());
        let dir = tempfile::Builder::new().prefix(&format!("cffs-lab-{name}-")).tempdir_in(dir)?.keep();
        let guard = Guard::new(Cleanup::RemoveDir(dir.clone()));
        Ok(Harness { cffs: cffs.to_string_lossy().into_owned(), dir, _guard: guard })
    }

    /// Mounts a disk, and waits until it is.
    ///
    /// # Errors
    /// It is not mounted within the time.
    pub fn mount(&self, disk: &Path, limit: Duration) -> Result<Mounted> {
        let root = self.dir.join("mnt");
        fs::create_dir_all(&root)?;
        let mut command = Command::new(&self.cffs);
        command.args(["mount", "-f"]).arg(disk).arg(&root);
        let mut server = Server::start(command)?;
        let guard = Guard::new(Cleanup::Unmount(root.clone()));
        server.wait_until(limit, || is_mounted(&root))?;
        Ok(Mounted { root, server, guard })
    }
}

impl Mounted {
    /// Unmounts, and waits for the end of the process.
    ///
    /// # Errors
    /// It cannot be unmounted, or the process tells of an error.
    pub fn unmount(self, limit: Duration) -> Result<()> {
        let Mounted { root, server, guard } = self;
        run(&["umount", &root.to_string_lossy()], limit)?;
        guard.disarm();
        let status = server.wait_end(limit)?;
        ensure!(status.success(), "the mount process ended with {status}");
        Ok(())
    }
}

/// Writes what was measured to a file, if there is to be one.
///
/// # Errors
/// The file cannot be written.
pub fn write_json(path: Option<&Path>, rows: &impl Serialize) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    fs::write(path, serde_json::to_vec_pretty(rows)?).with_context(|| format!("cannot write {}", path.display()))
}
