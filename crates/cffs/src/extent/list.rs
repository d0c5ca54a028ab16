//! Inserting, removing and converting in one ordered list of extents: an inode's own, or that of a leaf.

use crate::format::Extent;
use crate::format::Run;
use crate::format::extent::EXTENT_LEN_MAX;
use std::ops::Range;

/// Whether `b` continues `a` in the file and on the device, and one extent can hold both.
fn continues(a: &Extent, b: &Extent) -> bool {
    a.end() == b.logical && a.start + a.len == b.start && a.unwritten == b.unwritten && a.len + b.len <= EXTENT_LEN_MAX
}

/// Inserts `e`, merged with its neighbours. `None` if it overlaps one. The flag says whether `e` comes last.
pub(super) fn insert(list: &[Extent], e: Extent) -> Option<(Vec<Extent>, bool)> {
    let at = list.partition_point(|x| x.logical <= e.logical);
    let before = at.checked_sub(1).map(|i| list[i]);
    let after = list.get(at);
    if before.is_some_and(|b| b.end() > e.logical) || after.is_some_and(|a| a.logical < e.end()) {
        return None;
    }
    let mut out = Vec::with_capacity(list.len() + 1);
    out.extend_from_slice(&list[..at]);
    push_merged(&mut out, e);
    for (i, x) in list[at..].iter().enumerate() {
        if i == 0 {
            push_merged(&mut out, *x);
        } else {
            out.push(*x);
        }
    }
    Some((out, at == list.len()))
}

fn push_merged(out: &mut Vec<Extent>, e: Extent) {
    match out.last_mut() {
        Some(last) if continues(last, &e) => last.len += e.len,
        _ => out.push(e),
    }
}

/// The parts of `e` before and after `range`.
fn rest(e: &Extent, range: &Range<u64>) -> (Option<Extent>, Option<Extent>) {
    let before = (e.logical < range.start).then(|| e.part(&(e.logical..range.start)));
    let after = (e.end() > range.end).then(|| e.part(&(range.end..e.end())));
    (before, after)
}

/// Removes `range` from its end on, at most `limit` extents or parts of them. Returns the new list, the removed runs,
/// and whether the limit left a part of the range in place.
pub(super) fn remove(list: &[Extent], range: &Range<u64>, limit: usize) -> (Vec<Extent>, Vec<Run>, bool) {
    let first = list.partition_point(|e| e.end() <= range.start);
    let end = list.partition_point(|e| e.logical < range.end).max(first);
    let from = first.max(end.saturating_sub(limit));
    let mut out = Vec::with_capacity(list.len() + 1);
    let mut freed = Vec::with_capacity(end - from);
    out.extend_from_slice(&list[..from]);
    for e in &list[from..end] {
        let p = e.part(range);
        freed.push(Run { start: p.start, len: p.len });
        let (before, after) = rest(e, range);
        out.extend(before);
        out.extend(after);
    }
    out.extend_from_slice(&list[end..]);
    (out, freed, from > first)
}

/// Marks `range` as written or unwritten. `None` if nothing changes.
pub(super) fn convert(list: &[Extent], range: &Range<u64>, unwritten: bool) -> Option<Vec<Extent>> {
    if !list.iter().any(|e| e.overlaps(range) && e.unwritten != unwritten) {
        return None;
    }
    let mut out = Vec::with_capacity(list.len() + 2);
    for e in list {
        if !e.overlaps(range) || e.unwritten == unwritten {
            push_merged(&mut out, *e);
            continue;
        }
        let (before, after) = rest(e, range);
        let middle = Extent { unwritten, ..e.part(range) };
        for piece in [before, Some(middle), after].into_iter().flatten() {
            push_merged(&mut out, piece);
        }
    }
    Some(out)
}

/// Maps `range`, which lies within one extent, to the fragments from `to` on. `None` if no extent covers it.
pub(super) fn relocate(list: &[Extent], range: &Range<u64>, to: u64) -> Option<Vec<Extent>> {
    let i = list.iter().position(|e| e.logical <= range.start && e.end() >= range.end)?;
    let (before, after) = rest(&list[i], range);
    let moved = Extent { start: to, ..list[i].part(range) };
    let mut out = list[..i].to_vec();
    [before, Some(moved), after].into_iter().flatten().for_each(|e| push_merged(&mut out, e));
    list[i + 1..].iter().for_each(|e| push_merged(&mut out, *e));
    Some(out)
}

/// Splits the extent that contains `at` in its interior. `None` if there is none.
pub(super) fn split(list: &[Extent], at: u64) -> Option<Vec<Extent>> {
    let i = list.iter().position(|e| e.logical < at && e.end() > at)?;
    let mut out = list.to_vec();
    out[i] = list[i].part(&(0..at));
    out.insert(i + 1, list[i].part(&(at..u64::MAX)));
    Some(out)
}
