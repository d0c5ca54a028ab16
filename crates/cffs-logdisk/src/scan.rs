//! Reads batches of a store one by one.

use crate::batch::{BATCH_BYTES_MAX, SUMMARY_BYTES, Summary};
use crate::codec::corrupt;
use crate::layouts::SegmentInfo;
use crate::store::{SegmentId, SegmentStore};
use std::io;

/// The summary of the batch at a place.
///
/// # Errors
/// `InvalidData` if there is no whole one, or if it belongs elsewhere.
pub(crate) fn read_summary(
    store: &dyn SegmentStore,
    uuid: [u8; 16],
    segment: SegmentId,
    offset: u32,
) -> io::Result<Summary> {
    let end = store.segment_bytes();
    if u64::from(offset) + SUMMARY_BYTES as u64 > end {
        return Err(corrupt("a summary is not within its segment"));
    }
    let mut bytes = vec![0; SUMMARY_BYTES];
    store.get(segment, u64::from(offset), &mut bytes)?;
    let n = Summary::length_of(&bytes)?;
    if u64::from(offset) + n as u64 > end || n as u64 > BATCH_BYTES_MAX {
        return Err(corrupt("a summary is not within its segment"));
    }
    bytes.resize(n, 0);
    store.get(segment, u64::from(offset) + SUMMARY_BYTES as u64, &mut bytes[SUMMARY_BYTES..])?;
    let s = Summary::decode(&bytes)?;
    if s.uuid != uuid || s.segment != segment || s.offset != offset {
        return Err(corrupt("a summary belongs to another place"));
    }
    if u64::from(offset) + u64::from(s.length) > end {
        return Err(corrupt("a batch is not within its segment"));
    }
    Ok(s)
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

/// Bytes read at once in a search.
const SEARCH_BYTES: usize = 1 << 20;

/// The first batch that `wanted` takes, from a place in a segment on, as far as the next batch can be behind one of any length.
/// What cannot be read has none.
pub(crate) fn search(
    store: &dyn SegmentStore,
    uuid: [u8; 16],
    segment: SegmentId,
    offset: u32,
    wanted: &dyn Fn(&Summary) -> bool,
) -> io::Result<Option<Summary>> {
    let step = store.alignment() as usize;
    let end = store.segment_bytes().min(u64::from(offset) + BATCH_BYTES_MAX);
    let mut at = u64::from(offset);
    let mut bytes = Vec::new();
    let mut length = SEARCH_BYTES.max(step);
    while at < end {
        bytes.resize(length.min((end - at) as usize), 0);
        match store.get(segment, at, &mut bytes) {
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
        for (i, _) in bytes.chunks(step).enumerate().filter(|(_, sector)| Summary::length_of(sector).is_ok()) {
            let place = u32::try_from(at + (i * step) as u64).map_err(|_| corrupt("a segment is too long"))?;
            match read_summary(store, uuid, segment, place) {
                Ok(s) if wanted(&s) => return Ok(Some(s)),
                _ => {}
            }
        }
        at += bytes.len() as u64;
    }
    Ok(None)
}

/// Whether all data of a batch has the checksums that its summary says.
pub(crate) fn is_whole(store: &dyn SegmentStore, s: &Summary) -> io::Result<bool> {
    let mut data = Vec::new();
    for (entry, _, at) in s.placed() {
        data.resize(entry.stored() as usize, 0);
        match store.get(s.segment, u64::from(at), &mut data) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(e) => return Err(e),
        }
        if !entry.verify(&data) {
            return Ok(false);
        }
    }
    Ok(true)
}
