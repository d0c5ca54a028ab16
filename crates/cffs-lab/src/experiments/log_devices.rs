//! In place against the log where it is said to matter: on media on which only writing on is cheap, and for small files that are synced.

use anyhow::Result;
use cffs::{Caller, ROOT_INO};
use cffs_disk::Counters;
use cffs_logdisk::LogStats;

use super::harness::{Harness, Setup, create, make_dir, with};
use super::outcome::{Claim, Outcome, asked, shown, went};
use super::source::{Tree, remove_below, search};
use super::volume::{Layout, LogSetup};
use crate::random::Random;

const BLOCK: u64 = 4096;

/// Random overwrites on a disk.
struct Overwrites {
    disk: &'static str,
    /// Bytes of the disk; half of them are the file.
    bytes: u64,
    /// Overwrites until the log's cleaner is steady, and those that are measured on the log and in place.
    warm_up: u64,
    measured: [u64; 2],
    /// The log against in place, at least.
    bound: Option<f64>,
}

const OVERWRITES: [Overwrites; 3] = [
    Overwrites { disk: "smr", bytes: 2 << 30, warm_up: 400_000, measured: [100_000, 40_000], bound: Some(5.0) },
    Overwrites { disk: "flash", bytes: 512 << 20, warm_up: 150_000, measured: [50_000, 20_000], bound: None },
    Overwrites { disk: "hdd-2026", bytes: 2 << 30, warm_up: 400_000, measured: [100_000, 40_000], bound: None },
];
/// Nodes that a map with a piece for each block of the largest file here fits in.
const WHOLE_MAP: usize = 1 << 16;
/// Disks on which small files are synced.
const SYNCED_DISKS: [&str; 2] = ["volume-1ms", "hdd-2026"];
/// Sizes of the files in KiB, their number when they are synced together, and when each is.
const SIZES: [u64; 3] = [1, 4, 16];
const TOGETHER: u64 = 10_000;
const EACH: u64 = 2000;
const PER_DIR: u64 = 100;
/// Files and directories of a tree.
const TREE: (u64, u64) = (2000, 160);

/// What a layout did with the overwrites.
#[derive(Clone, Copy)]
struct Work {
    writes: u64,
    counters: Counters,
    log: LogStats,
}

impl Work {
    fn rate(&self) -> f64 {
        self.writes as f64 / self.counters.seconds()
    }

    fn told(&self) -> String {
        format!("{}; {}", asked(&self.counters), went(&self.counters))
    }
}

/// Overwrites blocks of a file at random; the engine writes them back when much has come together.
fn overwrite(of: &Overwrites, layout: Layout, scale: u64) -> Result<Work> {
    let setup = Setup { bytes: of.bytes, layout, ..Setup::today(of.disk) };
    let mut harness = Harness::new(&setup)?;
    let blocks = of.bytes / 2 / BLOCK;
    harness.phase(|fs| {
        let ino = fs.create(Caller::ROOT, ROOT_INO, b"file", 0o644)?.ino;
        let piece = vec![1; 1 << 20];
        (0..of.bytes / 2).step_by(piece.len()).try_for_each(|at| fs.write(Caller::ROOT, ino, at, &piece).map(drop))?;
        fs.forget(ino, 1);
        Ok(())
    })?;
    let mut random = Random::new(5);
    let mut run = |harness: &mut Harness, writes: u64| {
        let block = vec![2; BLOCK as usize];
        harness.phase(|fs| {
            with(fs, ROOT_INO, "file", |ino| {
                (0..writes)
                    .try_for_each(|_| fs.write(Caller::ROOT, ino, random.below(blocks) * BLOCK, &block).map(drop))
            })
        })
    };
    let (warm_up, writes) = match layout {
        Layout::InPlace | Layout::Several(_) => (0, of.measured[1] / scale),
        Layout::Log(_) => (of.warm_up / scale, of.measured[0] / scale),
    };
    run(&mut harness, warm_up)?;
    let counters = run(&mut harness, writes)?;
    let log = harness.log_stats();
    harness.check()?;
    Ok(Work { writes, counters, log })
}

fn overwrites(outcome: &mut Outcome, scale: u64) -> Result<()> {
    let mut rows = Vec::new();
    let whole_map = LogSetup { cache_nodes: WHOLE_MAP, ..LogSetup::default() };
    let layouts =
        [("in place", Layout::InPlace), ("log", Layout::log()), ("log, map in memory", Layout::Log(whole_map))];
    for of in &OVERWRITES {
        let mut runs = Vec::new();
        for (name, layout) in layouts {
            let work = overwrite(of, layout, scale)?;
            let ours = (work.writes * BLOCK) as f64;
            let figures = vec![
                work.rate(),
                work.counters.reads as f64 / work.writes as f64,
                work.counters.written_bytes as f64 / ours,
                work.log.cleaned as f64 / ours,
            ];
            rows.push((format!("{}, {name}", of.disk), figures));
            runs.push(work);
        }
        if let (Some(bound), [in_place, log, ..]) = (of.bound, &runs[..]) {
            let text = format!("{}: random overwrites, half full, the log against in place, times", of.disk);
            let told = || format!("In place: {}. The log: {}.", in_place.told(), log.told());
            outcome.claims.push(Claim::at_least(text, bound, log.rate() / in_place.rate()).because(told));
        }
    }
    let columns =
        ["overwrites/s", "reads for each", "bytes written for each", "copied by the cleaner"].map(str::to_string);
    outcome.table("Random overwrites of 4 KB, half full, steady", "disk, layout", &columns, rows);
    Ok(())
}

/// A tree on each of the media.
fn trees(outcome: &mut Outcome, scale: u64) -> Result<()> {
    let tree = Tree::new(TREE.0 / scale, TREE.1 / scale, 4);
    let mut rows = Vec::new();
    for of in &OVERWRITES {
        for layout in Layout::both() {
            let mut harness = Harness::new(&Setup { bytes: of.bytes, layout, ..Setup::today(of.disk) })?;
            let unpacked = harness.phase(|fs| tree.unpack(fs, "tree"))?;
            let read = harness.phase(|fs| search(fs, ROOT_INO).map(drop))?;
            let removed = harness.phase(|fs| remove_below(fs, ROOT_INO))?;
            harness.check()?;
            let figures = [unpacked, read, removed].map(|c| c.seconds()).to_vec();
            rows.push((format!("{}, {}", of.disk, layout.name()), figures));
        }
    }
    let columns = ["unpack", "read", "remove"].map(str::to_string);
    outcome.table(format!("A tree of {} source files (s)", tree.files.len()), "disk, layout", &columns, rows);
    Ok(())
}

/// Makes files and syncs, at the end or each. What that took until the last sync came back, and until the unmount was done.
fn synced(disk: &'static str, layout: Layout, bytes: u64, files: u64, each: bool) -> Result<[Counters; 2]> {
    let mut harness = Harness::new(&Setup { layout, ..Setup::today(disk) })?;
    let device = harness.device().clone();
    let content = vec![3; bytes as usize];
    let mut until_synced = Counters::default();
    let all = harness.phase(|fs| {
        let begun = device.counters();
        let mut dir = ROOT_INO;
        for n in 0..files {
            if n.is_multiple_of(PER_DIR) {
                dir = make_dir(fs, &format!("dir{}", n / PER_DIR))?;
            }
            let name = format!("file{n}");
            create(fs, dir, &name, &content)?;
            if each {
                with(fs, dir, &name, |ino| fs.fsync(ino, false))?;
            }
        }
        fs.sync()?;
        until_synced = device.counters() - begun;
        Ok(())
    })?;
    harness.check()?;
    Ok([until_synced, all])
}

fn small_files(outcome: &mut Outcome, scale: u64) -> Result<()> {
    for (each, files, what) in
        [(false, TOGETHER / scale, "create, then sync"), (true, EACH / scale, "create and fsync each")]
    {
        let mut rows = Vec::new();
        for disk in SYNCED_DISKS {
            for kib in SIZES {
                let [in_place, log] = Layout::both().map(|layout| synced(disk, layout, kib << 10, files, each));
                let runs = [in_place?, log?];
                let contents = (files * (kib << 10)) as f64;
                for (layout, [synced, all]) in Layout::both().iter().zip(&runs) {
                    let per_file = |n: u64| n as f64 / files as f64;
                    let figures = vec![
                        files as f64 / synced.seconds(),
                        per_file(synced.writes),
                        per_file(synced.reads),
                        per_file(synced.flushes),
                        synced.written_bytes as f64 / contents,
                        all.written_bytes as f64 / contents,
                    ];
                    rows.push((format!("{disk}, {kib} KB, {}", layout.name()), figures));
                }
                let [[in_place, _], [log, until_unmounted]] = &runs;
                let told = || format!("In place: {}. The log: {}.", asked(in_place), asked(log));
                if each {
                    if disk == "volume-1ms" {
                        let text = format!("{disk}: {what}, {kib} KB: the log against in place, times");
                        let times = in_place.seconds() / log.seconds();
                        outcome.claims.push(Claim::at_least(text, 1.0, times).because(told));
                    }
                    continue;
                }
                let text = format!("{disk}: {what}, {kib} KB: bytes written for each byte of data, until it is synced");
                let written = log.written_bytes as f64 / contents;
                outcome.claims.push(Claim::at_most(text, 1.25, written).because(|| {
                    format!(
                        "{} {} bytes until it is unmounted.",
                        told(),
                        shown(until_unmounted.written_bytes as f64 / contents)
                    )
                }));
                let text = format!("{disk}: {what}, {kib} KB: requests, in place = 1");
                let ratio = log.requests() as f64 / in_place.requests().max(1) as f64;
                outcome.claims.push(Claim::at_most(text, 1.0, ratio).because(told));
            }
        }
        let columns = ["files/s", "writes a file", "reads", "flushes", "bytes written for each", "until unmounted"]
            .map(str::to_string);
        outcome.table(format!("{files} files: {what}"), "disk, size, layout", &columns, rows);
    }
    Ok(())
}

/// All of it.
///
/// # Errors
/// Those of the engine.
pub fn devices(scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    overwrites(&mut outcome, scale)?;
    trees(&mut outcome, scale)?;
    small_files(&mut outcome, scale)?;
    outcome.notes = vec![
        "Overwrites are written back when 16 MB have come together, sorted by place, in both layouts; on `smr` and `flash` those in one unit share \
         its copy. A segment of the log is a unit of the medium, and the first begins with one; what the cleaner has emptied is discarded."
            .into(),
        "On the log the engine keeps its own write-ahead log, in units of 512 bytes; the log disk's unit is 4 KiB.".into(),
    ];
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_flash_takes_random_overwrites_better_from_a_log() {
        let of = Overwrites { disk: "flash", bytes: 256 << 20, warm_up: 4000, measured: [4000, 4000], bound: None };
        let [in_place, log] = Layout::both().map(|layout| overwrite(&of, layout, 1).unwrap());
        assert!(log.rate() > 2.0 * in_place.rate(), "{} and {} overwrites a second", log.rate(), in_place.rate());
    }
}
