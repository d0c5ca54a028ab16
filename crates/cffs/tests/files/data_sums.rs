//! Checksums of data: what is read is what was written, or an error, and never an error without a cause.

use cffs::check::repair::{RepairOptions, repair};
use cffs::check::{CheckOptions, Class, Report, check};
use cffs::device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation};
use cffs::format::sums::{self, NONE};
use cffs::format::{BlockAddr, BlockId, BlockKind, put_u64, seal, verify_block};
use cffs::mkfs::read_superblock;
use cffs::{
    AtimeMode, Caller, Error, Fallocate, Fs, Geometry, MetadataMode, MkfsOptions, MountOptions, ROOT_INO, SetAttr,
    Superblock, mkfs, path,
};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;
const MIB: usize = 1 << 20;

fn options() -> MountOptions {
    MountOptions::default().background(false).atime(AtimeMode::Noatime).cache_bytes(8 << 20)
}

fn mount(dev: &Arc<MemoryDevice>) -> Arc<Fs> {
    Fs::open(dev.clone(), None, options()).unwrap()
}

fn made_as(o: &MkfsOptions) -> Arc<MemoryDevice> {
    let dev = Arc::new(MemoryDevice::new(64 << 20));
    mkfs(&*dev, None, o).unwrap();
    dev
}

fn made() -> Arc<MemoryDevice> {
    made_as(&MkfsOptions::default().data_sums(true))
}

fn geometry(dev: &MemoryDevice) -> (Superblock, Geometry) {
    let sb = read_superblock(dev).unwrap();
    let g = Geometry::new(&sb).unwrap();
    (sb, g)
}

/// Bytes that no other seed gives.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed << 32;
    let mut next = || {
        // SplitMix64.
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut out: Vec<u8> = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend(next().to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Where a piece of contents stands on the device.
fn place_of(dev: &MemoryDevice, piece: &[u8]) -> u64 {
    let mut all = vec![0; dev.len() as usize];
    dev.read_at(IoKind::Data, 0, &mut all).unwrap();
    let (_, g) = geometry(dev);
    let log = g.log_start << g.block_shift..(g.log_start + g.log_blocks) << g.block_shift;
    let found: Vec<u64> = (0..all.len() - piece.len())
        .step_by(g.frag_size())
        .map(|at| at as u64)
        .filter(|at| !log.contains(at) && all[*at as usize..].starts_with(piece))
        .collect();
    assert_eq!(found.len(), 1, "contents stand in one place");
    found[0]
}

fn flip(dev: &MemoryDevice, byte: u64, bit: u8) {
    let mut sector = [0; 512];
    dev.read_at(IoKind::Data, byte / 512 * 512, &mut sector).unwrap();
    sector[(byte % 512) as usize] ^= 1 << bit;
    dev.write_at(IoKind::Data, byte / 512 * 512, &sector).unwrap();
}

fn look(dev: &Arc<MemoryDevice>) -> Report {
    check(dev.clone(), None, &CheckOptions::default().data(true), &|_, _, _| {}).unwrap()
}

fn assert_clean(dev: &Arc<MemoryDevice>) -> Report {
    let report = look(dev);
    assert!(report.is_clean(), "{:#?}", report.problems);
    report
}

fn is_eio<T: std::fmt::Debug>(outcome: cffs::Result<T>) -> bool {
    matches!(&outcome, Err(e @ Error::Corrupt(c)) if e.errno() == 5 && c.0.contains("checksum"))
}

fn edit(dev: &MemoryDevice, addr: BlockAddr, f: impl FnOnce(&mut [u8])) {
    let (_, g) = geometry(dev);
    let mut b = vec![0; g.block_size()];
    dev.read_at(IoKind::Meta, addr << g.block_shift, &mut b).unwrap();
    f(&mut b);
    dev.write_at(IoKind::Meta, addr << g.block_shift, &b).unwrap();
}

#[test]
fn flipped_bits_are_errors_for_the_file_they_hit_and_for_nobody_else() {
    let dev = made();
    let fs = mount(&dev);
    let sizes = [700, 1024, 1500, 3000, 5000, 70_000, 3 * MIB];
    for (i, size) in sizes.iter().enumerate() {
        path::write_file(&fs, ROOT, format!("/file{i}").as_bytes(), &bytes(i as u64, *size)).unwrap();
    }
    let target = bytes(99, 3000).iter().map(|b| b'a' + b % 26).collect::<Vec<u8>>();
    fs.symlink(ROOT, ROOT_INO, b"link", &target).unwrap();
    fs.close().unwrap();
    assert_clean(&dev);
    for (i, size) in sizes.iter().enumerate() {
        let name = format!("/file{i}");
        let contents = bytes(i as u64, *size);
        for at in [0, size / 2, size - 1] {
            let start = at / 1024 * 1024;
            let byte = place_of(&dev, &contents[start..(start + 200).min(*size)]) + (at - start) as u64;
            flip(&dev, byte, (at % 8) as u8);
            let fs = mount(&dev);
            let before = fs.stats().data_sums.unwrap();
            let attr = path::resolve(&fs, name.as_bytes()).unwrap();
            let mut one = [0];
            assert!(is_eio(fs.read(attr.ino, at as u64, &mut one)), "{name}: byte {at} is not given out");
            assert!(is_eio(fs.read(attr.ino, at as u64, &mut one)), "{name}: nor the second time");
            assert!(is_eio(path::read_file(&fs, name.as_bytes())));
            // The other fragments of the file are whole, and given out.
            for other in (0..*size).step_by(1024).filter(|o| *o != start) {
                let mut piece = vec![0; 1024.min(size - other)];
                assert_eq!(fs.read(attr.ino, other as u64, &mut piece).unwrap(), piece.len());
                assert_eq!(piece, contents[other..other + piece.len()]);
            }
            let after = fs.stats().data_sums.unwrap();
            assert!(after.failed >= before.failed + 3 && after.unknown == 0);
            for (j, size) in sizes.iter().enumerate().filter(|(j, _)| *j != i) {
                let whole = path::read_file(&fs, format!("/file{j}").as_bytes()).unwrap();
                assert_eq!(whole, bytes(j as u64, *size), "file{j} is none of its business");
            }
            fs.close().unwrap();
            let report = look(&dev);
            assert_eq!(report.by_class.keys().collect::<Vec<_>>(), [&Class::DataSum], "{:#?}", report.problems);
            assert!(report.is_sound() && report.counts.frags_failed == 1);
            flip(&dev, byte, (at % 8) as u8);
        }
    }
    let byte = place_of(&dev, &target[..100]);
    flip(&dev, byte, 0);
    let fs = mount(&dev);
    let link = fs.lookup(ROOT_INO, b"link").unwrap();
    assert!(is_eio(fs.readlink(link.ino)));
    flip(&dev, byte, 0);
    fs.drop_caches();
    assert_eq!(fs.readlink(link.ino).unwrap(), target);
}

#[test]
fn part_of_a_damaged_block_cannot_be_written_and_all_of_it_heals_it() {
    let dev = made();
    let fs = mount(&dev);
    let mut contents = bytes(1, 40_000);
    path::write_file(&fs, ROOT, b"/file", &contents).unwrap();
    fs.close().unwrap();
    flip(&dev, place_of(&dev, &contents[8192..8500]) + 5, 3);
    let fs = mount(&dev);
    let file = path::resolve(&fs, b"/file").unwrap();
    assert!(is_eio(fs.write(ROOT, file.ino, 8200, &[7; 10])), "what would be kept of the block is not known");
    assert!(is_eio(fs.read(file.ino, 8192, &mut [0; 100])), "still");
    fs.write(ROOT, file.ino, 8192, &[7; 4096]).unwrap();
    contents[8192..8192 + 4096].fill(7);
    fs.fsync(file.ino, false).unwrap();
    fs.drop_caches();
    assert_eq!(path::read_file(&fs, b"/file").unwrap(), contents);
    fs.close().unwrap();
    assert_clean(&dev);
}

#[test]
fn every_way_to_write_leaves_sums_that_fit() {
    for (block_size, frag_size) in [(4096, 1024), (512, 512), (4096, 4096), (65536, 8192)] {
        for no_embed in [false, true] {
            let o = MkfsOptions::default()
                .block_size(block_size)
                .frag_size(Some(frag_size))
                .data_sums(true)
                .no_embed(no_embed)
                .no_group(no_embed);
            let dev = Arc::new(MemoryDevice::new(256 << 20));
            mkfs(&*dev, None, &o).unwrap();
            let fs = mount(&dev);
            let f = fs.create(ROOT, ROOT_INO, b"f", 0o644).unwrap().ino;
            let mut model = bytes(1, 300_000);
            fs.write(ROOT, f, 0, &model).unwrap();
            fs.sync().unwrap();
            let mut write = |fs: &Fs, at: usize, seed: u64, len: usize| {
                let new = bytes(seed, len);
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&new);
                assert_eq!(fs.write(ROOT, f, at as u64, &new).unwrap(), len);
            };
            write(&fs, 1000, 2, 50); // in place, through the log
            fs.fsync(f, false).unwrap();
            write(&fs, 2000, 3, 150_000); // in place, directly
            fs.fsync(f, false).unwrap();
            write(&fs, 400_000, 4, 9000); // behind a hole
            fs.sync().unwrap();
            write(&fs, 330_000, 5, 1000); // into the hole
            fs.sync().unwrap();
            fs.setattr(ROOT, f, SetAttr::default().size(Some(7777))).unwrap();
            model.truncate(7777);
            fs.setattr(ROOT, f, SetAttr::default().size(Some(20_000))).unwrap();
            model.resize(20_000, 0);
            fs.sync().unwrap();
            fs.fallocate(ROOT, f, Fallocate::Allocate { keep_size: false }, 0, 600_000).unwrap();
            model.resize(600_000, 0);
            let mut write = |fs: &Fs, at: usize, seed: u64, len: usize| {
                let new = bytes(seed, len);
                model[at..at + len].copy_from_slice(&new);
                assert_eq!(fs.write(ROOT, f, at as u64, &new).unwrap(), len);
            };
            write(&fs, 100_000, 6, 70_000); // into allocated space
            fs.fsync(f, false).unwrap();
            write(&fs, 500_000, 7, 3000);
            fs.fsync(f, false).unwrap();
            fs.fallocate(ROOT, f, Fallocate::Zero { keep_size: false }, 110_000, 20_000).unwrap();
            model[110_000..130_000].fill(0);
            fs.fallocate(ROOT, f, Fallocate::PunchHole, 150_000, 5000).unwrap();
            model[150_000..155_000].fill(0);
            let mut write = |fs: &Fs, at: usize, seed: u64, len: usize| {
                let new = bytes(seed, len);
                model[at..at + len].copy_from_slice(&new);
                assert_eq!(fs.write(ROOT, f, at as u64, &new).unwrap(), len);
            };
            write(&fs, 112_000, 8, 7000);
            write(&fs, 151_000, 9, 1000);
            fs.sync().unwrap();
            let block = block_size as usize;
            fs.fallocate(ROOT, f, Fallocate::Collapse, block as u64, block as u64).unwrap();
            model.drain(block..2 * block);
            fs.fallocate(ROOT, f, Fallocate::Insert, block as u64, 2 * block as u64).unwrap();
            model.splice(block..block, std::iter::repeat_n(0, 2 * block));
            let copy = fs.create(ROOT, ROOT_INO, b"copy", 0o644).unwrap().ino;
            assert_eq!(fs.copy_range(ROOT, f, 0, copy, 0, model.len() as u64).unwrap(), model.len() as u64);
            for n in 0..200 {
                path::write_file(&fs, ROOT, format!("/small{n}").as_bytes(), &bytes(100 + n, 90 + n as usize * 17))
                    .unwrap();
            }
            for n in (0..200).step_by(3) {
                fs.unlink(ROOT_INO, format!("small{n}").as_bytes()).unwrap();
            }
            fs.sync().unwrap();
            for n in (0..200).step_by(3) {
                // Into space that was freed, whose old sums mean nothing.
                path::write_file(&fs, ROOT, format!("/small{n}").as_bytes(), &bytes(100 + n, 90 + n as usize * 17))
                    .unwrap();
            }
            for cold in [false, true] {
                if cold {
                    fs.sync().unwrap();
                    fs.drop_caches();
                }
                assert!(path::read_file(&fs, b"/f").unwrap() == model);
                assert!(path::read_file(&fs, b"/copy").unwrap() == model);
                for n in 0..200 {
                    let small = path::read_file(&fs, format!("/small{n}").as_bytes()).unwrap();
                    assert_eq!(small, bytes(100 + n, 90 + n as usize * 17));
                }
            }
            let stats = fs.stats().data_sums.unwrap();
            assert!(stats.verified > 0 && stats.failed == 0 && stats.unknown == 0, "{stats:?}");
            fs.close().unwrap();
            let report = assert_clean(&dev);
            assert!(report.counts.frags_verified > 0 && report.counts.frags_unsummed == 0, "{:?}", report.counts);
        }
    }
}

#[test]
fn a_crash_between_data_and_its_new_sums_leaves_the_file_readable() {
    // Every write request of an overwriting in place is the last one that the device takes, with and without a flush
    // having been asked for before.
    for spare in 0..40 {
        let memory = made();
        let failing = Arc::new(FailingDevice::new(memory.clone() as Arc<dyn Device>));
        let fs = Fs::open(failing.clone() as Arc<dyn Device>, None, options()).unwrap();
        let (old, new) = (bytes(1, 200_000), bytes(2, 200_000));
        path::write_file(&fs, ROOT, b"/file", &old).unwrap();
        fs.sync().unwrap();
        failing.set(Operation::Write, Fault::from_nth(spare));
        let file = path::resolve(&fs, b"/file").unwrap();
        fs.write(ROOT, file.ino, 0, &new).unwrap();
        let done = fs.fsync(file.ino, false).is_ok();
        drop(fs);
        assert_clean(&memory);
        let fs = mount(&memory);
        let found = path::read_file(&fs, b"/file").unwrap();
        assert_eq!(found.len(), old.len());
        let by = |a: &[u8], b: &[u8]| a.chunks(1024).zip(b.chunks(1024)).all(|(x, y)| x == y);
        assert!(!done || by(&found, &new), "what was promised is there");
        let mixed = found.chunks(1024).zip(old.chunks(1024).zip(new.chunks(1024)));
        assert!(mixed.clone().all(|(f, (o, n))| f == o || f == n), "each fragment is the old or the new one");
        if done {
            return;
        }
    }
    panic!("an overwriting takes fewer requests than that");
}

#[test]
fn damaged_tables_are_found_and_dropped_and_cost_no_data() {
    let dev = made();
    let fs = mount(&dev);
    let contents = bytes(5, 3 * MIB);
    path::write_file(&fs, ROOT, b"/file", &contents).unwrap();
    fs.close().unwrap();
    let (_, g) = geometry(&dev);
    let frag = place_of(&dev, &contents[..500]) >> g.frag_shift;
    let (ag, index, _) = g.sum_place(frag);
    let table = g.sum_block(ag, index);
    type Damage<'a> = (&'a str, Class, Box<dyn Fn(&MemoryDevice) + 'a>);
    let damages: [Damage<'_>; 5] = [
        ("a flipped bit", Class::SumTable, Box::new(|d| edit(d, table, |b| b[700] ^= 4))),
        ("zeros", Class::SumTable, Box::new(|d| edit(d, table, |b| b.fill(0)))),
        (
            "another number",
            Class::SumTable,
            Box::new(|d| {
                edit(d, table, |b| {
                    put_u64(b, sums::SUMS_INDEX, index + 1);
                    seal(b, 1);
                });
            }),
        ),
        (
            "bits for tables that were never made",
            Class::SumTable,
            Box::new(|d| {
                edit(d, g.ag_header(ag), |b| {
                    sums::set_exists(b, g.sum_blocks() - 1, true);
                    seal(b, 1);
                });
            }),
        ),
        (
            "bits for tables that cannot be",
            Class::GroupHeader,
            Box::new(|d| {
                edit(d, g.ag_header(ag), |b| {
                    sums::set_exists(b, g.sum_blocks() + 3, true);
                    seal(b, 1);
                });
            }),
        ),
    ];
    for (name, class, damage) in damages {
        let dev = Arc::new(dev.duplicate());
        damage(&dev);
        let report = look(&dev);
        assert!(report.by_class.contains_key(&class), "{name}: {:#?}", report.problems);
        assert!(report.is_safe_to_repair(), "{name}");
        let done = repair(dev.clone(), None, &RepairOptions::default(), &mut |_| true, &|_, _, _| {}).unwrap();
        assert!(done.after.is_clean(), "{name}: {:#?}", done.after.problems);
        assert_clean(&dev);
        let fs = mount(&dev);
        assert!(path::read_file(&fs, b"/file").unwrap() == contents, "{name}");
        // And there are sums again where something is written.
        path::write_file(&fs, ROOT, b"/file", &contents).unwrap();
        fs.sync().unwrap();
        fs.drop_caches();
        let before = fs.stats().data_sums.unwrap();
        assert!(path::read_file(&fs, b"/file").unwrap() == contents);
        let after = fs.stats().data_sums.unwrap();
        assert_eq!((after.unknown, after.failed), (before.unknown, 0), "{name}");
        assert_eq!(after.verified - before.verified, 3 * 1024, "{name}");
        fs.close().unwrap();
    }
    // Until it is repaired, data whose table is damaged is not given out.
    let damaged = Arc::new(dev.duplicate());
    edit(&damaged, table, |b| b[700] ^= 4);
    let fs = mount(&damaged);
    assert!(is_eio(path::read_file(&fs, b"/file")));
}

#[test]
fn after_a_crash_without_a_journal_sums_are_dropped() {
    for metadata in [MetadataMode::Delayed, MetadataMode::Sync] {
        let dev = made();
        let fs = Fs::open(dev.clone(), None, options().metadata(metadata)).unwrap();
        let (old, new) = (bytes(1, 100_000), bytes(2, 100_000));
        path::write_file(&fs, ROOT, b"/file", &old).unwrap();
        fs.close().unwrap();
        assert_eq!(assert_clean(&dev).counts.frags_unsummed, 0, "unmounting leaves sums");
        let fs = Fs::open(dev.clone(), None, options().metadata(metadata)).unwrap();
        let file = path::resolve(&fs, b"/file").unwrap();
        fs.write(ROOT, file.ino, 0, &new).unwrap();
        fs.sync().unwrap();
        fs.write(ROOT, file.ino, 0, &old[..50_000]).unwrap();
        // The data goes, and what tells of it is lost.
        let failing = dev.duplicate();
        drop(fs);
        let dev = Arc::new(failing);
        let at = place_of(&dev, &new[..300]);
        dev.write_at(IoKind::Data, at, &old[..1024]).unwrap();
        let report = look(&dev);
        assert!(report.by_class.contains_key(&Class::SumsUntrusted), "{:#?}", report.problems);
        assert!(report.is_safe_to_repair());
        repair(dev.clone(), None, &RepairOptions::default(), &mut |_| true, &|_, _, _| {}).unwrap();
        assert_clean(&dev);
        let fs = mount(&dev);
        let found = path::read_file(&fs, b"/file").unwrap();
        assert!(found[..1024] == old[..1024] && found[1024..] == new[1024..]);
    }
}

#[test]
fn file_systems_without_the_feature_are_as_before_and_a_new_group_gets_its_tables_when_needed() {
    let plain = made_as(&MkfsOptions::default().ag_blocks(Some(4096)));
    let (sb, without) = geometry(&plain);
    assert!(!sb.has_data_sums() && without.sum_blocks() == 0);
    let fs = mount(&plain);
    path::write_file(&fs, ROOT, b"/file", &bytes(1, 20 * MIB)).unwrap();
    assert!(fs.stats().data_sums.is_none());
    fs.close().unwrap();
    assert_eq!(assert_clean(&plain).counts.frags_verified, 0);

    let o = MkfsOptions::default().ag_blocks(Some(4096)).size(Some(40 << 20)).data_sums(true);
    let dev = made_as(&o);
    let (sb, g) = geometry(&dev);
    assert!(sb.feature_names().contains(&"data-sums"));
    // One table block for so many fragments, and nothing written for any of them yet.
    assert_eq!(g.ag_header_blocks() - without.ag_header_blocks(), (4096 * 4u64).div_ceil(1008));
    let fs = mount(&dev);
    fs.grow(Some(64 << 20)).unwrap();
    let big = bytes(3, 40 * MIB);
    path::write_file(&fs, ROOT, b"/big", &big).unwrap();
    fs.close().unwrap();
    assert_eq!(assert_clean(&dev).counts.frags_verified, 40 * 1024);
    let fs = mount(&dev);
    assert!(path::read_file(&fs, b"/big").unwrap() == big);
    // Sums are where the format says.
    let frag = place_of(&dev, &big[..500]) >> g.frag_shift;
    let (ag, index, n) = g.sum_place(frag);
    let id = BlockId { kind: BlockKind::DataSums, addr: g.sum_block(ag, index), owner: ag };
    edit(&dev, id.addr, |b| {
        verify_block(b, g.fsid, id).unwrap();
        assert_eq!(sums::get(b, n), cffs::format::crc32c(&big[..1024]));
        assert_ne!(sums::get(b, n), NONE);
    });
}
