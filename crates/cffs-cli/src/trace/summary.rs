//! `cffs trace summary`: tables, and the slowest operations explained.

use super::causes::{shares, waiting};
use super::counted::{self, Counted, Disk};
use super::explain::{Explanation, explain};
use super::load::{Trace, time};
use super::requests::{Requests, described};
use crate::text::print_json;
use cffs::device::Purpose;
use cffs::trace::Record;
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;

/// Tables of operations and requests, by purpose and by what caused them, and the slowest operations explained
#[derive(Args, Debug)]
pub struct SummaryArgs {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    /// How many of the slowest operations to explain
    #[arg(long, value_name = "N", default_value_t = 10)]
    slowest: usize,
    /// The trace; `-` is standard input
    file: PathBuf,
}

/// Durations that are kept one by one. Of more than so many the percentiles are off by a hundredth at most.
const EXACT_MAX: usize = 1 << 16;
/// A part of a power of two into which durations are counted then: one of 2^7.
const PRECISION: u32 = 7;

/// Durations in nanoseconds, in bounded memory.
#[derive(Default)]
struct Durations {
    count: u64,
    total: u64,
    longest: u64,
    /// All of them, while they are few; then none.
    exact: Vec<u64>,
    /// How many are in each bucket, once they are many.
    buckets: Vec<u64>,
}

impl Durations {
    fn add(&mut self, ns: u64) {
        self.count += 1;
        self.total = self.total.saturating_add(ns);
        self.longest = self.longest.max(ns);
        if !self.buckets.is_empty() {
            self.buckets[bucket(ns)] += 1;
        } else if self.exact.len() < EXACT_MAX {
            self.exact.push(ns);
        } else {
            self.buckets.resize(bucket(u64::MAX) + 1, 0);
            std::mem::take(&mut self.exact).into_iter().chain([ns]).for_each(|ns| self.buckets[bucket(ns)] += 1);
        }
    }

    /// No more are added.
    fn finish(&mut self) {
        self.exact.sort_unstable();
    }

    /// The duration that so many percent do not exceed.
    fn percentile(&self, percent: u64) -> u64 {
        let rank = (self.count * percent / 100).min(self.count.saturating_sub(1));
        if self.buckets.is_empty() {
            return self.exact.get(rank as usize).copied().unwrap_or(0);
        }
        let mut left = rank;
        for (n, count) in self.buckets.iter().enumerate() {
            if left < *count {
                return lowest(n).min(self.longest);
            }
            left -= count;
        }
        self.longest
    }
}

/// The bucket of a duration: its highest bit, and the next ones.
fn bucket(ns: u64) -> usize {
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(PRECISION + 1);
    ((u64::from(shift) << PRECISION) + (ns >> shift)) as usize
}

/// The shortest duration of a bucket.
fn lowest(bucket: usize) -> u64 {
    let shift = (bucket >> PRECISION).saturating_sub(1);
    ((bucket - (shift << PRECISION)) as u64) << shift
}

/// What operations of one kind took.
#[derive(Default)]
struct Operations {
    durations: Durations,
    waited: Requests,
}

/// One of the slowest operations.
struct Slow {
    record: Record,
    why: Explanation,
}

#[derive(Default)]
struct Summary {
    operations: BTreeMap<&'static str, Operations>,
    purposes: BTreeMap<&'static str, Requests>,
    causes: BTreeMap<&'static str, Requests>,
    disks: BTreeMap<Disk, Requests>,
    all: Requests,
    /// Requests of a log disk or a volume, which makes requests of its own for them.
    logical: u64,
    /// From the slowest on.
    slowest: Vec<Slow>,
}

impl Summary {
    /// Takes in the spans at these positions, and keeps so many of the slowest operations.
    fn add(&mut self, trace: &Trace, positions: Range<usize>, slowest: usize) {
        let mut slow: Vec<usize> = Vec::new();
        // What is not slower than those that are there.
        let least = self.slowest.get(slowest.wrapping_sub(1)).map(|s| s.record.duration);
        for at in positions {
            let r = &trace.records[at];
            // Of operations that are a part of others, the others are what a program waits for.
            if r.kind.is_origin() && waiting(trace, at).is_none() {
                self.operations.entry(r.kind.name()).or_default().durations.add(r.duration);
                if least.is_none_or(|least| r.duration > least) {
                    slow.push(at);
                }
            }
            self.logical += u64::from(r.kind.is_logical_request());
            if let Some(request) = r.request() {
                self.all.add(r, 1.0);
                if let Some(disk) = Disk::of(r) {
                    self.disks.entry(disk).or_default().add(r, 1.0);
                }
                self.purposes.entry(request.purpose.name()).or_default().add(r, 1.0);
                for (name, share) in shares(trace, at) {
                    self.causes.entry(name).or_default().add(r, share);
                }
                if let Some(op) = waiting(trace, at) {
                    self.operations.entry(trace.records[op].kind.name()).or_default().waited.add(r, 1.0);
                }
            }
        }
        slow.sort_by_key(|at| std::cmp::Reverse(trace.records[*at].duration));
        slow.truncate(slowest);
        let why = explain(trace, &slow);
        let new = slow.iter().zip(why).map(|(at, why)| Slow { record: trace.records[*at].clone(), why });
        self.slowest.extend(new);
        self.slowest.sort_by_key(|s| std::cmp::Reverse(s.record.duration));
        self.slowest.truncate(slowest);
    }

    fn finish(&mut self) {
        self.operations.values_mut().for_each(|o| o.durations.finish());
    }

    /// What the mount itself counted meanwhile.
    fn counted(&self, trace: &Trace) -> Option<Counted> {
        Counted::of(trace, self.disks.keys().copied(), self.logical)
    }

    /// Whether its disks are those of a mount that has them in its own trace.
    fn is_beside(&self, trace: &Trace) -> bool {
        self.logical > 0 && !counted::tells_of_disks(&trace.end)
    }
}

/// Runs the subcommand.
pub fn run(args: &SummaryArgs) -> anyhow::Result<u8> {
    let mut summary = Summary::default();
    let trace = Trace::walk(&args.file, &mut |trace, positions| {
        summary.add(trace, positions, args.slowest);
        Ok(())
    })?;
    summary.finish();
    if args.json {
        print_json(&as_json(&trace, &summary))?;
    } else {
        let mut out = io::stdout().lock();
        print(&mut out, &trace, &summary)?;
        out.flush()?;
    }
    Ok(0)
}

fn as_json(trace: &Trace, s: &Summary) -> Value {
    let operations: BTreeMap<_, _> = s
        .operations
        .iter()
        .map(|(name, o)| {
            let row = json!({
                "count": o.durations.count,
                "total_ns": o.durations.total,
                "p50_ns": o.durations.percentile(50),
                "p99_ns": o.durations.percentile(99),
                "max_ns": o.durations.longest,
                "waited_for": o.waited.json(),
            });
            (name, row)
        })
        .collect();
    let table = |of: &BTreeMap<&'static str, Requests>| -> BTreeMap<&'static str, Value> {
        of.iter().map(|(name, r)| (*name, r.json())).collect()
    };
    let slowest: Vec<Value> = s
        .slowest
        .iter()
        .map(|Slow { record: r, why: e }| {
            let mut value = json!({
                "operation": r.kind.name(),
                "arguments": r.named_args().collect::<BTreeMap<_, _>>(),
                "thread": trace.thread(r.thread),
                "start_ns": r.start,
                "ns": r.duration,
            });
            e.json(&mut value);
            value
        })
        .collect();
    let counted = s.counted(trace);
    json!({
        "image": trace.start["image"],
        "ns": trace.duration(),
        "spans": trace.spans,
        "lost": trace.lost,
        "cut": trace.cut,
        "operations": operations,
        "requests": {
            "all": s.all.json(),
            "counted": counted.as_ref().and_then(Counted::all).map(counted::json),
            "by_disk": counted::by_disk(&s.disks, counted.as_ref()),
            "by_purpose": table(&s.purposes),
            "by_cause": table(&s.causes),
        },
        "slowest": slowest,
    })
}

/// A number of requests: with shares of some, it may be no whole one.
fn number(n: f64) -> String {
    if (n - n.round()).abs() < 0.05 { format!("{n:.0}") } else { format!("{n:.1}") }
}

fn percent(part: f64, all: f64) -> String {
    if all > 0.0 { format!("{:.0}%", 100.0 * part / all) } else { "-".into() }
}

/// Rows of cells in columns, the first one to the left.
fn table(out: &mut impl Write, rows: &[Vec<String>]) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (c, (cell, width)) in row.iter().zip(&widths).enumerate() {
            line += &if c == 0 { format!("  {cell:<width$}") } else { format!("  {cell:>width$}") };
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn cells(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|c| (*c).to_owned()).collect()
}

fn print(out: &mut impl Write, trace: &Trace, s: &Summary) -> io::Result<()> {
    let image = trace.start["image"].as_str().unwrap_or("an unknown image");
    let image = crate::text::printable(image.as_bytes());
    writeln!(out, "{} of {image}: {} spans, {} lost", time(trace.duration()), trace.spans, trace.lost)?;
    if trace.lost > 0 {
        writeln!(out, "Spans were lost, so the sums are too small: record fewer classes.")?;
    }
    writeln!(out, "\nOperations, and the requests that they waited for")?;
    let mut rows = vec![cells(&["", "count", "total", "50%", "99%", "longest", "reads", "writes", "flushes"])];
    for (name, o) in &s.operations {
        let w = &o.waited;
        let d = &o.durations;
        let times = [d.total, d.percentile(50), d.percentile(99), d.longest].map(time);
        let requests = [w.reads, w.writes, w.flushes].map(number);
        rows.push([vec![(*name).into(), d.count.to_string()], times.to_vec(), requests.to_vec()].concat());
    }
    table(out, &rows)?;

    writeln!(out, "\nRequests by purpose")?;
    let mut rows = vec![cells(&["", "reads", "writes", "flushes", "discards", "MB read", "MB written", "time"])];
    let row = |name: &str, r: &Requests| {
        let counts = [r.reads, r.writes, r.flushes, r.discards].map(number);
        let bytes = [r.read_bytes, r.write_bytes].map(|b| format!("{:.1}", b / 1e6));
        [vec![name.to_owned()], counts.to_vec(), bytes.to_vec(), vec![time(r.ns as u64)]].concat()
    };
    for purpose in Purpose::ALL.iter().filter_map(|p| s.purposes.get_key_value(p.name())) {
        rows.push(row(purpose.0, purpose.1));
    }
    rows.push(row("all", &s.all));
    let counted = s.counted(trace);
    if let Some(all) = counted.as_ref().and_then(Counted::all) {
        rows.push([vec!["counted".to_owned()], all.map(|n| n.to_string()).to_vec()].concat());
    }
    table(out, &rows)?;
    if s.is_beside(trace) {
        writeln!(
            out,
            "  Another mount has the disks: what they were asked for this one is in the trace of that one, caused by other-mount."
        )?;
    }
    print_disks(out, s, counted.as_ref())?;

    writeln!(out, "\nRequests by what caused them, at once or later")?;
    let mut rows = vec![cells(&["", "reads", "", "writes", "", "flushes", "", "time", ""])];
    for (name, r) in &s.causes {
        let shares = [(r.reads, s.all.reads), (r.writes, s.all.writes), (r.flushes, s.all.flushes)];
        let mut line = vec![(*name).to_owned()];
        shares.iter().for_each(|(n, all)| line.extend([number(*n), percent(*n, *all)]));
        line.extend([time(r.ns as u64), percent(r.ns, s.all.ns)]);
        rows.push(line);
    }
    table(out, &rows)?;
    print_slowest(out, trace, s)
}

/// The disks one by one, where there are several.
fn print_disks(out: &mut impl Write, s: &Summary, counted: Option<&Counted>) -> io::Result<()> {
    let own: Vec<(Disk, Option<[u64; 3]>)> = counted.into_iter().flat_map(Counted::disks).collect();
    if own.len() < 2 {
        return Ok(());
    }
    writeln!(out, "\nRequests by disk, and what it counted itself (-: it has left meanwhile)")?;
    let mut rows = vec![cells(&["", "reads", "counted", "writes", "counted", "flushes", "counted"])];
    for (disk, counts) in own {
        let traced = s.disks.get(&disk).copied().unwrap_or_default();
        let counts = counts.map_or_else(|| ["-"; 3].map(str::to_owned), |all| all.map(|n| n.to_string()));
        let pairs = [traced.reads, traced.writes, traced.flushes].map(number).into_iter().zip(counts);
        rows.push(std::iter::once(disk.to_string()).chain(pairs.flat_map(|(n, own)| [n, own])).collect());
    }
    table(out, &rows)
}

fn print_slowest(out: &mut impl Write, trace: &Trace, s: &Summary) -> io::Result<()> {
    if s.slowest.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nThe slowest operations")?;
    let first = trace.first();
    for Slow { record: r, why: e } in &s.slowest {
        let thread = crate::text::printable(trace.thread(r.thread).as_bytes());
        let when = time(r.start.saturating_sub(first));
        writeln!(out, "  {}: {}, {when} after the start, in {thread}", time(r.duration), described(r))?;
        writeln!(out, "      {}", e.text())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cffs::trace::{Cause, Kind};

    #[test]
    fn percentiles_of_many_durations_are_nearly_those_of_all() {
        for most in [100, 3 * EXACT_MAX as u64] {
            let mut durations = Durations::default();
            (1..=most).rev().for_each(|n| durations.add(n * 1000));
            durations.finish();
            assert_eq!((durations.count, durations.longest), (most, most * 1000));
            for percent in [1, 50, 99, 100] {
                let right = (most * percent / 100 + 1).min(most) as f64 * 1000.0;
                let got = durations.percentile(percent) as f64;
                assert!((got / right - 1.0).abs() < 0.01, "{percent}% of {most}: {got}, not {right}");
            }
        }
        for ns in [0, 1, 127, 128, 255, 256, 1000, 123_456_789, u64::MAX] {
            let least = lowest(bucket(ns));
            assert!(least <= ns && ns - least <= ns >> PRECISION && bucket(least) == bucket(ns), "{ns}: {least}");
        }
        assert_eq!(Durations::default().percentile(50), 0);
    }

    #[test]
    fn the_slowest_of_all_parts_are_kept() {
        let record = |id: u64| {
            let (kind, cause) = (Kind::Read, Cause::default());
            let (duration, args) = (id * 37 % 101, [0; 3]);
            Record {
                kind,
                id,
                cause,
                thread: 1,
                start: 1000 * id,
                duration,
                args,
                transaction: 0,
                causes: None,
                detail: None,
            }
        };
        let trace = Trace::of((1..=100).map(record).collect());
        let mut summary = Summary::default();
        (0..10).for_each(|n| summary.add(&trace, 10 * n..10 * (n + 1), 4));
        let got: Vec<u64> = summary.slowest.iter().map(|s| s.record.duration).collect();
        assert_eq!(got, [100, 99, 98, 97]);
        let mut none = Summary::default();
        none.add(&trace, 0..100, 0);
        assert!(none.slowest.is_empty() && none.operations["read"].durations.count == 100);
    }
}
