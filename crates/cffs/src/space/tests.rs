use super::free_space::Space;
use super::layout;
use crate::cache::Cache;
use crate::cache::PrefetchMode;
use crate::error::{Error, Result};
use crate::format::Run;
use crate::format::ag::{BITMAP_BITS, ag_free};
use crate::format::system::{COUNT_FREE_FRAGS, Counters};
use crate::format::{BlockId, BlockKind, LongestRuns, Superblock, get_u64};
use crate::format::{FragAddr, Geometry};
use crate::journal::MetadataMode;
use crate::journal::Txn;
use crate::journal::{CommitHook, Journal, read_header};
use crate::mkfs::{MkfsOptions, mkfs};
use crate::reservation::SpacePool;
use cffs_device::Device;
use cffs_device::MemoryDevice;
use proptest::prelude::*;
use std::sync::Arc;

struct Hook(Arc<Space>);

impl CommitHook for Hook {
    fn counters(&self) -> Counters {
        self.0.counters()
    }
    fn committed(&self, freed: Vec<Run>) {
        self.0.on_commit(freed);
    }
}

/// A file system's lower half on a device in memory.
pub(crate) struct Fixture {
    pub dev: Arc<MemoryDevice>,
    pub sb: Superblock,
    pub journal: Journal,
    pub space: Arc<Space>,
}

impl Fixture {
    pub fn new(size: u64, options: &MkfsOptions) -> Fixture {
        Fixture::in_units(size, options, 1)
    }

    /// As on a device that stores units of so many fragments.
    pub fn in_units(size: u64, options: &MkfsOptions, unit_frags: u64) -> Fixture {
        let dev = Arc::new(MemoryDevice::new(size));
        let sb = mkfs(&*dev, None, options).expect("mkfs");
        Fixture::open_in_units(dev, sb, unit_frags)
    }

    pub fn open(dev: Arc<MemoryDevice>, sb: Superblock) -> Fixture {
        Fixture::open_in_units(dev, sb, 1)
    }

    fn open_in_units(dev: Arc<MemoryDevice>, sb: Superblock, unit_frags: u64) -> Fixture {
        let g = Geometry::new(&sb).expect("geometry");
        let cache = Arc::new(Cache::new(dev.clone(), g, 16 << 20, PrefetchMode::Off));
        let id = BlockId { kind: BlockKind::Counters, addr: g.counters_block(), owner: 0 };
        let counters_buf = cache.read_meta(id).expect("counters");
        let counters = Counters::decode(&counters_buf.read());
        let header = read_header(&*dev, &sb).expect("log header");
        let journal = Journal::new(cache.clone(), None, &sb, header, MetadataMode::Journal);
        let mut space = Space::load(cache, counters, LongestRuns::UNKNOWN, 0).expect("space");
        space.unit_frags = unit_frags;
        let space = Arc::new(space);
        journal.connect(Box::new(Hook(space.clone())), counters_buf);
        Fixture { dev, sb, journal, space }
    }

    /// Writes everything home and opens the device again.
    pub fn reopen(self) -> Fixture {
        self.journal.commit().expect("commit");
        self.journal.checkpoint().expect("checkpoint");
        let Fixture { dev, sb, .. } = self;
        Fixture::open(dev, sb)
    }

    pub fn geometry(&self) -> Geometry {
        *self.space.cache.geometry()
    }

    pub fn txn(&self, log_bytes: usize) -> Txn<'_> {
        self.journal.begin(log_bytes).expect("transaction")
    }

    pub fn commit_alloc(&self, run: Run) {
        let txn = self.txn(self.space.log_bytes(run.len) + self.space.log_bytes_for_init());
        self.space.commit_alloc(&txn, run).expect("commit_alloc");
    }

    pub fn free(&self, run: Run) -> Result<()> {
        let txn = self.txn(self.space.log_bytes(run.len.min(1 << 20)));
        self.space.free(&txn, run)
    }

    /// Allocates data with a reservation.
    fn reserved(&self, want: u64, alloc: impl FnOnce() -> Result<Option<Run>>) -> Result<Option<Run>> {
        self.space.accounting.lock().reserved_frags += want;
        let found = alloc();
        self.space.release_frags(want - found.as_ref().map_or(0, |run| run.map_or(0, |run| run.len)));
        found
    }

    pub fn alloc_near(&self, goal: FragAddr, want: u64, min: u64) -> Result<Option<Run>> {
        self.reserved(want, || self.space.alloc_near(goal, want, min))
    }

    pub fn alloc_blocks_near(&self, goal: u64, want: u64, min: u64) -> Result<Option<Run>> {
        self.reserved(want * self.space.frags_per_block(), || self.space.alloc_blocks_near(goal, want, min))
    }

    pub fn alloc_in(&self, window: std::ops::Range<FragAddr>, want: u64) -> Result<Option<Run>> {
        self.reserved(want, || self.space.alloc_in(window, want))
    }

    pub fn alloc_small_in(&self, window: std::ops::Range<FragAddr>, want: u64) -> Result<Option<Run>> {
        self.reserved(want, || self.space.alloc_small_in(window, want))
    }

    pub fn cancel(&self, run: Run) {
        self.space.cancel(run);
        self.space.release_frags(run.len);
    }

    /// Free fragments by the bitmaps of all groups; header counts must agree.
    pub fn free_by_bitmaps(&self) -> u64 {
        let g = self.geometry();
        let ags = self.space.counters().ags;
        let mut total = (ags..g.ag_count).map(|ag| layout::initial_ag_free(&g, ag)).sum();
        for ag in 0..ags {
            let read = |kind, addr| self.space.cache.read_meta(BlockId { kind, addr, owner: ag }).expect("read");
            let mut free = 0;
            for index in 0..g.bitmap_blocks() {
                let buf = read(BlockKind::Bitmap, g.bitmap_block(ag, index));
                free += buf.read()[BITMAP_BITS..].iter().map(|b| u64::from(b.count_zeros())).sum::<u64>();
            }
            assert_eq!(ag_free(&read(BlockKind::AgHeader, g.ag_header(ag)).read()), free, "header of group {ag}");
            total += free;
        }
        total
    }

    fn is_used(&self, frag: FragAddr) -> bool {
        let g = self.geometry();
        let ag = g.ag_of(g.block_of_frag(frag));
        let bit = frag - g.frag_of_block(g.ag_start(ag));
        let addr = g.bitmap_block(ag, bit / g.bits_per_bitmap());
        let buf = self.space.cache.read_meta(BlockId { kind: BlockKind::Bitmap, addr, owner: ag }).expect("bitmap");
        let bit = bit % g.bits_per_bitmap();
        buf.read()[BITMAP_BITS + (bit / 8) as usize] >> (bit % 8) & 1 == 1
    }
}

/// Small blocks and allocation groups: every boundary is near.
pub(crate) fn tiny() -> MkfsOptions {
    MkfsOptions {
        block_size: 1024,
        frag_size: Some(512),
        group_size: 16 * 1024,
        log_bytes: Some(1 << 20),
        ag_blocks: Some(2048),
        ..MkfsOptions::default()
    }
}

#[test]
fn a_new_file_system_has_the_free_space_that_mkfs_counted() {
    for size in [8 << 20, (8 << 20) + 300 * 1024, 40 << 20] {
        let f = Fixture::new(size, &tiny());
        let g = f.geometry();
        assert_eq!(f.space.counters().free_frags, layout::initial_free_frags(&g));
        assert_eq!(f.free_by_bitmaps(), f.space.free_frags());
        assert_eq!((0..g.ag_count).map(|ag| layout::initial_ag_free(&g, ag)).sum::<u64>(), f.space.free_frags());
    }
}

#[test]
fn filling_to_the_last_fragment_and_emptying_leaks_nothing() {
    let f = Fixture::new((8 << 20) + 300 * 1024, &tiny());
    let total = f.space.free_frags();
    let mut runs = Vec::new();
    let mut want = 1;
    while let Some(run) = f.alloc_near(runs.len() as u64 * 37, want, 1).unwrap() {
        assert!(run.len <= want);
        f.commit_alloc(run);
        runs.push(run);
        want = want * 7 % 701 + 1;
    }
    assert_eq!((f.space.free_frags(), f.space.counters().free_frags, f.free_by_bitmaps()), (0, 0, 0));
    assert_eq!(f.space.counters().ags, f.geometry().ag_count);
    assert_eq!(f.space.find_free_group(0).unwrap(), None);
    let mut sorted = runs.clone();
    sorted.sort();
    assert!(sorted.windows(2).all(|w| w[0].end() <= w[1].start), "no run overlaps another");

    let f = f.reopen();
    assert_eq!(f.alloc_near(0, 1, 1).unwrap(), None);
    for run in &runs {
        f.free(*run).unwrap();
    }
    assert_eq!(f.space.free_frags(), total, "pending frees count as free");
    assert_eq!(f.space.pending_frees(), total);
    assert_eq!(f.alloc_near(0, 1, 1).unwrap(), None, "but they cannot be allocated before the commit");
    f.journal.commit().unwrap();
    assert_eq!(f.space.pending_frees(), 0);
    let f = f.reopen();
    assert_eq!((f.space.free_frags(), f.free_by_bitmaps()), (total, total));
    let group = f.space.find_free_group(0).unwrap().unwrap();
    assert_eq!(f.geometry().group_of(group), group);
}

#[test]
fn unused_groups_are_initialized_in_order_when_needed() {
    let f = Fixture::new(16 << 20, &tiny());
    let g = f.geometry();
    assert_eq!((g.ag_count, f.space.counters().ags), (8, 1));
    // The next unused group can be asked for; what lies beyond is out of reach.
    let far = f.alloc_in(g.frag_of_block(g.ag_start(3))..g.total_frags(), 8).unwrap();
    assert_eq!(far, None);
    let window = |ag: u64| g.frag_of_block(g.ag_start(ag))..g.frag_of_block(g.ag_start(ag + 1));
    let first = f.alloc_in(window(1), 8).unwrap().unwrap();
    let second = f.alloc_in(window(2), 8).unwrap().unwrap();
    assert_eq!(f.space.counters().ags, 1, "nothing is written before a commit");
    f.commit_alloc(second);
    assert_eq!(f.space.counters().ags, 3, "the gap is initialized too");
    f.cancel(first);
    assert_eq!(f.free_by_bitmaps(), f.space.free_frags());
    let f = f.reopen();
    assert_eq!(f.space.counters().ags, 3);
    assert!(f.is_used(second.start) && !f.is_used(first.start));
    assert_eq!(f.alloc_in(window(2), 8).unwrap().unwrap().start, second.end());
}

/// Takes everything but these runs of blocks (first, length) behind a place, in the first allocation group.
fn holes_in(f: &Fixture, behind: u64, holes: &[(u64, u64)]) {
    let g = f.geometry();
    let fpb = g.frags_per_block();
    let mut at = g.frag_of_block(behind);
    let end = g.frag_of_block(g.ag_start(1));
    // What lies before, piece by piece, and between the holes in one each.
    while let Some(run) = f.alloc_in(0..at, 1).unwrap() {
        assert!(run.end() <= at);
    }
    for (first, len) in holes.iter().map(|(first, len)| (first * fpb, len * fpb)).chain([(end, 0)]) {
        if first > at {
            assert!(f.alloc_in(at..first, first - at).unwrap().is_some(), "{at}..{first} was not free");
        }
        at = first + len;
    }
}

/// A file system of one allocation group, the first block behind its fixed ones that begins a group, and a group in
/// blocks.
fn one_group() -> (Fixture, u64, u64) {
    let f = Fixture::new(16 << 20, &MkfsOptions { group_size: 64 << 10, ..MkfsOptions::default() });
    let g = f.geometry();
    let gb = g.group_blocks();
    let first = f.space.find_free_group(0).unwrap().unwrap() + gb;
    (f, first, gb)
}

#[test]
fn a_large_file_takes_the_best_fit_and_not_a_long_run() {
    let (f, first, gb) = one_group();
    let fpb = f.geometry().frags_per_block();
    holes_in(&f, first, &[(first, 4), (first + gb, 9), (first + 2 * gb, 6), (first + 4 * gb, 40)]);
    let best_fit = |blocks: u64| f.reserved(blocks * fpb, || f.space.alloc_blocks_best_fit(first, blocks)).unwrap();
    assert_eq!(best_fit(0), None);
    assert_eq!(best_fit(5), Some(Run { start: (first + 2 * gb) * fpb, len: 5 * fpb }));
    assert_eq!(best_fit(5), Some(Run { start: (first + gb) * fpb, len: 5 * fpb }));
    assert_eq!(best_fit(5), None, "the long one is more than four times as long");
    assert_eq!(best_fit(10), Some(Run { start: (first + 4 * gb) * fpb, len: 10 * fpb }));
}

/// Takes everything of an allocation group but a run of blocks at `at` from its beginning.
fn gap_in(f: &Fixture, ag: u64, at: u64, len: u64) {
    let g = f.geometry();
    let gap = g.frag_of_block(g.ag_start(ag) + at)..g.frag_of_block(g.ag_start(ag) + at + len);
    for window in [g.frag_of_block(g.ag_start(ag))..gap.start, gap.end..g.frag_of_block(g.ag_start(ag + 1))] {
        let mut want = window.end - window.start;
        while want > 0 {
            match f.alloc_in(window.clone(), want).unwrap() {
                Some(run) => f.commit_alloc(run),
                None => want /= 2,
            }
        }
    }
}

#[test]
fn the_shortest_gap_is_found_also_far_from_the_goal() {
    let f = Fixture::new(256 << 20, &MkfsOptions { ag_blocks: Some(2048), ..MkfsOptions::default() });
    let g = f.geometry();
    let fpb = g.frags_per_block();
    assert!(g.ag_count > 24, "{} allocation groups", g.ag_count);
    let longest = |ag: u64| match ag {
        2 => 9,
        20 => 5,
        22 => 7,
        _ => 0,
    };
    (0..24).for_each(|ag| gap_in(&f, ag, 1000, longest(ag)));
    let start = |ag: u64| (g.ag_start(ag) + 1000) * fpb;
    let gap = |kept: Option<u64>| {
        let find = || f.space.alloc_best_fit(0, 3 * fpb, 4 * fpb..16 * fpb, |group| Some(group) == kept);
        f.reserved(3 * fpb, find).unwrap()
    };
    let run = |ag: u64, at: u64| Some(Run { start: start(ag) + at * fpb, len: 3 * fpb });
    let in_turn: Vec<_> = (0..3).map(|_| gap(None)).collect();
    // Of the near ones there are 6 blocks left at first, and the others' turn comes late.
    assert_eq!(in_turn, [run(2, 0), run(2, 3), run(20, 0)]);
    assert_eq!(gap(Some(g.group_of(g.ag_start(22) + 1000))), None, "it is kept for a directory");
    // Once around all the others.
    assert_eq!((0..4).find_map(|_| gap(None)), run(22, 0));
    assert_eq!(gap(None), run(22, 3));
    assert_eq!(gap(None), None, "what is left is too short");
}

#[test]
fn groups_are_found_by_how_much_of_them_is_free() {
    let (f, first, gb) = one_group();
    let fpb = f.geometry().frags_per_block();
    holes_in(&f, first, &[(first, 3), (first + gb, 2), (first + 2 * gb + 1, 5), (first + 3 * gb, 4)]);
    assert_eq!(f.space.find_free_group(first).unwrap(), None);
    assert_eq!(f.space.emptiest_group(first).unwrap(), Some((first + 2 * gb, 5 * fpb)));
    assert_eq!(f.space.fullest_group(first, 1).unwrap(), Some(first + gb));
    assert_eq!(f.space.fullest_group(first, 3 * fpb).unwrap(), Some(first));
    assert_eq!(f.space.fullest_group(first, 4 * fpb).unwrap(), Some(first + 3 * gb));
    assert_eq!(f.space.fullest_group(first, 6 * fpb).unwrap(), None);
}

#[test]
fn long_runs_are_found_in_the_order_of_the_device_and_around_its_end() {
    let (f, first, gb) = one_group();
    let g = f.geometry();
    let fpb = g.frags_per_block();
    holes_in(&f, first, &[(first, 8), (first + gb, 2), (first + 2 * gb, 6), (first + 3 * gb, 3)]);
    let length = |need: u64, enough: u64| f.space.min_run_length(first, need * fpb, enough * fpb).unwrap();
    assert_eq!(length(8, 100), Some(8 * fpb));
    assert_eq!(length(14, 100), Some(6 * fpb));
    assert_eq!(length(15, 100), Some(3 * fpb));
    assert_eq!(length(14, 4), Some(4 * fpb), "longer ones are as good");
    assert_eq!(length(1, 100), Some(fpb), "one fits anywhere");
    assert_eq!(length(20, 100), None, "there is not so much");
    let next = |from: u64, least: u64| f.space.next_free_run(from * fpb, least * fpb).unwrap();
    let run = |block: u64, len: u64| Some(Run { start: block * fpb, len: len * fpb });
    assert_eq!(next(first, 3), run(first, 8));
    assert_eq!(next(first + 3, 3), run(first + 3, 5), "what is left of it");
    assert_eq!(next(first + 8, 3), run(first + 2 * gb, 6));
    assert_eq!(next(first + 2 * gb + 6, 3), run(first + 3 * gb, 3));
    assert_eq!(next(first + 3 * gb + 1, 3), run(first, 8), "around the end");
    assert_eq!(next(first, 9), None);
}

#[test]
fn the_cheapest_runs_are_found_around_the_end_too() {
    let (f, first, gb) = one_group();
    let fpb = f.geometry().frags_per_block();
    holes_in(&f, first, &[(first, 3), (first + gb, 2), (first + gb + 3, 3), (first + 3 * gb, 2)]);
    let cheapest = |from: u64, need: u64| f.space.cheapest_runs(from, need * fpb, 4 * fpb).unwrap();
    let run = |block: u64, len: u64| Run { start: block * fpb, len: len * fpb };
    assert_eq!(cheapest(first, 5), [run(first + gb, 2), run(first + gb + 3, 3)]);
    let all = [run(first + gb, 2), run(first + gb + 3, 3), run(first + 3 * gb, 2), run(first, 3)];
    assert_eq!(cheapest(first + gb, 10), all);
    assert_eq!(cheapest(first + 1, 10)[0], run(first + 1, 2), "what is left of it, then the others");
    assert!(cheapest(first, 11).is_empty());
}

#[test]
fn where_allocation_groups_were_never_used_no_short_run_is_asked_for() {
    let f = Fixture::new(16 << 20, &tiny());
    let g = f.geometry();
    assert!(g.ag_count > 1);
    let first = f.space.find_free_group(0).unwrap().unwrap();
    let run = f.space.next_free_run(g.frag_of_block(first), 1).unwrap().unwrap();
    assert_eq!(f.space.min_run_length(first, run.len, run.len).unwrap(), Some(run.len));
    // Two runs would have to be used, one of them short: the next allocation group has a long one.
    let middle = run.start + run.len - 2;
    assert!(f.alloc_in(middle..middle + 1, 1).unwrap().is_some());
    let length = f.space.min_run_length(first, run.len - 1, run.len).unwrap();
    assert!(length.is_none_or(|len| len == run.len - 1), "{length:?}");
}

#[test]
fn wrong_frees_and_allocations_are_errors_and_change_nothing() {
    let f = Fixture::new(8 << 20, &tiny());
    let g = f.geometry();
    let run = f.alloc_near(0, 100, 100).unwrap().unwrap();
    let corrupt = |r: Result<()>| assert!(matches!(r, Err(Error::Corrupt(_))), "{r:?}");
    corrupt(f.free(run)); // allocated in memory only
    f.commit_alloc(run);
    let free = f.free_by_bitmaps();
    corrupt(f.space.commit_alloc(&f.txn(1000), run));
    let wrong = [
        Run { start: run.start, len: 101 },
        Run { start: run.start - 1, len: 2 },
        Run { start: 0, len: 1 },
        Run { start: g.frag_of_block(g.sys_start), len: 2 },
        Run { start: g.frag_of_block(g.log_start), len: 2 },
        Run { start: g.frag_of_block(g.ag_start(1)) - 1, len: 2 },
        Run { start: g.frag_of_block(g.ag_start(2)), len: 2 },
        Run { start: g.total_frags(), len: 1 },
        Run { start: u64::MAX, len: 2 },
        Run { start: run.start, len: u64::MAX },
        Run { start: run.start, len: 0 },
    ];
    for run in wrong {
        corrupt(f.free(run));
    }
    assert_eq!(f.free_by_bitmaps(), free);
    f.free(run).unwrap();
    corrupt(f.free(run));
    f.cancel(Run { start: run.start + 200, len: 10 });
    f.journal.commit().unwrap();
    assert_eq!(f.free_by_bitmaps(), f.space.free_frags());
}

#[test]
fn a_run_that_spans_bitmap_blocks_is_marked_as_a_whole() {
    let options = MkfsOptions {
        block_size: 512,
        frag_size: Some(512),
        group_size: 16 * 1024,
        log_bytes: Some(1 << 20),
        ag_blocks: Some(16384),
        ..MkfsOptions::default()
    };
    let f = Fixture::new(16 << 20, &options);
    let g = f.geometry();
    assert!(g.bitmap_blocks() > 3);
    let run = f.alloc_near(0, 9000, 9000).unwrap().unwrap();
    f.commit_alloc(run);
    let f = f.reopen();
    assert_eq!(f.free_by_bitmaps(), f.space.free_frags());
    // A hole in the middle: neither all used nor all free.
    f.free(Run { start: run.start + 8000, len: 1 }).unwrap();
    let free = f.free_by_bitmaps();
    assert!(matches!(f.free(run), Err(Error::Corrupt(_))));
    assert_eq!(f.free_by_bitmaps(), free, "an error in a later block leaves the first alone");
}

#[test]
fn a_damaged_group_is_passed_over() {
    let f = Fixture::new(16 << 20, &tiny());
    let g = f.geometry();
    let in_1 = g.frag_of_block(g.ag_start(1));
    for ag in 1..3 {
        let start = g.frag_of_block(g.ag_start(ag));
        f.commit_alloc(f.alloc_in(start..start + 1000, 8).unwrap().unwrap());
    }
    let f = f.reopen();
    let offset = g.bitmap_block(1, 0) << g.block_shift;
    f.dev.write_at(cffs_device::IoKind::Meta, offset, &[0u8; 1024]).unwrap();
    assert_eq!(f.alloc_in(in_1..in_1 + 1000, 1).unwrap(), None);
    let run = f.alloc_near(in_1, 8, 8).unwrap().unwrap();
    assert_eq!(g.ag_of(g.block_of_frag(run.start)), 2, "the next group serves");
    assert!(matches!(f.free(Run { start: in_1 + 30, len: 1 }), Err(Error::Corrupt(_))));
    assert!(f.space.find_free_group(g.ag_start(1)).unwrap().is_some_and(|b| g.ag_of(b) != 1));
}

#[test]
fn a_bitmap_that_frees_what_it_must_not_is_damaged() {
    let f = Fixture::new((8 << 20) + 300 * 1024, &tiny());
    let g = f.geometry();
    let beyond = layout::ag_frags(&g, g.ag_count - 1);
    for (ag, bit) in [(0, 1), (0, g.frag_of_block(g.sys_start)), (0, g.frag_of_block(g.log_start) + 7), (4, beyond)] {
        let f = Fixture::new((8 << 20) + 300 * 1024, &tiny());
        while f.space.counters().ags < g.ag_count {
            f.commit_alloc(f.alloc_near(0, 1 << 20, 1).unwrap().unwrap());
        }
        let f = f.reopen();
        let g = f.geometry();
        let addr = g.bitmap_block(ag, bit / g.bits_per_bitmap());
        let offset = addr << g.block_shift;
        let mut block = vec![0; g.block_size()];
        f.dev.read_at(cffs_device::IoKind::Meta, offset, &mut block).unwrap();
        let bit = bit % g.bits_per_bitmap();
        assert!(crate::format::ag::set_bits(&mut block[BITMAP_BITS..], bit, bit + 1, false));
        crate::format::seal(&mut block, 1);
        f.dev.write_at(cffs_device::IoKind::Meta, offset, &block).unwrap();
        let Err(Error::Corrupt(c)) = f.space.alloc_group(ag).with(&f.space.cache, |_| (), |_| ()) else {
            panic!("bit {bit} of group {ag} went unnoticed");
        };
        assert!(c.0.contains(&format!("group {ag}")), "{c}");
    }
}

#[test]
fn hostile_counters_are_refused() {
    let f = Fixture::new(8 << 20, &tiny());
    let good = f.space.counters();
    let cache = || f.space.cache.clone();
    assert!(Space::load(cache(), good, LongestRuns::UNKNOWN, 0).is_ok());
    for bad in [
        Counters { free_frags: f.geometry().total_frags() + 1, ..good },
        Counters { ags: 0, ..good },
        Counters { unwritten: (8 << 20) / 4096 + 1, ..good },
        Counters { ags: f.geometry().ag_count + 1, ..good },
    ] {
        assert!(matches!(Space::load(cache(), bad, LongestRuns::UNKNOWN, 0), Err(Error::Corrupt(_))));
    }
}

#[test]
fn reservations_keep_the_reserve_and_never_exceed_the_free_space() {
    let f = Fixture::new(8 << 20, &tiny());
    let space = Space::load(f.space.cache.clone(), f.space.counters(), LongestRuns::UNKNOWN, 500).unwrap();
    let (free, kept) = (space.free_frags(), f.geometry().total_frags() / 20);
    assert_eq!(space.root_reserve(), kept);
    space.reserve_frags(free - kept, false).unwrap();
    assert!(matches!(space.reserve_frags(1, false), Err(Error::NoSpace)));
    space.reserve_frags(kept, true).unwrap();
    assert!(matches!(space.reserve_frags(1, true), Err(Error::NoSpace)));
    assert!(matches!(space.reserve_frags(u64::MAX, true), Err(Error::NoSpace)));
    space.release_frags(free);
    assert_eq!((space.reserved(), space.free_frags()), (0, free));

    // Many threads at once reserve exactly as much as there is.
    let granted: u64 = std::thread::scope(|s| {
        let grab = || (0..free).take_while(|_| space.reserve_frags(7, true).is_ok()).count() as u64;
        let threads: Vec<_> = (0..8).map(|_| s.spawn(grab)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(granted, free / 7);
}

#[test]
fn threads_never_get_the_same_fragment() {
    let f = Fixture::new(24 << 20, &tiny());
    let total = f.space.free_frags();
    let g = f.geometry();
    let work = |seed: u64| {
        let mut kept: Vec<Run> = Vec::new();
        let mut x = seed;
        for i in 0..3000u64 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let r = x >> 33;
            let goal = r % g.total_frags();
            let run = match r % 3 {
                0 => f.alloc_in(goal..goal + 300, r % 9 + 1).unwrap(),
                1 => f.alloc_near(goal, r % 64 + 1, 1).unwrap(),
                _ => f.alloc_blocks_near(g.block_of_frag(goal), r % 16 + 1, 1).unwrap(),
            };
            if let Some(run) = run {
                if r.is_multiple_of(5) {
                    f.cancel(run);
                } else {
                    f.commit_alloc(run);
                    kept.push(run);
                }
            }
            if (i % 3 == 0 || kept.len() > 200) && !kept.is_empty() {
                let run = kept.swap_remove(x as usize % kept.len());
                f.free(run).unwrap();
            }
            if i % 500 == 0 {
                f.journal.commit().unwrap();
            }
        }
        kept
    };
    let kept: Vec<Run> = std::thread::scope(|s| {
        let threads: Vec<_> = (1..5).map(|seed| s.spawn(move || work(seed * 977))).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    f.journal.commit().unwrap();
    let used: u64 = kept.iter().map(|r| r.len).sum();
    assert_eq!(f.space.free_frags(), total - used);
    assert_eq!(f.free_by_bitmaps(), total - used);
    let mut sorted = kept.clone();
    sorted.sort();
    assert!(sorted.windows(2).all(|w| w[0].end() <= w[1].start));
    // What another mount finds in the bitmaps can be allocated to the last fragment.
    let f = f.reopen();
    let mut found = 0;
    while let Some(run) = f.alloc_near(0, 1 << 20, 1).unwrap() {
        found += run.len;
    }
    assert_eq!(found, total - used);
}

#[test]
fn a_petabyte_loads_at_once_and_serves_from_its_first_groups() {
    let options = MkfsOptions { log_bytes: Some(4 << 20), ..MkfsOptions::default() };
    let f = Fixture::new(1 << 50, &options);
    let g = f.geometry();
    assert!(g.ag_count > 500_000);
    let run = f.alloc_near(g.total_frags() - 1, 100, 100).unwrap().unwrap();
    f.commit_alloc(run);
    let group = f.space.find_free_group(g.total_blocks - 1).unwrap().unwrap();
    assert!(g.ag_of(group) <= 1);
    assert!(f.space.groups.read().len() <= 2);
    let f = f.reopen();
    assert_eq!(f.space.counters().free_frags, layout::initial_free_frags(&g) - 100);
}

#[test]
fn counters_of_other_layers_go_with_the_commit() {
    let f = Fixture::new(8 << 20, &tiny());
    f.space.with_counters(|c| c.inodes += 41);
    let run = f.alloc_near(0, 5, 5).unwrap().unwrap();
    f.commit_alloc(run);
    let (dev, free) = (f.dev.clone(), f.space.counters().free_frags);
    let addr = f.geometry().counters_block();
    let f = f.reopen();
    assert_eq!(f.space.counters().inodes, 42);
    let mut block = vec![0; f.geometry().block_size()];
    dev.read_at(cffs_device::IoKind::Meta, addr << f.geometry().block_shift, &mut block).unwrap();
    assert_eq!(get_u64(&block, COUNT_FREE_FRAGS), free);
}

#[derive(Clone, Debug)]
enum Op {
    Near(u64, u64, u64),
    Blocks(u64, u64, u64),
    In(u64, u64, u64),
    AllocGroup(u64),
    Cancel(usize),
    Commit(usize),
    Free(usize, u64, u64),
    Durable,
}

fn op() -> impl Strategy<Value = Op> {
    let at = 0u64..24_000;
    prop_oneof![
        3 => (at.clone(), 1u64..900, 1u64..900).prop_map(|(g, a, b)| Op::Near(g, a.max(b), a.min(b))),
        2 => (at.clone(), 1u64..300, 1u64..300).prop_map(|(g, a, b)| Op::Blocks(g / 2, a.max(b), a.min(b))),
        3 => (at.clone(), 1u64..200, 1u64..12).prop_map(|(a, n, w)| Op::In(a, n, w)),
        1 => at.prop_map(Op::AllocGroup),
        1 => any::<usize>().prop_map(Op::Cancel),
        5 => any::<usize>().prop_map(Op::Commit),
        3 => (any::<usize>(), any::<u64>(), any::<u64>()).prop_map(|(i, a, b)| Op::Free(i, a, b)),
        1 => Just(Op::Durable),
    ]
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Is {
    Free,
    Taken,
    Used,
    Freed,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn allocation_agrees_with_a_plain_bitmap(ops in prop::collection::vec(op(), 1..250)) {
        let f = Fixture::new((8 << 20) + 300 * 1024, &tiny());
        let g = f.geometry();
        let mut model = vec![Is::Free; g.total_frags() as usize];
        for ag in 0..g.ag_count {
            let start = g.frag_of_block(g.ag_start(ag));
            for r in layout::fixed_ranges(&g, ag) {
                model[(start + r.start) as usize..(start + r.end) as usize].fill(Is::Used);
            }
        }
        let (mut taken, mut used): (Vec<Run>, Vec<Run>) = Default::default();
        let range = |r: Run| r.start as usize..r.end() as usize;
        for op in ops {
            let all = |model: &[Is], r: Run, is: Is| model[range(r)].iter().all(|x| *x == is);
            match op {
                Op::Near(goal, want, min) => {
                    if let Some(run) = f.alloc_near(goal, want, min).unwrap() {
                        prop_assert!(run.len <= want && run.len >= min && all(&model, run, Is::Free));
                        model[range(run)].fill(Is::Taken);
                        taken.push(run);
                    } else {
                        let longest = model.chunk_by(|a, b| a == b).filter(|c| c[0] == Is::Free).map(|c| c.len()).max();
                        prop_assert!((longest.unwrap_or(0) as u64) < min);
                    }
                }
                Op::Blocks(goal, want, min) => {
                    if let Some(run) = f.alloc_blocks_near(goal, want, min).unwrap() {
                        prop_assert!(run.start % 2 == 0 && run.len % 2 == 0);
                        prop_assert!(run.len / 2 <= want && run.len / 2 >= min && all(&model, run, Is::Free));
                        model[range(run)].fill(Is::Taken);
                        taken.push(run);
                    }
                }
                Op::In(at, len, want) => {
                    let window = at..at + len;
                    if let Some(run) = f.alloc_in(window.clone(), want).unwrap() {
                        prop_assert!(run.len == want && run.start >= window.start && run.end() <= window.end);
                        prop_assert!(all(&model, run, Is::Free));
                        model[range(run)].fill(Is::Taken);
                        taken.push(run);
                    }
                }
                Op::AllocGroup(goal) => {
                    let free = |b: u64| {
                        let start = g.frag_of_block(b);
                        start + g.group_frags() <= g.total_frags()
                            && all(&model, Run { start, len: g.group_frags() }, Is::Free)
                    };
                    match f.space.find_free_group(goal / 2).unwrap() {
                        Some(b) => prop_assert!(g.group_of(b) == b && free(b)),
                        None => prop_assert!(!(0..g.total_blocks).step_by(g.group_blocks() as usize).any(free)),
                    }
                }
                Op::Cancel(i) if !taken.is_empty() => {
                    let run = taken.swap_remove(i % taken.len());
                    f.cancel(run);
                    model[range(run)].fill(Is::Free);
                }
                Op::Commit(i) if !taken.is_empty() => {
                    let run = taken.swap_remove(i % taken.len());
                    f.commit_alloc(run);
                    model[range(run)].fill(Is::Used);
                    used.push(run);
                }
                Op::Free(i, a, b) if !used.is_empty() => {
                    // A part of a run, anywhere in it.
                    let run = used.swap_remove(i % used.len());
                    let (from, len) = (a % run.len, b % (run.len - a % run.len) + 1);
                    let part = Run { start: run.start + from, len };
                    f.free(part).unwrap();
                    model[range(part)].fill(Is::Freed);
                    let rest = [
                        Run { start: run.start, len: from },
                        Run { start: part.end(), len: run.end() - part.end() },
                    ];
                    used.extend(rest.into_iter().filter(|r| r.len > 0));
                }
                Op::Durable => {
                    f.journal.commit().unwrap();
                    model.iter_mut().filter(|x| **x == Is::Freed).for_each(|x| *x = Is::Free);
                }
                _ => {}
            }
            let count = |is: Is| model.iter().filter(|x| **x == is).count() as u64;
            prop_assert_eq!(f.space.pending_frees(), count(Is::Freed));
            prop_assert_eq!(f.space.free_frags(), count(Is::Free) + count(Is::Freed));
            prop_assert_eq!(f.space.counters().free_frags, f.space.free_frags() + count(Is::Taken));
        }
        prop_assert_eq!(f.free_by_bitmaps(), f.space.counters().free_frags);
        for run in used {
            prop_assert!((run.start..run.end()).all(|frag| f.is_used(frag)));
        }
    }
}
