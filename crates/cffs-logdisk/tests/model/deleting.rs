//! Crashes while the space of what was deleted comes back: a step of a deletion is in no batch, so after a crash what it had freed lives again.

use cffs_device::{Device, IoKind, MemoryDevice};
use cffs_logdisk::{BLOCK_BYTES, ImageOptions, ImageStore, LogDisk, LogOptions, MAIN_BRANCH};
use std::io;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;

fn open(device: Arc<dyn Device>) -> io::Result<LogDisk> {
    LogDisk::open(Arc::new(ImageStore::open(device)?), &LogOptions::default())
}

/// What is written to a disk, and what was.
struct Written {
    disk: LogDisk,
    blocks: Vec<u8>,
    rng: fastrand::Rng,
}

impl Written {
    /// Writes one of the first `hot` blocks. False if the disk is full.
    fn write(&mut self, hot: usize) -> bool {
        let (n, tag) = (self.rng.usize(..hot), self.rng.u8(1..));
        let r = self.disk.write_at(IoKind::Data, n as u64 * BLOCK, &[tag; BLOCK_BYTES]);
        match r {
            Ok(()) => self.blocks[n] = tag,
            Err(e) if e.kind() == io::ErrorKind::StorageFull => return false,
            Err(e) => panic!("{e}"),
        }
        true
    }

    fn assert_same(&self, disk: &LogDisk, what: &str) {
        let mut data = [0; BLOCK_BYTES];
        for (n, tag) in self.blocks.iter().enumerate() {
            disk.read_at(IoKind::Data, n as u64 * BLOCK, &mut data).unwrap();
            assert!(data == [*tag; BLOCK_BYTES], "{what}: block {n}");
        }
    }
}

/// After a crash no more lives than was counted as alive before it, but for nodes that were in memory only: the checkpoint of the recovery stores them.
fn assert_promised(after: &LogDisk, before: &LogDisk, what: &str) {
    let (promised, nodes) = (before.space().live, before.stats().dirty_nodes as u64 * BLOCK);
    let live = after.space().live;
    assert!(live <= promised + nodes + 16 * BLOCK, "{what}: {live} bytes live, not {promised} and {nodes} of nodes");
}

/// A short store, most of it in use; a snapshot, of which `share` % is written anew, and that goes while more is written. After each write there may be a
/// crash: then the disk can be opened and written to, and has what was flushed.
fn crashes_in_a_deletion(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let slot = *rng.choice(&[64 << 10, 256 << 10]).unwrap();
    let device = Arc::new(MemoryDevice::new(rng.u64(60..200) * slot));
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [9; 16], slot_bytes: slot }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap();
    // The first one takes its reserve while there is room.
    let first = disk.snapshot(MAIN_BRANCH, "empty").unwrap();
    let fit = disk.space().free / (BLOCK + 128);
    let (mut w, what) = (Written { disk, blocks: Vec::new(), rng }, format!("seed {seed}"));
    w.blocks = vec![0; (fit * w.rng.u64(45..75) / 100) as usize];
    for n in 0..w.blocks.len() {
        w.blocks[n] = w.rng.u8(1..);
        w.disk.write_at(IoKind::Data, n as u64 * BLOCK, &[w.blocks[n]; BLOCK_BYTES]).unwrap();
    }
    w.disk.flush().unwrap();
    let id = w.disk.snapshot(MAIN_BRANCH, "s").unwrap();
    let kept = w.rng.bool().then(|| w.disk.clone_snapshot(id, "clone").unwrap());
    if w.rng.bool() {
        w.disk.delete_snapshot(first).unwrap();
    }
    let hot = (w.blocks.len() * w.rng.usize(10..60) / 100).max(1);
    for _ in 0..hot {
        w.write(hot);
    }
    // One that gives nothing back when it goes, and one of another branch that still goes then; if there is room.
    let others = || {
        let newest = w.disk.snapshot(MAIN_BRANCH, "newest")?;
        let branch = w.disk.new_branch("branch")?;
        let other = w.disk.branch(branch)?;
        let write = |tag: u8| (0..40).try_for_each(|n| other.write_at(IoKind::Data, n * BLOCK, &[tag; BLOCK_BYTES]));
        write(1).and_then(|()| other.flush())?;
        let of_branch = w.disk.snapshot(branch, "of the branch")?;
        write(2).and_then(|()| other.flush())?;
        Ok::<_, io::Error>([newest, of_branch])
    };
    let others = if w.rng.bool() { others().ok() } else { None };
    w.disk.checkpoint().unwrap();
    match (others, kept) {
        (Some(others), _) => {
            others.into_iter().for_each(|id| w.disk.delete_snapshot(id).unwrap());
            w.disk.delete_step(w.rng.usize(1..60)).unwrap();
        }
        (None, Some(branch)) => w.disk.delete_branch(branch).unwrap(),
        (None, None) => w.disk.delete_snapshot(id).unwrap(),
    }
    let mut crashes = 0;
    for _ in 0..200 {
        match w.rng.u32(0..10) {
            0 => drop(w.disk.delete_step(w.rng.usize(1..60)).unwrap()),
            1 => w.disk.flush().unwrap(),
            _ => drop((0..w.rng.usize(1..60)).all(|_| w.write(hot))),
        }
        if kept.is_some() && w.rng.u32(0..60) == 0 {
            // Also what it began as, once it may.
            let _ = w.disk.delete_snapshot(id);
        }
        if w.rng.u32(0..8) != 0 || w.disk.flush().is_err() {
            continue;
        }
        crashes += 1;
        let what = format!("{what}, crash {crashes}");
        let after = open(Arc::new(device.duplicate())).unwrap_or_else(|e| panic!("{what}: {e}"));
        w.assert_same(&after, &what);
        assert_promised(&after, &w.disk, &what);
        if w.rng.bool() {
            // Whoever writes first does not wait for anybody to go on with it.
            let write = |disk: &LogDisk| {
                disk.write_at(IoKind::Data, 0, &[w.blocks[0]; BLOCK_BYTES]).and_then(|()| disk.flush())
            };
            if let (Err(e), Ok(())) = (write(&after), write(&w.disk)) {
                panic!("{what}: {e}, {:?}; without a crash it is written, {:?}", after.space(), w.disk.space());
            }
        }
        while after.delete_step(100).unwrap() {}
        assert_eq!(after.check(true).unwrap(), Vec::<String>::new(), "{what}");
        w.assert_same(&after, &what);
    }
    while w.disk.delete_step(100).unwrap() {}
    assert_eq!(w.disk.check(true).unwrap(), Vec::<String>::new(), "{what}");
    w.assert_same(&w.disk, &what);
}

/// Seeds to run: `CFFS_LOG_DELETING=from..to` for a campaign.
#[test]
fn a_disk_can_be_opened_and_written_to_after_a_crash_in_a_deletion() {
    let asked = std::env::var("CFFS_LOG_DELETING").ok();
    let seeds = asked.as_deref().and_then(|s| s.split_once("..")).map_or((0, 16), |(from, to)| {
        (from.parse().expect("CFFS_LOG_DELETING is from..to"), to.parse().expect("CFFS_LOG_DELETING is from..to"))
    });
    (seeds.0..seeds.1).for_each(crashes_in_a_deletion);
}

/// A writer who has filled the disk goes on beside a deletion: what he is promised is there after a crash as well.
#[test]
fn what_a_step_of_a_deletion_frees_is_given_out_when_a_checkpoint_has_it() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [9; 16], slot_bytes: 64 << 10 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap();
    let write = |disk: &LogDisk, n: u64| disk.write_at(IoKind::Data, n * BLOCK, &[n as u8 | 1; BLOCK_BYTES]);
    disk.snapshot(MAIN_BRANCH, "empty").unwrap();
    let half = disk.space().free / (BLOCK + 128) / 2;
    (0..half).try_for_each(|n| write(&disk, n)).unwrap();
    disk.flush().unwrap();
    let id = disk.snapshot(MAIN_BRANCH, "half").unwrap();
    disk.discard(0, half * BLOCK).unwrap();
    let first = (half..).find(|n| write(&disk, *n).is_err()).unwrap();
    disk.flush().unwrap();
    disk.checkpoint().unwrap();
    disk.delete_snapshot(id).unwrap();
    let (mut next, mut is_more) = (first, true);
    while is_more {
        is_more = disk.delete_step(400).unwrap();
        while next < first + half / 2 && disk.space().free > 2 * BLOCK && write(&disk, next).is_ok() {
            next += 1;
        }
        disk.flush().unwrap();
        let after = open(Arc::new(device.duplicate())).unwrap();
        assert_promised(&after, &disk, "after a crash");
        write(&after, first - 1).unwrap();
        after.flush().unwrap();
    }
    assert!(next > first, "nothing was given out");
}

/// What a writer lacks is what a deletion gives back: it comes before he is told that the disk is full.
#[test]
fn a_writer_gets_the_space_of_what_was_deleted_without_anybody_else() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let store = ImageStore::format(device, &ImageOptions { uuid: [9; 16], slot_bytes: 64 << 10 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let fill = |disk: &LogDisk, rng: &mut fastrand::Rng| {
        let mut data = [0; BLOCK_BYTES];
        (0..).find(|n| {
            rng.fill(&mut data);
            disk.write_at(IoKind::Data, n * BLOCK, &data).is_err()
        })
    };
    disk.snapshot(MAIN_BRANCH, "empty").unwrap();
    let first = fill(&disk, &mut rng).unwrap();
    disk.flush().unwrap();
    disk.discard(first / 2 * BLOCK, first * BLOCK).unwrap();
    disk.flush().unwrap();
    let id = disk.snapshot(MAIN_BRANCH, "half").unwrap();
    disk.discard(0, first * BLOCK).unwrap();
    let held = fill(&disk, &mut rng).unwrap();
    assert!(held < first * 2 / 3, "{held} blocks, and the snapshot has a half of {first}");
    disk.delete_snapshot(id).unwrap();
    let all = fill(&disk, &mut rng).unwrap();
    assert!(all > first * 9 / 10, "{all} blocks of {first}");
    disk.flush().unwrap();
    assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
}

/// A full disk whose blocks a snapshot has: when that goes they can be overwritten at once, although nothing else becomes free.
#[test]
fn what_no_snapshot_has_any_more_is_overwritten_on_a_full_disk() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let store = ImageStore::format(device, &ImageOptions { uuid: [9; 16], slot_bytes: 64 << 10 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap();
    let write = |n: u64, tag: u8| disk.write_at(IoKind::Data, n * BLOCK, &[tag; BLOCK_BYTES]);
    // The first one takes its reserve while there is room.
    disk.snapshot(MAIN_BRANCH, "empty").unwrap();
    let fit = disk.space().free / (BLOCK + 128);
    (0..fit * 9 / 10).try_for_each(|n| write(n, 1)).unwrap();
    disk.flush().unwrap();
    let id = disk.snapshot(MAIN_BRANCH, "all").unwrap();
    (fit..).find(|n| write(*n, 1).is_err()).unwrap();
    disk.flush().unwrap();
    let e = write(0, 2).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::StorageFull);
    disk.delete_snapshot(id).unwrap();
    write(0, 2).unwrap();
    disk.flush().unwrap();
    assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
}

/// A clone is deleted as soon as its snapshot is gone, before a checkpoint says so. After a crash both are there again, and go in the order in which they did.
#[test]
fn after_a_crash_a_snapshot_goes_before_its_branch() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [9; 16], slot_bytes: 128 << 10 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap();
    let write = |on: &dyn Device, blocks: u64, tag: u8| {
        (0..blocks).for_each(|n| on.write_at(IoKind::Data, n * 2 * BLOCK, &[tag; BLOCK_BYTES]).unwrap());
        on.flush().unwrap();
    };
    write(&disk, 900, 1);
    let origin = disk.snapshot(MAIN_BRANCH, "origin").unwrap();
    let clone = disk.clone_snapshot(origin, "clone").unwrap();
    write(&disk.branch(clone).unwrap(), 90, 2);
    let of_clone = disk.snapshot(clone, "of the clone").unwrap();
    write(&disk.branch(clone).unwrap(), 50, 3);
    write(&disk, 900, 4);
    // It goes so slowly that no checkpoint comes meanwhile.
    let large = disk.snapshot(MAIN_BRANCH, "large").unwrap();
    write(&disk, 900, 5);
    disk.checkpoint().unwrap();
    disk.delete_snapshot(of_clone).unwrap();
    disk.delete_snapshot(large).unwrap();
    while let Err(e) = disk.delete_branch(clone) {
        assert_eq!(e.kind(), io::ErrorKind::ResourceBusy);
        assert!(disk.delete_step(60).unwrap());
    }
    disk.flush().unwrap();
    let copy = Arc::new(device.duplicate());
    let after = open(copy.clone()).unwrap();
    while after.delete_step(60).unwrap() {
        after.checkpoint().unwrap();
        drop(open(Arc::new(copy.duplicate())).unwrap());
    }
    assert_eq!(after.check(true).unwrap(), Vec::<String>::new());
    assert_eq!(after.branches().len(), 1);
    after.delete_snapshot(origin).unwrap();
    while after.delete_step(60).unwrap() {}
    assert_eq!(after.check(true).unwrap(), Vec::<String>::new());
    write(&after, 900, 6);
}
