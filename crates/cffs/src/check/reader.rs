//! Reads metadata in group-sized requests, with a small cache of them: for those who come back to a block, as a repair
//! does. (The check does not: [`super::fetch`].)

use crate::device::{Device, IoKind};
use crate::format::{BlockAddr, BlockId, Geometry, verify_block};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

/// Memory for windows in bytes.
const CACHE_BYTES: usize = 32 << 20;
/// Sizes of a window, as far as the block allows.
const WINDOW_MIN: u64 = 64 << 10;
const WINDOW_MAX: u64 = 1 << 20;

/// Bytes of a window on a device: a group, as far as requests of that size are good and possible.
pub(super) fn window_bytes(dev: &dyn Device, g: &Geometry) -> u64 {
    let most = (dev.max_request() as u64).clamp(WINDOW_MIN, WINDOW_MAX);
    (g.group_size() as u64).clamp(WINDOW_MIN, most)
}

/// A block in a window; cheap to keep.
#[derive(Clone)]
pub(crate) struct Block {
    window: Arc<Vec<u8>>,
    from: usize,
    len: usize,
}

impl Block {
    /// A block among others.
    pub(super) fn part(window: &Arc<Vec<u8>>, from: usize, len: usize) -> Block {
        Block { window: window.clone(), from, len }
    }

    /// A block of its own.
    pub(super) fn alone(bytes: Vec<u8>) -> Block {
        let len = bytes.len();
        Block { window: Arc::new(bytes), from: 0, len }
    }
}

impl Deref for Block {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.window[self.from..self.from + self.len]
    }
}

pub(crate) struct Reader<'a> {
    dev: &'a dyn Device,
    g: Geometry,
    window_blocks: u64,
    windows: HashMap<u64, (u64, Arc<Vec<u8>>)>,
    capacity: usize,
    clock: u64,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(dev: &'a dyn Device, g: Geometry) -> Reader<'a> {
        let bytes = window_bytes(dev, &g);
        Reader {
            dev,
            g,
            window_blocks: bytes >> g.block_shift,
            windows: HashMap::new(),
            capacity: CACHE_BYTES / bytes as usize,
            clock: 0,
        }
    }

    /// A block as it is.
    pub(crate) fn block(&mut self, addr: BlockAddr) -> Result<Block, String> {
        let bs = self.g.block_size();
        if addr >= self.g.total_blocks {
            return Err(format!("block {addr} lies outside the file system"));
        }
        let n = addr / self.window_blocks;
        let from = (addr % self.window_blocks) as usize * bs;
        self.clock += 1;
        if let Some((used, window)) = self.windows.get_mut(&n) {
            *used = self.clock;
            return Ok(Block { window: window.clone(), from, len: bs });
        }
        let first = n * self.window_blocks;
        let blocks = self.window_blocks.min(self.g.total_blocks - first);
        let mut bytes = vec![0; blocks as usize * bs];
        if self.dev.read_at(IoKind::Meta, first << self.g.block_shift, &mut bytes).is_err() {
            // Something in the window cannot be read; that need not be this block.
            let mut one = vec![0; bs];
            return match self.dev.read_at(IoKind::Meta, addr << self.g.block_shift, &mut one) {
                Ok(()) => Ok(Block::alone(one)),
                Err(e) => Err(format!("block {addr} cannot be read: {e}")),
            };
        }
        if self.windows.len() >= self.capacity {
            let oldest = self.windows.iter().min_by_key(|(_, (used, _))| *used).map(|(n, _)| *n);
            oldest.map(|n| self.windows.remove(&n));
        }
        let window = Arc::new(bytes);
        self.windows.insert(n, (self.clock, window.clone()));
        Ok(Block { window, from, len: bs })
    }

    /// What can be read of a block that cannot be read as a whole, sector by sector, the rest as zeros; `None` if nothing
    /// can.
    pub(super) fn pieces(&mut self, addr: BlockAddr) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.g.block_size()];
        let start = addr.checked_mul(bytes.len() as u64).filter(|_| addr < self.g.total_blocks)?;
        let sector = (self.dev.sector_size() as usize).min(bytes.len());
        let mut any = false;
        for (n, piece) in bytes.chunks_mut(sector).enumerate() {
            match self.dev.read_at(IoKind::Meta, start + (n * sector) as u64, piece) {
                Ok(()) => any = true,
                Err(_) => piece.fill(0),
            }
        }
        any.then_some(bytes)
    }

    /// A metadata block with the right checksum and identity.
    pub(crate) fn meta(&mut self, id: BlockId) -> Result<Block, String> {
        let block = self.block(id.addr)?;
        verify_block(&block, self.g.fsid, id).map_err(|c| c.0)?;
        Ok(block)
    }
}
