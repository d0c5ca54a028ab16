//! Segments in fixed slots of a device, with two superblocks as the root.
//!
//! An id is made of a generation and a slot. The generation is the sequence number of the root at the time: a slot is
//! given out again only after a root that no longer refers to its last segment, so an id never comes twice. The slots
//! in use are known to the owner, which tells them after it has read its checkpoint; no slot has a header of its own.

use super::held::Held;
use super::segment_store::{Get, ROOT_BYTES_MAX, SegmentId, SegmentStore, StoreRoot, full};
use super::superblock::{SEQUENCE_MAX, SLOT_BYTES, SLOTS_MAX, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use crate::codec::corrupt;
use cffs_device::{Device, Disk, DiskStats, IoKind, Observed, Observer, Purpose, ReadRequest};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const SLOT_BITS: u32 = 28;
/// Bytes that are made equal at a time.
const EQUAL_BYTES: u64 = 1 << 20;

/// How [`ImageStore::format`] divides a device.
#[derive(Clone, Debug)]
pub struct ImageOptions {
    /// Identifies the store.
    pub uuid: [u8; 16],
    /// Bytes of a slot: a multiple of 4096 from 64 KiB to 1 GiB. 0 chooses: 4 MiB, and more where that would be more than 2^18
    /// slots, because the owner keeps a few words of memory for each.
    pub slot_bytes: u64,
}

/// How a device is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) uuid: [u8; 16],
    pub(crate) slot_bytes: u64,
    pub(crate) first_slot: u64,
}

/// The slot of a segment, by its id, and the number of the newest root when it was begun.
pub(crate) fn parts_of(segment: SegmentId) -> (u64, u64) {
    (segment & ((1 << SLOT_BITS) - 1), segment >> SLOT_BITS)
}

/// A store in slots of a device.
pub struct ImageStore {
    device: Disk,
    uuid: [u8; 16],
    slot_bytes: u64,
    /// Changed only with `inner` held.
    slots: AtomicU64,
    first_slot: u64,
    inner: Mutex<Inner>,
    /// What was appended and is not on the device yet.
    held: Held,
    /// Slots in [`Inner::deleted`], known without the lock, which is held while a root is written.
    deleted: AtomicUsize,
    /// A slot was discarded.
    discarded: Condvar,
}

struct Inner {
    sequence: u64,
    root: Vec<u8>,
    /// Which of the two superblocks is the older.
    next_copy: usize,
    free: Vec<u32>,
    /// Free as well, and the device does not know yet. Who takes one needs not tell it any more.
    deleted: Vec<u32>,
    /// Slots that the device is being told of. Nobody may write to them until that has ended.
    discarding: usize,
    /// Slots from the next root on.
    next_slots: u64,
}

/// Refuses a device that has been cut short.
fn check_length(sb: &Superblock, device: &dyn Device) -> io::Result<()> {
    let (need, have) = (sb.first_slot + sb.slots * sb.slot_bytes, device.len());
    if need <= have {
        return Ok(());
    }
    let what = format!(
        "the log disk has {need} bytes, the device {have}: make it as long again, as with `truncate -s {need}`"
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

impl ImageStore {
    /// Makes the device an empty store. Everything on it is lost.
    ///
    /// # Errors
    /// `InvalidInput` for impossible sizes, those of the device.
    pub fn format(device: Arc<dyn Device>, options: &ImageOptions) -> io::Result<Self> {
        let mut slot_bytes = options.slot_bytes;
        if slot_bytes == 0 {
            slot_bytes = 4 << 20;
            while device.len() / slot_bytes > 1 << 18 && slot_bytes < *SLOT_BYTES.end() {
                slot_bytes *= 2;
            }
        }
        let first_slot = slot_bytes.clamp(128 << 10, 1 << 20);
        let slots = device.len().saturating_sub(first_slot).checked_div(slot_bytes).unwrap_or(0).min(SLOTS_MAX);
        if !SLOT_BYTES.contains(&slot_bytes) || !slot_bytes.is_multiple_of(4096) || slots == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a device of {} bytes cannot have slots of {slot_bytes} bytes", device.len()),
            ));
        }
        // Ids and epochs come from the sequence number. It goes on where an earlier store on the device ended, so that a batch
        // of that one is never taken for one of ours, even with the same UUID. What cannot be read has no number.
        let earlier = SUPERBLOCK_OFFSETS.iter().filter_map(|&offset| read_superblock(&*device, offset).ok());
        let sequence = earlier.map(|sb| sb.sequence + 1).max().unwrap_or(0);
        if sequence >= SEQUENCE_MAX {
            return Err(full("the device has had as many roots as it can have; its first 128 KiB must be zeroed"));
        }
        let sb = Superblock { uuid: options.uuid, sequence, slot_bytes, slots, first_slot, root: Vec::new() };
        // The second is invalid first: with a crash in between, no old root may be newer than the new one.
        device.write_at(IoKind::Super, SUPERBLOCK_OFFSETS[1], &[0; SUPERBLOCK_BYTES])?;
        device.write_at(IoKind::Super, SUPERBLOCK_OFFSETS[0], &sb.encode())?;
        device.flush()?;
        Ok(Self::with(Disk::numbered(0, device), sb, 1))
    }

    /// Opens the store on a device.
    ///
    /// # Errors
    /// `InvalidData` if neither superblock is whole, `InvalidInput` if the device is shorter than they say; the device's if one of them cannot be read,
    /// because that one may be the newer.
    pub fn open(device: Arc<dyn Device>) -> io::Result<Self> {
        Self::open_observed(device, &Observed::default())
    }

    /// The same; somebody learns of all requests to the device, also of those with which the store is opened.
    ///
    /// # Errors
    /// As [`ImageStore::open`].
    pub fn open_observed(device: Arc<dyn Device>, observed: &Observed) -> io::Result<Self> {
        let _purpose = Purpose::Log.scope();
        let device = Disk::numbered(0, device);
        device.observed_by(observed);
        let mut best: Option<(Superblock, usize)> = None;
        let mut error = corrupt("the device is too short for a log disk");
        for (copy, &offset) in SUPERBLOCK_OFFSETS.iter().enumerate() {
            match newest_superblock(&device, offset) {
                Ok(sb) if best.as_ref().is_none_or(|(b, _)| b.sequence < sb.sequence) => best = Some((sb, copy)),
                Ok(_) => {}
                Err(e) if matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => error = e,
                Err(e) => {
                    let what = format!("superblock {} cannot be read, and it may be the newer one: {e}", copy + 1);
                    return Err(io::Error::new(e.kind(), what));
                }
            }
        }
        let Some((sb, copy)) = best else { return Err(error) };
        check_length(&sb, &device)?;
        Ok(Self::with(device, sb, 1 - copy))
    }

    /// The store on a device whose superblocks are gone, or may be older than what is in the slots: segments get ids, and the next root a number, above `sequence`, and
    /// both superblocks are written anew by the next two. Reads the geometry from a superblock, or else takes what is given.
    ///
    /// # Errors
    /// `InvalidData` if it is not known or impossible.
    pub(crate) fn recover(device: Arc<dyn Device>, geometry: Option<Geometry>, sequence: u64) -> io::Result<Self> {
        let whole = |copy: usize| newest_superblock(&*device, SUPERBLOCK_OFFSETS[copy]).ok();
        let newest = [0, 1].into_iter().filter_map(|copy| Some((whole(copy)?, copy))).max_by_key(|(sb, _)| sb.sequence);
        let (mut sb, copy) = match (newest, geometry) {
            (Some(found), _) => found,
            (None, Some(g)) => {
                let slots =
                    device.len().saturating_sub(g.first_slot).checked_div(g.slot_bytes).unwrap_or(0).min(SLOTS_MAX);
                let Geometry { uuid, slot_bytes, first_slot } = g;
                let sb = Superblock { uuid, sequence, slot_bytes, slots, first_slot, root: Vec::new() };
                // Whatever of this does not fit together is found here.
                (Superblock::decode(&sb.encode())?, 1)
            }
            (None, None) => return Err(corrupt("no superblock is whole, and nothing tells how the device is divided")),
        };
        check_length(&sb, &*device)?;
        if sequence >= SEQUENCE_MAX {
            return Err(corrupt("a batch has an impossible number"));
        }
        // What is written before the next root is in segments with this number.
        sb.sequence = sb.sequence.max(sequence) + 1;
        Ok(Self::with(Disk::numbered(0, device), sb, 1 - copy))
    }

    /// The geometry, if a superblock is whole.
    pub(crate) fn geometry(device: &dyn Device) -> Option<Geometry> {
        let whole = SUPERBLOCK_OFFSETS.iter().filter_map(|&offset| newest_superblock(device, offset).ok());
        let sb = whole.max_by_key(|sb| sb.sequence)?;
        Some(Geometry { uuid: sb.uuid, slot_bytes: sb.slot_bytes, first_slot: sb.first_slot })
    }

    fn with(device: Disk, sb: Superblock, next_copy: usize) -> Self {
        // The lowest slots are given out first.
        let free = (0..sb.slots as u32).rev().collect();
        ImageStore {
            device,
            uuid: sb.uuid,
            slot_bytes: sb.slot_bytes,
            slots: AtomicU64::new(sb.slots),
            first_slot: sb.first_slot,
            inner: Mutex::new(Inner {
                sequence: sb.sequence,
                root: sb.root,
                next_copy,
                free,
                deleted: Vec::new(),
                discarding: 0,
                next_slots: sb.slots,
            }),
            held: Held::default(),
            deleted: AtomicUsize::new(0),
            discarded: Condvar::new(),
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.device.write_at(IoKind::Log, at, bytes)
    }

    /// Number of slots.
    pub fn slots(&self) -> u64 {
        self.slots.load(Ordering::Acquire)
    }

    fn slot(&self, segment: SegmentId) -> io::Result<u64> {
        let (slot, _) = parts_of(segment);
        if slot >= self.slots() {
            return Err(corrupt(format!("segment {segment:#x} is none of this image")));
        }
        Ok(slot)
    }

    /// Which slots have one of these segments.
    fn used_slots(&self, segments: &[SegmentId]) -> io::Result<Vec<bool>> {
        let mut used = vec![false; self.slots() as usize];
        for &segment in segments {
            let slot = self.slot(segment)?;
            if std::mem::replace(&mut used[slot as usize], true) {
                return Err(corrupt(format!("two segments are in slot {slot}")));
            }
        }
        Ok(used)
    }

    fn place(&self, segment: SegmentId, offset: u64, len: usize) -> io::Result<u64> {
        let slot = self.slot(segment)?;
        if offset.checked_add(len as u64).is_none_or(|end| end > self.slot_bytes) {
            return Err(corrupt(format!("{len} bytes at {offset} are not in a segment")));
        }
        Ok(self.first_slot + slot * self.slot_bytes + offset)
    }
}

/// A superblock. Where the device keeps several copies, the newest that is whole; the others are made like it.
fn newest_superblock(device: &dyn Device, offset: u64) -> io::Result<Superblock> {
    let found = read_superblock(device, offset);
    if device.copies() < 2 {
        return found;
    }
    let mut newest: Option<(usize, Superblock, Vec<u8>)> = None;
    for copy in 0..device.copies() {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        if device.read_copy(IoKind::Super, copy, offset, &mut bytes).is_ok()
            && let Ok(sb) = Superblock::decode(&bytes)
            && newest.as_ref().is_none_or(|(_, best, _)| best.sequence < sb.sequence)
        {
            newest = Some((copy, sb, bytes));
        }
    }
    let Some((copy, sb, bytes)) = newest else { return found };
    // The device says what it could not write; and there is one that is right.
    let _ = device.repair(IoKind::Super, copy, offset, &bytes);
    Ok(sb)
}

pub(crate) fn read_superblock(device: &dyn Device, offset: u64) -> io::Result<Superblock> {
    let read = || {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        device.read_at(IoKind::Super, offset, &mut bytes)?;
        Superblock::decode(&bytes)
    };
    // The older one would be taken instead: if only this read was wrong, that is not to be.
    read().or_else(|_| read())
}

impl SegmentStore for ImageStore {
    fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    fn create(&self) -> io::Result<SegmentId> {
        let mut inner = self.inner.lock();
        let slot = loop {
            let slot = inner.free.pop().or_else(|| inner.deleted.pop());
            match slot {
                Some(slot) => break slot,
                None if inner.discarding == 0 => return Err(full("the image has no free slot")),
                None => self.discarded.wait(&mut inner),
            }
        };
        self.deleted.store(inner.deleted.len(), Ordering::Release);
        Ok(inner.sequence << SLOT_BITS | u64::from(slot))
    }

    fn append(&self, segment: SegmentId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let at = self.place(segment, offset, bytes.len())?;
        self.held.put(at, bytes, &|at, bytes| self.write(at, bytes))
    }

    fn hold(&self) {
        self.held.begin();
    }

    fn get(&self, segment: SegmentId, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.get_all(&mut [Get { segment, offset, buf }])
    }

    fn get_all(&self, parts: &mut [Get<'_>]) -> io::Result<()> {
        let sector = u64::from(self.device.sector_size());
        let mut places = Vec::with_capacity(parts.len());
        for p in parts.iter() {
            let at = self.place(p.segment, p.offset, p.buf.len())?;
            let end = at + p.buf.len() as u64;
            self.held.before_read(at..end, &|at, bytes| self.write(at, bytes))?;
            places.push((at, at / sector * sector..end.next_multiple_of(sector)));
        }
        // Parts that are not of whole sectors are read with what is around them.
        let whole = |at: u64, sectors: &Range<u64>, len: usize| (at, at + len as u64) == (sectors.start, sectors.end);
        let around = |p: &Get<'_>, (at, sectors): &(u64, Range<u64>)| {
            if whole(*at, sectors, p.buf.len()) { 0 } else { (sectors.end - sectors.start) as usize }
        };
        let mut own: Vec<Vec<u8>> = parts.iter().zip(&places).map(|(p, place)| vec![0; around(p, place)]).collect();
        let requests = parts.iter_mut().zip(&mut own).zip(&places);
        let mut requests: Vec<ReadRequest<'_>> = requests
            .map(|((p, own), (_, sectors))| ReadRequest {
                kind: IoKind::Data,
                offset: sectors.start,
                buf: if own.is_empty() { &mut *p.buf } else { own },
            })
            .collect();
        match &mut requests[..] {
            [one] => self.device.read_at(one.kind, one.offset, one.buf)?,
            all => self.device.read_batch(all)?,
        }
        for ((p, own), (at, sectors)) in parts.iter_mut().zip(&own).zip(&places).filter(|((_, own), _)| !own.is_empty())
        {
            let n = p.buf.len();
            p.buf.copy_from_slice(&own[(at - sectors.start) as usize..][..n]);
        }
        Ok(())
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.device.observe(observer);
    }

    fn disks(&self) -> Vec<DiskStats> {
        self.device.counters()
    }

    fn copies(&self) -> usize {
        self.device.copies()
    }

    fn get_copy(&self, copy: usize, segment: SegmentId, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let at = self.place(segment, offset, buf.len())?;
        let sector = u64::from(self.device.sector_size());
        let start = at / sector * sector;
        let end = (at + buf.len() as u64).next_multiple_of(sector);
        self.held.before_read(at..end, &|at, bytes| self.write(at, bytes))?;
        let mut bytes = vec![0; (end - start) as usize];
        self.device.read_copy(IoKind::Data, copy, start, &mut bytes)?;
        buf.copy_from_slice(&bytes[(at - start) as usize..][..buf.len()]);
        Ok(())
    }

    fn make_equal(&self, copy: usize, segment: SegmentId, offset: u64, good: &[u8]) -> io::Result<()> {
        let at = self.place(segment, offset, good.len())?;
        let (end, sector) = (at + good.len() as u64, u64::from(self.device.sector_size()));
        let (first, last) = (at.next_multiple_of(sector), end / sector * sector);
        for start in (first..last).step_by(EQUAL_BYTES as usize) {
            let range = (start - at) as usize..(last.min(start + EQUAL_BYTES) - at) as usize;
            self.device.repair(IoKind::Data, copy, start, &good[range])?;
        }
        let mut edges = [at / sector * sector, last];
        edges.sort_unstable();
        for (n, start) in edges.into_iter().enumerate() {
            let is_whole = at <= start && start + sector <= end;
            if is_whole || start >= end || start + sector <= at || n == 1 && edges[0] == start {
                continue;
            }
            // What else is in the sector may be right in another copy only.
            let ours = (at.max(start) - start) as usize..(end.min(start + sector) - start) as usize;
            let read = |copy| {
                let mut bytes = vec![0; sector as usize];
                self.device.read_copy(IoKind::Data, copy, start, &mut bytes).ok().map(|()| bytes)
            };
            let Some(right) = read(copy) else { continue };
            let same =
                |other: &Vec<u8>| other[..ours.start] == right[..ours.start] && other[ours.end..] == right[ours.end..];
            if right[ours.clone()] == good[(at.max(start) - at) as usize..][..ours.len()]
                && (0..self.device.copies()).filter_map(read).all(|other| same(&other))
            {
                self.device.repair(IoKind::Data, copy, start, &right)?;
            }
        }
        Ok(())
    }

    fn make_root_equal(&self) {
        // Nobody replaces it meanwhile.
        let _inner = self.inner.lock();
        for offset in SUPERBLOCK_OFFSETS {
            let _ = newest_superblock(&self.device, offset);
        }
    }

    fn range_of(&self, segment: SegmentId) -> Option<Range<u64>> {
        let start = self.place(segment, 0, 0).ok()?;
        Some(start..start + self.slot_bytes)
    }

    fn delete(&self, segment: SegmentId) -> io::Result<()> {
        let slot = self.slot(segment)? as u32;
        let mut inner = self.inner.lock();
        if self.device.can_discard() {
            inner.deleted.push(slot);
            self.deleted.store(inner.deleted.len(), Ordering::Release);
        } else {
            inner.free.push(slot);
        }
        Ok(())
    }

    fn has_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire) > 0
    }

    fn discard_deleted(&self) -> io::Result<bool> {
        let slot = {
            let mut inner = self.inner.lock();
            let Some(slot) = inner.deleted.pop() else { return Ok(false) };
            self.deleted.store(inner.deleted.len(), Ordering::Release);
            inner.discarding += 1;
            slot
        };
        let told = self.device.discard(self.first_slot + u64::from(slot) * self.slot_bytes, self.slot_bytes);
        // The slot can be written over whatever the device makes of the discard.
        let mut inner = self.inner.lock();
        inner.discarding -= 1;
        inner.free.push(slot);
        drop(inner);
        self.discarded.notify_all();
        told.map_err(|e| io::Error::new(e.kind(), format!("the room is free, the device was not told: {e}")))?;
        Ok(true)
    }

    fn list(&self) -> io::Result<Option<Vec<SegmentId>>> {
        Ok(None)
    }

    fn places(&self) -> io::Result<Vec<SegmentId>> {
        Ok((0..self.slots()).collect())
    }

    fn can_adopt(&self, segments: &[SegmentId]) -> io::Result<()> {
        self.used_slots(segments).map(drop)
    }

    fn adopt(&self, segments: &[SegmentId]) -> io::Result<()> {
        let used = self.used_slots(segments)?;
        let mut inner = self.inner.lock();
        inner.free = (0..self.slots() as u32).rev().filter(|&s| !used[s as usize]).collect();
        inner.deleted.clear();
        self.deleted.store(0, Ordering::Release);
        Ok(())
    }

    fn root(&self) -> io::Result<StoreRoot> {
        let inner = self.inner.lock();
        Ok(StoreRoot { sequence: inner.sequence, bytes: inner.root.clone() })
    }

    fn replace_root(&self, expected: u64, bytes: &[u8]) -> io::Result<u64> {
        let mut inner = self.inner.lock();
        if inner.sequence != expected || bytes.len() > ROOT_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the root has sequence {}, not {expected}: somebody else writes to the store", inner.sequence),
            ));
        }
        if expected + 1 >= SEQUENCE_MAX {
            return Err(full("the image has had as many roots as it can have"));
        }
        let sb = Superblock {
            uuid: self.uuid,
            sequence: expected + 1,
            slot_bytes: self.slot_bytes,
            slots: inner.next_slots,
            first_slot: self.first_slot,
            root: bytes.to_vec(),
        };
        self.held.end(&|at, bytes| self.write(at, bytes))?;
        self.device.flush()?;
        self.device.write_at(IoKind::Super, SUPERBLOCK_OFFSETS[inner.next_copy], &sb.encode())?;
        self.device.flush()?;
        inner.next_copy = 1 - inner.next_copy;
        inner.sequence = sb.sequence;
        inner.root = sb.root;
        let before = self.slots.swap(sb.slots, Ordering::AcqRel);
        // The lowest are given out first.
        let new: Vec<u32> = (before as u32..sb.slots as u32).rev().collect();
        inner.free.splice(0..0, new);
        Ok(sb.sequence)
    }

    fn flush(&self) -> io::Result<()> {
        self.held.write_out(&|at, bytes| self.write(at, bytes))?;
        self.device.flush()
    }

    fn can_append(&self) -> bool {
        true
    }

    fn segment_bytes(&self) -> u64 {
        self.slot_bytes
    }

    fn is_rotational(&self) -> bool {
        self.device.is_rotational()
    }

    fn alignment(&self) -> u32 {
        self.device.sector_size()
    }

    fn capacity(&self) -> u64 {
        self.slots() * self.slot_bytes
    }

    fn available(&self) -> u64 {
        let inner = self.inner.lock();
        (inner.free.len() + inner.deleted.len() + inner.discarding) as u64 * self.slot_bytes
    }

    fn grow(&self, bytes: Option<u64>) -> io::Result<()> {
        let have = self.device.len();
        if let Some(bytes) = bytes.filter(|bytes| *bytes < have) {
            let what = format!("the image has {have} bytes and cannot shrink to {bytes}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let fit = self.device.grow(bytes)?.saturating_sub(self.first_slot) / self.slot_bytes;
        let mut inner = self.inner.lock();
        inner.next_slots = inner.next_slots.max(fit.min(SLOTS_MAX));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cffs_device::MemoryDevice;

    fn image() -> (Arc<MemoryDevice>, ImageStore) {
        let device = Arc::new(MemoryDevice::new(1 << 20));
        let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [7; 16], slot_bytes: 64 << 10 }).unwrap();
        (device, store)
    }

    #[test]
    fn the_newer_superblock_counts_and_a_torn_one_does_not() {
        let (device, store) = image();
        assert_eq!(store.replace_root(0, b"one").unwrap(), 1);
        assert_eq!(store.replace_root(1, b"two").unwrap(), 2);
        assert!(store.replace_root(1, b"late").is_err());
        let again = ImageStore::open(device.clone()).unwrap();
        assert_eq!(again.root().unwrap(), StoreRoot { sequence: 2, bytes: b"two".to_vec() });
        // Sequence 2 went to the first superblock. Torn, it leaves the one before.
        device.write_at(IoKind::Super, 0, &[0xff; 512]).unwrap();
        let again = ImageStore::open(device.clone()).unwrap();
        assert_eq!(again.root().unwrap().bytes, b"one");
        assert_eq!(again.replace_root(1, b"new").unwrap(), 2);
        assert_eq!(ImageStore::open(device).unwrap().root().unwrap().bytes, b"new");
    }

    #[test]
    fn ids_never_come_twice() {
        let (_, store) = image();
        let a = store.create().unwrap();
        store.replace_root(0, b"").unwrap();
        let all = store.available();
        store.delete(a).unwrap();
        assert!(store.has_deleted() && store.available() == all + (64 << 10));
        assert!(store.discard_deleted().unwrap() && !store.discard_deleted().unwrap() && !store.has_deleted());
        assert_eq!(store.available(), all + (64 << 10));
        let b = store.create().unwrap();
        assert_ne!(a, b);
        assert_eq!(store.slot(a).unwrap(), store.slot(b).unwrap());
        while store.create().is_ok() {}
        assert_eq!(store.available(), 0);
        // One that comes back at once is never discarded.
        store.delete(b).unwrap();
        assert_eq!(store.slot(store.create().unwrap()).unwrap(), store.slot(b).unwrap());
        assert!(!store.has_deleted() && !store.discard_deleted().unwrap());
        store.adopt(&[b]).unwrap();
        assert_eq!(store.available(), store.capacity() - (64 << 10));
        assert!(store.adopt(&[a, b]).is_err(), "both are in one slot");
    }

    #[test]
    fn ranges_beyond_a_segment_are_errors() {
        let (_, store) = image();
        let a = store.create().unwrap();
        assert!(store.append(a, 65536, &[0; 512]).is_err());
        assert!(store.get(a, u64::MAX, &mut [0; 2]).is_err());
        assert!(store.get(12345, 0, &mut [0; 2]).is_err());
        store.append(a, 512, &[5; 1024]).unwrap();
        let mut odd = [0; 700];
        store.get(a, 513, &mut odd).unwrap();
        assert_eq!(odd, [5; 700]);
    }
}
