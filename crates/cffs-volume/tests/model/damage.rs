//! Damage on either member of a mirror, under a caller that knows checksums.

use crate::disk::{Disk, Power};
use cffs_device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation};
use cffs_volume::{Candidate, CreateOptions, Kind, OpenOptions, Verdict, Volume, create, open};
use std::sync::Arc;

const BLOCK: usize = 4096;
const BLOCKS: usize = 512;
const DATA: u64 = 1 << 20;

/// Stands for a checksum: contents follow from place and version.
fn contents(block: usize, version: u32) -> Vec<u8> {
    let seed = (block as u64) << 32 | u64::from(version);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; BLOCK];
    rng.fill(&mut bytes);
    bytes
}

/// Reads a block as a file system does: another copy if the checksum is wrong, which is put right then.
fn read(volume: &Volume, block: usize, right: &[u8]) -> u32 {
    let at = (block * BLOCK) as u64;
    let mut bytes = vec![0; BLOCK];
    volume.read_at(IoKind::Data, at, &mut bytes).unwrap();
    if bytes == right {
        return 0;
    }
    for copy in 0..volume.copies() {
        if volume.read_copy(IoKind::Data, copy, at, &mut bytes).is_ok() && bytes == right {
            assert!(volume.repair(IoKind::Data, copy, at, &bytes).unwrap());
            return 1;
        }
    }
    panic!("block {block} is lost");
}

#[test]
fn whatever_one_member_loses_the_other_one_gives_back() {
    let (mut redirected, mut repaired, mut scrubbed) = (0, 0, 0);
    let disks: Vec<Arc<Disk>> = (0..2).map(|_| Disk::new(DATA + (BLOCKS * BLOCK) as u64, &Power::new())).collect();
    let candidates: Vec<_> = disks.iter().enumerate().map(|(i, d)| Candidate::new(format!("{i}"), d.clone())).collect();
    create(&candidates, &CreateOptions::new(Kind::Mirror)).unwrap();
    let volume = open(&candidates, &OpenOptions { depth: 1, ..OpenOptions::default() }).unwrap();
    let mirror = volume.mirror().unwrap();
    let mut right: Vec<Vec<u8>> = (0..BLOCKS).map(|b| contents(b, 0)).collect();
    let mut old: Vec<Vec<u8>> = right.clone();
    for (b, bytes) in right.iter().enumerate() {
        volume.write_at(IoKind::Data, (b * BLOCK) as u64, bytes).unwrap();
    }
    volume.flush().unwrap();
    for seed in crate::seeds(1000) {
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..rng.usize(..8) {
            let b = rng.usize(..BLOCKS);
            old[b] = std::mem::replace(&mut right[b], contents(b, seed as u32 + 1));
            volume.write_at(IoKind::Data, (b * BLOCK) as u64, &right[b]).unwrap();
        }
        volume.flush().unwrap();
        let before = mirror.stats();
        // Each block is damaged on one of them at most.
        let mut damaged = vec![None; BLOCKS];
        for _ in 0..rng.usize(1..6) {
            let (first, member) = (rng.usize(..BLOCKS), rng.usize(..2));
            let n = if rng.u8(..4) == 0 { rng.usize(1..100) } else { 1 };
            let kind = rng.u32(..4);
            for b in first..BLOCKS.min(first + n) {
                if damaged[b].is_some() {
                    continue;
                }
                damaged[b] = Some((member, kind));
                let at = DATA + (b * BLOCK) as u64;
                match kind {
                    0 => {
                        let mut bytes = right[b].clone();
                        bytes[rng.usize(..BLOCK)] ^= 1 << rng.u32(..8);
                        disks[member].overwrite(at, &bytes);
                    }
                    1 => disks[member].overwrite(at, &[0; BLOCK]),
                    2 => disks[member].overwrite(at, &old[b]),
                    _ => disks[member].make_unreadable(at + rng.u64(..8) * 512, 512),
                }
            }
        }
        let wrong: Vec<usize> = (0..BLOCKS).filter(|b| damaged[*b].is_some()).collect();
        let reads = if rng.bool() { wrong.len() } else { 0 };
        let mut by_reading = 0;
        for b in wrong.iter().take(reads) {
            by_reading += read(&volume, *b, &right[*b]);
        }
        let stats = mirror.stats();
        assert_eq!(stats.repaired - before.repaired, u64::from(by_reading), "seed {seed}");
        redirected += stats.reads_redirected - before.reads_redirected;
        repaired += stats.repaired - before.repaired;
        // What old contents were equal to the new ones is no damage.
        let left = (0..BLOCKS).filter(|b| {
            let at = DATA + (b * BLOCK) as u64;
            let unreadable = (0..2).any(|m| disks[m].read_at(IoKind::Data, at, &mut [0; BLOCK]).is_err());
            unreadable || disks[0].peek(at, BLOCK) != disks[1].peek(at, BLOCK)
        });
        let left = left.count() as u64;
        let mut verdict = |d: &cffs_volume::Difference<'_>| {
            let good = d.copies.iter().find(|(_, bytes)| *bytes == right[(d.offset / BLOCK as u64) as usize]);
            good.map_or(Verdict::Unknown, |(n, _)| Verdict::Copy(*n))
        };
        let report = mirror.scrub(None, &mut verdict, &mut |_| true).unwrap();
        assert_eq!((report.repaired, report.unknown, report.lost), (left, 0, 0), "seed {seed}");
        assert_eq!(report.differences + report.unreadable, left, "seed {seed}");
        scrubbed += left;
        let again = mirror.scrub(None, &mut |_| Verdict::Unknown, &mut |_| true).unwrap();
        assert_eq!((again.differences, again.unreadable), (0, 0), "seed {seed}");
        for (b, right) in right.iter().enumerate() {
            let at = DATA + (b * BLOCK) as u64;
            assert!(disks.iter().all(|d| d.peek(at, BLOCK) == *right), "seed {seed}, block {b}");
        }
    }
    let stats = mirror.stats();
    println!("{redirected} reads redirected, {repaired} repaired by the caller, {scrubbed} by scrubs; {stats:?}");
    assert!(redirected > 0 && repaired > 0 && scrubbed > 0 && stats.dropped == 0);
}

/// A difference that nobody can judge stays, and is counted.
#[test]
fn what_nobody_can_judge_stays() {
    let disks: Vec<Arc<Disk>> = (0..2).map(|_| Disk::new(3 << 20, &Power::new())).collect();
    let candidates: Vec<_> = disks.iter().enumerate().map(|(i, d)| Candidate::new(format!("{i}"), d.clone())).collect();
    create(&candidates, &CreateOptions::new(Kind::Mirror)).unwrap();
    let volume = open(&candidates, &OpenOptions { depth: 1, ..OpenOptions::default() }).unwrap();
    disks[0].overwrite(DATA + 4096, &[1; 4096]);
    disks.iter().for_each(|d| d.make_unreadable(DATA + 8192, 512));
    let report = volume.mirror().unwrap().scrub(None, &mut |_| Verdict::Unknown, &mut |_| true).unwrap();
    assert_eq!((report.differences, report.unknown, report.unreadable, report.lost), (1, 1, 2, 1));
    assert_eq!((disks[0].peek(DATA + 4096, 512)[0], disks[1].peek(DATA + 4096, 512)[0]), (1, 0));
}

/// Different places are unreadable on both, within one request.
#[test]
fn a_read_is_put_together_from_both() {
    let disks: Vec<Arc<Disk>> = (0..2).map(|_| Disk::new(3 << 20, &Power::new())).collect();
    let candidates: Vec<_> = disks.iter().enumerate().map(|(i, d)| Candidate::new(format!("{i}"), d.clone())).collect();
    create(&candidates, &CreateOptions::new(Kind::Mirror)).unwrap();
    let volume = open(&candidates, &OpenOptions { depth: 1, ..OpenOptions::default() }).unwrap();
    let bytes: Vec<u8> = (0..1 << 20).map(|i| (i / 4096) as u8).collect();
    volume.write_at(IoKind::Data, 0, &bytes).unwrap();
    disks[0].make_unreadable(DATA + 4096, 512);
    disks[1].make_unreadable(DATA + 40960, 1024);
    let mut found = vec![0; 1 << 20];
    volume.read_at(IoKind::Data, 0, &mut found).unwrap();
    assert!(found == bytes);
    let mut whole = vec![0; 1 << 20];
    for d in &disks {
        d.read_at(IoKind::Data, DATA, &mut whole).unwrap();
        assert!(whole == bytes, "both were written anew");
    }
    // The same place on both is lost, and says so.
    disks.iter().for_each(|d| d.make_unreadable(DATA, 512));
    assert!(volume.read_at(IoKind::Data, 0, &mut found).is_err());
    assert!(volume.read_at(IoKind::Data, 4096, &mut found[4096..]).is_ok());
    volume.write_at(IoKind::Data, 0, &bytes[..4096]).unwrap();
    volume.read_at(IoKind::Data, 0, &mut found).unwrap();
}

/// After a crash one member is taken as it is, and the other one made like it. Whichever of the two was damaged, the right one is found.
#[test]
fn what_a_crash_left_on_either_member_can_be_asked_for() {
    for damage_source in [true, false] {
        let disks: Vec<Arc<Disk>> = (0..2).map(|_| Disk::new(3 << 20, &Power::new())).collect();
        let candidates: Vec<_> =
            disks.iter().enumerate().map(|(i, d)| Candidate::new(format!("{i}"), d.clone())).collect();
        create(&candidates, &CreateOptions::new(Kind::Mirror)).unwrap();
        let options = OpenOptions { depth: 1, ..OpenOptions::default() };
        let volume = open(&candidates, &options).unwrap();
        volume.write_at(IoKind::Data, 0, &[1; 4096]).unwrap();
        volume.flush().unwrap();
        // A crash: the region is in the bitmap, and the members differ.
        drop(volume);
        disks[0].overwrite(DATA, &[2; 4096]);
        let volume = open(&candidates, &options).unwrap();
        let mut bytes = [0; 4096];
        volume.read_at(IoKind::Data, 0, &mut bytes).unwrap();
        assert_eq!((bytes[0], disks[1].peek(DATA, 512)[0]), (2, 2), "the source counts");
        assert_eq!(volume.copies(), 4);
        // What the source had was damage: the other one had it right. Or the source had it right, and is damaged now.
        let right = if damage_source { [2; 4096] } else { [1; 4096] };
        if damage_source {
            disks[0].overwrite(DATA, &[0xdd; 4096]);
        }
        let is_right = |copy: &usize| {
            let mut found = [0; 4096];
            volume.read_copy(IoKind::Data, *copy, 0, &mut found).is_ok() && found == right
        };
        let copy = (0..volume.copies()).find(is_right).expect("it is there");
        assert!(volume.repair(IoKind::Data, copy, 0, &right).unwrap());
        assert!(disks.iter().all(|d| d.peek(DATA, 4096) == right));
        assert!(volume.read_copy(IoKind::Data, 3, 0, &mut bytes).is_err(), "it was written anew");
    }
}

/// What a verdict reads may have to be written anew, next to what is compared.
#[test]
fn a_verdict_may_read_what_a_member_cannot() {
    let disks: Vec<Arc<Disk>> = (0..2).map(|_| Disk::new(3 << 20, &Power::new())).collect();
    let candidates: Vec<_> = disks.iter().enumerate().map(|(i, d)| Candidate::new(format!("{i}"), d.clone())).collect();
    create(&candidates, &CreateOptions::new(Kind::Mirror)).unwrap();
    let volume = open(&candidates, &OpenOptions { depth: 1, ..OpenOptions::default() }).unwrap();
    disks[0].overwrite(DATA, &[1; 4096]);
    disks.iter().for_each(|d| d.overwrite(DATA + 8192, &[3; 4096]));
    disks[0].make_unreadable(DATA + 8192, 512);
    let mut verdict = |d: &cffs_volume::Difference<'_>| {
        let mut sums = [0; 4096];
        (0..4).for_each(|_| volume.read_at(IoKind::Data, 8192, &mut sums).unwrap());
        assert_eq!((d.offset, sums[0]), (0, 3));
        Verdict::Copy(0)
    };
    let report = volume.mirror().unwrap().scrub(None, &mut verdict, &mut |_| true).unwrap();
    assert_eq!((report.differences, report.unreadable, report.unknown), (1, 1, 0));
    assert!(
        disks.iter().all(|d| d.peek(DATA, 512)[0] == 1 && d.read_at(IoKind::Data, DATA + 8192, &mut [0; 4096]).is_ok())
    );
}

/// Whatever is compared or written anew is whole sectors.
#[test]
fn sectors_may_be_longer_than_blocks() {
    const SECTOR: u64 = 64 << 10;
    let disks: Vec<Arc<MemoryDevice>> =
        (0..2).map(|_| Arc::new(MemoryDevice::with_sector_size(DATA + 5 * SECTOR, SECTOR as u32))).collect();
    let failing: Vec<Arc<FailingDevice>> = disks.iter().map(|d| Arc::new(FailingDevice::new(d.clone()))).collect();
    let candidates: Vec<_> =
        failing.iter().enumerate().map(|(i, d)| Candidate::new(format!("{i}"), d.clone())).collect();
    let stripe = CreateOptions { stripe_unit: 4096, ..CreateOptions::new(Kind::Stripe) };
    assert!(create(&candidates, &stripe).is_err(), "a unit has whole sectors");
    create(&candidates, &CreateOptions::new(Kind::Mirror)).unwrap();
    let options = OpenOptions { depth: 1, ..OpenOptions::default() };
    let volume = open(&candidates, &options).unwrap();
    assert_eq!((volume.len(), volume.sector_size()), (5 * SECTOR, SECTOR as u32));
    let bytes: Vec<u8> = (0..5 * SECTOR).map(|i| (i / 4096) as u8).collect();
    volume.write_at(IoKind::Data, 0, &bytes).unwrap();
    volume.flush().unwrap();
    drop(volume);
    // A crash, after which the first read brings both together.
    disks[1].write_at(IoKind::Data, DATA + SECTOR, &vec![0xee; SECTOR as usize]).unwrap();
    let volume = open(&candidates, &options).unwrap();
    let mut found = vec![0; 5 * SECTOR as usize];
    volume.read_at(IoKind::Data, 0, &mut found).unwrap();
    assert!(found == bytes);
    assert!(volume.mirror().unwrap().resync(None, &mut |_| true).unwrap());
    // Different sectors are unreadable on both, once.
    for (i, f) in failing.iter().enumerate() {
        let at = DATA + i as u64 * SECTOR;
        f.set(Operation::Read, Fault { times: 2, ..Fault::from_now_on() }.in_range(at, at + SECTOR));
    }
    volume.read_at(IoKind::Data, 0, &mut found).unwrap();
    assert!(found == bytes);
    failing.iter().for_each(|f| f.clear());
    disks[0].write_at(IoKind::Data, DATA + 3 * SECTOR, &vec![0xee; SECTOR as usize]).unwrap();
    let report = volume.mirror().unwrap().scrub(None, &mut |_| Verdict::Copy(1), &mut |_| true).unwrap();
    assert_eq!((report.differences, report.repaired, report.unknown), (1, 1, 0));
    disks[0].read_at(IoKind::Data, DATA, &mut found).unwrap();
    assert!(found == bytes);
}
