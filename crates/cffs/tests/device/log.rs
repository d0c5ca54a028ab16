//! The log on a device that loses things: one of its headers, or a block in place that the log has changes of.

use cffs::check::repair::{RepairOptions, repair};
use cffs::check::{Report, check};
use cffs::device::{Device, IoKind, MemoryDevice};
use cffs::format::log::{LOG_HEADER_SLOTS, LogHeader, SEQ_START_MAX};
use cffs::format::superblock::State;
use cffs::format::{BlockKind, crc_ok, get_u32, get_u64};
use cffs::journal::{log_extent, read_header, read_headers, write_header};
use cffs::mkfs::read_superblock;
use cffs::{Caller, Error, Fs, Geometry, MkfsOptions, MountOptions, ROOT_INO, Superblock, mkfs, path};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;
const BS: u64 = 4096;

fn mount(dev: &Arc<MemoryDevice>) -> Result<Arc<Fs>, Error> {
    let options = MountOptions::default().background(false);
    Fs::open(dev.clone() as Arc<dyn Device>, None, options)
}

fn fresh(size: u64) -> (Arc<MemoryDevice>, Superblock) {
    let dev = Arc::new(MemoryDevice::new(size));
    let sb = mkfs(&*dev, None, &MkfsOptions::default()).unwrap();
    (dev, sb)
}

fn look(dev: &Arc<MemoryDevice>) -> Report {
    check(dev.clone(), None, &Default::default(), &|_, _, _| {}).unwrap()
}

fn clean(dev: &Arc<MemoryDevice>, what: &str) {
    let report = look(dev);
    assert!(report.problems.is_empty(), "{what}: {:#?}", report.problems);
}

/// Makes a file durable by way of the log.
fn put(fs: &Fs, name: &str) {
    path::write_file(fs, ROOT, format!("/{name}").as_bytes(), name.repeat(300).as_bytes()).unwrap();
    let ino = fs.lookup(ROOT_INO, name.as_bytes()).unwrap().ino;
    fs.fsync(ino, false).unwrap();
}

fn has(fs: &Fs, name: &str) -> bool {
    path::read_file(fs, format!("/{name}").as_bytes()).is_ok_and(|b| b == name.repeat(300).as_bytes())
}

/// Where the header that counts stands.
fn newest(dev: &MemoryDevice, sb: &Superblock) -> u64 {
    (sb.log_start * BS) + LOG_HEADER_SLOTS[read_header(dev, sb).unwrap().slot()]
}

#[test]
fn a_header_that_was_not_written_to_its_end_leaves_the_one_before_it() {
    let (dev, sb) = fresh(64 << 20);
    let fs = mount(&dev).unwrap();
    for i in 0..6 {
        put(&fs, &format!("early{i}"));
    }
    let old = dev.duplicate();
    fs.sync().unwrap();
    // A checkpoint ends with a new header, which power fails at: everything before it is there.
    let before = read_header(&*dev, &sb).unwrap();
    fs.close().unwrap();
    let header = read_header(&*dev, &sb).unwrap();
    assert_eq!(header.epoch, before.epoch + 1);
    let at = newest(&dev, &sb);
    drop(fs);
    for garbage in [vec![0xa7; 512], vec![0; 512], header.encode()[..40].iter().copied().chain([9; 472]).collect()] {
        let torn = Arc::new(dev.duplicate());
        torn.write_at(IoKind::Super, at, &garbage).unwrap();
        // The superblock of before: nobody unmounted.
        let mut first = vec![0; 4096];
        old.read_at(IoKind::Super, 0, &mut first).unwrap();
        torn.write_at(IoKind::Super, 0, &first).unwrap();
        clean(&torn, "before recovery");
        let fs = mount(&torn).unwrap();
        assert!((0..6).all(|i| has(&fs, &format!("early{i}"))));
        put(&fs, "later");
        drop(fs);
        clean(&torn, "with the header healed");
        let fs = mount(&torn).unwrap();
        assert!(has(&fs, "later"));
        fs.close().unwrap();
        clean(&torn, "unmounted");
    }
}

#[test]
fn a_header_that_the_device_loses_later_is_known_from_its_transactions() {
    let (dev, sb) = fresh(64 << 20);
    let fs = mount(&dev).unwrap();
    put(&fs, "early");
    fs.close().unwrap();
    let fs = mount(&dev).unwrap();
    for i in 0..5 {
        put(&fs, &format!("late{i}"));
    }
    drop(fs); // not unmounted: these are in the log alone
    let lost = Arc::new(dev.duplicate());
    let (header, at) = (read_header(&*dev, &sb).unwrap(), newest(&dev, &sb));
    lost.write_at(IoKind::Super, at, &[0x11; 512]).unwrap();
    assert!(read_headers(&*lost, &sb).unwrap()[header.slot()].is_err());
    assert_eq!(read_header(&*lost, &sb).unwrap(), header);
    clean(&lost, "before recovery");
    let fs = mount(&lost).unwrap();
    assert!(has(&fs, "early") && (0..5).all(|i| has(&fs, &format!("late{i}"))));
    fs.close().unwrap();
    clean(&lost, "unmounted");
    // Both are too many.
    let none = Arc::new(dev.duplicate());
    LOG_HEADER_SLOTS.iter().for_each(|s| none.write_at(IoKind::Super, sb.log_start * BS + s, &[0x11; 512]).unwrap());
    assert!(matches!(mount(&none), Err(Error::Corrupt(_))));
}

#[test]
fn a_lost_header_of_an_unmounted_file_system_is_found_and_repaired() {
    let (dev, sb) = fresh(64 << 20);
    for name in ["one", "two"] {
        let fs = mount(&dev).unwrap();
        put(&fs, name);
        fs.close().unwrap();
    }
    for slot in LOG_HEADER_SLOTS {
        dev.write_at(IoKind::Super, sb.log_start * BS + slot, &[0x11; 512]).unwrap();
        let report = look(&dev);
        assert_eq!(report.problems.len(), 1, "{:#?}", report.problems);
        let done = repair(dev.clone(), None, &RepairOptions::default(), &mut |_| true, &|_, _, _| {}).unwrap();
        assert_eq!(done.actions.len(), 1);
        clean(&dev, "repaired");
        let fs = mount(&dev).unwrap();
        assert!(has(&fs, "one") && has(&fs, "two"));
        fs.close().unwrap();
    }
}

/// A directory with names, home; and a change of it in the log. Returns the block and the device after the power failed.
fn changed_in_the_log() -> (Arc<MemoryDevice>, Geometry, u64) {
    let (dev, sb) = fresh(64 << 20);
    let g = Geometry::new(&sb).unwrap();
    let fs = mount(&dev).unwrap();
    for i in 0..9 {
        fs.create(ROOT, ROOT_INO, format!("home{i}").as_bytes(), 0o644).unwrap();
    }
    fs.close().unwrap();
    let fs = mount(&dev).unwrap();
    put(&fs, "log");
    drop(fs);
    let mut b = vec![0; BS as usize];
    let is_dir = |addr: &u64| {
        dev.read_at(IoKind::Meta, addr * BS, &mut b).unwrap();
        get_u32(&b, 0) == BlockKind::Dir as u32 && get_u64(&b, 16) == *addr
    };
    let block = (0..g.total_blocks).find(is_dir).expect("a directory block");
    (dev, g, block)
}

fn read(dev: &MemoryDevice, block: u64) -> Vec<u8> {
    let mut b = vec![0; BS as usize];
    dev.read_at(IoKind::Meta, block * BS, &mut b).unwrap();
    b
}

#[test]
fn recovery_does_not_make_a_damaged_block_look_whole() {
    let (dev, _, block) = changed_in_the_log();
    let good = Arc::new(dev.duplicate());
    let fs = mount(&good).unwrap();
    assert!(has(&fs, "log"));
    fs.close().unwrap();
    assert_eq!(read_superblock(&*good).unwrap().state, State::Clean);
    // Bytes of an old name change, far from what the log has; or an older version of the block stands there, whole.
    let older = {
        let mut b = read(&dev, block);
        let at = b.windows(5).position(|w| w == b"home3").unwrap();
        b[at + 4] = b'x';
        cffs::format::seal(&mut b, 1);
        b
    };
    let mut flipped = read(&dev, block);
    let at = flipped.windows(5).position(|w| w == b"home3").unwrap();
    flipped[at + 4] ^= 0x40;
    for (what, bytes) in [("flipped", flipped), ("older", older)] {
        let bad = Arc::new(dev.duplicate());
        bad.write_at(IoKind::Meta, block * BS, &bytes).unwrap();
        let report = look(&bad);
        assert!(!report.problems.is_empty(), "{what}");
        let fs = mount(&bad).unwrap();
        assert!(matches!(fs.lookup(ROOT_INO, b"home3"), Err(Error::Corrupt(_))), "{what}");
        assert_eq!(fs.superblock().state, State::Error, "{what}: fsck is asked for");
        drop(fs);
        assert!(!crc_ok(&read(&bad, block)), "{what}: the damage shows");
        repair(bad.clone(), None, &RepairOptions::default(), &mut |_| true, &|_, _, _| {}).unwrap();
        clean(&bad, what);
        let fs = mount(&bad).unwrap();
        assert!(has(&fs, "log"), "{what}: what the log had is there after the repair");
        fs.close().unwrap();
    }
}

#[test]
fn a_checkpoint_torn_at_any_sector_is_made_whole_by_the_log() {
    let (dev, _, block) = changed_in_the_log();
    let after = Arc::new(dev.duplicate());
    mount(&after).unwrap().close().unwrap();
    let (old, new) = (read(&dev, block), read(&after, block));
    assert_ne!(old, new);
    // Every mixture of old and new sectors.
    for mask in 0..256u32 {
        let torn = Arc::new(dev.duplicate());
        let mut bytes = old.clone();
        for s in (0..8).filter(|s| mask >> s & 1 == 1) {
            bytes[s * 512..(s + 1) * 512].copy_from_slice(&new[s * 512..(s + 1) * 512]);
        }
        torn.write_at(IoKind::Meta, block * BS, &bytes).unwrap();
        let fs = mount(&torn).unwrap();
        assert_ne!(fs.superblock().state, State::Error, "mixture {mask:#b}");
        assert!(has(&fs, "log") && fs.lookup(ROOT_INO, b"home3").is_ok(), "mixture {mask:#b}");
        fs.close().unwrap();
        if mask % 16 == 5 {
            clean(&torn, "after recovery");
        }
    }
}

/// What follows such a header could not be told from a damaged one.
#[test]
fn a_header_that_no_log_gets_to_is_refused_and_repaired() {
    let (dev, sb) = fresh(64 << 20);
    let fs = mount(&dev).unwrap();
    put(&fs, "kept");
    fs.close().unwrap();
    let header = read_header(&*dev, &sb).unwrap();
    let step = SEQ_START_MAX + 2;
    for far in [
        LogHeader { epoch: header.epoch + step, ..header },
        LogHeader { tail_seq: header.tail_seq + step, epoch: header.epoch + 2, ..header },
    ] {
        let dev = Arc::new(dev.duplicate());
        write_header(&*dev, log_extent(&sb).0, far).unwrap();
        assert!(matches!(mount(&dev), Err(Error::Corrupt(c)) if c.0.contains("gets that far")));
        repair(dev.clone(), None, &RepairOptions::default(), &mut |_| true, &|_, _, _| {}).unwrap();
        clean(&dev, "repaired");
        let fs = mount(&dev).unwrap();
        assert!(has(&fs, "kept"));
        put(&fs, "later");
        drop(fs);
        let fs = mount(&dev).unwrap();
        assert!(has(&fs, "later"));
        fs.close().unwrap();
        clean(&dev, "unmounted");
    }
}
