//! What several threads could do to each other, step by step.

use super::quota::LimitedAllocator;
use super::{Caller, Fs, Locked, MountOptions, RenameFlags, as_dir};
use crate::error::Error;
use crate::format::{LINK_MAX, ROOT_INO};
use crate::mkfs::{MkfsOptions, mkfs};
use cffs_device::{Device, MemoryDevice};
use std::sync::Arc;

fn fresh(no_embed: bool) -> Arc<Fs> {
    let dev = Arc::new(MemoryDevice::new(64 << 20));
    mkfs(&*dev, None, &MkfsOptions { no_embed, ..MkfsOptions::default() }).unwrap();
    Fs::open(dev as Arc<dyn Device>, None, MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

#[test]
fn a_slot_is_given_out_once_although_its_record_is_not_written_yet() {
    let fs = fresh(true);
    for table in [&fs.inodes.locator, &fs.inodes.external] {
        let txn = fs.journal.begin(fs.log_bytes_names()).unwrap();
        let mut slots: Vec<u64> = (0..6).map(|_| table.alloc(&txn, &fs.space, 100).unwrap().index).collect();
        // Somebody gives an earlier slot back: the search for free ones begins there again.
        table.free(&txn, &fs.space, slots[1]).unwrap();
        slots[1] = table.alloc(&txn, &fs.space, 100).unwrap().index;
        slots.extend((0..3).map(|_| table.alloc(&txn, &fs.space, 100).unwrap().index));
        let given = slots.len();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), given, "{slots:?}");
    }
}

#[test]
fn a_node_that_is_gone_takes_no_other_of_the_same_number_along() {
    let fs = fresh(false);
    let a = fs.create(Caller::ROOT, ROOT_INO, b"a", 0o644).unwrap();
    let old = fs.node(a.ino).unwrap();
    fs.forget(a.ino, 1);
    fs.unlink(ROOT_INO, b"a").unwrap();
    let b = fs.create(Caller::ROOT, ROOT_INO, b"b", 0o644).unwrap();
    assert_eq!(b.ino, old.ino, "numbers are used again");
    fs.inodes.remove(&old);
    fs.forget_node(&old, 1);
    let now = fs.node(b.ino).unwrap();
    assert!(!Arc::ptr_eq(&now, &old));
    assert_eq!(now.refs.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert_eq!(fs.getattr(b.ino).unwrap().generation, b.generation);
}

/// What the kernel holds is a number and a count: the inode itself can leave memory and come back.
#[test]
fn references_outlive_what_is_in_memory() {
    for no_embed in [false, true] {
        let fs = fresh(no_embed);
        let free = fs.statfs().free;
        let refs = |ino| fs.inodes.cached(ino).map(|n| n.refs.load(std::sync::atomic::Ordering::Relaxed));
        let leave = |ino| {
            fs.sync().unwrap();
            fs.drop_caches();
            assert!(refs(ino).is_none(), "inode {ino} stays in memory");
        };
        let a = fs.create(Caller::ROOT, ROOT_INO, b"a", 0o644).unwrap();
        fs.write(Caller::ROOT, a.ino, 0, &[7; 5000]).unwrap();
        fs.lookup(ROOT_INO, b"a").unwrap();
        leave(a.ino);
        fs.forget(a.ino, 1);
        assert!(refs(a.ino).is_none(), "nobody needs it for that");
        fs.getattr(a.ino).unwrap();
        assert_eq!(refs(a.ino), Some(1));

        // Without a name it stays, for it is held; and it stays in memory, for something depends on the count.
        leave(a.ino);
        fs.unlink(ROOT_INO, b"a").unwrap();
        fs.sync().unwrap();
        fs.drop_caches();
        assert_eq!(refs(a.ino), Some(1));
        let mut back = [0; 5000];
        assert_eq!(fs.read(a.ino, 0, &mut back).unwrap(), 5000);
        assert!(back.iter().all(|b| *b == 7));
        fs.forget(a.ino, 1);
        assert!(matches!(fs.getattr(a.ino), Err(Error::Stale)));
        fs.sync().unwrap();

        // One that was given back while it was not in memory goes with its name.
        let b = fs.create(Caller::ROOT, ROOT_INO, b"b", 0o644).unwrap();
        fs.write(Caller::ROOT, b.ino, 0, &[7; 5000]).unwrap();
        leave(b.ino);
        fs.forget(b.ino, 1);
        fs.unlink(ROOT_INO, b"b").unwrap();
        assert!(matches!(fs.getattr(b.ino), Err(Error::Stale)));
        fs.sync().unwrap();
        assert_eq!(fs.statfs().free, free);
        fs.close().unwrap();
    }
}

#[test]
fn inodes_that_are_held_do_not_fill_the_memory() {
    let dev = Arc::new(MemoryDevice::new(128 << 20));
    mkfs(&*dev, None, &MkfsOptions::default()).unwrap();
    let opts = MountOptions { background: false, cache_bytes: 16 << 20, ..MountOptions::default() };
    let fs = Fs::open(dev as Arc<dyn Device>, None, opts).unwrap();
    let mut held = Vec::new();
    for d in 0..40 {
        let dir = fs.mkdir(Caller::ROOT, ROOT_INO, format!("d{d}").as_bytes(), 0o755).unwrap();
        for f in 0..500 {
            let a = fs.create(Caller::ROOT, dir.ino, format!("f{f}").as_bytes(), 0o644).unwrap();
            fs.getattr(a.ino).unwrap();
            held.push((dir.ino, format!("f{f}"), a));
        }
        fs.sync().unwrap();
    }
    // 4,096 is the least that may be in memory; with each part of the table a little above its share.
    assert!(fs.inodes.len() < 6000, "{} of 20,000 inodes are in memory", fs.inodes.len());
    for (dir, name, a) in &held {
        assert_eq!(fs.getattr(a.ino).unwrap().generation, a.generation);
        fs.unlink(*dir, name.as_bytes()).unwrap();
        assert_eq!(fs.getattr(a.ino).unwrap().nlink, 0, "it is held");
        fs.forget(a.ino, 1);
        assert!(matches!(fs.getattr(a.ino), Err(Error::Stale)));
    }
    fs.close().unwrap();
}

#[test]
fn an_inode_that_leaves_its_entry_between_two_looks_is_found() {
    let fs = fresh(false);
    let a = fs.create(Caller::ROOT, ROOT_INO, b"a", 0o644).unwrap();
    let dir = fs.node(ROOT_INO).unwrap();
    let found = {
        let st = dir.state.read();
        crate::dir::lookup(&fs.dir_cx(), &st.inode, st.dir.as_ref().unwrap(), b"a").unwrap().unwrap()
    };
    // The directory's lock does not keep others from giving the file a second name.
    fs.link(Caller::ROOT, a.ino, ROOT_INO, b"b").unwrap();
    fs.forget(a.ino, 2);
    fs.drop_caches();
    assert!(fs.inodes.cached(a.ino).is_none());
    let node = fs.embedded(found.buf(), found.offset, a.ino).unwrap();
    assert_eq!(node.state.read().inode.nlink, 2);
}

/// Nobody can make so many links in a test, and pjdfstest passes over its test of this on a FUSE mount.
#[test]
fn the_limit_of_links_is_an_error_of_its_own() {
    for no_embed in [false, true] {
        let fs = fresh(no_embed);
        let file = fs.create(Caller::ROOT, ROOT_INO, b"file", 0o644).unwrap().ino;
        let full = fs.mkdir(Caller::ROOT, ROOT_INO, b"full", 0o755).unwrap().ino;
        fs.mkdir(Caller::ROOT, ROOT_INO, b"dir", 0o755).unwrap();
        for ino in [file, full] {
            fs.node(ino).unwrap().state.write().inode.nlink = LINK_MAX - 1;
        }
        fs.link(Caller::ROOT, file, ROOT_INO, b"last").unwrap();
        fs.mkdir(Caller::ROOT, full, b"last", 0o755).unwrap();
        let refused =
            |e: Error| matches!(e, Error::TooManyLinks) && e.errno() == rustix::io::Errno::MLINK.raw_os_error();
        assert!(refused(fs.link(Caller::ROOT, file, ROOT_INO, b"more").unwrap_err()));
        assert!(refused(fs.mkdir(Caller::ROOT, full, b"more", 0o755).unwrap_err()));
        let moved = fs.rename(Caller::ROOT, ROOT_INO, b"dir", full, b"more", RenameFlags::default());
        assert!(refused(moved.unwrap_err()));
        // What is no directory adds no link to the one it is in.
        fs.create(Caller::ROOT, full, b"plain", 0o644).unwrap();
        assert_eq!(fs.getattr(file).unwrap().nlink, LINK_MAX);
    }
}

/// A rename over a directory can be refused after that.
#[test]
fn an_empty_directory_that_gives_its_blocks_back_is_stored_without_them() {
    let fs = fresh(false);
    let ino = fs.mkdir(Caller::ROOT, ROOT_INO, b"dir", 0o755).unwrap().ino;
    let node = fs.node(ino).unwrap();
    let stored = || {
        let location = fs.inodes.locate(&fs.cache, ino).unwrap();
        crate::inode::load_at(&fs.cache, ino, location).unwrap().0
    };
    let log_bytes = 2 * fs.log_bytes_remove();
    {
        // A block without names, as an error after its allocation leaves it behind.
        let txn = fs.journal.begin(log_bytes).unwrap();
        let mut st = node.state.write();
        let allocator = LimitedAllocator::new(&fs, Caller::ROOT, &st);
        let (inode, state) = as_dir(&mut st).unwrap();
        crate::dir::prepare_insert(&fs.dir_cx(), &txn, &fs.space, &allocator, inode, state, b"name", 200).unwrap();
        st.disk_size = st.inode.size;
        crate::node::store(&txn, &mut st).unwrap();
    }
    assert!(stored().frags > 0);
    {
        let txn = fs.journal.begin(log_bytes).unwrap();
        let mut locked = Locked::new(&[&node]);
        assert!(fs.release_blocks(&txn, &mut locked, ino).unwrap());
    }
    let now = stored();
    assert_eq!((now.frags, now.size), (0, 0), "{now:?}");
}
