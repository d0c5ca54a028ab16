//! Sizes and places that follow from the superblock.

use super::log::LOG_HEADER_AREA;
use super::superblock::INCOMPAT_EXTERNAL_LOG;
pub use super::types::FRAGMENT_SIZE_MIN;
use super::{BlockAddr, Corrupt, FragAddr, Ino, LAST_SYSTEM_INO, META_HEADER_SIZE, Superblock, corrupt, sums};

/// Smallest block in bytes.
pub const BLOCK_SIZE_MIN: u32 = 512;
/// Largest block in bytes.
pub const BLOCK_SIZE_MAX: u32 = 64 * 1024;
/// Smallest group in bytes.
pub const GROUP_SIZE_MIN: u32 = 16 * 1024;
/// Largest group in bytes.
pub const GROUP_SIZE_MAX: u32 = 4 * 1024 * 1024;
/// Largest log in bytes. Recovery holds one transaction in memory, a quarter of the log at most.
pub const LOG_SIZE_MAX: u64 = 256 << 20;
/// Smallest log in bytes: the header area, and room for the largest transactions. One may reserve a fifth of the log,
/// so that others can go on while it is written, and a rename that splits directory blocks, index buckets, table chunks
/// and extent trees at once reserves a little more than 50 blocks: 72 blocks to the fifth. Never below 1 MiB, where every few hundred
/// operations would have to wait for a checkpoint.
pub fn log_bytes_min(block_size: u32) -> u64 {
    (LOG_HEADER_AREA + 360 * u64::from(block_size)).max(1 << 20)
}

/// Size in bytes of an inode slot in the system area and in the external inode table.
pub const INODE_SLOT_SIZE: usize = 256;
/// Blocks before the bitmap at the start of each allocation group: superblock (or copy) and group header.
pub const AG_FIXED_BLOCKS: u64 = 2;

/// Sizes and places of one file system. Plain numbers, cheap to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// First eight bytes of the uuid; stands in every metadata block.
    pub fsid: u64,
    /// log2 of the block size in bytes.
    pub block_shift: u32,
    /// log2 of the fragment size in bytes.
    pub frag_shift: u32,
    /// log2 of the group size in bytes.
    pub group_shift: u32,
    /// Size of the file system in blocks.
    pub total_blocks: u64,
    /// Size of an allocation group in blocks (the last one may be shorter); a multiple of the group.
    pub ag_blocks: u64,
    /// Number of allocation groups.
    pub ag_count: u64,
    /// First block of the system area.
    pub sys_start: BlockAddr,
    /// First block of the internal log; 0 when the log is on a device of its own.
    pub log_start: BlockAddr,
    /// Size of the log in blocks.
    pub log_blocks: u64,
    /// File data has checksums.
    pub data_sums: bool,
}

impl Geometry {
    /// Derives the geometry, checking every number that later arithmetic relies on.
    pub fn new(sb: &Superblock) -> Result<Geometry, Corrupt> {
        let (bs, fs, gs) = (sb.block_shift as u32, sb.frag_shift as u32, sb.group_shift as u32);
        if !(9..=16).contains(&bs) {
            return corrupt(format!("superblock: block size 2^{bs} is not between 512 and 65536"));
        }
        if !(9..=bs).contains(&fs) || bs - fs > 3 {
            return corrupt(format!("superblock: fragment size 2^{fs} does not fit block size 2^{bs}"));
        }
        if !(14..=22).contains(&gs) || gs < bs {
            return corrupt(format!("superblock: group size 2^{gs} does not fit block size 2^{bs}"));
        }
        if sb.total_blocks == 0 || sb.total_blocks > (1 << 63) >> bs {
            return corrupt(format!("superblock: {} blocks is not a possible size", sb.total_blocks));
        }
        let g = Geometry {
            fsid: sb.fsid(),
            block_shift: bs,
            frag_shift: fs,
            group_shift: gs,
            total_blocks: sb.total_blocks,
            ag_blocks: sb.ag_blocks,
            ag_count: sb.total_blocks.div_ceil(sb.ag_blocks.max(1)),
            sys_start: sb.sys_start,
            log_start: sb.log_start,
            log_blocks: sb.log_blocks,
            data_sums: sb.has_data_sums(),
        };
        if sb.ag_blocks == 0 || !sb.ag_blocks.is_multiple_of(g.group_blocks()) || sb.ag_blocks > 1 << 40 {
            return corrupt(format!("superblock: {} blocks is not a possible allocation group", sb.ag_blocks));
        }
        if g.sum_blocks() > sums::blocks_max(g.block_size()) {
            return corrupt(format!(
                "superblock: allocation groups of {} blocks are too large for tables of checksums",
                sb.ag_blocks
            ));
        }
        let last = g.ag_len(g.ag_count - 1);
        if last < g.ag_header_blocks() + 1 {
            return corrupt("superblock: the last allocation group has no room for its header");
        }
        let sys_end = sb.sys_start.checked_add(g.sys_blocks());
        if sb.sys_start != g.ag_header_blocks() || sys_end.is_none_or(|e| e > g.ag_len(0)) {
            return corrupt("superblock: the system area is not where it must be");
        }
        if sb.log_blocks > LOG_SIZE_MAX >> bs {
            return corrupt(format!("superblock: a log of {} blocks is too long", sb.log_blocks));
        }
        if sb.log_blocks << bs < log_bytes_min(1 << bs) {
            return corrupt(format!("superblock: a log of {} blocks is too short", sb.log_blocks));
        }
        let external = sb.incompat & INCOMPAT_EXTERNAL_LOG != 0;
        if external != (sb.log_start == 0) {
            return corrupt("superblock: the log is on a device of its own and has a place on this one, or neither");
        }
        let first = sb.sys_start + g.sys_blocks();
        if !external && (sb.log_start != first || first + sb.log_blocks > g.ag_len(0)) {
            return corrupt("superblock: the log is not where it must be");
        }
        Ok(g)
    }

    /// Whether a block is one of the log's.
    pub fn is_log(&self, addr: BlockAddr) -> bool {
        self.log_start != 0 && (self.log_start..self.log_start + self.log_blocks).contains(&addr)
    }

    /// Block size in bytes.
    #[inline]
    pub fn block_size(&self) -> usize {
        1 << self.block_shift
    }
    /// Fragment size in bytes.
    #[inline]
    pub fn frag_size(&self) -> usize {
        1 << self.frag_shift
    }
    /// Group size in bytes.
    pub fn group_size(&self) -> usize {
        1 << self.group_shift
    }
    /// Fragments in a block.
    #[inline]
    pub fn frags_per_block(&self) -> u64 {
        1 << (self.block_shift - self.frag_shift)
    }
    /// Blocks in a group.
    pub fn group_blocks(&self) -> u64 {
        1 << (self.group_shift - self.block_shift)
    }
    /// Fragments in a group.
    pub fn group_frags(&self) -> u64 {
        1 << (self.group_shift - self.frag_shift)
    }
    /// Size of the file system in fragments.
    pub fn total_frags(&self) -> u64 {
        self.total_blocks << (self.block_shift - self.frag_shift)
    }
    /// Fragments needed for so many bytes.
    #[inline]
    pub fn frags_for(&self, bytes: u64) -> u64 {
        (bytes >> self.frag_shift) + u64::from(bytes & (self.frag_size() as u64 - 1) != 0)
    }
    /// First fragment of a block.
    #[inline]
    pub fn frag_of_block(&self, block: BlockAddr) -> FragAddr {
        block << (self.block_shift - self.frag_shift)
    }
    /// Block that a fragment lies in.
    #[inline]
    pub fn block_of_frag(&self, frag: FragAddr) -> BlockAddr {
        frag >> (self.block_shift - self.frag_shift)
    }
    /// First block of the group that a block lies in.
    pub fn group_of(&self, block: BlockAddr) -> BlockAddr {
        block & !(self.group_blocks() - 1)
    }
    /// Size of the file system in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.total_blocks << self.block_shift
    }
    /// First block of an allocation group.
    pub fn ag_start(&self, ag: u64) -> BlockAddr {
        ag * self.ag_blocks
    }
    /// Number of blocks of an allocation group.
    pub fn ag_len(&self, ag: u64) -> u64 {
        self.ag_blocks.min(self.total_blocks - self.ag_start(ag))
    }
    /// Allocation group of a block.
    pub fn ag_of(&self, block: BlockAddr) -> u64 {
        block / self.ag_blocks
    }
    /// Bits in one bitmap block: one for each fragment.
    pub fn bits_per_bitmap(&self) -> u64 {
        (self.block_size() - META_HEADER_SIZE) as u64 * 8
    }
    /// Bitmap blocks of each allocation group (of the last one too, whatever its length).
    pub fn bitmap_blocks(&self) -> u64 {
        (self.ag_blocks * self.frags_per_block()).div_ceil(self.bits_per_bitmap())
    }
    /// Blocks at the start of each allocation group that hold its own description.
    pub fn ag_header_blocks(&self) -> u64 {
        AG_FIXED_BLOCKS + self.bitmap_blocks() + self.sum_blocks()
    }
    /// Checksums in one table block: those of so many fragments. A multiple of the fragments in a block.
    pub fn sums_per_block(&self) -> u64 {
        ((self.block_size() - META_HEADER_SIZE) / sums::SUM_SIZE) as u64
    }
    /// Blocks for checksums of data in each allocation group (of the last one too, whatever its length).
    pub fn sum_blocks(&self) -> u64 {
        if self.data_sums { (self.ag_blocks * self.frags_per_block()).div_ceil(self.sums_per_block()) } else { 0 }
    }
    /// Block of a table of checksums of an allocation group.
    pub fn sum_block(&self, ag: u64, index: u64) -> BlockAddr {
        self.ag_start(ag) + AG_FIXED_BLOCKS + self.bitmap_blocks() + index
    }
    /// Where the checksum of a fragment stands: allocation group, number of its table block, number within that.
    #[inline]
    pub fn sum_place(&self, frag: FragAddr) -> (u64, u64, u64) {
        let ag = self.ag_of(self.block_of_frag(frag));
        let within = frag - self.frag_of_block(self.ag_start(ag));
        let per = self.sums_per_block();
        (ag, within / per, within % per)
    }
    /// Block of the header of an allocation group.
    pub fn ag_header(&self, ag: u64) -> BlockAddr {
        self.ag_start(ag) + 1
    }
    /// Bitmap block of an allocation group.
    pub fn bitmap_block(&self, ag: u64, index: u64) -> BlockAddr {
        self.ag_start(ag) + AG_FIXED_BLOCKS + index
    }
    /// Inode slots in a block of the system area or of the external inode table (at least one).
    pub fn inodes_per_block(&self) -> u64 {
        ((self.block_size() - META_HEADER_SIZE) / INODE_SLOT_SIZE) as u64
    }
    /// Blocks of the system area: counters, then the system inodes.
    pub fn sys_blocks(&self) -> u64 {
        1 + LAST_SYSTEM_INO.div_ceil(self.inodes_per_block())
    }
    /// Block of the counters.
    pub fn counters_block(&self) -> BlockAddr {
        self.sys_start
    }
    /// Block and byte offset of a system inode.
    pub fn system_inode(&self, ino: Ino) -> (BlockAddr, usize) {
        debug_assert!((1..=LAST_SYSTEM_INO).contains(&ino));
        let n = ino - 1;
        let per = self.inodes_per_block();
        (self.sys_start + 1 + n / per, META_HEADER_SIZE + (n % per) as usize * INODE_SLOT_SIZE)
    }
    /// Blocks of allocation group 0 that are in use from the start (header, system area, internal log if it follows).
    pub fn fixed_blocks_of_ag0(&self) -> u64 {
        self.sys_start + self.sys_blocks()
    }
    /// More inodes than there can be, and no number is larger: numbers are given out from below, and the smallest inode
    /// takes 128 bytes.
    pub fn inodes_max(&self) -> u64 {
        (1 << 14) + self.total_bytes() / 64
    }
    /// True when a run of fragments lies inside the file system.
    pub fn contains(&self, frag: FragAddr, len: u64) -> bool {
        frag.checked_add(len).is_some_and(|end| end <= self.total_frags())
    }
    /// The same with another size.
    pub fn with_size(&self, total_blocks: u64) -> Geometry {
        Geometry { total_blocks, ag_count: total_blocks.div_ceil(self.ag_blocks), ..*self }
    }
    /// The geometry whose free space the counters describe: theirs is the size that counts while the superblock, which
    /// is written first, already tells of a larger one.
    pub fn of_counters(&self, counters: &super::system::Counters) -> Result<Geometry, Corrupt> {
        if counters.blocks == 0 || counters.blocks == self.total_blocks {
            return Ok(*self);
        }
        let g = self.with_size(counters.blocks);
        let bad = counters.blocks > self.total_blocks
            || g.ag_len(g.ag_count - 1) < g.ag_header_blocks() + 1
            || g.sys_start + g.sys_blocks() > g.total_blocks
            || g.log_start != 0 && g.log_start + g.log_blocks > g.total_blocks;
        if bad {
            let blocks = counters.blocks;
            return corrupt(format!("counters: {blocks} blocks, the superblock says {}", self.total_blocks));
        }
        Ok(g)
    }
    /// How many of so many blocks a file system with these allocation groups can use: a last group that has no room for
    /// its header and a group of blocks is left out.
    pub fn usable_blocks(&self, blocks: u64) -> u64 {
        let blocks = blocks.min((1 << 63) >> self.block_shift);
        let tail = blocks % self.ag_blocks;
        if blocks > self.ag_blocks && tail < self.ag_header_blocks() + self.group_blocks() {
            blocks - tail
        } else {
            blocks
        }
    }
    /// Default size of an allocation group in blocks for a file system of this size.
    pub fn default_ag_blocks(total_blocks: u64, block_shift: u32, frag_shift: u32, group_shift: u32) -> u64 {
        let group_blocks = 1u64 << (group_shift - block_shift);
        let bits = ((1u64 << block_shift) - META_HEADER_SIZE as u64) * 8;
        // At most 64 bitmap blocks in a group, so that loading one stays a single request of moderate size.
        let most = (64 * bits) >> (block_shift - frag_shift);
        let one_gib = (1u64 << 30) >> block_shift;
        let want = (total_blocks / 8).clamp((16 << 20) >> block_shift, one_gib).min(most);
        (want / group_blocks).max(1) * group_blocks
    }
}

/// The geometry of a file system that may grow while it is in use: dereferences to the current one, which only ever
/// becomes larger.
///
/// Growing happens a few times in the life of a mount, looking all the time, from every thread: so what was current once
/// stays readable, and a look costs one load.
pub struct LiveGeometry {
    first: Step,
}

struct Step {
    geometry: Geometry,
    next: std::sync::OnceLock<Box<Step>>,
}

impl LiveGeometry {
    /// Starts with this one.
    pub fn new(geometry: Geometry) -> LiveGeometry {
        LiveGeometry { first: Step { geometry, next: std::sync::OnceLock::new() } }
    }

    fn last(&self) -> &Step {
        let mut step = &self.first;
        while let Some(next) = step.next.get() {
            step = next;
        }
        step
    }

    /// From now on the file system has this size. Who calls sees to it that nobody else does at the same time.
    pub(crate) fn grow(&self, total_blocks: u64) {
        let last = self.last();
        debug_assert!(total_blocks > last.geometry.total_blocks);
        let geometry = last.geometry.with_size(total_blocks);
        let _ = last.next.set(Box::new(Step { geometry, next: std::sync::OnceLock::new() }));
    }
}

impl std::ops::Deref for LiveGeometry {
    type Target = Geometry;
    #[inline]
    fn deref(&self) -> &Geometry {
        &self.last().geometry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs::{MkfsOptions, plan};
    use cffs_device::MemoryDevice;

    fn geometry() -> Geometry {
        Geometry::new(&plan(&MemoryDevice::new(40 << 20), None, &MkfsOptions::default()).unwrap()).unwrap()
    }

    #[test]
    fn a_live_geometry_follows_and_what_was_seen_stays() {
        let live = LiveGeometry::new(geometry());
        let before: &Geometry = &live;
        let total = before.total_blocks;
        live.grow(total + 100);
        live.grow(3 * total);
        assert_eq!((before.total_blocks, live.total_blocks), (total, 3 * total));
        assert_eq!(live.ag_count, (3 * total).div_ceil(live.ag_blocks));
    }

    #[test]
    fn checksums_have_places_of_their_own() {
        for (block_size, frag) in [(512, 512), (4096, 512), (4096, 4096), (65536, 8192), (1024, 512)] {
            let o = MkfsOptions {
                block_size,
                frag_size: Some(frag),
                group_size: 64 << 10,
                data_sums: true,
                ..MkfsOptions::default()
            };
            let g = Geometry::new(&plan(&MemoryDevice::new(300 << 20), None, &o).unwrap()).unwrap();
            assert!(g.sums_per_block().is_multiple_of(g.frags_per_block()));
            assert_eq!(g.ag_header_blocks(), g.sum_block(0, g.sum_blocks()));
            assert_eq!(g.sum_block(0, 0), g.bitmap_block(0, g.bitmap_blocks()));
            let last = g.frag_of_block(g.ag_start(1)) - 1;
            let (ag, index, n) = g.sum_place(last);
            assert_eq!((ag, index), (0, g.sum_blocks() - 1));
            assert!(sums::sum_offset(n) + sums::SUM_SIZE <= g.block_size());
            assert_eq!(g.sum_place(last + 1), (1, 0, 0));
        }
    }

    #[test]
    fn a_tail_without_room_for_a_group_is_left_out() {
        let g = geometry();
        let least = g.ag_header_blocks() + g.group_blocks();
        let even = 3 * g.ag_blocks;
        for (blocks, usable) in [
            (even, even),
            (even + 1, even),
            (even + least - 1, even),
            (even + least, even + least),
            (u64::MAX, (1 << 63) >> g.block_shift),
        ] {
            assert_eq!(g.usable_blocks(blocks), usable, "{blocks}");
        }
    }
}
