//! Stripes and concatenations against plain memory.

use cffs_device::{
    CountingDevice, Device, DeviceSpace, FailingDevice, Fault, IoKind, MemoryDevice, Operation, Purpose, ReadRequest,
    WriteRequest,
};
use cffs_volume::{Candidate, CreateOptions, Kind, OpenOptions, Volume, create, open};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

const OFFSET: u64 = 1 << 20;

fn volume(kind: Kind, unit: u64, lens: &[u64], depth: usize) -> (Vec<Arc<CountingDevice<MemoryDevice>>>, Volume) {
    let devices: Vec<_> =
        lens.iter().map(|len| Arc::new(CountingDevice::new(MemoryDevice::new(OFFSET + len)))).collect();
    let mut candidates: Vec<Candidate> =
        devices.iter().enumerate().map(|(i, d)| Candidate::new(format!("disk{i}"), d.clone())).collect();
    create(&candidates, &CreateOptions { stripe_unit: unit, ..CreateOptions::new(kind) }).unwrap();
    candidates.reverse();
    let volume = open(&candidates, &OpenOptions { depth, ..OpenOptions::default() }).unwrap();
    (devices, volume)
}

#[test]
fn lengths_are_what_the_members_give() {
    let (_, v) = volume(Kind::Stripe, 64 << 10, &[1 << 20, (1 << 20) + 70_000, 2 << 20], 1);
    assert_eq!((v.len(), v.kind(), v.stripe_unit()), (3 << 20, Kind::Stripe, 64 << 10));
    let (_, v) = volume(Kind::Concat, 0, &[1 << 20, (1 << 20) + 5000, 2 << 20], 1);
    assert_eq!(v.len(), (4 << 20) + 4096);
    let (_, v) = volume(Kind::Mirror, 0, &[3 << 20, (1 << 20) + 5000], 1);
    assert_eq!(v.len(), (1 << 20) + 4096);
}

#[test]
fn random_requests_find_what_was_written() {
    for seed in crate::seeds(30) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let lens: Vec<u64> = (0..rng.usize(1..6)).map(|_| rng.u64(20..200) * 4096).collect();
        let kind = if rng.bool() { Kind::Stripe } else { Kind::Concat };
        let unit = if kind == Kind::Stripe { *rng.choice(&[4096, 8192, 12288, 65536]).unwrap() } else { 0 };
        let depth = *rng.choice(&[1, 4]).unwrap();
        let (_, volume) = volume(kind, unit, &lens, depth);
        let flat = MemoryDevice::new(volume.len());
        let range = |rng: &mut fastrand::Rng| {
            let sectors = volume.len() / 512;
            let first = rng.u64(..sectors);
            let n = rng.u64(1..=(sectors - first).min(400));
            (first * 512, (n * 512) as usize)
        };
        for step in 0..60u8 {
            match rng.u32(..5) {
                0 => {
                    let (at, n) = range(&mut rng);
                    let bytes: Vec<u8> = (0..n).map(|i| (i / 100) as u8 ^ step).collect();
                    let part = rng.usize(1..=n);
                    let bufs: Vec<IoSlice<'_>> = bytes.chunks(part).map(IoSlice::new).collect();
                    volume.write_vectored(IoKind::Data, at, &bufs).unwrap();
                    flat.write_vectored(IoKind::Data, at, &bufs).unwrap();
                }
                1 => {
                    // Requests of a batch that overlap have no order.
                    let (at, n) = range(&mut rng);
                    let bytes: Vec<u8> = (0..n).map(|i| (i / 90) as u8 ^ step).collect();
                    let part = rng.usize(1..=n / 512) * 512;
                    let request = |(i, b)| WriteRequest {
                        kind: IoKind::Meta,
                        offset: at + (i * part) as u64,
                        bufs: vec![IoSlice::new(b)],
                    };
                    let batch: Vec<_> = bytes.chunks(part).enumerate().map(request).collect();
                    volume.write_batch(&batch).unwrap();
                    flat.write_batch(&batch).unwrap();
                }
                2 => {
                    let (at, n) = range(&mut rng);
                    let (mut a, mut b) = (vec![1; n], vec![2; n]);
                    let part = rng.usize(1..=n);
                    let mut bufs: Vec<IoSliceMut<'_>> = a.chunks_mut(part).map(IoSliceMut::new).collect();
                    volume.read_vectored(IoKind::Data, at, &mut bufs).unwrap();
                    flat.read_at(IoKind::Data, at, &mut b).unwrap();
                    assert!(a == b, "seed {seed}, step {step}");
                }
                3 => {
                    let ranges: Vec<_> = (0..rng.usize(1..6)).map(|_| range(&mut rng)).collect();
                    let mut bufs: Vec<Vec<u8>> = ranges.iter().map(|(_, n)| vec![1; *n]).collect();
                    let mut batch: Vec<_> = ranges
                        .iter()
                        .zip(&mut bufs)
                        .map(|((offset, _), buf)| ReadRequest { kind: IoKind::Data, offset: *offset, buf })
                        .collect();
                    volume.read_batch(&mut batch).unwrap();
                    for ((at, n), found) in ranges.iter().zip(&bufs) {
                        let mut b = vec![2; *n];
                        flat.read_at(IoKind::Data, *at, &mut b).unwrap();
                        assert!(*found == b, "seed {seed}, step {step}");
                    }
                }
                _ => {
                    // Memory reads zeros after a discard.
                    let (at, n) = range(&mut rng);
                    volume.discard(at, n as u64).unwrap();
                    flat.discard(at, n as u64).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_unit_stays_one_request_and_a_long_one_is_one_for_each_member() {
    let (devices, volume) = volume(Kind::Stripe, 1 << 20, &[16 << 20; 4], 4);
    let counts = |d: &CountingDevice<MemoryDevice>| d.snapshot().kinds[2].read_requests;
    let before: Vec<u64> = devices.iter().map(|d| counts(d)).collect();
    let mut group = vec![0; 1 << 20];
    volume.read_at(IoKind::Data, 5 << 20, &mut group).unwrap();
    let after: Vec<u64> = devices.iter().map(|d| counts(d)).collect();
    assert_eq!(after.iter().zip(&before).map(|(a, b)| a - b).collect::<Vec<_>>(), [0, 1, 0, 0]);
    let mut long = vec![0; 8 << 20];
    volume.read_at(IoKind::Data, 0, &mut long).unwrap();
    let end: Vec<u64> = devices.iter().map(|d| counts(d)).collect();
    assert_eq!(end.iter().zip(&after).map(|(a, b)| a - b).collect::<Vec<_>>(), [1; 4]);
}

/// Requests of a volume are made by several threads; whoever counts those of the members knows what for all the same.
#[test]
fn members_are_asked_for_the_purpose_of_the_request() {
    for (kind, unit) in [(Kind::Stripe, 64 << 10), (Kind::Mirror, 0)] {
        let (devices, volume) = volume(kind, unit, &[16 << 20; 3], 4);
        let counted = || devices.iter().map(|d| d.snapshot()).collect::<Vec<_>>();
        let (before, told_before) = (counted(), volume.disks());
        let mut bytes = vec![5; 3 << 20];
        {
            let _purpose = Purpose::Regroup.scope();
            volume.write_at(IoKind::Data, 0, &bytes).unwrap();
        }
        let _purpose = Purpose::Prefetch.scope();
        volume.read_at(IoKind::Data, 0, &mut bytes).unwrap();
        volume.flush().unwrap();
        for ((now, before), (told, told_before)) in
            counted().iter().zip(&before).zip(volume.disks().iter().zip(&told_before))
        {
            let (made, told) = (now.since(before), told.stats.since(&told_before.stats));
            assert_eq!(made.purposes, told.purposes, "{kind}: the volume counts what the member was asked");
            assert!(made.purpose(Purpose::Regroup).write_bytes >= 1 << 20, "{kind}: {made:?}");
            assert_eq!(made.purpose(Purpose::Regroup).write_requests, made.all().write_requests, "{kind}: {made:?}");
            assert_eq!(made.purpose(Purpose::Prefetch).read_requests, made.all().read_requests, "{kind}: {made:?}");
            assert_eq!(made.purpose(Purpose::Demand), &Default::default(), "{kind}: {made:?}");
        }
    }
}

#[test]
fn an_error_of_one_member_is_the_error_of_the_request() {
    let bad = Arc::new(FailingDevice::new(Arc::new(MemoryDevice::new(4 << 20))));
    let candidates = [Candidate::new("a", Arc::new(MemoryDevice::new(4 << 20))), Candidate::new("b", bad.clone())];
    create(&candidates, &CreateOptions { stripe_unit: 4096, ..CreateOptions::new(Kind::Stripe) }).unwrap();
    let volume = open(&candidates, &OpenOptions::default()).unwrap();
    for operation in [Operation::Read, Operation::Write, Operation::Flush] {
        bad.set(operation, Fault::from_now_on());
    }
    let mut bytes = vec![0; 8192];
    assert!(volume.read_at(IoKind::Data, 0, &mut bytes).is_err());
    assert!(volume.write_at(IoKind::Data, 0, &bytes).is_err());
    assert!(volume.flush().is_err());
    assert!(volume.read_at(IoKind::Data, 0, &mut bytes[..4096]).is_ok());
    assert!(volume.write_at(IoKind::Data, volume.len(), &bytes).is_err());
}

/// Members may themselves be mirrors: their copies can be asked for, and repaired.
#[test]
fn copies_of_members_are_copies_of_the_volume() {
    let options = OpenOptions { depth: 1, ..OpenOptions::default() };
    let halves: Vec<Vec<Arc<MemoryDevice>>> =
        (0..2).map(|_| (0..2).map(|_| Arc::new(MemoryDevice::new(OFFSET + (2 << 20)))).collect()).collect();
    let mirrors: Vec<Arc<Volume>> = halves
        .iter()
        .map(|pair| {
            let c: Vec<Candidate> = pair.iter().map(|d| Candidate::new("disk", d.clone())).collect();
            create(&c, &CreateOptions::new(Kind::Mirror)).unwrap();
            Arc::new(open(&c, &options).unwrap())
        })
        .collect();
    let members: Vec<Candidate> =
        mirrors.iter().enumerate().map(|(i, m)| Candidate::new(format!("mirror{i}"), m.clone())).collect();
    create(&members, &CreateOptions { stripe_unit: 65536, ..CreateOptions::new(Kind::Stripe) }).unwrap();
    let volume = open(&members, &options).unwrap();
    assert_eq!(volume.copies(), 2);
    let right: Vec<u8> = (0..262_144).map(|i| (i / 512) as u8).collect();
    volume.write_at(IoKind::Data, 0, &right).unwrap();
    volume.flush().unwrap();
    // The data of the stripe begins 1 MiB behind that of the mirror.
    halves[1][0].write_at(IoKind::Data, 2 * OFFSET, &[0xee; 4096]).unwrap();
    let mut found = vec![0; right.len()];
    volume.read_copy(IoKind::Data, 0, 0, &mut found).unwrap();
    assert!(found != right);
    volume.read_copy(IoKind::Data, 1, 0, &mut found).unwrap();
    assert!(found == right);
    assert!(!volume.repair(IoKind::Data, 1, 0, &[1; 131_072]).unwrap(), "that is not there");
    assert!(volume.repair(IoKind::Data, 1, 0, &right).unwrap());
    volume.read_copy(IoKind::Data, 0, 0, &mut found).unwrap();
    assert!(found == right);
    assert!(volume.read_copy(IoKind::Data, 2, 0, &mut found).is_err());
    volume.finish().unwrap();
    assert!(mirrors.iter().all(|m| m.mirror().unwrap().status().dirty_regions == 0), "the members are finished too");
}

/// A device that says how much it has, or whether it has an arm.
struct Telling(MemoryDevice, Option<DeviceSpace>, bool);

impl Device for Telling {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn sector_size(&self) -> u32 {
        self.0.sector_size()
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> std::io::Result<()> {
        self.0.read_vectored(kind, offset, bufs)
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> std::io::Result<()> {
        self.0.write_vectored(kind, offset, bufs)
    }
    fn flush(&self) -> std::io::Result<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.0.discard(offset, len)
    }
    fn space(&self) -> Option<DeviceSpace> {
        self.1
    }
    fn is_rotational(&self) -> bool {
        self.2
    }
}

fn both_of(kind: Kind, devices: [Telling; 2]) -> Volume {
    let c: Vec<Candidate> = devices.into_iter().map(|d| Candidate::new("telling", Arc::new(d))).collect();
    create(&c, &CreateOptions::new(kind)).unwrap();
    open(&c, &OpenOptions { depth: 1, ..OpenOptions::default() }).unwrap()
}

/// What thin members can take together is known above.
#[test]
fn the_space_of_thin_members_is_told() {
    let space =
        |free| DeviceSpace { total: 1 << 20, free, unit: 4096, unit_cost: 4096, keeps_old: false, keeps_room: true };
    for (kind, free) in [(Kind::Mirror, 100 << 12), (Kind::Stripe, 200 << 12), (Kind::Concat, 150 << 12)] {
        let second = if kind == Kind::Concat { 50 } else { 300 };
        let thin = [100, second].map(|n| Telling(MemoryDevice::new(3 << 20), Some(space(n << 12)), true));
        let volume = both_of(kind, thin);
        assert_eq!(volume.space().map(|s| s.free), Some(free), "{kind}");
    }
}

#[test]
fn one_arm_makes_a_volume_one_with_an_arm() {
    for kind in [Kind::Mirror, Kind::Stripe, Kind::Concat] {
        for arms in [[false, false], [false, true], [true, false], [true, true]] {
            let volume = both_of(kind, arms.map(|arm| Telling(MemoryDevice::new(3 << 20), None, arm)));
            assert_eq!(volume.is_rotational(), arms.contains(&true), "{kind} of {arms:?}");
        }
    }
}
