//! A source tree on a log disk that compresses: how much smaller it is, and what reading it cold takes.
//!
//! The text is that of this project's own engine, cut into files of the sizes that source files have.

use anyhow::Result;
use cffs::ROOT_INO;
use cffs_disk::Counters;
use cffs_logdisk::Compression;

use super::harness::{Harness, Setup};
use super::outcome::{Claim, Outcome, asked, went};
use super::source::{Tree, search};
use super::volume::{Layout, LogSetup};
use crate::random::Random;

/// Files and directories.
const TREE: (u64, u64) = (4000, 320);
const DISK: &str = "volume-1ms";
/// How much smaller it has to be.
const SMALLER: f64 = 2.5;

/// Source text.
const TEXT: [&str; 12] = [
    include_str!("../../../cffs/src/fs/data.rs"),
    include_str!("../../../cffs/src/fs/create.rs"),
    include_str!("../../../cffs/src/fs/mount.rs"),
    include_str!("../../../cffs/src/fs/namei.rs"),
    include_str!("../../../cffs/src/fs/quota.rs"),
    include_str!("../../../cffs/src/fs/rename.rs"),
    include_str!("../../../cffs/src/journal/commit.rs"),
    include_str!("../../../cffs/src/journal/mod.rs"),
    include_str!("../../../cffs/src/format/superblock.rs"),
    include_str!("../../../cffs-logdisk/src/disk.rs"),
    include_str!("../../../cffs-logdisk/src/batch.rs"),
    include_str!("../../../cffs-logdisk/src/snapshots.rs"),
];

/// What a layout made of it.
struct Run {
    /// Bytes that are stored.
    stored: u64,
    written: Counters,
    read: Counters,
}

fn run(tree: &Tree, layout: Layout) -> Result<Run> {
    let text = TEXT.concat();
    let mut random = Random::new(11);
    let setup = Setup { layout, ..Setup::today(DISK) };
    // As `mkfs` does it.
    let group = if let Layout::Log(log) = layout { log.compression.group_bytes(setup.group) } else { setup.group };
    let mut harness = Harness::new(&Setup { group, ..setup })?;
    let written = harness.phase(|fs| {
        tree.unpack_with(fs, "tree", &mut |bytes| {
            let at = random.below(text.len() as u64) as usize;
            text.bytes().cycle().skip(at).take(bytes).collect()
        })
    })?;
    let stored = harness.log_stats().live;
    let read = harness.phase(|fs| search(fs, ROOT_INO).map(drop))?;
    harness.check()?;
    Ok(Run { stored, written, read })
}

/// All of it.
///
/// # Errors
/// Those of the engine.
pub fn compression(scale: u64) -> Result<Outcome> {
    let tree = Tree::new(TREE.0 / scale, TREE.1 / scale, 4);
    let log = |compression| Layout::Log(LogSetup { compression, ..LogSetup::default() });
    let plain = run(&tree, Layout::InPlace)?;
    let none = run(&tree, log(Compression::None))?;
    let lz4 = run(&tree, log(Compression::Lz4))?;
    let zstd = run(&tree, log(Compression::Zstd(3)))?;
    let mut outcome = Outcome::default();
    let rows = [("in place", &plain), ("log", &none), ("log, lz4", &lz4), ("log, zstd", &zstd)];
    let figures = rows.map(|(name, run)| {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let figures = vec![
            mb(run.stored),
            mb(run.written.written_bytes),
            run.read.reads as f64,
            mb(run.read.read_bytes),
            run.read.seconds(),
        ];
        (name.to_string(), figures)
    });
    let columns = ["MB stored", "MB written", "read requests, cold", "MB read", "seconds"].map(str::to_string);
    let title = format!("{} source files, {:.1} MB, on {DISK}", tree.files.len(), tree.bytes() as f64 / 1e6);
    outcome.table(title, "layout", &columns, figures.to_vec());
    let smaller = none.stored as f64 / zstd.stored.max(1) as f64;
    outcome.claims.push(Claim::at_least("zstd: times smaller than without", SMALLER, smaller));
    let told = || {
        format!(
            "Without: {}; {}. zstd: {}; {}.",
            asked(&none.read),
            went(&none.read),
            asked(&zstd.read),
            went(&zstd.read)
        )
    };
    let requests = zstd.read.reads as f64 / none.read.reads.max(1) as f64;
    outcome.claims.push(Claim::at_most("zstd: read cold, requests, without = 1", 1.0, requests).because(told));
    let seconds = zstd.read.seconds() / none.read.seconds();
    outcome.claims.push(Claim::at_most("zstd: read cold, time, without = 1", 1.0, seconds).because(told));
    outcome.notes = vec!["Processor time is none in virtual time.".into()];
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_sources_are_smaller_and_read_with_fewer_requests() {
        let outcome = compression(8).unwrap();
        assert!(outcome.claims.iter().all(Claim::holds), "{:?}", outcome.claims);
    }
}
