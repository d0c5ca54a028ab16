//! The table of corruption classes: one way to damage each structure, each kind of field, each derived table.

use super::image::Image;
use cffs::check::Class;
use cffs::device::{Device, IoKind};
use cffs::format::ag::{AG_FREE_FRAGS, BITMAP_BITS, BITMAP_INDEX, set_bits};
use cffs::format::dirblock::{DIR_LBLOCK, DIR_NAMES, EntryKind, Plain, entries, make_orphan, set_link};
use cffs::format::dirindex::{BUCKET_COUNT, BUCKET_NUMBER, name_hash};
use cffs::format::extent::{Child, Extent, node_entry, set_node_header};
use cffs::format::geometry::INODE_SLOT_SIZE;
use cffs::format::log::{LOG_HEADER_AREA, LOG_HEADER_SLOTS, LogHeader, TXN_HEADER, seal_txn};
use cffs::format::system::{COUNT_AGS, COUNT_BLOCKS, COUNT_FREE_FRAGS, COUNT_INODES, COUNT_UNWRITTEN, ORPHAN_HEAD};
use cffs::format::table::{LOCATOR_SIZE, Location, TABLE_LBLOCK, TABLE_USED, TableShape};
use cffs::format::*;
use cffs::mkfs::write_superblock;

/// One class of corruption.
pub struct Case {
    /// Its name, as in docs/testing.md.
    pub name: &'static str,
    /// A problem that the check must report; `None` where it cannot even begin.
    pub class: Option<Class>,
    /// On a file system without embedded inodes.
    pub no_embed: bool,
    pub damage: fn(&Image),
    /// Paths (and all below) that the damage hits: they may be gone, or have other contents.
    pub hit: &'static [&'static str],
    /// Paths that must be found again in lost+found, files by their contents.
    pub moved: &'static [&'static str],
}

const WHOLE: &[&str] = &[];
const FILE: &str = "/src/package0/mod1.c";
const FILE2: &str = "/src/package0/mod5.c";
const DIR: &str = "/src/package0";
const SPARSE: &str = "/misc/sparse";

fn case(name: &'static str, class: Class, hit: &'static [&'static str], damage: fn(&Image)) -> Case {
    Case { name, class: Some(class), no_embed: false, damage, hit, moved: WHOLE }
}

fn moved(name: &'static str, class: Class, moved: &'static [&'static str], damage: fn(&Image)) -> Case {
    Case { moved, ..case(name, class, WHOLE, damage) }
}

fn unstartable(name: &'static str, damage: fn(&Image)) -> Case {
    Case { class: None, ..case(name, Class::Superblock, WHOLE, damage) }
}

fn superblock(i: &Image, sb: Superblock) {
    write_superblock(&*i.dev, &i.g, &sb).unwrap();
}

fn counters(i: &Image, at: usize, value: u64) {
    i.edit(i.g.counters_block(), |b| put_u64(b, at, value));
}

fn log_tail(i: &Image, tail: u64) {
    let first = LogHeader { tail, ..LogHeader::first(i.g.fsid, 5) };
    for h in [first, first.next(tail, 5)] {
        let block = i.sb.log_start + (LOG_HEADER_SLOTS[h.slot()] >> i.g.block_shift);
        let mut b = i.read(block);
        b[..512].copy_from_slice(&h.encode());
        i.write(block, &b);
    }
}

fn zero(i: &Image, addr: BlockAddr) {
    i.write(addr, &vec![0; i.g.block_size()]);
}

fn inode(i: &Image, path: &str, f: impl FnOnce(&mut Inode)) {
    i.edit_inode(i.ino(path), f);
}

fn inode_bytes(i: &Image, path: &str, f: impl FnOnce(&mut [u8])) {
    i.edit_inode_bytes(i.ino(path), f);
}

fn first_extent(i: &Image, path: &str) -> Extent {
    match i.inode(i.ino(path)).format {
        InodeFormat::Extents(list) => list[0],
        other => panic!("{path} has {other:?}"),
    }
}

fn map_to(i: &Image, path: &str, start: u64) {
    inode(i, path, |x| {
        let InodeFormat::Extents(list) = &mut x.format else { panic!("no extents") };
        list[0].start = start;
    });
}

fn locator(i: &Image, ino: Ino, at: Location) {
    let (lblock, offset) = TableShape::new(i.g.block_size(), LOCATOR_SIZE).place(ino);
    let addr = i.block(BlockKind::Locator, LOCATOR_INO, lblock);
    i.edit(addr, |b| b[offset..offset + LOCATOR_SIZE].copy_from_slice(&at.encode()));
}

fn hard(i: &Image) -> Ino {
    i.ino("/links/first0")
}

fn bucket(i: &Image, n: u64) -> BlockAddr {
    i.block(BlockKind::DirIndex, i.ino("/big"), n)
}

/// Fragments of the data of a file, within the bitmap of their group.
fn bits(i: &Image, path: &str) -> (BlockAddr, u64, u64) {
    let e = first_extent(i, path);
    let (ag, per) = (i.g.ag_of(i.g.block_of_frag(e.start)), i.g.ag_blocks * i.g.frags_per_block());
    let within = e.start - ag * per;
    let index = within / i.g.bits_per_bitmap();
    (i.g.bitmap_block(ag, index), within % i.g.bits_per_bitmap(), e.len)
}

/// A block of the first allocation group that is not in use.
fn free_block(i: &Image) -> BlockAddr {
    let fpb = i.g.frags_per_block();
    let is_free = |addr: &BlockAddr| {
        let frag = i.g.frag_of_block(*addr);
        let bits = i.read(i.g.bitmap_block(0, frag / i.g.bits_per_bitmap()));
        let at = frag % i.g.bits_per_bitmap();
        (at..at + fpb).all(|bit| bits[BITMAP_BITS + bit as usize / 8] >> (bit % 8) & 1 == 0)
    };
    (0..i.g.ag_blocks).rev().find(is_free).expect("there is space")
}

/// The table with the checksums of the beginning of a file.
fn sum_table(i: &Image, path: &str) -> BlockAddr {
    let (ag, index, _) = i.g.sum_place(first_extent(i, path).start);
    i.g.sum_block(ag, index)
}

fn flip_in(i: &Image, addr: BlockAddr) {
    let mut b = i.read(addr);
    b[META_HEADER_SIZE + 100] ^= 2;
    i.write(addr, &b);
}

fn log_txn(i: &Image, body: &[u8]) {
    let mut txn = vec![0; TXN_HEADER];
    txn.extend_from_slice(body);
    txn.resize(txn.len().next_multiple_of(i.g.frag_size()), 0);
    let header = i.log_header();
    seal_txn(&mut txn, i.g.fsid, header.tail_seq, header.epoch, body.len() as u64);
    let at = (i.sb.log_start << i.g.block_shift) + LOG_HEADER_AREA + header.tail;
    i.dev.write_at(IoKind::Log, at, &txn).unwrap();
}

impl Image {
    pub fn log_header(&self) -> LogHeader {
        cffs::journal::read_header(&*self.dev, &self.sb).unwrap()
    }
}

pub fn all() -> Vec<Case> {
    let mut list = system();
    list.extend(inodes());
    list.extend(maps());
    list.extend(directories());
    list.extend(tables());
    list.extend(without_embedding());
    list
}

fn system() -> Vec<Case> {
    vec![
        unstartable("superblock: zeros", |i| zero(i, 0)),
        unstartable("superblock: checksum", |i| i.break_block(0, |b| b[130] ^= 4)),
        unstartable("superblock: impossible geometry", |i| {
            superblock(i, Superblock { frag_shift: 40, ..i.sb.clone() });
        }),
        case("superblock: size too small", Class::CounterBlocks, WHOLE, |i| {
            superblock(i, Superblock { total_blocks: i.sb.total_blocks - 3000, ..i.sb.clone() });
        }),
        case("superblock: key of the name hash", Class::NameHash, WHOLE, |i| {
            superblock(i, Superblock { hash_seed: [1, 1], ..i.sb.clone() });
        }),
        unstartable("superblock: place of the log", |i| {
            superblock(i, Superblock { log_start: i.sb.log_start + 1, ..i.sb.clone() });
        }),
        unstartable("superblock: no log", |i| superblock(i, Superblock { log_start: 0, ..i.sb.clone() })),
        unstartable("superblock: place of the log, and a copy", |i| {
            superblock(i, Superblock { log_start: i.g.ag_start(2) + 5, ..i.sb.clone() });
            zero(i, i.g.ag_start(1));
        }),
        case("superblock copy: zeros", Class::SuperblockCopy, WHOLE, |i| zero(i, i.g.ag_start(1))),
        case("superblock copy: of another file system", Class::SuperblockCopy, WHOLE, |i| {
            superblock(i, Superblock { copy: 1, uuid: [7; 16], ..i.sb.clone() });
        }),
        case("log: both headers destroyed", Class::LogHeader, WHOLE, |i| {
            LOG_HEADER_SLOTS.iter().for_each(|at| zero(i, i.sb.log_start + (at >> i.g.block_shift)));
        }),
        case("log: tail within a sector", Class::LogHeader, WHOLE, |i| log_tail(i, 1000)),
        case("log: tail within a fragment", Class::LogHeader, WHOLE, |i| log_tail(i, 1536)),
        unstartable("log: transaction that cannot be replayed", |i| log_txn(i, &[0x7f; 64])),
        unstartable("log: record outside the file system", |i| {
            let mut body = Vec::new();
            let b = vec![1; i.g.block_size()];
            cffs::format::log::put_block(&mut body, i.g.total_blocks + 5, true, false, &b, &[(0, 8)]);
            log_txn(i, &body);
        }),
        case("counters: destroyed", Class::CountersBlock, WHOLE, |i| zero(i, i.g.counters_block())),
        case("counters: free fragments", Class::CounterFree, WHOLE, |i| counters(i, COUNT_FREE_FRAGS, 17)),
        case("counters: inodes", Class::CounterInodes, WHOLE, |i| counters(i, COUNT_INODES, 17)),
        case("counters: more inodes than possible", Class::CounterInodes, WHOLE, |i| {
            counters(i, COUNT_INODES, u64::MAX - 1);
            // A mount says so, instead of counting on.
            let o = cffs::MountOptions::default().background(false);
            let Err(e) = cffs::Fs::open(i.dev.clone(), None, o) else { panic!("mounted") };
            assert!(e.to_string().contains("inodes"), "{e}");
        }),
        case("counters: what was never written", Class::CounterUnwritten, WHOLE, |i| counters(i, COUNT_UNWRITTEN, 17)),
        case("counters: more never written than there is", Class::CounterUnwritten, WHOLE, |i| {
            counters(i, COUNT_UNWRITTEN, u64::MAX);
        }),
        case("counters: no group initialized", Class::CounterGroups, WHOLE, |i| counters(i, COUNT_AGS, 0)),
        case("counters: too many groups initialized", Class::CounterGroups, WHOLE, |i| counters(i, COUNT_AGS, 1 << 60)),
        case("counters: group in use not initialized", Class::GroupVirgin, WHOLE, |i| counters(i, COUNT_AGS, 1)),
        case("counters: size", Class::CounterBlocks, WHOLE, |i| counters(i, COUNT_BLOCKS, 1 << 50)),
        case("orphan list: empty", Class::OrphanList, WHOLE, |i| counters(i, ORPHAN_HEAD, 0)),
        case("orphan list: begins with a file in use", Class::OrphanList, WHOLE, |i| {
            counters(i, ORPHAN_HEAD, i.ino(FILE));
        }),
        case("orphan list: in a circle", Class::OrphanList, WHOLE, |i| {
            let ino = i.orphans[1];
            i.edit_inode(ino, |x| x.hint = ino);
        }),
        case("group header: destroyed", Class::GroupHeader, WHOLE, |i| zero(i, i.g.ag_header(0))),
        case("group header: free fragments", Class::GroupFree, WHOLE, |i| {
            i.edit(i.g.ag_header(0), |b| put_u64(b, AG_FREE_FRAGS, 3));
        }),
        case("bitmap: destroyed", Class::Bitmap, WHOLE, |i| zero(i, i.g.bitmap_block(0, 0))),
        case("bitmap: number", Class::Bitmap, WHOLE, |i| {
            i.edit(i.g.bitmap_block(0, 0), |b| put_u64(b, BITMAP_INDEX, 5))
        }),
        case("bitmap: nothing in use", Class::FragmentsUnmarked, WHOLE, |i| {
            i.edit(i.g.bitmap_block(0, 0), |b| b[BITMAP_BITS..].fill(0));
        }),
        case("bitmap: everything in use", Class::FragmentsLeaked, WHOLE, |i| {
            i.edit(i.g.bitmap_block(0, 0), |b| b[BITMAP_BITS..].fill(0xff));
        }),
        case("bitmap: contents of a file not in use", Class::FragmentsUnmarked, WHOLE, |i| {
            let (addr, from, len) = bits(i, FILE2);
            i.edit(addr, |b| assert!(set_bits(&mut b[BITMAP_BITS..], from, from + len, false)));
        }),
        case("checksum table: a bit", Class::SumTable, WHOLE, |i| flip_in(i, sum_table(i, FILE))),
        case("checksum table: destroyed", Class::SumTable, WHOLE, |i| zero(i, sum_table(i, FILE))),
        case("checksum table: number", Class::SumTable, WHOLE, |i| {
            i.edit(sum_table(i, FILE), |b| put_u64(b, sums::SUMS_INDEX, 77));
        }),
        case("checksum table: one that was never made", Class::SumTable, WHOLE, |i| {
            i.edit(i.g.ag_header(0), |b| sums::set_exists(b, i.g.sum_blocks() - 1, true));
        }),
        case("checksum table: one that cannot be", Class::GroupHeader, WHOLE, |i| {
            i.edit(i.g.ag_header(0), |b| sums::set_exists(b, i.g.sum_blocks(), true));
        }),
        case("system inodes: block destroyed", Class::SystemInode, WHOLE, |i| zero(i, i.g.system_inode(ROOT_INO).0)),
        case("system inodes: checksum", Class::SystemInode, WHOLE, |i| {
            i.break_block(i.g.system_inode(ROOT_INO).0, |b| b[3000] ^= 1);
        }),
        case("root: type", Class::SystemInode, WHOLE, |i| {
            i.edit_inode_bytes(ROOT_INO, |b| put_u16(b, 12, 0o100644));
        }),
        case("root: map of blocks lost", Class::DirSize, WHOLE, |i| {
            i.edit_inode(ROOT_INO, |x| x.format = InodeFormat::Extents(Vec::new()));
        }),
        case("root: parent", Class::DirParent, WHOLE, |i| i.edit_inode(ROOT_INO, |x| x.parent = 77)),
    ]
}

fn inodes() -> Vec<Case> {
    vec![
        case("inode: generation 0", Class::InodeField, WHOLE, |i| inode(i, FILE, |x| x.generation = 0)),
        case("inode: unknown flags", Class::InodeField, WHOLE, |i| inode(i, FILE, |x| x.flags |= 0x400)),
        case("inode: auxiliary field", Class::InodeField, WHOLE, |i| inode(i, FILE, |x| x.aux = 4)),
        case("inode: index buckets of a file", Class::InodeField, WHOLE, |i| inode(i, FILE, |x| x.index_buckets = 4)),
        case("inode: size too small", Class::InodeSize, &[SPARSE], |i| inode(i, SPARSE, |x| x.size = 60_000)),
        case("inode: size impossible", Class::DirBlock, &[FILE], |i| {
            inode_bytes(i, FILE, |b| put_u64(b, 32, u64::MAX));
        }),
        case("inode: count of fragments", Class::InodeSpace, WHOLE, |i| inode(i, FILE, |x| x.frags = 999)),
        case("inode: link count", Class::InodeLinks, WHOLE, |i| inode(i, FILE, |x| x.nlink = 9)),
        case("inode: type", Class::DirBlock, &[FILE], |i| inode_bytes(i, FILE, |b| put_u16(b, 12, 0o170644))),
        case("inode: format", Class::DirBlock, &[FILE], |i| inode_bytes(i, FILE, |b| b[14] = 99)),
        case("inode: length of the inline area", Class::DirBlock, &[FILE], |i| inode_bytes(i, FILE, |b| b[15] = 200)),
        case("inode: attribute block outside", Class::XattrBlock, WHOLE, |i| {
            inode(i, FILE, |x| x.xattr_block = 1 << 50);
        }),
        case("inode: attribute block is a file's", Class::XattrBlock, WHOLE, |i| {
            let at = i.g.block_of_frag(first_extent(i, FILE2).start);
            inode(i, FILE, |x| x.xattr_block = at);
        }),
        case("inode: number of another file", Class::InodeNumber, &[FILE], |i| {
            let other = i.ino(FILE2);
            let ino = i.ino(FILE);
            i.edit(i.places[&ino].block, |b| {
                let (at, inode) = entries(b).find(|e| e.ino == ino).map(|e| (e.offset, e.inode_offset())).unwrap();
                put_u64(b, at + 8, other);
                put_u64(b, inode, other);
            });
        }),
        case("inode: reserved number", Class::InodeNumber, WHOLE, |i| renumber(i, FILE, 3)),
        case("inode: number larger than possible", Class::InodeNumber, WHOLE, |i| renumber(i, FILE, 1 << 40)),
        case("inode: number of a directory", Class::InodeNumber, WHOLE, |i| renumber(i, DIR, 5)),
        case("inode: another number than its entry", Class::DirBlock, WHOLE, |i| {
            inode_bytes(i, FILE, |b| put_u64(b, 0, 12));
        }),
        case("inode: pipe with contents", Class::InodeField, WHOLE, |i| inode(i, "/misc/fifo", |x| x.size = 7)),
        case("inode: symbolic link without a target", Class::InodeField, &["/misc/short"], |i| {
            inode(i, "/misc/short", |x| {
                x.size = 0;
                x.format = InodeFormat::Inline(Vec::new());
            });
        }),
        case("directory inode: parent", Class::DirParent, WHOLE, |i| inode(i, DIR, |x| x.parent = 5)),
        case("directory inode: link count", Class::InodeLinks, WHOLE, |i| inode(i, DIR, |x| x.nlink = 7)),
        case("directory inode: size too small", Class::DirCount, WHOLE, |i| {
            let bs = i.g.block_size() as u64;
            inode(i, "/big", |x| x.size -= 3 * bs);
        }),
        case("directory inode: size too large", Class::DirSize, WHOLE, |i| inode(i, DIR, |x| x.size += 40960)),
        case("directory inode: number of names", Class::DirCount, WHOLE, |i| inode(i, DIR, |x| x.aux = 1)),
        case("directory inode: number of buckets", Class::IndexBucket, WHOLE, |i| {
            inode(i, "/big", |x| x.index_buckets = u32::MAX);
        }),
        moved("directory inode: destroyed", Class::DirBlock, &["/src/package0"], |i| {
            inode_bytes(i, DIR, |b| b[..184].fill(0xee));
        }),
    ]
}

fn renumber(i: &Image, path: &str, to: Ino) {
    let ino = i.ino(path);
    i.edit(i.places[&ino].block, |b| {
        let (at, inode) = entries(b).find(|e| e.ino == ino).map(|e| (e.offset, e.inode_offset())).unwrap();
        put_u64(b, at + 8, to);
        put_u64(b, inode, to);
    });
}

fn maps() -> Vec<Case> {
    vec![
        case("extent: outside the file system", Class::Extent, &[FILE], |i| map_to(i, FILE, i.g.total_frags() - 1)),
        case("extent: on another file", Class::FragmentsShared, &[FILE], |i| {
            map_to(i, FILE, first_extent(i, "/misc/large").start);
        }),
        case("extent: on a directory", Class::FragmentsShared, &[FILE], |i| {
            map_to(i, FILE, i.g.frag_of_block(i.dir_block("/big", 3)));
        }),
        case("extent: on the log", Class::FragmentsShared, &[FILE], |i| {
            map_to(i, FILE, i.g.frag_of_block(i.sb.log_start + 20));
        }),
        case("extent: on the header of a group", Class::FragmentsShared, &[FILE], |i| {
            map_to(i, FILE, i.g.frag_of_block(i.g.ag_header(1)));
        }),
        case("extent: in a group never used", Class::GroupVirgin, &[FILE], |i| {
            map_to(i, FILE, i.g.frag_of_block(i.g.ag_start(i.g.ag_count - 1) + 100));
        }),
        case("extent: too long", Class::FragmentsShared, &[FILE], |i| {
            inode(i, FILE, |x| {
                let InodeFormat::Extents(list) = &mut x.format else { panic!() };
                list[0].len = 2000;
            });
        }),
        case("extent tree: leaf destroyed", Class::ExtentNode, &[SPARSE], |i| zero(i, i.leaf(SPARSE))),
        case("extent tree: checksum of a leaf", Class::ExtentNode, &[SPARSE], |i| {
            i.break_block(i.leaf(SPARSE), |b| b[node_entry(7)] ^= 1);
        }),
        case("extent tree: level", Class::ExtentNode, &[SPARSE], |i| {
            i.edit(i.leaf(SPARSE), |b| put_u16(b, cffs::format::extent::NODE_LEVEL, 3));
        }),
        case("extent tree: number of entries", Class::ExtentNode, &[SPARSE], |i| {
            i.edit(i.leaf(SPARSE), |b| set_node_header(b, 0, 6000));
        }),
        case("extent tree: leaf of another file", Class::ExtentNode, &[SPARSE], |i| {
            i.edit(i.leaf(SPARSE), |b| put_u64(b, 24, 77));
        }),
        case("extent tree: out of order", Class::Extent, &[SPARSE], |i| {
            i.edit(i.leaf(SPARSE), |b| {
                let (x, y) = (node_entry(1), node_entry(2));
                let first: Vec<u8> = b[x..x + 16].to_vec();
                b.copy_within(y..y + 16, x);
                b[y..y + 16].copy_from_slice(&first);
            });
        }),
        case("extent tree: root leads nowhere", Class::ExtentNode, WHOLE, |i| {
            inode(i, SPARSE, |x| {
                let block = i.g.total_blocks - 1;
                x.format = InodeFormat::Tree { height: 1, children: vec![Child { key: 0, block }] };
            });
        }),
        case("extent tree: the same leaf twice", Class::FragmentsShared, &[SPARSE], |i| {
            inode(i, SPARSE, |x| {
                let InodeFormat::Tree { children, .. } = &mut x.format else { panic!("no tree") };
                let block = children[0].block;
                children.truncate(2);
                children[1].block = block;
            });
        }),
    ]
}

fn directories() -> Vec<Case> {
    vec![
        case("directory block: length of an entry", Class::DirBlock, WHOLE, |i| {
            i.edit_entry(DIR, "mod1.c", |b, at| put_u16(b, at, 7));
        }),
        case("directory block: entry that swallows the next", Class::DirBlock, WHOLE, |i| {
            i.edit_entry(DIR, "mod1.c", |b, at| {
                let next = at + get_u16(b, at) as usize;
                let len = get_u16(b, at) + get_u16(b, next);
                put_u16(b, at, len);
            });
        }),
        case("directory block: entry that calls itself free", Class::DirBlock, WHOLE, |i| {
            i.edit_entry(DIR, "mod1.c", |b, at| b[at + 2] &= 0xf0);
        }),
        case("directory block: unknown kind of entry", Class::DirBlock, WHOLE, |i| {
            i.edit_entry(DIR, "mod1.c", |b, at| b[at + 2] |= 0xf);
        }),
        case("directory block: hash of a name", Class::NameHash, WHOLE, |i| {
            i.edit_entry(DIR, "mod1.c", |b, at| b[at + 4] ^= 1);
        }),
        moved("directory block: name with a slash", Class::DirBlock, &[FILE], |i| {
            i.edit_entry(DIR, "mod1.c", |b, at| b[at + 17] = b'/');
        }),
        moved("directory block: name that stands twice", Class::NameDuplicate, &[FILE2], |i| {
            let hash = name_hash(i.sb.hash_seed, b"mod1.c");
            i.edit_entry(DIR, "mod5.c", |b, at| {
                b[at + 19] = b'1';
                put_u32(b, at + 4, hash);
            });
        }),
        case("directory block: type of an entry", Class::DirBlock, WHOLE, |i| {
            i.edit_entry(DIR, "mod1.c", |b, at| b[at + 2] = b[at + 2] & 0xf | (FileType::Fifo as u8) << 4);
        }),
        case("directory block: counts", Class::DirBlock, WHOLE, |i| {
            i.edit(i.dir_block(DIR, 0), |b| put_u16(b, DIR_NAMES, 99));
        }),
        case("directory block: number", Class::DirBlock, WHOLE, |i| {
            i.edit(i.dir_block("/big", 2), |b| put_u64(b, DIR_LBLOCK, 99));
        }),
        case("directory block: checksum", Class::DirBlock, &["/src/package0/mod0.c"], |i| {
            i.break_block(i.dir_block(DIR, 0), |b| b[100] ^= 0x40);
        }),
        case("directory block: first sector overwritten", Class::DirBlock, &["/src/package1"], |i| {
            i.break_block(i.dir_block("/src/package1", 0), |b| b[..512].fill(0x5a));
        }),
        Case {
            moved: &["/src/level0", "/src/package2"],
            ..case("directory block: zeros", Class::DirBlock, &["/src", "/links"], |i| zero(i, i.dir_block("/src", 0)))
        },
        case("directory block: another directory's", Class::DirBlock, &["/src/package1"], |i| {
            i.write(i.dir_block("/src/package1", 0), &i.read(i.dir_block("/src/package2", 0)));
        }),
        case("directory: map of blocks lost", Class::DirSize, WHOLE, |i| {
            inode(i, DIR, |x| x.format = InodeFormat::Extents(Vec::new()));
        }),
        case("directory: map with half a block", Class::Extent, WHOLE, |i| {
            inode(i, DIR, |x| {
                let InodeFormat::Extents(list) = &mut x.format else { panic!() };
                list[0].len -= 1;
            });
        }),
        case("link: leads nowhere", Class::NameDangling, &["/src/link0-0"], |i| {
            i.edit_entry("/src", "link0-0", |b, at| set_link(&mut Plain(b), at, 9999, FileType::Regular));
        }),
        case("link: type", Class::InodeType, WHOLE, |i| {
            let ino = hard(i);
            i.edit_entry("/src", "link0-0", |b, at| set_link(&mut Plain(b), at, ino, FileType::Socket));
        }),
        moved("orphan: a file in use", Class::InodeLinks, &[FILE], |i| {
            i.edit_entry(DIR, "mod1.c", |b, at| make_orphan(&mut Plain(b), at));
        }),
        case("index: bucket destroyed", Class::IndexBucket, WHOLE, |i| zero(i, bucket(i, 1))),
        case("index: number of a bucket", Class::IndexBucket, WHOLE, |i| {
            i.edit(bucket(i, 1), |b| put_u32(b, BUCKET_NUMBER, 7));
        }),
        case("index: number of pairs", Class::IndexBucket, WHOLE, |i| {
            i.edit(bucket(i, 1), |b| put_u32(b, BUCKET_COUNT, 7777));
        }),
        case("index: pair missing", Class::IndexMissing, WHOLE, |i| {
            i.edit(bucket(i, 0), |b| {
                let n = get_u32(b, BUCKET_COUNT);
                put_u32(b, BUCKET_COUNT, n - 1);
            });
        }),
        case("index: pair that leads elsewhere", Class::IndexStale, WHOLE, |i| {
            i.edit(bucket(i, 0), |b| put_u32(b, META_HEADER_SIZE + 4, 77));
        }),
    ]
}

fn tables() -> Vec<Case> {
    vec![
        case("locator: table inode destroyed", Class::SystemInode, WHOLE, |i| {
            i.edit_inode_bytes(LOCATOR_INO, |b| b[..120].fill(0));
        }),
        case("locator: attributes in the table inode", Class::SystemInode, WHOLE, |i| {
            i.edit_inode_bytes(LOCATOR_INO, |b| b[95] = 8);
        }),
        case("locator: block destroyed", Class::LocatorBlock, WHOLE, |i| {
            zero(i, i.block(BlockKind::Locator, LOCATOR_INO, 1));
        }),
        case("locator: number of a block", Class::LocatorBlock, WHOLE, |i| {
            i.edit(i.block(BlockKind::Locator, LOCATOR_INO, 1), |b| put_u64(b, TABLE_LBLOCK, 3));
        }),
        case("locator: entry missing", Class::LocatorMissing, WHOLE, |i| locator(i, i.ino(FILE), Location::Free)),
        case("locator: entry wrong", Class::LocatorWrong, WHOLE, |i| {
            locator(i, i.ino(FILE), Location::Embedded { block: 9, offset: 64 });
        }),
        case("locator: entry of another kind", Class::LocatorWrong, WHOLE, |i| {
            locator(i, i.ino(FILE), Location::External { block: 9, offset: 64 });
        }),
        // Where the inode of a directory stood before it was moved, its bytes are found for a while.
        case("locator: entry of before a move", Class::LocatorWrong, WHOLE, |i| {
            let (place, before) = (&i.places[&i.ino("/src/package0")], free_block(i));
            i.write(before, &i.read(place.block));
            i.edit(before, |b| put_u64(b, 16, before));
            locator(i, i.ino("/src/package0"), Location::Embedded { block: before, offset: place.offset });
        }),
        case("locator: entry of nothing", Class::LocatorStale, WHOLE, |i| {
            let unused = i.places.keys().max().unwrap() + 7;
            locator(i, unused, Location::Embedded { block: 9, offset: 64 });
        }),
        case("locator: count of a block", Class::TableCount, WHOLE, |i| {
            i.edit(i.block(BlockKind::Locator, LOCATOR_INO, 1), |b| put_u32(b, TABLE_USED, 3));
        }),
        case("locator: map destroyed", Class::TableMap, WHOLE, |i| {
            zero(i, i.block(BlockKind::TableMap, LOCATOR_INO, 0));
        }),
        case("locator: count in the map", Class::TableCount, WHOLE, |i| {
            i.edit(i.block(BlockKind::TableMap, LOCATOR_INO, 0), |b| b[META_HEADER_SIZE] ^= 1);
        }),
        case("external inodes: table inode destroyed", Class::SystemInode, WHOLE, |i| {
            i.edit_inode_bytes(EXTERNAL_INO, |b| b[..120].fill(0));
        }),
        case("external inodes: size beyond the device", Class::InodeSize, WHOLE, |i| {
            i.edit_inode(EXTERNAL_INO, |x| x.size = (i.g.total_blocks + 1) << i.g.block_shift);
        }),
        case("external inodes: map of blocks lost", Class::NameDangling, WHOLE, |i| {
            i.edit_inode(EXTERNAL_INO, |x| x.format = InodeFormat::Extents(Vec::new()));
        }),
        case("external inodes: block destroyed", Class::ExternalBlock, &["/links", "/src"], |i| {
            zero(i, i.places[&hard(i)].block);
        }),
        case("external inodes: checksum of a block", Class::ExternalBlock, WHOLE, |i| {
            i.break_block(i.places[&hard(i)].block, |b| *b.last_mut().unwrap() ^= 1);
        }),
        case(
            "external inodes: inode destroyed",
            Class::InodeDamaged,
            &["/links/first0", "/src/link0-0", "/src/link0-1"],
            |i| {
                let p = i.places[&hard(i)];
                i.edit(p.block, |b| b[p.offset + 12..p.offset + 16].fill(0xff));
            },
        ),
        case("external inodes: link count too small", Class::InodeLinks, WHOLE, |i| {
            i.edit_inode(hard(i), |x| x.nlink = 1);
        }),
        case("external inodes: link count 0", Class::InodeLinks, WHOLE, |i| i.edit_inode(hard(i), |x| x.nlink = 0)),
        case("external inodes: slots in use", Class::TableCount, WHOLE, |i| {
            i.edit(i.places[&hard(i)].block, |b| put_u32(b, TABLE_USED, 1));
        }),
        case("external inodes: number of a block", Class::ExternalBlock, WHOLE, |i| {
            i.edit(i.places[&hard(i)].block, |b| put_u64(b, TABLE_LBLOCK, 1 << 42));
        }),
        case("external inodes: impossible number of a block", Class::InodeSize, WHOLE, |i| {
            // All of it says so: the block, the map of blocks, and the size.
            let lblock = i.g.total_blocks + 5;
            i.edit(i.places[&hard(i)].block, |b| put_u64(b, TABLE_LBLOCK, lblock));
            let block = i.places[&hard(i)].block;
            i.edit_inode(EXTERNAL_INO, |x| {
                let fpb = i.g.frags_per_block();
                let start = block * fpb;
                x.format =
                    InodeFormat::Extents(vec![Extent { logical: lblock * fpb, start, len: fpb, unwritten: false }]);
                (x.size, x.frags) = ((lblock + 1) << i.g.block_shift, fpb);
            });
        }),
        case("quota file: contents in the inode", Class::SystemInode, WHOLE, |i| {
            i.edit_inode(USER_QUOTA_INO, |x| (x.size, x.format) = (3, InodeFormat::Inline(vec![1, 2, 3])));
        }),
        case("external inodes: map destroyed", Class::TableMap, WHOLE, |i| {
            zero(i, i.block(BlockKind::TableMap, EXTERNAL_INO, 0));
        }),
        case("external inodes: same file embedded too", Class::InodeNumber, WHOLE, |i| {
            let ino = hard(i);
            let inode = i.inode(ino);
            i.edit_entry("/links", "first0", |b, at| {
                cffs::format::dirblock::make_embedded(&mut Plain(b), at, &Inode { nlink: 1, ..inode });
            });
        }),
        Case {
            hit: &["/src/link1-0", "/src/link1-1"],
            ..moved("external inodes: file without a name", Class::InodeLinks, &["/links/first1"], |i| {
                let ino = i.ino("/links/first1");
                for (dir, name) in [("/links", "first1"), ("/src", "link1-0"), ("/src", "link1-1")] {
                    i.edit_entry(dir, name, |b, at| {
                        assert_eq!(get_u64(b, at + 8), ino);
                        cffs::format::dirblock::remove(&mut Plain(b), at);
                    });
                }
            })
        },
    ]
}

fn without_embedding() -> Vec<Case> {
    let no_embed = |c: Case| Case { no_embed: true, ..c };
    vec![
        no_embed(case("not embedded: second name of a directory", Class::InodeLinks, &["/misc/empty"], |i| {
            let up = i.ino("/src");
            i.edit_entry("/misc", "empty", |b, at| set_link(&mut Plain(b), at, up, FileType::Directory));
        })),
        no_embed(moved("not embedded: directories in a circle", Class::DirUnreachable, &["/src"], |i| {
            let top = i.ino("/src");
            i.edit_entry("/src/level0/level1", "level2", |b, at| set_link(&mut Plain(b), at, top, FileType::Directory));
            i.edit_entry("/", "src", |b, at| cffs::format::dirblock::remove(&mut Plain(b), at));
        })),
        no_embed(moved("not embedded: directory without a name", Class::DirUnreachable, &["/src/package3"], |i| {
            i.edit_entry("/src", "package3", |b, at| cffs::format::dirblock::remove(&mut Plain(b), at));
        })),
        no_embed(moved("not embedded: directory block destroyed", Class::DirBlock, &["/src/package4"], |i| {
            zero(i, i.dir_block("/src/package4", 0));
        })),
        no_embed(case("not embedded: table inode destroyed", Class::SystemInode, WHOLE, |i| {
            i.edit_inode_bytes(EXTERNAL_INO, |b| b[..120].fill(0));
        })),
        no_embed(case(
            "not embedded: root block destroyed",
            Class::DirBlock,
            &["/src", "/big", "/links", "/misc"],
            |i| {
                zero(i, i.dir_block("/", 0));
            },
        )),
        no_embed(case("not embedded: external inode of another slot", Class::InodeNumber, &[FILE], |i| {
            let (to, from) = (i.places[&i.ino(FILE)], i.places[&i.ino(FILE2)]);
            let bytes = i.read(from.block)[from.offset..from.offset + INODE_SLOT_SIZE].to_vec();
            i.edit(to.block, |b| b[to.offset..to.offset + INODE_SLOT_SIZE].copy_from_slice(&bytes));
        })),
    ]
}

/// Whether an image has an entry of this kind; for a test of the table itself.
pub fn has_orphans(i: &Image) -> bool {
    i.blocks
        .iter()
        .filter(|((kind, ..), _)| *kind == BlockKind::Dir)
        .any(|(_, addr)| entries(&i.read(*addr)).any(|e| e.kind == EntryKind::Orphan))
}
