//! The inode: a core of 120 bytes and an inline area behind it.
//!
//! Alike wherever it stands: embedded in a directory entry, in a slot of the external inode table, or in the system
//! area. The inline area holds the file's contents (very small files, symbolic link targets), up to a few extents, or
//! the root of the extent tree.

use super::extent::{Child, EXTENT_SIZE, Extent, TREE_HEIGHT_MAX};
use super::{Corrupt, Ino, corrupt, get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};

/// Bytes before the inline area.
pub const INODE_CORE_SIZE: usize = 120;
/// Inline area of an inode unless its creation asked for another.
pub const INLINE_DEFAULT: usize = 64;
/// Largest inline area: its length is stored in units of eight bytes in one byte.
pub const INLINE_MAX: usize = 255 * 8;

/// Flag: writes are durable when they return (`FS_SYNC_FL`).
pub const FLAG_SYNC: u32 = 0x8;
/// Flag: nothing of the file changes, nor its names (`FS_IMMUTABLE_FL`).
pub const FLAG_IMMUTABLE: u32 = 0x10;
/// Flag: a file only grows, at its end; of a directory, names are only added (`FS_APPEND_FL`).
pub const FLAG_APPEND: u32 = 0x20;
/// Flag: dump(8) leaves it out; kept for programs that ask (`FS_NODUMP_FL`).
pub const FLAG_NODUMP: u32 = 0x40;
/// Flag: reading does not change the access time (`FS_NOATIME_FL`).
pub const FLAG_NOATIME: u32 = 0x80;
/// Flag of a directory: changes of its names are durable when they return (`FS_DIRSYNC_FL`).
pub const FLAG_DIRSYNC: u32 = 0x1_0000;
/// All flags that there are.
pub const FLAGS: u32 =
    FLAG_SYNC | FLAG_IMMUTABLE | FLAG_APPEND | FLAG_NODUMP | FLAG_NOATIME | FLAG_DIRSYNC | FLAG_PROJECT_INHERIT;
/// Flags that a directory hands down to what is made in it (those for directories only to directories).
pub const FLAGS_INHERITED: u32 = FLAG_SYNC | FLAG_NODUMP | FLAG_NOATIME | FLAG_DIRSYNC | FLAG_PROJECT_INHERIT;
/// Flags that only directories have.
pub const FLAGS_OF_DIRS: u32 = FLAG_DIRSYNC | FLAG_PROJECT_INHERIT;

/// Flag of a directory: what is made in it belongs to its project, and nothing of another project comes in by a rename
/// or a link (the value of `FS_PROJINHERIT_FL`).
pub const FLAG_PROJECT_INHERIT: u32 = 0x2000_0000;

/// Type of a file; the values are those of `S_IFMT >> 12`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileType {
    /// Named pipe.
    Fifo = 1,
    /// Character device.
    CharDevice = 2,
    /// Directory.
    Directory = 4,
    /// Block device.
    BlockDevice = 6,
    /// Regular file.
    Regular = 8,
    /// Symbolic link.
    Symlink = 10,
    /// Socket.
    Socket = 12,
}

impl FileType {
    /// The type in the upper four bits of a mode.
    pub fn from_mode(mode: u16) -> Option<FileType> {
        Some(match mode >> 12 {
            1 => FileType::Fifo,
            2 => FileType::CharDevice,
            4 => FileType::Directory,
            6 => FileType::BlockDevice,
            8 => FileType::Regular,
            10 => FileType::Symlink,
            12 => FileType::Socket,
            _ => return None,
        })
    }
    /// The bits of a mode.
    pub fn mode_bits(self) -> u16 {
        (self as u16) << 12
    }
}

/// What the inline area holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InodeFormat {
    /// The contents: `size` bytes.
    Inline(Vec<u8>),
    /// Extents in order of their logical fragment; none for a file without allocated space.
    Extents(Vec<Extent>),
    /// Root of an extent tree: pointers to nodes of level `height - 1`.
    Tree {
        /// Levels of nodes below the root, 1 to 8.
        height: u8,
        /// The pointers, in order of their key.
        children: Vec<Child>,
    },
}

/// An inode in memory, as it stands on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Inode number.
    pub ino: Ino,
    /// Generation: changes when the number is used again.
    pub generation: u32,
    /// Type and permissions, as `st_mode`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names (for a directory: 2 and one for each subdirectory).
    pub nlink: u32,
    /// Flags, as `FS_IOC_GETFLAGS` has them: some of [`FLAGS`].
    pub flags: u32,
    /// Size in bytes.
    pub size: u64,
    /// Fragments allocated: data, extent tree, index, attributes.
    pub frags: u64,
    /// Access time, nanoseconds since 1970 (as all times).
    pub atime: i64,
    /// Modification time.
    pub mtime: i64,
    /// Change time.
    pub ctime: i64,
    /// Birth time.
    pub btime: i64,
    /// Directory: the directory it is named in. Other files: the directory of the name they were created under or
    /// last renamed to (a hint for placement and repair).
    pub parent: Ino,
    /// First block of extended attributes that do not fit the inode, 0 for none.
    pub xattr_block: u64,
    /// Extended attributes at the end of the inline area: a list ([`super::xattr`]), padded to a multiple of 8 bytes.
    pub xattrs: Vec<u8>,
    /// Project, for quotas.
    pub projid: u32,
    /// Directory: number of buckets of its hash index, 0 for none.
    pub index_buckets: u32,
    /// Directory: number of entries. Device: its number (`st_rdev`). Otherwise 0.
    pub aux: u64,
    /// Directory: block address of the group its files were last placed in, 0 for none. Orphan: next orphan, 0 at the end. Other
    /// regular file: the process that made it where files are placed by that, otherwise 0.
    pub hint: u64,
    /// Length in bytes of the inline area, a multiple of 8.
    pub inline_len: usize,
    /// Contents of the inline area.
    pub format: InodeFormat,
}

/// Bytes of the inline area that extended attributes leave at least: the first extent of a file fits.
pub const INLINE_LEAST: usize = EXTENT_SIZE;

const FORMAT_INLINE: u8 = 1;
const FORMAT_EXTENTS: u8 = 2;
const FORMAT_TREE: u8 = 3; // to 10: a tree of height 1 to 8

/// Bits of the address of the first block of extended attributes; the byte above them counts the inline ones.
pub const XATTR_BLOCK_BITS: u32 = 56;

/// Byte offset of the word with the first block of extended attributes and the length of the inline ones.
pub const INODE_XATTRS: usize = 88;
/// Byte offset of the hint within an inode.
pub const INODE_HINT: usize = 112;
/// Offset of [`Inode::aux`].
pub const INODE_AUX: usize = 104;

impl Inode {
    /// A new inode without contents.
    pub fn new(ino: Ino, mode: u16, now: i64) -> Inode {
        Inode {
            ino,
            generation: 1,
            mode,
            uid: 0,
            gid: 0,
            nlink: 1,
            flags: 0,
            size: 0,
            frags: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            parent: 0,
            xattr_block: 0,
            xattrs: Vec::new(),
            projid: 0,
            index_buckets: 0,
            aux: 0,
            hint: 0,
            inline_len: INLINE_DEFAULT,
            format: InodeFormat::Extents(Vec::new()),
        }
    }

    /// Type of the file. The mode was checked when the inode was decoded or made.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode).unwrap_or(FileType::Regular)
    }

    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Bytes of the inline area for contents or extents: what extended attributes leave of it.
    pub fn data_room(&self) -> usize {
        self.inline_len - self.xattrs.len()
    }

    /// Whether there are extended attributes.
    pub fn has_xattrs(&self) -> bool {
        self.xattr_block != 0 || !self.xattrs.is_empty()
    }

    /// Entries (extents or child pointers) that fit into the inline area.
    pub fn root_capacity(&self) -> usize {
        self.data_room() / EXTENT_SIZE
    }

    /// Bytes of the encoded inode.
    pub fn encoded_len(&self) -> usize {
        INODE_CORE_SIZE + self.inline_len
    }

    /// Encodes into `b`, which has [`Inode::encoded_len`] bytes; unused bytes of the inline area become zero.
    pub fn encode(&self, b: &mut [u8]) {
        put_u64(b, 0, self.ino);
        put_u32(b, 8, self.generation);
        put_u16(b, 12, self.mode);
        b[15] = (self.inline_len / 8) as u8;
        put_u32(b, 16, self.uid);
        put_u32(b, 20, self.gid);
        put_u32(b, 24, self.nlink);
        put_u32(b, 28, self.flags);
        put_u64(b, 32, self.size);
        put_u64(b, 40, self.frags);
        put_u64(b, 48, self.atime as u64);
        put_u64(b, 56, self.mtime as u64);
        put_u64(b, 64, self.ctime as u64);
        put_u64(b, 72, self.btime as u64);
        put_u64(b, 80, self.parent);
        debug_assert!(self.xattr_block < 1 << XATTR_BLOCK_BITS && self.xattrs.len().is_multiple_of(8));
        put_u64(b, INODE_XATTRS, self.xattr_block | ((self.xattrs.len() / 8) as u64) << XATTR_BLOCK_BITS);
        put_u32(b, 96, self.projid);
        put_u32(b, 100, self.index_buckets);
        put_u64(b, INODE_AUX, self.aux);
        put_u64(b, INODE_HINT, self.hint);
        let area = &mut b[INODE_CORE_SIZE..INODE_CORE_SIZE + self.inline_len];
        area.fill(0);
        let (area, xattrs) = area.split_at_mut(self.data_room());
        xattrs.copy_from_slice(&self.xattrs);
        let format = match &self.format {
            InodeFormat::Inline(data) => {
                area[..data.len()].copy_from_slice(data);
                FORMAT_INLINE
            }
            InodeFormat::Extents(list) => {
                for (slot, e) in area.chunks_exact_mut(EXTENT_SIZE).zip(list) {
                    slot.copy_from_slice(&e.encode());
                }
                FORMAT_EXTENTS
            }
            InodeFormat::Tree { height, children } => {
                for (slot, c) in area.chunks_exact_mut(EXTENT_SIZE).zip(children) {
                    slot.copy_from_slice(&c.encode());
                }
                FORMAT_TREE + height - 1
            }
        };
        b[14] = format;
    }

    /// Decodes an inode from the start of `b`. An unused slot (number 0) is an error too.
    pub fn decode(b: &[u8]) -> Result<Inode, Corrupt> {
        if b.len() < INODE_CORE_SIZE {
            return corrupt("inode: cut off");
        }
        let ino = get_u64(b, 0);
        let bad = |what: String| corrupt(format!("inode {ino}: {what}"));
        if ino == 0 {
            return bad("number is 0".into());
        }
        let inline_len = b[15] as usize * 8;
        let Some(area) = b.get(INODE_CORE_SIZE..INODE_CORE_SIZE + inline_len) else {
            return bad(format!("inline area of {inline_len} bytes does not fit its slot"));
        };
        let xattr_word = get_u64(b, INODE_XATTRS);
        let xattr_len = (xattr_word >> XATTR_BLOCK_BITS) as usize * 8;
        if xattr_len > inline_len {
            return bad(format!("{xattr_len} bytes of extended attributes in an inline area of {inline_len}"));
        }
        let (area, xattrs) = area.split_at(inline_len - xattr_len);
        if area.len() < INLINE_LEAST {
            // No map could grow in it.
            return bad(format!("{} bytes of the inline area for contents", area.len()));
        }
        let mode = get_u16(b, 12);
        let Some(file_type) = FileType::from_mode(mode) else {
            return bad(format!("mode {mode:#o} has no known file type"));
        };
        let size = get_u64(b, 32);
        if size > super::FILE_SIZE_MAX {
            return bad(format!("size {size} is too large"));
        }
        let format = match decode_format(b[14], file_type, size, area) {
            Ok(format) => format,
            Err(what) => return bad(what),
        };
        Ok(Inode {
            ino,
            generation: get_u32(b, 8),
            mode,
            uid: get_u32(b, 16),
            gid: get_u32(b, 20),
            nlink: get_u32(b, 24),
            flags: get_u32(b, 28),
            size,
            frags: get_u64(b, 40),
            atime: get_u64(b, 48) as i64,
            mtime: get_u64(b, 56) as i64,
            ctime: get_u64(b, 64) as i64,
            btime: get_u64(b, 72) as i64,
            parent: get_u64(b, 80),
            xattr_block: xattr_word & ((1 << XATTR_BLOCK_BITS) - 1),
            xattrs: xattrs.to_vec(),
            projid: get_u32(b, 96),
            index_buckets: get_u32(b, 100),
            aux: get_u64(b, INODE_AUX),
            hint: get_u64(b, INODE_HINT),
            inline_len,
            format,
        })
    }
}

/// Decodes the data area of an inode by the code of its format. The error says what is wrong with it.
fn decode_format(code: u8, file_type: FileType, size: u64, area: &[u8]) -> Result<InodeFormat, String> {
    match code {
        FORMAT_INLINE if file_type == FileType::Directory => Err("a directory with inline contents".into()),
        FORMAT_INLINE => match area.get(..size as usize) {
            Some(contents) => Ok(InodeFormat::Inline(contents.to_vec())),
            None => Err(format!("{size} bytes do not fit an inline area of {}", area.len())),
        },
        FORMAT_EXTENTS => {
            let mut list = Vec::new();
            let mut end = 0;
            for e in area.chunks_exact(EXTENT_SIZE).map(Extent::decode).take_while(|e| e.len != 0) {
                if e.logical < end || e.end() > super::extent::LOGICAL_END {
                    return Err(format!("extent at fragment {} overlaps its predecessor", e.logical));
                }
                end = e.end();
                list.push(e);
            }
            Ok(InodeFormat::Extents(list))
        }
        f if (FORMAT_TREE..FORMAT_TREE + TREE_HEIGHT_MAX).contains(&f) => {
            let slots = area.chunks_exact(EXTENT_SIZE).map(Child::decode);
            let children: Vec<Child> = slots.take_while(|c| c.block != 0).collect();
            if let Some(pair) = children.windows(2).find(|pair| pair[1].key <= pair[0].key) {
                return Err(format!("extent tree root is out of order at fragment {}", pair[1].key));
            }
            if children.is_empty() {
                return Err("extent tree without children".into());
            }
            Ok(InodeFormat::Tree { height: f - FORMAT_TREE + 1, children })
        }
        f => Err(format!("unknown format {f}")),
    }
}
