//! Seltzer et al. 1995: bandwidth by file size, in place and on a log.

use anyhow::Result;
use cffs::{Caller, Fs, Ino, ROOT_INO};
use cffs_disk::Counters;

use super::harness::{Harness, Setup, Variant, create, make_dir};
use super::large::raw;
use super::outcome::{Claim, Outcome, asked, shown, went};
use super::volume::Layout;

/// Sizes in KiB; 12, 96 and 192 stand where the paper's file systems have their dips, before and behind indirect blocks.
const SIZES: [u64; 15] = [1, 2, 4, 8, 12, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 4096];
const PER_DIR: u64 = 100;
/// Bytes of one call: a block.
const PIECE: usize = 8 << 10;
/// What is done with the files, and the figure of the paper that has it.
const PHASES: [(&str, Option<u32>); 5] =
    [("create", None), ("read", Some(1)), ("write", Some(2)), ("write with fsync", Some(3)), ("remove", None)];
const CREATE: usize = 0;
const READ: usize = 1;
const WRITE: usize = 2;
const SYNCED: usize = 3;
const REMOVE: usize = 4;
/// Sizes in KiB on a disk of today, and bytes of data there: enough that the ways at the beginning and the end do not count.
const SIZES_TODAY: [u64; 5] = [1, 4, 16, 64, 1024];
const BYTES_TODAY: u64 = 256 << 20;
/// Files up to this size are small, in KiB.
const SMALL: u64 = 16;

/// All phases with files of one size.
#[derive(Clone, Copy)]
struct Run {
    files: u64,
    bytes: u64,
    phases: [Counters; 5],
}

impl Run {
    /// MB/s of contents; files/s of a removal.
    fn rate(&self, phase: usize) -> f64 {
        let what = if phase == REMOVE { self.files as f64 } else { self.bytes as f64 / 1e6 };
        what / self.phases[phase].seconds().max(1e-9)
    }

    /// MB/s that the disk was given to write.
    fn written(&self, phase: usize) -> f64 {
        self.phases[phase].written_bytes as f64 / self.phases[phase].seconds().max(1e-9) / 1e6
    }
}

/// Creates files of one size, `total` bytes of them; reads them, writes them, writes them with fsync of each, removes them.
fn measure(setup: &Setup, total: u64, size: u64) -> Result<Run> {
    let files = (total / size).max(1);
    let content = vec![0x5a; size as usize];
    let mut harness = Harness::new(setup)?;
    let created = harness.phase(|fs| {
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
    let removed = in_dirs(&mut harness, files, |fs, dir, name| Ok(fs.unlink(dir, name.as_bytes())?))?;
    harness.check()?;
    Ok(Run { files, bytes: files * size, phases: [created, read, written, synced, removed] })
}

fn in_dirs(harness: &mut Harness, files: u64, work: impl Fn(&Fs, Ino, &str) -> Result<()>) -> Result<Counters> {
    harness.phase(|fs| {
        let mut dir = ROOT_INO;
        for n in 0..files {
            if n.is_multiple_of(PER_DIR) {
                dir = fs.lookup(ROOT_INO, format!("dir{}", n / PER_DIR).as_bytes())?.ino;
            }
            work(fs, dir, &format!("file{n}"))?;
        }
        Ok(())
    })
}

fn each(harness: &mut Harness, files: u64, work: impl Fn(&Fs, Ino) -> cffs::Result<()>) -> Result<Counters> {
    in_dirs(harness, files, |fs, dir, name| super::harness::with(fs, dir, name, |ino| work(fs, ino)))
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

fn names(sizes: &[u64]) -> Vec<String> {
    sizes.iter().map(|kib| if *kib < 1024 { format!("{kib} KB") } else { format!("{} MB", kib >> 10) }).collect()
}

/// The log against what is in place, on one disk.
fn compare(outcome: &mut Outcome, disk: &str, sizes: &[u64], [in_place, log]: [&[Run]; 2], [_, raw_write]: [f64; 2]) {
    let at = names(sizes);
    let small = || log.iter().enumerate().filter(|(n, _)| sizes[*n] <= SMALL);
    for (phase, what) in [(CREATE, "created"), (WRITE, "written")] {
        let share = |rate: f64| rate / raw_write * 100.0;
        let worst = small().min_by(|a, b| a.1.rate(phase).total_cmp(&b.1.rate(phase)));
        let Some((n, run)) = worst else { continue };
        let given = small().min_by(|a, b| a.1.written(phase).total_cmp(&b.1.written(phase)));
        let text = format!(
            "{disk}: small files {what} on the log, with names and inodes: share of the disk's bandwidth in %, worst size"
        );
        if let Some((n, run)) = given {
            outcome.claims.push(Claim::at_least(text, 95.0, share(run.written(phase))).because(|| {
                let bytes = shown(run.phases[phase].written_bytes as f64 / run.bytes as f64);
                format!(
                    "{}: {bytes} bytes for each byte of contents. {}; {}.",
                    at[n],
                    asked(&run.phases[phase]),
                    went(&run.phases[phase])
                )
            }));
        }
        let text =
            format!("{disk}: small files {what} on the log, contents: share of the disk's bandwidth in %, worst size");
        outcome.claims.push(Claim::at_least(text, 95.0, share(run.rate(phase))).because(|| {
            format!(
                "{}: the disk was given {} bytes for each byte of contents, at {}% of its bandwidth. {}; {}. In place: {}.",
                at[n],
                shown(run.phases[phase].written_bytes as f64 / run.bytes as f64),
                shown(share(run.written(phase))),
                asked(&run.phases[phase]),
                went(&run.phases[phase]),
                asked(&in_place[n].phases[phase])
            )
        }));
    }
    for (phase, what) in [(READ, "read in the order of writing"), (SYNCED, "written with fsync"), (REMOVE, "removed")] {
        let ratio = |n: usize| log[n].rate(phase) / in_place[n].rate(phase) * 100.0;
        let Some(n) = (0..log.len()).min_by(|a, b| ratio(*a).total_cmp(&ratio(*b))) else { continue };
        let text = format!("{disk}: {what}, the log against in place in %, worst size");
        outcome.claims.push(Claim::at_least(text, 98.0, ratio(n)).because(|| {
            let of = |run: &Run| format!("{}; {}", asked(&run.phases[phase]), went(&run.phases[phase]));
            format!("{}. The log: {}. In place: {}.", at[n], of(&log[n]), of(&in_place[n]))
        }));
    }
}

/// On a disk of today, which the paper could not have.
fn today(outcome: &mut Outcome, scale: u64) -> Result<()> {
    let profile = "hdd-2026";
    let setup = |layout| Setup { layout, bytes: 4 << 30, ..Setup::today(profile) };
    let total = BYTES_TODAY / scale;
    let runs = [Layout::InPlace, Layout::log()].map(|layout| {
        SIZES_TODAY.iter().map(|kib| measure(&setup(layout), total, kib << 10)).collect::<Result<Vec<_>>>()
    });
    let [in_place, log] = runs;
    let (in_place, log) = (in_place?, log?);
    let bandwidth = raw(profile, total, 0);
    for (phase, (name, _)) in PHASES.iter().enumerate() {
        let row = |runs: &[Run]| runs.iter().map(|r| r.rate(phase)).collect();
        let mut rows = vec![("in place".to_string(), row(&in_place)), ("log".to_string(), row(&log))];
        if phase != REMOVE {
            rows.push(("the disk itself".into(), vec![bandwidth[usize::from(phase != READ)]; SIZES_TODAY.len()]));
        }
        let unit = if phase == REMOVE { "files/s" } else { "MB/s" };
        outcome.table(format!("{profile}: {name} ({unit})"), "layout", &names(&SIZES_TODAY), rows);
    }
    compare(outcome, profile, &SIZES_TODAY, [&in_place, &log], bandwidth);
    Ok(())
}

/// Figures 1 to 3.
///
/// # Errors
/// Those of the engine.
pub fn figures(scale: u64) -> Result<Outcome> {
    let total = (32 << 20) / scale;
    let at = names(&SIZES);
    let mut outcome = Outcome::default();
    let on = |variant, layout| {
        let setup = Setup { layout, ..Setup::seltzer(variant) };
        SIZES.iter().map(|kib| measure(&setup, total, kib << 10)).collect::<Result<Vec<_>>>()
    };
    let runs = [
        ("both", on(Variant::BOTH, Layout::InPlace)?),
        ("neither", on(Variant::NEITHER, Layout::InPlace)?),
        ("on the log", on(Variant::BOTH, Layout::log())?),
    ];
    let [raw_read, raw_write] = raw("dsp3105", 32 << 20, 0);
    for (phase, (name, figure)) in PHASES.iter().enumerate() {
        let mut series: Vec<(String, Vec<f64>)> =
            runs.iter().map(|(n, runs)| (n.to_string(), runs.iter().map(|r| r.rate(phase)).collect())).collect();
        let Some(figure) = figure else {
            let unit = if phase == REMOVE { "files/s" } else { "MB/s" };
            outcome.table(format!("dsp3105: {name} ({unit})"), "variant", &at, series);
            continue;
        };
        for (layout, rates) in [("in place", &series[0].1), ("log", &series[2].1)] {
            let text =
                format!("{name}, {layout}: no dip from 32 KB on: a size has of the best smaller one at least, in %");
            outcome.claims.push(Claim::at_least(text, 95.0, worst_dip(rates)).because(|| {
                let rates: Vec<String> = at.iter().zip(rates).map(|(at, r)| format!("{at} {}", shown(*r))).collect();
                format!("MB/s: {}.", rates.join(", "))
            }));
        }
        series.push(("the disk itself".into(), vec![if phase == READ { raw_read } else { raw_write }; SIZES.len()]));
        outcome.add(&format!("Figure {figure}: {name}"), "MB/s", "variant", &at, series, true);
    }
    let last = SIZES.len() - 1;
    let [(_, both), _, (_, log)] = &runs;
    let share = |phase: usize, raw: f64| both[last].rate(phase) / raw * 100.0;
    outcome.claims.push(Claim::at_least(
        "read of 4 MB files: share of the disk in % (our target)",
        95.0,
        share(READ, raw_read),
    ));
    outcome.claims.push(Claim::at_least(
        "write of 4 MB files: share of the disk in % (paper: about 2/3)",
        66.0,
        share(WRITE, raw_write),
    ));
    let synced = both[last].rate(SYNCED) / both[last].rate(WRITE) * 100.0;
    outcome.claims.push(Claim::at_least("write with fsync of 4 MB files, in % of that without", 85.0, synced));
    compare(&mut outcome, "dsp3105", &SIZES, [both, log], [raw_read, raw_write]);
    today(&mut outcome, scale)?;
    outcome.notes = vec![
        "Write-ahead log, 8 KiB blocks with 1 KiB fragments, groups of 64 KiB, at most 56 KB a request; writes go to files that exist."
            .into(),
        "The paper has these figures as plots; its text names the dips at 96 KB, where indirect blocks begin, and two thirds of the \
         bandwidth for writes of large files."
            .into(),
        format!(
            "On the log the engine stands on a log disk as on any device, and keeps its own write-ahead log. On `hdd-2026`: {} MB, 4 KiB blocks.",
            BYTES_TODAY >> 20
        ),
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
