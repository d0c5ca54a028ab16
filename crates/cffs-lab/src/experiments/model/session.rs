//! A file system on an image behind a charged disk.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cffs::device::{Direct, FileDevice, Lock, OpenMode};
use cffs::fs::Fs;
use cffs::fs::api::MountOptions;
use cffs_disk::{Counters, profiles};

use super::BYTES;
use crate::layout::Layout;
use crate::process::{Server, find_program, is_mounted, run, run_command};
use crate::served::{Charged, Medium, Served, Sparse};
use crate::undo::{Guard, Undo};

/// Longest time of any program here.
pub const LIMIT: Duration = Duration::from_secs(300);

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ours, through FUSE.
    Cffs,
    /// The kernel's ext4.
    Ext4,
    /// The kernel's xfs.
    Xfs,
    /// The kernel's btrfs.
    Btrfs,
    /// ext4's format through FUSE.
    Fuse2fs,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [Kind::Cffs, Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Fuse2fs];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Cffs => "cffs",
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
            Kind::Fuse2fs => "fuse2fs",
        }
    }

    /// Whether the kernel has it, not a process.
    fn in_kernel(self) -> bool {
        !matches!(self, Kind::Cffs | Kind::Fuse2fs)
    }

    /// Why it cannot run here.
    pub fn missing(self) -> Option<String> {
        let programs: &[&str] = match self {
            Kind::Cffs => &[],
            Kind::Ext4 => &["mkfs.ext4"],
            Kind::Xfs => &["mkfs.xfs"],
            Kind::Btrfs => &["mkfs.btrfs"],
            Kind::Fuse2fs => &["mkfs.ext4", "fuse2fs"],
        };
        if let Some(program) = programs.iter().chain(&["losetup"]).find(|p| find_program(p).is_none()) {
            return Some(format!("{program} is not installed"));
        }
        if !self.in_kernel() {
            return None;
        }
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        let module = run(&["modprobe", "-n", self.name()], Duration::from_secs(10));
        let there = known.lines().any(|line| line.split_whitespace().last() == Some(self.name()));
        (!there && module.is_err()).then(|| format!("this kernel has no {}", self.name()))
    }
}

/// One file system on its disk.
pub struct Session {
    // Dropped in this order: mount, process, loop device, disk.
    mount: Option<Guard>,
    daemon: Option<Server>,
    loop_guard: Option<Guard>,
    served: Option<Served>,
    medium: Arc<Charged>,
    kind: Kind,
    program: PathBuf,
    image: PathBuf,
    root: PathBuf,
    at: PathBuf,
    device: String,
}

impl Session {
    /// Serves `image`, which is made and formatted first if `format`, as the disk `profile`.
    ///
    /// # Errors
    /// When a program fails.
    pub fn new(kind: Kind, program: &Path, dir: &Path, image: &Path, profile: &str, format: bool) -> Result<Session> {
        let model = profiles::find(profile).with_context(|| format!("no disk is called {profile}"))?.model();
        let contents = if format { Sparse::create(image, BYTES)? } else { Sparse::open(image)? };
        let medium = Arc::new(Charged::new(contents, model, false));
        let (at, root) = (dir.join("disk"), dir.join("mnt"));
        std::fs::create_dir_all(&at)?;
        std::fs::create_dir_all(&root)?;
        let served = Served::start(medium.clone(), &at)?;
        let file = served.file().to_string_lossy().into_owned();
        let device = run(&["losetup", "--direct-io=on", "--find", "--show", &file], LIMIT)?.trim().to_string();
        let loop_guard = Some(Guard::new(Undo::DetachLoop(device.clone())));
        let session = Session {
            mount: None,
            daemon: None,
            loop_guard,
            served: Some(served),
            medium,
            kind,
            program: program.to_path_buf(),
            image: image.to_path_buf(),
            root,
            at,
            device,
        };
        let name = session.device.trim_start_matches("/dev/");
        let dio = std::fs::read_to_string(format!("/sys/block/{name}/loop/dio"))?;
        ensure!(dio.trim() == "1", "{} does not do direct I/O", session.device);
        if format {
            session.mkfs()?;
        }
        Ok(session)
    }

    fn mkfs(&self) -> Result<()> {
        // Everything is written now, not in the background of what is measured.
        let mut command = match self.kind {
            Kind::Cffs => {
                let mut c = Command::new(&self.program);
                c.args(["mkfs", "--force"]);
                c
            }
            Kind::Ext4 | Kind::Fuse2fs => {
                let mut c = Command::new("mkfs.ext4");
                c.args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]);
                c
            }
            Kind::Xfs => {
                let mut c = Command::new("mkfs.xfs");
                c.args(["-q", "-f", "-K"]);
                c
            }
            Kind::Btrfs => {
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
        self.root.clone()
    }

    /// What the disk was asked until now, with everything in its write cache on the medium.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn settled(&self) -> Result<Counters> {
        // fuse2fs writes through the page cache of the device, and its fsync leaves it there.
        if self.kind == Kind::Fuse2fs {
            std::fs::File::open(&self.device)?.sync_all()?;
        }
        self.medium.flush()?;
        Ok(self.medium.counters())
    }

    /// Mounts it; nothing of it is in memory.
    ///
    /// # Errors
    /// When mounting fails.
    pub fn mount(&mut self) -> Result<()> {
        let root = self.root.to_string_lossy().into_owned();
        if self.kind.in_kernel() {
            run(&["mount", "-t", self.kind.name(), &self.device, &root], LIMIT)?;
        } else {
            // In the foreground: unmounting is over when the process has ended.
            let mut command = match self.kind {
                Kind::Cffs => {
                    let mut c = Command::new(&self.program);
                    c.args(["mount", "-f"]);
                    c
                }
                _ => {
                    let mut c = Command::new("fuse2fs");
                    c.arg("-f").stdout(std::process::Stdio::null());
                    c
                }
            };
            command.arg(&self.device).arg(&root);
            let mut daemon = Server::start(command)?;
            daemon.wait_until(LIMIT, || is_mounted(&self.root))?;
            self.daemon = Some(daemon);
        }
        self.mount = Some(Guard::new(Undo::Unmount(self.root.clone())));
        rustix::fs::statfs(&self.root).with_context(|| format!("cannot use {root}"))?;
        Ok(())
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// When that fails.
    pub fn unmount(&mut self) -> Result<()> {
        run(&["umount", &self.root.to_string_lossy()], LIMIT)?;
        if let Some(guard) = self.mount.take() {
            guard.disarm();
        }
        if let Some(daemon) = self.daemon.take() {
            let status = daemon.wait_end(LIMIT)?;
            if !status.success() {
                bail!("the mount process of {} ended with {status}", self.kind.name());
            }
        }
        Ok(())
    }

    /// How the files of the unmounted file system lie.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn layout(&mut self) -> Result<Option<Layout>> {
        if self.kind == Kind::Cffs {
            let mode = OpenMode { read_only: true, direct: Direct::Never, lock: Lock::Auto };
            let device = Arc::new(FileDevice::open(&self.image, mode)?);
            let options = MountOptions { read_only: true, background: false, ..MountOptions::default() };
            let fs = Fs::open(device.clone(), None, options)?;
            let names = Layout::names(&fs);
            fs.close()?;
            return Ok(Some(Layout::of_image(&*device, &names?)?));
        }
        // fuse2fs has no FIEMAP. The addresses of btrfs are those of its own space, in which chunks of the disk follow each other.
        if self.kind == Kind::Fuse2fs || find_program("filefrag").is_none() {
            return Ok(None);
        }
        self.mount()?;
        let layout = Layout::of_mount(&self.root);
        self.unmount()?;
        layout.map(Some)
    }

    /// Checks the unmounted file system, if it is ours.
    ///
    /// # Errors
    /// When something is wrong with it.
    pub fn check(&self) -> Result<()> {
        match self.kind {
            Kind::Cffs => run(&[&self.program.to_string_lossy(), "fsck", "-n", &self.device], LIMIT).map(drop),
            _ => Ok(()),
        }
    }

    /// Takes everything down.
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
        // The kernel lets go of the file a moment later.
        let loops = |device: &str| Path::new(&format!("/sys/block/{}/loop/backing_file", &device[5..])).exists();
        for _ in 0..200 {
            if !loops(&self.device) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Some(served) = self.served.take() {
            served.stop()?;
        }
        ensure!(!is_mounted(&self.at), "{} is still mounted", self.at.display());
        Ok(())
    }
}
