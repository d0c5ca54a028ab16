//! Directory entries of blocks that need not be valid.

use crate::format::dirblock::ENTRY_HEADER;
use crate::format::{META_HEADER_SIZE, align8, get_u16};

/// An entry whose length, and the length of whose name, are possible.
pub(crate) struct RawEntry<'a> {
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) kind: u8,
    pub(crate) file_type: u8,
    pub(crate) name: &'a [u8],
}

impl RawEntry<'_> {
    pub(super) fn is_name(&self) -> bool {
        self.kind == 1 || self.kind == 2
    }
    pub(crate) fn inode_offset(&self) -> usize {
        self.offset + ENTRY_HEADER + align8(self.name.len())
    }
}

/// Follows the chain of a block that need not be valid, up to where it breaks.
pub(crate) fn entry_chain(b: &[u8]) -> impl Iterator<Item = RawEntry<'_>> {
    let mut offset = META_HEADER_SIZE;
    std::iter::from_fn(move || {
        let head = b.get(offset..offset + ENTRY_HEADER)?;
        let (len, tag, name_len) = (get_u16(head, 0) as usize, head[2], head[3] as usize);
        let possible = len.is_multiple_of(8) && len >= ENTRY_HEADER + align8(name_len) && len <= b.len() - offset;
        let name = b.get(offset + ENTRY_HEADER..offset + ENTRY_HEADER + name_len).filter(|_| possible)?;
        let e = RawEntry { offset, len, kind: tag & 0xf, file_type: tag >> 4, name };
        offset += len;
        Some(e)
    })
}
