//! The check of a block's contents, by kind.

use super::block::BlockKind;
use super::types::Corrupt;
use super::{dirblock, dirindex, extent, xattr};

/// Checks what later readers of a block of this kind rely on, beyond its identity.
pub fn verify_contents(block: &[u8], kind: BlockKind) -> Result<(), Corrupt> {
    match kind {
        BlockKind::Dir => dirblock::validate(block),
        BlockKind::DirIndex => dirindex::validate(block),
        BlockKind::Xattr => xattr::ChainBlock::decode(block).map(drop),
        BlockKind::ExtentNode => extent::node_header(block).map(drop),
        // Numbers alone, which their readers check.
        BlockKind::AgHeader
        | BlockKind::Bitmap
        | BlockKind::Counters
        | BlockKind::SystemInodes
        | BlockKind::Locator
        | BlockKind::ExternalInodes
        | BlockKind::TableMap
        | BlockKind::Quota
        | BlockKind::DataSums => Ok(()),
    }
}
