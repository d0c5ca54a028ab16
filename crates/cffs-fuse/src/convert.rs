//! Conversions between the engine's types and those of FUSE.

use cffs::{Attr, FileType, SetAttr, TimeSpec};
use fuser::{FileAttr, INodeNo, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) fn file_type(t: FileType) -> fuser::FileType {
    match t {
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::Directory => fuser::FileType::Directory,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Socket => fuser::FileType::Socket,
    }
}

pub(crate) fn attr(a: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(a.ino),
        size: a.size,
        blocks: a.blocks,
        atime: from_nanos(a.atime),
        mtime: from_nanos(a.mtime),
        ctime: from_nanos(a.ctime),
        // Only the protocol of macOS has a field for it in fuser. Linux asks with STATX, which fuser lacks.
        crtime: from_nanos(a.btime),
        kind: file_type(a.file_type),
        perm: a.perm,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: a.transfer,
        flags: 0,
    }
}

/// The reply that there is no such name, which may be cached: number 0 and nothing else.
pub(crate) fn no_entry() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

fn from_nanos(ns: i64) -> SystemTime {
    let d = Duration::from_nanos(ns.unsigned_abs());
    if ns >= 0 { UNIX_EPOCH + d } else { UNIX_EPOCH - d }
}

/// Nanoseconds of a time from the kernel, clamped to the range of the type.
fn to_nanos(t: SystemTime) -> i64 {
    match t.duration_since(UNIX_EPOCH) {
        Ok(d) => i64::try_from(d.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => {
            // The kernel says "-2 s + 0.8 s" for 1.2 s before 1970, and fuser 0.18 makes -2.8 s of it. Undo that.
            let d = before.duration();
            let ns = i128::from(d.subsec_nanos()) - i128::from(d.as_secs()) * 1_000_000_000;
            i64::try_from(ns).unwrap_or(i64::MIN)
        }
    }
}

pub(crate) fn time(t: TimeOrNow) -> TimeSpec {
    match t {
        TimeOrNow::Now => TimeSpec::Now,
        TimeOrNow::SpecificTime(t) => TimeSpec::At(to_nanos(t)),
    }
}

/// The change that a SETATTR requests.
pub(crate) fn set_attr(
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    atime: Option<TimeOrNow>,
    mtime: Option<TimeOrNow>,
) -> SetAttr {
    SetAttr::default()
        .perm(mode.map(permissions))
        .uid(uid)
        .gid(gid)
        .size(size)
        .atime(atime.map(time))
        .mtime(mtime.map(time))
}

/// The twelve permission bits of a mode.
pub(crate) fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// The type of a mode, if it is one.
pub(crate) fn mode_type(mode: u32) -> Option<FileType> {
    FileType::from_mode((mode & 0xffff) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_after_1970_go_both_ways() {
        for ns in [0, 1, 999_999_999, 1_000_000_000, 1_700_000_000_123_456_789, i64::MAX] {
            assert_eq!(to_nanos(from_nanos(ns)), ns);
        }
    }

    #[test]
    fn times_before_1970_as_fuser_delivers_them() {
        // What fuser makes of the kernel's (-2 s, 800,000,000 ns).
        let t = UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(to_nanos(t), -1_200_000_000);
        assert_eq!(to_nanos(UNIX_EPOCH - Duration::new(5, 0)), -5_000_000_000);
        assert_eq!(from_nanos(-1_200_000_000), UNIX_EPOCH - Duration::new(1, 200_000_000));
        assert_eq!(from_nanos(i64::MIN), UNIX_EPOCH - Duration::from_nanos(1 << 63));
    }

    #[test]
    fn times_out_of_range_are_clamped() {
        assert_eq!(to_nanos(UNIX_EPOCH + Duration::from_secs(1 << 40)), i64::MAX);
        assert_eq!(to_nanos(UNIX_EPOCH - Duration::from_secs(1 << 40)), i64::MIN);
    }

    #[test]
    fn modes() {
        assert_eq!(permissions(0o104_755), 0o4755);
        assert_eq!(mode_type(0o100_644), Some(FileType::Regular));
        assert_eq!(mode_type(0o010_600), Some(FileType::Fifo));
        assert_eq!(mode_type(0o644), None);
    }
}
