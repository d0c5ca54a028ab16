//! Reads metadata in group-sized requests through a small cache, for repair and scrub, which read blocks repeatedly. (The check
//! reads each block once: [`super::fetch`].)

use crate::copies::newest_copy;
use crate::format::{BlockAddr, BlockId, Geometry, block_seq, verify_block};
use cffs_device::{Device, IoKind};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Deref;
use std::sync::Arc;

/// Memory for windows in bytes.
const CACHE_BYTES: usize = 32 << 20;
/// Windows that wait to be read ahead, at most.
const WANTED_MAX: usize = 32;
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

/// A metadata block that was read, if it has the right checksum and identity; where the device keeps several copies, the newest that has them.
pub(super) fn verified(dev: &dyn Device, g: &Geometry, block: Block, id: BlockId) -> Result<Block, String> {
    let age = |bytes: &[u8]| verify_block(bytes, g.fsid, id).is_ok().then(|| block_seq(bytes));
    if let Some(newest) = newest_copy(dev, IoKind::Meta, id.addr << g.block_shift, g.block_size(), &age) {
        return Ok(Block::alone(newest.to_vec()));
    }
    verify_block(&block, g.fsid, id).map_err(|damage| damage.0)?;
    Ok(block)
}

pub(crate) struct Reader<'a> {
    dev: &'a dyn Device,
    g: Geometry,
    window_blocks: u64,
    capacity: usize,
    state: Mutex<Windows>,
    /// A window was read.
    arrived: Condvar,
    /// There is a block to read ahead, or reading ahead ends.
    wake: Condvar,
}

#[derive(Default)]
struct Windows {
    /// Windows with the time of their last use.
    map: HashMap<u64, (u64, Arc<Vec<u8>>)>,
    clock: u64,
    /// Windows being read.
    busy: HashSet<u64>,
    /// Windows to read ahead.
    wanted: VecDeque<u64>,
    ahead: bool,
}

/// Ends reading ahead in any case, also after a panic.
struct Ending<'r, 'a>(&'r Reader<'a>);

impl Drop for Ending<'_, '_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.ahead = false;
        state.wanted.clear();
        self.0.wake.notify_all();
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(dev: &'a dyn Device, g: Geometry) -> Reader<'a> {
        let bytes = window_bytes(dev, &g);
        Reader {
            dev,
            g,
            window_blocks: bytes >> g.block_shift,
            capacity: CACHE_BYTES / bytes as usize,
            state: Mutex::default(),
            arrived: Condvar::new(),
            wake: Condvar::new(),
        }
    }

    /// Runs `f` while `threads` other threads read ahead the blocks passed to [`Reader::want`].
    pub(super) fn reading_ahead<T>(&self, threads: usize, f: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            let _ending = Ending(self);
            self.state.lock().ahead = threads > 0;
            for n in 1..=threads {
                let thread = std::thread::Builder::new().name(format!("cffs-check-{n}"));
                // Reading ahead is optional.
                if thread.spawn_scoped(scope, || self.serve()).is_err() {
                    break;
                }
            }
            f()
        })
    }

    fn serve(&self) {
        let mut state = self.state.lock();
        while state.ahead {
            match state.wanted.pop_front() {
                None => self.wake.wait(&mut state),
                Some(n) => {
                    drop(state);
                    self.window(n);
                    state = self.state.lock();
                }
            }
        }
    }

    /// Queues a block to be read ahead.
    pub(super) fn want(&self, addr: BlockAddr) {
        let n = addr / self.window_blocks;
        let mut state = self.state.lock();
        let known = state.map.contains_key(&n) || state.busy.contains(&n) || state.wanted.contains(&n);
        // The queue is short, so that no window is evicted before it is used.
        if state.ahead && addr < self.g.total_blocks && !known && state.wanted.len() < self.capacity.min(WANTED_MAX) {
            state.wanted.push_back(n);
            self.wake.notify_one();
        }
    }

    /// A window, if all of it can be read.
    fn window(&self, n: u64) -> Option<Arc<Vec<u8>>> {
        let mut state = self.state.lock();
        loop {
            state.clock += 1;
            let now = state.clock;
            if let Some((used, window)) = state.map.get_mut(&n) {
                *used = now;
                return Some(window.clone());
            }
            if state.busy.insert(n) {
                break;
            }
            self.arrived.wait(&mut state);
        }
        drop(state);
        let first = n * self.window_blocks;
        let blocks = self.window_blocks.min(self.g.total_blocks.saturating_sub(first));
        let mut bytes = vec![0; (blocks << self.g.block_shift) as usize];
        let read = self.dev.read_at(IoKind::Meta, first << self.g.block_shift, &mut bytes);
        let window = read.is_ok().then(|| Arc::new(bytes));
        let mut state = self.state.lock();
        state.busy.remove(&n);
        if let Some(window) = &window {
            if state.map.len() >= self.capacity {
                let oldest = state.map.iter().min_by_key(|(_, (used, _))| *used).map(|(n, _)| *n);
                oldest.map(|n| state.map.remove(&n));
            }
            let now = state.clock;
            state.map.insert(n, (now, window.clone()));
        }
        self.arrived.notify_all();
        window
    }

    /// A block as it is.
    pub(crate) fn block(&self, addr: BlockAddr) -> Result<Block, String> {
        let bs = self.g.block_size();
        if addr >= self.g.total_blocks {
            return Err(format!("block {addr} lies outside the file system"));
        }
        let from = (addr % self.window_blocks) as usize * bs;
        if let Some(window) = self.window(addr / self.window_blocks) {
            return Ok(Block::part(&window, from, bs));
        }
        // The read error may concern another block of the window.
        let mut one = vec![0; bs];
        match self.dev.read_at(IoKind::Meta, addr << self.g.block_shift, &mut one) {
            Ok(()) => Ok(Block::alone(one)),
            Err(e) => Err(format!("block {addr} cannot be read: {e}")),
        }
    }

    /// Reads a block sector by sector, with zeros for unreadable sectors; `None` if all are unreadable.
    pub(super) fn pieces(&self, addr: BlockAddr) -> Option<Vec<u8>> {
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
    pub(crate) fn meta(&self, id: BlockId) -> Result<Block, String> {
        let block = self.block(id.addr)?;
        verified(self.dev, &self.g, block, id)
    }
}
