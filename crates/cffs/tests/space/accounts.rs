//! The accounts of free space as a program sees them, statvfs(3) and `st_blocks`: right at each moment, whatever is on its
//! way, with data that has no place yet.

use crate::common::observed::Observed;
use cffs::device::{Device, MemoryDevice, Operation};
use cffs::{Caller, Error, Fallocate, Fs, Ino, MkfsOptions, MountOptions, ROOT_INO, SetAttr, mkfs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

const ROOT: Caller = Caller::ROOT;
const USER: Caller = Caller { uid: 1000, gid: 1000 };

/// The four variants of the format.
fn variants() -> impl Iterator<Item = MkfsOptions> {
    [(false, false), (true, false), (false, true), (true, true)]
        .into_iter()
        .map(|(no_embed, no_group)| MkfsOptions::default().no_embed(no_embed).no_group(no_group))
}

fn fresh(size: u64, options: &MkfsOptions) -> (Arc<Observed>, Arc<Fs>) {
    let inner = Arc::new(MemoryDevice::new(size));
    mkfs(&*inner, None, options).unwrap();
    let dev = Observed::interrupted(inner, Operation::Write);
    let mount = MountOptions::default().background(false);
    let fs = Fs::open(dev.clone() as Arc<dyn Device>, None, mount).unwrap();
    (dev, fs)
}

fn close(dev: &Observed, fs: &Fs) {
    fs.close().unwrap();
    let report = cffs::check::check(dev.inner.clone(), None, &Default::default(), &|_, _, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

/// Files without contents. What is made here later takes no metadata but inodes that are there.
fn files(fs: &Fs, n: usize) -> Vec<Ino> {
    let inos = (0..n).map(|i| fs.create(ROOT, ROOT_INO, format!("f{i}").as_bytes(), 0o644).unwrap().ino).collect();
    fs.sync().unwrap();
    inos
}

#[test]
fn what_is_on_its_way_to_the_device_is_counted_once() {
    for options in variants() {
        let (dev, fs) = fresh(64 << 20, &options);
        let [file, other] = files(&fs, 2)[..] else { unreachable!() };
        // More than half of what there is.
        let len = 36 << 20;
        fs.write(ROOT, file, 0, &vec![7; len]).unwrap();
        let (before, blocks) = (fs.statfs(), fs.getattr(file).unwrap().blocks);
        assert_eq!(blocks, len as u64 / 512);
        let (seen, at) = (Arc::new(Mutex::new(None)), fs.clone());
        let note = seen.clone();
        dev.meanwhile(move || {
            let s = at.statfs();
            let blocks = at.getattr(file).unwrap().blocks;
            // What is told to be there can be had, and no more.
            let room = s.available * u64::from(s.frag_size);
            let allocate = Fallocate::Allocate { keep_size: true };
            let taken = at.fallocate(USER, other, allocate, 0, room);
            *note.lock().unwrap() = Some((s.free, s.available, blocks, taken, at.statfs().available));
        });
        fs.fsync(file, false).unwrap();
        assert!(dev.happened(), "data was written");
        let (free, available, blocks_then, taken, left) = seen.lock().unwrap().take().unwrap();
        assert_eq!((free, available, blocks_then), (before.free, before.available, blocks), "{options:?}");
        taken.unwrap_or_else(|e| panic!("{options:?}: {available} fragments were available: {e}"));
        assert_eq!(left, 0, "{options:?}");
        assert_eq!(fs.getattr(file).unwrap().blocks, blocks);
        close(&dev, &fs);
    }
}

/// Counts fragments from before a call until after it.
#[derive(Default)]
struct Moved {
    begun: AtomicU64,
    done: AtomicU64,
}

impl Moved {
    fn by<R>(&self, frags: u64, f: impl FnOnce() -> R) -> R {
        self.begun.fetch_add(frags, SeqCst);
        let result = f();
        self.done.fetch_add(frags, SeqCst);
        result
    }
}

#[test]
fn free_used_and_promised_are_the_whole_at_each_moment() {
    for options in variants() {
        let (dev, fs) = fresh(32 << 20, &options);
        let frag = fs.geometry().frag_size();
        let inos = files(&fs, 240);
        let total = fs.statfs().free;
        let (written, cut, stop) = (Moved::default(), Moved::default(), AtomicBool::new(false));
        std::thread::scope(|s| {
            let (fs, inos, written, cut, stop) = (&fs, &inos, &written, &cut, &stop);
            // Up to four fragments to a file: that many extents fit the inode, so nothing is promised to a tree.
            let writers: Vec<_> = (0..3)
                .map(|t| {
                    s.spawn(move || {
                        for round in 0..12 {
                            for (i, ino) in inos.iter().enumerate().filter(|(i, _)| i % 3 == t) {
                                let n = 1 + (i + round) % 4;
                                for at in 0..n {
                                    let put = || fs.write(ROOT, *ino, (at * frag) as u64, &vec![t as u8; frag]);
                                    assert_eq!(written.by(1, put).unwrap(), frag);
                                }
                                if (i + round) % 5 == 0 {
                                    fs.fsync(*ino, false).unwrap();
                                }
                            }
                            for (i, ino) in inos.iter().enumerate().filter(|(i, _)| i % 3 == t) {
                                let n = 1 + (i + round) % 4;
                                let empty = SetAttr::default().size(Some(0));
                                cut.by(n as u64, || fs.setattr(ROOT, *ino, empty)).unwrap();
                            }
                        }
                    })
                })
                .collect();
            s.spawn(move || {
                while !stop.load(SeqCst) {
                    fs.sync().unwrap();
                }
            });
            let poller = s.spawn(move || {
                // On a busy machine the writers may be through before this thread has its turn: it looks once at least.
                loop {
                    let (w, c) = (written.done.load(SeqCst), cut.done.load(SeqCst));
                    let free = fs.statfs().free;
                    let most = total - w + cut.begun.load(SeqCst);
                    let least = total + c - written.begun.load(SeqCst);
                    if !(least..=most).contains(&free) {
                        stop.store(true, SeqCst);
                        panic!("{free} fragments free, not {least} to {most}");
                    }
                    if stop.load(SeqCst) {
                        break;
                    }
                }
            });
            let ended: Vec<_> = writers.into_iter().map(|t| t.join()).collect();
            stop.store(true, SeqCst);
            ended.into_iter().for_each(|e| e.unwrap());
            poller.join().unwrap();
        });
        assert_eq!(fs.statfs().free, total, "{options:?}");
        close(&dev, &fs);
    }
}

#[test]
fn writers_get_all_that_is_available_and_no_fragment_more() {
    for options in variants() {
        for caller in [USER, ROOT] {
            let (dev, fs) = fresh(20 << 20, &options);
            let frag = fs.geometry().frag_size();
            let inos = files(&fs, 6000);
            let s = fs.statfs();
            let available = if caller.uid == 0 { s.free } else { s.available };
            assert!(available > 8000 && available < 4 * inos.len() as u64, "{s:?}");
            let (taken, stop) = (AtomicU64::new(0), AtomicBool::new(false));
            std::thread::scope(|s| {
                let (fs, inos, taken, stop) = (&fs, &inos, &taken, &stop);
                let writer = |t: usize| {
                    move || {
                        for at in 0..4 {
                            for ino in inos.iter().skip(t).step_by(3) {
                                match fs.write(caller, *ino, (at * frag) as u64, &vec![1; frag]) {
                                    Ok(n) => assert_eq!(n, frag),
                                    Err(Error::NoSpace) => continue,
                                    Err(e) => panic!("{e}"),
                                }
                                taken.fetch_add(1, SeqCst);
                            }
                        }
                    }
                };
                let writers: Vec<_> = (0..3).map(|t| s.spawn(writer(t))).collect();
                s.spawn(move || {
                    while !stop.load(SeqCst) {
                        fs.sync().unwrap();
                    }
                });
                let ended: Vec<_> = writers.into_iter().map(|t| t.join()).collect();
                stop.store(true, SeqCst);
                ended.into_iter().for_each(|e| e.unwrap());
            });
            let at_end = if caller.uid == 0 { fs.statfs().free } else { fs.statfs().available };
            assert_eq!((taken.into_inner(), at_end), (available, 0), "{options:?} {caller:?}");
            fs.sync().unwrap();
            close(&dev, &fs);
        }
    }
}
