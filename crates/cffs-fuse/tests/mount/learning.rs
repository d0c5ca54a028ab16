//! What a mount learns from the messages of the kernel.

use crate::common::{Image, Mounted, can_mount};
use cffs::{Caller, ColocationKey, MountOptions, ROOT_INO};
use cffs_fuse::MountConfig;
use cffs_testenv::{Need, have};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

const LIBRARY: usize = 4 << 20;
const READ_AT: u64 = 3 << 20;

/// How far the kernel reads ahead in the files of a mount, in KiB.
fn readahead(m: &Mounted) -> String {
    let dev = fs::metadata(m.dir()).unwrap().dev();
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).unwrap().trim().to_owned()
}

/// A start of a program: the beginning of its library, and a part. In a mount that is new, so that the kernel has nothing of it.
fn start(m: &Mounted) {
    let file = fs::File::open(m.path("a.so")).unwrap();
    let mut back = [0; 4096];
    for at in [0, READ_AT] {
        file.read_exact_at(&mut back, at).unwrap();
        assert!(back.iter().all(|b| *b == 7), "at {at}");
    }
}

#[test]
fn where_parts_of_libraries_are_learned_the_kernel_reads_ahead_little() {
    if !can_mount() || !have(&[Need::Root]) {
        return;
    }
    let image = Image::new();
    let mount = |learn| image.mount_with(MountOptions::default(), &MountConfig { learn, ..MountConfig::default() });
    let m = mount(true);
    fs::write(m.path("a.so"), vec![7; LIBRARY]).unwrap();
    m.unmount();
    let m = mount(true);
    start(&m);
    assert_eq!(readahead(&m), "1024", "no directory has the key");
    m.unmount();

    let engine = image.engine(MountOptions::default());
    engine.set_colocation_key(Caller::ROOT, ROOT_INO, Some(&ColocationKey::Learned)).unwrap();
    engine.close().unwrap();
    let m = mount(false);
    start(&m);
    assert_eq!(readahead(&m), "1024", "nothing is learned");
    m.unmount();
    for _ in 0..2 {
        let m = mount(true);
        assert_eq!(readahead(&m), "1024", "once is no habit");
        start(&m);
        assert_eq!(readahead(&m), "128");
        m.unmount();
    }
    // From the beginning, and with `nolearn`: the parts may lie apart.
    let m = mount(false);
    assert_eq!(readahead(&m), "128");
    m.unmount();
}
