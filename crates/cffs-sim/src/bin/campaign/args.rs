//! The command line.

use cffs_record::RecordOption;
use cffs_sim::bounded;
use clap::Parser;
use std::path::PathBuf;

/// Compares the engine with the reference model, crashes it and lets its device fail, seed after seed, until the time is up.
///
/// Every seed that fails is printed with the smallest sequence of operations found for it. With --bounded, takes every
/// short sequence of operations instead, by number.
#[derive(Parser)]
pub struct Args {
    /// How long.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Each seed so many behind the one before: of kinds that are done in turns, one. On a log disk crashes are at seeds of which a third leaves 2.
    #[arg(long, default_value_t = 1, conflicts_with = "bounded", value_parser = clap::value_parser!(u64).range(1..))]
    pub every: u64,
    /// Only this seed.
    #[arg(long, conflicts_with = "record")]
    pub once: bool,
    /// What to do.
    #[arg(long, value_enum)]
    pub only: Option<Kind>,
    /// Weave files that come in long writes into every sequence, on mounts with direct writes.
    #[arg(long)]
    pub streams: bool,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    pub jobs: usize,
    /// Stop after so many failures.
    #[arg(long, default_value_t = 5)]
    pub failures: usize,
    /// Operations in a sequence.
    #[arg(long, default_value_t = LEN)]
    pub len: usize,
    /// Print the operations of the seed instead.
    #[arg(long, conflicts_with_all = ["record", "faults", "bounded"])]
    pub print: bool,
    /// Print the operations of the seed with the writes and flushes of each instead.
    #[arg(long, conflicts_with_all = ["record", "faults", "bounded"])]
    pub events: bool,
    /// Only so many of the first operations.
    #[arg(long, default_value_t = usize::MAX)]
    pub first: usize,
    /// Give up when a sequence, with all its smaller variants if it fails, takes longer than this many seconds.
    #[arg(long, default_value_t = 120)]
    pub patience: u64,
    /// Run the operations of this file instead of generated ones, in the setup of the seed.
    #[arg(long, conflicts_with_all = ["record", "bounded"])]
    pub ops: Option<PathBuf>,
    /// Crash every sequence of so many operations (1 to 3) over a few files, by number, instead of random ones.
    #[arg(long, value_name = "LENGTH", value_parser = clap::value_parser!(u8).range(1..=bounded::LENGTH_MAX as i64))]
    pub bounded: Option<u8>,
    /// First number with --bounded.
    #[arg(long, default_value_t = 0)]
    pub from: u64,
    /// Number to stop before with --bounded; all of them without it.
    #[arg(long)]
    pub to: Option<u64>,
    /// Only every so manyth number with --bounded.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub step: u64,
    /// Let the device fail, in every way, at every request of each seed's sequence; with --only volume a member of a mirror.
    #[arg(long)]
    pub faults: bool,
    /// Stop after so many histories with --faults.
    #[arg(long, default_value_t = u64::MAX)]
    pub histories: u64,
    /// Format and way of the log with --bounded: 0 is the default, 1 to 7 are others, 8 and 9 are on a log disk.
    #[arg(long, default_value_t = 0)]
    pub variant: u64,
    #[command(flatten)]
    pub record: RecordOption,
}

/// Operations in a sequence.
const LEN: usize = 200;

/// What a random sequence is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Comparison with the reference model.
    Model,
    /// The same on a device that soon is full.
    Full,
    /// Crashes.
    Crash,
    /// File systems that grow: crashes, or a device that is full until then.
    Grow,
    /// Crashes of mounts without a journal, and their repair.
    Modes,
    /// Crashes of mkfs.
    Mkfs,
    /// Crashes of an aged file system: almost full, with its free space in short pieces.
    Aged,
    /// File systems on a log disk, with snapshots and a cleaner: comparison with the model, on a device that soon is full too, and
    /// crashes, in turns.
    Log,
    /// File systems on a volume, mostly a mirror of which a member is gone for a while: comparison with the model, and crashes, after
    /// which each member alone is tried too, in turns.
    Volume,
}

impl Kind {
    /// All of them, in the order in which a seed goes through them.
    pub const ALL: [Kind; 9] = [
        Kind::Model,
        Kind::Full,
        Kind::Crash,
        Kind::Grow,
        Kind::Modes,
        Kind::Mkfs,
        Kind::Aged,
        Kind::Log,
        Kind::Volume,
    ];

    /// The word for `--only`.
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

impl Args {
    /// Name of the campaign in the table of `docs/testing.md`.
    pub fn campaign(&self) -> String {
        let streams = if self.streams { ", streams" } else { "" };
        let only = |kind: Kind| format!(", only {}", kind.name());
        match self.bounded {
            _ if self.faults => format!("device faults{streams}{}", self.only.map_or(String::new(), only)),
            Some(len) if self.variant == 0 => format!("all short sequences of {len}"),
            Some(len) => format!("all short sequences of {len}, variant {}", self.variant),
            None => format!("random sequences{streams}{}", self.only.map_or(String::new(), only)),
        }
    }

    /// The words that say what the file system is on.
    pub fn below(&self) -> String {
        self.only.map_or(String::new(), |kind| format!(" --only {}", kind.name()))
    }

    /// The words that repeat a seed.
    pub fn repeat(&self, mode: &str, seed: u64) -> String {
        let streams = if self.streams { " --streams" } else { "" };
        let len = if self.len == LEN { String::new() } else { format!(" --len {}", self.len) };
        format!("{mode}{streams}{len} --once --seed {seed}")
    }
}
