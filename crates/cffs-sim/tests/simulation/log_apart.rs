//! The engine on a log disk that is used: what was written at different times is brought together, and gaps between small files are filled.

use cffs::device::{CountingDevice, Device, MemoryDevice};
use cffs::{
    Caller, Error, Fs, Ino, MkfsOptions, MountOptions, ROOT_INO, Regroup, RegroupOptions, RegroupOutcome,
    RegroupStatus, mkfs,
};
use cffs_logdisk::{ImageOptions, ImageStore, LogDisk, LogOptions};
use std::sync::Arc;

struct Disk {
    device: Arc<CountingDevice<Arc<MemoryDevice>>>,
}

impl Disk {
    fn new(bytes: u64) -> Disk {
        let device = Arc::new(CountingDevice::new(Arc::new(MemoryDevice::new(bytes))));
        let image = ImageOptions { uuid: [1; 16], slot_bytes: 1 << 20 };
        let store = Arc::new(ImageStore::format(device.clone(), &image).unwrap());
        let log = LogDisk::format(store, bytes, &LogOptions::default()).unwrap();
        mkfs(&log, None, &MkfsOptions::default().group_size(128 << 10)).unwrap();
        log.finish().unwrap();
        Disk { device }
    }

    fn mount(&self) -> Arc<Fs> {
        let store = Arc::new(ImageStore::open(self.device.clone()).unwrap());
        let log = Arc::new(LogDisk::open(store, &LogOptions::default()).unwrap());
        let options = MountOptions::default().cache_bytes(16 << 20).background(false);
        Fs::open(log, None, options).unwrap()
    }

    fn reads(&self) -> u64 {
        self.device.snapshot().all().read_requests
    }
}

fn contents(dir: u64, file: u64) -> Vec<u8> {
    let mut bytes = vec![0; 1500 + 700 * (file as usize % 7)];
    fastrand::Rng::with_seed(dir << 16 | file).fill(&mut bytes);
    bytes
}

const DIRS: u64 = 12;
const FILES: u64 = 200;

/// Directories with files that came one after the other, in turns.
fn grown(fs: &Fs) {
    let dirs: Vec<Ino> =
        (0..DIRS).map(|d| fs.mkdir(Caller::ROOT, ROOT_INO, d.to_string().as_bytes(), 0o755).unwrap().ino).collect();
    for file in 0..FILES {
        for (d, dir) in dirs.iter().enumerate() {
            let made = fs.create(Caller::ROOT, *dir, file.to_string().as_bytes(), 0o644).unwrap();
            fs.write(Caller::ROOT, made.ino, 0, &contents(d as u64, file)).unwrap();
            fs.forget(made.ino, 1);
        }
        fs.sync().unwrap();
    }
}

/// Looks at all names, and reads all files if it is to.
fn walk(fs: &Fs, reads: bool) {
    for d in 0..DIRS {
        let dir = fs.lookup(ROOT_INO, d.to_string().as_bytes()).unwrap().ino;
        for file in 0..FILES {
            let found = fs.lookup(dir, file.to_string().as_bytes()).unwrap();
            if !reads {
                fs.forget(found.ino, 1);
                continue;
            }
            let mut bytes = vec![0; found.size as usize];
            fs.read(found.ino, 0, &mut bytes).unwrap();
            assert!(bytes == contents(d, file), "{d}/{file}");
            fs.forget(found.ino, 1);
        }
        fs.forget(dir, 1);
    }
}

fn regroup(fs: &Fs, options: &RegroupOptions) -> RegroupStatus {
    let handle = Regroup::new();
    fs.regroup(options, &handle).unwrap();
    let status = handle.status();
    assert_eq!(status.outcome, Some(RegroupOutcome::Complete), "{status:?}");
    status
}

#[test]
fn a_regroup_brings_together_what_the_log_has_apart() {
    let disk = Disk::new(128 << 20);
    let fs = disk.mount();
    grown(&fs);
    fs.close().unwrap();
    let cold = |reads| {
        let fs = disk.mount();
        let before = disk.reads();
        walk(&fs, reads);
        let reads = disk.reads() - before;
        fs.close().unwrap();
        reads
    };
    let before = [cold(false), cold(true)];
    let fs = disk.mount();
    let planned = regroup(&fs, &RegroupOptions::default().dry_run(true));
    let done = regroup(&fs, &RegroupOptions::default());
    // Places are chosen and names are written meanwhile, so it is no exact plan.
    let about = |plan: f64, is: f64| plan > is / 2.0 && plan < is * 2.0;
    assert!(planned.bytes_moved > 0 && done.bytes_moved > 0, "{planned:?}\n{done:?}");
    assert!(
        about(planned.read.after, done.read.after) && about(planned.walk.after, done.walk.after),
        "{planned:?}\n{done:?}"
    );
    assert_eq!((planned.read.before, planned.walk.before), (done.read.before, done.walk.before));
    assert!(done.walk.after < done.walk.before && done.read.after < done.read.before, "{done:?}");
    let again = regroup(&fs, &RegroupOptions::default());
    assert_eq!(again.bytes_moved, 0, "{again:?}");
    assert_eq!((again.read.before, again.walk.before), (done.read.after, done.walk.after));
    fs.close().unwrap();
    let after = [cold(false), cold(true)];
    println!("{before:?} requests before, {after:?} afterwards");
    assert!(after[0] < before[0] && 3 * after[1] < 2 * before[1]);
}

#[test]
fn a_regroup_with_a_rate_or_a_budget_comes_to_the_same() {
    let disk = Disk::new(128 << 20);
    let fs = disk.mount();
    grown(&fs);
    let mut moved = Vec::new();
    for _ in 0..40 {
        let done = regroup(&fs, &RegroupOptions::default().budget(Some(1 << 20)).rate(Some(1 << 30)));
        // The last group that is copied may have more in it than was asked for.
        assert!(done.bytes_moved <= 1 << 20, "{done:?}");
        moved.push(done.bytes_moved);
        if done.bytes_moved == 0 {
            break;
        }
    }
    assert!(moved.len() > 3 && moved.last() == Some(&0), "{moved:?}");
    walk(&fs, true);
    fs.close().unwrap();
}

/// Creates files of 1 KB until there is no space left; returns how many.
fn fill(fs: &Fs, name: &str) -> u64 {
    for n in 0.. {
        let made = (|| {
            let dir_name = format!("{name}{}", n / 500);
            let dir = match fs.lookup(ROOT_INO, dir_name.as_bytes()) {
                Err(Error::NotFound) => fs.mkdir(Caller::ROOT, ROOT_INO, dir_name.as_bytes(), 0o755)?,
                found => found?,
            };
            let file = fs.create(Caller::ROOT, dir.ino, n.to_string().as_bytes(), 0o644)?;
            let written = fs.write(Caller::ROOT, file.ino, 0, &contents(0, 0)[..1000]);
            fs.forget(file.ino, 1);
            fs.forget(dir.ino, 1);
            written
        })();
        match made {
            Ok(_) => {}
            Err(Error::NoSpace) => {
                fs.sync().unwrap();
                return n;
            }
            Err(e) => panic!("file {n}: {e}"),
        }
    }
    unreachable!("there is space for any number of files")
}

#[test]
fn small_files_go_where_others_were_when_there_is_hardly_any_other_space() {
    let disk = Disk::new(32 << 20);
    let fs = disk.mount();
    let first = fill(&fs, "a");
    let mut rng = fastrand::Rng::with_seed(3);
    let mut removed = 0;
    for n in 0..first {
        if rng.u32(0..4) > 0 {
            let dir = fs.lookup(ROOT_INO, format!("a{}", n / 500).as_bytes()).unwrap();
            fs.unlink(dir.ino, n.to_string().as_bytes()).unwrap();
            fs.forget(dir.ino, 1);
            removed += 1;
        }
    }
    fs.sync().unwrap();
    let s = fs.statfs();
    let in_units = s.free * u64::from(s.frag_size) / 1024;
    let second = fill(&fs, "b");
    println!("{first} files, {removed} removed, {in_units} KiB free, {second} more");
    assert!(10 * second > 13 * in_units, "{second} of {removed} files came back, and {in_units} KiB were free");
    fs.close().unwrap();
    let fs = disk.mount();
    for n in (0..second).step_by(7) {
        let dir = fs.lookup(ROOT_INO, format!("b{}", n / 500).as_bytes()).unwrap();
        let file = fs.lookup(dir.ino, n.to_string().as_bytes()).unwrap();
        let mut bytes = vec![0; file.size as usize];
        fs.read(file.ino, 0, &mut bytes).unwrap();
        // The last one may have found no space for its contents.
        assert!(bytes == contents(0, 0)[..1000] || n + 1 >= second, "file {n}");
    }
    fs.close().unwrap();
}
