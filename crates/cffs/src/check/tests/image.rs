//! A small populated image made by hand, with one of everything.

use crate::format::ag::{AG_FREE_FRAGS, BITMAP_BITS, ag_free, set_bits};
use crate::format::dirblock::{
    DIR_BLOCKS_MAX, NewEntry, Plain, entry_len, find_space, format_empty, insert, make_orphan,
};
use crate::format::dirindex::{BUCKET_COUNT, BUCKET_NUMBER, PAIR_SIZE, bucket_of, name_hash};
use crate::format::extent::{Child, Extent, node_entry, set_node_header};
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::system::{COUNT_FREE_FRAGS, COUNTERS_LEN, Counters};
use crate::format::table::{LOCATOR_SIZE, Location, TABLE_LBLOCK, TABLE_USED, TableShape, encode_count};
use crate::format::xattr::{ChainBlock, Namespace, XATTR_NEXT, Xattr};
use crate::format::*;
use crate::mkfs::{MkfsOptions, mkfs};
use cffs_device::{Device, IoKind, MemoryDevice};
use std::collections::BTreeMap;
use std::sync::Arc;

pub const SMALL: Ino = 16;
pub const INLINE: Ino = 17;
pub const SYMLINK: Ino = 18;
pub const SUB: Ino = 19;
pub const TREE: Ino = 20;
pub const DEVICE: Ino = 21;
pub const HARD: Ino = 22;
pub const ORPHAN: Ino = 23;
pub const EXTERNAL_ORPHAN: Ino = 24;
pub const ATTRIBUTES: Ino = 25;
/// A directory without inode room in its name, as all are with the no-embed feature.
pub const EXTERNAL_DIR: Ino = 26;
/// First of the files in the subdirectory, and how many there are.
pub const FILES: Ino = 100;
pub const FILE_COUNT: u64 = 60;

pub struct Image {
    pub dev: Arc<MemoryDevice>,
    pub sb: Superblock,
    pub g: Geometry,
    /// Next free block.
    pub next: BlockAddr,
    blocks: BTreeMap<BlockAddr, Vec<u8>>,
    places: BTreeMap<Ino, Location>,
    /// Blocks worth damaging.
    pub root_block: BlockAddr,
    pub sub_blocks: Vec<BlockAddr>,
    pub buckets: Vec<BlockAddr>,
    pub leaf: BlockAddr,
    pub xattr: BlockAddr,
    pub locator: [BlockAddr; 2],
    pub external: [BlockAddr; 2],
}

impl Image {
    pub fn new() -> Image {
        let dev = Arc::new(MemoryDevice::new(40 << 20));
        let o = MkfsOptions { now_ns: Some(5), hash_seed: Some([1, 2]), ..MkfsOptions::default() };
        let sb = mkfs(&*dev, None, &o).unwrap();
        let g = Geometry::new(&sb).unwrap();
        let mut image = Image {
            dev,
            next: sb.log_start + sb.log_blocks,
            g,
            sb,
            blocks: BTreeMap::new(),
            places: BTreeMap::new(),
            root_block: 0,
            sub_blocks: Vec::new(),
            buckets: Vec::new(),
            leaf: 0,
            xattr: 0,
            locator: [0; 2],
            external: [0; 2],
        };
        image.fill();
        image
    }

    /// Takes a block, for contents.
    pub fn take(&mut self) -> BlockAddr {
        self.next += 1;
        self.next - 1
    }

    fn meta(&mut self, kind: BlockKind, owner: u64) -> BlockAddr {
        let addr = self.take();
        let mut b = vec![0; self.g.block_size()];
        init_block(&mut b, self.g.fsid, BlockId { kind, addr, owner });
        self.blocks.insert(addr, b);
        addr
    }

    fn block(&mut self, addr: BlockAddr) -> &mut [u8] {
        self.blocks.get_mut(&addr).unwrap()
    }

    pub fn extent(&self, logical: u64, block: BlockAddr, frags: u64) -> Extent {
        Extent { logical, start: self.g.frag_of_block(block), len: frags, unwritten: false }
    }

    /// Whole blocks of a directory or table.
    fn whole(&self, list: &[(u64, BlockAddr)]) -> InodeFormat {
        let fpb = self.g.frags_per_block();
        InodeFormat::Extents(list.iter().map(|(l, b)| self.extent(l * fpb, *b, fpb)).collect())
    }

    fn enter(&mut self, block: BlockAddr, name: &[u8], inode: &Inode, embed: bool) -> usize {
        let hash = name_hash(self.sb.hash_seed, name);
        let b = self.block(block);
        let offset = find_space(b, entry_len(name.len(), inode.encoded_len())).unwrap();
        let (file_type, ino) = (inode.file_type(), inode.ino);
        let inode_room = inode.encoded_len();
        let new = NewEntry { name, hash, ino, file_type, inode: embed.then_some(inode), inode_room };
        insert(&mut Plain(b), offset, &new);
        if embed {
            self.places.insert(ino, Location::Embedded { block, offset });
        }
        offset
    }

    pub fn file(&mut self, ino: Ino, mode: u16, parent: Ino) -> Inode {
        Inode { parent, ..Inode::new(ino, mode, 9) }
    }

    fn fill(&mut self) {
        let regular = FileType::Regular.mode_bits() | 0o644;
        let fpb = self.g.frags_per_block();
        let root = self.meta(BlockKind::Dir, ROOT_INO);
        format_empty(&mut Plain(self.block(root)), 0);
        self.root_block = root;

        let data = self.take();
        let mut i = self.file(SMALL, regular, ROOT_INO);
        (i.size, i.frags, i.format) = (1500, 2, InodeFormat::Extents(vec![self.extent(0, data, 2)]));
        self.enter(root, b"small", &i, true);

        let mut i = self.file(INLINE, regular, ROOT_INO);
        (i.size, i.format) = (5, InodeFormat::Inline(b"hello".to_vec()));
        self.enter(root, b"inline", &i, true);

        let mut i = self.file(SYMLINK, FileType::Symlink.mode_bits() | 0o777, ROOT_INO);
        (i.size, i.format) = (6, InodeFormat::Inline(b"target".to_vec()));
        self.enter(root, b"symlink", &i, true);

        self.leaf = self.meta(BlockKind::ExtentNode, TREE);
        let mut list = Vec::new();
        for n in 0..6 {
            let at = self.take();
            self.take();
            list.push(self.extent(n * 10, at, 4));
        }
        let leaf = self.leaf;
        set_node_header(self.block(leaf), 0, list.len());
        for (n, e) in list.iter().enumerate() {
            self.block(leaf)[node_entry(n)..node_entry(n) + 16].copy_from_slice(&e.encode());
        }
        let mut i = self.file(TREE, regular, ROOT_INO);
        (i.size, i.frags) = (54 * 1024, 24 + fpb);
        i.format = InodeFormat::Tree { height: 1, children: vec![Child { key: 0, block: leaf }] };
        self.enter(root, b"tree", &i, true);

        let mut i = self.file(DEVICE, FileType::CharDevice.mode_bits() | 0o600, ROOT_INO);
        i.aux = 0x105;
        self.enter(root, b"device", &i, true);

        self.xattr = self.meta(BlockKind::Xattr, ATTRIBUTES);
        let mut list = Vec::new();
        attribute(Namespace::User, b"a", b"value").encode(&mut list);
        let xattr = self.xattr;
        let head = ChainBlock { next: 0, index: 0, used: list.len() }.encode();
        self.block(xattr)[XATTR_NEXT..XATTR_NEXT + 16].copy_from_slice(&head);
        self.block(xattr)[META_HEADER_SIZE..META_HEADER_SIZE + list.len()].copy_from_slice(&list);
        let mut i = self.file(ATTRIBUTES, regular, ROOT_INO);
        (i.frags, i.xattr_block) = (fpb, self.xattr);
        attribute(Namespace::AclAccess, b"", &acl(i.mode)).encode(&mut i.xattrs);
        self.enter(root, b"attributes", &i, true);

        let mut i = self.file(ORPHAN, regular, ROOT_INO);
        (i.nlink, i.hint) = (0, EXTERNAL_ORPHAN);
        let offset = self.enter(root, b"orphan", &i, true);
        make_orphan(&mut Plain(self.block(root)), offset);

        let mut hard = self.file(HARD, regular, ROOT_INO);
        hard.nlink = 2;
        self.enter(root, b"hard1", &hard, false);
        self.fill_sub(&hard);
        let mut orphan = self.file(EXTERNAL_ORPHAN, regular, SUB);
        orphan.nlink = 0;
        let mut dir = self.file(EXTERNAL_DIR, FileType::Directory.mode_bits() | 0o755, ROOT_INO);
        dir.nlink = 2;
        self.enter(root, b"external", &dir, false);
        self.fill_external(&[hard, orphan, dir]);

        let mut i = system(self, ROOT_INO);
        (i.nlink, i.aux, i.size, i.frags, i.format) = (4, 9, 4096, fpb, self.whole(&[(0, root)]));
        self.put_system(&i);
        self.fill_locator();
        self.finish();
    }

    fn fill_sub(&mut self, hard: &Inode) {
        let fpb = self.g.frags_per_block();
        let mut names = vec![(b"hard2".to_vec(), 0u32)];
        for lblock in 0..4 {
            let b = self.meta(BlockKind::Dir, SUB);
            format_empty(&mut Plain(self.block(b)), lblock);
            self.sub_blocks.push(b);
        }
        self.enter(self.sub_blocks[0], b"hard2", hard, false);
        let mut data = 0;
        for n in 0..FILE_COUNT {
            if n % 4 == 0 {
                data = self.take();
            }
            let mut i = self.file(FILES + n, FileType::Regular.mode_bits() | 0o600, SUB);
            let mut e = self.extent(0, data, 1);
            e.start += n % 4;
            (i.size, i.frags, i.format) = (1000, 1, InodeFormat::Extents(vec![e]));
            let name = format!("file{n}");
            let lblock = (n / 15) as usize;
            self.enter(self.sub_blocks[lblock], name.as_bytes(), &i, true);
            names.push((name.into_bytes(), lblock as u32));
        }
        for bucket in 0..3 {
            let b = self.meta(BlockKind::DirIndex, SUB);
            self.buckets.push(b);
            let pairs: Vec<(u32, u32)> = names
                .iter()
                .map(|(name, lblock)| (name_hash(self.sb.hash_seed, name), *lblock))
                .filter(|(hash, _)| bucket_of(*hash, 3) == bucket)
                .collect();
            let block = self.block(b);
            put_u32(block, BUCKET_NUMBER, bucket);
            put_u32(block, BUCKET_COUNT, pairs.len() as u32);
            for (n, (hash, lblock)) in pairs.into_iter().enumerate() {
                put_u32(block, META_HEADER_SIZE + n * PAIR_SIZE, hash);
                put_u32(block, META_HEADER_SIZE + n * PAIR_SIZE + 4, lblock);
            }
        }
        // Three blocks each behind the entries and the buckets, allocated ahead and never written.
        let ahead = [self.take(), self.take(), self.take()];
        let mut sub = self.file(SUB, FileType::Directory.mode_bits() | 0o755, ROOT_INO);
        (sub.nlink, sub.index_buckets, sub.aux, sub.size) = (2, 3, FILE_COUNT + 1, 4 * 4096);
        sub.frags = (4 + 3 + 3) * fpb;
        sub.format = InodeFormat::Extents(vec![
            self.extent(0, self.sub_blocks[0], 4 * fpb),
            self.extent(DIR_BLOCKS_MAX * fpb, self.buckets[0], 3 * fpb),
            self.extent((DIR_BLOCKS_MAX + 3) * fpb, ahead[0], 3 * fpb),
        ]);
        self.enter(self.root_block, b"sub", &sub, true);
    }

    fn table(&mut self, ino: Ino, kind: BlockKind, used: u32) -> [BlockAddr; 2] {
        let map = self.meta(BlockKind::TableMap, ino);
        let block = self.meta(kind, ino);
        self.block(map)[META_HEADER_SIZE..META_HEADER_SIZE + 2].copy_from_slice(&encode_count(used as u16));
        put_u64(self.block(block), TABLE_LBLOCK, 1);
        put_u32(self.block(block), TABLE_USED, used);
        let mut i = system(self, ino);
        let fpb = self.g.frags_per_block();
        (i.size, i.frags, i.format) = (2 * 4096, 2 * fpb, self.whole(&[(0, map), (1, block)]));
        self.put_system(&i);
        [map, block]
    }

    fn fill_external(&mut self, inodes: &[Inode]) {
        self.external = self.table(EXTERNAL_INO, BlockKind::ExternalInodes, inodes.len() as u32);
        let block = self.external[1];
        for (slot, i) in inodes.iter().enumerate() {
            let offset = META_HEADER_SIZE + slot * INODE_SLOT_SIZE;
            i.encode(&mut self.block(block)[offset..offset + i.encoded_len()]);
            self.places.insert(i.ino, Location::External { block, offset });
        }
    }

    fn fill_locator(&mut self) {
        let places = std::mem::take(&mut self.places);
        self.locator = self.table(LOCATOR_INO, BlockKind::Locator, places.len() as u32);
        let shape = TableShape::new(self.g.block_size(), LOCATOR_SIZE);
        let block = self.locator[1];
        for (ino, place) in places {
            let (lblock, offset) = shape.place(ino);
            assert_eq!(lblock, 1);
            self.block(block)[offset..offset + LOCATOR_SIZE].copy_from_slice(&place.encode());
        }
    }

    /// Offset of an inode's locator entry in `locator[1]`.
    pub fn locator_offset(&self, ino: Ino) -> usize {
        TableShape::new(self.g.block_size(), LOCATOR_SIZE).place(ino).1
    }

    pub fn put_system(&mut self, inode: &Inode) {
        let (addr, offset) = self.g.system_inode(inode.ino);
        let inode = inode.clone();
        self.edit(addr, |b| inode.encode(&mut b[offset..offset + inode.encoded_len()]));
    }

    /// Changes the block's bytes and makes its checksum right again.
    pub fn edit(&self, addr: BlockAddr, f: impl FnOnce(&mut [u8])) {
        let mut b = self.read(addr);
        f(&mut b);
        seal(&mut b, 1);
        self.dev.write_at(IoKind::Meta, addr << self.g.block_shift, &b).unwrap();
    }

    pub fn read(&self, addr: BlockAddr) -> Vec<u8> {
        let mut b = vec![0; self.g.block_size()];
        self.dev.read_at(IoKind::Meta, addr << self.g.block_shift, &mut b).unwrap();
        b
    }

    /// Changes an inode embedded in a directory block.
    pub fn edit_embedded(&self, block: BlockAddr, ino: Ino, f: impl FnOnce(&mut Inode)) {
        self.edit(block, |b| {
            let at = dirblock::entries(b).find(|e| e.ino == ino).unwrap().inode_offset();
            let mut i = Inode::decode(&b[at..]).unwrap();
            f(&mut i);
            i.encode(&mut b[at..at + i.encoded_len()]);
        });
    }

    /// Writes everything; marks what was taken; counts.
    fn finish(&mut self) {
        for (addr, mut b) in std::mem::take(&mut self.blocks) {
            seal(&mut b, 1);
            self.dev.write_at(IoKind::Meta, addr << self.g.block_shift, &b).unwrap();
        }
        let fpb = self.g.frags_per_block();
        // Half-used blocks of contents: all data blocks here have their first fragments in use.
        let first = self.sb.log_start + self.sb.log_blocks;
        let mut used = vec![true; ((self.next - first) * fpb) as usize];
        let data = (first + 1 - first) * fpb;
        used[data as usize + 2] = false;
        used[data as usize + 3] = false;
        for n in 0..6 {
            let hole = (self.leaf + 2 + 2 * n - first) * fpb;
            used[hole as usize..(hole + fpb) as usize].fill(false);
        }
        let bitmap = self.g.bitmap_block(0, 0);
        let mut taken = 0;
        self.edit(bitmap, |b| {
            for (i, _) in used.iter().enumerate().filter(|(_, u)| **u) {
                let frag = first * fpb + i as u64;
                assert!(set_bits(&mut b[BITMAP_BITS..], frag, frag + 1, true));
                taken += 1;
            }
        });
        self.edit(self.g.ag_header(0), |b| {
            let free = ag_free(b) - taken;
            put_u64(b, AG_FREE_FRAGS, free);
        });
        self.edit(self.g.counters_block(), |b| {
            let c = Counters::decode(b);
            let new =
                Counters { free_frags: c.free_frags - taken, inodes: 1 + 11 + FILE_COUNT, orphan_head: ORPHAN, ..c };
            b[COUNT_FREE_FRAGS..COUNT_FREE_FRAGS + COUNTERS_LEN].copy_from_slice(&new.encode());
        });
    }
}

pub fn system(image: &Image, ino: Ino) -> Inode {
    let (addr, offset) = image.g.system_inode(ino);
    Inode::decode(&image.read(addr)[offset..offset + INODE_SLOT_SIZE]).unwrap()
}

impl Image {
    pub fn file_of(&self, ino: Ino, file_type: FileType) -> Inode {
        Inode::new(ino, file_type.mode_bits() | 0o700, 3)
    }
}

/// An extended attribute.
pub fn attribute(namespace: Namespace, name: &[u8], value: &[u8]) -> Xattr {
    Xattr { namespace, name: name.to_vec(), value: value.to_vec() }
}

/// An access control list with a named user that goes with a mode.
pub fn acl(mode: u16) -> Vec<u8> {
    let entry =
        |tag: u16, perm: u16, id: u32| [&tag.to_le_bytes()[..], &(perm & 7).to_le_bytes(), &id.to_le_bytes()].concat();
    let none = u32::MAX;
    let group = entry(4, 0, none);
    let (owner, mask, other) = (entry(1, mode >> 6, none), entry(0x10, mode >> 3, none), entry(0x20, mode, none));
    [&[2, 0, 0, 0][..], &owner, &entry(2, 6, 77), &group, &mask, &other].concat()
}
