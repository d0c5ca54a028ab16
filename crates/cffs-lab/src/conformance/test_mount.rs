//! A fresh file system, mounted for one check.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Pid;

use crate::cleanup::{Cleanup, Guard};
use crate::process::run;
use crate::regroups::{Regroups, Sums};
use crate::watched::{MountLog, Watched};

const LIMIT: Duration = Duration::from_secs(300);

/// An image in a temporary directory of its own, and its mount.
pub struct TestMount {
    cffs: String,
    image: String,
    options: String,
    on_log_disk: bool,
    dir: PathBuf,
    root: PathBuf,
    log: MountLog,
    regrouped: Option<Sums>,
    // In the order in which they have to go.
    beside: Option<Regroups>,
    mounted: Option<Watched>,
    dir_guard: Option<Guard>,
}

impl TestMount {
    /// Makes and mounts it. `regrouped`: all that is on it is moved again and again while it is mounted.
    pub fn new(cffs: &Path, format: &[&str], size: &str, options: &str, regrouped: bool) -> Result<TestMount> {
        let dir = tempfile::Builder::new().prefix("cffs-conformance-").tempdir()?.keep();
        let dir_guard = Some(Guard::new(Cleanup::RemoveDir(dir.clone())));
        let dir = dir.canonicalize()?;
        // Other users have to get to the mount.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
        let root = dir.join("mnt");
        fs::create_dir(&root)?;
        let mut mount = TestMount {
            cffs: cffs.to_string_lossy().into_owned(),
            image: dir.join("image").to_string_lossy().into_owned(),
            options: options.to_owned(),
            on_log_disk: format.contains(&"--layout=log"),
            log: MountLog::new(dir.join("mount.log"))?,
            dir,
            root,
            regrouped: regrouped.then(Sums::default),
            beside: None,
            mounted: None,
            dir_guard,
        };
        let mut mkfs = vec![&*mount.cffs, "mkfs", "--force", "--size", size];
        mkfs.extend(format);
        mkfs.push(&mount.image);
        run(&mkfs, LIMIT)?;
        mount.mount()?;
        Ok(mount)
    }

    /// Keeps quotas of all kinds from now on; mounts it anew.
    pub fn switch_quotas_on(&mut self) -> Result<()> {
        self.unmount()?;
        run(&[&self.cffs, "quota", "on", "user,group,project", &self.image], LIMIT)?;
        self.mount()
    }

    /// Whether it has the log layout.
    pub fn is_on_log_disk(&self) -> bool {
        self.on_log_disk
    }

    /// Where it is mounted.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A directory beside the mount, for what is not to be on it; goes with the test mount.
    pub fn beside(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// The cffs program.
    pub fn cffs(&self) -> &str {
        &self.cffs
    }

    /// Mounts it (again).
    pub fn mount(&mut self) -> Result<()> {
        let mount = Watched::start(&self.cffs, &self.options, &self.image, &self.root, &self.log, LIMIT)?;
        self.mounted = Some(mount);
        if self.regrouped.is_some() {
            self.beside = Some(Regroups::start(&self.root, None, Vec::new()));
        }
        Ok(())
    }

    /// Unmounts it in an orderly way.
    pub fn unmount(&mut self) -> Result<()> {
        if let Some(beside) = self.beside.take() {
            let sums = beside.end()?;
            self.count(sums);
        }
        self.mounted.take().map_or(Ok(()), |mount| mount.unmount(LIMIT))
    }

    /// Unmounts and mounts: what was cached is gone.
    pub fn again(&mut self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    /// The process id of the mount, for who ends it at a moment of his own.
    pub fn server(&self) -> Result<Pid> {
        self.mounted.as_ref().context("it is not mounted")?.pid()
    }

    /// Kills the process that serves the mount, as a crash of the machine would, and clears the mount away.
    pub fn kill(&mut self) -> Result<()> {
        // While a regroup runs: that is what such a crash is to meet.
        let killed = self.mounted.take().map_or(Ok(()), |mount| mount.kill(LIMIT));
        if let Some(beside) = self.beside.take() {
            self.count(beside.end_killed());
        }
        killed
    }

    fn count(&mut self, sums: Sums) {
        if let Some(all) = &mut self.regrouped {
            all.add(sums);
        }
    }

    /// What the regroups came to that ran beside, until the last unmount.
    pub fn regrouped(&self) -> Option<Sums> {
        self.regrouped
    }

    /// Unmounts it if it is mounted, and checks the image and what the mount has said.
    pub fn check(&mut self) -> Result<()> {
        self.unmount()?;
        run(&[&self.cffs, "fsck", "-n", &self.image], LIMIT).context("the check is not clean")?;
        self.log.expect_no_errors()
    }

    /// Leaves everything where it is, for a look at it.
    pub fn keep(&mut self) -> &Path {
        if let Some(guard) = self.dir_guard.take() {
            guard.disarm();
        }
        &self.dir
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        self.beside.take();
        // The mount first: below a mounted directory nothing is removed.
        self.mounted.take();
        self.dir_guard.take();
    }
}
