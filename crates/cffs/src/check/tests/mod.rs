mod image;

use super::repair::{RepairOptions, Repaired, repair};
use super::{CheckOptions, Class, Report, check};
use crate::format::ag::{AG_FREE_FRAGS, BITMAP_BITS, BITMAP_INDEX, set_bits};
use crate::format::dirblock::{DIR_LBLOCK, DIR_NAMES, Plain, entries, find, remove, set_link};
use crate::format::dirindex::{BUCKET_COUNT, BUCKET_FLAGS, BUCKET_NUMBER, name_hash};
use crate::format::extent::{Child, node_entry, set_node_header};
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::system::{COUNT_AGS, COUNT_BLOCKS, COUNT_FREE_FRAGS, COUNT_INODES, COUNT_UNWRITTEN, ORPHAN_HEAD};
use crate::format::table::{LOCATOR_SIZE, Location, TABLE_LBLOCK, TABLE_USED};
use crate::format::xattr::{ChainBlock, Namespace, XATTR_INDEX, XATTR_NEXT, payload};
use crate::format::*;
use crate::mkfs::{MkfsOptions, mkfs};
use crate::superblocks::write_superblock;
use cffs_device::{CountingDevice, Device, IoKind, MemoryDevice};
use image::*;
use std::sync::Arc;

fn run(dev: &Arc<MemoryDevice>) -> Report {
    check(dev.clone(), None, &CheckOptions::default(), &|_, _, _| {}).unwrap()
}

/// Repairs, answering every question with yes; afterwards nothing is wrong any more.
fn repair_all(dev: &Arc<MemoryDevice>, what: &str) -> Repaired {
    let done = repair(dev.clone(), None, &RepairOptions::default(), &mut |_| true, &|_, _, _| {});
    let done = done.unwrap_or_else(|e| panic!("{what}: {e}"));
    let report = run(dev);
    let told: Vec<String> = done.actions.iter().map(|a| a.to_string()).collect();
    let left: Vec<String> = report.problems.iter().map(|p| p.to_string()).collect();
    assert!(report.is_clean(), "{what}: after {} changes\n{}\nleft:\n{}", told.len(), told.join("\n"), left.join("\n"));
    assert_eq!(report.state, "clean", "{what}");
    assert!(done.after.is_clean(), "{what}");
    done
}

fn assert_clean(report: &Report) {
    assert!(report.is_clean(), "{:#?}", report.problems);
}

#[test]
fn fresh_file_systems_are_clean() {
    for (block_size, frag_size, group_size) in [
        (512, 512, 16 << 10),
        (1024, 512, 64 << 10),
        (4096, 512, 4 << 20),
        (4096, 4096, 256 << 10),
        (65536, 8192, 65536),
    ] {
        for size in [96u64 << 20, 130 << 20, 700 << 20] {
            let dev = Arc::new(MemoryDevice::new(size));
            let o = MkfsOptions { block_size, frag_size: Some(frag_size), group_size, ..MkfsOptions::default() };
            mkfs(&*dev, None, &o).unwrap();
            let report = run(&dev);
            assert_clean(&report);
            assert_eq!((report.counts.dirs, report.counts.files, report.state), (1, 0, "clean"));
        }
    }
}

#[test]
fn a_petabyte_is_checked_with_few_requests() {
    let dev = Arc::new(CountingDevice::new(Arc::new(MemoryDevice::new(1 << 50))));
    mkfs(&*dev, None, &MkfsOptions::default()).unwrap();
    let before = dev.snapshot().read_requests();
    let report = check(dev.clone(), None, &CheckOptions::default(), &|_, _, _| {}).unwrap();
    assert_clean(&report);
    let requests = dev.snapshot().read_requests() - before;
    assert!(requests < 20, "{requests} requests");
    assert_eq!(report.layout.virgin_groups, ((1 << 50) - (1 << 30)) / (256 << 10));
}

#[test]
fn an_external_log_is_checked() {
    let (dev, log) = (Arc::new(MemoryDevice::new(40 << 20)), Arc::new(MemoryDevice::new(4 << 20)));
    let sb = mkfs(&*dev, Some(&*log), &MkfsOptions::default()).unwrap();
    let options = CheckOptions::default();
    assert_clean(&check(dev.clone(), Some(log.clone()), &options, &|_, _, _| {}).unwrap());
    assert_clean(&check(dev.clone(), None, &options, &|_, _, _| {}).unwrap());
    log.write_at(IoKind::Super, 0, &[9; 4096]).unwrap();
    let report = check(dev.clone(), Some(log), &options, &|_, _, _| {}).unwrap();
    assert_eq!(report.problems[0].class, Class::LogHeader);
    let g = Geometry::new(&sb).unwrap();
    write_superblock(&*dev, &g, &Superblock { state: superblock::State::Journaled, ..sb }).unwrap();
    assert!(check(dev, None, &options, &|_, _, _| {}).is_err(), "without the log nothing can be said");
}

#[test]
fn one_of_everything_is_clean_and_counted() {
    let image = Image::new();
    let report = run(&image.dev);
    assert_clean(&report);
    let c = report.counts;
    assert_eq!((c.files, c.dirs, c.symlinks, c.special, c.links, c.orphans), (67, 3, 1, 1, 3, 2));
    assert_eq!(c.extent_nodes, 1);
    assert_eq!(report.layout.small_files, 1 + 1 + FILE_COUNT);
    assert_eq!(report.layout.following_blocks, 5);
    assert_eq!(report.layout.contiguous_blocks, 0, "each block of the tree file stands alone");
    assert_eq!(report.layout.group_fill.iter().sum::<u64>(), 16 * 4);
}

/// Damages an image, and expects a problem of this class.
fn expect(what: &str, class: Class, damage: impl FnOnce(&mut Image)) -> Report {
    let mut image = Image::new();
    damage(&mut image);
    let report = run(&image.dev);
    assert!(report.of_class(class).next().is_some(), "{what}: {:#?}", report.problems);
    let done = repair_all(&image.dev, what);
    assert!(!done.actions.is_empty(), "{what}: nothing was told");
    report
}

/// The same, and nothing but that.
fn expect_only(what: &str, class: Class, damage: impl FnOnce(&mut Image)) {
    let report = expect(what, class, damage);
    assert!(report.problems.iter().all(|p| p.class == class), "{what}: {:#?}", report.problems);
}

#[test]
fn damage_of_system_structures_is_found() {
    expect_only("superblock copy", Class::SuperblockCopy, |i| {
        i.dev.write_at(IoKind::Super, i.g.ag_start(1) << 12, &[0; 512]).unwrap();
    });
    expect_only("superblock copy of another", Class::SuperblockCopy, |i| {
        write_superblock(&*i.dev, &i.g, &Superblock { copy: 1, hash_seed: [9, 9], ..i.sb.clone() }).unwrap();
    });
    expect_only("log header", Class::LogHeader, |i| {
        i.dev.write_at(IoKind::Super, i.sb.log_start << 12, &[1; 512]).unwrap();
    });
    expect("counters", Class::CountersBlock, |i| {
        i.dev.write_at(IoKind::Super, i.g.counters_block() << 12, &[1; 512]).unwrap();
    });
    let counters = |at, value| move |i: &mut Image| i.edit(i.g.counters_block(), |b| put_u64(b, at, value));
    expect_only("free", Class::CounterFree, counters(COUNT_FREE_FRAGS, 17));
    expect_only("inodes", Class::CounterInodes, counters(COUNT_INODES, 17));
    expect_only("never written", Class::CounterUnwritten, counters(COUNT_UNWRITTEN, 17));
    expect_only("orphans", Class::OrphanList, counters(ORPHAN_HEAD, 0));
    expect_only("orphans", Class::OrphanList, counters(ORPHAN_HEAD, SMALL));
    expect("groups", Class::CounterGroups, counters(COUNT_AGS, 0));
    expect("groups", Class::CounterGroups, counters(COUNT_AGS, 1 << 60));
    expect("groups", Class::GroupHeader, counters(COUNT_AGS, 2));
    // More than the superblock has, and a last group without room for its header.
    expect("size", Class::CounterBlocks, counters(COUNT_BLOCKS, 1 << 50));
    expect("size", Class::CounterBlocks, counters(COUNT_BLOCKS, 1));
    expect("system inode", Class::SystemInode, |i| {
        let (addr, at) = i.g.system_inode(USER_QUOTA_INO);
        i.edit(addr, |b| b[at] = 99);
    });
    expect("root", Class::SystemInode, |i| {
        let (addr, at) = i.g.system_inode(ROOT_INO);
        i.edit(addr, |b| put_u16(b, at + 12, 0o100644));
    });
    expect("root's links", Class::InodeLinks, |i| {
        let root = Inode { nlink: 7, ..system(i, ROOT_INO) };
        i.put_system(&root);
    });
}

#[test]
fn damage_of_space_maps_is_found() {
    expect("group header", Class::GroupHeader, |i| {
        i.dev.write_at(IoKind::Meta, i.g.ag_header(0) << 12, &[1; 512]).unwrap();
    });
    expect_only("free", Class::GroupFree, |i| i.edit(i.g.ag_header(0), |b| put_u64(b, AG_FREE_FRAGS, 3)));
    expect("bitmap", Class::Bitmap, |i| i.edit(i.g.bitmap_block(0, 0), |b| put_u64(b, BITMAP_INDEX, 5)));
    let set = |block: fn(&Image) -> u64, used| {
        move |i: &mut Image| {
            let from = block(i) * 4;
            i.edit(i.g.bitmap_block(0, 0), |b| assert!(set_bits(&mut b[BITMAP_BITS..], from, from + 3, used)));
        }
    };
    let report = expect("leak", Class::FragmentsLeaked, set(|i| i.next + 9, true));
    assert_eq!(report.of_class(Class::FragmentsLeaked).count(), 1);
    assert!(report.of_class(Class::FragmentsUnmarked).next().is_none());
    let report = expect("unmarked", Class::FragmentsUnmarked, set(|i| i.root_block, false));
    assert!(report.of_class(Class::FragmentsLeaked).next().is_none());
    expect("header unmarked", Class::FragmentsUnmarked, set(|_| 1, false));
    expect("log unmarked", Class::FragmentsUnmarked, set(|i| i.sb.log_start, false));
    let report = expect("shared", Class::FragmentsShared, |i| {
        let e = i.extent(0, i.leaf, 2);
        map_to(i, SMALL, e);
    });
    let text = report.of_class(Class::FragmentsShared).next().unwrap().text.clone();
    assert!(text.contains("inode 16") && text.contains("inode 20"), "{text}");
    let report = expect("shared with the log", Class::FragmentsShared, |i| {
        let e = i.extent(0, i.sb.log_start, 2);
        map_to(i, SMALL, e);
    });
    assert!(report.of_class(Class::FragmentsShared).next().unwrap().text.contains("file system itself"));
    expect("virgin", Class::GroupVirgin, |i| {
        let e = i.extent(0, i.g.ag_start(1) + 100, 2);
        map_to(i, SMALL, e);
    });
}

/// Damages an inode in the root directory, and expects a problem of this class.
fn expect_edited(what: &str, class: Class, ino: Ino, f: impl FnOnce(&mut Inode)) {
    expect(what, class, |i| i.edit_embedded(i.root_block, ino, f));
}

/// The same, and nothing but that.
fn expect_only_edited(what: &str, class: Class, ino: Ino, f: impl FnOnce(&mut Inode)) {
    expect_only(what, class, |i| i.edit_embedded(i.root_block, ino, f));
}

/// Makes an extent the map of a file in the root directory.
fn map_to(i: &Image, ino: Ino, e: Extent) {
    i.edit_embedded(i.root_block, ino, |x| x.format = InodeFormat::Extents(vec![e]));
}

/// Makes the name `hard1` in the root lead to another inode, or have another type.
fn relink(ino: Ino, file_type: FileType) -> impl FnOnce(&mut Image) {
    move |i| {
        i.edit(i.root_block, |b| {
            let at = entry_of(b, HARD);
            set_link(&mut Plain(b), at, ino, file_type);
        });
    }
}

/// Gives an inode in the root directory another number.
fn renumber(ino: Ino, to: Ino) -> impl FnOnce(&mut Image) {
    move |i| {
        i.edit(i.root_block, |b| {
            let (at, inode) = entries(b).find(|e| e.ino == ino).map(|e| (e.offset, e.inode_offset())).unwrap();
            put_u64(b, at + 8, to);
            put_u64(b, inode, to);
        });
    }
}

/// Offset of the entry of an inode in a directory block.
fn entry_of(b: &[u8], ino: Ino) -> usize {
    entries(b).find(|e| e.ino == ino).unwrap().offset
}

#[test]
fn damage_of_attributes_is_found() {
    expect("xattr", Class::XattrBlock, |i| i.edit(i.xattr, |b| put_u64(b, 24, 3)));
    expect_edited("xattr outside", Class::XattrBlock, ATTRIBUTES, |i| i.xattr_block = 1 << 50);
    expect_only("xattr number", Class::XattrBlock, |i| i.edit(i.xattr, |b| b[XATTR_INDEX] = 1));
    expect_only("xattr in a circle", Class::XattrBlock, |i| {
        let room = payload(i.g.block_size());
        let head = ChainBlock { next: i.xattr, index: 0, used: room };
        i.edit(i.xattr, |b| b[XATTR_NEXT..XATTR_NEXT + 16].copy_from_slice(&head.encode()));
    });
    expect_only("xattr list", Class::XattrList, |i| i.edit(i.xattr, |b| b[META_HEADER_SIZE] = 0xf));
    expect_only_edited("xattr twice", Class::XattrList, ATTRIBUTES, |i| {
        i.xattrs.clear();
        attribute(Namespace::User, b"a", b"inline").encode(&mut i.xattrs);
        i.xattrs.resize(16, 0);
    });
    expect_only_edited("xattr space", Class::InodeSpace, ATTRIBUTES, |i| i.frags += 1);
    expect_only_edited("acl and mode", Class::XattrAcl, ATTRIBUTES, |i| i.mode ^= 0o007);
    expect_only_edited("acl without entries", Class::XattrAcl, ATTRIBUTES, |i| {
        i.xattrs.clear();
        attribute(Namespace::AclAccess, b"", &[2, 0, 0, 0]).encode(&mut i.xattrs);
    });
    expect_only_edited("default acl of a file", Class::XattrList, ATTRIBUTES, |i| {
        i.xattrs.clear();
        attribute(Namespace::AclDefault, b"", &acl(0o644)).encode(&mut i.xattrs);
    });
    expect_only_edited("user attribute of a device", Class::XattrList, DEVICE, |i| {
        attribute(Namespace::User, b"a", b"12").encode(&mut i.xattrs);
    });
}

#[test]
fn damage_of_inodes_is_found() {
    expect_only_edited("generation", Class::InodeField, SMALL, |i| i.generation = 0);
    expect_only_edited("aux", Class::InodeField, SMALL, |i| i.aux = 4);
    expect_only_edited("buckets", Class::InodeField, SMALL, |i| i.index_buckets = 4);
    expect_only_edited("device", Class::InodeField, DEVICE, |i| i.size = 4);
    expect_only_edited("links", Class::InodeLinks, SMALL, |i| i.nlink = 2);
    expect_only_edited("links of a directory", Class::InodeLinks, SUB, |i| i.nlink = 3);
    expect_only_edited("links of an orphan", Class::InodeLinks, ORPHAN, |i| i.nlink = 1);
    expect_only_edited("size", Class::InodeSize, TREE, |i| i.size = 48 * 1024);
    expect_only_edited("empty symlink", Class::InodeField, SYMLINK, |i| {
        (i.size, i.format) = (0, InodeFormat::Inline(Vec::new()));
    });
    expect_only_edited("space", Class::InodeSpace, SMALL, |i| i.frags = 3);
    expect_only_edited("space of a directory", Class::InodeSpace, SUB, |i| i.frags = 3);
    expect_only_edited("parent", Class::DirParent, SUB, |i| i.parent = 5);
    expect_only_edited("size of a directory", Class::DirSize, SUB, |i| i.size = 5 * 4096 + 1);
    expect_edited("short directory", Class::DirCount, SUB, |i| i.size = 3 * 4096);
    expect_only_edited("entries", Class::DirCount, SUB, |i| i.aux = 9);
    expect_edited("orphan list cut", Class::OrphanList, ORPHAN, |i| i.hint = 0);
    expect_edited("orphan list in a circle", Class::OrphanList, ORPHAN, |i| i.hint = ORPHAN);
    expect("extent outside", Class::Extent, |i| {
        let e = i.extent(0, i.g.total_blocks - 1, 8);
        map_to(i, SMALL, e);
    });
    expect("half blocks of a directory", Class::Extent, |i| {
        let mut e = i.extent(0, i.sub_blocks[0], 4);
        e.len = 3;
        map_to(i, SUB, e);
    });
    expect("number used twice", Class::InodeNumber, renumber(SMALL, INLINE));
    expect("reserved number", Class::InodeNumber, renumber(SUB, ROOT_INO));
}

#[test]
fn damage_of_extent_trees_is_found() {
    let swapped = |i: &mut Image| {
        i.edit(i.leaf, |b| {
            let (x, y) = (node_entry(1), node_entry(2));
            let first: Vec<u8> = b[x..x + 16].to_vec();
            b.copy_within(y..y + 16, x);
            b[y..y + 16].copy_from_slice(&first);
        });
    };
    expect("out of order", Class::Extent, swapped);
    expect("level", Class::ExtentNode, |i| i.edit(i.leaf, |b| set_node_header(b, 1, 6)));
    expect("count", Class::ExtentNode, |i| i.edit(i.leaf, |b| set_node_header(b, 0, 6000)));
    expect("empty", Class::ExtentNode, |i| i.edit(i.leaf, |b| set_node_header(b, 0, 0)));
    expect("owner", Class::ExtentNode, |i| i.edit(i.leaf, |b| put_u64(b, 24, SMALL)));
    expect("key", Class::Extent, |i| {
        let leaf = i.leaf;
        let children = vec![Child { key: 5, block: leaf }];
        i.edit_embedded(i.root_block, TREE, |x| x.format = InodeFormat::Tree { height: 1, children });
    });
    expect("the same node twice", Class::FragmentsShared, |i| {
        let leaf = i.leaf;
        let children = vec![Child { key: 0, block: leaf }, Child { key: 1000, block: leaf }];
        i.edit_embedded(i.root_block, TREE, |x| x.format = InodeFormat::Tree { height: 1, children });
    });
    expect("a circle", Class::FragmentsShared, |i| {
        let leaf = i.leaf;
        i.edit(leaf, |b| {
            set_node_header(b, 7, 1);
            b[node_entry(0)..node_entry(0) + 16].copy_from_slice(&Child { key: 0, block: leaf }.encode());
        });
        let children = vec![Child { key: 0, block: leaf }];
        i.edit_embedded(i.root_block, TREE, |x| x.format = InodeFormat::Tree { height: 8, children });
    });
}

#[test]
fn damage_of_directories_is_found() {
    expect("block", Class::DirBlock, |i| i.edit(i.sub_blocks[1], |b| put_u16(b, DIR_NAMES, 99)));
    expect("number", Class::DirBlock, |i| i.edit(i.sub_blocks[1], |b| put_u64(b, DIR_LBLOCK, 99)));
    expect("zeros", Class::DirBlock, |i| i.dev.write_at(IoKind::Meta, i.sub_blocks[2] << 12, &[0; 4096]).unwrap());
    expect("other owner", Class::DirBlock, |i| i.edit(i.sub_blocks[1], |b| put_u64(b, 24, 4)));
    expect("hash", Class::NameHash, |i| {
        i.edit(i.root_block, |b| {
            let at = entry_of(b, SMALL);
            b[at + 4] ^= 1;
        });
    });
    expect_only("link to nothing", Class::NameDangling, |i| {
        relink(9999, FileType::Regular)(i);
        // The other name is then the only one.
        i.edit(i.external[1], |b| put_u32(b, META_HEADER_SIZE + 24, 1));
    });
    expect_only("type", Class::InodeType, relink(HARD, FileType::Fifo));
    expect("same name twice", Class::NameDuplicate, |i| {
        let hash = name_hash(i.sb.hash_seed, b"file3");
        i.edit(i.sub_blocks[0], |b| {
            let at = entries(b).find(|e| e.name == b"file4").unwrap().offset;
            b[at + 16 + 4] = b'3';
            put_u32(b, at + 4, hash);
        });
    });
    expect("name removed from under its index", Class::IndexStale, |i| {
        let hash = name_hash(i.sb.hash_seed, b"file7");
        i.edit(i.sub_blocks[0], |b| {
            let at = find(b, hash, b"file7").unwrap().offset;
            remove(&mut Plain(b), at);
        });
    });
    expect("bucket number", Class::IndexBucket, |i| i.edit(i.buckets[1], |b| put_u32(b, BUCKET_NUMBER, 7)));
    expect("bucket count", Class::IndexBucket, |i| i.edit(i.buckets[1], |b| put_u32(b, BUCKET_COUNT, 7777)));
    expect("too many buckets", Class::IndexBucket, |i| {
        i.edit_embedded(i.root_block, SUB, |x| x.index_buckets = u32::MAX)
    });
    let shorten = |flags| {
        move |i: &mut Image| {
            i.edit(i.buckets[0], |b| {
                let n = get_u32(b, BUCKET_COUNT);
                put_u32(b, BUCKET_COUNT, n - 1);
                put_u32(b, BUCKET_FLAGS, flags);
            });
        }
    };
    expect_only("pair missing", Class::IndexMissing, shorten(0));
    let mut image = Image::new();
    shorten(1)(&mut image);
    assert_clean(&run(&image.dev));
    expect_only("pair of another block", Class::IndexStale, |i| {
        i.edit(i.buckets[0], |b| {
            let n = get_u32(b, BUCKET_COUNT) as usize;
            let last = META_HEADER_SIZE + (n - 1) * 8;
            b.copy_within(last..last + 8, last + 8);
            put_u32(b, BUCKET_COUNT, n as u32 + 1);
        });
    });
}

#[test]
fn damage_of_tables_is_found() {
    expect_only("link count", Class::InodeLinks, |i| i.edit(i.external[1], |b| put_u32(b, META_HEADER_SIZE + 24, 3)));
    expect("inode", Class::InodeDamaged, |i| i.edit(i.external[1], |b| put_u16(b, META_HEADER_SIZE + 12, 0)));
    expect("block", Class::ExternalBlock, |i| i.edit(i.external[1], |b| put_u64(b, TABLE_LBLOCK, 3)));
    expect_only("slots in use", Class::TableCount, |i| i.edit(i.external[1], |b| put_u32(b, TABLE_USED, 4)));
    expect_only("map count", Class::TableCount, |i| i.edit(i.external[0], |b| put_u16(b, META_HEADER_SIZE, 4)));
    expect("block behind the size", Class::InodeSize, |i| {
        let table = Inode { size: 4096, ..system(i, LOCATOR_INO) };
        i.put_system(&table);
    });
    expect("parent of a directory reached by a link", Class::DirParent, |i| {
        i.edit(i.external[1], |b| put_u64(b, META_HEADER_SIZE + 2 * INODE_SLOT_SIZE + 80, SUB));
    });
    expect("two names of a directory", Class::InodeLinks, relink(EXTERNAL_DIR, FileType::Directory));
    expect_only("counted but missing", Class::TableCount, |i| {
        i.edit(i.external[0], |b| put_u16(b, META_HEADER_SIZE + 20, 3));
    });
    expect("map", Class::TableMap, |i| i.edit(i.locator[0], |b| put_u64(b, TABLE_LBLOCK, 3)));
    expect("locator block", Class::LocatorBlock, |i| i.edit(i.locator[1], |b| put_u64(b, 16, 3)));
    let put = |ino, to: Location| {
        move |i: &mut Image| {
            let at = i.locator_offset(ino);
            i.edit(i.locator[1], |b| b[at..at + LOCATOR_SIZE].copy_from_slice(&to.encode()));
        }
    };
    expect("missing", Class::LocatorMissing, put(SMALL, Location::Free));
    expect("stale", Class::LocatorStale, put(40, Location::Embedded { block: 9, offset: 64 }));
    expect_only("wrong", Class::LocatorWrong, put(SMALL, Location::Embedded { block: 9, offset: 64 }));
    expect_only("wrong", Class::LocatorWrong, put(SMALL, Location::External { block: 9, offset: 64 }));
    expect("impossible", Class::LocatorWrong, put(SMALL, Location::Embedded { block: 9, offset: 65 }));
    expect("slot lost its name", Class::InodeLinks, |i| {
        i.edit(i.root_block, |b| {
            let at = entry_of(b, HARD);
            remove(&mut Plain(b), at);
        });
    });
    expect("directory without a name", Class::DirUnreachable, |i| {
        i.edit(i.external[1], |b| {
            let mut dir = i.file_of(77, FileType::Directory);
            dir.nlink = 2;
            let at = META_HEADER_SIZE + 3 * INODE_SLOT_SIZE;
            dir.encode(&mut b[at..at + dir.encoded_len()]);
        });
    });
}

/// Whatever the bytes say, the check ends and finds something or nothing.
#[test]
fn random_damage_does_no_harm() {
    let image = Image::new();
    let mut blocks: Vec<u64> =
        vec![image.root_block, image.leaf, image.xattr, image.g.sys_start, image.g.sys_start + 1];
    blocks.extend(image.sub_blocks.iter().chain(&image.buckets).chain(&image.locator).chain(&image.external));
    blocks.extend([image.g.ag_header(0), image.g.bitmap_block(0, 0)]);
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |n: usize| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) as usize % n
    };
    let mut found = 0;
    for round in 0..1500 {
        let addr = blocks[random(blocks.len())];
        let before = image.read(addr);
        image.edit(addr, |b| {
            for _ in 0..1 + random(4) {
                // Mostly where structures begin.
                let at = if random(3) == 0 { random(4096) } else { 24 + random(400) };
                b[at] = [0, 1, 0x7f, 0x80, 0xff, random(256) as u8][random(6)];
            }
        });
        found += usize::from(!run(&image.dev).is_clean());
        repair_all(&Arc::new(image.dev.duplicate()), &format!("damage {round} of block {addr}"));
        image.dev.write_at(IoKind::Meta, addr << 12, &before).unwrap();
    }
    assert!(found > 700, "only {found} of 1500 damages were seen");
    assert_clean(&run(&image.dev));
}

#[test]
fn problems_are_capped_and_counted() {
    let image = Image::new();
    for b in &image.sub_blocks {
        image.edit(*b, |b| {
            let hashes: Vec<usize> = entries(b).filter(|e| e.is_name()).map(|e| e.offset + 4).collect();
            hashes.into_iter().for_each(|at| b[at] ^= 0x55);
        });
    }
    let report =
        check(image.dev.clone(), None, &CheckOptions { max_problems: 5, data: false, jobs: 1 }, &|_, _, _| {}).unwrap();
    assert_eq!(report.problems.len(), 5);
    assert!(report.problems_total > 60);
}

#[test]
fn the_log_is_replayed_in_memory_first() {
    let image = Image::new();
    let g = image.g;
    write_superblock(&*image.dev, &g, &Superblock { state: superblock::State::Journaled, ..image.sb.clone() }).unwrap();
    let good = image.read(g.counters_block());
    image.edit(g.counters_block(), |b| put_u64(b, COUNT_FREE_FRAGS, 17));
    assert_eq!(run(&image.dev).problems[0].class, Class::CounterFree);

    let header = crate::journal::read_header(&*image.dev, &image.sb).unwrap();
    let mut txn = vec![0; log::TXN_HEADER];
    log::put_block(&mut txn, g.counters_block(), false, false, &good, &[((COUNT_FREE_FRAGS / 8) as u32, 1)]);
    let payload = (txn.len() - log::TXN_HEADER) as u64;
    txn.resize(g.frag_size(), 0);
    log::seal_txn(&mut txn, g.fsid, 1, header.epoch, payload);
    let ring = (image.sb.log_start << g.block_shift) + log::LOG_HEADER_AREA;
    image.dev.write_at(IoKind::Log, ring, &txn).unwrap();
    let before = image.read(g.counters_block());
    let report = run(&image.dev);
    assert_clean(&report);
    assert_eq!((report.replayed, report.state), (1, "journaled"));
    assert!(image.read(g.counters_block()) == before, "the device was written");
}

/// A petabyte of nothing, mapped by a few bytes of metadata, is given up soon.
#[test]
fn images_that_map_zeros_cost_little() {
    let dev = Arc::new(MemoryDevice::new(1 << 50));
    let sb = mkfs(&*dev, None, &MkfsOptions::default()).unwrap();
    let g = Geometry::new(&sb).unwrap();
    let len = (1 << 19) - 4;
    let extents = |first: u64| {
        let list = (0..4).map(|i| Extent {
            logical: first + i * len,
            start: (1 << 30) + i * (1 << 20),
            len,
            unwritten: false,
        });
        InodeFormat::Extents(list.collect())
    };
    for ino in [ROOT_INO, LOCATOR_INO, EXTERNAL_INO] {
        let (addr, offset) = g.system_inode(ino);
        let mut b = vec![0; 4096];
        dev.read_at(IoKind::Meta, addr << 12, &mut b).unwrap();
        let mut inode = Inode::decode(&b[offset..offset + INODE_SLOT_SIZE]).unwrap();
        // Tables without their first map.
        (inode.size, inode.format) = ((1 << 31) * 4096, extents(4));
        inode.index_buckets = if ino == ROOT_INO { 1 << 31 } else { 0 };
        inode.encode(&mut b[offset..offset + inode.encoded_len()]);
        seal(&mut b, 1);
        dev.write_at(IoKind::Meta, addr << 12, &b).unwrap();
    }
    let (addr, mut b) = (g.counters_block(), vec![0; 4096]);
    dev.read_at(IoKind::Meta, addr << 12, &mut b).unwrap();
    put_u64(&mut b, COUNT_AGS, g.ag_count);
    seal(&mut b, 1);
    dev.write_at(IoKind::Meta, addr << 12, &b).unwrap();
    let counting = Arc::new(CountingDevice::new(dev));
    let report = check(counting.clone(), None, &CheckOptions::default(), &|_, _, _| {}).unwrap();
    assert!(report.problems_total > 30 && report.problems_total < 1000, "{}", report.problems_total);
    let requests = counting.snapshot().read_requests();
    assert!(requests < 300, "{requests} requests");
    let before = counting.snapshot();
    let done = repair(counting.clone(), None, &RepairOptions::default(), &mut |_| true, &|_, _, _| {}).unwrap();
    assert!(done.after.is_clean(), "{:#?}", done.after.problems);
    let requests = counting.snapshot().read_requests() - before.read_requests();
    println!("{requests} requests to repair a petabyte");
}
