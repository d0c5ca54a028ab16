//! What a trace says of a workload: its operations, the tree that was there, and what was asked of the disk.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;

use anyhow::{Result, bail};
use cffs::ROOT_INO;
use cffs::trace::{Classes, Detail, Item, Kind, Listed, Listing, Reader, Record};
use serde::Serialize;
use serde_json::Value;

/// Bits of a mode that say the type, and that of a directory and of a regular file.
pub const S_IFMT: u32 = 0o170_000;
/// See [`S_IFMT`].
pub const S_IFDIR: u32 = 0o040_000;
/// See [`S_IFMT`].
pub const S_IFREG: u32 = 0o100_000;
/// See [`S_IFMT`].
pub const S_IFLNK: u32 = 0o120_000;

/// An operation of a program.
#[derive(Clone, Debug)]
pub struct Op {
    /// What it was.
    pub kind: Kind,
    /// Its arguments, as in the trace.
    pub args: [u64; 3],
    /// The rest.
    pub detail: Detail,
    /// When it began and ended, in nanoseconds from the beginning of the recording.
    pub start: u64,
    /// See `start`.
    pub end: u64,
    /// Its thread, as a number from 0 on.
    pub thread: usize,
}

/// Requests for one purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Requests {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of both.
    pub bytes: u64,
}

/// Requests by purpose.
pub type ByPurpose = BTreeMap<String, Requests>;

/// A workload.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// Operations, in the order in which they began.
    pub ops: Vec<Op>,
    /// What was there at the beginning.
    pub tree: StartTree,
    /// When the background thread wrote back and committed.
    pub background: Vec<u64>,
    /// When the readahead thread began each of its requests, and the operation that had asked for it, by position.
    pub ahead: Vec<(u64, Option<usize>)>,
    /// Requests that were recorded, by purpose, for what is repeated.
    pub recorded: ByPurpose,
    /// Those that were made for what no replay repeats (a regroup, a scrub, another mount on the disks and the like), by that.
    pub recorded_besides: BTreeMap<&'static str, Requests>,
    /// Nanoseconds of these requests.
    pub recorded_time: u64,
    /// Number of threads.
    pub threads: usize,
    /// Operations that no replay repeats (trim, quotas and the like), by kind.
    pub left_out: BTreeMap<&'static str, u64>,
    /// What the recorder noted of the file system.
    pub settings: Value,
    /// Spans that the recording lost.
    pub lost: u64,
}

/// Names at the beginning.
#[derive(Clone, Debug, Default)]
pub struct StartTree {
    /// Directories in the order in which they were listed, with what is in them.
    pub directories: Vec<(u64, Vec<Listed>)>,
    /// It was recorded; otherwise it has what the operations have looked up, and nothing beside it.
    pub is_whole: bool,
}

impl StartTree {
    /// Bytes of all files, as far as they have space.
    pub fn bytes(&self) -> u64 {
        let all = self.directories.iter().flat_map(|(_, entries)| entries);
        all.fold(0, |sum, e| sum.saturating_add(if e.size > 4096 { e.size.min(e.space) } else { e.size }))
    }

    /// All names with their directories, in the order in which a tree is unpacked: a directory, then what is in it.
    pub fn in_order(&self) -> Vec<(u64, &Listed)> {
        let listed: HashMap<u64, &[Listed]> = self.directories.iter().map(|(d, all)| (*d, all.as_slice())).collect();
        let mut seen = HashSet::from([ROOT_INO]);
        let mut all = Vec::new();
        let mut open = vec![(ROOT_INO, listed.get(&ROOT_INO).copied().unwrap_or_default().iter())];
        while let Some((directory, left)) = open.last_mut() {
            let Some(e) = left.next() else {
                open.pop();
                continue;
            };
            all.push((*directory, e));
            // A damaged trace may have a directory in itself.
            if e.mode & S_IFMT == S_IFDIR && seen.insert(e.inode) {
                open.push((e.inode, listed.get(&e.inode).copied().unwrap_or_default().iter()));
            }
        }
        all
    }
}

/// Operations that change nothing that a replay could repeat elsewhere.
fn is_left_out(kind: Kind) -> bool {
    matches!(kind, Kind::Mount | Kind::Unmount | Kind::Trim | Kind::Grow | Kind::Tune | Kind::Quota | Kind::Manage)
}

/// Whether its requests have no counterpart in a replay: those of such operations, and what a mount does besides for no operation that is repeated.
fn is_not_replayed(origin: Kind) -> bool {
    let besides = [Kind::Regroup, Kind::Scrub, Kind::Resync, Kind::Recover, Kind::OtherMount];
    is_left_out(origin) || besides.contains(&origin)
}

/// Most bytes of a read or a write. The kernel asks for a MiB, and a damaged trace for anything.
const MOVED_MAX: u64 = 64 << 20;

/// Most spans between an operation and what it has asked for.
const CHAIN_MAX: usize = 8;

/// Its third argument says how many bytes are to be in memory at once.
fn moves_bytes(kind: Kind) -> bool {
    matches!(kind, Kind::Read | Kind::Write)
}

impl Workload {
    /// Reads a trace.
    ///
    /// # Errors
    /// Those of the input; when it is no trace, or was recorded without what a replay needs.
    pub fn read(input: impl Read) -> Result<Workload> {
        let mut reader = Reader::new(input)?;
        let mut w = Workload::default();
        let mut records = Vec::new();
        let mut listed: HashMap<u64, usize> = HashMap::new();
        while let Some(item) = reader.next_item()? {
            match item {
                Item::Span(record) => records.push(record),
                Item::Listing(Listing { directory, entries, .. }) => {
                    w.tree.is_whole = true;
                    let next = w.tree.directories.len();
                    let at = *listed.entry(directory).or_insert(next);
                    if at == next {
                        w.tree.directories.push((directory, Vec::new()));
                    }
                    w.tree.directories[at].1.extend(entries);
                }
                Item::Lost { spans, .. } => w.lost = w.lost.saturating_add(spans),
                Item::Information(json) => {
                    let value: Value = serde_json::from_slice(&json).unwrap_or_default();
                    if value["when"] == "start" {
                        w.settings = value;
                    }
                }
                Item::Thread { .. } => {}
            }
        }
        w.take_records(records)?;
        if !w.tree.is_whole {
            w.tree.directories = looked_up(&w.ops);
        }
        Ok(w)
    }

    fn take_records(&mut self, mut records: Vec<Record>) -> Result<()> {
        records.sort_by_key(|r| (r.start, r.id));
        let first = records.first().map_or(0, |r| r.start);
        let mut threads: HashMap<u64, usize> = HashMap::new();
        let causes: HashMap<u64, u64> =
            records.iter().filter(|r| r.request().is_none()).map(|r| (r.id, r.cause.span)).collect();
        let mut positions: HashMap<u64, usize> = HashMap::new();
        for r in records {
            let (start, end) = (r.start - first, r.end() - first);
            if let Some(q) = r.request() {
                let besides = r.cause.origin.filter(|origin| is_not_replayed(*origin));
                let of = match besides {
                    Some(origin) => self.recorded_besides.entry(origin.name()).or_default(),
                    None => self.recorded.entry(q.purpose.name().to_owned()).or_default(),
                };
                let requests = match r.kind {
                    Kind::DeviceRead => Some(&mut of.reads),
                    Kind::DeviceWrite => Some(&mut of.writes),
                    _ => None,
                };
                if let Some(requests) = requests {
                    *requests += 1;
                    of.bytes = of.bytes.saturating_add(r.args[1]);
                }
                let time = if besides.is_some() { 0 } else { r.duration / q.batch };
                self.recorded_time = self.recorded_time.saturating_add(time);
            } else if r.kind == Kind::Background {
                self.background.push(start);
            } else if r.kind == Kind::Readahead {
                let above = std::iter::successors(Some(r.cause.span), |span| causes.get(span).copied());
                let op = above.take(CHAIN_MAX).find_map(|span| positions.get(&span).copied());
                self.ahead.push((start, op));
            } else if r.kind.class().meets(Classes::OP) && r.cause.origin.is_none() {
                let Some(detail) = r.detail.filter(|_| !is_left_out(r.kind)) else {
                    *self.left_out.entry(r.kind.name()).or_default() += 1;
                    continue;
                };
                let next = threads.len();
                let thread = *threads.entry(r.thread).or_insert(next);
                let mut args = r.args;
                if moves_bytes(r.kind) {
                    args[2] = args[2].min(MOVED_MAX);
                }
                positions.insert(r.id, self.ops.len());
                self.ops.push(Op { kind: r.kind, args, detail: *detail, start, end, thread });
            }
        }
        self.threads = threads.len();
        if self.ops.is_empty() {
            bail!("the trace has no operations that can be replayed: record it with `cffs trace --replay`");
        }
        Ok(())
    }

    /// Bytes of the longest read or write, 64 KiB (the longest attribute) at least.
    pub fn longest(&self) -> usize {
        let moved = self.ops.iter().filter(|op| moves_bytes(op.kind)).map(|op| op.args[2]);
        moved.max().unwrap_or(0).max(1 << 16) as usize
    }

    /// It was recorded on a mount, which has a thread that reads ahead; not with the engine alone.
    pub fn is_of_mount(&self) -> bool {
        self.settings["program"].is_string()
    }

    /// A setting of the file system that was recorded.
    pub fn setting(&self, name: &str) -> Option<u64> {
        self.settings["settings"][name].as_u64()
    }

    /// Reads, writes and bytes that were recorded.
    pub fn recorded_total(&self) -> Requests {
        total(&self.recorded)
    }
}

/// The sum of all purposes.
pub fn total(requests: &ByPurpose) -> Requests {
    requests.values().fold(Requests::default(), |a, r| Requests {
        reads: a.reads + r.reads,
        writes: a.writes + r.writes,
        bytes: a.bytes + r.bytes,
    })
}

/// What was there at the beginning as far as operations have found it: names that were looked up before anything of that inode was
/// made in the recording.
fn looked_up(ops: &[Op]) -> Vec<(u64, Vec<Listed>)> {
    let mut made: HashSet<u64> = HashSet::new();
    let mut order: Vec<u64> = vec![ROOT_INO];
    let mut found: HashMap<u64, Vec<Listed>> = HashMap::new();
    let mut names: HashSet<(u64, Vec<u8>)> = HashSet::new();
    for op in ops.iter().filter(|op| op.detail.errno == 0) {
        let (directory, inode) = (op.args[0], op.detail.inode);
        match op.kind {
            Kind::Create | Kind::Mkdir | Kind::Mknod | Kind::Symlink | Kind::Tmpfile => drop(made.insert(inode)),
            Kind::Lookup if !op.detail.name(0).is_empty() && !made.contains(&inode) => {
                let name = op.detail.name(0).to_vec();
                // A name that another one got by a rename is not that of the beginning; the first one is.
                if !names.insert((directory, name.clone())) || made.contains(&directory) {
                    continue;
                }
                let mode = op.detail.number(0) as u32;
                let size = op.detail.number(1);
                if mode & S_IFMT == S_IFDIR {
                    order.push(inode);
                }
                let entry = Listed { inode, mode, links: 1, size, space: size, name, ..Listed::default() };
                found.entry(directory).or_default().push(entry);
            }
            // What gets a name in the recording was not there under that name.
            Kind::Rename => drop(names.insert((op.args[1], op.detail.name(1).to_vec()))),
            Kind::Link => drop(names.insert((op.args[0], op.detail.name(0).to_vec()))),
            _ => {}
        }
    }
    order.into_iter().map(|inode| (inode, found.remove(&inode).unwrap_or_default())).collect()
}
