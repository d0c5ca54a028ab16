//! Aged file systems: sequences that start on a device almost full, whose free space is in short pieces, so that what one
//! writeback brings goes into many of them (the cheapest free runs of `cffs::space`). The other set-ups have one long free
//! run at all times.

use crate::crash::{Coverage, Effort, Failure, explore_after};
use crate::ops::{Op, expand_all, parse};
use crate::setup::{SIZES, Setup};
use crate::shrink::shrink;
use cffs::PrefetchMode;
use fastrand::Rng;
use std::fmt::Write;

/// Bytes of the smallest groups that there are: four of them are a long run.
const GROUP: u32 = 16 << 10;
/// Files that it is filled with.
const FILES: u64 = 236;
/// Length of each, and of the pieces that every other one leaves.
const LEN: u64 = 24_000;

/// A small file system with small groups, another one for each number.
pub fn setup(n: u64) -> Setup {
    let mut rng = Rng::with_seed(n ^ 0xa9ed);
    let (block, frag, _) = SIZES[[0, 1, 2, 4][rng.usize(..4)]];
    Setup {
        device: 8 << 20,
        sizes: (block, frag, GROUP),
        log: Some(2 << 20),
        cache: [1 << 20, 4 << 20][rng.usize(..2)],
        no_embed: rng.bool(),
        dirs_with_data: rng.u8(..4) == 0,
        fsync_in_log: rng.u8(..4) != 0,
        prefetch: [PrefetchMode::Adaptive, PrefetchMode::Off][rng.usize(..2)],
        quota: rng.u8(..4) == 0,
        data_sums: rng.bool(),
        forgetful: rng.u8(..3) == 0,
        ..Setup::default()
    }
}

/// What a file system ages by. Every other file goes; what is left free behind them all is less than a sequence takes.
pub fn ageing() -> Vec<Op> {
    let mut text = format!("mkdir /old 755 0\ncreatemany /old 0 {FILES} {LEN} 1\nsync\n");
    for n in (0..FILES).step_by(2) {
        let _ = writeln!(text, "unlinkmany /old {n} 1");
    }
    parse(&(text + "remount true")).expect("these are operations")
}

/// Directories of files that come together, made durable in some way, with changes in between.
pub fn operations(seed: u64) -> Vec<Op> {
    let mut rng = Rng::with_seed(seed);
    let mut text = String::new();
    for round in 0..4 {
        let (files, len) = (rng.u64(30..60), rng.u64(4_000..8_000));
        let _ =
            writeln!(text, "mkdir /n{round} 755 0\ncreatemany /n{round} 0 {files} {len} {}", (seed << 8) + 16 + round);
        if rng.bool() {
            let (file, offset, len) = (rng.u64(..files), rng.u64(..8_000), rng.u64(1..8_000));
            let _ = writeln!(text, "write /n{round}/f{file} {offset} {len} {}", (seed << 8) + 32 + round);
        }
        let file = rng.u64(..files);
        let _ = match rng.u8(..5) {
            0 => writeln!(text, "fsync /n{round}/f{file}\nsync"),
            1 => writeln!(text, "fsync /n{round}\nremount true"),
            2 => writeln!(text, "remount true"),
            _ => writeln!(text, "sync"),
        };
        if rng.u8(..3) == 0 {
            let _ = writeln!(text, "regroup / {}", ["gains", "always", "large", "free-space"][rng.usize(..4)]);
        }
        if rng.bool() {
            let (dir, first) = (rng.u64(..=round), rng.u64(..30));
            let _ = writeln!(text, "unlinkmany /n{dir} {first} {}", rng.u64(1..30));
        }
    }
    parse(&(text + "sync")).expect("these are operations")
}

/// Crashes a sequence on an aged file system, and looks for the smallest that fails.
pub fn explore(
    setup: Setup,
    ops: Vec<Op>,
    seed: u64,
    effort: Effort,
    coverage: &mut Coverage,
) -> Result<(), Box<(Vec<Op>, Failure)>> {
    let ageing = ageing();
    let base = expand_all(&ageing).len();
    let attempt = |ops: &[Op], coverage: &mut Coverage| {
        explore_after(setup, &[&ageing, ops].concat(), base, seed, effort, coverage)
    };
    let Err(first) = attempt(&ops, coverage) else { return Ok(()) };
    let smallest = shrink(ops, 200, |ops| attempt(ops, &mut Coverage::default()).is_err());
    let last = attempt(&smallest, &mut Coverage::default()).err().unwrap_or(first);
    Err(Box::new((smallest, last)))
}
