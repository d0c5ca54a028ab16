//! Simulated disks: what a request costs on a given disk, in virtual time.
//!
//! A [`Model`] answers one question: requests that are issued at a time, when are they done? It knows nothing of contents.
//! [`SimDevice`] puts one behind a [`cffs_device::Device`], so that the engine runs on it; a virtual clock stands still but
//! for the requests, so every run gives the same figures on any machine. [`profiles`] has the disks.
//!
//! Two kinds of disks: [`mechanical`] ones, with arm, rotation, zones, track buffer and write cache; and those with a price
//! list ([`flat_cost`]): latency, bandwidth, requests per second.
//!
//! What is not modelled: errors, defects, recalibration, the processor. A virtual second holds disk time only.

mod device;
pub mod flat_cost;
pub mod layout;
pub mod measure;
pub mod mechanical;
pub mod profiles;
pub mod seek;

pub use device::{Clock, Counters, SimDevice};
pub use flat_cost::FlatCost;
pub use mechanical::{Mechanical, TimeBreakdown};

/// Virtual time in nanoseconds.
pub type Ns = u64;

/// Bytes of a sector, the unit of all disks here.
pub const SECTOR: u64 = 512;

/// Milliseconds in virtual time.
pub fn ms(value: f64) -> Ns {
    (value * 1e6).round() as Ns
}

/// A request to a disk; whole sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Writes; reads otherwise.
    pub write: bool,
    /// First sector.
    pub start: u64,
    /// Number of sectors, at least one.
    pub sectors: u64,
}

impl Request {
    /// A read of a byte range.
    pub fn read(offset: u64, len: u64) -> Request {
        Request::of(false, offset, len)
    }

    /// A write of a byte range.
    pub fn write(offset: u64, len: u64) -> Request {
        Request::of(true, offset, len)
    }

    fn of(write: bool, offset: u64, len: u64) -> Request {
        let (start, end) = (offset / SECTOR, (offset + len).div_ceil(SECTOR));
        Request { write, start, sectors: (end - start).max(1) }
    }

    /// The sector after the last one.
    pub fn end(&self) -> u64 {
        self.start + self.sectors
    }
}

/// When a disk is done with what it is asked.
#[derive(Clone, Debug)]
pub enum Model {
    /// With an arm and a rotating medium.
    Mechanical(Box<Mechanical>),
    /// With a price for each request.
    FlatCost(FlatCost),
}

impl Model {
    /// Requests issued together at `now`; returns when the last of them is done.
    pub fn serve(&mut self, now: Ns, requests: &[Request]) -> Ns {
        match self {
            Model::Mechanical(m) => m.serve(now, requests),
            Model::FlatCost(p) => p.serve(now, requests),
        }
    }

    /// A flush of the write cache issued at `now`.
    pub fn flush(&mut self, now: Ns) -> Ns {
        match self {
            Model::Mechanical(m) => m.flush(now),
            Model::FlatCost(p) => p.flush(now),
        }
    }

    /// Where the time of all requests until now went, on a disk with an arm.
    pub fn breakdown(&self) -> TimeBreakdown {
        match self {
            Model::Mechanical(m) => m.breakdown(),
            Model::FlatCost(_) => TimeBreakdown::default(),
        }
    }

    /// Most bytes of a request that is not split.
    pub fn request_max(&self) -> u64 {
        match self {
            Model::Mechanical(m) => m.spec().request_max,
            Model::FlatCost(p) => p.spec().request_max,
        }
    }

    /// Capacity in bytes.
    pub fn capacity(&self) -> u64 {
        match self {
            Model::Mechanical(m) => m.layout().sectors() * SECTOR,
            Model::FlatCost(p) => p.spec().capacity,
        }
    }
}
