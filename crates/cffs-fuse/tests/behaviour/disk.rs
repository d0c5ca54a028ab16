//! A small device with a file system on it: ext4, XFS or cffs, mounted in the same way.

use cffs_testenv::{Need, have, skipped};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// Bytes of a device. mkfs.xfs makes none smaller than 300 MiB.
const SIZE: u64 = 320 << 20;

/// A file system that is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ext4,
    Xfs,
    Cffs,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Cffs];

    /// False, with a message that cannot be overlooked, where this machine cannot mount it.
    pub fn is_there(self) -> bool {
        let programs = ["losetup", "mount", "umount", "timeout", "python3", "cp", "fallocate"].map(Need::Program);
        if !have(&[Need::Root, Need::Loop]) || !have(&programs) {
            return false;
        }
        match self {
            Kind::Ext4 => have(&["mkfs.ext4", "e2fsck", "dumpe2fs"].map(Need::Program)) && is_known("ext4"),
            Kind::Xfs => have(&["mkfs.xfs", "xfs_repair"].map(Need::Program)) && is_known("xfs"),
            Kind::Cffs => have(&[Need::Fuse]) && program().is_some(),
        }
    }
}

/// Whether the kernel has a file system, perhaps as a module that mount(8) loads.
fn is_known(name: &str) -> bool {
    let loaded = fs::read_to_string("/proc/filesystems").unwrap();
    let known = loaded.lines().any(|line| line.split_whitespace().last() == Some(name))
        || Command::new("modprobe").args(["-n", "-q", name]).status().is_ok_and(|s| s.success());
    if !known {
        skipped(name, "the kernel does not have this file system");
    }
    known
}

/// The program `cffs` beside the tests, built anew if a source is newer: `cargo test -p cffs-fuse` alone does not build it.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = PROGRAM.get_or_init(|| {
        let own = std::env::current_exe().unwrap();
        let path = own.parent()?.parent()?.join("cffs");
        let modified = |p: &Path| p.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
        let sources = ["cffs", "cffs-buf", "cffs-cli", "cffs-device", "cffs-fuse"].map(|c| crates.join(c).join("src"));
        if sources.iter().any(|dir| newest(dir) > modified(&path)) {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "-q", "-p", "cffs-cli", "--bin", "cffs"]).current_dir(crates);
            if path.parent().is_some_and(|p| p.ends_with("release")) {
                cargo.arg("--release");
            }
            assert!(cargo.status().unwrap().success(), "the program cffs cannot be built");
        }
        path.is_file().then_some(path)
    });
    if found.is_none() {
        skipped("cffs", "the cffs program is missing beside the tests");
    }
    found.as_deref()
}

/// When a file below `dir` was changed last.
fn newest(dir: &Path) -> SystemTime {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let times = entries.map(|p| if p.is_dir() { newest(&p) } else { p.metadata().unwrap().modified().unwrap() });
    times.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Runs a program for at most two minutes; its standard output, or what it complains about.
pub fn run(words: &[&str]) -> Result<String, String> {
    let out = Command::new("timeout").arg("120").args(words).output().unwrap();
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(format!("{words:?}: {} {}", out.status, String::from_utf8_lossy(&out.stderr).trim())),
    }
}

/// A loop device over an image in a temporary directory.
pub struct Disk {
    kind: Kind,
    device: String,
    tmp: tempfile::TempDir,
}

impl Disk {
    /// A fresh file system.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn new(kind: Kind) -> Disk {
        let disk = Disk::with_image(kind, |image| fs::File::create(image).unwrap().set_len(SIZE).unwrap());
        let device = disk.device();
        let made = match kind {
            // No background thread writes the tables later; root has no reserve that other users lack.
            Kind::Ext4 => run(&[
                "mkfs.ext4",
                "-q",
                "-b",
                "4096",
                "-m",
                "0",
                "-E",
                "lazy_itable_init=0,lazy_journal_init=0",
                device,
            ]),
            Kind::Xfs => run(&["mkfs.xfs", "-q", "-f", device]),
            Kind::Cffs => run(&[cffs(), "mkfs", "--force", device]),
        };
        made.unwrap();
        disk
    }

    fn with_image(kind: Kind, make: impl FnOnce(&Path)) -> Disk {
        let tmp = tempfile::Builder::new().prefix("cffs-behaviour-").tempdir().unwrap();
        // Other users have to get to the mount.
        fs::set_permissions(tmp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let image = tmp.path().join("image");
        make(&image);
        let device = run(&["losetup", "--find", "--show", image.to_str().unwrap()]).unwrap().trim().to_owned();
        Disk { kind, device, tmp }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The path of the block device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The file behind the device.
    fn image(&self) -> PathBuf {
        self.tmp.path().join("image")
    }

    /// What the device holds now, as a crash of this moment would leave it.
    pub fn copy(&self) -> Disk {
        Disk::with_image(self.kind, |to| {
            run(&["cp", "--sparse=always", self.image().to_str().unwrap(), to.to_str().unwrap()]).unwrap();
        })
    }

    /// Checks what the device holds, without changing it.
    ///
    /// # Errors
    /// What the check finds, also a log that waits for recovery.
    pub fn check(&self) -> Result<(), String> {
        let image = self.image();
        let image = image.to_str().unwrap();
        match self.kind {
            Kind::Ext4 => {
                let state = run(&["dumpe2fs", "-h", image])?;
                if state.contains("needs_recovery") {
                    return Err("the journal needs recovery".into());
                }
                run(&["e2fsck", "-f", "-n", image])
            }
            // It fails on a log that is not empty.
            Kind::Xfs => run(&["xfs_repair", "-n", "-f", image]),
            Kind::Cffs => {
                let info = run(&[cffs(), "info", image])?;
                match info.lines().find(|line| line.starts_with("state ")) {
                    Some(line) if line.ends_with(" clean") => run(&[cffs(), "fsck", "-n", image]),
                    line => Err(format!("not unmounted cleanly: {line:?}")),
                }
            }
        }
        .map(drop)
    }

    /// Mounts it at a directory of its own. Waits for a process that still serves an earlier mount: whether umount(2)
    /// waits for it is a behaviour of its own (`umount_complete`).
    ///
    /// # Panics
    /// When that fails.
    pub fn mount(&self) -> Mount<'_> {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            match self.try_mount("mnt", "") {
                Err(e) if e.contains("in use") && Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
                mounted => return mounted.unwrap(),
            }
        }
    }

    /// Mounts it at the directory `name` of its own, with further options.
    ///
    /// # Errors
    /// What mounting complains about.
    pub fn try_mount(&self, name: &str, options: &str) -> Result<Mount<'_>, String> {
        let dir = self.tmp.path().join(name);
        fs::create_dir_all(&dir).unwrap();
        let at = dir.to_str().unwrap();
        // XFS refuses a copy beside its original otherwise.
        let options = ["rw", if self.kind == Kind::Xfs { "nouuid" } else { "" }, options];
        let options = options.iter().filter(|o| !o.is_empty()).copied().collect::<Vec<_>>().join(",");
        match self.kind {
            Kind::Ext4 => run(&["mount", "-t", "ext4", "-o", &options, &self.device, at])?,
            Kind::Xfs => run(&["mount", "-t", "xfs", "-o", &options, &self.device, at])?,
            Kind::Cffs => run(&[cffs(), "mount", "-o", &options, &self.device, at])?,
        };
        Ok(Mount { dir, _disk: self })
    }
}

/// The program, of which [`Kind::is_there`] has made sure.
fn cffs() -> &'static str {
    program().and_then(Path::to_str).expect("the program cffs")
}

impl Drop for Disk {
    fn drop(&mut self) {
        // If a mount process still has it open, the kernel detaches it afterwards.
        let _ = run(&["losetup", "-d", &self.device]);
    }
}

/// A mounted one; unmounts when dropped.
pub struct Mount<'d> {
    dir: PathBuf,
    _disk: &'d Disk,
}

impl Mount<'_> {
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of a name in it, as text.
    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }

    /// Unmounts by the system call alone.
    ///
    /// # Panics
    /// When it stays busy.
    pub fn unmount(self) {
        let unmount = || Ok(rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::empty())?);
        cffs_testenv::when_not_busy(unmount).unwrap_or_else(|e| panic!("{}: {e}", self.dir.display()));
        std::mem::forget(self);
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let dir = self.dir.to_str().unwrap();
        if run(&["umount", dir]).is_err() {
            let _ = run(&["umount", "-l", dir]);
        }
    }
}
