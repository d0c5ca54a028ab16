//! Images whose checksums are right and whose contents are not: nothing panics, hangs or takes memory without bound.

use crate::batch::{Entry, NewerVersion, SUMMARY_BYTES, Summary};
use crate::codec::{WITHOUT_CHECKSUMS, crc32c};
use crate::disk::LogDisk;
use crate::extent::BLOCK_BYTES;
use crate::options::{Compression, LogOptions};
use crate::rebuild::{rebuild, recover_image};
use crate::store::{ImageOptions, ImageStore};
use cffs_device::{Device, IoKind, MemoryDevice};
use std::io::ErrorKind;
use std::sync::Arc;

const SLOT: u64 = 64 << 10;
const SLOTS: u64 = 48;
const BLOCK: u64 = BLOCK_BYTES as u64;

fn options() -> LogOptions {
    LogOptions { cache_nodes: 32, compression: Compression::Lz4, ..LogOptions::default() }
}

/// An image with snapshots, a clone, forwards, dead lists, and batches behind the checkpoint.
pub(crate) fn image(rng: &mut fastrand::Rng) -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(SLOTS * SLOT + (1 << 20)));
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [3; 16], slot_bytes: SLOT }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 30, &options()).unwrap();
    let mut ids = Vec::new();
    let steps = rng.u32(20..120);
    for i in 0..steps {
        let at = rng.u64(0..150) * BLOCK;
        let data: Vec<u8> = (0..rng.usize(1..12) * BLOCK_BYTES)
            .map(|j| if i % 2 == 0 { rng.u8(..) } else { (j / 700) as u8 })
            .collect();
        let _ = disk.write_at(IoKind::Data, at, &data);
        match rng.u32(0..12) {
            0..3 => ids.push(disk.snapshot(0, "s").unwrap()),
            3 if !ids.is_empty() => {
                let _ = disk.delete_snapshot(ids.remove(0));
                let _ = disk.delete_step(5);
            }
            4 => drop(disk.clean_step(1 << 18)),
            5 if i < steps / 2 => disk.checkpoint().unwrap(),
            6 => disk.flush().unwrap(),
            7 if !ids.is_empty() => drop(disk.clone_snapshot(ids[0], "c")),
            _ => {}
        }
    }
    disk.flush().unwrap();
    drop(disk);
    device.duplicate()
}

/// The places of structures: whatever begins with one of the magics.
pub(crate) fn structures(device: &MemoryDevice) -> Vec<u64> {
    let mut found = vec![0, 64 << 10];
    let mut sector = [0; 512];
    for at in (0..device.len()).step_by(512) {
        device.read_at(IoKind::Data, at, &mut sector).unwrap();
        if [*b"CLB1", *b"CLN1", *b"CLR1"].iter().any(|m| sector.starts_with(m)) {
            found.push(at);
        }
    }
    found
}

/// Everything that can be done with a disk.
fn use_it(device: MemoryDevice) {
    let copy = Arc::new(device.duplicate());
    let rebuilt = recover_image(copy.clone()).and_then(|store| rebuild(Arc::new(store), &options()));
    if rebuilt.is_ok()
        && let Ok(disk) = ImageStore::open(copy)
            .and_then(|store| LogDisk::open(Arc::new(store), &LogOptions { unmarked: true, ..options() }))
    {
        let _ = disk.mark_lost(&[(0, 1 << 20)]);
        let _ = disk.check(true);
        let _ = disk.clean_step(1 << 20);
        let _ = disk.checkpoint();
    }
    let Ok(store) = ImageStore::open(Arc::new(device)) else { return };
    let store = Arc::new(store);
    if let Ok(disk) = LogDisk::open(store.clone(), &LogOptions { read_only: true, ..options() }) {
        let _ = disk.check(true);
    }
    let Ok(disk) = LogDisk::open(store, &options()) else { return };
    let mut data = vec![0; 8 * BLOCK_BYTES];
    for at in (0..160).step_by(8) {
        let _ = disk.read_at(IoKind::Data, at * BLOCK, &mut data);
    }
    for s in disk.snapshots() {
        let _ = disk.diff(s.id, None);
        if let Ok(device) = disk.open_snapshot(s.id) {
            let _ = device.read_at(IoKind::Data, 0, &mut data);
        }
    }
    let _ = disk.check(true);
    let _ = disk.write_at(IoKind::Data, 3 * BLOCK, &[1; 3 * BLOCK_BYTES]);
    let _ = disk.flush();
    let _ = disk.clean_step(1 << 20);
    let _ = disk.discard(0, 20 * BLOCK);
    for b in disk.branches() {
        let _ = disk.delete_branch(b.branch);
    }
    for s in disk.snapshots() {
        let _ = disk.delete_snapshot(s.id);
    }
    for _ in 0..200 {
        if !matches!(disk.delete_step(50), Ok(true)) {
            break;
        }
    }
    let _ = disk.checkpoint();
    for _ in 0..4 {
        let _ = disk.clean_step(1 << 20);
    }
    let _ = disk.checkpoint();
    let _ = disk.check(false);
}

/// Seeds to run: a variable like `CFFS_LOG_HOSTILE=from..to` for a campaign.
pub(crate) fn seeds(variable: &str, usually: u64) -> std::ops::Range<u64> {
    let asked = std::env::var(variable).ok();
    let asked = asked.as_deref().and_then(|s| s.split_once(".."));
    match asked.map(|(a, b)| (a.parse(), b.parse())) {
        Some((Ok(a), Ok(b))) => a..b,
        _ => 0..usually,
    }
}

#[test]
fn images_with_good_checksums_and_bad_contents_do_no_harm() {
    WITHOUT_CHECKSUMS.set(true);
    for seed in seeds("CFFS_LOG_HOSTILE", 60) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let good = image(&mut rng);
        let places = structures(&good);
        for case in 0..30 {
            let device = good.duplicate();
            if case % 3 == 0 {
                // Without a map it is rebuilt.
                let mut sector = [0; 512];
                for &at in &places {
                    device.read_at(IoKind::Data, at, &mut sector).unwrap();
                    if at <= 64 << 10 || sector.starts_with(b"CLN1") {
                        device.write_at(IoKind::Data, at, &[0; 512]).unwrap();
                    }
                }
            }
            for _ in 0..rng.usize(1..5) {
                let at = *rng.choice(&places).unwrap();
                let mut bytes = [0; 4096];
                let n = (device.len() - at).min(4096) as usize;
                device.read_at(IoKind::Data, at, &mut bytes[..n]).unwrap();
                for _ in 0..rng.usize(1..4) {
                    let i = if rng.bool() { rng.usize(0..n.min(300)) } else { rng.usize(0..n) };
                    bytes[i] = match rng.u32(0..4) {
                        0 => 0xff,
                        1 => 0,
                        2 => bytes[i].wrapping_add(1),
                        _ => rng.u8(..),
                    };
                }
                device.write_at(IoKind::Data, at, &bytes[..n]).unwrap();
            }
            let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| use_it(device)));
            if let Err(e) = r {
                eprintln!("seed {seed}, case {case}");
                std::panic::resume_unwind(e);
            }
        }
    }
    WITHOUT_CHECKSUMS.set(false);
}

/// The last batch that a program has written gets an entry of a kind that nobody knows, and perhaps an earlier epoch. Its checksum is right.
fn with_an_unknown_entry(device: &MemoryDevice, epochs_earlier: u64) {
    let summary = |at: u64| {
        let mut bytes = vec![0; 4096];
        device.read_at(IoKind::Data, at, &mut bytes).unwrap();
        bytes.truncate(Summary::length_of(&bytes).ok()?);
        let s = Summary::decode(&bytes).ok()?;
        matches!(s.entries[..], [Entry::Write { .. }, ..]).then(|| (s.order(), at, bytes))
    };
    let (_, at, mut bytes) = structures(device).into_iter().filter_map(summary).max().unwrap();
    bytes[SUMMARY_BYTES] = 99;
    let epoch = u64::from_le_bytes(bytes[32..40].try_into().unwrap()) - epochs_earlier;
    bytes[32..40].copy_from_slice(&epoch.to_le_bytes());
    bytes[4..8].fill(0);
    let crc = crc32c(&bytes);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    let mut sectors = vec![0; bytes.len().next_multiple_of(512)];
    device.read_at(IoKind::Data, at, &mut sectors).unwrap();
    sectors[..bytes.len()].copy_from_slice(&bytes);
    device.write_at(IoKind::Data, at, &sectors).unwrap();
}

/// What a newer version has flushed is not taken for the end of the log, nor thrown away by who mends it.
#[test]
fn a_log_with_what_only_a_newer_version_knows_is_refused_and_stays() {
    let device = Arc::new(MemoryDevice::new(SLOTS * SLOT + (1 << 20)));
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [3; 16], slot_bytes: SLOT }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 30, &options()).unwrap();
    for block in 0..3 {
        disk.write_at(IoKind::Data, block * BLOCK, &[7; BLOCK_BYTES]).unwrap();
        disk.flush().unwrap();
    }
    drop(disk);
    let [old, closed] = [(); 2].map(|()| Arc::new(device.duplicate()));
    with_an_unknown_entry(&device, 0);
    let newer = Arc::new(device.duplicate());
    let open = |device: &Arc<MemoryDevice>, options: LogOptions| {
        LogDisk::open(Arc::new(ImageStore::open(device.clone()).unwrap()), &options).map(drop)
    };
    for options in [options(), LogOptions { lose_end: true, ..options() }, LogOptions { read_only: true, ..options() }]
    {
        let e = open(&newer, options).unwrap_err();
        assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("kind 99: a newer version"), "{e}");
    }
    let recovered = Arc::new(recover_image(newer.clone()).unwrap());
    assert_eq!(rebuild(recovered, &options()).unwrap_err().kind(), ErrorKind::Unsupported);
    let bytes = |device: &MemoryDevice| {
        let mut all = vec![0; device.len() as usize];
        device.read_at(IoKind::Data, 0, &mut all).unwrap();
        all
    };
    assert!(bytes(&newer) == bytes(&device), "something was written");
    // What was there before is no part of the log.
    with_an_unknown_entry(&old, 1);
    let again = Arc::new(old.duplicate());
    open(&old, options()).unwrap();
    rebuild(Arc::new(recover_image(again).unwrap()), &options()).unwrap();
    // Before a checkpoint it is not in the way, and not damaged: nobody moves what else is there.
    let disk = LogDisk::open(Arc::new(ImageStore::open(closed.clone()).unwrap()), &options()).unwrap();
    disk.finish().unwrap();
    with_an_unknown_entry(&closed, 0);
    let disk = LogDisk::open(Arc::new(ImageStore::open(closed).unwrap()), &options()).unwrap();
    let found = disk.check_summaries(0, usize::MAX);
    assert_eq!((found.damaged.len(), found.problems.len()), (0, 1), "{:?}", found.problems);
    assert!(NewerVersion::is(&disk.mend_summaries().unwrap_err()));
}
