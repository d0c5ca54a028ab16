//! Members that together have one copy of everything: striped, or one after the other.

use crate::buffers::{Cutter, CutterMut, total, total_mut};
use crate::layout::Layout;
use cffs_buf::WorkerPool;
use cffs_device::{
    Device, DeviceSpace, Disk, DiskStats, IoKind, Observer, OnBehalf, ReadRequest, WriteRequest, check_read,
    check_write, clip_discard,
};
use parking_lot::Mutex;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

/// Most buffers of one request to a member.
const BUFS_MAX: usize = 512;

/// A member and the byte at which its data begins.
pub(crate) struct Part {
    pub(crate) device: Arc<Disk>,
    pub(crate) data_offset: u64,
}

/// Members that together have one copy of everything. A request that lies within one stripe unit stays one request; a longer one
/// goes to all its members at once, in one request for each.
pub(crate) struct Striped {
    pub(crate) parts: Vec<Part>,
    pub(crate) layout: Layout,
    pub(crate) len: u64,
    pub(crate) sector: u32,
    pub(crate) read_only: bool,
    pub(crate) pool: WorkerPool,
}

/// Calls `f` with each job, several at once, and returns the first error in the order of the jobs.
pub(crate) fn run<T: Send>(pool: &WorkerPool, jobs: Vec<T>, f: impl Fn(T) -> io::Result<()> + Sync) -> io::Result<()> {
    if jobs.len() <= 1 {
        return jobs.into_iter().try_for_each(f);
    }
    let first_error: Mutex<Option<(usize, io::Error)>> = Mutex::new(None);
    let jobs: Vec<Mutex<Option<T>>> = jobs.into_iter().map(|job| Mutex::new(Some(job))).collect();
    let behalf = OnBehalf::current();
    pool.run(jobs.len(), &|i| {
        let job = jobs[i].lock().take();
        if let Some(Err(e)) = job.map(|job| behalf.run(|| f(job))) {
            let mut first = first_error.lock();
            if first.as_ref().is_none_or(|(at, _)| i < *at) {
                *first = Some((i, e));
            }
        }
    });
    first_error.into_inner().map_or(Ok(()), |(_, e)| Err(e))
}

/// Bytes that are together on a member, in several buffers.
type Run<'b> = (IoKind, u64, Vec<IoSliceMut<'b>>);

/// A request to one member.
type Job<'p, B> = (&'p Part, u64, Vec<B>);

impl Striped {
    /// Adds `len` bytes at `offset` of a member to the jobs; `take` appends the buffers. What continues the last job of that member
    /// becomes a part of it.
    fn add<'p, B>(
        &'p self,
        jobs: &mut Vec<(usize, Job<'p, B>)>,
        ends: &mut [(u64, usize)],
        (member, offset, len): (usize, u64, u64),
        take: impl FnOnce(&mut Vec<B>),
    ) {
        let (end, job) = ends[member];
        if job < jobs.len() && end == offset {
            take(&mut jobs[job].1.2);
        } else {
            let mut bufs = Vec::new();
            take(&mut bufs);
            ends[member].1 = jobs.len();
            jobs.push((member, (&self.parts[member], offset, bufs)));
        }
        ends[member].0 = offset + len;
    }
}

impl Striped {
    fn check_write(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.read_only {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the volume was opened for reading only"));
        }
        check_write(self.len, self.sector, offset, len as usize)
    }
}

impl Device for Striped {
    fn len(&self) -> u64 {
        self.len
    }

    fn sector_size(&self) -> u32 {
        self.sector
    }

    fn max_request(&self) -> usize {
        let each = self.parts.iter().map(|p| p.device.max_request()).min().unwrap_or(0);
        if matches!(self.layout, Layout::Stripe { .. }) { each.saturating_mul(self.parts.len()) } else { each }
    }

    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let len = total_mut(bufs);
        check_read(self.len, self.sector, offset, len as usize)?;
        let (mut jobs, mut ends) = (Vec::new(), vec![(0, usize::MAX); self.parts.len()]);
        let mut pieces = self.layout.pieces(offset, len).peekable();
        if let Some(p) = pieces.peek()
            && p.len == len
        {
            let part = &self.parts[p.member];
            return part.device.read_vectored(kind, part.data_offset + p.offset, bufs);
        }
        let mut cutter = CutterMut::new(bufs);
        for p in pieces {
            self.add(&mut jobs, &mut ends, (p.member, p.offset, p.len), |bufs| cutter.take(p.len, bufs));
        }
        run(&self.pool, jobs, |(_, (part, offset, mut bufs))| {
            part.device.read_vectored(kind, part.data_offset + offset, &mut bufs)
        })
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let len = total(bufs);
        self.check_write(offset, len)?;
        let (mut jobs, mut ends) = (Vec::new(), vec![(0, usize::MAX); self.parts.len()]);
        let mut cutter = Cutter::new(bufs);
        for p in self.layout.pieces(offset, len) {
            self.add(&mut jobs, &mut ends, (p.member, p.offset, p.len), |bufs| cutter.take(p.len, bufs));
        }
        run(&self.pool, jobs, |(_, (part, offset, bufs))| {
            part.device.write_vectored(kind, part.data_offset + offset, &bufs)
        })
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        let mut jobs: Vec<(&Part, Vec<WriteRequest<'_>>)> = self.parts.iter().map(|p| (p, Vec::new())).collect();
        let mut ends = vec![0; self.parts.len()];
        for r in requests {
            let len = total(&r.bufs);
            self.check_write(r.offset, len)?;
            let mut cutter = Cutter::new(&r.bufs);
            for p in self.layout.pieces(r.offset, len) {
                let (part, list) = &mut jobs[p.member];
                let end = std::mem::replace(&mut ends[p.member], p.offset + p.len);
                match list.last_mut() {
                    Some(last) if end == p.offset && last.kind == r.kind && last.bufs.len() < BUFS_MAX => {
                        cutter.take(p.len, &mut last.bufs);
                    }
                    _ => {
                        let mut bufs = Vec::new();
                        cutter.take(p.len, &mut bufs);
                        list.push(WriteRequest { kind: r.kind, offset: part.data_offset + p.offset, bufs });
                    }
                }
            }
        }
        jobs.retain(|(_, list)| !list.is_empty());
        run(&self.pool, jobs, |(part, list)| part.device.write_batch(&list))
    }

    fn takes(&self, memory: &[u8]) -> bool {
        self.parts.iter().all(|p| p.device.takes(memory))
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        let mut jobs: Vec<(&Part, Vec<Run<'_>>)> = self.parts.iter().map(|p| (p, Vec::new())).collect();
        let mut ends = vec![0; self.parts.len()];
        for r in requests {
            check_read(self.len, self.sector, r.offset, r.buf.len())?;
            let mut rest = &mut r.buf[..];
            for p in self.layout.pieces(r.offset, rest.len() as u64) {
                let (part, list) = &mut jobs[p.member];
                let (buf, tail) = rest.split_at_mut(p.len as usize);
                let end = std::mem::replace(&mut ends[p.member], p.offset + p.len);
                match list.last_mut() {
                    Some((kind, _, bufs)) if end == p.offset && *kind == r.kind && bufs.len() < BUFS_MAX => {
                        bufs.push(IoSliceMut::new(buf));
                    }
                    _ => list.push((r.kind, part.data_offset + p.offset, vec![IoSliceMut::new(buf)])),
                }
                rest = tail;
            }
        }
        jobs.retain(|(_, list)| !list.is_empty());
        run(&self.pool, jobs, |(part, mut list)| {
            // Only what has one buffer can be a part of a batch. The order stays, because a disk would turn back for what was left out.
            list.chunk_by_mut(|a, b| a.2.len() == 1 && b.2.len() == 1).try_for_each(|runs| match runs {
                [(kind, offset, bufs)] => part.device.read_vectored(*kind, *offset, bufs),
                short => {
                    let mut batch: Vec<ReadRequest<'_>> = short
                        .iter_mut()
                        .filter_map(|(kind, offset, bufs)| {
                            Some(ReadRequest { kind: *kind, offset: *offset, buf: bufs.first_mut()? })
                        })
                        .collect();
                    part.device.read_batch(&mut batch)
                }
            })
        })
    }

    fn stripe(&self) -> u64 {
        match self.layout {
            Layout::Stripe { unit, members } => unit.saturating_mul(members),
            Layout::Concat(_) => 0,
        }
    }

    fn is_rotational(&self) -> bool {
        self.parts.iter().any(|p| p.device.is_rotational())
    }

    fn width(&self) -> usize {
        let each = self.parts.iter().map(|p| p.device.width()).min().unwrap_or(1);
        if matches!(self.layout, Layout::Stripe { .. }) { each.saturating_mul(self.parts.len()) } else { each }
    }

    /// A member may itself be a mirror. What is stored on several members has as many copies as the one with the most.
    fn copies(&self) -> usize {
        self.parts.iter().map(|p| p.device.copies()).max().unwrap_or(1)
    }

    fn read_copy(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self.len, self.sector, offset, buf.len())?;
        let mut rest = buf;
        for p in self.layout.pieces(offset, rest.len() as u64) {
            let (piece, tail) = rest.split_at_mut(p.len as usize);
            let part = &self.parts[p.member];
            if copy >= part.device.copies() {
                let text = format!("there is no copy {copy} on this member");
                return Err(io::Error::new(io::ErrorKind::NotFound, text));
            }
            part.device.read_copy(kind, copy, part.data_offset + p.offset, piece)?;
            rest = tail;
        }
        Ok(())
    }

    fn repair(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8]) -> io::Result<bool> {
        self.check_write(offset, good.len() as u64)?;
        let (mut rest, mut all) = (good, true);
        for p in self.layout.pieces(offset, good.len() as u64) {
            let (piece, tail) = rest.split_at(p.len as usize);
            let part = &self.parts[p.member];
            all &= part.device.repair(kind, copy, part.data_offset + p.offset, piece)?;
            rest = tail;
        }
        Ok(all)
    }

    fn finish(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        run(&self.pool, self.parts.iter().collect(), |part| part.device.finish())
    }

    /// Known if all members have less space than bytes: what they can take together. On a stripe each gets the same, so the fullest one counts.
    fn space(&self) -> Option<DeviceSpace> {
        let each: Vec<DeviceSpace> = self.parts.iter().filter_map(|p| p.device.space()).collect();
        let first = *each.first().filter(|_| each.len() == self.parts.len())?;
        let n = each.len() as u64;
        let (total, free) = match self.layout {
            Layout::Stripe { .. } => {
                let least = |f: fn(&DeviceSpace) -> u64| each.iter().map(f).min().unwrap_or(0).saturating_mul(n);
                (least(|s| s.total), least(|s| s.free))
            }
            Layout::Concat(_) => (each.iter().map(|s| s.total).sum(), each.iter().map(|s| s.free).sum()),
        };
        let unit = each.iter().map(|s| s.unit).max().unwrap_or(first.unit);
        let unit_cost = each.iter().map(|s| s.unit_cost).max().unwrap_or(first.unit_cost);
        let keeps_old = each.iter().any(|s| s.keeps_old);
        Some(DeviceSpace { total, free, unit, unit_cost, keeps_old, keeps_room: each.iter().all(|s| s.keeps_room) })
    }

    fn flush(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        run(&self.pool, self.parts.iter().collect(), |part| part.device.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let Some((offset, len)) = clip_discard(self.len, self.sector, offset, len) else { return Ok(()) };
        if self.read_only {
            return Ok(());
        }
        // What of a range lies on one member is in one piece there.
        let mut ranges = vec![(u64::MAX, 0); self.parts.len()];
        for p in self.layout.pieces(offset, len) {
            let (start, bytes) = &mut ranges[p.member];
            *start = p.offset.min(*start);
            *bytes += p.len;
        }
        let jobs: Vec<_> = self.parts.iter().zip(ranges).filter(|(_, (_, bytes))| *bytes > 0).collect();
        run(&self.pool, jobs, |(part, (start, bytes))| part.device.discard(part.data_offset + start, bytes))
    }

    fn can_discard(&self) -> bool {
        self.parts.iter().any(|p| p.device.can_discard())
    }

    fn observe(&self, observer: &Arc<dyn Observer>) -> bool {
        self.parts.iter().for_each(|p| {
            p.device.observe(observer);
        });
        true
    }

    fn disks(&self) -> Vec<DiskStats> {
        self.parts.iter().flat_map(|p| p.device.counters()).collect()
    }

    fn read_only(&self) -> bool {
        self.read_only
    }
}
