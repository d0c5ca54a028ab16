//! A recorded trace in memory: all of it, or a part at a time.

use anyhow::{Context, bail};
use cffs::trace::{Item, Reader, Record};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::path::Path;

/// Spans of a part. Three parts are in memory: one that is looked at, the one before it, and the one behind it, so a cause is found
/// that is so many spans away. It is the work of ten seconds at the least.
const PART: usize = 1 << 19;
/// Spans of a trace that is in memory as a whole: some 2 GB.
const WHOLE_MAX: usize = 1 << 24;
/// Threads whose names are kept. A damaged trace may have any number.
const NAMES_MAX: usize = 100_000;

/// A trace, or a part of it.
#[derive(Default)]
pub struct Trace {
    /// Of a whole trace in the order in which they began, of a part in that of the file.
    pub records: Vec<Record>,
    /// Names of threads.
    pub threads: BTreeMap<u64, String>,
    /// All spans that were read, of parts that are gone as well.
    pub spans: u64,
    /// Spans that were lost.
    pub lost: u64,
    /// When the first of all spans began, and the last one ended, in nanoseconds.
    pub time: Option<(u64, u64)>,
    /// What the recorder noted at the start and at the end; null if that is missing.
    pub start: Value,
    pub end: Value,
    /// It ends within a frame.
    pub cut: bool,
    index: Index,
}

/// Position of the first record with a number.
enum Index {
    /// From a number on, one position each; those that are not there have the greatest.
    Dense(u64, Vec<u32>),
    /// Of a damaged trace, or one that has lost most.
    Sparse(HashMap<u64, u32>),
}

impl Default for Index {
    fn default() -> Index {
        Index::Dense(0, Vec::new())
    }
}

impl Index {
    fn of(records: &[Record]) -> Index {
        let ids = || records.iter().map(|r| r.id);
        let (first, last) = (ids().min().unwrap_or(0), ids().max().unwrap_or(0));
        // There are fewer than WHOLE_MAX.
        let places = records.iter().zip(0u32..);
        if last - first < 4 * records.len() as u64 + 1024 {
            let mut positions = vec![u32::MAX; (last - first + 1) as usize];
            for (r, at) in places {
                let place = &mut positions[(r.id - first) as usize];
                *place = (*place).min(at);
            }
            return Index::Dense(first, positions);
        }
        let mut positions = HashMap::with_capacity(records.len());
        for (r, at) in places {
            positions.entry(r.id).or_insert(at);
        }
        Index::Sparse(positions)
    }

    fn get(&self, id: u64) -> Option<usize> {
        let at = match self {
            Index::Dense(first, positions) => *positions.get(usize::try_from(id.checked_sub(*first)?).ok()?)?,
            Index::Sparse(positions) => *positions.get(&id)?,
        };
        (at != u32::MAX).then_some(at as usize)
    }
}

/// Opens a file; `-` is standard input.
fn open(path: &Path) -> anyhow::Result<Box<dyn Read>> {
    Ok(if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(path).with_context(|| path.display().to_string())?))
    })
}

impl Trace {
    /// Reads a file; `-` is standard input. All of it is in memory: some 120 bytes for a span.
    pub fn load(path: &Path) -> anyhow::Result<Trace> {
        let input = open(path)?;
        let trace = Trace::read(input, WHOLE_MAX).with_context(|| path.display().to_string())?;
        trace.warn(path);
        Ok(trace)
    }

    /// Reads a file part by part, in bounded memory. `look` gets what is in memory, and the positions in it that are to be looked at:
    /// each span comes once, with those before and behind it. Returns the rest of what is known of the trace.
    pub fn walk(
        path: &Path,
        look: &mut dyn FnMut(&Trace, Range<usize>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Trace> {
        let input = open(path)?;
        let trace = Trace::parts(input, PART, look).with_context(|| path.display().to_string())?;
        trace.warn(path);
        Ok(trace)
    }

    fn warn(&self, path: &Path) {
        if self.cut {
            eprintln!("cffs: {}: the trace ends in the middle; what is whole is used", path.display());
        }
    }

    /// Reads a trace of so many spans at most.
    fn read(input: impl Read, most: usize) -> anyhow::Result<Trace> {
        let mut reader = Reader::new(input)?;
        let mut trace = Trace::default();
        while trace.next(&mut reader)? {
            if trace.records.len() > most {
                bail!(
                    "more than {most} spans are too many for this: `trace summary` reads any number; or record a shorter time"
                );
            }
        }
        trace.sort();
        Ok(trace)
    }

    fn parts(
        input: impl Read,
        part: usize,
        look: &mut dyn FnMut(&Trace, Range<usize>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Trace> {
        let mut reader = Reader::new(input)?;
        let mut trace = Trace::default();
        // How many of those in memory were looked at.
        let mut seen = 0;
        loop {
            let more = trace.next(&mut reader)?;
            if more && trace.records.len() < seen + 2 * part {
                continue;
            }
            trace.index = Index::of(&trace.records);
            let until = if more { seen + part } else { trace.records.len() };
            look(&trace, seen..until)?;
            if !more {
                return Ok(trace);
            }
            let gone = until.saturating_sub(part);
            trace.records.drain(..gone);
            seen = until - gone;
        }
    }

    /// Takes in the next piece; false at the end.
    fn next(&mut self, reader: &mut Reader<impl Read>) -> io::Result<bool> {
        match reader.next_item()? {
            None => {
                self.cut = reader.is_cut();
                return Ok(false);
            }
            // For a replay alone.
            Some(Item::Listing(_)) => {}
            Some(Item::Span(mut record)) => {
                // The same.
                record.detail = None;
                let (first, last) = self.time.unwrap_or((u64::MAX, 0));
                self.time = Some((first.min(record.start), last.max(record.end())));
                self.spans += 1;
                self.records.push(record);
            }
            Some(Item::Thread { thread, name }) => {
                if self.threads.len() < NAMES_MAX {
                    self.threads.insert(thread, name);
                }
            }
            Some(Item::Lost { spans, .. }) => self.lost = self.lost.saturating_add(spans),
            Some(Item::Information(json)) => {
                let value: Value = serde_json::from_slice(&json).unwrap_or_default();
                let end = value["when"] == "end";
                *(if end { &mut self.end } else { &mut self.start }) = value;
            }
        }
        Ok(true)
    }

    fn sort(&mut self) {
        self.records.sort_by_key(|r| (r.start, r.id));
        self.index = Index::of(&self.records);
    }

    /// The first record with a number.
    pub fn by_id(&self, id: u64) -> Option<&Record> {
        self.index.get(id).map(|at| &self.records[at])
    }

    /// Position of the span that caused one, if it is in memory.
    pub fn parent(&self, at: usize) -> Option<usize> {
        let cause = self.records[at].cause.span;
        if cause == 0 { None } else { self.index.get(cause).filter(|parent| *parent != at) }
    }

    /// The spans that caused one, from the nearest on. A damaged trace may name itself as a cause: there are 100 at most.
    pub fn ancestors(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(self.parent(at), |at| self.parent(*at)).take(100)
    }

    /// The spans that each one has caused.
    pub fn children(&self) -> Vec<Vec<usize>> {
        let mut children = vec![Vec::new(); self.records.len()];
        for at in 0..self.records.len() {
            if let Some(parent) = self.parent(at) {
                children[parent].push(at);
            }
        }
        children
    }

    /// Whether a span was a part of another one: in the same thread and within its time.
    pub fn is_within(&self, part: usize, whole: usize) -> bool {
        let (part, whole) = (&self.records[part], &self.records[whole]);
        part.thread == whole.thread && part.start >= whole.start && part.end() <= whole.end()
    }

    /// When the first span began, in nanoseconds.
    pub fn first(&self) -> u64 {
        self.time.map_or(0, |(first, _)| first)
    }

    /// Nanoseconds from the first beginning to the last end.
    pub fn duration(&self) -> u64 {
        self.time.map_or(0, |(first, last)| last.saturating_sub(first))
    }

    /// Name of a thread.
    pub fn thread(&self, number: u64) -> &str {
        self.threads.get(&number).map_or("thread", String::as_str)
    }
}

#[cfg(test)]
impl Trace {
    /// A trace of these records alone.
    pub fn of(records: Vec<Record>) -> Trace {
        let time = records.iter().map(|r| (r.start, r.end())).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        let mut trace = Trace { spans: records.len() as u64, records, time, ..Trace::default() };
        trace.sort();
        trace
    }
}

/// A time for people.
pub fn time(ns: u64) -> String {
    let t = ns as f64;
    match ns {
        0..10_000 => format!("{:.1} us", t / 1e3),
        10_000..1_000_000 => format!("{:.0} us", t / 1e3),
        1_000_000..10_000_000 => format!("{:.2} ms", t / 1e6),
        10_000_000..1_000_000_000 => format!("{:.1} ms", t / 1e6),
        _ => format!("{:.2} s", t / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cffs::trace::{Cause, Kind, frame};

    fn record(id: u64, cause: u64) -> Record {
        let cause = Cause { span: cause, origin: None };
        let (kind, args) = (Kind::Lookup, [0; 3]);
        Record { kind, id, cause, thread: 1, start: id, duration: 1, args, transaction: 0, causes: None, detail: None }
    }

    #[test]
    fn numbers_are_found_whether_they_are_dense_or_not() {
        for ids in [vec![5, 6, 9, 7], vec![1, u64::MAX, 1 << 40], vec![3, 3, 0]] {
            let records: Vec<Record> = ids.iter().map(|id| record(*id, 0)).collect();
            let index = Index::of(&records);
            for id in &ids {
                assert_eq!(index.get(*id), ids.iter().position(|other| other == id), "{id} of {ids:?}");
            }
            assert_eq!((index.get(8), index.get(1 << 41)), (None, None));
        }
        assert_eq!(Index::of(&[]).get(0), None);
    }

    /// A trace of a mount that traced itself: each lookup is one span.
    fn recorded(spans: usize) -> Vec<u8> {
        let tracer = cffs::trace::Tracer::default();
        let recording = tracer.start(cffs::trace::Classes::ALL);
        let mut file = frame::HEADER.to_vec();
        for n in 0..spans {
            drop(tracer.span(Kind::Lookup, [n as u64, 0, 0]));
            if n % 1000 == 0 {
                file.extend(tracer.read(recording, usize::MAX).unwrap());
            }
        }
        file.extend(tracer.read(recording, usize::MAX).unwrap());
        file
    }

    #[test]
    fn each_span_of_a_long_trace_comes_once_with_its_neighbours_and_memory_is_bounded() {
        let (spans, part) = (10_500, 1000);
        let file = recorded(spans);
        let mut next = 0;
        let trace = Trace::parts(&file[..], part, &mut |trace, positions| {
            assert!(trace.records.len() <= 3 * part);
            for at in positions {
                assert_eq!(trace.records[at].args[0], next);
                let id = trace.records[at].id;
                // Those before and behind are there too.
                let ends = [id.saturating_sub(part as u64 - 1).max(1), (id + part as u64 - 1).min(spans as u64)];
                assert!(ends.iter().all(|id| trace.by_id(*id).is_some()), "{ends:?} around {id}");
                next += 1;
            }
            Ok(())
        });
        let trace = trace.unwrap();
        assert_eq!((next, trace.spans, trace.lost), (spans as u64, spans as u64, 0));
        let whole = Trace::read(&file[..], spans).unwrap();
        assert_eq!((whole.duration(), whole.first()), (trace.duration(), trace.first()));
        assert!(Trace::read(&file[..], spans - 1).err().unwrap().to_string().contains("too many"));
    }
}
