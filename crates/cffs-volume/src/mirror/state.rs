//! Who belongs to the mirror, and how a change of that is recorded.

use super::intent::{Intent, IntentIo};
use super::shadow::Shadow;
use crate::label::Label;
use crate::range_lock::RangeLock;
use crate::regions::Regions;
use crate::superblock::{BLOCK_BYTES, Entry, Kind, Superblock, Uuid};
use cffs_buf::WorkerPool;
use cffs_device::{Device, Disk, Observed, OnBehalf};
use parking_lot::{Mutex, RwLock};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What has happened since the mirror was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorStats {
    /// Reads that a member failed.
    pub read_errors: u64,
    /// Reads that were answered by another member than the one that was asked first.
    pub reads_redirected: u64,
    /// Ranges written back to a member that could not read them.
    pub rewritten: u64,
    /// Copies made equal to one that was verified: by [`Device::repair`], and by a scrub.
    pub repaired: u64,
    /// Members that were dropped.
    pub dropped: u64,
    /// Bytes copied by resyncs.
    pub resynced_bytes: u64,
    /// Ranges that a read brought to all members, because they could differ after a crash.
    pub synced_reads: u64,
    /// Times that the bitmap was written because a write went to a region that was clean.
    pub bitmap_writes: u64,
}

/// The same, while it is counted.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) read_errors: AtomicU64,
    pub(super) reads_redirected: AtomicU64,
    pub(super) rewritten: AtomicU64,
    pub(super) repaired: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) resynced_bytes: AtomicU64,
    pub(super) synced_reads: AtomicU64,
    pub(super) bitmap_writes: AtomicU64,
    logged: AtomicU64,
}

/// Messages of wrong and unreadable blocks that are logged; all of them are counted.
const LOGGED_MAX: u64 = 50;

impl Counters {
    /// Whether one more of the messages is logged of which there may be one for each block.
    pub(super) fn may_log(&self) -> bool {
        let logged = self.logged.fetch_add(1, Ordering::Relaxed);
        if logged == LOGGED_MAX {
            tracing::warn!(
                "more blocks of members are wrong or unreadable: they are counted, and not logged one by one any more"
            );
        }
        logged < LOGGED_MAX
    }
}

pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// What a choice of a member to read from goes by.
#[derive(Default)]
pub(super) struct Load {
    /// Reads in flight, and their bytes.
    pub(super) in_flight: AtomicU64,
    pub(super) bytes: AtomicU64,
    /// Where the last read ended.
    pub(super) position: AtomicU64,
}

impl Load {
    /// Does so many reads, of so many bytes in all, of which the last one ends at `end`.
    pub(super) fn during<R>(&self, reads: u64, bytes: u64, end: u64, work: impl FnOnce() -> R) -> R {
        self.in_flight.fetch_add(reads, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let result = work();
        self.in_flight.fetch_sub(reads, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.position.store(end, Ordering::Relaxed);
        result
    }
}

pub(crate) struct Member {
    pub(crate) uuid: Uuid,
    pub(crate) name: String,
    /// `None` for a member that is absent or was dropped.
    pub(crate) device: Option<Arc<Disk>>,
    pub(crate) data_offset: u64,
    /// Sequence number and next copy of its superblock.
    pub(crate) sequence: u64,
    pub(crate) next_copy: usize,
    /// The copy of its bitmap that is older or damaged.
    pub(crate) bitmap_copy: usize,
    /// Whether it has everything that was made durable. Only such a member is ever read.
    pub(crate) in_sync: bool,
    /// See [`Entry::outgoing`].
    pub(crate) outgoing: bool,
    /// See [`Entry::last_generation`]; of one that is in sync and there, exactly what its superblock has.
    pub(crate) last_generation: u64,
    /// Regions that have to be copied to it. Of a member that is in sync: those that may differ after a crash, and then what it has
    /// is as good as what the others have until one of them was read.
    pub(crate) stale: Regions,
    /// Distinguishes this presence from an earlier one.
    pub(super) attachment: u64,
    pub(super) load: Load,
}

impl Member {
    pub(crate) fn new(uuid: Uuid, name: String, in_sync: bool, last_generation: u64, regions: u32) -> Self {
        Member {
            uuid,
            name,
            device: None,
            data_offset: 0,
            sequence: 0,
            next_copy: 0,
            bitmap_copy: 0,
            in_sync,
            outgoing: false,
            last_generation,
            stale: Regions::none(regions),
            attachment: 0,
            load: Load::default(),
        }
    }

    /// The number of its disk, if it is there.
    pub(crate) fn disk(&self) -> Option<usize> {
        self.device.as_ref().map(|disk| disk.number())
    }

    /// In sync and there.
    pub(super) fn serves(&self) -> bool {
        self.in_sync && self.device.is_some()
    }
}

pub(super) struct State {
    pub(super) generation: u64,
    pub(super) members: Vec<Member>,
    /// A change of membership could not be recorded anywhere: nothing must be promised any more.
    pub(super) failed: bool,
    pub(super) attachments: u64,
    /// The number of the next disk. None is used again while the mirror is open, because who counts or traces requests tells disks by it.
    pub(super) next_disk: usize,
}

impl State {
    pub(super) fn present(&self) -> Vec<&Member> {
        self.members.iter().filter(|m| m.device.is_some()).collect()
    }

    pub(super) fn serving(&self) -> Vec<&Member> {
        self.members.iter().filter(|m| m.serves()).collect()
    }

    pub(super) fn check(&self) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other(
                "the mirror has failed: no member could record who belongs to it. Close it, look after its devices, and open it anew",
            ));
        }
        Ok(())
    }
}

/// What a mirror is made of.
pub(crate) struct MirrorParts {
    pub(crate) volume: Uuid,
    pub(crate) created: u64,
    pub(crate) len: u64,
    pub(crate) region: u64,
    pub(crate) sector: u32,
    pub(crate) read_only: bool,
    pub(crate) generation: u64,
    pub(crate) members: Vec<Member>,
    /// What the bitmaps said.
    pub(crate) dirty: Regions,
    /// Highest sequence number of a bitmap.
    pub(crate) bitmap_sequence: u64,
    /// Most requests to members that one request makes at once.
    pub(crate) depth: usize,
    pub(crate) observed: Observed,
}

/// Several members that each have everything. Reads go to the one that has least to do; what it cannot read comes from another one and
/// is written back. Writes go to all; a member that fails one is dropped, and that is recorded on the others before the write
/// is acknowledged.
pub struct Mirror {
    pub(super) volume: Uuid,
    pub(super) created: u64,
    pub(super) len: u64,
    pub(super) region: u64,
    pub(super) sector: u32,
    pub(super) read_only: bool,
    pub(super) state: RwLock<State>,
    pub(super) ranges: RangeLock,
    /// Held while the bitmap is written; taken after `state`.
    pub(super) intent_io: Mutex<IntentIo>,
    /// Held briefly; taken last.
    pub(super) intent: Mutex<Intent>,
    pub(super) shadow: Shadow,
    pub(super) pool: WorkerPool,
    pub(super) counters: Counters,
    /// Who learns of requests, and of a resync.
    pub(super) observed: RwLock<Observed>,
}

/// Whether a member in sync other than the last one has failed, so that it is to be dropped before anything else is recorded.
fn stops(state: &State, last: Option<Uuid>, failed: &[(Uuid, io::Error)]) -> bool {
    let has_failed = |m: &&Member| failed.iter().any(|(uuid, _)| *uuid == m.uuid);
    state.members.iter().filter(has_failed).any(|m| m.in_sync && Some(m.uuid) != last)
}

/// How a request to several members ended.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) succeeded: Vec<Uuid>,
    pub(super) failed: Vec<(Uuid, io::Error)>,
}

impl Mirror {
    pub(crate) fn new(parts: MirrorParts) -> Self {
        Mirror {
            volume: parts.volume,
            created: parts.created,
            len: parts.len,
            region: parts.region,
            sector: parts.sector,
            read_only: parts.read_only,
            state: RwLock::new(State {
                next_disk: parts.members.iter().filter_map(|m| m.disk()).max().map_or(0, |last| last + 1),
                generation: parts.generation,
                members: parts.members,
                failed: false,
                attachments: 1,
            }),
            ranges: RangeLock::default(),
            intent_io: Mutex::new(IntentIo { sequence: parts.bitmap_sequence, next_copy: 0 }),
            intent: Mutex::new(Intent::new(parts.dirty)),
            shadow: Shadow::default(),
            pool: WorkerPool::new("cffs-mirror", parts.depth),
            counters: Counters::default(),
            observed: RwLock::new(parts.observed),
        }
    }

    /// Bytes that are read, compared and written anew at the least: a block, or a sector if that is longer.
    pub(super) fn unit(&self) -> u64 {
        (BLOCK_BYTES as u64).max(self.sector.into())
    }

    /// Number of regions of the bitmap.
    pub(super) fn regions(&self) -> u32 {
        self.len.div_ceil(self.region) as u32
    }

    /// The regions that a range touches.
    pub(super) fn regions_of(&self, (start, end): (u64, u64)) -> Range<u32> {
        if start >= end {
            return 0..0;
        }
        (start / self.region) as u32..((end - 1) / self.region + 1) as u32
    }

    /// The bytes of a region, as start and end.
    pub(super) fn range_of(&self, region: u32) -> (u64, u64) {
        let start = u64::from(region) * self.region;
        (start, (start + self.region).min(self.len))
    }

    /// Asks several members at once.
    pub(super) fn each(
        &self,
        members: &[&Member],
        op: &(dyn Fn(&Member, &dyn Device) -> io::Result<()> + Sync),
    ) -> Outcome {
        let results: Vec<Mutex<Option<io::Result<()>>>> = members.iter().map(|_| Mutex::new(None)).collect();
        let behalf = OnBehalf::current();
        self.pool.run(members.len(), &|i| {
            let result = members[i].device.as_ref().map(|device| behalf.run(|| op(members[i], device)));
            *results[i].lock() = result;
        });
        let mut outcome = Outcome::default();
        for (member, result) in members.iter().zip(results) {
            match result.into_inner() {
                Some(Ok(())) => outcome.succeeded.push(member.uuid),
                Some(Err(e)) => outcome.failed.push((member.uuid, e)),
                None => {}
            }
        }
        outcome
    }

    /// Records who belongs to the mirror on all that are there, as three generations. Who fails that is dropped, and that is recorded
    /// too. If everybody who serves fails it, nothing can be recorded any more, and the mirror has failed. `last` has just come into
    /// sync, or is new.
    ///
    /// # Errors
    /// That the mirror has failed, now or before.
    pub(super) fn record(&self, state: &mut State, last: Option<Uuid>) -> io::Result<()> {
        state.check()?;
        loop {
            let failed = self.write_rounds(state, last);
            let has_failed = |m: &&&Member| failed.iter().any(|(uuid, _)| *uuid == m.uuid);
            if state.serving().iter().all(|m| has_failed(&m)) {
                state.failed = true;
                let error = failed.first().map_or(String::new(), |(_, e)| e.to_string());
                tracing::error!(volume = %self.volume, %error, "no member could record who belongs to the mirror: it has failed");
                return state.check();
            }
            if !self.detach(state, &failed) {
                return Ok(());
            }
        }
    }

    /// Writes superblocks with the next three generations to all that are there, each when all have the one before it. So whatever ends it, a member
    /// is at most one generation behind or ahead of another one, which knows that it had the generation before its own; and a use raises that by three. Returns
    /// who has failed.
    fn write_rounds(&self, state: &mut State, last: Option<Uuid>) -> Vec<(Uuid, io::Error)> {
        let mut failed = Vec::new();
        // Who missed a round of an opening that a crash has ended would be two behind after the first round of this one.
        let generation = state.generation;
        let is_behind = move |m: &Member| m.in_sync && m.last_generation < generation;
        if state.present().iter().any(|m| is_behind(m)) {
            self.write_labels(state, last, (&is_behind, 1), &mut failed);
        }
        // At the end both copies have it.
        for copies in [1, 1, 2] {
            if stops(state, last, &failed) {
                break;
            }
            state.generation += 1;
            self.write_labels(state, last, (&|_| true, copies), &mut failed);
        }
        failed
    }

    /// Writes so many copies of the superblocks of those of whom `wanted` says so: first of those in sync, `last` as the last of them, then of the others. So
    /// there is no moment at which one counts as in sync and nobody else knows. Who has failed gets none any more; and neither do the last one and those
    /// that are out of date once another one that is in sync has failed.
    fn write_labels(
        &self,
        state: &mut State,
        last: Option<Uuid>,
        (wanted, copies): (&dyn Fn(&Member) -> bool, usize),
        failed: &mut Vec<(Uuid, io::Error)>,
    ) {
        let table: Vec<Entry> = state
            .members
            .iter()
            .map(|m| Entry {
                uuid: m.uuid,
                data_len: self.len,
                in_sync: m.in_sync,
                outgoing: m.outgoing,
                last_generation: m.last_generation,
            })
            .collect();
        let mut order: Vec<usize> = (0..state.members.len()).collect();
        order.sort_by_key(|i| (!state.members[*i].in_sync, Some(state.members[*i].uuid) == last));
        for index in order {
            let member = &state.members[index];
            let has_failed = failed.iter().any(|(uuid, _)| *uuid == member.uuid);
            let Some(device) = member.device.clone().filter(|_| !has_failed && wanted(member)) else { continue };
            if (!member.in_sync || Some(member.uuid) == last) && stops(state, last, failed) {
                // It would be the only one that knows, and look as if it had been used without the others.
                break;
            }
            let superblock = Superblock {
                volume: self.volume,
                kind: Kind::Mirror,
                index,
                generation: state.generation,
                sequence: member.sequence,
                data_offset: member.data_offset,
                unit: 0,
                region: self.region,
                created: self.created,
                members: table.clone(),
            };
            let mut label = Label { superblock, next_copy: member.next_copy };
            let result = label.write(&device, copies);
            let member = &mut state.members[index];
            (member.sequence, member.next_copy) = (label.superblock.sequence, label.next_copy);
            match result {
                Ok(()) if member.in_sync => member.last_generation = label.superblock.generation,
                Ok(()) => {}
                Err(e) => failed.push((member.uuid, e)),
            }
        }
    }

    /// What has happened since the mirror was opened.
    pub fn stats(&self) -> MirrorStats {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let c = &self.counters;
        MirrorStats {
            read_errors: get(&c.read_errors),
            reads_redirected: get(&c.reads_redirected),
            rewritten: get(&c.rewritten),
            repaired: get(&c.repaired),
            dropped: get(&c.dropped),
            resynced_bytes: get(&c.resynced_bytes),
            synced_reads: get(&c.synced_reads),
            bitmap_writes: get(&c.bitmap_writes),
        }
    }
}
