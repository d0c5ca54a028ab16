//! What is free is not worth reading: whoever reads along reads up to the last block that is in use.

use crate::cache::Cache;
use crate::format::ag::{BITMAP_BITS, bits_are};
use crate::format::{BlockAddr, BlockKind, block_owner, get_u32};
use std::ops::Range;

/// The part of `window` without what is free at its ends, but with all of `need`: as far as the bitmap says so in which the first needed
/// block stands, if that is cached. Makes no request and waits for nobody. A damaged bitmap costs a request at worst.
pub(super) fn part_in_use(cache: &Cache, need: &Range<BlockAddr>, window: Range<BlockAddr>) -> Range<BlockAddr> {
    let g = cache.geometry();
    let (ag, per, bits) = (g.ag_of(need.start), g.frags_per_block(), g.bits_per_bitmap());
    let index = (need.start - g.ag_start(ag)) * per / bits;
    let first = g.ag_start(ag) * per + index * bits;
    let Some(buf) = cache.peek(g.bitmap_block(ag, index)) else { return window };
    let Some(bytes) = buf.try_read() else { return window };
    if get_u32(&bytes, 0) != BlockKind::Bitmap as u32 || block_owner(&bytes) != ag {
        return window;
    }
    let in_use = |block: &BlockAddr| {
        let here = (block * per).checked_sub(first).filter(|at| at + per <= bits);
        here.is_none_or(|at| !bits_are(&bytes[BITMAP_BITS..], at, at + per, false))
    };
    let start = (window.start..need.start).find(in_use).unwrap_or(need.start);
    let end = (need.end..window.end).rev().find(in_use).map_or(need.end, |last| last + 1);
    start..end
}
