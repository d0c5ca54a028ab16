//! Preallocated space on a log disk, which stores only what is written: room for it is kept, counted and given back.

use cffs::check::CheckOptions;
use cffs::check::repair::{RepairOptions, repair};
use cffs::device::{Device, IoKind, MemoryDevice};
use cffs::format::system::COUNT_UNWRITTEN;
use cffs::format::{Geometry, get_u64, put_u64};
use cffs::{
    Caller, Error, Fallocate, Fs, Ino, MkfsOptions, MountOptions, QuotaKind, QuotaLimits, ROOT_INO, SetAttr,
    Superblock, mkfs,
};
use cffs_logdisk::{Compression, ImageOptions, ImageStore, LogDisk, LogOptions, MAIN_BRANCH};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const ALLOCATE: Fallocate = Fallocate::Allocate { keep_size: false };

struct Image {
    device: Arc<MemoryDevice>,
    options: LogOptions,
}

impl Image {
    /// A file system with fragments of 1 KB and quotas of users, four times as long as what it is stored in, of which root gets
    /// nothing for itself.
    fn new(bytes: u64, options: LogOptions) -> Image {
        let device = Arc::new(MemoryDevice::new(bytes));
        let image = ImageOptions { uuid: [1; 16], slot_bytes: 256 << 10 };
        let store = Arc::new(ImageStore::format(device.clone(), &image).unwrap());
        let log = LogDisk::format(store, 4 * bytes, &options).unwrap();
        mkfs(&log, None, &MkfsOptions::default().frag_size(Some(1024)).reserve_bp(0).quota(vec![QuotaKind::User]))
            .unwrap();
        log.finish().unwrap();
        Image { device, options }
    }

    fn log(&self) -> Arc<LogDisk> {
        let store = Arc::new(ImageStore::open(self.device.clone()).unwrap());
        Arc::new(LogDisk::open(store, &self.options).unwrap())
    }

    fn mount(&self) -> (Arc<LogDisk>, Arc<Fs>) {
        let log = self.log();
        (log.clone(), Fs::open(log, None, mount_options()).unwrap())
    }

    /// What a check of the unmounted file system says, and the counter of what was never written.
    fn check(&self) -> (Vec<String>, u64) {
        let log = self.log();
        assert_eq!(log.check(true).unwrap(), Vec::<String>::new());
        let report = cffs::check::check(log.clone(), None, &CheckOptions::default(), &|_, _, _| {}).unwrap();
        (report.problems.iter().map(|p| format!("{} {}", p.class.id(), p.text)).collect(), unwritten(&*log))
    }
}

fn mount_options() -> MountOptions {
    MountOptions::default().cache_bytes(16 << 20).background(false)
}

fn counters_block(log: &dyn Device) -> (u64, Vec<u8>) {
    let mut sb = vec![0; 512];
    log.read_at(IoKind::Super, 0, &mut sb).unwrap();
    let g = Geometry::new(&Superblock::decode(&sb).unwrap()).unwrap();
    let mut block = vec![0; g.block_size()];
    let at = g.counters_block() << g.block_shift;
    log.read_at(IoKind::Meta, at, &mut block).unwrap();
    (at, block)
}

fn unwritten(log: &dyn Device) -> u64 {
    get_u64(&counters_block(log).1, COUNT_UNWRITTEN)
}

fn file(fs: &Fs, name: &str) -> Ino {
    match fs.lookup(ROOT_INO, name.as_bytes()) {
        Err(Error::NotFound) => fs.create(Caller::ROOT, ROOT_INO, name.as_bytes(), 0o600).unwrap().ino,
        found => found.unwrap().ino,
    }
}

/// Writes to the end of a file until there is no space.
fn fill(fs: &Fs, ino: Ino) {
    let mut seed = fastrand::Rng::with_seed(ino);
    let mut data = vec![0; 64 << 10];
    let mut len = data.len();
    loop {
        seed.fill(&mut data);
        let size = fs.getattr(ino).unwrap().size;
        match fs.write(Caller::ROOT, ino, size, &data[..len]) {
            Ok(_) => {}
            Err(Error::NoSpace) if len > 1024 => len /= 2,
            Err(Error::NoSpace) => return,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Bytes of a file from one on that nothing compresses.
fn noise(at: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    fastrand::Rng::with_seed(at).fill(&mut data);
    data
}

/// Allocates space, fills the disk, and writes to all of that space, in pieces of so many bytes in any order; each piece must be accepted, and be
/// there after the next mount.
fn promise_is_kept(options: LogOptions, bytes: u64, piece: usize, with_snapshot: bool, seed: u64) {
    let image = Image::new(48 * MIB, options);
    let (log, fs) = image.mount();
    let (kept, other) = (file(&fs, "kept"), file(&fs, "other"));
    let before = fs.statfs().free;
    fs.fallocate(Caller::ROOT, kept, ALLOCATE, 0, bytes).unwrap();
    let taken = (before - fs.statfs().free) * u64::from(fs.statfs().frag_size);
    assert!((bytes..bytes + bytes / 8).contains(&taken), "{taken} for {bytes}");
    fs.sync().unwrap();
    if with_snapshot {
        // A program that takes a backup.
        make_snapshot(&log, &fs);
    }
    fill(&fs, other);
    fs.sync().unwrap();
    fs.close().unwrap();
    drop((fs, log));
    let (problems, units) = image.check();
    assert_eq!((problems, units), (vec![], bytes.div_ceil(4096)));
    // What was promised is known to the next mount.
    let (log, fs) = image.mount();
    fill(&fs, other);
    let mut order: Vec<u64> = (0..bytes.div_ceil(piece as u64)).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    for (n, at) in order.iter().map(|n| n * piece as u64).enumerate() {
        let len = piece.min((bytes - at) as usize);
        let written = fs.write(Caller::ROOT, kept, at, &noise(at, len));
        assert!(matches!(written, Ok(all) if all == len), "seed {seed}: piece {n} at {at}: {written:?}");
        if n.is_multiple_of(97) {
            fill(&fs, other);
        }
    }
    fs.sync().unwrap();
    fs.close().unwrap();
    drop((fs, log));
    let (problems, units) = image.check();
    assert_eq!((problems, units), (vec![], 0), "seed {seed}: all is written");
    let (_log, fs) = image.mount();
    for at in order.iter().map(|n| n * piece as u64) {
        let len = piece.min((bytes - at) as usize);
        let mut data = vec![0; len];
        assert_eq!(fs.read(kept, at, &mut data).unwrap(), len);
        assert!(data == noise(at, len), "seed {seed}: {at}");
    }
    fs.close().unwrap();
}

fn make_snapshot(log: &Arc<LogDisk>, fs: &Fs) {
    let costs = log.snapshot_costs();
    fs.snapshot_device(costs, || Ok(log.snapshot_for(MAIN_BRANCH, "then", costs)?)).unwrap();
}

#[test]
fn what_was_preallocated_can_be_written_when_the_disk_is_full() {
    promise_is_kept(LogOptions::default(), 10 * MIB, 16 << 10, false, 1);
    promise_is_kept(LogOptions::default(), 3 * MIB, 1024, false, 2);
    promise_is_kept(LogOptions::default(), 6 * MIB + 3000, 5000, false, 3);
}

#[test]
fn what_was_preallocated_can_be_written_when_a_snapshot_has_been_made() {
    promise_is_kept(LogOptions::default(), 8 * MIB, 16 << 10, true, 4);
    promise_is_kept(LogOptions::default(), 4 * MIB, 8 << 10, true, 5);
}

#[test]
fn what_was_preallocated_can_be_written_on_a_compressed_disk() {
    let options = LogOptions { compression: Compression::Lz4, ..LogOptions::default() };
    promise_is_kept(options, 8 * MIB, 16 << 10, false, 6);
}

#[test]
fn what_was_preallocated_can_be_written_whatever_else_there_is() {
    for seed in 10..26 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let snapshot = rng.bool();
        let compression = [Compression::None, Compression::Lz4][rng.usize(..2)];
        // Where the disk keeps what is overwritten, room is kept for whole blocks that are written at once.
        let pieces = [4096, 8192, 40_960, 1 << 20, 1024, 1500, 3000, 70_000];
        let all = if snapshot || compression != Compression::None { 4 } else { 8 };
        let options = LogOptions { compression, ..LogOptions::default() };
        promise_is_kept(options, rng.u64(1..14 * MIB), pieces[rng.usize(..all)], snapshot, seed);
    }
}

#[test]
fn more_than_there_is_room_for_is_not_preallocated() {
    let image = Image::new(48 * MIB, LogOptions::default());
    let (_log, fs) = image.mount();
    let ino = file(&fs, "f");
    let before = fs.statfs().free;
    assert!(matches!(fs.fallocate(Caller::ROOT, ino, ALLOCATE, 0, 64 * MIB), Err(Error::NoSpace)));
    assert!(fs.statfs().free + 64 > before, "none of it is allocated");
    fs.fallocate(Caller::ROOT, ino, ALLOCATE, 0, 20 * MIB).unwrap();
    // It is there, and so it is not there for others, nor once more.
    assert!(matches!(fs.fallocate(Caller::ROOT, file(&fs, "g"), ALLOCATE, 0, 20 * MIB), Err(Error::NoSpace)));
    fs.fallocate(Caller::ROOT, ino, Fallocate::PunchHole, 0, 20 * MIB).unwrap();
    fs.fallocate(Caller::ROOT, file(&fs, "g"), ALLOCATE, 0, 20 * MIB).unwrap();
    fs.close().unwrap();
    assert!(image.check().0.is_empty());
}

#[test]
fn zeroing_a_range_gives_back_what_was_stored_there() {
    let image = Image::new(48 * MIB, LogOptions::default());
    let (log, fs) = image.mount();
    let ino = file(&fs, "f");
    fs.write(Caller::ROOT, ino, 0, &noise(7, 12 << 20)).unwrap();
    fs.sync().unwrap();
    let (live, free) = (log.stats().live, fs.statfs().free);
    fs.fallocate(Caller::ROOT, ino, Fallocate::Zero { keep_size: false }, 0, 12 * MIB).unwrap();
    fs.sync().unwrap();
    assert!(log.stats().live + 11 * MIB < live);
    let now = fs.statfs().free;
    // And for nodes of the extent tree.
    assert!(now.abs_diff(free) < 12 * MIB / 1024 / 12, "room is kept for it: {free} fragments free, and now {now}");
    let mut data = vec![1; 12 << 20];
    assert_eq!(fs.read(ino, 0, &mut data).unwrap(), data.len());
    assert!(data.iter().all(|b| *b == 0));
    fs.close().unwrap();
    assert_eq!(image.check(), (vec![], 12 * MIB / 4096));
}

/// Bytes that a program can write.
fn available(fs: &Fs) -> u64 {
    let s = fs.statfs();
    s.available * u64::from(s.frag_size)
}

/// A clone begins with what was preallocated when its snapshot was made. No room is kept for that once more, and the file system has what it had.
#[test]
fn a_clone_keeps_no_room_for_what_was_preallocated_elsewhere() {
    let image = Image::new(64 * MIB, LogOptions::default());
    let (log, fs) = image.mount();
    let (kept, other) = (file(&fs, "kept"), file(&fs, "other"));
    fs.fallocate(Caller::ROOT, kept, ALLOCATE, 0, 16 * MIB).unwrap();
    fs.sync().unwrap();
    make_snapshot(&log, &fs);
    let snapshot = log.snapshots()[0].id;
    let branch = log.clone_snapshot(snapshot, "clone").unwrap();
    while available(&fs) > 12 * MIB {
        let size = fs.getattr(other).unwrap().size;
        fs.write(Caller::ROOT, other, size, &noise(size, 64 << 10)).unwrap();
        fs.sync().unwrap();
    }
    let before = available(&fs);
    let clone = Fs::open(Arc::new(log.branch(branch).unwrap()), None, mount_options()).unwrap();
    assert!(available(&fs) + 3 * MIB > before, "{before} bytes were available, and now {}", available(&fs));
    let mut at = 0;
    let refused = loop {
        match clone.write(Caller::ROOT, kept, at, &noise(at, 64 << 10)) {
            Ok(n) => at += n as u64,
            Err(e) => break e,
        }
        assert!(at < 16 * MIB, "there is no room for it");
    };
    assert!(matches!(refused, Error::NoSpace) && at > 4 * MIB, "{refused} after {at} bytes");
    clone.sync().expect("what was accepted has its space");
    clone.fallocate(Caller::ROOT, kept, Fallocate::PunchHole, 8 * MIB, 4 * MIB).unwrap();
    for at in (0..16 * MIB).step_by(64 << 10) {
        fs.write(Caller::ROOT, kept, at, &noise(at, 64 << 10)).unwrap();
    }
    fs.sync().unwrap();
    clone.close().unwrap();
    drop(clone);
    fs.close().unwrap();
    drop((fs, log));
    assert_eq!(image.check(), (vec![], 0));
}

/// What one has written and synced is not reserved for it any more: another has all that is free, and can delete.
#[test]
fn who_has_written_everything_keeps_nothing_from_others() {
    let image = Image::new(64 * MIB, LogOptions::default());
    let (log, fs) = image.mount();
    fill(&fs, file(&fs, "big"));
    fs.setattr(Caller::ROOT, file(&fs, "big"), SetAttr::default().size(Some(20 * MIB))).unwrap();
    fs.sync().unwrap();
    make_snapshot(&log, &fs);
    let branch = log.clone_snapshot(log.snapshots()[0].id, "clone").unwrap();
    let clone = Fs::open(Arc::new(log.branch(branch).unwrap()), None, mount_options()).unwrap();
    for (writer, other) in [(&clone, &fs), (&fs, &clone)] {
        let ino = file(writer, "new");
        writer.write(Caller::ROOT, ino, 0, &noise(3, 6 << 20)).unwrap();
        writer.sync().unwrap();
        let (one, two) = (available(writer), available(other));
        assert!(one.abs_diff(two) < MIB, "{one} and {two} bytes are available");
    }
    fill(&fs, file(&fs, "new"));
    fs.sync().unwrap();
    fs.unlink(ROOT_INO, b"big").unwrap();
    fs.sync().unwrap();
    clone.unlink(ROOT_INO, b"new").unwrap();
    clone.close().unwrap();
    fs.close().unwrap();
}

/// A file system and a clone of it write at the same time until there is no space for either: what was accepted is there.
#[test]
fn what_two_accept_at_the_same_time_has_its_space() {
    for seed in 0..4 {
        let image = Image::new(48 * MIB, LogOptions::default());
        let (log, fs) = image.mount();
        fs.write(Caller::ROOT, file(&fs, "old"), 0, &noise(seed, 8 << 20)).unwrap();
        fs.sync().unwrap();
        make_snapshot(&log, &fs);
        let branch = log.clone_snapshot(log.snapshots()[0].id, "clone").unwrap();
        let open = |log: &LogDisk| Fs::open(Arc::new(log.branch(branch).unwrap()), None, mount_options()).unwrap();
        let clone = open(&log);
        let [of_fs, of_clone] = [&fs, &clone].map(|fs| (0..30).map(|n| file(fs, &n.to_string())).collect::<Vec<Ino>>());
        let work = |fs: &Fs, files: &[Ino], seed: u64| {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut accepted, mut full) = (Vec::new(), 0);
            while full < 40 {
                let ino = files[random.usize(0..files.len())];
                let (at, len) = (random.u64(0..2 * MIB), random.usize(1..200 << 10));
                let data = noise(at ^ seed, len);
                match fs.write(Caller::ROOT, ino, at, &data) {
                    Ok(n) => accepted.push((ino, at as usize, data[..n].to_vec())),
                    Err(Error::NoSpace) => full += 1,
                    Err(e) => panic!("{e}"),
                }
                if random.u32(0..20) == 0 {
                    fs.sync().expect("what was accepted has its space");
                }
            }
            fs.sync().expect("what was accepted has its space");
            accepted
        };
        let done = std::thread::scope(|scope| {
            let one = scope.spawn(|| work(&fs, &of_fs, seed));
            let two = scope.spawn(|| work(&clone, &of_clone, seed + 100));
            [one.join().unwrap(), two.join().unwrap()]
        });
        let bytes: usize = done.iter().flatten().map(|(_, _, data)| data.len()).sum();
        assert!(bytes > 16 << 20, "{bytes} bytes fill the disk");
        clone.close().unwrap();
        fs.close().unwrap();
        drop((clone, fs, log));
        let (log, fs) = image.mount();
        let clone = open(&log);
        for (fs, accepted) in [&fs, &clone].into_iter().zip(done) {
            let mut expected: std::collections::BTreeMap<Ino, Vec<u8>> = Default::default();
            for (ino, at, data) in accepted {
                let (bytes, end) = (expected.entry(ino).or_default(), at + data.len());
                bytes.resize(bytes.len().max(end), 0);
                bytes[at..end].copy_from_slice(&data);
            }
            for (ino, bytes) in expected {
                let mut found = vec![0; bytes.len()];
                assert_eq!(fs.read(ino, 0, &mut found).unwrap(), found.len());
                assert!(found == bytes, "seed {seed}, inode {ino}");
            }
        }
        clone.close().unwrap();
        fs.close().unwrap();
        drop((clone, fs, log));
        assert!(image.check().0.is_empty());
    }
}

/// Zeroing takes new space where a snapshot has the old. If there is none, everything stays as it is.
#[test]
fn a_range_that_cannot_be_zeroed_stays_as_it_is() {
    let image = Image::new(64 * MIB, LogOptions::default());
    let (log, fs) = image.mount();
    let ino = file(&fs, "f");
    fs.write(Caller::ROOT, ino, 0, &noise(7, 16 << 20)).unwrap();
    fs.sync().unwrap();
    make_snapshot(&log, &fs);
    fill(&fs, file(&fs, "other"));
    let zeroed = fs.fallocate(Caller::ROOT, ino, Fallocate::Zero { keep_size: true }, 0, 12 * MIB);
    assert!(matches!(zeroed, Err(Error::NoSpace)), "{zeroed:?}");
    let mut data = vec![0; 16 << 20];
    assert_eq!(fs.read(ino, 0, &mut data).unwrap(), data.len());
    assert!(data == noise(7, 16 << 20));
    // Giving back needs nothing.
    fs.fallocate(Caller::ROOT, ino, Fallocate::PunchHole, MIB, MIB).unwrap();
    fs.close().unwrap();
    assert!(image.check().0.is_empty());
}

/// No quota refuses what the range has already, whether that has been written back or not.
#[test]
fn a_range_is_zeroed_within_a_quota_that_it_fills() {
    let image = Image::new(48 * MIB, LogOptions::default());
    let (_log, fs) = image.mount();
    let user = Caller { uid: 1000, gid: 1000 };
    let limits = QuotaLimits { soft_bytes: 0, hard_bytes: 8 * MIB, soft_inodes: 0, hard_inodes: 0 };
    fs.set_quota(QuotaKind::User, 1000, limits).unwrap();
    let used = || fs.quota(QuotaKind::User, 1000).unwrap().bytes;
    let ino = fs.create(user, ROOT_INO, b"f", 0o600).unwrap().ino;
    fs.write(user, ino, 0, &noise(7, 7 << 20)).unwrap();
    let zero = Fallocate::Zero { keep_size: false };
    fs.fallocate(user, ino, zero, 4 * MIB, 3 * MIB).unwrap();
    fs.sync().unwrap();
    let before = used();
    fs.fallocate(user, ino, zero, MIB, 6 * MIB).unwrap();
    fs.sync().unwrap();
    assert!(used().abs_diff(before) <= MIB / 16, "{before} bytes, and {}", used());
    let refused = fs.fallocate(user, ino, zero, 0, 9 * MIB);
    assert!(matches!(refused, Err(Error::Quota)), "{refused:?}");
    let mut data = vec![1; 7 << 20];
    assert_eq!(fs.read(ino, 0, &mut data).unwrap(), data.len());
    assert!(data[..1 << 20] == noise(7, 7 << 20)[..1 << 20] && data[1 << 20..].iter().all(|b| *b == 0));
    fs.close().unwrap();
    assert!(image.check().0.is_empty());
}

/// What is in the inode, or will be, is not lost when space is allocated behind it. (Campaign `--only log`, seed 20261132054.)
#[test]
fn zeroing_behind_the_contents_of_a_tiny_file_leaves_them() {
    let image = Image::new(48 * MIB, LogOptions::default());
    for synced in [false, true] {
        for keep_size in [false, true] {
            let (_log, fs) = image.mount();
            let name = format!("{synced}{keep_size}");
            let ino = file(&fs, &name);
            fs.write(Caller::ROOT, ino, 0, b"x").unwrap();
            if synced {
                fs.sync().unwrap();
            }
            fs.fallocate(Caller::ROOT, ino, Fallocate::Zero { keep_size }, 4, 25_814).unwrap();
            fs.close().unwrap();
            drop((fs, _log));
            let (_log, fs) = image.mount();
            let mut data = [7; 10];
            let n = fs.read(file(&fs, &name), 0, &mut data).unwrap();
            assert_eq!(&data[..n], if keep_size { &b"x"[..] } else { &b"x\0\0\0\0\0\0\0\0\0"[..] }, "{name}");
            fs.close().unwrap();
        }
    }
    assert!(image.check().0.is_empty());
}

/// Where what is allocated shares a block of the image with something else, before it or behind it, a write is accepted as well.
#[test]
fn ends_that_share_a_block_can_be_written_when_the_disk_is_full() {
    let image = Image::new(48 * MIB, LogOptions::default());
    let (_log, fs) = image.mount();
    let names: Vec<String> = (0..40).map(|n| format!("f{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        fs.write(Caller::ROOT, file(&fs, name), 0, &noise(n as u64, 1000)).unwrap();
    }
    fs.sync().unwrap();
    for name in &names {
        fs.fallocate(Caller::ROOT, file(&fs, name), ALLOCATE, 0, 64 << 10).unwrap();
    }
    let cut = file(&fs, "cut");
    fs.fallocate(Caller::ROOT, cut, ALLOCATE, 0, MIB).unwrap();
    fs.setattr(Caller::ROOT, cut, SetAttr::default().size(Some(500_000))).unwrap();
    fill(&fs, file(&fs, "other"));
    fs.sync().unwrap();
    for (name, end) in names.iter().map(|name| (name.as_str(), 64 << 10)).chain([("cut", 500_000)]) {
        for at in (0..u64::div_ceil(end, 1024)).rev().map(|n| n * 1024) {
            let data = noise(at, 1024.min((end - at) as usize));
            assert_eq!(fs.write(Caller::ROOT, file(&fs, name), at, &data).unwrap(), data.len(), "{name} at {at}");
        }
    }
    fs.sync().unwrap();
    fs.close().unwrap();
    assert_eq!(image.check(), (vec![], 0));
}

/// Whatever is done to files, the counter is what a check counts; and `fsck` puts it right.
#[test]
fn what_was_never_written_is_counted_through_everything_that_changes_it() {
    for seed in 0..24 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let image = Image::new(64 * MIB, LogOptions::default());
        let mut expected = 0;
        for round in 0..3 {
            let (_log, fs) = image.mount();
            for _ in 0..60 {
                let ino = file(&fs, ["a", "b", "c"][rng.usize(..3)]);
                let block = 4096;
                let (at, len) = (rng.u64(..600_000), rng.u64(1..200_000));
                let (whole, blocks) = (at / block * block, len.next_multiple_of(block));
                let outcome = match rng.u32(..12) {
                    0..3 => fs.fallocate(Caller::ROOT, ino, ALLOCATE, at, len),
                    3 => fs.fallocate(Caller::ROOT, ino, Fallocate::Allocate { keep_size: true }, at, len),
                    4 => fs.fallocate(Caller::ROOT, ino, Fallocate::PunchHole, at, len),
                    5 => fs.fallocate(Caller::ROOT, ino, Fallocate::Zero { keep_size: rng.bool() }, at, len),
                    6 => fs.fallocate(Caller::ROOT, ino, Fallocate::Collapse, whole, blocks),
                    7 => fs.fallocate(Caller::ROOT, ino, Fallocate::Insert, whole, blocks),
                    8 => fs.setattr(Caller::ROOT, ino, SetAttr::default().size(Some(at))).map(drop),
                    9 => {
                        fs.forget(ino, 1);
                        fs.unlink(ROOT_INO, ["a", "b", "c"][rng.usize(..3)].as_bytes())
                    }
                    _ => fs.write(Caller::ROOT, ino, at, &noise(at, (len / 8 + 1) as usize)).map(drop),
                };
                assert!(
                    matches!(outcome, Ok(()) | Err(Error::Invalid(_) | Error::NotFound | Error::Stale)),
                    "seed {seed}: {outcome:?}"
                );
                if rng.u32(..8) == 0 {
                    fs.sync().unwrap();
                }
            }
            fs.close().unwrap();
            drop((fs, _log));
            let (problems, units) = image.check();
            assert!(problems.is_empty(), "seed {seed}, round {round}: {problems:?}");
            expected = units;
        }
        let log = image.log();
        let (at, mut block) = counters_block(&*log);
        put_u64(&mut block, COUNT_UNWRITTEN, expected + 5);
        cffs::format::seal(&mut block, 0);
        log.write_at(IoKind::Meta, at, &block).unwrap();
        log.finish().unwrap();
        drop(log);
        let found = image.check().0;
        assert!(found.len() == 1 && found[0].starts_with("counter-unwritten"), "seed {seed}: {found:?}");
        let log = image.log();
        repair(log.clone(), None, &RepairOptions::default(), &mut |_| true, &|_, _, _| {}).unwrap();
        log.finish().unwrap();
        drop(log);
        assert_eq!(image.check(), (vec![], expected), "seed {seed}");
    }
}

#[test]
fn what_was_deleted_counts_as_free_at_once() {
    let image = Image::new(48 * MIB, LogOptions::default());
    let (_log, fs) = image.mount();
    let empty = fs.statfs().free;
    let ino = file(&fs, "f");
    fs.write(Caller::ROOT, ino, 0, &noise(1, 16 << 20)).unwrap();
    fs.sync().unwrap();
    fs.forget(ino, 1);
    let full = fs.statfs().free;
    assert!(full + 16_000 < empty);
    fs.unlink(ROOT_INO, b"f").unwrap();
    let after = fs.statfs().free;
    assert!(after > empty - 600, "{empty} fragments were free, and now {after}");
    fs.close().unwrap();
}
