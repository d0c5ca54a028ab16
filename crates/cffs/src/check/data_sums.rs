//! The written data of files and the tables of its checksums, collected while the tree is walked.

use super::reader::Block;
use crate::format::sums::SUMS_INDEX;
use crate::format::{BlockId, BlockKind, FragAddr, Geometry, Ino, get_u64};

/// What a check of data needs.
#[derive(Default)]
pub(super) struct DataSums {
    /// Written data, if it is to be read.
    pub(super) written: Option<Vec<WrittenRun>>,
    /// The table that was needed last: allocation group, index, and the block if it is good.
    pub(super) current: Option<(u64, u64, Option<Block>)>,
    /// Tables that are verified when their sums are needed, the last first: allocation group and index.
    pub(super) unread: Vec<(u64, u64)>,
    /// The allocation group of the table that was read last, and the number of its damaged tables.
    pub(super) damaged: (u64, u64),
}

/// A run of written data of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrittenRun {
    pub(super) start: FragAddr,
    pub(super) len: u64,
    pub(super) ino: Ino,
    pub(super) logical: u64,
}

/// Identity of a table block.
pub(super) fn table_id(g: &Geometry, ag: u64, index: u64) -> BlockId {
    BlockId { kind: BlockKind::DataSums, addr: g.sum_block(ag, index), owner: ag }
}

/// Says what is wrong with a table block's own number.
pub(crate) fn check_index(block: &[u8], index: u64) -> Result<(), String> {
    match get_u64(block, SUMS_INDEX) {
        found if found == index => Ok(()),
        found => Err(format!("table of data checksums {index} says it is number {found}")),
    }
}
