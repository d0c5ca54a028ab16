//! What the engine says of its requests: those by purpose are those by kind, and those of its trace, where each has a cause; and below a
//! log disk or a volume they are those of the disks themselves.

use crate::disk::{Asked, Trace};
use cffs::Fs;
use cffs::device::{KindStats, Purpose, PurposeStats};
use cffs::stats::DeviceCounters;
use cffs::trace::{Causes, Classes, Item, Kind, Reader, Record, Request, frame};
use std::collections::{BTreeMap, HashMap};

/// Requests by purpose.
type ByPurpose = BTreeMap<String, PurposeStats>;

/// The requests of a mount.
pub(crate) struct Requests {
    /// Those of its trace until now, if it is traced.
    traced: Option<Traced>,
    /// What the disks were asked before, if nothing fails, so that the engine knows all of it.
    before: Option<Vec<Asked>>,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Disk(u64),
    LogDevice,
    Logical,
}

struct Traced {
    recording: u64,
    devices: BTreeMap<Place, ByPurpose>,
}

fn zeros() -> ByPurpose {
    Purpose::ALL.iter().map(|p| (p.name().to_owned(), PurposeStats::default())).collect()
}

impl Requests {
    /// Of a file system that was mounted just now on the devices of a trace.
    pub(crate) fn of(fs: &Fs, disks: &Trace) -> Requests {
        let traced = fs.options().trace == Classes::ALL;
        let recording = traced.then(|| fs.tracer().start(Classes::ALL));
        let before = without_faults(disks).then(|| before(disks, fs));
        Requests {
            traced: recording.map(|recording| Traced { recording, devices: BTreeMap::new() }),
            before: before.flatten(),
        }
    }

    /// Checks what a file system says that nobody uses at this moment.
    pub(crate) fn verify(&mut self, fs: &Fs, disks: &Trace) -> Result<(), String> {
        counters_agree(fs)?;
        if self.before.is_some() && without_faults(disks) && self.before != before(disks, fs) {
            let now = before(disks, fs);
            return Err(format!("the disks were asked {:?} before the mount, and now {now:?}", self.before));
        }
        let Some(traced) = &mut self.traced else { return Ok(()) };
        traced.read(fs)?;
        let stats = fs.stats();
        let own = if stats.disks.is_empty() { Place::Disk(0) } else { Place::Logical };
        let log = stats.log_device.as_ref().map(|log| (Place::LogDevice, log));
        // Of a member that is gone nobody has the counters any more.
        let there = stats.disks.iter().filter(|_| without_faults(disks));
        let below = there.map(|d| (Place::Disk(d.disk as u64), &d.counters));
        for (place, counted) in [(own, &stats.device)].into_iter().chain(log).chain(below) {
            let traced = traced.devices.entry(place).or_insert_with(zeros);
            if *traced != counted.purposes {
                return Err(format!("{place:?}: traced {traced:?}, counted {:?}", counted.purposes));
            }
        }
        Ok(())
    }
}

/// No device fails or is gone at times.
fn without_faults(disks: &Trace) -> bool {
    disks.faults().is_none() && !disks.loses()
}

/// What the disks below a log disk or a volume were asked that the engine has not counted: before it was mounted. `None`: there are none.
fn before(disks: &Trace, fs: &Fs) -> Option<Vec<Asked>> {
    let counted = fs.stats().disks;
    let sum = |d: &DeviceCounters| {
        d.purposes.values().fold([0; 4], |all: Asked, p| {
            let one = [p.read_requests, p.write_requests, p.flushes, p.discards];
            std::array::from_fn(|i| all[i] + one[i])
        })
    };
    let rest = |(asked, counted): (Asked, &DeviceCounters)| {
        let counted = sum(counted);
        std::array::from_fn(|i| asked[i].wrapping_sub(counted[i]))
    };
    (!counted.is_empty())
        .then(|| disks.asked().into_iter().zip(counted.iter().map(|d| &d.counters)).map(rest).collect())
}

impl Traced {
    /// Reads what was recorded since the last time.
    fn read(&mut self, fs: &Fs) -> Result<(), String> {
        let frames = fs.tracer().read(self.recording, usize::MAX).ok_or("somebody else records")?;
        let file = [&frame::HEADER[..], &frames].concat();
        let mut reader = Reader::new(&file[..]).map_err(|e| e.to_string())?;
        let (mut spans, mut requests) = (HashMap::new(), Vec::new());
        while let Some(item) = reader.next_item().map_err(|e| e.to_string())? {
            match item {
                Item::Span(r) if r.causes.as_ref().is_some_and(|c| !divides(c)) => {
                    return Err(format!("causes whose shares are not one: {r:?}"));
                }
                Item::Span(r) => match asked(&r) {
                    Some(request) => requests.push((r, request)),
                    None => drop(spans.insert(r.id, r)),
                },
                Item::Lost { spans, .. } => return Err(format!("{spans} spans were lost")),
                _ => {}
            }
        }
        // No span is open, so all that have caused something are there.
        let without = requests.iter().find(|(r, _)| !spans.contains_key(&r.cause.span) || r.cause.origin.is_none());
        if let Some((r, _)) = without {
            return Err(format!("a request without a cause: {r:?} in {:?}", spans.get(&r.cause.span)));
        }
        // A batch is for those who have written what is in it.
        let batches = spans.values().filter(|r| r.kind == Kind::Batch);
        if let Some(r) = batches.into_iter().find(|r| r.causes.as_ref().is_none_or(|all| all.is_empty())) {
            return Err(format!("a batch for nobody: {r:?}"));
        }
        requests.iter().try_for_each(|(r, request)| self.add(r, request))
    }

    fn add(&mut self, r: &Record, request: &Request) -> Result<(), String> {
        let place = match (r.kind.is_request(), request.on_log_device) {
            (true, false) => Place::Disk(request.disk),
            (true, true) => Place::LogDevice,
            (false, _) => Place::Logical,
        };
        let device = self.devices.entry(place).or_insert_with(zeros);
        let p = device.get_mut(request.purpose.name()).ok_or("an unknown purpose")?;
        match r.kind {
            Kind::DeviceRead | Kind::LogicalRead => {
                p.read_requests += 1;
                p.read_bytes += r.args[1];
            }
            Kind::DeviceWrite | Kind::LogicalWrite => {
                p.write_requests += 1;
                p.write_bytes += r.args[1];
            }
            Kind::DeviceFlush | Kind::LogicalFlush => p.flushes += 1,
            _ => p.discards += 1,
        }
        Ok(())
    }
}

/// What a record says of a request, of a disk or of what is on disks.
fn asked(r: &Record) -> Option<Request> {
    r.request().or_else(|| r.logical_request())
}

/// Whether what was done for these is divided among them as a whole, and the named ones have no more than all.
fn divides(causes: &Causes) -> bool {
    let shares: f64 = causes.shares().map(|(_, share)| share).sum();
    let named: u64 = causes.named_weights().iter().sum();
    let named_shares: f64 = causes.named_shares().map(|(_, share)| share).sum();
    (shares - 1.0).abs() < 1e-9 && named <= causes.weight() && named_shares < 1.0 + 1e-9
}

fn counters_agree(fs: &Fs) -> Result<(), String> {
    let stats = fs.stats();
    let log = stats.log_device.as_ref().map(|log| ("the log device", log));
    let all = [("the device", &stats.device)].into_iter().chain(log);
    all.clone().chain(stats.disks.iter().map(|d| ("a disk", &d.counters))).try_for_each(|(name, counters)| {
        sums_agree(counters).and_then(|()| readers_do_not_write(counters)).map_err(|what| format!("{name}: {what}"))
    })?;
    all.into_iter().try_for_each(|(name, counters)| purposes_fit(counters).map_err(|what| format!("{name}: {what}")))
}

fn sums_agree(counters: &DeviceCounters) -> Result<(), String> {
    let purposes = counters.purposes.values().fold(PurposeStats::default(), |sum, p| sum.zip(*p, |a, b| a + b));
    let kinds = counters.kinds.values().fold([0; 4], |sum: [u64; 4], k: &KindStats| {
        let four = [k.read_requests, k.write_requests, k.read_bytes, k.write_bytes];
        std::array::from_fn(|i| sum[i] + four[i])
    });
    let by_purpose = [purposes.read_requests, purposes.write_requests, purposes.read_bytes, purposes.write_bytes];
    if (by_purpose, purposes.flushes) == (kinds, counters.flushes) {
        return Ok(());
    }
    Err(format!(
        "{by_purpose:?} and {} flushes by purpose, {kinds:?} and {} in all",
        purposes.flushes, counters.flushes
    ))
}

/// Where a purpose allows only some kinds of request.
fn purposes_fit(counters: &DeviceCounters) -> Result<(), String> {
    let of = |purpose: Purpose| counters.purposes.get(purpose.name()).copied().unwrap_or_default();
    let log_writes = counters.kinds.get("log").map_or(0, |k| k.write_requests);
    // A copy of the log on a mirror is mended as others are.
    let (for_log, mended) = (of(Purpose::Log).write_requests, of(Purpose::Scrub).write_requests);
    if for_log + mended < log_writes {
        return Err(format!("{log_writes} writes to the log, {for_log} of them for the log"));
    }
    // The cleaner is the log disk's, whose requests are others.
    let clean = PurposeStats { discards: 0, ..of(Purpose::Clean) };
    if clean != PurposeStats::default() {
        return Err(format!("requests of a cleaner: {clean:?}"));
    }
    Ok(())
}

/// What is only read for somebody writes nothing.
fn readers_do_not_write(counters: &DeviceCounters) -> Result<(), String> {
    [Purpose::Prefetch, Purpose::Demand].into_iter().try_for_each(|purpose| {
        match counters.purposes.get(purpose.name()).map_or(0, |p| p.write_requests) {
            0 => Ok(()),
            writes => Err(format!("{writes} writes by {}", purpose.name())),
        }
    })
}
