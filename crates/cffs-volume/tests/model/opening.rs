//! What is refused when a volume is opened, what the message says, and that nothing is changed then.

use crate::disk::{Disk, Power};
use cffs_device::{Device, IoKind};
use cffs_volume::{Candidate, CreateOptions, Kind, MemberState, OpenOptions, Volume, VolumeError, create, open, probe};
use std::sync::Arc;

const BYTES: u64 = 4 << 20;

fn disks(n: usize) -> Vec<Arc<Disk>> {
    (0..n).map(|_| Disk::new(BYTES, &Power::new())).collect()
}

fn named(disks: &[Arc<Disk>]) -> Vec<Candidate> {
    disks.iter().enumerate().map(|(i, d)| Candidate::new(format!("disk{i}"), d.clone())).collect()
}

fn made(kind: Kind, n: usize) -> Vec<Arc<Disk>> {
    let disks = disks(n);
    create(&named(&disks), &CreateOptions::new(kind)).unwrap();
    disks
}

fn options() -> OpenOptions {
    OpenOptions { depth: 1, ..OpenOptions::default() }
}

fn degraded() -> OpenOptions {
    OpenOptions { degraded: true, ..options() }
}

fn refused(candidates: &[Candidate], options: &OpenOptions) -> VolumeError {
    let all = |c: &Candidate| {
        let mut bytes = vec![0; c.device.len() as usize];
        c.device.read_at(IoKind::Data, 0, &mut bytes).unwrap();
        bytes
    };
    let before: Vec<_> = candidates.iter().map(all).collect();
    let error = open(candidates, options).map(|_| ()).unwrap_err();
    let after: Vec<_> = candidates.iter().map(all).collect();
    assert!(before == after, "a refusal has changed something");
    error
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

#[test]
fn any_member_names_its_volume() {
    let disks = disks(3);
    let options = CreateOptions { created: 12345, ..CreateOptions::new(Kind::Stripe) };
    let volume = create(&named(&disks), &options).unwrap();
    for (i, d) in disks.iter().enumerate() {
        let info = probe(&**d).unwrap().unwrap();
        assert_eq!((info.volume, info.index, info.members, info.created), (volume, i, 3, 12345));
        assert_eq!((info.kind, info.stripe_unit, info.volume_len), (Kind::Stripe, 1 << 20, 9 << 20));
    }
    assert_eq!(probe(&*Disk::new(BYTES, &Power::new())).unwrap(), None);
    assert_eq!(probe(&*Disk::new(4096, &Power::new())).unwrap(), None);
}

#[test]
fn too_few_members_are_refused() {
    for kind in [Kind::Stripe, Kind::Concat] {
        let c = named(&made(kind, 3));
        for options in [options(), degraded()] {
            let e = refused(&[c[2].clone(), c[0].clone()], &options);
            assert!(
                matches!(&e, VolumeError::TooFew { have: 2, need: 3, missing, mirror: false } if missing.len() == 1)
            );
            assert!(e.to_string().contains("without all members there is no volume"), "{e}");
        }
    }
    let c = named(&made(Kind::Mirror, 2));
    let e = refused(&c[1..], &options());
    assert!(matches!(&e, VolumeError::TooFew { have: 1, need: 2, mirror: true, .. }));
    assert!(e.to_string().contains("degraded"), "{e}");
    assert!(open(&c[1..], &degraded()).is_ok());
    assert!(matches!(open(&[], &options()), Err(VolumeError::Invalid(_))));
}

#[test]
fn members_of_two_volumes_and_strangers_are_refused() {
    let (a, b) = (named(&made(Kind::Mirror, 2)), named(&made(Kind::Mirror, 2)));
    let e = refused(&[a[0].clone(), b[1].clone()], &options());
    assert!(matches!(&e, VolumeError::TwoVolumes { .. }), "{e}");
    assert!(e.to_string().contains("disk0") && e.to_string().contains("disk1"), "{e}");
    let stranger = Candidate::new("other", Disk::new(BYTES, &Power::new()));
    let e = refused(&[a[0].clone(), stranger], &options());
    assert!(matches!(&e, VolumeError::NotAMember { name, .. } if name == "other"), "{e}");
}

#[test]
fn a_member_given_twice_is_refused() {
    let disks = made(Kind::Mirror, 2);
    let c = named(&disks);
    let copy = Candidate::new("copy", disks[0].duplicate(&Power::new()));
    for twice in [c[0].clone(), copy] {
        let e = refused(&[c[0].clone(), twice, c[1].clone()], &options());
        assert!(matches!(&e, VolumeError::GivenTwice { .. }), "{e}");
    }
    let new = named(&self::disks(1));
    let again = [new[0].clone(), new[0].clone()];
    assert!(matches!(create(&again, &CreateOptions::new(Kind::Mirror)), Err(VolumeError::Invalid(_))));
}

#[test]
fn halves_that_were_used_apart_are_refused_and_either_can_go_on() {
    let disks = made(Kind::Mirror, 2);
    let c = named(&disks);
    write(&open(&c, &options()).unwrap(), 1);
    for (half, byte) in [(0, 10), (1, 11)] {
        write(&open(&c[half..=half], &degraded()).unwrap(), byte);
    }
    // Again on one of them: which one is newer says nothing.
    write(&open(&c[..1], &degraded()).unwrap(), 12);
    for order in [[0, 1], [1, 0]] {
        let e = refused(&order.map(|i| c[i].clone()), &degraded());
        assert!(matches!(&e, VolumeError::UsedApart { .. }), "{e}");
        assert!(e.to_string().contains("Decide which one is right"), "{e}");
    }
    // The way out that the message names.
    let volume = open(&c[1..], &degraded()).unwrap();
    let mirror = volume.mirror().unwrap();
    assert!(matches!(mirror.add(c[0].clone(), false), Err(VolumeError::UsedApart { .. })));
    let old = mirror.status().members[0].uuid;
    mirror.add(c[0].clone(), true).unwrap();
    assert!(mirror.resync(None, &mut |_| true).unwrap());
    mirror.remove(old).unwrap();
    volume.close().unwrap();
    let volume = open(&c, &options()).unwrap();
    assert_eq!(first_byte(&volume), 11);
    assert!(volume.mirror().unwrap().status().members.iter().all(|m| m.state == MemberState::InSync));
}

/// One mount goes on without a member that it has dropped, another one has used that member.
#[test]
fn a_half_that_was_used_while_the_other_was_in_use_is_noticed() {
    let disks = made(Kind::Mirror, 2);
    let c = named(&disks);
    let volume = open(&c, &options()).unwrap();
    disks[1].fail_after(0);
    write(&volume, 5);
    disks[1].fail_after(u64::MAX);
    write(&open(&c[1..], &degraded()).unwrap(), 6);
    assert!(matches!(volume.mirror().unwrap().add(c[1].clone(), false), Err(VolumeError::UsedApart { .. })));
    drop(volume);
    assert!(matches!(refused(&c, &options()), VolumeError::UsedApart { .. }));
}

#[test]
fn a_member_that_was_absent_is_brought_up_to_date_by_the_bitmap() {
    let disks: Vec<_> = (0..2).map(|_| Disk::new(41 << 20, &Power::new())).collect();
    let c = named(&disks);
    create(&c, &CreateOptions::new(Kind::Mirror)).unwrap();
    let volume = open(&c, &options()).unwrap();
    write(&volume, 1);
    volume.close().unwrap();
    let volume = open(&c[..1], &degraded()).unwrap();
    write(&volume, 2);
    volume.write_at(IoKind::Data, 20 << 20, &[3; 4096]).unwrap();
    volume.close().unwrap();
    // Alone it is the past, and that is a choice; with the other one it is known to be.
    let volume = open(&c, &options()).unwrap();
    let mirror = volume.mirror().unwrap();
    assert_eq!(mirror.status().members[1].state, MemberState::Filling);
    assert_eq!(first_byte(&volume), 2);
    // Not yet filled, it is refused alone.
    let e = refused(&c[1..], &degraded());
    assert!(matches!(&e, VolumeError::OutOfDate { .. }), "{e}");
    assert!(mirror.resync(None, &mut |_| true).unwrap());
    assert_eq!(mirror.stats().resynced_bytes, 2 << 20, "two regions of 1 MiB");
    volume.close().unwrap();
    let volume = open(&c[1..], &degraded()).unwrap();
    assert_eq!(first_byte(&volume), 2);
}

#[test]
fn a_member_from_an_earlier_time_is_not_believed() {
    let disks = made(Kind::Mirror, 2);
    let c = named(&disks);
    let volume = open(&c, &options()).unwrap();
    write(&volume, 1);
    volume.close().unwrap();
    let old = disks[1].duplicate(&Power::new());
    let volume = open(&c, &options()).unwrap();
    write(&volume, 2);
    volume.close().unwrap();
    let mixed = named(&[disks[0].clone(), old]);
    let volume = open(&mixed, &options()).unwrap();
    assert_eq!(volume.mirror().unwrap().status().members[1].state, MemberState::Filling);
    assert_eq!(first_byte(&volume), 2);
    assert!(volume.mirror().unwrap().resync(None, &mut |_| true).unwrap());
    assert_eq!(first_byte(&open(&mixed[1..], &degraded()).unwrap()), 2);

    let disks = made(Kind::Stripe, 2);
    let old = disks[0].duplicate(&Power::new());
    drop(open(&named(&disks), &options()).unwrap());
    let e = refused(&named(&[old, disks[1].clone()]), &options());
    assert!(matches!(&e, VolumeError::Outdated { name, .. } if name == "disk0"), "{e}");
}

#[test]
fn devices_that_are_too_small_or_in_use_are_refused() {
    let disks = made(Kind::Mirror, 2);
    let c = named(&disks);
    let volume = open(&c, &options()).unwrap();
    let mirror = volume.mirror().unwrap();
    let small = Candidate::new("small", Disk::new(BYTES - 4096, &Power::new()));
    let e = mirror.add(small, false).unwrap_err();
    assert!(matches!(&e, VolumeError::TooSmall { have, need, .. } if (*have, *need) == (BYTES - 4096, BYTES)), "{e}");
    assert!(e.to_string().contains("small has"), "{e}");
    let other = named(&made(Kind::Stripe, 2));
    assert!(matches!(mirror.add(other[0].clone(), false), Err(VolumeError::InUse { .. })));
    assert!(matches!(create(&other, &CreateOptions::new(Kind::Mirror)), Err(VolumeError::InUse { .. })));
    assert!(matches!(mirror.add(c[0].clone(), false), Err(VolumeError::GivenTwice { .. })));
    assert!(matches!(
        create(&[Candidate::new("tiny", Disk::new(1 << 20, &Power::new()))], &CreateOptions::new(Kind::Concat)),
        Err(VolumeError::TooSmall { .. })
    ));
    for (kind, unit) in [(Kind::Mirror, 4096), (Kind::Stripe, 1000), (Kind::Stripe, 2 << 30)] {
        let options = CreateOptions { stripe_unit: unit, ..CreateOptions::new(kind) };
        assert!(matches!(create(&named(&self::disks(2)), &options), Err(VolumeError::Invalid(_))));
    }
    // A device that has become shorter.
    let shorter = Disk::new(BYTES / 2, &Power::new());
    shorter.overwrite(0, &disks[1].peek(0, 1 << 20));
    let e = refused(&[c[0].clone(), Candidate::new("shorter", shorter)], &options());
    assert!(matches!(&e, VolumeError::TooSmall { name, .. } if name == "shorter"), "{e}");
}

#[test]
fn members_are_added_replaced_and_removed_in_use() {
    let disks = made(Kind::Mirror, 1);
    let c = named(&disks);
    let volume = open(&c, &options()).unwrap();
    let mirror = volume.mirror().unwrap();
    write(&volume, 7);
    let first = mirror.status().members[0].uuid;
    assert!(matches!(mirror.remove(first), Err(VolumeError::Invalid(_))), "the last one stays");
    let new: Vec<_> = (0..3).map(|_| Disk::new(BYTES + 8192, &Power::new())).collect();
    let candidates = named(&new);
    mirror.add(candidates[0].clone(), false).unwrap();
    assert_eq!(mirror.status().members[1].state, MemberState::Filling);
    assert!(matches!(mirror.remove(first), Err(VolumeError::Invalid(_))), "the other one is not filled yet");
    let mut steps = 0;
    let stopped = mirror.resync(None, &mut |p| {
        steps += 1;
        p.done < 1 << 20
    });
    assert!(!stopped.unwrap() && steps == 1);
    assert!(mirror.resync(Some(1 << 40), &mut |_| true).unwrap());
    assert!(mirror.replace(first, candidates[1].clone(), false, None, &mut |_| true).unwrap());
    assert_eq!(probe(&*disks[0]).unwrap(), None);
    assert_eq!(first_byte(&volume), 7);
    volume.close().unwrap();
    drop(volume);
    let volume = open(&candidates[..2], &options()).unwrap();
    assert_eq!(first_byte(&volume), 7);
    let uuid = volume.mirror().unwrap().add(candidates[2].clone(), false).unwrap();
    volume.mirror().unwrap().remove(uuid).unwrap();
    assert_eq!(volume.copies(), 2);
    assert!(matches!(refused(&candidates, &options()), VolumeError::NotAMember { .. }));
}

#[test]
fn a_mirror_for_reading_only_changes_nothing() {
    let disks = made(Kind::Mirror, 2);
    let c = named(&disks);
    write(&open(&c, &options()).unwrap(), 9);
    let before: Vec<_> = disks.iter().map(|d| d.peek(0, BYTES as usize)).collect();
    let volume = open(&c, &OpenOptions { read_only: true, ..options() }).unwrap();
    assert_eq!(first_byte(&volume), 9);
    assert!(volume.read_only() && volume.write_at(IoKind::Data, 0, &[0; 512]).is_err());
    volume.flush().unwrap();
    volume.close().unwrap();
    assert!(volume.mirror().unwrap().resync(None, &mut |_| true).is_err());
    let after: Vec<_> = disks.iter().map(|d| d.peek(0, BYTES as usize)).collect();
    assert!(before == after);
}

/// A region in the bitmap is resynced after a crash, the others are not read.
#[test]
fn a_resync_after_a_crash_reads_what_the_bitmap_says() {
    let disks: Vec<_> = (0..2).map(|_| Disk::new(101 << 20, &Power::new())).collect();
    create(&named(&disks), &CreateOptions::new(Kind::Mirror)).unwrap();
    let volume = open(&named(&disks), &options()).unwrap();
    for region in [3, 50, 51] {
        volume.write_at(IoKind::Data, region << 20, &[1; 4096]).unwrap();
        volume.flush().unwrap();
    }
    assert_eq!(volume.mirror().unwrap().status().dirty_regions, 3);
    // What was not written for a while leaves the bitmap by itself.
    for _ in 0..40 {
        volume.write_at(IoKind::Data, 99 << 20, &[2; 4096]).unwrap();
        volume.flush().unwrap();
    }
    assert_eq!(volume.mirror().unwrap().status().dirty_regions, 1);
    let (power, mut rng) = (Power::new(), fastrand::Rng::with_seed(1));
    let crashed: Vec<_> = disks.iter().map(|d| d.crash(&mut rng, &power)).collect();
    let volume = open(&named(&crashed), &options()).unwrap();
    let mirror = volume.mirror().unwrap();
    assert!(mirror.needs_resync());
    crashed.iter().for_each(|d| d.read_bytes.store(0, std::sync::atomic::Ordering::SeqCst));
    assert!(mirror.resync(None, &mut |_| true).unwrap());
    let read: u64 = crashed.iter().map(|d| d.read_bytes.load(std::sync::atomic::Ordering::SeqCst)).sum();
    assert_eq!(read, 2 << 20, "one region of 1 MiB, from both");
    assert!(!mirror.needs_resync());
}
