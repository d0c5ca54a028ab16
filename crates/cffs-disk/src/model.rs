//! One type for all kinds of disks.

use crate::flat_cost::FlatCost;
use crate::mechanical::{Mechanical, TimeBreakdown};
use crate::request::{Ns, Request, SECTOR};
use crate::units::UnitSpec;

/// The timing model of a disk: when its requests complete.
#[derive(Clone, Debug)]
pub enum Model {
    /// A disk with an arm and a rotating medium.
    Mechanical(Box<Mechanical>),
    /// A device whose requests cost the same wherever they go.
    FlatCost(Box<FlatCost>),
}

impl Model {
    /// Whether it is a disk with an arm.
    pub fn has_arm(&self) -> bool {
        matches!(self, Model::Mechanical(_))
    }

    /// Serves requests that are issued together at `now`. Returns when the last of them completes.
    pub fn serve(&mut self, now: Ns, requests: &[Request]) -> Ns {
        match self {
            Model::Mechanical(m) => m.serve(now, requests),
            Model::FlatCost(p) => p.serve(now, requests),
        }
    }

    /// Sorts what was issued at the same time, each at its first sector, into the order in which it is served.
    pub fn sort<T>(&self, issued: &mut [T], start: impl Fn(&T) -> u64) {
        if let Model::Mechanical(disk) = self {
            disk.sweep(issued, start);
        }
    }

    /// Flushes the write cache at `now`. Returns when that completes.
    pub fn flush(&mut self, now: Ns) -> Ns {
        match self {
            Model::Mechanical(m) => m.flush(now),
            Model::FlatCost(p) => p.flush(now),
        }
    }

    /// Where the time of all requests until now went. Zero on a flat-cost disk.
    pub fn breakdown(&self) -> TimeBreakdown {
        match self {
            Model::Mechanical(m) => m.breakdown(),
            Model::FlatCost(_) => TimeBreakdown::default(),
        }
    }

    /// The units in which the medium is rewritten, if it has any.
    pub fn units(&self) -> Option<&UnitSpec> {
        match self {
            Model::Mechanical(m) => m.spec().bands.as_ref(),
            Model::FlatCost(p) => p.spec().blocks.as_ref().map(|b| &b.units),
        }
    }

    /// A byte range holds nothing any more. Counts for whole sectors, and on a medium with units only; takes no time.
    pub fn discard(&mut self, offset: u64, len: u64) {
        let range = offset.div_ceil(SECTOR)..(offset + len) / SECTOR;
        match self {
            _ if range.is_empty() => {}
            Model::Mechanical(m) => m.discard(range),
            Model::FlatCost(p) => p.discard(range),
        }
    }

    /// Largest request in bytes. Longer ones are split.
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
