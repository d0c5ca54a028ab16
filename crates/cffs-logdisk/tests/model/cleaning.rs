//! What the cleaner copies.

use cffs_device::{Device, IoKind, MemoryDevice};
use cffs_logdisk::{BLOCK_BYTES, CleanPolicy, ImageOptions, ImageStore, LogDisk, LogOptions};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Bytes that the cleaner copies for each byte written, once that is steady. `live` is the share of the capacity that is in use; `hot` of the writes go
/// to `hot_part` of the data.
fn copied(policy: CleanPolicy, live: f64, hot: f64, hot_part: f64) -> f64 {
    let device = Arc::new(MemoryDevice::new(513 * (256 << 10)));
    let store = Arc::new(ImageStore::format(device, &ImageOptions { uuid: [7; 16], slot_bytes: 256 << 10 }).unwrap());
    let capacity = 512 * (256u64 << 10);
    let options = LogOptions { policy, batch_bytes: 240 << 10, ..LogOptions::default() };
    let disk = LogDisk::format(store, 1 << 40, &options).unwrap();
    let blocks = (capacity as f64 * live / BLOCK as f64) as u64;
    let data = [7; BLOCK_BYTES];
    for i in 0..blocks {
        disk.write_at(IoKind::Data, i * BLOCK, &data).unwrap();
    }
    let mut rng = fastrand::Rng::with_seed(1);
    let hot_blocks = (blocks as f64 * hot_part) as u64;
    let mut run = |writes: u64| {
        let before = disk.stats();
        for _ in 0..writes {
            let block = if rng.f64() < hot { rng.u64(0..hot_blocks) } else { rng.u64(hot_blocks..blocks) };
            disk.write_at(IoKind::Data, block * BLOCK, &data).unwrap();
        }
        let after = disk.stats();
        (after.cleaned - before.cleaned) as f64 / (after.accepted - before.accepted) as f64
    };
    run(3 * blocks);
    run(2 * blocks)
}

#[test]
#[ignore = "prints figures; takes a while"]
fn figures() {
    for live in [0.5, 0.6, 0.7, 0.8] {
        for policy in [CleanPolicy::Greedy, CleanPolicy::CostBenefit, CleanPolicy::Generations] {
            let even = copied(policy, live, 0.5, 0.5);
            let skewed = copied(policy, live, 0.9, 0.1);
            eprintln!("{live} live, {policy:?}: even {even:.3}, 90% of the writes to 10%: {skewed:.3}");
        }
    }
}
