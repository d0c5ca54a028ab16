//! The images that are damaged: made by the engine, one for each combination of formats that matters.

use super::pieces::PieceIndex;
use super::units::{Unit, UnitKind, find_units};
use super::work::bytes;
use cffs::device::{Device, MemoryDevice, OverlayDevice};
use cffs::mkfs::{log_bytes_min, read_superblock};
use cffs::{
    Caller, Fallocate, FileType, Fs, Geometry, Ino, MkfsOptions, MountOptions, QuotaKind, QuotaLimits, ROOT_INO,
    SetXattr, Superblock, mkfs,
};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const ME: Caller = Caller { uid: 1000, gid: 100 };

/// What a sample is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSpec {
    /// Block, fragment and group size in bytes.
    pub sizes: (u32, u32, u32),
    /// Size of the device in bytes.
    pub device: u64,
    /// Allocation group in bytes.
    pub ag: u64,
    /// Inodes outside the directories.
    pub no_embed: bool,
    /// Conventional placement.
    pub no_group: bool,
    /// Directory blocks among the data.
    pub dirs_with_data: bool,
    /// All three kinds of quotas.
    pub quota: bool,
    /// The log stands on a device of its own.
    pub external_log: bool,
    /// Not unmounted: a log that has to be replayed, and orphans.
    pub crashed: bool,
}

const K4: ImageSpec = ImageSpec {
    sizes: (4096, 1024, 64 << 10),
    device: 12 * MIB,
    ag: 4 * MIB,
    no_embed: false,
    no_group: false,
    dirs_with_data: false,
    quota: false,
    external_log: false,
    crashed: false,
};
const SMALL: ImageSpec = ImageSpec { sizes: (512, 512, 16 << 10), device: 8 * MIB, ag: 2 * MIB, ..K4 };

/// All samples: the four variants, block sizes, quotas, both places of the log, unmounted and crashed, a sparse large one.
pub const IMAGE_SPECS: [ImageSpec; 13] = [
    ImageSpec { quota: true, ..K4 },
    ImageSpec { crashed: true, ..K4 },
    ImageSpec { no_embed: true, ..K4 },
    ImageSpec { no_embed: true, quota: true, crashed: true, ..K4 },
    ImageSpec { no_group: true, crashed: true, quota: true, ..K4 },
    ImageSpec { no_embed: true, no_group: true, ..K4 },
    ImageSpec { crashed: true, quota: true, ..SMALL },
    ImageSpec { no_embed: true, ..SMALL },
    ImageSpec { sizes: (1024, 512, 16 << 10), dirs_with_data: true, crashed: true, ..SMALL },
    ImageSpec { external_log: true, crashed: true, ..K4 },
    ImageSpec { sizes: (4096, 4096, 256 << 10), external_log: true, no_embed: true, ..K4 },
    ImageSpec { sizes: (65536, 8192, 256 << 10), device: 96 * MIB, ag: 64 * MIB, crashed: true, ..K4 },
    ImageSpec { device: 64 << 30, ag: 1 << 30, quota: true, crashed: true, ..K4 },
];

/// An image, and what stands where on it.
pub struct Sample {
    /// What it is like.
    pub spec: ImageSpec,
    /// The devices: the file system, and the external log if there is one. Nobody writes to them any more.
    pub devices: Vec<Arc<dyn Device>>,
    /// Its superblock.
    pub sb: Superblock,
    /// Its geometry.
    pub g: Geometry,
    /// Everything that can be damaged.
    pub units: Vec<Unit>,
    /// Numbers that mean something on this image.
    pub pool: Pool,
}

/// Numbers that mean something on an image.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// Addresses of metadata blocks, and a few others.
    pub blocks: Vec<u64>,
    /// Addresses of fragments.
    pub frags: Vec<u64>,
    /// Inode numbers.
    pub inos: Vec<u64>,
    /// Sizes and limits.
    pub sizes: Vec<u64>,
}

/// All samples.
pub struct Corpus {
    /// One for each spec.
    pub samples: Vec<Sample>,
    /// Copies of all units with their bytes, for targets that need no device: (sample, unit, bytes).
    pub pieces: Vec<(usize, Unit, Vec<u8>)>,
    /// The pieces by kind.
    pub index: PieceIndex,
}

impl Corpus {
    /// Makes the samples of these specs.
    pub fn new(specs: &[ImageSpec]) -> Corpus {
        let samples: Vec<Sample> = specs.iter().map(Sample::new).collect();
        let mut pieces = Vec::new();
        for (n, s) in samples.iter().enumerate() {
            for u in &s.units {
                pieces.push((n, *u, u.read(&s.devices)));
            }
        }
        let index = PieceIndex::new(&pieces);
        Corpus { samples, pieces, index }
    }
}

impl Sample {
    /// Makes an image and looks what is where.
    pub fn new(spec: &ImageSpec) -> Sample {
        let dev = Arc::new(MemoryDevice::new(spec.device));
        let log = spec.external_log.then(|| Arc::new(MemoryDevice::new(2 * MIB)));
        let o = MkfsOptions::default()
            .block_size(spec.sizes.0)
            .frag_size(Some(spec.sizes.1))
            .group_size(spec.sizes.2)
            .log_bytes(Some(log_bytes_min(spec.sizes.0)))
            .ag_blocks(Some(spec.ag / u64::from(spec.sizes.0)))
            .label("fuzz".into())
            .uuid(Some(*b"cffs-fuzz uuid 1"))
            .hash_seed(Some([3, 4]))
            .now_ns(Some(5_000_000))
            .no_embed(spec.no_embed)
            .no_group(spec.no_group)
            .dirs_with_data(spec.dirs_with_data)
            .quota(if spec.quota { QuotaKind::ALL.to_vec() } else { Vec::new() });
        mkfs(&*dev, log.as_deref().map(|d| d as &dyn Device), &o).expect("mkfs of a sample");
        let log_dyn = log.clone().map(|d| d as Arc<dyn Device>);
        let fs = Fs::open(dev.clone(), log_dyn.clone(), options()).expect("mount of a sample");
        let held = fill(&fs, spec);
        if spec.crashed {
            // What is dropped without being unmounted is as a crash leaves it.
            drop(fs);
        } else {
            for ino in held {
                fs.forget(ino, 1);
            }
            fs.close().expect("unmount of a sample");
        }
        let mut devices: Vec<Arc<dyn Device>> = vec![dev];
        devices.extend(log_dyn);
        let sb = read_superblock(&*devices[0]).expect("superblock of a sample");
        let g = Geometry::new(&sb).expect("geometry of a sample");
        let units = find_units(&devices, &sb, &g);
        let pool = Pool::of(&units, &devices, &g);
        Sample { spec: *spec, devices, sb, g, units, pool }
    }

    /// The devices with changes of their own.
    pub fn copies(&self) -> Vec<Arc<dyn Device>> {
        layers(&self.devices)
    }
}

/// Devices that keep their changes to themselves, over these.
pub fn layers(below: &[Arc<dyn Device>]) -> Vec<Arc<dyn Device>> {
    below.iter().map(|d| Arc::new(OverlayDevice::new(d.clone())) as Arc<dyn Device>).collect()
}

/// Settings of a mount: nothing happens on its own.
pub fn options() -> MountOptions {
    MountOptions::default().background(false).cache_bytes(8 << 20)
}

/// A tree with everything on it that the format knows. Returns the inodes that were unlinked while in use.
fn fill(fs: &Fs, r: &ImageSpec) -> Vec<Ino> {
    let bs = r.sizes.0 as usize;
    let done = |a: cffs::Attr| {
        fs.forget(a.ino, 1);
        a.ino
    };
    let dir = |parent, name: &str| done(fs.mkdir(ME, parent, name.as_bytes(), 0o755).expect("mkdir"));
    let file = |parent, name: &str, len: usize| {
        let a = fs.create(ME, parent, name.as_bytes(), 0o640).expect("create");
        fs.write(ME, a.ino, 0, &bytes(a.ino, len)).expect("write");
        done(a)
    };
    let set = |ino, name: &str, value: &[u8]| {
        fs.setxattr(Caller::ROOT, ino, name.as_bytes(), value, SetXattr::default()).expect("setxattr");
    };
    let acl = |tags: &[(u16, u16, u32)]| {
        let mut v = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in tags {
            v.extend_from_slice(&tag.to_le_bytes());
            v.extend_from_slice(&perm.to_le_bytes());
            v.extend_from_slice(&id.to_le_bytes());
        }
        v
    };
    let none = u32::MAX;
    let list = acl(&[(1, 6, none), (2, 4, 1001), (4, 4, none), (8, 4, 55), (0x10, 4, none), (0x20, 0, none)]);

    let src = dir(ROOT_INO, "src");
    let mut at = src;
    for depth in 0..3 {
        at = dir(at, &format!("level{depth}"));
        for n in 0..5 {
            file(at, &format!("file{n}.rs"), (n * 731 * (depth + 1)) % 5000);
        }
    }
    // Enough names for an index with several buckets, where blocks are small enough for that.
    let big = dir(ROOT_INO, "big");
    for n in 0..if bs <= 1024 { 90 } else { 240 } {
        file(big, &format!("a name of a message {n}"), if n % 9 == 0 { 300 } else { 12 });
    }
    let links = dir(ROOT_INO, "links");
    for n in 0..4 {
        let ino = file(links, &format!("first{n}"), 1500 + n);
        for m in 0..2 {
            done(fs.link(ME, ino, src, format!("link{n}-{m}").as_bytes()).expect("link"));
        }
    }
    let misc = dir(ROOT_INO, "misc");
    dir(misc, "empty");
    for (name, len) in [("short", 20), ("long", 900)] {
        done(fs.symlink(ME, misc, name.as_bytes(), &vec![b'x'; len]).expect("symlink"));
    }
    for (name, t, rdev) in
        [("fifo", FileType::Fifo, 0), ("device", FileType::CharDevice, 0x105), ("socket", FileType::Socket, 0)]
    {
        done(fs.mknod(Caller::ROOT, misc, name.as_bytes(), t, 0o600, rdev).expect("mknod"));
    }
    file(misc, "large", 200 << 10);
    let sparse = file(misc, "sparse", 10);
    for n in 0..if bs <= 1024 { 160 } else { 330 } {
        let at = 50_000 + n * 3 * u64::from(r.sizes.1.max(1024));
        fs.write(ME, sparse, at, &bytes(n, 300)).expect("write");
    }
    let unwritten = file(misc, "unwritten", 3000);
    fs.fallocate(ME, unwritten, Fallocate::Allocate { keep_size: false }, 8192, 60_000).expect("fallocate");
    fs.fallocate(ME, unwritten, Fallocate::Allocate { keep_size: true }, 90_000, 9000).expect("fallocate");
    fs.write(ME, unwritten, 20_000, &[7; 100]).expect("write");
    let named = file(misc, "attributes", 100);
    set(named, "user.small", b"value");
    set(named, "security.capability", &[1; 20]);
    set(named, "user.large", &bytes(9, 2500));
    set(named, "trusted.larger", &bytes(10, 9000));
    set(named, "system.posix_acl_access", &list);
    let shared = dir(misc, "shared");
    set(shared, "system.posix_acl_default", &list);
    set(shared, "user.on a directory", b"x");
    file(shared, "inherits", 50);
    if r.quota {
        for (kind, id) in [(QuotaKind::User, 1000), (QuotaKind::Group, 100), (QuotaKind::Project, 9)] {
            let limits = QuotaLimits { soft_bytes: 1 << 30, hard_bytes: 2 << 30, soft_inodes: 5000, hard_inodes: 9000 };
            fs.set_quota(kind, id, limits).expect("set_quota");
        }
        fs.set_project(Caller::ROOT, misc, 9, true).expect("set_project");
        file(misc, "of the project", 2000);
    }
    fs.sync().expect("sync");
    let mut held = Vec::new();
    for n in 0..3 {
        let ino = file(src, &format!("unlinked{n}"), 3000);
        fs.lookup(src, format!("unlinked{n}").as_bytes()).expect("lookup");
        held.push(ino);
    }
    fs.sync().expect("sync");
    // Several transactions that are in the log only.
    for n in 0..3 {
        fs.unlink(src, format!("unlinked{n}").as_bytes()).expect("unlink");
        let name = format!("late{n}");
        let ino = file(src, &name, 700 * (n + 1));
        fs.fsync(ino, false).expect("fsync");
        fs.unlink(links, format!("first{n}").as_bytes()).expect("unlink");
        fs.unlink(big, format!("a name of a message {}", n * 7).as_bytes()).expect("unlink");
        fs.sync().expect("sync");
    }
    held
}

impl Pool {
    fn of(units: &[Unit], devices: &[Arc<dyn Device>], g: &Geometry) -> Pool {
        use cffs::format::dirblock::{EntryKind, entries, validate};
        use cffs::format::{BlockKind, Extent, Inode, InodeFormat};
        let mut p = Pool::default();
        for u in units {
            let UnitKind::Meta(kind) = u.kind else { continue };
            p.blocks.push(u.at >> g.block_shift);
            let b = u.read(devices);
            if kind == BlockKind::Dir && validate(&b).is_ok() {
                for e in entries(&b).filter(|e| e.kind != EntryKind::Free) {
                    p.inos.push(e.ino);
                    let inode = (e.kind != EntryKind::Link).then(|| Inode::decode(&b[e.inode_offset()..]).ok());
                    if let Some(Inode { format: InodeFormat::Extents(list), .. }) = inode.flatten() {
                        p.frags.extend(list.iter().map(|e| e.start));
                    }
                }
            } else if kind == BlockKind::ExtentNode {
                for i in 0..4 {
                    let at = cffs::format::extent::node_entry(i);
                    p.frags.push(Extent::decode(&b[at..]).start);
                }
            }
        }
        p.frags.extend(p.blocks.iter().map(|b| g.frag_of_block(*b)));
        p.inos.extend(0..20);
        p.blocks.extend([0, 1, g.sys_start, g.log_start, g.log_start + 20, g.ag_blocks, g.total_blocks - 1]);
        p.blocks.extend([g.total_blocks, g.ag_start(g.ag_count - 1), g.ag_header(g.ag_count - 1)]);
        p.frags.extend([
            g.total_frags(),
            g.total_frags() - 1,
            g.frag_of_block(g.log_start),
            g.frag_of_block(g.ag_blocks),
        ]);
        p.sizes = vec![
            g.block_size() as u64,
            g.frag_size() as u64,
            g.group_size() as u64,
            g.ag_blocks,
            g.ag_count,
            g.log_blocks,
            g.total_frags(),
            g.total_bytes(),
            1 << 54,
            (1 << 54) - 1,
            1 << 31,
            i64::MAX as u64,
        ];
        for list in [&mut p.blocks, &mut p.frags, &mut p.inos] {
            list.sort_unstable();
            list.dedup();
        }
        p
    }
}
