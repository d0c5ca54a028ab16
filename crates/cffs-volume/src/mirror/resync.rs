//! Copying what a member lacks.

use super::state::{Member, Mirror, State, add};
use crate::regions::Regions;
use crate::superblock::Uuid;
use cffs_device::{Device, IoKind, Purpose, Work};
use std::io::{self, IoSliceMut};
use std::time::{Duration, Instant};

/// Bytes that are copied, or compared, at a time. Writes there wait meanwhile.
pub(super) const CHUNK: u64 = 1 << 20;
/// Longest sleep of whoever keeps a rate.
const NAP: Duration = Duration::from_millis(50);

/// How far a resync or a scrub is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are done.
    pub done: u64,
    /// Bytes in all, as far as that is known.
    pub total: u64,
}

/// Keeps to a number of bytes a second.
pub(super) struct Pacer {
    began: Instant,
    bytes: u64,
    rate: Option<u64>,
}

impl Pacer {
    pub(super) fn new(rate: Option<u64>) -> Self {
        Pacer { began: Instant::now(), bytes: 0, rate: rate.map(|r| r.max(1)) }
    }

    /// Waits until `bytes` more may have been moved. Ends early, with false, as soon as `go_on` says so.
    pub(super) fn wait(&mut self, bytes: u64, go_on: &mut dyn FnMut() -> bool) -> bool {
        self.bytes += bytes;
        let Some(rate) = self.rate else { return go_on() };
        let due = Duration::from_secs_f64(self.bytes as f64 / rate as f64);
        loop {
            if !go_on() {
                return false;
            }
            let now = self.began.elapsed();
            if now >= due {
                return true;
            }
            std::thread::sleep((due - now).min(NAP));
        }
    }
}

/// A member that regions are copied to, and the presence of it that the copy counts for.
type Target = (Uuid, u64);

fn targets(state: &State, region: u32) -> Vec<Target> {
    let stale = |m: &&Member| m.device.is_some() && m.stale.contains(region);
    state.members.iter().filter(stale).map(|m| (m.uuid, m.attachment)).collect()
}

impl Mirror {
    /// The first region that a member lacks, behind the ones that cannot be copied; and how many there are.
    fn next_region(&self, unreadable: &Regions) -> (Option<u32>, u64) {
        let state = self.state.read();
        let mut all = Regions::none(self.regions());
        state.present().iter().for_each(|m| all.insert_all(&m.stale));
        let next = all.iter().find(|r| !unreadable.contains(*r));
        (next, u64::from(all.len()))
    }

    /// Copies what members lack: after a crash what the bitmap says, after an absence what was written meanwhile, to a new member
    /// everything. A member that lacks nothing any more is in sync. `rate` limits the bytes copied a second. `go_on` is asked often
    /// and ends the resync with false; it can go on later. Returns whether it is complete.
    ///
    /// # Errors
    /// `InvalidData` if a place could be read from no member; the rest is copied all the same, and the member stays out of date. If
    /// nobody is left to copy from, what the last one said.
    pub fn resync(&self, rate: Option<u64>, go_on: &mut dyn FnMut(Progress) -> bool) -> io::Result<bool> {
        if self.read_only {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the mirror was opened for reading only"));
        }
        let _purpose = Purpose::Scrub.scope();
        let observed = self.observed.read().clone();
        let _resync = observed.work_for_all(Work::Resync);
        let mut pacer = Pacer::new(rate);
        let mut unreadable = Regions::none(self.regions());
        let mut first_error = None;
        let mut done = 0;
        while let (Some(region), left) = self.next_region(&unreadable) {
            let targets = targets(&self.state.read(), region);
            let (start, end) = self.range_of(region);
            let total = done + left * self.region;
            let mut at = start;
            while at < end {
                let chunk = (at, end.min(at + CHUNK));
                if let Err(e) = self.copy_chunk(chunk, &targets) {
                    self.state.read().check()?;
                    first_error.get_or_insert((at, e));
                    unreadable.insert(region);
                    break;
                }
                at = chunk.1;
                let progress = Progress { done: done + (at - start), total };
                if !pacer.wait(chunk.1 - chunk.0, &mut || go_on(progress)) {
                    return Ok(false);
                }
            }
            if at == end {
                done += end - start;
                self.region_done(region, &targets);
            }
        }
        self.join_filled()?;
        self.remove_replaced()?;
        match first_error {
            None => Ok(true),
            Some((at, e)) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "{} regions could not be copied, the first at byte {at}: {e}. Overwrite or remove what is stored there, and \
                     resync again",
                    unreadable.len()
                ),
            )),
        }
    }

    /// Whether a member lacks something.
    pub fn needs_resync(&self) -> bool {
        self.state
            .read()
            .members
            .iter()
            .any(|m| m.device.is_some() && (!m.in_sync || !m.stale.is_empty() || m.outgoing))
    }

    fn copy_chunk(&self, (start, end): (u64, u64), targets: &[Target]) -> io::Result<()> {
        let _alone = self.ranges.lock(&[(start, end)]);
        let outcome = {
            let state = self.state.read();
            state.check()?;
            let mut bytes = vec![0; (end - start) as usize];
            let failed = self.read_any(&state, IoKind::Data, start, &mut [IoSliceMut::new(&mut bytes)], &[])?;
            // Who could not read it gets it too.
            let wants = |m: &Member| targets.contains(&(m.uuid, m.attachment)) || failed.contains(&m.uuid);
            let members: Vec<&Member> = state.members.iter().filter(|m| m.device.is_some() && wants(m)).collect();
            let write = |m: &Member, device: &dyn Device| match m.in_sync {
                true => self.make_equal(m, device, start, &bytes),
                false => device.write_at(IoKind::Data, m.data_offset + start, &bytes),
            };
            self.each(&members, &write)
        };
        add(&self.counters.resynced_bytes, end - start);
        if !outcome.failed.is_empty() {
            // A target that fails is dropped; the next region asks again who lacks something.
            let _ = self.conclude(outcome);
        }
        Ok(())
    }

    fn region_done(&self, region: u32, targets: &[Target]) {
        let mut state = self.state.write();
        // The copy is not durable yet: for the bitmap it is a write that has just ended.
        let mut intent = self.intent.lock();
        let epoch = intent.epoch;
        intent.uses.entry(region).or_default().last = epoch;
        for m in state.members.iter_mut().filter(|m| targets.contains(&(m.uuid, m.attachment))) {
            m.stale.remove(region);
        }
    }

    /// Members that lack nothing any more belong to the mirror.
    fn join_filled(&self) -> io::Result<()> {
        let filled = |m: &&Member| m.device.is_some() && !m.in_sync && m.stale.is_empty();
        loop {
            let next = {
                let state = self.state.read();
                state.check()?;
                state.members.iter().find(filled).map(|m| (m.uuid, m.attachment))
            };
            let Some(target) = next else { break };
            let mut state = self.state.write();
            let same = |m: &Member| (m.uuid, m.attachment) == target && m.device.is_some() && m.stale.is_empty();
            let Some(index) = state.members.iter().position(same) else { continue };
            // Its flushes make durable what was copied, too, before the member counts. Writes from here on go to it as to all others.
            let failed = self.write_bitmap(&[&state.members[index]]).failed;
            if !failed.is_empty() {
                self.drop_members(&mut state, failed)?;
                continue;
            }
            let generation = state.generation;
            let member = &mut state.members[index];
            // Whoever is dropped while it gets the next one has this one, for all that is known.
            (member.in_sync, member.last_generation) = (true, generation);
            let name = member.name.clone();
            self.record(&mut state, Some(target.0))?;
            if state.members.iter().any(|m| m.uuid == target.0 && m.serves()) {
                tracing::info!(volume = %self.volume, member = %name, "a member is up to date");
            }
        }
        Ok(())
    }
}
