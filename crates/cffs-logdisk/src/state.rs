//! The disk in memory, and what each entry of a batch does to it. Recovery does the same with the entries it finds.

use crate::around::Around;
use crate::batch::{Entry, Logical, Summary};
use crate::cache::NodeCache;
use crate::catalog::{Branch, Catalog, DeadList, NO_SNAPSHOT, Snapshot};
use crate::codec::corrupt;
use crate::extent::{BLOCK_BYTES, Birth, Codec, Extent, Place};
use crate::layouts::{DeadKey, DeadListLayout, ForwardLayout, MapLayout};
use crate::log::Log;
use crate::options::LogOptions;
use crate::patches::Patches;
use crate::pending::Pending;
use crate::recent::Recent;
use crate::reserved::Reserved;
use crate::store::{SegmentId, SegmentStore};
use crate::tree::{Edit, NODE_BYTES, Node, NodeRef, Root, insert_extent, lookup_extents, remove_extents};
use crate::usage::{Nodes, Usage};
use cffs_device::{ForWhom, Observed};
use parking_lot::{Mutex, RwLock};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

type AnyNode = Arc<dyn Any + Send + Sync>;

/// Everything that is known of a disk while it is open.
pub(crate) struct State {
    pub(crate) options: LogOptions,
    pub(crate) store: Arc<dyn SegmentStore>,
    pub(crate) cache: Mutex<NodeCache>,
    /// What was read of segments around what was asked for.
    pub(crate) around: Arc<Around>,
    /// Bytes of logical space of each branch.
    pub(crate) logical_bytes: u64,
    /// The map was made anew, and what is lost is not marked yet.
    pub(crate) unmarked: bool,
    pub(crate) log: Log,
    pub(crate) usage: Usage,
    pub(crate) forward: Root<ForwardLayout>,
    pub(crate) dead_lists: Root<DeadListLayout>,
    pub(crate) catalog: Catalog,
    /// What is written now gets this version.
    pub(crate) version: u64,
    /// The next id of a branch or snapshot, and of a dead list.
    pub(crate) next_id: u64,
    pub(crate) next_list: u64,
    /// Nodes that only snapshots refer to and that are not stored yet, with the dead list they belong to.
    pub(crate) frozen: Vec<(u64, AnyNode)>,
    /// Highest level that the map of a branch has had.
    pub(crate) map_level: u8,
    /// Entries of all dead lists, or somewhat more.
    pub(crate) listed: u64,
    /// Nodes in memory that a checkpoint would store, or somewhat more.
    pub(crate) dirtied: usize,
    pub(crate) pending: Pending,
    pub(crate) recent: Recent,
    /// What the batches that recovery has applied say of blocks that were not written whole after that.
    pub(crate) patches: Patches,
    /// What is free by steps of deletions that no checkpoint has, if there are such steps: after a crash it lives until these are done again.
    pub(crate) freed_by_steps: Option<FreedBySteps>,
    /// What is reserved of the free space.
    pub(crate) reserved: Arc<Reserved>,
    /// Where the record of the last checkpoint is: place and bytes.
    pub(crate) record: Option<(Birth, u64)>,
    /// Segments that are not worth cleaning until what lives in them changes: their live bytes.
    pub(crate) poor: BTreeMap<SegmentId, u64>,
    /// Number of the last batch, live bytes and new dead extents when cleaning was last tried in vain.
    pub(crate) in_vain: Option<(u64, u64, usize)>,
    /// Deleted segments whose device was not told, since the start.
    pub(crate) failed_discards: u64,
    /// Segments that the cleaner leaves alone because something in them could not be read or verified.
    pub(crate) damaged: BTreeSet<SegmentId>,
    /// Bytes that the cleaner has copied since the start.
    pub(crate) cleaned: u64,
    /// Extents and nodes that were moved by a forward since the start.
    pub(crate) forwarded: u64,
    /// Patches that were written since the start.
    pub(crate) patched: u64,
    /// Bytes that programs have written since the start.
    pub(crate) accepted: u64,
    /// Held shared by who reads a segment; a segment is deleted while nobody does.
    pub(crate) readers: Arc<RwLock<()>>,
    /// Whether a flush of the store has failed. Held while the store is flushed: a device tells of a lost write once, and a checkpoint
    /// that flushed after that would refer to what is lost.
    pub(crate) flush_failed: Arc<Mutex<bool>>,
    /// Why nothing can be written any more.
    pub(crate) failed: Option<String>,
    /// Who learns what is done for many.
    pub(crate) observed: Observed,
    /// Whose writes are in no batch yet; and whose are not written whole yet.
    pub(crate) for_batch: ForWhom,
    pub(crate) for_blocks: ForWhom,
    /// For whom the map has changed since the last checkpoint.
    pub(crate) for_checkpoint: ForWhom,
}

/// What a crash undoes.
#[derive(Clone, Copy, Default)]
pub(crate) struct FreedBySteps {
    /// Bytes that live again.
    pub(crate) bytes: u64,
    /// Extents that died since, and that recovery puts into dead lists for a snapshot that is there again.
    pub(crate) listed: u64,
}

impl State {
    /// An error if an earlier one has ended all writing.
    pub(crate) fn check(&self) -> io::Result<()> {
        match &self.failed {
            Some(why) => Err(io::Error::other(format!("the log disk takes no more writes: {why}"))),
            None if self.options.read_only => {
                Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the log disk is open read-only"))
            }
            None => Ok(()),
        }
    }

    /// Ends all writing if `r` is an error: what is in memory may no longer agree with the store.
    pub(crate) fn fatal<T>(&mut self, r: io::Result<T>) -> io::Result<T> {
        if let Err(e) = &r {
            self.failed.get_or_insert_with(|| e.to_string());
        }
        r
    }

    /// Reads nodes of maps.
    pub(crate) fn nodes(&self) -> Nodes<'_> {
        Nodes { store: &*self.store, cache: &self.cache, table: &self.usage.table, forward: Some(&self.forward) }
    }

    /// The map is asked for these places next.
    pub(crate) fn bring_map(&self, places: impl Iterator<Item = Logical>) {
        let mut by_branch: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        places.for_each(|at| by_branch.entry(at.branch).or_default().push(at.block));
        for (branch, mut blocks) in by_branch {
            blocks.sort_unstable();
            if let Some(b) = self.catalog.branches.get(&branch) {
                b.root.bring(&self.nodes(), &blocks);
            }
        }
    }

    /// Changes the map of a branch. What it no longer refers to is freed, or noted for its snapshots.
    fn edit_map(
        &mut self,
        branch: u32,
        change: impl FnOnce(&mut Root<MapLayout>, &mut Edit<'_, Nodes<'_>>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut retired, mut frozen) = (Vec::new(), Vec::new());
        let src =
            Nodes { store: &*self.store, cache: &self.cache, table: &self.usage.table, forward: Some(&self.forward) };
        let b = self.catalog.branches.get_mut(&branch).ok_or_else(|| corrupt("a branch is missing"))?;
        let mut edit = Edit {
            src: &src,
            version: self.version,
            retired: &mut retired,
            frozen: &mut frozen,
            dirtied: &mut self.dirtied,
        };
        // A change that fails half way has replaced nodes all the same.
        let changed = change(&mut b.root, &mut edit);
        self.map_level = self.map_level.max(b.root.level());
        self.catalog.dirty.insert(u64::from(branch));
        let list = b.list.id;
        if !frozen.is_empty() {
            let origin = self.catalog.origin_version(branch);
            // Older nodes belong to the snapshot that the branch began as, which outlives it.
            let ours = |n: &AnyNode| n.downcast_ref::<Node<MapLayout>>().is_some_and(|n| n.version() > origin);
            self.frozen.extend(frozen.into_iter().filter(ours).map(|n| (list, n)));
        }
        for r in retired {
            let at = Birth { segment: r.segment, ordinal: r.ordinal };
            let noted = self.unreferenced(branch, at, 1, NODE_BYTES as u64, r.version);
            self.fatal(noted)?;
        }
        changed
    }

    /// Nodes of a tree that no snapshot has are no longer referred to.
    pub(crate) fn free_retired(&mut self, retired: &[NodeRef]) -> io::Result<()> {
        let noted = retired.iter().try_for_each(|r| self.usage.free_node(r));
        self.fatal(noted)
    }

    fn edit_forward(
        &mut self,
        change: impl FnOnce(&mut Root<ForwardLayout>, &mut Edit<'_, Nodes<'_>>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut retired = Vec::new();
        let src = Nodes { store: &*self.store, cache: &self.cache, table: &self.usage.table, forward: None };
        let mut edit =
            Edit { src: &src, version: 0, retired: &mut retired, frozen: &mut Vec::new(), dirtied: &mut self.dirtied };
        let changed = change(&mut self.forward, &mut edit);
        self.free_retired(&retired)?;
        changed
    }

    pub(crate) fn edit_dead_lists(
        &mut self,
        change: impl FnOnce(&mut Root<DeadListLayout>, &mut Edit<'_, Nodes<'_>>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut retired = Vec::new();
        let src = Nodes { store: &*self.store, cache: &self.cache, table: &self.usage.table, forward: None };
        let mut edit =
            Edit { src: &src, version: 0, retired: &mut retired, frozen: &mut Vec::new(), dirtied: &mut self.dirtied };
        let changed = change(&mut self.dead_lists, &mut edit);
        self.free_retired(&retired)?;
        changed
    }

    /// A branch no longer refers to blocks of this version.
    fn unreferenced(&mut self, branch: u32, at: Birth, blocks: u32, bytes: u64, version: u64) -> io::Result<()> {
        let b = self.catalog.branches.get_mut(&branch).ok_or_else(|| corrupt("a branch is missing"))?;
        if version > b.floor {
            if version <= b.floor_after_crash {
                self.note_freed_by_steps(bytes, 1);
            }
            return self.free(at, blocks, bytes);
        }
        if version <= self.catalog.origin_version(branch) {
            return Ok(()); // the snapshot that the branch began as has them, and outlives it
        }
        let Some(b) = self.catalog.branches.get_mut(&branch) else { return Ok(()) };
        b.list.entries += 1;
        self.listed += 1;
        let key = DeadKey { list: b.list.id, version, birth: at };
        self.catalog.dirty.insert(u64::from(branch));
        match self.edit_dead_lists(|root, edit| root.insert(edit, key, (blocks, bytes as u32))) {
            // Who only reads needs them for nothing; the writer before may have ended where they could not be read.
            Err(_) if self.options.read_only => Ok(()),
            r => r,
        }
    }

    /// Nobody refers to the blocks any more, which were first written at `at`. A compressed unit has been moved as a whole, or not; of plain blocks those may be
    /// left that could not be read.
    pub(crate) fn free(&mut self, at: Birth, blocks: u32, bytes: u64) -> io::Result<()> {
        if self.usage.table.get(&at.segment).is_some_and(|info| !info.forwarded) {
            return self.usage.free(at, blocks, bytes);
        }
        let mut moved = Vec::new();
        self.edit_forward(|root, edit| remove_extents(root, edit, at, u64::from(blocks), &mut moved))?;
        if moved.is_empty() {
            return self.usage.free(at, blocks, bytes);
        }
        let (block, mut done) = (BLOCK_BYTES as u64, 0);
        let left = blocks - moved.iter().map(|(_, e)| e.blocks).sum::<u32>();
        if left > 0 && bytes != u64::from(blocks) * block {
            return Err(corrupt("only a part of a stored unit has been moved"));
        }
        let parts = moved.into_iter().map(|(birth, e)| (birth.ordinal - at.ordinal, Some(e)));
        for (first, e) in parts.chain([(blocks, None)]) {
            if first > done {
                let here = Birth { ordinal: at.ordinal + done, ..at };
                self.usage.free(here, first - done, u64::from(first - done) * block)?;
            }
            done = first + e.as_ref().map_or(0, |e| e.blocks);
            if let Some(e) = e {
                self.usage.free(e.place.birth(), e.blocks, e.share())?;
            }
        }
        Ok(())
    }

    fn unmapped(&mut self, branch: u32, displaced: Vec<(u64, Extent)>) -> io::Result<()> {
        for (_, e) in displaced {
            let at = e.place.birth();
            self.unreferenced(branch, at, e.blocks, e.share(), e.version)?;
        }
        Ok(())
    }

    /// Takes a range out of a branch.
    pub(crate) fn unmap(&mut self, at: Logical, blocks: u64) -> io::Result<()> {
        self.patches.forget(at, blocks);
        let blocks = blocks.min(u64::MAX - at.block);
        let mut displaced = Vec::new();
        self.edit_map(at.branch, |root, edit| remove_extents(root, edit, at.block, blocks, &mut displaced))?;
        self.unmapped(at.branch, displaced)
    }

    /// Maps an extent in a branch.
    pub(crate) fn map(&mut self, at: Logical, extent: Extent) -> io::Result<()> {
        let mut displaced = Vec::new();
        self.edit_map(at.branch, |root, edit| {
            remove_extents(root, edit, at.block, u64::from(extent.blocks), &mut displaced)?;
            insert_extent(root, edit, at.block, extent)
        })?;
        self.unmapped(at.branch, displaced)
    }

    /// Does what the entries of a batch say. The batch is accounted for already. In recovery, `replay`, the nodes of a checkpoint are of
    /// no use: one that counts is behind the root.
    pub(crate) fn apply(&mut self, summary: &Summary, replay: bool) -> io::Result<()> {
        self.bring_map(summary.entries.iter().filter_map(|entry| match entry {
            Entry::Write { at, .. } | Entry::Remap { at, .. } | Entry::Discard { at, .. } => Some(*at),
            _ => None,
        }));
        let placed: Vec<(u32, u32)> = summary.placed().map(|(_, o, at)| (o, at)).collect();
        for (entry, (ordinal, offset)) in summary.entries.iter().zip(placed) {
            self.apply_entry(entry, summary.segment, ordinal, offset, replay)?;
        }
        Ok(())
    }

    fn apply_entry(
        &mut self,
        entry: &Entry,
        segment: SegmentId,
        ordinal: u32,
        offset: u32,
        replay: bool,
    ) -> io::Result<()> {
        let here = Birth { segment, ordinal };
        let extent = |version: u64, p: &crate::batch::Payload| {
            let (codec, stored, unit_blocks) = (p.codec, p.stored, p.blocks);
            let crcs = p.crcs.clone();
            Extent {
                blocks: p.blocks,
                version,
                place: Place { segment, ordinal, offset, codec, stored, unit_blocks, index: 0, crcs },
            }
        };
        match entry {
            Entry::Write { at, version, data } => {
                self.patches.forget(*at, u64::from(data.blocks));
                if self.catalog.branches.get(&at.branch).is_none_or(|b| b.deleting) {
                    return self.usage.free(here, data.blocks, u64::from(data.stored));
                }
                self.map(*at, extent(*version, data))
            }
            Entry::Discard { at, blocks } => {
                if self.catalog.branches.contains_key(&at.branch) {
                    self.unmap(*at, *blocks)?;
                }
                Ok(())
            }
            Entry::Remap { at, version, source, data, .. } => self.apply_remap(*at, *source, extent(*version, data)),
            Entry::Forward { version, birth, bytes, data, .. } => {
                self.apply_forward(*birth, u64::from(*bytes), extent(*version, data))
            }
            Entry::ForwardNode { head, birth, crc } => {
                let place = Place {
                    segment,
                    ordinal,
                    offset,
                    codec: Codec::Plain,
                    stored: NODE_BYTES as u32,
                    unit_blocks: 1,
                    index: 0,
                    crcs: vec![*crc],
                };
                let extent = Extent { blocks: 1, version: head.version, place };
                self.apply_forward(*birth, NODE_BYTES as u64, extent)
            }
            Entry::Patch { at, patch } => {
                if replay && !self.patches.add(*at, patch) {
                    return Err(corrupt("more blocks are in patches only than there may be"));
                }
                Ok(())
            }
            Entry::Node { .. } | Entry::Record { .. } => {
                if replay {
                    self.usage.free(here, 1, u64::from(entry.stored()))?;
                }
                Ok(())
            }
            Entry::Snapshot { id, branch, version, name } => self.apply_snapshot(*id, *branch, *version, name),
            Entry::Clone { branch, snapshot, name } => self.apply_clone(*branch, *snapshot, name),
            Entry::Delete { id } => {
                if let Some(s) = self.catalog.snapshots.get_mut(id) {
                    s.deleting = true;
                } else if let Some(b) = u32::try_from(*id).ok().and_then(|id| self.catalog.branches.get_mut(&id)) {
                    b.deleting = true;
                }
                self.catalog.dirty.insert(*id);
                Ok(())
            }
        }
    }

    /// The branch refers to the copy wherever it still refers to the source.
    fn apply_remap(&mut self, at: Logical, source: Birth, copy: Extent) -> io::Result<()> {
        let found = match self.catalog.branches.get(&at.branch) {
            Some(b) => lookup_extents(&b.root, &self.nodes(), at.block, u64::from(copy.blocks))?,
            None => Vec::new(),
        };
        let mut done = 0;
        for (block, old) in found {
            let skip = (block - at.block) as u32;
            if old.place.segment != source.segment || old.place.ordinal != source.ordinal + skip {
                continue;
            }
            self.unused_copy(&copy, done, skip)?;
            let mut part = copy.part(skip, old.blocks);
            part.version = old.version;
            self.map(Logical { branch: at.branch, block }, part)?;
            done = skip + old.blocks;
        }
        self.unused_copy(&copy, done, copy.blocks)
    }

    /// Blocks of a copy that nobody needs.
    fn unused_copy(&mut self, copy: &Extent, from: u32, to: u32) -> io::Result<()> {
        if from >= to {
            return Ok(());
        }
        let part = copy.part(from, to - from);
        self.usage.free(part.place.birth(), part.blocks, part.share())
    }

    /// What was first written at `birth` is now elsewhere; `bytes` is what it took where it was, if it was never moved before.
    fn apply_forward(&mut self, birth: Birth, bytes: u64, extent: Extent) -> io::Result<()> {
        let blocks = extent.blocks;
        self.forwarded += 1;
        let mut moved = Vec::new();
        self.edit_forward(|root, edit| {
            remove_extents(root, edit, birth, u64::from(blocks), &mut moved)?;
            insert_extent(root, edit, birth, extent)
        })?;
        if moved.is_empty() {
            self.usage.free(birth, blocks, bytes)?;
        }
        for (_, e) in moved {
            self.usage.free(e.place.birth(), e.blocks, e.share())?;
        }
        if let Some(info) = self.usage.table.get_mut(&birth.segment) {
            info.forwarded = true;
            self.usage.dirty.insert(birth.segment);
        }
        Ok(())
    }

    fn apply_snapshot(&mut self, id: u64, branch: u32, version: u64, name: &[u8]) -> io::Result<()> {
        let list = DeadList { id: self.next_list, entries: 0 };
        self.next_list += 1;
        let b = self.catalog.branches.get_mut(&branch).ok_or_else(|| corrupt("a snapshot of no branch"))?;
        let taken = std::mem::replace(&mut b.list, list);
        (b.floor, b.floor_after_crash) = (version, version);
        let root = b.root.clone();
        let name = name.to_vec();
        let snapshot = Snapshot { branch, version, root, list: taken, deleting: false, name, opened: 0 };
        self.catalog.snapshots.insert(id, snapshot);
        self.catalog.dirty.extend([id, u64::from(branch)]);
        self.version = self.version.max(version) + 1;
        self.next_id = self.next_id.max(id + 1);
        Ok(())
    }

    fn apply_clone(&mut self, branch: u32, snapshot: u64, name: &[u8]) -> io::Result<()> {
        let list = DeadList { id: self.next_list, entries: 0 };
        self.next_list += 1;
        let (root, floor, origin) = if snapshot == NO_SNAPSHOT {
            (Root::default(), 0, None)
        } else {
            let s = self.catalog.snapshots.get(&snapshot).ok_or_else(|| corrupt("a clone of no snapshot"))?;
            (s.root.clone(), s.version, Some(snapshot))
        };
        let (name, floor_after_crash) = (name.to_vec(), floor);
        let b = Branch { root, origin, list, deleting: false, name, floor, floor_after_crash, opened: 0 };
        self.catalog.branches.insert(branch, b);
        self.catalog.dirty.insert(u64::from(branch));
        self.next_id = self.next_id.max(u64::from(branch) + 1);
        Ok(())
    }

    /// The node on the path to `key` is to be stored elsewhere, if it is the one at `at`. Only for nodes that one branch alone refers to.
    pub(crate) fn touch_map_node(&mut self, branch: u32, key: u64, level: u8, at: (u64, u32)) -> io::Result<bool> {
        let mut found = false;
        self.edit_map(branch, |root, edit| {
            found = root.touch(edit, &key, level, at)?;
            Ok(())
        })?;
        Ok(found)
    }

    pub(crate) fn touch_forward_node(&mut self, key: Birth, level: u8, at: (u64, u32)) -> io::Result<bool> {
        let mut found = false;
        self.edit_forward(|root, edit| {
            found = root.touch(edit, &key, level, at)?;
            Ok(())
        })?;
        Ok(found)
    }

    /// Nodes that were in memory only for snapshots have been stored: the lists of those who no longer refer to them learn where.
    pub(crate) fn note_frozen(&mut self, stored: Vec<(u64, NodeRef)>) -> io::Result<()> {
        if stored.is_empty() {
            return Ok(());
        }
        self.listed += stored.len() as u64;
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        stored.iter().for_each(|(list, _)| *counts.entry(*list).or_default() += 1);
        let branches = self.catalog.branches.iter_mut().map(|(id, b)| (u64::from(*id), &mut b.list));
        for (id, list) in branches.chain(self.catalog.snapshots.iter_mut().map(|(id, s)| (*id, &mut s.list))) {
            if let Some(n) = counts.get(&list.id) {
                list.entries += n;
                self.catalog.dirty.insert(id);
            }
        }
        for (list, r) in stored {
            let birth = Birth { segment: r.segment, ordinal: r.ordinal };
            let key = DeadKey { list, version: r.version, birth };
            self.edit_dead_lists(|root, edit| root.insert(edit, key, (1, NODE_BYTES as u32)))?;
        }
        Ok(())
    }
}
