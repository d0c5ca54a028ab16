//! Several threads against the reference model: is there an order in which the model gives the answers they got?
//!
//! Each call notes when it began and ended. A history is *linearizable* (Herlihy and Wing, 1990) if the calls can be put in
//! an order that no two of them contradict, of which one had ended before the other began, and in which each answers as
//! the model does. The search is that of Wing and Gong: it takes any call that nobody waits for, and goes back when the
//! model answers otherwise.
//!
//! All threads work on the same few objects: two names in each of two directories, and two open files.

use crate::model::{Fail, Id, ROOT};
use crate::model_driver::{Outcome, State};
use crate::ops::{Op, Path, RegroupHow};
use crate::pattern;
use crate::walk::read;
use cffs::device::{Device, MemoryDevice};
use cffs::{
    Attr, Caller, Fs, Ino, MkfsOptions, MountOptions, ROOT_INO, Regroup, RegroupOutcome, RenameFlags, Result, SetAttr,
    SetXattr, mkfs,
};
use fastrand::Rng;
use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most calls of a history.
pub const CALLS_MAX: usize = 64;

/// What the engine answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    Done,
    /// A file: inode number and generation.
    File(Ino, u32),
    /// Contents.
    Bytes(Vec<u8>),
    /// So many bytes were written.
    Written(usize),
    /// An error, by its number.
    Error(i32),
}

/// A call of a thread.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who called.
    pub thread: usize,
    /// What for.
    pub op: Op,
    /// Ticks of the common clock when it began and when it had ended.
    pub time: (u64, u64),
    /// What came of it.
    pub answer: Answer,
}

/// A mounted file system with the objects that the threads share.
pub struct Stage {
    /// The file system.
    pub fs: Arc<Fs>,
    /// What it is on.
    pub device: Arc<MemoryDevice>,
    dir: Ino,
    files: [Ino; 2],
    clock: AtomicU64,
    start: State,
    known: BTreeMap<Id, (Ino, u32)>,
    forgetful: bool,
}

fn start_ops() -> Vec<Op> {
    crate::ops::parse(
        "mkdir /d 755 0\ncreate /f 644 0\ncreate /d/g 644 0\nwrite /f 0 700 1\nwrite /d/g 0 5000 2\nopen 0 /f\nopen 1 /d/g",
    )
    .expect("these are operations")
}

impl Stage {
    /// A new file system on a device in memory. Without `embed` inodes stand outside the directories. With `forgetful`, each
    /// thread, after each of its calls, lets leave memory what can be read again, inodes that others use among it.
    pub fn new(embed: bool, forgetful: bool) -> Result<Stage> {
        let device = Arc::new(MemoryDevice::new(8 << 20));
        let options = MkfsOptions::default().no_embed(!embed).log_bytes(Some(2 << 20));
        mkfs(&*device, None, &options)?;
        let options = MountOptions::default().background(false).cache_bytes(1 << 20);
        let fs = Fs::open(device.clone() as Arc<dyn Device>, None, options)?;
        let dir = fs.mkdir(Caller::ROOT, ROOT_INO, b"d", 0o755)?;
        let f = fs.create(Caller::ROOT, ROOT_INO, b"f", 0o644)?;
        let g = fs.create(Caller::ROOT, dir.ino, b"g", 0o644)?;
        fs.write(Caller::ROOT, f.ino, 0, &pattern::bytes(1, 0, 700))?;
        fs.write(Caller::ROOT, g.ino, 0, &pattern::bytes(2, 0, 5000))?;
        let mut start = State::default();
        let mut known = BTreeMap::from([(ROOT, (ROOT_INO, 0))]);
        let mut made = [dir, f, g].into_iter();
        for op in start_ops() {
            match start.apply(&op) {
                Ok(Outcome::File(id)) if !known.contains_key(&id) => {
                    known.extend(made.next().map(|a| (id, (a.ino, a.generation))));
                }
                Ok(_) => {}
                Err(e) => panic!("{op} must succeed: {e:?}"),
            }
        }
        let (dir, files) = (dir.ino, [f.ino, g.ino]);
        if forgetful {
            // What has something to write stays.
            fs.sync()?;
            fs.drop_caches();
        }
        Ok(Stage { fs, device, dir, files, clock: AtomicU64::new(0), start, known, forgetful })
    }

    /// Performs an operation and notes what came of it.
    pub fn call(&self, thread: usize, op: &Op) -> Call {
        let began = self.clock.fetch_add(1, Ordering::SeqCst);
        let answer = self.perform(op).unwrap_or_else(|e| Answer::Error(e.errno()));
        let ended = self.clock.fetch_add(1, Ordering::SeqCst);
        if self.forgetful {
            self.fs.drop_caches();
        }
        Call { thread, op: op.clone(), time: (began, ended), answer }
    }

    /// Gives the open files back and unmounts, after all threads have ended. A file without a name is there until then, and not
    /// longer.
    pub fn finish(&self) -> std::result::Result<(), String> {
        for (n, ino) in self.files.into_iter().enumerate() {
            let attr = self.fs.getattr(ino).map_err(|e| format!("open file {n} is gone: {e}"))?;
            self.fs.forget(ino, 1);
            if (attr.nlink > 0) != self.fs.getattr(ino).is_ok() {
                return Err(format!("open file {n} with {} names, after it was given back", attr.nlink));
            }
        }
        self.fs.close().map_err(|e| format!("unmount: {e}"))
    }

    fn place(&self, path: &Path) -> (Ino, Vec<u8>) {
        let mut names = path.names();
        let name = names.pop().expect("a name");
        (if names.is_empty() { ROOT_INO } else { self.dir }, name)
    }

    fn file(&self, path: &Path) -> Ino {
        self.files[path.base().expect("an open file")]
    }

    fn found(&self, attr: Attr) -> Answer {
        self.fs.forget(attr.ino, 1);
        Answer::File(attr.ino, attr.generation)
    }

    fn perform(&self, op: &Op) -> Result<Answer> {
        let (fs, root) = (&self.fs, Caller::ROOT);
        let of = |attr: Attr| Answer::File(attr.ino, attr.generation);
        Ok(match op {
            Op::Create { path, perm, .. } => {
                let (dir, name) = self.place(path);
                self.found(fs.create(root, dir, &name, *perm)?)
            }
            Op::Mkdir { path, perm, .. } => {
                let (dir, name) = self.place(path);
                self.found(fs.mkdir(root, dir, &name, *perm)?)
            }
            Op::Lookup { path } => {
                let (dir, name) = self.place(path);
                self.found(fs.lookup(dir, &name)?)
            }
            Op::Link { from, to } => {
                let (dir, name) = self.place(to);
                self.found(fs.link(root, self.file(from), dir, &name)?)
            }
            Op::Unlink { path } => {
                let (dir, name) = self.place(path);
                fs.unlink(dir, &name)?;
                Answer::Done
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.place(path);
                fs.rmdir(dir, &name)?;
                Answer::Done
            }
            Op::Rename { from, to, flags } => {
                let ((from_dir, from), (to_dir, to)) = (self.place(from), self.place(to));
                fs.rename(root, from_dir, &from, to_dir, &to, *flags)?;
                Answer::Done
            }
            Op::Write { path, offset, len, tag } => {
                let data = pattern::bytes(*tag, *offset, *len);
                Answer::Written(fs.write(root, self.file(path), *offset, &data)?)
            }
            Op::Read { path, offset, len } => Answer::Bytes(read(fs, self.file(path), *offset, *len)?),
            Op::Truncate { path, size } => {
                of(fs.setattr(root, self.file(path), SetAttr::default().size(Some(*size)))?)
            }
            Op::SetXattr { path, name, len, tag } => {
                let value = pattern::bytes(*tag, 0, *len);
                fs.setxattr(root, self.file(path), name.as_bytes(), &value, SetXattr::default())?;
                of(fs.getattr(self.file(path))?)
            }
            Op::Fsync { path } => {
                fs.fsync(self.file(path), false)?;
                Answer::Done
            }
            Op::Sync => {
                fs.sync()?;
                Answer::Done
            }
            Op::Regroup { how, .. } => {
                let handle = Regroup::new();
                fs.regroup(&how.options(ROOT_INO), &handle)?;
                match handle.status().outcome {
                    Some(RegroupOutcome::Complete) => Answer::Done,
                    other => panic!("regroup: {other:?}"),
                }
            }
            other => panic!("{other} is not for threads"),
        })
    }

    /// Looks for an order of the calls that the model agrees with.
    pub fn check(&self, mut calls: Vec<Call>) -> std::result::Result<(), String> {
        assert!(calls.len() <= CALLS_MAX, "{} calls", calls.len());
        calls.sort_by_key(|c| c.time.0);
        let mut search = Search { calls: &calls, seen: HashSet::new(), longest: 0 };
        if search.from(0, &self.start, &self.known) {
            return Ok(());
        }
        let lines: Vec<String> = calls
            .iter()
            .map(|c| {
                format!(
                    "\n  {:>3} to {:>3}, thread {}: `{}` answered {}",
                    c.time.0,
                    c.time.1,
                    c.thread,
                    c.op,
                    brief(&c.answer)
                )
            })
            .collect();
        Err(format!(
            "no order explains these answers; {} of {} calls can be put in one:{}",
            search.longest,
            calls.len(),
            lines.concat()
        ))
    }
}

fn brief(answer: &Answer) -> String {
    match answer {
        Answer::Bytes(b) => format!("{} bytes, {:x?}...", b.len(), &b[..b.len().min(8)]),
        other => format!("{other:?}"),
    }
}

struct Search<'a> {
    calls: &'a [Call],
    /// Calls that were done, and the state then, from which nothing leads on.
    seen: HashSet<(u64, u64)>,
    longest: u32,
}

impl Search<'_> {
    fn from(&mut self, done: u64, state: &State, known: &BTreeMap<Id, (Ino, u32)>) -> bool {
        self.longest = self.longest.max(done.count_ones());
        if done.count_ones() as usize == self.calls.len() {
            return true;
        }
        if !self.seen.insert((done, digest(state, known))) {
            return false;
        }
        let open = |i: &usize| done >> i & 1 == 0;
        let first_end = (0..self.calls.len()).filter(open).map(|i| self.calls[i].time.1).min().unwrap_or(u64::MAX);
        for i in (0..self.calls.len()).filter(open) {
            let call = &self.calls[i];
            if call.time.0 > first_end {
                break;
            }
            let (mut state, mut known) = (state.clone(), known.clone());
            if agrees(&mut state, &mut known, call) && self.from(done | 1 << i, &state, &known) {
                return true;
            }
        }
        false
    }
}

/// Applies a call to the model; whether the answer is its answer.
fn agrees(state: &mut State, known: &mut BTreeMap<Id, (Ino, u32)>, call: &Call) -> bool {
    match (state.apply(&call.op), &call.answer) {
        (Err(Fail(any)), Answer::Error(e)) => any.iter().any(|a| a.raw_os_error() == *e),
        (Ok(Outcome::Done), Answer::Done) => true,
        (Ok(Outcome::File(id)), Answer::File(ino, generation)) => {
            *known.entry(id).or_insert((*ino, *generation)) == (*ino, *generation)
        }
        (Ok(Outcome::Bytes(want)), Answer::Bytes(got)) => want == *got,
        (Ok(Outcome::Written(want)), Answer::Written(got)) => want == *got,
        _ => false,
    }
}

fn digest(state: &State, known: &BTreeMap<Id, (Ino, u32)>) -> u64 {
    let mut h = DefaultHasher::new();
    for (id, inode) in state.model.inodes() {
        (known.get(&id), inode.nlink).hash(&mut h);
        for (name, entry) in inode.entries().into_iter().flatten() {
            (name, known.get(&entry.id)).hash(&mut h);
        }
        if let Some(content) = inode.content() {
            let mut bytes = vec![0; content.size().min(1 << 16) as usize];
            content.read(0, &mut bytes);
            (content.size(), bytes).hash(&mut h);
        }
    }
    h.finish()
}

/// What each of some threads is to do.
pub fn plan(seed: u64, threads: usize, calls: usize) -> Vec<Vec<Op>> {
    let mut rng = Rng::with_seed(seed);
    let mut tag = seed << 8;
    let mut one = |rng: &mut Rng| {
        let name = |rng: &mut Rng| Path::new(["/a", "/b", "/d/a", "/d/b", "/f", "/d/g"][rng.usize(..6)]);
        let file = Path::new(["@0", "@1"][rng.usize(..2)]);
        tag += 1;
        let at = [0, 0, 300, 4096, 4000][rng.usize(..5)];
        match rng.u8(..20) {
            0..=2 => Op::Create { path: name(rng), perm: 0o644, uid: 0 },
            3 => Op::Mkdir { path: name(rng), perm: 0o755, uid: 0 },
            4..=5 => Op::Unlink { path: name(rng) },
            6 => Op::Rmdir { path: name(rng) },
            7..=9 => {
                let flags = RenameFlags { no_replace: rng.u8(..4) == 0, exchange: false };
                let flags = if rng.u8(..4) == 0 { RenameFlags { no_replace: false, exchange: true } } else { flags };
                Op::Rename { from: name(rng), to: name(rng), flags }
            }
            10 => Op::Link { from: file, to: name(rng) },
            11..=12 => Op::Lookup { path: name(rng) },
            13..=14 => Op::Write { path: file, offset: at, len: [1, 600, 5000][rng.usize(..3)], tag },
            15 => Op::Truncate { path: file, size: [0, 100, 4500][rng.usize(..3)] },
            16..=17 => Op::Read { path: file, offset: 0, len: 10_000 },
            18 => Op::Fsync { path: file },
            _ => match rng.u8(..4) {
                0 => Op::Sync,
                1 => Op::SetXattr { path: file, name: "user.x".into(), len: 30, tag },
                _ => Op::Regroup { path: Path::new("/"), how: RegroupHow::ALL[rng.usize(..RegroupHow::ALL.len())] },
            },
        }
    };
    (0..threads).map(|_| (0..calls).map(|_| one(&mut rng)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(thread: usize, op: &str, time: (u64, u64), answer: Answer) -> Call {
        Call { thread, op: op.parse().unwrap(), time, answer }
    }

    #[test]
    fn what_no_order_explains_is_found() {
        let stage = Stage::new(true, false).unwrap();
        let exists = rustix::io::Errno::EXIST.raw_os_error();
        let twice = |second| {
            vec![
                call(0, "create /a 644 0", (0, 5), Answer::File(100, 1)),
                call(1, "create /a 644 0", (1, 4), second),
                call(0, "lookup /a", (6, 7), Answer::File(100, 1)),
            ]
        };
        assert!(stage.check(twice(Answer::Error(exists))).is_ok());
        assert!(stage.check(twice(Answer::File(101, 1))).is_err(), "both cannot have made it");
        let stale = vec![
            call(0, "truncate @0 0", (0, 1), Answer::File(stage.files[0], stage.known[&3].1)),
            call(1, "read @0 0 10000", (2, 3), Answer::Bytes(pattern::bytes(1, 0, 700))),
        ];
        assert!(stage.check(stale.clone()).is_err(), "the read began after the truncation had ended");
        let mut overlapping = stale;
        overlapping[1].time = (0, 3);
        assert!(stage.check(overlapping).is_ok());
    }

    #[test]
    fn threads_get_answers_that_an_order_explains() {
        for seed in 0..200 {
            let stage = Stage::new(seed % 2 == 0, seed % 3 == 0).unwrap();
            let calls: Vec<Call> = std::thread::scope(|s| {
                let threads: Vec<_> = plan(seed, 4, 8)
                    .into_iter()
                    .enumerate()
                    .map(|(n, ops)| {
                        let stage = &stage;
                        s.spawn(move || ops.iter().map(|op| stage.call(n, op)).collect::<Vec<_>>())
                    })
                    .collect();
                threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
            });
            stage.check(calls).and_then(|()| stage.finish()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
    }
}
