//! What the engine says of its requests: those by purpose are those by kind, and those of its trace, where each has a cause.

use cffs::Fs;
use cffs::device::{KindStats, Purpose, PurposeStats};
use cffs::stats::DeviceCounters;
use cffs::trace::{Causes, Classes, Item, Kind, Reader, Record, frame};
use std::collections::{BTreeMap, HashMap};

/// The requests of a mount.
pub(crate) struct Requests {
    /// Those of its trace until now, if it is traced.
    traced: Option<Traced>,
}

struct Traced {
    recording: u64,
    /// By purpose, on the device and on that of an external log.
    devices: [BTreeMap<String, PurposeStats>; 2],
}

impl Requests {
    /// Of a file system that was mounted just now.
    pub(crate) fn of(fs: &Fs) -> Requests {
        let traced = fs.options().trace == Classes::ALL;
        let zeros = || Purpose::ALL.iter().map(|p| (p.name().to_owned(), PurposeStats::default())).collect();
        Requests {
            traced: traced.then(|| Traced { recording: fs.tracer().start(Classes::ALL), devices: [zeros(), zeros()] }),
        }
    }

    /// Checks what a file system says that nobody uses at this moment.
    pub(crate) fn verify(&mut self, fs: &Fs) -> Result<(), String> {
        counters_agree(fs)?;
        let Some(traced) = &mut self.traced else { return Ok(()) };
        traced.read(fs)?;
        let stats = fs.stats();
        let log = stats.log_device.as_ref().map(|log| ("the log device", &traced.devices[1], log));
        for (name, traced, counted) in [("the device", &traced.devices[0], &stats.device)].into_iter().chain(log) {
            if *traced != counted.purposes {
                return Err(format!("{name}: traced {traced:?}, counted {:?}", counted.purposes));
            }
        }
        Ok(())
    }
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
                Item::Span(r) if r.request().is_some() => requests.push(r),
                Item::Span(r) if r.causes.as_ref().is_some_and(|c| !divides(c)) => {
                    return Err(format!("causes whose shares are not one: {r:?}"));
                }
                Item::Span(r) => drop(spans.insert(r.id, r)),
                Item::Lost { spans, .. } => return Err(format!("{spans} spans were lost")),
                _ => {}
            }
        }
        // No span is open, so all that have caused something are there.
        let without = requests.iter().find(|r| !spans.contains_key(&r.cause.span) || r.cause.origin.is_none());
        if let Some(r) = without {
            return Err(format!("a request without a cause: {r:?} in {:?}", spans.get(&r.cause.span)));
        }
        requests.iter().try_for_each(|r| self.add(r))
    }

    fn add(&mut self, r: &Record) -> Result<(), String> {
        let request = r.request().ok_or("no request")?;
        let device = &mut self.devices[usize::from(request.on_log_device)];
        let p = device.get_mut(request.purpose.name()).ok_or("an unknown purpose")?;
        match r.kind {
            Kind::DeviceRead => {
                p.read_requests += 1;
                p.read_bytes += r.args[1];
            }
            Kind::DeviceWrite => {
                p.write_requests += 1;
                p.write_bytes += r.args[1];
            }
            Kind::DeviceFlush => p.flushes += 1,
            _ => p.discards += 1,
        }
        Ok(())
    }
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
    [("the device", &stats.device)].into_iter().chain(log).try_for_each(|(name, counters)| {
        sums_agree(counters).and_then(|()| purposes_fit(counters)).map_err(|what| format!("{name}: {what}"))
    })
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
    for never_writes in [Purpose::Prefetch, Purpose::Demand] {
        if of(never_writes).write_requests > 0 {
            return Err(format!("{} writes by {}", of(never_writes).write_requests, never_writes.name()));
        }
    }
    // The cleaner is the log disk's, which is not below these file systems.
    let clean = PurposeStats { discards: 0, ..of(Purpose::Clean) };
    if clean != PurposeStats::default() {
        return Err(format!("requests of a cleaner: {clean:?}"));
    }
    Ok(())
}
