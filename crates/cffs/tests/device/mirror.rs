//! A file system on a mirror: what one member has lost comes from the other one, and is put right.

use cffs::check::{CheckOptions, check};
use cffs::device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation, OverlayDevice};
use cffs::{
    Caller, DeviceUse, Fs, MkfsOptions, MountOptions, ROOT_INO, Scrub, ScrubOptions, ScrubOutcome, SetAttr, mkfs,
};
use cffs_volume::{Candidate, CreateOptions, Kind, OpenOptions, Volume, create, open};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const ROOT: Caller = Caller::ROOT;
const FILES: u64 = 400;
const BYTES: u64 = 32 << 20;
/// Where the data of a member begins.
const OFFSET: u64 = 1 << 20;
const BLOCK: u64 = 4096;

fn contents(i: u64) -> Vec<u8> {
    let len = if i.is_multiple_of(40) { 300_000 } else { 100 + i as usize * 37 % 9000 };
    (0..len).map(|n| (n as u64 * 31 + i * 7) as u8).collect()
}

fn members() -> Vec<Arc<MemoryDevice>> {
    (0..2).map(|_| Arc::new(MemoryDevice::new(OFFSET + BYTES))).collect()
}

fn mirror(members: &[Arc<MemoryDevice>]) -> Arc<Volume> {
    let given: Vec<Candidate> =
        members.iter().enumerate().map(|(i, d)| Candidate::new(format!("member {i}"), d.clone())).collect();
    Arc::new(open(&given, &OpenOptions { depth: 1, ..OpenOptions::default() }).unwrap())
}

fn mount(dev: Arc<dyn Device>) -> Arc<Fs> {
    Fs::open(dev, None, MountOptions::default().background(false)).unwrap()
}

/// A mirror with files, unmounted.
fn filled() -> Vec<Arc<MemoryDevice>> {
    let members = members();
    let given: Vec<Candidate> = members.iter().map(|d| Candidate::new("member", d.clone())).collect();
    create(&given, &CreateOptions::new(Kind::Mirror)).unwrap();
    let volume = mirror(&members);
    mkfs(&*volume, None, &MkfsOptions::default().data_sums(true)).unwrap();
    let fs = mount(volume.clone());
    for d in 0..8u64 {
        let dir = fs.mkdir(ROOT, ROOT_INO, format!("d{d}").as_bytes(), 0o755).unwrap().ino;
        for i in (d..FILES).step_by(8) {
            let ino = fs.create(ROOT, dir, format!("f{i}").as_bytes(), 0o644).unwrap().ino;
            fs.write(ROOT, ino, 0, &contents(i)).unwrap();
        }
    }
    fs.close().unwrap();
    volume.close().unwrap();
    members
}

fn read_all(fs: &Fs) {
    for i in 0..FILES {
        let dir = fs.lookup(ROOT_INO, format!("d{}", i % 8).as_bytes()).unwrap().ino;
        let ino = fs.lookup(dir, format!("f{i}").as_bytes()).unwrap().ino;
        let mut found = vec![0; contents(i).len()];
        assert_eq!(fs.read(ino, 0, &mut found).unwrap(), found.len());
        assert!(found == contents(i), "file {i}");
    }
}

/// Damages every third block on one of the members, by turns, as far as it has contents. Leaves out the log, whose blocks recovery
/// reads only after a crash.
fn damage(members: &[Arc<MemoryDevice>], rng: &mut impl FnMut() -> u64) -> u64 {
    let mut damaged = 0;
    for block in 0..BYTES / BLOCK {
        let at = OFFSET + block * BLOCK;
        let mut bytes = vec![0; BLOCK as usize];
        members[0].read_at(IoKind::Data, at, &mut bytes).unwrap();
        let is_log = bytes.starts_with(b"CFFLOG");
        if !rng().is_multiple_of(3) || bytes.iter().all(|b| *b == 0) || is_log {
            continue;
        }
        match rng() % 3 {
            0 => bytes[(rng() % BLOCK) as usize] ^= 1 << (rng() % 8),
            1 => bytes.fill(0),
            _ => bytes.fill(0xa5),
        }
        members[(rng() % 2) as usize].write_at(IoKind::Data, at, &bytes).unwrap();
        damaged += 1;
    }
    damaged
}

fn random(mut seed: u64) -> impl FnMut() -> u64 {
    move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    }
}

#[test]
fn what_one_member_has_lost_comes_from_the_other_one() {
    for seed in 0..4 {
        let members = filled();
        let mut rng = random(seed);
        let damaged = damage(&members, &mut rng);
        assert!(damaged > 100);
        let volume = mirror(&members);
        let fs = mount(volume.clone());
        read_all(&fs);
        let repaired = volume.mirror().unwrap().stats().repaired;
        assert!(repaired > 20, "{repaired} of {damaged}");
        fs.close().unwrap();
        // From here on nothing is wrong any more of what was read.
        volume.close().unwrap();
        let volume = mirror(&members);
        let fs = mount(volume.clone());
        read_all(&fs);
        fs.close().unwrap();
        assert_eq!(volume.mirror().unwrap().stats().repaired, 0, "seed {seed}");
    }
}

#[test]
fn a_scrub_makes_the_copies_equal() {
    for seed in 10..13 {
        let members = filled();
        let damaged = damage(&members, &mut random(seed));
        let volume = mirror(&members);
        let fs = mount(volume.clone());
        let scrub = Scrub::new();
        fs.scrub(&ScrubOptions::default(), &scrub).unwrap();
        let status = scrub.status();
        assert_eq!((status.outcome, status.findings_total), (Some(ScrubOutcome::Complete), 0), "{:?}", status.findings);
        assert!(status.repaired > 20, "{} of {damaged}", status.repaired);
        assert_eq!((status.data_failed, status.data_differing), (0, 0));
        let again = Scrub::new();
        fs.scrub(&ScrubOptions::default(), &again).unwrap();
        assert_eq!((again.status().repaired, again.status().findings_total), (0, 0), "seed {seed}");
        read_all(&fs);
        fs.close().unwrap();
        volume.close().unwrap();
        // Each member alone has everything.
        for member in &members {
            let alone = [Candidate::new("alone", member.clone())];
            let options = OpenOptions { degraded: true, read_only: true, depth: 1, ..OpenOptions::default() };
            let volume = Arc::new(open(&alone, &options).unwrap());
            let fs = Fs::open(volume, None, MountOptions::default().background(false).read_only(true)).unwrap();
            read_all(&fs);
        }
    }
}

/// An old state of a block is intact by itself. The other copy, which is newer, wins.
#[test]
fn a_scrub_replaces_old_contents_that_were_put_back() {
    let members = filled();
    let old = members[1].duplicate();
    let volume = mirror(&members);
    let fs = mount(volume.clone());
    for i in 0..FILES {
        let dir = fs.lookup(ROOT_INO, format!("d{}", i % 8).as_bytes()).unwrap().ino;
        let ino = fs.lookup(dir, format!("f{i}").as_bytes()).unwrap().ino;
        fs.setattr(ROOT, ino, SetAttr::default().perm(Some(0o600))).unwrap();
    }
    fs.close().unwrap();
    volume.close().unwrap();
    let mut put_back = 0;
    let mut bytes = vec![0; BLOCK as usize];
    for at in (OFFSET + BLOCK..OFFSET + BYTES).step_by(BLOCK as usize) {
        old.read_at(IoKind::Data, at, &mut bytes).unwrap();
        let mut new = vec![0; BLOCK as usize];
        members[1].read_at(IoKind::Data, at, &mut new).unwrap();
        // Directory blocks, in which the inodes are.
        if new != bytes && bytes.starts_with(&new[..4]) && new[16..24] == ((at - OFFSET) / BLOCK).to_le_bytes() {
            members[1].write_at(IoKind::Data, at, &bytes).unwrap();
            put_back += 1;
        }
    }
    assert!(put_back > 8, "{put_back}");
    let volume = mirror(&members);
    let fs = mount(volume.clone());
    let scrub = Scrub::new();
    fs.scrub(&ScrubOptions::default(), &scrub).unwrap();
    let status = scrub.status();
    assert_eq!(status.findings_total, 0, "{:?}", status.findings);
    assert!(status.repaired + 2 >= put_back && status.repaired > 8, "{} of {put_back}", status.repaired);
    fs.close().unwrap();
}

/// A mirror whose first copy is gone after some reads of copies, as after a member was dropped.
struct Dropping {
    volume: Arc<Volume>,
    left: AtomicU64,
}

impl Device for Dropping {
    fn len(&self) -> u64 {
        self.volume.len()
    }
    fn sector_size(&self) -> u32 {
        self.volume.sector_size()
    }
    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.volume)
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.volume.read_vectored(kind, offset, bufs)
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.volume.write_vectored(kind, offset, bufs)
    }
    fn copies(&self) -> usize {
        self.volume.copies()
    }
    fn read_copy(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 0 && copy == 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.volume.read_copy(kind, copy, offset, buf)
    }
    fn repair(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8]) -> io::Result<bool> {
        self.volume.repair(kind, copy, offset, good)
    }
    fn flush(&self) -> io::Result<()> {
        self.volume.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.volume.discard(offset, len)
    }
}

/// A copy that is gone is no damage, and nothing is repaired for its sake.
#[test]
fn a_scrub_leaves_out_a_member_that_was_dropped() {
    let members = filled();
    for left in [0, 1, 7, 30, 55, 80] {
        let volume = mirror(&members);
        let fs = mount(Arc::new(Dropping { volume: volume.clone(), left: AtomicU64::new(left) }));
        let scrub = Scrub::new();
        fs.scrub(&ScrubOptions::default(), &scrub).unwrap();
        let status = scrub.status();
        assert_eq!((status.outcome, status.findings_total), (Some(ScrubOutcome::Complete), 0), "{:?}", status.findings);
        assert_eq!((status.repaired, status.data_failed, status.data_differing), (0, 0, 0), "{left}");
        assert!(status.data_verified > 0);
        fs.close().unwrap();
        volume.close().unwrap();
    }
}

#[test]
fn a_check_of_a_damaged_member_is_clean_and_changes_nothing() {
    let members = filled();
    damage(&members, &mut random(9));
    let volume = mirror(&members);
    let overlay = Arc::new(OverlayDevice::new(volume.clone()));
    let report = check(overlay, None, &CheckOptions::default(), &|_, _, _| {}).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(volume.mirror().unwrap().stats().repaired, 0);
}

/// A member fails from some request on, for good. Nobody notices but the log, and the other member has everything.
#[test]
fn a_member_may_be_gone_from_any_request_on() {
    let members = filled();
    let (mut dropped, mut most) = (0, 0);
    for n in 1..36 {
        let copies: Vec<Arc<MemoryDevice>> = members.iter().map(|d| Arc::new(d.duplicate())).collect();
        let failing = Arc::new(FailingDevice::new(copies[1].clone()));
        let given = [Candidate::new("good", copies[0].clone()), Candidate::new("bad", failing.clone())];
        let volume = Arc::new(open(&given, &OpenOptions { depth: 1, ..OpenOptions::default() }).unwrap());
        failing.set(Operation::Write, Fault::from_nth(n));
        failing.set(Operation::Flush, Fault::from_nth(n));
        failing.set(Operation::Read, Fault::from_nth(n));
        let fs = mount(volume.clone());
        let dir = fs.mkdir(ROOT, ROOT_INO, b"new", 0o755).unwrap().ino;
        for i in 0..60u64 {
            let ino = fs.create(ROOT, dir, format!("{i}").as_bytes(), 0o644).unwrap().ino;
            fs.write(ROOT, ino, 0, &contents(i)).unwrap();
            if i.is_multiple_of(9) {
                fs.fsync(ino, false).unwrap();
            }
            fs.forget(ino, 1);
        }
        read_all(&fs);
        fs.close().unwrap();
        volume.close().unwrap();
        let stats = volume.mirror().unwrap().stats();
        dropped += stats.dropped;
        most = most.max(n * stats.dropped);
        drop((fs, volume));
        let options = OpenOptions { degraded: true, depth: 1, ..OpenOptions::default() };
        let volume = Arc::new(open(&[Candidate::new("good", copies[0].clone())], &options).unwrap());
        let report = check(volume.clone(), None, &CheckOptions::default().data(true), &|_, _, _| {}).unwrap();
        assert!(report.is_clean(), "request {n}: {:?}", report.problems);
        let fs = mount(volume);
        let dir = fs.lookup(ROOT_INO, b"new").unwrap().ino;
        for i in 0..60u64 {
            let ino = fs.lookup(dir, format!("{i}").as_bytes()).unwrap().ino;
            let mut found = vec![0; contents(i).len()];
            fs.read(ino, 0, &mut found).unwrap();
            assert!(found == contents(i), "request {n}, file {i}");
        }
    }
    assert!(dropped > 20 && most > 20, "{dropped}, {most}");
}

/// After a crash the log is read from whichever member has it right. Its checksums are over whole transactions.
#[test]
fn recovery_reads_a_log_that_one_member_has_damaged() {
    for seed in 0..6 {
        let members = filled();
        let volume = mirror(&members);
        let fs = mount(volume.clone());
        let dir = fs.mkdir(ROOT, ROOT_INO, b"new", 0o755).unwrap().ino;
        for i in 0..100u64 {
            let ino = fs.create(ROOT, dir, format!("{i}").as_bytes(), 0o644).unwrap().ino;
            fs.write(ROOT, ino, 0, &contents(i)).unwrap();
            fs.fsync(ino, false).unwrap();
            fs.forget(ino, 1);
        }
        let sb = fs.superblock();
        // As a crash leaves them.
        let members: Vec<Arc<MemoryDevice>> = members.iter().map(|d| Arc::new(d.duplicate())).collect();
        fs.close().unwrap();
        let mut rng = random(seed);
        let mut damaged = 0;
        for block in sb.log_start..sb.log_start + sb.log_blocks {
            let at = OFFSET + block * BLOCK;
            let mut bytes = vec![0; BLOCK as usize];
            members[0].read_at(IoKind::Log, at, &mut bytes).unwrap();
            if bytes.iter().any(|b| *b != 0) && rng().is_multiple_of(2) {
                bytes[(rng() % BLOCK) as usize] ^= 1 << (rng() % 8);
                members[seed as usize % 2].write_at(IoKind::Log, at, &bytes).unwrap();
                damaged += 1;
            }
        }
        assert!(damaged > 20, "{damaged}");
        let volume = mirror(&members);
        let fs = mount(volume.clone());
        let dir = fs.lookup(ROOT_INO, b"new").unwrap().ino;
        for i in 0..100u64 {
            let ino = fs.lookup(dir, format!("{i}").as_bytes()).unwrap().ino;
            let mut found = vec![0; contents(i).len()];
            assert_eq!(fs.read(ino, 0, &mut found).unwrap(), found.len());
            assert!(found == contents(i), "seed {seed}, file {i}");
        }
        read_all(&fs);
        fs.close().unwrap();
        let report = check(volume, None, &CheckOptions::default().data(true), &|_, _, _| {}).unwrap();
        assert!(report.is_clean(), "seed {seed}: {:?}", report.problems);
    }
}

/// Each copy of each superblock is looked at, whichever a plain read would get; and what is used for nothing is known.
#[test]
fn a_scrub_looks_at_every_superblock_of_every_copy() {
    for member in 0..2 {
        let members = filled();
        let volume = mirror(&members);
        let fs = mount(volume.clone());
        let sb = fs.superblock();
        let group = sb.ag_blocks << sb.block_shift;
        let places = [0, group];
        for at in places {
            members[member].write_at(IoKind::Super, OFFSET + at, &[0x5a; 4096]).unwrap();
        }
        let scrub = Scrub::new();
        fs.scrub(&ScrubOptions::default(), &scrub).unwrap();
        let status = scrub.status();
        assert_eq!((status.repaired, status.findings_total), (2, 0), "{member}: {:?}", status.findings);
        for at in places {
            let mut found = [[0; 512]; 2];
            (0..2).for_each(|i| members[i].read_at(IoKind::Super, OFFSET + at, &mut found[i]).unwrap());
            assert_eq!(found[0], found[1]);
            let of = |offset, len| fs.device_use(offset, len).unwrap();
            assert_eq!((of(at, 512), of(at + 512, 512)), (DeviceUse::Stored, DeviceUse::Free));
        }
        let log = sb.log_start << sb.block_shift;
        assert_eq!(fs.device_use(log, 4096).unwrap(), DeviceUse::Log);
        assert_eq!(fs.device_use(sb.total_blocks << sb.block_shift, 4096).unwrap(), DeviceUse::Free);
        let stored = (log / BLOCK + sb.log_blocks..group / BLOCK).map(|b| fs.device_use(b * BLOCK, BLOCK).unwrap());
        let stored = stored.filter(|u| *u == DeviceUse::Stored).count();
        assert!(stored > 200 && (stored as u64) < group / BLOCK, "{stored}");
        fs.close().unwrap();
    }
}
