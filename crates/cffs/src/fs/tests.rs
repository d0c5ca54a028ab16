//! What several threads could do to each other, step by step.

use super::{Caller, Fs, MountOptions};
use crate::device::{Device, MemoryDevice};
use crate::format::ROOT_INO;
use crate::mkfs::{MkfsOptions, mkfs};
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
