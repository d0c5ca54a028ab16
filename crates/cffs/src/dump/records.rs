//! Single records: extents, counters, locations, attributes, quotas.

use crate::format::extent::{Child, Extent};
use crate::format::system::Counters;
use crate::format::table::Location;
use crate::format::xattr::Xattr;
use crate::format::{Ino, QuotaRecord, get_u32, get_u64};
use cffs_values::{Fields, Value, hex};

pub(super) fn counters(f: &mut Fields, c: &Counters) {
    f.put("free_fragments", c.free_frags).put("inodes", c.inodes).put("groups_initialized", c.ags);
    f.put("first_orphan", c.orphan_head).put("blocks", c.blocks).put("unwritten_units", c.unwritten);
}

pub(super) fn extent(f: &mut Fields, e: &Extent) {
    f.put("logical", e.logical).put("first", e.start).put("fragments", e.len);
    if e.unwritten {
        f.put("unwritten", true);
    }
}

pub(super) fn child(f: &mut Fields, c: &Child) {
    f.put("logical", c.key).put("node", c.block);
}

/// A record of the locator table; `None` for one that is free.
pub(super) fn location(bytes: &[u8], ino: Ino, block_size: usize) -> Option<Fields> {
    let mut f = Fields::of("inode", ino);
    let (state, block, offset) = match Location::decode(bytes, ino, block_size) {
        Ok(Location::Free) => return None,
        Ok(Location::Embedded { block, offset }) => ("embedded", block, offset),
        Ok(Location::External { block, offset }) => ("external", block, offset),
        Err(c) => {
            f.problems([c.0]);
            ("damaged", get_u64(bytes, 0), get_u32(bytes, 8) as usize)
        }
    };
    f.put("state", state).put("in_block", block).put("offset", offset);
    Some(f)
}

pub(super) fn attribute(f: &mut Fields, x: &Xattr) {
    f.put("name", Value::Bytes(x.full_name())).put("value_hex", hex(&x.value));
}

pub(super) fn quota(f: &mut Fields, id: u32, r: &QuotaRecord, frag_shift: u32) {
    let bytes = |frags: u64| frags.saturating_mul(1 << frag_shift);
    f.put("id", id).put("bytes", bytes(r.frags)).put("inodes", r.inodes);
    f.put("soft_bytes", bytes(r.soft_frags)).put("hard_bytes", bytes(r.hard_frags));
    f.put("soft_inodes", r.soft_inodes).put("hard_inodes", r.hard_inodes);
    if id == 0 {
        f.put("grace_bytes_ns", r.frags_deadline as u64).put("grace_inodes_ns", r.inodes_deadline as u64);
    } else {
        f.put_some("bytes_deadline", (r.frags_deadline != 0).then_some(Value::Time(r.frags_deadline)));
        f.put_some("inodes_deadline", (r.inodes_deadline != 0).then_some(Value::Time(r.inodes_deadline)));
    }
}
