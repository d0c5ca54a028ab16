//! Disks that are filled to the last block and emptied, again and again: nothing but a write ever fails, and a write only before it was
//! accepted.

use cffs_device::{Device, IoKind, MemoryDevice};
use cffs_logdisk::{BLOCK_BYTES, CleanPolicy, Compression, ImageOptions, ImageStore, LogDisk, LogOptions, MAIN_BRANCH};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;

struct Case {
    slots: u64,
    slot_bytes: u64,
    compression: Compression,
    policy: CleanPolicy,
    snapshots: bool,
    seed: u64,
}

struct Filler {
    disk: LogDisk,
    rng: fastrand::Rng,
    /// Block -> seed of its contents.
    model: BTreeMap<u64, u64>,
    snapshots: Vec<(u64, BTreeMap<u64, u64>)>,
    next: u64,
    /// How far apart blocks are.
    space: u64,
}

/// Every third block compresses well.
fn block(seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    if seed.is_multiple_of(3) {
        let word = rng.u64(..).to_le_bytes();
        return word.iter().copied().cycle().take(BLOCK_BYTES).collect();
    }
    (0..BLOCK_BYTES / 8).flat_map(|_| rng.u64(..).to_le_bytes()).collect()
}

impl Filler {
    /// Writes a run; false if there is no space. A run that is longer than a batch is accepted in pieces, and the first ones stay.
    fn write(&mut self, at: u64, blocks: u64) -> bool {
        let seeds: Vec<u64> = (0..blocks).map(|i| self.next + i).collect();
        self.next += blocks;
        let data: Vec<u8> = seeds.iter().flat_map(|&s| block(s)).collect();
        match self.disk.write_at(IoKind::Data, at * BLOCK, &data) {
            Ok(()) => {
                self.model.extend(seeds.iter().enumerate().map(|(i, &s)| (at + i as u64, s)));
                true
            }
            Err(e) => {
                assert_eq!(e.kind(), io::ErrorKind::StorageFull, "{e}");
                let mut old = vec![0; BLOCK_BYTES];
                let accepted = |(i, seed): &(usize, &u64)| {
                    self.disk.read_at(IoKind::Data, (at + *i as u64) * BLOCK, &mut old).unwrap();
                    old == block(**seed)
                };
                let pieces = seeds.iter().enumerate().take_while(accepted).count();
                assert!(pieces < seeds.len(), "it was accepted, and has failed");
                self.model.extend(seeds[..pieces].iter().enumerate().map(|(i, &s)| (at + i as u64, s)));
                false
            }
        }
    }

    fn discard(&mut self, at: u64, blocks: u64) {
        let doing = format!("{:?} {:?}", self.disk.space(), self.disk.stats());
        self.disk.discard(at * BLOCK, blocks.saturating_mul(BLOCK)).unwrap_or_else(|e| panic!("discard: {e}, {doing}"));
        let gone: Vec<u64> = self.model.range(at..at.saturating_add(blocks)).map(|(k, _)| *k).collect();
        for k in gone {
            self.model.remove(&k);
        }
    }

    fn delete_snapshots(&mut self, keep: usize) {
        while self.snapshots.len() > keep {
            let i = self.rng.usize(0..self.snapshots.len());
            let (id, _) = self.snapshots.swap_remove(i);
            self.disk.delete_snapshot(id).unwrap();
            while self.disk.delete_step(50).unwrap() {}
        }
    }

    fn compare(&mut self, every: usize) {
        let check = |device: &dyn Device, model: &BTreeMap<u64, u64>| {
            let mut data = vec![0; BLOCK_BYTES];
            for (at, seed) in model.iter().step_by(every) {
                device.read_at(IoKind::Data, at * BLOCK, &mut data).unwrap();
                assert!(data == block(*seed), "block {at}");
            }
        };
        check(&self.disk, &self.model);
        for (id, model) in &self.snapshots {
            check(&self.disk.open_snapshot(*id).unwrap(), model);
        }
    }

    fn sound(&self) {
        let problems = self.disk.check(true).unwrap();
        assert!(problems.is_empty(), "{problems:#?}");
    }

    fn round(&mut self, round: u64, snapshots: bool) -> u64 {
        // Fill: far apart, in runs, or close together.
        let mut failed = 0;
        while failed < 3 {
            let (at, n) = match round % 3 {
                0 => (self.rng.u64(0..self.space) * 64, 1),
                1 => (self.rng.u64(0..self.space), self.rng.u64(1..24)),
                _ => (self.next % self.space, 8),
            };
            failed = if self.write(at, n) { 0 } else { failed + 1 };
            if self.rng.u32(0..40) == 0 {
                self.disk.flush().unwrap();
            }
            if snapshots && self.rng.u32(0..60) == 0 && self.snapshots.len() < 6 {
                match self.disk.snapshot(MAIN_BRANCH, "s") {
                    Ok(id) => self.snapshots.push((id, self.model.clone())),
                    Err(e) => assert_eq!(e.kind(), io::ErrorKind::StorageFull),
                }
            }
        }
        self.disk.flush().unwrap();
        let live = self.disk.space().live;
        // Overwrite what is there, and take away scattered blocks.
        let there: Vec<u64> = self.model.keys().copied().collect();
        for _ in 0..there.len() / 2 {
            let at = *self.rng.choice(&there).unwrap();
            if self.rng.u32(0..4) == 0 {
                self.discard(at, 1);
            } else {
                self.write(at, 1);
            }
            if self.rng.u32(0..30) == 0 {
                self.disk.flush().unwrap();
            }
        }
        self.disk.flush().unwrap();
        if round.is_multiple_of(10) {
            self.compare(7);
            self.sound();
        }
        // Many small discards of neighbours first, then all.
        for &at in there.iter().take(there.len() / 3) {
            self.discard(at, 1);
        }
        self.discard(0, u64::MAX / BLOCK);
        self.disk.flush().unwrap();
        if snapshots {
            let keep = if round % 2 == 1 { 0 } else { 1 };
            self.delete_snapshots(keep);
        }
        live
    }
}

fn run(case: &Case, rounds: u64) {
    let device = Arc::new(MemoryDevice::new(case.slots * case.slot_bytes + (1 << 20)));
    let image = ImageOptions { uuid: [7; 16], slot_bytes: case.slot_bytes };
    let store = Arc::new(ImageStore::format(device, &image).unwrap());
    let options = LogOptions {
        compression: case.compression,
        policy: case.policy,
        batch_bytes: 64 * BLOCK_BYTES,
        checkpoint_bytes: 4 << 20,
        cache_nodes: 256,
        ..LogOptions::default()
    };
    let capacity = case.slots * case.slot_bytes;
    let mut f = Filler {
        disk: LogDisk::format(store.clone(), 1 << 50, &options).unwrap(),
        rng: fastrand::Rng::with_seed(case.seed),
        model: BTreeMap::new(),
        snapshots: Vec::new(),
        next: 1,
        space: 2 * capacity / BLOCK,
    };
    for round in 0..rounds {
        // What was compressed is copied by a disk that does not compress, and the other way round.
        if case.compression != Compression::None && round % 5 == 4 {
            f.disk.flush().unwrap();
            let compression = if round % 10 == 4 { Compression::None } else { case.compression };
            f.disk = LogDisk::open(store.clone(), &LogOptions { compression, ..options.clone() }).unwrap();
            // What of a deletion was in no checkpoint is done again.
            while f.disk.delete_step(50).unwrap() {}
        }
        let live = f.round(round, case.snapshots);
        if !case.snapshots && case.compression == Compression::None {
            assert!(live > capacity / 2, "round {round}: only {live} of {capacity} bytes could be used");
        }
    }
    f.delete_snapshots(0);
    (0..2).for_each(|_| f.disk.checkpoint().unwrap());
    f.sound();
    let (space, stats) = (f.disk.space(), f.disk.stats());
    assert!(space.live < 64 * BLOCK, "{space:?}, {stats:?}");
    assert_eq!(stats.damaged_segments, 0);
    eprintln!(
        "{} slots of {} KiB, {:?}, {:?}, snapshots {}, seed {}: {} MB written, {} MB copied, {} MB to the store",
        case.slots,
        case.slot_bytes >> 10,
        case.compression,
        case.policy,
        case.snapshots,
        case.seed,
        stats.accepted >> 20,
        stats.cleaned >> 20,
        stats.written >> 20
    );
}

/// `CFFS_LOG_REFILL=from..to` for a campaign: seeds, each with 100 rounds.
#[test]
fn a_disk_is_filled_overwritten_and_emptied_a_hundred_times() {
    let asked = std::env::var("CFFS_LOG_REFILL").ok();
    let asked = asked.as_deref().and_then(|s| s.split_once("..")).map(|(a, b)| (a.parse(), b.parse()));
    let (seeds, rounds) = match asked {
        Some((Ok(a), Ok(b))) => ((a..b).collect(), 100),
        // In the last one a write of several pieces fails at the second.
        _ => ((0..6).chain([108]).collect::<Vec<u64>>(), 12),
    };
    for seed in seeds {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (slots, slot_bytes) =
            *rng.choice(&[(64, 64 << 10), (96, 64 << 10), (300, 64 << 10), (64, 256 << 10)]).unwrap();
        let case = Case {
            slots,
            slot_bytes,
            compression: [Compression::None, Compression::Lz4, Compression::Zstd(1)][(seed / 2 % 3) as usize],
            policy: *rng.choice(&[CleanPolicy::Greedy, CleanPolicy::CostBenefit, CleanPolicy::Generations]).unwrap(),
            snapshots: seed % 2 == 1,
            seed,
        };
        if let Err(e) = std::panic::catch_unwind(|| run(&case, rounds)) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(e);
        }
    }
}
