//! Layout of a new allocation group. Used by mkfs for AG 0, and by the allocator for later AGs when they are
//! first needed.

use crate::format::ag::{AG_FREE_FRAGS, BITMAP_BITS, BITMAP_INDEX, bits_are, set_bits};
use crate::format::dirblock::BlockEdit;
use crate::format::{FragAddr, Geometry, put_u64};
use std::ops::Range;

/// Most fragments of an allocation group. This bounds the cost of loading one.
pub const AG_FRAGS_MAX: u64 = 1 << 28;

/// Number of fragments of an allocation group.
pub fn ag_frags(g: &Geometry, ag: u64) -> u64 {
    g.ag_len(ag) * g.frags_per_block()
}

/// Fragments that belong to the file system itself (AG headers, system area, internal log) within an allocation
/// group, as offsets from its start, in order and disjoint.
pub fn fixed_ranges(g: &Geometry, ag: u64) -> Vec<Range<u64>> {
    let start = g.frag_of_block(g.ag_start(ag));
    let end = start + ag_frags(g, ag);
    let header = start..start + g.frag_of_block(g.ag_header_blocks());
    let [system, log] = areas(g);
    let mut out: Vec<Range<u64>> = Vec::new();
    for fixed in [header, system, log] {
        let (s, e) = (fixed.start.max(start), fixed.end.min(end));
        if s < e {
            let (s, e) = (s - start, e - start);
            match out.last_mut() {
                Some(last) if s <= last.end => last.end = last.end.max(e),
                _ => out.push(s..e),
            }
        }
    }
    out
}

/// System area and internal log, in order.
fn areas(g: &Geometry) -> [Range<FragAddr>; 2] {
    let area = |block: u64, blocks: u64| g.frag_of_block(block)..g.frag_of_block(block + blocks);
    let log = if g.log_start == 0 { 0..0 } else { area(g.log_start, g.log_blocks) };
    [area(g.sys_start, g.sys_blocks()), log]
}

/// Whether any of the fragments belongs to the file system itself. The run lies within one allocation group.
pub fn is_fixed(g: &Geometry, run: Range<FragAddr>) -> bool {
    let ag_start = g.frag_of_block(g.ag_start(g.ag_of(g.block_of_frag(run.start))));
    run.start - ag_start < g.frag_of_block(g.ag_header_blocks())
        || areas(g).iter().any(|a| run.start < a.end && a.start < run.end)
}

/// Free fragments of a new file system.
#[cfg(test)]
pub fn initial_free_frags(g: &Geometry) -> u64 {
    // Only the AGs with system area and log have more fixed fragments than their header.
    let areas = areas(g);
    let (first, last) = (g.block_of_frag(areas[0].start), g.block_of_frag(areas[1].end.max(areas[0].end) - 1));
    let (first, last) = (g.ag_of(first), g.ag_of(last));
    let header = g.frag_of_block(g.ag_header_blocks());
    let others = (g.ag_count - (last - first + 1)) * header;
    let fixed: u64 = (first..=last).flat_map(|ag| fixed_ranges(g, ag)).map(|r| r.end - r.start).sum();
    g.total_frags() - others - fixed
}

/// Free fragments of a new allocation group.
pub fn initial_ag_free(g: &Geometry, ag: u64) -> u64 {
    ag_frags(g, ag) - fixed_ranges(g, ag).iter().map(|r| r.end - r.start).sum::<u64>()
}

/// Fills in a new AG header (a zeroed block with its identity).
pub fn format_header(g: &Geometry, ag: u64, block: &mut impl BlockEdit) {
    put_u64(block.range(AG_FREE_FRAGS, 8), 0, initial_ag_free(g, ag));
}

/// Fills in bitmap block `index` of a new AG (a zeroed block with its identity).
pub fn format_bitmap(g: &Geometry, ag: u64, index: u64, block: &mut impl BlockEdit) {
    put_u64(block.range(BITMAP_INDEX, 8), 0, index);
    let bits = g.bits_per_bitmap();
    let (first, end) = (index * bits, (index + 1) * bits);
    let beyond = ag_frags(g, ag)..g.bitmap_blocks() * bits;
    for used in fixed_ranges(g, ag).into_iter().chain([beyond]) {
        let (s, e) = (used.start.max(first), used.end.min(end));
        if s < e {
            edit_bits(block, s - first, e - first, true);
        }
    }
}

/// Sets or clears bits of a bitmap block, editing no more bytes than necessary. False, with nothing changed, unless
/// every bit changes.
pub(super) fn edit_bits(block: &mut impl BlockEdit, from: u64, to: u64, used: bool) -> bool {
    let (first, end) = ((from / 8) as usize, to.div_ceil(8) as usize);
    let base = first as u64 * 8;
    let (from, to) = (from - base, to - base);
    if !bits_are(&block.bytes()[BITMAP_BITS + first..BITMAP_BITS + end], from, to, !used) {
        return false;
    }
    set_bits(block.range(BITMAP_BITS + first, end - first), from, to, used)
}
