//! Scrubs: whatever is damaged on the device is found while the file system is in use, and nothing else is.

use cffs::device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation};
use cffs::format::superblock::State;
use cffs::format::*;
use cffs::path::{resolve, write_file};
use cffs::{
    Caller, Error, Fs, MetadataMode, MkfsOptions, MountOptions, Scrub, ScrubOptions, ScrubOutcome, ScrubStatus,
    SetAttr, SetXattr, mkfs,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const ME: Caller = Caller::ROOT;

fn options() -> MountOptions {
    MountOptions::default().background(false).cache_bytes(16 << 20)
}

fn open(dev: &Arc<MemoryDevice>) -> Arc<Fs> {
    Fs::open(dev.clone(), None, options()).unwrap()
}

fn scrub(fs: &Fs) -> ScrubStatus {
    let scrub = Scrub::new();
    fs.scrub(&ScrubOptions::default(), &scrub).unwrap();
    scrub.status()
}

fn path(p: impl Into<String>) -> Vec<u8> {
    p.into().into_bytes()
}

/// A file system with every kind of block.
fn filled(no_embed: bool) -> Arc<MemoryDevice> {
    filled_with(no_embed, false)
}

/// The same, perhaps with checksums of data.
fn filled_with(no_embed: bool, data_sums: bool) -> Arc<MemoryDevice> {
    let dev = Arc::new(MemoryDevice::new(64 << 20));
    // A small log: checkpoints are frequent.
    let o = MkfsOptions::default()
        .no_embed(no_embed)
        .data_sums(data_sums)
        .quota(vec![QuotaKind::User])
        .group_size(64 << 10)
        .log_bytes(Some(2 << 20));
    mkfs(&*dev, None, &o).unwrap();
    let fs = open(&dev);
    for d in ["/dir", "/dir/below", "/large"] {
        let (parent, name) = cffs::path::resolve_parent(&fs, d.as_bytes()).unwrap();
        fs.mkdir(ME, parent.ino, name, 0o755).unwrap();
    }
    for n in 0..60 {
        write_file(&fs, ME, &path(format!("/dir/below/file{n}")), &vec![n as u8; n * 100]).unwrap();
    }
    let large = resolve(&fs, b"/large").unwrap().ino;
    for n in 0..600 {
        fs.create(ME, large, format!("a name of some length, number {n}").as_bytes(), 0o644).unwrap();
    }
    write_file(&fs, ME, b"/dir/sparse", b"x").unwrap();
    let sparse = resolve(&fs, b"/dir/sparse").unwrap().ino;
    for n in 0..300 {
        fs.write(ME, sparse, n * 20_000, &[1; 500]).unwrap();
    }
    fs.setxattr(ME, sparse, b"user.large", &[7; 9000], SetXattr::default()).unwrap();
    let linked = resolve(&fs, b"/dir/below/file9").unwrap().ino;
    fs.link(ME, linked, large, b"second name").unwrap();
    fs.sync().unwrap();
    fs.close().unwrap();
    dev
}

/// Blocks of metadata by kind, those in use.
fn catalogue(dev: &Arc<MemoryDevice>) -> BTreeMap<BlockKind, Vec<BlockAddr>> {
    let sb = cffs::mkfs::read_superblock(&**dev).unwrap();
    let g = Geometry::new(&sb).unwrap();
    let d = cffs::dump::Dumper::open(&**dev, None).unwrap();
    let used = |addr| matches!(d.block(addr).unwrap().at("fragments_in_use"), Some(cffs::dump::Value::Text(t)) if !t.contains('0'));
    let mut b = vec![0; g.block_size()];
    let mut found: BTreeMap<BlockKind, Vec<BlockAddr>> = BTreeMap::new();
    for addr in 0..g.total_blocks {
        dev.read_at(IoKind::Meta, addr << g.block_shift, &mut b).unwrap();
        let in_log = sb.log_start != 0 && (sb.log_start..sb.log_start + sb.log_blocks).contains(&addr);
        if let Some(kind) = BlockKind::from_magic(get_u32(&b, 0)).filter(|_| !in_log && crc_ok(&b) && used(addr)) {
            found.entry(kind).or_default().push(addr);
        }
    }
    found
}

fn flip(dev: &MemoryDevice, addr: BlockAddr) {
    let mut b = vec![0; 4096];
    dev.read_at(IoKind::Meta, addr * 4096, &mut b).unwrap();
    b[1234] ^= 0x10;
    dev.write_at(IoKind::Meta, addr * 4096, &b).unwrap();
}

#[test]
fn all_is_well_and_everything_was_read() {
    for no_embed in [false, true] {
        let dev = filled(no_embed);
        let blocks: usize = catalogue(&dev).values().map(Vec::len).sum();
        for read_only in [false, true] {
            let fs = Fs::open(dev.clone(), None, options().read_only(read_only)).unwrap();
            let s = scrub(&fs);
            assert_eq!((s.outcome, s.findings), (Some(ScrubOutcome::Complete), Vec::new()));
            // Directory blocks are met as what their inodes stand in, and as the directory's.
            assert!(s.blocks >= blocks as u64 && s.inodes >= 660 && s.bytes > 0, "{} of {blocks}", s.blocks);
            assert_eq!(fs.superblock().state, if read_only { State::Clean } else { State::Journaled });
            fs.close().unwrap();
        }
    }
}

#[test]
fn damage_of_every_kind_of_block_is_found() {
    for (no_embed, data_sums) in [(false, true), (true, false)] {
        let original = filled_with(no_embed, data_sums);
        let blocks = catalogue(&original);
        assert!(
            blocks.len() + 1 >= BlockKind::ALL.len() && blocks.contains_key(&BlockKind::DataSums) == data_sums,
            "{:?}",
            blocks.keys()
        );
        for (kind, list) in blocks {
            // Those that a mount reads would keep it from mounting: the damage comes afterwards.
            let dev = Arc::new(original.duplicate());
            let fs = open(&dev);
            let addr = list[list.len() / 2];
            flip(&dev, addr);
            let s = scrub(&fs);
            assert_eq!(s.outcome, Some(ScrubOutcome::Complete), "{kind:?}");
            let found: Vec<_> = s.findings.iter().filter(|f| f.block == addr).collect();
            assert_eq!(found.len(), 1, "{kind:?} at {addr}: {:?}", s.findings);
            assert!(found[0].object.contains(kind.name()) && found[0].what.contains("checksum"), "{found:?}");
            assert_eq!(s.findings_total, s.findings.len() as u64);
            assert_eq!(fs.superblock().state, State::Error);
            assert_eq!(cffs::mkfs::read_superblock(&*dev).unwrap().state, State::Error, "on the device too");
        }
    }
}

#[test]
fn a_read_only_mount_tells_and_writes_nothing() {
    let dev = filled(false);
    let addr = catalogue(&dev)[&BlockKind::DirIndex][0];
    flip(&dev, addr);
    let before = dev.duplicate();
    let fs = Fs::open(dev.clone(), None, options().read_only(true)).unwrap();
    let s = scrub(&fs);
    assert!(s.findings.len() == 1 && s.findings[0].block == addr, "{:?}", s.findings);
    fs.close().unwrap();
    let bytes = |d: &MemoryDevice| {
        let mut all = vec![0; d.len() as usize];
        d.read_at(IoKind::Data, 0, &mut all).unwrap();
        all
    };
    assert!(bytes(&before) == bytes(&dev));
}

#[test]
fn superblocks_and_log_header_are_read() {
    let dev = filled(false);
    let sb = cffs::mkfs::read_superblock(&*dev).unwrap();
    let g = Geometry::new(&sb).unwrap();
    for (block, object) in
        [(0, "superblock"), (g.ag_start(1), "superblock copy in allocation group 1"), (sb.log_start, "log")]
    {
        let dev = Arc::new(dev.duplicate());
        let fs = open(&dev);
        // What mounting a device needs stands there again when it is marked.
        dev.write_at(IoKind::Super, block << g.block_shift, &[0x55; 512]).unwrap();
        let s = scrub(&fs);
        assert_eq!(s.findings.iter().map(|f| f.object.as_str()).collect::<Vec<_>>(), [object]);
    }
}

/// The device has kept a version of a block that was good, once: by itself nothing is wrong with it.
#[test]
fn a_write_that_never_arrived_is_noticed_while_memory_has_the_block() {
    let dev = filled(false);
    let fs = open(&dev);
    let dir = resolve(&fs, b"/dir").unwrap().ino;
    let addr = {
        let d = cffs::dump::Dumper::open(&*dev, None).unwrap();
        let v = d.directory(&cffs::dump::Which::Path(b"/dir".to_vec())).unwrap();
        match v.at("blocks.0.block") {
            Some(cffs::dump::Value::Number(n)) => *n,
            other => panic!("{other:?}"),
        }
    };
    let mut old = vec![0; 4096];
    dev.read_at(IoKind::Meta, addr * 4096, &mut old).unwrap();
    fs.create(ME, dir, b"new", 0o644).unwrap();
    assert!(scrub(&fs).findings.is_empty());
    dev.write_at(IoKind::Meta, addr * 4096, &old).unwrap();
    let s = scrub(&fs);
    assert!(s.findings.iter().any(|f| f.block == addr && f.what.contains("a write was lost")), "{:?}", s.findings);
}

#[test]
fn sectors_that_cannot_be_read_are_found() {
    let inner = filled(false);
    let addr = catalogue(&inner)[&BlockKind::ExtentNode][0];
    let dev = Arc::new(FailingDevice::new(inner.clone()));
    let fs = Fs::open(dev.clone(), None, options()).unwrap();
    dev.set(Operation::Read, Fault::from_now_on().in_range(addr * 4096, addr * 4096 + 4096));
    let s = scrub(&fs);
    assert!(s.findings.len() == 1 && s.findings[0].block == addr, "{:?}", s.findings);
    assert!(s.findings[0].what.contains("cannot be read"), "{:?}", s.findings);
    assert!(s.findings[0].inode.is_some());
}

#[test]
fn it_stops_when_told_and_when_the_file_system_is_closed() {
    let dev = filled(false);
    let fs = open(&dev);
    assert!(matches!(fs.scrub(&ScrubOptions::default().rate(Some(0)), &Scrub::new()), Err(Error::Invalid(_))));
    for close in [false, true] {
        let scrub = Arc::new(Scrub::new());
        assert!(!scrub.is_over());
        let thread = {
            let (fs, scrub) = (fs.clone(), scrub.clone());
            // Hours, if it went on.
            std::thread::spawn(move || fs.scrub(&ScrubOptions::default().rate(Some(100)), &scrub))
        };
        while scrub.status().bytes == 0 {
            std::thread::yield_now();
        }
        if close {
            fs.close().unwrap()
        } else {
            scrub.stop()
        }
        thread.join().unwrap().unwrap();
        let s = scrub.status();
        assert_eq!((s.outcome, s.findings), (Some(ScrubOutcome::Stopped), Vec::new()));
    }
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// One of the changes that move, free and rewrite blocks.
fn change(fs: &Fs, dirs: &[Ino], r: &mut Rng) {
    let dir = dirs[r.below(dirs.len() as u64) as usize];
    let name = format!("writer's file {}", r.below(80)).into_bytes();
    let other = format!("writer's file {}", r.below(80)).into_bytes();
    let to = dirs[r.below(dirs.len() as u64) as usize];
    let outcome = match r.below(13) {
        0..3 => fs.create(ME, dir, &name, 0o644).and_then(|a| {
            let written =
                fs.write(ME, a.ino, r.below(1 << 20), &vec![r.below(256) as u8; r.below(20_000) as usize]).map(drop);
            fs.forget(a.ino, 1);
            written
        }),
        3 => fs.unlink(dir, &name),
        4 => fs.rename(ME, dir, &name, to, &other, Default::default()),
        5 => fs.mkdir(ME, dir, &name, 0o755).map(|a| fs.forget(a.ino, 1)),
        6 => fs.rmdir(dir, &name),
        7 => fs.lookup(dir, &name).and_then(|a| {
            let linked = fs.link(ME, a.ino, to, &other).map(|b| fs.forget(b.ino, 1));
            fs.forget(a.ino, 1);
            linked
        }),
        8 => fs.lookup(dir, &name).and_then(|a| {
            let value = vec![r.below(256) as u8; r.below(9000) as usize];
            let set = fs.setxattr(ME, a.ino, b"user.x", &value, SetXattr::default());
            fs.forget(a.ino, 1);
            set
        }),
        9 => fs.lookup(dir, &name).and_then(|a| {
            let cut = fs.setattr(ME, a.ino, SetAttr::default().size(Some(r.below(1 << 20)))).map(drop);
            fs.forget(a.ino, 1);
            cut
        }),
        // Over what is there, with and without the log.
        10..12 => fs.lookup(dir, &name).and_then(|a| {
            let size = a.size.max(1);
            let mut outcome = fs.write(ME, a.ino, r.below(size), &vec![r.below(256) as u8; 3000]).map(drop);
            if r.below(2) == 0 {
                outcome = outcome.and(fs.fsync(a.ino, true));
            }
            fs.forget(a.ino, 1);
            outcome
        }),
        _ => fs.lookup(dir, &name).and_then(|a| {
            // Many extents: a tree that grows and goes.
            let mut outcome = Ok(());
            for n in 0..40 {
                outcome = outcome.and(fs.write(ME, a.ino, n * 30_000, &[9; 100]).map(drop));
            }
            outcome = outcome.and(fs.fsync(a.ino, false));
            fs.forget(a.ino, 1);
            outcome
        }),
    };
    match outcome {
        Ok(()) | Err(Error::Exists | Error::NotFound | Error::NotEmpty | Error::IsDir | Error::NotDir) => {}
        Err(Error::NotPermitted | Error::Invalid(_) | Error::NoSpace | Error::TooManyLinks | Error::Stale) => {}
        Err(e) => panic!("{e}"),
    }
}

/// Nothing is damaged, whatever the writers do meanwhile: then nothing is found.
#[test]
fn writers_are_no_damage() {
    for (metadata, no_embed, data_sums, cache_bytes) in [
        (MetadataMode::Journal, false, true, 16 << 20),
        (MetadataMode::Journal, false, true, 2 << 20),
        (MetadataMode::Journal, true, false, 1 << 20),
        (MetadataMode::Sync, false, true, 2 << 20),
        (MetadataMode::Delayed, false, true, 2 << 20),
    ] {
        let dev = filled_with(no_embed, data_sums);
        let fs = Fs::open(dev.clone(), None, options().metadata(metadata).cache_bytes(cache_bytes).background(true))
            .unwrap();
        let dirs: Vec<Ino> =
            ["/", "/dir", "/dir/below", "/large"].iter().map(|p| resolve(&fs, p.as_bytes()).unwrap().ino).collect();
        let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
        let total = std::thread::scope(|scope| {
            for seed in 1..4 {
                let (fs, dirs, stop, changes) = (&fs, &dirs, &stop, &changes);
                scope.spawn(move || {
                    let mut r = Rng(0x9e37_79b9_7f4a_7c15 >> seed);
                    while !stop.load(Ordering::Relaxed) {
                        change(fs, dirs, &mut r);
                        if changes.fetch_add(1, Ordering::Relaxed) % 97 == 0 {
                            fs.sync().unwrap();
                        }
                    }
                });
            }
            let (mut blocks, mut verified) = (0, 0);
            // Each round meets writers at work.
            for round in 0..12 {
                let before = changes.load(Ordering::Relaxed);
                while changes.load(Ordering::Relaxed) < before + 50 {
                    std::thread::yield_now();
                }
                let s = scrub(&fs);
                if s.outcome != Some(ScrubOutcome::Complete) || !s.findings.is_empty() {
                    stop.store(true, Ordering::Relaxed);
                    panic!("{metadata:?}, no_embed {no_embed}, round {round}: {:?} {:?}", s.outcome, s.findings);
                }
                blocks += s.blocks;
                verified += s.data_verified;
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(verified > 1 << 20, data_sums, "{verified} bytes of data");
            blocks
        });
        assert!(total > 1000, "{total}");
        assert_ne!(fs.superblock().state, State::Error);
        fs.close().unwrap();
        let all = cffs::check::CheckOptions::default().data(true);
        let r = cffs::check::check(dev, None, &all, &|_, _, _| {}).unwrap();
        assert!(r.is_clean(), "{:?}", r.problems);
    }
}

/// And with writers around, damage is found all the same.
#[test]
fn damage_is_found_among_writers() {
    let dev = filled(false);
    let victim = catalogue(&dev)[&BlockKind::Xattr][1];
    let fs = open(&dev);
    let dirs: Vec<Ino> = ["/", "/large"].iter().map(|p| resolve(&fs, p.as_bytes()).unwrap().ino).collect();
    flip(&dev, victim);
    let stop = AtomicBool::new(false);
    let s = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut r = Rng(77);
            while !stop.load(Ordering::Relaxed) {
                change(&fs, &dirs, &mut r);
            }
        });
        let s = scrub(&fs);
        stop.store(true, Ordering::Relaxed);
        s
    });
    assert!(s.findings.len() == 1 && s.findings[0].block == victim, "{:?}", s.findings);
}

/// A file in a directory, whose contents stand nowhere else on the device, and its first byte there.
fn victim(dev: &Arc<MemoryDevice>) -> (Ino, u64) {
    let fs = open(dev);
    write_file(&fs, ME, b"/dir/below/victim", &[0xa7; 9000]).unwrap();
    let ino = resolve(&fs, b"/dir/below/victim").unwrap().ino;
    fs.sync().unwrap();
    fs.close().unwrap();
    let mut all = vec![0; dev.len() as usize];
    dev.read_at(IoKind::Data, 0, &mut all).unwrap();
    (ino, all.windows(2000).position(|w| w == [0xa7; 2000]).unwrap() as u64)
}

#[test]
fn damaged_data_is_found_where_it_has_checksums() {
    let dev = filled_with(false, true);
    let (ino, at) = victim(&dev);
    let fs = open(&dev);
    let good = scrub(&fs);
    assert!(good.findings.is_empty() && good.data_verified > 100_000 && good.data_failed == 0, "{good:?}");
    // A byte of the second fragment and one of the last, which is not full; a file of which no sum is known.
    let mut sector = vec![0; 512];
    for byte in [at + 1500, at + 8999] {
        let start = byte / 512 * 512;
        dev.read_at(IoKind::Data, start, &mut sector).unwrap();
        sector[(byte - start) as usize] ^= 4;
        dev.write_at(IoKind::Data, start, &sector).unwrap();
    }
    let s = scrub(&fs);
    assert_eq!(
        (s.outcome, s.findings_total, s.data_failed),
        (Some(ScrubOutcome::Complete), 2, 2048),
        "{:?}",
        s.findings
    );
    for (f, bytes) in s.findings.iter().zip(["bytes 1024 to 2047", "bytes 8192 to 9215"]) {
        assert!(f.what.contains(bytes) && f.what.contains("checksum does not match"), "{f:?}");
        assert_eq!((f.inode, f.path.as_deref()), (Some(ino), Some("/dir/below/victim")));
        assert!((at / 4096..=(at + 9000) / 4096).contains(&f.block));
    }
    // Nothing that a check could put right.
    assert!(!s.marked && fs.superblock().state != State::Error);
    assert_eq!(s.data_verified + s.data_failed, good.data_verified);
    let leave = Scrub::new();
    fs.scrub(&ScrubOptions::default().metadata_only(true), &leave).unwrap();
    let without = leave.status();
    assert!(without.findings.is_empty() && without.data_verified == 0, "{without:?}");
    assert!(without.bytes + 100_000 < s.bytes, "data counts for the rate: {} and {}", without.bytes, s.bytes);
    // What is written anew is as good as ever.
    write_file(&fs, ME, b"/dir/below/victim", &[0xa8; 9000]).unwrap();
    fs.sync().unwrap();
    assert!(scrub(&fs).findings.is_empty());
    fs.close().unwrap();
}

#[test]
fn data_that_cannot_be_read_is_found() {
    let inner = filled_with(false, true);
    let (ino, at) = victim(&inner);
    let dev = Arc::new(FailingDevice::new(inner.clone()));
    let fs = Fs::open(dev.clone(), None, options()).unwrap();
    let from = at / 1024 * 1024;
    dev.set(Operation::Read, Fault::from_now_on().in_range(from, from + 1024));
    let s = scrub(&fs);
    let [f] = &s.findings[..] else { panic!("{:?}", s.findings) };
    assert!(f.inode == Some(ino) && f.what.contains("bytes 0 to 1023") && f.what.contains("cannot be read"), "{f:?}");
    assert_eq!(s.data_failed, 1024);
}
