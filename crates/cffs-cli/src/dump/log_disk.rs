//! What is on a log disk, below the file system.

use crate::disk::{below, disk_of};
use crate::log_args::LogArgs;
use crate::signature::Ours;
use anyhow::{Context, anyhow};
use cffs::device::FileDevice;
use cffs::dump::Value;
use clap::Subcommand;
use std::num::ParseIntError;
use std::path::Path;

#[derive(Subcommand, Debug)]
pub enum What {
    /// Of a log disk: superblocks, roots, and the last checkpoint
    Disk,
    /// Of a log disk: the table of segments
    Segments,
    /// Of a log disk: the batches of a segment, and what is in them
    Segment {
        /// Its id, as `segments` has it
        #[arg(value_parser = parse_id)]
        id: u64,
    },
    /// Of a log disk: branches and snapshots, and where their maps begin
    Branches,
    /// Of a log disk: where blocks of 4096 bytes are
    Map {
        /// The first
        block: u64,
        /// How many, at most 1048576
        #[arg(default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
        blocks: u64,
        /// Of this branch or snapshot: an id, as `branches` has it
        #[arg(long, value_name = "ID", default_value_t = 0)]
        of: u64,
    },
}

/// An id of a segment: in hexadecimal behind 0x.
fn parse_id(text: &str) -> Result<u64, ParseIntError> {
    text.strip_prefix("0x").map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16))
}

/// What is asked for.
pub fn dump(file: FileDevice, path: &Path, parts: &LogArgs, what: &What) -> anyhow::Result<Value> {
    let name = path.display().to_string();
    let no_log_disk = || anyhow!("{name}: there is no log disk: it has the plain layout, or is no image of cffs");
    // For a disk that cannot be opened, too.
    let device = |file| {
        let below = below(file, path, parts)?;
        if below.begins == Some(Ours::LogDisk) { Ok(below.dev) } else { Err(no_log_disk()) }
    };
    let opened = |file| disk_of(file, path, parts)?.log_disk.ok_or_else(no_log_disk);
    match what {
        What::Disk => Ok(cffs_logdisk::dump::superblocks(&device(file)?)),
        What::Segment { id } => cffs_logdisk::dump::segment(&device(file)?, *id).context(name.clone()),
        What::Segments => Ok(opened(file)?.dump_segments()),
        What::Branches => Ok(opened(file)?.dump_branches()),
        What::Map { block, blocks, of } => opened(file)?.dump_map(*of, *block, *blocks).context(name.clone()),
    }
}
