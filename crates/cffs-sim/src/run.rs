//! Runs a sequence on engine and model side by side and compares everything that can be seen.

use crate::disk::Trace;
use crate::engine_driver::{EngineDriver, Reply};
use crate::model::{Body, Fail, Id, Inode, ROOT, Time};
use crate::model_driver::{Outcome, State};
use crate::ops::{self, Op};
use crate::setup::{Setup, check_unmounted};
use crate::walk::{read, remove_all, xattrs};
use cffs::{Attr, DirEntry, Error, FileType, Fs, Ino};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{SystemTime, UNIX_EPOCH};

/// Operations between comparisons of the whole tree.
const VERIFY_EVERY: usize = 25;
/// How far behind the engine's clock may be (it may be a coarse one), in nanoseconds.
const CLOCK_SLACK: i64 = 50_000_000;
/// Ranges up to this length are read in one piece, in bytes.
const READ_MAX: u64 = 1 << 20;

/// Where and how engine and model disagree.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Number of operations that had been applied.
    pub step: usize,
    /// The operation.
    pub op: Option<Op>,
    /// What differs.
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.op {
            Some(op) => write!(f, "operation {}, `{op}`: {}", self.step, self.text),
            None => write!(f, "after operation {}: {}", self.step, self.text),
        }
    }
}

/// Runs the sequence, compares all along, unmounts, checks, empties the file system and checks again.
pub fn run(setup: Setup, ops: &[Op]) -> Result<(), Failure> {
    let mut step = 0;
    let mut current = None;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut side = SideBySide::new(setup)?;
        for op in ops::expand_all(ops) {
            current = Some(op.clone());
            step += 1;
            side.apply(&op)?;
            if step % VERIFY_EVERY == 0 {
                current = None;
                side.verify()?;
            }
        }
        current = None;
        side.finish()
    }));
    let text = match outcome {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(text)) => text,
        Err(panic) => panic_text(&*panic),
    };
    Err(Failure { step, op: current, text })
}

/// The message of a panic.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
    format!("panic: {}", text.unwrap_or_default())
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64)
}

/// Engine and model, with what relates them.
pub struct SideBySide {
    /// The model's side.
    pub state: State,
    /// The engine's side.
    pub engine: EngineDriver,
    /// Inode numbers and generations of the model's files.
    pub inos: BTreeMap<Id, Ino>,
    generations: BTreeMap<Id, u32>,
    trace: Trace,
    setup: Setup,
    /// See [`in_use`].
    used_at_first: u64,
    /// When each step of the model's clock began and ended.
    clock: Vec<(i64, i64)>,
    seen_times: BTreeMap<(Id, bool), (Time, i64)>,
    /// Files whose contents nobody can tell since the device has failed.
    pub doubt: BTreeSet<Id>,
}

type Check<T = ()> = Result<T, String>;

fn ensure(holds: bool, text: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(text()) }
}

/// Whether an operation may change the contents of a file.
pub(crate) fn changes_contents(op: &Op) -> bool {
    matches!(op, Op::Write { .. } | Op::Fallocate { .. } | Op::Truncate { .. } | Op::Copy { .. })
}

/// Fragments in use, but for the headers of allocation groups, which become more when a file system grows.
fn in_use(fs: &Fs) -> u64 {
    let g = fs.geometry();
    let [total, free, reserved] = fs.stats().space;
    total - (free - reserved) - g.ag_count * g.ag_header_blocks() * g.frags_per_block()
}

impl SideBySide {
    /// Makes and mounts a file system.
    pub fn new(setup: Setup) -> Check<SideBySide> {
        let made = now();
        let trace = Trace::new(setup.make_new()?);
        SideBySide::on(setup, trace, made)
    }

    /// Mounts a file system that was made at some time.
    pub fn on(setup: Setup, trace: Trace, made: i64) -> Check<SideBySide> {
        let engine = EngineDriver::mount(setup, &trace).map_err(|e| format!("mount: {e}"))?;
        let used_at_first = in_use(&engine.fs);
        let root = engine.fs.getattr(cffs::ROOT_INO).map_err(|e| format!("getattr /: {e}"))?;
        let mut state = State::default();
        state.model.block_size = u64::from(setup.sizes.0);
        Ok(SideBySide {
            state,
            engine,
            inos: BTreeMap::from([(ROOT, root.ino)]),
            generations: BTreeMap::from([(ROOT, root.generation)]),
            trace,
            setup,
            used_at_first,
            clock: vec![(made, now())],
            seen_times: BTreeMap::new(),
            doubt: BTreeSet::new(),
        })
    }

    /// Inode number and generation of a file.
    pub fn identity(&self, id: Id) -> Option<(Ino, u32)> {
        Some((*self.inos.get(&id)?, *self.generations.get(&id)?))
    }

    /// Applies an operation to both and compares the answers.
    pub fn apply(&mut self, op: &Op) -> Check {
        self.attempt(op, None).map(drop)
    }

    /// The same where the device may fail. An error that `tolerated` accepts may come instead of the right answer; it is
    /// returned. Then the operation must have had no effect, but on contents: the file that it was to change is in doubt
    /// from then on, and no more is compared of it than what its contents do not decide.
    pub fn attempt(&mut self, op: &Op, tolerated: Option<&dyn Fn(&Error) -> bool>) -> Check<Option<Error>> {
        let before = (self.setup.may_fill || tolerated.is_some()).then(|| self.state.clone());
        let in_doubt = self.concerns_doubt(op);
        let began = now();
        let want = self.state.apply(op);
        if want == Ok(Outcome::Skipped) {
            self.clock.push((began, now()));
            return Ok(None);
        }
        let got = self.engine.apply(op);
        self.clock.push((began, now()));
        if let (Err(e), Some(tolerated)) = (&got, tolerated)
            && tolerated(e)
            && !matches!(&want, Err(Fail(any)) if any.iter().any(|a| a.raw_os_error() == e.errno()))
        {
            if changes_contents(op) {
                self.doubt.extend(self.state.written);
            }
            self.state = before.expect("kept where errors are tolerated");
            self.state.model.tick();
            return Ok(got.err());
        }
        if in_doubt {
            return Ok(None);
        }
        // The next call of a program reports the error when some of its bytes could be taken.
        let short = tolerated.is_some_and(|t| t(&Error::ReadOnly));
        let before = before.filter(|_| self.setup.may_fill || short);
        match (want, got) {
            (Ok(want), Ok(got)) => {
                if let (Outcome::Written(want), Reply::Written(got)) = (&want, &got)
                    && got < want
                    && *got > 0
                    && let Some(before) = before
                {
                    // Short for want of space.
                    self.state = before;
                    let mut short = op.clone();
                    match &mut short {
                        Op::Write { len, .. } => *len = *got,
                        Op::Copy { len, .. } => *len = *got as u64,
                        _ => {}
                    }
                    let _ = self.state.apply(&short);
                    return Ok(None);
                }
                self.compare(&want, got)?;
            }
            (Err(_), Err(Error::NoSpace)) if self.setup.may_fill => {}
            (Err(Fail(any)), Err(e)) => ensure(any.iter().any(|a| a.raw_os_error() == e.errno()), || {
                format!("failed with {e}, must be {any:?}")
            })?,
            (Ok(_), Err(Error::NoSpace)) if self.setup.may_fill => {
                // The operation must have had no effect; the clock has advanced for both.
                self.state = before.expect("just looked at");
                self.state.model.tick();
                let s = self.engine.fs.statfs();
                ensure(s.free < s.total / 2, || format!("no space, with {} of {} fragments free", s.free, s.total))?;
            }
            (Ok(_), Err(e)) => return Err(format!("failed with {e}, must succeed")),
            (Err(Fail(any)), Ok(got)) => return Err(format!("succeeded with {got:?}, must fail with {any:?}")),
        }
        Ok(None)
    }

    /// Whether what an operation answers depends on contents that are in doubt.
    fn concerns_doubt(&self, op: &Op) -> bool {
        let paths = match op {
            Op::Write { path, .. } | Op::Fallocate { path, .. } | Op::Truncate { path, .. } => vec![path],
            Op::Read { path, .. } | Op::Seek { path, .. } => vec![path],
            Op::Copy { from, to, .. } => vec![from, to],
            _ => vec![],
        };
        paths.into_iter().any(|p| matches!(self.state.resolve(p), Some(Ok(id)) if self.doubt.contains(&id)))
    }

    fn compare(&mut self, want: &Outcome, got: Reply) -> Check {
        match (want, got) {
            (Outcome::Done | Outcome::ListStart(_), Reply::Done) => Ok(()),
            (Outcome::File(id), Reply::File(attr)) => self.compare_attr(*id, &attr),
            (Outcome::Bytes(want), Reply::Bytes(got)) => compare_bytes(0, want, &got),
            (Outcome::Written(want), Reply::Written(got)) => {
                ensure(*want == got, || format!("wrote {got} bytes of {want}"))
            }
            (Outcome::Names(want), Reply::Names(got)) => self.compare_names(want, &got),
            (Outcome::Seek(id, from), Reply::Seek(data, hole)) => self.compare_seek(*id, *from, data, hole),
            (Outcome::ListRest(must, may), Reply::ListRest(got, before)) => {
                let mut rest = BTreeSet::new();
                for e in got {
                    let name = ops::code(&e.name);
                    ensure(must.contains(&e.name) || may.contains(&e.name), || format!("{name} is not there"))?;
                    let twice = must.contains(&e.name) && before.contains(&e.name);
                    ensure(!twice && rest.insert(e.name), || format!("{name} is listed twice"))?;
                }
                match must.iter().find(|n| !rest.contains(*n) && !before.contains(*n)) {
                    Some(lost) => Err(format!("{} is missing in the listing", ops::code(lost))),
                    None => Ok(()),
                }
            }
            (want, got) => Err(format!("answered {got:?}, must be {want:?}")),
        }
    }

    fn compare_seek(&self, id: Id, from: u64, data: Option<u64>, hole: Option<u64>) -> Check {
        let content = self.state.model.get(id).content().expect("skipped on other files");
        let size = content.size();
        let hole = hole.ok_or("no hole before the end of the file")?;
        ensure((from..=size).contains(&hole), || format!("hole at {hole} in a file of {size} bytes"))?;
        if hole < size {
            ensure(content.next_nonzero(hole) != Some(hole), || format!("data at {hole}, said to be a hole"))?;
        }
        let data = data.unwrap_or(size);
        ensure((from..=size).contains(&data), || format!("data at {data} in a file of {size} bytes"))?;
        let skipped = content.next_nonzero(from).filter(|at| *at < data);
        ensure(skipped.is_none(), || format!("data only from {data} on, there is some at {skipped:?}"))
    }

    fn compare_names(&mut self, want: &BTreeMap<Vec<u8>, Id>, got: &[DirEntry]) -> Check {
        let mut seen = BTreeSet::new();
        let mut cookies = BTreeSet::from([0]);
        for e in got {
            let name = ops::code(&e.name);
            ensure(seen.insert(&e.name), || format!("{name} is listed twice"))?;
            ensure(cookies.insert(e.cookie), || format!("{name} has cookie {} like another or 0", e.cookie))?;
            let Some(id) = want.get(&e.name) else {
                return Err(format!("{name} is listed and does not exist"));
            };
            let (ino, file_type) = (self.inos.get(id).copied(), self.state.model.get(*id).file_type);
            ensure(ino.is_none_or(|i| i == e.ino), || format!("{name} has inode {}, was {ino:?}", e.ino))?;
            ensure(file_type == e.file_type, || format!("{name} is a {:?}, must be a {file_type:?}", e.file_type))?;
            if let Some(attr) = &e.attr {
                self.compare_attr(*id, attr).map_err(|t| format!("{name}: {t}"))?;
            }
        }
        match want.keys().find(|n| !seen.contains(n)) {
            Some(lost) => Err(format!("{} is missing in the listing", ops::code(lost))),
            None => Ok(()),
        }
    }

    fn compare_attr(&mut self, id: Id, attr: &Attr) -> Check {
        let want = self.state.model.get(id).clone();
        let ino = *self.inos.entry(id).or_insert(attr.ino);
        ensure(ino == attr.ino, || format!("inode number {}, was {ino}", attr.ino))?;
        let generation = *self.generations.entry(id).or_insert(attr.generation);
        ensure(generation == attr.generation, || format!("generation {}, was {generation}", attr.generation))?;
        compare_field("type", want.file_type, attr.file_type)?;
        compare_field("permissions", want.perm, attr.perm)?;
        compare_field("link count", want.nlink, attr.nlink)?;
        compare_field("user", want.uid, attr.uid)?;
        compare_field("group", want.gid, attr.gid)?;
        compare_field("device number", want.rdev, attr.rdev)?;
        compare_field("flags", want.flags, attr.flags)?;
        if self.doubt.contains(&id) {
            return Ok(());
        }
        match &want.body {
            Body::File(c) => compare_field("size", c.size(), attr.size)?,
            Body::Symlink(target) => compare_field("size", target.len() as u64, attr.size)?,
            _ => {}
        }
        self.compare_time(id, true, &want, attr.mtime).map_err(|t| format!("modification time: {t}"))?;
        self.compare_time(id, false, &want, attr.ctime).map_err(|t| format!("change time: {t}"))
    }

    fn compare_time(&mut self, id: Id, is_mtime: bool, want: &Inode, got: i64) -> Check {
        let time = if is_mtime { want.mtime } else { want.ctime };
        let step = match time {
            Time::At(t) => return compare_field("nanoseconds", t, got),
            Time::Step(step) => step as usize,
        };
        let (from, to) = self.clock[step];
        ensure((from - CLOCK_SLACK..=to).contains(&got), || {
            format!("{got}, must be between {from} and {to} (of operation {step})")
        })?;
        match self.seen_times.insert((id, is_mtime), (time, got)) {
            Some((t, before)) if t == time && before != got => Err(format!("{got}, was {before} without a change")),
            _ => Ok(()),
        }
    }

    /// Compares the whole tree, the open files and the accounting.
    pub fn verify(&mut self) -> Check {
        let alive: Vec<Id> = self.state.model.inodes().map(|(id, _)| id).collect();
        self.verify_numbers(&alive)?;
        self.inos.retain(|id, _| alive.binary_search(id).is_ok());
        self.generations.retain(|id, _| alive.binary_search(id).is_ok());
        self.verify_dir(ROOT, cffs::ROOT_INO, cffs::ROOT_INO, "/")?;
        for slot in 0..ops::SLOTS {
            if let (Some(id), Some(ino)) = (self.state.slots[slot], self.engine.slots[slot]) {
                let attr = self.engine.fs.getattr(ino).map_err(|e| format!("getattr @{slot}: {e}"))?;
                self.compare_attr(id, &attr).map_err(|t| format!("@{slot}: {t}"))?;
                self.verify_xattrs(id, ino).map_err(|t| format!("@{slot}: {t}"))?;
                self.verify_content(id, ino).map_err(|t| format!("@{slot}: {t}"))?;
            }
        }
        let numbers: BTreeSet<Ino> = self.inos.values().copied().collect();
        ensure(numbers.len() == self.inos.len(), || "two files have one inode number".into())?;
        self.verify_quotas()?;
        self.engine.verify_requests()?;
        let s = self.engine.fs.statfs();
        ensure(s.free <= s.total && s.available <= s.free, || format!("statfs is impossible: {s:?}"))
    }

    /// Every living file is found by its number, as through a file handle, and none that is gone.
    fn verify_numbers(&self, alive: &[Id]) -> Check {
        let fs = &self.engine.fs;
        for (id, ino) in &self.inos {
            let found = match fs.reference(*ino) {
                Ok(attr) => {
                    fs.forget(*ino, 1);
                    Some((attr.ino, attr.generation))
                }
                Err(Error::Stale) => None,
                Err(e) => return Err(format!("inode {ino} by its number: {e}")),
            };
            let (lives, known) = (alive.binary_search(id).is_ok(), self.identity(*id));
            ensure((found == known) == lives, || format!("by number {found:?} for {known:?}, which lives: {lives}"))?;
        }
        Ok(())
    }

    /// Compares the inodes that quotas say everybody has. Their space is what only the check can add up.
    fn verify_quotas(&self) -> Check {
        for kind in self.engine.fs.quota_kinds() {
            let (mut least, mut most) = (BTreeMap::new(), BTreeMap::new());
            for (_, inode) in self.state.model.inodes() {
                let id = [inode.uid, inode.gid, 0][kind.index()];
                *least.entry(id).or_insert(0) += 1;
                *most.entry(id).or_insert(0) += 1;
            }
            for (uid, gid) in self.state.model.kept_directories() {
                *most.entry([uid, gid, 0][kind.index()]).or_insert(0) += 1;
            }
            let list = self.engine.fs.quota_list(kind).map_err(|e| format!("quotas: {e}"))?;
            let got: BTreeMap<u32, u64> = list.iter().filter(|q| q.inodes > 0).map(|q| (q.id, q.inodes)).collect();
            let ids: BTreeSet<&u32> = most.keys().chain(got.keys()).collect();
            let of = |m: &BTreeMap<u32, u64>, id: &u32| m.get(id).copied().unwrap_or(0);
            let good = ids.iter().all(|id| (of(&least, id)..=of(&most, id)).contains(&of(&got, id)));
            ensure(good, || format!("inodes by {} are {got:?}, must be {least:?} to {most:?}", kind.name()))?;
            let empty = list.iter().find(|q| q.inodes == 0 && q.bytes > 0);
            ensure(empty.is_none(), || format!("space without inodes: {empty:?}"))?;
        }
        Ok(())
    }

    fn verify_dir(&mut self, id: Id, ino: Ino, parent: Ino, path: &str) -> Check {
        let entries = self.state.model.get(id).entries().expect("a directory");
        let want: BTreeMap<Vec<u8>, Id> = entries.iter().map(|(n, e)| (n.clone(), e.id)).collect();
        let fs = self.engine.fs.clone();
        let above = fs.parent(ino).map_err(|e| format!("parent of {path}: {e}"))?;
        ensure(above == parent, || format!("{path}: parent is inode {above}, must be {parent}"))?;
        let listed = self.engine.list(ino, 0, true, usize::MAX).map_err(|e| format!("readdir {path}: {e}"))?;
        self.compare_names(&want, &listed).map_err(|t| format!("{path}: {t}"))?;
        for (name, below) in want {
            let path = format!("{}/{}", path.trim_end_matches('/'), ops::code(&name));
            let attr = fs.lookup(ino, &name).map_err(|e| format!("lookup {path}: {e}"))?;
            let held = crate::walk::Held::new(&fs, attr.ino);
            self.compare_attr(below, &attr).map_err(|t| format!("{path}: {t}"))?;
            self.verify_xattrs(below, held.ino).map_err(|t| format!("{path}: {t}"))?;
            match attr.file_type {
                FileType::Directory => self.verify_dir(below, held.ino, ino, &path)?,
                FileType::Symlink => {
                    let target = fs.readlink(held.ino).map_err(|e| format!("readlink {path}: {e}"))?;
                    let want = self.state.model.readlink(below).expect("a symbolic link");
                    compare_bytes(0, &want, &target).map_err(|t| format!("{path}: target: {t}"))?;
                }
                _ => self.verify_content(below, held.ino).map_err(|t| format!("{path}: {t}"))?,
            }
        }
        Ok(())
    }

    fn verify_xattrs(&self, id: Id, ino: Ino) -> Check {
        let (want, got) = (&self.state.model.get(id).xattrs, xattrs(&self.engine.fs, ino));
        let got = got.map_err(|e| format!("extended attributes: {e}"))?;
        let names: BTreeSet<&String> = want.keys().chain(got.keys()).collect();
        for name in names {
            match (want.get(name), got.get(name)) {
                (Some(want), Some(got)) => compare_bytes(0, want, got).map_err(|t| format!("{name}: {t}"))?,
                (Some(_), None) => return Err(format!("{name} is missing")),
                (None, _) => return Err(format!("{name} is there and must not be")),
            }
        }
        Ok(())
    }

    fn verify_content(&self, id: Id, ino: Ino) -> Check {
        let Some(content) = self.state.model.get(id).content().filter(|_| !self.doubt.contains(&id)) else {
            return Ok(());
        };
        let size = content.size();
        let mut ranges = if size <= READ_MAX { vec![(0, size)] } else { content.data_ranges() };
        // Beside the data, and the end.
        ranges.extend([(0, 1), (size.saturating_sub(5000), size.saturating_add(10))]);
        for (from, to) in ranges {
            let (mut from, to) = (from.saturating_sub(600), to.saturating_add(600));
            while from < to {
                let len = (to - from).min(READ_MAX) as usize;
                let mut want = vec![0; len];
                let n = content.read(from, &mut want);
                want.truncate(n);
                let got = read(&self.engine.fs, ino, from, len).map_err(|e| format!("read at {from}: {e}"))?;
                compare_bytes(from, &want, &got)?;
                from += len as u64;
            }
        }
        Ok(())
    }

    fn unmount_and_check(&mut self) -> Check {
        self.engine.forget_all();
        self.state.model.release_all();
        self.state.slots = [None; ops::SLOTS];
        self.engine.fs.close().map_err(|e| format!("unmount: {e}"))?;
        check_unmounted(&self.trace.images()).map_err(|t| format!("check after unmount: {t}"))
    }

    /// Unmounts, checks, mounts, compares, removes everything, checks again.
    pub fn finish(mut self) -> Check {
        self.verify()?;
        self.unmount_and_check()?;
        let again = |side: &mut SideBySide| {
            side.engine = EngineDriver::mount(side.setup, &side.trace).map_err(|e| format!("mount again: {e}"))?;
            Check::Ok(())
        };
        again(&mut self)?;
        self.verify().map_err(|t| format!("after unmount and mount: {t}"))?;
        if let Err(text) = remove_all(&self.engine.fs) {
            // While there are snapshots, also deleting takes space. Without them it never does.
            let deleted = self.engine.delete_snapshots().map_err(|e| format!("{text}; deleting the snapshots: {e}"))?;
            let full = self.setup.may_fill && text.ends_with(&Error::NoSpace.to_string());
            ensure(full && deleted, || text)?;
            remove_all(&self.engine.fs)?;
        }
        self.engine.fs.sync().map_err(|e| format!("sync: {e}"))?;
        self.state = State::default();
        self.unmount_and_check().map_err(|t| format!("emptied: {t}"))?;
        again(&mut self)?;
        let (used, first) = (in_use(&self.engine.fs), self.used_at_first);
        ensure(used == first, || format!("empty again, {used} fragments are in use, {first} were at first"))
    }
}

fn compare_field<T: PartialEq + fmt::Debug>(what: &str, want: T, got: T) -> Check {
    ensure(want == got, || format!("{what} {got:?}, must be {want:?}"))
}

/// Compares contents that begin at file offset `offset`.
fn compare_bytes(offset: u64, want: &[u8], got: &[u8]) -> Check {
    ensure(want.len() == got.len(), || format!("{} bytes read at {offset}, must be {}", got.len(), want.len()))?;
    if want == got {
        return Ok(());
    }
    let first = want.iter().zip(got).position(|(w, g)| w != g).expect("they differ");
    let last = want.iter().zip(got).rposition(|(w, g)| w != g).expect("there is a first");
    let zeros = |b: &[u8]| if b.iter().all(|b| *b == 0) { " (zeros)" } else { "" };
    let (w, g) = (&want[first..=last], &got[first..=last]);
    let at = offset + first as u64;
    Err(format!("bytes {at} to {} differ{}, must be others{}", offset + last as u64, zeros(g), zeros(w)))
}
