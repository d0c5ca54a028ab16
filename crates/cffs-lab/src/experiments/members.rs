//! A volume of several simulated disks with one clock.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use cffs::device::{Device, DeviceSpace, IoKind, ReadRequest, WriteRequest};
use cffs_disk::{Clock, Model, SimDevice};
use cffs_volume::{Candidate, CreateOptions, DATA_OFFSET, Kind, OpenOptions, create, open};

/// Each member begins so many bytes further on its disk than the one before it: so the disks do not turn in step.
const STEP: u64 = 61 * 4096;

/// How disks make a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    /// As which kind of volume.
    pub kind: Kind,
    /// How many disks.
    pub count: usize,
    /// Bytes of a stripe unit; 0 for a mirror.
    pub unit: u64,
}

impl Members {
    /// A mirror of so many disks.
    pub fn mirror(count: usize) -> Members {
        Members { kind: Kind::Mirror, count, unit: 0 }
    }

    /// A stripe over so many disks, in units of so many bytes.
    pub fn stripe(count: usize, unit: u64) -> Members {
        Members { kind: Kind::Stripe, count, unit }
    }

    /// Makes a volume of at least so many bytes of idle disks.
    ///
    /// # Errors
    /// When a volume cannot be made of them.
    pub fn make(&self, model: &Model, bytes: u64, clock: &Arc<Clock>) -> Result<Vec<Arc<SimDevice>>> {
        let share = match self.kind {
            Kind::Mirror => bytes,
            _ => bytes.div_ceil(self.count as u64).next_multiple_of(self.unit.max(4096)),
        };
        let disk = |n| {
            let disk = SimDevice::partition(model.clone(), n * STEP, DATA_OFFSET + share, clock.clone());
            Arc::new(disk)
        };
        let disks: Vec<Arc<SimDevice>> = (0..self.count as u64).map(disk).collect();
        create(&candidates(&disks), &CreateOptions { stripe_unit: self.unit, ..CreateOptions::new(self.kind) })?;
        Ok(disks)
    }
}

fn candidates(disks: &[Arc<SimDevice>]) -> Vec<Candidate> {
    disks.iter().zip(0..).map(|(disk, n)| Candidate::new(format!("disk {n}"), disk.clone())).collect()
}

/// The volume that these disks are the members of.
///
/// # Errors
/// Those of the volume.
pub fn open_members(disks: &[Arc<SimDevice>], clock: &Arc<Clock>) -> Result<Arc<dyn Device>> {
    // Everything happens in the thread of the caller: so each run gives the same figures. Whoever has done with a volume closes it: what is opened next is
    // not as after a crash.
    let options = OpenOptions { depth: 1, close_on_drop: true, ..OpenOptions::default() };
    let volume = open(&candidates(disks), &options)?;
    let max_request = disks.first().map_or(0, |d| d.max_request());
    let mirror = volume.kind() == Kind::Mirror;
    Ok(Arc::new(AtOnce { volume, clock: clock.clone(), shared: if mirror { max_request } else { 0 } }))
}

/// A volume whose members work on a request at the same time.
struct AtOnce<D> {
    volume: D,
    clock: Arc<Clock>,
    /// A read of up to so many bytes goes to one member; who chooses the next one is to see that this one is busy.
    shared: usize,
}

impl<D: Device> Device for AtOnce<D> {
    fn len(&self) -> u64 {
        self.volume.len()
    }
    fn sector_size(&self) -> u32 {
        self.volume.sector_size()
    }
    fn below(&self) -> Option<&dyn Device> {
        Some(&self.volume)
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        if bufs.iter().map(|b| b.len()).sum::<usize>() <= self.shared {
            return self.volume.read_vectored(kind, offset, bufs);
        }
        self.clock.at_once(|| self.volume.read_vectored(kind, offset, bufs))
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.clock.at_once(|| self.volume.write_vectored(kind, offset, bufs))
    }
    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.clock.at_once(|| self.volume.write_batch(requests))
    }
    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        self.clock.at_once(|| self.volume.read_batch(requests))
    }
    fn together(&self, offset: u64, range: Range<u64>) -> Range<u64> {
        self.volume.together(offset, range)
    }
    fn copies(&self) -> usize {
        self.volume.copies()
    }
    fn read_copy(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.volume.read_copy(kind, copy, offset, buf)
    }
    fn repair(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8]) -> io::Result<bool> {
        self.volume.repair(kind, copy, offset, good)
    }
    fn flush(&self) -> io::Result<()> {
        self.clock.at_once(|| self.volume.flush())
    }
    fn finish(&self) -> io::Result<()> {
        self.clock.at_once(|| self.volume.finish())
    }
    fn space(&self) -> Option<DeviceSpace> {
        self.volume.space()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.volume.discard(offset, len)
    }
}
