//! Mounts that are just ending.
//!
//! umount(2), and so `umount DIR`, may come back from a mount of type `fuse` while the process that served it still writes what is
//! left. Whoever takes the image up next waits for that process, instead of failing because the image is in use.

use crate::member_search;
use cffs_fuse::views_of;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{major, minor};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest time to wait for a process that writes what is left.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long that need not be said.
const SILENCE: Duration = Duration::from_secs(2);
/// How often to look whether the process is one that has just begun a mount, not one that ends it.
const INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// If the image is not mounted any more but the process that served the mount is still there, waits for its end. False
/// if there is nothing to wait for, or it was in vain.
pub fn wait_for_server(image: &Path) -> bool {
    let Ok(image) = image.canonicalize() else { return false };
    // Who serves a snapshot of it serves that until it is unmounted.
    if !views_of(&image).is_empty() {
        return false;
    }
    let Some(pid) = server_of(&image) else { return false };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return true };
    tracing::info!(image = %image.display(), pid = pid.as_raw_pid(), "waiting for the end of a mount");
    let (start, mut told) = (Instant::now(), false);
    while !is_mounted(&image) && start.elapsed() < PATIENCE {
        if !told && start.elapsed() >= SILENCE {
            told = true;
            let pid = pid.as_raw_pid();
            eprintln!(
                "cffs: {}: waiting for process {pid}, which has served a mount of it, to write what is left",
                image.display()
            );
        }
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&INTERVAL)) {
            Ok(0) | Err(Errno::INTR) => {}
            ended => return ended.is_ok(),
        }
    }
    false
}

/// Whether the image is mounted in this mount namespace.
fn is_mounted(image: &Path) -> bool {
    !member_search::places(image).is_empty()
}

/// The process that has locked the image, if it is one that serves a mount.
fn server_of(image: &Path) -> Option<Pid> {
    let meta = fs::metadata(image).ok()?;
    let inode = format!("{:02x}:{:02x}:{}", major(meta.dev()), minor(meta.dev()), meta.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let pid = locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&inode.as_str())).then(|| fields[4].parse().ok())?
    })?;
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    serves(&line).then(|| Pid::from_raw(pid))?
}

/// Whether a command line (arguments that end with zeros) is that of a mount.
fn serves(line: &[u8]) -> bool {
    let mut args = line.split(|b| *b == 0).map(OsStr::from_bytes);
    let name = args.next().map(Path::new).and_then(Path::file_name);
    name == Some(OsStr::new("cffs")) && args.next() == Some(OsStr::new("mount"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_servers() {
        assert!(serves(b"cffs\0mount\0--serve\0--\0/images/one\0/mnt\0"));
        assert!(serves(b"/usr/bin/cffs\0mount\0-f\0/images/one\0/mnt\0"));
        assert!(!serves(b"cffs\0import\0dir\0/images/one\0"));
        assert!(!serves(b"grep\0mount\0/images/one\0"));
        assert!(!serves(b""));
    }
}
