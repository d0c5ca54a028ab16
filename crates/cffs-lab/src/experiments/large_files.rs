//! Large files against what the disk itself gives, on fresh file systems and on aged ones: in virtual time, and on a real file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use cffs::device::{Device, FileDevice, IoKind, OpenMode};
use cffs::{Caller, Fs, Ino, MkfsOptions, MountOptions, ROOT_INO, mkfs};

use super::aging::age;
use super::harness::{Harness, Setup};
use super::large::{self, raw};
use super::lower_bound;
use super::outcome::{Claim, Outcome, asked, shown};

/// Disks in virtual time, with MiB of the disk and of the file: transferring it takes long against a seek. What does not depend
/// on the size (the bitmaps of some allocation groups, the log, the unmount) is 60 to 190 ms on `hdd-2026`, as long as 10 to 30
/// MiB: on that disk a file is large beyond some hundred MiB. It is as large a part of the file system as on `nvme`.
const DISKS: [(&str, u64, u64); 5] =
    [("st31200", 900, 32), ("hdd-2026", 6144, 480), ("volume-1ms", 900, 32), ("sd-card", 900, 32), ("nvme", 2048, 160)];
/// How full the file system is before the file is written.
const STATES: [(&str, f64); 3] = [("fresh", 0.0), ("aged to 70%", 0.7), ("aged to 90%", 0.9)];
/// Creations and deletions of the aging; on a larger disk as many more.
const OPERATIONS: u64 = 5000;
const OPERATIONS_UP_TO_MIB: u64 = 2048;
/// Bytes of the image and of the file in real time. What does not depend on the size (the first calls, which go by way of memory,
/// and the commit) is some 2 ms, as long as 6 MiB on a fast SSD.
const BYTES: u64 = 4 << 30;
const FILE: u64 = 320 << 20;
/// Bytes of a call.
const PIECE: usize = 1 << 20;
/// Bytes of one file that are moved before the other's turn comes.
const SLICE: u64 = 8 << 20;
const PHASES: [&str; 3] = ["write", "read", "overwrite"];
const ALIGNED: usize = 4096;
/// Bytes of a block of the file systems.
const BLOCK: u64 = 4096;
/// Share of the disk's bandwidth in %.
const TARGET: f64 = 95.0;
/// Rounds on a real file.
const ROUNDS: usize = 15;

/// The least of the three with its name.
fn least(shares: &[f64; 3]) -> (f64, &'static str) {
    let at = (0..3).min_by(|a, b| shares[*a].total_cmp(&shares[*b])).unwrap_or(0);
    (shares[at], PHASES[at])
}

/// In virtual time.
///
/// # Errors
/// Those of the engine.
pub fn model(scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let (mut rates, mut lies) = (Vec::new(), Vec::new());
    for (profile, disk_mib, file_mib) in DISKS {
        let (bytes, length) = ((disk_mib << 20) / scale, (file_mib << 20) / scale / PIECE as u64 * PIECE as u64);
        let [raw_read, raw_write] = raw(profile, length, 0);
        let itself = [raw_write, raw_read, raw_write];
        for (state, level) in STATES {
            let mut harness = Harness::new(&Setup { bytes, ..Setup::today(profile) })?;
            if level > 0.0 {
                let operations = OPERATIONS * disk_mib.div_ceil(OPERATIONS_UP_TO_MIB);
                harness.phase(|fs| age(fs, level, operations / scale))?;
            }
            let best = Best::of(&harness, profile, length, raw_read)?;
            let before = harness.counts()?.extents;
            let asked_for = large::phases(&mut harness, length, PIECE)?;
            let found = asked_for.map(|c| length as f64 / c.seconds() / 1e6);
            let extents = harness.counts()?.extents - before;
            let shares = [0, 1, 2].map(|i| found[i] / itself[i] * 100.0);
            let (share, phase) = least(&shares);
            let text = format!("{profile}, {state}: worst of write, read and overwrite, share of the disk in %");
            let run = length as f64 / extents.max(1) as f64 / 1024.0;
            outcome.claims.push(Claim::at_least(text, TARGET, share).because(|| {
                let at = PHASES.iter().position(|p| *p == phase).unwrap_or(0);
                let (c, alone) = (&asked_for[at], length as f64 / itself[at] / 1e6);
                let more = format!(
                    "{phase}: {} MB in {}, {} flushes; {} ms more than the file alone takes at its best.",
                    shown((c.read_bytes + c.written_bytes) as f64 / 1e6),
                    asked(c),
                    c.flushes,
                    shown((c.seconds() - alone) * 1e3)
                );
                match extents > 8 {
                    true => format!(
                        "{more} The file is in {extents} extents, {} KiB on average. {}",
                        shown(run),
                        best.describe()
                    ),
                    false => format!("{more} The file lies together; this is the way to it, its metadata and the log."),
                }
            }));
            rates.push((format!("{profile}, {state}"), found.to_vec()));
            let best = [best.pieces as f64, best.share.unwrap_or(f64::NAN), best.of_free];
            lies.push((format!("{profile}, {state}"), [&shares[..], &[extents as f64, run], &best].concat()));
        }
        rates.push((format!("{profile}, the disk itself"), itself.to_vec()));
    }
    let at = PHASES.map(str::to_string);
    outcome.table("Bandwidth (MB/s)", "disk", &at, rates);
    let columns = [
        "write, % of the disk",
        "read, % of the disk",
        "overwrite, % of the disk",
        "extents",
        "mean extent, KiB",
        "fewest pieces in free space",
        "best read, % of the disk",
        "file, % of free space",
    ];
    outcome.table("Shares, and how the file lies", "disk", &columns.map(str::to_string), lies);
    outcome.notes = vec![
        format!(
            "In calls of 1 MiB: {}. Aged: filled to the level with files of the distribution of figure 7, then {OPERATIONS} creations and \
             deletions for each {OPERATIONS_UP_TO_MIB} MiB or part of them.",
            DISKS.map(|(name, disk, file)| format!("{file} MiB on {disk} MiB of {name}")).join(", ")
        ),
        "The disk itself: the same bytes at the beginning of the disk, in its largest requests, one after the other."
            .into(),
    ];
    Ok(outcome)
}

/// What the best choice of places could make of the free space that there is.
struct Best {
    /// The longest free runs that have room for the file.
    pieces: usize,
    /// Share of the disk's bandwidth in % with which any choice of places can be read, on a disk with an arm.
    share: Option<f64>,
    /// The file in % of the free space.
    of_free: f64,
}

impl Best {
    fn of(harness: &Harness, profile: &str, length: u64, rate: f64) -> Result<Best> {
        let free = lower_bound::free_blocks(harness.device())?;
        let need = length / BLOCK;
        let time = lower_bound::Price::of(profile, BLOCK).ok().and_then(|price| lower_bound::least(&free, need, price));
        Ok(Best {
            pieces: lower_bound::fewest_runs(&free, need).unwrap_or(0),
            share: time.map(|ms| (length as f64 / rate / 1e6) / (ms / 1e3) * 100.0),
            of_free: need as f64 / free.iter().filter(|f| **f).count() as f64 * 100.0,
        })
    }

    fn describe(&self) -> String {
        let share = self.share.map_or(String::new(), |share| {
            format!(
                ", and no choice of places can be expected to be read at more than {}% of the disk, without metadata",
                shown(share)
            )
        });
        format!(
            "It takes {}% of the free blocks that it meets: the longest free runs hold it in {} pieces{share}.",
            shown(self.of_free),
            self.pieces
        )
    }
}

/// A directory on a disk, not in memory, if there is one.
fn place() -> PathBuf {
    let target = PathBuf::from("target");
    if target.is_dir() { target } else { std::env::temp_dir() }
}

/// Processor time of this process until now, with that of the kernel for it, in seconds; 0 where /proc does not tell.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may have blanks: the 12th and 13th field, in hundredths.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// A file of the host with all its blocks there, as a device.
fn file(path: &std::path::Path, bytes: u64) -> Result<FileDevice> {
    std::fs::File::create_new(path)
        .and_then(|f| f.set_len(bytes))
        .with_context(|| format!("cannot make {}", path.display()))?;
    let device = FileDevice::open(path, OpenMode::READ_WRITE)?;
    // Written once: what the host's file system does at the first write to a block is not ours.
    let zeros = vec![0; PIECE];
    for at in (0..bytes).step_by(PIECE) {
        device.write_at(IoKind::Data, at, &zeros)?;
    }
    device.flush()?;
    Ok(device)
}

/// What moves the file: ours, or the file of the host without a file system.
trait Mover {
    /// Moves one piece.
    fn piece(&self, at: u64, piece: &mut [u8]) -> Result<()>;
    /// Makes what was written durable.
    fn end(&self) -> Result<()>;
}

/// A file of a file system of ours.
struct OfFs<'a> {
    fs: &'a Fs,
    ino: Ino,
    writes: bool,
}

impl Mover for OfFs<'_> {
    fn piece(&self, at: u64, piece: &mut [u8]) -> Result<()> {
        let n = match self.writes {
            true => self.fs.write(Caller::ROOT, self.ino, at, piece)?,
            false => self.fs.read(self.ino, at, piece)?,
        };
        ensure!(n == piece.len(), "{n} bytes at {at} of {}", piece.len());
        Ok(())
    }

    fn end(&self) -> Result<()> {
        if self.writes {
            self.fs.fsync(self.ino, false)?;
        }
        Ok(())
    }
}

/// A file of the host.
struct Itself<'a> {
    device: &'a FileDevice,
    writes: bool,
}

impl Mover for Itself<'_> {
    fn piece(&self, at: u64, piece: &mut [u8]) -> Result<()> {
        match self.writes {
            true => self.device.write_at(IoKind::Data, at, piece)?,
            false => self.device.read_at(IoKind::Data, at, piece)?,
        }
        Ok(())
    }

    fn end(&self) -> Result<()> {
        if self.writes {
            self.device.flush()?;
        }
        Ok(())
    }
}

/// What it took to move two files: ours first, then the file itself.
#[derive(Default)]
struct Took {
    /// Seconds for each slice, of both right after each other.
    slices: Vec<[f64; 2]>,
    /// Seconds until all of it was durable.
    end: [f64; 2],
    /// Seconds of the processor, for ours.
    processor: f64,
}

/// Moves two files in turn, a slice of the one and a slice of the other: what else goes on on this machine, and on that which it
/// is a guest of, meets both.
fn in_turn(bytes: u64, piece: &mut [u8], both: [&dyn Mover; 2]) -> Result<Took> {
    let mut took = Took::default();
    let mut timed = |of_ours: bool, work: &mut dyn FnMut() -> Result<()>| {
        let (processor, clock) = (processor_seconds(), Instant::now());
        work()?;
        let seconds = clock.elapsed().as_secs_f64();
        took.processor += if of_ours { processor_seconds() - processor } else { 0.0 };
        Ok::<_, anyhow::Error>(seconds)
    };
    let mut slices = Vec::new();
    for (turn, slice) in (0..bytes).step_by(SLICE as usize).enumerate() {
        let mut seconds = [0.0; 2];
        // Nobody is always the first.
        for i in [turn % 2, 1 - turn % 2] {
            let mut pieces = (slice..bytes.min(slice + SLICE)).step_by(PIECE);
            seconds[i] = timed(i == 0, &mut || pieces.try_for_each(|at| both[i].piece(at, piece)))?;
        }
        slices.push(seconds);
    }
    let end = [timed(true, &mut || both[0].end())?, timed(false, &mut || both[1].end())?];
    Ok(Took { slices, end, ..took })
}

/// What many rounds say of both.
struct Usual {
    /// Seconds for a file, as a rule.
    seconds: [f64; 2],
    /// The same with all that came in between.
    mean: [f64; 2],
}

/// A machine that does something else for a while, or waits for its host, makes some slices several times as long: a whole round
/// says more of that than of the file systems. So the median over the rounds counts, of each slice for itself: what a file
/// system does at some point of a file in every round is in it, what comes by the clock now and then is in the mean alone.
fn usual(rounds: &[&Took]) -> Usual {
    let slices = rounds.first().map_or(0, |r| r.slices.len());
    let seconds = |i: usize| {
        let at = |slice: usize| median(rounds.iter().map(|r| r.slices[slice][i]));
        (0..slices).map(at).sum::<f64>() + median(rounds.iter().map(|r| r.end[i]))
    };
    let all = |i: usize| rounds.iter().map(|r| r.slices.iter().map(|s| s[i]).sum::<f64>() + r.end[i]).sum::<f64>();
    let mean = |i| all(i) / rounds.len().max(1) as f64;
    Usual { seconds: [seconds(0), seconds(1)], mean: [mean(0), mean(1)] }
}

/// Write, read and write again, ours and the file itself.
fn round(fs: &Fs, beside: &FileDevice, bytes: u64, piece: &mut [u8]) -> Result<[Took; 3]> {
    let ino = fs.create(Caller::ROOT, ROOT_INO, b"large", 0o644)?.ino;
    fs.sync()?;
    let mut phase = |writes| {
        let took = in_turn(bytes, piece, [&OfFs { fs, ino, writes }, &Itself { device: beside, writes }])?;
        fs.sync()?;
        fs.drop_caches();
        Ok::<_, anyhow::Error>(took)
    };
    let took = [phase(true)?, phase(false)?, phase(true)?];
    fs.forget(ino, 1);
    fs.unlink(ROOT_INO, b"large")?;
    fs.sync()?;
    Ok(took)
}

/// On a real file, in real time.
///
/// # Errors
/// Those of the engine and of the file.
pub fn real(scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let dir = tempfile::Builder::new().prefix("cffs-lab-real-").tempdir_in(place())?;
    let (bytes, length) = (BYTES / scale / PIECE as u64 * PIECE as u64, FILE / scale / PIECE as u64 * PIECE as u64);
    ensure!(length > 0, "the file is smaller than a call");
    let beside = file(&dir.path().join("raw"), length)?;
    // Direct I/O is without copies where the memory is aligned.
    let mut memory = vec![7; PIECE + ALIGNED];
    let from = memory.as_ptr().align_offset(ALIGNED);
    let piece = &mut memory[from..from + PIECE];
    let (mut rows, mut sums) = (Vec::new(), Vec::new());
    for (state, level) in STATES {
        let path = dir.path().join("image");
        let device = Arc::new(file(&path, bytes)?);
        mkfs(&*device, None, &MkfsOptions::default())?;
        if level > 0.0 {
            let options = MountOptions::default().background(false);
            let fs = Fs::open(device.clone(), None, options)?;
            age(&fs, level, OPERATIONS * (BYTES >> 20).div_ceil(OPERATIONS_UP_TO_MIB) / scale)?;
            fs.close()?;
        }
        let fs = Fs::open(device.clone(), None, MountOptions::default())?;
        let rounds: Vec<[Took; 3]> = (0..ROUNDS).map(|_| round(&fs, &beside, length, piece)).collect::<Result<_>>()?;
        let ours = |took: &Took| took.slices.iter().map(|[ours, _]| ours).sum::<f64>() + took.end[0];
        let elapsed: f64 = rounds.iter().flatten().map(ours).sum();
        let processor: f64 = rounds.iter().flatten().map(|t| t.processor).sum();
        let per_processor = (3 * ROUNDS as u64 * length) as f64 / processor.max(0.01) / 1e6;
        fs.close()?;
        drop(fs);
        let report = cffs::check::check(device, None, &Default::default(), &|_, _, _| {})?;
        ensure!(report.is_clean(), "the file system is damaged after the experiment: {:?}", report.problems);
        std::fs::remove_file(&path)?;
        let phases = [0, 1, 2].map(|i| usual(&rounds.iter().map(|r| &r[i]).collect::<Vec<_>>()));
        let rate = |seconds: f64| length as f64 / seconds / 1e6;
        for (phase, name) in phases.iter().zip(PHASES) {
            let [ours, itself] = phase.seconds;
            let text = format!("{state}: {name}, share of the file itself in %");
            outcome.claims.push(Claim::at_least(text, TARGET, itself / ours * 100.0).because(|| {
                format!(
                    "By the sum of all rounds {}%. A second of processor time moves {} MB here, so that one thread could have {}% of the {} MB/s of the \
                     file alone; of the time that it took, {}% was processor time, the rest waiting: for flushes, and for what else this machine does.",
                    shown(phase.mean[1] / phase.mean[0] * 100.0),
                    shown(per_processor),
                    shown((per_processor / rate(itself) * 100.0).min(100.0)),
                    shown(rate(itself)),
                    shown(processor / elapsed * 100.0)
                )
            }));
        }
        for (side, name) in ["cffs", "the file itself"].iter().enumerate() {
            rows.push((format!("{name}, {state}"), phases.iter().map(|p| rate(p.seconds[side])).collect()));
        }
        sums.push((state.to_string(), phases.iter().map(|p| p.mean[1] / p.mean[0] * 100.0).collect()));
    }
    let at = PHASES.map(str::to_string);
    outcome.table("Bandwidth (MB/s)", "", &at, rows);
    outcome.table("By the sum of all rounds, share of the file itself in %", "", &at, sums);
    outcome.notes = vec![
        format!(
            "{} MiB in an image of {} MiB on a disk of this machine, through the library with its default options; calls of 1 MiB, then \
             fsync. Beside it the same bytes written to and read from a file of the host without a file system of ours, one request of 1 MiB \
             after the other, with {} I/O; of both in turn {} MiB. {ROUNDS} rounds; \
             the median of each slice and of what it took at the end.",
            length >> 20,
            bytes >> 20,
            if beside.is_direct() { "direct" } else { "buffered" },
            SLICE >> 20
        ),
        "Real time on a real disk: other figures in each run, and on each machine.".into(),
    ];
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_and_the_middle_are_found() {
        assert_eq!(least(&[99.0, 97.0, 98.0]), (97.0, "read"));
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
    }

    /// A slice in which the machine did something else changes nothing; what is slow in every round counts.
    #[test]
    fn what_is_usual_is_found_among_what_is_not() {
        let round = |odd| Took { slices: vec![[2.0, 1.0], odd, [9.0, 1.0]], end: [0.5, 0.25], processor: 0.0 };
        let rounds = [round([50.0, 1.0]), round([2.0, 1.0]), round([2.0, 70.0])];
        let usual = usual(&rounds.iter().collect::<Vec<_>>());
        assert_eq!(usual.seconds, [13.5, 3.25]);
        assert_eq!(usual.mean, [29.5, 26.25]);
    }
}
