//! A disk with an arm and a rotating medium.
//!
//! The time of a request is the sum of command overhead, seek (or head switch), rotational delay, transfer track by
//! track, and the part of the bus transfer that does not overlap with these. A disk with zero-latency access transfers
//! the sectors of a track in the order in which they pass under the head.
//!
//! After a read the disk reads ahead into its buffer until the buffer is full or the next request needs the arm. A read
//! that continues there takes its data from the buffer, or waits until it passes under the head. With a write cache, a
//! write completes when its data is in the cache. The cache is written to the medium in one sweep of the arm when it is
//! full, at a flush, or when a read needs part of it. Requests that are issued together are served in C-LOOK order:
//! from the arm upwards, then from the lowest address on.
//!
//! A shingled disk rewrites its tracks in bands: what a write does not continue costs a copy, see [`crate::units`].

use crate::layout::{Layout, Place};
use crate::request::{Ns, Request, SECTOR};
use crate::seek::SeekCurve;
use crate::units::{Step, UnitSpec, Units};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;

/// Properties of a mechanical disk. Times are in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Spec {
    /// Heads.
    pub heads: u64,
    /// Time of one rotation.
    pub rotation: Ns,
    /// Time to switch to another head of the same cylinder.
    pub head_switch: Ns,
    /// Additional settle time of a write after a seek.
    pub write_settle: Ns,
    /// Time to process a command.
    pub overhead: Ns,
    /// Bytes per second of the bus.
    pub bus: u64,
    /// Zero-latency access: sectors of a track are transferred in the order in which they pass.
    pub zero_latency: bool,
    /// Most bytes that are read ahead. 0: no read-ahead.
    pub read_ahead: u64,
    /// Bytes of the write cache. 0: none.
    pub write_cache: u64,
    /// Largest request in bytes. Longer ones are split.
    pub request_max: u64,
    /// Bands of shingled tracks.
    pub bands: Option<UnitSpec>,
}

/// Read-ahead after a read: the buffer holds sectors from `start` on. At time `at` the head was at sector `from`;
/// reading ahead stops at sector `until`.
#[derive(Clone, Copy, Debug)]
struct ReadAhead {
    start: u64,
    from: u64,
    at: Ns,
    until: u64,
}

/// Where the time of requests went. `transfer` includes head and cylinder switches within a request. A read from the
/// buffer counts as `command`, because it uses the bus only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TimeBreakdown {
    /// Command overhead and bus.
    pub command: Ns,
    /// Seek and settle time.
    pub seek: Ns,
    /// Rotational delay before the first sector.
    pub rotation: Ns,
    /// Sectors passing under the head, and switches from one track to the next.
    pub transfer: Ns,
}

impl TimeBreakdown {
    /// The sum.
    pub fn total(&self) -> Ns {
        self.command + self.seek + self.rotation + self.transfer
    }
}

impl std::ops::Add for TimeBreakdown {
    type Output = TimeBreakdown;

    fn add(self, other: TimeBreakdown) -> TimeBreakdown {
        TimeBreakdown {
            command: self.command + other.command,
            seek: self.seek + other.seek,
            rotation: self.rotation + other.rotation,
            transfer: self.transfer + other.transfer,
        }
    }
}

impl std::ops::Sub for TimeBreakdown {
    type Output = TimeBreakdown;

    fn sub(self, before: TimeBreakdown) -> TimeBreakdown {
        TimeBreakdown {
            command: self.command - before.command,
            seek: self.seek - before.seek,
            rotation: self.rotation - before.rotation,
            transfer: self.transfer - before.transfer,
        }
    }
}

/// A mechanical disk.
#[derive(Clone, Debug)]
pub struct Mechanical {
    spec: Spec,
    layout: Layout,
    seek: SeekCurve,
    cylinder: u64,
    head: u64,
    /// When the arm becomes free.
    free: Ns,
    ahead: Option<ReadAhead>,
    /// Dirty sectors in the write cache: first sector to end. The ranges do not overlap.
    cache: BTreeMap<u64, u64>,
    cached: u64,
    bands: Option<Units>,
    breakdown: TimeBreakdown,
}

impl Mechanical {
    /// An idle disk with its arm at the outermost track.
    pub fn new(spec: Spec, layout: Layout, seek: SeekCurve) -> Mechanical {
        Mechanical {
            bands: spec.bands.map(Units::new),
            spec,
            layout,
            seek,
            cylinder: 0,
            head: 0,
            free: 0,
            ahead: None,
            cache: BTreeMap::new(),
            cached: 0,
            breakdown: TimeBreakdown::default(),
        }
    }

    /// Where the time of all requests until now went.
    pub fn breakdown(&self) -> TimeBreakdown {
        self.breakdown
    }

    /// Its properties.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Its geometry.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its seek curve.
    pub fn seek(&self) -> &SeekCurve {
        &self.seek
    }

    /// Serves requests that are issued together at `now`. Returns when the last of them completes.
    pub fn serve(&mut self, now: Ns, requests: &[Request]) -> Ns {
        let mut parts: Vec<Request> = Vec::new();
        let most = (self.spec.request_max / SECTOR).max(1);
        for r in requests {
            for first in (r.start..r.end()).step_by(most as usize) {
                parts.push(Request { write: r.write, start: first, sectors: most.min(r.end() - first) });
            }
        }
        self.sweep(&mut parts, |r| r.start);
        let mut end = now;
        for part in parts {
            end = end.max(self.one(now, part));
        }
        end
    }

    /// Writes the cache to the medium.
    pub fn flush(&mut self, now: Ns) -> Ns {
        let start = now.max(self.free) + self.spec.overhead;
        self.breakdown.command += self.spec.overhead;
        if self.cache.is_empty() { start } else { self.write_out(start) }
    }

    /// The sectors of a range hold nothing any more, which spares a shingled disk their copy.
    pub fn discard(&mut self, range: Range<u64>) {
        if let Some(bands) = &mut self.bands {
            bands.discard(range);
        }
    }

    /// Sorts requests into C-LOOK order: from the arm upwards, then from the lowest address on.
    pub(crate) fn sweep<T>(&self, parts: &mut [T], start: impl Fn(&T) -> u64) {
        let here = self.cylinder;
        parts.sort_by_key(|part| (self.layout.place(start(part)).cylinder < here, start(part)));
    }

    fn one(&mut self, now: Ns, r: Request) -> Ns {
        let (begun, before) = (now.max(self.free), self.breakdown.total());
        let start = begun + self.spec.overhead;
        let end = if !r.write {
            if self.in_cache(r) {
                start + self.on_bus(r.sectors)
            } else {
                let start = if self.touches_cache(r) { self.write_out(start) } else { start };
                self.read(start, r)
            }
        } else {
            if self.ahead.is_some_and(|a| r.start < a.until && a.start < r.end()) {
                self.stop_reading_ahead(start);
                self.ahead = None;
            }
            if self.spec.write_cache == 0 {
                self.write(start, r)
            } else {
                self.put_in_cache(r);
                let taken = start + self.on_bus(r.sectors);
                if self.cached * SECTOR > self.spec.write_cache { self.write_out(taken) } else { taken }
            }
        };
        self.free = end;
        let medium = self.breakdown.total() - before;
        self.breakdown.command += (end - begun).saturating_sub(medium);
        end
    }

    fn on_bus(&self, sectors: u64) -> Ns {
        (u128::from(sectors * SECTOR) * 1_000_000_000 / u128::from(self.spec.bus)) as Ns
    }

    fn read(&mut self, start: Ns, r: Request) -> Ns {
        if let Some(a) = self.ahead
            && a.start <= r.start
        {
            let reached = self.reached(&a, start);
            if r.end() <= reached {
                return start + self.on_bus(r.sectors);
            }
            // Read-ahead is still running: the rest passes under the head.
            if r.start <= reached && reached < a.until {
                let passed = self.stream(a.at, a.from, r.end());
                self.breakdown.transfer += passed.saturating_sub(start);
                let keep = self.spec.read_ahead / SECTOR;
                let start_kept = a.start.max(r.end().saturating_sub(keep));
                let until = (r.end() + keep).min(self.layout.sectors());
                self.ahead = Some(ReadAhead { start: start_kept, from: r.end(), at: passed, until });
                self.go_to(&self.layout.place(r.end() - 1).clone());
                return (passed + self.on_bus(1)).max(start + self.on_bus(r.sectors));
            }
        }
        self.stop_reading_ahead(start);
        let read = self.transfer(start, r, 0);
        if self.spec.read_ahead > 0 {
            let until = (r.end() + self.spec.read_ahead / SECTOR).min(self.layout.sectors());
            self.ahead = Some(ReadAhead { start: r.start, from: r.end(), at: read, until });
        }
        // The bus cannot transfer a sector before the head has read it.
        (read + self.on_bus(1)).max(start + self.on_bus(r.sectors))
    }

    fn write(&mut self, start: Ns, r: Request) -> Ns {
        self.stop_reading_ahead(start);
        let written = self.put(start, r);
        written.max(start + self.on_bus(r.sectors))
    }

    /// Writes to the medium, on a shingled disk with the copies that this needs.
    fn put(&mut self, start: Ns, r: Request) -> Ns {
        let settle = self.spec.write_settle;
        let Some(bands) = &mut self.bands else { return self.transfer(start, r, settle) };
        let request =
            |write, range: &Range<u64>| Request { write, start: range.start, sectors: range.end - range.start };
        bands.write(r.start..r.end()).iter().fold(start, |at, step| match step {
            Step::Begin => at,
            Step::Copy(range) => {
                let read = self.transfer(at, request(false, range), 0);
                self.transfer(read, request(true, range), settle)
            }
            Step::Write(range) => self.transfer(at, request(true, range), settle),
        })
    }

    /// Stops read-ahead because the arm is needed. The buffer keeps what was read until now. A stopped read-ahead does
    /// not move the arm again.
    fn stop_reading_ahead(&mut self, now: Ns) {
        if let Some(a) = self.ahead.filter(|a| a.from < a.until) {
            let reached = self.reached(&a, now);
            self.go_to(&self.layout.place(reached.saturating_sub(1)).clone());
            self.ahead = Some(ReadAhead { from: reached, at: now, until: reached, ..a });
        }
    }

    fn go_to(&mut self, place: &Place) {
        (self.cylinder, self.head) = (place.cylinder, place.head);
    }

    /// The sector that read-ahead has reached at `now`.
    fn reached(&self, a: &ReadAhead, now: Ns) -> u64 {
        let (mut at, mut sector) = (a.at, a.from);
        while sector < a.until {
            let place = self.layout.place(sector);
            let rest = (place.track - place.sector).min(a.until - sector);
            let one = self.spec.rotation as f64 / place.track as f64;
            let all = (one * rest as f64) as Ns;
            if at + all > now {
                return sector + ((now.saturating_sub(at)) as f64 / one) as u64;
            }
            (at, sector) = (at + all, sector + rest);
            at += self.skew_wait(sector);
        }
        sector
    }

    /// When the sectors `from..to` have passed, if `from` is under the head at `at`.
    fn stream(&self, at: Ns, from: u64, to: u64) -> Ns {
        let (mut at, mut sector) = (at, from);
        while sector < to {
            let place = self.layout.place(sector);
            let rest = (place.track - place.sector).min(to - sector);
            at += (self.spec.rotation as f64 / place.track as f64 * rest as f64) as Ns;
            sector += rest;
            if sector < to {
                at += self.skew_wait(sector);
            }
        }
        at
    }

    /// Skew before this sector, if it is the first of its track.
    fn skew_wait(&self, sector: u64) -> Ns {
        if sector == 0 || sector >= self.layout.sectors() {
            return 0;
        }
        let (last, first) = (self.layout.place(sector - 1), self.layout.place(sector));
        if (last.cylinder, last.head) == (first.cylinder, first.head) {
            return 0;
        }
        let end = last.angle + 1.0 / last.track as f64;
        ((first.angle - end).rem_euclid(1.0) * self.spec.rotation as f64) as Ns
    }

    /// Moves the arm and transfers. Returns when the last sector has passed.
    fn transfer(&mut self, start: Ns, r: Request, settle: Ns) -> Ns {
        let (mut at, mut sector) = (start, r.start);
        while sector < r.end() {
            let place = self.layout.place(sector);
            let count = (place.track - place.sector).min(r.end() - sector);
            let distance = self.cylinder.abs_diff(place.cylinder);
            let begun = at;
            if distance > 0 {
                at += self.seek.time(distance) + settle;
            } else if self.head != place.head {
                at += self.spec.head_switch;
            }
            self.go_to(&place);
            let (there, turns) = (at, self.rotate(at, &place, count));
            at += turns;
            let passing = ((count as f64 / place.track as f64 * self.spec.rotation as f64) as Ns).min(turns);
            if sector == r.start {
                self.breakdown.seek += there - begun;
                self.breakdown.rotation += turns - passing;
                self.breakdown.transfer += passing;
            } else {
                self.breakdown.transfer += at - begun;
            }
            sector += count;
        }
        at
    }

    /// Time from `now` until `count` sectors from `place` on have passed.
    fn rotate(&self, now: Ns, place: &Place, count: u64) -> Ns {
        let rotation = self.spec.rotation as f64;
        let under = (now % self.spec.rotation) as f64 / rotation;
        let wait = (place.angle - under).rem_euclid(1.0);
        let share = count as f64 / place.track as f64;
        let whole = wait + share;
        // The head is within the wanted sectors: their end is read now, their beginning after the turn.
        let turns = if self.spec.zero_latency && whole > 1.0 { 1.0_f64.max(share) } else { whole };
        (turns * rotation) as Ns
    }

    fn in_cache(&self, r: Request) -> bool {
        self.cache.range(..=r.start).next_back().is_some_and(|(_, end)| *end >= r.end())
    }

    fn touches_cache(&self, r: Request) -> bool {
        self.cache.range(..r.end()).next_back().is_some_and(|(_, end)| *end > r.start)
    }

    /// Adds a write to the cache and merges it with its neighbours.
    fn put_in_cache(&mut self, r: Request) {
        let (mut start, mut end) = (r.start, r.end());
        while let Some((s, e)) =
            self.cache.range(..=end).next_back().map(|(s, e)| (*s, *e)).filter(|(_, e)| *e >= start)
        {
            self.cache.remove(&s);
            self.cached -= e - s;
            (start, end) = (start.min(s), end.max(e));
        }
        self.cache.insert(start, end);
        self.cached += end - start;
    }

    /// Writes the whole cache in one sweep.
    fn write_out(&mut self, start: Ns) -> Ns {
        self.stop_reading_ahead(start);
        let mut parts: Vec<Request> = std::mem::take(&mut self.cache)
            .into_iter()
            .map(|(start, end)| Request { write: true, start, sectors: end - start })
            .collect();
        self.cached = 0;
        self.sweep(&mut parts, |r| r.start);
        let end = parts.into_iter().fold(start, |at, r| self.put(at, r));
        self.free = self.free.max(end);
        end
    }
}
