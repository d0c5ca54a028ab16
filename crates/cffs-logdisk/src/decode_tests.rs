//! Summaries, nodes, checkpoints and superblocks with changed bytes and right checksums: no decoder panics, and what it accepts is encoded to bytes that it
//! decodes to the same.

use crate::batch::{SUMMARY_BYTES, Summary};
use crate::codec::WITHOUT_CHECKSUMS;
use crate::hostile_tests::{image, seeds, structures};
use crate::layouts::{CatalogLayout, DeadLayout, DeadListLayout, ForwardLayout, MapLayout, SegmentsLayout};
use crate::record::Record;
use crate::store::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use crate::tree::{Layout, NODE_BYTES, Node};
use cffs_device::{Device, IoKind, MemoryDevice};

/// Cases of a seed, all from the structures of one image.
const CASES: u64 = 10_000;

/// Decodes and encodes once more; whether it was accepted.
type Check = fn(&[u8]) -> bool;

fn summary(bytes: &[u8]) -> bool {
    let Ok(len) = Summary::length_of(&bytes[..SUMMARY_BYTES]) else { return false };
    let Some(Ok(decoded)) = bytes.get(..len).map(Summary::decode) else { return false };
    // Of an entry that is not known nothing is left to encode.
    let known = Summary { unknown: None, ..decoded };
    assert_eq!(Summary::decode(&known.encode()).unwrap(), known);
    true
}

fn node<L: Layout>(bytes: &[u8]) -> bool {
    // The level is known to whoever looks for a node.
    let level = bytes[5];
    let Ok(decoded) = Node::<L>::decode(&bytes[..NODE_BYTES], level) else { return false };
    let encoded = decoded.encode(level).unwrap();
    assert_eq!(Node::<L>::decode(&encoded, level).unwrap().encode(level).unwrap(), encoded);
    true
}

fn superblock(bytes: &[u8]) -> bool {
    let Ok(decoded) = Superblock::decode(&bytes[..SUPERBLOCK_BYTES]) else { return false };
    assert_eq!(Superblock::decode(&decoded.encode()).unwrap(), decoded);
    true
}

fn record(bytes: &[u8]) -> bool {
    let Ok(decoded) = Record::decode(bytes) else { return false };
    let encoded = decoded.encode().unwrap();
    assert_eq!(Record::decode(&encoded).unwrap().encode().unwrap(), encoded);
    true
}

/// The structures of an image that have a decoder.
fn corpus(device: &MemoryDevice) -> Vec<(Vec<u8>, Check)> {
    let nodes: [(u8, Check); 6] = [
        (MapLayout::TREE, node::<MapLayout>),
        (ForwardLayout::TREE, node::<ForwardLayout>),
        (SegmentsLayout::TREE, node::<SegmentsLayout>),
        (DeadLayout::TREE, node::<DeadLayout>),
        (DeadListLayout::TREE, node::<DeadListLayout>),
        (CatalogLayout::TREE, node::<CatalogLayout>),
    ];
    let of = |at: u64| {
        let mut bytes = vec![0; (device.len() - at).min(32 << 10) as usize];
        device.read_at(IoKind::Data, at, &mut bytes).unwrap();
        let check = match &bytes[..4] {
            _ if SUPERBLOCK_OFFSETS.contains(&at) => superblock as Check,
            b"CLB1" => summary,
            b"CLR1" => record,
            b"CLN1" => nodes.iter().find(|(tree, _)| *tree == bytes[4]).map(|(_, check)| *check)?,
            _ => return None,
        };
        (bytes.len() >= NODE_BYTES).then_some((bytes, check))
    };
    structures(device).into_iter().filter_map(of).collect()
}

fn damage(rng: &mut fastrand::Rng, bytes: &mut [u8]) {
    for _ in 0..rng.usize(1..=6) {
        let most = *rng.choice(&[64, 300, bytes.len()]).unwrap();
        let i = rng.usize(0..most.min(bytes.len()) - 8);
        let values = [0, 1, u64::MAX, u64::MAX / 2 + 1, rng.u64(..), rng.u64(..1000)];
        let value = *rng.choice(&values).unwrap();
        match rng.u32(0..4) {
            0 => bytes[i] = bytes[i].wrapping_add(1),
            n => bytes[i..i + (1 << n)].copy_from_slice(&value.to_le_bytes()[..1 << n]),
        }
    }
}

/// `CFFS_LOG_DECODE=from..to` for a campaign.
#[test]
fn decoders_take_any_bytes_with_good_checksums() {
    WITHOUT_CHECKSUMS.set(true);
    let (mut cases, mut accepted) = (0u64, 0u64);
    for seed in seeds("CFFS_LOG_DECODE", 10) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let good = corpus(&image(&mut rng));
        good.iter().for_each(|(bytes, check)| assert!(check(bytes), "seed {seed}: a structure of a good image"));
        for case in 0..CASES {
            let (bytes, check) = rng.choice(&good).unwrap();
            let mut bytes = bytes.clone();
            damage(&mut rng, &mut bytes);
            match std::panic::catch_unwind(|| check(&bytes)) {
                Ok(right) => accepted += u64::from(right),
                Err(e) => {
                    eprintln!("seed {seed}, case {case}");
                    std::panic::resume_unwind(e);
                }
            }
        }
        cases += CASES;
    }
    WITHOUT_CHECKSUMS.set(false);
    println!("{cases} cases, {accepted} of them accepted");
    assert!(accepted > cases / 10 && accepted < cases, "{accepted} of {cases} are accepted");
}
