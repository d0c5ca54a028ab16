//! Reading: pages in memory first, then what the device has.

use super::{FileCtx, deferred};
use crate::cache::{DataVerifier, LocalityHint, ReadRun};
use crate::error::Result;
use crate::extent::Mapping;
use crate::format::{FileType, FragAddr, InodeFormat};
use crate::inode::locality::dir_extents;
use crate::node::NodeState;
use crate::sums::Reading;
use std::ops::Range;

/// Copies from the file into `out`, up to the end of the file. Returns the number of bytes.
pub fn read(cx: &FileCtx<'_>, st: &NodeState, offset: u64, out: &mut [u8]) -> Result<usize> {
    let size = st.inode.size;
    if offset >= size || out.is_empty() {
        return Ok(0);
    }
    let len = (out.len() as u64).min(size - offset) as usize;
    let out = &mut out[..len];
    if st.data.pages.is_empty() {
        read_disk(cx, st, offset, out)?;
        return Ok(len);
    }
    let bs = cx.cache.geometry().block_size();
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let (index, within) = (at / bs as u64, (at % bs as u64) as usize);
        if let Some(p) = st.data.pages.get(&index) {
            let n = (bs - within).min(len - done);
            let valid = p.bytes.len().saturating_sub(within).min(n);
            let from = within.min(p.bytes.len());
            out[done..done + valid].copy_from_slice(&p.bytes[from..from + valid]);
            out[done + valid..done + n].fill(0);
            done += n;
        } else {
            let next = st.data.pages.range(index..).next().map_or(u64::MAX, |(i, _)| i * bs as u64);
            let n = (next - at).min((len - done) as u64) as usize;
            read_disk(cx, st, at, &mut out[done..done + n])?;
            done += n;
        }
    }
    Ok(len)
}

/// Reads a range from the device. Holes, and everything beyond the size on the device, read as zeros.
pub(super) fn read_disk(cx: &FileCtx<'_>, st: &NodeState, offset: u64, out: &mut [u8]) -> Result<()> {
    let have = deferred::written_size(st).saturating_sub(offset).min(out.len() as u64) as usize;
    let (out, beyond) = out.split_at_mut(have);
    beyond.fill(0);
    if let InodeFormat::Inline(data) = &st.inode.format {
        let from = (offset as usize).min(data.len());
        let n = (data.len() - from).min(out.len());
        out[..n].copy_from_slice(&data[from..from + n]);
        out[n..].fill(0);
        return Ok(());
    }
    let g = cx.cache.geometry();
    let fs = g.frag_size() as u64;
    let grouped = is_grouped(cx, st);
    let check = cx.sums.map(|sums| sums.reading(st.inode.ino));
    // A long read of a large file collects requests from all its extents, and sends them in one batch.
    let direct = !grouped && cx.cache.reads_direct(st.inode.size, out.len());
    let mut runs: Vec<ReadRun<'_>> = Vec::new();
    let (mut at, mut rest) = (offset, out);
    while !rest.is_empty() {
        let logical = at >> g.frag_shift;
        let skip = at % fs;
        match deferred::lookup(cx, st, logical)? {
            Mapping::Hole { until } => {
                // A hole may reach to the end of the address space, so only the requested part is counted in bytes.
                let hole = (until - logical).min(g.frags_for(rest.len() as u64) + 1) << g.frag_shift;
                let part = split_off(&mut rest, hole - skip);
                at += part.len() as u64;
                part.fill(0);
            }
            Mapping::Data(e) => {
                let left = ((e.end() - logical) << g.frag_shift) - skip;
                let frag = e.start + (logical - e.logical);
                // A read that begins inside a fragment goes through the cache, up to the end of that fragment.
                let left = if direct && skip > 0 { fs - skip } else { left };
                let part = split_off(&mut rest, left);
                at += part.len() as u64;
                if e.unwritten {
                    part.fill(0);
                } else if direct && skip == 0 {
                    runs.push(ReadRun { frag, logical, out: part });
                } else {
                    if let Some(check) = &check {
                        check.set_position(frag, logical);
                    }
                    read_run(cx, st, frag, skip as usize, part, check.as_ref())?;
                }
            }
        }
    }
    if direct {
        return cx.cache.read_runs(runs, check.as_ref().map(|c| c as &dyn DataVerifier));
    }
    Ok(())
}

/// Takes up to `n` bytes off the front of `rest`.
fn split_off<'a>(rest: &mut &'a mut [u8], n: u64) -> &'a mut [u8] {
    let n = n.min(rest.len() as u64) as usize;
    let (head, tail) = std::mem::take(rest).split_at_mut(n);
    *rest = tail;
    head
}

/// Has a range of a file fetched ahead, if it is no small one, and there is a thread for that. An error is ignored, because a read of that part meets
/// and returns it.
pub fn read_ahead(cx: &FileCtx<'_>, st: &NodeState, range: Range<u64>) {
    if !range.is_empty() && !is_grouped(cx, st) && cx.cache.has_readahead() {
        let _ = fetch_ahead(cx, st, range);
    }
}

/// Fetches a range of a file ahead, from as many extents as have it.
fn fetch_ahead(cx: &FileCtx<'_>, st: &NodeState, range: Range<u64>) -> Result<()> {
    // A fragment of which the beginning was read is in memory.
    let start = range.start.next_multiple_of(cx.cache.geometry().frag_size() as u64);
    cx.cache.readahead(&written_runs(cx, st, start..range.end)?);
    Ok(())
}

/// Where a range of a file is on the device, as far as it was written: first fragments, and their numbers.
fn written_runs(cx: &FileCtx<'_>, st: &NodeState, range: Range<u64>) -> Result<Vec<(FragAddr, u64)>> {
    let g = cx.cache.geometry();
    let mut logical = range.start >> g.frag_shift;
    let end = g.frags_for(range.end.min(deferred::written_size(st)));
    let mut runs = Vec::new();
    while logical < end {
        match deferred::lookup(cx, st, logical)? {
            Mapping::Hole { until } => logical = until,
            Mapping::Data(e) => {
                let n = e.end().min(end) - logical;
                if !e.unwritten {
                    runs.push((e.start + (logical - e.logical), n));
                }
                logical += n;
            }
        }
    }
    Ok(runs)
}

/// Brings parts of a large file into the cache, in order, from at most so many groups: each with its group, as a small file, where groups are
/// read; none otherwise. Among its neighbours there
/// is what else is read of the file, or, where it lies in a chain, what is read with it.
///
/// # Errors
/// Those of the device, and of the extent tree.
pub fn bring(cx: &FileCtx<'_>, st: &NodeState, parts: &[Range<u64>], groups: u64) -> Result<()> {
    let g = cx.cache.geometry();
    let (mut left, mut last) = (groups, None);
    for part in parts {
        for (start, frags) in written_runs(cx, st, part.clone())? {
            if !g.contains(start, frags) {
                continue;
            }
            let mut at = g.block_of_frag(start);
            let end = g.block_of_frag(start + frags - 1) + 1;
            while at < end {
                let group = g.group_of(at);
                if last != Some(group) {
                    let Some(fewer) = left.checked_sub(1) else { return Ok(()) };
                    (left, last) = (fewer, Some(group));
                }
                let next = (group + g.group_blocks()).min(end);
                cx.cache.bring(at..next)?;
                at = next;
            }
        }
    }
    Ok(())
}

/// Reads from a run of fragments, from byte `skip` of its first one on.
fn read_run(
    cx: &FileCtx<'_>,
    st: &NodeState,
    frag: u64,
    skip: usize,
    out: &mut [u8],
    check: Option<&Reading<'_>>,
) -> Result<()> {
    let check = check.map(|c| c as &dyn DataVerifier);
    if skip == 0 {
        return read_fragments(cx, st, frag, out, check);
    }
    let fs = cx.cache.geometry().frag_size();
    let mut first = vec![0; fs.min(skip + out.len())];
    read_fragments(cx, st, frag, &mut first, check)?;
    let n = (fs - skip).min(out.len());
    out[..n].copy_from_slice(&first[skip..skip + n]);
    if n < out.len() {
        read_fragments(cx, st, frag + 1, &mut out[n..], check)?;
    }
    Ok(())
}

/// Whether the file is so small that it lies in a group.
fn is_grouped(cx: &FileCtx<'_>, st: &NodeState) -> bool {
    st.inode.size <= cx.placement.small_max()
}

/// Reads a run of whole fragments, the last one perhaps in part. For a small file, blocks that are not cached are read
/// with their group.
fn read_fragments(
    cx: &FileCtx<'_>,
    st: &NodeState,
    frag: u64,
    out: &mut [u8],
    check: Option<&dyn DataVerifier>,
) -> Result<()> {
    if !is_grouped(cx, st) {
        return cx.cache.read_data(frag, out, check);
    }
    let shift = cx.cache.geometry().frag_shift;
    let at = |done: usize| frag + (done >> shift) as u64;
    let mut done = 0;
    while done < out.len() {
        done += cx.cache.read_cached_data(at(done), &mut out[done..], check)?;
        if done < out.len() {
            let extents = dir_extents(cx.cache, st.location, FileType::Regular, cx.placement.small_max());
            let hint = LocalityHint { extents, sequential: false };
            done += cx.cache.read_data_near(at(done), &mut out[done..], &hint, check)?;
        }
    }
    Ok(())
}

/// Whether a position lies in data or in a hole, and where that ends: `(is_data, end)`, both by fragment.
pub fn seek(cx: &FileCtx<'_>, st: &NodeState, offset: u64) -> Result<(bool, u64)> {
    let g = cx.cache.geometry();
    let bs = g.block_size() as u64;
    if let InodeFormat::Inline(_) = st.inode.format {
        return Ok((true, st.inode.size));
    }
    let index = offset / bs;
    if st.data.pages.contains_key(&index) {
        return Ok((true, (index + 1) * bs));
    }
    let next_page = st.data.pages.range(index..).next().map_or(u64::MAX, |(i, _)| i * bs);
    let (data, end) = match deferred::lookup(cx, st, offset >> g.frag_shift)? {
        Mapping::Data(e) => (!e.unwritten, e.end()),
        Mapping::Hole { until } => (false, until),
    };
    let end = end.saturating_mul(g.frag_size() as u64);
    Ok((data, end.min(next_page)))
}
