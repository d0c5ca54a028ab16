//! Checksums of file data: what is read is what was written, or an error.
//!
//! Each fragment has a sum in a table at the start of its allocation group, by its place on the device ([`crate::format::sums`]
//! has the layout, decision 19 of `docs/design.md` the reasons). The rule that everything here serves: **the sum of a
//! fragment that a written extent maps is that of its contents, or says that nothing is known, in every state that a crash
//! can leave.** So
//!
//! - newly allocated data is written first, then its sums, then the extent that maps it;
//! - before data is overwritten in place, a commit has made its sums unknown ([`Sums::invalidate`]);
//! - data that goes through the log has its sums in the same transaction ([`Sums::put`]).
//!
//! Sums of unmapped space mean nothing, because new sums are stored before the space is mapped again.

use crate::addr_map::AddrMap;
use crate::cache::{BufRef, Cache, Comparison, DataVerifier};
use crate::error::Result;
use crate::format::Run;
use crate::format::dirblock::BlockEdit;
use crate::format::log::RECORD_HEADER;
use crate::format::sums::{self as table, NONE, SUM_SIZE, SUMS_INDEX};
use crate::format::{BlockAddr, BlockId, BlockKind, Corrupt, FragAddr, Geometry, Ino, get_u64, put_u64};
use crate::journal::{Journal, Txn};
use crate::space::Space;
use parking_lot::{Mutex, RwLock};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Log bytes around the sums of one table block: record header, range, rounding at both ends.
const RANGE_OVERHEAD: usize = RECORD_HEADER + 48;
/// Log bytes for creating a table block, with its bit in the header of the allocation group.
const CREATE_BYTES: usize = 2 * RANGE_OVERHEAD + crate::format::META_HEADER_SIZE;
/// Most log bytes of one transaction that does nothing but store sums.
const TXN_MAX: usize = 256 << 10;

/// The tables of an allocation group.
struct GroupTables {
    /// A bit for each table block that exists.
    exists: Box<[AtomicU64]>,
    /// Held while one is created.
    creating: Mutex<()>,
}

impl GroupTables {
    fn has(&self, index: u64) -> bool {
        self.exists[(index / 64) as usize].load(Ordering::Acquire) >> (index % 64) & 1 == 1
    }
}

/// Counters of comparisons, in fragments.
#[derive(Default)]
struct Counters {
    verified: AtomicU64,
    failed: AtomicU64,
    unknown: AtomicU64,
}

/// The checksums of a file system's data.
pub struct Sums {
    cache: Arc<Cache>,
    space: Arc<Space>,
    groups: RwLock<AddrMap<u64, Arc<GroupTables>>>,
    counters: Counters,
}

/// Table blocks that are pinned in memory, so that changing them cannot fail.
#[derive(Default)]
pub struct PinnedTables(BTreeMap<BlockAddr, BufRef>);

/// Sums of fragments that follow each other.
pub struct ChecksumRun {
    /// The first fragment.
    pub frag: FragAddr,
    /// Their sums.
    pub sums: Vec<u32>,
}

impl ChecksumRun {
    /// The sums of contents: whole fragments of `frag_size` bytes.
    pub fn of(frag: FragAddr, bytes: &[u8], frag_size: usize) -> ChecksumRun {
        debug_assert!(bytes.len().is_multiple_of(frag_size));
        ChecksumRun { frag, sums: bytes.chunks_exact(frag_size).map(table::sum_of).collect() }
    }

    fn run(&self) -> Run {
        Run { start: self.frag, len: self.sums.len() as u64 }
    }
}

/// The parts of a run by table block: its allocation group and index, the first fragment, how many.
fn parts(g: &Geometry, run: Run) -> impl Iterator<Item = (u64, u64, FragAddr, u64)> + use<> {
    let g = *g;
    let mut at = run.start;
    std::iter::from_fn(move || {
        if at >= run.end() {
            return None;
        }
        let (ag, index, n) = g.sum_place(at);
        let ag_end = g.frag_of_block(g.ag_start(ag) + g.ag_blocks);
        let end = (at + g.sums_per_block() - n).min(ag_end).min(run.end());
        let part = (ag, index, at, end - at);
        at = end;
        Some(part)
    })
}

impl Sums {
    /// The sums of a file system that has the feature.
    pub fn new(cache: Arc<Cache>, space: Arc<Space>) -> Sums {
        Sums { cache, space, groups: RwLock::default(), counters: Counters::default() }
    }

    /// Fragments compared since the mount: with the right sum, with another one, without a known one.
    pub fn compared(&self) -> [u64; 3] {
        let c = &self.counters;
        [&c.verified, &c.failed, &c.unknown].map(|n| n.load(Ordering::Relaxed))
    }

    /// The tables of an allocation group; `None` for one that was never used.
    fn group(&self, ag: u64) -> Result<Option<Arc<GroupTables>>> {
        if let Some(group) = self.groups.read().get(&ag) {
            return Ok(Some(group.clone()));
        }
        if ag >= self.space.counters().ags {
            return Ok(None);
        }
        let g = self.cache.geometry();
        let header = self.cache.read_meta(BlockId { kind: BlockKind::AgHeader, addr: g.ag_header(ag), owner: ag })?;
        let exists = {
            let bytes = header.read();
            let bit = |i: u64| u64::from(i < g.sum_blocks() && table::exists(&bytes, i));
            let word = |w: u64| (0..64).fold(0, |word, b| word | bit(w * 64 + b) << b);
            (0..g.sum_blocks().div_ceil(64)).map(|w| AtomicU64::new(word(w))).collect()
        };
        // Bits change only through the value in this map, so the first thread has the right ones.
        let mut groups = self.groups.write();
        let group = groups.entry(ag).or_insert_with(|| Arc::new(GroupTables { exists, creating: Mutex::new(()) }));
        Ok(Some(group.clone()))
    }

    /// A table block, if it exists.
    fn find(&self, ag: u64, index: u64) -> Result<Option<BufRef>> {
        match self.group(ag)? {
            Some(group) if group.has(index) => self.read(ag, index).map(Some),
            _ => Ok(None),
        }
    }

    fn read(&self, ag: u64, index: u64) -> Result<BufRef> {
        let addr = self.cache.geometry().sum_block(ag, index);
        let buf = self.cache.read_meta(BlockId { kind: BlockKind::DataSums, addr, owner: ag })?;
        let found = get_u64(&buf.read(), SUMS_INDEX);
        if found != index {
            let what = format!("table of data checksums at block {addr} is number {found} instead of {index}");
            return Err(Corrupt(what).into());
        }
        Ok(buf)
    }

    /// Whether a table block exists. The device may fail, or the header of the allocation group be damaged.
    pub(crate) fn has_table(&self, ag: u64, index: u64) -> Result<bool> {
        Ok(self.group(ag)?.is_some_and(|group| group.has(index)))
    }

    /// The sum of a fragment; [`NONE`] if none is known.
    pub(crate) fn sum(&self, frag: FragAddr) -> Result<u32> {
        let (ag, index, n) = self.cache.geometry().sum_place(frag);
        Ok(self.find(ag, index)?.map_or(NONE, |buf| table::get(&buf.read(), n)))
    }

    /// Creates a table block without known sums, unless it exists.
    fn create(&self, txn: &Txn<'_>, ag: u64, index: u64) -> Result<BufRef> {
        self.space.ensure_initialized(txn, ag);
        let Some(group) = self.group(ag)? else {
            return Err(Corrupt(format!("allocation group {ag} is used but not open")).into());
        };
        let _one = group.creating.lock();
        if group.has(index) {
            return self.read(ag, index);
        }
        let g = self.cache.geometry();
        let header = self.cache.read_meta(BlockId { kind: BlockKind::AgHeader, addr: g.ag_header(ag), owner: ag })?;
        let id = BlockId { kind: BlockKind::DataSums, addr: g.sum_block(ag, index), owner: ag };
        let buf = txn.init_block(id);
        put_u64(txn.edit(&buf).range(SUMS_INDEX, 8), 0, index);
        {
            let mut edit = txn.edit(&header);
            let at = table::AG_SUM_BLOCKS + (index / 8) as usize;
            edit.range(at, 1)[0] |= 1 << (index % 8);
        }
        group.exists[(index / 64) as usize].fetch_or(1 << (index % 64), Ordering::AcqRel);
        Ok(buf)
    }

    /// Pins the existing table blocks of a run. The device may fail, or a table be damaged.
    pub fn pin(&self, tables: &mut PinnedTables, run: Run) -> Result<()> {
        let g = self.cache.geometry();
        for (ag, index, _, _) in parts(g, run) {
            let addr = g.sum_block(ag, index);
            if !tables.0.contains_key(&addr)
                && let Some(buf) = self.find(ag, index)?
            {
                tables.0.insert(addr, buf);
            }
        }
        Ok(())
    }

    /// The same, and creates those that do not exist, in transactions of their own. No transaction is open, nothing locked.
    pub fn pin_or_create(&self, journal: &Journal, tables: &mut PinnedTables, run: Run) -> Result<()> {
        let g = self.cache.geometry();
        for (ag, index, _, _) in parts(g, run) {
            let addr = g.sum_block(ag, index);
            if tables.0.contains_key(&addr) {
                continue;
            }
            let buf = match self.find(ag, index)? {
                Some(buf) => buf,
                None => {
                    let txn = journal.begin(CREATE_BYTES + self.space.log_bytes_for_init())?;
                    self.create(&txn, ag, index)?
                }
            };
            tables.0.insert(addr, buf);
        }
        Ok(())
    }

    /// Most log bytes that [`Sums::put`] for so many fragments needs, creating table blocks included.
    pub fn log_bytes(&self, frags: u64) -> usize {
        let blocks = frags / self.cache.geometry().sums_per_block() + 2;
        frags as usize * SUM_SIZE + blocks as usize * (RANGE_OVERHEAD + CREATE_BYTES)
    }

    /// Stores sums in a transaction. Table blocks that are not pinned ([`Sums::pin`]) are created; the allocation group is on
    /// the device or open.
    pub fn put(&self, txn: &Txn<'_>, tables: &PinnedTables, summed: &ChecksumRun) -> Result<()> {
        let g = self.cache.geometry();
        for (ag, index, frag, n) in parts(g, summed.run()) {
            let buf = match tables.0.get(&g.sum_block(ag, index)) {
                Some(buf) => buf.clone(),
                None => self.create(txn, ag, index)?,
            };
            let from = (frag - summed.frag) as usize;
            write(txn, &buf, g.sum_place(frag).2, &summed.sums[from..from + n as usize]);
        }
        Ok(())
    }

    /// Stores sums, in transactions of their own. Their tables are pinned ([`Sums::pin_or_create`]); no transaction is open,
    /// nothing locked.
    pub fn store(&self, journal: &Journal, tables: &PinnedTables, all: &[&ChecksumRun]) -> Result<()> {
        let g = self.cache.geometry();
        let limit = TXN_MAX.min(journal.reserve_max() / 4);
        let per_part = ((limit / 2).saturating_sub(RANGE_OVERHEAD) / SUM_SIZE).max(1);
        let mut pieces: Vec<(FragAddr, &[u32])> = Vec::with_capacity(all.len());
        for s in all {
            for (_, _, frag, n) in parts(g, s.run()) {
                let from = (frag - s.frag) as usize;
                let sums = &s.sums[from..from + n as usize];
                pieces.extend(sums.chunks(per_part).enumerate().map(|(i, c)| (frag + (i * per_part) as u64, c)));
            }
        }
        // Neighbours in one table block are neighbours in the log.
        pieces.sort_unstable_by_key(|(frag, _)| *frag);
        let bytes = |p: &(FragAddr, &[u32])| p.1.len() * SUM_SIZE + RANGE_OVERHEAD;
        let mut rest = &pieces[..];
        while !rest.is_empty() {
            let (mut n, mut sum) = (0, 0);
            while n < rest.len() && (n == 0 || sum + bytes(&rest[n]) <= limit) {
                sum += bytes(&rest[n]);
                n += 1;
            }
            let txn = journal.begin(sum)?;
            for (frag, sums) in &rest[..n] {
                let (ag, index, place) = g.sum_place(*frag);
                if let Some(buf) = tables.0.get(&g.sum_block(ag, index)) {
                    write(&txn, buf, place, sums);
                }
            }
            rest = &rest[n..];
        }
        Ok(())
    }

    /// Makes the sums of runs durably unknown, before the runs are overwritten in place. Their tables are pinned;
    /// no transaction is open, nothing locked. Where no sum was known there is no commit.
    pub fn invalidate(&self, journal: &Journal, tables: &PinnedTables, runs: impl Iterator<Item = Run>) -> Result<()> {
        let g = self.cache.geometry();
        let mut known: Vec<ChecksumRun> = Vec::new();
        for run in runs {
            for (ag, index, frag, n) in parts(g, run) {
                let Some(buf) = tables.0.get(&g.sum_block(ag, index)) else { continue };
                let bytes = buf.read();
                let first = g.sum_place(frag).2;
                if (first..first + n).any(|i| table::get(&bytes, i) != NONE) {
                    known.push(ChecksumRun { frag, sums: vec![NONE; n as usize] });
                }
            }
        }
        // If a crash makes all sums worthless, they need not be right in between.
        if known.is_empty() || !journal.survives_crashes() {
            return Ok(());
        }
        let stored = self.store(journal, tables, &known.iter().collect::<Vec<_>>());
        // Also when not all were stored: nobody may find a sum unknown, and overwrite its data, before that is durable.
        journal.commit()?;
        stored
    }

    /// The verifier for a read of a file.
    pub fn reading(&self, ino: Ino) -> Reading<'_> {
        Reading { sums: self, ino, table: RefCell::default(), at: Cell::default() }
    }
}

/// Writes sums into a table block, where they differ.
fn write(txn: &Txn<'_>, buf: &BufRef, first: u64, sums: &[u32]) {
    let mut edit = txn.edit(buf);
    let old = |i: usize| table::get(edit.bytes(), first + i as u64);
    let Some(from) = (0..sums.len()).find(|i| old(*i) != sums[*i]) else { return };
    let to = (from..sums.len()).rev().find(|i| old(*i) != sums[*i]).map_or(from, |i| i + 1);
    let out = edit.range(table::sum_offset(first + from as u64), (to - from) * SUM_SIZE);
    for (bytes, sum) in out.chunks_exact_mut(SUM_SIZE).zip(&sums[from..to]) {
        bytes.copy_from_slice(&sum.to_le_bytes());
    }
}

/// One reading of a file. Nobody changes the sums of what is read meanwhile: the node is locked.
pub struct Reading<'a> {
    sums: &'a Sums,
    ino: Ino,
    /// The table block that was needed last; `None` in it if it does not exist.
    table: RefCell<Option<(BlockAddr, Option<BufRef>)>>,
    /// A fragment of the device, and which of the file it is.
    at: Cell<(FragAddr, u64)>,
}

impl DataVerifier for Reading<'_> {
    fn set_position(&self, frag: FragAddr, logical: u64) {
        self.at.set((frag, logical));
    }

    fn expected(&self, block: BlockAddr, sums: &mut [u32]) -> Result<()> {
        let g = self.sums.cache.geometry();
        let (ag, index, first) = g.sum_place(g.frag_of_block(block));
        let addr = g.sum_block(ag, index);
        let mut held = self.table.borrow_mut();
        if held.as_ref().is_none_or(|(a, _)| *a != addr) {
            *held = Some((addr, self.sums.find(ag, index)?));
        }
        match held.as_ref().and_then(|(_, buf)| buf.as_ref()) {
            None => sums.fill(NONE),
            Some(buf) => {
                let bytes = buf.read();
                sums.iter_mut().zip(first..).for_each(|(sum, i)| *sum = table::get(&bytes, i));
            }
        }
        Ok(())
    }

    fn compared(&self, frag: FragAddr, outcome: Comparison) -> Result<()> {
        let c = &self.sums.counters;
        let counter = match outcome {
            Comparison::Same => &c.verified,
            Comparison::Different => &c.failed,
            Comparison::Unknown => &c.unknown,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if outcome != Comparison::Different {
            return Ok(());
        }
        let (start, logical) = self.at.get();
        let shift = self.sums.cache.geometry().frag_shift;
        let what = format!(
            "inode {}: the data at byte {} of the file (fragment {frag} of the device) is not what was written: its \
             checksum does not match",
            self.ino,
            (logical + frag.saturating_sub(start)) << shift
        );
        tracing::error!("{what}");
        Err(Corrupt(what).into())
    }
}
