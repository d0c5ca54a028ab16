//! Verifying a file system in use: every block of metadata is read from the device and compared with what it has to be, and
//! all data with its checksums, if there are any.
//!
//! The walk goes by what the device says, so it needs neither the cache nor, while all is well, any lock that others wait
//! for. What it finds may be of a moment ago: a block that was freed, moved or is just being written looks damaged too. So
//! whatever looks wrong is looked at again while nothing is committed, written home or changed (`recheck`), by what is
//! known in memory. What is wrong then is reported: in the log, in the [`ScrubStatus`], and in the superblock, as needing a
//! check.
//!
//! What is only in the log has not been written home and is not verified; a checkpoint at the beginning makes that little.
//! What comes into being while the walk goes on may be left out.

mod data;
mod piece;
mod recheck;
mod volume;
mod walk;

use super::Fs;
use crate::check::Reader;
use crate::error::{Error, Result};
use crate::format::dirblock::{EntryKind, entry_at};
use crate::format::table::Location;
use crate::format::{BlockAddr, BlockId, BlockKind, Geometry, Ino, ROOT_INO};
use cffs_device::{Device, IoKind};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Findings that are kept; more are counted only.
const FINDINGS_MAX: usize = 1000;
/// Directories above each other for which a path is looked up.
const DEPTH_MAX: usize = 1000;
/// Longest sleep between two looks whether to stop.
const NAP: Duration = Duration::from_millis(50);

/// Settings of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScrubOptions {
    /// Most bytes to read in a second, at least one; as many as the device gives if there is none.
    pub rate: Option<u64>,
    /// Leave out the data of files, also where it has checksums.
    #[serde(default)]
    pub metadata_only: bool,
}

setters!(ScrubOptions {
    rate: Option<u64>,
    metadata_only: bool,
});

/// Something that is wrong on the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The structure.
    pub object: String,
    /// What is wrong with it.
    pub what: String,
    /// The inode it belongs to, where it does to one of a file or directory.
    pub inode: Option<Ino>,
    /// Its block.
    pub block: BlockAddr,
    /// A name of the inode, from the root, as far as that is known without a search: not for what stands outside
    /// directories.
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
    /// It could not go on.
    Failed(String),
}

/// How far a scrub is and what it has found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// What it is reading.
    pub phase: String,
    /// Inodes whose metadata was read.
    pub inodes: u64,
    /// Inodes there are.
    pub inodes_total: u64,
    /// Metadata blocks that were verified.
    pub blocks: u64,
    /// Bytes that were read from the device.
    pub bytes: u64,
    /// Blocks that are newer in memory and in the log than on the device.
    pub newer: u64,
    /// Bytes of data that had their checksums, in whole fragments as all of these.
    #[serde(default)]
    pub data_verified: u64,
    /// Bytes of data of which no checksum is known.
    #[serde(default)]
    pub data_unsummed: u64,
    /// Bytes of data that looked wrong because memory has them newer.
    #[serde(default)]
    pub data_newer: u64,
    /// Bytes of data that are not what was written, or cannot be read.
    #[serde(default)]
    pub data_failed: u64,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// How much is wrong; the list has not more than a thousand.
    pub findings_total: u64,
    /// Something else than contents of files is wrong: the file system needs a check.
    #[serde(default)]
    pub marked: bool,
    /// Seconds since the beginning.
    pub seconds: f64,
    /// How it ended; none while it runs.
    pub outcome: Option<ScrubOutcome>,
}

/// A scrub to look at and to stop, from any thread.
#[derive(Debug, Default)]
pub struct Scrub {
    stop: AtomicBool,
    bytes: AtomicU64,
    status: Mutex<ScrubStatus>,
}

impl Scrub {
    /// One that has not begun.
    pub fn new() -> Scrub {
        Scrub::default()
    }

    /// Ends it soon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// How far it is.
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

/// The device as a scrub reads it: no faster than the rate, and not at all once it is to stop.
struct Throttled<'a> {
    fs: &'a Fs,
    scrub: &'a Scrub,
    rate: Option<u64>,
    /// When what was read so far is paid for.
    paid: Mutex<Instant>,
}

impl Throttled<'_> {
    fn stopped(&self) -> bool {
        self.scrub.stop.load(Ordering::Acquire) || self.fs.closed.load(Ordering::Acquire)
    }

    fn pay(&self, bytes: u64) {
        self.scrub.bytes.fetch_add(bytes, Ordering::Relaxed);
        let Some(rate) = self.rate else { return };
        let until = {
            let mut paid = self.paid.lock();
            *paid = (*paid).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            *paid
        };
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|_| !self.stopped()) {
            std::thread::sleep(left.min(NAP));
        }
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
        self.pay(bytes as u64);
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

/// Whose a block is, and as what: how to find out whether it still is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At a place of its own.
    Fixed,
    /// Block of the file of an inode, by its number within it.
    Block(Ino, u64),
    /// Node of the extent tree of an inode, for what begins with this fragment.
    Node(Ino, u64),
    /// Block of the chain of extended attributes of an inode, by its number.
    Chain(Ino, usize),
    /// Where an inode stands.
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

/// A scrub at work.
struct Walk<'a> {
    fs: &'a Fs,
    scrub: &'a Scrub,
    dev: &'a Throttled<'a>,
    g: Geometry,
    reader: Reader<'a>,
    /// Blocks that were reported.
    reported: HashSet<BlockAddr>,
    /// Data is compared too.
    with_data: bool,
    /// Data that was found and not read yet.
    pieces: Vec<piece::Piece>,
    began: Instant,
}

impl Fs {
    /// Reads all metadata from the device and verifies it, and all data that has checksums, while the file system is in use;
    /// also a read-only one. Damaged data does not mark the file system as in need of a check, which could not put it right. Returns
    /// when it is done or was stopped. What came of it, and what is wrong, stands in `scrub`, also while it goes on.
    ///
    /// Fails with [`Error::Invalid`] if the rate is zero; whatever else happens is the outcome in the status.
    pub fn scrub(&self, options: &ScrubOptions, scrub: &Scrub) -> Result<()> {
        if options.rate == Some(0) {
            return Error::invalid("a rate of 0 bytes in a second: nothing would ever be read");
        }
        let began = Instant::now();
        let dev = Throttled { fs: self, scrub, rate: options.rate, paid: Mutex::new(began) };
        let g = *self.geometry();
        let reader = Reader::new(&dev, g);
        let with_data = self.sums.is_some() && !options.metadata_only;
        let (reported, pieces) = (HashSet::new(), Vec::new());
        let mut walk = Walk { fs: self, scrub, dev: &dev, g, reader, reported, with_data, pieces, began };
        let outcome = walk.all();
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
    fn all(&mut self) -> Result<()> {
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

    /// Whether to go on; called often.
    fn go_on(&self) -> Result<()> {
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

    /// Something is wrong. A block is reported once, whoever refers to it.
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

    /// Contents of a file are wrong, which a check could not put right.
    fn report_contents(&mut self, object: String, what: String, ino: Ino, block: BlockAddr) {
        if self.dev.stopped() {
            return;
        }
        tracing::error!("scrub: {object}: {what}");
        self.list(object, what, Some(ino), block);
    }

    fn list(&mut self, object: String, what: String, inode: Option<Ino>, block: BlockAddr) {
        let path = inode.and_then(|ino| self.path_of(ino));
        self.count(|s| {
            s.findings_total += 1;
            if s.findings.len() < FINDINGS_MAX {
                s.findings.push(Finding { object, what, inode, block, path });
            }
        });
    }

    /// A path of an inode, by the entries that it and its directories stand in. Names may change meanwhile: it is for a
    /// person to read.
    fn path_of(&self, ino: Ino) -> Option<String> {
        let fs = self.fs;
        let (mut at, mut names) = (ino, Vec::new());
        while at != ROOT_INO {
            let Location::Embedded { block, offset } = fs.inodes.locate(&fs.cache, at).ok()? else { return None };
            let parent = self.with_inode(at, |inode| Ok(inode.parent)).ok()?;
            let buf = fs.cache.read_meta(BlockId { kind: BlockKind::Dir, addr: block, owner: parent }).ok()?;
            let bytes = buf.read();
            let entry = entry_at(&bytes, offset).filter(|e| e.kind == EntryKind::Embedded && e.ino == at)?;
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            if names.len() > DEPTH_MAX {
                return None;
            }
            at = parent;
        }
        names.push(String::new());
        names.reverse();
        Some(if names.len() == 1 { "/".into() } else { names.join("/") })
    }

    fn report_block(&mut self, id: BlockId, place: Place, what: String) {
        let inode = place.inode().filter(|i| *i == crate::format::ROOT_INO || *i >= crate::format::FIRST_USER_INO);
        let object = match inode {
            Some(ino) => format!("{} at block {} of inode {ino}", id.kind.name(), id.addr),
            None => format!("{} at block {}", id.kind.name(), id.addr),
        };
        // The text of the check begins with the same words.
        let what = what.strip_prefix(&format!("{} at block {}: ", id.kind.name(), id.addr)).unwrap_or(&what).to_owned();
        self.report(object, what, inode, id.addr);
    }
}
