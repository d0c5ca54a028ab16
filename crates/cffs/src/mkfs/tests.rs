use super::*;
use crate::error::Error;
use crate::format::ag::{BITMAP_BITS, ag_free, free_runs};
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::log::{LOG_HEADER_AREA, LogHeader};
use crate::format::system::Counters;
use crate::format::{
    BlockAddr, BlockId, BlockKind, Geometry, Inode, LAST_SYSTEM_INO, ROOT_INO, Superblock, crc_ok, verify_block,
};
use cffs_device::{CountingDevice, Device, IoKind, MemoryDevice};
use std::sync::Arc;

fn options() -> MkfsOptions {
    MkfsOptions { now_ns: Some(1_000_000_007), ..MkfsOptions::default() }
}

fn block(dev: &dyn Device, g: &Geometry, addr: BlockAddr) -> Vec<u8> {
    let mut b = vec![0; g.block_size()];
    dev.read_at(IoKind::Meta, addr << g.block_shift, &mut b).unwrap();
    b
}

/// Everything that a new image has to say, read back.
fn verify(dev: &dyn Device, log: Option<&dyn Device>, sb: &Superblock) {
    assert_eq!(&read_superblock(dev).unwrap(), sb);
    let g = Geometry::new(sb).unwrap();
    let header = block(dev, &g, g.ag_header(0));
    verify_block(&header, g.fsid, BlockId { kind: BlockKind::AgHeader, addr: 1, owner: 0 }).unwrap();
    let log_blocks = if log.is_some() { 0 } else { sb.log_blocks };
    let used = (g.fixed_blocks_of_ag0() + log_blocks) * g.frags_per_block();
    let frags = g.ag_len(0) * g.frags_per_block();
    assert_eq!(ag_free(&header), frags - used);
    for i in 0..g.bitmap_blocks() {
        let addr = g.bitmap_block(0, i);
        let b = block(dev, &g, addr);
        verify_block(&b, g.fsid, BlockId { kind: BlockKind::Bitmap, addr, owner: 0 }).unwrap();
        let first = i * g.bits_per_bitmap();
        let runs: Vec<_> = free_runs(&b[BITMAP_BITS..], g.bits_per_bitmap()).collect();
        let (from, to) = (used.max(first), frags.min(first + g.bits_per_bitmap()));
        let expected = if from < to { vec![(from - first, to - from)] } else { vec![] };
        assert_eq!(runs, expected, "bitmap block {i}");
    }
    let counters = block(dev, &g, g.counters_block());
    verify_block(&counters, g.fsid, BlockId { kind: BlockKind::Counters, addr: g.sys_start, owner: 0 }).unwrap();
    let c = Counters::decode(&counters);
    let headers = (g.ag_count - 1) * g.ag_header_blocks() * g.frags_per_block();
    assert_eq!((c.free_frags, c.inodes, c.ags, c.orphan_head), (g.total_frags() - used - headers, 1, 1, 0));
    for ino in 1..=LAST_SYSTEM_INO {
        let (addr, offset) = g.system_inode(ino);
        let b = block(dev, &g, addr);
        verify_block(&b, g.fsid, BlockId { kind: BlockKind::SystemInodes, addr, owner: 0 }).unwrap();
        let inode = Inode::decode(&b[offset..offset + INODE_SLOT_SIZE]).unwrap();
        assert_eq!((inode.ino, inode.is_dir(), inode.frags), (ino, ino == ROOT_INO, 0));
    }
    let mut b = vec![0; g.block_size()];
    let ring = (sb.log_blocks << g.block_shift) - LOG_HEADER_AREA;
    log.unwrap_or(dev).read_at(IoKind::Super, sb.log_start << g.block_shift, &mut b).unwrap();
    assert_eq!(LogHeader::decode(&b, g.fsid, ring).unwrap().tail, 0);
    for ag in backup_ags(&g) {
        let copy = read_superblock_copy(dev, &g, ag).unwrap();
        assert_eq!(copy, Superblock { copy: ag, ..sb.clone() });
    }
}

#[test]
fn all_block_fragment_and_group_sizes() {
    for block_shift in 9..=16 {
        for frag_shift in 9.max(block_shift - 3)..=block_shift {
            for group_shift in 14.max(block_shift)..=22 {
                for size in [96 << 20, (300 << 20) + 12345] {
                    let dev = MemoryDevice::new(size / 512 * 512);
                    let o = MkfsOptions {
                        block_size: 1 << block_shift,
                        frag_size: Some(1 << frag_shift),
                        group_size: 1 << group_shift,
                        ..options()
                    };
                    let sb = mkfs(&dev, None, &o).unwrap_or_else(|e| panic!("{o:?}: {e}"));
                    verify(&dev, None, &sb);
                }
            }
        }
    }
}

#[test]
fn every_device_size_is_formatted_or_refused() {
    let mut smallest = None;
    for mib in 1..100 {
        for block_size in [512, 4096, 65536] {
            let dev = MemoryDevice::new((mib << 20) - 512 * (mib % 7));
            match mkfs(&dev, None, &MkfsOptions { block_size, ..options() }) {
                Ok(sb) => {
                    verify(&dev, None, &sb);
                    if block_size == 4096 {
                        smallest.get_or_insert(mib);
                    }
                }
                Err(Error::Invalid(what)) => {
                    assert!(what.contains("too small") && mib <= 90, "{mib} MiB, blocks of {block_size}: {what}");
                    assert_eq!(dev.allocated_bytes(), 0, "written although refused");
                }
                Err(e) => panic!("{e}"),
            }
        }
    }
    assert_eq!(smallest, Some(6), "four times the smallest log");
}

#[test]
fn a_short_tail_is_cut_off() {
    let ag_blocks = 4096;
    for extra in [0, 1, 2, 3, 40, 65, 66, 67, 68, 69, 70, 71, 100] {
        let dev = MemoryDevice::new((2 * ag_blocks + extra) * 4096);
        let sb = mkfs(&dev, None, &MkfsOptions { ag_blocks: Some(ag_blocks), ..options() }).unwrap();
        verify(&dev, None, &sb);
        let header = Geometry::new(&sb).unwrap().ag_header_blocks();
        let kept = if extra >= header + 64 { extra } else { 0 };
        assert_eq!(sb.total_blocks, 2 * ag_blocks + kept, "{extra} blocks more");
    }
}

#[test]
fn a_petabyte_costs_nothing() {
    let dev = MemoryDevice::new((1 << 50) + (777 << 20));
    let counting = CountingDevice::new(Arc::new(dev));
    let sb = mkfs(&counting, None, &options()).unwrap();
    verify(&counting, None, &sb);
    let stats = counting.snapshot();
    assert!(stats.write_requests() < 10, "{} writes", stats.write_requests());
    assert!(stats.write_bytes() < 2 << 20, "{} bytes", stats.write_bytes());
    assert_eq!(Geometry::new(&sb).unwrap().ag_count, (1 << 20) + 1);
}

#[test]
fn options_are_kept_and_features_set() {
    let (dev, log) = (MemoryDevice::new(64 << 20), MemoryDevice::new(8 << 20));
    let o = MkfsOptions {
        label: "α".repeat(32),
        uuid: Some(*b"0123456789abcdef"),
        hash_seed: Some([3, 4]),
        reserve_bp: 0,
        no_embed: true,
        no_group: true,
        dirs_with_data: true,
        root_uid: 1000,
        ..options()
    };
    let sb = mkfs(&dev, Some(&log), &o).unwrap();
    verify(&dev, Some(&log), &sb);
    assert_eq!(sb.feature_names(), ["no-embed", "external-log", "no-group", "dirs-with-data"]);
    assert_eq!((sb.label_str(), sb.hash_seed, sb.created), (o.label, [3, 4], 1_000_000_007));
    assert_eq!((sb.log_start, sb.log_blocks), (0, 2048));
    let internal = mkfs(&dev, None, &MkfsOptions { log_bytes: Some(20 << 20), ..options() }).unwrap();
    verify(&dev, None, &internal);
    assert_eq!(internal.log_blocks, 5120);
    assert_ne!(internal.uuid, sb.uuid);
}

#[test]
fn bad_options_are_refused_and_change_nothing() {
    let dev = MemoryDevice::with_sector_size(64 << 20, 1024);
    let log = MemoryDevice::new(1 << 20);
    let bad: [(&str, MkfsOptions); 15] = [
        ("block size", MkfsOptions { block_size: 4097, ..options() }),
        ("block size", MkfsOptions { block_size: 1 << 17, ..options() }),
        ("sectors of 1024", MkfsOptions { block_size: 512, ..options() }),
        ("fragment size", MkfsOptions { frag_size: Some(256), ..options() }),
        ("sectors of 1024", MkfsOptions { frag_size: Some(512), ..options() }),
        ("fragment size", MkfsOptions { frag_size: Some(8192), ..options() }),
        ("group size", MkfsOptions { group_size: 8192, ..options() }),
        ("group size", MkfsOptions { group_size: 8 << 20, ..options() }),
        ("label", MkfsOptions { label: "x".repeat(65), ..options() }),
        ("uuid", MkfsOptions { uuid: Some([0; 16]), ..options() }),
        ("reserve", MkfsOptions { reserve_bp: 10_000, ..options() }),
        ("log", MkfsOptions { log_bytes: Some(4096), ..options() }),
        ("too small", MkfsOptions { log_bytes: Some(40 << 20), ..options() }),
        ("allocation group", MkfsOptions { ag_blocks: Some(100), ..options() }),
        ("has room", MkfsOptions { ag_blocks: Some(512), log_bytes: Some(4 << 20), ..options() }),
    ];
    for (word, o) in bad {
        match mkfs(&dev, None, &o) {
            Err(Error::Invalid(what)) => assert!(what.contains(word), "{what}"),
            other => panic!("{word}: {other:?}"),
        }
    }
    let o = MkfsOptions { log_bytes: Some(2 << 20), ..options() };
    assert!(mkfs(&dev, Some(&log), &o).unwrap_err().to_string().contains("external log"));
    assert_eq!(dev.allocated_bytes(), 0);
}

#[test]
fn signatures_of_others_disappear() {
    let len = 64 << 20;
    let dev = MemoryDevice::new(len);
    for at in [1024, 64 << 10, 127 << 10, len - 512, len - (64 << 10)] {
        dev.write_at(IoKind::Data, at, &[0xab; 512]).unwrap();
    }
    let sb = mkfs(&dev, None, &MkfsOptions { block_size: 512, ..options() }).unwrap();
    let fixed = Geometry::new(&sb).unwrap().fixed_blocks_of_ag0() * 512 + LOG_HEADER_AREA;
    for at in [1024, 64 << 10, 127 << 10, len - 512, len - (64 << 10)] {
        let mut b = [0; 512];
        dev.read_at(IoKind::Data, at, &mut b).unwrap();
        assert!(b != [0xab; 512] && (at < fixed || b == [0; 512]), "byte {at}");
    }
}

#[test]
fn damaged_superblocks_lead_to_their_copies() {
    let dev = MemoryDevice::new(100 << 20);
    let sb = mkfs(&dev, None, &options()).unwrap();
    let g = Geometry::new(&sb).unwrap();
    let at = g.ag_start(1) * 4096;
    let mut first = block(&dev, &g, 0);
    first[200] ^= 1;
    dev.write_at(IoKind::Super, 0, &first).unwrap();
    let message = read_superblock(&dev).unwrap_err().to_string();
    assert!(message.contains("checksum") && message.contains(&format!("byte {at}")), "{message}");
    dev.write_at(IoKind::Super, 0, &[0; 4096]).unwrap();
    let message = read_superblock(&dev).unwrap_err().to_string();
    assert!(message.contains("overwritten") && message.contains(&format!("byte {at}")), "{message}");
    assert_eq!(find_copies(&dev).len(), 2);
    dev.discard(0, 100 << 20).unwrap();
    let message = read_superblock(&dev).unwrap_err().to_string();
    assert!(message.contains("not a cffs file system"), "{message}");
    assert!(read_superblock(&MemoryDevice::new(0)).is_err());
}

#[test]
fn truncated_devices_and_newer_formats_are_named() {
    let dev = MemoryDevice::new(100 << 20);
    let sb = mkfs(&dev, None, &options()).unwrap();
    let g = Geometry::new(&sb).unwrap();
    dev.set_len(50 << 20);
    assert!(read_superblock(&dev).unwrap_err().to_string().contains("truncated"));
    dev.set_len(100 << 20);
    write_superblock(&dev, &g, &Superblock { incompat: 1 << 40, ..sb.clone() }).unwrap();
    assert!(read_superblock(&dev).unwrap_err().to_string().contains("bit 40"));
    write_superblock(&dev, &g, &Superblock { version: 9, ..sb.clone() }).unwrap();
    assert!(read_superblock(&dev).unwrap_err().to_string().contains("version 9"));
    write_superblock(&dev, &g, &Superblock { total_blocks: 3, ..sb }).unwrap();
    assert!(read_superblock(&dev).is_err());
    assert!(crc_ok(&block(&dev, &g, 1)));
}
