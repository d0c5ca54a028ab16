//! What the cleaner copies.

use cffs_device::{CountingDevice, Device, IoKind, MemoryDevice, Purpose, PurposeStats};
use cffs_logdisk::{BLOCK_BYTES, CleanPolicy, ImageOptions, ImageStore, LogDisk, LogOptions};
use std::sync::Arc;

const SLOTS: u64 = 256;
const SLOT_BYTES: u64 = 256 << 10;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// Bytes that the cleaner copies for each byte written, once that is steady. `live` is the share of the capacity that is in use; `hot` of the writes go
/// to `hot_part` of the data.
fn copied(policy: CleanPolicy, live: f64, hot: f64, hot_part: f64) -> f64 {
    let device = Arc::new(MemoryDevice::new(SLOTS * SLOT_BYTES + SLOT_BYTES));
    let store = Arc::new(ImageStore::format(device, &ImageOptions { uuid: [7; 16], slot_bytes: SLOT_BYTES }).unwrap());
    let capacity = SLOTS * SLOT_BYTES;
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
    run(2 * blocks);
    run(blocks)
}

/// Where few blocks get most of the writes, old segments are worth cleaning while more lives in them.
#[test]
fn who_looks_at_the_age_copies_much_less_where_few_blocks_are_hot() {
    let [greedy, by_age] = [CleanPolicy::Greedy, CleanPolicy::Generations].map(|policy| copied(policy, 0.7, 0.9, 0.1));
    assert!(by_age > 0.0 && by_age <= 0.8 * greedy, "{by_age} bytes are copied for each byte written, greedy {greedy}");
}

/// Where all blocks are alike there is nothing to be known of them.
#[test]
fn greedy_copies_least_where_all_blocks_are_alike() {
    let [greedy, by_age] = [CleanPolicy::Greedy, CleanPolicy::CostBenefit].map(|policy| copied(policy, 0.6, 0.5, 0.5));
    assert!(greedy > 0.0 && greedy <= by_age, "{greedy} bytes are copied for each byte written, by age {by_age}");
}

/// With `CFFS_LOG_POLICIES=1` all figures are printed, for `docs`.
#[test]
fn figures_of_all_policies() {
    if std::env::var_os("CFFS_LOG_POLICIES").is_none() {
        return;
    }
    for (name, hot, part) in [("even", 0.5, 0.5), ("90% of the writes to 10%", 0.9, 0.1)] {
        for live in [0.6, 0.7, 0.8] {
            let policies = [CleanPolicy::Greedy, CleanPolicy::CostBenefit, CleanPolicy::Generations];
            eprintln!("{name}, {live} live: {:.3?}", policies.map(|policy| copied(policy, live, hot, part)));
        }
    }
}

/// Who counts or traces the requests of the store can tell what the cleaner makes.
#[test]
fn requests_of_the_cleaner_have_its_purpose() {
    let counted = Arc::new(CountingDevice::new(Arc::new(MemoryDevice::new(64 * SLOT_BYTES))));
    let image = ImageOptions { uuid: [7; 16], slot_bytes: SLOT_BYTES };
    let store = Arc::new(ImageStore::format(counted.clone(), &image).unwrap());
    let disk = LogDisk::format(store, 1 << 40, &LogOptions::default()).unwrap();
    for i in 0..1000 {
        disk.write_at(IoKind::Data, i * BLOCK, &[1; BLOCK_BYTES]).unwrap();
    }
    for i in (0..1000).filter(|i| i % 4 > 0) {
        disk.write_at(IoKind::Data, i * BLOCK, &[2; BLOCK_BYTES]).unwrap();
    }
    disk.checkpoint().unwrap();
    assert_eq!(counted.snapshot().purpose(Purpose::Clean), &PurposeStats::default());
    let before = counted.snapshot();
    let copied = disk.clean_step(1 << 20).unwrap().copied;
    let made = counted.snapshot().since(&before);
    let clean = made.purpose(Purpose::Clean);
    assert!(copied > 0 && clean.read_bytes >= copied && clean.write_bytes >= copied, "{clean:?}");
    assert_eq!(clean.write_bytes, made.all().write_bytes, "all of it is the cleaner's");
}
