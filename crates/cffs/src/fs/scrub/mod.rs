//! Scrub: verifies a mounted file system. Every metadata block is read from the device and verified, and all data that
//! has checksums is compared with them.
//!
//! The walk follows what is on the device, so it needs neither the cache nor, as long as nothing is damaged, any lock
//! that others wait for. It may see an old state: a block that was freed, moved or is being written looks damaged too.
//! So everything that looks wrong is verified again by what is in memory, while the journal is quiesced (`recheck`).
//! On a mirror every copy is read; what one of them has wrong is taken from another one (`copies`).
//! What is still wrong is reported: in the program's log, in the [`ScrubStatus`], and in the superblock, which says
//! that a check is needed.
//!
//! Blocks that are only in the log are not verified. A checkpoint at the beginning keeps their number small. What is
//! created during the walk may be left out.

mod copies;
mod data;
mod device_use;
mod piece;
mod recheck;
mod stored;
mod volume;
mod walk;

pub use device_use::DeviceUse;

use super::Fs;
use super::rate_limit::RateLimit;
use crate::check::Reader;
use crate::error::{Error, Result};
use crate::format::{BlockAddr, BlockId, Geometry, Ino};
use crate::trace::Kind;
use cffs_device::{Device, IoKind, Purpose};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Most findings that are listed. Further ones are only counted.
const FINDINGS_MAX: usize = 1000;

/// Settings of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScrubOptions {
    /// Most bytes to read per second, at least one. `None`: no limit.
    pub rate: Option<u64>,
    /// Verify metadata only, even if data has checksums.
    #[serde(default)]
    pub metadata_only: bool,
}

setters!(ScrubOptions {
    rate: Option<u64>,
    metadata_only: bool,
});

/// Damage that was found on the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The damaged structure.
    pub object: String,
    /// What is wrong with it.
    pub what: String,
    /// The file or directory it belongs to, if any.
    pub inode: Option<Ino>,
    /// Its block.
    pub block: BlockAddr,
    /// A path of the inode, if it is known without a search: not for inodes that are outside of directories.
    #[serde(default)]
    pub path: Option<String>,
}

/// How a scrub ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubOutcome {
    /// Everything was read.
    Complete,
    /// It was stopped, or the file system was unmounted.
    Stopped,
    /// It failed.
    Failed(String),
}

/// Progress and findings of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// The present phase.
    pub phase: String,
    /// Inodes whose metadata was read.
    pub inodes: u64,
    /// Number of inodes of the file system.
    pub inodes_total: u64,
    /// Verified metadata blocks.
    pub blocks: u64,
    /// Bytes read from the device.
    pub bytes: u64,
    /// Blocks that are newer in memory or in the log than on the device.
    pub newer: u64,
    /// Bytes of data that match their checksums. This and the next three count whole fragments.
    #[serde(default)]
    pub data_verified: u64,
    /// Bytes of data without a known checksum.
    #[serde(default)]
    pub data_unsummed: u64,
    /// Bytes of data that are newer in memory.
    #[serde(default)]
    pub data_newer: u64,
    /// Bytes of data that do not match their checksums, or cannot be read.
    #[serde(default)]
    pub data_failed: u64,
    /// Metadata blocks and fragments of data that one copy of a mirror had wrong, and that were made like one that is right.
    #[serde(default)]
    pub repaired: u64,
    /// Bytes of data without a known checksum in which the copies of a mirror differ: nothing says which one is right.
    #[serde(default)]
    pub data_differing: u64,
    /// Bytes of what the device below stores in its own way (a log disk) that were verified.
    #[serde(default)]
    pub stored_verified: u64,
    /// Findings in these.
    #[serde(default)]
    pub stored_failed: u64,
    /// The findings, at most a thousand.
    pub findings: Vec<Finding>,
    /// Number of findings, including those that are not listed.
    pub findings_total: u64,
    /// Something other than file contents is damaged: the file system needs a check.
    #[serde(default)]
    pub marked: bool,
    /// Seconds since the beginning.
    pub seconds: f64,
    /// How it ended; `None` while it runs.
    pub outcome: Option<ScrubOutcome>,
}

/// What a part of the stored data came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredStep {
    /// Where to go on; `None` at the end.
    pub next: Option<u64>,
    /// Bytes that were read and verified.
    pub bytes: u64,
    /// What is wrong, one line for each thing.
    pub problems: Vec<String>,
    /// What is wrong with how it is stored, while the data can be read, one line for each thing.
    pub structures: Vec<String>,
}

/// Data below a file system that can be verified without it.
pub trait StoredData {
    /// Verifies about so many bytes from a place on (0 begins).
    ///
    /// # Errors
    /// It cannot be found out what is stored. What is wrong with it is in the result.
    fn verify_step(&self, at: u64, bytes: u64) -> io::Result<StoredStep>;
}

/// A handle to observe and stop a scrub, from any thread.
#[derive(Debug, Default)]
pub struct Scrub {
    stop: AtomicBool,
    bytes: AtomicU64,
    status: Mutex<ScrubStatus>,
}

impl Scrub {
    /// A scrub that has not begun.
    pub fn new() -> Scrub {
        Scrub::default()
    }

    /// Asks the scrub to stop.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// The present status.
    pub fn status(&self) -> ScrubStatus {
        ScrubStatus { bytes: self.bytes.load(Ordering::Relaxed), ..self.status.lock().clone() }
    }

    /// It has ended without a result, as after a panic.
    pub fn fail(&self, why: String) {
        self.status.lock().outcome.get_or_insert(ScrubOutcome::Failed(why));
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.status.lock().outcome.is_some()
    }
}

/// The device with a limit on the rate of reads. Reads fail once the scrub is to stop.
struct Throttled<'a> {
    fs: &'a Fs,
    scrub: &'a Scrub,
    limit: RateLimit,
}

impl Throttled<'_> {
    fn stopped(&self) -> bool {
        self.scrub.stop.load(Ordering::Acquire)
            || self.fs.closed.load(Ordering::Acquire)
            || self.fs.journal.check_not_shut_down().is_err()
    }

    /// Reads one copy of a mirror.
    fn read_copy_throttled(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.stopped() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let outcome = self.fs.dev.read_copy(kind, copy, offset, buf);
        self.throttle(buf.len() as u64);
        outcome
    }

    fn throttle(&self, bytes: u64) {
        self.scrub.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.limit.wait(bytes, || self.stopped());
    }
}

impl Device for Throttled<'_> {
    fn len(&self) -> u64 {
        self.fs.dev.len()
    }
    fn sector_size(&self) -> u32 {
        self.fs.dev.sector_size()
    }
    fn max_request(&self) -> usize {
        self.fs.dev.max_request()
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        if self.stopped() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let bytes: usize = bufs.iter().map(|b| b.len()).sum();
        let outcome = self.fs.dev.read_vectored(kind, offset, bufs);
        self.throttle(bytes as u64);
        outcome
    }
    fn write_vectored(&self, _: IoKind, _: u64, _: &[IoSlice<'_>]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn read_only(&self) -> bool {
        true
    }
}

/// What a block is used for, so that the use can be verified again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A structure at a fixed location.
    Fixed,
    /// Block of the file of an inode, with its number in the file.
    Block(Ino, u64),
    /// Node of the extent tree of an inode, with its first logical fragment.
    Node(Ino, u64),
    /// Block of the attribute chain of an inode, with its number.
    Chain(Ino, usize),
    /// Block that contains an inode.
    InodeLocation(Ino),
}

impl Place {
    /// The inode to name in a report.
    fn inode(self) -> Option<Ino> {
        match self {
            Place::Fixed => None,
            Place::Block(ino, _) | Place::Node(ino, _) | Place::Chain(ino, _) | Place::InodeLocation(ino) => Some(ino),
        }
    }
}

/// A running scrub.
struct Walk<'a> {
    fs: &'a Fs,
    scrub: &'a Scrub,
    dev: &'a Throttled<'a>,
    g: Geometry,
    reader: Reader<'a>,
    /// On a mirror: the number of each copy, and a reader of it. Empty otherwise.
    copies: Vec<(usize, &'a AtomicBool, Reader<'a>)>,
    /// Blocks that were reported already.
    reported: HashSet<BlockAddr>,
    /// Data is verified too.
    with_data: bool,
    /// Data that was noted and not verified yet.
    pieces: Vec<piece::Piece>,
    began: Instant,
}

impl Fs {
    /// Verifies all metadata, and all data that has checksums, on the device of this mounted file system, which may be
    /// read-only. Returns when the scrub is complete or was stopped. `scrub` has the findings and the outcome, also
    /// while the scrub runs. Damaged metadata marks the file system as needing a check; damaged data does not, because
    /// a check could not repair it.
    ///
    /// Fails with [`Error::Invalid`] if the rate is zero. All other errors are the outcome in the status.
    pub fn scrub(&self, options: &ScrubOptions, scrub: &Scrub) -> Result<()> {
        self.scrub_with(options, scrub, None)
    }

    /// As [`Fs::scrub`], and then verifies what is stored below, unless only metadata is wanted.
    ///
    /// # Errors
    /// Those of [`Fs::scrub`].
    pub fn scrub_with(&self, options: &ScrubOptions, scrub: &Scrub, stored: Option<&dyn StoredData>) -> Result<()> {
        self.journal.check_not_shut_down()?;
        if options.rate == Some(0) {
            return Error::invalid("a rate of 0 bytes in a second: nothing would ever be read");
        }
        let _purpose = Purpose::Scrub.scope();
        let _span = self.span(Kind::Scrub, [0; 3]);
        let began = Instant::now();
        let dev = Throttled { fs: self, scrub, limit: RateLimit::new(options.rate) };
        let g = *self.geometry();
        let reader = Reader::new(&dev, g);
        let each = dev.each_copy();
        let copies = each.iter().map(|one| (one.copy, &one.is_missing, Reader::new(one, g))).collect();
        let with_data = self.sums.is_some() && !options.metadata_only;
        let (reported, pieces) = (HashSet::new(), Vec::new());
        let mut walk = Walk { fs: self, scrub, dev: &dev, g, reader, copies, reported, with_data, pieces, began };
        let mut outcome = walk.run();
        if let Some(stored) = stored.filter(|_| outcome.is_ok() && !options.metadata_only) {
            walk.phase("stored data");
            outcome = walk.stored(stored);
        }
        let mut status = scrub.status.lock();
        status.seconds = began.elapsed().as_secs_f64();
        status.outcome = Some(match outcome {
            _ if dev.stopped() => ScrubOutcome::Stopped,
            Ok(()) => ScrubOutcome::Complete,
            Err(e) => ScrubOutcome::Failed(e.to_string()),
        });
        tracing::info!(
            "scrub: {} blocks verified, {} problems: {:?}",
            status.blocks,
            status.findings_total,
            status.outcome
        );
        Ok(())
    }
}

impl Walk<'_> {
    fn run(&mut self) -> Result<()> {
        if !self.fs.is_read_only() {
            // What is committed is checkpointed: the device is then as of now.
            self.phase("log");
            self.fs.journal.checkpoint()?;
        }
        self.phase("superblocks");
        self.superblocks()?;
        self.log_header()?;
        self.phase("allocation groups");
        self.groups()?;
        self.phase("tables");
        let locator = self.tables()?;
        self.phase(if self.with_data { "inodes and data" } else { "inodes" });
        self.inodes(&locator)
    }

    fn phase(&self, name: &str) {
        let mut status = self.scrub.status.lock();
        status.phase = name.into();
        status.inodes_total = self.fs.space.counters().inodes;
    }

    /// Fails if the scrub is to stop. Called often.
    fn check_stopped(&self) -> Result<()> {
        if self.dev.stopped() {
            return Err(io::Error::from(io::ErrorKind::Interrupted).into());
        }
        Ok(())
    }

    fn count(&self, f: impl FnOnce(&mut ScrubStatus)) {
        let mut status = self.scrub.status.lock();
        f(&mut status);
        status.seconds = self.began.elapsed().as_secs_f64();
    }

    /// Reports damaged metadata. A block is reported once, even if several structures refer to it.
    fn report(&mut self, object: String, what: String, inode: Option<Ino>, block: BlockAddr) {
        if self.dev.stopped() || !self.reported.insert(block) {
            return;
        }
        if let Err(e) = self.fs.mark_damaged(&format!("scrub: {object}: {what}")) {
            tracing::error!("scrub: the superblock could not be marked: {e}");
        }
        self.count(|s| s.marked = true);
        self.list(object, what, inode, block);
    }

    /// Reports damaged file contents, which a check could not repair.
    fn report_contents(&mut self, object: String, what: String, ino: Ino, block: BlockAddr) {
        if self.dev.stopped() {
            return;
        }
        tracing::error!("scrub: {object}: {what}");
        self.list(object, what, Some(ino), block);
    }

    fn list(&mut self, object: String, what: String, inode: Option<Ino>, block: BlockAddr) {
        let path = inode.and_then(|ino| self.fs.path_of(ino));
        self.count(|s| {
            s.findings_total += 1;
            if s.findings.len() < FINDINGS_MAX {
                s.findings.push(Finding { object, what, inode, block, path });
            }
        });
    }

    fn report_block(&mut self, id: BlockId, place: Place, what: String) {
        let inode = place.inode().filter(|i| *i == crate::format::ROOT_INO || *i >= crate::format::FIRST_USER_INO);
        let object = match inode {
            Some(ino) => format!("{} at block {} of inode {ino}", id.kind.name(), id.addr),
            None => format!("{} at block {}", id.kind.name(), id.addr),
        };
        // Messages of the verifiers begin with the same words.
        let what = what.strip_prefix(&format!("{} at block {}: ", id.kind.name(), id.addr)).unwrap_or(&what).to_owned();
        self.report(object, what, inode, id.addr);
    }
}
