//! The structures of `linux/fuse.h` as bytes: messages, which are read, and replies, which are written.
//!
//! All numbers are in the machine's byte order. Missing bytes of a short message read as zeros, and the engine refuses
//! values that make no sense.

use cffs::{Attr, FileType, Ino, SetAttr, StatFs, TimeSpec};
use std::time::Duration;

/// Bytes of `struct fuse_attr`, `fuse_entry_out` and `fuse_dirent` without its name.
const ATTR_LEN: usize = 88;
const ENTRY_LEN: usize = 40 + ATTR_LEN;
const DIRENT_LEN: usize = 24;

/// Bytes of `struct fuse_statx_out`.
const STATX_OUT_LEN: usize = 288;
/// `STATX_BASIC_STATS | STATX_BTIME` of statx(2): what a reply to STATX contains.
const STATX_ALL: u32 = 0xfff;
/// Flags of `struct statx` that stand for inode flags with the same numbers: append-only, immutable, no dump.
const STATX_ATTRIBUTES: u32 = 0x20 | 0x10 | 0x40;

/// The sender of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credentials {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
}

/// An entry of a listing.
pub(crate) struct Dirent<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) ino: Ino,
    pub(crate) file_type: FileType,
    /// The position to continue from.
    pub(crate) next: u64,
    /// For a listing with attributes, which takes a reference for the kernel. The directory itself and its parent have
    /// no attributes here, and get no reference.
    pub(crate) attr: Option<&'a Attr>,
}

/// Reads numbers one after the other.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((bytes, rest)) => {
                self.0 = rest;
                *bytes
            }
            None => [0; N],
        }
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    pub(crate) fn i32(&mut self) -> i32 {
        i32::from_ne_bytes(self.take())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    pub(crate) fn i64(&mut self) -> i64 {
        i64::from_ne_bytes(self.take())
    }

    /// Bytes up to a zero, which is skipped.
    pub(crate) fn name(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|b| *b == 0).unwrap_or(self.0.len());
        let name = &self.0[..end];
        self.0 = self.0.get(end + 1..).unwrap_or_default();
        name
    }

    /// The remaining bytes.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// `struct fuse_in_header`.
pub(crate) struct Header {
    pub(crate) opcode: u32,
    pub(crate) unique: u64,
    pub(crate) node: Ino,
    pub(crate) who: Credentials,
}

impl Header {
    /// Bytes of the structure.
    pub(crate) const LEN: usize = 40;

    pub(crate) fn read(bytes: &[u8]) -> Header {
        let mut r = Reader::new(bytes);
        let _len = r.u32();
        let (opcode, unique, node) = (r.u32(), r.u64(), r.u64());
        Header { opcode, unique, node, who: Credentials { uid: r.u32(), gid: r.u32(), pid: r.u32() } }
    }
}

/// `FATTR_KILL_SUIDGID`.
const KILL_SUIDGID: u32 = 1 << 11;

/// `struct fuse_setattr_in`: the change, and whether it drops set-id bits and capabilities.
pub(crate) fn set_attr(op: &[u8]) -> (SetAttr, bool) {
    let mut r = Reader::new(op);
    let valid = r.u32();
    let (_padding, _handle, size, _owner) = (r.u32(), r.u64(), r.u64(), r.u64());
    let seconds = [r.i64(), r.i64()];
    let _ctime = r.u64();
    let nanos = [r.u32(), r.u32()];
    let (_ctime_nanos, mode, _unused) = (r.u32(), r.u32(), r.u32());
    let (uid, gid) = (r.u32(), r.u32());
    let has = |bit: u32| valid & 1 << bit != 0;
    let time = |i: usize| {
        let ns = i128::from(seconds[i]) * 1_000_000_000 + i128::from(nanos[i]);
        TimeSpec::At(i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX }))
    };
    // FATTR_MODE, UID, GID, SIZE, ATIME, MTIME and, from bit 7, ATIME_NOW and MTIME_NOW.
    let when = |bit: u32, now: u32, i: usize| match (has(bit), has(now)) {
        (false, _) => None,
        (true, true) => Some(TimeSpec::Now),
        (true, false) => Some(time(i)),
    };
    let set = SetAttr::default()
        .perm(has(0).then_some(permissions(mode)))
        .uid(has(1).then_some(uid))
        .gid(has(2).then_some(gid))
        .size(has(3).then_some(size))
        .atime(when(4, 7, 0))
        .mtime(when(5, 8, 1));
    (set, valid & KILL_SUIDGID != 0)
}

/// The twelve permission bits of a mode.
pub(crate) fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// The type of a mode, if it is one.
pub(crate) fn mode_type(mode: u32) -> Option<FileType> {
    FileType::from_mode((mode & 0xffff) as u16)
}

/// Writes a reply into memory that the kernel reads.
pub(crate) struct Writer<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Writer<'a> {
        Writer { bytes, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends bytes. There is always room, because slots are as large as the largest message, and listings check
    /// before.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub(crate) fn u32(&mut self, n: u32) {
        self.put(&n.to_ne_bytes());
    }

    pub(crate) fn u64(&mut self, n: u64) {
        self.put(&n.to_ne_bytes());
    }

    /// `struct fuse_attr`.
    fn attr(&mut self, a: &Attr) {
        let times = [a.atime, a.mtime, a.ctime];
        self.u64(a.ino);
        self.u64(a.size);
        self.u64(a.blocks);
        times.iter().for_each(|t| self.put(&t.div_euclid(1_000_000_000).to_ne_bytes()));
        times.iter().for_each(|t| self.u32(t.rem_euclid(1_000_000_000) as u32));
        self.u32(u32::from(a.file_type.mode_bits()) | u32::from(a.perm));
        self.u32(a.nlink);
        self.u32(a.uid);
        self.u32(a.gid);
        self.u32(a.rdev);
        self.u32(a.transfer);
        self.u32(0);
    }

    /// `struct fuse_attr_out`.
    pub(crate) fn attr_out(&mut self, a: &Attr, ttl: Duration) {
        self.u64(ttl.as_secs());
        self.u32(ttl.subsec_nanos());
        self.u32(0);
        self.attr(a);
    }

    /// `struct fuse_statx_out`. The kernel uses number, type, birth time and what GETATTR brings too.
    pub(crate) fn statx_out(&mut self, a: &Attr, ttl: Duration) {
        let end = self.len + STATX_OUT_LEN;
        self.u64(ttl.as_secs());
        self.u32(ttl.subsec_nanos());
        self.put(&[0; 20]);
        self.u32(STATX_ALL);
        self.u32(a.transfer);
        self.u64(u64::from(a.flags & STATX_ATTRIBUTES));
        [a.nlink, a.uid, a.gid].iter().for_each(|n| self.u32(*n));
        self.u32(u32::from(a.file_type.mode_bits() | a.perm));
        [a.ino, a.size, a.blocks, u64::from(STATX_ATTRIBUTES)].iter().for_each(|n| self.u64(*n));
        for t in [a.atime, a.btime, a.ctime, a.mtime] {
            self.put(&t.div_euclid(1_000_000_000).to_ne_bytes());
            self.u32(t.rem_euclid(1_000_000_000) as u32);
            self.u32(0);
        }
        // Linux packs a device number into 32 bits: twelve of the major, and twenty of the minor around them.
        self.u32(a.rdev >> 8 & 0xfff);
        self.u32(a.rdev & 0xff | a.rdev >> 12 & 0xf_ff00);
        self.zeros_to(end);
    }

    /// `struct fuse_open_out`: no handle, flags, no backing file for passthrough.
    pub(crate) fn open_out(&mut self, flags: u32) {
        self.u64(0);
        self.u32(flags);
        self.u32(0);
    }

    /// `struct fuse_write_out`, and `fuse_getxattr_out`, which begins as it does.
    pub(crate) fn write_out(&mut self, n: u32) {
        self.u32(n);
        self.u32(0);
    }

    fn zeros_to(&mut self, end: usize) {
        self.bytes[self.len..end].fill(0);
        self.len = end;
    }

    /// `struct fuse_entry_out`. Without attributes it is the reply that there is no such name, which may be cached too.
    pub(crate) fn entry_out(&mut self, a: Option<&Attr>, name_ttl: Duration, ttl: Duration) {
        self.u64(a.map_or(0, |a| a.ino));
        self.u64(a.map_or(0, |a| u64::from(a.generation)));
        self.u64(name_ttl.as_secs());
        self.u64(ttl.as_secs());
        self.u32(name_ttl.subsec_nanos());
        self.u32(ttl.subsec_nanos());
        match a {
            Some(a) => self.attr(a),
            None => self.put(&[0; ATTR_LEN]),
        }
    }

    /// `struct fuse_kstatfs`.
    pub(crate) fn statfs(&mut self, s: &StatFs) {
        [s.total, s.free, s.available, s.inodes, s.inodes_free].iter().for_each(|n| self.u64(*n));
        [s.block_size, cffs::NAME_MAX as u32, s.frag_size].iter().for_each(|n| self.u32(*n));
        self.put(&[0; 28]);
    }

    /// `struct fuse_dirent`, or `fuse_direntplus` if a time to cache attributes is given. False if it does not fit
    /// `room`.
    pub(crate) fn dirent(&mut self, e: &Dirent<'_>, plus: Option<Duration>, room: usize) -> bool {
        let head = DIRENT_LEN + if plus.is_some() { ENTRY_LEN } else { 0 };
        let len = (head + e.name.len()).next_multiple_of(8);
        if self.len + len > room.min(self.bytes.len()) {
            return false;
        }
        let end = self.len + len;
        if let Some(ttl) = plus {
            self.entry_out(e.attr, ttl, ttl);
        }
        self.u64(e.ino);
        self.u64(e.next);
        self.u32(e.name.len() as u32);
        self.u32(u32::from(e.file_type.mode_bits()) >> 12);
        self.put(e.name);
        self.zeros_to(end);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr() -> Attr {
        Attr {
            ino: 7,
            generation: 3,
            file_type: FileType::Regular,
            perm: 0o4755,
            nlink: 2,
            uid: 1000,
            gid: 100,
            rdev: 0,
            size: 12_345,
            blocks: 32,
            atime: 1_500_000_000,
            mtime: -1_250_000_000,
            ctime: 0,
            btime: 0,
            flags: 0,
            transfer: 4096,
        }
    }

    #[test]
    fn attributes_have_the_layout_of_the_kernel() {
        let mut bytes = [0xaa; 256];
        let mut out = Writer::new(&mut bytes);
        out.attr_out(&attr(), Duration::from_millis(2500));
        assert_eq!(out.len(), 16 + ATTR_LEN);
        let mut r = Reader::new(&bytes);
        assert_eq!((r.u64(), r.u32(), r.u32()), (2, 500_000_000, 0));
        assert_eq!((r.u64(), r.u64(), r.u64()), (7, 12_345, 32));
        // 1.25 s before 1970 are two seconds before and three quarters after that.
        assert_eq!((r.i64(), r.i64(), r.i64()), (1, -2, 0));
        assert_eq!((r.u32(), r.u32(), r.u32()), (500_000_000, 750_000_000, 0));
        assert_eq!((r.u32(), r.u32(), r.u32(), r.u32()), (0o104_755, 2, 1000, 100));
        assert_eq!((r.u32(), r.u32(), r.u32()), (0, 4096, 0));
    }

    #[test]
    fn birth_times_and_device_numbers_have_the_layout_of_the_kernel() {
        let mut bytes = [0xaa; 512];
        let mut out = Writer::new(&mut bytes);
        let device = Attr { btime: -1, rdev: 0x1234_5678, flags: 0x30, ..attr() };
        out.statx_out(&device, Duration::from_secs(3));
        assert_eq!(out.len(), STATX_OUT_LEN);
        let at = |at: usize| Reader::new(&bytes[at..]).u32();
        assert_eq!((at(0), at(32), at(32 + 8), at(32 + 28)), (3, 0xfff, 0x30, 0o104_755));
        assert_eq!(Reader::new(&bytes[32 + 32..]).u64(), 7, "the number");
        let mut birth = Reader::new(&bytes[32 + 80..]);
        assert_eq!((birth.i64(), birth.u32()), (-1, 999_999_999));
        assert_eq!((at(32 + 128), at(32 + 132)), (0x456, 0x1_2378), "as gnu_dev_major and gnu_dev_minor say");
        assert_eq!(bytes[STATX_OUT_LEN], 0xaa, "and not a byte more");
    }

    #[test]
    fn modes() {
        assert_eq!(permissions(0o104_755), 0o4755);
        assert_eq!(mode_type(0o100_644), Some(FileType::Regular));
        assert_eq!(mode_type(0o010_600), Some(FileType::Fifo));
        assert_eq!(mode_type(0o644), None);
    }

    #[test]
    fn an_entry_or_that_there_is_none() {
        let mut bytes = [0xaa; 256];
        let mut out = Writer::new(&mut bytes);
        out.entry_out(Some(&attr()), Duration::ZERO, Duration::from_secs(9));
        assert_eq!(out.len(), ENTRY_LEN);
        let mut r = Reader::new(&bytes);
        assert_eq!((r.u64(), r.u64(), r.u64(), r.u64(), r.u64()), (7, 3, 0, 9, 0));
        let mut out = Writer::new(&mut bytes);
        out.entry_out(None, Duration::from_secs(5), Duration::from_secs(5));
        assert_eq!((out.len(), Reader::new(&bytes).u64()), (ENTRY_LEN, 0));
    }

    #[test]
    fn listings_are_aligned_and_end_where_there_is_no_room() {
        let entry = |name| Dirent { name, ino: 9, file_type: FileType::Directory, next: 77, attr: None };
        let mut bytes = [0xaa; 512];
        let mut out = Writer::new(&mut bytes);
        assert!(out.dirent(&entry(b"abc"), None, 64));
        assert_eq!(out.len(), 32);
        assert!(out.dirent(&entry(b"12345678"), None, 64));
        assert_eq!(out.len(), 64);
        assert!(!out.dirent(&entry(b"x"), None, 64), "what the kernel has asked for is full");
        assert_eq!(out.len(), 64);
        assert!(out.dirent(&entry(b"x"), Some(Duration::ZERO), 1 << 20));
        assert_eq!(out.len(), 64 + ENTRY_LEN + 32);
        assert!(!out.dirent(&entry(&[b'n'; 255]), Some(Duration::ZERO), 1 << 20), "the memory is full");
        let mut r = Reader::new(&bytes);
        assert_eq!((r.u64(), r.u64(), r.u32(), r.u32()), (9, 77, 3, 4));
        assert_eq!(r.rest()[..8], *b"abc\0\0\0\0\0");
    }

    #[test]
    fn a_change_of_attributes() {
        let mut op = [0u8; 128];
        op[..4].copy_from_slice(&(1u32 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8).to_ne_bytes());
        op[16..24].copy_from_slice(&99u64.to_ne_bytes());
        op[32..40].copy_from_slice(&(-2i64).to_ne_bytes());
        op[56..60].copy_from_slice(&800_000_000u32.to_ne_bytes());
        op[68..72].copy_from_slice(&0o100_640u32.to_ne_bytes());
        let (set, kill) = set_attr(&op);
        assert!(!kill);
        assert_eq!((set.perm, set.uid, set.gid, set.size), (Some(0o640), None, None, Some(99)));
        assert_eq!((set.atime, set.mtime), (Some(TimeSpec::At(-1_200_000_000)), Some(TimeSpec::Now)));
        assert_eq!(set_attr(&[]).0.size, None, "what is cut short asks for nothing");
    }

    #[test]
    fn names_one_after_the_other() {
        let mut r = Reader::new(b"old\0new\0rest");
        assert_eq!((r.name(), r.name()), (&b"old"[..], &b"new"[..]));
        assert_eq!((r.name(), r.name()), (&b"rest"[..], &b""[..]));
    }
}
