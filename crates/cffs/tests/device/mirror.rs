//! A file system on a mirror: what one member has lost comes from the other one, and is put right.

use cffs::check::{CheckOptions, check};
use cffs::device::{Device, IoKind, MemoryDevice, OverlayDevice};
use cffs::{Caller, Fs, MkfsOptions, MountOptions, ROOT_INO, mkfs};
use cffs_volume::{Candidate, CreateOptions, Kind, OpenOptions, Volume, create, open};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;
const FILES: u64 = 400;
const BYTES: u64 = 32 << 20;
/// Where the data of a member begins.
const OFFSET: u64 = 1 << 20;
const BLOCK: u64 = 4096;

fn contents(i: u64) -> Vec<u8> {
    let len = if i % 40 == 0 { 300_000 } else { 100 + i as usize * 37 % 9000 };
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
        if rng() % 3 != 0 || bytes.iter().all(|b| *b == 0) || is_log {
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
fn a_check_of_a_damaged_member_is_clean_and_changes_nothing() {
    let members = filled();
    damage(&members, &mut random(9));
    let volume = mirror(&members);
    let overlay = Arc::new(OverlayDevice::new(volume.clone()));
    let report = check(overlay, None, &CheckOptions::default(), &|_, _, _| {}).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(volume.mirror().unwrap().stats().repaired, 0);
}
