//! The aging of figure 7 with what brings files together again: a regroup after it, one that brings free space together as well, or
//! maintenance during it.

use anyhow::Result;
use cffs::MetadataMode;
use cffs_disk::Counters;

use super::aging::{BYTES, DAY, FILES, LowerBound, OPERATIONS, PER_DIR, age_with, compared, count};
use super::harness::{Harness, Setup, Variant, maintain};
use super::lower_bound::{Price, free_blocks};
use super::outcome::{Claim, Outcome};
use super::scattered::free_space;
use super::small::{PHASES, benchmark_with};
use crate::layout::{Adjacency, Layout};

/// How full the disk is, and the loss against the fresh disk that is allowed at most, in %.
const LEVELS: [(&str, f64, f64); 2] = [("70% full", 0.7, 5.0), ("90% full", 0.9, 12.0)];
/// Blocks, and files, that follow the one before them after a regroup, in %.
const ADJACENT: f64 = 90.0;
/// Seeds of the agings. How free space lies in the end is a matter of chance, and one aging says as little as one throw of a die.
const AGINGS: [u64; 5] = [1997, 1, 2, 3, 4];

/// What is done for the aged file system.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Upkeep {
    Nothing,
    Regroup,
    /// A regroup, and then free space is brought together.
    WithFreeSpace,
    Maintenance,
}

impl Upkeep {
    const ALL: [Upkeep; 4] = [Upkeep::Nothing, Upkeep::Regroup, Upkeep::WithFreeSpace, Upkeep::Maintenance];

    fn name(self) -> &'static str {
        match self {
            Upkeep::Nothing => "aged",
            Upkeep::Regroup => "regrouped",
            Upkeep::WithFreeSpace => "regrouped, and free space",
            Upkeep::Maintenance => "with maintenance",
        }
    }
}

/// A state of the disk, and the benchmark on it.
struct Measured {
    phases: [Counters; 4],
    /// Layout score of all files before the benchmark, in %.
    score: f64,
    adjacency: Adjacency,
    bound: LowerBound,
    /// Bytes of the blocks that the aging wrote.
    written: u64,
    moved: u64,
}

impl Measured {
    /// By how much a phase is slower than on a fresh disk, in %.
    fn loss(&self, fresh: &Measured, phase: usize) -> f64 {
        (1.0 - fresh.phases[phase].seconds() / self.phases[phase].seconds()) * 100.0
    }
}

/// Ages to `level`, does what is to be done, and runs the benchmark.
fn measure(level: f64, upkeep: Upkeep, seed: u64, scale: u64) -> Result<Measured> {
    let setup = setup();
    let mut harness = Harness::new(&setup)?;
    // What moves files works with the log only, so that everything before the benchmark does.
    harness.set_metadata(MetadataMode::Journal);
    let (mut written, mut moved) = (0, 0);
    if level > 0.0 {
        harness.phase(|fs| {
            let mut idle = |fs: &cffs::Fs| {
                if upkeep == Upkeep::Maintenance {
                    moved += maintain(fs)?;
                }
                Ok(())
            };
            written = age_with(fs, level, OPERATIONS / scale, seed, &mut idle)?;
            Ok(())
        })?;
    }
    if matches!(upkeep, Upkeep::Regroup | Upkeep::WithFreeSpace) {
        moved = harness.regroup()?.bytes_moved;
    }
    if upkeep == Upkeep::WithFreeSpace {
        harness.phase(|fs| {
            moved += free_space(fs, false)?.bytes_moved;
            Ok(())
        })?;
    }
    let mut layout = Layout::default();
    harness.phase(|fs| {
        layout = Layout::of(fs)?;
        Ok(())
    })?;
    let free = free_blocks(harness.device())?;
    harness.set_metadata(MetadataMode::Sync);
    let mut taken = 0;
    let phases = benchmark_with(&mut harness, FILES / scale, PER_DIR, 1024, &mut |harness| {
        taken = count(&free) - count(&free_blocks(harness.device())?);
        Ok(())
    })?;
    harness.check()?;
    Ok(Measured {
        phases,
        score: layout.score().last().map_or(0.0, |(share, _)| *share),
        adjacency: layout.adjacency(),
        bound: LowerBound::of(&free, taken, price(&setup)?, &setup)?,
        written,
        moved,
    })
}

fn setup() -> Setup {
    Setup { bytes: BYTES, ..Setup::ganger(Variant::BOTH, MetadataMode::Sync) }
}

fn price(setup: &Setup) -> Result<Price> {
    Price::of(setup.profile, u64::from(setup.block))
}

/// The benchmark on a fresh disk, on aged ones, and on those that were kept up.
///
/// # Errors
/// Those of the engine.
pub fn figure7(scale: u64) -> Result<Outcome> {
    let price = price(&setup())?;
    let fresh = measure(0.0, Upkeep::Nothing, AGINGS[0], scale)?;
    let mut outcome = Outcome::default();
    let (mut states, mut losses) = (Vec::new(), Vec::new());
    for (level, share, most) in LEVELS {
        for upkeep in Upkeep::ALL {
            let state = format!("{level}, {}", upkeep.name());
            let agings = if upkeep == Upkeep::Nothing { &AGINGS[..1] } else { &AGINGS };
            let mut all = agings.iter().map(|seed| measure(share, upkeep, *seed, scale)).collect::<Result<Vec<_>>>()?;
            if upkeep != Upkeep::Nothing {
                outcome.claims.extend(mean_losses(&state, most, &fresh, &all, price, scale));
                let of_phase = |phase| all.iter().map(|m| m.loss(&fresh, phase)).collect();
                losses.extend((0..3).map(|phase| (format!("{state}: {}", PHASES[phase]), of_phase(phase))));
            }
            if upkeep == Upkeep::Regroup {
                let least = |of: &dyn Fn(&Measured) -> f64| all.iter().map(of).fold(f64::INFINITY, f64::min);
                let score = format!("{state}: layout score: blocks that follow the one before them, in % (our target)");
                outcome.claims.push(Claim::at_least(score, ADJACENT, least(&|m| m.score)));
                let listed = format!("{state}: files that follow the one listed before them, in % (our target)");
                outcome.claims.push(Claim::at_least(listed, ADJACENT, least(&|m| m.adjacency.listed)));
            }
            states.push((state, all.swap_remove(0)));
        }
    }
    states.insert(0, ("fresh".into(), fresh));
    tables(&mut outcome, &states, scale);
    let columns = AGINGS.map(|seed| format!("seed {seed}"));
    outcome.table("Loss against the fresh disk, of each aging (%)", "state", &columns, losses);
    outcome.notes = vec![format!(
        "As figure 7, with the log until the benchmark begins, because without it nothing is moved. With maintenance, the file system is \
         idle after every {DAY} creations and deletions, and takes a step if it has the credit for it. What was written is counted in blocks of 4 KB, \
         which is what credit is given for. A loss is the mean of {} agings, a score the lowest of them; the other tables show the first.",
        AGINGS.len()
    )];
    Ok(outcome)
}

fn mean_losses(state: &str, most: f64, fresh: &Measured, agings: &[Measured], price: Price, scale: u64) -> Vec<Claim> {
    let claim = |phase: usize| {
        let mean = agings.iter().map(|m| m.loss(fresh, phase)).sum::<f64>() / agings.len() as f64;
        Claim::at_most(format!("{state}: {}: loss in % (our target)", PHASES[phase]), most, mean).because(|| {
            let loss = |m: &Measured| m.loss(fresh, phase);
            let Some(m) = agings.iter().max_by(|a, b| loss(a).total_cmp(&loss(b))) else { return String::new() };
            let cost = compared(&fresh.phases[phase], &m.phases[phase], FILES / scale * 4096);
            format!("The worst aging: {cost} {}", m.bound.describe(&fresh.bound, price, &fresh.phases[phase], most))
        })
    };
    (0..3).map(claim).collect()
}

fn tables(outcome: &mut Outcome, states: &[(String, Measured)], scale: u64) {
    let files = (FILES / scale) as f64;
    let rows = |of: &dyn Fn(&Measured) -> Vec<f64>| -> Vec<(String, Vec<f64>)> {
        states.iter().map(|(name, m)| (name.clone(), of(m))).collect()
    };
    let phases = PHASES.map(str::to_string);
    let rates = rows(&|m| m.phases.iter().map(|c| files / c.seconds()).collect());
    outcome.add("Throughput", "files/s", "state", &phases, rates, false);
    let requests = rows(&|m| m.phases.iter().map(|c| c.requests() as f64 * 1e3 / files).collect());
    outcome.table("Requests (per 1,000 files)", "state", &phases, requests);
    let columns = ["layout score", "as listed", "alphabetical", "by address"].map(str::to_string);
    let lie = rows(&|m| vec![m.score, m.adjacency.listed, m.adjacency.alphabetical, m.adjacency.best]);
    outcome.table("How the aged files lie before the benchmark (%)", "state", &columns, lie);
    let columns = ["free blocks", "runs", "written, MiB", "moved, MiB", "moved for each byte written"];
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let space = rows(&|m| {
        let each = m.moved as f64 / m.written.max(1) as f64;
        vec![m.bound.free as f64, m.bound.runs as f64, mib(m.written), mib(m.moved), each]
    });
    outcome.table("Free space, and what was moved", "state", &columns.map(str::to_string), space);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_brings_files_together_shows_in_how_they_lie() {
        let [aged, regrouped, _, kept] = Upkeep::ALL.map(|upkeep| measure(0.7, upkeep, AGINGS[0], 50).unwrap());
        assert_eq!(aged.moved, 0);
        assert!(regrouped.moved > 0 && kept.moved > 0);
        assert_eq!(regrouped.written, aged.written);
        for better in [&regrouped, &kept] {
            assert!(better.adjacency.listed > aged.adjacency.listed, "{:?}", better.adjacency);
        }
    }
}
