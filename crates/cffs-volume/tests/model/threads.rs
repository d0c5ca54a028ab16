//! Several threads on one mirror.

use cffs_device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation, WriteRequest};
use cffs_volume::{Candidate, CreateOptions, Kind, MemberState, OpenOptions, create, open};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Writers of the same places, batches, readers, a resync, a member that fails and one that comes: at the end all are equal.
#[test]
fn writers_of_the_same_places_leave_equal_copies() {
    for seed in crate::seeds(4) {
        let devices: Vec<_> =
            (0..3).map(|_| Arc::new(FailingDevice::new(Arc::new(MemoryDevice::new(4 << 20))))).collect();
        let candidates: Vec<_> =
            devices.iter().enumerate().map(|(i, d)| Candidate::new(format!("{i}"), d.clone())).collect();
        create(&candidates, &CreateOptions::new(Kind::Mirror)).unwrap();
        let volume = open(&candidates, &OpenOptions::default()).unwrap();
        let mirror = volume.mirror().unwrap();
        let written = vec![0u8; volume.len() as usize];
        volume.write_at(IoKind::Data, 0, &written).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            let threads: Vec<_> = (0..3u64)
                .map(|t| {
                    let volume = &volume;
                    s.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(seed * 100 + t);
                        for i in 0..300 {
                            let at = rng.u64(..60) * 4096;
                            let bytes = vec![rng.u8(1..); 4096 * rng.usize(1..8)];
                            match i % 5 {
                                0 => volume.flush().unwrap(),
                                1 => volume.read_at(IoKind::Data, at, &mut bytes.clone()).unwrap(),
                                2 => {
                                    let request = |at| WriteRequest {
                                        kind: IoKind::Data,
                                        offset: at,
                                        bufs: vec![IoSlice::new(&bytes)],
                                    };
                                    volume.write_batch(&[request(at), request((at + 40960) % 200_704)]).unwrap();
                                }
                                _ => volume.write_at(IoKind::Data, at, &bytes).unwrap(),
                            }
                        }
                    })
                })
                .collect();
            s.spawn(|| {
                // Fails, is dropped by whoever notices, and comes back.
                devices[2].set(Operation::Write, Fault::from_nth(50));
                while !stop.load(Ordering::SeqCst) {
                    if mirror.status().members[2].state == MemberState::Absent {
                        devices[2].clear();
                        mirror.add(candidates[2].clone(), false).unwrap();
                        mirror.resync(None, &mut |_| true).unwrap();
                    }
                    std::thread::yield_now();
                }
            });
            threads.into_iter().for_each(|t| t.join().unwrap());
            stop.store(true, Ordering::SeqCst);
        });
        devices[2].clear();
        if mirror.status().members[2].state == MemberState::Absent {
            mirror.add(candidates[2].clone(), false).unwrap();
        }
        assert!(mirror.resync(None, &mut |_| true).unwrap());
        volume.close().unwrap();
        assert_eq!(mirror.status().dirty_regions, 0);
        let data = |i: usize| {
            let mut bytes = vec![0; volume.len() as usize];
            devices[i].read_at(IoKind::Data, 1 << 20, &mut bytes).unwrap();
            bytes
        };
        assert!(data(0) == data(1) && data(0) == data(2), "seed {seed}");
    }
}
