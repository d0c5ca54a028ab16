//! Superblocks and bitmaps with any values and good checksums: refused or opened, never a panic.

use cffs_device::{Device, IoKind, MemoryDevice};
use cffs_volume::{Candidate, CreateOptions, Kind, OpenOptions, create, open};
use std::sync::Arc;

fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for b in bytes {
        crc ^= u32::from(*b);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}

#[test]
fn any_superblock_is_refused_or_opened() {
    let mut opened = 0;
    for seed in crate::seeds(400) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let kind = *rng.choice(&[Kind::Mirror, Kind::Stripe, Kind::Concat]).unwrap();
        let devices: Vec<_> = (0..2).map(|_| Arc::new(MemoryDevice::new(3 << 20))).collect();
        let candidates: Vec<_> =
            devices.iter().enumerate().map(|(i, d)| Candidate::new(format!("{i}"), d.clone())).collect();
        create(&candidates, &CreateOptions { stripe_unit: 0, ..CreateOptions::new(kind) }).unwrap();
        for d in &devices {
            let places: &[u64] = if kind == Kind::Mirror { &[0, 65536, 131_072, 196_608] } else { &[0, 65536] };
            let end = if rng.bool() { 220 } else { 120 };
            let changes: Vec<(usize, u8)> = (0..rng.usize(..3))
                .map(|_| (rng.usize(12..end), *[0, 1, 2, 0x7f, 0xff, rng.u8(..)].get(rng.usize(..6)).unwrap()))
                .collect();
            for at in places {
                let mut block = vec![0; 4096];
                d.read_at(IoKind::Super, *at, &mut block).unwrap();
                changes.iter().for_each(|(i, value)| block[*i] = *value);
                block[8..12].fill(0);
                let sum = crc32c(&block);
                block[8..12].copy_from_slice(&sum.to_le_bytes());
                d.write_at(IoKind::Super, *at, &block).unwrap();
            }
        }
        let options = OpenOptions { degraded: rng.bool(), depth: 1, ..OpenOptions::default() };
        if let Ok(volume) = open(&candidates, &options) {
            opened += 1;
            let mut bytes = vec![0; 8192];
            volume.read_at(IoKind::Data, volume.len() - 8192, &mut bytes).unwrap();
            volume.write_at(IoKind::Data, 0, &bytes).unwrap();
            volume.flush().unwrap();
            if let Some(mirror) = volume.mirror() {
                mirror.resync(None, &mut |_| true).unwrap();
            }
            volume.close().unwrap();
        }
    }
    assert!(opened > 40, "{opened}");
}
