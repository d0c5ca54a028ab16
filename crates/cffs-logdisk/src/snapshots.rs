//! Snapshots and branches: making, deleting in steps, and what differs between two of them.

use crate::batch::{Entry, Logical, NAME_BYTES_MAX};
use crate::catalog::{MAIN_BRANCH, NO_SNAPSHOT};
use crate::codec::corrupt;
use crate::extent::{Birth, EXTENT_BLOCKS_MAX, Extent};
use crate::layouts::{DeadKey, DeadListLayout, MapLayout};
use crate::log::STREAM_NEW;
use crate::packer::Packer;
use crate::space::{Change, Level};
use crate::state::State;
use crate::tree::{Edit, Root, Side, differences};
use crate::usage::Nodes;
use cffs_device::Purpose;
use std::io;
use std::ops::ControlFlow;

/// Ranges, and where to go on if there may be more.
pub(crate) type Ranges = (Vec<(u64, u64)>, Option<u64>);

/// Extents that a difference holds in memory at once.
const DIFF_EXTENTS: usize = 512;

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}

fn busy(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, what.into())
}

fn not_found(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, what.into())
}

impl State {
    /// Writes a batch with one entry without data.
    fn log_entry(&mut self, entry: Entry, level: Level) -> io::Result<()> {
        self.ensure_room(Change { bytes: 4096, ..Change::default() }, level)?;
        let mut packer = Packer::new(STREAM_NEW, None);
        let r = packer.add(self, entry, &[]).and_then(|()| packer.finish(self));
        self.fatal(r)
    }

    /// Makes a snapshot of what is in batches, if it costs at most so many bytes. Returns its id.
    pub(crate) fn snapshot(&mut self, branch: u32, name: &str, costs: u64) -> io::Result<u64> {
        self.check()?;
        if name.len() > NAME_BYTES_MAX {
            return Err(invalid(format!("the name of a snapshot has at most {NAME_BYTES_MAX} bytes")));
        }
        if self.catalog.branches.get(&branch).is_none_or(|b| b.deleting) {
            return Err(not_found(format!("there is no branch {branch}")));
        }
        // With the first one the reserve grows at once. That must not come out of what programs were promised.
        let reserve = self.snapshots_reserve();
        if reserve > costs {
            return Err(busy("the last snapshot was deleted meanwhile, so that a new one costs more"));
        }
        if self.space().free < reserve {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the log disk is too full for snapshots"));
        }
        let (id, version) = (self.next_id, self.version);
        self.log_entry(Entry::Snapshot { id, branch, version, name: name.as_bytes().to_vec() }, Level::Takes)?;
        Ok(id)
    }

    /// Makes a branch that begins as a snapshot. Returns its number.
    pub(crate) fn clone_snapshot(&mut self, snapshot: u64, name: &str) -> io::Result<u32> {
        self.check()?;
        if name.len() > NAME_BYTES_MAX {
            return Err(invalid(format!("the name of a branch has at most {NAME_BYTES_MAX} bytes")));
        }
        if self.catalog.snapshots.get(&snapshot).is_none_or(|s| s.deleting) {
            return Err(not_found(format!("there is no snapshot {snapshot}")));
        }
        let branch = u32::try_from(self.next_id).map_err(|_| invalid("there have been too many branches"))?;
        self.log_entry(Entry::Clone { branch, snapshot, name: name.as_bytes().to_vec() }, Level::Takes)?;
        Ok(branch)
    }

    /// Makes a branch that reads as zeros. Returns its number.
    pub(crate) fn new_branch(&mut self, name: &str) -> io::Result<u32> {
        self.check()?;
        if name.len() > NAME_BYTES_MAX {
            return Err(invalid(format!("the name of a branch has at most {NAME_BYTES_MAX} bytes")));
        }
        let branch = u32::try_from(self.next_id).map_err(|_| invalid("there have been too many branches"))?;
        let entry = Entry::Clone { branch, snapshot: NO_SNAPSHOT, name: name.as_bytes().to_vec() };
        self.log_entry(entry, Level::Takes)?;
        Ok(branch)
    }

    /// Begins to delete a snapshot: it is gone for everybody, its space comes back in steps.
    pub(crate) fn delete_snapshot(&mut self, id: u64) -> io::Result<()> {
        self.check()?;
        let s = self.catalog.snapshots.get(&id).filter(|s| !s.deleting);
        let s = s.ok_or_else(|| not_found(format!("there is no snapshot {id}")))?;
        if s.opened > 0 {
            return Err(busy(format!("snapshot {id} is open")));
        }
        if self.catalog.branches.values().any(|b| b.origin == Some(id)) {
            return Err(busy(format!("a branch began as snapshot {id} and needs it")));
        }
        self.log_entry(Entry::Delete { id }, Level::Frees)
    }

    /// Begins to delete a branch.
    pub(crate) fn delete_branch(&mut self, branch: u32) -> io::Result<()> {
        self.check()?;
        if branch == MAIN_BRANCH {
            return Err(invalid("the main branch cannot be deleted"));
        }
        if self.catalog.branches.get(&branch).is_none_or(|b| b.deleting) {
            return Err(not_found(format!("there is no branch {branch}")));
        }
        if self.catalog.snapshots.values().any(|s| s.branch == branch) {
            return Err(busy(format!("branch {branch} has snapshots; they go first")));
        }
        if self.catalog.branches.get(&branch).is_some_and(|b| b.opened > 0) {
            return Err(busy(format!("branch {branch} is open")));
        }
        self.log_entry(Entry::Delete { id: u64::from(branch) }, Level::Frees)
    }

    /// Whether something is still being deleted.
    pub(crate) fn is_deleting(&self) -> bool {
        self.catalog.snapshots.values().any(|s| s.deleting) || self.catalog.branches.values().any(|b| b.deleting)
    }

    /// Gives back the space of what was deleted: about `entries` extents, then returns. True if there is more to do.
    ///
    /// A step is in no batch: after a crash it is done again. So what it frees is given out when a checkpoint has it.
    pub(crate) fn delete_step(&mut self, entries: usize) -> io::Result<bool> {
        self.check()?;
        if !self.is_deleting() {
            return Ok(false);
        }
        let entries = entries.clamp(1, self.step_extents());
        // What was accepted keeps its room.
        let change = self.pending_change().and(Change::freed(entries as u64));
        self.ensure_room(change, Level::Frees)?;
        if !self.frozen.is_empty() {
            // What only snapshots refer to must have a place before one of them goes.
            self.checkpoint()?;
        }
        let before = self.usage.live;
        let r = self.try_delete_step(entries);
        self.fatal(r)?;
        self.note_freed_by_steps(before.saturating_sub(self.usage.live), 0);
        let is_more = self.is_deleting();
        if self.is_dirty() || !is_more {
            self.checkpoint()?;
        }
        Ok(is_more)
    }

    /// A step has been taken, or something is free because of one. Whether it has freed anything: what lives after a crash is another from now on.
    pub(crate) fn note_freed_by_steps(&mut self, bytes: u64, listed: u64) {
        let freed = self.freed_by_steps.get_or_insert_default();
        freed.bytes += bytes;
        freed.listed += listed;
    }

    /// Goes on with what is being deleted until so many bytes are free, or all of it is.
    pub(crate) fn give_back(&mut self, bytes: u64) -> io::Result<()> {
        let _purpose = Purpose::Clean.scope();
        while self.space().free < bytes {
            let is_enough = self.space().free + self.freed_by_steps.map_or(0, |freed| freed.bytes) >= bytes;
            if self.is_deleting() && !is_enough {
                self.delete_step(usize::MAX)?;
            } else if self.freed_by_steps.is_some() {
                self.checkpoint()?;
            } else {
                break;
            }
        }
        Ok(())
    }

    fn try_delete_step(&mut self, entries: usize) -> io::Result<()> {
        // After a crash all of them may be there again that were deleted one after the other: nothing goes before what needs it.
        let (branches, snapshots) = (&self.catalog.branches, &self.catalog.snapshots);
        let has_snapshots = |id: u32| snapshots.values().any(|s| s.branch == id);
        let is_origin = |id: u64| branches.values().any(|b| b.origin == Some(id));
        if let Some((&id, _)) = branches.iter().find(|(id, b)| b.deleting && !has_snapshots(**id)) {
            self.delete_branch_step(id, entries)
        } else if let Some((&id, _)) = snapshots.iter().find(|(id, s)| s.deleting && !is_origin(**id)) {
            self.delete_snapshot_step(id, entries)
        } else {
            Err(corrupt("what is being deleted is needed by what is not"))
        }
    }

    fn delete_branch_step(&mut self, id: u32, entries: usize) -> io::Result<()> {
        let Some(b) = self.catalog.branches.get(&id) else { return Ok(()) };
        let mut last = None;
        let mut n = 0;
        b.root.scan(&self.nodes(), &0, &mut |block, e| {
            last = Some(block + u64::from(e.blocks));
            n += 1;
            if n < entries { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        let list = b.list.id;
        match last {
            Some(end) => self.unmap(Logical { branch: id, block: 0 }, end),
            None => {
                // What it has noted belongs to the snapshot that it began as.
                if self.take_from_list(list, 0, entries, false)? {
                    self.catalog.branches.remove(&id);
                    self.catalog.dirty.insert(u64::from(id));
                }
                Ok(())
            }
        }
    }

    /// Frees, or only forgets, entries of a dead list that were written after version `above`. True if none is left.
    fn take_from_list(&mut self, list: u64, above: u64, entries: usize, free: bool) -> io::Result<bool> {
        let from = DeadKey { list, version: above + 1, birth: Birth { segment: 0, ordinal: 0 } };
        let mut found = Vec::new();
        let nodes = self.nodes().direct();
        self.dead_lists.scan(&nodes, &from, &mut |key, value| {
            if key.list != list || found.len() >= entries {
                return ControlFlow::Break(());
            }
            found.push((*key, *value));
            ControlFlow::Continue(())
        })?;
        for (key, (blocks, bytes)) in &found {
            self.edit_dead_lists(|root, edit| remove_known(root, edit, key))?;
            if free {
                self.free(key.birth, *blocks, u64::from(*bytes))?;
            }
        }
        self.shrink_list(list, found.len() as u64);
        self.listed = self.listed.saturating_sub(found.len() as u64);
        Ok(found.len() < entries)
    }

    fn shrink_list(&mut self, list: u64, by: u64) {
        let branches = self.catalog.branches.iter_mut().map(|(id, b)| (u64::from(*id), &mut b.list));
        for (id, l) in branches.chain(self.catalog.snapshots.iter_mut().map(|(id, s)| (*id, &mut s.list))) {
            if l.id == list {
                l.entries = l.entries.saturating_sub(by);
                self.catalog.dirty.insert(id);
            }
        }
    }

    fn delete_snapshot_step(&mut self, id: u64, entries: usize) -> io::Result<()> {
        let Some(s) = self.catalog.snapshots.get(&id) else { return Ok(()) };
        let (branch, own) = (s.branch, s.list);
        let chain = self.catalog.of_branch(branch);
        let at = chain.iter().position(|(_, i)| *i == id).ok_or_else(|| corrupt("a snapshot is in no branch"))?;
        let below = match at.checked_sub(1).and_then(|i| chain.get(i)) {
            Some((version, _)) => *version,
            None => self.catalog.origin_version(branch),
        };
        let next = chain.get(at + 1).map(|(_, i)| *i);
        let next_list = match next {
            Some(n) => self.catalog.snapshots.get(&n).map(|s| s.list),
            None => self.catalog.branches.get(&branch).map(|b| b.list),
        };
        let next_list = next_list.ok_or_else(|| corrupt("a snapshot is in no branch"))?;
        // What died after this snapshot and was written after the one before it, only this one had.
        if !self.take_from_list(next_list.id, below, entries, true)? {
            return Ok(());
        }
        let next_list = match next {
            Some(n) => self.catalog.snapshots.get(&n).map(|s| s.list),
            None => self.catalog.branches.get(&branch).map(|b| b.list),
        };
        let next_list = next_list.ok_or_else(|| corrupt("a snapshot is in no branch"))?;
        // The rest of both lists becomes one. The shorter is copied, so that deleting many costs little for each.
        if own.id == next_list.id {
            return Err(corrupt("two snapshots have one dead list"));
        }
        let (short, long) = if own.entries <= next_list.entries { (own, next_list) } else { (next_list, own) };
        let mut joined = long;
        if !self.join_lists(short.id, long.id, entries, &mut joined.entries)? {
            self.set_list_entries(long.id, joined.entries);
            return Ok(());
        }
        self.catalog.snapshots.remove(&id);
        match next {
            Some(n) => {
                if let Some(s) = self.catalog.snapshots.get_mut(&n) {
                    s.list = joined;
                }
                self.catalog.dirty.insert(n);
            }
            None => {
                if let Some(b) = self.catalog.branches.get_mut(&branch) {
                    b.list = joined;
                }
            }
        }
        self.catalog.dirty.extend([id, u64::from(branch)]);
        self.catalog.update_floor(branch);
        Ok(())
    }

    fn set_list_entries(&mut self, list: u64, entries: u64) {
        let branches = self.catalog.branches.iter_mut().map(|(id, b)| (u64::from(*id), &mut b.list));
        for (id, l) in branches.chain(self.catalog.snapshots.iter_mut().map(|(id, s)| (*id, &mut s.list))) {
            if l.id == list {
                l.entries = entries;
                self.catalog.dirty.insert(id);
            }
        }
    }

    /// Moves entries of one dead list to another. True if none is left.
    fn join_lists(&mut self, from: u64, to: u64, entries: usize, count: &mut u64) -> io::Result<bool> {
        let start = DeadKey { list: from, version: 0, birth: Birth { segment: 0, ordinal: 0 } };
        let mut found = Vec::new();
        let nodes = self.nodes().direct();
        self.dead_lists.scan(&nodes, &start, &mut |key, value| {
            if key.list != from || found.len() >= entries {
                return ControlFlow::Break(());
            }
            found.push((*key, *value));
            ControlFlow::Continue(())
        })?;
        for (key, value) in &found {
            self.edit_dead_lists(|root, edit| {
                remove_known(root, edit, key)?;
                root.insert(edit, DeadKey { list: to, ..*key }, *value)
            })?;
        }
        *count += found.len() as u64;
        self.shrink_list(from, found.len() as u64);
        Ok(found.len() < entries)
    }

    /// The ranges of blocks (start, number) from a block on that differ between two maps, in order, at most `max`; and where to go on, if there may
    /// be more. Where both have the same node, nothing is read. A range counts as different if it was written anew, even
    /// with the same bytes. Takes memory for some hundreds of extents whatever the size.
    pub(crate) fn diff(&self, a: &Root<MapLayout>, b: &Root<MapLayout>, from: u64, max: usize) -> io::Result<Ranges> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut at = from;
        loop {
            let (found, next) = self.diff_window(a, b, at)?;
            for (start, end) in found {
                let is_full = ranges.len() >= max.max(1);
                match ranges.last_mut() {
                    Some(last) if last.1 >= start => last.1 = last.1.max(end),
                    _ if is_full => return Ok((lengths(ranges), Some(start))),
                    _ => ranges.push((start, end)),
                }
            }
            match next {
                Some(next) => at = next,
                None => return Ok((lengths(ranges), None)),
            }
        }
    }

    /// The ranges (start, end) that differ from a block on, up to where some hundreds of extents have been met; and where that is.
    fn diff_window(&self, a: &Root<MapLayout>, b: &Root<MapLayout>, from: u64) -> io::Result<Ranges> {
        let mut sides: [Vec<(u64, Extent)>; 2] = Default::default();
        let mut next = None;
        // An extent that begins before may reach into the window.
        let first = from.saturating_sub(u64::from(EXTENT_BLOCKS_MAX) - 1);
        differences(a, b, &self.nodes(), &first, &mut |side, &block, e| {
            if block.saturating_add(u64::from(e.blocks)) <= from {
                return ControlFlow::Continue(());
            }
            if sides[0].len() + sides[1].len() >= DIFF_EXTENTS && block > from {
                next = Some(block);
                return ControlFlow::Break(());
            }
            sides[usize::from(side == Side::Second)].push((block, e.clone()));
            ControlFlow::Continue(())
        })?;
        // What reaches out of the window belongs to the next one as well.
        let end = next.unwrap_or(u64::MAX);
        for list in &mut sides {
            list.retain(|(block, _)| *block < end);
            for (block, e) in list {
                let skip = from.saturating_sub(*block);
                let cut = (*block + u64::from(e.blocks)).saturating_sub(end);
                *e = e.part(skip as u32, e.blocks - (skip + cut) as u32);
                *block += skip;
            }
        }
        let mut changed = RangeList::default();
        changed.add_all(&sides[0], &sides[1]);
        changed.add_all(&sides[1], &sides[0]);
        Ok((changed.finish(), next))
    }
}

/// Start and length of each range.
fn lengths(ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.into_iter().map(|(start, end)| (start, end - start)).collect()
}

/// Removes an entry that was just found.
fn remove_known(root: &mut Root<DeadListLayout>, edit: &mut Edit<'_, Nodes<'_>>, key: &DeadKey) -> io::Result<()> {
    if root.remove(edit, key)? { Ok(()) } else { Err(corrupt("an entry of a dead list is not where its key leads")) }
}

/// Ranges that are found in two passes: what the first map has and the second does not, and the other way round.
#[derive(Default)]
struct RangeList {
    ranges: Vec<(u64, u64)>,
}

impl RangeList {
    /// Adds what of the extents of one map the other does not have.
    fn add_all(&mut self, these: &[(u64, Extent)], others: &[(u64, Extent)]) {
        for (block, e) in these {
            let end = block + u64::from(e.blocks);
            let first = others.partition_point(|(b, o)| b + u64::from(o.blocks) <= *block);
            let overlapping = others[first..].iter().take_while(|(b, _)| *b < end);
            let cut: Vec<(u64, Extent)> = overlapping
                .map(|(b, o)| {
                    let start = (*b).max(*block);
                    let after = (b + u64::from(o.blocks)).min(end);
                    (start, o.part((start - b) as u32, (after - start) as u32))
                })
                .collect();
            self.add(*block, e, &cut);
        }
    }

    /// Adds what of an extent the other map does not have at the same place.
    fn add(&mut self, block: u64, extent: &Extent, other: &[(u64, Extent)]) {
        let mut at = block;
        let end = block + u64::from(extent.blocks);
        for (start, e) in other {
            let skip = start - block;
            let same = e.place.segment == extent.place.segment
                && u64::from(e.place.ordinal) == u64::from(extent.place.ordinal) + skip;
            if same {
                if *start > at {
                    self.ranges.push((at, *start));
                }
                at = start + u64::from(e.blocks);
            }
        }
        if at < end {
            self.ranges.push((at, end));
        }
    }

    fn finish(mut self) -> Vec<(u64, u64)> {
        self.ranges.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (start, end) in self.ranges {
            match joined.last_mut() {
                Some(last) if last.1 >= start => last.1 = last.1.max(end),
                _ => joined.push((start, end)),
            }
        }
        joined
    }
}
