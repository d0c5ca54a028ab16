//! Free space is brought together in long runs, and everything stays as it was.

use crate::common::observed::{Observed, Seen};
use crate::common::plain::{clean, fresh, mount};
use cffs::device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation, OverlayDevice};
use cffs::{
    Caller, Error, Fallocate, FreeRuns, Fs, Ino, MkfsOptions, ROOT_INO, Regroup, RegroupChange, RegroupOptions,
    RegroupOutcome, RegroupStatus, SetXattr, Usage,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const ROOT: Caller = Caller::ROOT;
const SIZE: u64 = 128 << 20;
const DIRS: usize = 20;

fn options() -> MkfsOptions {
    MkfsOptions::default().group_size(64 << 10).reserve_bp(0)
}

fn contents(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 3 + i / 4096 + n * 7) as u8).collect()
}

fn regroup(fs: &Fs, options: &RegroupOptions) -> RegroupStatus {
    let handle = Regroup::new();
    fs.regroup(options, &handle).unwrap();
    let status = handle.status();
    assert_eq!(status.outcome, Some(RegroupOutcome::Complete), "{status:?}");
    status
}

fn free_space() -> RegroupOptions {
    RegroupOptions::default().free_space(true)
}

fn free_runs(status: &RegroupStatus) -> RegroupChange<FreeRuns> {
    status.free_runs.expect("free space was looked at")
}

/// A file system with all kinds of metadata, whose free space is scattered.
struct Aged {
    dev: Arc<MemoryDevice>,
    fs: Arc<Fs>,
    dirs: Vec<Ino>,
    /// By directory and name.
    files: BTreeMap<(usize, String), Vec<u8>>,
}

impl Aged {
    fn new(options: &MkfsOptions, percent: u64) -> Aged {
        let dev = fresh(SIZE, options);
        let fs = mount(&dev);
        let dirs: Vec<Ino> =
            (0..DIRS).map(|d| fs.mkdir(ROOT, ROOT_INO, format!("d{d}").as_bytes(), 0o755).unwrap().ino).collect();
        let mut aged = Aged { dev, fs, dirs, files: BTreeMap::new() };
        aged.fill();
        aged.thin_out(percent);
        aged
    }

    fn make(&mut self, d: usize, name: String, mut bytes: Vec<u8>) -> bool {
        let made = self.fs.create(ROOT, self.dirs[d], name.as_bytes(), 0o644).and_then(|a| {
            self.fs.forget(a.ino, 1);
            self.fs.write(ROOT, a.ino, 0, &bytes).map(|written| (a.ino, written))
        });
        let Ok((ino, written)) = made else {
            let _ = self.fs.unlink(self.dirs[d], name.as_bytes());
            return false;
        };
        bytes.truncate(written);
        let n = self.files.len();
        if n.is_multiple_of(40)
            && self.fs.link(ROOT, ino, self.dirs[(d + 1) % DIRS], format!("link{n}").as_bytes()).is_ok()
        {
            self.fs.forget(ino, 1);
            self.files.insert(((d + 1) % DIRS, format!("link{n}")), bytes.clone());
        }
        if n % 60 == 1 {
            let _ = self.fs.setxattr(ROOT, ino, b"user.long", &contents(n, 9000), SetXattr::default());
        }
        self.files.insert((d, name), bytes);
        true
    }

    /// Until the device is full: many small files, and files that grow in turns.
    fn fill(&mut self) {
        let growing: Vec<Ino> = (0..4)
            .map(|i| self.fs.create(ROOT, ROOT_INO, format!("growing{i}").as_bytes(), 0o644).unwrap().ino)
            .collect();
        let mut n = 0_usize;
        loop {
            let len = if n.is_multiple_of(9) { 150_000 } else { 500 + n * 911 % 30_000 };
            if !self.make(n % DIRS, format!("f{n}"), contents(n, len)) {
                break;
            }
            if n.is_multiple_of(7) {
                for ino in &growing {
                    // Not one after the other, so that no two pieces become one.
                    let _ = self.fs.write(ROOT, *ino, n as u64 * 9000, &contents(n, 4096));
                }
                self.fs.sync().unwrap();
            }
            n += 1;
        }
        growing.into_iter().for_each(|ino| self.fs.forget(ino, 1));
        self.fs.sync().unwrap();
    }

    /// Removes files here and there until so much is in use.
    fn thin_out(&mut self, percent: u64) {
        let mut state = 12_345_u64;
        while self.used() * 100 > self.fs.statfs().total * percent {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let nth = (state >> 33) as usize % self.files.len();
            let key = self.files.keys().nth(nth).unwrap().clone();
            self.fs.unlink(self.dirs[key.0], key.1.as_bytes()).unwrap();
            self.files.remove(&key);
        }
        self.fs.sync().unwrap();
    }

    fn used(&self) -> u64 {
        self.fs.statfs().total - self.fs.statfs().free
    }

    fn compare(&self, fs: &Fs) {
        for ((d, name), bytes) in &self.files {
            let f = fs.lookup(self.dirs[*d], name.as_bytes()).unwrap();
            let mut back = vec![0; bytes.len() + 1];
            assert_eq!(fs.read(f.ino, 0, &mut back).unwrap(), bytes.len(), "d{d}/{name}");
            assert!(back[..bytes.len()] == bytes[..], "d{d}/{name}");
            fs.forget(f.ino, 1);
        }
    }

    /// Unmounts, checks, and compares once more what another mount finds.
    fn end(self, what: &str) {
        self.compare(&self.fs);
        self.dirs.iter().for_each(|d| self.fs.forget(*d, 1));
        self.fs.close().unwrap();
        clean(&self.dev, what);
        let fs = mount(&self.dev);
        self.compare(&fs);
        fs.close().unwrap();
    }
}

/// How many pieces a new file of a tenth of the device lies in.
fn pieces_of_new_file(fs: &Fs) -> u64 {
    let dir = fs.mkdir(ROOT, ROOT_INO, b"new", 0o755).unwrap().ino;
    let file = fs.create(ROOT, dir, b"file", 0o644).unwrap().ino;
    fs.fallocate(ROOT, file, Fallocate::Allocate { keep_size: false }, 0, SIZE / 10).unwrap();
    fs.sync().unwrap();
    let status = regroup(fs, &RegroupOptions::default().large(true).dry_run(true).directories(vec![dir]));
    fs.forget(file, 1);
    fs.forget(dir, 1);
    status.pieces.unwrap().before
}

#[test]
fn a_file_of_a_tenth_of_a_device_that_is_85_percent_full_finds_one_free_run() {
    for options in [
        options(),
        options().data_sums(true),
        options().no_embed(true),
        options().block_size(1024).frag_size(Some(512)),
    ] {
        let aged = Aged::new(&options, 85);
        let fs = aged.fs.clone();
        let plan = regroup(&fs, &free_space().dry_run(true));
        let before = free_runs(&plan).before;
        assert!(before.longest < 4 << 20 && before.for_tenth != 1, "{plan:?}");
        assert_eq!((free_runs(&plan).after.for_tenth, plan.files_moved), (1, 0), "{plan:?}");
        let done = regroup(&fs, &free_space());
        let after = free_runs(&done).after;
        assert!(after.for_tenth == 1 && after.longest >= SIZE / 10, "{done:?}");
        let again = regroup(&fs, &free_space());
        assert_eq!((again.bytes_moved, free_runs(&again).before), (0, after), "{again:?}");
        assert_eq!(pieces_of_new_file(&fs), 1);
        drop(fs);
        aged.end("free space together");
    }
}

#[test]
fn a_budget_bounds_what_is_moved_and_a_stop_leaves_everything_in_order() {
    let aged = Aged::new(&options(), 70);
    let fs = aged.fs.clone();
    let handle = Regroup::new();
    handle.stop();
    fs.regroup(&free_space(), &handle).unwrap();
    assert_eq!(handle.status().outcome, Some(RegroupOutcome::Stopped));
    let budget = 4 << 20;
    let some = regroup(&fs, &free_space().budget(Some(budget)));
    assert!(some.bytes_moved > 0 && some.bytes_moved <= budget, "{some:?}");
    assert!(free_runs(&some).after.longest > free_runs(&some).before.longest, "{some:?}");
    // A directory has no free space of its own.
    let refused = fs.regroup(&free_space().directories(vec![aged.dirs[0]]), &Regroup::new());
    assert!(matches!(refused, Err(Error::Invalid(_))));
    drop(fs);
    aged.end("with a budget");
}

/// What maintenance need not move for files makes room for the next ones.
#[test]
fn maintenance_leaves_a_long_free_run() {
    let aged = Aged::new(&options(), 85);
    let longest = |fs: &Fs| {
        let handle = Regroup::new();
        fs.regroup(&free_space().dry_run(true), &handle).unwrap();
        free_runs(&handle.status()).before.longest
    };
    let before = longest(&aged.fs);
    let steps = |usage| {
        let one = || aged.fs.maintain(usage, &|| true, &Regroup::new()).unwrap();
        // It comes to rest when nothing more is written.
        let taken: Vec<RegroupStatus> = std::iter::from_fn(one).take(4).collect();
        taken.len() < 4 && taken.iter().all(|s| s.outcome == Some(RegroupOutcome::Complete))
    };
    assert!(steps(Usage::InUse));
    assert!(longest(&aged.fs) < 2 * before.max(1 << 20), "programs that wait come first");
    assert!(steps(Usage::Idle));
    let after = longest(&aged.fs);
    assert!(after >= SIZE / 12 && after > 4 * before, "{before} bytes before, {after} after");
    aged.compare(&aged.fs);
    aged.fs.close().unwrap();
    clean(&aged.dev, "maintained");
}

#[test]
fn where_hardly_anything_is_free_as_much_as_can_be_is_brought_together() {
    let aged = Aged::new(&options(), 90);
    let first = regroup(&aged.fs, &free_space());
    let after = free_runs(&first).after;
    assert!(after.longest > 2 << 20 && after.longest > 2 * free_runs(&first).before.longest, "{first:?}");
    let again = regroup(&aged.fs, &free_space());
    assert_eq!(again.bytes_moved, 0, "{again:?}");
    aged.end("nearly full");
}

/// What is written next finds a long run, and a second regroup does not fill it for the little that it would save.
#[test]
fn a_regroup_of_a_nearly_full_device_leaves_long_free_runs() {
    for (options, percent) in [(options(), 89), (options(), 77), (options().ag_blocks(Some(2048)), 89)] {
        let aged = Aged::new(&options, percent);
        let fs = aged.fs.clone();
        let look = || free_runs(&regroup(&fs, &free_space().dry_run(true))).before;
        let before = look();
        let first = regroup(&fs, &RegroupOptions::default());
        assert!(first.read.after < first.read.before / 2.0, "{first:?}");
        assert_eq!(first.directories, 1 + DIRS as u64, "each counts once, however often it was looked at");
        let after = look();
        assert!(after.longest > 2 << 20 && after.longest > 4 * before.longest, "{before:?}, {after:?}");
        let most = first.bytes_moved / 64;
        for next in [
            RegroupOptions::default().dry_run(true),
            RegroupOptions::default().budget(Some(first.bytes_moved / 16)),
            RegroupOptions::default(),
        ] {
            let again = regroup(&fs, &next);
            assert!(again.bytes_moved <= most && again.read.after <= again.read.before, "{percent}%: {again:?}");
            assert!(look().longest > after.longest * 3 / 4, "{percent}%: {:?} of {after:?}", look());
        }
        // What is cheap is moved all the same. Where long attributes leave the list no room in the inode, it does not count.
        let ino_of = |d: usize, name: &str| fs.lookup(aged.dirs[d], name.as_bytes()).unwrap().ino;
        let has_room = |ino: &Ino| fs.getxattr(*ino, b"user.long").is_err();
        let small = aged.files.iter().filter(|(_, bytes)| (4096..16_384).contains(&bytes.len()));
        let inos = small.step_by(50).map(|((d, name), _)| ino_of(*d, name));
        let (apart, others): (Vec<Ino>, Vec<Ino>) = inos.partition(has_room);
        fs.read_together(ROOT, &apart[..16]).unwrap();
        let moved = regroup(&fs, &RegroupOptions::default()).bytes_moved;
        let starts: Vec<u64> = apart[..16].iter().map(|ino| fs.pieces(*ino).unwrap()[0].start).collect();
        let span = starts.iter().max().unwrap() - starts.iter().min().unwrap();
        assert!(span < 1 << 20 && moved <= 2 * most, "{moved} bytes, read together: {starts:?}");
        apart.iter().chain(&others).for_each(|ino| fs.forget(*ino, 1));
        drop(fs);
        aged.end("regrouped");
    }
}

/// The last writes of a regroup are those of its second gathering.
#[test]
fn a_device_that_dies_near_the_end_of_a_regroup_costs_nothing_that_was_there() {
    let aged = Aged::new(&options(), 89);
    aged.fs.sync().unwrap();
    let writes = |fs: &Fs| fs.stats().device.kinds.values().map(|k| k.write_requests).sum::<u64>();
    let whole = mount(&Arc::new(OverlayDevice::new(aged.dev.clone())));
    let before = writes(&whole);
    regroup(&whole, &RegroupOptions::default());
    let all = writes(&whole) - before;
    drop(whole);
    let mut died = 0;
    for n in [1, 3, 10, 30, 60, 100, 150, 250].map(|left| all.saturating_sub(left).max(1)) {
        let over = Arc::new(OverlayDevice::new(aged.dev.clone()));
        let failing = Arc::new(FailingDevice::new(over.clone()));
        let fs = mount(&failing);
        failing.set(Operation::Write, Fault::from_nth(n));
        let handle = Regroup::new();
        let _ = fs.regroup(&RegroupOptions::default(), &handle);
        let outcome = handle.status().outcome;
        died += u64::from(outcome != Some(RegroupOutcome::Complete));
        drop(fs);
        let fs = mount(&over);
        aged.compare(&fs);
        fs.close().unwrap();
        clean(&over, &format!("dead from write {n} of {all} on: {outcome:?}"));
    }
    assert!(died > 4, "{died} deaths while it worked");
    aged.end("the original");
}

/// A device with the same contents.
fn copy_of(dev: &MemoryDevice) -> Arc<MemoryDevice> {
    let mut image = vec![0; SIZE as usize];
    dev.read_at(IoKind::Meta, 0, &mut image).unwrap();
    let copy = MemoryDevice::new(SIZE);
    copy.write_at(IoKind::Meta, 0, &image).unwrap();
    Arc::new(copy)
}

#[test]
fn a_regroup_that_is_stopped_near_its_end_leaves_everything_in_order_and_goes_on() {
    let aged = Aged::new(&options(), 89);
    aged.fs.sync().unwrap();
    let writes = Arc::new(AtomicU64::new(0));
    // Stopped with the write of this number.
    let regrouped = |stop_at: u64| {
        let handle = Arc::new(Regroup::new());
        let (counted, stopping) = (writes.clone(), handle.clone());
        counted.store(0, Ordering::Relaxed);
        let dev = Observed::new(copy_of(&aged.dev), move |seen| {
            if matches!(seen, Seen::Write(..)) && counted.fetch_add(1, Ordering::Relaxed) + 1 == stop_at {
                stopping.stop();
            }
        });
        let fs = mount(&dev);
        fs.regroup(&RegroupOptions::default(), &handle).unwrap();
        (fs, dev, handle.status())
    };
    let (_, _, whole) = regrouped(u64::MAX);
    assert!(whole.outcome == Some(RegroupOutcome::Complete) && whole.bytes_moved > 0, "{whole:?}");
    let all = writes.load(Ordering::Relaxed);
    let mut stopped = 0;
    for left in [2, 10, 40, 100, 200] {
        let (fs, dev, status) = regrouped(all.saturating_sub(left));
        stopped += u64::from(status.outcome == Some(RegroupOutcome::Stopped));
        assert!(status.bytes_moved <= whole.bytes_moved, "{status:?}");
        aged.compare(&fs);
        let rest = regroup(&fs, &RegroupOptions::default());
        assert!(rest.bytes_moved < whole.bytes_moved / 4, "{rest:?} after {status:?}");
        aged.compare(&fs);
        fs.close().unwrap();
        clean(&dev.inner, &format!("stopped {left} writes before the end"));
    }
    assert!(stopped > 2, "{stopped} times before it was through");
    aged.end("the original");
}

/// Where the bitmap is needed: what comes before that has moved, and all is as it was. When it can be read again, the rest moves.
#[test]
fn a_bitmap_that_cannot_be_read_ends_a_regroup_and_costs_nothing() {
    const AG_BLOCKS: u64 = 2048;
    let aged = Aged::new(&options().ag_blocks(Some(AG_BLOCKS)), 85);
    aged.fs.sync().unwrap();
    let copy = copy_of(&aged.dev);
    let failing = Arc::new(FailingDevice::new(copy.clone()));
    let fs = mount(&failing);
    // Header and bitmap of the seventh.
    let bad = (6 * AG_BLOCKS) << 12;
    let names = |why: &String| (0..2).any(|n| why.contains(&format!("block {}: ", 6 * AG_BLOCKS + n)));
    failing.set(Operation::Read, Fault::from_now_on().of_kind(IoKind::Meta).in_range(bad, bad + (2 << 12)));
    let handle = Regroup::new();
    fs.regroup(&RegroupOptions::default(), &handle).unwrap();
    let status = handle.status();
    assert!(matches!(&status.outcome, Some(RegroupOutcome::Failed(why)) if names(why)), "{status:?}");
    assert!(status.bytes_moved > 0, "{status:?}");
    aged.compare(&fs);
    failing.clear();
    let rest = regroup(&fs, &RegroupOptions::default());
    assert!(rest.bytes_moved > status.bytes_moved, "{rest:?} after {status:?}");
    aged.compare(&fs);
    fs.close().unwrap();
    clean(&copy, "with a bitmap that could not be read");
    aged.end("the original");
}

/// As campaigns do it: the fullest part is emptied again and again, whatever that is for.
#[test]
fn a_part_in_use_is_emptied_as_often_as_it_is_asked_for() {
    let aged = Aged::new(&options().no_embed(true), 80);
    for round in 0..4 {
        let done = regroup(&aged.fs, &free_space().always(true));
        assert!(done.bytes_moved > 1 << 20 && done.files_moved > 0, "round {round}: {done:?}");
        aged.compare(&aged.fs);
    }
    aged.end("emptied again and again");
}

/// Files that are open, written to and removed while free space is brought together, and from the beginning to the end of a whole regroup.
#[test]
fn programs_find_space_and_their_files_meanwhile() {
    for (percent, options) in [(85, free_space()), (89, RegroupOptions::default())] {
        let aged = Aged::new(&self::options(), percent);
        let fs = aged.fs.clone();
        let over = Arc::new(AtomicBool::new(false));
        let writer = {
            let (fs, over, dir) = (fs.clone(), over.clone(), aged.dirs[3]);
            std::thread::spawn(move || {
                let mut round = 0;
                while round < 60 || !over.load(Ordering::Relaxed) {
                    let a = fs.create(ROOT, dir, b"busy", 0o644).unwrap();
                    fs.write(ROOT, a.ino, 0, &contents(round, 300_000)).unwrap();
                    fs.link(ROOT, a.ino, dir, b"other").unwrap();
                    fs.fsync(a.ino, false).unwrap();
                    fs.unlink(dir, b"busy").unwrap();
                    fs.unlink(dir, b"other").unwrap();
                    let mut back = vec![0; 300_000];
                    assert_eq!(fs.read(a.ino, 0, &mut back).unwrap(), back.len());
                    assert!(back == contents(round, 300_000), "an open file without a name, round {round}");
                    fs.forget(a.ino, 2);
                    round += 1;
                }
            })
        };
        let handle = Regroup::new();
        let outcome = fs.regroup(&options, &handle);
        over.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        assert!(outcome.is_ok() && handle.status().outcome == Some(RegroupOutcome::Complete), "{:?}", handle.status());
        drop(fs);
        aged.end("in use");
    }
}

#[test]
fn nothing_is_lost_when_the_device_is_gone_in_the_middle() {
    let aged = Aged::new(&options(), 85);
    let regrouped = regroup(&aged.fs, &free_space().budget(Some(6 << 20)));
    assert!(regrouped.bytes_moved > 0);
    let copy = copy_of(&aged.dev);
    let fs = mount(&copy);
    aged.compare(&fs);
    fs.close().unwrap();
    clean(&copy, "after a crash");
    aged.end("the original");
}
