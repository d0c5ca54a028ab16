//! Ganger and Kaashoek 1997, section 6: files are read in the order of their names, or in that in which they were written; in place, the
//! first should be fast, on a log the second.

use anyhow::{Result, ensure};
use cffs::{Caller, Fs, Ino, MetadataMode, ROOT_INO};
use cffs_disk::Counters;

use super::harness::{Harness, Setup, Variant, create, make_dir, with};
use super::outcome::{Claim, Outcome, asked, went};
use super::volume::Layout;
use crate::random::Random;

const PER_DIR: usize = 100;
const BYTES: usize = 4096;
/// How often what was written is synced: things do not come all at once.
const SYNCS: usize = 40;
/// Disks, and how many files: on the second one more than a log keeps of what was read around others.
const DISKS: [(&str, usize); 2] = [("st31200", 4000), ("hdd-2026", 32_000)];

/// How the files got their contents.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writing {
    ByName,
    AnyOrder,
    Rewritten,
}

impl Writing {
    const ALL: [Writing; 3] = [Writing::ByName, Writing::AnyOrder, Writing::Rewritten];

    fn name(self) -> &'static str {
        match self {
            Writing::ByName => "made by name",
            Writing::AnyOrder => "made in any order",
            Writing::Rewritten => "made by name, rewritten in any order",
        }
    }
}

fn shuffled(files: usize) -> Vec<usize> {
    let mut random = Random::new(6);
    let mut order: Vec<usize> = (0..files).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at as u64 + 1) as usize);
    }
    order
}

fn name(file: usize) -> String {
    format!("file{file:05}")
}

/// Does something with each file, in this order.
fn each(fs: &Fs, order: &[usize], mut work: impl FnMut(Ino, &str) -> Result<()>) -> Result<()> {
    let last = order.iter().max().map_or(0, |file| file / PER_DIR);
    let dirs = (0..=last)
        .map(|dir| Ok(fs.lookup(ROOT_INO, format!("dir{dir:03}").as_bytes())?.ino))
        .collect::<Result<Vec<Ino>>>()?;
    for file in order {
        work(dirs[file / PER_DIR], &name(*file))?;
    }
    dirs.into_iter().for_each(|ino| fs.forget(ino, 1));
    Ok(())
}

/// The same, with a sync now and then.
fn written(fs: &Fs, order: &[usize], mut work: impl FnMut(Ino, &str) -> Result<()>) -> Result<()> {
    let (mut done, at_once) = (0, order.len().div_ceil(SYNCS));
    each(fs, order, |dir, name| {
        work(dir, name)?;
        done += 1;
        if done % at_once == 0 {
            fs.sync()?;
        }
        Ok(())
    })
}

/// Writes, and reads by name and as written.
fn measure(disk: &'static str, layout: Layout, writing: Writing, files: usize) -> Result<[Counters; 2]> {
    let setup = match disk {
        "st31200" => Setup { scatter: false, layout, ..Setup::ganger(Variant::BOTH, MetadataMode::Journal) },
        _ => Setup { layout, ..Setup::today(disk) },
    };
    let mut harness = Harness::new(&setup)?;
    let by_name: Vec<usize> = (0..files).collect();
    let any = shuffled(files);
    let (old, new) = (vec![0x5a; BYTES], vec![0xa5; BYTES]);
    let content = if writing == Writing::Rewritten { &new } else { &old };
    harness.phase(|fs| {
        for dir in 0..files.div_ceil(PER_DIR) {
            fs.forget(make_dir(fs, &format!("dir{dir:03}"))?, 1);
        }
        let order = if writing == Writing::AnyOrder { &any } else { &by_name };
        written(fs, order, |dir, name| create(fs, dir, name, &old))?;
        if writing == Writing::Rewritten {
            written(fs, &any, |dir, name| with(fs, dir, name, |ino| fs.write(Caller::ROOT, ino, 0, &new)).map(drop))?;
        }
        Ok(())
    })?;
    let as_written = if writing == Writing::ByName { &by_name } else { &any };
    let mut read = |order: &[usize]| {
        harness.phase(|fs| {
            let mut buf = vec![0; BYTES];
            each(fs, order, |dir, name| {
                with(fs, dir, name, |ino| fs.read(ino, 0, &mut buf))?;
                ensure!(buf == *content, "{name} does not have its bytes");
                Ok(())
            })
        })
    };
    let both = [read(&by_name)?, read(as_written)?];
    harness.check()?;
    Ok(both)
}

/// All disks, layouts and kinds of writing.
///
/// # Errors
/// Those of the engine.
pub fn orders(scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for (disk, files) in DISKS {
        let files = files / scale as usize;
        let mut rows: [Vec<(String, Vec<f64>)>; 2] = Default::default();
        for writing in Writing::ALL {
            let [in_place, log] = Layout::both().map(|layout| measure(disk, layout, writing, files));
            let runs = [in_place?, log?];
            for (layout, run) in Layout::both().iter().zip(&runs) {
                let row = format!("{}, {}", writing.name(), layout.name());
                rows[0].push((row.clone(), run.iter().map(|c| files as f64 / c.seconds()).collect()));
                rows[1].push((row, run.iter().map(|c| c.requests() as f64 * 1000.0 / files as f64).collect()));
            }
            if writing == Writing::ByName {
                continue; // both orders are one
            }
            let told = |n: usize| {
                let of = |c: &Counters| format!("{}; {}", asked(c), went(c));
                format!("In place: {}. The log: {}.", of(&runs[0][n]), of(&runs[1][n]))
            };
            let times = |n: usize| runs[1][n].seconds() / runs[0][n].seconds();
            let text = format!("{disk}, {}: read by name, in place against the log, times", writing.name());
            outcome.claims.push(Claim::at_least(text, 1.0, times(0)).because(|| told(0)));
            let text = format!("{disk}, {}: read as written, the log against in place, times", writing.name());
            outcome.claims.push(Claim::at_least(text, 1.0, 1.0 / times(1)).because(|| told(1)));
        }
        let columns = ["read by name", "read as written"].map(str::to_string);
        let [rates, requests] = rows;
        outcome.table(format!("{disk}: files/s"), "writing, layout", &columns, rates);
        outcome.table(format!("{disk}: requests per 1,000 files"), "writing, layout", &columns, requests);
    }
    let of = DISKS.map(|(disk, files)| format!("{} on {disk}", files / scale as usize)).join(", ");
    outcome.notes = vec![format!("Files of 4 KB in directories of {PER_DIR}, synced about {SYNCS} times: {of}.")];
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_reads_back_what_was_written_in_any_order() {
        for layout in Layout::both() {
            for writing in Writing::ALL {
                // More than the mount reads around what it needs.
                let [by_name, as_written] = measure("hdd-2026", layout, writing, 600).unwrap();
                assert!(by_name.reads > 0 && as_written.reads > 0);
            }
        }
    }
}
