use super::size::height;
use super::tree::descend;
use super::*;
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::format::extent::{Child, node_entry, set_node_header};
use crate::format::extent::{EXTENT_LEN_MAX, LOGICAL_END};
use crate::format::{BlockAddr, Extent, Geometry, Inode, InodeFormat, Run};
use crate::format::{BlockId, BlockKind, FileType};
use crate::mkfs::MkfsOptions;
use crate::space::layout;
use crate::space::tests::{Fixture, tiny};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;

/// The smallest nodes there are: 28 entries.
fn smallest() -> MkfsOptions {
    MkfsOptions { block_size: 512, ag_blocks: Some(16384), ..tiny() }
}

fn inode() -> Inode {
    Inode::new(40, FileType::Regular.mode_bits() | 0o644, 0)
}

/// Calls `f` with the block of every node of the tree.
fn for_each_node(cache: &Cache, inode: &Inode, mut f: impl FnMut(BlockAddr)) -> Result<()> {
    if !matches!(inode.format, InodeFormat::Tree { .. }) {
        return Ok(());
    }
    let mut last: Vec<u64> = Vec::new();
    let mut at = 0;
    while at < LOGICAL_END {
        let path = descend(cache, inode, at)?;
        let blocks: Vec<u64> = path.steps.iter().map(|s| s.buf.addr()).collect();
        for (i, b) in blocks.iter().enumerate() {
            if last.get(i) != Some(b) {
                f(*b);
            }
        }
        last = blocks;
        at = path.leaf().hi;
    }
    Ok(())
}

/// A file under test: the fixture, the inode, and what both should say.
struct File {
    f: Fixture,
    inode: Inode,
    /// Logical fragment to (device fragment, unwritten).
    model: BTreeMap<u64, (u64, bool)>,
    free_at_first: u64,
}

impl File {
    fn new(size: u64, options: &MkfsOptions) -> File {
        let f = Fixture::new(size, options);
        let free_at_first = f.space.free_frags();
        File { f, inode: inode(), model: BTreeMap::new(), free_at_first }
    }

    fn cache(&self) -> &Cache {
        self.f.journal.cache()
    }

    fn insert(&mut self, e: Extent) -> Result<()> {
        let g = self.f.geometry();
        let space = &self.f.space;
        let blocks = worst_case_blocks(&g, &self.inode, 1, e.len);
        let before = self.inode.frags;
        // The transaction complains if it logs more than the bound.
        let log = log_bytes_for_insert(&g, space, &self.inode);
        let txn = self.f.journal.begin(log).unwrap();
        insert(&txn, space, &mut self.inode, e)?;
        assert!(self.inode.frags - before <= e.len + blocks * g.frags_per_block(), "more blocks than predicted");
        for i in 0..e.len {
            assert_eq!(self.model.insert(e.logical + i, (e.start + i, e.unwritten)), None);
        }
        Ok(())
    }

    fn insert_all(&mut self, numbers: impl Iterator<Item = u64>, extent: impl Fn(u64) -> Extent) {
        numbers.for_each(|i| self.insert(extent(i)).unwrap());
    }

    fn remove(&mut self, range: Range<u64>, limit: usize) -> bool {
        let space = &self.f.space;
        let log = log_bytes_for_remove(&self.f.geometry(), space, &self.inode, limit);
        let txn = self.f.journal.begin(log).unwrap();
        let mut freed = Vec::new();
        let more = remove(&txn, space, &mut self.inode, range.clone(), limit, &mut freed).unwrap();
        assert!(freed.len() <= limit);
        let mut frags: Vec<u64> = freed.iter().flat_map(|r| r.start..r.end()).collect();
        frags.sort_unstable();
        // From the end of the range on.
        let inside: Vec<u64> = self.model.range(range.clone()).map(|(l, _)| *l).collect();
        let gone = &inside[inside.len() - frags.len()..];
        let mut expected: Vec<u64> = gone.iter().map(|l| self.model.remove(l).unwrap().0).collect();
        expected.sort_unstable();
        assert_eq!(frags, expected);
        if !more {
            assert_eq!(self.model.range(range).next(), None);
        }
        more
    }

    fn convert(&mut self, range: Range<u64>, unwritten: bool) {
        let space = &self.f.space;
        let mut at = range.start;
        while at < range.end {
            let log = log_bytes_for_convert(&self.f.geometry(), space, &self.inode);
            let txn = self.f.journal.begin(log).unwrap();
            let next = convert(&txn, space, &mut self.inode, at..range.end, unwritten).unwrap();
            assert!(next > at);
            at = next;
        }
        self.model.range_mut(range).for_each(|(_, v)| v.1 = unwritten);
    }

    /// Moves what is mapped in a range, extent by extent, to fragments from `to` on.
    fn relocate(&mut self, range: Range<u64>, to: u64) {
        let mut parts = Vec::new();
        for_each(self.cache(), &self.inode, range.clone(), |e| {
            parts.push(e.logical.max(range.start)..e.end().min(range.end));
            Ok(())
        })
        .unwrap();
        for part in parts {
            let g = self.f.geometry();
            let space = &self.f.space;
            let txn = self.f.journal.begin(log_bytes_for_relocate(&g, space, &self.inode)).unwrap();
            let to = to + (part.start - range.start);
            relocate(&txn, space, &mut self.inode, part.clone(), to).unwrap();
            self.model.range_mut(part.clone()).for_each(|(l, v)| v.0 = to + (l - part.start));
        }
    }

    /// Takes a range out and closes the gap.
    fn collapse(&mut self, range: Range<u64>, leaves: usize) {
        while self.remove(range.clone(), 30) {}
        let by = range.end - range.start;
        let mut at = Some(range.end);
        while let Some(from) = at {
            let txn = self.f.journal.begin(log_bytes_for_shift(&self.f.geometry(), &self.inode, leaves)).unwrap();
            at = shift_down(&txn, &self.f.space, &mut self.inode, from, by, leaves).unwrap();
        }
        let behind = self.model.split_off(&range.start);
        self.model.extend(behind.into_iter().map(|(l, v)| (l - by, v)));
    }

    /// Opens a gap.
    fn open_gap(&mut self, at: u64, by: u64, leaves: usize) {
        let g = self.f.geometry();
        {
            let txn = self.f.journal.begin(log_bytes_for_convert(&g, &self.f.space, &self.inode)).unwrap();
            split(&txn, &self.f.space, &mut self.inode, at).unwrap();
        }
        let mut below = Some(LOGICAL_END);
        while let Some(end) = below {
            let txn = self.f.journal.begin(log_bytes_for_shift(&g, &self.inode, leaves)).unwrap();
            below = shift_up(&txn, &self.f.space, &mut self.inode, at, by, end, leaves).unwrap();
        }
        let behind = self.model.split_off(&at);
        self.model.extend(behind.into_iter().map(|(l, v)| (l + by, v)));
    }

    fn height(&self) -> usize {
        height(&self.inode)
    }

    fn extents(&self) -> Vec<Extent> {
        let mut all = Vec::new();
        for_each(self.cache(), &self.inode, 0..LOGICAL_END, |e| {
            all.push(e);
            Ok(())
        })
        .unwrap();
        all
    }

    fn nodes(&self) -> Vec<u64> {
        let mut nodes = Vec::new();
        for_each_node(self.cache(), &self.inode, |b| nodes.push(b)).unwrap();
        nodes
    }

    /// Everything agrees: map, counts, space.
    fn check(&self) {
        let mut found = BTreeMap::new();
        let extents = self.extents();
        assert!(extents.windows(2).all(|w| w[0].end() <= w[1].logical));
        for e in extents {
            for i in 0..e.len {
                found.insert(e.logical + i, (e.start + i, e.unwritten));
            }
        }
        assert_eq!(found, self.model);
        let mut nodes = self.nodes();
        let node_frags = nodes.len() as u64 * self.f.geometry().frags_per_block();
        assert_eq!(self.inode.frags, self.model.len() as u64 + node_frags);
        assert_eq!(self.f.space.free_frags(), self.free_at_first - node_frags);
        nodes.sort_unstable();
        nodes.dedup();
        assert_eq!(nodes.len() as u64 * self.f.geometry().frags_per_block(), node_frags, "a node is there twice");
    }

    fn check_lookup(&self, logical: u64) {
        match lookup(self.cache(), &self.inode, logical).unwrap() {
            Mapping::Data(e) => {
                assert!(e.logical <= logical && logical < e.end());
                let found = (e.start + (logical - e.logical), e.unwritten);
                assert_eq!(Some(&found), self.model.get(&logical));
            }
            Mapping::Hole { until } => {
                let next = self.model.range(logical..).next().map_or(LOGICAL_END, |(l, _)| *l);
                assert_eq!(until, next, "hole at {logical}");
            }
        }
    }

    /// Through the encoded inode and another mount.
    fn reload(self) -> File {
        let mut bytes = vec![0; self.inode.encoded_len()];
        self.inode.encode(&mut bytes);
        let inode = Inode::decode(&bytes).unwrap();
        assert_eq!(inode, self.inode);
        File { f: self.f.reopen(), inode, ..self }
    }
}

fn extent(logical: u64, start: u64, len: u64) -> Extent {
    Extent { logical, start, len, unwritten: false }
}

#[test]
fn what_continues_is_one_extent_and_what_does_not_stays_apart() {
    let mut file = File::new(8 << 20, &tiny());
    file.insert(extent(0, 100, 4)).unwrap();
    file.insert(extent(8, 108, 4)).unwrap();
    file.insert(extent(4, 104, 4)).unwrap();
    assert_eq!(file.extents(), [extent(0, 100, 12)]);
    file.insert(extent(12, 200, 4)).unwrap();
    file.insert(Extent { unwritten: true, ..extent(16, 204, 4) }).unwrap();
    assert_eq!(file.extents().len(), 3);
    file.convert(18..100, false);
    assert_eq!(file.extents()[2], Extent { unwritten: true, ..extent(16, 204, 2) });
    file.convert(0..100, false);
    assert_eq!(file.extents(), [extent(0, 100, 12), extent(12, 200, 8)]);
    let frags = file.inode.frags;
    let long = (EXTENT_LEN_MAX, LOGICAL_END - 1);
    for bad in [extent(11, 300, 1), extent(20, 300, 0), extent(20, 300, long.0 + 1), extent(long.1, 300, 2)] {
        let txn = file.f.txn(10_000);
        assert!(matches!(insert(&txn, &file.f.space, &mut file.inode, bad), Err(Error::Invalid(_))), "{bad:?}");
    }
    assert_eq!(file.inode.frags, frags);
    file.check();
}

#[test]
fn the_longest_extent_is_not_joined_with_the_next() {
    let mut file = File::new(1 << 30, &MkfsOptions { frag_size: Some(512), ..MkfsOptions::default() });
    for (logical, len) in [(0, EXTENT_LEN_MAX - 1), (EXTENT_LEN_MAX - 1, 1), (EXTENT_LEN_MAX, 5)] {
        file.insert(extent(logical, 1000 + logical, len)).unwrap();
    }
    assert_eq!(file.extents(), [extent(0, 1000, EXTENT_LEN_MAX), extent(EXTENT_LEN_MAX, 1000 + EXTENT_LEN_MAX, 5)]);
}

#[test]
fn a_hundred_thousand_extents_in_order() {
    let mut file = File::new(64 << 20, &smallest());
    let total = file.f.geometry().total_frags();
    file.insert_all(0..100_000u64, |i| extent(i * 2, i * 7919 % (total - 1), 1));
    assert!(file.height() >= 4, "height {}", file.height());
    let nodes = file.nodes().len();
    assert!(nodes < 100_000 / 28 * 11 / 10, "{nodes} nodes: a file written in order leaves full leaves");
    let mut file = file.reload();
    file.check();
    for i in (0..200_002).step_by(997) {
        file.check_lookup(i);
    }
    file.remove(1000..1001, 1);
    // From the front of the range to its end, as truncation does, in pieces.
    while file.remove(50_000..LOGICAL_END, 100) {}
    file.check();
    while file.remove(0..LOGICAL_END, 100) {}
    assert_eq!(file.inode.format, InodeFormat::Extents(Vec::new()));
    assert_eq!((file.inode.frags, file.f.space.free_frags()), (0, file.free_at_first));
}

#[test]
fn a_hundred_thousand_extents_in_disorder() {
    let mut file = File::new(64 << 20, &smallest());
    let total = file.f.geometry().total_frags();
    file.insert_all(0..100_000u64, |i| extent(i * 61_803 % 100_003 * 2, i * 7919 % (total - 1), 1));
    file.check();
    let nodes = file.nodes().len();
    assert!(nodes < 100_000 / 14 * 11 / 10, "{nodes} nodes: none is less than half full");
    // Holes everywhere: nodes are joined again.
    for i in 0..2000 {
        while file.remove(i * 100..i * 100 + 98, 64) {}
    }
    let mut file = file.reload();
    file.check();
    let nodes = file.nodes().len();
    assert!(nodes < 1000, "{nodes} nodes for {} extents", file.model.len());
    for i in (2..=2000u64).rev() {
        while file.remove(i * 100..i * 100 + 100, 64) {}
    }
    assert!(matches!(file.inode.format, InodeFormat::Extents(_)), "few enough for the inode: {:?}", file.inode.format);
    file.check();
}

#[test]
fn an_extent_may_reach_over_the_bound_between_two_leaves() {
    let mut file = File::new(16 << 20, &smallest());
    file.insert_all(0..2000u64, |i| extent(i * 10, 3000 + i * 2, 1));
    // Every bound between leaves is somewhere in one of these holes.
    for i in (0..1990).step_by(3) {
        file.remove(i * 10 + 1..i * 10 + 25, 64);
        file.insert(extent(i * 10 + 1, 10_000 + i * 2, 24)).unwrap_or_else(|e| panic!("{i}: {e}"));
    }
    file.check();
    // Before everything else.
    let mut file = File::new(16 << 20, &smallest());
    file.insert_all((1..3000u64).rev(), |i| extent(i * 3, 100 + i * 2, 1));
    assert!(file.height() >= 2);
    file.check_lookup(0);
    file.check();
}

#[test]
fn removal_passes_a_gap_at_the_front_of_a_node() {
    let mut file = File::new(16 << 20, &smallest());
    file.insert_all(0..3000u64, |i| extent(i * 10, 3000 + i * 2, 1));
    assert_eq!(file.height(), 2);
    // The first leaf below the third pointer of the root goes; the bound of the node above it stays.
    let InodeFormat::Tree { children, .. } = &file.inode.format else { panic!("no tree") };
    let (node, path) = (children[2], descend(file.cache(), &file.inode, children[2].key).unwrap());
    let leaf_end = path.leaf().hi;
    drop(path);
    while file.remove(node.key..leaf_end, 10) {}
    file.check_lookup(node.key);
    // A range that ends in the gap and begins well before it.
    while file.remove(node.key - 2000..node.key + 15, 100) {}
    file.check();
    file.insert(extent(node.key + 1, 20_000, 3)).unwrap();
    file.check();
}

#[test]
fn extents_that_move_next_to_each_other_are_joined_and_nodes_go() {
    let mut file = File::new(16 << 20, &smallest());
    file.insert_all(0..3000u64, |i| extent(i * 2, 100 + i * 3, 2));
    let nodes = file.nodes().len();
    assert!(file.height() >= 2);
    file.relocate(0..6000, 20_000);
    // Those of two leaves are not joined.
    assert!(file.extents().len() <= nodes, "{} extents", file.extents().len());
    assert!(file.nodes().len() * 4 < nodes, "{} of {nodes} nodes", file.nodes().len());
    file.relocate(100..200, 9000);
    let before = file.inode.clone();
    let txn = file.f.txn(10_000);
    for bad in [99..101, 6000..6001, 5..5, 0..u64::MAX] {
        let refused = relocate(&txn, &file.f.space, &mut file.inode, bad.clone(), 5);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{bad:?}");
    }
    assert_eq!(file.inode, before);
    drop(txn);
    file.check();
}

#[test]
fn a_node_in_an_unused_group_stays_within_the_bound_for_the_log() {
    let mut file = File::new(24 << 20, &smallest());
    let space = file.f.space.clone();
    let total = space.free_frags();
    file.insert_all(0..4, |i| extent(i * 2, 5000 + i * 3, 1));
    // Group 0 is full, so the first node goes to group 1, which nothing was written to.
    while space.counters().ags == 1 && total - space.free_frags() < layout::initial_ag_free(&file.f.geometry(), 0) {
        let left = layout::initial_ag_free(&file.f.geometry(), 0) - (total - space.free_frags());
        let run = file.f.alloc_near(0, left, 1).unwrap().unwrap();
        file.f.commit_alloc(run);
    }
    assert_eq!(space.counters().ags, 1);
    file.free_at_first = space.free_frags();
    file.insert(extent(100, 9000, 1)).unwrap();
    assert_eq!(space.counters().ags, 2);
    file.check();
    let file = file.reload();
    file.check();
}

#[test]
fn without_space_for_nodes_nothing_changes() {
    let mut file = File::new(8 << 20, &smallest());
    let space = file.f.space.clone();
    let per = file.f.geometry().frags_per_block();
    let mut kept = Vec::new();
    while let Some(run) = file.f.alloc_near(0, 100_000, 1).unwrap() {
        kept.push(run);
    }
    let mut next = 0;
    let mut failures = 0;
    // One block at a time becomes free; every need for one is met by the failure first.
    while file.height() < 3 {
        next += 1;
        let before = file.inode.clone();
        let extents = file.extents();
        let at = next * 7919 % 100_003 * 3;
        match file.insert(extent(at, 5000, 2)) {
            Ok(()) => {}
            Err(Error::NoSpace) => {
                failures += 1;
                assert_eq!(file.inode, before);
                assert_eq!(file.extents(), extents);
                let last = kept.last_mut().unwrap();
                last.len -= per;
                file.f.cancel(Run { start: last.end(), len: per });
                next -= 1;
            }
            Err(e) => panic!("{e}"),
        }
        assert!(next < 10_000);
    }
    assert_eq!(failures, file.nodes().len(), "each node was asked for once in vain");
    // Cutting an extent in two in a full leaf needs a block too; removing all of it does not.
    while let Some(run) = file.f.alloc_near(0, 100_000, 1).unwrap() {
        kept.push(run);
    }
    let e = file.extents()[0];
    let mut refused = 0;
    for e in file.extents() {
        let txn = file.f.txn(100_000);
        let before = file.inode.clone();
        let mut freed = Vec::new();
        convert(&txn, &space, &mut file.inode, e.logical..e.logical + 1, true)
            .inspect_err(|err| {
                assert!(matches!(err, Error::NoSpace));
                assert_eq!(file.inode, before);
                refused += 1;
            })
            .ok();
        remove(&txn, &space, &mut file.inode, LOGICAL_END - 5..LOGICAL_END, 9, &mut freed).unwrap();
        assert!(freed.is_empty());
    }
    assert!(refused > 0);
    let txn = file.f.txn(100_000);
    remove(&txn, &space, &mut file.inode, e.logical..e.end(), 9, &mut Vec::new()).unwrap();
}

/// A tree of height 2 or more, and the addresses of a leaf and of the node above it.
fn tree() -> (File, u64, u64) {
    let mut file = File::new(16 << 20, &smallest());
    file.insert_all(0..1000u64, |i| extent(i * 2, 100 + i * 3, 1));
    assert_eq!(file.height(), 2);
    let path = descend(file.cache(), &file.inode, 0).unwrap();
    let addr = |i: usize| path.steps[i].buf.addr();
    let (inner, leaf) = (addr(0), addr(1));
    (file, leaf, inner)
}

type Damage = fn(&mut [u8], &Geometry, u64);

#[test]
fn damaged_nodes_are_errors_for_every_operation() {
    let leaf_damage: [(&str, Damage); 7] = [
        ("no entries", |b, _, _| set_node_header(b, 0, 0)),
        ("too many entries", |b, _, _| set_node_header(b, 0, 29)),
        ("far too many entries", |b, _, _| set_node_header(b, 0, 0xffff)),
        ("wrong level", |b, _, _| set_node_header(b, 1, 28)),
        ("out of order", |b, _, _| b.copy_within(node_entry(3)..node_entry(4), node_entry(0))),
        ("beyond its bound", |b, _, _| {
            b[node_entry(27)..node_entry(28)].copy_from_slice(&extent(1_000_000, 5, 1).encode())
        }),
        ("outside the device", |b, g, _| {
            b[node_entry(0)..node_entry(1)].copy_from_slice(&extent(0, g.total_frags() - 1, 2).encode())
        }),
    ];
    let inner_damage: [(&str, Damage); 6] = [
        ("no entries", |b, _, _| set_node_header(b, 1, 0)),
        ("wrong level", |b, _, _| set_node_header(b, 2, 5)),
        ("impossible level", |b, _, _| set_node_header(b, 0xffff, 5)),
        ("child outside the device", |b, g, _| {
            b[node_entry(0)..node_entry(1)].copy_from_slice(&Child { key: 0, block: g.total_blocks }.encode())
        }),
        ("child at block 0", |b, _, _| {
            b[node_entry(0)..node_entry(1)].copy_from_slice(&Child { key: 0, block: 0 }.encode())
        }),
        ("its own child", |b, _, own| {
            b[node_entry(0)..node_entry(1)].copy_from_slice(&Child { key: 0, block: own }.encode())
        }),
    ];
    let cases = leaf_damage.iter().map(|d| (false, d)).chain(inner_damage.iter().map(|d| (true, d)));
    for (inner, (what, damage)) in cases {
        let (mut file, leaf, above) = tree();
        let g = file.f.geometry();
        let addr = if inner { above } else { leaf };
        {
            let txn = file.f.txn(10_000);
            let buf = txn.cache().read_meta(BlockId { kind: BlockKind::ExtentNode, addr, owner: 40 }).unwrap();
            let mut bytes = buf.read().to_vec();
            damage(&mut bytes, &g, addr);
            txn.write(&buf, 0, &bytes);
        }
        let corrupt = |r: Result<()>| assert!(matches!(r, Err(Error::Corrupt(_))), "{what}: {r:?}");
        corrupt(lookup(file.cache(), &file.inode, 0).map(drop));
        corrupt(for_each(file.cache(), &file.inode, 0..LOGICAL_END, |_| Ok(())));
        corrupt(for_each_node(file.cache(), &file.inode, |_| ()));
        let before = file.inode.clone();
        let txn = file.f.txn(100_000);
        corrupt(insert(&txn, &file.f.space, &mut file.inode, extent(1, 50, 1)));
        corrupt(convert(&txn, &file.f.space, &mut file.inode, 0..3, true).map(drop));
        corrupt(remove(&txn, &file.f.space, &mut file.inode, 0..3, 10, &mut Vec::new()).map(drop));
        assert_eq!(file.inode, before, "{what}");
    }
}

#[test]
fn hostile_inodes_are_errors() {
    let (file, leaf, _) = tree();
    let child = |key, block| Child { key, block };
    let trees = [
        (1, vec![]),
        (0, vec![child(0, leaf)]),
        (200, vec![child(0, leaf)]),
        (1, vec![child(LOGICAL_END, leaf)]),
        (1, vec![child(0, leaf), child(1 << 60, leaf)]),
        (3, vec![child(0, leaf)]),
        (1, vec![child(0, u64::MAX)]),
        (1, vec![child(0, file.f.geometry().sys_start)]),
    ];
    for (height, children) in trees {
        let bad = Inode { format: InodeFormat::Tree { height, children }, ..inode() };
        let result = lookup(file.cache(), &bad, 5);
        assert!(matches!(result, Err(Error::Corrupt(_))), "{:?}: {result:?}", bad.format);
        let mut changed = bad.clone();
        let txn = file.f.txn(100_000);
        let result = insert(&txn, &file.f.space, &mut changed, extent(5, 5, 1));
        assert!(matches!(result, Err(Error::Corrupt(_))) && changed == bad, "{result:?}");
    }
    // Another file's tree.
    let other = Inode { ino: 41, ..file.inode.clone() };
    assert!(matches!(lookup(file.cache(), &other, 0), Err(Error::Corrupt(_))));
    let outside = Inode { format: InodeFormat::Extents(vec![extent(0, 1 << 50, 1)]), ..inode() };
    assert!(matches!(lookup(file.cache(), &outside, 0), Err(Error::Corrupt(_))));
}

#[test]
fn inline_contents_have_no_extents() {
    let file = File::new(8 << 20, &tiny());
    let mut inode = Inode { size: 3, format: InodeFormat::Inline(b"abc".to_vec()), ..inode() };
    assert_eq!(lookup(file.cache(), &inode, 0).unwrap(), Mapping::Hole { until: LOGICAL_END });
    let txn = file.f.txn(1000);
    assert!(matches!(insert(&txn, &file.f.space, &mut inode, extent(0, 5, 1)), Err(Error::Invalid(_))));
    assert!(!remove(&txn, &file.f.space, &mut inode, 0..10, 5, &mut Vec::new()).unwrap());
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64, u64, u64, bool),
    Remove(u64, u64, usize),
    Convert(u64, u64, bool),
    Lookup(u64),
    Collapse(u64, u64, usize),
    Gap(u64, u64, usize),
    Relocate(u64, u64, u64),
}

const SPAN: u64 = 12_000;

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..SPAN, 1u64..12, 0u64..30_000, any::<bool>()).prop_map(|(l, n, s, u)| Op::Insert(l, n, s, u)),
        2 => (0..SPAN, 1u64..60, 1usize..40).prop_map(|(l, n, k)| Op::Remove(l, n, k)),
        1 => (0..SPAN, 1u64..SPAN, 1usize..40).prop_map(|(l, n, k)| Op::Remove(l, n, k)),
        1 => (0..SPAN, 1u64..200, any::<bool>()).prop_map(|(l, n, u)| Op::Convert(l, n, u)),
        2 => (0..SPAN + 10).prop_map(Op::Lookup),
        1 => (0..SPAN, 1u64..400, 1usize..9).prop_map(|(l, n, k)| Op::Collapse(l, n, k)),
        1 => (0..SPAN, 1u64..400, 1usize..9).prop_map(|(l, n, k)| Op::Gap(l, n, k)),
        2 => (0..SPAN, 1u64..900, 0u64..20_000).prop_map(|(l, n, t)| Op::Relocate(l, n, t)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn maps_agree_with_a_plain_one(
        inline_len in prop_oneof![Just(16usize), Just(64), Just(136), Just(2040)],
        prefill in 0u64..1500,
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let mut file = File::new(16 << 20, &smallest());
        file.inode.inline_len = inline_len;
        for i in 0..prefill {
            // In an order of its own, with holes of all sizes between.
            let logical = i * 6_151 % 1_511 * 8 % SPAN;
            if !file.model.contains_key(&logical) {
                file.insert(extent(logical, i * 17 % 30_000, 1)).unwrap();
            }
        }
        for op in ops {
            match op {
                Op::Insert(logical, len, start, unwritten) => {
                    if file.model.contains_key(&logical) {
                        continue;
                    }
                    let room = file.model.range(logical..).next().map_or(len, |(l, _)| l - logical);
                    // Every other one continues what stands before it.
                    let before = logical.checked_sub(1).and_then(|l| file.model.get(&l)).copied();
                    let (start, unwritten) = match before {
                        Some((s, u)) if start % 2 == 0 && s < 30_000 => (s + 1, u),
                        _ => (start, unwritten),
                    };
                    file.insert(Extent { logical, start, len: len.min(room), unwritten }).unwrap();
                }
                Op::Remove(start, len, limit) => {
                    file.remove(start..start + len, limit);
                }
                Op::Convert(start, len, unwritten) => file.convert(start..start + len, unwritten),
                Op::Lookup(logical) => file.check_lookup(logical),
                Op::Collapse(start, len, leaves) => file.collapse(start..start + len, leaves),
                Op::Gap(at, len, leaves) => file.open_gap(at, len, leaves),
                Op::Relocate(start, len, to) => file.relocate(start..start + len, to),
            }
        }
        file.check();
        file = file.reload();
        file.check();
        for logical in (0..SPAN).step_by(61) {
            file.check_lookup(logical);
        }
        while file.remove(0..LOGICAL_END, 100) {}
        prop_assert_eq!(&file.inode.format, &InodeFormat::Extents(Vec::new()));
        file.check();
    }
}
