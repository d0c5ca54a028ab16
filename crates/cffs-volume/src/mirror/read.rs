//! Reads: from whoever has least to do, and from another one where that one fails.

use super::divide::{Reader, divide};
use super::state::{Member, Mirror, State, add};
use crate::buffers::{CutterMut, total_mut};
use crate::superblock::Uuid;
use cffs_device::{Device, IoKind, OnBehalf, Purpose, ReadRequest};
use parking_lot::Mutex;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

fn read_member(m: &Member, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
    let Some(device) = &m.device else { return Err(io::ErrorKind::NotFound.into()) };
    let len = total_mut(bufs);
    m.load.during(1, len, offset + len, || device.read_vectored(kind, m.data_offset + offset, bufs))
}

impl Mirror {
    /// Members that can be read in these regions, the best first. Those that may differ after a crash come last: what they have is
    /// as good as long as nobody has read the others.
    fn choices<'s>(&self, state: &'s State, regions: Range<u32>, offset: u64, avoid: &[Uuid]) -> Vec<&'s Member> {
        let mut list = state.serving();
        if list.len() > 1 {
            list.sort_by_key(|m| {
                let distance = m.load.position.load(Ordering::Relaxed).abs_diff(offset);
                let busy = m.load.in_flight.load(Ordering::Relaxed);
                (m.stale.touches(regions.clone()), avoid.contains(&m.uuid), busy, distance)
            });
        }
        list
    }

    /// Whether a read of these regions must first make the members equal there.
    fn must_sync(&self, state: &State, regions: Range<u32>) -> bool {
        !self.read_only && state.members.iter().any(|m| m.serves() && m.stale.touches(regions.clone()))
    }

    /// Fills the buffers from any member. Returns who could not read them, or the first error if nobody could.
    pub(super) fn read_any(
        &self,
        state: &State,
        kind: IoKind,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
        avoid: &[Uuid],
    ) -> io::Result<Vec<Uuid>> {
        let len = total_mut(bufs);
        let choices = self.choices(state, self.regions_of((offset, offset + len)), offset, avoid);
        let mut failed = Vec::new();
        let mut first_error = None;
        for m in &choices {
            match read_member(m, kind, offset, bufs) {
                Ok(()) => {
                    add(&self.counters.reads_redirected, u64::from(!failed.is_empty()));
                    return Ok(failed);
                }
                Err(error) => {
                    add(&self.counters.read_errors, 1);
                    if self.counters.may_log() {
                        tracing::warn!(volume = %self.volume, member = %m.name, offset, len, %error, "a member of the mirror failed a read");
                    }
                    failed.push(m.uuid);
                    first_error.get_or_insert(error);
                }
            }
        }
        let error = first_error.unwrap_or_else(|| io::Error::other("no member of the mirror is there"));
        let unit = self.unit();
        if choices.len() < 2 || len <= unit {
            return Err(error);
        }
        // Each has an unreadable place, but perhaps not the same.
        let mut cutter = CutterMut::new(bufs);
        let mut at = offset;
        while at < offset + len {
            let n = (unit - at % unit).min(offset + len - at);
            let mut piece = Vec::new();
            cutter.take(n, &mut piece);
            if !choices.iter().any(|m| read_member(m, kind, at, &mut piece).is_ok()) {
                return Err(error);
            }
            at += n;
        }
        add(&self.counters.reads_redirected, 1);
        Ok(failed)
    }

    /// Reads a range that may differ between members after a crash, and brings what was read to all of them before anybody sees it:
    /// so what was once read stays, whichever member is lost.
    fn read_and_sync(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<Vec<Uuid>> {
        let block = self.unit();
        let start = offset - offset % block;
        let end = (offset + total_mut(bufs)).next_multiple_of(block);
        let _alone = self.ranges.lock(&[(start, end)]);
        let (failed, outcome) = {
            let state = self.state.read();
            let mut bytes = vec![0; (end - start) as usize];
            let failed = self.read_any(&state, kind, start, &mut [IoSliceMut::new(&mut bytes)], &[])?;
            let mut targets = state.serving();
            targets.retain(|m| m.stale.touches(self.regions_of((start, end))));
            let _purpose = Purpose::Scrub.scope();
            let outcome = self.each(&targets, &|m, device| self.make_equal(m, device, start, &bytes));
            let mut rest = &bytes[(offset - start) as usize..];
            for buf in bufs {
                let (head, tail) = rest.split_at(buf.len());
                buf.copy_from_slice(head);
                rest = tail;
            }
            (failed, outcome)
        };
        add(&self.counters.synced_reads, 1);
        if !outcome.failed.is_empty() {
            // Who could not take it is dropped. If that cannot be recorded, nobody may see what was read.
            let dropped = self.conclude(outcome);
            self.state.read().check().and(dropped.or(Ok(())))?;
        }
        Ok(failed)
    }

    /// Writes to a member that may differ after a crash what was found on another one, and keeps what it had. `start` is at a block.
    pub(super) fn make_equal(&self, m: &Member, device: &dyn Device, start: u64, bytes: &[u8]) -> io::Result<()> {
        let at = m.data_offset + start;
        let mut own = vec![0; bytes.len()];
        if device.read_at(IoKind::Data, at, &mut own).is_ok() {
            if own == bytes {
                return Ok(());
            }
            self.shadow.keep(m.uuid, start, &own, bytes);
        }
        device.write_at(IoKind::Data, at, bytes)
    }

    /// Fills the buffers from several members at once, each of which has nothing else to do: so a long read takes less time. It is divided where a
    /// device would divide it too, so there are no more requests. Says whether it was done; if not, nothing is known of the buffers.
    fn read_divided(&self, state: &State, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> bool {
        let len = total_mut(bufs);
        let serving = state.serving();
        let most = |m: &&Member| m.device.as_ref().map_or(0, |d| d.max_request() as u64);
        let each = serving.iter().map(most).min().unwrap_or(0) / self.unit() * self.unit();
        if serving.len() < 2 || each == 0 || len <= each {
            return false;
        }
        let regions = self.regions_of((offset, offset + len));
        let mut idle = serving;
        idle.retain(|m| m.load.in_flight.load(Ordering::Relaxed) == 0 && !m.stale.touches(regions.clone()));
        if idle.len() < 2 {
            return false;
        }
        let part = len.div_ceil(idle.len() as u64).next_multiple_of(each);
        let mut cutter = CutterMut::new(bufs);
        let parts: Vec<Mutex<(u64, Vec<IoSliceMut<'_>>)>> = (offset..offset + len)
            .step_by(part as usize)
            .map(|at| {
                let mut piece = Vec::new();
                cutter.take(part.min(offset + len - at), &mut piece);
                Mutex::new((at, piece))
            })
            .collect();
        let failed = AtomicBool::new(false);
        let behalf = OnBehalf::current();
        self.pool.run(parts.len(), &|n| {
            let (at, piece) = &mut *parts[n].lock();
            if behalf.run(|| read_member(idle[n], kind, *at, piece)).is_err() {
                failed.store(true, Ordering::Relaxed);
            }
        });
        // Who failed is asked again, and counted then.
        !failed.into_inner()
    }

    pub(super) fn read_range(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let len = total_mut(bufs);
        let regions = self.regions_of((offset, offset + len));
        let failed = {
            let state = self.state.read();
            if self.must_sync(&state, regions) {
                drop(state);
                self.read_and_sync(kind, offset, bufs)?
            } else if self.read_divided(&state, kind, offset, bufs) {
                return Ok(());
            } else {
                self.read_any(&state, kind, offset, bufs, &[])?
            }
        };
        if !failed.is_empty() {
            self.write_back(kind, offset, len, &failed);
        }
        Ok(())
    }

    /// Writes a range anew to members that could not read it: a disk puts it elsewhere then. Whoever fails that too is dropped.
    fn write_back(&self, kind: IoKind, offset: u64, len: u64, failed: &[Uuid]) {
        if self.read_only {
            return;
        }
        let _purpose = Purpose::Scrub.scope();
        let _alone = self.ranges.lock(&[(offset, offset + len)]);
        let outcome = {
            let state = self.state.read();
            let mut bytes = vec![0; len as usize];
            if self.read_any(&state, kind, offset, &mut [IoSliceMut::new(&mut bytes)], failed).is_err() {
                return;
            }
            let mut targets = state.serving();
            targets.retain(|m| failed.contains(&m.uuid));
            let write = |m: &Member, device: &dyn Device| device.write_at(kind, m.data_offset + offset, &bytes);
            self.each(&targets, &write)
        };
        add(&self.counters.rewritten, outcome.succeeded.len() as u64);
        if !outcome.failed.is_empty() {
            // The read has succeeded; who was dropped is logged.
            let _ = self.conclude(outcome);
        }
    }

    /// Several reads, divided among the members ([`super::divide`]): long ones where a device would divide them too.
    pub(super) fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        let mut again: Vec<usize> = Vec::new();
        {
            let state = self.state.read();
            let serving = state.serving();
            let mut lists: Vec<(Vec<usize>, Vec<ReadRequest<'_>>)> =
                serving.iter().map(|_| (Vec::new(), Vec::new())).collect();
            let most = serving.iter().filter_map(|m| m.device.as_ref()).map(|d| d.max_request()).min().unwrap_or(0);
            let most = (most as u64 / self.unit()).max(1) * self.unit();
            let mut pieces: Vec<(usize, ReadRequest<'_>)> = Vec::new();
            for (i, r) in requests.iter_mut().enumerate() {
                if self.must_sync(&state, self.regions_of((r.offset, r.offset + r.buf.len() as u64))) {
                    again.push(i);
                    continue;
                }
                for (buf, n) in r.buf.chunks_mut(most as usize).zip(0..) {
                    pieces.push((i, ReadRequest { kind: r.kind, offset: r.offset + n * most, buf }));
                }
            }
            let places: Vec<(u64, u64)> = pieces.iter().map(|(_, r)| (r.offset, r.buf.len() as u64)).collect();
            let load = |m: &&Member| Reader {
                bytes: m.load.bytes.load(Ordering::Relaxed),
                position: m.load.position.load(Ordering::Relaxed),
            };
            let readers: Vec<Reader> = serving.iter().map(load).collect();
            for ((i, request), n) in pieces.into_iter().zip(divide(&places, &readers, most)) {
                let regions = self.regions_of((request.offset, request.offset + request.buf.len() as u64));
                let is_fresh = |n: &usize| !serving[*n].stale.touches(regions.clone());
                let other = || (0..serving.len()).filter(is_fresh).min_by_key(|n| lists[*n].1.len());
                let Some(n) = Some(n).filter(is_fresh).or_else(other) else {
                    again.push(i);
                    continue;
                };
                lists[n].0.push(i);
                lists[n].1.push(request);
            }
            let jobs: Vec<Mutex<_>> = serving.iter().zip(lists).map(Mutex::new).collect();
            let failed = Mutex::new(Vec::new());
            let behalf = OnBehalf::current();
            self.pool.run(jobs.len(), &|n| {
                let (m, (numbers, list)) = &mut *jobs[n].lock();
                let Some(device) = m.device.as_ref().filter(|_| !list.is_empty()) else { return };
                let bytes = list.iter().map(|r| r.buf.len() as u64).sum();
                let end = list.last().map_or(0, |r| r.offset + r.buf.len() as u64);
                let reads = list.len() as u64;
                list.iter_mut().for_each(|r| r.offset += m.data_offset);
                if m.load.during(reads, bytes, end, || behalf.run(|| device.read_batch(list))).is_err() {
                    failed.lock().append(numbers);
                }
            });
            again.append(&mut failed.into_inner());
        }
        again.sort_unstable();
        again.dedup();
        again.into_iter().try_for_each(|i| {
            let r = &mut requests[i];
            self.read_range(r.kind, r.offset, &mut [IoSliceMut::new(r.buf)])
        })
    }
}
