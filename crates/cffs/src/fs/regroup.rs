//! Regrouping a mounted file system: what has come apart is brought back together.

use super::rate_limit::{RateLimit, wait_until};
use super::{Fs, MetadataMode, now};
use crate::error::{Error, Result};
use crate::format::{Ino, ROOT_INO};
use crate::learning::Chains;
use crate::relocate::{self, COST_PARTS, Control, Gaps, Limits, MoveCtx, Progress};
use crate::trace::Kind;
use cffs_device::Purpose;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A regroup that yields rests so many times as long as it has worked.
const YIELD_FACTOR: u32 = 9;
/// Where others go first, each of its requests waits at most so long for theirs.
const GIVE_WAY: Duration = Duration::from_millis(20);
/// How long it sleeps while a commit is under way.
const COMMIT_NAP: Duration = Duration::from_micros(500);
/// A reader is taken to have so many bytes in memory of what it has read, and not more than this part of the cache: others use it too.
const READER_BYTES_MAX: u64 = 16 << 20;
const READER_DIVISOR: u64 = 2;
/// How often it asks whether it may go on.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// Settings of a regroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RegroupOptions {
    /// The directories to bring together, with all that is below them. None: the whole file system.
    #[serde(default)]
    pub directories: Vec<Ino>,
    /// Most bytes to move. `None`: no limit.
    pub budget: Option<u64>,
    /// Most bytes to read and write per second, at least one. `None`: no limit.
    pub rate: Option<u64>,
    /// Nothing is moved: only what would be gained is found out.
    #[serde(default)]
    pub dry_run: bool,
    /// Not the small files and directories are brought together, but each file longer than a group that lies in many pieces.
    #[serde(default)]
    pub large: bool,
    /// Not files are brought together, but free space: a tenth of the device in the fewest free runs. With [`RegroupOptions::large`]
    /// that comes first, and large files go into those runs. It is done for the whole file system only.
    #[serde(default)]
    pub free_space: bool,
    /// Everything is moved, whatever it saves: for tests of the move itself.
    #[doc(hidden)]
    #[serde(default)]
    pub always: bool,
}

setters!(RegroupOptions {
    directories: Vec<Ino>,
    budget: Option<u64>,
    rate: Option<u64>,
    dry_run: bool,
    large: bool,
    free_space: bool,
    always: bool,
});

/// How a regroup ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RegroupOutcome {
    /// Everything was looked at, or the budget was used.
    Complete,
    /// It was stopped, or the file system was unmounted.
    Stopped,
    /// It failed.
    Failed(String),
}

/// Requests that reading takes, estimated from where things lie: before a regroup, and with what it has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RegroupGain {
    /// Before.
    pub before: f64,
    /// After.
    pub after: f64,
}

/// A number before a regroup, and with what it has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegroupChange<T = u64> {
    /// Before.
    pub before: T,
    /// After.
    pub after: T,
}

/// How free space lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeRuns {
    /// Bytes of the longest free run.
    pub longest: u64,
    /// Free runs that a file of a tenth of the device needs. 0: there is no space for one.
    pub for_tenth: u64,
}

/// Progress and result of a regroup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RegroupStatus {
    /// Directories that were looked at.
    pub directories: u64,
    /// Files that were looked at.
    pub files: u64,
    /// Number of inodes of the file system.
    pub inodes_total: u64,
    /// Files that were moved.
    pub files_moved: u64,
    /// Directory blocks that were moved.
    pub blocks_moved: u64,
    /// Bytes that were moved; in a dry run, that would be.
    pub bytes_moved: u64,
    /// Bytes that were to be moved and stayed where they are, because they changed meanwhile, were damaged, or had no block for
    /// what maps them.
    pub bytes_kept: u64,
    /// Bytes that should be elsewhere, where no place is free that is so much better. (What stands in the way of free space is not
    /// among them.)
    #[serde(default)]
    pub bytes_waiting: u64,
    /// Requests to read all small files, in the order of the name space.
    pub read: RegroupGain,
    /// Requests to read all names and inodes.
    pub walk: RegroupGain,
    /// Pieces that files longer than a group lie in, if those were brought together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pieces: Option<RegroupChange>,
    /// How free space lies, if that was brought together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_runs: Option<RegroupChange<FreeRuns>>,
    /// Seconds since the beginning.
    pub seconds: f64,
    /// Nothing was moved: the numbers tell what would be.
    #[serde(default)]
    pub dry_run: bool,
    /// How it ended; `None` while it runs.
    pub outcome: Option<RegroupOutcome>,
}

/// A handle to observe and stop a regroup, from any thread.
#[derive(Debug, Default)]
pub struct Regroup {
    stop: AtomicBool,
    status: Mutex<RegroupStatus>,
}

impl Regroup {
    /// A regroup that has not begun.
    pub fn new() -> Regroup {
        Regroup::default()
    }

    /// Asks the regroup to stop. What was moved stays moved.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// The present status.
    pub fn status(&self) -> RegroupStatus {
        self.status.lock().clone()
    }

    /// It has ended without a result, as after a panic.
    pub fn fail(&self, why: String) {
        self.status.lock().outcome.get_or_insert(RegroupOutcome::Failed(why));
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.status.lock().outcome.is_some()
    }
}

/// A regroup that gives way.
struct Yields<'a> {
    may: &'a dyn Fn() -> bool,
    /// When that was asked last.
    asked: Mutex<Option<Instant>>,
    /// Since when it has worked.
    since: Mutex<Instant>,
}

impl Yields<'_> {
    fn may_go_on(&self) -> bool {
        let mut asked = self.asked.lock();
        if asked.is_some_and(|at| at.elapsed() < ASK_INTERVAL) {
            return true;
        }
        *asked = Some(Instant::now());
        (self.may)()
    }
}

/// A regroup that runs.
pub(super) struct Running<'a> {
    fs: &'a Fs,
    handle: &'a Regroup,
    limit: RateLimit,
    yields: Option<Yields<'a>>,
    began: Instant,
}

impl<'a> Running<'a> {
    pub(super) fn new(fs: &'a Fs, handle: &'a Regroup, rate: Option<u64>) -> Running<'a> {
        Running { fs, handle, limit: RateLimit::new(rate), yields: None, began: Instant::now() }
    }

    /// It works for a small part of the time while somebody uses the file system, and only as long as it may.
    pub(super) fn yielding(self, may: &'a dyn Fn() -> bool) -> Running<'a> {
        let now = Instant::now();
        Running { yields: Some(Yields { may, asked: Mutex::new(None), since: Mutex::new(now) }), ..self }
    }

    fn yield_to_programs(&self) {
        let Some(yields) = &self.yields else { return };
        if self.fs.was_used() {
            let worked = yields.since.lock().elapsed();
            wait_until(Instant::now() + worked * YIELD_FACTOR, || self.stopped());
        }
        *yields.since.lock() = Instant::now();
    }

    /// Notes how it ended.
    pub(super) fn end(&self, outcome: &Result<()>) {
        let mut status = self.handle.status.lock();
        status.seconds = self.began.elapsed().as_secs_f64();
        status.outcome = Some(match outcome {
            Ok(()) => RegroupOutcome::Complete,
            Err(_) if self.stopped() => RegroupOutcome::Stopped,
            // A thin device can be full although the file system is not.
            Err(e) if e.errno() == Error::NoSpace.errno() => RegroupOutcome::Failed(Error::NoSpace.to_string()),
            Err(e) => RegroupOutcome::Failed(e.to_string()),
        });
        tracing::info!("regroup: {} bytes moved: {:?}", status.bytes_moved, status.outcome);
    }

    pub(super) fn stopped(&self) -> bool {
        if self.yields.as_ref().is_some_and(|y| !y.may_go_on()) {
            self.handle.stop();
        }
        self.handle.stop.load(Ordering::Acquire)
            || self.fs.closed.load(Ordering::Acquire)
            || self.fs.journal.check_not_shut_down().is_err()
    }
}

impl Control for Running<'_> {
    fn check(&self) -> Result<()> {
        if self.stopped() {
            return Err(io::Error::from(io::ErrorKind::Interrupted).into());
        }
        self.yield_to_programs();
        self.give_way();
        Ok(())
    }

    fn pace(&self, bytes: u64) {
        self.limit.wait(bytes, || self.stopped());
    }

    fn give_way(&self) {
        if !self.gives_way() {
            return;
        }
        let until = Instant::now() + GIVE_WAY;
        // Between its requests a commit has none on its way, and a flush waits for ours.
        while self.fs.journal.is_committing() && Instant::now() < until {
            std::thread::sleep(COMMIT_NAP);
        }
        self.fs.dev.wait_for_others(until.saturating_duration_since(Instant::now()));
    }

    fn gives_way(&self) -> bool {
        self.yields.is_some() || self.limit.is_some()
    }

    fn most_at_once(&self) -> u64 {
        // What moves is read, and written.
        if self.limit.is_some() { self.limit.burst() / 2 } else { u64::MAX }
    }

    fn report(&self, p: &Progress) {
        let mut status = self.handle.status.lock();
        let requests = |parts: u64| parts as f64 / COST_PARTS as f64;
        let gain = |kind: usize| RegroupGain { before: requests(p.before[kind]), after: requests(p.after[kind]) };
        (status.directories, status.files) = (p.directories, p.files);
        (status.files_moved, status.blocks_moved) = (p.files_moved, p.blocks_moved);
        (status.bytes_moved, status.bytes_kept) = (p.bytes_moved, p.bytes_kept);
        status.bytes_waiting = p.bytes_waiting;
        (status.read, status.walk) = (gain(0), gain(1));
        let free_runs =
            |r: relocate::FreeRuns| FreeRuns { longest: r.longest << self.fs.geo.frag_shift, for_tenth: r.for_tenth };
        status.free_runs =
            p.free_runs.map(|[before, after]| RegroupChange { before: free_runs(before), after: free_runs(after) });
        status.pieces = p.pieces.map(|[before, after]| RegroupChange { before, after });
        status.seconds = self.began.elapsed().as_secs_f64();
        status.inodes_total = self.fs.space.counters().inodes;
    }
}

/// Moves what the options ask for.
fn move_all(
    cx: &MoveCtx<'_>,
    roots: &[Ino],
    options: &RegroupOptions,
    limits: Limits,
    control: &dyn Control,
) -> Result<()> {
    if !options.large && !options.free_space {
        return relocate::run(cx, roots, limits, control);
    }
    let mut progress = Progress::default();
    if options.free_space {
        relocate::bring_free_space_together(cx, limits, Gaps::InOrder, control, &mut progress)?;
    }
    if options.large {
        relocate::bring_large_files_together(cx, roots, limits, control, &mut progress)?;
    }
    Ok(())
}

impl Fs {
    /// Whether [`Fs::regroup`] would begin with these options: for those who run it in a thread of its own and have to say at
    /// once what is wrong.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a rate of zero, for directories whose free space is to be brought together, or in a metadata mode other than [`MetadataMode::Journal`], where a crash could
    /// leave a half of a move; [`Error::ReadOnly`]; [`Error::NotDir`] and [`Error::Stale`] for what is no directory; an error
    /// after [`Fs::shutdown`].
    pub fn check_regroup(&self, options: &RegroupOptions) -> Result<()> {
        self.journal.check_not_shut_down()?;
        if options.rate == Some(0) {
            return Error::invalid("a rate of 0 bytes in a second: nothing would ever be moved");
        }
        if self.opts.metadata != MetadataMode::Journal {
            return Error::invalid("a regroup needs metadata=journal, because a crash could leave a half of a move");
        }
        if options.free_space && !options.directories.is_empty() {
            return Error::invalid(
                "free space belongs to no directory: name the whole file system to bring it together",
            );
        }
        self.writable()?;
        let _span = self.span(Kind::Getattr, [options.directories.first().copied().unwrap_or(0), 0, 0]);
        for root in &options.directories {
            if self.node(*root)?.state.read().dir.is_none() {
                return Err(Error::NotDir);
            }
        }
        Ok(())
    }

    /// Brings files and directories back together that have come apart: small files of a directory next to each other, its
    /// blocks next to those of its neighbours (design decision 21). What reading costs already as little as it can stays where
    /// it is, so a second regroup moves little or nothing. The file system is in use meanwhile: nobody sees a move, nobody waits for
    /// one longer than for another reader of the file or a change of the directory, and what changes while it is being moved
    /// stays where it is. Where free space is scattered, other files go out of the way too, wherever they are. One of the whole file system ends by bringing
    /// free space together; where that is scarce and lies together already, and little is to be gained, it moves only what is cheap.
    ///
    /// Returns when everything was looked at, the budget was used, or it was stopped. `regroup` has the status, also while it
    /// runs. In a crash each move has happened or not. It is to be stopped before [`Fs::close`].
    ///
    /// # Errors
    /// Those of [`Fs::check_regroup`]. All other errors are the outcome in the status.
    pub fn regroup(&self, options: &RegroupOptions, regroup: &Regroup) -> Result<()> {
        let _span = self.span(Kind::Regroup, [0; 3]);
        self.check_regroup(options)?;
        let _purpose = Purpose::Regroup.scope();
        regroup.status.lock().dry_run = options.dry_run;
        let whole = [ROOT_INO];
        let roots = if options.directories.is_empty() { &whole[..] } else { &options.directories };
        let running = Running::new(self, regroup, options.rate);
        let limits =
            Limits { budget: options.budget.unwrap_or(u64::MAX), dry_run: options.dry_run, always: options.always };
        let learned = self.learned_chains();
        let cx = self.move_cx(&learned);
        // What has no place yet is placed first.
        let outcome = self
            .write_back_all(self.opts.lazytime)
            .and_then(|()| move_all(&cx, roots, options, limits, &running))
            .and_then(|()| if options.dry_run { Ok(()) } else { self.store_learned() })
            .and_then(|()| self.journal.commit());
        running.end(&outcome);
        Ok(())
    }

    /// What relocation works with.
    pub(super) fn move_cx<'a>(&'a self, learned: &'a Chains) -> MoveCtx<'a> {
        let memory = READER_BYTES_MAX.min(self.opts.cache_bytes as u64 / READER_DIVISOR);
        MoveCtx { file: self.file_cx(), dir: self.dir_cx(), inodes: &self.inodes, learned, now: now(), memory }
    }
}
