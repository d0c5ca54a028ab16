//! What a device can do wrong, at one request of a history: an error, a write that is lost or goes astray, a flipped bit,
//! a sector that cannot be read any more, a device that goes away or that is full.
//!
//! A [`Plan`] sits in a [`Trace`](crate::disk::Trace) and decides about every request; [`history`] runs operations over it
//! and judges what comes of them.

pub mod history;

use crate::disk_image::{Image, SECTOR};
use cffs::device::IoKind;
use fastrand::Rng;
use std::io;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One request fails: a read, a write (part of which may have reached the medium) or a flush (some of the writes
    /// before it are lost for good, as a kernel or a disk does that tells of an error once).
    Error,
    /// A write is said to be done and never reaches the medium.
    Lost,
    /// A write reaches another place.
    Misdirected,
    /// A bit is wrong in what a read returns; the medium is all right.
    FlippedRead,
    /// A bit of the medium is wrong.
    FlippedMedium,
    /// Some sectors cannot be read until they are written again.
    Unreadable,
    /// All requests of this device fail from now on.
    Gone,
    /// The disk below a sparse image is full: from now on, writes to places that were never written fail.
    Full,
}

impl Fault {
    /// All of them.
    pub const EVERY: [Fault; 8] = [
        Fault::Error,
        Fault::Lost,
        Fault::Misdirected,
        Fault::FlippedRead,
        Fault::FlippedMedium,
        Fault::Unreadable,
        Fault::Gone,
        Fault::Full,
    ];

    /// Whether the device says what has happened. All else must be noticed by the file system or its check.
    pub fn is_told(self) -> bool {
        matches!(self, Fault::Error | Fault::Gone | Fault::Full | Fault::Unreadable)
    }
}

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
}

/// The request that a fault has hit.
#[derive(Clone, Copy, Debug)]
pub struct Hit {
    /// Kind of the request.
    pub request: Request,
    /// Number of the device.
    pub dev: usize,
    /// What the request carried; flushes carry nothing.
    pub kind: Option<IoKind>,
    /// Byte offset of what was damaged.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Where a write went astray to.
    pub to: Option<u64>,
}

/// What is to become of a request.
pub(crate) enum Verdict {
    /// It does what it should.
    Pass,
    /// It fails, after so many bytes.
    Fail(io::Error, usize),
    /// It says that it is done, and is not.
    Lose,
    /// It goes there instead.
    Divert(u64),
    /// The bit at this byte of the request is flipped on its way.
    Flip(usize, u8),
    /// The bit at this byte of the request is flipped on the medium.
    FlipMedium(usize, u8),
}

/// A fault that waits for its request, and what has become of it.
#[derive(Clone, Debug)]
pub struct Plan {
    fault: Option<Fault>,
    at: u64,
    rng: Rng,
    requests: u64,
    hit: Option<Hit>,
    /// What cannot be read: device, offset, length.
    bad: Vec<(usize, u64, u64)>,
}

impl Plan {
    /// The fault strikes the `at`th request from now on (0 is the first), or the first after it of a kind that it can
    /// strike.
    pub fn new(fault: Fault, at: u64, seed: u64) -> Plan {
        Plan { fault: Some(fault), at, rng: Rng::with_seed(seed), requests: 0, hit: None, bad: Vec::new() }
    }

    /// Counts requests.
    pub fn counting() -> Plan {
        Plan { fault: None, ..Plan::new(Fault::Error, u64::MAX, 0) }
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// The request that was hit.
    pub fn hit(&self) -> Option<Hit> {
        self.hit
    }

    /// No fault is to come, and a device that was gone is back; what cannot be read stays so.
    pub fn calm(&mut self) {
        self.fault = None;
    }

    /// Whether a device is gone.
    pub(crate) fn is_gone(&self, dev: usize) -> bool {
        self.fault == Some(Fault::Gone) && self.hit.is_some_and(|hit| hit.dev == dev)
    }

    fn due(&mut self) -> bool {
        self.requests += 1;
        self.requests > self.at && self.hit.is_none()
    }

    fn io_error() -> io::Error {
        rustix::io::Errno::IO.into()
    }

    /// Part of a request: some sectors of it, as offset in the request and length.
    fn sectors(&mut self, len: usize) -> (usize, usize) {
        let all = len / SECTOR;
        let first = self.rng.usize(..all);
        (first * SECTOR, self.rng.usize(1..=(all - first).min(4)) * SECTOR)
    }

    pub(crate) fn on_read(&mut self, dev: usize, kind: IoKind, offset: u64, len: usize) -> Verdict {
        let due = self.due();
        if self.is_gone(dev) {
            return Verdict::Fail(rustix::io::Errno::NODEV.into(), 0);
        }
        let mut hit = Hit { request: Request::Read, dev, kind: Some(kind), offset, len: len as u64, to: None };
        let verdict = match self.fault {
            Some(Fault::Error) if due => Verdict::Fail(Plan::io_error(), 0),
            Some(Fault::Gone) if due => Verdict::Fail(rustix::io::Errno::NODEV.into(), 0),
            Some(fault @ (Fault::FlippedRead | Fault::FlippedMedium)) if due => {
                let (at, bit) = (self.rng.usize(..len), 1 << self.rng.u8(..8));
                (hit.offset, hit.len) = ((offset + at as u64) & !(SECTOR as u64 - 1), SECTOR as u64);
                if fault == Fault::FlippedRead { Verdict::Flip(at, bit) } else { Verdict::FlipMedium(at, bit) }
            }
            Some(Fault::Unreadable) if due => {
                let (at, n) = self.sectors(len);
                (hit.offset, hit.len) = (offset + at as u64, n as u64);
                let sectors = (hit.offset..hit.offset + hit.len).step_by(SECTOR);
                self.bad.extend(sectors.map(|at| (dev, at, SECTOR as u64)));
                Verdict::Fail(Plan::io_error(), 0)
            }
            _ => {
                let touches = |b: &&(usize, u64, u64)| b.0 == dev && b.1 < offset + len as u64 && offset < b.1 + b.2;
                return match self.bad.iter().find(touches) {
                    Some(_) => Verdict::Fail(Plan::io_error(), 0),
                    None => Verdict::Pass,
                };
            }
        };
        self.hit = Some(hit);
        verdict
    }

    pub(crate) fn on_write(&mut self, dev: usize, kind: IoKind, offset: u64, len: usize, image: &Image) -> Verdict {
        let due = self.due();
        if self.is_gone(dev) {
            return Verdict::Fail(rustix::io::Errno::NODEV.into(), 0);
        }
        let full = || Verdict::Fail(io::ErrorKind::StorageFull.into(), 0);
        if self.fault == Some(Fault::Full)
            && self.hit.is_some_and(|hit| hit.dev == dev)
            && !image.has(offset, len as u64)
        {
            return full();
        }
        let mut to = None;
        let verdict = match self.fault {
            Some(Fault::Error) if due => {
                let part = if self.rng.bool() { 0 } else { self.rng.usize(..=len / SECTOR) * SECTOR };
                Verdict::Fail(Plan::io_error(), part)
            }
            Some(Fault::Gone) if due => Verdict::Fail(rustix::io::Errno::NODEV.into(), 0),
            Some(Fault::Full) if due && !image.has(offset, len as u64) => full(),
            Some(Fault::Lost) if due => Verdict::Lose,
            Some(Fault::Misdirected) if due => {
                // Near, as by a head on the wrong track, or anywhere, as by a flipped bit of the address.
                let room = (image.size() - len as u64) / SECTOR as u64;
                let near = offset / SECTOR as u64;
                let there = if self.rng.bool() {
                    self.rng.u64(near.saturating_sub(64)..=(near + 64).min(room))
                } else {
                    (near ^ 1 << self.rng.u64(..16)).min(room)
                };
                to = Some(there * SECTOR as u64);
                Verdict::Divert(there * SECTOR as u64)
            }
            _ => {
                // A disk gives a bad sector another place when it is written.
                let covers = |b: &(usize, u64, u64)| b.0 == dev && offset <= b.1 && b.1 + b.2 <= offset + len as u64;
                self.bad.retain(|b| !covers(b));
                return Verdict::Pass;
            }
        };
        self.hit = Some(Hit { request: Request::Write, dev, kind: Some(kind), offset, len: len as u64, to });
        verdict
    }

    pub(crate) fn on_flush(&mut self, dev: usize) -> Verdict {
        let due = self.due();
        let hit = Hit { request: Request::Flush, dev, kind: None, offset: 0, len: 0, to: None };
        match self.fault {
            Some(Fault::Gone) if due || self.is_gone(dev) => {
                self.hit.get_or_insert(hit);
                Verdict::Fail(rustix::io::Errno::NODEV.into(), 0)
            }
            Some(Fault::Error) if due => {
                self.hit = Some(hit);
                Verdict::Fail(Plan::io_error(), 0)
            }
            _ => Verdict::Pass,
        }
    }
}
