//! Regrouping: what has come apart is brought back together, byte for byte, and stays so.

use crate::common::observed::{Observed, Seen};
use crate::common::plain::{clean, fresh, mount};
use cffs::device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation, OverlayDevice, Purpose};
use cffs::{
    Caller, Error, Fs, Ino, MetadataMode, MkfsOptions, MountOptions, ROOT_INO, Regroup, RegroupOptions, RegroupOutcome,
    RegroupStatus, Usage,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

const ROOT: Caller = Caller::ROOT;
const DIRS: usize = 24;

pub(super) fn small_groups() -> MkfsOptions {
    MkfsOptions::default().group_size(64 << 10)
}

fn contents(n: usize) -> Vec<u8> {
    (0..300 + n * 97 % 5000).map(|i| (i * 7 + n) as u8).collect()
}

/// Files that were made in turns over many directories, with others removed in between. Returns what is there.
pub(super) fn aged(fs: &Fs) -> BTreeMap<String, Vec<u8>> {
    aged_in_rounds(fs, 40)
}

fn aged_in_rounds(fs: &Fs, rounds: usize) -> BTreeMap<String, Vec<u8>> {
    let dirs: Vec<Ino> =
        (0..DIRS).map(|d| fs.mkdir(ROOT, ROOT_INO, format!("d{d}").as_bytes(), 0o755).unwrap().ino).collect();
    let mut all = BTreeMap::new();
    for round in 0..rounds {
        for (d, dir) in dirs.iter().enumerate() {
            let n = round * DIRS + d;
            let name = format!("f{round}");
            let a = fs.create(ROOT, *dir, name.as_bytes(), 0o644).unwrap();
            fs.write(ROOT, a.ino, 0, &contents(n)).unwrap();
            fs.forget(a.ino, 1);
            all.insert(format!("d{d}/{name}"), contents(n));
            if n.is_multiple_of(3) && round > 0 {
                let old = format!("f{}", round - 1);
                fs.unlink(*dir, old.as_bytes()).unwrap();
                all.remove(&format!("d{d}/{old}"));
            }
        }
        fs.sync().unwrap();
    }
    dirs.into_iter().for_each(|d| fs.forget(d, 1));
    all
}

pub(super) fn compare(fs: &Fs, all: &BTreeMap<String, Vec<u8>>) {
    for (path, bytes) in all {
        let mut ino = ROOT_INO;
        for name in path.split('/') {
            let found = fs.lookup(ino, name.as_bytes()).unwrap().ino;
            if ino != ROOT_INO {
                fs.forget(ino, 1);
            }
            ino = found;
        }
        let mut back = vec![0; bytes.len() + 1];
        assert_eq!(fs.read(ino, 0, &mut back).unwrap(), bytes.len(), "{path}");
        assert!(back[..bytes.len()] == bytes[..], "{path}");
        fs.forget(ino, 1);
    }
}

pub(super) fn regroup(fs: &Fs, options: &RegroupOptions) -> RegroupStatus {
    let handle = Regroup::new();
    fs.regroup(options, &handle).unwrap();
    handle.status()
}

/// Requests to read everything with nothing in memory.
fn cold_requests(fs: &Fs, all: &BTreeMap<String, Vec<u8>>) -> u64 {
    fs.drop_caches();
    let reads = || fs.stats().device.kinds.values().map(|k| k.read_requests).sum::<u64>();
    let before = reads();
    compare(fs, all);
    reads() - before
}

#[test]
fn what_came_apart_is_brought_together_once() {
    for options in [
        small_groups(),
        small_groups().data_sums(true),
        small_groups().no_embed(true),
        small_groups().block_size(1024).frag_size(Some(512)),
    ] {
        let dev = fresh(64 << 20, &options);
        let fs = mount(&dev);
        let all = aged(&fs);
        let before = cold_requests(&fs, &all);
        let plan = regroup(&fs, &RegroupOptions::default().dry_run(true));
        assert!(plan.bytes_moved > 0 && plan.read.after < plan.read.before, "{plan:?}");
        let done = regroup(&fs, &RegroupOptions::default());
        assert_eq!(done.outcome, Some(RegroupOutcome::Complete));
        assert!(done.files_moved > 0 && done.bytes_kept == 0, "{done:?}");
        assert!(done.read.after * 2.0 < done.read.before, "{done:?}");
        let after = cold_requests(&fs, &all);
        assert!(after * 3 < before * 2, "{before} requests before, {after} after: {done:?}");
        let again = regroup(&fs, &RegroupOptions::default());
        assert_eq!((again.files_moved, again.blocks_moved, again.bytes_moved), (0, 0, 0), "{again:?}");
        assert_eq!(again.read.before, again.read.after);
        fs.close().unwrap();
        clean(&dev, "regrouped");
        let fs = mount(&dev);
        compare(&fs, &all);
        fs.close().unwrap();
    }
}

#[test]
fn on_a_full_device_areas_are_emptied_and_a_second_regroup_moves_nothing() {
    for full in [60, 80, 93] {
        let dev = fresh(24 << 20, &small_groups().reserve_bp(0));
        let fs = mount(&dev);
        let mut all = aged_in_rounds(&fs, 60);
        // Files that come alone fill the rest, in gaps.
        let mut n = 0;
        let used = || fs.statfs().total - fs.statfs().free;
        while used() * 100 < fs.statfs().total * full {
            let (d, name) = (format!("d{}", n * 7 % DIRS), format!("late{n}"));
            let dir = fs.lookup(ROOT_INO, d.as_bytes()).unwrap().ino;
            let a = fs.create(ROOT, dir, name.as_bytes(), 0o644).unwrap();
            fs.write(ROOT, a.ino, 0, &contents(n * 13)).unwrap();
            fs.fsync(a.ino, false).unwrap();
            fs.forget(a.ino, 1);
            fs.forget(dir, 1);
            all.insert(format!("{d}/{name}"), contents(n * 13));
            n += 1;
        }
        let first = regroup(&fs, &RegroupOptions::default());
        let second = regroup(&fs, &RegroupOptions::default());
        assert!(first.read.after * 5.0 < first.read.before, "{full}% full: {first:?}");
        assert_eq!((second.bytes_moved, second.read.after), (0, first.read.after), "{full}% full: {second:?}");
        compare(&fs, &all);
        fs.close().unwrap();
        clean(&dev, "full");
    }
}

/// More free space than an allocation group has, and none of it in long runs.
#[test]
fn areas_are_emptied_in_allocation_groups_that_are_smaller_than_what_is_free() {
    let dev = fresh(96 << 20, &small_groups().reserve_bp(0).ag_blocks(Some(4096)));
    let fs = mount(&dev);
    let dirs: Vec<Ino> =
        (0..40).map(|d| fs.mkdir(ROOT, ROOT_INO, format!("d{d}").as_bytes(), 0o755).unwrap().ino).collect();
    let mut all = BTreeMap::new();
    let used = || fs.statfs().total - fs.statfs().free;
    let mut n = 0;
    while used() * 100 < fs.statfs().total * 94 {
        for (d, dir) in dirs.iter().enumerate() {
            let bytes = [&contents(n)[..], &[7; 12_000]].concat();
            let a = fs.create(ROOT, *dir, format!("f{n}").as_bytes(), 0o644).unwrap();
            fs.write(ROOT, a.ino, 0, &bytes).unwrap();
            fs.forget(a.ino, 1);
            all.insert(format!("d{d}/f{n}"), bytes);
            n += 1;
        }
        fs.sync().unwrap();
    }
    for n in (0..n).step_by(3) {
        let d = n % dirs.len();
        fs.unlink(dirs[d], format!("f{n}").as_bytes()).unwrap();
        all.remove(&format!("d{d}/f{n}"));
    }
    fs.sync().unwrap();
    let free = fs.statfs().free << fs.geometry().frag_shift;
    assert!(fs.geometry().ag_count > 4 && free > 24 << 20, "{free} bytes free");
    let done = regroup(&fs, &RegroupOptions::default());
    assert!(done.read.after * 4.0 < done.read.before, "{done:?}");
    dirs.into_iter().for_each(|d| fs.forget(d, 1));
    compare(&fs, &all);
    fs.close().unwrap();
    clean(&dev, "several allocation groups");
}

#[test]
fn a_budget_bounds_what_is_moved_and_the_rest_follows_later() {
    let dev = fresh(64 << 20, &small_groups());
    let fs = mount(&dev);
    let all = aged(&fs);
    let budget = 600 << 10;
    let options = RegroupOptions::default().budget(Some(budget));
    let plan = regroup(&fs, &options.clone().dry_run(true));
    assert!(plan.bytes_moved > budget / 2 && plan.bytes_moved <= budget, "{plan:?}");
    let first = regroup(&fs, &options);
    assert!(first.bytes_moved <= budget && first.bytes_moved > 0, "{first:?}");
    let rest = regroup(&fs, &RegroupOptions::default());
    assert!(rest.bytes_moved > 0);
    compare(&fs, &all);
    fs.close().unwrap();
    clean(&dev, "with a budget");
}

#[test]
fn a_directory_alone_is_brought_together() {
    let dev = fresh(64 << 20, &small_groups());
    let fs = mount(&dev);
    let all = aged(&fs);
    let d = fs.lookup(ROOT_INO, b"d5").unwrap().ino;
    let one = regroup(&fs, &RegroupOptions::default().directories(vec![d]));
    assert_eq!(one.directories, 1);
    assert!(one.files_moved > 0 && one.files < 41, "{one:?}");
    compare(&fs, &all);
    // What cannot be regrouped is refused.
    let f = fs.lookup(d, b"f39").unwrap().ino;
    let handle = Regroup::new();
    let refused = fs.regroup(&RegroupOptions::default().directories(vec![f]), &handle);
    assert!(matches!(refused, Err(Error::NotDir)));
    let refused = fs.regroup(&RegroupOptions::default().rate(Some(0)), &handle);
    assert!(matches!(refused, Err(Error::Invalid(_))));
    assert!(!handle.is_over());
    fs.forget(f, 1);
    fs.forget(d, 2);
    fs.close().unwrap();
    clean(&dev, "one directory");
}

#[test]
fn without_a_journal_nothing_is_moved() {
    let dev = fresh(32 << 20, &MkfsOptions::default());
    let options = MountOptions::default().background(false).metadata(MetadataMode::Sync);
    let fs = Fs::open(dev.clone() as Arc<dyn Device>, None, options).unwrap();
    let refused = fs.regroup(&RegroupOptions::default(), &Regroup::new());
    assert!(matches!(refused, Err(Error::Invalid(_))));
    fs.close().unwrap();
}

#[test]
fn a_stopped_regroup_leaves_everything_in_order() {
    let dev = fresh(64 << 20, &small_groups());
    let fs = mount(&dev);
    let all = aged(&fs);
    let handle = Regroup::new();
    handle.stop();
    fs.regroup(&RegroupOptions::default(), &handle).unwrap();
    assert_eq!(handle.status().outcome, Some(RegroupOutcome::Stopped));
    compare(&fs, &all);
    fs.close().unwrap();
    clean(&dev, "stopped");
}

#[test]
fn a_directory_that_gets_the_number_of_a_file_is_not_moved_as_data() {
    let inner = fresh(32 << 20, &MkfsOptions::default());
    let dev = Observed::interrupted(inner.clone(), Operation::Read);
    let options = MountOptions::default().background(false);
    let fs = Fs::open(dev.clone() as Arc<dyn Device>, None, options).unwrap();
    let dir = fs.mkdir(ROOT, ROOT_INO, b"d", 0o755).unwrap().ino;
    let mut files = Vec::new();
    for name in [b"a", b"b"] {
        let file = fs.create(ROOT, dir, name, 0o644).unwrap().ino;
        // As much as a directory of one block has.
        fs.write(ROOT, file, 0, &[7; 4096]).unwrap();
        fs.forget(file, 1);
        files.push(file);
    }
    fs.sync().unwrap();
    fs.drop_caches();
    // All names are cached, the data is not: the first request of the regroup reads the first file.
    fs.readdir(dir, 0, true, &mut |e| {
        fs.forget(e.ino, 1);
        true
    })
    .unwrap();
    fs.readdir(ROOT_INO, 0, false, &mut |_| true).unwrap();
    let (other, second) = (fs.clone(), files[1]);
    dev.meanwhile(move || {
        other.unlink(dir, b"b").unwrap();
        let new = other.mkdir(ROOT, dir, b"c", 0o755).unwrap().ino;
        assert_eq!(new, second, "the number is given out again");
        let below = other.create(ROOT, new, b"below", 0o644).unwrap().ino;
        other.forget(below, 1);
        other.forget(new, 1);
    });
    regroup(&fs, &RegroupOptions::default().always(true));
    assert!(dev.happened(), "data was read");
    fs.forget(dir, 1);
    fs.close().unwrap();
    clean(&inner, "with a directory in the place of a file");
}

/// Data that moves becomes durable apart from what programs commit: they do not wait for a flush because of it.
#[test]
fn an_fsync_beside_a_regroup_with_a_rate_flushes_once() {
    let fs: Arc<OnceLock<Arc<Fs>>> = Arc::default();
    let flushes = Arc::new(AtomicU64::new(0));
    let counts: Arc<Mutex<Vec<u64>>> = Arc::default();
    let watcher = {
        let (fs, flushes, counts) = (fs.clone(), flushes.clone(), counts.clone());
        move |seen: Seen<'_>| match seen {
            Seen::Flush => drop(flushes.fetch_add(1, Ordering::SeqCst)),
            Seen::Written(IoKind::Data) if Purpose::current() == Purpose::Regroup => {
                let fs = fs.get().unwrap();
                let before = flushes.load(Ordering::SeqCst);
                let mut counts = counts.lock().unwrap();
                let name = format!("new{}", counts.len());
                let program = || {
                    let ino = fs.create(ROOT, ROOT_INO, name.as_bytes(), 0o644).unwrap().ino;
                    fs.write(ROOT, ino, 0, &[7; 4096]).unwrap();
                    fs.fsync(ino, false).unwrap();
                    fs.forget(ino, 1);
                };
                std::thread::scope(|scope| scope.spawn(program).join().unwrap());
                counts.push(flushes.load(Ordering::SeqCst) - before);
            }
            _ => {}
        }
    };
    let dev = Observed::new(fresh(64 << 20, &small_groups()), watcher);
    let mounted = mount(&dev);
    let all = aged(&mounted);
    assert!(fs.set(mounted.clone()).is_ok());
    let done = regroup(&mounted, &RegroupOptions::default().rate(Some(1 << 40)));
    assert!(done.outcome == Some(RegroupOutcome::Complete) && done.files_moved > 0, "{done:?}");
    let counts = std::mem::take(&mut *counts.lock().unwrap());
    assert!(counts.len() > 10 && counts.iter().all(|flushes| *flushes == 1), "{counts:?}");
    compare(&mounted, &all);
    mounted.close().unwrap();
    clean(&dev.inner, "beside fsyncs");
}

/// Where nothing has to be read, nothing can be saved: this once went on for ever (campaign seed 610000000).
#[test]
fn an_empty_file_system_is_regrouped_at_once() {
    let dev = fresh(16 << 20, &small_groups());
    let fs = mount(&dev);
    let options = [RegroupOptions::default(), RegroupOptions::default().budget(Some(1 << 20))];
    for options in options.into_iter().flat_map(|o| [o.clone(), o.always(true)]) {
        let done = regroup(&fs, &options);
        assert_eq!((done.outcome, done.bytes_moved), (Some(RegroupOutcome::Complete), 0));
    }
    let a = fs.create(ROOT, ROOT_INO, b"one", 0o644).unwrap();
    fs.write(ROOT, a.ino, 0, &contents(7)).unwrap();
    assert_eq!(regroup(&fs, &RegroupOptions::default()).bytes_moved, 0);
    fs.forget(a.ino, 1);
    fs.close().unwrap();
    clean(&dev, "almost empty");
}

/// Unmounts; the groups that hold blocks of the locator table, and how many blocks those are.
fn locator_groups(fs: Arc<Fs>, dev: &dyn Device) -> (BTreeSet<u64>, usize) {
    fs.close().unwrap();
    let table = cffs::dump::Dumper::open(dev, None).unwrap().locator().unwrap();
    let addr = |n: usize| match table.at(&format!("blocks.{n}.block")) {
        Some(cffs::dump::Value::Number(addr)) => Some(*addr),
        _ => None,
    };
    let blocks: Vec<u64> = (0..).map_while(addr).collect();
    (blocks.iter().map(|b| b / 16).collect(), blocks.len())
}

/// Who creates files looks for free slots in one block of the table after the other.
#[test]
fn the_blocks_of_the_locator_table_come_together() {
    let dev = fresh(64 << 20, &small_groups());
    let fs = mount(&dev);
    let all = aged_in_rounds(&fs, 240);
    let (before, blocks) = locator_groups(fs, &*dev);
    assert!(blocks > 4 && before.len() > 3, "{before:?} for {blocks} blocks");
    let fs = mount(&dev);
    assert!(regroup(&fs, &RegroupOptions::default().dry_run(true)).bytes_moved > 0);
    assert_eq!(locator_groups(fs, &*dev).0, before);
    let fs = mount(&dev);
    regroup(&fs, &RegroupOptions::default());
    assert_eq!(regroup(&fs, &RegroupOptions::default()).bytes_moved, 0);
    let (after, same) = locator_groups(fs, &*dev);
    assert!(same == blocks && after.len() <= blocks.div_ceil(16), "{before:?} became {after:?}");
    clean(&dev, "regrouped");
    let fs = mount(&dev);
    compare(&fs, &all);
    fs.close().unwrap();
}

fn maintain(fs: &Fs, usage: Usage) -> Option<RegroupStatus> {
    fs.maintain(usage, &|| true, &Regroup::new()).unwrap()
}

#[test]
fn maintenance_brings_together_what_was_written_and_then_rests() {
    let dev = fresh(64 << 20, &small_groups());
    let fs = mount(&dev);
    assert!(maintain(&fs, Usage::Idle).is_none(), "nothing was written");
    let all = aged(&fs);
    let before = cold_requests(&fs, &all);
    let credit = fs.maintain(Usage::InUse, &|| true, &stopped()).map(|_| fs.stats().maintenance.credit).unwrap();
    assert!(fs.maintain(Usage::Idle, &|| false, &Regroup::new()).unwrap().is_none(), "it may not");
    assert_eq!((fs.stats().maintenance.runs, fs.stats().maintenance.credit), (0, credit));
    fs.drop_caches();
    let purposes = || fs.stats().device.purposes;
    let earlier = purposes();
    let done = maintain(&fs, Usage::Idle).expect("there is enough to do");
    assert_eq!(done.outcome, Some(RegroupOutcome::Complete));
    let later = purposes();
    assert!(later["regroup"].read_requests > earlier["regroup"].read_requests, "{later:?}");
    assert!(later["regroup"].write_requests > earlier["regroup"].write_requests, "{later:?}");
    assert_eq!(
        (earlier["demand"], earlier["writeback"]),
        (later["demand"], later["writeback"]),
        "nobody else has asked"
    );
    let stats = fs.stats().maintenance;
    assert_eq!((stats.runs, stats.bytes_moved, stats.credit), (1, done.bytes_moved, credit - done.bytes_moved));
    let after = cold_requests(&fs, &all);
    // Half of the requests; how many there are before is the business of the cache, too.
    assert!(before > 40 && after <= 23, "{before} requests before, {after} after: {done:?}");
    assert!(maintain(&fs, Usage::Idle).is_none(), "nothing was written since");
    fs.close().unwrap();
    clean(&dev, "maintained");
    let fs = mount(&dev);
    compare(&fs, &all);
    fs.close().unwrap();
}

/// Files that were written anew go back to their neighbours, which stay where they are.
#[test]
fn maintenance_brings_strays_back() {
    let dev = fresh(64 << 20, &small_groups());
    // A part of the files fits in memory: where it is all of them, a stray costs only the first who comes by.
    let options = MountOptions::default().background(false).cache_bytes(1 << 20);
    let fs = Fs::open(dev.clone() as Arc<dyn Device>, None, options).unwrap();
    let mut all = BTreeMap::new();
    let write = |d: usize, name: usize, bytes: &[u8]| {
        let dir = fs.lookup(ROOT_INO, format!("d{d}").as_bytes()).unwrap().ino;
        let a = fs.create(ROOT, dir, name.to_string().as_bytes(), 0o644).unwrap();
        fs.write(ROOT, a.ino, 0, bytes).unwrap();
        fs.forget(a.ino, 1);
        (dir, format!("d{d}/{name}"))
    };
    for d in 0..DIRS {
        fs.mkdir(ROOT, ROOT_INO, format!("d{d}").as_bytes(), 0o755).unwrap();
        for name in 0..60 {
            let bytes = contents(d * 60 + name);
            all.insert(write(d, name, &bytes).1, bytes);
        }
        fs.sync().unwrap();
    }
    regroup(&fs, &RegroupOptions::default());
    let fresh = cold_requests(&fs, &all);
    // When they are written anew others have their places, which these leave later.
    let mut anew = 0;
    let rewritten = |round: usize, d: usize| round * 9 + d % 9;
    for round in 0..6 {
        for d in 0..DIRS {
            let name = rewritten(round, d);
            let bytes = &all[&format!("d{d}/{name}")];
            let dir = fs.lookup(ROOT_INO, format!("d{d}").as_bytes()).unwrap().ino;
            fs.unlink(dir, name.to_string().as_bytes()).unwrap();
            fs.sync().unwrap();
            write(d, 1000 + name, bytes);
            fs.sync().unwrap();
            write(d, name, bytes);
            fs.sync().unwrap();
            anew += bytes.len().next_multiple_of(1024) as u64;
        }
    }
    for (round, d) in (0..6).flat_map(|round| (0..DIRS).map(move |d| (round, d))) {
        let dir = fs.lookup(ROOT_INO, format!("d{d}").as_bytes()).unwrap().ino;
        fs.unlink(dir, (1000 + rewritten(round, d)).to_string().as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    let before = cold_requests(&fs, &all);
    let done = maintain(&fs, Usage::Idle).expect("strays are to be brought back");
    let after = cold_requests(&fs, &all);
    assert!(done.bytes_moved <= anew, "{anew} bytes were written anew, {done:?}");
    // At least a third of what was lost.
    let (lost, gained) = (before.saturating_sub(fresh), before.saturating_sub(after));
    assert!(lost > fresh / 4 && gained * 3 > lost, "{fresh}, {before}, {after} requests: {done:?}");
    assert!(done.read.after < done.read.before * 0.8, "{done:?}");
    compare(&fs, &all);
    fs.close().unwrap();
    clean(&dev, "strays brought back");
}

/// What is nobody's neighbour, and makes the credit that a step of maintenance waits for.
fn write_large(fs: &Fs, name: &str) {
    let a = fs.create(ROOT, ROOT_INO, name.as_bytes(), 0o644).unwrap();
    assert_eq!(fs.write(ROOT, a.ino, 0, &[7; 512 << 10]).unwrap(), 512 << 10);
    fs.forget(a.ino, 1);
    fs.sync().unwrap();
}

/// Files of each directory that is made later.
const LATER: usize = 20;

/// An image with a tree in order, and a directory that was made later in each of its directories, with so many bytes in all. Returns what is there.
fn with_detours() -> (Arc<MemoryDevice>, BTreeMap<String, Vec<u8>>, u64) {
    let dev = fresh(128 << 20, &MkfsOptions::default().group_size(128 << 10));
    let fs = mount(&dev);
    let mut all = aged_in_rounds(&fs, 200);
    maintain(&fs, Usage::Idle).expect("there is enough to do");
    let mut bytes = 0;
    for d in 0..DIRS {
        let above = fs.lookup(ROOT_INO, format!("d{d}").as_bytes()).unwrap().ino;
        let dir = fs.mkdir(ROOT, above, b"later", 0o755).unwrap().ino;
        for n in 0..LATER {
            let a = fs.create(ROOT, dir, format!("f{n}").as_bytes(), 0o644).unwrap();
            fs.write(ROOT, a.ino, 0, &contents(n + d)).unwrap();
            fs.forget(a.ino, 1);
            all.insert(format!("d{d}/later/f{n}"), contents(n + d));
            bytes += contents(n + d).len().next_multiple_of(1024) as u64;
        }
        write_large(&fs, &format!("large{d}"));
    }
    fs.close().unwrap();
    (dev, all, bytes)
}

/// A directory that is made later lies elsewhere as a whole. It goes into the room that was left among its neighbours, and stays there.
#[test]
fn maintenance_ends_detours() {
    let (dev, all, bytes) = with_detours();
    let fs = mount(&dev);
    let before = cold_requests(&fs, &all);
    let done = maintain(&fs, Usage::Idle).expect("there are detours");
    assert!(done.files_moved as usize >= DIRS * LATER / 2, "many have room beside their way: {done:?}");
    assert!(done.bytes_moved <= bytes + (done.blocks_moved << 12), "only what was made later moves: {done:?}");
    assert!(done.read.after < done.read.before * 0.7, "{done:?}");
    let after = cold_requests(&fs, &all);
    assert!(after < before, "{before} requests, then {after}: {done:?}");
    (0..DIRS).for_each(|d| write_large(&fs, &format!("larger{d}")));
    let again = maintain(&fs, Usage::Idle).map_or(0, |again| again.files_moved);
    assert_eq!(again, 0, "they stay there");
    compare(&fs, &all);
    fs.close().unwrap();
    clean(&dev, "detours ended");
}

#[test]
fn a_device_that_dies_while_detours_end_keeps_all_files() {
    let (dev, all, _) = with_detours();
    let mut died = 0;
    for n in (1..16).chain([20, 30, 50, 80, 130]) {
        let over = Arc::new(OverlayDevice::new(dev.clone()));
        let failing = Arc::new(FailingDevice::new(over.clone()));
        let fs = mount(&failing);
        failing.set(Operation::Write, Fault::from_nth(n));
        let handle = Regroup::new();
        let outcome = fs.maintain(Usage::Idle, &|| true, &handle);
        died += u64::from(outcome.is_err() || handle.status().outcome != Some(RegroupOutcome::Complete));
        drop(fs);
        let fs = mount(&over);
        compare(&fs, &all);
        fs.close().unwrap();
        clean(&over, &format!("dead from write {n} on"));
    }
    assert!(died >= 10, "{died} deaths while it worked");
}

/// A handle that was stopped before it began.
fn stopped() -> Regroup {
    let handle = Regroup::new();
    handle.stop();
    handle
}

#[test]
fn the_credit_of_maintenance_is_kept_over_mounts_and_bounds_it() {
    let dev = fresh(64 << 20, &small_groups());
    let fs = mount(&dev);
    let all = aged(&fs);
    let credit = fs.stats().maintenance.credit;
    let written = all.values().map(|b| b.len() as u64).sum::<u64>();
    assert!(credit > written, "{credit} for {written}");
    fs.close().unwrap();
    assert!(fs.superblock().maintenance_credit >= credit);
    clean(&dev, "with a credit");
    let fs = mount(&dev);
    let done = maintain(&fs, Usage::Idle).expect("the credit is there");
    assert!(done.bytes_moved <= credit && done.outcome == Some(RegroupOutcome::Complete), "{done:?}");
    fs.close().unwrap();
    assert_eq!(fs.superblock().maintenance_credit, credit - done.bytes_moved);
    clean(&dev, "maintained in another mount");
    // More than can be earned is not believed.
    let mut sb = fs.superblock();
    sb.maintenance_credit = u64::MAX;
    dev.write_at(cffs::device::IoKind::Meta, 0, &sb.encode()).unwrap();
    let fs = mount(&dev);
    assert_eq!(fs.superblock().maintenance_credit, 0, "a crash forgets it");
    assert!(fs.stats().maintenance.credit < 64 << 20);
    compare(&fs, &all);
    maintain(&fs, Usage::Idle);
    assert!(fs.stats().maintenance.credit < 64 << 20);
    fs.close().unwrap();
}

/// Once the credit is as large as it can be, a look in vain must not be the last one.
#[test]
fn maintenance_goes_on_when_the_credit_is_at_its_bound() {
    let dev = fresh(64 << 20, &small_groups());
    let fs = mount(&dev);
    let mut all = aged(&fs);
    regroup(&fs, &RegroupOptions::default());
    let used = fs.stats().space;
    let bound = 4 * (used[0] - used[1]) * fs.stats().fragment_size;
    let f = fs.create(ROOT, ROOT_INO, b"temporary", 0o644).unwrap().ino;
    while fs.stats().maintenance.credit + (1 << 20) < bound {
        fs.write(ROOT, f, 0, &vec![1; 4 << 20]).unwrap();
        fs.sync().unwrap();
        fs.setattr(ROOT, f, cffs::SetAttr::default().size(Some(0))).unwrap();
        fs.sync().unwrap();
    }
    assert!(maintain(&fs, Usage::Idle).is_none(), "nothing has come apart");
    // What is written in turns over the directories comes apart.
    for (n, (path, bytes)) in all.iter_mut().enumerate() {
        let (dir, name) = path.split_once('/').unwrap();
        let d = fs.lookup(ROOT_INO, dir.as_bytes()).unwrap();
        fs.unlink(d.ino, name.as_bytes()).unwrap();
        let a = fs.create(ROOT, d.ino, name.as_bytes(), 0o644).unwrap();
        *bytes = contents(n * 7);
        fs.write(ROOT, a.ino, 0, bytes).unwrap();
        fs.forget(a.ino, 1);
        fs.forget(d.ino, 1);
        if n % 3 == 0 {
            fs.sync().unwrap();
        }
    }
    fs.write(ROOT, f, 0, &vec![1; 4 << 20]).unwrap();
    fs.sync().unwrap();
    let plan = regroup(&fs, &RegroupOptions::default().dry_run(true));
    assert!(plan.read.after < plan.read.before / 2.0, "{plan:?}");
    // Much more than strays: everything comes together.
    let done = maintain(&fs, Usage::Idle).expect("there is much to do");
    assert!(done.read.after * 2.0 < done.read.before, "{done:?}");
    compare(&fs, &all);
    fs.close().unwrap();
    clean(&dev, "maintained at the bound");
}

/// On a device without room a step ends in order, and nothing is lost.
#[test]
fn maintenance_of_a_full_device_ends_in_order() {
    let dev = fresh(24 << 20, &small_groups());
    let fs = mount(&dev);
    let all = aged(&fs);
    let f = fs.create(ROOT, ROOT_INO, b"the rest", 0o644).unwrap().ino;
    let mut at = 0;
    while fs.write(ROOT, f, at, &[7; 64 << 10]).is_ok() && fs.sync().is_ok() {
        at += 64 << 10;
    }
    for usage in [Usage::InUse, Usage::Idle, Usage::Idle] {
        let step = maintain(&fs, usage);
        assert!(step.as_ref().is_none_or(|s| s.outcome == Some(RegroupOutcome::Complete)), "{step:?}");
    }
    compare(&fs, &all);
    fs.close().unwrap();
    clean(&dev, "a full device that was maintained");
}

#[test]
fn maintenance_is_only_where_a_move_is_safe() {
    let dev = fresh(64 << 20, &small_groups());
    let fs =
        Fs::open(dev.clone(), None, MountOptions::default().background(false).metadata(MetadataMode::Sync)).unwrap();
    aged(&fs);
    assert!(maintain(&fs, Usage::Idle).is_none());
    fs.close().unwrap();
    let fs = Fs::open(dev, None, MountOptions::default().background(false).read_only(true)).unwrap();
    assert!(maintain(&fs, Usage::Idle).is_none());
    fs.close().unwrap();
}

#[test]
fn it_is_known_whether_somebody_uses_the_file_system() {
    let dev = fresh(64 << 20, &small_groups());
    let fs = mount(&dev);
    fs.was_used();
    assert!(!fs.was_used());
    fs.getattr(ROOT_INO).unwrap();
    assert!(fs.was_used() && !fs.was_used());
    let all = aged(&fs);
    fs.was_used();
    maintain(&fs, Usage::Idle).expect("there is something to do");
    assert!(!fs.was_used(), "maintenance does not disturb itself");
    compare(&fs, &all);
    fs.close().unwrap();
}
