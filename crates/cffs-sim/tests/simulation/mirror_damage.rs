//! A file system on a mirror of which one member is damaged at random, in place and on the log: after a scrub every file is right, both members
//! are equal, and what was wrong was counted.
//!
//! `CFFS_MIRROR_ROUNDS` is the number of rounds, `CFFS_MIRROR_SEED` the first seed.

use cffs::check::{CheckOptions, check};
use cffs::device::{Device, IoKind, MemoryDevice};
use cffs::{
    Caller, Fs, MkfsOptions, MountOptions, ROOT_INO, Scrub, ScrubOptions, ScrubOutcome, StoredData, StoredStep, mkfs,
};
use cffs_logdisk::{ImageOptions, ImageStore, LogDisk, LogOptions, ScrubReport};
use cffs_volume::{
    Candidate, CreateOptions, DATA_OFFSET, Difference, Kind, OpenOptions, Verdict, Volume, create, open,
};
use fastrand::Rng;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

const BYTES: u64 = 24 << 20;
const BLOCK: u64 = 4096;
const SECTOR: u64 = 512;
/// Bytes of files at most, and names of files.
const MOST: usize = 6 << 20;
const NAMES: u32 = 120;

/// A disk with sectors that cannot be read until they are written anew.
struct Disk {
    memory: MemoryDevice,
    bad: Mutex<BTreeSet<u64>>,
}

impl Disk {
    fn new(bytes: u64) -> Arc<Disk> {
        Arc::new(Disk { memory: MemoryDevice::new(bytes), bad: Mutex::default() })
    }

    fn bytes(&self, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.memory.read_at(IoKind::Data, at, &mut bytes).unwrap();
        bytes
    }
}

impl Device for Disk {
    fn len(&self) -> u64 {
        self.memory.len()
    }
    fn sector_size(&self) -> u32 {
        SECTOR as u32
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let len: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        if self.bad.lock().range(offset / SECTOR..(offset + len).div_ceil(SECTOR)).next().is_some() {
            return Err(io::Error::other("bad sector"));
        }
        self.memory.read_vectored(kind, offset, bufs)
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let len: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        self.bad.lock().retain(|s| !(offset / SECTOR..(offset + len).div_ceil(SECTOR)).contains(s));
        self.memory.write_vectored(kind, offset, bufs)
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}

struct Stored<'a>(&'a LogDisk);

impl StoredData for Stored<'_> {
    fn verify_step(&self, at: u64, bytes: u64) -> io::Result<StoredStep> {
        let report = self.0.scrub_step(at, bytes)?;
        let ScrubReport { next, bytes, problems, summaries, .. } = report;
        Ok(StoredStep { next, bytes, problems, structures: summaries })
    }
}

/// The members, and what the files have.
struct Bench {
    disks: [Arc<Disk>; 2],
    log: bool,
    files: BTreeMap<String, Vec<u8>>,
}

/// A mount.
struct Mounted {
    volume: Arc<Volume>,
    disk: Option<Arc<LogDisk>>,
    fs: Arc<Fs>,
}

impl Mounted {
    fn close(self) {
        self.fs.close().unwrap();
        drop(self.fs);
        if let Some(disk) = self.disk {
            disk.finish().unwrap();
        }
        self.volume.close().unwrap();
    }
}

impl Bench {
    fn candidates(&self) -> Vec<Candidate> {
        self.disks.iter().enumerate().map(|(n, d)| Candidate::new(format!("member {n}"), d.clone())).collect()
    }

    fn new(log: bool) -> Bench {
        let disks = [(); 2].map(|()| Disk::new(DATA_OFFSET + BYTES));
        let bench = Bench { disks, log, files: BTreeMap::new() };
        create(&bench.candidates(), &CreateOptions::new(Kind::Mirror)).unwrap();
        let volume = bench.volume();
        let sums = MkfsOptions::default().data_sums(!log);
        if log {
            let options = ImageOptions { uuid: [5; 16], slot_bytes: 256 << 10 };
            let store = Arc::new(ImageStore::format(volume.clone(), &options).unwrap());
            let disk = LogDisk::format(store, BYTES, &LogOptions::default()).unwrap();
            mkfs(&disk, None, &sums).unwrap();
            disk.finish().unwrap();
        } else {
            mkfs(&*volume, None, &sums).unwrap();
        }
        volume.close().unwrap();
        bench
    }

    fn volume(&self) -> Arc<Volume> {
        Arc::new(open(&self.candidates(), &OpenOptions { depth: 1, ..OpenOptions::default() }).unwrap())
    }

    fn mount(&self) -> Mounted {
        let volume = self.volume();
        let options = MountOptions::default().background(false);
        if !self.log {
            let fs = Fs::open(volume.clone(), None, options).unwrap();
            return Mounted { volume, disk: None, fs };
        }
        let store = Arc::new(ImageStore::open(volume.clone()).unwrap());
        let disk = Arc::new(LogDisk::open(store, &LogOptions::default()).unwrap());
        let fs = Fs::open(disk.clone(), None, options.discard(true)).unwrap();
        Mounted { volume, disk: Some(disk), fs }
    }

    /// Some files are made, written over and removed.
    fn work(&mut self, rng: &mut Rng) {
        let m = self.mount();
        for _ in 0..rng.usize(1..20) {
            let name = format!("file{}", rng.u32(..NAMES));
            let total: usize = self.files.values().map(Vec::len).sum();
            if self.files.contains_key(&name) && (rng.u8(..3) == 0 || total > MOST) {
                m.fs.unlink(ROOT_INO, name.as_bytes()).unwrap();
                self.files.remove(&name);
                continue;
            }
            let len = if rng.u8(..10) == 0 { rng.usize(..400_000) } else { rng.usize(..12_000) };
            let content: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
            let ino = match m.fs.lookup(ROOT_INO, name.as_bytes()) {
                Ok(found) => found.ino,
                Err(_) => m.fs.create(Caller::ROOT, ROOT_INO, name.as_bytes(), 0o644).unwrap().ino,
            };
            m.fs.write(Caller::ROOT, ino, 0, &content).unwrap();
            m.fs.forget(ino, 1);
            let file = self.files.entry(name).or_default();
            let keep = file.len().max(len);
            file.resize(keep, 0);
            file[..len].copy_from_slice(&content);
        }
        m.close();
    }

    fn read_all(&self, fs: &Fs, what: &str) {
        for (name, content) in &self.files {
            let ino = fs.lookup(ROOT_INO, name.as_bytes()).unwrap_or_else(|e| panic!("{what}: {name}: {e}")).ino;
            let mut found = vec![0; content.len() + 1];
            let n = fs.read(ino, 0, &mut found).unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
            assert!(n == content.len() && found[..n] == content[..], "{what}: {name} is wrong");
            fs.forget(ino, 1);
        }
    }

    /// A place: anywhere, but mostly where something is.
    fn place(&self, rng: &mut Rng) -> u64 {
        for _ in 0..50 {
            let at = DATA_OFFSET + rng.u64(..BYTES / BLOCK) * BLOCK;
            if rng.u8(..8) == 0 || self.disks[0].bytes(at, BLOCK).iter().any(|b| *b != 0) {
                return at;
            }
        }
        DATA_OFFSET
    }

    /// Damages a member. `old` is what it had some time ago.
    fn damage(&self, member: usize, old: &MemoryDevice, rng: &mut Rng) {
        let disk = &self.disks[member];
        for _ in 0..rng.usize(1..8) {
            let at = self.place(rng);
            match rng.u8(..8) {
                0..3 => {
                    let mut bytes = disk.bytes(at, BLOCK);
                    bytes[rng.usize(..BLOCK as usize)] ^= 1 << rng.u8(..8);
                    disk.memory.write_at(IoKind::Data, at, &bytes).unwrap();
                }
                3 => {
                    let len = (1 << 20).min(DATA_OFFSET + BYTES - at) as usize;
                    disk.memory.write_at(IoKind::Data, at, &vec![0; len]).unwrap();
                }
                4..6 => {
                    let len = (BLOCK * rng.u64(1..64)).min(DATA_OFFSET + BYTES - at);
                    let mut bytes = vec![0; len as usize];
                    old.read_at(IoKind::Data, at, &mut bytes).unwrap();
                    disk.memory.write_at(IoKind::Data, at, &bytes).unwrap();
                }
                _ => {
                    let first = at / SECTOR + rng.u64(..8);
                    disk.bad.lock().extend(first..(first + rng.u64(1..40)).min((DATA_OFFSET + BYTES) / SECTOR));
                }
            }
        }
    }

    /// Blocks of which the members have something else, or cannot read it.
    fn wrong(&self) -> u64 {
        let wrong = |block: &u64| {
            let at = DATA_OFFSET + block * BLOCK;
            let read = |d: &Disk| {
                let mut bytes = vec![0; BLOCK as usize];
                d.read_at(IoKind::Data, at, &mut bytes).ok().map(|()| bytes)
            };
            let both = [read(&self.disks[0]), read(&self.disks[1])];
            both[0].is_none() || both[0] != both[1]
        };
        (0..BYTES / BLOCK).filter(wrong).count() as u64
    }

    /// As `cffs volume DIR scrub` does it. Returns what was found wrong.
    fn scrub(&self, m: &Mounted, what: &str) -> u64 {
        let scrub = Scrub::new();
        match m.disk.as_deref().map(Stored) {
            Some(stored) => m.fs.scrub_with(&ScrubOptions::default(), &scrub, Some(&stored)).unwrap(),
            None => m.fs.scrub(&ScrubOptions::default(), &scrub).unwrap(),
        }
        let status = scrub.status();
        assert_eq!(status.outcome, Some(ScrubOutcome::Complete), "{what}");
        assert_eq!((status.findings_total, status.data_failed), (0, 0), "{what}: {:?}", status.findings);
        let mut verdict = |d: &Difference<'_>| {
            let judged = match &m.disk {
                Some(disk) => disk.judge_copies(d.offset, d.copies),
                None => m.fs.judge_copies(d.offset, d.copies).unwrap(),
            };
            if judged.is_none() {
                println!("{what}: nobody can say what is right at byte {} of the volume", d.offset);
            }
            judged.map_or(Verdict::Unknown, Verdict::Copy)
        };
        let report = m.volume.mirror().unwrap().scrub(None, &mut verdict, &mut |_| true).unwrap();
        assert_eq!((report.unknown, report.lost, report.skipped), (0, 0, 0), "{what}");
        let stats = m.volume.mirror().unwrap().stats();
        assert_eq!(stats.dropped, 0, "{what}");
        stats.repaired + stats.rewritten
    }
}

fn rounds(log: bool, default: u64) {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (count, first): (u64, u64) = (number("CFFS_MIRROR_ROUNDS", default), number("CFFS_MIRROR_SEED", 0));
    let mut bench = Bench::new(log);
    let mut old = bench.disks.each_ref().map(|d| d.memory.duplicate());
    let (mut damaged, mut healed, mut undamaged) = (0, 0, 0);
    for seed in first..first + count {
        let what = format!("seed {seed}, log: {log}");
        let mut rng = Rng::with_seed(seed);
        if rng.u8(..3) == 0 {
            old = bench.disks.each_ref().map(|d| d.memory.duplicate());
        }
        bench.work(&mut rng);
        let member = rng.usize(..2);
        bench.damage(member, &old[member], &mut rng);
        let wrong = bench.wrong();
        let m = bench.mount();
        let counted = bench.scrub(&m, &what);
        bench.read_all(&m.fs, &what);
        assert!(counted > 0 || wrong == 0, "{what}: {wrong} blocks were wrong, nothing was counted");
        m.close();
        assert_eq!(bench.wrong(), 0, "{what}: the members differ");
        (damaged, healed, undamaged) = (damaged + wrong, healed + counted, undamaged + u64::from(wrong == 0));
        if seed % 8 == 0 {
            let volume = bench.volume();
            let report = if log {
                let store = Arc::new(ImageStore::open(volume).unwrap());
                let disk = LogDisk::open(store, &LogOptions { read_only: true, ..LogOptions::default() }).unwrap();
                assert_eq!(disk.check(true).unwrap(), Vec::<String>::new(), "{what}");
                check(Arc::new(disk), None, &CheckOptions::default(), &|_, _, _| {}).unwrap()
            } else {
                check(volume, None, &CheckOptions::default().data(true), &|_, _, _| {}).unwrap()
            };
            assert!(report.is_clean(), "{what}: {:?}", report.problems);
        }
    }
    println!(
        "{count} rounds, log: {log}: {damaged} blocks were wrong, {healed} places written anew, {undamaged} rounds without damage"
    );
    assert!(undamaged < count / 4 + 1);
}

#[test]
fn a_damaged_member_is_made_right() {
    rounds(false, 25);
}

#[test]
fn a_damaged_member_is_made_right_on_the_log() {
    rounds(true, 25);
}
