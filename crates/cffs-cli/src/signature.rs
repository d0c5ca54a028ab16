//! Recognizes what else may be on a device, so that mkfs does not destroy it and errors can say what it is.
//!
//! blkid(8) knows file systems, swap space, volumes and partition tables, and knows new ones sooner than we would. Only a
//! file system of ours it does not know.

use anyhow::{Context, anyhow, bail};
use cffs::check::repair::has_remains;
use cffs::device::{Device, FileDevice, IoKind};
use cffs::format::superblock::MAGIC;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io::ErrorKind;
use std::process::{Command, Stdio};

/// Bytes at which an image may have a superblock of a log disk, and how that begins (docs/format-log.md).
pub const LOG_DISK_SUPERBLOCKS: [u64; 2] = [0, 64 << 10];
const LOG_DISK_MAGIC: [u8; 8] = *b"cffsLOG\x01";

/// Names of the program: folders for root may not be in the path of a user.
const BLKID: [&str; 3] = ["blkid", "/usr/sbin/blkid", "/sbin/blkid"];
/// Exit codes of blkid(8): nothing is there; several things contradict each other.
const NOTHING: i32 = 2;
const AMBIVALENT: i32 = 8;

/// What the device holds, for people; `None` if there is nothing that is known.
///
/// # Errors
/// What reading reports; and when blkid(8) is missing or fails.
pub fn detect(dev: &FileDevice) -> anyhow::Result<Option<String>> {
    if !has_data(dev)? {
        return Ok(None);
    }
    match begins_as(dev)? {
        Some(Ours::FileSystem) => return Ok(Some("a cffs file system".into())),
        Some(Ours::LogDisk) => return Ok(Some("a cffs file system with the log layout".into())),
        Some(Ours::Member) => return Ok(Some("a member of a cffs volume".into())),
        None => {}
    }
    let out = run_blkid(dev)?;
    understand(out.status.code(), &String::from_utf8_lossy(&out.stdout)).ok_or_else(|| {
        let (path, errors) = (dev.path().display(), String::from_utf8_lossy(&out.stderr).into_owned());
        anyhow!("{path}: blkid cannot tell what it holds: {} ({})", errors.trim(), out.status)
    })
}

/// False for a file that is nothing but a hole, such as truncate(1) makes.
pub fn has_data(dev: &FileDevice) -> anyhow::Result<bool> {
    if dev.is_block_device() {
        return Ok(true);
    }
    let file = File::open(dev.path()).with_context(|| dev.path().display().to_string())?;
    Ok(seek(&file, SeekFrom::Data(0)) != Err(Errno::NXIO))
}

/// What of ours an image begins as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ours {
    /// The superblock of a file system.
    FileSystem,
    /// One of the two superblocks of a log disk.
    LogDisk,
    /// One of the two superblocks of a member of a volume.
    Member,
}

/// Looks for superblocks. That of a file system counts before the second one of a log disk or a member, which may be left from earlier times.
pub fn begins_as(dev: &dyn Device) -> anyhow::Result<Option<Ours>> {
    // A log disk and a member have theirs at the same places.
    for offset in LOG_DISK_SUPERBLOCKS {
        let mut sector = vec![0; dev.sector_size() as usize];
        if dev.len() < offset + sector.len() as u64 {
            break;
        }
        dev.read_at(IoKind::Super, offset, &mut sector)?;
        if sector.starts_with(&LOG_DISK_MAGIC) {
            return Ok(Some(Ours::LogDisk));
        }
        if cffs_volume::begins_as_member(&sector) {
            return Ok(Some(Ours::Member));
        }
        if offset == 0 && sector.starts_with(&MAGIC) {
            return Ok(Some(Ours::FileSystem));
        }
    }
    Ok(None)
}

/// What of ours is left on a device without superblocks, as far as a short look tells.
pub fn remains(dev: &dyn Device) -> Option<Ours> {
    if has_remains(dev) { Some(Ours::FileSystem) } else { cffs_logdisk::has_remains(dev).then_some(Ours::LogDisk) }
}

fn run_blkid(dev: &FileDevice) -> anyhow::Result<std::process::Output> {
    let path = dev.path().display();
    for name in BLKID {
        let mut command = Command::new(name);
        command.args(["-p", "-o", "export", "--"]).arg(dev.path()).stdin(Stdio::null());
        match command.output() {
            Ok(out) => return Ok(out),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e).with_context(|| format!("{path}: cannot find out what it holds: {name}")),
        }
    }
    bail!("{path}: cannot find out what it holds, because blkid (package util-linux) is not installed: install it")
}

/// What an exit code and the output of `blkid -p -o export` say; `None` if blkid has failed.
fn understand(code: Option<i32>, output: &str) -> Option<Option<String>> {
    let value = |name: &str| output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let found = match (code?, value("TYPE"), value("PTTYPE")) {
        (NOTHING, ..) => return Some(None),
        (AMBIVALENT, ..) => "several things that contradict each other, according to blkid".into(),
        (0, Some(kind), _) => match value("USAGE") {
            Some("filesystem") => format!("a file system of type {kind}"),
            Some("raid") => format!("a part of a volume of type {kind}"),
            Some("crypto") => format!("an encrypted volume of type {kind}"),
            _ if kind == "swap" => "swap space".into(),
            _ => format!("data of type {kind}"),
        },
        (0, None, Some(kind)) => format!("a partition table of type {kind}"),
        _ => return None,
    };
    Some(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_blkid() {
        let words = |code, text| understand(Some(code), text);
        assert_eq!(words(2, ""), Some(None));
        assert_eq!(words(0, "DEVNAME=x\nTYPE=bfs\nUSAGE=filesystem\n"), Some(Some("a file system of type bfs".into())));
        assert_eq!(words(0, "PTUUID=1\nPTTYPE=gpt\n"), Some(Some("a partition table of type gpt".into())));
        assert_eq!(words(0, "TYPE=swap\nUSAGE=other\n"), Some(Some("swap space".into())));
        let raid = "TYPE=linux_raid_member\nUSAGE=raid\n";
        assert_eq!(words(0, raid), Some(Some("a part of a volume of type linux_raid_member".into())));
        assert!(words(8, "").unwrap().unwrap().contains("contradict"));
        // It was killed, used in a wrong way, or says that there is something and not what.
        assert_eq!((understand(None, ""), words(4, ""), words(0, "")), (None, None, None));
    }
}
