//! Blocks in memory to which recovery applies the records of the log.

use super::revocations::Revocations;
use crate::error::Result;
use crate::format::log::{self, RANGE_UNIT, Record};
use crate::format::{self, BlockAddr, Geometry};
use cffs_buf::AlignedBuf;
use cffs_device::{Device, IoKind, Purpose, WriteRequest};
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};

/// Blocks closer than this many bytes are read with one request.
const READ_GAP: u64 = 64 << 10;
/// Longest read in bytes.
const READ_MAX: u64 = 1 << 20;
/// Most buffers of one write.
const REQUEST_BUFS_MAX: usize = 256;

/// Whether all fragments of a block are revoked by transaction `seq` or a later one.
pub(super) fn revokes_block(geo: &Geometry, revoked: &Revocations, addr: BlockAddr, seq: u64) -> bool {
    let base = geo.frag_of_block(addr);
    (base..base + geo.frags_per_block()).all(|f| revoked.covers(f, seq))
}

/// A block being rebuilt.
struct Rebuilt {
    bytes: AlignedBuf,
    /// It holds file data.
    data: bool,
    /// The last transaction that changed it; 0 while it is as it was read.
    seq: u64,
    /// What the records say of all its bytes, if they say anything.
    sum: Option<u32>,
    /// Which ranges of [`RANGE_UNIT`] bytes came from records; where the device has other copies of the rest, and empty elsewhere.
    from_log: Vec<bool>,
}

impl Rebuilt {
    fn new(bytes: AlignedBuf) -> Rebuilt {
        Rebuilt { bytes, data: false, seq: 0, sum: None, from_log: Vec::new() }
    }

    /// Takes what did not come from records from the copy of the device with which the sum is right. False if there is none.
    fn take_from_copies(&mut self, dev: &dyn Device, offset: u64) -> bool {
        let mut bytes = AlignedBuf::zeroed(self.bytes.len());
        for copy in 0..dev.copies() {
            if dev.read_copy(IoKind::Meta, copy, offset, &mut bytes).is_err() {
                continue;
            }
            let units = bytes.chunks_mut(RANGE_UNIT).zip(self.bytes.chunks(RANGE_UNIT));
            for ((unit, ours), _) in units.zip(&self.from_log).filter(|(_, from_log)| **from_log) {
                unit.copy_from_slice(ours);
            }
            if self.sum == Some(log::block_sum(&bytes)) {
                tracing::warn!(
                    offset,
                    copy,
                    "a copy was wrong in parts that the log does not have; another one was taken"
                );
                self.bytes = bytes;
                return true;
            }
        }
        false
    }
}

/// The blocks that are being rebuilt, in memory until they are written in place.
pub(super) struct ReplayTarget<'a> {
    dev: &'a dyn Device,
    geo: &'a Geometry,
    blocks: BTreeMap<BlockAddr, Rebuilt>,
    /// Blocks written in place.
    pub(super) written: u64,
    /// Metadata blocks that were damaged in parts that the log does not have.
    pub(super) damaged: Vec<BlockAddr>,
}

impl<'a> ReplayTarget<'a> {
    pub(super) fn new(dev: &'a dyn Device, geo: &'a Geometry) -> Self {
        ReplayTarget { dev, geo, blocks: BTreeMap::new(), written: 0, damaged: Vec::new() }
    }

    /// Bytes of the blocks in memory.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.len() * self.geo.block_size()
    }

    /// Reads the blocks that are not in memory yet, near ones together.
    pub(super) fn load(&mut self, wanted: &[BlockAddr]) -> Result<()> {
        let shift = self.geo.block_shift;
        let missing: Vec<BlockAddr> = wanted.iter().copied().filter(|b| !self.blocks.contains_key(b)).collect();
        let near = |a: &BlockAddr, b: &BlockAddr| (b - a) << shift <= READ_GAP;
        for cluster in missing.chunk_by(near) {
            for part in cluster.chunk_by(|a, b| a << shift >> 20 == b << shift >> 20) {
                let (first, last) = (part[0], part[part.len() - 1]);
                debug_assert!((last - first) << shift <= READ_MAX);
                let mut bufs: Vec<AlignedBuf> =
                    (first..=last).map(|_| AlignedBuf::zeroed(self.geo.block_size())).collect();
                let mut slices: Vec<IoSliceMut<'_>> = bufs.iter_mut().map(|b| IoSliceMut::new(b)).collect();
                let _purpose = Purpose::Checkpoint.scope();
                self.dev.read_vectored(IoKind::Meta, first << shift, &mut slices)?;
                for (addr, bytes) in (first..=last).zip(bufs) {
                    if part.binary_search(&addr).is_ok() {
                        self.blocks.insert(addr, Rebuilt::new(bytes));
                    }
                }
            }
        }
        Ok(())
    }

    /// Applies records of transaction `seq`.
    pub(super) fn apply(&mut self, records: &[Record<'_>], seq: u64, revoked: &Revocations) -> Result<()> {
        self.load_for(records, seq, revoked)?;
        let geo = *self.geo;
        let has_copies = self.dev.copies() > 1;
        for r in records {
            let Record::Block { addr, init, data, sum, ranges } = r else { continue };
            let base = geo.frag_of_block(*addr);
            if revokes_block(&geo, revoked, *addr, seq) {
                continue;
            }
            if *init {
                let bytes = AlignedBuf::zeroed(geo.block_size());
                self.blocks.insert(*addr, Rebuilt::new(bytes));
            }
            let Some(block) = self.blocks.get_mut(addr) else { continue };
            (block.data, block.seq) = (*data, seq);
            // Metadata is revoked as whole blocks.
            block.sum = (!*data).then_some(*sum);
            let fs = geo.frag_size();
            for (offset, bytes) in ranges {
                let mut from = 0;
                while from < bytes.len() {
                    let at = offset + from;
                    let n = (fs - at % fs).min(bytes.len() - from);
                    if !revoked.covers(base + (at / fs) as u64, seq) {
                        block.bytes[at..at + n].copy_from_slice(&bytes[from..from + n]);
                        if has_copies {
                            block.from_log.resize(geo.block_size() / RANGE_UNIT, false);
                            block.from_log[at / RANGE_UNIT..(at + n).div_ceil(RANGE_UNIT)].fill(true);
                        }
                    }
                    from += n;
                }
            }
        }
        Ok(())
    }

    /// Reads the blocks that these records change in part.
    fn load_for(&mut self, records: &[Record<'_>], seq: u64, revoked: &Revocations) -> Result<()> {
        let changed = records.iter().filter_map(|r| match r {
            Record::Block { addr, init: false, .. } => Some(*addr),
            _ => None,
        });
        let mut wanted: Vec<BlockAddr> = changed.filter(|addr| !revokes_block(self.geo, revoked, *addr, seq)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        self.load(&wanted)
    }

    /// Writes all blocks in memory in place, and forgets them.
    pub(super) fn write_in_place(&mut self) -> Result<()> {
        let mut requests: Vec<WriteRequest<'_>> = Vec::new();
        let mut end = u64::MAX;
        // Read ahead, and not changed since.
        self.blocks.retain(|_, block| block.seq != 0);
        for (addr, block) in &mut self.blocks {
            if !block.data {
                let mut good = block.sum.is_none_or(|sum| log::block_sum(&block.bytes) == sum);
                if !good && self.dev.copies() > 1 {
                    good = block.take_from_copies(self.dev, addr << self.geo.block_shift);
                }
                format::seal(&mut block.bytes, block.seq);
                if !good {
                    // What the records do not have was damaged in place. A right checksum would make it look whole.
                    format::spoil(&mut block.bytes);
                    self.damaged.push(*addr);
                }
            }
            let offset = addr << self.geo.block_shift;
            let slice = IoSlice::new(&block.bytes);
            match requests.last_mut() {
                Some(r) if offset == end && r.bufs.len() < REQUEST_BUFS_MAX => r.bufs.push(slice),
                _ => requests.push(WriteRequest { kind: IoKind::Meta, offset, bufs: vec![slice] }),
            }
            end = offset + self.geo.block_size() as u64;
        }
        let _purpose = Purpose::Checkpoint.scope();
        self.dev.write_batch(&requests)?;
        self.written += self.blocks.len() as u64;
        self.blocks.clear();
        Ok(())
    }
}
