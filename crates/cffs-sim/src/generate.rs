//! Random operation sequences from a seed.
//!
//! The generator runs a model along, so that most operations hit files that exist, in a small universe of names where
//! they collide. What it makes is concrete: a sequence means the same without the generator.

use crate::model::acl::LISTS;
use crate::model::{Body, Id, ROOT};
use crate::model_driver::State;
use crate::ops::{self, Op, Path, RegroupHow, SLOTS, Special};
use crate::scenarios::Programs;
use cffs::Fallocate as Space;
use cffs::{FILE_SIZE_MAX, FileType, RenameFlags};
use fastrand::Rng;

/// What a sequence is mostly made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// A bit of everything.
    Mixed,
    /// Names: create, remove, rename, link.
    Names,
    /// Contents: write, truncate, sparse and large files.
    Data,
    /// Small files made durable one by one.
    Fsync,
    /// Directories of hundreds of files.
    Large,
    /// Several programs at once, each with something in mind that takes several operations ([`crate::scenarios`]).
    Programs,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Profile; 6] =
        [Profile::Mixed, Profile::Names, Profile::Data, Profile::Fsync, Profile::Large, Profile::Programs];
}

/// Kinds of operations, for weighing.
#[derive(Clone, Copy)]
enum Kind {
    Create,
    Tmpfile,
    Mkdir,
    Mknod,
    Symlink,
    Readlink,
    Link,
    Unlink,
    Rmdir,
    Rename,
    Write,
    Truncate,
    Fallocate,
    Copy,
    Read,
    Seek,
    Readdir,
    List,
    Lookup,
    Attr,
    Xattr,
    Fsync,
    Fdatasync,
    Sync,
    Open,
    Close,
    Remount,
    CreateMany,
    UnlinkMany,
}

use Kind::*;

const MIXED: &[(Kind, u32)] = &[
    (Create, 12),
    (Tmpfile, 3),
    (Mkdir, 6),
    (Mknod, 2),
    (Symlink, 3),
    (Readlink, 2),
    (Link, 4),
    (Unlink, 7),
    (Rmdir, 4),
    (Rename, 8),
    (Write, 16),
    (Truncate, 5),
    (Fallocate, 6),
    (Copy, 3),
    (Read, 5),
    (Seek, 1),
    (Readdir, 2),
    (List, 2),
    (Lookup, 3),
    (Attr, 4),
    (Xattr, 6),
    (Fsync, 4),
    (Fdatasync, 1),
    (Sync, 1),
    (Open, 3),
    (Close, 2),
    (Remount, 1),
    (CreateMany, 1),
    (UnlinkMany, 1),
];
const NAMES: &[(Kind, u32)] = &[
    (Create, 12),
    (Tmpfile, 4),
    (Mkdir, 8),
    (Symlink, 2),
    (Mknod, 1),
    (Link, 8),
    (Unlink, 10),
    (Rmdir, 6),
    (Rename, 20),
    (Write, 4),
    (List, 3),
    (Attr, 2),
    (Xattr, 6),
    (Fsync, 2),
    (Sync, 1),
    (Open, 4),
    (Close, 3),
    (Remount, 1),
];
const DATA: &[(Kind, u32)] = &[
    (Create, 6),
    (Tmpfile, 2),
    (Mkdir, 1),
    (Link, 1),
    (Unlink, 3),
    (Rename, 2),
    (Write, 30),
    (Truncate, 12),
    (Fallocate, 16),
    (Copy, 5),
    (Read, 8),
    (Seek, 2),
    (Xattr, 3),
    (Fsync, 4),
    (Fdatasync, 3),
    (Sync, 2),
    (Open, 2),
    (Close, 2),
    (Remount, 1),
];
const FSYNC: &[(Kind, u32)] = &[
    (Create, 10),
    (Tmpfile, 3),
    (Mkdir, 2),
    (Symlink, 1),
    (Link, 2),
    (Unlink, 4),
    (Rename, 6),
    (Write, 16),
    (Truncate, 3),
    (Fallocate, 6),
    (Copy, 2),
    (Xattr, 3),
    (Fsync, 16),
    (Fdatasync, 4),
    (Sync, 1),
    (Open, 1),
    (Close, 1),
];
const LARGE: &[(Kind, u32)] = &[
    (Tmpfile, 1),
    (CreateMany, 4),
    (UnlinkMany, 3),
    (Create, 4),
    (Mkdir, 3),
    (Link, 2),
    (Unlink, 3),
    (Rename, 8),
    (Write, 4),
    (Readdir, 2),
    (List, 4),
    (Lookup, 2),
    (Xattr, 3),
    (Fsync, 2),
    (Sync, 1),
    (Open, 1),
    (Close, 1),
    (Remount, 1),
];

impl Profile {
    fn weights(self) -> &'static [(Kind, u32)] {
        match self {
            Profile::Mixed => MIXED,
            Profile::Names => NAMES,
            Profile::Data => DATA,
            Profile::Fsync => FSYNC,
            Profile::Large => LARGE,
            // What happens besides.
            Profile::Programs => MIXED,
        }
    }
}

/// Bounds of what is generated.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Largest single write in bytes.
    pub write: usize,
    /// Files to make at once.
    pub many: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { write: 200_000, many: 150 }
    }
}

/// Generates a sequence of (about) `len` operations.
pub fn generate(seed: u64, profile: Profile, len: usize, bounds: Bounds) -> Vec<Op> {
    let (rng, second) = (Rng::with_seed(seed), Rng::with_seed(!seed));
    let mut g = Generator { rng, second, bounds, state: State::default(), tag: seed << 20 };
    let mut programs = (profile == Profile::Programs).then(|| Programs::new(&mut g.rng));
    let weights = profile.weights();
    let total: u32 = weights.iter().map(|w| w.1).sum();
    let mut out = Vec::with_capacity(len);
    // Besides the operations that are counted.
    let mut keys = 0;
    while out.len() < len + keys {
        let mut pick = g.rng.u32(..total);
        let kind = weights.iter().find(|(_, w)| {
            let here = pick < *w;
            pick = pick.wrapping_sub(*w);
            here
        });
        if g.chance(REGROUPS_ONE_IN) {
            let colocate = g.colocate();
            keys += colocate.len();
            for op in &colocate {
                let _ = g.state.apply(op);
            }
            out.extend(colocate);
            out.push(g.regroup());
            continue;
        }
        let scenario = match &mut programs {
            Some(p) if g.rng.u8(..8) > 0 => Some(p.next(&mut g.rng, &g.state, &mut g.tag)),
            _ => None,
        };
        let op = scenario.unwrap_or_else(|| g.op(kind.expect("picked within the total").0));
        for single in ops::expand_all(std::slice::from_ref(&op)) {
            // Errors are as welcome as successes.
            let _ = g.state.apply(&single);
        }
        out.push(op);
    }
    out
}

/// One operation in so many is a regroup, whatever the profile.
const REGROUPS_ONE_IN: u32 = 30;

struct Generator {
    rng: Rng,
    /// For what is generated in addition: other operations come out as they do without it.
    second: Rng,
    bounds: Bounds,
    state: State,
    tag: u64,
}

const SHORT: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

impl Generator {
    fn chance(&mut self, one_in: u32) -> bool {
        self.rng.u32(..one_in) == 0
    }

    fn name(&mut self) -> String {
        match self.rng.u32(..40) {
            0 => format!("L{}", self.rng.u32(..3)),
            1..=3 => format!("M{}", self.rng.u32(..6)),
            4 => format!("f{}", self.rng.u32(..self.bounds.many)),
            5 if self.chance(4) => "X".into(),
            _ => SHORT[self.rng.usize(..SHORT.len())].into(),
        }
    }

    /// A start: the root, or now and then an open file.
    fn start(&mut self) -> (Path, Id) {
        if self.chance(8) {
            let slot = self.rng.usize(..SLOTS);
            if let Some(id) = self.state.slots[slot] {
                return (Path::new(format!("@{slot}")), id);
            }
        }
        (Path::new("/"), ROOT)
    }

    /// A random walk downwards that ends where `accept` likes it, or anywhere.
    fn existing(&mut self, accept: impl Fn(FileType) -> bool) -> Path {
        let mut fallback = Path::new("/");
        for _ in 0..6 {
            let (mut path, mut id) = self.start();
            for _ in 0..4 {
                let Some(entries) = self.state.model.find(id).and_then(|i| i.entries()) else {
                    break;
                };
                if entries.is_empty() {
                    break;
                }
                let (name, entry) = entries.iter().nth(self.rng.usize(..entries.len())).expect("within its length");
                path = path.join(&ops::code(name));
                id = entry.id;
                if self.chance(3) && accept(self.state.model.get(id).file_type) {
                    return path;
                }
            }
            if self.state.model.find(id).is_some_and(|i| accept(i.file_type)) {
                return path;
            }
            fallback = path;
        }
        fallback
    }

    fn dir(&mut self) -> Path {
        if self.chance(3) { Path::new("/") } else { self.existing(|t| t == FileType::Directory) }
    }

    /// An open file that was made without a name and has none yet.
    fn unnamed(&mut self) -> Option<Path> {
        let first = self.rng.usize(..SLOTS);
        let linkable = |slot: &usize| {
            let id = self.state.slots[*slot];
            id.is_some_and(|id| self.state.model.get(id).linkable)
        };
        let slot = (first..first + SLOTS).map(|slot| slot % SLOTS).find(linkable)?;
        Some(Path::new(format!("@{slot}")))
    }

    fn file(&mut self) -> Path {
        if self.chance(5)
            && let Some(unnamed) = self.unnamed()
        {
            return unnamed;
        }
        if self.chance(10) { self.any() } else { self.existing(|t| t == FileType::Regular) }
    }

    fn any(&mut self) -> Path {
        self.existing(|_| true)
    }

    /// A name that may be free or taken.
    fn new_path(&mut self) -> Path {
        let dir = if self.chance(20) { self.any() } else { self.dir() };
        let name = self.name();
        dir.join(&name)
    }

    /// A path to remove or to rename from: most exist.
    fn old_path(&mut self, accept: impl Fn(FileType) -> bool) -> Path {
        match self.rng.u32(..10) {
            0 => self.new_path(),
            1 => self.any(),
            _ => self.existing(accept),
        }
    }

    /// A file or directory whose flags keep it as it is.
    fn locked(&mut self) -> Option<Path> {
        let mut todo = vec![(Path::new("/"), ROOT)];
        while let Some((path, id)) = todo.pop() {
            let inode = self.state.model.get(id);
            if inode.flags & 0x30 != 0 {
                return Some(path);
            }
            for (name, entry) in inode.entries().into_iter().flatten() {
                todo.push((path.join(&ops::code(name)), entry.id));
            }
        }
        None
    }

    fn next_tag(&mut self) -> u64 {
        self.tag += 1;
        self.tag
    }

    fn length(&mut self) -> usize {
        match self.rng.u32(..20) {
            0 => 0,
            1..=5 => self.rng.usize(1..100),
            6..=12 => self.rng.usize(1..3000),
            13..=17 => self.rng.usize(1..20_000.min(self.bounds.write)),
            _ => self.rng.usize(1..self.bounds.write),
        }
    }

    fn size(&self, path: &Path) -> u64 {
        match self.state.resolve(path) {
            Some(Ok(id)) => self.state.model.get(id).content().map_or(0, |c| c.size()),
            _ => 0,
        }
    }

    fn offset(&mut self, path: &Path) -> u64 {
        let size = self.size(path);
        match self.rng.u32(..20) {
            0..=6 => 0,
            7..=11 => size.min(FILE_SIZE_MAX),
            12..=14 if size > 0 => self.rng.u64(..size),
            15..=16 => self.rng.u64(..64) * 4096,
            17 => self.rng.u64(..1 << 22),
            18 if self.chance(4) => self.rng.u64(1 << 30..1 << 45),
            19 if self.chance(8) => FILE_SIZE_MAX - self.rng.u64(..30_000),
            _ => self.rng.u64(..20_000),
        }
    }

    /// Offset and length of a write of whole blocks, now and then with a rest behind them, which goes on where the file ends,
    /// or over what it has. It may be a direct write.
    fn whole_blocks(&mut self, path: &Path) -> (u64, usize) {
        let unit = if self.chance(4) && self.bounds.write >= 1 << 16 { 1 << 16 } else { 4096 };
        let units = self.size(path) / unit as u64;
        let offset = match self.rng.u32(..4) {
            0 => 0,
            1 if units > 0 => self.rng.u64(..units),
            _ => units,
        };
        let len = unit * self.rng.usize(1..=(self.bounds.write / unit).max(1));
        (offset.min(1 << 30) * unit as u64, len + if self.chance(4) { self.rng.usize(1..unit) } else { 0 })
    }

    fn op(&mut self, kind: Kind) -> Op {
        let uid = if self.chance(3) { 1000 } else { 0 };
        match kind {
            Create => Op::Create { path: self.new_path(), perm: [0o644, 0o600, 0o755][self.rng.usize(..3)], uid },
            Tmpfile => {
                let dir = if self.chance(20) { self.any() } else { self.dir() };
                Op::Tmpfile { slot: self.rng.usize(..SLOTS), dir, perm: [0o644, 0o600][self.rng.usize(..2)], uid }
            }
            Mkdir => Op::Mkdir { path: self.new_path(), perm: [0o755, 0o700, 0o1777][self.rng.usize(..3)], uid },
            Mknod => Op::Mknod {
                path: self.new_path(),
                special: [Special::Fifo, Special::Socket, Special::Char, Special::Block][self.rng.usize(..4)],
                rdev: self.rng.u32(..),
            },
            Symlink => self.symlink(),
            Readlink => Op::Readlink { path: self.existing(|t| t == FileType::Symlink) },
            Link => {
                let unnamed = if self.rng.bool() { self.unnamed() } else { None };
                let from = match unnamed {
                    Some(unnamed) => unnamed,
                    None if self.chance(8) => self.any(),
                    None => self.existing(|t| t != FileType::Directory),
                };
                Op::Link { from, to: self.new_path() }
            }
            Unlink => Op::Unlink { path: self.old_path(|t| t != FileType::Directory) },
            Rmdir => Op::Rmdir { path: self.old_path(|t| t == FileType::Directory) },
            Rename => self.rename(),
            Write => {
                let path = self.file();
                let (offset, len) =
                    if self.chance(5) { self.whole_blocks(&path) } else { (self.offset(&path), self.length()) };
                Op::Write { offset, len, tag: self.next_tag(), path }
            }
            Truncate => {
                let path = self.file();
                let size = if self.chance(3) { 0 } else { self.offset(&path) };
                Op::Truncate { path, size }
            }
            Fallocate => self.fallocate(),
            Copy => {
                let (from, to) = (self.file(), self.file());
                let (offset, to_offset) = (self.offset(&from), self.offset(&to));
                Op::Copy { from, to, offset, to_offset, len: self.length() as u64 }
            }
            Read => {
                let path = self.file();
                Op::Read { offset: self.offset(&path), len: self.length(), path }
            }
            Seek => {
                let path = self.file();
                Op::Seek { offset: self.offset(&path), path }
            }
            Readdir => Op::Readdir { path: self.dir(), attr: self.rng.bool() },
            List => {
                if self.rng.bool() {
                    Op::ListStart { path: self.dir(), count: self.rng.usize(..20) }
                } else {
                    Op::ListRest
                }
            }
            Lookup => Op::Lookup { path: self.old_path(|_| true) },
            Attr => self.attribute(),
            Xattr => self.xattr(),
            Fsync => Op::Fsync { path: if self.chance(4) { self.dir() } else { self.file() } },
            Fdatasync => Op::Fdatasync { path: self.file() },
            Sync => Op::Sync,
            Open => Op::Open { slot: self.rng.usize(..SLOTS), path: self.any() },
            Close => Op::Close { slot: self.rng.usize(..SLOTS) },
            Remount => Op::Remount { forget: self.rng.bool() },
            CreateMany => self.create_many(),
            UnlinkMany => self.unlink_many(),
        }
    }

    /// Keys of directories and lists of files, before every second regroup.
    fn colocate(&mut self) -> Vec<Op> {
        std::mem::swap(&mut self.rng, &mut self.second);
        let mut ops = Vec::new();
        if self.rng.bool() {
            for _ in 0..self.rng.u32(1..5) {
                let path = if self.rng.bool() { self.dir() } else { self.any() };
                ops.push(Op::Colocate { path, value: self.rng.u64(..30) });
            }
        }
        std::mem::swap(&mut self.rng, &mut self.second);
        ops
    }

    fn regroup(&mut self) -> Op {
        let path = match self.rng.u32(..20) {
            0 => self.any(),
            1..=5 => self.dir(),
            _ => Path::new("/"),
        };
        let how = match self.rng.u32(..10) {
            0..=1 => RegroupHow::Gains,
            2..=4 => RegroupHow::Always,
            5..=6 => RegroupHow::Large,
            _ => RegroupHow::FreeSpace,
        };
        Op::Regroup { path, how }
    }

    fn symlink(&mut self) -> Op {
        let len = match self.rng.u32(..10) {
            0 => 4096,
            1 => 4095,
            2..=4 => self.rng.usize(1..4000),
            _ => self.rng.usize(1..100),
        };
        Op::Symlink { path: self.new_path(), len }
    }

    fn rename(&mut self) -> Op {
        let from = self.old_path(|_| true);
        let to = match self.rng.u32(..4) {
            0 => self.any(),
            // Below itself, sometimes.
            1 if self.chance(5) => from.join("a"),
            _ => self.new_path(),
        };
        let (no_replace, exchange) = match self.rng.u32(..12) {
            0..=1 => (true, false),
            2..=3 => (false, true),
            4 if self.chance(6) => (true, true),
            _ => (false, false),
        };
        Op::Rename { from, to, flags: RenameFlags { no_replace, exchange } }
    }

    fn fallocate(&mut self) -> Op {
        let path = self.file();
        let what = ops::FALLOCATE[self.rng.usize(..ops::FALLOCATE.len())].1;
        let size = self.size(&path);
        let whole = matches!(what, Space::Collapse | Space::Insert) && !self.chance(10);
        let (offset, len) = if whole {
            let unit = [512, 4096, 65536][self.rng.usize(..3)];
            (self.rng.u64(..=(size.min(1 << 30) / unit)) * unit, self.rng.u64(1..5) * unit)
        } else if what == Space::PunchHole && self.chance(6) {
            (self.offset(&path), self.rng.u64(1..1 << 45))
        } else {
            (self.offset(&path), self.length() as u64)
        };
        Op::Fallocate { path, what, offset, len }
    }

    fn attribute(&mut self) -> Op {
        let path = self.any();
        match self.rng.u32(..9) {
            7 | 8 => {
                let default = self.rng.bool();
                let path = if default && !self.chance(8) { self.dir() } else { path };
                Op::Acl { path, default, list: self.rng.usize(..=LISTS.len()) }
            }
            // Flags that keep things from changing come seldom, and go soon.
            5 => Op::Flags { path, flags: [0x8, 0x10, 0x20, 0x30, 0xc0, 0x1_0000][self.rng.usize(..6)] },
            6 => Op::Flags { path: self.locked().unwrap_or(path), flags: 0 },
            0 | 3 => Op::Chmod { path, perm: [0o2755, 0o644, 0o400, 0o1755][self.rng.usize(..4)] },
            1 | 4 => Op::Chown { path, uid: self.rng.u32(..2000), gid: self.rng.u32(..2000) },
            _ => Op::Utime { path, mtime: self.rng.i64(0..2_000_000_000_000_000_000) },
        }
    }

    fn xattr(&mut self) -> Op {
        let path = self.any();
        let name = ["user.a", "user.b", "trusted.t", "security.s"][self.rng.usize(..4)].to_owned();
        if self.chance(4) {
            return Op::RemoveXattr { path, name };
        }
        let len = match self.rng.u32(..10) {
            0..=5 => self.rng.usize(..60),
            6..=7 => self.rng.usize(..500),
            8 => self.rng.usize(..5000),
            _ => self.rng.usize(..20_000),
        };
        Op::SetXattr { path, name, len, tag: self.next_tag() }
    }

    fn create_many(&mut self) -> Op {
        let dir = self.dir();
        let first = self.rng.u32(..self.bounds.many);
        let count = self.rng.u32(1..=self.bounds.many);
        let len = if self.rng.bool() { 0 } else { self.rng.usize(..2000) };
        Op::CreateMany { dir, first, count, len, tag: self.next_tag() }
    }

    fn unlink_many(&mut self) -> Op {
        // Where there are many: the directory with most names on a few walks.
        let dirs: Vec<Path> = (0..4).map(|_| self.dir()).collect();
        let names = |d: &Path| match self.state.resolve(d) {
            Some(Ok(id)) => match &self.state.model.get(id).body {
                Body::Dir { entries, .. } => entries.len(),
                _ => 0,
            },
            _ => 0,
        };
        let dir = dirs.iter().max_by_key(|d| names(d)).expect("four of them").clone();
        let first = self.rng.u32(..self.bounds.many);
        Op::UnlinkMany { dir, first, count: self.rng.u32(1..=self.bounds.many) }
    }
}

/// Puts steps of growing, and trims, between the operations of a sequence.
pub fn with_growth(ops: Vec<Op>, seed: u64) -> Vec<Op> {
    let mut rng = Rng::with_seed(seed);
    let every = (ops.len() / 5).max(1);
    let mut percent = 0u8;
    let mut out = Vec::with_capacity(ops.len() + 8);
    for op in ops {
        if rng.usize(..every) == 0 && percent < 100 {
            percent = percent.saturating_add(rng.u8(1..40)).min(100);
            out.push(Op::Grow { percent });
        }
        if rng.usize(..2 * every) == 0 {
            out.push(Op::Trim);
        }
        out.push(op);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_same_seed_makes_the_same_sequence_and_its_text_comes_back() {
        for profile in Profile::ALL {
            let ops = generate(42, profile, 300, Bounds::default());
            assert_eq!(ops, generate(42, profile, 300, Bounds::default()));
            assert_ne!(ops, generate(43, profile, 300, Bounds::default()));
            assert_eq!(ops::parse(&ops::show(&ops)).unwrap(), ops);
        }
    }

    #[test]
    fn most_operations_succeed_and_every_common_error_occurs() {
        let (mut good, mut total) = (0, 0);
        let mut errors: BTreeMap<i32, u32> = BTreeMap::new();
        for profile in Profile::ALL {
            for seed in 0..40 {
                let mut state = State::default();
                for op in generate(seed, profile, 200, Bounds::default()) {
                    let mut any_good = false;
                    for single in ops::expand_all(&[op]) {
                        match state.apply(&single) {
                            Ok(_) => any_good = true,
                            Err(fail) => fail.0.iter().for_each(|e| *errors.entry(e.raw_os_error()).or_default() += 1),
                        }
                    }
                    good += u32::from(any_good);
                    total += 1;
                }
            }
        }
        assert!(good * 10 > total * 6, "{good} of {total} succeed");
        use rustix::io::Errno as E;
        for e in [E::NOENT, E::EXIST, E::NOTDIR, E::ISDIR, E::NOTEMPTY, E::INVAL, E::NAMETOOLONG, E::PERM, E::FBIG] {
            assert!(errors.contains_key(&e.raw_os_error()), "{e:?} never occurs: {errors:?}");
        }
    }
}
