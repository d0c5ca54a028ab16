//! Crashes at every moment of a sequence, in every way a device may lose or tear what was not flushed, and in recovery.
//!
//! What must hold after each of them:
//!
//! - the file system mounts, and is clean when checked after that;
//! - its namespace is one that the model had, at some operation between the last promise (a completed sync, fsync or
//!   unmount) and the crash;
//! - a file for which a promise was made has its contents and modification time of then, or later ones; a file that a
//!   rename put over another one has at least its contents of the rename;
//! - no file shows bytes that were never its own. (Zeros may show where a later version was shorter: what is cut off is
//!   overwritten with zeros up to the end of its fragment, and that may reach the device before the new size does.)

use crate::disk::{CrashStates, Event, Image, Survival, Trace};
use crate::model::{Content, Id, Namespace, Time};
use crate::model_driver::State;
use crate::ops::{self, Op};
use crate::run::{SideBySide, panic_text};
use crate::setup::{Setup, check, check_unmounted};
use crate::volume::{self, VolumeLayout};
use crate::walk::{Found, read, resolve, walk};
use cffs::{Attr, Caller, Fallocate, FileType, Fs, Ino};
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Points of the sequence to crash at, at most.
    pub points: usize,
    /// Ways to lose writes at each point.
    pub survivals: usize,
    /// Crashes within the recovery from each crash, at most.
    pub in_recovery: usize,
}

impl Effort {
    /// More crashes at each point: a shrunk sequence has fewer events, and the random choices fall elsewhere.
    pub fn for_a_short_sequence(self) -> Effort {
        Effort { points: self.points * 2, survivals: self.survivals + 4, ..self }
    }
}

impl Default for Effort {
    fn default() -> Self {
        Effort { points: 60, survivals: 2, in_recovery: 1 }
    }
}

/// What a campaign has covered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coverage {
    /// Crash states that were recovered and compared.
    pub states: u64,
    /// Of them, crashes within recovery.
    pub in_recovery: u64,
    /// Promises that were checked.
    pub promises: u64,
}

impl Coverage {
    /// Adds what somebody else has covered.
    pub fn add(&mut self, other: Coverage) {
        self.states += other.states;
        self.in_recovery += other.in_recovery;
        self.promises += other.promises;
    }
}

/// A crash after which something does not hold.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Writes and flushes before the crash.
    pub event: usize,
    /// The operation during or after which it happened.
    pub op: Option<Box<(usize, Op)>>,
    /// What survived.
    pub survival: Option<Survival>,
    /// Writes and flushes of the recovery before a second crash.
    pub second: Option<(usize, Survival)>,
    /// What is wrong.
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(survival) = self.survival {
            write!(f, "crash after event {} ({survival:?} of the undecided writes survive)", self.event)?;
        }
        if let Some((i, op)) = self.op.as_deref() {
            write!(f, " in operation {i}, `{op}`")?;
        }
        if let Some((event, survival)) = self.second {
            write!(f, ", and again after event {event} of the recovery ({survival:?})")?;
        }
        write!(f, ": {}", self.text)
    }
}

/// Something that must survive.
struct Promise {
    /// Events before it was given.
    event: usize,
    /// Operations after which the namespace must be at least.
    prefix: usize,
    /// Operations up to which contents count.
    op: usize,
    /// Files whose contents are promised; `None` for all.
    files: Option<BTreeSet<Id>>,
    /// Modification time, where one file was promised with all its attributes.
    mtime: Option<i64>,
}

/// A run of the sequence, with what is needed to judge what a crash leaves of it.
pub(crate) struct History {
    setup: Setup,
    pub(crate) before: Vec<Image>,
    pub(crate) events: Vec<Event>,
    pub(crate) ops: Vec<Op>,
    /// Events before each operation.
    pub(crate) starts: Vec<usize>,
    /// Digest of the namespace after so many operations.
    digests: Vec<u64>,
    ids: BTreeMap<(Ino, u32), Id>,
    /// Contents of each file: (operations applied, contents), in order.
    contents: BTreeMap<Id, Vec<(usize, Content)>>,
    promises: Vec<Promise>,
    /// Operations that changed a file's times: (operations applied), in order.
    touched: BTreeMap<Id, Vec<usize>>,
    /// Operations that a crash may leave half done: (operations applied), in order.
    in_steps: BTreeMap<Id, Vec<usize>>,
    /// Renames of one regular file over another: (operations applied, file).
    replacements: Vec<(usize, Id)>,
    /// Files of which an operation on their contents failed, and the first of their versions that may show since.
    doubt: BTreeMap<Id, usize>,
    /// Namespaces in memory when an operation had failed only after it was done: it was to be durable at once.
    perhaps: Vec<Perhaps>,
    /// Operations that were done when the device lost a write without saying so: of what was made later nothing is said.
    blind_since: Option<usize>,
    /// Files of which nothing can be said any more: what was in doubt was moved.
    pub(crate) unknown: BTreeSet<Id>,
}

/// A namespace that an operation has made which then failed.
struct Perhaps {
    /// With number 0 for what was made: nobody was told the numbers.
    digest: u64,
    /// Numbers that were known before.
    known: BTreeSet<Ino>,
}

impl History {
    /// Runs a sequence on a new file system and on the model.
    pub(crate) fn record(setup: Setup, ops: &[Op]) -> Result<History, String> {
        let before = setup.make()?;
        let trace = Trace::new(before.clone());
        let mut side = SideBySide::on(setup, trace.clone(), 0)?;
        let mut h = History::begin(setup, before, &side, trace.len());
        for op in ops::expand_all(ops) {
            h.starts.push(trace.len());
            let replaced = replacement(&side, &op);
            side.apply(&op).map_err(|t| format!("without any crash, `{op}`: {t}"))?;
            h.done(&mut side, op, replaced, trace.len());
        }
        h.events = trace.events();
        Ok(h)
    }

    /// Before the first operation: what mkfs has made was promised.
    pub(crate) fn begin(setup: Setup, before: Vec<Image>, side: &SideBySide, events: usize) -> History {
        History {
            setup,
            before,
            events: Vec::new(),
            ops: Vec::new(),
            starts: Vec::new(),
            digests: vec![side.state.namespace(&side.inos).digest()],
            ids: BTreeMap::new(),
            contents: BTreeMap::new(),
            promises: vec![Promise { event: events, prefix: 0, op: 0, files: None, mtime: None }],
            touched: BTreeMap::new(),
            in_steps: BTreeMap::new(),
            replacements: Vec::new(),
            doubt: BTreeMap::new(),
            perhaps: Vec::new(),
            blind_since: None,
            unknown: BTreeSet::new(),
        }
    }

    /// An operation has succeeded; `replaced` is what [`replacement`] said before.
    pub(crate) fn done(&mut self, side: &mut SideBySide, op: Op, replaced: Option<Id>, events: usize) {
        let done = self.ops.len() + 1;
        self.note(side, &op, done, events);
        if let Some(id) = replaced.filter(|id| side.state.model.find(*id).is_some_and(|i| i.changed == done as u64)) {
            self.replacements.push((done, id));
        }
        self.ops.push(op);
    }

    /// An operation has failed because the device did. It has no effect, but perhaps on the contents of a file: those
    /// that it was to have.
    pub(crate) fn failed(&mut self, side: &SideBySide, op: Op, contents: Option<(Id, Content)>) {
        let done = self.ops.len() + 1;
        if let Some((id, content)) = contents {
            let versions = self.contents.entry(id).or_default();
            self.doubt.entry(id).or_insert(versions.len().saturating_sub(1));
            versions.push((done, content));
            self.touched.entry(id).or_default().push(done);
        }
        self.digests.push(side.state.namespace(&side.inos).digest());
        self.ops.push(op);
    }

    /// After [`History::failed`], where the operation was to be durable when it returns (`FS_SYNC_FL`, `FS_DIRSYNC_FL`) and
    /// that is what failed: all of it may be found too. `after` is the model with it.
    pub(crate) fn failed_when_done(&mut self, side: &SideBySide, after: &State) {
        let known: BTreeSet<Ino> = side.inos.values().copied().collect();
        // What is not in memory cannot be walked through any more if the device is gone.
        let walked = crate::walk::walk(&side.engine.fs).ok().map(|found| found.namespace);
        let mut inos = side.inos.clone();
        for (id, _) in after.model.inodes() {
            inos.entry(id).or_insert(0);
        }
        for namespace in walked.into_iter().chain([after.namespace(&inos)]) {
            self.perhaps.push(Perhaps { digest: namespace.with_numbers(&known).digest(), known: known.clone() });
        }
    }

    /// The device has lost a write without saying so, or will during the next operation.
    pub(crate) fn blind_from_here(&mut self) {
        self.blind_since.get_or_insert(self.ops.len());
    }

    /// Whether a file was made when the device had lost a write already, or an operation since then names its path: numbers
    /// may have been given twice, and one file taken for another.
    pub(crate) fn made_blindly(&self, path: &[u8], ino: Ino, generation: u32) -> bool {
        let named = self.ops.iter().skip(self.blind_since.unwrap_or(usize::MAX)).any(|op| {
            let op = op.to_string();
            let paths = op.split(' ').filter(|w| w.len() > 1 && w.starts_with('/')).map(str::as_bytes);
            paths.into_iter().any(|p| path.starts_with(p) || p.starts_with(path))
        });
        if named {
            return true;
        }
        let made = self.ids.get(&(ino, generation)).and_then(|id| self.contents.get(id)?.first());
        matches!((self.blind_since, made), (Some(since), Some((op, _))) if *op > since)
    }

    /// An operation after which nothing is compared any more.
    pub(crate) fn stopped(&mut self, op: Op) {
        self.digests.push(*self.digests.last().expect("there is one before the first operation"));
        self.ops.push(op);
    }

    /// An unmount has succeeded.
    pub(crate) fn unmounted(&mut self, events: usize) {
        let done = self.ops.len();
        self.promises.push(Promise { event: events, prefix: done, op: done, files: None, mtime: None });
    }

    /// Notes what an operation has changed and promised.
    fn note(&mut self, side: &mut SideBySide, op: &Op, done: usize, events: usize) {
        let state = &side.state;
        if let Some(id) = state.written {
            if let Some(key) = side.identity(id) {
                self.ids.insert(key, id);
            }
            if let Some(content) = state.model.find(id).and_then(|i| i.content()) {
                let steps = match op {
                    Op::Copy { .. } => true,
                    Op::Fallocate { what, .. } => matches!(what, Fallocate::Collapse | Fallocate::Insert),
                    _ => false,
                };
                if steps {
                    self.in_steps.entry(id).or_default().push(done);
                }
                let versions = self.contents.entry(id).or_default();
                if versions.last().is_none_or(|(_, last)| last != content) {
                    versions.push((done, content.clone()));
                }
            }
        }
        for (id, i) in state.model.inodes() {
            if i.changed == done as u64 || i.mtime == Time::Step(done as u64) {
                self.touched.entry(id).or_default().push(done);
            }
        }
        let prefix = match op {
            Op::Sync | Op::Remount { .. } => Some(done),
            // An fsync promises what happened to the file and its names, and with it (operations become durable in
            // order) what happened before that.
            Op::Fsync { .. } => state.synced.first().map(|id| state.model.get(*id).changed as usize),
            Op::Fdatasync { .. } => state.synced.first().map(|_| 0),
            _ => None,
        };
        if let Some(prefix) = prefix {
            let all = matches!(op, Op::Sync | Op::Remount { .. });
            let files = (!all).then(|| state.synced.iter().copied().collect());
            let mtime = match op {
                Op::Fsync { path } => side.engine.attr(path).ok().map(|a| a.mtime),
                _ => None,
            };
            self.promises.push(Promise { event: events, prefix, op: done, files, mtime });
        }
        self.digests.push(state.namespace(&side.inos).digest());
    }

    /// The namespaces after each operation of a range, by running the model again.
    fn namespaces(&self, range: std::ops::RangeInclusive<usize>) -> Vec<(usize, Namespace)> {
        let inos: BTreeMap<Id, Ino> = self.ids.iter().map(|((ino, _), id)| (*id, *ino)).collect();
        let mut state = State::default();
        let mut out = Vec::new();
        for done in 0..=self.ops.len() {
            if range.contains(&done) {
                let mut inos = inos.clone();
                // What was never made on the device.
                for (id, _) in state.model.inodes() {
                    inos.entry(id).or_insert(0);
                }
                inos.insert(crate::model::ROOT, cffs::ROOT_INO);
                out.push((done, state.namespace(&inos)));
            }
            if let Some(op) = self.ops.get(done) {
                let _ = state.apply(op);
            }
        }
        out
    }

    /// Compares what was found after a crash at `event` with what is allowed.
    fn judge(&self, event: usize, fs: &Fs, found: &Found, coverage: &mut Coverage) -> Result<(), String> {
        let given: Vec<&Promise> = self.promises.iter().filter(|p| p.event <= event).collect();
        coverage.promises += given.len() as u64;
        let low = given.iter().map(|p| p.prefix).max().unwrap_or(0);
        // Operations that had begun.
        let high = self.starts.partition_point(|s| *s < event);
        let digest = found.namespace.digest();
        let done = (low..=high.max(low)).find(|p| self.digests[*p] == digest);
        let is_it = |p: &Perhaps| found.namespace.clone().with_numbers(&p.known).digest() == p.digest;
        let perhaps = (done.is_none() && self.perhaps.iter().any(is_it)).then_some(high.max(low));
        let Some(prefix) = done.or(perhaps) else {
            return Err(self.explain(low, high.max(low), &found.namespace));
        };
        for (ino, (attr, path)) in &found.files {
            if done.is_none() && !self.ids.contains_key(&(*ino, attr.generation)) {
                continue; // made by the operation that failed
            }
            self.judge_file(event, prefix, fs, *ino, attr)
                .map_err(|t| format!("{} (inode {ino}): {t}", String::from_utf8_lossy(path)))?;
        }
        Ok(())
    }

    /// Compares a file, in a namespace as of so many operations, with what is allowed.
    pub(crate) fn judge_file(&self, event: usize, prefix: usize, fs: &Fs, ino: Ino, attr: &Attr) -> Result<(), String> {
        let given: Vec<&Promise> = self.promises.iter().filter(|p| p.event <= event).collect();
        let high = self.starts.partition_point(|s| *s < event);
        // A repair gives another number to the second of two.
        let renumbered =
            || self.ids.iter().find(|((_, generation), _)| *generation == attr.generation).map(|(_, id)| id);
        let Some(id) = self.ids.get(&(ino, attr.generation)).or_else(renumbered) else {
            return Err(format!("generation {} was never made", attr.generation));
        };
        if self.unknown.contains(id) {
            return Ok(());
        }
        let newest = given.iter().rev().find(|p| p.files.as_ref().is_some_and(|f| f.contains(id)));
        if let Some(Promise { op, mtime: Some(mtime), .. }) = newest
            && !self.touched[id].iter().any(|t| (*op + 1..=high).contains(t))
            && *mtime != attr.mtime
        {
            return Err(format!("modification time {}, was {mtime} at the fsync", attr.mtime));
        }
        let promised = given.iter().filter(|p| p.files.as_ref().is_none_or(|f| f.contains(id))).map(|p| p.op);
        let renamed = self.replacements.iter().filter(|(op, r)| r == id && *op <= prefix).map(|(op, _)| *op);
        let at_least = promised.chain(renamed).max().unwrap_or(0);
        self.judge_content(*id, at_least, high, fs, ino, attr.size)
    }

    fn judge_content(&self, id: Id, low: usize, high: usize, fs: &Fs, ino: Ino, size: u64) -> Result<(), String> {
        // A bit that is flipped in a generation makes it that of a directory.
        let Some(all) = self.contents.get(&id) else { return Err("it has the generation of what is no file".into()) };
        let doubt = self.doubt.get(&id);
        let first = all.partition_point(|(op, _)| *op <= low).saturating_sub(1).min(doubt.map_or(usize::MAX, |d| *d));
        let end = all.partition_point(|(op, _)| *op <= high.max(low)).max(first + 1);
        let versions: Vec<&Content> = all[first..end].iter().map(|(_, c)| c).collect();
        // Half of a copy, or of a range taken out or put in: a size between, and zeros where something moved away.
        let half = self.in_steps.get(&id).is_some_and(|s| s.iter().any(|op| (low + 1..=high).contains(op)));
        let steps = half || doubt.is_some();
        let most = versions.iter().map(|v| v.size()).max().unwrap_or(0);
        if !(versions.iter().any(|v| v.size() == size) || steps && size <= most) {
            let sizes: Vec<u64> = versions.iter().map(|v| v.size()).collect();
            return Err(format!("{size} bytes long, must be one of {sizes:?}"));
        }
        let mut ranges: Vec<(u64, u64)> = vec![(0, size.min(1 << 16)), (size.saturating_sub(1 << 14), size)];
        ranges.extend(versions.iter().flat_map(|v| v.data_ranges()));
        ranges.sort_unstable();
        let mut done = 0;
        for (from, to) in ranges {
            let (mut from, to) = (from.max(done), to.min(size));
            while from < to {
                let len = (to - from).min(1 << 18) as usize;
                let got = read(fs, ino, from, len).map_err(|e| format!("read at {from}: {e}"))?;
                if got.len() != len {
                    return Err(format!("{} bytes read at {from}, must be {len}", got.len()));
                }
                own_bytes(&versions, from, &got, steps)?;
                from += len as u64;
            }
            done = done.max(to);
        }
        Ok(())
    }

    fn explain(&self, low: usize, high: usize, found: &Namespace) -> String {
        let mut best: Option<(usize, Vec<String>)> = None;
        for (done, namespace) in self.namespaces(low..=high) {
            let difference = namespace.difference(found);
            if best.as_ref().is_none_or(|(_, b)| difference.len() < b.len()) {
                best = Some((done, difference));
            }
        }
        let (done, mut lines) = best.unwrap_or_default();
        lines.truncate(12);
        format!(
            "the namespace is none of those after {low} to {high} operations; closest is that after {done} (must be | is):\n  {}",
            lines.join("\n  ")
        )
    }
}

/// The regular file that a rename puts over another one, if that is what the operation does.
pub(crate) fn replacement(side: &SideBySide, op: &Op) -> Option<Id> {
    let Op::Rename { from, to, flags } = op else {
        return None;
    };
    if flags.exchange || flags.no_replace {
        return None;
    }
    let file = |path| match side.state.resolve(path) {
        Some(Ok(id)) if side.state.model.get(id).file_type == FileType::Regular => Some(id),
        _ => None,
    };
    file(to).and(file(from))
}

/// Checks that every byte is one that a version had at its place, or zero where `zeros` may come up.
fn own_bytes(versions: &[&Content], offset: u64, got: &[u8], zeros: bool) -> Result<(), String> {
    let mut foreign: Vec<bool> = got.iter().map(|b| !zeros || *b != 0).collect();
    let mut left = foreign.iter().filter(|f| **f).count();
    let mut was = vec![0; got.len()];
    for (nth, v) in versions.iter().enumerate().rev() {
        let n = v.read(offset, &mut was);
        for i in 0..n {
            if foreign[i] && was[i] == got[i] {
                foreign[i] = false;
                left -= 1;
            }
        }
        let beyond = if nth > 0 { n..got.len() } else { 0..0 };
        for i in beyond {
            if foreign[i] && got[i] == 0 {
                foreign[i] = false;
                left -= 1;
            }
        }
        if left == 0 {
            return Ok(());
        }
    }
    let first = foreign.iter().position(|f| *f).unwrap_or_default();
    let last = foreign.iter().rposition(|f| *f).unwrap_or_default();
    let zeros = if got[first..=last].iter().all(|b| *b == 0) { " (zeros)" } else { "" };
    Err(format!(
        "bytes {} to {}{zeros}: {left} of them were never there ({} versions allowed)",
        offset + first as u64,
        offset + last as u64,
        versions.len()
    ))
}

/// Mounts what a crash has left, compares, uses, unmounts and checks. Returns what the mount itself has written.
pub(crate) fn recover(
    h: &History,
    event: usize,
    images: Vec<Image>,
    use_it: bool,
    coverage: &mut Coverage,
) -> Result<Vec<Event>, String> {
    // Whatever was gone is there again.
    let setup = Setup { volume: h.setup.volume.map(VolumeLayout::whole), ..h.setup };
    check(&images).map_err(|t| format!("check before recovery: {t}"))?;
    let trace = Trace::new(images);
    coverage.states += 1;
    if use_it {
        let fs = setup.mount_read_only(&trace).map_err(|e| format!("mount read-only: {e}"))?;
        let found = walk(&fs)?;
        h.judge(event, &fs, &found, coverage).map_err(|t| format!("read-only: {t}"))?;
        fs.close().map_err(|e| format!("unmount after reading only: {e}"))?;
        if !trace.is_empty() {
            return Err("a read-only mount has written".into());
        }
    }
    let fs = setup.mount(&trace).map_err(|e| format!("mount: {e}"))?;
    let events = trace.events();
    let found = walk(&fs)?;
    h.judge(event, &fs, &found, coverage)?;
    if use_it {
        use_again(&fs, &found)?;
    }
    fs.close().map_err(|e| format!("unmount after recovery: {e}"))?;
    drop(fs);
    check_unmounted(&trace.images()).map_err(|t| format!("check after recovery: {t}"))?;
    if let Some(layout) = setup.volume
        && volume::bring_together(&trace, layout, setup.discard, use_it && event.is_multiple_of(4))?
    {
        for member in 0..layout.members {
            let alone = volume::alone(&trace.images(), member);
            check_unmounted(&alone).map_err(|t| format!("member {member} alone: {t}"))?;
        }
    }
    Ok(events)
}

/// Mounts what a crash has left on one member of a mirror, and compares: each that counts itself in sync has everything. The others are lost.
pub(crate) fn recover_alone(
    h: &History,
    event: usize,
    images: &[Image],
    coverage: &mut Coverage,
) -> Result<(), String> {
    if h.setup.volume.is_none() {
        return Ok(());
    }
    for member in volume::complete_members(&Trace::new(images.to_vec())) {
        let at = |text: String| format!("member {member} alone: {text}");
        let setup =
            Setup { volume: h.setup.volume.map(|v| VolumeLayout { only: Some(member), ..v.whole() }), ..h.setup };
        let trace = Trace::new(volume::alone(images, member));
        coverage.states += 1;
        let fs = setup.mount(&trace).map_err(|e| at(format!("mount: {e}")))?;
        let found = walk(&fs).map_err(at)?;
        h.judge(event, &fs, &found, coverage).map_err(at)?;
        fs.close().map_err(|e| at(format!("unmount: {e}")))?;
        drop(fs);
        check_unmounted(&trace.images()).map_err(|t| at(format!("check: {t}")))?;
    }
    Ok(())
}

/// The operations of a sequence, each with its writes and flushes, which have the numbers that a [`Failure`] names.
///
/// # Errors
/// What goes wrong without any crash.
pub fn list_events(setup: Setup, ops: &[Op]) -> Result<String, String> {
    let h = History::record(setup, ops)?;
    let mut text = String::from("mount\n");
    let mut next = 0;
    for (n, event) in h.events.iter().enumerate() {
        let first = next;
        next += h.starts[first..].iter().take_while(|start| **start <= n).count();
        (first..next).for_each(|i| text += &format!("operation {i}: {}\n", h.ops[i]));
        text += &format!("  event {}: {event}\n", n + 1);
    }
    (next..h.ops.len()).for_each(|i| text += &format!("operation {i}: {}\n", h.ops[i]));
    Ok(text)
}

/// New files after recovery must not come in anybody's way: the check that follows sees doubly used space.
pub(crate) fn use_again(fs: &Fs, found: &Found) -> Result<(), String> {
    let fail = |what: &str, e: cffs::Error| format!("after recovery, {what}: {e}");
    let dir = found.dirs.last().map_or(&b"/"[..], |d| d);
    let dir = resolve(fs, dir).map_err(|e| fail("resolve", e))?;
    fs.set_flags(Caller::ROOT, dir.ino, 0).map_err(|e| fail("set_flags", e))?;
    for i in 0..5 {
        let name = format!("after-recovery-{i}");
        let file = fs.create(Caller::ROOT, dir.ino, name.as_bytes(), 0o600).map_err(|e| fail("create", e))?;
        let data = crate::pattern::bytes(u64::MAX - i, 0, 3000 * i as usize);
        fs.write(Caller::ROOT, file.ino, 0, &data).map_err(|e| fail("write", e))?;
        fs.forget(file.ino, 1);
    }
    fs.sync().map_err(|e| fail("sync", e))?;
    for (ino, (before, path)) in &found.files {
        let held = resolve(fs, path).map_err(|e| fail("resolve", e))?;
        let now = fs.getattr(held.ino).map_err(|e| fail("getattr", e))?;
        let same = held.ino == *ino && now.size == before.size;
        if !same {
            return Err(format!("after recovery, {} changed by itself", String::from_utf8_lossy(path)));
        }
    }
    Ok(())
}

pub(crate) fn guarded<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| Err(panic_text(&*panic)))
}

/// Runs the sequence once and crashes it in many ways.
pub fn explore(setup: Setup, ops: &[Op], seed: u64, effort: Effort, coverage: &mut Coverage) -> Result<(), Failure> {
    explore_after(setup, ops, 0, seed, effort, coverage)
}

/// The same, with crashes only behind the first `base` operations (those that stand for many counted one by one).
pub fn explore_after(
    setup: Setup,
    ops: &[Op],
    base: usize,
    seed: u64,
    effort: Effort,
    coverage: &mut Coverage,
) -> Result<(), Failure> {
    let h = guarded(|| History::record(setup, ops));
    let h = h.map_err(|text| Failure { event: 0, op: None, survival: None, second: None, text })?;
    let mut rng = Rng::with_seed(seed);
    let mut states = CrashStates::new(h.before.clone(), &h.events);
    let from = if base == 0 { 0 } else { h.starts.get(base).copied().unwrap_or(h.events.len()) };
    for event in points(&h, from, effort.points, &mut rng) {
        states.advance(event);
        let op = h.starts.partition_point(|s| *s < event).checked_sub(1).map(|i| Box::new((i, h.ops[i].clone())));
        let failure =
            |survival, second, text| Failure { event, op: op.clone(), survival: Some(survival), second, text };
        let ways = if states.undecided() == 0 { 1 } else { effort.survivals };
        for _ in 0..ways {
            let survival = Survival::EVERY[rng.usize(..Survival::EVERY.len())];
            let images = states.crash(survival, &mut rng);
            let use_it = rng.u8(..4) == 0;
            let recovery = guarded(|| recover(&h, event, images.clone(), use_it, coverage))
                .map_err(|text| failure(survival, None, text))?;
            guarded(|| recover_alone(&h, event, &images, coverage)).map_err(|text| failure(survival, None, text))?;
            for _ in 0..effort.in_recovery.min(recovery.len()) {
                let mut again = CrashStates::new(images.clone(), &recovery);
                let at = rng.usize(..=recovery.len());
                again.advance(at);
                let second = Survival::EVERY[rng.usize(..Survival::EVERY.len())];
                let images = again.crash(second, &mut rng);
                coverage.in_recovery += 1;
                guarded(|| recover(&h, event, images.clone(), false, coverage))
                    .and_then(|_| guarded(|| recover_alone(&h, event, &images, coverage)))
                    .map_err(|text| failure(survival, Some((at, second)), text))?;
            }
        }
    }
    Ok(())
}

/// Where to crash, not before `from`: around every flush, and between them, as far as the number allows.
fn points(h: &History, from: usize, most: usize, rng: &mut Rng) -> Vec<usize> {
    let n = h.events.len();
    // A mount that has not ended promises nothing; the last mkfs is durable.
    let all: BTreeSet<usize> = if n - from < most {
        (from..=n).collect()
    } else {
        let flushes: Vec<usize> = (from..n).filter(|i| matches!(h.events[*i], Event::Flush { .. })).collect();
        let mut chosen = BTreeSet::from([n]);
        let mut candidates: Vec<usize> = flushes.iter().flat_map(|f| [*f, *f + 1]).collect();
        rng.shuffle(&mut candidates);
        chosen.extend(candidates.into_iter().take(most * 2 / 3));
        while chosen.len() < most {
            chosen.insert(rng.usize(from..=n));
        }
        chosen
    };
    all.into_iter().collect()
}

/// Explores, and on failure looks for the smallest sequence that fails.
pub fn explore_and_shrink(
    setup: Setup,
    ops: Vec<Op>,
    seed: u64,
    effort: Effort,
    coverage: &mut Coverage,
) -> Result<(), Box<(Vec<Op>, Failure)>> {
    let Err(first) = explore(setup, &ops, seed, effort, coverage) else {
        return Ok(());
    };
    // Said now: to look for a smaller sequence takes long, and may never fail again.
    eprintln!("seed {seed}, before it is made small: {first}");
    let closer = effort.for_a_short_sequence();
    let mut last = first;
    let mut ignored = Coverage::default();
    let smallest = crate::shrink::shrink(ops::expand_all(&ops), 400, |ops| {
        match explore(setup, ops, seed, closer, &mut ignored) {
            Ok(()) => false,
            Err(f) => {
                last = f;
                true
            }
        }
    });
    Err(Box::new((smallest, last)))
}
