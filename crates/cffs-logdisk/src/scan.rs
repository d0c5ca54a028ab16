//! Reads batches of a store one by one.

use crate::batch::{BATCH_BYTES_MAX, Entry, SUMMARY_BYTES, Summary};
use crate::codec::corrupt;
use crate::copies::{get_right, make_equal};
use crate::layouts::SegmentInfo;
use crate::store::{SegmentId, SegmentStore};
use std::io;
use std::ops::Range;

/// The summary of the batch at a place.
///
/// # Errors
/// `InvalidData` if there is no whole one, or if it belongs elsewhere; `Unsupported` if it says what this version does not know.
pub(crate) fn read_summary(
    store: &dyn SegmentStore,
    uuid: [u8; 16],
    segment: SegmentId,
    offset: u32,
) -> io::Result<Summary> {
    let s = read_wanted(store, uuid, segment, offset, &|s| s.unknown.is_none())?;
    s.must_be_known().map(|()| s)
}

/// The same, also of one with an entry that this version does not know. Of a store with several copies, where `wanted` says so of it in one of them, and otherwise what any of them has.
///
/// # Errors
/// `InvalidData` if there is no whole one, or if it belongs elsewhere.
pub(crate) fn read_wanted(
    store: &dyn SegmentStore,
    uuid: [u8; 16],
    segment: SegmentId,
    offset: u32,
    wanted: &dyn Fn(&Summary) -> bool,
) -> io::Result<Summary> {
    let is_here = |s: &Summary| s.uuid == uuid && s.segment == segment;
    let here = |s: Summary| if is_here(&s) { Ok(s) } else { Err(corrupt("a summary belongs to another place")) };
    let read = || summary_at(store, segment, offset).and_then(here);
    // If only the read was wrong, the log does not end here.
    let read = read().or_else(|e| if e.kind() == io::ErrorKind::InvalidData { read() } else { Err(e) });
    if store.copies() < 2 || read.as_ref().is_ok_and(wanted) {
        return read;
    }
    let mut other = None;
    for copy in 0..store.copies() {
        let get = |at, buf: &mut [u8]| store.get_copy(copy, segment, at, buf);
        let Ok((s, bytes)) = summary_by(store, &get, offset) else { continue };
        if !is_here(&s) {
            continue;
        }
        if wanted(&s) {
            make_equal(store, copy, segment, offset.into(), &bytes);
            return Ok(s);
        }
        other = Some(s);
    }
    read.or_else(|e| other.ok_or(e))
}

/// The summary at a byte of a segment, also of one that was there before.
pub(crate) fn summary_at(store: &dyn SegmentStore, segment: SegmentId, offset: u32) -> io::Result<Summary> {
    let get = |at, buf: &mut [u8]| store.get(segment, at, buf);
    summary_by(store, &get, offset).map(|(s, _)| s)
}

/// The same, read in some way from a segment of a store; and its own bytes.
pub(crate) fn summary_by(store: &dyn SegmentStore, get: GetBytes<'_>, offset: u32) -> io::Result<(Summary, Vec<u8>)> {
    let end = store.segment_bytes();
    if u64::from(offset) + SUMMARY_BYTES as u64 > end {
        return Err(corrupt("a summary is not within its segment"));
    }
    // A batch has whole units, and one unit mostly has all of its summary. It was written with shorter ones if the image was on another device then.
    let unit = SUMMARY_BYTES.next_multiple_of(store.alignment() as usize);
    let first = unit.min((end - u64::from(offset)) as usize);
    let mut bytes = vec![0; first];
    get(u64::from(offset), &mut bytes)?;
    let n = Summary::length_of(&bytes)?;
    if u64::from(offset) + n as u64 > end || n as u64 > BATCH_BYTES_MAX {
        return Err(corrupt("a summary is not within its segment"));
    }
    bytes.resize(n, 0);
    if n > first {
        get(u64::from(offset) + first as u64, &mut bytes[first..])?;
    }
    let s = Summary::decode(&bytes)?;
    if s.offset != offset {
        return Err(corrupt("a summary belongs to another place"));
    }
    if u64::from(offset) + u64::from(s.length) > end {
        return Err(corrupt("a batch is not within its segment"));
    }
    Ok((s, bytes))
}

/// All summaries of a segment, up to the first that cannot be read.
pub(crate) fn summaries<'a>(
    store: &'a dyn SegmentStore,
    uuid: [u8; 16],
    id: SegmentId,
    info: &SegmentInfo,
) -> impl Iterator<Item = io::Result<Summary>> + use<'a> {
    let end = info.used;
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let s = read_summary(store, uuid, id, at);
        at = s.as_ref().map_or(end, |s| s.offset + s.length);
        Some(s)
    })
}

/// The batch at a byte of a place, if `wanted` takes it. Of a store with several copies the newest that it takes in one of them: what one has may be
/// damaged, or from before it was written there.
///
/// # Errors
/// No copy can be read.
pub(crate) fn batch_at(
    store: &dyn SegmentStore,
    place: SegmentId,
    offset: u32,
    wanted: &dyn Fn(&Summary) -> bool,
) -> io::Result<Option<Summary>> {
    let found = summary_at(store, place, offset);
    if store.copies() < 2 {
        return found.map(|s| Some(s).filter(wanted));
    }
    let mut best: Option<(usize, Summary, Vec<u8>)> = None;
    let mut differ = false;
    for copy in 0..store.copies() {
        let get = |at, buf: &mut [u8]| store.get_copy(copy, place, at, buf);
        let other = match summary_by(store, &get, offset) {
            Ok((s, bytes)) if wanted(&s) => (copy, s, bytes),
            // Missing as a whole.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            _ => {
                differ = true;
                continue;
            }
        };
        differ |= best.as_ref().is_some_and(|(_, _, bytes)| *bytes != other.2);
        if best.as_ref().is_none_or(|(_, s, _)| s.order() < other.1.order()) {
            best = Some(other);
        }
    }
    let Some((copy, s, bytes)) = best else { return found.map(|s| Some(s).filter(wanted)) };
    if differ {
        make_equal(store, copy, place, offset.into(), &bytes);
    }
    Ok(Some(s))
}

/// The batch at a byte of a place, or the first behind it.
pub(crate) fn next_batch(
    store: &dyn SegmentStore,
    place: SegmentId,
    at: u32,
    patience: &mut u64,
    wanted: &dyn Fn(&Summary) -> bool,
) -> io::Result<Option<Summary>> {
    match batch_at(store, place, at, wanted) {
        Ok(Some(s)) => Ok(Some(s)),
        _ => {
            let range = u64::from(at) + u64::from(store.alignment())..store.segment_bytes();
            search(store, place, range, patience, wanted)
        }
    }
}

/// Bytes that are read in vain in so many bytes, because they look like summaries, before a search gives up. Ordinary data hardly ever does;
/// what is made to look so in each sector would take for ever.
pub(crate) fn patience(bytes: u64) -> u64 {
    bytes.saturating_mul(4).saturating_add(64 << 20)
}

/// Bytes read at once.
const READ_BYTES: usize = 1 << 20;

/// The first batch that `wanted` takes, in a range of bytes of a segment, in whichever copy of several. What cannot be read has none. Gives up when `patience` is used up.
pub(crate) fn search(
    store: &dyn SegmentStore,
    segment: SegmentId,
    range: Range<u64>,
    patience: &mut u64,
    wanted: &dyn Fn(&Summary) -> bool,
) -> io::Result<Option<Summary>> {
    let Range { start, mut end } = range;
    let mut first = search_by(store, &|at, buf| store.get(segment, at, buf), start..end, patience, wanted)?;
    if store.copies() < 2 {
        return Ok(first);
    }
    for copy in 0..store.copies() {
        // What begins before the first one of the others.
        end = first.as_ref().map_or(end, |s| s.offset.into());
        let get = |at, buf: &mut [u8]| store.get_copy(copy, segment, at, buf);
        first = search_by(store, &get, start..end, patience, wanted)?.or(first);
    }
    // Another copy may have a newer one in its place.
    let Some(s) = first else { return Ok(None) };
    Ok(batch_at(store, segment, s.offset, wanted)?.or(Some(s)))
}

/// Reads bytes of a segment from an offset on.
pub(crate) type GetBytes<'a> = &'a dyn Fn(u64, &mut [u8]) -> io::Result<()>;

/// The same, in what `get` reads of the segment.
fn search_by(
    store: &dyn SegmentStore,
    get: GetBytes<'_>,
    range: Range<u64>,
    patience: &mut u64,
    wanted: &dyn Fn(&Summary) -> bool,
) -> io::Result<Option<Summary>> {
    let step = store.alignment() as usize;
    let end = store.segment_bytes().min(range.end);
    let mut at = range.start;
    let mut bytes = Vec::new();
    let mut length = READ_BYTES.max(step);
    while at < end {
        bytes.resize(length.min((end - at) as usize), 0);
        match get(at, &mut bytes) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) if length == step => {
                if e.kind() == io::ErrorKind::UnexpectedEof {
                    return Ok(None);
                }
                at += step as u64;
                continue;
            }
            // Some of it cannot be read: from here on in the smallest pieces.
            Err(_) => {
                length = step;
                continue;
            }
        }
        for (i, sector) in bytes.chunks(step).enumerate() {
            let Ok(n) = Summary::length_of(sector) else { continue };
            let place = u32::try_from(at + (i * step) as u64).map_err(|_| corrupt("a segment is too long"))?;
            match summary_by(store, get, place) {
                Ok((s, _)) if wanted(&s) => return Ok(Some(s)),
                _ => *patience = patience.saturating_sub((n as u64).min(BATCH_BYTES_MAX)),
            }
            if *patience == 0 {
                return Ok(None);
            }
        }
        at += bytes.len() as u64;
    }
    Ok(None)
}

/// Whether all data of a batch has the checksums that its summary says.
pub(crate) fn is_whole(store: &dyn SegmentStore, s: &Summary) -> io::Result<bool> {
    are_whole(store, s, &|_| true)
}

/// Whether the data of some entries of a batch has the checksums that its summary says.
pub(crate) fn are_whole(store: &dyn SegmentStore, s: &Summary, which: &dyn Fn(&Entry) -> bool) -> io::Result<bool> {
    let range = |at: u32, entry: &Entry| u64::from(at)..u64::from(at) + u64::from(entry.stored());
    let wanted: Vec<(&Entry, Range<u64>)> =
        s.placed().filter(|(entry, ..)| which(entry)).map(|(entry, _, at)| (entry, range(at, entry))).collect();
    let mut left = &wanted[..];
    let mut data = Vec::new();
    while let Some((_, first)) = left.first() {
        // Side by side, and not too much.
        let ends = left.iter().scan(first.start, |end, (_, r)| {
            let goes_on = r.start == *end && r.end <= first.start + READ_BYTES as u64;
            *end = r.end;
            goes_on.then_some(())
        });
        let (now, later) = left.split_at(ends.count().max(1));
        let end = now.last().map_or(first.end, |(_, r)| r.end);
        data.resize((end - first.start) as usize, 0);
        let read = store.get(s.segment, first.start, &mut data);
        for (entry, r) in now {
            let bytes = &mut data[(r.start - first.start) as usize..(r.end - first.start) as usize];
            if read.is_ok() && entry.verify(bytes) {
                continue;
            }
            match get_right(store, s.segment, r.start, bytes, &mut |bytes| entry.verify(bytes)) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        left = later;
    }
    Ok(true)
}
