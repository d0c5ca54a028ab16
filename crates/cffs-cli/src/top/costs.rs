//! For whom the device works: requests and time by operation and by directory, out of the trace.

use cffs::trace::{Classes, Kind, Record};
use std::collections::{HashMap, HashSet, VecDeque};

/// Operations whose inode is remembered, for the work that is done for them later.
const REMEMBERED: usize = 100_000;
/// Directories that are told apart.
const DIRECTORIES_MAX: usize = 50_000;
/// Rounds that a request waits for the end of what has caused it.
const ROUNDS: u8 = 3;

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
    /// By operation.
    pub operations: HashMap<Kind, Cost>,
    /// By inode of a directory; 0: the log, checkpoints, and what nobody is known for.
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
    /// Requests whose cause has not ended, with the rounds that they have waited.
    waiting: Vec<(u64, Option<Kind>, Cost, u8)>,
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
                self.waiting.push((r.cause.span, r.cause.origin, cost, 0));
            } else if r.kind.class().meets(Classes::OP) {
                self.operation(r);
            }
        }
        // Work that was done for many: its requests are theirs.
        let many: HashMap<u64, &Record> =
            records.iter().filter(|r| r.causes.is_some() && r.kind == Kind::Writeback).map(|r| (r.id, r)).collect();
        for (span, origin, cost, rounds) in std::mem::take(&mut self.waiting) {
            if let Some(&(kind, inode)) = self.ended.get(&span) {
                self.charge(origin.unwrap_or(kind), &[inode], &cost);
            } else if let Some(causes) = many.get(&span).and_then(|r| r.causes.as_ref()) {
                let inodes: Vec<u64> =
                    causes.named().iter().filter_map(|span| self.ended.get(span).map(|(_, inode)| *inode)).collect();
                self.charge(
                    causes.counts().max_by_key(|(_, n)| *n).and_then(|(kind, _)| kind).unwrap_or(Kind::Sync),
                    &inodes,
                    &cost,
                );
            } else if rounds < ROUNDS && span != 0 {
                self.waiting.push((span, origin, cost, rounds + 1));
            } else {
                origin.into_iter().for_each(|kind| self.operations.entry(kind).or_default().add(&cost, 1.0));
                self.directories.entry(0).or_default().add(&cost, 1.0);
            }
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
            self.operations.entry(r.kind).or_default().add(&one, 1.0);
            self.place(inode, &one, 1.0);
        }
    }

    fn charge(&mut self, kind: Kind, inodes: &[u64], cost: &Cost) {
        self.operations.entry(kind).or_default().add(cost, 1.0);
        if inodes.is_empty() {
            self.directories.entry(0).or_default().add(cost, 1.0);
        }
        for inode in inodes {
            self.place(*inode, cost, 1.0 / inodes.len() as f64);
        }
    }

    fn place(&mut self, inode: u64, cost: &Cost, share: f64) {
        let of = match self.homes.get(&inode) {
            _ if inode == 0 => self.directories.entry(0).or_default(),
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
            let directory = self.homes.get(inode).copied().unwrap_or(0);
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
        let kept: HashSet<u64> = costs.into_iter().take(DIRECTORIES_MAX / 2).map(|(d, _)| d).collect();
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
    fn requests_belong_to_the_directory_of_the_operation_that_caused_them() {
        let mut costs = Costs::default();
        // The request ends first, and the operation in the next round.
        costs.take(&[record(Kind::DeviceRead, 1, 2, Some(Kind::Read), [0, 4096, 0])]);
        assert!(costs.operations.is_empty());
        costs.take(&[record(Kind::Read, 2, 0, None, [20, 0, 4096])]);
        assert_eq!(costs.unknown(10), [20]);
        costs.learn(&[20], &[(20, 7, "/a".into())]);
        let read = Cost { operations: 1.0, requests: 1.0, bytes: 4096.0, ns: 1000.0 };
        assert_eq!((costs.directories[&7], costs.operations[&Kind::Read]), (read, read));
        // What it does for nobody, or for somebody whose end is never seen.
        costs.take(&[record(Kind::DeviceWrite, 3, 0, None, [0, 512, 0])]);
        costs.take(&[record(Kind::DeviceWrite, 4, 99, Some(Kind::Create), [0, 512, 0])]);
        (0..ROUNDS).for_each(|_| costs.take(&[]));
        assert_eq!((costs.directories[&0].requests, costs.operations[&Kind::Create].requests), (2.0, 1.0));
        // The operation within another one is no operation of a program, and a later one needs no telling.
        costs.take(&[
            record(Kind::Sync, 5, 2, Some(Kind::Fsync), [0; 3]),
            record(Kind::Getattr, 6, 0, None, [20, 0, 0]),
        ]);
        assert_eq!((costs.directories[&7].operations, costs.operations.get(&Kind::Sync)), (2.0, None));
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
