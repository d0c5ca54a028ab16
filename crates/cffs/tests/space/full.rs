//! Full devices: who is told that there is no space, when, and that everything comes back.

use crate::common::plain::{clean, fresh, mount};
use cffs::device::MemoryDevice;
use cffs::{Caller, Error, FileType, Fs, MkfsOptions, QuotaKind, ROOT_INO, RenameFlags, SetAttr, SetXattr};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;

/// The four format combinations with a few sizes of block and fragment.
fn formats() -> Vec<MkfsOptions> {
    let sizes = [(4096, 1024), (4096, 4096), (4096, 512), (1024, 512), (16384, 2048), (512, 512)];
    let switches = [(false, false), (true, false), (false, true), (true, true)];
    let mut all = Vec::new();
    for (no_embed, no_group) in switches {
        for (block, frag) in sizes {
            all.push(
                MkfsOptions::default()
                    .no_embed(no_embed)
                    .no_group(no_group)
                    .block_size(block)
                    .frag_size(Some(frag))
                    .reserve_bp(0),
            );
        }
    }
    all
}

/// Puts a file of so many bytes, each of them `byte`. The reference to it is given back.
fn put(fs: &Fs, dir: u64, name: &str, byte: u8, len: usize) -> Result<u64, Error> {
    let ino = fs.create(ROOT, dir, name.as_bytes(), 0o600)?.ino;
    let mut done = 0;
    let outcome = loop {
        if done == len {
            break Ok(ino);
        }
        match fs.write(ROOT, ino, done as u64, &vec![byte; len - done]) {
            Ok(n) => done += n,
            Err(e) => break Err(e),
        }
    };
    if outcome.is_err() {
        fs.unlink(dir, name.as_bytes()).unwrap();
    }
    fs.forget(ino, 1);
    outcome
}

/// A device without a free block, although there are free fragments: files of one fragment each fill it, and one of each
/// block stays.
fn scattered(options: &MkfsOptions) -> (Arc<MemoryDevice>, Arc<Fs>, u64) {
    let dev = fresh(if options.block_size > 4096 { 40 << 20 } else { 16 << 20 }, options);
    let fs = mount(&dev);
    let g = *fs.geometry();
    let (fpb, fs_bytes) = (g.frags_per_block(), g.frag_size());
    let dir = fs.mkdir(ROOT, ROOT_INO, b"d", 0o700).unwrap().ino;
    fs.create(ROOT, dir, b"sparse", 0o600).unwrap();
    let mut n = 0u64;
    loop {
        match put(&fs, dir, &format!("{n}"), n as u8, fs_bytes) {
            Ok(_) => n += 1,
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        }
    }
    fs.sync().unwrap();
    for i in (0..n).filter(|i| !i.is_multiple_of(fpb)) {
        fs.unlink(dir, format!("{i}").as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    (dev, fs, dir)
}

#[test]
fn writeback_finds_space_for_what_was_written_however_scattered_it_is() {
    for options in formats().into_iter().filter(|o| Some(o.block_size) != o.frag_size && !o.no_group) {
        let (dev, fs, dir) = scattered(&options);
        let what = format!("{options:?}");
        let before = fs.statfs();
        assert!(before.free > 100, "{what}: {before:?}");
        // Each fragment is an extent of its own: the worst for the extent tree.
        let ino = fs.lookup(dir, b"sparse").unwrap().ino;
        let frag = fs.geometry().frag_size();
        let mut written = 0u64;
        loop {
            match fs.write(ROOT, ino, written * 100_000 / frag as u64 * frag as u64, &vec![written as u8; frag]) {
                Ok(n) => assert_eq!(n, frag),
                Err(Error::NoSpace) => break,
                Err(e) => panic!("{what}: {e}"),
            }
            written += 1;
        }
        assert!(written >= 4, "{what}: {written} of {} fragments", before.free);
        fs.sync().unwrap_or_else(|e| panic!("{what}: writeback of {written} pieces: {e}"));
        fs.close().unwrap();
        clean(&dev, &what);
        let fs = mount(&dev);
        let ino = fs.lookup(fs.lookup(ROOT_INO, b"d").unwrap().ino, b"sparse").unwrap().ino;
        for i in 0..written {
            let mut b = vec![0; frag];
            assert_eq!(fs.read(ino, i * 100_000 / frag as u64 * frag as u64, &mut b).unwrap(), frag);
            assert!(b.iter().all(|x| *x == i as u8), "{what}: piece {i}");
        }
        fs.close().unwrap();
    }
}

/// A few numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// What a filled tree has: names of the directories and of the files in them, and the files by number.
#[derive(Default)]
struct Tree {
    dirs: Vec<(u64, Vec<u8>)>,
    names: Vec<(u64, Vec<u8>)>,
    files: Vec<u64>,
}

/// Whether there was space.
fn fits<T>(outcome: Result<T, Error>, what: &str) -> Option<T> {
    match outcome {
        Ok(done) => Some(done),
        Err(Error::NoSpace) => None,
        Err(e) => panic!("{what}: {e}"),
    }
}

/// Makes one more thing of some kind, for one of a few users.
fn grow(fs: &Fs, tree: &mut Tree, r: &mut Numbers, kind: u64, n: u64) -> Option<()> {
    let frag = fs.geometry().frag_size();
    let dir = if tree.dirs.is_empty() { ROOT_INO } else { tree.dirs[r.below(tree.dirs.len() as u64) as usize].0 };
    let c = Caller { uid: 1000 + r.below(3) as u32, gid: 100 + r.below(2) as u32 };
    let name = format!("{}-{n}", "name".repeat(r.below(20) as usize)).into_bytes();
    match kind {
        0 => {
            let made = fits(fs.mkdir(c, dir, &name, 0o700), "mkdir")?;
            tree.names.push((dir, name.clone()));
            tree.dirs.push((made.ino, name));
            return Some(());
        }
        1 => {
            let target = vec![b'x'; 1 + r.below(4000) as usize];
            let made = fits(fs.symlink(c, dir, &name, &target), "symlink")?;
            fs.forget(made.ino, 1);
        }
        2 if !tree.files.is_empty() => {
            let ino = tree.files[r.below(tree.files.len() as u64) as usize];
            fits(fs.link(ROOT, ino, dir, &name), "link")?;
            fs.forget(ino, 1);
        }
        3 if !tree.files.is_empty() => {
            let dirs = tree.dirs.iter().map(|(ino, _)| ino);
            let all: Vec<u64> = tree.files.iter().chain(dirs).copied().collect();
            let ino = all[r.below(all.len() as u64) as usize];
            // In the inode, in a block, in a chain of blocks.
            let value = vec![b'v'; [5, 40, 900, 20_000, 60_000][r.below(5) as usize]];
            let attribute = format!("user.{}", r.below(4)).into_bytes();
            return fits(fs.setxattr(ROOT, ino, &attribute, &value, SetXattr::default()), "setxattr");
        }
        _ => {
            let ino = fits(fs.create(c, dir, &name, 0o600), "create")?.ino;
            tree.files.push(ino);
            tree.names.push((dir, name));
            let len = [0, 50, frag, 3 * frag + 1, 10_000, 70_000, 700_000][r.below(7) as usize];
            let at = if r.below(5) == 0 { r.below(1 << 24) } else { 0 };
            let mut done = 0;
            while done < len {
                done += fits(fs.write(ROOT, ino, at + done as u64, &vec![n as u8; len - done]), "write")?;
            }
            return Some(());
        }
    }
    tree.names.push((dir, name));
    Some(())
}

/// Fills a file system to the last fragment.
fn fill(fs: &Fs, r: &mut Numbers, what: &str) -> Tree {
    let mut tree = Tree::default();
    let (mut n, mut refused) = (0, 0);
    while refused < 40 {
        let kind = r.below(13);
        refused = if grow(fs, &mut tree, r, kind, n).is_some() { 0 } else { refused + 1 };
        n += 1;
        if n.is_multiple_of(97) {
            fs.sync().unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
    // The rest goes to files that are there, a fragment each.
    let frag = fs.geometry().frag_size();
    for ino in &tree.files {
        let size = fs.getattr(*ino).unwrap().size.next_multiple_of(frag as u64);
        let _ = fits(fs.write(ROOT, *ino, size, &vec![7; frag]), what);
        if fs.statfs().free == 0 {
            break;
        }
    }
    fs.sync().unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(fs.statfs().free, 0, "{what}: with {} files", tree.files.len());
    tree
}

/// Removes everything, on the full file system.
fn empty(fs: &Fs, mut tree: Tree, r: &mut Numbers, what: &str) {
    let told = |what2: &str, e: Error| -> ! { panic!("{what}: {what2} on a full file system: {e}") };
    // A file takes the name of another.
    let files: Vec<usize> = (0..tree.names.len())
        .filter(|i| {
            let found = fs.lookup(tree.names[*i].0, &tree.names[*i].1);
            found.is_ok_and(|a| {
                fs.forget(a.ino, 1);
                a.file_type == FileType::Regular
            })
        })
        .take(2)
        .collect();
    if let [a, b] = files[..] {
        let (from, to) = (tree.names[a].clone(), tree.names[b].clone());
        // An inode that has grown by attributes may have no room in the other directory.
        fits(fs.rename(ROOT, from.0, &from.1, to.0, &to.1, RenameFlags::default()), what);
        if fs.lookup(from.0, &from.1).is_err() {
            tree.names.remove(a);
        }
    }
    for ino in tree.files.iter().step_by(7) {
        let Ok(attr) = fs.getattr(*ino) else { continue };
        let set = SetAttr::default().size(Some(attr.size / 2));
        fs.setattr(ROOT, *ino, set).unwrap_or_else(|e| told("truncate", e));
    }
    // Files before the directories that they are in; half of them from the end.
    let dirs: std::collections::HashMap<(u64, Vec<u8>), u64> = tree
        .names
        .iter()
        .filter_map(|(d, n)| {
            let attr = fs.lookup(*d, n).ok()?;
            fs.forget(attr.ino, 1);
            (attr.file_type == FileType::Directory).then(|| ((*d, n.clone()), attr.ino))
        })
        .collect();
    let (sub, mut files): (Vec<_>, Vec<_>) = tree.names.into_iter().partition(|n| dirs.contains_key(n));
    while !files.is_empty() {
        let i = r.below(files.len() as u64) as usize;
        let (dir, name) = files.swap_remove(i);
        fs.unlink(dir, &name).unwrap_or_else(|e| told("unlink", e));
    }
    // The files are still open when their directories go.
    for (dir, name) in sub.into_iter().rev() {
        fs.rmdir(dir, &name).unwrap_or_else(|e| told("rmdir", e));
        fs.forget(dirs[&(dir, name)], 1 << 40);
    }
    for ino in tree.files.drain(..) {
        fs.forget(ino, 1 << 40);
    }
    fs.sync().unwrap();
}

/// Rounds of filling and emptying; `CFFS_FULL_ROUNDS` makes it more.
fn rounds() -> u64 {
    std::env::var("CFFS_FULL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2)
}

const KINDS: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

/// Everything but what the root directory takes is given back to everybody's quotas.
fn nothing_used(fs: &Fs, what: &str) {
    let root = fs.getattr(ROOT_INO).unwrap();
    for kind in fs.quota_kinds() {
        for q in fs.quota_list(kind).unwrap() {
            let expected = if q.id == 0 { (root.blocks * 512, 1) } else { (0, 0) };
            assert_eq!((q.bytes, q.inodes), expected, "{what}: {} {}", kind.name(), q.id);
        }
    }
}

/// Files of many sizes, with extended attributes, links and directories, of several users, with and without quotas.
#[test]
fn filling_to_the_last_fragment_and_emptying_leaks_nothing() {
    for (n, mut options) in formats().into_iter().enumerate() {
        if n % 2 == 0 {
            options.quota = KINDS.to_vec();
        }
        let what = format!("{options:?}");
        let dev = fresh(if options.block_size > 4096 { 26 << 20 } else { 12 << 20 }, &options);
        let mut r = Numbers(7);
        let mut fs = mount(&dev);
        if n % 2 == 0 {
            // Records take space, and stay until the file system is unmounted: everybody has his from the beginning.
            for (uid, gid) in [(1000, 100), (1001, 101), (1002, 100)] {
                let f = fs.create(Caller { uid, gid }, ROOT_INO, b"first", 0o600).unwrap();
                fs.unlink(ROOT_INO, b"first").unwrap();
                fs.forget(f.ino, 1);
            }
            fs.sync().unwrap();
        }
        let before = fs.statfs();
        for round in 0..rounds() {
            let what = format!("{what}, round {round}");
            let tree = fill(&fs, &mut r, &what);
            empty(&fs, tree, &mut r, &what);
            assert_eq!(fs.statfs(), before, "{what}");
            nothing_used(&fs, &what);
            if round % 4 == 1 {
                fs.close().unwrap();
                clean(&dev, &what);
                fs = mount(&dev);
                if n % 2 == 1 {
                    assert_eq!(fs.statfs(), before, "{what}, mounted again");
                }
                nothing_used(&fs, &what);
            }
        }
        fs.close().unwrap();
        clean(&dev, &what);
    }
}

#[test]
fn inodes_of_a_full_allocation_group_share_chunks_in_another() {
    let options = MkfsOptions::default().no_embed(true).no_group(true).reserve_bp(0);
    let dev = fresh(40 << 20, &options);
    let fs = mount(&dev);
    let used = || {
        fs.sync().unwrap();
        let s = fs.statfs();
        (s.total - s.free) * u64::from(s.frag_size)
    };
    let mut n = 0;
    while used() < 20 << 20 {
        for _ in 0..20 {
            put(&fs, ROOT_INO, &format!("fill{n}"), 1, 100_000).unwrap();
            n += 1;
        }
    }
    // The first of two allocation groups of 16 MiB and more is full, and the root directory is there.
    let before = used();
    for n in 0..400 {
        put(&fs, ROOT_INO, &format!("empty{n}"), 0, 0).unwrap();
    }
    let taken = used() - before;
    // 256 bytes each, and their names.
    assert!(taken < 400 * 512 + (64 << 10), "400 inodes took {taken} bytes");
    fs.close().unwrap();
    drop(fs);
    clean(&dev, "inodes in another allocation group");
}
