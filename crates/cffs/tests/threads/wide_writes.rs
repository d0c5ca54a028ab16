//! Files with long writes, of which several batches are in flight: on several devices as one, and on one.

use crate::common::large::{KIB, MIB, ROOT, bytes, create};
use crate::common::wide::{Event, Wide};
use cffs::check::{CheckOptions, check};
use cffs::device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation};
use cffs::{
    DirectWrite, Error, Fallocate, Fs, Ino, MkfsOptions, MountOptions, ROOT_INO, Regroup, RegroupOptions, SetAttr,
    mkfs, path,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SIZE: u64 = 96 << 20;
/// A batch is 1 to 2 MiB.
const CACHE: usize = 16 * MIB;
const CALL: usize = 256 * KIB;

fn options() -> MountOptions {
    MountOptions::default().cache_bytes(CACHE).direct_write(DirectWrite::Off)
}

fn mount(dev: &Arc<Wide>) -> Arc<Fs> {
    Fs::open(dev.clone() as Arc<dyn Device>, None, options()).unwrap()
}

fn made(dev: Arc<Wide>, data_sums: bool) -> Arc<Wide> {
    mkfs(&*dev, None, &MkfsOptions::default().group_size(64 << 10).data_sums(data_sums)).unwrap();
    dev
}

fn assert_clean(dev: Arc<dyn Device>) {
    let report = check(dev, None, &CheckOptions::default().data(true), &|_, _, _| {}).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}

/// Writes in calls, as a program does that copies a large file.
fn write(fs: &Fs, ino: Ino, at: usize, content: &[u8]) {
    for (n, piece) in content.chunks(CALL).enumerate() {
        assert_eq!(fs.write(ROOT, ino, (at + n * CALL) as u64, piece).unwrap(), piece.len());
    }
}

fn assert_contents(fs: &Fs, name: &str, all: &[u8], what: &str) {
    let found = path::read_file(fs, name.as_bytes()).unwrap();
    assert_eq!(found.len(), all.len(), "{what}");
    let differs = found.iter().zip(all).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}");
}

#[test]
fn several_batches_of_a_file_are_in_flight() {
    for (width, data_sums) in [(2, false), (2, true), (1, false), (1, true)] {
        let dev = made(Wide::of(width, Arc::new(MemoryDevice::new(SIZE))), data_sums);
        let (old, new) = (bytes(1, 24 * MIB), bytes(2, 24 * MIB));
        for content in [&old, &new] {
            let fs = mount(&dev);
            let ino = fs.lookup(ROOT_INO, b"large").map_or_else(|_| create(&fs, "large"), |found| found.ino);
            dev.gather(3);
            write(&fs, ino, 0, content);
            assert!(dev.most_in_flight() >= 3, "{} batches", dev.most_in_flight());
            fs.fsync(ino, false).unwrap();
            fs.drop_caches();
            assert_contents(&fs, "/large", content, "after fsync");
            let pieces = fs.pieces(ino).unwrap().len();
            assert!(pieces <= 3, "{pieces} pieces, though all came in order");
            fs.close().unwrap();
            assert_clean(dev.clone());
            assert_contents(&mount(&dev), "/large", content, "after a mount");
        }
    }
}

/// The program waits for nothing, and the next commit is far: so this is written because the device is idle.
#[test]
fn what_is_left_when_a_program_stops_is_written_when_the_batches_have_ended() {
    let dev = made(Wide::of(1, Arc::new(MemoryDevice::new(SIZE))), false);
    let fs =
        Fs::open(dev.clone() as Arc<dyn Device>, None, options().commit_interval(Duration::from_secs(3600))).unwrap();
    let content = bytes(4, 5 * MIB + 300 * KIB);
    let ino = create(&fs, "large");
    // None of the four ends before the last byte was taken.
    dev.gather(5);
    write(&fs, ino, 0, &content);
    dev.gather(0);
    let began = Instant::now();
    while fs.stats().cache.dirty_data_bytes > 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", fs.stats().cache);
        std::thread::sleep(Duration::from_millis(5));
    }
    fs.close().unwrap();
    assert_clean(dev.clone());
    assert_contents(&mount(&dev), "/large", &content, "after a mount");
}

/// Whoever closes does not wait for a batch that nobody writes, whenever a program wants to begin one.
#[test]
fn closing_beside_a_program_that_writes_ends() {
    for n in 0..20 {
        let dev = made(Wide::of(1, Arc::new(MemoryDevice::new(SIZE))), n % 2 == 0);
        let fs = mount(&dev);
        let ino = create(&fs, "large");
        let content = bytes(n, 8 * MIB);
        std::thread::scope(|s| {
            s.spawn(|| {
                for (n, piece) in content.chunks(CALL).enumerate() {
                    // After the close it fails.
                    if fs.write(ROOT, ino, (n * CALL) as u64, piece).is_err() {
                        break;
                    }
                }
            });
            std::thread::sleep(Duration::from_micros(200 * n));
            let _ = fs.close();
        });
        drop(fs);
        let fs = mount(&dev);
        let found = path::read_file(&fs, b"/large").unwrap_or_default();
        assert_eq!(found[..], content[..found.len()]);
        fs.close().unwrap();
        assert_clean(dev.clone());
    }
}

/// Calls of any length: the last page of what has come so far is a part of one.
#[test]
fn parts_of_blocks_wait_for_the_rest() {
    let dev = made(Wide::memory(SIZE), false);
    let content = bytes(3, 20 * MIB + 777);
    let fs = mount(&dev);
    let ino = create(&fs, "large");
    dev.gather(2);
    for (n, piece) in content.chunks(300_001).enumerate() {
        assert_eq!(fs.write(ROOT, ino, n as u64 * 300_001, piece).unwrap(), piece.len());
    }
    assert!(dev.most_in_flight() >= 2);
    fs.close().unwrap();
    assert_clean(dev.clone());
    assert_contents(&mount(&dev), "/large", &content, "after a mount");
}

/// Everything that changes a file, by one thread, while batches of it are in flight; the file has what a copy in memory has.
#[test]
fn everything_else_goes_on_beside_it() {
    for seed in 0..12_u64 {
        let dev = made(Wide::memory(SIZE), seed % 3 == 0);
        let fs = mount(&dev);
        let stop = AtomicBool::new(false);
        let mut all: Vec<u8> = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let _ = fs.regroup(&RegroupOptions::default(), &Regroup::new());
                    fs.sync().unwrap();
                }
            });
            let mut rng = fastrand::Rng::with_seed(seed);
            let ino = create(&fs, "large");
            for step in 0..150 {
                let at = if rng.bool() { all.len() } else { rng.usize(..all.len().max(1)) & !4095 };
                let len = rng.usize(1..4 * MIB);
                let end = (at + len).min(28 * MIB).max(at);
                match rng.u8(..16) {
                    0..10 => {
                        let content = bytes(seed * 1000 + step, end - at);
                        write(&fs, ino, at, &content);
                        all.resize(all.len().max(end), 0);
                        all[at..end].copy_from_slice(&content);
                    }
                    10 => {
                        all.truncate(at);
                        fs.setattr(ROOT, ino, SetAttr::default().size(Some(at as u64))).unwrap();
                    }
                    11 if end > at => {
                        fs.fallocate(ROOT, ino, Fallocate::PunchHole, at as u64, (end - at) as u64).unwrap();
                        let end = end.min(all.len());
                        all[at.min(end)..end].fill(0);
                    }
                    12 if end > at => {
                        let how = Fallocate::Allocate { keep_size: false };
                        fs.fallocate(ROOT, ino, how, at as u64, (end - at) as u64).unwrap();
                        all.resize(all.len().max(end), 0);
                    }
                    13 => fs.fsync(ino, false).unwrap(),
                    14 => {
                        fs.forget(ino, 1);
                        fs.drop_caches();
                        assert_eq!(fs.lookup(ROOT_INO, b"large").unwrap().ino, ino);
                    }
                    _ => {
                        let mut found = vec![1; len];
                        let n = fs.read(ino, at as u64, &mut found).unwrap();
                        assert!(found[..n] == all[at..(at + len).min(all.len())], "seed {seed}, step {step}, at {at}");
                    }
                }
                assert_eq!(fs.getattr(ino).unwrap().size, all.len() as u64, "seed {seed}, step {step}");
            }
            stop.store(true, Ordering::SeqCst);
        });
        assert_contents(&fs, "/large", &all, "before the unmount");
        fs.close().unwrap();
        assert_clean(dev.clone());
        assert_contents(&mount(&dev), "/large", &all, &format!("seed {seed}, after a mount"));
    }
}

/// The device refuses a batch: nothing behind it counts, whoever asks is told, and nothing is lost.
#[test]
fn a_batch_that_fails_is_told_and_written_again() {
    for nth in 1..5 {
        let failing = Arc::new(FailingDevice::new(Arc::new(MemoryDevice::new(SIZE))));
        let dev = made(Wide::new(failing.clone()), false);
        let fs = mount(&dev);
        let ino = create(&fs, "large");
        let content = bytes(nth, 5 * MIB);
        dev.gather(2);
        failing.set(Operation::Write, Fault::from_nth(nth).of_kind(IoKind::Data));
        write(&fs, ino, 0, &content);
        assert!(matches!(fs.fsync(ino, false), Err(Error::Io(_))), "from request {nth} on");
        let mut found = vec![0; content.len()];
        assert_eq!(fs.read(ino, 0, &mut found).unwrap(), content.len());
        assert!(found == content, "it is still in memory");
        failing.clear();
        let _ = fs.fsync(ino, false); // of a writeback that was under way
        fs.fsync(ino, false).unwrap();
        fs.close().unwrap();
        assert_clean(dev.clone());
        assert_contents(&mount(&dev), "/large", &content, "after a mount");
    }
}

/// Files until nothing fits any more, on a volume whose free space has become pieces: what was taken is there.
#[test]
fn a_full_volume_has_all_that_it_took() {
    let dev = made(Wide::memory(64 << 20), false);
    let fs = mount(&dev);
    let content = bytes(5, 64 * MIB);
    for round in 0..4 {
        let mut files = Vec::new();
        let full = (0..200).any(|n| {
            let name = format!("r{round}n{n}");
            let Ok(ino) = fs.create(ROOT, ROOT_INO, name.as_bytes(), 0o644).map(|a| a.ino) else { return true };
            // Every second one is small.
            let len = if n % 2 == 0 { 9 * MIB } else { 70 * KIB };
            let mut at = 0;
            let refused = loop {
                match fs.write(ROOT, ino, at as u64, &content[at..(at + CALL).min(len)]) {
                    Ok(taken) => at += taken,
                    Err(Error::NoSpace) => break true,
                    Err(e) => panic!("{e}"),
                }
                if at == len {
                    break false;
                }
            };
            fs.forget(ino, 1);
            files.push((name, at));
            refused
        });
        assert!(full, "round {round}");
        fs.sync().unwrap();
        fs.drop_caches();
        for (name, len) in &files {
            assert_contents(&fs, &format!("/{name}"), &content[..*len], &format!("round {round}, {name}"));
        }
        let used: u64 = files.iter().map(|(_, len)| *len as u64).sum();
        assert!(used > 48 << 20, "round {round}: only {used} bytes were taken");
        // Overwriting takes nothing more.
        let (name, len) = &files[0];
        let ino = fs.lookup(ROOT_INO, name.as_bytes()).unwrap().ino;
        write(&fs, ino, 0, &content[..*len]);
        fs.fsync(ino, false).unwrap();
        fs.forget(ino, 1);
        for (n, (name, _)) in files.iter().enumerate() {
            // What stays divides what is free.
            if round == 3 || n % 2 == 0 || n > 8 {
                fs.unlink(ROOT_INO, name.as_bytes()).unwrap();
            }
        }
    }
    fs.close().unwrap();
    assert_clean(dev.clone());
}

/// What a crash leaves: all that was durable, and of what came later any sectors.
fn after_crash(base: &[u8], events: &[Event], rng: &mut fastrand::Rng) -> Arc<MemoryDevice> {
    let mut image = base.to_vec();
    let durable =
        events.iter().rev().find_map(|e| if let Event::Flushed(n) = e { Some(*n) } else { None }).unwrap_or(0);
    for (n, event) in events.iter().enumerate() {
        let Event::Write(offset, content) = event else { continue };
        // A write may be lost as a whole, or in part.
        let (all, none) = (n < durable || rng.u8(..3) == 0, rng.u8(..3) == 0);
        for (i, sector) in content.chunks(512).enumerate() {
            if all || !none && rng.bool() {
                let at = *offset as usize + i * 512;
                image[at..at + sector.len()].copy_from_slice(sector);
            }
        }
    }
    let dev = Arc::new(MemoryDevice::new(image.len() as u64));
    dev.write_at(IoKind::Data, 0, &image).unwrap();
    dev
}

/// A crash at any moment: what fsync promised is there, and nothing is anywhere that the file never had. Free space is full of something else before.
#[test]
fn a_crash_leaves_of_a_file_what_it_had() {
    const STALE: u8 = 0xd5;
    let mut between = 0;
    for seed in 0..6_u64 {
        let memory = Arc::new(MemoryDevice::new(48 << 20));
        memory.write_at(IoKind::Data, 0, &vec![STALE; 48 << 20]).unwrap();
        let dev = made(Wide::new(memory.clone()), seed % 3 == 2);
        let mut base = vec![0; 48 << 20];
        memory.read_at(IoKind::Data, 0, &mut base).unwrap();
        dev.record();
        let fs = mount(&dev);
        let mut rng = fastrand::Rng::with_seed(seed);
        let ino = create(&fs, "large");
        // Block n has the bytes of its number; what is written over it has others, none of them stale.
        let content: Vec<u8> = (0..20 * MIB).map(|i| (i / 4096 % 200 + 1) as u8).collect();
        let (mut at, mut promised) = (0, Vec::new());
        while at < content.len() {
            let len = (CALL + rng.usize(..CALL)).min(content.len() - at);
            write(&fs, ino, at, &content[at..at + len]);
            at += len;
            if rng.u8(..12) == 0 {
                // Not of the file: it commits what is written by then.
                fs.fsync(create(&fs, &format!("small{at}")), false).unwrap();
            }
            if rng.u8(..24) == 0 {
                fs.fsync(ino, false).unwrap();
                promised.push((dev.events(), at));
            }
        }
        fs.fsync(ino, false).unwrap();
        promised.push((dev.events(), at));
        drop(fs);
        let events = dev.recorded();
        for point in 0..25 {
            let n = if point == 0 { events.len() } else { rng.usize(..=events.len()) };
            let image = after_crash(&base, &events[..n], &mut rng);
            let fs = Fs::open(image.clone(), None, options().background(false)).unwrap();
            let found = path::read_file(&fs, b"/large").unwrap_or_default();
            let least = promised.iter().filter(|(by, _)| *by <= n).map(|(_, at)| *at).max().unwrap_or(0);
            let what = format!("seed {seed}, {n} of {} events, {} bytes, {least} promised", events.len(), found.len());
            assert!(found.len() >= least, "{what}");
            between += usize::from(found.len() > least && found.len() < content.len());
            let differs = found.iter().zip(&content).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{what}");
            fs.close().unwrap();
            drop(fs);
            assert_clean(image);
        }
    }
    assert!(between > 10, "{between} crashes had a part of what was not promised");
}
