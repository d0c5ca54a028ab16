//! An image with a tree on it that looks like a real one, ways to find its structures and to damage them, and what is in it.

use cffs::device::{Device, IoKind, MemoryDevice};
use cffs::format::dirblock::{DIR_LBLOCK, EntryKind, entries, validate};
use cffs::format::dirindex::BUCKET_NUMBER;
use cffs::format::extent::NODE_LEVEL;
use cffs::format::geometry::INODE_SLOT_SIZE;
use cffs::format::table::TABLE_LBLOCK;
use cffs::format::*;
use cffs::journal::recovery::replay;
use cffs::mkfs::read_superblock;
use cffs::{Caller, Error, Fs, MkfsOptions, MountOptions, mkfs};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

const ME: Caller = Caller { uid: 1000, gid: 100 };

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    pub file_type: u8,
    pub perm: u16,
    pub size: u64,
    pub rdev: u32,
    /// Hash of the contents, or of the target.
    pub contents: u64,
}

pub type Tree = BTreeMap<String, Found>;

/// Where an inode stands.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub block: BlockAddr,
    /// Of the entry, or of the slot.
    pub offset: usize,
    pub external: bool,
}

/// An image before any damage.
pub struct Image {
    pub dev: Arc<MemoryDevice>,
    pub sb: Superblock,
    pub g: Geometry,
    pub tree: Tree,
    /// Inode numbers by path.
    pub inos: HashMap<String, Ino>,
    pub places: HashMap<Ino, Place>,
    /// Metadata blocks: kind, owner, number within the owner (of a tree node: its level).
    pub blocks: BTreeMap<(BlockKind, u64, u64), BlockAddr>,
    /// Inodes without a name.
    pub orphans: Vec<Ino>,
}

/// An image that nobody damages: copies are.
pub fn pristine(no_embed: bool) -> &'static Image {
    static IMAGES: [OnceLock<Image>; 2] = [OnceLock::new(), OnceLock::new()];
    IMAGES[usize::from(no_embed)].get_or_init(|| Image::new(no_embed))
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

pub fn mount(dev: &Arc<MemoryDevice>, read_only: bool) -> Arc<Fs> {
    let o = MountOptions::default().background(false).read_only(read_only).cache_bytes(16 << 20);
    Fs::open(dev.clone(), None, o).unwrap()
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| next()).collect()
}

struct Filler<'a> {
    fs: &'a Fs,
    made: u64,
}

impl Filler<'_> {
    fn dir(&self, parent: Ino, name: &str) -> Ino {
        let a = self.fs.mkdir(ME, parent, name.as_bytes(), 0o755).unwrap();
        self.fs.forget(a.ino, 1);
        a.ino
    }
    fn file(&mut self, dir: Ino, name: &str, len: usize) -> Ino {
        self.made += 1;
        let a = self.fs.create(ME, dir, name.as_bytes(), 0o640).unwrap();
        assert_eq!(self.fs.write(ME, a.ino, 0, &bytes(self.made, len)).unwrap(), len);
        self.fs.forget(a.ino, 1);
        a.ino
    }
    fn fill(&mut self) -> Vec<Ino> {
        let src = self.dir(ROOT_INO, "src");
        let mut at = src;
        for depth in 0..4 {
            at = self.dir(at, &format!("level{depth}"));
            for n in 0..12 {
                self.file(at, &format!("file{n}.rs"), (n * 731 * (depth + 1)) % 9000);
            }
        }
        for n in 0..6 {
            let d = self.dir(src, &format!("package{n}"));
            for m in 0..8 {
                self.file(d, &format!("mod{m}.c"), 200 + m * 997);
            }
        }
        let big = self.dir(ROOT_INO, "big");
        for n in 0..500 {
            self.file(
                big,
                &format!("a name that is as long as names of messages are {n}"),
                if n % 3 == 0 { 900 } else { 20 },
            );
        }
        let links = self.dir(ROOT_INO, "links");
        for n in 0..6 {
            let ino = self.file(links, &format!("first{n}"), 1500 + n);
            for m in 0..2 {
                let a = self.fs.link(ME, ino, src, format!("link{n}-{m}").as_bytes()).unwrap();
                self.fs.forget(a.ino, 1);
            }
        }
        let misc = self.dir(ROOT_INO, "misc");
        self.dir(misc, "empty");
        for (name, len) in [("short", 20), ("long", 900)] {
            let a = self.fs.symlink(ME, misc, name.as_bytes(), &vec![b'x'; len]).unwrap();
            self.fs.forget(a.ino, 1);
        }
        for (name, file_type, rdev) in
            [("fifo", FileType::Fifo, 0), ("device", FileType::CharDevice, 0x105), ("socket", FileType::Socket, 0)]
        {
            let a = self.fs.mknod(Caller::ROOT, misc, name.as_bytes(), file_type, 0o600, rdev).unwrap();
            self.fs.forget(a.ino, 1);
        }
        self.file(misc, "large", 3 << 20);
        let sparse = self.file(misc, "sparse", 10);
        for n in 0..700u64 {
            self.fs.write(ME, sparse, 50_000 + n * 20_000, &bytes(n, 300)).unwrap();
        }
        let mut held = Vec::new();
        for n in 0..3 {
            let ino = self.file(src, &format!("unlinked{n}"), 3000);
            self.fs.lookup(src, format!("unlinked{n}").as_bytes()).unwrap();
            held.push(ino);
        }
        self.fs.sync().unwrap();
        for n in 0..3 {
            self.fs.unlink(src, format!("unlinked{n}").as_bytes()).unwrap();
        }
        self.fs.sync().unwrap();
        held
    }
}

impl Image {
    pub fn new(no_embed: bool) -> Image {
        let dev = Arc::new(MemoryDevice::new(48 << 20));
        let o = MkfsOptions::default()
            .no_embed(no_embed)
            .now_ns(Some(5))
            .hash_seed(Some([3, 4]))
            .group_size(64 << 10)
            .log_bytes(Some(2 << 20))
            .ag_blocks(Some(1024)) // One of the two images has checksums of data, the other has not.
            .data_sums(!no_embed);
        mkfs(&*dev, None, &o).unwrap();
        let fs = mount(&dev, false);
        let orphans = Filler { fs: &fs, made: 0 }.fill();
        // A crash, and what a mount would do first: everything is in place, and the orphans are still there.
        drop(fs);
        Image::of(dev, orphans)
    }

    /// What is on a device; its log is replayed.
    pub fn of(dev: Arc<MemoryDevice>, orphans: Vec<Ino>) -> Image {
        let sb = read_superblock(&*dev).unwrap();
        let g = Geometry::new(&sb).unwrap();
        replay(&*dev, None, &sb, &g).unwrap();
        let tree = tree(&dev);
        let mut image =
            Image { dev, sb, g, tree, inos: HashMap::new(), places: HashMap::new(), blocks: BTreeMap::new(), orphans };
        let fs = mount(&image.dev, true);
        for path in image.tree.keys() {
            image.inos.insert(path.clone(), cffs::path::resolve(&fs, path.as_bytes()).unwrap().ino);
        }
        image.catalogue();
        image
    }

    /// Finds all metadata blocks by what they say they are.
    fn catalogue(&mut self) {
        let mut newest: BTreeMap<(BlockKind, u64, u64), u64> = BTreeMap::new();
        for addr in 0..self.g.total_blocks {
            let b = self.read(addr);
            let Some(kind) = BlockKind::from_magic(get_u32(&b, 0)) else { continue };
            if !crc_ok(&b) || get_u64(&b, 16) != addr {
                continue;
            }
            let number = match kind {
                BlockKind::Dir => get_u64(&b, DIR_LBLOCK),
                BlockKind::DirIndex => u64::from(get_u32(&b, BUCKET_NUMBER)),
                BlockKind::ExtentNode => u64::from(get_u16(&b, NODE_LEVEL)) << 32 | addr,
                BlockKind::Locator | BlockKind::ExternalInodes | BlockKind::TableMap => get_u64(&b, TABLE_LBLOCK),
                _ => 0,
            };
            let key = (kind, block_owner(&b), number);
            if newest.get(&key).is_none_or(|seq| *seq < block_seq(&b)) {
                newest.insert(key, block_seq(&b));
                self.blocks.insert(key, addr);
            }
        }
        let list: Vec<((BlockKind, u64, u64), BlockAddr)> = self.blocks.iter().map(|(k, a)| (*k, *a)).collect();
        for ((kind, ..), addr) in list {
            let b = self.read(addr);
            if kind == BlockKind::Dir && validate(&b).is_ok() {
                for e in entries(&b).filter(|e| matches!(e.kind, EntryKind::Embedded | EntryKind::Orphan)) {
                    self.places.insert(e.ino, Place { block: addr, offset: e.offset, external: false });
                }
            } else if kind == BlockKind::ExternalInodes {
                for offset in (META_HEADER_SIZE..b.len() - INODE_SLOT_SIZE + 1).step_by(INODE_SLOT_SIZE) {
                    let ino = get_u64(&b, offset);
                    if ino != 0 {
                        self.places.insert(ino, Place { block: addr, offset, external: true });
                    }
                }
            }
        }
    }

    /// The same image on a device of its own.
    pub fn copy(&self) -> Image {
        Image {
            dev: Arc::new(self.dev.duplicate()),
            sb: self.sb.clone(),
            g: self.g,
            tree: self.tree.clone(),
            inos: self.inos.clone(),
            places: self.places.clone(),
            blocks: self.blocks.clone(),
            orphans: self.orphans.clone(),
        }
    }

    pub fn read(&self, addr: BlockAddr) -> Vec<u8> {
        let mut b = vec![0; self.g.block_size()];
        self.dev.read_at(IoKind::Meta, addr << self.g.block_shift, &mut b).unwrap();
        b
    }

    pub fn write(&self, addr: BlockAddr, bytes: &[u8]) {
        self.dev.write_at(IoKind::Meta, addr << self.g.block_shift, bytes).unwrap();
    }

    /// Changes a block's bytes, and makes its checksum right again.
    pub fn edit(&self, addr: BlockAddr, f: impl FnOnce(&mut [u8])) {
        let mut b = self.read(addr);
        f(&mut b);
        seal(&mut b, 1);
        self.write(addr, &b);
    }

    /// Changes a block's bytes, and nothing about its checksum.
    pub fn break_block(&self, addr: BlockAddr, f: impl FnOnce(&mut [u8])) {
        let mut b = self.read(addr);
        f(&mut b);
        self.write(addr, &b);
    }

    pub fn ino(&self, path: &str) -> Ino {
        self.inos[path]
    }

    /// Address of a metadata block.
    pub fn block(&self, kind: BlockKind, owner: u64, number: u64) -> BlockAddr {
        self.blocks[&(kind, owner, number)]
    }

    /// A block of a directory by path.
    pub fn dir_block(&self, path: &str, lblock: u64) -> BlockAddr {
        let ino = if path == "/" { ROOT_INO } else { self.ino(path) };
        self.block(BlockKind::Dir, ino, lblock)
    }

    /// The first of the leaves of a file's extent tree.
    pub fn leaf(&self, path: &str) -> BlockAddr {
        let ino = self.ino(path);
        let range = (BlockKind::ExtentNode, ino, 0)..(BlockKind::ExtentNode, ino, 1 << 32);
        *self.blocks.range(range).next().expect("a leaf").1
    }

    /// Changes the raw bytes of the inode behind a path, or of one of the system.
    pub fn edit_inode_bytes(&self, ino: Ino, f: impl FnOnce(&mut [u8])) {
        if ino <= LAST_SYSTEM_INO {
            let (addr, offset) = self.g.system_inode(ino);
            return self.edit(addr, |b| f(&mut b[offset..offset + INODE_SLOT_SIZE]));
        }
        let p = self.places[&ino];
        self.edit(p.block, |b| {
            let at =
                if p.external { p.offset } else { entries(b).find(|e| e.offset == p.offset).unwrap().inode_offset() };
            f(&mut b[at..]);
        });
    }

    /// Changes an inode.
    pub fn edit_inode(&self, ino: Ino, f: impl FnOnce(&mut Inode)) {
        self.edit_inode_bytes(ino, |b| {
            let mut inode = Inode::decode(b).unwrap();
            f(&mut inode);
            inode.encode(&mut b[..inode.encoded_len()]);
        });
    }

    /// Changes the entry of a name: the block's bytes, and where the entry is.
    pub fn edit_entry(&self, dir: &str, name: &str, f: impl FnOnce(&mut [u8], usize)) {
        let ino = if dir == "/" { ROOT_INO } else { self.ino(dir) };
        for lblock in 0.. {
            let addr = self.block(BlockKind::Dir, ino, lblock);
            let b = self.read(addr);
            if let Some(e) = entries(&b).find(|e| e.is_name() && e.name == name.as_bytes()) {
                let at = e.offset;
                return self.edit(addr, |b| f(b, at));
            }
        }
    }

    pub fn inode(&self, ino: Ino) -> Inode {
        let mut out = None;
        let (addr, offset) = if ino <= LAST_SYSTEM_INO {
            self.g.system_inode(ino)
        } else {
            let p = self.places[&ino];
            let b = self.read(p.block);
            let at =
                if p.external { p.offset } else { entries(&b).find(|e| e.offset == p.offset).unwrap().inode_offset() };
            (p.block, at)
        };
        out.replace(Inode::decode(&self.read(addr)[offset..]).unwrap());
        out.unwrap()
    }
}

/// Everything that paths lead to.
pub fn tree(dev: &Arc<MemoryDevice>) -> Tree {
    let fs = mount(dev, true);
    let mut out = Tree::new();
    let mut stack = vec![(ROOT_INO, String::new())];
    while let Some((dir, path)) = stack.pop() {
        let mut names = Vec::new();
        fs.readdir(dir, 0, false, &mut |e| {
            names.push(e.name);
            true
        })
        .unwrap_or_else(|e| panic!("list {path}: {e}"));
        for name in names {
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            let a = fs.lookup(dir, &name).unwrap_or_else(|e| panic!("{path}: {e}"));
            let contents = match a.file_type {
                FileType::Regular => {
                    let mut data = vec![0; a.size.min(64 << 20) as usize];
                    match fs.read(a.ino, 0, &mut data) {
                        Ok(n) => hash(&data[..n]),
                        // Damaged data: other contents than before, and not those of anybody else.
                        Err(Error::Corrupt(c)) if c.0.contains("checksum does not match") => u64::MAX,
                        Err(e) => panic!("read {path}: {e}"),
                    }
                }
                FileType::Symlink => hash(&fs.readlink(a.ino).unwrap()),
                _ => 0,
            };
            let size = if a.file_type == FileType::Directory { 0 } else { a.size };
            if a.file_type == FileType::Directory {
                stack.push((a.ino, path.clone()));
            }
            out.insert(path, Found { file_type: a.file_type as u8, perm: a.perm, size, rdev: a.rdev, contents });
            fs.forget(a.ino, 1);
        }
    }
    out
}
