//! The cleaner of the log disk alone, against what a cleaner has to copy at least.

use std::sync::Arc;

use anyhow::Result;
use cffs::device::{Device, IoKind, MemoryDevice};
use cffs_logdisk::{BLOCK_BYTES, CleanPolicy, ImageOptions, ImageStore, LogDisk, LogOptions};

use super::cleaner_model::{Pattern, copied_greedy};
use super::outcome::{Claim, Outcome, shown};
use crate::random::Random;

const POLICIES: [(&str, CleanPolicy); 3] = [
    ("greedy", CleanPolicy::Greedy),
    ("cost-benefit", CleanPolicy::CostBenefit),
    ("generations", CleanPolicy::Generations),
];
/// How full, in % of all segments.
const LEVELS: [u64; 6] = [48, 60, 70, 75, 80, 90];
/// Segments, and bytes of one.
const SEGMENTS: u64 = 1024;
const SEGMENT_BYTES: u64 = 256 << 10;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks of a segment: all but one, which is the summary of a batch.
const SEGMENT_BLOCKS: u64 = SEGMENT_BYTES / BLOCK - 1;
/// Looks at how full the log disk is, on average over what is measured.
const LOOKS: u64 = 100;

/// What a log disk did in the steady state.
#[derive(Clone, Copy)]
struct Measured {
    /// Bytes copied for each byte written.
    copied: f64,
    /// Bytes written to the store for each, with copies, summaries and nodes.
    written: f64,
    /// What lives, data and nodes, as a share of the blocks of all segments, on average.
    live: f64,
    /// The share of segments that are in use, on average.
    in_use: f64,
}

/// A log disk of `segments` of which `level` % live. `None` if it does not take as much.
fn measure(policy: CleanPolicy, pattern: Pattern, segments: u64, level: u64) -> Result<Option<Measured>> {
    let capacity = segments * SEGMENT_BYTES;
    // The superblocks are before the first segment.
    let device = Arc::new(MemoryDevice::new(capacity + SEGMENT_BYTES));
    let image = ImageOptions { uuid: [7; 16], slot_bytes: SEGMENT_BYTES };
    let store = Arc::new(ImageStore::format(device, &image)?);
    // Batches that fill a segment, so that no end of one is wasted.
    let batch_bytes = SEGMENT_BYTES as usize - (16 << 10);
    let disk = LogDisk::format(store, 1 << 40, &LogOptions { policy, batch_bytes, ..LogOptions::default() })?;
    let blocks = capacity * level / 100 / BLOCK;
    let data = vec![7; BLOCK_BYTES];
    let write = |block: u64| disk.write_at(IoKind::Data, block * BLOCK, &data);
    for block in 0..blocks {
        match write(block) {
            Err(e) if e.kind() == std::io::ErrorKind::StorageFull => return Ok(None),
            other => other?,
        }
    }
    let mut random = Random::new(1);
    let mut run = |writes: u64| -> Result<Option<Measured>> {
        let before = disk.stats();
        let (mut live, mut in_use) = (0, 0);
        for n in 0..writes {
            if n * LOOKS % writes < LOOKS {
                let now = disk.stats();
                (live, in_use) = (live + now.live, in_use + now.segments as u64);
            }
            match write(pattern.next(&mut random, blocks)) {
                Err(e) if e.kind() == std::io::ErrorKind::StorageFull => return Ok(None),
                other => other?,
            }
        }
        let after = disk.stats();
        let accepted = (after.accepted - before.accepted) as f64;
        Ok(Some(Measured {
            copied: (after.cleaned - before.cleaned) as f64 / accepted,
            written: (after.written - before.written) as f64 / accepted,
            live: live as f64 / (LOOKS * segments * SEGMENT_BLOCKS * BLOCK) as f64,
            in_use: in_use as f64 / (LOOKS * segments) as f64,
        }))
    };
    let (warm_up, measured) = pattern.overwrites();
    if run(warm_up * blocks)?.is_none() {
        return Ok(None);
    }
    let measured = run(measured * blocks)?;
    if measured.is_some() {
        let wrong = disk.check(false)?;
        anyhow::ensure!(wrong.is_empty(), "the log disk is damaged after the experiment: {wrong:?}");
    }
    Ok(measured)
}

/// How full the segments are that are in use.
fn why(measured: &Measured, level: u64) -> String {
    format!(
        "Data is {level}% of all segments; with the nodes of the map {}% of their blocks live, and {}% of the segments are in use, because the rest is \
         kept free for the next round of the cleaner and its checkpoint.",
        shown(measured.live * 100.0),
        shown(measured.in_use * 100.0),
    )
}

/// All levels, patterns and policies.
///
/// # Errors
/// Those of the log disk.
pub fn oracle(scale: u64) -> Result<Outcome> {
    let segments = SEGMENTS / scale.min(4);
    let at: Vec<String> = LEVELS.iter().map(|l| format!("{l}%")).collect();
    let mut outcome = Outcome::default();
    for pattern in [Pattern::EVEN, Pattern::SKEWED] {
        let mut copied: Vec<(String, Vec<f64>)> = Vec::new();
        let mut written: Vec<(String, Vec<f64>)> = Vec::new();
        let formula = |level: &u64| pattern.copied(*level as f64 / 100.0);
        let known = if pattern == Pattern::EVEN { "formula, oldest first" } else { "formula, each kind apart" };
        copied.push((known.to_string(), LEVELS.iter().map(formula).collect()));
        let model = |level: &u64| {
            let blocks = segments * SEGMENT_BYTES * level / 100 / BLOCK;
            copied_greedy(segments as usize, SEGMENT_BLOCKS as usize, blocks, pattern)
        };
        let model: Vec<f64> = LEVELS.iter().map(model).collect();
        copied.push(("greedy in memory".to_string(), model.clone()));
        let mut by_policy = Vec::new();
        for (name, policy) in POLICIES {
            let runs =
                LEVELS.iter().map(|level| measure(policy, pattern, segments, *level)).collect::<Result<Vec<_>>>()?;
            let row = |of: fn(&Measured) -> f64| runs.iter().map(|r| r.as_ref().map_or(f64::NAN, of)).collect();
            copied.push((name.to_string(), row(|m| m.copied)));
            written.push((name.to_string(), row(|m| m.written)));
            by_policy.push(runs);
        }
        let [greedy, others @ ..] = &by_policy[..] else { continue };
        for (n, level) in LEVELS.iter().enumerate() {
            let Some(found) = greedy[n] else {
                let what = format!("{}, {level}% full", pattern.name);
                let reason = "the log disk is full before: it keeps room for its cleaner and checkpoints".to_string();
                outcome.untested.push((what, reason));
                continue;
            };
            if pattern == Pattern::EVEN {
                // What the reserve costs is in the table.
                let used = found.live / found.in_use;
                let text = format!(
                    "even, {level}% full, {}% of what is in use, greedy: bytes copied for each written, the formula + 5%",
                    shown(used * 100.0)
                );
                let most = pattern.copied(used) * 1.05;
                outcome.claims.push(Claim::at_most(text, most, found.copied).because(|| why(&found, *level)));
            } else {
                let best = others.iter().filter_map(|runs| runs[n]).map(|m| m.copied).fold(f64::INFINITY, f64::min);
                let text =
                    format!("{}, {level}% full, the best by age: fewer bytes copied than greedy, in %", pattern.name);
                let fewer = (1.0 - best / found.copied) * 100.0;
                outcome.claims.push(Claim::at_least(text, 25.0, fewer).because(|| {
                    format!(
                        "Greedy copies {} bytes for each written, the best by age {}, and {} would do if hot and cold blocks were known and \
                         kept apart.",
                        shown(found.copied),
                        shown(best),
                        shown(formula(level))
                    )
                }));
            }
        }
        let title = format!("Bytes copied for each byte written, {}", pattern.name);
        outcome.add(&title, "bytes", "cleaner", &at, copied, true);
        let title = format!("Bytes written to the store for each, with copies, summaries and nodes, {}", pattern.name);
        outcome.table(title, "cleaner", &at, written);
    }
    outcome.notes = vec![
        format!(
            "{segments} segments of {} KiB; \"full\" is data as a share of all of them. Single blocks of 4 KiB are overwritten, everything three times \
             over until it is steady and once while it is measured; where few get most of the writes, as many ten times and twice.",
            SEGMENT_BYTES >> 10
        ),
        "The formula: for even overwrites and the oldest segment first, the live share u of what is cleaned solves U = (u - 1) / ln u, \
         and each byte written costs u / (1 - u) bytes copied. For two kinds of blocks the same for each, with the free space divided between them \
         as is best. The greedy cleaner in memory has no metadata and keeps one segment free. One block of each segment is a summary, which neither \
         of them counts: the share of the space that lives is that of the other blocks."
            .to_string(),
    ];
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_log_disk_copies_about_what_the_model_says() {
        let found = measure(CleanPolicy::Greedy, Pattern::EVEN, 256, 48).unwrap().unwrap();
        let blocks = 256 * SEGMENT_BYTES * 48 / 100 / BLOCK;
        let model = copied_greedy(256, SEGMENT_BLOCKS as usize, blocks, Pattern::EVEN);
        assert!(found.copied > model * 0.8 && found.copied < model * 2.5, "{} and {model}", found.copied);
        assert!(found.written > 1.0 + found.copied && found.live > 0.48 && found.in_use <= 1.0);
        assert!(measure(CleanPolicy::Greedy, Pattern::EVEN, 64, 99).unwrap().is_none(), "full");
    }
}
