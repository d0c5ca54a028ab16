//! Copies inside the file system, while others write.

use crate::common::observed::Observed;
use cffs::device::{Device, MemoryDevice, Operation};
use cffs::{Caller, Fs, MkfsOptions, MountOptions, ROOT_INO, mkfs};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;
const MIB: u64 = 1 << 20;

#[test]
fn a_hole_is_copied_over_what_another_writer_put_there_meanwhile() {
    let inner = Arc::new(MemoryDevice::new(64 << 20));
    mkfs(&*inner, None, &MkfsOptions::default()).unwrap();
    let dev = Observed::interrupted(inner, Operation::Read);
    let mount = MountOptions::default().background(false);
    let fs = Fs::open(dev.clone() as Arc<dyn Device>, None, mount).unwrap();
    let from = fs.create(ROOT, ROOT_INO, b"from", 0o644).unwrap().ino;
    let to = fs.create(ROOT, ROOT_INO, b"to", 0o644).unwrap().ino;
    fs.write(ROOT, from, 0, &vec![1; MIB as usize]).unwrap();
    fs.write(ROOT, from, 2 * MIB, &vec![3; MIB as usize]).unwrap();
    fs.sync().unwrap();
    fs.drop_caches();
    let other = fs.clone();
    dev.meanwhile(move || {
        other.write(ROOT, to, 3 * MIB / 2, &[9; 5000]).unwrap();
    });
    assert_eq!(fs.copy_range(ROOT, from, 0, to, 0, 3 * MIB).unwrap(), 3 * MIB);
    assert!(dev.happened(), "the source was read");
    let mut got = vec![0xff; 3 * MIB as usize];
    assert_eq!(fs.read(to, 0, &mut got).unwrap(), got.len());
    for (i, want) in [1, 0, 3].into_iter().enumerate() {
        let part = &got[i * MIB as usize..(i + 1) * MIB as usize];
        assert!(part.iter().all(|b| *b == want), "mebibyte {i}");
    }
    fs.close().unwrap();
}
