//! Devices that break in one place, and what is left of earlier disks.

use cffs_device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation};
use cffs_logdisk::{BLOCK_BYTES, ImageOptions, ImageStore, LogDisk, LogOptions, UnreadableEnd, rebuild, recover_image};
use std::io;
use std::sync::Arc;

const SLOT: u64 = 64 << 10;
const SLOTS: u64 = 64;
const BLOCK: u64 = BLOCK_BYTES as u64;

fn options() -> LogOptions {
    LogOptions { cache_nodes: 64, batch_bytes: 16 * BLOCK_BYTES, checkpoint_bytes: 1 << 20, ..LogOptions::default() }
}

fn format(device: Arc<dyn Device>) -> LogDisk {
    let store = ImageStore::format(device, &ImageOptions { uuid: [5; 16], slot_bytes: SLOT }).unwrap();
    LogDisk::format(Arc::new(store), 1 << 30, &options()).unwrap()
}

fn open(device: Arc<dyn Device>) -> io::Result<LogDisk> {
    LogDisk::open(Arc::new(ImageStore::open(device)?), &options())
}

/// Goes on without what was written last, where that cannot be read.
fn open_without_end(device: Arc<dyn Device>) -> io::Result<LogDisk> {
    LogDisk::open(Arc::new(ImageStore::open(device)?), &LogOptions { lose_end: true, ..options() })
}

/// Not to open is an error that says that the end of the log cannot be read; nothing is written then.
#[track_caller]
fn has_an_unreadable_end(opened: io::Result<LogDisk>) {
    let error = opened.expect_err("what was acknowledged is lost silently");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    assert!(error.get_ref().is_some_and(|e| e.is::<UnreadableEnd>()), "{error}");
    assert!(error.to_string().contains("cannot be read"), "{error}");
}

fn read(disk: &LogDisk, block: u64) -> io::Result<Vec<u8>> {
    let mut data = vec![0; BLOCK_BYTES];
    disk.read_at(IoKind::Data, block * BLOCK, &mut data)?;
    Ok(data)
}

fn write(disk: &LogDisk, block: u64, byte: u8) {
    disk.write_at(IoKind::Data, block * BLOCK, &[byte; BLOCK_BYTES]).unwrap();
}

/// Where the summaries are, by sequence number. A later copy of a number counts.
fn batches(device: &dyn Device) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut sector = [0; 512];
    for at in (0..device.len()).step_by(512) {
        device.read_at(IoKind::Data, at, &mut sector).unwrap();
        if sector.starts_with(b"CLB1") {
            found.push((u64::from_le_bytes(sector[40..48].try_into().unwrap()), at));
        }
    }
    found.sort_unstable();
    found
}

/// Each batch but the last was durable when a later one was written: that it cannot be read is not the end of the log.
#[test]
fn a_rotten_summary_in_the_middle_of_the_log_is_told() {
    let device = Arc::new(MemoryDevice::new(SLOTS * SLOT + (1 << 20)));
    let disk = format(device.clone());
    let first = batches(&*device).last().unwrap().0 + 1;
    // Enough for several segments.
    for i in 0..40 {
        write(&disk, i, i as u8 + 1);
        disk.flush().unwrap();
    }
    let all = batches(&*device);
    let last = all.last().unwrap().0;
    assert_eq!(last, first + 39);
    let empty = vec![0xa5; 512];
    for (sequence, at) in all.iter().filter(|(n, _)| *n >= first) {
        for unreadable in [false, true] {
            let copy = Arc::new(device.duplicate());
            let broken = Arc::new(FailingDevice::new(copy.clone()));
            if unreadable {
                broken.set(Operation::Read, Fault::from_now_on().in_range(*at, at + 512));
            } else {
                copy.write_at(IoKind::Data, *at, &empty).unwrap();
            }
            let mut opened = open(broken.clone());
            if *sequence == last {
                // Nothing tells this from a crash before it was written; but who could not read it says so.
                if unreadable {
                    has_an_unreadable_end(opened);
                    opened = open_without_end(broken);
                }
                let disk = opened.unwrap();
                assert_eq!(disk.stats().damaged_segments, usize::from(unreadable));
                assert_eq!(disk.check(false).unwrap().is_empty(), !unreadable);
                assert_eq!(read(&disk, 38).unwrap(), [39; BLOCK_BYTES]);
                write(&disk, 39, 99);
                disk.flush().unwrap();
            } else {
                let error = opened.err().unwrap_or_else(|| panic!("batch {sequence} is lost silently"));
                assert_eq!(error.kind(), io::ErrorKind::InvalidData);
                assert!(error.to_string().contains(&format!("batch {sequence} of the log cannot be read")), "{error}");
            }
        }
    }
}

/// The data of the last batch cannot be read: whether it is whole cannot be known.
#[test]
fn a_last_batch_whose_data_cannot_be_read_is_not_taken_for_a_torn_one() {
    let device = Arc::new(MemoryDevice::new(SLOTS * SLOT + (1 << 20)));
    let disk = format(device.clone());
    for i in 0..3 {
        write(&disk, i, 7);
        disk.flush().unwrap();
    }
    drop(disk);
    let (_, last) = *batches(&*device).last().unwrap();
    let broken = Arc::new(FailingDevice::new(device.clone()));
    broken.set(Operation::Read, Fault::from_now_on().in_range(last + 1024, last + 1536));
    has_an_unreadable_end(open(broken.clone()));
    let disk = open_without_end(broken.clone()).unwrap();
    assert_eq!((read(&disk, 1).unwrap()[0], read(&disk, 2).unwrap()[0]), (7, 0));
    drop(disk);
    assert_eq!(read(&open(broken).unwrap(), 1).unwrap()[0], 7, "once it was given up, nobody asks again");
    // Torn, it ends the log as ever.
    let torn = Arc::new(MemoryDevice::new(SLOTS * SLOT + (1 << 20)));
    let disk = format(torn.clone());
    write(&disk, 0, 7);
    disk.flush().unwrap();
    write(&disk, 1, 7);
    disk.flush().unwrap();
    drop(disk);
    let (_, last) = *batches(&*torn).last().unwrap();
    torn.write_at(IoKind::Data, last + 1024, &[9; 512]).unwrap();
    let disk = open(torn).unwrap();
    assert_eq!((read(&disk, 0).unwrap()[0], read(&disk, 1).unwrap()[0]), (7, 0));
}

/// Whether a batch is where the log could go on and the store cannot be read is not known: who opens the disk says whether to go on.
#[test]
fn an_unreadable_place_where_the_log_could_go_on_is_set_aside_if_that_is_wanted() {
    let device = Arc::new(MemoryDevice::new(SLOTS * SLOT + (1 << 20)));
    let disk = format(device.clone());
    (0..3).for_each(|i| write(&disk, i, 7));
    disk.flush().unwrap();
    drop(disk);
    let (_, last) = *batches(&*device).last().unwrap();
    let mut head = [0; 512];
    device.read_at(IoKind::Data, last, &mut head).unwrap();
    let place = |at: usize, offset: u32| {
        let segment = u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
        (segment != u64::MAX).then(|| (128 << 10) + (segment & ((1 << 28) - 1)) * SLOT + u64::from(offset))
    };
    let offset = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
    let mut places: Vec<u64> = (0..4).filter_map(|i| place(112 + 16 * i, offset(120 + 16 * i))).collect();
    places.extend(place(80, 0));
    assert!(places.len() >= 3);
    for start in places {
        let copy = Arc::new(FailingDevice::new(Arc::new(device.duplicate())));
        copy.set(Operation::Read, Fault::from_now_on().in_range(start, start + 512));
        has_an_unreadable_end(open(copy.clone()));
        let disk = open_without_end(copy.clone()).unwrap();
        assert_eq!(disk.stats().damaged_segments, 1);
        for i in 0..30 {
            write(&disk, i, 8);
            disk.flush().unwrap();
        }
        disk.clean_step(1 << 20).unwrap();
        drop(disk);
        let disk = open(copy.clone()).unwrap();
        for i in 0..30 {
            assert_eq!(read(&disk, i).unwrap()[0], 8, "place {start}, block {i}");
        }
    }
}

#[test]
fn a_victim_that_cannot_be_read_does_not_stop_the_cleaner() {
    let memory = Arc::new(MemoryDevice::new(SLOTS * SLOT + (1 << 20)));
    let device = Arc::new(FailingDevice::new(memory.clone()));
    let disk = format(device.clone());
    for i in 0..200 {
        write(&disk, i, 1);
    }
    // Each segment keeps some blocks.
    for i in (0..200).filter(|i| i % 4 > 0) {
        write(&disk, i, 2);
    }
    disk.checkpoint().unwrap();
    let at = batches(&*memory)[4].1;
    let slot = at / SLOT * SLOT;
    device.set(Operation::Read, Fault::from_now_on().in_range(slot, slot + SLOT));
    let mut cleaned = 0;
    for _ in 0..20 {
        cleaned += disk.clean_step(1 << 20).unwrap().segments;
        disk.checkpoint().unwrap();
    }
    assert!(cleaned > 3, "{cleaned} segments were cleaned");
    assert_eq!(disk.stats().damaged_segments, 1);
    assert!(disk.check(false).unwrap().iter().any(|line| line.contains("is left alone")));
    let unreadable = (0..200).filter(|&i| read(&disk, i).is_err()).count();
    assert!((1..=16).contains(&unreadable), "{unreadable} blocks cannot be read");
    write(&disk, 300, 3);
    disk.flush().unwrap();
}

/// The second disk does the same as the first one did, so that the batches of the first are where its own would come.
#[test]
fn what_is_left_of_an_earlier_disk_with_the_same_uuid_is_never_ours() {
    let device = Arc::new(MemoryDevice::new(SLOTS * SLOT + (1 << 20)));
    let run = |byte: u8, n: u64| {
        let disk = format(device.clone());
        for i in 0..n {
            write(&disk, i, byte);
            disk.flush().unwrap();
        }
    };
    run(1, 60);
    for n in [0, 1, 7, 30] {
        run(2, n);
        let disk = open(device.clone()).unwrap();
        for i in 0..60 {
            assert_eq!(read(&disk, i).unwrap()[0], if i < n { 2 } else { 0 }, "{n} blocks, block {i}");
        }
    }
}

#[test]
fn a_device_that_fails_to_discard_is_only_counted() {
    let device = Arc::new(FailingDevice::new(Arc::new(MemoryDevice::new(SLOTS * SLOT + (1 << 20)))));
    let disk = format(device.clone());
    device.set(Operation::Discard, Fault::from_now_on());
    for round in 0..10 {
        for i in 0..150 {
            write(&disk, i, round);
        }
        disk.flush().unwrap();
    }
    disk.checkpoint().unwrap();
    assert!(disk.stats().failed_discards > 10);
    drop(disk);
    let disk = open(device).unwrap();
    assert!((0..150).all(|i| read(&disk, i).unwrap() == [9; BLOCK_BYTES]));
}

/// What was accepted reads as it was written, and no flush says yes, until the disk is opened again.
#[test]
fn a_write_that_fails_after_it_was_accepted_is_told_by_every_flush() {
    let device = Arc::new(FailingDevice::new(Arc::new(MemoryDevice::new(SLOTS * SLOT + (1 << 20)))));
    let disk = format(device.clone());
    (0..5).for_each(|i| write(&disk, i, 1));
    disk.flush().unwrap();
    (0..5).for_each(|i| write(&disk, 2 * i, 2));
    device.set(Operation::Write, Fault::nth(1));
    assert!(disk.flush().is_err());
    for i in 0..9 {
        let want = if i % 2 == 0 { 2 } else { u8::from(i < 5) };
        assert_eq!(read(&disk, i).unwrap()[0], want, "block {i}");
    }
    for _ in 0..3 {
        assert!(disk.flush().is_err());
        assert!(disk.write_at(IoKind::Data, 0, &[3; BLOCK_BYTES]).is_err());
    }
    drop(disk);
    let disk = open(device).unwrap();
    assert!((0..5).all(|i| read(&disk, i).unwrap()[0] == 1));
}

/// The older one of two superblocks says nothing of what was written since the mount.
#[test]
fn a_newer_superblock_that_is_lost_is_not_passed_over() {
    let device = Arc::new(MemoryDevice::new(SLOTS * SLOT + (1 << 20)));
    let disk = format(device.clone());
    write(&disk, 0, 1);
    disk.finish().unwrap();
    let disk = open(device.clone()).unwrap();
    write(&disk, 0, 2);
    disk.flush().unwrap();
    let sequence = |offset: u64| {
        let mut bytes = [0; 512];
        device.read_at(IoKind::Super, offset, &mut bytes).unwrap();
        u64::from_le_bytes(bytes[32..40].try_into().unwrap())
    };
    let superblocks = [0, 64 << 10];
    let newer = superblocks.into_iter().max_by_key(|offset| sequence(*offset)).unwrap();
    for offset in superblocks {
        let broken = Arc::new(FailingDevice::new(Arc::new(device.duplicate())));
        broken.set(Operation::Read, Fault::from_now_on().in_range(offset, offset + 512));
        let error = open(broken.clone()).expect_err("which one is newer cannot be known");
        assert!(error.to_string().contains("cannot be read, and it may be the newer one"), "{error}");
        // One read that fails is tried again.
        let again = Arc::new(FailingDevice::new(Arc::new(device.duplicate())));
        again.set(Operation::Read, Fault::nth(0).in_range(offset, offset + 512));
        assert_eq!(read(&open(again).unwrap(), 0).unwrap(), [2; BLOCK_BYTES]);
    }
    let rotten = Arc::new(device.duplicate());
    rotten.write_at(IoKind::Super, newer, &[0x5a; 512]).unwrap();
    let error = open(rotten.clone()).expect_err("what was flushed is lost silently");
    assert!(error.to_string().contains("which is lost: root"), "{error}");
    let report = rebuild(Arc::new(recover_image(rotten.clone()).unwrap()), &options()).unwrap();
    assert!(report.from_checkpoint, "{report:?}");
    assert_eq!(read(&open(rotten).unwrap(), 0).unwrap(), [2; BLOCK_BYTES]);
}
