//! Whether what was to be read from a disk was: a mount can be warm although it was unmounted before.
//!
//! `umount` takes a file system from one place. While another mount namespace has it too (whoever is made with `unshare --mount`
//! meanwhile gets a copy of all mounts), the kernel keeps it and all that it has cached, and the next mount of the device gets
//! that. So before a mount that is to be cold nobody may have the device, and afterwards the bytes that came are counted.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{Advice, Mode, OFlags, fadvise, open};
use rustix::io::Errno;

/// Times that a phase is tried which changes nothing.
pub const TRIES: usize = 3;
/// How long an unmounted file system may take to let go of its device.
const LET_GO: Duration = Duration::from_secs(5);
/// An inode and its name: the smallest of the file systems compared has 120 bytes, and a byte of name.
const NAME_BYTES: u64 = 121;

/// What a phase returned to its program, if nothing of it was in memory before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Returned {
    /// Bytes of file contents. None of the file systems compresses by default, and what lies in inodes or trees has to be read
    /// too; holes and files with the same extents do not count.
    pub contents: u64,
    /// Names that were found with their inodes.
    pub names: u64,
}

impl Returned {
    /// The least that the disk must have been asked for.
    fn least(self) -> u64 {
        self.contents + self.names * NAME_BYTES
    }

    /// Whether a part of it was in memory, if the disk gave so many bytes from before the mount to the end of the phase.
    pub fn was_warm(self, read_bytes: u64) -> bool {
        read_bytes < self.least()
    }

    /// What is said of a warm one.
    pub fn said(self, read_bytes: u64) -> String {
        format!(
            "was warm: the disk gave {:.2} MB of at least {:.2}, so there is no verdict on it",
            read_bytes as f64 / 1e6,
            self.least() as f64 / 1e6
        )
    }
}

/// Makes what is known of an unmounted device go: its pages, and a file system on it that another mount namespace keeps.
///
/// # Errors
/// When the device cannot be opened.
pub fn cool(device: &str) -> Result<()> {
    // Programs that wrote to the device itself may have left pages.
    let file = File::options().read(true).write(true).open(device).with_context(|| format!("cannot open {device}"))?;
    file.sync_all()?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    drop(file);
    let deadline = Instant::now() + LET_GO;
    while is_held(device)? {
        if Instant::now() >= deadline {
            let holders = holders(device);
            let who: Vec<&str> = holders.iter().map(|(who, _)| who.as_str()).collect();
            eprintln!("{device} is still in use ({}): all clean caches are dropped", who.join(", "));
            // An unmount that was not the last has written nothing, and only what is clean can be dropped. (Not sync(2): that
            // waits for mounts of others.)
            if let Some(root) = holders.iter().find_map(|(_, at)| File::open(at).ok()) {
                rustix::fs::syncfs(&root)?;
            }
            return drop_caches();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Makes the kernel drop all that it could read again, also of file systems that are mounted.
///
/// # Errors
/// Without root.
pub fn drop_caches() -> Result<()> {
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop the kernel's caches (not root?)")
}

/// Whether a file system or a program has the device to itself.
fn is_held(device: &str) -> Result<bool> {
    match open(device, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => Ok(false),
        Err(Errno::BUSY) => Ok(true),
        Err(error) => Err(error).with_context(|| format!("cannot open {device}")),
    }
}

/// Processes that see the device mounted, and where we find their mount.
fn holders(device: &str) -> Vec<(String, PathBuf)> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    processes
        .filter_map(|process| {
            let mounts = std::fs::read_to_string(process.join("mounts")).ok()?;
            let mut found = mounts.lines().map(|line| line.split(' '));
            let at = found.find_map(|mut words| words.next().filter(|d| *d == device).and(words.next()))?;
            let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
            let who = format!("{} {}", name.trim(), process.file_name()?.to_string_lossy());
            Some((who, process.join("root").join(at.trim_start_matches('/'))))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounted::{Kind, Loop};
    use crate::process::run_command;
    use crate::served::{Counted, Served, Sparse};
    use cffs_testenv::{Need, have, skipped};
    use std::path::Path;
    use std::process::Command;
    use std::sync::Arc;

    #[test]
    fn fewer_bytes_than_were_returned_are_warm() {
        // The case that was met: 1,000 files of 5 MB, and 0.3 MB from the disk.
        let read = Returned { contents: 5_000_000, names: 1080 };
        assert!(read.was_warm(300_000));
        assert!(read.was_warm(5_000_000), "names and inodes must have come too");
        assert!(!read.was_warm(5_000_000 + 1080 * NAME_BYTES));
        let walk = Returned { contents: 0, names: 1080 };
        assert!(walk.was_warm(8192));
        assert!(!walk.was_warm(160_000));
        assert!(!Returned::default().was_warm(0), "what is only written needs nothing from the disk");
        assert!(read.said(300_000).contains("0.30 MB of at least 5.13"), "{}", read.said(300_000));
    }

    /// Reads a file of a mount and returns what the disk gave since before the mount.
    fn read_cold(medium: &Counted<Sparse>, device: &str, root: &Path) -> u64 {
        let before = medium.counters();
        let mounted = Kind::Ext4.mount(Path::new(""), "", device, root).unwrap();
        assert_eq!(std::fs::read(root.join("file")).unwrap().len(), 4 << 20);
        mounted.unmount().unwrap();
        (medium.counters() - before).read_bytes
    }

    #[test]
    fn what_another_namespace_keeps_is_noticed_and_dropped() {
        if !have(&[Need::Root, Need::Fuse, Need::Loop, Need::Program("unshare")]) {
            return;
        }
        if let Some(missing) = Kind::Ext4.missing(Path::new("")) {
            return skipped("ext4", &format!("there is no {missing}"));
        }
        let temp = tempfile::tempdir().unwrap();
        let (at, root) = (temp.path().join("disk"), temp.path().join("mnt"));
        std::fs::create_dir(&at).unwrap();
        std::fs::create_dir(&root).unwrap();
        let medium = Arc::new(Counted::new(Sparse::create(&temp.path().join("image"), 64 << 20).unwrap()));
        let served = Served::start(medium.clone(), &at).unwrap();
        let over = Loop::attach(&served.file()).unwrap();
        Kind::Ext4.format(Path::new(""), &[], over.device()).unwrap();
        let mounted = Kind::Ext4.mount(Path::new(""), "", over.device(), &root).unwrap();
        std::fs::write(root.join("file"), vec![7; 4 << 20]).unwrap();
        // A namespace of its own, with a copy of this mount in it.
        let mut other = Command::new("unshare").args(["--mount", "sleep", "60"]).spawn().unwrap();
        let has_it = || std::fs::read_link(format!("/proc/{}/ns/mnt", other.id())).ok();
        while has_it() == std::fs::read_link("/proc/self/ns/mnt").ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
        mounted.unmount().unwrap();

        // The superblock keeps a few blocks of inodes, however often caches are dropped.
        let returned = Returned { contents: 4 << 20, names: 0 };
        assert!(is_held(over.device()).unwrap());
        assert!(holders(over.device()).iter().any(|(who, _)| who.ends_with(&format!(" {}", other.id()))));
        // In one of a few attempts, because a kernel that is short of memory may have dropped all of it by itself.
        let warm = (0..5).any(|_| returned.was_warm(read_cold(&medium, over.device(), &root)));
        assert!(warm, "this is what has to be noticed");
        cool(over.device()).unwrap();
        let read = read_cold(&medium, over.device(), &root);
        assert!(!returned.was_warm(read), "{read} bytes");

        other.kill().unwrap();
        other.wait().unwrap();
        cool(over.device()).unwrap();
        assert!(!is_held(over.device()).unwrap());
        over.detach().unwrap();
        served.stop().unwrap();
        let mut list = Command::new("losetup");
        list.arg("-a");
        assert!(!run_command(list, Duration::from_secs(10)).unwrap().contains(&*temp.path().to_string_lossy()));
    }
}
