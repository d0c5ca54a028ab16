//! The file systems that are compared, and one of them on its disk.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Serialize;

use super::disk::{Counters, Disk};
use crate::process::{Server, find_program, is_mounted, run, run_command};
use crate::undo::{Guard, Undo};

const LIMIT: Duration = Duration::from_secs(120);

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Peer {
    /// Ours.
    Cffs,
    /// The kernel's ext4.
    Ext4,
    /// The kernel's xfs.
    Xfs,
    /// The kernel's btrfs.
    Btrfs,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Peer::Cffs => "cffs",
            Peer::Ext4 => "ext4",
            Peer::Xfs => "xfs",
            Peer::Btrfs => "btrfs",
        })
    }
}

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

impl Peer {
    /// Whether this peer lives in the kernel, over a loop device.
    pub fn is_kernel(self) -> bool {
        self != Peer::Cffs
    }

    /// Why this peer cannot run here; `None` when it can.
    pub fn missing(self, cffs: &CffsSettings) -> Option<String> {
        if !self.is_kernel() {
            return (!cffs.program.is_file())
                .then(|| format!("{} is not there (cargo build --release, or --cffs)", cffs.program.display()));
        }
        let mkfs = format!("mkfs.{self}");
        if find_program(&mkfs).is_none() {
            return Some(format!("{mkfs} is not installed"));
        }
        if find_program("losetup").is_none() || !Path::new("/dev/loop-control").exists() {
            return Some("no loop devices here".into());
        }
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        let in_kernel = known.lines().any(|line| line.split_whitespace().last() == Some(&self.to_string()));
        // It may still be a module that mount will load.
        let module = run(&["modprobe", "-n", &self.to_string()], Duration::from_secs(10));
        (!in_kernel && module.is_err()).then(|| format!("this kernel has no {self}"))
    }
}

/// One peer, formatted on a disk of its own, mounted or not.
#[derive(Debug)]
pub struct Session {
    // Dropped in this order: mount, daemon, loop device, disk, directory.
    mount: Option<Guard>,
    daemon: Option<Server>,
    loop_guard: Option<Guard>,
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
        let dir_guard = Guard::new(Undo::RemoveDir(dir.clone()));
        let disk = Disk::start(&dir, size, delay)?;
        let file = disk.file().to_string_lossy().into_owned();
        std::fs::create_dir(dir.join("mnt"))?;
        let mut session = Session {
            mount: None,
            daemon: None,
            loop_guard: None,
            disk: Some(disk),
            dir_guard: Some(dir_guard),
            dir,
            peer,
            cffs: cffs.clone(),
            device: file.clone(),
            peak_memory: 0,
        };
        if peer.is_kernel() || cffs.over_loop {
            let out = run(&["losetup", "--direct-io=on", "--find", "--show", &file], LIMIT)?;
            session.device = out.trim().to_string();
            session.loop_guard = Some(Guard::new(Undo::DetachLoop(session.device.clone())));
            session.check_direct_io()?;
        }
        session.mkfs()?;
        Ok(session)
    }

    /// A buffered loop device would serve reads from the host's page cache and
    /// merge writes in it, and the comparison would be worth nothing.
    fn check_direct_io(&self) -> Result<()> {
        let name = self.device.trim_start_matches("/dev/");
        let path = format!("/sys/block/{name}/loop/dio");
        let dio = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        if dio.trim() != "1" {
            bail!("{} does not do direct I/O over nbdfuse", self.device);
        }
        Ok(())
    }

    fn mkfs(&self) -> Result<()> {
        let mut command = match self.peer {
            Peer::Cffs => {
                let mut c = Command::new(&self.cffs.program);
                c.args(["mkfs", "--force"]).args(&self.cffs.mkfs);
                c
            }
            // Inode tables and journal are written now, not in the background
            // of what is measured.
            Peer::Ext4 => {
                let mut c = Command::new("mkfs.ext4");
                c.args(["-q", "-F", "-E"]).arg("lazy_itable_init=0,lazy_journal_init=0,nodiscard");
                c
            }
            Peer::Xfs => {
                let mut c = Command::new("mkfs.xfs");
                c.args(["-q", "-f", "-K"]);
                c
            }
            Peer::Btrfs => {
                let mut c = Command::new("mkfs.btrfs");
                c.args(["-q", "-f", "-K"]);
                c
            }
        };
        command.arg(&self.device);
        run_command(command, LIMIT).map(drop)
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
        let root = self.root();
        if self.peer.is_kernel() {
            let kind = self.peer.to_string();
            run(&["mount", "-t", &kind, &self.device, &root.to_string_lossy()], LIMIT)?;
        } else {
            // In the foreground, so that we know its process: unmounting is
            // over when that has ended.
            let mut command = Command::new(&self.cffs.program);
            command.args(["mount", "-f"]);
            if !self.cffs.options.is_empty() {
                command.args(["-o", &self.cffs.options]);
            }
            command.arg(&self.device).arg(&root);
            let mut daemon = Server::start(command)?;
            daemon.wait_until(LIMIT, || is_mounted(&root))?;
            self.daemon = Some(daemon);
        }
        self.mount = Some(Guard::new(Undo::Unmount(root.clone())));
        // The first request to a FUSE mount waits until it serves.
        rustix::fs::statfs(&root).with_context(|| format!("cannot use {}", root.display()))?;
        Ok(())
    }

    /// Unmounts it, and waits until everything is on the disk.
    ///
    /// # Errors
    /// When that fails.
    pub fn unmount(&mut self) -> Result<()> {
        if let Some(daemon) = &self.daemon {
            self.peak_memory = self.peak_memory.max(daemon.peak_memory().unwrap_or(0));
        }
        run(&["umount", &self.root().to_string_lossy()], LIMIT)?;
        if let Some(guard) = self.mount.take() {
            guard.disarm();
        }
        if let Some(daemon) = self.daemon.take() {
            let status = daemon.wait_end(LIMIT)?;
            if !status.success() {
                bail!("the mount process of {} ended with {status}", self.peer);
            }
        }
        Ok(())
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
        let program = self.cffs.program.to_string_lossy().into_owned();
        let argv: &[&str] = match self.peer {
            Peer::Cffs => &[&program, "fsck", "-n", &self.device],
            Peer::Ext4 => &["fsck.ext4", "-f", "-n", &self.device],
            Peer::Xfs => &["xfs_repair", "-n", &self.device],
            Peer::Btrfs => &["btrfs", "check", "--readonly", &self.device],
        };
        run(argv, Duration::from_secs(600)).map(drop)
    }

    /// Takes everything down, saying so if that goes wrong.
    ///
    /// # Errors
    /// When something would not go.
    pub fn close(mut self) -> Result<()> {
        if self.mount.is_some() {
            self.unmount()?;
        }
        if let Some(guard) = self.loop_guard.take() {
            run(&["losetup", "-d", &self.device], LIMIT)?;
            guard.disarm();
        }
        if let Some(disk) = self.disk.take() {
            disk.stop()?;
        }
        drop(self.dir_guard.take());
        Ok(())
    }
}
