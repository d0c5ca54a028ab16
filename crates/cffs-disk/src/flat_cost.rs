//! Devices whose requests cost the same wherever they go: network volumes, flash cards, SSDs.

use crate::request::{Ns, Request, SECTOR};
use crate::units::{Step, UnitSpec, Units};
use serde::Serialize;
use std::ops::Range;

/// Flash that is erased in large blocks, behind a controller that maps whole blocks.
#[derive(Clone, Debug, Serialize)]
pub struct EraseBlocks {
    /// The blocks.
    pub units: UnitSpec,
    /// Time to erase one.
    pub erase: Ns,
    /// Bytes copied per second within the device: read and written.
    pub copy_bandwidth: u64,
}

/// What requests cost.
#[derive(Clone, Debug, Serialize)]
pub struct Spec {
    /// Capacity in bytes.
    pub capacity: u64,
    /// Time from the start of a read to its first byte, in nanoseconds.
    pub read_latency: Ns,
    /// The same of a write.
    pub write_latency: Ns,
    /// Time of a flush.
    pub flush_latency: Ns,
    /// Bytes read per second.
    pub read_bandwidth: u64,
    /// Bytes written per second.
    pub write_bandwidth: u64,
    /// Most requests that start in a second.
    pub requests_per_second: u64,
    /// Most requests that are served at once.
    pub queue_depth: usize,
    /// Largest request in bytes. Longer ones are split.
    pub request_max: u64,
    /// Erase blocks, where a write that does not continue another one costs more.
    pub blocks: Option<EraseBlocks>,
}

/// A flat-cost disk.
#[derive(Clone, Debug)]
pub struct FlatCost {
    spec: Spec,
    /// When each queue slot becomes free.
    slots: Vec<Ns>,
    /// When the next request may start.
    next_start: Ns,
    /// When the data channel becomes free.
    channel: Ns,
    units: Option<Units>,
}

impl FlatCost {
    /// An idle disk with these costs.
    pub fn new(spec: Spec) -> FlatCost {
        let units = spec.blocks.as_ref().map(|b| Units::new(b.units));
        FlatCost { slots: vec![0; spec.queue_depth.max(1)], next_start: 0, channel: 0, units, spec }
    }

    /// What its requests cost.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Serves requests that are issued together at `now`. Returns when the last of them completes.
    pub fn serve(&mut self, now: Ns, requests: &[Request]) -> Ns {
        requests.iter().map(|r| self.one(now, r)).max().unwrap_or(now)
    }

    /// Flushes at `now`: waits for the requests under way, then takes the flush latency.
    pub fn flush(&mut self, now: Ns) -> Ns {
        let written = self.slots.iter().copied().max().unwrap_or(now).max(now);
        written + self.spec.flush_latency
    }

    /// The sectors of a range hold nothing any more, which spares flash their copy.
    pub fn discard(&mut self, range: Range<u64>) {
        if let Some(units) = &mut self.units {
            units.discard(range);
        }
    }

    /// Time that flash takes to make room for a write: copies and erasures.
    fn make_room(&mut self, range: Range<u64>) -> Ns {
        let (Some(units), Some(blocks)) = (&mut self.units, &self.spec.blocks) else { return 0 };
        let cost = |step: &Step| match step {
            Step::Begin => blocks.erase,
            Step::Copy(r) => transfer_time((r.end - r.start) * SECTOR, blocks.copy_bandwidth),
            Step::Write(_) => 0,
        };
        units.write(range).iter().map(cost).sum()
    }

    fn one(&mut self, now: Ns, r: &Request) -> Ns {
        let most = (self.spec.request_max / SECTOR).max(1);
        let mut end = now;
        for first in (r.start..r.end()).step_by(most as usize) {
            let range = first..r.end().min(first + most);
            let bytes = (range.end - range.start) * SECTOR;
            let room = if r.write { self.make_room(range) } else { 0 };
            end = end.max(self.part(now, r.write, bytes, room));
        }
        end
    }

    /// A request of at most the largest size; `room` is what the medium needs before it.
    fn part(&mut self, now: Ns, write: bool, bytes: u64, room: Ns) -> Ns {
        let (latency, bandwidth) = if write {
            (self.spec.write_latency, self.spec.write_bandwidth)
        } else {
            (self.spec.read_latency, self.spec.read_bandwidth)
        };
        // The slot that is free first; among equals the first, so that runs are the same.
        let slot = (0..self.slots.len()).min_by_key(|i| self.slots[*i]).unwrap_or(0);
        let start = now.max(self.slots[slot]).max(self.next_start);
        self.next_start = start + 1_000_000_000 / self.spec.requests_per_second.max(1);
        let end = (start + latency).max(self.channel) + room + transfer_time(bytes, bandwidth);
        self.channel = end;
        self.slots[slot] = end;
        end
    }
}

fn transfer_time(bytes: u64, bandwidth: u64) -> Ns {
    (u128::from(bytes) * 1_000_000_000 / u128::from(bandwidth.max(1))) as Ns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> FlatCost {
        FlatCost::new(Spec {
            capacity: 1 << 40,
            read_latency: 1_000_000,
            write_latency: 1_000_000,
            flush_latency: 1_000_000,
            read_bandwidth: 125_000_000,
            write_bandwidth: 125_000_000,
            requests_per_second: 3000,
            queue_depth: 32,
            request_max: 256 << 10,
            blocks: None,
        })
    }

    #[test]
    fn one_at_a_time_costs_latency_and_bytes() {
        let mut v = volume();
        let mut now = 0;
        for i in 0..100 {
            now = v.serve(now, &[Request::read(i << 20, 4096)]);
        }
        assert_eq!(now, 100 * (1_000_000 + 32_768));
    }

    #[test]
    fn many_at_once_are_limited_by_requests_and_by_bytes() {
        let small: Vec<Request> = (0..3000).map(|i| Request::read(i << 20, 4096)).collect();
        let end = volume().serve(0, &small) as f64 / 1e9;
        assert!((1.0..1.01).contains(&end), "3,000 a second: {end}");
        let large: Vec<Request> = (0..100).map(|i| Request::write(i << 20, 1 << 20)).collect();
        let end = volume().serve(0, &large) as f64 / 1e9;
        let bytes = 100.0 * 1048576.0 / 125e6;
        assert!((bytes..bytes + 0.01).contains(&end), "125 MB a second: {end}");
        // 1 MiB is four requests.
        let mut v = volume();
        v.serve(0, &[Request::read(0, 1 << 20)]);
        assert_eq!(v.next_start, 4 * (1_000_000_000 / 3000));
    }
}
