//! A disk whose free space is scattered, and a large file on it: before free space is brought together, and afterwards.

use anyhow::{Context, Result, ensure};
use cffs::{Caller, Fallocate, FreeRuns, Fs, Ino, ROOT_INO, RegroupStatus};
use cffs_disk::{Counters, Model, Request, profiles};

use super::harness::{Harness, Setup, with};
use super::outcome::{Claim, Outcome, asked, shown, went};
use super::scattered::{Contents, Scattered, free_space};
use crate::layout::Piece;

/// What does not depend on the size (the bitmaps, the log, the commit of fsync) is 50 to 90 ms on `hdd-2026`
/// and 26 to 37 on `volume-1ms`, as long as 8 to 13 and 3 to 5 MiB of the file: that must be less than 3% of it.
const CASES: [Case; 3] = [
    Case { name: "hdd-2026, large directories", profile: "hdd-2026", mib: 6144, dirs: 100 },
    Case { name: "volume-1ms, large directories", profile: "volume-1ms", mib: 2048, dirs: 100 },
    Case { name: "volume-1ms, small directories", profile: "volume-1ms", mib: 2048, dirs: 1000 },
];
/// How full the disk is.
const LEVEL: f64 = 0.85;
/// The longest free run has fewer bytes before free space is brought together.
const LONGEST: u64 = 4 << 20;
/// The file has one in so many parts of the disk.
const PART: u64 = 10;
/// Bytes of a call.
const PIECE: usize = 1 << 20;
/// Share of the disk's bandwidth in %.
const TARGET: f64 = 97.0;
/// Bytes that a second run moves, in % of those of the first.
const AGAIN: f64 = 1.0;
/// Files at most so many pieces of which are told.
const TOLD: usize = 8;

/// A disk, and the directories that it is filled with.
struct Case {
    name: &'static str,
    profile: &'static str,
    mib: u64,
    /// From 32 blocks on, with some 600 files, a directory takes blocks ahead of its growth.
    dirs: u64,
}

/// How a file gets its space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// All of it before the first write.
    Allocated,
    /// While it is written.
    Plain,
}

impl How {
    const ALL: [How; 2] = [How::Allocated, How::Plain];

    fn name(self) -> &'static str {
        match self {
            How::Allocated => "by fallocate",
            How::Plain => "plain writes",
        }
    }
}

/// A file that was written, read again and removed.
struct Large {
    /// Extents in which the file system has it.
    extents: usize,
    /// Where it lies; extents end to end are one.
    pieces: Vec<Piece>,
    bytes: u64,
    /// Until fsync has returned.
    durable: Counters,
    /// Until the file system is unmounted.
    unmounted: Counters,
    raw: Raw,
}

impl Large {
    /// Share of the disk's bandwidth in %.
    fn share(&self) -> f64 {
        self.raw.best() / self.durable.seconds() * 100.0
    }

    fn row(&self) -> Vec<f64> {
        vec![
            self.pieces.len() as f64,
            self.extents as f64,
            self.bytes as f64 / self.durable.seconds() / 1e6,
            self.share(),
            self.raw.best() / self.unmounted.seconds() * 100.0,
            self.raw.in_turn / self.durable.seconds() * 100.0,
        ]
    }

    fn why(&self) -> String {
        let lens: Vec<String> =
            self.pieces.iter().take(TOLD).map(|p| shown(p.len as f64 / f64::from(1 << 20))).collect();
        format!(
            "{} MB in {}, {} flushes; {} ms more than the disk takes at its best. {}. The file lies in {} pieces, the first ones of {} MiB.",
            shown((self.durable.read_bytes + self.durable.written_bytes) as f64 / 1e6),
            asked(&self.durable),
            self.durable.flushes,
            shown((self.durable.seconds() - self.raw.best()) * 1e3),
            went(&self.durable),
            self.pieces.len(),
            lens.join(", ")
        )
    }
}

/// Writes, reads and removes a file of a tenth of the disk.
fn large(harness: &mut Harness, profile: &str, contents: &Contents, how: How) -> Result<Large> {
    let device = harness.device().clone();
    let bytes = cffs::device::Device::len(&*device).div_ceil(PART).next_multiple_of(4096);
    let name = "large";
    let mut durable = Counters::default();
    let unmounted = harness.phase(|fs| {
        let before = device.counters();
        let ino = fs.create(Caller::ROOT, ROOT_INO, name.as_bytes(), 0o644)?.ino;
        let written = write(fs, ino, bytes, contents, how);
        fs.forget(ino, 1);
        durable = device.counters() - before;
        written
    })?;
    let mut extents = Vec::new();
    harness.phase(|fs| {
        extents = with(fs, ROOT_INO, name, |ino| fs.pieces(ino))?;
        compare(fs, name, bytes, contents)
    })?;
    let pieces = joined(&extents);
    let there: u64 = pieces.iter().map(|p| p.len).sum();
    ensure!(there >= bytes, "a file of {bytes} bytes has space for {there}");
    harness.phase(|fs| Ok(fs.unlink(ROOT_INO, name.as_bytes())?))?;
    let at = pieces.first().map_or(0, |p| p.start).min(cffs::device::Device::len(&*device) - bytes);
    let raw = Raw::of(profile, at, bytes)?;
    Ok(Large { extents: extents.len(), pieces, bytes, durable, unmounted, raw })
}

fn write(fs: &Fs, ino: Ino, bytes: u64, contents: &Contents, how: How) -> Result<()> {
    if how == How::Allocated {
        fs.fallocate(Caller::ROOT, ino, Fallocate::Allocate { keep_size: false }, 0, bytes)?;
    }
    for at in (0..bytes).step_by(PIECE) {
        let piece = piece(contents, at, bytes);
        let n = fs.write(Caller::ROOT, ino, at, piece)?;
        ensure!(n == piece.len(), "only {n} bytes were written at {at}");
    }
    Ok(fs.fsync(ino, false)?)
}

fn compare(fs: &Fs, name: &str, bytes: u64, contents: &Contents) -> Result<()> {
    let ino = fs.lookup(ROOT_INO, name.as_bytes())?.ino;
    let mut found = vec![0; PIECE];
    for at in (0..bytes).step_by(PIECE) {
        let n = fs.read(ino, at, &mut found)?;
        ensure!(found[..n] == *piece(contents, at, bytes), "the large file is not what was written at {at}");
    }
    fs.forget(ino, 1);
    Ok(())
}

fn piece(contents: &Contents, at: u64, bytes: u64) -> &[u8] {
    contents.of(at / PIECE as u64, (bytes - at).min(PIECE as u64) as usize)
}

/// Extents that lie end to end are one piece.
fn joined(extents: &[Piece]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for e in extents {
        match pieces.last_mut() {
            Some(last) if last.start + last.len == e.start => last.len += e.len,
            _ => pieces.push(*e),
        }
    }
    pieces
}

/// Seconds that the disk itself takes to have the bytes of a file on its medium, in requests of a call's size.
struct Raw {
    /// One after the other.
    in_turn: f64,
    /// All of them in its queue.
    queued: f64,
}

impl Raw {
    fn of(profile: &str, at: u64, bytes: u64) -> Result<Raw> {
        let disk = || Ok::<Model, anyhow::Error>(profiles::find(profile).context("no such disk")?.model());
        let each = |from: u64| Request::write(at + from, (bytes - from).min(PIECE as u64));
        let requests: Vec<Request> = (0..bytes).step_by(PIECE).map(each).collect();
        let (mut in_turn, mut queued) = (disk()?, disk()?);
        let last = requests.iter().fold(0, |now, request| in_turn.serve(now, std::slice::from_ref(request)));
        let all = queued.serve(0, &requests);
        let seconds = |ns: u64| ns as f64 / 1e9;
        Ok(Raw { in_turn: seconds(in_turn.flush(last)), queued: seconds(queued.flush(all)) })
    }

    fn best(&self) -> f64 {
        self.in_turn.min(self.queued)
    }
}

/// A regroup of free space, and what it asked of the disk.
struct Brought {
    status: RegroupStatus,
    cost: Counters,
}

impl Brought {
    fn runs(&self) -> [FreeRuns; 2] {
        self.status.free_runs.map(|runs| [runs.before, runs.after]).unwrap_or_default()
    }

    fn row(&self) -> Vec<f64> {
        let [before, after] = self.runs();
        vec![
            mib(before.longest),
            before.for_tenth as f64,
            mib(after.longest),
            after.for_tenth as f64,
            mib(self.status.bytes_moved),
            self.status.files_moved as f64,
            self.cost.requests() as f64,
            mib(self.cost.read_bytes),
            self.cost.seconds(),
        ]
    }

    fn why(&self) -> String {
        let [before, after] = self.runs();
        format!(
            "The regroup moved {} MiB and left {} MiB that could not be moved. The longest free run had {} MiB before it and {} MiB after it; a tenth of the \
             disk took {} free runs before and {} after (0: there was not so much space).",
            shown(mib(self.status.bytes_moved)),
            shown(mib(self.status.bytes_kept)),
            shown(mib(before.longest)),
            shown(mib(after.longest)),
            before.for_tenth,
            after.for_tenth
        )
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Brings free space together, with a cold cache.
fn bring(harness: &mut Harness) -> Result<Brought> {
    let mut status = RegroupStatus::default();
    let cost = harness.phase(|fs| {
        status = free_space(fs, false)?;
        Ok(())
    })?;
    Ok(Brought { status, cost })
}

/// What one disk shows.
struct Measured {
    rounds: u64,
    files: usize,
    longest: u64,
    /// For each of [`How::ALL`], before and after.
    large: [[Large; 2]; 2],
    /// The first run, and one right after it.
    brought: [Brought; 2],
    /// Reading all files, before and after the first run.
    read: [Counters; 2],
}

fn measure(profile: &'static str, bytes: u64, dirs: u64, longest: u64) -> Result<Measured> {
    let mut harness = Harness::new(&Setup { bytes, ..Setup::today(profile) })?;
    let contents = Contents::new();
    let mut aged = None;
    harness.phase(|fs| {
        aged = Some(Scattered::new(fs, &contents, dirs, LEVEL, longest)?);
        Ok(())
    })?;
    let aged = aged.context("nothing was aged")?;
    let both = |harness: &mut Harness| -> Result<[Large; 2]> {
        let [first, second] = How::ALL;
        Ok([large(harness, profile, &contents, first)?, large(harness, profile, &contents, second)?])
    };
    let large_before = both(&mut harness)?;
    let read_before = harness.phase(|fs| aged.compare(fs, &contents))?;
    let first = bring(&mut harness)?;
    let met = first.runs()[0].longest;
    ensure!(met < longest, "the longest free run has {met} bytes again before it is to be made longer");
    harness.check()?;
    let second = bring(&mut harness)?;
    let read_after = harness.phase(|fs| aged.compare(fs, &contents))?;
    let large_after = both(&mut harness)?;
    harness.phase(|fs| aged.compare(fs, &contents))?;
    harness.check()?;
    Ok(Measured {
        rounds: aged.rounds,
        files: aged.files(),
        longest: met,
        large: [large_before, large_after],
        brought: [first, second],
        read: [read_before, read_after],
    })
}

/// A large file on scattered free space, and on free space that was brought together.
///
/// # Errors
/// Those of the engine; when free space does not become scattered, or contents were lost.
pub fn together(scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let (mut files, mut runs, mut aged) = (Vec::new(), Vec::new(), Vec::new());
    for Case { name: profile, profile: disk, mib: size, dirs } in CASES {
        let m = measure(disk, (size << 20) / scale, (dirs / scale).max(1), LONGEST)?;
        claims(&mut outcome, profile, &m);
        for (state, large) in ["scattered", "brought together"].iter().zip(&m.large) {
            for (how, large) in How::ALL.iter().zip(large) {
                files.push((format!("{profile}, {state}, {}", how.name()), large.row()));
            }
        }
        let names = ["first run", "right after it"];
        runs.extend(names.iter().zip(&m.brought).map(|(name, b)| (format!("{profile}, {name}"), b.row())));
        let read = m.read.map(|c| c.seconds());
        aged.push((profile.to_string(), vec![m.files as f64, m.rounds as f64, mib(m.longest), read[0], read[1]]));
    }
    let columns = ["pieces", "extents", "MB/s", "% of the disk", "the same, with unmount", "% of calls in turn"];
    outcome.table("A file of a tenth of the disk", "", &columns.map(str::to_string), files);
    let columns = [
        "longest run, MiB",
        "runs for a tenth",
        "longest after, MiB",
        "runs after",
        "moved, MiB",
        "files moved",
        "requests",
        "read, MiB",
        "disk time, s",
    ];
    outcome.table("Free space, and what was moved (0 runs: not enough space)", "", &columns.map(str::to_string), runs);
    let columns = ["files", "times filled", "longest free run, MiB", "read all before, s", "after, s"];
    outcome.table("The aged files", "disk", &columns.map(str::to_string), aged);
    outcome.notes = vec![
        format!(
            "{}. Filled to the brim with files of the distribution of figure 7, one of 200 of 512 KiB to 2 MiB; then files are removed in random \
             order until {}% is in use. That is repeated until the longest free run has less than {} MiB.",
            CASES.map(|c| format!("{}: {} MiB, {} directories", c.name, c.mib / scale, c.dirs / scale)).join("; "),
            LEVEL * 100.0,
            LONGEST >> 20
        ),
        "The large file is written in calls of 1 MiB, then fsync. The disk itself has the same bytes at the same place in requests of 1 MiB, then a \
         flush: at its best, which on `volume-1ms` is with all requests in the queue, and with one after the other. Each large file is read, \
         compared and removed. The aged files are compared before free space is brought together, afterwards, and in the end."
            .into(),
    ];
    Ok(outcome)
}

fn claims(outcome: &mut Outcome, profile: &str, m: &Measured) {
    let [_, [allocated, plain]] = &m.large;
    let [first, second] = &m.brought;
    let text = format!("{profile}: pieces of a file of a tenth of the disk, by fallocate (our target)");
    outcome.claims.push(
        Claim::at_most(text, 1.0, allocated.pieces.len() as f64)
            .because(|| format!("{} {}", first.why(), allocated.why())),
    );
    for (how, large) in How::ALL.iter().zip([allocated, plain]) {
        let text = format!("{profile}: it is written, {}: share of the disk in % (our target)", how.name());
        outcome.claims.push(Claim::at_least(text, TARGET, large.share()).because(|| large.why()));
    }
    let share = second.status.bytes_moved as f64 / first.status.bytes_moved.max(1) as f64 * 100.0;
    let text = format!("{profile}: a second run right after the first moves, in % of it (our target)");
    outcome.claims.push(Claim::at_most(text, AGAIN, share).because(|| second.why()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_lies_together_after_free_space_was_brought_together() {
        let m = measure("volume-1ms", 96 << 20, 48, 2 << 20).unwrap();
        let [[scattered, _], [allocated, plain]] = &m.large;
        assert!(scattered.pieces.len() > 4 && allocated.pieces.len() == 1, "{} pieces", scattered.pieces.len());
        assert!(plain.pieces.len() < scattered.pieces.len() && allocated.share() > scattered.share());
        let [first, second] = &m.brought;
        assert!(first.status.bytes_moved > 0 && second.status.bytes_moved == 0);
        assert!(first.runs()[1].longest >= allocated.bytes && first.runs()[0].longest < 2 << 20);
    }

    #[test]
    fn extents_end_to_end_are_one_piece() {
        let extents = [(0, 4), (4, 4), (16, 4), (8, 4)].map(|(start, len)| Piece { start, len });
        let pieces = [(0, 8), (16, 4), (8, 4)].map(|(start, len)| Piece { start, len });
        assert_eq!(joined(&extents), pieces);
    }

    /// The disk with requests of 1 MiB, four of its own each: one latency for each call, or none but the first.
    #[test]
    fn the_disk_itself_takes_what_its_prices_say() {
        let raw = Raw::of("volume-1ms", 0, 100 << 20).unwrap();
        let latency = [raw.in_turn, raw.queued].map(|s| s - f64::from(100 << 20) / 125e6);
        assert!((latency[0] - 0.101).abs() < 0.001 && (latency[1] - 0.002).abs() < 0.001, "{latency:?}");
        assert_eq!(raw.best(), raw.queued);
    }
}
