//! A disk for the engine: its contents are in memory, its time comes from a model.

use crate::clock::Clock;
use crate::mechanical::TimeBreakdown;
use crate::model::Model;
use crate::request::{Ns, Request, SECTOR};
use cffs_device::{Device, IoKind, MemoryDevice, ReadRequest, WriteRequest};
use parking_lot::Mutex;
use serde::Serialize;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Requests to a disk, and the time they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Virtual time in nanoseconds.
    pub time: Ns,
    /// Where the time went. Zero on a flat-cost disk.
    pub breakdown: TimeBreakdown,
}

impl Counters {
    /// Reads and writes.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    /// Virtual time in seconds.
    pub fn seconds(&self) -> f64 {
        self.time as f64 / 1e9
    }
}

impl Sub for Counters {
    type Output = Counters;

    fn sub(self, before: Counters) -> Counters {
        Counters {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            read_bytes: self.read_bytes - before.read_bytes,
            written_bytes: self.written_bytes - before.written_bytes,
            flushes: self.flushes - before.flushes,
            time: self.time - before.time,
            breakdown: self.breakdown - before.breakdown,
        }
    }
}

impl Add for Counters {
    type Output = Counters;

    /// Requests to two disks with one clock, by the time of the later one.
    fn add(self, other: Counters) -> Counters {
        Counters {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            read_bytes: self.read_bytes + other.read_bytes,
            written_bytes: self.written_bytes + other.written_bytes,
            flushes: self.flushes + other.flushes,
            time: self.time.max(other.time),
            breakdown: self.breakdown + other.breakdown,
        }
    }
}

/// A simulated disk, or a partition of one.
pub struct SimDevice {
    contents: MemoryDevice,
    /// Where it begins on the disk, in bytes.
    start: u64,
    clock: Arc<Clock>,
    /// Its number at the clock.
    number: usize,
    state: Mutex<(Model, Counters)>,
    request_max: usize,
    /// What it says that it takes at once.
    said: AtomicUsize,
}

impl SimDevice {
    /// A disk of `len` bytes, all zero. `len` is at most the model's capacity.
    pub fn new(model: Model, len: u64, clock: Arc<Clock>) -> SimDevice {
        SimDevice::partition(model, 0, len, clock)
    }

    /// A partition of `len` bytes that begins `start` bytes behind the beginning of the disk, both in whole sectors. It ends within
    /// the model's capacity.
    pub fn partition(model: Model, start: u64, len: u64, clock: Arc<Clock>) -> SimDevice {
        let capacity = model.capacity();
        assert!(start + len <= capacity, "a disk of {capacity} bytes cannot have {len} from {start} on");
        let request_max = model.request_max() as usize;
        SimDevice {
            contents: MemoryDevice::new(len),
            start,
            number: clock.new_disk(),
            clock,
            state: Mutex::new((model, Counters::default())),
            request_max,
            said: AtomicUsize::new(request_max),
        }
    }

    /// From now on it says that it takes requests of so many bytes, as a kernel does that divides what is too long for the disk.
    pub fn say_max_request(&self, bytes: usize) {
        self.said.store(bytes.max(SECTOR as usize), Ordering::Relaxed);
    }

    /// Requests and time since the beginning.
    pub fn counters(&self) -> Counters {
        let state = self.state.lock();
        let mut counters = state.1;
        (counters.time, counters.breakdown) = (self.clock.now(), state.0.breakdown());
        counters
    }

    /// Its clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The contents. Reading them takes no virtual time.
    pub fn contents(&self) -> &dyn Device {
        &self.contents
    }

    fn charge(&self, requests: &[Request]) {
        let mut state = self.state.lock();
        let (model, counters) = &mut *state;
        for r in requests {
            let bytes = r.sectors * SECTOR;
            let split = bytes.div_ceil(self.request_max as u64);
            let (n, b) = match r.write {
                true => (&mut counters.writes, &mut counters.written_bytes),
                false => (&mut counters.reads, &mut counters.read_bytes),
            };
            (*n, *b) = (*n + split, *b + bytes);
        }
        let end = model.serve(self.clock.begin(self.number), requests);
        // Others may ask this disk while one waits for it.
        drop(state);
        self.clock.end(self.number, end);
    }
}

impl Device for SimDevice {
    fn len(&self) -> u64 {
        self.contents.len()
    }

    fn sector_size(&self) -> u32 {
        self.contents.sector_size()
    }

    fn is_rotational(&self) -> bool {
        self.state.lock().0.has_arm()
    }

    fn max_request(&self) -> usize {
        self.said.load(Ordering::Relaxed)
    }

    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let len: usize = bufs.iter().map(|b| b.len()).sum();
        self.contents.read_vectored(kind, offset, bufs)?;
        self.charge(&[Request::read(self.start + offset, len as u64)]);
        Ok(())
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let len: usize = bufs.iter().map(|b| b.len()).sum();
        self.contents.write_vectored(kind, offset, bufs)?;
        self.charge(&[Request::write(self.start + offset, len as u64)]);
        Ok(())
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.contents.write_batch(requests)?;
        let bytes = |r: &WriteRequest<'_>| r.bufs.iter().map(|b| b.len() as u64).sum();
        let charged: Vec<Request> = requests.iter().map(|r| Request::write(self.start + r.offset, bytes(r))).collect();
        self.charge(&charged);
        Ok(())
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        self.contents.read_batch(requests)?;
        let charged: Vec<Request> =
            requests.iter().map(|r| Request::read(self.start + r.offset, r.buf.len() as u64)).collect();
        self.charge(&charged);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.1.flushes += 1;
        let end = state.0.flush(self.clock.begin(self.number));
        drop(state);
        self.clock.end(self.number, end);
        Ok(())
    }

    // Only flash and shingled disks make something of it. The contents stay.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.state.lock().0.discard(self.start + offset, len);
        Ok(())
    }

    fn can_discard(&self) -> bool {
        self.state.lock().0.units().is_some()
    }
}
