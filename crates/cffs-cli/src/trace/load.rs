//! A recorded trace in memory.

use anyhow::Context;
use cffs::trace::{Item, Reader, Record};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// A trace.
#[derive(Default)]
pub struct Trace {
    /// In the order in which they began.
    pub records: Vec<Record>,
    /// Names of threads.
    pub threads: BTreeMap<u64, String>,
    /// Spans that were lost.
    pub lost: u64,
    /// What the recorder noted at the start and at the end; null if that is missing.
    pub start: Value,
    pub end: Value,
    /// It ends within a frame.
    pub cut: bool,
    /// Position of the first record with a number.
    by_id: HashMap<u64, usize>,
}

impl Trace {
    /// Reads a file; `-` is standard input.
    pub fn load(path: &Path) -> anyhow::Result<Trace> {
        let input: Box<dyn Read> = if path == Path::new("-") {
            Box::new(io::stdin().lock())
        } else {
            Box::new(File::open(path).with_context(|| path.display().to_string())?)
        };
        let trace = Trace::read(BufReader::new(input)).with_context(|| path.display().to_string())?;
        if trace.cut {
            eprintln!("cffs: {}: the trace ends in the middle; what is whole is used", path.display());
        }
        Ok(trace)
    }

    /// Reads a trace.
    pub fn read(input: impl Read) -> io::Result<Trace> {
        let mut reader = Reader::new(input)?;
        let mut trace = Trace::default();
        while let Some(item) = reader.next_item()? {
            match item {
                // For a replay alone.
                Item::Listing(_) => {}
                Item::Span(record) => trace.records.push(record),
                Item::Thread { thread, name } => drop(trace.threads.insert(thread, name)),
                Item::Lost { spans, .. } => trace.lost = trace.lost.saturating_add(spans),
                Item::Information(json) => {
                    let value: Value = serde_json::from_slice(&json).unwrap_or_default();
                    let end = value["when"] == "end";
                    *(if end { &mut trace.end } else { &mut trace.start }) = value;
                }
            }
        }
        trace.cut = reader.is_cut();
        trace.sort();
        Ok(trace)
    }

    fn sort(&mut self) {
        self.records.sort_by_key(|r| (r.start, r.id));
        for (at, record) in self.records.iter().enumerate() {
            self.by_id.entry(record.id).or_insert(at);
        }
    }

    /// The first record with a number.
    pub fn by_id(&self, id: u64) -> Option<&Record> {
        self.by_id.get(&id).map(|at| &self.records[*at])
    }

    /// Position of the span that caused one, if it is in the trace.
    pub fn parent(&self, at: usize) -> Option<usize> {
        let cause = self.records[at].cause.span;
        if cause == 0 { None } else { self.by_id.get(&cause).copied().filter(|parent| *parent != at) }
    }

    /// The spans that caused one, from the nearest on. A damaged trace may name itself as a cause: there are 100 at most.
    pub fn ancestors(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(self.parent(at), |at| self.parent(*at)).take(100)
    }

    /// The spans that each one has caused, in the order in which they began.
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

    /// Nanoseconds from the first beginning to the last end.
    pub fn duration(&self) -> u64 {
        let first = self.records.first().map_or(0, |r| r.start);
        self.records.iter().map(Record::end).max().map_or(0, |last| last.saturating_sub(first))
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
        let mut trace = Trace { records, ..Trace::default() };
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
