//! Sweeney et al. 1996: large directories, huge and sparse files, large transfers, recovery.

use anyhow::{Result, ensure};
use cffs::{Caller, Fs, Ino, MountOptions, ROOT_INO};

use super::harness::{Harness, Setup, create, make_dir};
use super::large::{self, raw};
use super::outcome::{Claim, Outcome};
use crate::random::Random;

/// Entries of the directories of figure 4.
const ENTRIES: [u64; 5] = [100, 1000, 10_000, 100_000, 1_000_000];
/// Lookups of each measurement.
const LOOKUPS: u64 = 1000;
/// Files that all the entries are names of, as in the paper.
const LINKED: u64 = 4;

fn entry(n: u64) -> String {
    format!("entry{n:07}")
}

fn look_up(fs: &Fs, dir: Ino, entries: u64, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    for _ in 0..LOOKUPS {
        let ino = fs.lookup(dir, entry(random.below(entries)).as_bytes())?.ino;
        fs.forget(ino, 1);
    }
    Ok(())
}

/// Figure 4.
///
/// # Errors
/// Those of the engine.
pub fn figure4(scale: u64) -> Result<Outcome> {
    let mut rows: [Vec<f64>; 3] = Default::default();
    let entries = ENTRIES.map(|n| (n / scale).max(10));
    for n in entries {
        let mut harness = Harness::new(&Setup { bytes: 2 << 30, cache: 256 << 20, ..Setup::today("hdd-2026") })?;
        harness.phase(|fs| {
            let dir = make_dir(fs, "dir")?;
            let files = (0..LINKED)
                .map(|i| Ok(fs.create(Caller::ROOT, ROOT_INO, format!("file{i}").as_bytes(), 0o644)?.ino))
                .collect::<Result<Vec<_>>>()?;
            for i in 0..n {
                let ino = fs.link(Caller::ROOT, files[(i % LINKED) as usize], dir, entry(i).as_bytes())?.ino;
                fs.forget(ino, 1);
            }
            Ok(())
        })?;
        let device = harness.device().clone();
        harness.phase(|fs| {
            let dir = fs.lookup(ROOT_INO, b"dir")?.ino;
            // Each finds nothing in memory but what is on the way to every entry.
            let mut random = Random::new(1);
            let mut cold = 0;
            for _ in 0..LOOKUPS / 10 {
                fs.drop_caches();
                look_up_one(fs, ROOT_INO, "dir")?;
                let ready = device.counters();
                look_up_one(fs, dir, &entry(random.below(n)))?;
                cold += (device.counters() - ready).requests();
            }
            rows[0].push(cold as f64 / (LOOKUPS / 10) as f64);
            look_up(fs, dir, n, 2)?;
            let mixed = device.counters();
            look_up(fs, dir, n, 3)?;
            let seen = device.counters() - mixed;
            rows[1].push(seen.requests() as f64 / LOOKUPS as f64);
            // The same names again: all of it is cached.
            let warm = device.counters();
            look_up(fs, dir, n, 3)?;
            rows[2].push((device.counters() - warm).requests() as f64 / LOOKUPS as f64);
            fs.forget(dir, 1);
            Ok(())
        })?;
    }
    let mut outcome = Outcome::default();
    let at = entries.map(|n| n.to_string());
    let [cold, filling, warm] = rows;
    outcome.claims = vec![
        Claim::at_most(
            "requests of a lookup among 1,000,000 with nothing cached (one index block, one directory block)",
            2.0,
            cold[4],
        ),
        Claim::at_most(
            "requests of a lookup while cached, of any size (flat)",
            0.0,
            warm.iter().copied().fold(0.0, f64::max),
        ),
    ];
    let rows = vec![
        ("nothing cached".to_string(), cold),
        ("after 1,000 other lookups".to_string(), filling),
        ("the same names again".to_string(), warm),
    ];
    outcome.add("Requests of a lookup", "requests", "entries of the directory", &at, rows, true);
    outcome.untested = vec![(
        "lookups in a second: 8,972 among 100, 6,497 among 50,000".into(),
        "processor time; virtual time has disk time alone. `cargo bench -p cffs` measures it".into(),
    )];
    outcome
        .notes
        .push("All entries are names of four files, as in the paper; 256 MiB of cache, the default of a mount.".into());
    Ok(outcome)
}

fn look_up_one(fs: &Fs, dir: Ino, name: &str) -> Result<()> {
    let ino = fs.lookup(dir, name.as_bytes())?.ino;
    fs.forget(ino, 1);
    Ok(())
}

/// Section 7.1 and the claims on extents: large, huge and sparse files.
///
/// # Errors
/// Those of the engine.
pub fn files(scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    large_file(&mut outcome, (256 << 20) / scale)?;
    sparse_terabyte(&mut outcome, 20_000 / scale)?;
    outcome.notes = vec![
        "Calls of 1 MiB. The engine reads what a call asks for; reading ahead of small calls is the kernel's part, which virtual time \
         does not have: with calls of 64 KiB, `volume-1ms` gives half as much."
            .into(),
        "The disk itself: one request after the other. Writeback has several under way, which `volume-1ms` rewards.".into(),
    ];
    outcome.untested = vec![(
        "parallel transfers of several threads".into(),
        "threads take turns differently in each run, and virtual time is the same in all".into(),
    )];
    Ok(outcome)
}

/// Bandwidth of a file of `bytes` against the disk itself.
fn large_file(outcome: &mut Outcome, bytes: u64) -> Result<()> {
    let mut rows = Vec::new();
    for profile in ["hdd-2026", "volume-1ms"] {
        let mut harness = Harness::new(&Setup::today(profile))?;
        let [write, read, over] = large::in_pieces(&mut harness, bytes, 1 << 20)?;
        harness.check()?;
        let [raw_read, raw_write] = raw(profile, bytes, 0);
        rows.push((format!("{profile}: cffs"), vec![write, read, over]));
        rows.push((format!("{profile}: the disk itself"), vec![raw_write, raw_read, raw_write]));
        outcome.claims.extend([
            Claim::at_least(
                format!("{profile}: read, share of the raw device in % (paper: within 5 to 10%)"),
                95.0,
                read / raw_read * 100.0,
            ),
            Claim::at_least(
                format!("{profile}: write, share of the raw device in % (paper: within 5 to 10%)"),
                90.0,
                write / raw_write * 100.0,
            ),
            Claim::at_least(format!("{profile}: creating as fast as overwriting, in %"), 95.0, write / over * 100.0),
        ]);
    }
    outcome.table("Large file (MB/s)", "disk", &["write", "read", "overwrite"].map(str::to_string), rows);
    Ok(())
}

/// A block at each of many places of a file of a terabyte.
fn sparse_terabyte(outcome: &mut Outcome, places: u64) -> Result<()> {
    let mut harness = Harness::new(&Setup::today("hdd-2026"))?;
    let block = vec![0x77; 4096];
    let place = |random: &mut Random| random.below(1 << 28) * 4096;
    harness.phase(|fs| {
        let ino = fs.create(Caller::ROOT, ROOT_INO, b"huge", 0o644)?.ino;
        let mut random = Random::new(4);
        for _ in 0..places {
            fs.write(Caller::ROOT, ino, place(&mut random), &block)?;
        }
        fs.forget(ino, 1);
        Ok(())
    })?;
    let device = harness.device().clone();
    let mut requests = 0.0;
    let mut hole = 0.0;
    harness.phase(|fs| {
        let mut random = Random::new(4);
        let mut buf = vec![0; 4096];
        let reads = 200.min(places);
        for _ in 0..reads {
            fs.drop_caches();
            let ino = fs.lookup(ROOT_INO, b"huge")?.ino;
            let before = device.counters();
            let at = place(&mut random);
            fs.read(ino, at, &mut buf)?;
            ensure!(buf == block, "the block at {at} does not have its bytes");
            requests += (device.counters() - before).requests() as f64 / reads as f64;
            fs.forget(ino, 1);
        }
        fs.drop_caches();
        let ino = fs.lookup(ROOT_INO, b"huge")?.ino;
        let before = device.counters();
        fs.read(ino, 4096 * 7 + (1 << 39), &mut buf)?;
        hole = (device.counters() - before).requests() as f64;
        fs.forget(ino, 1);
        Ok(())
    })?;
    let report = cffs::check::check(device, None, &Default::default(), &|_, _, _| {})?;
    ensure!(report.is_clean(), "the file system is damaged after the experiment: {:?}", report.problems);
    outcome.claims.push(Claim::at_most(
        format!("a block of a sparse terabyte with {places} extents: requests (tree nodes and the block)"),
        4.0,
        requests,
    ));
    let row = vec![report.counts.extents as f64, report.counts.extent_nodes as f64, requests, hole];
    let columns = ["extents", "tree nodes", "requests of a cold block", "of a hole"].map(str::to_string);
    outcome.table("Sparse file of a terabyte", "", &columns, vec![("cffs".into(), row)]);
    Ok(())
}

/// Sizes of the file systems in GiB.
const SIZES: [u64; 4] = [1, 16, 256, 2048];
/// The log in MiB.
const LOG: u64 = 64;

/// Recovery: seconds of the mount after a crash, with a log that is full to a share of what it takes until it is emptied.
fn recovery(gib: u64, fill: f64) -> Result<(f64, f64)> {
    let setup = Setup { bytes: gib << 30, cache: 512 << 20, log: Some(LOG << 20), ..Setup::today("hdd-2026") };
    let mut harness = Harness::new(&setup)?;
    let want = (LOG << 20) as f64 * fill;
    let logged = harness.crash(|fs| {
        let start = fs.stats().log;
        let (mut step, mut dir, mut logged) = (0u64, ROOT_INO, 0);
        while (logged as f64) < want {
            if step.is_multiple_of(100) {
                dir = make_dir(fs, &format!("dir{}", step / 100))?;
            }
            create(fs, dir, &format!("file{step}"), &vec![step as u8; 1024 * (1 + step as usize % 8)])?;
            super::harness::with(fs, dir, &format!("file{step}"), |ino| fs.fsync(ino, false))?;
            step += 1;
            let now = fs.stats().log;
            ensure!(now.checkpoints == start.checkpoints, "the log was emptied at {logged} bytes");
            logged = now.bytes - start.bytes;
        }
        Ok(logged)
    })?;
    let device = harness.device().clone();
    let before = device.counters();
    let fs = Fs::open(device.clone(), None, MountOptions::default().background(false))?;
    let took = device.counters() - before;
    fs.close()?;
    drop(fs);
    harness.check()?;
    Ok((took.seconds(), logged as f64 / 1e6))
}

/// Recovery time.
///
/// # Errors
/// Those of the engine.
pub fn recoveries(scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let fills = [0.05, 0.2, 0.35];
    let mut rows = Vec::new();
    for gib in SIZES {
        let row = fills
            .iter()
            .map(|fill| recovery(gib, fill / scale as f64).map(|(seconds, _)| seconds))
            .collect::<Result<Vec<f64>>>()?;
        rows.push((format!("{gib} GiB"), row));
    }
    let last = |row: usize| rows[row].1[fills.len() - 1];
    let all = || rows.iter().flat_map(|(_, r)| r.iter().copied());
    outcome.claims = vec![
        Claim::at_most("longest recovery, in s (paper: typically less than 15)", 15.0, all().fold(0.0, f64::max)),
        Claim::at_most(
            "2 TiB as many times as long as 1 GiB (independent of the size)",
            1.2,
            last(SIZES.len() - 1) / last(0),
        ),
    ];
    let at = fills.map(|f| format!("log {:.0}% full", f * 100.0));
    outcome.add("Mount after a crash", "s", "file system", &at, rows, false);
    outcome.notes.push(format!(
        "hdd-2026, a log of {LOG} MiB; files of 1 to 8 KiB, each fsynced, so that their data is in the log."
    ));
    Ok(outcome)
}
