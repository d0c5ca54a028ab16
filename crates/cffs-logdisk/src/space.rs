//! How much can still be written, and how many segments must be free for it.
//!
//! Two sums. *What lives* must fit, with something left over, so that there are always segments worth cleaning. And *what is written next*
//! must find free segments: a write is accepted only when the segments are there that its batch, the checkpoint behind it, and
//! one more round of the cleaner may take. So a write never fails for want of space after it was accepted, whatever the first sum promised.
//!
//! # What a checkpoint may take
//!
//! A changed extent changes one leaf of a map, which may split, and the nodes above it. So `k` extents bring at most
//! `k * (1 + h) + h + 2` nodes of a map of height `h` into memory (a tree of one node has height 1). Each block that dies may be anywhere: it
//! changes a leaf of the forwards if there are some, and one of the dead lists if there are snapshots, each with what is above it. No tree
//! has more nodes than its height allows, nor more than its entries fill at a quarter of a node, and an entry refers to a block
//! at least.
//!
//! A page of a bitmap changes for each dead block at most, and a record of a segment. There are at most
//! `segments + ordinals / 1024` pages, at least 7 in a node; and 30 records in a node. What storing these two trees changes of
//! themselves is in the record of the checkpoint, which is kept below half a segment and 2 MiB by storing them again.
//!
//! All of that is counted from the state as it is, before anything is accepted. What is in memory already is counted as well.
//!
//! # The levels
//!
//! With `D` bytes of data or entries, `C` for a checkpoint behind them, and `R` for the shortest round of the cleaner (copies of a
//! segment or of [`State::extents_least`] extents, and its checkpoint):
//!
//! - what was accepted is written if `D + C` is free,
//! - what gives space back (discards, deletion) if `D + C + R` is,
//! - what takes space if `D + C + R + F` is, where `F` is `D + C` of the shortest step that gives space back.
//!
//! Rounds and steps are longer where there is more room. A writer stops at `R + F`. From there what gives space back can go a step, and comes to `R`; and with `R` the cleaner can make a round, which frees a
//! segment for each that was not full. There is one: what lives is at most `usable`, and what grows later without asking (entries
//! of the map that are cut, 48 bytes a block; dead lists, 36 bytes a block; in nodes that are half full) is at most a 24th of it, for which
//! `usable` leaves room beside the 16th that is always dead. In a compressed disk a unit lives as a whole when one block of it does, but is counted
//! by its parts; there only the free segments count, and a write can be refused before `free` is 0.
//!
//! `usable` takes the trees at their worst, so that what was promised to somebody does not become less by what the cleaner or
//! a checkpoint does. It becomes less with the first snapshot, which is made only if as much is free.

use crate::batch::{BATCH_BYTES_MAX, SUMMARY_BYTES};
use crate::extent::BLOCK_BYTES;
use crate::mounts::Mounts;
use crate::state::State;
use crate::tree::NODE_BYTES;

/// What a block is taken to cost: itself, its entry in the map and in a summary.
pub(crate) const BLOCK_COST: u64 = BLOCK_BYTES as u64 + 128;
/// Segments on top of the reserve that never count as space, so that there is always something worth cleaning.
const SPARE_SEGMENTS: u64 = 4;
/// Extents of the shortest step that gives space back.
const STEP_EXTENTS: u64 = 64;
/// Extents in which a step begins and ends, which are cut.
pub(crate) const STEP_ENDS: u64 = 2;
/// Pieces of which a plain extent may consist at most when the cleaner copies it, and a compressed one.
const PIECES_MAX: u64 = 128;
const UNIT_PIECES_MAX: u64 = 8;
/// Bytes of a node with its entry in a summary, whose own bytes are spread over the nodes.
const STORED_NODE_BYTES: u64 = NODE_BYTES as u64 + 64;
/// References that fit into a node with the shortest key and with the longest.
const FANOUT_MAX: u64 = 114;
const FANOUT_MIN: u64 = 18;
/// Blocks that the entries in a quarter of a leaf of a map or of the forwards refer to at least.
const LEAF_BLOCKS_MIN: u64 = 20;

/// Space of a log disk in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What data and map can take in all.
    pub usable: u64,
    /// What they take: all that some branch or snapshot refers to.
    pub live: u64,
    /// What has been written and is in no batch yet.
    pub pending: u64,
    /// What can still be written, if nothing is overwritten.
    pub free: u64,
}

/// What somebody is about to change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Change {
    /// Bytes of data and entries.
    pub(crate) bytes: u64,
    /// Extents that are mapped, cut or taken away, each perhaps in another leaf.
    pub(crate) extents: u64,
    /// Blocks or extents that die, each perhaps in another segment.
    pub(crate) dead: u64,
}

impl Change {
    /// As many blocks in so many runs.
    pub(crate) fn blocks(blocks: u64, runs: u64) -> Self {
        Change { bytes: blocks * BLOCK_COST, extents: runs, dead: blocks }
    }

    /// Extents that are taken away, or entries of dead lists.
    pub(crate) fn freed(extents: u64) -> Self {
        Change { bytes: 64 * extents, extents, dead: extents }
    }

    pub(crate) fn and(self, other: Change) -> Self {
        Change { bytes: self.bytes + other.bytes, extents: self.extents + other.extents, dead: self.dead + other.dead }
    }
}

/// How much a round of the cleaner may take out of segments.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) bytes: u64,
    pub(crate) changes: u64,
}

impl Bounds {
    /// Not more than so many bytes.
    pub(crate) fn at_most(self, bytes: u64) -> Self {
        Bounds { bytes: self.bytes.min(bytes), ..self }
    }
}

/// Who asks for free segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// What was accepted.
    Accepted,
    /// What gives space back.
    Frees,
    /// What takes space.
    Takes,
}

/// Nodes of a tree of this height (1 for a single node) that `changes` changes bring into memory at most, with splits.
fn changed_nodes(changes: u64, height: u64) -> u64 {
    if changes == 0 {
        return 0;
    }
    // No tree has more leaves than the references above them.
    let whole = (1..height).fold(1u64, |n, _| n.saturating_mul(FANOUT_MAX)).saturating_mul(2);
    let leaves = (2 * changes).min(whole + changes);
    (leaves + changes.min(whole) * height.saturating_sub(2)).saturating_add(height + 2)
}

/// Nodes of a tree of this height that so many changed extents bring into memory at most, if all of it refers to so many blocks.
fn of_extents(changes: u64, height: u64, blocks: u64) -> u64 {
    changed_nodes(changes, height).min(of_leaves(2 * changes, blocks / LEAF_BLOCKS_MIN + 2 * changes))
}

/// Nodes of a tree with so many leaves, of which `changes` change.
fn of_leaves(changes: u64, leaves: u64) -> u64 {
    if changes == 0 {
        return 0;
    }
    let n = changes.min(leaves + 1);
    n + n.min(leaves / FANOUT_MIN + 1) + leaves / FANOUT_MIN / FANOUT_MIN + 2
}

/// How large the trees are that a change goes through: maps, forwards and dead lists.
struct Trees {
    /// Nodes in memory, now or after a crash.
    dirtied: u64,
    /// Height of the highest map.
    map: u64,
    /// Height of the forwards, if there are some.
    forwards: Option<u64>,
    /// Entries of all dead lists, if there are snapshots.
    listed: Option<u64>,
    /// Blocks that the maps and the forwards refer to.
    blocks: u64,
    at_worst: bool,
}

impl Trees {
    fn now(state: &State) -> Self {
        let height = |level: u8| u64::from(level) + 1;
        let freed = state.freed_by_steps;
        let listed_again = freed.map_or(0, |freed| freed.listed);
        let listed = state.listed + listed_again;
        Trees {
            // After a crash these are in memory as well, when a checkpoint is made.
            dirtied: state.dirtied as u64 + of_leaves(listed_again, listed / 28 + 1),
            map: height(state.map_level),
            forwards: (!state.forward.is_empty()).then(|| height(state.forward.level())),
            listed: (!state.catalog.snapshots.is_empty() || freed.is_some()).then_some(listed),
            blocks: state.usage.ordinals,
            at_worst: false,
        }
    }

    /// Those of a disk that is full, just before a checkpoint: what was promised to somebody does not become less when a tree grows a
    /// level or nodes come into memory. What `keeps` old blocks for snapshots has forwards and dead lists.
    fn at_worst(state: &State, keeps: bool) -> Self {
        let blocks = state.usage.ordinals.max(state.store.capacity().min(1 << 60) / BLOCK_BYTES as u64);
        let (mut height, mut nodes) = (2, blocks / LEAF_BLOCKS_MIN);
        while nodes > 1 {
            (height, nodes) = (height + 1, nodes / FANOUT_MIN);
        }
        Trees {
            dirtied: state.dirty_share() as u64,
            map: height,
            forwards: keeps.then_some(height),
            listed: keeps.then_some(state.listed.max(blocks)),
            blocks,
            at_worst: true,
        }
    }

    /// Nodes that a change brings into memory at most.
    fn changed(&self, change: Change) -> u64 {
        let changed = |changes: u64, height: u64| of_extents(changes, height, self.blocks);
        let map = changed(change.extents, self.map + u64::from(change.extents > 0));
        let forwards = self.forwards.map_or(0, |height| changed(change.dead, height));
        // Nodes of the map that the snapshots keep are noted as well.
        let entries = change.dead + map;
        let lists = self.listed.map_or(0, |listed| of_leaves(entries, (listed + entries) / 28 + 1));
        map + forwards + lists
    }
}

impl State {
    /// The space as it is.
    pub(crate) fn space(&self) -> Space {
        let usable = self.usable(self.keeps_old());
        let pending = self.pending.blocks.len() as u64 * BLOCK_COST;
        let live = self.usage.live + self.freed_by_steps.map_or(0, |freed| freed.bytes);
        Space { usable, live, pending, free: usable.saturating_sub(live + pending) }
    }

    /// What can still be written to a branch: others may have reserved some of what is free.
    pub(crate) fn free_for(&self, branch: u32) -> u64 {
        self.space().free.saturating_sub(self.reserved.of_others(branch))
    }

    /// Whether there are snapshots, or were until all that is left of them are forwards.
    fn keeps_old(&self) -> bool {
        !self.catalog.snapshots.is_empty() || !self.forward.is_empty()
    }

    /// What is taken out of the space for snapshots when the first one is made.
    pub(crate) fn snapshots_reserve(&self) -> u64 {
        if self.keeps_old() { 0 } else { self.usable(false).saturating_sub(self.usable(true)) }
    }

    /// What data and map can take, with snapshots or without.
    fn usable(&self, keeps: bool) -> u64 {
        let segment = self.store.segment_bytes();
        let capacity = self.store.capacity();
        // Summaries, padding and the ends of segments.
        let overhead = capacity / segment * BLOCK_BYTES as u64 + capacity / 64;
        let spare = (self.reserve(keeps) + SPARE_SEGMENTS * segment).max(capacity / 16 + capacity / 24);
        capacity.saturating_sub(overhead + spare)
    }

    /// What a batch of the usual length and its checkpoint take, and what stays free behind it.
    fn reserve(&self, keeps: bool) -> u64 {
        let blocks = (self.batch_max() / BLOCK_BYTES) as u64;
        let extents = (self.extents_max() as u64).min(blocks);
        self.need_from(&Trees::at_worst(self, keeps), Change::blocks(blocks, extents), Level::Takes)
    }

    /// Bytes of free segments that a change needs at this level.
    pub(crate) fn need(&self, change: Change, level: Level) -> u64 {
        self.need_from(&Trees::now(self), change, level)
    }

    fn need_from(&self, trees: &Trees, change: Change, level: Level) -> u64 {
        let data = |c: Change| self.data_segments(c.bytes);
        let own = data(change) + self.checkpoint_segments(trees, trees.dirtied, change);
        let step = Change::freed(self.step_least() + STEP_ENDS);
        let segments = match level {
            Level::Accepted => own,
            Level::Frees => own + self.round_segments(trees),
            Level::Takes => own + self.round_segments(trees) + data(step) + self.checkpoint_segments(trees, 0, step),
        };
        segments * self.store.segment_bytes()
    }

    /// Segments that so many bytes of entries and data begin. The end of a segment that an extent does not fit is less than an eighth.
    fn data_segments(&self, bytes: u64) -> u64 {
        let segment = self.store.segment_bytes();
        (bytes + bytes / 32).div_ceil(segment - segment / 8)
    }

    /// What the shortest round of the cleaner takes. It goes on in up to three streams.
    fn round_segments(&self, trees: &Trees) -> u64 {
        3 + self.checkpoint_segments(trees, 0, self.round_change(self.extents_least()))
    }

    /// Extents of the shortest round of the cleaner: as many blocks as a segment has. A compressed segment can have more, which
    /// are copied in several rounds.
    fn extents_least(&self) -> u64 {
        (self.store.segment_bytes() / BLOCK_BYTES as u64).clamp(8, self.extents_max() as u64)
    }

    /// What a round of the cleaner changes that ends after so many extents, the last of which may be in pieces. In the shortest one
    /// that is a compressed unit, because its plain blocks are those of one segment.
    fn round_change(&self, extents: u64) -> Change {
        let segment = self.store.segment_bytes();
        let pieces = if extents == self.extents_least() { UNIT_PIECES_MAX } else { PIECES_MAX };
        let all = extents + pieces.min(segment / 2 / BLOCK_BYTES as u64);
        Change { bytes: segment, extents: all, dead: all }
    }

    /// How much a round of the cleaner may copy so that its checkpoint has room; `None` if there is not enough for the shortest.
    pub(crate) fn round_bounds(&self) -> Option<Bounds> {
        let segment = self.store.segment_bytes();
        let least = self.extents_least();
        let mut extents = self.extents_max() as u64;
        let trees = Trees::now(self);
        loop {
            let checkpoint = self.checkpoint_segments(&trees, trees.dirtied, self.round_change(extents)) * segment;
            let left = self.store.available().saturating_sub(checkpoint + 2 * segment);
            // More extents than the bytes can be are of no use.
            if left >= segment && (extents == least || left >= extents * BLOCK_BYTES as u64) {
                let bytes = if extents == least { segment } else { left - left / 8 };
                return Some(Bounds { bytes, changes: extents });
            }
            if extents == least {
                return None;
            }
            extents = (extents / 2).max(least);
        }
    }

    /// Extents that one step may give back: fewer when there is little room.
    pub(crate) fn step_extents(&self) -> usize {
        let most = self.extents_max();
        let change = self.pending_change().and(Change::freed(most as u64 + STEP_ENDS));
        if self.store.available() >= self.need(change, Level::Frees) { most } else { self.step_least() as usize }
    }

    fn step_least(&self) -> u64 {
        STEP_EXTENTS.min(self.extents_max() as u64)
    }

    /// Segments that a checkpoint begins behind a change.
    fn checkpoint_segments(&self, trees: &Trees, dirtied: u64, change: Change) -> u64 {
        let segment = self.store.segment_bytes();
        let usage = if trees.at_worst { self.usage_nodes_at_worst(change) } else { self.usage_nodes(change) };
        let record = 256 + Mounts::BYTES_MAX + SUMMARY_BYTES as u64 + 50 * usage;
        // A record that is too long is made shorter by storing the usage again.
        let again = if record > segment.min(BATCH_BYTES_MAX) / 2 { usage } else { 0 };
        let nodes = dirtied + trees.changed(change) + self.catalog_nodes() + usage + again;
        let in_segment = ((segment - 512) / STORED_NODE_BYTES).max(1);
        nodes.div_ceil(in_segment) + 1
    }

    fn catalog_nodes(&self) -> u64 {
        let records = (self.catalog.snapshots.len() + self.catalog.branches.len()) as u64;
        of_leaves(self.catalog.dirty.len() as u64 + 2, records / 2 + 1)
    }

    /// Nodes of the bitmaps and of the table of segments.
    fn usage_nodes(&self, change: Change) -> u64 {
        let segments = (self.usage.table.len() + self.usage.removed.len()) as u64;
        let pages = segments + self.usage.ordinals / 1024;
        let in_segment = 1 + (self.store.segment_bytes() >> 22) as usize;
        let dead = self.usage.dead_pages.len() + (1 + in_segment) * self.usage.removed.len();
        let records = self.usage.dirty.len() + self.usage.removed.len();
        of_leaves(dead as u64 + change.dead, pages / 7 + 1)
            + of_leaves(records as u64 + change.dead + 4, segments / 30 + 1)
    }

    /// The same, however much is in memory when the change comes: a checkpoint is due from then on.
    fn usage_nodes_at_worst(&self, change: Change) -> u64 {
        let pages = (self.usage.table.len() + self.usage.removed.len()) as u64 + self.usage.ordinals / 1024;
        let most = (self.dirty_share() + self.usage_nodes_least()) as u64;
        let of = |dirty: u64| of_leaves(dirty + change.dead, pages / 7 + 1);
        of(most).min(most + of(0)) + of_leaves(change.dead + 4, pages / 30 + 1)
    }

    /// Nodes that a checkpoint would store now.
    pub(crate) fn checkpoint_nodes(&self) -> u64 {
        self.dirtied as u64 + self.usage_nodes(Change::default())
    }

    /// Whether so much is in memory that a checkpoint is due.
    pub(crate) fn is_dirty(&self) -> bool {
        let most = self.dirty_max();
        let usage = usize::try_from(self.usage_nodes(Change::default())).unwrap_or(usize::MAX);
        self.dirtied >= most
            || usage >= most + self.usage_nodes_least()
            || self.usage.newly_dead.len() >= 64 * most.max(64)
    }

    /// Nodes of the usage that a checkpoint of a small store always has.
    fn usage_nodes_least(&self) -> usize {
        16
    }

    /// Extents that a batch, a step of a deletion or a round of the cleaner changes at most: so many that a checkpoint behind
    /// it takes about a 32nd of the store.
    pub(crate) fn extents_max(&self) -> usize {
        let of_store = self.store.capacity() / 32 / 3 / NODE_BYTES as u64;
        usize::try_from(of_store.clamp(8, 2048)).unwrap_or(8)
    }

    /// Nodes in memory after which a checkpoint is made, however much memory there is: what they take is reserved.
    fn dirty_share(&self) -> usize {
        let of_store = self.store.capacity() / 64 / BLOCK_BYTES as u64;
        usize::try_from(of_store).unwrap_or(usize::MAX).max(16)
    }

    /// Nodes in memory after which a checkpoint is made.
    pub(crate) fn dirty_max(&self) -> usize {
        self.options.cache_nodes.min(self.dirty_share()).max(16)
    }

    /// Keeps so many nodes in memory from now on. What is promised to somebody does not depend on it.
    pub(crate) fn set_cache_nodes(&mut self, nodes: usize) {
        self.options.cache_nodes = nodes.max(16);
        self.cache.lock().resize(self.options.cache_nodes);
    }

    /// Bytes that are accepted at once, at most: wherever their blocks are, [`State::reserve`] is for a batch of them.
    pub(crate) fn atomic_max(&self) -> usize {
        (self.batch_max() / BLOCK_BYTES).min(self.extents_max()) * BLOCK_BYTES
    }

    /// Most bytes of blocks that a batch writes whole: with these it ends by itself, and before if a segment does.
    pub(crate) fn batch_max(&self) -> usize {
        let of_store = self.store.capacity() / 32;
        self.options.batch_bytes.min(usize::try_from(of_store).unwrap_or(usize::MAX)).max(BLOCK_BYTES)
    }
}
