//! Threads find inodes by their numbers, as file handles have them, while others make and remove the files. What is found
//! stays the same file until it is forgotten.

use crate::common::plain::{clean, fresh};
use cffs::device::Device;
use cffs::{Caller, Error, Fs, Ino, MkfsOptions, MountOptions, ROOT_INO};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const ROOT: Caller = Caller::ROOT;
const MAKERS: usize = 3;
const FINDERS: u64 = 3;
/// Files that each maker makes at least.
const ROUNDS: u32 = 400;
/// And at most.
const ROUNDS_MAX: u32 = 200_000;
/// Files that the finders meet at least. The makers go on until they have.
const MEETINGS: u64 = 400;

fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

fn contents(ino: Ino, generation: u32) -> [u8; 600] {
    [(ino as u8) ^ (generation as u8) ^ (generation >> 8) as u8; 600]
}

/// Makes files until the finders have met enough of them: files with a name, and files that get one later or never, and removes them.
fn make(fs: &Fs, thread: usize, newest: &AtomicU64, met: &AtomicU64) {
    let dir = fs.mkdir(ROOT, ROOT_INO, format!("d{thread}").as_bytes(), 0o755).unwrap().ino;
    let enough = |n: u32| n >= ROUNDS && met.load(Ordering::Relaxed) >= MEETINGS;
    for n in (0..ROUNDS_MAX).take_while(|n| !enough(*n)) {
        let name = format!("f{n}");
        let unnamed = n % 3 != 0;
        let made =
            if unnamed { fs.tmpfile(ROOT, dir, 0o600) } else { fs.create(ROOT, dir, name.as_bytes(), 0o600) }.unwrap();
        newest.store(made.ino, Ordering::Relaxed);
        fs.write(ROOT, made.ino, 0, &contents(made.ino, made.generation)).unwrap();
        std::thread::yield_now();
        if n % 50 == 0 {
            fs.fsync(made.ino, false).unwrap();
        }
        let linked = n % 3 == 1;
        if linked {
            assert_eq!(fs.link(ROOT, made.ino, dir, name.as_bytes()).unwrap().nlink, 1);
        }
        fs.forget(made.ino, 1 + u64::from(linked));
        if linked || !unnamed {
            fs.unlink(dir, name.as_bytes()).unwrap();
        }
    }
    fs.rmdir(ROOT_INO, format!("d{thread}").as_bytes()).unwrap();
    fs.forget(dir, 1);
}

/// Looks for numbers until no maker is left, and counts what it meets.
fn find(fs: &Fs, seed: u64, newest: &[AtomicU64], makers: &AtomicUsize, met: &AtomicU64) {
    let mut state = seed;
    while makers.load(Ordering::Acquire) > 0 {
        // A file that lives or has just gone, or a number near it.
        let near = newest[random(&mut state, MAKERS as u64) as usize].load(Ordering::Relaxed);
        let ino = near + if random(&mut state, 4) == 0 { random(&mut state, 8) } else { 0 };
        let attr = match fs.reference(ino) {
            Ok(attr) => attr,
            Err(e) => {
                assert!(matches!(e, Error::Stale), "inode {ino}: {e}");
                continue;
            }
        };
        met.fetch_add(u64::from(attr.file_type == cffs::FileType::Regular), Ordering::Relaxed);
        for _ in 0..random(&mut state, 4) {
            std::thread::yield_now();
        }
        let again = fs.getattr(ino).unwrap_or_else(|e| panic!("inode {ino} is referred to: {e}"));
        assert_eq!((again.ino, again.generation), (ino, attr.generation));
        if attr.file_type == cffs::FileType::Directory {
            assert_eq!(fs.parent(ino).unwrap(), ROOT_INO);
        } else {
            let mut bytes = [0; 601];
            let n = fs.read(ino, 0, &mut bytes).unwrap();
            // Nothing is written yet, or all.
            assert!(n == 0 || bytes[..n] == contents(ino, attr.generation), "inode {ino}: {n} bytes");
        }
        fs.forget(ino, 1);
    }
}

#[test]
fn what_is_found_by_number_stays_until_it_is_forgotten() {
    for no_embed in [false, true] {
        let dev = fresh(64 << 20, &MkfsOptions::default().no_embed(no_embed));
        let options = MountOptions::default().background(false);
        let fs = Fs::open(dev.clone() as std::sync::Arc<dyn Device>, None, options).unwrap();
        let before = (fs.statfs().free, fs.superblock().mount_count);
        let (newest, makers) = ([const { AtomicU64::new(16) }; MAKERS], AtomicUsize::new(MAKERS));
        let met = AtomicU64::new(0);
        std::thread::scope(|s| {
            let (fs, newest, makers, met) = (&fs, &newest, &makers, &met);
            for n in 0..FINDERS {
                s.spawn(move || find(fs, n * 31 + 5, newest, makers, met));
            }
            for (thread, newest) in newest.iter().enumerate() {
                s.spawn(move || {
                    // Counted also when an assertion ends this thread, because the finders wait for it.
                    struct Ends<'a>(&'a AtomicUsize);
                    impl Drop for Ends<'_> {
                        fn drop(&mut self) {
                            self.0.fetch_sub(1, Ordering::Release);
                        }
                    }
                    let _ends = Ends(makers);
                    make(fs, thread, newest, met);
                });
            }
        });
        assert!(met.into_inner() >= MEETINGS, "the finders have met too few files");
        fs.sync().unwrap();
        assert_eq!((fs.statfs().free, fs.superblock().mount_count), before, "everything is freed");
        fs.close().unwrap();
        clean(&dev, "after all");
    }
}
