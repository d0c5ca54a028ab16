//! Counts everything anew, from the roots, and compares it with what the usage says.

use crate::extent::{Birth, Extent};

use crate::read::fetch;
use crate::state::State;
use crate::store::SegmentId;
use crate::tree::{Layout, NODE_BYTES, NodeRef, Root, lookup_extents};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;

/// Most lines of a report.
const PROBLEMS_MAX: usize = 100;

/// The first lines of a report.
#[derive(Default)]
struct Problems {
    lines: Vec<String>,
}

impl Problems {
    fn add(&mut self, line: String) {
        if self.lines.len() < PROBLEMS_MAX {
            self.lines.push(line);
        }
    }
}

/// Blocks that somebody refers to: the bytes of each, by ordinal.
#[derive(Default)]
pub(crate) struct Referred {
    pub(crate) segments: BTreeMap<SegmentId, BTreeMap<u32, u64>>,
    nodes: HashSet<(SegmentId, u32)>,
}

impl Referred {
    fn extent(&mut self, e: &Extent) {
        let blocks = self.segments.entry(e.place.segment).or_default();
        for i in 0..e.blocks {
            blocks.insert(e.place.ordinal + i, e.place.part(i, 1).share(1));
        }
    }

    fn block(&mut self, segment: SegmentId, ordinal: u32, bytes: u64) {
        self.segments.entry(segment).or_default().insert(ordinal, bytes);
    }

    /// Nodes of a tree that no snapshot has.
    fn tree<L: Layout>(&mut self, state: &State, root: &Root<L>) -> io::Result<()> {
        let enter = &mut |r: &NodeRef| {
            self.block(r.segment, r.ordinal, NODE_BYTES as u64);
            Ok(true)
        };
        root.walk(&state.nodes().direct(), enter, &mut |_, _| Ok(()))
    }
}

/// What the maps of branches and snapshots refer to. Calls `each` with every extent of it, and notes the births of all blocks.
fn refer_maps(
    state: &State,
    found: &mut Referred,
    deleting: bool,
    births: &mut BTreeSet<Birth>,
    each: &mut dyn FnMut(&Extent),
) -> io::Result<()> {
    let roots = state.catalog.branches.values().filter(|b| deleting || !b.deleting).map(|b| &b.root);
    let snapshots = state.catalog.snapshots.values().filter(|s| deleting || !s.deleting).map(|s| &s.root);
    let mut extents = Vec::new();
    for root in roots.chain(snapshots) {
        let src = state.nodes();
        let enter = &mut |r: &NodeRef| {
            let birth = Birth { segment: r.segment, ordinal: r.ordinal };
            births.insert(birth);
            let now = moved(state, birth, 1)?.first().map_or(birth, |(_, e)| e.place.birth());
            found.block(now.segment, now.ordinal, NODE_BYTES as u64);
            Ok(found.nodes.insert((r.segment, r.ordinal)))
        };
        root.walk(&src, enter, &mut |_, e: &Extent| {
            extents.push(e.clone());
            Ok(())
        })?;
        for e in extents.drain(..) {
            let at = e.place.birth();
            births.extend((0..e.blocks).map(|i| Birth { segment: at.segment, ordinal: at.ordinal + i }));
            for (_, _, part) in state.parts_of(e)? {
                found.extent(&part);
                each(&part);
            }
        }
    }
    Ok(())
}

/// All that is referred to but by the table of segments, the bitmaps and the record of the checkpoint; also by what is being deleted.
pub(crate) fn refer_all(state: &State) -> io::Result<Referred> {
    let mut found = Referred::default();
    found.tree(state, &state.forward)?;
    found.tree(state, &state.dead_lists)?;
    found.tree(state, &state.catalog.tree)?;
    refer_maps(state, &mut found, true, &mut BTreeSet::new(), &mut |_| {})?;
    Ok(found)
}

/// What is wrong, one line for each.
pub(crate) fn check(state: &State, data: bool) -> io::Result<Vec<String>> {
    let mut found = Referred::default();
    found.tree(state, &state.forward)?;
    found.tree(state, &state.dead_lists)?;
    found.tree(state, &state.catalog.tree)?;
    found.tree(state, &state.usage.segments)?;
    found.tree(state, &state.usage.dead)?;
    if let Some((at, bytes)) = state.record {
        found.block(at.segment, at.ordinal, bytes);
    }
    let mut problems = Problems::default();
    let mut births: BTreeSet<Birth> = BTreeSet::new();
    refer_maps(state, &mut found, false, &mut births, &mut |part| {
        if data && let Err(e) = fetch(&*state.store, part) {
            problems.add(e.to_string());
        }
    })?;
    for id in &state.damaged {
        problems.add(format!("segment {id:#x} is left alone: something in it cannot be read or verified"));
    }
    compare(state, &found, &births, &mut problems)?;
    Ok(problems.lines)
}

/// Where blocks are now that have been moved while snapshots referred to them. The segment where they were written may still be there.
pub(crate) fn moved(state: &State, birth: Birth, blocks: u32) -> io::Result<Vec<(Birth, Extent)>> {
    if state.usage.table.get(&birth.segment).is_some_and(|i| !i.forwarded) {
        return Ok(Vec::new());
    }
    lookup_extents(&state.forward, &state.nodes().direct(), birth, u64::from(blocks))
}

/// While something is being deleted, what only it had may still count as alive.
fn compare(state: &State, found: &Referred, births: &BTreeSet<Birth>, problems: &mut Problems) -> io::Result<()> {
    let exact = !state.is_deleting();
    let none = BTreeMap::new();
    for id in found.segments.keys().filter(|id| !state.usage.table.contains_key(id)) {
        problems.add(format!("segment {id:#x} is referred to and not in the table"));
    }
    let mut newly_dead: BTreeMap<SegmentId, Vec<(u32, u32)>> = BTreeMap::new();
    for (at, blocks) in &state.usage.newly_dead {
        newly_dead.entry(at.segment).or_default().push((at.ordinal, *blocks));
    }
    for (&id, info) in &state.usage.table {
        let blocks = found.segments.get(&id).unwrap_or(&none);
        let bytes: u64 = blocks.values().sum();
        if bytes > info.live || exact && bytes < info.live {
            problems.add(format!("segment {id:#x} has {bytes} live bytes, the table says {}", info.live));
        }
        let mut dead = state.usage.dead_blocks(&*state.store, &state.cache, id)?;
        for &(ordinal, blocks) in newly_dead.get(&id).into_iter().flatten() {
            for i in ordinal..ordinal + blocks {
                match dead.get_mut(i as usize) {
                    Some(d) if !*d => *d = true,
                    _ => problems.add(format!("block {i} of segment {id:#x} died twice")),
                }
            }
        }
        for (i, &d) in dead.iter().enumerate() {
            let referred = blocks.contains_key(&(i as u32));
            if referred && d || exact && !referred && !d {
                let (is, says) = if d { ("is referred to", "dead") } else { ("is not referred to", "alive") };
                problems.add(format!("block {i} of segment {id:#x} {is}, the bitmap says {says}"));
            }
        }
        if blocks.keys().next_back().is_some_and(|&last| last >= info.ordinals) {
            problems.add(format!("segment {id:#x} has fewer blocks than are referred to"));
        }
    }
    let live: u64 = state.usage.table.values().map(|i| i.live).sum();
    if live != state.usage.live {
        problems.add(format!("{live} bytes live in all, {} are accounted for", state.usage.live));
    }
    if exact {
        let mut stale = 0;
        state.forward.walk(&state.nodes().direct(), &mut |_| Ok(true), &mut |key, e| {
            let birth = |i| Birth { segment: key.segment, ordinal: key.ordinal + i };
            stale += (0..e.blocks).filter(|&i| !births.contains(&birth(i))).count();
            Ok(())
        })?;
        if stale > 0 {
            problems.add(format!("{stale} forwards are of blocks that nobody refers to"));
        }
    }
    Ok(())
}
