//! For whom the device works: requests and time by operation and by directory, out of the trace.

use cffs::trace::{Causes, Classes, Kind, Record};
use std::collections::{HashMap, HashSet, VecDeque};

/// Operations whose inode is remembered, for the work that is done for them later.
const REMEMBERED: usize = 100_000;
/// Directories that are told apart.
const DIRECTORIES_MAX: usize = 50_000;
/// Writebacks, commits and checkpoints of which it is remembered for whom they were.
const WORKS_MAX: usize = 4096;
/// Rounds that a request waits for the end of what has caused it.
const ROUNDS: u8 = 3;
/// What is done for many names some of them, who may be such work themselves: a checkpoint, a commit, a writeback, an operation.
const DEPTH: usize = 4;

/// In the place of a directory: what has none, and what nobody is known for.
pub const NO_DIRECTORY: u64 = 0;
/// In the place of a directory: the shares of those that work for many does not name.
pub const OTHERS: u64 = u64::MAX;

/// What something has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Operations.
    pub operations: f64,
    /// Reads and writes of the device; those that were made for many are divided among them.
    pub requests: f64,
    /// Bytes of these.
    pub bytes: f64,
    /// Nanoseconds of these.
    pub ns: f64,
}

impl Cost {
    fn add(&mut self, other: &Cost, share: f64) {
        self.operations += other.operations * share;
        self.requests += other.requests * share;
        self.bytes += other.bytes * share;
        self.ns += other.ns * share;
    }

    /// What was added since an earlier moment.
    pub fn since(&self, before: &Cost) -> Cost {
        let mut cost = *self;
        cost.add(before, -1.0);
        cost
    }
}

/// Sums since the beginning.
#[derive(Default)]
pub struct Costs {
    /// By operation; none: nobody knows.
    pub operations: HashMap<Option<Kind>, Cost>,
    /// By inode of a directory, [`NO_DIRECTORY`] or [`OTHERS`].
    pub directories: HashMap<u64, Cost>,
    /// Paths of directories.
    pub paths: HashMap<u64, String>,
    /// The directory of an inode.
    homes: HashMap<u64, u64>,
    /// Of inodes whose directory is not known yet.
    homeless: HashMap<u64, Cost>,
    /// Operations that have ended, and their inodes; the oldest first in the queue.
    ended: HashMap<u64, (Kind, u64)>,
    order: VecDeque<u64>,
    /// For whom work was done that is done for many; the oldest first in the queue.
    works: HashMap<u64, Box<Causes>>,
    works_order: VecDeque<u64>,
    /// Requests whose cause has not ended, by its number and the operation at the root of it: what is recorded of no class that is on has no number.
    waiting: HashMap<(u64, Option<Kind>), Waiting>,
}

/// Requests with the same cause.
#[derive(Default)]
struct Waiting {
    cost: Cost,
    /// Rounds that they have waited.
    rounds: u8,
}

/// Among whom a request is divided, by directory.
#[derive(Default)]
struct Division {
    inodes: Vec<(u64, f64)>,
    /// A cause is not known, or not yet.
    missing: bool,
}

/// The inode that an operation is about: that of the directory where it has both.
fn subject(r: &Record) -> u64 {
    if r.kind.arg_names().is_empty() { 0 } else { r.args[0] }
}

impl Costs {
    /// Takes in what was recorded since the last time, in any order.
    pub fn take(&mut self, records: &[Record]) {
        for r in records {
            if let Some(request) = r.request() {
                let moves = matches!(r.kind, Kind::DeviceRead | Kind::DeviceWrite);
                let cost = Cost {
                    operations: 0.0,
                    requests: f64::from(u8::from(moves)),
                    bytes: if moves { r.args[1] as f64 } else { 0.0 },
                    ns: r.duration as f64 / request.batch as f64,
                };
                self.waiting.entry((r.cause.span, r.cause.origin)).or_default().cost.add(&cost, 1.0);
            } else if r.kind.class().meets(Classes::OP) {
                self.operation(r);
            } else {
                // What is read ahead for one has no list, and is for whoever asked for it.
                let for_one = || {
                    let mut causes = Causes::default();
                    causes.add(r.cause, 1);
                    Box::new(causes)
                };
                self.works.insert(r.id, r.causes.clone().unwrap_or_else(for_one));
                self.works_order.push_back(r.id);
            }
        }
        for (cause, requests) in std::mem::take(&mut self.waiting) {
            self.charge(cause, requests);
        }
        while self.works_order.len() > WORKS_MAX {
            self.works_order.pop_front().map(|id| self.works.remove(&id));
        }
        while self.order.len() > REMEMBERED {
            self.order.pop_front().map(|id| self.ended.remove(&id));
        }
    }

    fn operation(&mut self, r: &Record) {
        let inode = subject(r);
        if self.ended.insert(r.id, (r.kind, inode)).is_none() {
            self.order.push_back(r.id);
        }
        let one = Cost { operations: 1.0, ..Cost::default() };
        // A part of another operation is none of a program's.
        if r.cause.origin.is_none() {
            self.operations.entry(Some(r.kind)).or_default().add(&one, 1.0);
            self.place(inode, &one, 1.0);
        }
    }

    /// Charges those for whom requests were made that a span has caused, or waits for the end of what they did.
    fn charge(&mut self, (span, origin): (u64, Option<Kind>), mut requests: Waiting) {
        let mut division = Division::default();
        self.divide(span, 1.0, DEPTH, &mut division);
        if division.missing && requests.rounds < ROUNDS && span != 0 {
            requests.rounds += 1;
            self.waiting.insert((span, origin), requests);
            return;
        }
        let cost = requests.cost;
        let ended = self.ended.get(&span).map(|(kind, _)| *kind);
        let kinds: Vec<_> = match self.works.get(&span) {
            Some(causes) => causes.shares().collect(),
            None => vec![(origin.or(ended), 1.0)],
        };
        for (kind, share) in kinds {
            self.operations.entry(kind).or_default().add(&cost, share);
        }
        let mut rest = 1.0;
        for (inode, share) in division.inodes {
            rest -= share;
            self.place(inode, &cost, share);
        }
        let nobody = if self.works.contains_key(&span) { OTHERS } else { NO_DIRECTORY };
        self.directories.entry(nobody).or_default().add(&cost, f64::max(rest, 0.0));
    }

    /// Divides a share of a request among the inodes for which a span was done.
    fn divide(&self, span: u64, share: f64, depth: usize, division: &mut Division) {
        if let Some((_, inode)) = self.ended.get(&span) {
            division.inodes.push((*inode, share));
        } else if let Some(causes) = self.works.get(&span).filter(|_| depth > 0) {
            let named = causes.named_shares().filter(|(_, part)| *part > 0.0);
            named.for_each(|(cause, part)| self.divide(cause, share * part, depth - 1, division));
        } else {
            division.missing = true;
        }
    }

    fn place(&mut self, inode: u64, cost: &Cost, share: f64) {
        let of = match self.homes.get(&inode) {
            _ if inode == 0 => self.directories.entry(NO_DIRECTORY).or_default(),
            Some(directory) => self.directories.entry(*directory).or_default(),
            None => self.homeless.entry(inode).or_default(),
        };
        of.add(cost, share);
    }

    /// Inodes whose directory somebody has to tell.
    pub fn unknown(&self, most: usize) -> Vec<u64> {
        self.homeless.keys().copied().take(most).collect()
    }

    /// The directories of the inodes that were asked for; those without one count for nobody.
    pub fn learn(&mut self, asked: &[u64], places: &[(u64, u64, String)]) {
        if self.directories.len() > DIRECTORIES_MAX {
            self.forget_the_small();
        }
        for (inode, directory, path) in places {
            self.homes.insert(*inode, *directory);
            self.paths.insert(*directory, path.clone());
        }
        for inode in asked {
            let Some(cost) = self.homeless.remove(inode) else { continue };
            let directory = self.homes.get(inode).copied().unwrap_or(NO_DIRECTORY);
            self.directories.entry(directory).or_default().add(&cost, 1.0);
        }
        // Numbers are given to other files, and files move.
        if self.homes.len() > REMEMBERED {
            self.homes.clear();
        }
    }

    /// Keeps the half of the directories that has cost most.
    fn forget_the_small(&mut self) {
        let mut costs: Vec<(u64, f64)> = self.directories.iter().map(|(d, c)| (*d, c.ns)).collect();
        costs.sort_by(|a, b| b.1.total_cmp(&a.1));
        let kept = costs.into_iter().take(DIRECTORIES_MAX / 2).map(|(d, _)| d);
        let kept: HashSet<u64> = kept.chain([NO_DIRECTORY, OTHERS]).collect();
        self.directories.retain(|d, _| kept.contains(d));
        self.paths.retain(|d, _| kept.contains(d));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cffs::trace::{Cause, Causes};

    fn record(kind: Kind, id: u64, cause: u64, origin: Option<Kind>, args: [u64; 3]) -> Record {
        let cause = Cause { span: cause, origin };
        let causes: Option<Box<Causes>> = None;
        Record { kind, id, cause, thread: 1, start: 0, duration: 1000, args, transaction: 0, causes, detail: None }
    }

    #[test]
    fn what_is_read_ahead_for_one_operation_is_its_and_causes_without_a_number_are_told_apart() {
        let mut costs = Costs::default();
        costs.take(&[
            record(Kind::Read, 2, 0, None, [20, 0, 4096]),
            record(Kind::DeviceRead, 3, 4, Some(Kind::Read), [0, 4096, 0]),
            record(Kind::Readahead, 4, 2, Some(Kind::Read), [0, 1, 0]),
            record(Kind::DeviceRead, 5, 0, Some(Kind::Regroup), [0, 512, 0]),
            record(Kind::DeviceRead, 6, 0, Some(Kind::Scrub), [0, 512, 0]),
        ]);
        costs.learn(&[20], &[(20, 7, "/a".into())]);
        assert_eq!(costs.directories[&7].requests, 1.0, "in the same round");
        let of = |kind| costs.operations[&Some(kind)].requests;
        assert_eq!([Kind::Read, Kind::Regroup, Kind::Scrub].map(of), [1.0; 3]);
        assert_eq!(costs.directories[&NO_DIRECTORY].requests, 2.0);
    }

    #[test]
    fn requests_belong_to_the_directory_of_the_operation_that_caused_them() {
        let mut costs = Costs::default();
        // The request ends first, and the operation in the next round.
        costs.take(&[record(Kind::DeviceRead, 1, 2, Some(Kind::Read), [0, 4096, 0])]);
        assert!(costs.operations.is_empty());
        costs.take(&[record(Kind::Read, 2, 0, None, [20, 0, 4096])]);
        assert_eq!(costs.unknown(10), [20]);
        costs.learn(&[20], &[(20, 7, "/a".into())]);
        let read = Cost { operations: 1.0, requests: 1.0, bytes: 4096.0, ns: 1000.0 };
        assert_eq!((costs.directories[&7], costs.operations[&Some(Kind::Read)]), (read, read));
        // What it does for nobody, or for somebody whose end is never seen.
        costs.take(&[record(Kind::DeviceWrite, 3, 0, None, [0, 512, 0])]);
        costs.take(&[record(Kind::DeviceWrite, 4, 99, Some(Kind::Create), [0, 512, 0])]);
        (0..ROUNDS).for_each(|_| costs.take(&[]));
        assert_eq!((costs.directories[&0].requests, costs.operations[&Some(Kind::Create)].requests), (2.0, 1.0));
        assert_eq!(costs.operations[&None].requests, 1.0);
        // The operation within another one is no operation of a program, and a later one needs no telling.
        costs.take(&[
            record(Kind::Sync, 5, 2, Some(Kind::Fsync), [0; 3]),
            record(Kind::Getattr, 6, 0, None, [20, 0, 0]),
        ]);
        assert_eq!((costs.directories[&7].operations, costs.operations.get(&Some(Kind::Sync))), (2.0, None));
    }

    #[test]
    fn work_for_many_is_divided_by_what_each_made_dirty_and_the_sums_are_those_of_the_device() {
        let mut costs = Costs::default();
        let (mut writeback, mut commit) = (Causes::default(), Causes::default());
        let mut records = Vec::new();
        let mut op = |kind, id: u64, inode, bytes: u64, causes: &mut Causes| {
            records.push(record(kind, id, 0, None, [inode, 0, bytes]));
            causes.add(Cause { span: id, origin: Some(kind) }, bytes);
        };
        // Two thousand reads that note a time, one long write, and forty files in four directories.
        (0..2000).for_each(|n| op(Kind::Read, 1000 + n, 50, 0, &mut writeback));
        op(Kind::Write, 100, 60, 60_000, &mut writeback);
        (0..40).for_each(|n| op(Kind::Write, 200 + n, 10 + n % 4, 1000, &mut writeback));
        op(Kind::Create, 101, 70, 300, &mut commit);
        let work = |kind, id, causes: &Causes| Record {
            causes: Some(Box::new(causes.clone())),
            ..record(kind, id, 0, None, [1, 0, 0])
        };
        // A commit is for the creation, and through the writeback for the others.
        commit.add(Cause { span: 5000, origin: Some(Kind::Write) }, 100);
        for n in 0..10 {
            records.push(record(Kind::DeviceWrite, 3000 + n, 5000, Some(Kind::Write), [0, 10_000, 0]));
            records.push(record(Kind::DeviceWrite, 4000 + n, 5001, Some(Kind::Fsync), [0, 1000, 0]));
        }
        records.push(record(Kind::DeviceRead, 4100, 101, Some(Kind::Create), [0, 512, 0]));
        costs.take(&records);
        assert!(costs.operations.values().all(|c| c.bytes < 513.0), "the writeback has not ended");
        costs.take(&[work(Kind::Writeback, 5000, &writeback), work(Kind::Commit, 5001, &commit)]);
        let asked = costs.unknown(100);
        let homes: Vec<_> = asked.iter().map(|i| (*i, *i, format!("/{i}"))).collect();
        costs.learn(&asked, &homes);
        let sum = |all: &mut dyn Iterator<Item = &Cost>| all.map(|c| c.bytes).sum::<f64>();
        let all = 100_000.0 + 10_000.0 + 512.0;
        for got in [sum(&mut costs.operations.values()), sum(&mut costs.directories.values())] {
            assert!((got - all).abs() < 1e-6, "{got}");
        }
        // The long write has 60% of the data, and of the log what the writeback has through which it came.
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-6, "{got}, not {want}");
        near(costs.directories[&60].bytes, 60_000.0 + 10_000.0 / 4.0 * 0.6);
        near(costs.directories[&70].bytes, 512.0 + 7500.0);
        near(costs.operations[&Some(Kind::Write)].bytes, 100_000.0 + 2500.0);
        near(costs.operations[&Some(Kind::Read)].bytes, 0.0);
        // Fifteen of the forty are named beside it; the others are nobody's, and not those fifteen's.
        near(costs.directories[&OTHERS].bytes, 25_000.0 + 2500.0 * 0.25);
        assert!(costs.waiting.is_empty() && costs.works.len() == 2);
        for n in 0..2 * WORKS_MAX as u64 {
            costs.take(&[work(Kind::Commit, 10_000 + n, &commit)]);
        }
        assert!(costs.works.len() <= WORKS_MAX && costs.works_order.len() <= WORKS_MAX);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut costs = Costs::default();
        for n in 0..3 * REMEMBERED as u64 {
            costs.take(&[record(Kind::Lookup, n + 1, 0, None, [n + 10, 0, 0])]);
            if n % 500 == 499 {
                let asked = costs.unknown(1000);
                let places: Vec<_> = asked.iter().map(|i| (*i, *i, format!("/{i}"))).collect();
                costs.learn(&asked, &places);
            }
        }
        assert!(costs.ended.len() <= REMEMBERED && costs.order.len() <= REMEMBERED);
        assert!(costs.directories.len() <= DIRECTORIES_MAX + 1000 && costs.homes.len() <= REMEMBERED + 1000);
    }
}
