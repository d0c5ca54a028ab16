//! Reads every metadata block once, for several threads.
//!
//! A request reads a window of the size of a group. It contains blocks that are needed much later: directories of
//! another branch of the tree, the tables. Blocks that look like metadata wait here until they are needed, and then
//! leave the memory; all others are dropped soon. Blocks that were transferred once are not transferred again, so a
//! later request to the window leaves them out at its ends.
//!
//! Waiting blocks take at most a fixed amount of memory and 16 bytes for each inode, which is twice the locator table.
//! Beyond that the oldest blocks are dropped, and read a second time when they are needed.
//!
//! Blocks that are read twice, and why:
//! - blocks that the replay of a log changes in memory, because the replay needs their old contents;
//! - blocks that two owners claim or that have lost their header: only on a damaged file system;
//! - blocks that were dropped because memory was full.

use super::reader::{Block, verified, window_bytes};
use crate::format::{BlockAddr, BlockId, BlockKind, Geometry, get_u32, get_u64};
use cffs_device::{Device, IoKind};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Memory for blocks that wait, in bytes, and what is added for each inode.
const WAITING_BYTES: u64 = 64 << 20;
const WAITING_BYTES_PER_INODE: u64 = 16;
/// Requests whose bytes are kept unchanged.
const RECENT: usize = 16;

pub(super) struct Fetcher<'a> {
    dev: &'a dyn Device,
    g: Geometry,
    window_blocks: u64,
    state: Mutex<State>,
    /// A window was read.
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    windows: HashMap<u64, Window>,
    /// Blocks that were read along with others and are not used yet.
    waiting: HashMap<BlockAddr, Block>,
    /// Windows in the order in which they were read; some of their blocks may wait.
    order: VecDeque<u64>,
    /// The results of the last requests, each with its first block: for metadata blocks that do not look like metadata.
    recent: VecDeque<(BlockAddr, Arc<Vec<u8>>)>,
    /// Blocks that are needed repeatedly: the system area.
    kept: HashMap<BlockAddr, Block>,
    /// Most blocks that may wait.
    capacity: usize,
}

#[derive(Default)]
struct Window {
    /// A bit for each block that is not to be transferred, because it was already or is no metadata.
    done: Vec<u64>,
    /// A thread is reading it.
    busy: bool,
    /// Reading several blocks of it at once has failed.
    broken: bool,
}

impl Window {
    fn is_done(&self, i: u64) -> bool {
        self.done.get((i / 64) as usize).is_some_and(|w| w >> (i % 64) & 1 == 1)
    }

    fn set_done(&mut self, i: u64, done: bool) {
        let word = (i / 64) as usize;
        if self.done.len() <= word {
            self.done.resize(word + 1, 0);
        }
        let bit = 1 << (i % 64);
        self.done[word] = if done { self.done[word] | bit } else { self.done[word] & !bit };
    }
}

impl<'a> Fetcher<'a> {
    pub(super) fn new(dev: &'a dyn Device, g: Geometry) -> Fetcher<'a> {
        let window_blocks = window_bytes(dev, &g) >> g.block_shift;
        let fetcher = Fetcher { dev, g, window_blocks, state: Mutex::default(), arrived: Condvar::new() };
        fetcher.expect_inodes(0);
        fetcher
    }

    /// Sets the geometry, because the size in the counters may be smaller than that in the superblock.
    pub(super) fn set_geometry(&mut self, g: Geometry) {
        self.g = g;
    }

    pub(super) fn geometry(&self) -> &Geometry {
        &self.g
    }

    /// Sizes the memory for waiting blocks by the number of inodes in the counters, as far as that is possible.
    pub(super) fn expect_inodes(&self, inodes: u64) {
        let possible = inodes.min(self.g.inodes_max());
        let bytes = WAITING_BYTES + possible.saturating_mul(WAITING_BYTES_PER_INODE);
        self.state.lock().capacity = (bytes >> self.g.block_shift) as usize;
    }

    /// Excludes blocks from being read along with others: they are no metadata, or were read already.
    pub(super) fn skip(&self, first: BlockAddr, count: u64) {
        let mut state = self.state.lock();
        // Only the windows at the ends need a note, because nobody needs a block of the others.
        let ends = [first, first + count.max(1) - 1].map(|b| b / self.window_blocks);
        for n in ends {
            let start = n * self.window_blocks;
            let window = state.windows.entry(n).or_default();
            for addr in first.max(start)..(first + count).min(start + self.window_blocks) {
                window.set_done(addr - start, true);
            }
        }
    }

    /// Whether a block is one of those that are kept.
    fn keeps(&self, addr: BlockAddr) -> bool {
        (self.g.sys_start..self.g.sys_start + self.g.sys_blocks()).contains(&addr)
    }

    /// A block as it is.
    pub(super) fn block(&self, addr: BlockAddr) -> Result<Block, String> {
        if addr >= self.g.total_blocks {
            return Err(format!("block {addr} lies outside the file system"));
        }
        let n = addr / self.window_blocks;
        let start = n * self.window_blocks;
        let mut state = self.state.lock();
        loop {
            if let Some(block) = state.kept.get(&addr) {
                return Ok(block.clone());
            }
            if let Some(block) = state.waiting.remove(&addr) {
                if self.keeps(addr) {
                    state.kept.insert(addr, block.clone());
                }
                return Ok(block);
            }
            if let Some(block) = self.recent(&state, addr) {
                return Ok(block);
            }
            let window = state.windows.entry(n).or_default();
            if !window.busy {
                window.busy = true;
                break;
            }
            self.arrived.wait(&mut state);
        }
        let blocks = self.window_blocks.min(self.g.total_blocks - start);
        let window = state.windows.entry(n).or_default();
        let at = addr - start;
        // The neighbours that were not transferred yet.
        let (mut from, mut to) = (at, at + 1);
        if !window.is_done(at) && !window.broken {
            while from > 0 && !window.is_done(from - 1) {
                from -= 1;
            }
            while to < blocks && !window.is_done(to) {
                to += 1;
            }
        }
        drop(state);
        let read = self.read(start + from, to - from);
        let mut state = self.state.lock();
        let outcome = match read {
            Ok(bytes) => {
                self.take_in(&mut state, n, start + from, bytes, addr);
                self.recent(&state, addr).ok_or_else(|| format!("block {addr} cannot be read"))
            }
            Err(e) if to - from == 1 => Err(format!("block {addr} cannot be read: {e}")),
            Err(_) => {
                // Something in the window cannot be read, which need not be this block.
                state.windows.entry(n).or_default().broken = true;
                drop(state);
                let one = self.read(addr, 1);
                state = self.state.lock();
                state.windows.entry(n).or_default().set_done(at, true);
                one.map(Block::alone).map_err(|e| format!("block {addr} cannot be read: {e}"))
            }
        };
        if let Ok(block) = &outcome
            && self.keeps(addr)
        {
            state.kept.insert(addr, block.clone());
        }
        state.windows.entry(n).or_default().busy = false;
        self.arrived.notify_all();
        outcome
    }

    fn read(&self, first: BlockAddr, count: u64) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; (count << self.g.block_shift) as usize];
        self.dev.read_at(IoKind::Meta, first << self.g.block_shift, &mut bytes)?;
        Ok(bytes)
    }

    /// A block that came with one of the last requests.
    fn recent(&self, state: &State, addr: BlockAddr) -> Option<Block> {
        let bs = self.g.block_size();
        state.recent.iter().rev().find_map(|(first, bytes)| {
            let from = usize::try_from(addr.checked_sub(*first)?).ok()?.checked_mul(bs)?;
            (from < bytes.len()).then(|| Block::part(bytes, from, bs))
        })
    }

    /// Notes which blocks were read, and keeps those that look like metadata, except the block `wanted`.
    fn take_in(&self, state: &mut State, n: u64, first: BlockAddr, bytes: Vec<u8>, wanted: BlockAddr) {
        let start = n * self.window_blocks;
        let mut any = false;
        let window = state.windows.entry(n).or_default();
        for (addr, piece) in (first..).zip(bytes.chunks_exact(self.g.block_size())) {
            window.set_done(addr - start, true);
            if addr != wanted && self.looks_like_metadata(addr, piece) {
                state.waiting.insert(addr, Block::alone(piece.to_vec()));
                any = true;
            }
        }
        if any {
            state.order.push_back(n);
        }
        while state.waiting.len() > state.capacity {
            // The last one is this.
            let Some(oldest) = state.order.pop_front().filter(|oldest| *oldest != n) else { break };
            let first = oldest * self.window_blocks;
            for addr in first..first + self.window_blocks {
                if state.waiting.remove(&addr).is_some() {
                    state.windows.entry(oldest).or_default().set_done(addr - first, false);
                }
            }
        }
        if state.recent.len() >= RECENT {
            state.recent.pop_front();
        }
        state.recent.push_back((first, Arc::new(bytes)));
    }

    fn looks_like_metadata(&self, addr: BlockAddr, block: &[u8]) -> bool {
        get_u64(block, 16) == addr
            && get_u64(block, 8) == self.g.fsid
            && BlockKind::from_magic(get_u32(block, 0)).is_some()
    }

    /// A metadata block with the right checksum and identity.
    pub(super) fn meta(&self, id: BlockId) -> Result<Block, String> {
        let block = self.block(id.addr)?;
        verified(self.dev, &self.g, block, id)
    }
}
