//! Where data is placed, and which blocks are installed in the cache without being read.

use super::batch::BatchCursor;
use super::policy::SCARCE_DIVISOR;
use super::table::{GROUPS_MAX, TRACKED_GROUPS_MAX};
use super::{Placement, STREAM_MIN};
use crate::addr_map::AddrMap;
use crate::cache::{DataRun, Source};
use crate::format::{Ino, Inode, ROOT_INO, Run};
use crate::mkfs::MkfsOptions;
use crate::reservation::SpacePool;
use crate::space::tests::Fixture;
use cffs_buf::AlignedBuf;
use std::sync::Arc;

#[test]
fn a_block_that_another_file_shares_is_not_installed_as_fresh() {
    let f = Fixture::new(64 << 20, &MkfsOptions::default());
    let g = f.geometry();
    let (fpb, fs) = (g.frags_per_block(), g.frag_size());
    assert!(fpb >= 4);
    let cache = f.journal.cache();
    f.space.reserve_frags(4 * fpb, true).unwrap();
    let p = Placement::new(f.space.clone(), &f.sb, None, true);
    let mut fresh = Vec::new();
    let first = p.allocate_small(ROOT_INO, fpb, Some(cache), &mut fresh).unwrap().unwrap();
    assert_eq!(fresh.len(), 1, "a whole block of a free group");
    // Another file gets the last fragment of the next block.
    let theirs = first.end() + fpb - 1;
    assert_eq!(f.alloc_in(theirs..theirs + 1, 1).unwrap().unwrap().start, theirs);
    let bytes = Source::Page(Arc::new(AlignedBuf::from_slice(&vec![7; fs])));
    cache.write_data(&mut [&DataRun { frag: theirs, bytes, from: 0, len: fs, keep: true }]).unwrap();
    fresh.clear();
    let second = p.allocate_small(ROOT_INO, fpb - 1, Some(cache), &mut fresh).unwrap().unwrap();
    assert_eq!(second, Run { start: first.end(), len: fpb - 1 });
    assert!(fresh.is_empty());
    let mut back = vec![0; fs];
    cache.read_data(theirs, &mut back, None).unwrap();
    assert!(back.iter().all(|b| *b == 7), "the other file's bytes became zeros");
}

/// A file system of one allocation group, of which all is taken but these runs of blocks; behind the first group.
fn with_holes(holes: &[(u64, u64)]) -> (Fixture, u64, u64) {
    with_holes_on(16 << 20, holes)
}

/// The same on a device of so many bytes.
fn with_holes_on(size: u64, holes: &[(u64, u64)]) -> (Fixture, u64, u64) {
    let options = MkfsOptions { group_size: 64 << 10, ag_blocks: Some(size / 4096), ..MkfsOptions::default() };
    let f = Fixture::new(size, &options);
    assert_eq!(f.geometry().ag_count, 1);
    let g = f.geometry();
    let fpb = g.frags_per_block();
    let first = f.space.find_free_group(0).unwrap().unwrap() + g.group_blocks();
    let mut at = g.frag_of_block(first);
    while f.alloc_in(0..at, 1).unwrap().is_some() {}
    let end = (g.frag_of_block(g.ag_start(1)), 0);
    let holes = holes.iter().map(|(block, len)| ((first + block) * fpb, len * fpb));
    for (start, len) in holes.chain([end]) {
        if start > at {
            assert!(f.alloc_in(at..start, start - at).unwrap().is_some(), "{at}..{start} was not free");
        }
        at = start + len;
    }
    (f, first, fpb)
}

fn allocated(p: &Placement, dir: Ino, frags: u64) -> Run {
    p.allocate_small(dir, frags, None, &mut Vec::new()).unwrap().expect("free space")
}

fn directory(p: &Placement, ino: Ino) {
    let mut dir = Inode::new(ino, 0o040_755, 1);
    dir.parent = ROOT_INO;
    p.track_keyed(&dir, None);
}

#[test]
fn a_batch_fills_the_long_free_runs_in_order() {
    let (f, first, fpb) = with_holes(&[(0, 2), (4, 40), (60, 3), (80, 50), (140, 10)]);
    let p = Placement::new(f.space.clone(), &f.sb, None, true);
    directory(&p, 7);
    let total = 85;
    f.space.reserve_frags(total * fpb, true).unwrap();
    let sizes = AddrMap::from_iter([(7, (total * fpb) << f.geometry().frag_shift)]);
    p.begin_batch(&sizes);
    let starts: Vec<u64> = (0..total).map(|_| allocated(&p, 7, fpb).start / fpb - first).collect();
    p.end_batch(&sizes);
    let batch_bytes: Vec<u64> = (4..44).chain(80..125).collect();
    assert_eq!(starts, batch_bytes);
}

#[test]
fn a_batch_takes_a_run_for_all_of_it_before_several_long_ones() {
    let (f, first, fpb) = with_holes(&[(0, 70), (100, 70), (200, 70), (300, 200)]);
    let p = Placement::new(f.space.clone(), &f.sb, None, true);
    directory(&p, 7);
    let total = 150;
    f.space.reserve_frags(2 * total * fpb, true).unwrap();
    let sizes = AddrMap::from_iter([(7, (total * fpb) << f.geometry().frag_shift)]);
    p.begin_batch(&sizes);
    let starts: Vec<u64> = (0..total).map(|_| allocated(&p, 7, fpb).start / fpb - first).collect();
    p.end_batch(&sizes);
    assert_eq!(starts, (300..300 + total).collect::<Vec<u64>>());
    // What is moved is no longer than that.
    let plan = p.plan_together(first, 64 * fpb, 0).unwrap().unwrap();
    let run = p.allocate_planned(plan, 64 * fpb, 0).unwrap().1.unwrap();
    assert_eq!(run.start / fpb - first, 0);
}

#[test]
fn where_much_is_moved_only_long_runs_will_do_or_what_is_right_behind() {
    let (f, first, fpb) = with_holes(&[(0, 70), (100, 200), (400, 90), (600, 300)]);
    let p = Placement::new(f.space.clone(), &f.sb, None, true);
    f.space.reserve_frags(400 * fpb, true).unwrap();
    let start = |near: u64, blocks: u64, least: u64| {
        let plan = p.plan_together(first + near, blocks * fpb, least * fpb).unwrap()?;
        let run = p.allocate_planned(plan, blocks * fpb, 0).unwrap().1.unwrap();
        Some(run.start / fpb - first)
    };
    assert_eq!(start(0, 60, 150), Some(0), "it begins right there");
    assert_eq!(start(0, 60, 150), Some(100), "there are ten blocks left");
    assert_eq!(start(160, 60, 150), Some(160));
    assert_eq!(start(224, 60, 150), Some(224), "shorter than a long run, and right behind");
    assert_eq!(start(320, 60, 150), Some(600));
    assert_eq!(start(0, 60, 301), None);
    assert_eq!(start(320, 60, 0), Some(400));
}

#[test]
fn a_unit_that_is_moved_lies_in_one_group_if_that_leaves_out_little() {
    let starts = |unit: u64| {
        let (f, first, fpb) = with_holes(&[(0, 250)]);
        assert_eq!((first % 16, f.geometry().group_blocks()), (0, 16));
        let p = Placement::new(f.space.clone(), &f.sb, None, true);
        f.space.reserve_frags(250 * fpb, true).unwrap();
        let mut plan = p.plan_together(first, 5 * unit * fpb, 0).unwrap();
        let mut allocate = |frags, unit| {
            let (rest, run) = p.allocate_planned(plan.take().unwrap(), frags, unit).unwrap();
            plan = rest;
            run.unwrap().start / fpb - first
        };
        (0..5)
            .map(|_| {
                let start = allocate(fpb, unit * fpb);
                assert_eq!(allocate((unit - 1) * fpb, 0), start + 1);
                start
            })
            .collect::<Vec<u64>>()
    };
    assert_eq!(starts(5), [0, 5, 10, 16, 21]);
    assert_eq!(starts(7), [0, 7, 16, 23, 32]);
    assert_eq!(starts(10), [0, 10, 20, 32, 42], "six blocks are too many to be left out");
    assert_eq!(starts(20), [0, 20, 40, 60, 80], "longer than a group");
    // A run that is as short is left out too, and so is the end of one that the plan comes to later.
    let (f, first, fpb) = with_holes(&[(29, 70), (120, 3), (130, 70)]);
    let p = Placement::new(f.space.clone(), &f.sb, None, true);
    f.space.reserve_frags(20 * fpb, true).unwrap();
    let place = |near: u64, unit: u64| {
        let plan = p.plan_together(first + near, unit * fpb, 0).unwrap().unwrap();
        p.allocate_planned(plan, fpb, unit * fpb).unwrap().1.unwrap().start / fpb - first
    };
    assert_eq!([place(0, 5), place(95, 6), place(100, 5)], [32, 130, 131]);
}

#[test]
fn without_long_runs_a_batch_fills_runs_that_lie_close_together() {
    let beside: Vec<(u64, u64)> = (0..13).map(|n| (8 * n, 6)).collect();
    let (f, first, fpb) = with_holes(&[&beside[..], &[(130, 12), (170, 12)]].concat());
    let p = Placement::new(f.space.clone(), &f.sb, None, true);
    directory(&p, 7);
    f.space.reserve_frags(77 * fpb, true).unwrap();
    let sizes = AddrMap::from_iter([(7, (72 * fpb) << f.geometry().frag_shift)]);
    p.begin_batch(&sizes);
    let place = |blocks: u64| allocated(&p, 7, blocks * fpb).start / fpb - first;
    let starts: Vec<u64> = (0..64).map(|_| place(1)).collect();
    let batch_bytes: Vec<u64> = (0..64).map(|n| 8 * (n / 6) + n % 6).collect();
    assert_eq!(starts, batch_bytes);
    assert_eq!(place(3), 88, "behind what is left of this run, which is too short");
    assert_eq!(place(3), 91);
    assert_ne!(place(7), 96, "no run there takes that");
    p.end_batch(&sizes);
}

/// As [`with_holes`], and more than a quarter of all is free: behind the rest.
fn with_holes_and_space(holes: &[(u64, u64)]) -> (Fixture, u64, u64) {
    let g = Fixture::new(16 << 20, &MkfsOptions { group_size: 64 << 10, ..MkfsOptions::default() }).geometry();
    let (from, len) = (g.total_blocks / 2, g.total_blocks / 3);
    let first = g.group_of(from);
    let (f, base, fpb) = with_holes(&[holes, &[(first, len)]].concat());
    assert!(f.space.free_frags() > g.total_frags() / SCARCE_DIVISOR);
    (f, base, fpb)
}

#[test]
fn where_space_is_scarce_an_isolated_file_is_placed_best_fit() {
    let holes = [(0, 32), (50, 5), (66, 6), (81, 9), (100, 4)];
    let (f, first, fpb) = with_holes(&holes);
    let p = Placement::new(f.space.clone(), &f.sb, None, true);
    directory(&p, 7);
    f.space.reserve_frags(30 * fpb, true).unwrap();
    let place = |blocks: u64| allocated(&p, 7, blocks * fpb).start / fpb - first;
    assert_eq!(place(5), 50);
    assert_eq!(place(5), 66, "one block is left of this one");
    assert_eq!(place(1), 71);
    assert_eq!(place(4), 100);
    // The files of one batch go where there is room for them all.
    let sizes = AddrMap::from_iter([(7, (9 * fpb) << f.geometry().frag_shift)]);
    p.begin_batch(&sizes);
    assert_eq!(place(4), 81);
    assert_eq!(place(5), 85);
    p.end_batch(&sizes);
    assert_eq!(place(5), 0, "no gap is left, so a free group is opened");
}

#[test]
fn the_last_files_of_a_batch_stay_with_the_others_unless_few_groups_are_free() {
    for (free, last) in [(700, 32), (300, 50)] {
        let (f, first, fpb) = with_holes(&[(0, 48), (50, 4), (1000, free)]);
        let (left, all) = (f.space.free_frags(), f.geometry().total_frags());
        assert!(left < all / SCARCE_DIVISOR && (left < all / (2 * SCARCE_DIVISOR)) == (free == 300));
        let p = Placement::new(f.space.clone(), &f.sb, None, true);
        directory(&p, 7);
        f.space.reserve_frags(36 * fpb, true).unwrap();
        let sizes = AddrMap::from_iter([(7, (36 * fpb) << f.geometry().frag_shift)]);
        p.begin_batch(&sizes);
        let starts: Vec<u64> = (0..36).map(|_| allocated(&p, 7, fpb).start / fpb - first).collect();
        p.end_batch(&sizes);
        assert_eq!(starts, (0..32).chain(last..last + 4).collect::<Vec<u64>>(), "{free} blocks free elsewhere");
    }
}

#[test]
fn free_space_in_open_groups_of_directories_is_left_to_directory_blocks() {
    let (f, first, fpb) = with_holes(&[(0, 6), (50, 5)]);
    let p = Placement::new(f.space.clone(), &f.sb, None, true);
    directory(&p, 7);
    directory(&p, 8);
    let group = |blocks: u64| f.geometry().group_of(first + blocks);
    p.table.lock().open_for_dirs(8, group(50));
    f.space.reserve_frags(5 * fpb, true).unwrap();
    let kept = allocated(&p, 7, 5 * fpb);
    assert_eq!(kept.start / fpb - first, 0);
    f.space.cancel(kept);
    // With another group open, this one is like any other.
    p.table.lock().open_for_dirs(8, group(200));
    f.space.reserve_frags(5 * fpb, true).unwrap();
    let taken = allocated(&p, 7, 5 * fpb);
    assert_eq!(taken.start / fpb - first, 50);
    p.table.lock().open_for_dirs(8, group(50));
    p.untrack(8);
    assert!(p.table.lock().dir_groups.is_empty());
}

#[test]
fn an_isolated_file_does_not_break_up_long_runs() {
    let (f, first, fpb) = with_holes_and_space(&[(0, 32), (50, 3), (66, 9)]);
    let p = Placement::new(f.space.clone(), &f.sb, None, true);
    directory(&p, 7);
    f.space.reserve_frags(6 * fpb, true).unwrap();
    let place = |frags| allocated(&p, 7, frags).start / fpb - first;
    assert_eq!(place(fpb), 50, "the fullest group with room for some files");
    assert_eq!(place(fpb), 51, "it is open now");
    assert!(
        place(4 * fpb) >= 2048,
        "what does not fit there, and is no tiny file, opens a free group, not the gap at 66"
    );
}

#[test]
fn the_number_of_tracked_groups_is_bounded() {
    let (f, _, _) = with_holes(&[(0, 32)]);
    let p = Placement::new(f.space.clone(), &f.sb, None, true);
    let gb = f.geometry().group_blocks();
    let mut t = p.table.lock();
    for n in 0..(3 * TRACKED_GROUPS_MAX as u64 / 2) {
        t.open(10 + n % 9000, (1 + n) * gb);
        assert!(t.tracked_groups <= TRACKED_GROUPS_MAX);
    }
    assert_eq!(t.tracked_groups, t.dirs.values().map(|o| o.groups.len()).sum::<usize>());
    assert!(t.dirs.values().all(|o| o.data_group != 0 && o.groups.len() <= GROUPS_MAX));
    drop(t);
    p.untrack(10);
    let t = p.table.lock();
    assert_eq!(t.tracked_groups, t.dirs.values().map(|o| o.groups.len()).sum::<usize>());
}

#[test]
fn a_long_file_takes_the_longest_free_runs_in_their_order() {
    let holes = [(0, 100), (200, 900), (1300, 300), (1800, 1500), (3500, 1300), (5000, 50)];
    let (f, first, fpb) = with_holes_on(64 << 20, &holes);
    let long = STREAM_MIN >> f.geometry().frag_shift;
    assert_eq!(long, 2048 * fpb, "what follows reckons with it");
    let p = Placement::new(f.space.clone(), &f.sb, None, true);
    f.space.reserve_frags(3000 * fpb, true).unwrap();
    // The next part of a file that ends before a block, with so much more to come: where it begins, and how much of it
    // is there.
    let place = |end: u64, blocks: u64, ahead: u64| {
        let run = p.allocate_stream(ROOT_INO, Some((first + end) * fpb), blocks * fpb, ahead).unwrap();
        run.map(|run| (run.start / fpb - first, run.len / fpb))
    };
    assert_eq!(place(150, 10, 0), Some((200, 10)), "one that is not long takes what is next");
    assert_eq!(place(150, 10, long - 1), Some((210, 10)), "still not");
    assert_eq!(place(0, 10, long), Some((0, 10)), "what is free behind it is taken, however short");
    assert_eq!(place(150, 64, long), Some((1800, 64)), "two runs take 8 MiB, and this is the first of them");
    assert_eq!(place(1864, 3000, long), Some((1864, 1436)), "it goes on there to the end of it");
    // From here on 1300 and 880 blocks are the longest.
    assert_eq!(place(3300, 64, long), Some((3500, 64)));
    // Of 1236 and 880 the next around the end.
    assert_eq!(place(4900, 64, long), Some((220, 64)), "not at 5000");
    assert_eq!(place(3564, 1236, long), Some((3564, 1236)));
    // With 816, 300, 90 and 50 blocks there are no 8 MiB left: what is next is as good.
    assert_eq!(place(4800, 40, long), Some((5000, 40)));
}

#[test]
fn a_long_file_has_whole_stripes_as_far_as_there_are_any() {
    // Stripes of 16 blocks; behind the last hole there is none.
    let (f, first, fpb) = with_holes_on(64 << 20, &[(3, 40), (50, 30), (100, 3000)]);
    let mut p = Placement::new(f.space.clone(), &f.sb, None, true);
    directory(&p, 7);
    p.stripe = 16 * fpb;
    f.space.reserve_frags(2500 * fpb, true).unwrap();
    let reserved = f.space.reserved();
    let (mut after, mut runs) = (None, Vec::new());
    let mut left = 2500 * fpb;
    while left > 0 {
        let run = p.allocate_stream(7, after, left.min(160 * fpb), 8192 * fpb).unwrap().unwrap();
        assert!(after == Some(run.start) || run.start.is_multiple_of(p.stripe), "{run} behind {after:?}");
        assert!(run.len == left.min(160 * fpb) || run.end().is_multiple_of(p.stripe), "{run}");
        (after, left) = (Some(run.end()), left - run.len);
        runs.push(run);
    }
    assert!(runs[0].start >= (first + 100) * fpb, "the long hole: {}", runs[0]);
    assert!(runs.windows(2).all(|w| w[0].end() == w[1].start), "it goes on while there is space");
    // What was not kept was given back.
    runs.iter().for_each(|run| f.space.cancel(*run));
    assert_eq!(f.space.reserved(), reserved);
    let short = p.allocate_large(7, None, 20 * fpb).unwrap().unwrap();
    assert_eq!((short.start % p.stripe, short.len), (0, 20 * fpb));
}

#[test]
fn less_than_a_stripe_goes_where_there_is_space() {
    let (f, first, fpb) = with_holes(&[(3, 5), (50, 30)]);
    let mut p = Placement::new(f.space.clone(), &f.sb, None, true);
    directory(&p, 7);
    p.stripe = 64 * fpb;
    f.space.reserve_frags(35 * fpb, true).unwrap();
    assert_eq!(p.allocate_large(7, None, 5 * fpb).unwrap().unwrap(), Run { start: (first + 3) * fpb, len: 5 * fpb });
    // A long file gets what is left, though no stripe fits.
    assert_eq!(p.allocate_large(7, None, 64 * fpb).unwrap().unwrap(), Run { start: (first + 50) * fpb, len: 30 * fpb });
}

/// On a device that stores whole blocks, of a run that begins within a block that somebody else has a part of.
#[test]
fn a_batch_in_units_begins_with_a_whole_block_and_leaves_no_gaps() {
    let options = MkfsOptions { group_size: 64 << 10, ..MkfsOptions::default() };
    let f = Fixture::in_units(64 << 20, &options, 4);
    let g = f.geometry();
    assert_eq!(g.frags_per_block(), 4);
    let group = g.frag_of_block(g.group_blocks());
    let first = f.space.find_free_groups(g.total_blocks / 2, 8).unwrap().unwrap();
    let start = g.frag_of_block(first);
    // Somebody has the first fragment, and what is behind two groups less one fragment.
    let (from, end) = (start + 1, start + 2 * group - 1);
    assert!(f.alloc_in(start..from, 1).unwrap().is_some() && f.alloc_in(end..end + group, group).unwrap().is_some());
    f.space.reserve_frags(end - from, true).unwrap();
    let mut cursor =
        BatchCursor::plan_in_long_runs(&f.space, &f.journal.cache().live_geometry(), first, end - from, 1).unwrap();
    let (mut taken, mut at_boundary) = (Vec::new(), 0);
    for frags in [5, 1, 3].into_iter().cycle() {
        let Some(c) = cursor.take() else { break };
        let (next, run) = c.allocate(&f.space, frags).unwrap();
        let Some(run) = run.filter(|run| run.end() <= end) else { break };
        at_boundary += u64::from(taken.is_empty() && run.start % 4 == 0);
        taken.push(run);
        cursor = next;
    }
    assert_eq!(at_boundary, 1, "the first one shares no block: {:?}", taken[0]);
    // Each follows the one before it.
    assert!(taken.windows(2).all(|w| w[1].start == w[0].end()), "{taken:?}");
    let last = taken.last().unwrap().end();
    assert!(end - last < 5, "{} fragments are left", end - last);
}
