//! Large files: both techniques must change nothing, and the disk's bandwidth must come through.

use anyhow::Result;
use cffs::{Caller, Fs, Ino, MetadataMode, ROOT_INO};
use cffs_disk::{Counters, Request, profiles};

use super::harness::{Harness, Setup, Variant, with};
use super::outcome::{Chart, Claim, Outcome, Table};

/// Bytes of one call.
const PIECE: usize = 64 << 10;
const PHASES: [&str; 3] = ["write", "read", "overwrite"];

/// Writes, reads and overwrites a file of so many bytes; MB/s.
///
/// # Errors
/// Those of the engine.
pub fn benchmark(harness: &mut Harness, bytes: u64) -> Result<[f64; 3]> {
    in_pieces(harness, bytes, PIECE)
}

/// The same with calls of so many bytes each.
///
/// # Errors
/// Those of the engine.
pub fn in_pieces(harness: &mut Harness, bytes: u64, piece: usize) -> Result<[f64; 3]> {
    Ok(phases(harness, bytes, piece)?.map(|c| bytes as f64 / c.seconds() / 1e6))
}

/// What each of the three asked of the disk.
///
/// # Errors
/// Those of the engine.
pub fn phases(harness: &mut Harness, bytes: u64, piece: usize) -> Result<[Counters; 3]> {
    let content = vec![7; piece];
    let write = |fs: &Fs, ino: Ino| -> cffs::Result<()> {
        for at in (0..bytes).step_by(piece) {
            fs.write(Caller::ROOT, ino, at, &content)?;
        }
        Ok(())
    };
    let written = harness.phase(|fs| {
        let ino = fs.create(Caller::ROOT, ROOT_INO, b"large", 0o644)?.ino;
        let result = write(fs, ino);
        fs.forget(ino, 1);
        Ok(result?)
    })?;
    let read = harness.phase(|fs| {
        let mut buf = vec![0; piece];
        with(fs, ROOT_INO, "large", |ino| {
            (0..bytes).step_by(piece).try_for_each(|at| fs.read(ino, at, &mut buf).map(drop))
        })
    })?;
    let overwritten = harness.phase(|fs| with(fs, ROOT_INO, "large", |ino| write(fs, ino)))?;
    Ok([written, read, overwritten])
}

/// What the disk itself gives for so many bytes at the same place in its largest requests: reads and writes, MB/s.
pub fn raw(profile: &str, bytes: u64, at: u64) -> [f64; 2] {
    [false, true].map(|write| {
        let Some(mut model) = profiles::find(profile).map(|p| p.model()) else { return 0.0 };
        let each = model.request_max();
        let mut now = 0;
        for offset in (at..at + bytes).step_by(each as usize) {
            now = model.serve(now, &[Request { write, ..Request::read(offset, each) }]);
        }
        bytes as f64 / (model.flush(now) as f64 / 1e9) / 1e6
    })
}

/// MB/s of reading a large file on the disk of the thesis.
///
/// # Errors
/// Those of the engine.
pub fn thesis_read() -> Result<f64> {
    Ok(benchmark(&mut Harness::new(&Setup::sapuntzakis(Variant::BOTH))?, 64 << 20)?[1])
}

fn over_variants(setup: impl Fn(Variant) -> Setup, bytes: u64) -> Result<Outcome> {
    let mut runs = Vec::new();
    for variant in Variant::ALL {
        let mut harness = Harness::new(&setup(variant))?;
        runs.push((variant, benchmark(&mut harness, bytes)?));
        harness.check()?;
    }
    let profile = setup(Variant::BOTH);
    // Large files begin in the middle of an allocation group; on these disks the zone makes the difference.
    let [raw_read, raw_write] = raw(profile.profile, bytes, 0);
    let mut rows: Vec<(String, Vec<f64>)> = runs.iter().map(|(v, r)| (v.name().to_string(), r.to_vec())).collect();
    rows.push(("the disk itself".to_string(), vec![raw_write, raw_read, raw_write]));
    let mut columns = vec!["large file".to_string()];
    columns.extend(PHASES.map(str::to_string));
    let mut outcome = Outcome::default();
    outcome.charts.push(Chart {
        title: "Bandwidth".to_string(),
        unit: "MB/s".to_string(),
        lines: false,
        at: PHASES.map(str::to_string).to_vec(),
        series: rows.clone(),
    });
    outcome.tables.push(Table { title: "Bandwidth (MB/s)".to_string(), columns, rows });
    let find = |v: Variant| runs.iter().find(|(x, _)| *x == v).map(|(_, r)| *r).unwrap_or_default();
    let (both, neither) = (find(Variant::BOTH), find(Variant::NEITHER));
    for (at, raw) in [raw_write, raw_read, raw_write].into_iter().enumerate() {
        let text = format!("{}: both techniques against neither, in %", PHASES[at]);
        outcome.claims.push(Claim::at_least(text, 98.0, both[at] / neither[at] * 100.0));
        let text = format!("{}: share of the disk's bandwidth, in % (our target)", PHASES[at]);
        outcome.claims.push(Claim::at_least(text, 95.0, both[at] / raw * 100.0));
    }
    Ok(outcome)
}

/// Ganger and Kaashoek 1997, figure 8.
///
/// # Errors
/// Those of the engine.
pub fn figure8() -> Result<Outcome> {
    over_variants(|v| Setup::ganger(v, MetadataMode::Sync), 32 << 20)
}

/// Sapuntzakis 1998, table 4.1.
///
/// # Errors
/// Those of the engine.
pub fn table41() -> Result<Outcome> {
    let mut outcome = over_variants(Setup::sapuntzakis, 64 << 20)?;
    for (name, figures) in [("FFS in the thesis", [6.10, 5.74, 6.23]), ("C-FFS in the thesis", [6.26, 5.93, 6.31])] {
        outcome.tables[0].rows.push((name.to_string(), figures.to_vec()));
    }
    outcome.notes.push("The thesis measured on a Quantum Atlas of 2 GB; here it is its successor.".to_string());
    Ok(outcome)
}
