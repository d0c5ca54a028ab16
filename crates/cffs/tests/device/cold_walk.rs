//! What a walk through directories that are not cached asks of the device.

use cffs::device::{CountingDevice, Device, DeviceStats, IoKind, MemoryDevice};
use cffs::{Caller, Fs, Geometry, MkfsOptions, MountOptions, ROOT_INO, mkfs, path};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;
const GROUP: u64 = 64 << 10;
const BLOCK: u64 = 4096;
/// Their names fit one block of the root.
const DIRS: u64 = 18;
/// Eight blocks of entries for each: as many as a directory has without an index.
const FILES: u64 = 144;

type Counted = Arc<CountingDevice<MemoryDevice>>;

fn mount(dev: &Counted) -> Arc<Fs> {
    let options = MountOptions::default().background(false);
    Fs::open(dev.clone() as Arc<dyn Device>, None, options).unwrap()
}

/// Directories with tiny files, which have no data of their own, and what a cold mount reads to do something with them.
fn cold(work: impl Fn(&Fs)) -> (DeviceStats, u64) {
    let dev = Arc::new(CountingDevice::new(MemoryDevice::new(64 << 20)));
    mkfs(&*dev, None, &MkfsOptions::default().group_size(GROUP as u32)).unwrap();
    let fs = mount(&dev);
    for d in 0..DIRS {
        fs.mkdir(ROOT, ROOT_INO, format!("dir{d}").as_bytes(), 0o755).unwrap();
        for f in 0..FILES {
            path::write_file(&fs, ROOT, format!("/dir{d}/file{f}").as_bytes(), &[7; 40]).unwrap();
        }
    }
    let of = |d: u64| fs.lookup(ROOT_INO, format!("dir{d}").as_bytes()).unwrap().size;
    let bytes = (0..DIRS).map(of).sum::<u64>() + fs.getattr(ROOT_INO).unwrap().size;
    fs.close().unwrap();
    let fs = mount(&dev);
    let before = dev.snapshot();
    work(&fs);
    (dev.snapshot().since(&before), bytes)
}

fn look(fs: &Fs, d: u64) {
    let dir = fs.lookup(ROOT_INO, format!("dir{d}").as_bytes()).unwrap().ino;
    fs.lookup(dir, format!("file{}", FILES - 1).as_bytes()).unwrap();
}

#[test]
fn a_walk_in_order_takes_long_requests_and_ends_where_the_directories_end() {
    let (read, bytes) = cold(|fs| (0..DIRS).for_each(|d| look(fs, d)));
    let meta = read.kind(IoKind::Meta);
    let groups = bytes.div_ceil(GROUP);
    assert!(groups >= 8, "{groups} groups of directory blocks");
    // The first brings a group, then each brings four.
    assert!(meta.read_requests <= 1 + groups.div_ceil(4), "{} requests for {groups} groups", meta.read_requests);
    assert!(meta.read_bytes <= bytes + 2 * GROUP, "{} bytes for {bytes} of directories", meta.read_bytes);
}

#[test]
fn directories_in_no_order_do_not_bring_more_than_their_groups() {
    let (read, _) = cold(|fs| [16, 2, 12, 7].into_iter().for_each(|d| look(fs, d)));
    let meta = read.kind(IoKind::Meta);
    // A group or two for each of them and for the root; the one after them is not fetched ahead.
    assert!(meta.read_bytes <= 10 * GROUP, "{} bytes for four directories and the root", meta.read_bytes);
    assert!(meta.read_bytes >= 4 * 8 * BLOCK);
}

#[test]
fn what_describes_free_space_comes_in_one_request_and_nothing_with_it() {
    let dev = Arc::new(CountingDevice::new(MemoryDevice::new(128 << 20)));
    let sb = mkfs(&*dev, None, &MkfsOptions::default().group_size(GROUP as u32)).unwrap();
    let ags = Geometry::new(&sb).unwrap().ag_count;
    let contents = vec![7; 80 << 20];
    let fs = mount(&dev);
    path::write_file(&fs, ROOT, b"/large", &contents).unwrap();
    fs.sync().unwrap();
    fs.unlink(ROOT_INO, b"large").unwrap();
    fs.close().unwrap();
    let before = dev.snapshot();
    let fs = mount(&dev);
    let mounted = dev.snapshot();
    path::write_file(&fs, ROOT, b"/large", &contents).unwrap();
    fs.sync().unwrap();
    let [mount, write] = [mounted.since(&before), dev.snapshot().since(&mounted)].map(|s| *s.kind(IoKind::Meta));
    // The block of the root with its group, and header and bitmap of each allocation group.
    assert!(ags >= 4, "{ags} allocation groups");
    assert!(write.read_requests <= 1 + ags, "{} requests for {ags} allocation groups", write.read_requests);
    assert!(write.read_bytes <= GROUP + ags * 3 * BLOCK, "{} bytes for {ags} allocation groups", write.read_bytes);
    assert!(write.read_requests >= 3 && mount.read_bytes <= 16 * BLOCK, "{} bytes at mount", mount.read_bytes);
}

#[test]
fn what_is_free_is_not_read_along() {
    let dev = Arc::new(CountingDevice::new(MemoryDevice::new(64 << 20)));
    mkfs(&*dev, None, &MkfsOptions::default().group_size(GROUP as u32)).unwrap();
    let fs = mount(&dev);
    for name in ["a", "b", "c"] {
        path::write_file(&fs, ROOT, format!("/{name}").as_bytes(), &[7; 5000]).unwrap();
    }
    fs.close().unwrap();
    let fs = mount(&dev);
    let before = dev.snapshot();
    assert_eq!(path::read_file(&fs, b"/a").unwrap(), [7; 5000]);
    assert_eq!(path::read_file(&fs, b"/c").unwrap(), [7; 5000]);
    let read = dev.snapshot().since(&before);
    let (data, meta) = (read.kind(IoKind::Data), read.kind(IoKind::Meta));
    assert_eq!(data.read_requests, 1, "the files of a directory come together");
    assert!(data.read_bytes <= 5 * BLOCK, "{} bytes for three files of 5,000", data.read_bytes);
    // The group of the root has blocks of the inode tables too.
    assert!(meta.read_bytes <= 4 * BLOCK, "{} bytes for three names", meta.read_bytes);
}

/// A group whose files are asked for now and then, by somebody who reads twice the cache in between.
#[test]
fn what_was_read_along_stays_until_it_is_used_and_what_was_used_goes_first() {
    const CACHE: usize = 1 << 20;
    let dev = Arc::new(CountingDevice::new(MemoryDevice::new(64 << 20)));
    mkfs(&*dev, None, &MkfsOptions::default().group_size(GROUP as u32)).unwrap();
    let fs = mount(&dev);
    // Of three fragments each, so some blocks have parts of two files.
    for (dir, files) in [("group", 20), ("tree", 700)] {
        fs.mkdir(ROOT, ROOT_INO, dir.as_bytes(), 0o755).unwrap();
        for f in 0..files {
            path::write_file(&fs, ROOT, format!("/{dir}/file{f}").as_bytes(), &[7; 3000]).unwrap();
        }
    }
    fs.close().unwrap();
    let options = MountOptions::default().background(false).cache_bytes(CACHE);
    let fs = Fs::open(dev.clone() as Arc<dyn Device>, None, options).unwrap();
    let mut again = 0;
    for n in 0..20 {
        let before = dev.snapshot();
        path::read_file(&fs, format!("/group/file{n}").as_bytes()).unwrap();
        let read = dev.snapshot().since(&before).kind(IoKind::Data).read_requests;
        again += if n == 0 { 0 } else { read };
        for f in n * 35..(n + 1) * 35 {
            path::read_file(&fs, format!("/tree/file{f}").as_bytes()).unwrap();
        }
    }
    assert_eq!(again, 0, "requests for a group that was there");
}
