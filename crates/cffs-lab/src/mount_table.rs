//! The mount table of this machine.

use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

/// The mount points of this machine that are `dir` or lie below it.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else {
        return Vec::new();
    };
    table
        .split(|b| *b == b'\n')
        .filter_map(|line| line.split(|b| *b == b' ').nth(4))
        .map(unescape)
        .filter(|point| point.starts_with(dir))
        .collect()
}

/// Whether something is mounted at `dir` itself.
pub fn is_mounted(dir: &Path) -> bool {
    mounts_below(dir).iter().any(|point| point == dir)
}

/// The type of the file system that is mounted at `dir` itself.
pub fn type_of_mount(dir: &Path) -> Option<String> {
    let table = std::fs::read("/proc/self/mounts").ok()?;
    let fields = table.split(|b| *b == b'\n').map(|line| line.split(|b| *b == b' ').collect::<Vec<_>>());
    // The newest of several is the one that is seen.
    fields
        .filter(|f| f.len() > 2 && unescape(f[1]) == dir)
        .map(|f| String::from_utf8_lossy(f[2]).into_owned())
        .next_back()
}

/// Unmounts by umount(2) alone, without a helper, again while it is busy. Returns as soon as the system call does.
///
/// # Errors
/// When the system call fails, or it is busy for longer than `limit`.
pub fn unmount_when_idle(dir: &Path, limit: Duration) -> Result<()> {
    let end = Instant::now() + limit;
    while let Err(error) = unmount(dir, UnmountFlags::empty()) {
        ensure!(error == Errno::BUSY && Instant::now() < end, "umount(2) of {}: {error}", dir.display());
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// mountinfo writes blanks, tabs, newlines and backslashes as octal `\ooo`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'\\' && tail.len() >= 3 && tail[..3].iter().all(|b| (b'0'..=b'7').contains(b)) {
            let code = tail[..3].iter().fold(0u32, |sum, b| sum * 8 + u32::from(b - b'0'));
            bytes.push(code as u8);
            rest = &tail[3..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_unescaped() {
        assert_eq!(unescape(b"/a\\040b\\134c"), PathBuf::from("/a b\\c"));
        assert_eq!(unescape(b"/plain"), PathBuf::from("/plain"));
    }
}
