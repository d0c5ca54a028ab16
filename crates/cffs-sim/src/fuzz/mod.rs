//! Fuzzing: images and blocks that no engine ever wrote, and what must hold for them all the same.
//!
//! Bytes from a device are not to be trusted. So real images of every format ([`corpus`]) are damaged with knowledge of
//! what stands where ([`units`], [`mutate`]), and mostly get right checksums again, so that the damage is believed. Then:
//!
//! - [`decode`]: every decoder and every editor of `cffs::format` on single blocks: no panic, and what was decoded is encoded to
//!   the same again;
//! - [`replay`]: logs with damaged transactions: no panic, a replay that succeeds leaves nothing to a second one;
//! - [`image`]: whole images: mounted, walked, changed, checked, repaired, scavenged, with a bound on device requests; a
//!   repair leaves nothing to a second check, and what the check finds clean works.
//!
//! Everything follows from a seed and the number of the case ([`case_rng`]); times and random numbers of the engine are the
//! only things that differ between two runs of a case.

pub mod corpus;
pub mod decode;
pub mod image;
pub mod limits;
pub mod mutate;
mod outcome;
mod pieces;
pub mod replay;
pub mod units;
pub mod work;

pub use outcome::{Done, Failure};

use fastrand::Rng;

/// What a case is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// Decoders and editors of single blocks.
    Blocks,
    /// Replay of the log.
    Log,
    /// Whole images.
    Image,
}

impl Target {
    /// All of them.
    pub const ALL: [Target; 3] = [Target::Blocks, Target::Log, Target::Image];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Target::Blocks => "blocks",
            Target::Log => "log",
            Target::Image => "image",
        }
    }
}

/// The random numbers of a case, alike in every run.
pub fn case_rng(target: Target, seed: u64, case: u64) -> Rng {
    let mut mix = Rng::with_seed(seed.wrapping_mul(3) + target as u64);
    let key = mix.u64(..);
    Rng::with_seed(key ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Runs a case.
pub fn run_case(corpus: &corpus::Corpus, target: Target, seed: u64, case: u64) -> Result<Done, Failure> {
    let mut rng = case_rng(target, seed, case);
    match target {
        Target::Blocks => decode::case(corpus, &mut rng),
        Target::Log => replay::case(corpus, &mut rng),
        Target::Image => image::case(corpus, &mut rng),
    }
}
