//! What becomes of a volume when superblocks cannot be written, or a crash comes between them.

use crate::disk::{Disk, Power};
use cffs_device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation};
use cffs_volume::{Candidate, CreateOptions, Kind, MemberState, OpenOptions, Volume, VolumeError, create, open, probe};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

const BYTES: u64 = 4 << 20;
/// In front of the data of a member.
const LABELS: (u64, u64) = (0, 128 << 10);

fn options() -> OpenOptions {
    OpenOptions { depth: 1, ..OpenOptions::default() }
}

fn degraded() -> OpenOptions {
    OpenOptions { degraded: true, ..options() }
}

struct Members {
    memory: Vec<Arc<MemoryDevice>>,
    failing: Vec<Arc<FailingDevice>>,
}

impl Members {
    fn of(memory: Vec<Arc<MemoryDevice>>) -> Members {
        let failing = memory.iter().map(|m| Arc::new(FailingDevice::new(m.clone()))).collect();
        Members { memory, failing }
    }

    fn made(n: usize) -> Members {
        let members = Members::of((0..n).map(|_| Arc::new(MemoryDevice::new(BYTES))).collect());
        create(&members.all(), &CreateOptions::new(Kind::Mirror)).unwrap();
        members
    }

    fn all(&self) -> Vec<Candidate> {
        let named = |(i, d): (usize, &Arc<FailingDevice>)| Candidate::new(format!("disk{i}"), d.clone());
        self.failing.iter().enumerate().map(named).collect()
    }

    /// As they are now, working.
    fn copy(&self) -> Members {
        Members::of(self.memory.iter().map(|m| Arc::new(m.duplicate())).collect())
    }

    fn fail_label(&self, member: usize, nth: u64) {
        self.failing[member].set(Operation::Write, Fault::from_nth(nth).in_range(LABELS.0, LABELS.1));
    }
}

fn write(volume: &Volume, byte: u8) {
    volume.write_at(IoKind::Data, 0, &[byte; 4096]).unwrap();
    volume.flush().unwrap();
}

fn first_byte(volume: &Volume) -> u8 {
    let mut bytes = [0; 4096];
    volume.read_at(IoKind::Data, 0, &mut bytes).unwrap();
    bytes[0]
}

fn state(volume: &Volume, member: usize) -> MemberState {
    volume.mirror().unwrap().status().members[member].state
}

/// Otherwise nobody would know that it was used alone.
#[test]
fn a_mirror_whose_only_member_takes_no_superblock_is_not_opened() {
    for nth in 1..=4 {
        let members = Members::made(2);
        members.fail_label(0, nth);
        let result = open(&members.all()[..1], &degraded());
        assert!(matches!(&result, Err(VolumeError::Io { .. })), "write {nth}");
        // The same of all.
        let members = Members::made(2);
        (0..2).for_each(|i| members.fail_label(i, nth));
        assert!(open(&members.all(), &options()).is_err(), "write {nth}");
        // Nothing is wrong with the volume.
        let copy = members.copy();
        let volume = open(&copy.all(), &options()).unwrap();
        assert!((0..2).all(|i| state(&volume, i) != MemberState::Filling));
    }
}

#[test]
fn a_mirror_that_cannot_record_a_drop_promises_nothing_any_more() {
    for nth in 1..=4 {
        let members = Members::made(2);
        let volume = open(&members.all(), &options()).unwrap();
        write(&volume, 1);
        members.failing[1].set(Operation::Write, Fault::from_now_on());
        members.fail_label(0, nth);
        assert!(volume.write_at(IoKind::Data, 0, &[2; 4096]).is_err(), "write {nth}");
        members.failing.iter().for_each(|d| d.clear());
        assert!(volume.mirror().unwrap().status().failed);
        assert!(volume.write_at(IoKind::Data, 0, &[3; 4096]).is_err() && volume.flush().is_err());
        let new = Candidate::new("new", Arc::new(MemoryDevice::new(BYTES)));
        assert!(volume.mirror().unwrap().add(new, false).is_err());
        // Whichever is there after a crash has what was promised.
        for half in 0..2 {
            let copy = members.copy();
            let volume = open(&copy.all()[half..=half], &degraded()).unwrap();
            assert!([1, 2].contains(&first_byte(&volume)));
        }
        assert!(open(&members.copy().all(), &options()).is_ok());
    }
}

/// A crash during each write of an opening; then each half is used alone.
#[test]
fn halves_used_apart_are_noticed_wherever_a_crash_came_before() {
    let mut noticed = 0;
    for n in 0..60 {
        let mut rng = fastrand::Rng::with_seed(n);
        let power = Power::new();
        let mut disks: Vec<Arc<Disk>> = (0..2).map(|_| Disk::new(BYTES, &power)).collect();
        let named = |disks: &[Arc<Disk>]| -> Vec<Candidate> {
            disks.iter().enumerate().map(|(i, d)| Candidate::new(format!("disk{i}"), d.clone())).collect()
        };
        create(&named(&disks), &CreateOptions::new(Kind::Mirror)).unwrap();
        for _ in 0..rng.usize(1..4) {
            let power = Power::new();
            disks = disks.iter().map(|d| d.crash(&mut rng, &power)).collect();
            power.fail_after(n);
            let _ = open(&named(&disks), &options());
            let power = Power::new();
            disks = disks.iter().map(|d| d.crash(&mut rng, &power)).collect();
            // Nobody was used, or both were.
            let copy: Vec<Arc<Disk>> = disks.iter().map(|d| d.duplicate(&power)).collect();
            open(&named(&copy), &options()).unwrap_or_else(|e| panic!("{n}: {e}"));
        }
        let order = if rng.bool() { [0, 1] } else { [1, 0] };
        let used = order.iter().filter(|half| match open(&named(&disks)[**half..=**half], &degraded()) {
            Ok(volume) => {
                write(&volume, **half as u8 + 1);
                true
            }
            // It was the power of one of them alone that failed, as far as the other one knows.
            Err(VolumeError::OutOfDate { .. }) => false,
            Err(e) => panic!("{n}: {e}"),
        });
        if used.count() < 2 {
            continue;
        }
        noticed += 1;
        let result = open(&named(&disks), &degraded()).map(|_| ());
        assert!(matches!(&result, Err(VolumeError::UsedApart { .. })), "{n}: {result:?}");
    }
    assert!(noticed > 50, "{noticed}");
}

/// A member that is being filled fails its superblock. What the others record counts all the same.
#[test]
fn an_old_copy_is_noticed_though_a_third_member_failed() {
    for nth in 1..=3 {
        let members = Members::made(3);
        drop(open(&members.all()[..2], &degraded()).unwrap());
        // The third one is out of date, and is filled from now on.
        let volume = open(&members.all(), &options()).unwrap();
        assert_eq!(state(&volume, 2), MemberState::Filling);
        drop(volume);
        let old = members.memory[1].duplicate();
        members.fail_label(2, nth);
        let volume = open(&members.all(), &degraded()).unwrap();
        write(&volume, 7);
        volume.close().unwrap();
        drop(volume);
        let mixed = Members::of(vec![members.memory[0].clone(), Arc::new(old)]);
        let volume = open(&mixed.all(), &degraded()).unwrap();
        assert_eq!(state(&volume, 1), MemberState::Filling, "{nth}");
        assert_eq!(first_byte(&volume), 7);
    }
}

/// One that has just been filled is never the only one that counts itself in sync.
#[test]
fn a_member_that_comes_into_sync_is_not_the_only_one_that_knows() {
    let mut failures = 0;
    for failing in [vec![0], vec![1], vec![0, 1], vec![2], vec![1, 2]] {
        for nth in 1..=6 {
            let members = Members::made(2);
            let volume = open(&members.all(), &options()).unwrap();
            write(&volume, 9);
            let third = Arc::new(MemoryDevice::new(BYTES));
            let third_failing = Arc::new(FailingDevice::new(third.clone()));
            let mirror = volume.mirror().unwrap();
            mirror.add(Candidate::new("disk2", third_failing.clone()), false).unwrap();
            for i in &failing {
                let device = if *i == 2 { &third_failing } else { &members.failing[*i] };
                device.set(Operation::Write, Fault::from_nth(nth).in_range(LABELS.0, LABELS.1));
            }
            failures += u64::from(mirror.resync(None, &mut |_| true).is_err() || mirror.stats().dropped > 0);
            let failed = mirror.status().failed;
            // As a crash leaves them.
            let mut memory: Vec<Arc<MemoryDevice>> = members.memory.iter().map(|m| Arc::new(m.duplicate())).collect();
            memory.push(Arc::new(third.duplicate()));
            let labels: Vec<_> = memory.iter().map(|m| probe(&**m).unwrap().unwrap()).collect();
            if labels[2].in_sync {
                let most = labels[..2].iter().map(|l| l.generation).max().unwrap();
                assert!(most + 1 >= labels[2].generation || !failed, "{failing:?} {nth}");
            }
            let after = Members::of(memory);
            let volume = open(&after.all(), &degraded()).unwrap_or_else(|e| panic!("{failing:?} {nth}: {e}"));
            assert_eq!(first_byte(&volume), 9, "{failing:?} {nth}");
            assert!(volume.mirror().unwrap().resync(None, &mut |_| true).unwrap());
            assert!(volume.mirror().unwrap().status().members.iter().all(|m| m.state == MemberState::InSync));
        }
    }
    assert!(failures > 15, "{failures}");
}

/// However often a crash comes between the superblocks of a stripe.
#[test]
fn a_stripe_is_never_locked_out() {
    for kind in [Kind::Stripe, Kind::Concat] {
        for seed in crate::seeds(60) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let power = Power::new();
            let mut disks: Vec<Arc<Disk>> = (0..3).map(|_| Disk::new(BYTES, &power)).collect();
            let named = |disks: &[Arc<Disk>]| -> Vec<Candidate> {
                disks.iter().enumerate().map(|(i, d)| Candidate::new(format!("disk{i}"), d.clone())).collect()
            };
            create(&named(&disks), &CreateOptions::new(kind)).unwrap();
            for _ in 0..10 {
                let power = Power::new();
                disks = disks.iter().map(|d| d.crash(&mut rng, &power)).collect();
                power.fail_after(rng.u64(..40));
                if let Err(e) = open(&named(&disks), &options()) {
                    assert!(power.is_off(), "seed {seed}: {e}");
                }
            }
            let power = Power::new();
            disks = disks.iter().map(|d| d.crash(&mut rng, &power)).collect();
            open(&named(&disks), &options()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
    }
}

/// What a member that comes back may have received, and nobody else, is in its own bitmap.
#[test]
fn a_member_that_comes_back_lacks_what_its_own_bitmap_has() {
    let members = Members::of((0..2).map(|_| Arc::new(MemoryDevice::new(41 << 20))).collect());
    create(&members.all(), &CreateOptions::new(Kind::Mirror)).unwrap();
    let volume = open(&members.all(), &options()).unwrap();
    volume.write_at(IoKind::Data, 7 << 20, &[1; 4096]).unwrap();
    volume.flush().unwrap();
    let mut bitmaps = vec![0; 128 << 10];
    members.memory[1].read_at(IoKind::Super, 128 << 10, &mut bitmaps).unwrap();
    volume.close().unwrap();
    drop(volume);
    let volume = open(&members.all()[..1], &degraded()).unwrap();
    // It took the bitmap and a write, and nobody else did.
    members.memory[1].write_at(IoKind::Super, 128 << 10, &bitmaps).unwrap();
    members.memory[1].write_at(IoKind::Data, (1 << 20) + (7 << 20), &[2; 4096]).unwrap();
    let mirror = volume.mirror().unwrap();
    mirror.add(members.all()[1].clone(), false).unwrap();
    assert!(mirror.resync(None, &mut |_| true).unwrap());
    let report = mirror.scrub(None, &mut |d| panic!("byte {} differs", d.offset), &mut |_| true).unwrap();
    assert_eq!(report.bytes, 40 << 20);
    assert!(mirror.stats().resynced_bytes < 4 << 20, "by the bitmap");
}

#[test]
fn a_replacement_that_fails_leaves_the_old_member() {
    for nth in [1, 2, 5, 9, 13] {
        let members = Members::made(2);
        let volume = open(&members.all(), &options()).unwrap();
        write(&volume, 4);
        let mirror = volume.mirror().unwrap();
        let new = Arc::new(FailingDevice::new(Arc::new(MemoryDevice::new(BYTES))));
        new.set(Operation::Write, Fault::from_nth(nth));
        let old = mirror.status().members[0].uuid;
        let result = mirror.replace(old, Candidate::new("new", new), false, None, &mut |_| true);
        assert!(matches!(&result, Err(VolumeError::Io { name, .. }) if name == "new"), "{nth}: {result:?}");
        assert_eq!((state(&volume, 0), state(&volume, 1)), (MemberState::InSync, MemberState::InSync), "{nth}");
        volume.close().unwrap();
        drop(volume);
        assert_eq!(first_byte(&open(&members.all()[..1], &degraded()).unwrap()), 4);
    }
}

/// A member that cannot be written from the beginning, whatever it says then: it is dropped, the mirror goes on, and it is brought up to date when it works again.
#[test]
fn a_member_that_takes_no_write_at_opening_is_dropped() {
    for member in 0..2 {
        let members = Members::made(2);
        write(&open(&members.all(), &options()).unwrap(), 1);
        members.failing[member].set(Operation::Write, Fault::from_now_on());
        members.failing[member].set(Operation::Flush, Fault::from_now_on());
        let volume = open(&members.all(), &options()).unwrap();
        let other = 1 - member;
        assert_eq!((state(&volume, member), state(&volume, other)), (MemberState::Absent, MemberState::InSync));
        assert_eq!(volume.mirror().unwrap().stats().dropped, 1);
        assert_eq!(first_byte(&volume), 1);
        write(&volume, 2);
        volume.close().unwrap();
        drop(volume);
        members.failing[member].clear();
        let volume = open(&members.all(), &options()).unwrap();
        assert_eq!((first_byte(&volume), state(&volume, member)), (2, MemberState::Filling));
        assert!(volume.mirror().unwrap().resync(None, &mut |_| true).unwrap());
        assert_eq!(state(&volume, member), MemberState::InSync);
        volume.close().unwrap();
    }
}

/// A member that may not be written: nobody has agreed to do without it, so the error names it, and nothing changes. Degraded, it is left out.
#[test]
fn a_member_that_may_not_be_written_is_named_or_left_out() {
    use std::io::ErrorKind;
    for member in 0..2 {
        for (error, opened_so) in
            [(ErrorKind::ReadOnlyFilesystem, false), (ErrorKind::PermissionDenied, false), (ErrorKind::Other, true)]
        {
            let members = Members::made(2);
            write(&open(&members.all(), &options()).unwrap(), 1);
            let before: Vec<_> = members.memory.iter().map(|m| m.duplicate()).collect();
            members.failing[member].set(Operation::Write, Fault::from_now_on().with_error(error));
            let mut all = members.all();
            if opened_so {
                all[member].device = Arc::new(ForReading(members.memory[member].clone()));
            }
            let what = format!("member {member}, {error:?}");
            match open(&all, &options()) {
                Err(VolumeError::NotWritable { name, .. }) => assert_eq!(name, format!("disk{member}"), "{what}"),
                other => panic!("{what}: {other:?}"),
            }
            for (now, before) in members.memory.iter().zip(&before) {
                assert!(bytes_of(now) == bytes_of(before), "{what}: something was written");
            }
            // For reading it is as good as any.
            let volume = open(&all, &OpenOptions { read_only: true, ..options() }).unwrap();
            assert_eq!(first_byte(&volume), 1, "{what}");
            drop(volume);
            let volume = open(&all, &degraded()).unwrap();
            assert_eq!(state(&volume, member), MemberState::Absent, "{what}");
            assert!(!volume.read_only(), "{what}");
            write(&volume, 2);
            volume.close().unwrap();
            drop(volume);
            members.failing[member].clear();
            let volume = open(&members.all(), &options()).unwrap();
            assert_eq!((first_byte(&volume), state(&volume, member)), (2, MemberState::Filling), "{what}");
            assert!(volume.mirror().unwrap().resync(None, &mut |_| true).unwrap());
            volume.close().unwrap();
            assert_eq!(state(&volume, member), MemberState::InSync, "{what}");
        }
    }
}

/// Where all members can only be read, so can the mirror.
#[test]
fn a_mirror_of_members_opened_for_reading_is_read() {
    let members = Members::made(2);
    write(&open(&members.all(), &options()).unwrap(), 1);
    let mut all = members.all();
    for (candidate, memory) in all.iter_mut().zip(&members.memory) {
        candidate.device = Arc::new(ForReading(memory.clone()));
    }
    let volume = open(&all, &options()).unwrap();
    assert!(volume.read_only() && first_byte(&volume) == 1);
}

fn bytes_of(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; BYTES as usize];
    device.read_at(IoKind::Data, 0, &mut bytes).unwrap();
    bytes
}

/// A device that was opened for reading only.
struct ForReading(Arc<MemoryDevice>);

impl Device for ForReading {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn sector_size(&self) -> u32 {
        self.0.sector_size()
    }

    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.0.read_vectored(kind, offset, bufs)
    }

    fn write_vectored(&self, _kind: IoKind, _offset: u64, _bufs: &[IoSlice<'_>]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "it was opened for reading only"))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn read_only(&self) -> bool {
        true
    }
}
