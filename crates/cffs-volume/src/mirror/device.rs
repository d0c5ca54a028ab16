//! The mirror behind the trait.

use super::state::{Member, Mirror};
use crate::buffers::{total, total_mut};
use crate::range_lock::overlapping;
use cffs_device::{
    Device, DeviceSpace, DiskStats, IoKind, Observed, Observer, ReadRequest, WriteRequest, check_read, check_write,
    clip_discard,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

impl Device for Mirror {
    fn len(&self) -> u64 {
        self.len
    }

    fn sector_size(&self) -> u32 {
        self.sector
    }

    fn max_request(&self) -> usize {
        let state = self.state.read();
        let members = state.members.iter().filter_map(|m| m.device.as_ref());
        members.map(|d| d.max_request()).min().unwrap_or(1 << 20)
    }

    fn is_rotational(&self) -> bool {
        self.state.read().members.iter().filter_map(|m| m.device.as_ref()).any(|d| d.is_rotational())
    }

    fn width(&self) -> usize {
        self.state.read().serving().iter().filter_map(|m| m.device.as_ref()).map(|d| d.width()).sum::<usize>().max(1)
    }

    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let len = total_mut(bufs);
        check_read(self.len, self.sector, offset, len as usize)?;
        if len == 0 { Ok(()) } else { self.read_range(kind, offset, bufs) }
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let len = total(bufs);
        check_write(self.len, self.sector, offset, len as usize)?;
        if len == 0 {
            return Ok(());
        }
        let write = |m: &Member, device: &dyn Device| device.write_vectored(kind, m.data_offset + offset, bufs);
        self.write_all(&[(offset, offset + len)], &write)
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        let mut ranges = Vec::with_capacity(requests.len());
        for r in requests {
            let len = total(&r.bufs);
            check_write(self.len, self.sector, r.offset, len as usize)?;
            if len > 0 {
                ranges.push((r.offset, r.offset + len));
            }
        }
        if ranges.is_empty() {
            return Ok(());
        }
        if overlapping(&ranges) {
            // The order is not defined, but it must be the same on all members.
            let mut first_error = Ok(());
            for r in requests {
                let result = self.write_vectored(r.kind, r.offset, &r.bufs);
                first_error = first_error.and(result);
            }
            return first_error;
        }
        let write = |m: &Member, device: &dyn Device| {
            let each = requests.iter().map(|r| WriteRequest {
                kind: r.kind,
                offset: m.data_offset + r.offset,
                bufs: r.bufs.iter().map(|b| IoSlice::new(b)).collect(),
            });
            device.write_batch(&each.collect::<Vec<_>>())
        };
        self.write_all(&ranges, &write)
    }

    fn takes(&self, memory: &[u8]) -> bool {
        let state = self.state.read();
        state.members.iter().filter_map(|m| m.device.as_ref()).all(|d| d.takes(memory))
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        for r in requests.iter() {
            check_read(self.len, self.sector, r.offset, r.buf.len())?;
        }
        self.read_many(requests)
    }

    fn copies(&self) -> usize {
        self.count_copies()
    }

    fn read_copy(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self.len, self.sector, offset, buf.len())?;
        self.read_one(kind, copy, offset, buf)
    }

    fn repair(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8]) -> io::Result<bool> {
        check_write(self.len, self.sector, offset, good.len())?;
        self.repair_others(kind, copy, offset, good)
    }

    fn flush(&self) -> io::Result<()> {
        self.flush_all()
    }

    fn finish(&self) -> io::Result<()> {
        self.close()?;
        let state = self.state.read();
        let outcome = self.each(&state.present(), &|_, device| device.finish());
        drop(state);
        if self.read_only { Ok(()) } else { self.conclude(outcome) }
    }

    /// What the member with the least can take: each gets everything.
    fn space(&self) -> Option<DeviceSpace> {
        let state = self.state.read();
        let each = state.members.iter().filter_map(|m| m.device.as_ref()?.space());
        each.min_by_key(|s| s.free / s.unit_cost.max(1) * s.unit)
    }

    /// What was discarded may read differently from each member.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let Some((offset, len)) = clip_discard(self.len, self.sector, offset, len) else { return Ok(()) };
        if self.read_only {
            return Ok(());
        }
        let _alone = self.ranges.lock(&[(offset, offset + len)]);
        self.shadow.forget((offset, offset + len));
        let state = self.state.read();
        let outcome = self.each(&state.present(), &|m, device| device.discard(m.data_offset + offset, len));
        outcome.failed.into_iter().next().map_or(Ok(()), |(_, e)| Err(e))
    }

    fn can_discard(&self) -> bool {
        let state = self.state.read();
        state.members.iter().filter_map(|m| m.device.as_ref()).any(|d| d.can_discard())
    }

    fn observe(&self, observer: &Arc<dyn Observer>) -> bool {
        *self.observed.write() = Observed::by(observer);
        self.state.read().present().iter().filter_map(|m| m.device.as_ref()).for_each(|d| {
            d.observe(observer);
        });
        true
    }

    fn disks(&self) -> Vec<DiskStats> {
        let state = self.state.read();
        state.members.iter().filter_map(|m| m.device.as_ref()).flat_map(|d| d.counters()).collect()
    }

    fn read_only(&self) -> bool {
        self.read_only
    }
}
