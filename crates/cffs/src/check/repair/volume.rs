//! The image as it will be after the repair: the device with the changed blocks over it. Only [`super::commit`] writes to the
//! device.

use crate::check::reader::Reader;
use crate::copies::newest_copy;
use crate::format::{
    BlockAddr, BlockId, FragAddr, Geometry, block_addr, block_seq, crc_ok, get_u64, seal, verify_block,
};
use cffs_device::{Device, IoKind};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

/// A changed block.
pub(super) struct Changed {
    pub(super) bytes: Box<[u8]>,
    /// It has no header of a metadata block (a copy of the superblock).
    pub(super) raw: bool,
}

/// A read-only device that shows the changed blocks over another device. The check reads it.
pub(super) struct View {
    inner: Arc<dyn Device>,
    shift: u32,
    pub(super) blocks: RwLock<BTreeMap<BlockAddr, Changed>>,
}

impl Device for View {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn sector_size(&self) -> u32 {
        self.inner.sector_size()
    }
    fn max_request(&self) -> usize {
        self.inner.max_request()
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let below = self.inner.read_vectored(kind, offset, bufs);
        let len: usize = bufs.iter().map(|b| b.len()).sum();
        let end = offset + len as u64;
        // A read error does not matter if all blocks of the range are rewritten.
        if !self.rewrites(offset, end) {
            below?;
        }
        let mut at = offset;
        for b in bufs {
            self.put_over(at, b);
            at += b.len() as u64;
        }
        Ok(())
    }
    fn copies(&self) -> usize {
        self.inner.copies()
    }
    fn read_copy(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_copy(kind, copy, offset, buf)?;
        self.put_over(offset, buf);
        Ok(())
    }
    fn repair(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8]) -> io::Result<bool> {
        // What is rewritten in a part is written to all copies later.
        let range = self.addrs(offset, offset + good.len() as u64);
        if self.blocks.read().range(range).next().is_some() {
            return Ok(false);
        }
        self.inner.repair(kind, copy, offset, good)
    }
    fn write_vectored(&self, _: IoKind, _: u64, _: &[IoSlice<'_>]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "a view of a repair is only read"))
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

impl View {
    fn addrs(&self, offset: u64, end: u64) -> Range<BlockAddr> {
        offset >> self.shift..end.div_ceil(1 << self.shift)
    }

    /// Whether all blocks of a range have new contents.
    fn rewrites(&self, offset: u64, end: u64) -> bool {
        let blocks = self.blocks.read();
        self.addrs(offset, end).all(|addr| blocks.contains_key(&addr))
    }

    /// Puts the new contents over what was read from `offset` on.
    fn put_over(&self, offset: u64, buf: &mut [u8]) {
        let end = offset + buf.len() as u64;
        for (addr, changed) in self.blocks.read().range(self.addrs(offset, end)) {
            let block_start = addr << self.shift;
            let (from, to) = (offset.max(block_start), end.min(block_start + (1 << self.shift)));
            let source = (from - block_start) as usize..(to - block_start) as usize;
            buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(&changed.bytes[source]);
        }
    }
}

/// Why a block is not what it should be.
pub(super) enum BlockError {
    /// It is valid, but another block than the expected one.
    Foreign(String),
    /// Its checksum is wrong. The bytes may still be of use.
    Damaged(String, Vec<u8>),
    /// The device cannot read it.
    Unreadable(String),
}

impl BlockError {
    pub(super) fn text(self) -> String {
        match self {
            BlockError::Foreign(what) | BlockError::Damaged(what, _) | BlockError::Unreadable(what) => what,
        }
    }
}

/// Contents of a file that are to be copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    pub(super) from: FragAddr,
    pub(super) to: FragAddr,
    pub(super) len: u64,
}

pub(super) struct Volume<'a> {
    pub(super) g: Geometry,
    reader: &'a Reader<'a>,
    pub(super) view: Arc<View>,
    /// While set, nothing is changed: the survey only reads.
    pub(super) surveying: bool,
    /// Changes of blocks so far.
    pub(super) changes: u64,
    pub(super) copies: Vec<Copy>,
}

impl<'a> Volume<'a> {
    pub(super) fn new(base: &Arc<dyn Device>, reader: &'a Reader<'a>, g: Geometry) -> Volume<'a> {
        let view = Arc::new(View { inner: base.clone(), shift: g.block_shift, blocks: RwLock::default() });
        Volume { g, reader, view, surveying: false, changes: 0, copies: Vec::new() }
    }

    /// Starts reading ahead a block that will be needed soon.
    pub(super) fn want(&self, addr: BlockAddr) {
        self.reader.want(addr);
    }

    /// A block as it is.
    pub(super) fn get(&mut self, addr: BlockAddr) -> Result<Vec<u8>, String> {
        if let Some(changed) = self.view.blocks.read().get(&addr) {
            return Ok(changed.bytes.to_vec());
        }
        self.old(addr)
    }

    /// A block as it was before the repair. Where the device keeps several copies, it is the newest of those that say whole that they belong there;
    /// otherwise what is damaged in one of them would be mended with what is left of it, and the right one be lost.
    pub(super) fn old(&mut self, addr: BlockAddr) -> Result<Vec<u8>, String> {
        let age = |bytes: &[u8]| {
            let is_here = get_u64(bytes, 8) == self.g.fsid && block_addr(bytes) == addr;
            (is_here && crc_ok(bytes)).then(|| block_seq(bytes))
        };
        let (dev, bs) = (&*self.view.inner, self.g.block_size());
        if addr < self.g.total_blocks
            && let Some(newest) = newest_copy(dev, IoKind::Meta, addr << self.g.block_shift, bs, &age)
        {
            return Ok(newest.to_vec());
        }
        self.reader.block(addr).map(|b| b.to_vec())
    }

    /// A metadata block with the right checksum and identity.
    pub(super) fn meta(&mut self, id: BlockId) -> Result<Vec<u8>, BlockError> {
        let block = match self.get(id.addr) {
            Ok(block) => block,
            // The other sectors of the block may be readable.
            Err(what) => {
                return Err(match self.reader.pieces(id.addr) {
                    Some(bytes) => BlockError::Damaged(what, bytes),
                    None => BlockError::Unreadable(what),
                });
            }
        };
        match verify_block(&block, self.g.fsid, id) {
            Ok(()) => Ok(block),
            Err(c) if crc_ok(&block) && get_u64(&block, 8) == self.g.fsid => Err(BlockError::Foreign(c.0)),
            Err(c) => Err(BlockError::Damaged(c.0, block)),
        }
    }

    /// Changes a metadata block, unless it has these contents already.
    pub(super) fn put(&mut self, addr: BlockAddr, mut bytes: Vec<u8>) {
        let seq = block_seq(&bytes);
        seal(&mut bytes, seq);
        self.put_as(addr, bytes, false);
    }

    /// Changes a block that has no header.
    pub(super) fn put_raw(&mut self, addr: BlockAddr, bytes: Vec<u8>) {
        self.put_as(addr, bytes, true);
    }

    fn put_as(&mut self, addr: BlockAddr, bytes: Vec<u8>, raw: bool) {
        debug_assert!(addr < self.g.total_blocks && bytes.len() == self.g.block_size());
        if self.surveying || self.get(addr).is_ok_and(|now| now == bytes) {
            return;
        }
        self.changes += 1;
        self.view.blocks.write().insert(addr, Changed { bytes: bytes.into(), raw });
    }
}
