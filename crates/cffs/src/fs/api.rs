//! Arguments and results of the operations of [`crate::fs::Fs`], and the options of a mount.

pub use crate::cache::PrefetchMode;
use crate::format::{FileType, Ino};
pub use crate::journal::MetadataMode;
use crate::trace::Classes;

/// The user for whom an operation is done: the owner of a new file, charged by quotas. Only the superuser may use the
/// reserve of free space.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
}

impl Caller {
    /// The superuser.
    pub const ROOT: Caller = Caller { uid: 0, gid: 0 };

    /// Whether this is the superuser, who may use the reserve.
    pub fn privileged(&self) -> bool {
        self.uid == 0
    }
}

/// Permissions of a new file. A plain number converts into it, with a umask of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewPerm {
    /// Permission bits (12).
    pub bits: u16,
    /// Bits to remove, unless the directory has a default access control list, which replaces the umask.
    pub umask: u16,
}

impl From<u16> for NewPerm {
    fn from(bits: u16) -> NewPerm {
        NewPerm { bits, umask: 0 }
    }
}

/// How to set an extended attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetXattr {
    /// Fail if it is there.
    pub create: bool,
    /// Fail if it is not there.
    pub replace: bool,
    /// For an access control list: remove the set-group-id bit, because the caller is not in the file's group.
    pub drop_sgid: bool,
}

/// Attributes of a file. Times are nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number: constant for the file's life.
    pub ino: Ino,
    /// Generation: differs between files that have had the same number.
    pub generation: u32,
    /// Type.
    pub file_type: FileType,
    /// Permission bits (with set-uid, set-gid and sticky).
    pub perm: u16,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file (Linux encoding, 32 bits).
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space in units of 512 bytes, reserved space included.
    pub blocks: u64,
    /// Access time.
    pub atime: i64,
    /// Modification time.
    pub mtime: i64,
    /// Change time.
    pub ctime: i64,
    /// Birth time.
    pub btime: i64,
    /// Flags, as `FS_IOC_GETFLAGS` has them (see [`crate::format::inode::FLAGS`]).
    pub flags: u32,
    /// Best size of a transfer in bytes: a group for files, a block for anything else.
    pub transfer: u32,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeSpec {
    /// The current time.
    Now,
    /// Nanoseconds since 1970.
    At(i64),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct SetAttr {
    /// Permission bits (12).
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: truncates or extends with a hole.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<TimeSpec>,
    /// Modification time.
    pub mtime: Option<TimeSpec>,
}

setters!(SetAttr {
    perm: Option<u16>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    atime: Option<TimeSpec>,
    mtime: Option<TimeSpec>,
});

/// One entry of a directory listing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DirEntry {
    /// The name.
    pub name: Vec<u8>,
    /// Inode number.
    pub ino: Ino,
    /// Type of the file.
    pub file_type: FileType,
    /// Position after this entry, for the next call. Never 0; stays valid while the directory changes.
    pub cookie: u64,
    /// Attributes, when asked for.
    pub attr: Option<Attr>,
}

/// Numbers of statvfs(3), counted in fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatFs {
    /// Block size in bytes.
    pub block_size: u32,
    /// Fragment size in bytes; the unit of the counts below.
    pub frag_size: u32,
    /// Size of the file system.
    pub total: u64,
    /// Free.
    pub free: u64,
    /// Free for unprivileged users.
    pub available: u64,
    /// Inodes that exist or could be created.
    pub inodes: u64,
    /// Inodes that could still be created.
    pub inodes_free: u64,
}

/// Flags of rename.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fail if the target exists.
    pub no_replace: bool,
    /// Swap source and target.
    pub exchange: bool,
}

/// When reading updates access times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum AtimeMode {
    /// If older than the last change, or than a day.
    #[default]
    Relatime,
    /// Never.
    Noatime,
    /// Always.
    Strictatime,
}

/// Direct writes: long writes go to the device without a copy in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DirectWrite {
    /// On a device that is measured to be faster than the copy. Only with [`MountOptions::background`], because without the
    /// thread nothing depends on time.
    #[default]
    Fast,
    /// Never.
    Off,
    /// Whenever possible, also for short files. For tests.
    Always,
}

/// What is made durable before [`crate::fs::Fs::shutdown`] stops everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Everything, as by [`crate::fs::Fs::sync`].
    Flush,
    /// What the log takes: the operations so far, without dirty data of files.
    LogFlush,
    /// Nothing: what was not durable is lost, as in a crash.
    NoLogFlush,
}

/// Settings of a mount.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MountOptions {
    /// Write nothing. A log that has to be replayed is replayed in memory.
    pub read_only: bool,
    /// Leave the log alone: what is seen is what stands in place, which may be inconsistent after a crash. Only with
    /// [`MountOptions::read_only`]. For looking at a file system whose log cannot be replayed.
    pub no_recovery: bool,
    /// Cache size in bytes, for metadata, data and dirty pages together. Inodes in memory come on top.
    pub cache_bytes: usize,
    /// How metadata reaches the device.
    pub metadata: MetadataMode,
    /// Access times.
    pub atime: AtimeMode,
    /// Keep changes of nothing but times in memory until the inode is written for another reason, for fsync,
    /// [`crate::fs::Fs::sync`], the unmount, or a day.
    pub lazytime: bool,
    /// Interval of the background thread's writeback and commit: what a crash can undo of work that was not synced.
    pub commit_interval: std::time::Duration,
    /// Prefetching.
    pub prefetch: PrefetchMode,
    /// Discard freed space on the device.
    pub discard: bool,
    /// Run the threads for writeback, commits and readahead. Without them nothing happens that the caller did not ask for,
    /// which deterministic tests need.
    pub background: bool,
    /// Let fsync put the contents of small files into the log (design decision 8).
    pub fsync_in_log: bool,
    /// For measurements of conventional placement as in 1997: half of the files begin where the previous file of the directory
    /// ends, half at a random place of the allocation group. The value is the seed.
    pub scatter: Option<u64>,
    /// Small directories of a subtree share groups. Without it each directory has groups of its own, as in the papers, to
    /// measure what sharing is worth.
    pub subtrees: bool,
    /// Direct writes.
    pub direct_write: DirectWrite,
    /// What is traced from the first moment on. Nobody waits for it: until somebody reads the trace ([`crate::Fs::tracer`]), the
    /// buffer of each thread keeps its first MiB.
    pub trace: Classes,
}

setters!(MountOptions {
    read_only: bool,
    no_recovery: bool,
    cache_bytes: usize,
    metadata: MetadataMode,
    atime: AtimeMode,
    lazytime: bool,
    commit_interval: std::time::Duration,
    prefetch: PrefetchMode,
    discard: bool,
    background: bool,
    fsync_in_log: bool,
    scatter: Option<u64>,
    subtrees: bool,
    direct_write: DirectWrite,
    trace: Classes,
});

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            read_only: false,
            no_recovery: false,
            cache_bytes: 256 << 20,
            metadata: MetadataMode::Journal,
            atime: AtimeMode::Relatime,
            lazytime: false,
            commit_interval: std::time::Duration::from_secs(5),
            prefetch: PrefetchMode::Adaptive,
            discard: false,
            background: true,
            fsync_in_log: true,
            scatter: None,
            subtrees: true,
            direct_write: DirectWrite::default(),
            trace: Classes::NONE,
        }
    }
}
