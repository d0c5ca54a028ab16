//! What the engine says of its requests: those by purpose are those by kind.

use cffs::Fs;
use cffs::device::{KindStats, Purpose, PurposeStats};
use cffs::stats::DeviceCounters;

/// Checks the counters of a file system that nobody uses at this moment.
pub(crate) fn check(fs: &Fs) -> Result<(), String> {
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
    if of(Purpose::Log).write_requests < log_writes {
        return Err(format!("{log_writes} writes to the log, {} of them for the log", of(Purpose::Log).write_requests));
    }
    for never_writes in [Purpose::Prefetch, Purpose::Demand, Purpose::Scrub] {
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
