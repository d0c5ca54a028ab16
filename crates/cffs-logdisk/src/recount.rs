//! The usage of segments, made anew from what refers to them.
//!
//! Table and bitmaps say nothing that the other trees and the segments do not say as well. So if those can be read, and only the counts are
//! wrong, nothing is lost.

use crate::check::refer_all;
use crate::codec::corrupt;
use crate::scan::read_summary;
use crate::state::State;
use crate::survey::Survey;
use crate::tree::Root;
use crate::usage::Usage;
use std::collections::BTreeMap;
use std::io;

/// Replaces the usage of a disk by what its trees refer to. What is being deleted counts as alive. Nothing is stored.
///
/// # Errors
/// `InvalidData` if a tree cannot be read, or refers to what is in no batch.
pub(crate) fn recount(state: &mut State, survey: &Survey) -> io::Result<()> {
    let found = refer_all(state)?;
    let forwarded: BTreeMap<_, _> = state.usage.table.iter().map(|(id, info)| (*id, info.forwarded)).collect();
    let mut usage = Usage::default();
    for (order, b) in survey.batches.iter().filter(|(_, b)| found.segments.contains_key(&b.segment)) {
        let before = usage.table.get(&b.segment).map_or(0, |info| info.used);
        let s = read_summary(&*state.store, state.log.uuid, b.segment, b.offset)?;
        if s.order() != *order || s.offset < before {
            return Err(corrupt(format!("batch {} has changed while it was read", order.1)));
        }
        usage.wrote(&s);
    }
    for (id, blocks) in &found.segments {
        let Some(info) = usage.table.get_mut(id) else {
            return Err(corrupt(format!("segment {id:#x} is referred to, and no batch of it can be read")));
        };
        if blocks.keys().next_back().is_some_and(|last| *last >= info.ordinals) {
            return Err(corrupt(format!("segment {id:#x} is referred to behind the last batch that can be read")));
        }
        info.live = blocks.values().sum();
        info.forwarded = forwarded.get(id).copied().unwrap_or(true);
        let ordinals = info.ordinals;
        let mut next = 0;
        for ordinal in blocks.keys().copied().chain([ordinals]) {
            usage.never_written(*id, next..ordinal);
            next = ordinal + 1;
        }
    }
    usage.live = usage.table.values().map(|info| info.live).sum();
    (usage.segments, usage.dead) = (Root::default(), Root::default());
    state.usage = usage;
    // It is in none of the segments that count.
    state.record = None;
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::catalog::MAIN_BRANCH;
    use crate::disk::LogDisk;
    use crate::extent::{BLOCK_BYTES, Birth};
    use crate::options::LogOptions;
    use crate::rebuild::rebuild;
    use crate::store::{ImageOptions, ImageStore, MemoryStore, SegmentStore};
    use cffs_device::{Device, IoKind, MemoryDevice};
    use std::sync::Arc;

    fn contents(device: &dyn Device) -> Vec<u8> {
        let mut data = vec![0; 2000 * BLOCK_BYTES];
        device.read_at(IoKind::Data, 0, &mut data).unwrap();
        data
    }

    fn fill(disk: &LogDisk, rng: &mut fastrand::Rng) {
        for _ in 0..150 {
            let data: Vec<u8> = (0..rng.usize(1..20) * BLOCK_BYTES).map(|_| rng.u8(..)).collect();
            disk.write_at(IoKind::Data, rng.u64(0..1900) * BLOCK_BYTES as u64, &data).unwrap();
        }
        disk.flush().unwrap();
    }

    /// A disk whose counts are wrong in all ways, with a snapshot and after some cleaning.
    fn miscounted(store: Arc<dyn SegmentStore>) -> (Vec<u8>, Vec<u8>, Arc<dyn SegmentStore>) {
        let mut rng = fastrand::Rng::with_seed(9);
        let disk = LogDisk::format(store.clone(), 1 << 30, &LogOptions::default()).unwrap();
        fill(&disk, &mut rng);
        let id = disk.snapshot(MAIN_BRANCH, "kept").unwrap();
        for _ in 0..3 {
            fill(&disk, &mut rng);
            disk.clean_step(4 << 20).unwrap();
        }
        disk.checkpoint().unwrap();
        assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
        let (now, then) = (contents(&disk), contents(&disk.open_snapshot(id).unwrap()));
        {
            let mut state = disk.lock();
            let ids: Vec<u64> = state.usage.table.keys().copied().collect();
            let (few, many) = (ids[0], ids[ids.len() / 2]);
            for (id, by) in [(few, -4096i64), (many, 8192)] {
                let info = state.usage.table.get_mut(&id).unwrap();
                info.live = info.live.checked_add_signed(by).unwrap();
                state.usage.live = state.usage.live.checked_add_signed(by).unwrap();
                state.usage.dirty.insert(id);
            }
            for ordinal in 0..30 {
                state.usage.note_dead(Birth { segment: many, ordinal }, 1);
            }
        }
        // An older checkpoint would do, as long as it is among those that are tried.
        for _ in 0..6 {
            disk.lock().checkpoint().unwrap();
        }
        assert!(!disk.check(false).unwrap().is_empty());
        (now, then, store)
    }

    fn is_as_before(store: Arc<dyn SegmentStore>, now: &[u8], then: &[u8]) {
        let disk = LogDisk::open(store, &LogOptions::default()).unwrap();
        assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
        assert!(contents(&disk) == now, "the main branch is not what it was");
        let [snapshot] = &disk.snapshots()[..] else { panic!("{:?}", disk.snapshots()) };
        assert!(contents(&disk.open_snapshot(snapshot.id).unwrap()) == then, "the snapshot is not what it was");
        // And it can be used.
        fill(&disk, &mut fastrand::Rng::with_seed(10));
        disk.delete_snapshot(snapshot.id).unwrap();
        while disk.delete_step(100).unwrap() {}
        disk.clean_step(4 << 20).unwrap();
        disk.checkpoint().unwrap();
        assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn wrong_counts_are_made_right_and_nothing_is_lost() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let image = ImageOptions { uuid: [4; 16], slot_bytes: 256 << 10 };
        let (now, then, _) = miscounted(Arc::new(ImageStore::format(device.clone(), &image).unwrap()));
        let store = Arc::new(ImageStore::open(device.clone()).unwrap());
        let report = rebuild(store, &LogOptions::default()).unwrap();
        assert!(report.from_checkpoint && report.recounted && !report.lost.is_empty(), "{report:?}");
        is_as_before(Arc::new(ImageStore::open(device).unwrap()), &now, &then);
    }

    /// A store of objects deletes what it is not told to keep, so it is told only when that is known.
    #[test]
    fn a_store_of_objects_keeps_all_until_it_is_known_what_counts() {
        let (now, then, store) = miscounted(Arc::new(MemoryStore::new(64 << 20, 256 << 10, true)));
        let report = rebuild(store.clone(), &LogOptions::default()).unwrap();
        assert!(report.recounted, "{report:?}");
        is_as_before(store, &now, &then);
    }
}
