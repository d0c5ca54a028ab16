//! Seltzer et al. 1995: bandwidth by file size.

use anyhow::Result;
use cffs::{Caller, Fs, Ino, ROOT_INO};
use cffs_disk::Counters;

use super::harness::{Harness, Setup, Variant, create, make_dir};
use super::large::raw;
use super::outcome::{Claim, Outcome};

/// Sizes in KiB; 12, 96 and 192 stand where the paper's file systems have their dips, before and behind indirect blocks.
const SIZES: [u64; 15] = [1, 2, 4, 8, 12, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 4096];
const PER_DIR: u64 = 100;
/// Bytes of one call: a block.
const PIECE: usize = 8 << 10;
const PHASES: [&str; 3] = ["read", "write", "write with fsync"];

/// Reads, writes, and writes with fsync of each file, of `total` bytes in files of one size; MB/s.
fn measure(setup: &Setup, total: u64, size: u64) -> Result<[f64; 3]> {
    let files = (total / size).max(1);
    let content = vec![0x5a; size as usize];
    let mut harness = Harness::new(setup)?;
    harness.phase(|fs| {
        let mut dir = ROOT_INO;
        for n in 0..files {
            if n.is_multiple_of(PER_DIR) {
                dir = make_dir(fs, &format!("dir{}", n / PER_DIR))?;
            }
            create(fs, dir, &format!("file{n}"), &content)?;
        }
        Ok(())
    })?;
    let pieces = || (0..size).step_by(PIECE).map(|at| (at, (size - at).min(PIECE as u64) as usize));
    let read = each(&mut harness, files, |fs, ino| {
        let mut buf = vec![0; PIECE];
        pieces().try_for_each(|(at, len)| fs.read(ino, at, &mut buf[..len]).map(drop))
    })?;
    let write = |fs: &Fs, ino: Ino| {
        pieces().try_for_each(|(at, len)| fs.write(Caller::ROOT, ino, at, &content[..len]).map(drop))
    };
    let written = each(&mut harness, files, write)?;
    let synced = each(&mut harness, files, |fs, ino| {
        write(fs, ino)?;
        fs.fsync(ino, false)
    })?;
    harness.check()?;
    let rate = |c: Counters| (files * size) as f64 / c.seconds() / 1e6;
    Ok([rate(read), rate(written), rate(synced)])
}

fn each(harness: &mut Harness, files: u64, work: impl Fn(&Fs, Ino) -> cffs::Result<()>) -> Result<Counters> {
    harness.phase(|fs| {
        let mut dir = ROOT_INO;
        for n in 0..files {
            if n.is_multiple_of(PER_DIR) {
                dir = fs.lookup(ROOT_INO, format!("dir{}", n / PER_DIR).as_bytes())?.ino;
            }
            super::harness::with(fs, dir, &format!("file{n}"), |ino| work(fs, ino))?;
        }
        Ok(())
    })
}

/// The worst share that a size of at least 16 KiB reaches of what the best smaller one had, in %, and that size.
fn worst_dip(rates: &[f64]) -> f64 {
    let mut best: f64 = 0.0;
    let mut worst: f64 = 100.0;
    for (kib, rate) in SIZES.iter().zip(rates) {
        if *kib > 16 {
            worst = worst.min(rate / best * 100.0);
        }
        best = best.max(*rate);
    }
    worst
}

/// Figures 1 to 3.
///
/// # Errors
/// Those of the engine.
pub fn figures(scale: u64) -> Result<Outcome> {
    let total = (32 << 20) / scale;
    let at: Vec<String> =
        SIZES.iter().map(|kib| if *kib < 1024 { format!("{kib} KB") } else { format!("{} MB", kib >> 10) }).collect();
    let mut outcome = Outcome::default();
    let mut rows: Vec<Vec<(String, Vec<f64>)>> = vec![Vec::new(); 3];
    for variant in [Variant::BOTH, Variant::NEITHER] {
        let runs =
            SIZES.iter().map(|kib| measure(&Setup::seltzer(variant), total, kib << 10)).collect::<Result<Vec<_>>>()?;
        for (phase, rows) in rows.iter_mut().enumerate() {
            rows.push((variant.name().to_string(), runs.iter().map(|r| r[phase]).collect()));
        }
    }
    let [raw_read, raw_write] = raw("dsp3105", 32 << 20, 0);
    for (phase, name) in PHASES.iter().enumerate() {
        let ours = rows[phase][0].1.clone();
        let title = format!("Figure {}: {name}", phase + 1);
        let mut series = rows[phase].clone();
        series.push(("the disk itself".into(), vec![if phase == 0 { raw_read } else { raw_write }; SIZES.len()]));
        outcome.add(&title, "MB/s", "variant", &at, series, true);
        let text = format!("{name}: no dip from 32 KB on: a size has of the best smaller one at least, in %");
        outcome.claims.push(Claim::at_least(text, 95.0, worst_dip(&ours)));
    }
    let last = SIZES.len() - 1;
    let share = |phase: usize, raw: f64| rows[phase][0].1[last] / raw * 100.0;
    outcome.claims.push(Claim::at_least(
        "read of 4 MB files: share of the disk in % (our target)",
        95.0,
        share(0, raw_read),
    ));
    outcome.claims.push(Claim::at_least(
        "write of 4 MB files: share of the disk in % (paper: about 2/3)",
        66.0,
        share(1, raw_write),
    ));
    let synced = rows[2][0].1[last] / rows[1][0].1[last] * 100.0;
    outcome.claims.push(Claim::at_least("write with fsync of 4 MB files, in % of that without", 85.0, synced));
    outcome.untested = vec![(
        "figure 4: transactions (TPC-B) with and without the cleaner".into(),
        "it compares with a log-structured file system, which cffs does not have as a policy".into(),
    )];
    outcome.notes = vec![
        "Write-ahead log, 8 KiB blocks with 1 KiB fragments, groups of 64 KiB, at most 56 KB a request; writes go to files that exist."
            .into(),
        "The paper has these figures as plots; its text names the dips at 96 KB, where indirect blocks begin, and two thirds of the \
         bandwidth for writes of large files."
            .into(),
    ];
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dip_is_found_where_it_is() {
        let mut rates: Vec<f64> = (1..=SIZES.len()).map(|n| n as f64).collect();
        assert_eq!(worst_dip(&rates), 100.0);
        rates[8] = 4.0;
        assert_eq!(worst_dip(&rates), 50.0);
    }
}
