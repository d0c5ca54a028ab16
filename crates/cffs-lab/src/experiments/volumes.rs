//! Volumes of several disks against one disk, and against themselves without a file system.

use std::sync::{Arc, Mutex};

use anyhow::Result;
use cffs::device::{Device, IoKind};
use cffs::{Caller, DirectWrite, Fs, Ino, ROOT_INO};
use cffs_disk::{Clock, Counters};

use super::harness::{Harness, Setup, create, make_dir};
use super::members::Members;
use super::outcome::{Claim, Outcome, asked, went};
use super::source::search;
use super::volume::{Layout, Volume};
use crate::random::Random;

const MIB: u64 = 1 << 20;
/// Disks that two of are compared with one of.
const DISKS: [&str; 2] = ["volume-1ms", "hdd-2026"];
/// Bytes of the file for random reads, of one read, and how many threads read how often.
const RANDOM_FILE: u64 = 512 * MIB;
const RANDOM_READ: u64 = 4096;
const READERS: usize = 16;
const READS: u64 = 400;
/// Bytes of the file that is read in order, and of its calls: what the kernel asks a mount for at a time, and what a program can ask the
/// library for.
const LARGE_FILE: u64 = 512 * MIB;
const CALLS: [u64; 2] = [MIB, 16 * MIB];
/// Reads that the kernel has in flight for one sequential reader.
const IN_FLIGHT: usize = 4;
/// Small files, their length, and how many there are in a directory. The first ones are a small tree: a disk reads it in a fifth of a second, and
/// who walks there waits for each group at first.
const SMALL: [(u64, usize); 3] = [(10_000, 4096), (100_000, 1024), (100_000, 4096)];
const SMALL_TREE: u64 = 10_000;
const PER_DIR: u64 = 100;
/// Bytes of the file systems.
const BYTES: u64 = 1 << 30;

/// Disks of the figures of 1996, and bytes of the file on each of them.
const WIDTHS: [usize; 6] = [3, 7, 14, 28, 42, 57];
const EACH: u64 = 30 * MIB;
/// Stripe units for one thread, and for several; how many those are.
const UNITS: [u64; 2] = [84 << 10, 256 << 10];
const THREADS: usize = 4;
/// Memory for a file system on so many disks, and for a tree that is read ahead.
const CACHE: usize = 256 << 20;
/// A disk of that time.
const DISK_OF_1996: &str = "hp-c3653a";

/// Runs threads in virtual time; the first error of any of them.
fn threads(clock: &Clock, count: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let first: Mutex<Option<anyhow::Error>> = Mutex::new(None);
    clock.threads(count, &|n| {
        if let Err(error) = work(n)
            && let Ok(mut first) = first.lock()
        {
            first.get_or_insert(error);
        }
    });
    first.into_inner().ok().flatten().map_or(Ok(()), Err)
}

/// What `threads` do with a file of so many bytes in calls of so many: each has a part of its own, or they take turns in one part.
#[derive(Clone, Copy)]
struct Calls {
    bytes: u64,
    call: u64,
    threads: usize,
    turns: bool,
}

impl Calls {
    /// The calls of a thread: offset and length.
    fn of(self, thread: usize) -> impl Iterator<Item = (u64, usize)> {
        let (n, thread) = (self.threads as u64, thread as u64);
        // A part is whole calls.
        let part = self.bytes.div_ceil(self.call).div_ceil(n) * self.call;
        let (from, end, step) = match self.turns {
            true => (thread * self.call, self.bytes, n * self.call),
            false => (thread * part, self.bytes.min((thread + 1) * part), self.call),
        };
        (from..end.max(from)).step_by(step as usize).map(move |at| (at, self.call.min(end - at) as usize))
    }

    /// The calls of all threads, one of each by turns.
    fn all(self) -> Vec<(u64, usize)> {
        let mut lists: Vec<Vec<(u64, usize)>> = (0..self.threads).map(|n| self.of(n).collect()).collect();
        let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
        (0..longest).flat_map(|i| lists.iter_mut().filter_map(|l| l.get(i).copied()).collect::<Vec<_>>()).collect()
    }
}

/// A cold file.
fn with_file(fs: &Fs, work: impl FnOnce(Ino) -> Result<()>) -> Result<()> {
    let ino = fs.lookup(ROOT_INO, b"large")?.ino;
    let outcome = work(ino);
    fs.forget(ino, 1);
    outcome
}

/// The calls wait for each other, because one thread at a time writes to a file; what is written goes to memory first.
fn write_file(fs: &Fs, ino: Ino, calls: Calls) -> Result<()> {
    let content = vec![7; calls.call as usize];
    for (at, len) in calls.all() {
        fs.write(Caller::ROOT, ino, at, &content[..len])?;
    }
    Ok(())
}

/// What some work asks of the disks until it is durable; without the mount and the unmount around it.
fn measured(harness: &mut Harness, work: impl FnOnce(&Fs, &Clock) -> Result<()>) -> Result<Counters> {
    let volume = harness.volume();
    let mut asked = Counters::default();
    harness.phase(|fs| {
        let before = volume.counters();
        work(fs, volume.clock())?;
        fs.sync()?;
        asked = volume.counters() - before;
        Ok(())
    })?;
    Ok(asked)
}

fn create_file(harness: &mut Harness, calls: Calls) -> Result<Counters> {
    written(harness, |fs| {
        let ino = fs.create(Caller::ROOT, ROOT_INO, b"large", 0o644)?.ino;
        let written = write_file(fs, ino, calls);
        fs.forget(ino, 1);
        written
    })
}

fn overwrite_file(harness: &mut Harness, calls: Calls) -> Result<Counters> {
    written(harness, |fs| with_file(fs, |ino| write_file(fs, ino, calls)))
}

/// One thread writes, beside those of the engine if it has some: until everything is on the disks.
fn written(harness: &mut Harness, work: impl Fn(&Fs) -> Result<()> + Sync) -> Result<Counters> {
    measured(harness, |fs, clock| {
        threads(clock, 1, |_| {
            work(fs)?;
            Ok(fs.sync()?)
        })
    })
}

/// With the thread that reads ahead, as in a mount.
fn read_file(harness: &mut Harness, calls: Calls) -> Result<Counters> {
    harness.set_background(true);
    let read = measured(harness, |fs, clock| {
        with_file(fs, |ino| {
            threads(clock, calls.threads, |n| {
                let mut buf = vec![0; calls.call as usize];
                calls.of(n).try_for_each(|(at, len)| Ok(fs.read(ino, at, &mut buf[..len]).map(drop)?))
            })
        })
    });
    harness.set_background(false);
    read
}

/// Random reads by several threads.
fn random_reads(disk: &'static str, layout: Layout, scale: u64) -> Result<Counters> {
    let mut harness = Harness::new(&Setup { bytes: BYTES, layout, ..Setup::today(disk) })?;
    let bytes = RANDOM_FILE / scale;
    create_file(&mut harness, Calls { bytes, call: MIB, threads: 1, turns: false })?;
    let read = measured(&mut harness, |fs, clock| {
        with_file(fs, |ino| {
            threads(clock, READERS, |n| {
                let mut random = Random::new(n as u64 + 1);
                let mut block = [0; RANDOM_READ as usize];
                (0..READS).try_for_each(|_| {
                    let at = random.below(bytes / RANDOM_READ) * RANDOM_READ;
                    Ok(fs.read(ino, at, &mut block).map(drop)?)
                })
            })
        })
    })?;
    harness.check()?;
    Ok(read)
}

/// Reads a large file in order.
fn large_read(disk: &'static str, layout: Layout, calls: Calls) -> Result<Counters> {
    let mut harness = Harness::new(&Setup { bytes: BYTES, layout, ..Setup::today(disk) })?;
    create_file(&mut harness, Calls { call: MIB, threads: 1, turns: false, ..calls })?;
    let read = read_file(&mut harness, calls)?;
    harness.check()?;
    Ok(read)
}

/// Small files that a walk reads in the order in which they were made.
fn walk(disk: &'static str, layout: Layout, (files, bytes): (u64, usize)) -> Result<Counters> {
    let mut harness = Harness::new(&Setup { bytes: BYTES, layout, cache: CACHE, ..Setup::today(disk) })?;
    harness.phase(|fs| {
        let content = vec![3; bytes];
        for first in (0..files).step_by(PER_DIR as usize) {
            let dir = make_dir(fs, &format!("dir{first}"))?;
            (first..files.min(first + PER_DIR)).try_for_each(|n| create(fs, dir, &format!("file{n}"), &content))?;
            fs.forget(dir, 1);
        }
        Ok(())
    })?;
    // With the thread that reads ahead.
    harness.set_background(true);
    let read = measured(&mut harness, |fs, clock| threads(clock, 1, |_| search(fs, ROOT_INO).map(drop)))?;
    harness.check()?;
    Ok(read)
}

fn told(what: &str, c: &Counters) -> String {
    format!("{what}: {}; {}.", asked(c), went(c))
}

/// Two disks against one.
///
/// # Errors
/// Those of the engine and of the volume.
pub fn speed(scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let columns = ["one disk", "mirror of two", "stripe of two"].map(str::to_string);
    let mut rows = Vec::new();
    for disk in DISKS {
        let group = u64::from(super::disks::probe(disk)?.group_size);
        let stripe = |unit: u64| Layout::Several(Members::stripe(2, unit));
        let layouts = |unit| [Layout::InPlace, Layout::Several(Members::mirror(2)), stripe(unit)];
        let mut compare = |what: String, runs: [Counters; 3], bounds: [Option<f64>; 2]| {
            let names = ["a mirror", "a stripe"];
            for ((bound, run), name) in bounds.into_iter().zip(&runs[1..]).zip(names) {
                let Some(bound) = bound else { continue };
                let text = format!("{disk}, {name} of two against one: {what}, times");
                outcome.claims.push(
                    Claim::at_least(text, bound, runs[0].seconds() / run.seconds())
                        .because(|| format!("{} {}", told("One", &runs[0]), told("Two", run))),
                );
            }
            rows.push((format!("{disk}: {what}"), runs.map(|c| c.seconds()).to_vec()));
        };
        let each = |run: &dyn Fn(Layout) -> Result<Counters>, unit: u64| -> Result<[Counters; 3]> {
            let [one, mirror, stripe] = layouts(unit).map(run);
            Ok([one?, mirror?, stripe?])
        };
        let runs = each(&|layout| random_reads(disk, layout, scale), cffs_volume::STRIPE_UNIT)?;
        compare(format!("random reads of 4 KB by {READERS} threads"), runs, [Some(1.8), None]);
        for call in CALLS {
            for threads in [1, IN_FLIGHT] {
                let calls = Calls { bytes: LARGE_FILE / scale, call, threads, turns: true };
                let runs = each(&|layout| large_read(disk, layout, calls), cffs_volume::STRIPE_UNIT)?;
                let bound = (call > MIB && threads == 1).then_some(1.9);
                let what = format!("a large file in calls of {} MiB, {threads} at a time", call / MIB);
                compare(what, runs, [None, bound]);
            }
        }
        for (files, bytes) in SMALL {
            let runs = each(&|layout| walk(disk, layout, (files / scale, bytes)), group)?;
            let bound = (files > SMALL_TREE).then_some(1.6);
            compare(format!("{files} files of {} KB by walk", bytes >> 10), runs, [bound, bound]);
        }
    }
    outcome.table("Time (s)", "disk, work", &columns, rows);
    outcome.notes = vec![
        "Members work at the same time, each with its own queue. Threads wait each for its own request. Stripe units of 1 MiB; for the tree of one group."
            .into(),
    ];
    Ok(outcome)
}

/// The same calls without a file system, where the file lies: read and write, MB/s.
fn raw_volume(setup: &Setup, calls: Calls, start: u64) -> Result<[f64; 2]> {
    let mut rates = [0.0; 2];
    for (rate, write) in rates.iter_mut().zip([false, true]) {
        let volume = Volume::make(setup.profile, setup.bytes, setup.layout)?;
        let opened = volume.open()?;
        let device: &Arc<dyn Device> = &opened.device;
        let before = volume.counters();
        threads(volume.clock(), calls.threads, |n| {
            let mut buf = vec![7; calls.call as usize];
            calls.of(n).try_for_each(|(at, len)| {
                let at = start + at;
                match write {
                    true => device.write_at(IoKind::Data, at, &buf[..len])?,
                    false => device.read_at(IoKind::Data, at, &mut buf[..len])?,
                }
                Ok(())
            })
        })?;
        device.flush()?;
        *rate = calls.bytes as f64 / (volume.counters() - before).seconds() / 1e6;
    }
    Ok(rates)
}

/// Sweeney et al. 1996, figures 2 and 3.
///
/// # Errors
/// Those of the engine and of the volume.
pub fn sweeney(scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let at = WIDTHS.map(|n| n.to_string());
    for (unit, threads) in UNITS.into_iter().zip([1, THREADS]) {
        let mut series: Vec<(String, Vec<f64>)> = ["create", "read", "overwrite", "volume, read", "volume, write"]
            .map(|n| (n.to_string(), Vec::new()))
            .into();
        let many = if threads == 1 { "one thread".to_string() } else { format!("{threads} threads") };
        for count in WIDTHS {
            let call = unit * count as u64;
            let bytes = (EACH * count as u64 / scale).next_multiple_of(call);
            let calls = Calls { bytes, call, threads, turns: false };
            let layout = Layout::Several(Members::stripe(count, unit));
            let bytes_all = bytes * 5 / 4 + 64 * MIB;
            // Blocks without fragments, as XFS had.
            let setup = Setup {
                bytes: bytes_all,
                layout,
                cache: CACHE,
                fragment: 4096,
                // Whether it is worth it would be measured in real time.
                direct_write: DirectWrite::Off,
                ..Setup::today(DISK_OF_1996)
            };
            let mut harness = Harness::new(&setup)?;
            let mut start = 0;
            // With the threads that write back, as in a mount.
            harness.set_background(true);
            let created = create_file(&mut harness, calls)?;
            let read = read_file(&mut harness, calls)?;
            harness.set_background(true);
            let done = [created, read, overwrite_file(&mut harness, calls)?];
            harness.set_background(false);
            harness.phase(|fs| {
                with_file(fs, |ino| {
                    start = fs.pieces(ino)?.first().map_or(0, |p| p.start);
                    Ok(())
                })
            })?;
            harness.check()?;
            let raw = raw_volume(&setup, calls, start)?;
            let rates = done.map(|c| bytes as f64 / c.seconds() / 1e6);
            for ((_, values), rate) in series.iter_mut().zip(rates.into_iter().chain(raw)) {
                values.push(rate);
            }
            for ((what, rate), of) in
                ["create", "read", "overwrite"].into_iter().zip(rates).zip([raw[1], raw[0], raw[1]])
            {
                let text = format!("{count} disks, {many}: {what}, % of the volume itself");
                let i = ["create", "read", "overwrite"].iter().position(|n| *n == what).unwrap_or(0);
                outcome.claims.push(Claim::at_least(text, 95.0, rate / of * 100.0).because(|| told(what, &done[i])));
            }
        }
        let title = format!("A large file, {many}, stripe unit {} KB", unit >> 10);
        outcome.add(&title, "MB/s", "disks", &at, series, true);
    }
    outcome.notes = vec![
        format!(
            "Files of {} MiB a disk on disks of the profile `{DISK_OF_1996}`, in calls of one stripe. The volume itself: the same calls without a file              system. Several threads have a part of the file each. Their reads are in flight together; their writes come by turns, and reach the volume when they are written back.",
            EACH / MIB
        ),
        "The paper's disks read 7 MB/s and wrote 5.5 MB/s each.".into(),
    ];
    Ok(outcome)
}
