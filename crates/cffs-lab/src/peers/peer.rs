//! One of the file systems that are compared, on its disk.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::disk::{Counters, Disk};
use super::traced::Recorder;
use crate::cleanup::{Cleanup, Guard};
pub use crate::mounted::Kind as Peer;
use crate::mounted::{Loop, Mounted};

/// How cffs is run.
#[derive(Clone, Debug)]
pub struct CffsSettings {
    /// The program.
    pub program: PathBuf,
    /// Further words for `cffs mkfs`.
    pub mkfs: Vec<String>,
    /// The `-o` options of `cffs mount`.
    pub options: String,
    /// Over a loop device, as the kernel's, instead of opening the file.
    pub over_loop: bool,
}

/// One peer, formatted on a disk of its own, mounted or not.
#[derive(Debug)]
pub struct Session {
    // Dropped in this order: mount, loop device, disk, directory.
    mount: Option<Mounted>,
    over: Option<Loop>,
    disk: Option<Disk>,
    dir_guard: Option<Guard>,
    dir: PathBuf,
    peer: Peer,
    cffs: CffsSettings,
    device: String,
    peak_memory: u64,
}

impl Session {
    /// Starts a disk and formats it.
    ///
    /// # Errors
    /// When a server or mkfs fails.
    pub fn new(peer: Peer, cffs: &CffsSettings, size: &str, delay: &str) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("cffs-lab-{peer}-"))
            .tempdir()
            .context("cannot make a temporary directory")?
            .keep();
        let dir_guard = Guard::new(Cleanup::RemoveDir(dir.clone()));
        let disk = Disk::start(&dir, size, delay)?;
        std::fs::create_dir(dir.join("mnt"))?;
        let mut session = Session {
            mount: None,
            over: None,
            device: disk.file().to_string_lossy().into_owned(),
            disk: Some(disk),
            dir_guard: Some(dir_guard),
            dir,
            peer,
            cffs: cffs.clone(),
            peak_memory: 0,
        };
        if peer != Peer::Cffs || cffs.over_loop {
            let over = Loop::attach(session.device.as_ref())?;
            session.device = over.device().to_string();
            session.over = Some(over);
        }
        peer.format(&cffs.program, &cffs.mkfs, &session.device)?;
        Ok(session)
    }

    /// Where it is mounted.
    pub fn root(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    /// Mounts it.
    ///
    /// # Errors
    /// When mounting fails.
    pub fn mount(&mut self) -> Result<()> {
        let mounted = self.peer.mount(&self.cffs.program, &self.cffs.options, &self.device, &self.root())?;
        self.mount = Some(mounted);
        Ok(())
    }

    /// Unmounts it, and waits until everything is on the disk.
    ///
    /// # Errors
    /// When that fails.
    pub fn unmount(&mut self) -> Result<()> {
        let Some(mount) = self.mount.take() else { return Ok(()) };
        self.peak_memory = self.peak_memory.max(mount.peak_memory().unwrap_or(0));
        mount.unmount()
    }

    /// Begins to record the mount, if that is wanted.
    ///
    /// # Errors
    /// When the program does not begin.
    pub fn recorder(&self, wanted: bool) -> Result<Option<Recorder>> {
        wanted.then(|| Recorder::start(&self.cffs.program, &self.root(), &self.dir)).transpose()
    }

    /// Requests until now.
    ///
    /// # Errors
    /// When the disk cannot say.
    pub fn counters(&mut self) -> Result<Counters> {
        match &mut self.disk {
            Some(disk) => disk.counters(),
            None => Ok(Counters::default()),
        }
    }

    /// The most memory cffs's mount process had at the ends of its mounts.
    pub fn peak_memory(&self) -> Option<u64> {
        (self.peak_memory > 0).then_some(self.peak_memory)
    }

    /// Checks the unmounted file system with its own program.
    ///
    /// # Errors
    /// When the check finds something.
    pub fn check(&self) -> Result<()> {
        self.peer.check(&self.cffs.program, &self.device)
    }

    /// Takes everything down, saying so if that goes wrong.
    ///
    /// # Errors
    /// When something would not go.
    pub fn close(mut self) -> Result<()> {
        self.unmount()?;
        if let Some(over) = self.over.take() {
            over.detach()?;
        }
        if let Some(disk) = self.disk.take() {
            disk.stop()?;
        }
        drop(self.dir_guard.take());
        Ok(())
    }
}
