//! Metadata blocks: the header that each begins with, its checksum, and the check of both.

use super::crc::crc32c_without;
use super::types::{BlockAddr, Corrupt, corrupt, get_u32, get_u64, put_u32, put_u64};

/// Size in bytes of the header that every metadata block starts with.
pub const META_HEADER_SIZE: usize = 64;

/// What a metadata block is; the value is its magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum BlockKind {
    /// Header of an allocation group; owner is the group's number.
    AgHeader = 0x4841_4643,
    /// Piece of an allocation group's free-space bitmap; owner is the group's number.
    Bitmap = 0x4D42_4643,
    /// File system counters (in the system area).
    Counters = 0x5953_4643,
    /// Block of system inodes (in the system area).
    SystemInodes = 0x4953_4643,
    /// Directory block: entries with embedded inodes; owner is the directory.
    Dir = 0x5244_4643,
    /// Bucket of a directory's hash index; owner is the directory.
    DirIndex = 0x5844_4643,
    /// Node of an extent B+tree; owner is the file.
    ExtentNode = 0x5845_4643,
    /// Block of the inode locator table; owner is `LOCATOR_INO`.
    Locator = 0x4F4C_4643,
    /// Block of the external inode table; owner is `EXTERNAL_INO`.
    ExternalInodes = 0x4945_4643,
    /// Occupancy map of a slotted table; owner is the table.
    TableMap = 0x4D54_4643,
    /// Extended attributes; owner is the file.
    Xattr = 0x4158_4643,
    /// Records of users, groups or projects; owner is the quota file.
    Quota = 0x5451_4643,
    /// Checksums of file data; owner is the allocation group's number.
    DataSums = 0x5553_4643,
}

impl BlockKind {
    /// All kinds.
    pub const ALL: [BlockKind; 13] = [
        BlockKind::AgHeader,
        BlockKind::Bitmap,
        BlockKind::Counters,
        BlockKind::SystemInodes,
        BlockKind::Dir,
        BlockKind::DirIndex,
        BlockKind::ExtentNode,
        BlockKind::Locator,
        BlockKind::ExternalInodes,
        BlockKind::TableMap,
        BlockKind::Xattr,
        BlockKind::Quota,
        BlockKind::DataSums,
    ];

    /// The kind with this magic number.
    pub fn from_magic(magic: u32) -> Option<BlockKind> {
        Self::ALL.into_iter().find(|k| *k as u32 == magic)
    }

    /// The name used in messages.
    pub fn name(self) -> &'static str {
        match self {
            BlockKind::AgHeader => "allocation group header",
            BlockKind::Bitmap => "free-space bitmap",
            BlockKind::Counters => "counters",
            BlockKind::SystemInodes => "system inode block",
            BlockKind::Dir => "directory block",
            BlockKind::DirIndex => "directory index bucket",
            BlockKind::ExtentNode => "extent tree node",
            BlockKind::Locator => "inode locator block",
            BlockKind::ExternalInodes => "external inode block",
            BlockKind::TableMap => "table map",
            BlockKind::Xattr => "extended attribute block",
            BlockKind::Quota => "quota block",
            BlockKind::DataSums => "table of data checksums",
        }
    }
}

/// Identity that every metadata block carries: what it is, whose, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockId {
    /// What the block is.
    pub kind: BlockKind,
    /// Where it is.
    pub addr: BlockAddr,
    /// Inode or allocation group it belongs to.
    pub owner: u64,
}

/// Offset of the checksum in a metadata block.
pub const META_CRC: usize = 4;
/// Offset of the sequence number of the last transaction that changed the block.
pub const META_SEQ: usize = 32;
/// Offset of the first byte that belongs to the kind of block.
pub const META_SPECIFIC: usize = 40;

/// Writes the identity into a zeroed block. The checksum is set by [`seal`].
pub fn init_block(block: &mut [u8], fsid: u64, id: BlockId) {
    put_u32(block, 0, id.kind as u32);
    put_u64(block, 8, fsid);
    put_u64(block, 16, id.addr);
    put_u64(block, 24, id.owner);
}

/// Where a metadata block says that it is.
pub fn block_addr(block: &[u8]) -> u64 {
    get_u64(block, 16)
}

/// Owner field of a metadata block.
pub fn block_owner(block: &[u8]) -> u64 {
    get_u64(block, 24)
}

/// Sequence number of the last transaction that changed the block.
pub fn block_seq(block: &[u8]) -> u64 {
    get_u64(block, META_SEQ)
}

fn block_crc(block: &[u8]) -> u32 {
    crc32c_without(block, &[(META_CRC, 4)])
}

/// Sets sequence number and checksum; the last thing done before a block is written in place.
pub fn seal(block: &mut [u8], seq: u64) {
    put_u64(block, META_SEQ, seq);
    let crc = block_crc(block);
    put_u32(block, META_CRC, crc);
}

/// Makes the checksum of a sealed block wrong: it is known to be damaged.
pub fn spoil(block: &mut [u8]) {
    let crc = get_u32(block, META_CRC);
    put_u32(block, META_CRC, !crc);
}

/// Checks the checksum alone.
pub fn crc_ok(block: &[u8]) -> bool {
    get_u32(block, META_CRC) == block_crc(block)
}

/// Checks checksum and identity of a block read from the device.
pub fn verify_block(block: &[u8], fsid: u64, id: BlockId) -> Result<(), Corrupt> {
    let what = || format!("{} at block {}", id.kind.name(), id.addr);
    if block.len() < META_HEADER_SIZE {
        return corrupt(format!("{}: shorter than its header", what()));
    }
    let magic = get_u32(block, 0);
    if magic != id.kind as u32 {
        let found = match BlockKind::from_magic(magic) {
            Some(k) => format!("found a {}", k.name()),
            None if block.iter().all(|b| *b == 0) => "found zeros".to_string(),
            None => format!("magic number is {magic:#010x}"),
        };
        return corrupt(format!("{}: {found}", what()));
    }
    if !crc_ok(block) {
        return corrupt(format!("{}: checksum does not match", what()));
    }
    if get_u64(block, 8) != fsid {
        return corrupt(format!("{}: belongs to another file system", what()));
    }
    if get_u64(block, 16) != id.addr {
        return corrupt(format!("{}: was written for block {}", what(), get_u64(block, 16)));
    }
    if get_u64(block, 24) != id.owner {
        return corrupt(format!("{}: belongs to {} instead of {}", what(), get_u64(block, 24), id.owner));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_block_verifies_and_every_kind_of_damage_is_seen() {
        let id = BlockId { kind: BlockKind::Dir, addr: 77, owner: 12 };
        let mut b = vec![0u8; 4096];
        init_block(&mut b, 99, id);
        seal(&mut b, 5);
        assert_eq!(verify_block(&b, 99, id), Ok(()));
        assert_eq!(block_seq(&b), 5);
        assert!(verify_block(&b, 98, id).is_err(), "other file system");
        assert!(verify_block(&b, 99, BlockId { addr: 78, ..id }).is_err(), "misplaced");
        assert!(verify_block(&b, 99, BlockId { owner: 13, ..id }).is_err(), "other owner");
        assert!(verify_block(&b, 99, BlockId { kind: BlockKind::DirIndex, ..id }).is_err(), "other kind");
        for bit in (0..4096 * 8).step_by(97) {
            b[bit / 8] ^= 1 << (bit % 8);
            assert!(verify_block(&b, 99, id).is_err(), "bit {bit} flipped");
            b[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(verify_block(&b[..32], 99, id).is_err());
    }
}
