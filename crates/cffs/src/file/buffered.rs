//! Buffered writes: bytes stay in pages of the inode until writeback.

use super::read::read_disk;
use super::reserve::{needs, reserve_tree, reserve_tree_for};
use super::{FileCtx, bulk};
use crate::error::{Error, Result};
use crate::extent::{self, Mapping};
use crate::format::{FILE_SIZE_MAX, InodeFormat};
use crate::node::{NodeState, PAGE_OVERHEAD, Page};
use crate::reservation::BlocksFrom;
use crate::space::Over;
use cffs_buf::AlignedBuf;
use std::ops::Range;
use std::sync::Arc;

/// Makes sure that the page at `index` is in memory, with its contents from the device, and long enough for the
/// `covered` bytes, which the caller overwrites next.
fn make_page(cx: &FileCtx<'_>, st: &mut NodeState, index: u64, covered: &Range<usize>) -> Result<()> {
    let g = cx.cache.geometry();
    let (bs, fs) = (g.block_size(), g.frag_size());
    let start = index << g.block_shift;
    let round = |n: usize| n.div_ceil(fs) * fs;
    if !st.data.pages.contains_key(&index) {
        let on_disk = st.disk_size.min(st.inode.size).saturating_sub(start).min(bs as u64) as usize;
        let mut bytes = AlignedBuf::zeroed(round(on_disk.max(covered.end)));
        if on_disk > 0 && !(covered.start == 0 && covered.end >= on_disk) {
            read_disk(cx, st, start, &mut bytes[..on_disk])?;
        }
        cx.cache.add_dirty_data(bytes.len() + PAGE_OVERHEAD);
        let page = Page { bytes: Arc::new(bytes), dirty: 0..0, reserved: 0, splits: 0, writing: false };
        st.data.runs = (st.data.runs + 1).saturating_sub(st.data.neighbours(index));
        st.data.pages.insert(index, page);
    }
    let page = st.data.pages.get_mut(&index).ok_or(Error::Stale)?;
    let need = round(covered.end);
    if need > page.bytes.len() {
        cx.cache.add_dirty_data(need - page.bytes.len());
        Arc::make_mut(&mut page.bytes).resize_zeroed(need);
    }
    Ok(())
}

/// Whether the dirty bytes of the page before `index` continue into this page within one unwritten extent. Then both
/// pages are converted to written as one part, or the second part extends the first.
fn continues(cx: &FileCtx<'_>, st: &NodeState, index: u64, first: u64) -> Result<bool> {
    let g = cx.cache.geometry();
    let Some(before) = index.checked_sub(1).and_then(|i| st.data.pages.get(&i)) else { return Ok(false) };
    let starts = first == index * g.frags_per_block();
    if !starts || before.dirty.end != g.block_size() {
        return Ok(false);
    }
    let both = |e: &crate::format::Extent| e.unwritten && e.logical < first;
    Ok(matches!(extent::lookup(cx.cache, &st.inode, first)?, Mapping::Data(e) if both(&e)))
}

/// Puts bytes into the page at `index`, reserving what they need.
pub(super) fn dirty_page(
    cx: &FileCtx<'_>,
    st: &mut NodeState,
    index: u64,
    within: Range<usize>,
    bytes: Option<&[u8]>,
    privileged: bool,
) -> Result<()> {
    let g = *cx.cache.geometry();
    let fs = g.frag_size();
    // Inline contents move out of the inode together with the bytes added to them.
    let inline = matches!(&st.inode.format, InodeFormat::Inline(d) if !d.is_empty() && index == 0);
    let existed = st.data.pages.get(&index).map(|p| (p.dirty.clone(), p.reserved, p.splits));
    let old = existed.clone().map_or(0..0, |(d, _, _)| d);
    let mut dirty = if old.is_empty() { within.clone() } else { old.start.min(within.start)..old.end.max(within.end) };
    if inline {
        dirty.start = 0;
    }
    let base = (index << g.block_shift) >> g.frag_shift;
    let frags = base + (dirty.start / fs) as u64..base + dirty.end.div_ceil(fs) as u64;
    let (had, had_splits) = existed.map_or((0, 0), |(_, r, s)| (r, s));
    let mut need = needs(cx, st, frags.clone())?;
    // What is dirty already was accounted for.
    let over = match old.is_empty() {
        true => Over {
            written: (frags.end - frags.start).saturating_sub(need.places + need.unwritten + need.ends),
            kept: need.unwritten,
            ends: need.ends,
        },
        false => Over::default(),
    };
    let _overwriting = cx.space.check_overwrite(over, privileged)?;
    if need.splits > 0 && continues(cx, st, index, frags.start)? {
        need.splits -= 2;
    }
    // A write to preallocated space must succeed, so it may use the reserve for the extent tree, and what is kept for that.
    let privileged = privileged || need.places == 0;
    let nodes = if need.places == 0 && need.splits > 0 { BlocksFrom::Kept } else { BlocksFrom::of(privileged) };
    let more = need.places.saturating_sub(had);
    let more_splits = need.splits.saturating_sub(had_splits);
    st.data.reservation(cx.space).reserve(more, privileged)?;
    // Reserve before the page changes, because a write that finds no space must leave the file as it was.
    let all = st.data.pages_reserved + st.data.pages_splits + more + more_splits;
    if let Err(e) = reserve_tree_for(cx, st, all, 1, nodes) {
        // With the last fragments of a device, only what this page really needs counts.
        let alone = st.data.in_flight == 0 && st.data.pages.keys().all(|i| *i == index);
        st.data.must_flush = alone && matches!(e, Error::NoSpace) && extent::has_room(cx.cache, &st.inode, frags, all)?;
        if !st.data.must_flush {
            st.data.release(more);
            return Err(e);
        }
    }
    // Inline contents are read in even where they are overwritten, because the whole page goes to the device.
    let covered = if inline { within.end..within.end } else { within.clone() };
    let outcome = make_page(cx, st, index, &covered);
    if outcome.is_ok() {
        cx.cache.tracer().note_dirty(st.inode.ino, dirty.len() - old.len());
        st.data.change_page(index, |p| {
            p.reserved = need.places.max(had);
            p.splits = need.splits.max(had_splits);
            p.dirty = dirty;
            if let Some(bytes) = bytes {
                Arc::make_mut(&mut p.bytes)[within].copy_from_slice(bytes);
            }
        });
    }
    if outcome.is_err() {
        st.data.release(more);
        let _ = reserve_tree(cx, st, privileged); // less than before
    }
    outcome
}

/// Zeros the bytes of the last fragment behind the end of the file. Called before the file grows beyond
/// `st.inode.size`, because these bytes may hold old contents of a longer file.
fn zero_tail(cx: &FileCtx<'_>, st: &mut NodeState, privileged: bool) -> Result<()> {
    let g = *cx.cache.geometry();
    let size = st.inode.size;
    let fs = g.frag_size() as u64;
    if size.is_multiple_of(fs) || matches!(st.inode.format, InodeFormat::Inline(_)) {
        return Ok(());
    }
    let (index, from) = (size >> g.block_shift, (size & (g.block_size() as u64 - 1)) as usize);
    let to = from.div_ceil(fs as usize) * fs as usize;
    if let Some(p) = st.data.pages.get(&index) {
        let end = to.min(p.bytes.len());
        return if end > from {
            dirty_page(cx, st, index, from..end, Some(&vec![0; end - from]), privileged)
        } else {
            Ok(())
        };
    }
    match extent::lookup(cx.cache, &st.inode, size >> g.frag_shift)? {
        Mapping::Data(e) if !e.unwritten => {}
        _ => return Ok(()),
    }
    dirty_page(cx, st, index, from..to, Some(&vec![0; to - from]), privileged)
}

/// Moves inline contents into a page. Called before a file grows to a `size` that does not fit the inode; the contents
/// are in the inode, or a writeback is about to put them there.
fn leave_inode(cx: &FileCtx<'_>, st: &mut NodeState, size: u64, privileged: bool) -> Result<()> {
    let room = st.inode.data_room() as u64;
    if size <= room || st.inode.size > room {
        return Ok(());
    }
    let bytes = match (st.data.pages.get(&0), &st.inode.format) {
        (Some(p), _) if p.writing && p.dirty.is_empty() => {
            p.bytes[..p.bytes.len().min(st.inode.size as usize)].to_vec()
        }
        (Some(_), _) => return Ok(()),
        (None, InodeFormat::Inline(d)) => d.clone(),
        (None, _) => return Ok(()),
    };
    if bytes.is_empty() {
        return Ok(());
    }
    dirty_page(cx, st, 0, 0..bytes.len(), Some(&bytes), privileged)
}

/// Writes into the file's pages. Returns the number of bytes taken. It is smaller than asked for only if an error
/// followed some bytes, or if space is so short that these bytes have to be written back first
/// ([`crate::node::FileData::must_flush`]).
pub fn write(cx: &FileCtx<'_>, st: &mut NodeState, offset: u64, data: &[u8], privileged: bool) -> Result<usize> {
    offset.checked_add(data.len() as u64).filter(|e| *e <= FILE_SIZE_MAX).ok_or(Error::FileTooLarge)?;
    if data.is_empty() {
        return Ok(0);
    }
    if offset > st.inode.size {
        zero_tail(cx, st, privileged)?;
    }
    leave_inode(cx, st, offset + data.len() as u64, privileged)?;
    let bs = cx.cache.geometry().block_size() as u64;
    let fs = cx.cache.geometry().frag_size();
    let mut done = 0;
    while done < data.len() {
        let at = offset + done as u64;
        let within = (at % bs) as usize;
        if within == 0 {
            let taken = bulk::write(cx, st, at / bs, &data[done..], privileged)?;
            if taken > 0 {
                done += taken;
                st.inode.size = st.inode.size.max(at + taken as u64);
                continue;
            }
        }
        let n = (bs as usize - within).min(data.len() - done);
        // A file that grows inside its last fragment must not expose old bytes.
        if at == st.inode.size && !at.is_multiple_of(fs as u64) {
            zero_tail(cx, st, privileged)?;
        }
        let mut put = |n: usize| {
            dirty_page(cx, st, at / bs, within..within + n, Some(&data[done..done + n]), privileged).map(|()| n)
        };
        // There may be space for a part of the last block only.
        let part = fs - within % fs;
        let taken = match put(n) {
            Err(Error::NoSpace) if part < n => put(part),
            outcome => outcome,
        };
        match taken {
            Ok(taken) => {
                done += taken;
                st.inode.size = st.inode.size.max(at + taken as u64);
                if taken < n || st.data.must_flush {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    st.dirty = true;
    Ok(done)
}

/// Makes the file longer; the new part is a hole.
pub fn extend(cx: &FileCtx<'_>, st: &mut NodeState, size: u64, privileged: bool) -> Result<()> {
    if size > FILE_SIZE_MAX {
        return Err(Error::FileTooLarge);
    }
    zero_tail(cx, st, privileged)?;
    leave_inode(cx, st, size, privileged)?;
    st.inode.size = size;
    st.dirty = true;
    Ok(())
}
