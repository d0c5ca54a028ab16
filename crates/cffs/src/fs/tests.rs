//! What several threads could do to each other, step by step.

use super::{Caller, Fs, MountOptions};
use crate::device::{Device, MemoryDevice};
use crate::format::ROOT_INO;
use crate::mkfs::{MkfsOptions, mkfs};
use std::sync::Arc;
use std::time::Duration;

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
fn an_inode_goes_only_after_its_writeback_has_ended() {
    let fs = fresh(false);
    let a = fs.create(Caller::ROOT, ROOT_INO, b"a", 0o644).unwrap();
    let node = fs.node(a.ino).unwrap();
    *node.in_writeback.lock() = true;
    std::thread::scope(|s| {
        let going = s.spawn(|| {
            fs.unlink(ROOT_INO, b"a").unwrap();
            fs.forget(a.ino, 1);
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!going.is_finished());
        assert!(!node.state.read().dead);
        *node.in_writeback.lock() = false;
        node.writeback_done.notify_all();
    });
    assert!(node.state.read().dead);
}
