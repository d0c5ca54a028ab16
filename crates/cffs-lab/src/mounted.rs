//! The file systems that are compared: how each is formatted, mounted, unmounted and checked; and loop devices.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;

use crate::cleanup::{Cleanup, Guard};
use crate::mount_table::is_mounted;
use crate::process::{find_program, run, run_command};
use crate::server::Server;

/// Longest time of any program here.
pub const LIMIT: Duration = Duration::from_secs(300);

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Ours, through FUSE.
    Cffs,
    /// The same in the log layout.
    #[value(skip)]
    CffsLog,
    /// The kernel's ext4.
    Ext4,
    /// The kernel's xfs.
    Xfs,
    /// The kernel's btrfs.
    Btrfs,
    /// ext4's format through FUSE. Its fsync leaves data in the page cache of its device, so that only a disk that can be asked
    /// to settle measures it.
    #[value(skip)]
    Fuse2fs,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] = [Kind::Cffs, Kind::CffsLog, Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Fuse2fs];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Cffs => "cffs",
            Kind::CffsLog => "cffs-log",
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
            Kind::Fuse2fs => "fuse2fs",
        }
    }

    /// Whether the kernel has it, not a process.
    pub fn is_kernel(self) -> bool {
        !self.is_ours() && self != Kind::Fuse2fs
    }

    /// Whether it is cffs.
    pub fn is_ours(self) -> bool {
        matches!(self, Kind::Cffs | Kind::CffsLog)
    }

    /// Why it cannot run here; `None` when it can. `cffs` is the program.
    pub fn missing(self, cffs: &Path) -> Option<String> {
        let programs: &[&str] = match self {
            Kind::Cffs | Kind::CffsLog => {
                let there = cffs.is_file();
                let shown = cffs.display();
                return (!there).then(|| format!("{shown} is not there (cargo build --release, or --cffs)"));
            }
            Kind::Ext4 => &["mkfs.ext4"],
            Kind::Xfs => &["mkfs.xfs"],
            Kind::Btrfs => &["mkfs.btrfs"],
            Kind::Fuse2fs => &["mkfs.ext4", "fuse2fs"],
        };
        if let Some(program) = programs.iter().chain(&["losetup"]).find(|p| find_program(p).is_none()) {
            return Some(format!("{program} is not installed"));
        }
        if !Path::new("/dev/loop-control").exists() {
            return Some("no loop devices here".into());
        }
        if !self.is_kernel() {
            return None;
        }
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        // It may still be a module that mount will load.
        let module = run(&["modprobe", "-n", self.name()], Duration::from_secs(10));
        let there = known.lines().any(|line| line.split_whitespace().last() == Some(self.name()));
        (!there && module.is_err()).then(|| format!("this kernel has no {self}"))
    }

    /// Formats a device; `words` are further ones for `cffs mkfs`. Inode tables and journals are written now, not in the
    /// background of what is measured.
    ///
    /// # Errors
    /// When mkfs fails.
    pub fn format(self, cffs: &Path, words: &[String], device: &str) -> Result<()> {
        let mut command = match self {
            Kind::Cffs | Kind::CffsLog => Command::new(cffs),
            Kind::Ext4 | Kind::Fuse2fs => Command::new("mkfs.ext4"),
            Kind::Xfs => Command::new("mkfs.xfs"),
            Kind::Btrfs => Command::new("mkfs.btrfs"),
        };
        match self {
            Kind::Cffs => command.args(["mkfs", "--force"]).args(words),
            Kind::CffsLog => command.args(["mkfs", "--force", "--layout=log"]).args(words),
            Kind::Ext4 | Kind::Fuse2fs => {
                command.args(["-q", "-F", "-E"]).arg("lazy_itable_init=0,lazy_journal_init=0,nodiscard")
            }
            Kind::Xfs | Kind::Btrfs => command.args(["-q", "-f", "-K"]),
        };
        command.arg(device);
        run_command(command, LIMIT).map(drop)
    }

    /// Mounts a device; nothing of it is in memory. `options` are for `cffs mount -o`, empty for the defaults.
    ///
    /// # Errors
    /// When mounting fails.
    pub fn mount(self, cffs: &Path, options: &str, device: &str, root: &Path) -> Result<Mounted> {
        let mut daemon = None;
        if self.is_kernel() {
            run(&["mount", "-t", self.name(), device, &root.to_string_lossy()], LIMIT)?;
        } else {
            // In the foreground, so that we know its process: unmounting is over when that has ended.
            let mut command = Command::new(if self.is_ours() { cffs } else { Path::new("fuse2fs") });
            if self.is_ours() {
                command.args(["mount", "-f"]);
            } else {
                command.arg("-f").stdout(Stdio::null());
            }
            if self.is_ours() && !options.is_empty() {
                command.args(["-o", options]);
            }
            command.arg(device).arg(root);
            let mut server = Server::start(command)?;
            server.wait_until(LIMIT, || is_mounted(root))?;
            daemon = Some(server);
        }
        let guard = Guard::new(Cleanup::Unmount(root.to_path_buf()));
        // The first request to a FUSE mount waits until it serves.
        rustix::fs::statfs(root).with_context(|| format!("cannot use {}", root.display()))?;
        Ok(Mounted { guard, daemon, kind: self, root: root.to_path_buf() })
    }

    /// The program that brings the files of this one together where it is mounted, with the words of each call.
    fn defragmenter(self, cffs: &Path) -> Option<(PathBuf, &'static [&'static [&'static str]])> {
        let (program, calls): (&str, &[&[&str]]) = match self {
            Kind::Cffs | Kind::CffsLog => {
                return Some((cffs.to_path_buf(), &[&["regroup"], &["regroup", "--free-space"]]));
            }
            Kind::Ext4 => ("e4defrag", &[&[]]),
            Kind::Xfs => ("xfs_fsr", &[&[]]),
            Kind::Btrfs => ("btrfs", &[&["filesystem", "defragment", "-r"]]),
            Kind::Fuse2fs => return None,
        };
        find_program(program).map(|found| (found, calls))
    }

    /// Whether its files can be brought together here.
    pub fn can_defragment(self, cffs: &Path) -> bool {
        self.defragmenter(cffs).is_some()
    }

    /// Brings the files of a mounted one together with its own program: a regroup of files and then of free space, or a defragmenter.
    ///
    /// # Errors
    /// When there is no such program, or it fails.
    pub fn defragment(self, cffs: &Path, root: &Path) -> Result<()> {
        let (program, calls) = self.defragmenter(cffs).with_context(|| format!("{self} has no defragmenter here"))?;
        calls.iter().try_for_each(|words| {
            let mut command = Command::new(&program);
            command.args(*words).arg(root);
            run_command(command, Duration::from_secs(600)).map(drop)
        })
    }

    /// Checks an unmounted device with its own program.
    ///
    /// # Errors
    /// When the check finds something.
    pub fn check(self, cffs: &Path, device: &str) -> Result<()> {
        let cffs = cffs.to_string_lossy();
        let argv: &[&str] = match self {
            Kind::Cffs | Kind::CffsLog => &[&cffs, "fsck", "-n", device],
            Kind::Ext4 | Kind::Fuse2fs => &["fsck.ext4", "-f", "-n", device],
            Kind::Xfs => &["xfs_repair", "-n", device],
            Kind::Btrfs => &["btrfs", "check", "--readonly", device],
        };
        run(argv, Duration::from_secs(600)).map(drop)
    }
}

/// One that is mounted; unmounted when dropped.
#[derive(Debug)]
pub struct Mounted {
    // Dropped in this order: mount, process.
    guard: Guard,
    daemon: Option<Server>,
    kind: Kind,
    root: PathBuf,
}

impl Mounted {
    /// The most memory that its process has had, in bytes.
    pub fn peak_memory(&self) -> Option<u64> {
        self.daemon.as_ref().and_then(Server::peak_memory)
    }

    /// Seconds of the processors that its process has had.
    pub fn processor_seconds(&self) -> Option<f64> {
        self.daemon.as_ref().and_then(Server::processor_seconds)
    }

    /// Unmounts it, and waits until everything is on the device.
    ///
    /// # Errors
    /// When that fails.
    pub fn unmount(self) -> Result<()> {
        run(&["umount", &self.root.to_string_lossy()], LIMIT)?;
        self.guard.disarm();
        if let Some(daemon) = self.daemon {
            let status = daemon.wait_end(LIMIT)?;
            if !status.success() {
                bail!("the mount process of {} ended with {status}", self.kind);
            }
        }
        Ok(())
    }
}

/// A loop device; detached when dropped.
#[derive(Debug)]
pub struct Loop {
    guard: Guard,
    device: String,
}

impl Loop {
    /// Over a file, with direct I/O: a buffered loop device would serve reads from the host's page cache and merge writes in it,
    /// and the comparison would be worth nothing.
    ///
    /// # Errors
    /// When there is no loop device, or none with direct I/O.
    pub fn attach(file: &Path) -> Result<Loop> {
        let file = file.to_string_lossy();
        let device = run(&["losetup", "--direct-io=on", "--find", "--show", &file], LIMIT)?.trim().to_string();
        let found = Loop { guard: Guard::new(Cleanup::DetachLoop(device.clone())), device };
        let path = found.attribute("dio");
        let dio = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(dio.trim() == "1", "{} does not do direct I/O", found.device);
        Ok(found)
    }

    /// Says to the kernel, and so to whoever mounts it, whether it has an arm.
    ///
    /// # Errors
    /// When the kernel does not take it.
    pub fn set_rotational(&self, rotational: bool) -> Result<()> {
        let path = self.folder().join("queue/rotational");
        std::fs::write(&path, if rotational { "1" } else { "0" })
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Its path.
    pub fn device(&self) -> &str {
        &self.device
    }

    fn attribute(&self, name: &str) -> PathBuf {
        self.folder().join("loop").join(name)
    }

    /// Where the kernel shows it.
    fn folder(&self) -> PathBuf {
        Path::new("/sys/block").join(self.device.trim_start_matches("/dev/"))
    }

    /// Detaches it, and waits until the kernel has let go of the file.
    ///
    /// # Errors
    /// When it cannot be detached.
    pub fn detach(self) -> Result<()> {
        run(&["losetup", "-d", &self.device], LIMIT)?;
        let file = self.attribute("backing_file");
        self.guard.disarm();
        for _ in 0..200 {
            if !file.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}
