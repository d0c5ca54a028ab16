//! A simulated device that records what is written to it, and the images a crash could leave behind.
//!
//! A device may keep completed writes in a volatile cache until it is flushed. After a power failure each of them may
//! have reached the medium or not, whole or in part: sectors of 512 bytes are atomic, nothing larger is. Of two writes
//! to the same sector the older one never replaces the newer one, but it may be the only one that arrived. A sector that
//! was being written when the power failed may hold neither: this is tried with the headers of the log, of which there are
//! two for that reason.

pub use crate::disk_image::{Image, SECTOR};
use crate::faults::{Plan, Verdict};
use cffs::device::{Device, IoKind};
use fastrand::Rng;
use parking_lot::Mutex;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

/// What discarded space reads as until it is written again.
const DISCARDED: u8 = 0xdb;

/// Something that reached a device.
#[derive(Clone)]
pub enum Event {
    /// A write, completed but not yet durable.
    Write {
        /// Number of the device.
        dev: usize,
        /// What it carried.
        kind: IoKind,
        /// Byte offset.
        offset: u64,
        /// The bytes.
        data: Arc<[u8]>,
    },
    /// All earlier writes to this device are durable.
    Flush {
        /// Number of the device.
        dev: usize,
    },
    /// A flush that failed: of the writes before it some will never be durable, whatever is flushed later.
    FailedFlush {
        /// Number of the device.
        dev: usize,
    },
    /// A write that was said to be done and is lost, or went to another place.
    Misdirected {
        /// Number of the device.
        dev: usize,
        /// Byte offset that was asked for.
        offset: u64,
        /// Byte offset it went to, if it went anywhere.
        to: Option<u64>,
        /// The bytes.
        data: Arc<[u8]>,
    },
    /// The medium changed by itself.
    BitRot {
        /// Number of the device.
        dev: usize,
        /// Byte offset.
        offset: u64,
        /// The bytes that are there now.
        data: Arc<[u8]>,
    },
    /// A range's content became undefined.
    Discard {
        /// Number of the device.
        dev: usize,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Write { dev, kind, offset, data } => {
                write!(f, "device {dev}: write of {} bytes at {offset} ({kind:?})", data.len())
            }
            Event::Flush { dev } => write!(f, "device {dev}: flush"),
            Event::FailedFlush { dev } => write!(f, "device {dev}: flush that fails"),
            Event::Misdirected { dev, offset, to: Some(to), data } => {
                write!(f, "device {dev}: write of {} bytes at {offset} that goes to {to}", data.len())
            }
            Event::Misdirected { dev, offset, to: None, data } => {
                write!(f, "device {dev}: write of {} bytes at {offset} that is lost", data.len())
            }
            Event::BitRot { dev, offset, data } => write!(f, "device {dev}: {} bytes at {offset} decay", data.len()),
            Event::Discard { dev, offset, len } => write!(f, "device {dev}: discard of {len} bytes at {offset}"),
        }
    }
}

impl Event {
    /// Number of the device that it reached.
    pub fn dev(&self) -> usize {
        match self {
            Event::Write { dev, .. }
            | Event::Flush { dev }
            | Event::FailedFlush { dev }
            | Event::Misdirected { dev, .. }
            | Event::BitRot { dev, .. }
            | Event::Discard { dev, .. } => *dev,
        }
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Event::Write { dev, kind, offset, data } => {
                write!(f, "dev{dev} write {kind:?} {offset:#x}+{:#x}", data.len())
            }
            Event::Flush { dev } => write!(f, "dev{dev} flush"),
            Event::FailedFlush { dev } => write!(f, "dev{dev} failed flush"),
            Event::Misdirected { dev, offset, to, data } => {
                write!(f, "dev{dev} write {offset:#x}+{:#x} went to {to:x?}", data.len())
            }
            Event::BitRot { dev, offset, data } => write!(f, "dev{dev} decay {offset:#x}+{:#x}", data.len()),
            Event::Discard { dev, offset, len } => write!(f, "dev{dev} discard {offset:#x}+{len:#x}"),
        }
    }
}

struct Core {
    images: Vec<Image>,
    events: Vec<Event>,
    ignores_flush: bool,
    faults: Option<Plan>,
    /// A device that fails everything, from one event on until another one.
    gone: Option<(usize, usize, usize)>,
    /// What each device was asked.
    asked: Vec<Asked>,
}

/// Requests of a device, failed ones among them: reads, writes, flushes, discards.
pub type Asked = [u64; 4];

impl Core {
    fn is_gone(&self, dev: usize) -> bool {
        self.gone.is_some_and(|(gone, first, end)| gone == dev && (first..end).contains(&self.events.len()))
            || self.faults.as_ref().is_some_and(|f| f.is_gone(dev))
    }

    fn check_there(&self, dev: usize) -> io::Result<()> {
        if self.is_gone(dev) { Err(io::Error::other("the device is gone")) } else { Ok(()) }
    }
}

/// The common record of one or more devices (data and external log), in the order in which things happened.
#[derive(Clone)]
pub struct Trace(Arc<Mutex<Core>>);

impl Trace {
    /// Devices with these contents.
    pub fn new(images: Vec<Image>) -> Trace {
        let asked = vec![[0; 4]; images.len()];
        let (events, faults, gone) = (Vec::new(), None, None);
        Trace(Arc::new(Mutex::new(Core { images, events, ignores_flush: false, faults, gone, asked })))
    }

    /// From now on flushes report success and do nothing, as some real devices have it. Nothing can be promised on
    /// such a device: with it, tests show that they would notice a missing flush.
    pub fn ignore_flushes(&self) {
        self.0.lock().ignores_flush = true;
    }

    /// From now on this decides about every request.
    pub fn arm(&self, plan: Plan) {
        self.0.lock().faults = Some(plan);
    }

    /// A device fails everything from so many events of the trace on, until so many others: number, first, end.
    pub fn lose(&self, gone: (usize, usize, usize)) {
        self.0.lock().gone = Some(gone);
    }

    /// Whether a device fails everything at the moment.
    pub fn is_gone(&self, dev: usize) -> bool {
        self.0.lock().is_gone(dev)
    }

    /// Whether a device fails everything at some time.
    pub fn loses(&self) -> bool {
        self.0.lock().gone.is_some()
    }

    /// What has become of the plan.
    pub fn faults(&self) -> Option<Plan> {
        self.0.lock().faults.clone()
    }

    /// A device of the trace.
    pub fn device(&self, dev: usize) -> Arc<RecordingDevice> {
        let len = self.0.lock().images[dev].size();
        Arc::new(RecordingDevice { trace: self.clone(), dev, len })
    }

    /// What each device was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.0.lock().asked.clone()
    }

    /// Number of events so far.
    pub fn len(&self) -> usize {
        self.0.lock().events.len()
    }

    /// True when nothing was written or flushed yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The events so far.
    pub fn events(&self) -> Vec<Event> {
        self.0.lock().events.clone()
    }

    /// The contents as reads see them now.
    pub fn images(&self) -> Vec<Image> {
        self.0.lock().images.clone()
    }
}

/// One device of a [`Trace`].
pub struct RecordingDevice {
    trace: Trace,
    dev: usize,
    len: u64,
}

impl RecordingDevice {
    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        let sector = SECTOR as u64;
        if !offset.is_multiple_of(sector) || !(len as u64).is_multiple_of(sector) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("request {offset}+{len} is not aligned")));
        }
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            let text = format!("request {offset}+{len} is beyond the end of the device ({})", self.len);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(())
    }
}

impl Device for RecordingDevice {
    fn len(&self) -> u64 {
        self.len
    }

    fn sector_size(&self) -> u32 {
        SECTOR as u32
    }

    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.check(offset, bufs.iter().map(|b| b.len()).sum())?;
        let mut core = self.trace.0.lock();
        let core = &mut *core;
        core.asked[self.dev][0] += 1;
        core.check_there(self.dev)?;
        let len = bufs.iter().map(|b| b.len()).sum();
        let mut flip = None;
        match core.faults.as_mut().map_or(Verdict::Pass, |f| f.on_read(self.dev, kind, offset, len)) {
            Verdict::Fail(e, _) => return Err(e),
            Verdict::Flip(at, bit) => flip = Some((at, bit)),
            Verdict::FlipMedium(at, bit) => {
                let mut byte = [0];
                core.images[self.dev].read(offset + at as u64, &mut byte);
                byte[0] ^= bit;
                core.images[self.dev].write(offset + at as u64, &byte);
                let data = Arc::from(&byte[..]);
                core.events.push(Event::BitRot { dev: self.dev, offset: offset + at as u64, data });
            }
            _ => {}
        }
        let mut at = offset;
        for b in bufs {
            core.images[self.dev].read(at, b);
            let from = (at - offset) as usize;
            if let Some((place, bit)) = flip.filter(|(place, _)| (from..from + b.len()).contains(place)) {
                b[place - from] ^= bit;
            }
            at += b.len() as u64;
        }
        Ok(())
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let data: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        self.check(offset, data.len())?;
        let mut core = self.trace.0.lock();
        let core = &mut *core;
        let dev = self.dev;
        core.asked[dev][1] += 1;
        core.check_there(dev)?;
        let verdict = match &mut core.faults {
            Some(f) => f.on_write(dev, kind, offset, data.len(), &core.images[dev]),
            None => Verdict::Pass,
        };
        match verdict {
            Verdict::Fail(e, part) => {
                if part > 0 {
                    core.images[dev].write(offset, &data[..part]);
                    core.events.push(Event::Write { dev, kind, offset, data: Arc::from(&data[..part]) });
                }
                return Err(e);
            }
            Verdict::Lose => core.events.push(Event::Misdirected { dev, offset, to: None, data: data.into() }),
            Verdict::Divert(to) => {
                core.images[dev].write(to, &data);
                core.events.push(Event::Misdirected { dev, offset, to: Some(to), data: data.into() });
            }
            _ => {
                core.images[dev].write(offset, &data);
                core.events.push(Event::Write { dev, kind, offset, data: data.into() });
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut core = self.trace.0.lock();
        core.asked[self.dev][2] += 1;
        core.check_there(self.dev)?;
        if let Some(Verdict::Fail(e, _)) = core.faults.as_mut().map(|f| f.on_flush(self.dev)) {
            core.events.push(Event::FailedFlush { dev: self.dev });
            return Err(e);
        }
        if !core.ignores_flush {
            core.events.push(Event::Flush { dev: self.dev });
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(offset, len as usize)?;
        let mut core = self.trace.0.lock();
        core.asked[self.dev][3] += 1;
        core.check_there(self.dev)?;
        core.images[self.dev].fill(offset, len, DISCARDED);
        core.events.push(Event::Discard { dev: self.dev, offset, len });
        Ok(())
    }
}

/// Which of the writes that were not yet durable survive a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// None.
    None,
    /// All (as when a process is killed).
    All,
    /// Each with probability one half.
    Some,
    /// All but one.
    AllButOne,
    /// One alone.
    One,
    /// Each write by sectors: all, none, a prefix, or any subset.
    Torn,
    /// Those whose bit is set, the oldest first; from the 64th on the last bit counts.
    Subset(u64),
}

impl Survival {
    /// All ways that are chosen at random.
    pub const EVERY: [Survival; 6] =
        [Survival::None, Survival::All, Survival::Some, Survival::AllButOne, Survival::One, Survival::Torn];
}

/// Walks along a record and builds the images that a crash at each point could leave.
pub struct CrashStates<'a> {
    events: &'a [Event],
    at: usize,
    durable: Vec<Image>,
    pending: Vec<usize>,
}

impl<'a> CrashStates<'a> {
    /// Starts before the first event, with the devices' contents of that time.
    pub fn new(images: Vec<Image>, events: &'a [Event]) -> Self {
        CrashStates { events, at: 0, durable: images, pending: Vec::new() }
    }

    /// Moves forward: the first `at` events have happened.
    pub fn advance(&mut self, at: usize) {
        assert!(self.at <= at && at <= self.events.len());
        for i in self.at..at {
            if let Event::FailedFlush { dev } = self.events[i] {
                // Each of them is lost or not, by its number.
                self.pending.retain(|p| self.events[*p].dev() != dev || Rng::with_seed((i * 7919 + p) as u64).bool());
                continue;
            }
            let Event::Flush { dev } = self.events[i] else {
                self.pending.push(i);
                continue;
            };
            let (now, later): (Vec<usize>, Vec<usize>) =
                self.pending.iter().partition(|p| self.events[**p].dev() == dev);
            for p in now {
                apply(&mut self.durable, &self.events[p]);
            }
            self.pending = later;
        }
        self.at = at;
    }

    /// Number of writes whose fate a crash here would decide.
    pub fn undecided(&self) -> usize {
        self.pending.len()
    }

    /// The images after a crash here.
    pub fn crash(&self, survival: Survival, rng: &mut Rng) -> Vec<Image> {
        let mut images = self.durable.clone();
        let chosen = if self.pending.is_empty() { 0 } else { rng.usize(..self.pending.len()) };
        for (n, p) in self.pending.iter().enumerate() {
            let event = &self.events[*p];
            let whole = match survival {
                Survival::None => false,
                Survival::All => true,
                Survival::Some => rng.bool(),
                Survival::AllButOne => n != chosen,
                Survival::One => n == chosen,
                Survival::Subset(mask) => mask >> n.min(63) & 1 == 1,
                Survival::Torn => {
                    tear(&mut images, event, rng);
                    continue;
                }
            };
            if whole {
                apply(&mut images, event);
            }
        }
        images
    }
}

fn apply(images: &mut [Image], event: &Event) {
    match event {
        Event::Write { dev, offset, data, .. } => images[*dev].write(*offset, data),
        Event::Discard { dev, offset, len } => images[*dev].fill(*offset, *len, DISCARDED),
        Event::Misdirected { dev, to: Some(to), data, .. } => images[*dev].write(*to, data),
        Event::BitRot { dev, offset, data } => images[*dev].write(*offset, data),
        Event::Flush { .. } | Event::FailedFlush { .. } | Event::Misdirected { to: None, .. } => {}
    }
}

/// The images as they would be had no write gone astray and nothing decayed.
pub fn as_intended(mut images: Vec<Image>, events: &[Event]) -> Vec<Image> {
    for event in events {
        match event {
            Event::Misdirected { dev, offset, data, .. } => images[*dev].write(*offset, data),
            Event::BitRot { .. } => {}
            event => apply(&mut images, event),
        }
    }
    images
}

fn tear(images: &mut [Image], event: &Event, rng: &mut Rng) {
    let Event::Write { dev, offset, data, .. } = event else {
        if rng.bool() {
            apply(images, event);
        }
        return;
    };
    let sectors = data.len() / SECTOR;
    let prefix = rng.usize(..=sectors);
    if data.starts_with(b"CFFLOGL1") && rng.bool() {
        let mut garbage = [0; SECTOR];
        rng.fill(&mut garbage);
        images[*dev].write(*offset, &garbage);
        return;
    }
    let how = rng.u8(..4);
    for (i, sector) in data.chunks(SECTOR).enumerate() {
        let survives = match how {
            0 => false,
            1 => true,
            2 => i < prefix,
            _ => rng.bool(),
        };
        if survives {
            images[*dev].write(offset + (i * SECTOR) as u64, sector);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_image::CHUNK;

    fn byte(image: &Image, offset: u64) -> u8 {
        let mut b = [0];
        image.read(offset, &mut b);
        b[0]
    }

    #[test]
    fn copies_are_independent() {
        let mut a = Image::new(1 << 20);
        a.write(CHUNK as u64 - 512, &[1; 1024]);
        let mut b = a.clone();
        b.write(CHUNK as u64, &[2; 512]);
        assert_eq!((byte(&a, CHUNK as u64 - 1), byte(&a, CHUNK as u64)), (1, 1));
        assert_eq!((byte(&b, CHUNK as u64 - 1), byte(&b, CHUNK as u64)), (1, 2));
        assert_eq!(byte(&b, 1 << 19), 0);
    }

    #[test]
    fn flushed_writes_survive_every_crash_and_others_may_be_lost_or_torn() {
        let trace = Trace::new(vec![Image::new(1 << 20), Image::new(1 << 20)]);
        let (dev, log) = (trace.device(0), trace.device(1));
        dev.write_at(IoKind::Data, 0, &[1; 4096]).unwrap();
        log.write_at(IoKind::Log, 0, &[9; 512]).unwrap();
        dev.flush().unwrap();
        dev.write_at(IoKind::Data, 0, &[2; 4096]).unwrap();
        assert!(dev.write_at(IoKind::Data, 100, &[2; 512]).is_err(), "unaligned");
        assert!(dev.write_at(IoKind::Data, 1 << 20, &[2; 512]).is_err(), "beyond the end");
        let events = trace.events();
        let mut states = CrashStates::new(vec![Image::new(1 << 20), Image::new(1 << 20)], &events);
        states.advance(4);
        assert_eq!(states.undecided(), 2, "the other device was not flushed");
        let mut rng = Rng::with_seed(1);
        let none = states.crash(Survival::None, &mut rng);
        assert_eq!((byte(&none[0], 0), byte(&none[1], 0)), (1, 0));
        let all = states.crash(Survival::All, &mut rng);
        assert_eq!((byte(&all[0], 0), byte(&all[1], 0)), (2, 9));
        let mut mixed = false;
        for _ in 0..50 {
            let torn = &states.crash(Survival::Torn, &mut rng)[0];
            let sectors: Vec<u8> = (0..8).map(|i| byte(torn, i * 512)).collect();
            for i in 0..4096 {
                assert_eq!(byte(torn, i), sectors[i as usize / 512], "a sector is never torn");
            }
            mixed |= sectors.contains(&1) && sectors.contains(&2);
        }
        assert!(mixed);
    }

    #[test]
    fn a_lost_newer_write_leaves_the_older_one() {
        let trace = Trace::new(vec![Image::new(4096)]);
        let dev = trace.device(0);
        dev.write_at(IoKind::Data, 0, &[1; 512]).unwrap();
        dev.write_at(IoKind::Data, 0, &[2; 512]).unwrap();
        let events = trace.events();
        let mut states = CrashStates::new(vec![Image::new(4096)], &events);
        states.advance(2);
        let mut rng = Rng::with_seed(3);
        let mut seen: Vec<u8> = (0..100).map(|_| byte(&states.crash(Survival::Some, &mut rng)[0], 0)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [0, 1, 2]);
        assert_eq!(byte(&states.crash(Survival::All, &mut rng)[0], 0), 2);
    }
}
