//! Inodes that callers refer to leave memory, and the references stay: several threads look the same files up, use and
//! forget them while all that can leave memory does. A reference too few, and a file without a name is gone while somebody
//! has it; one too many, and it stays for ever.

use crate::common::plain;
use cffs::device::Device;
use cffs::{Caller, Error, Fs, Ino, MkfsOptions, MountOptions, ROOT_INO, SetAttr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const ROOT: Caller = Caller::ROOT;
const DIRS: usize = 50;
/// More than are kept in memory: each shard is over its share.
const FILES: usize = 6000;
const THREADS: u64 = 4;
const STEPS: usize = 6000;

struct File {
    dir: Ino,
    name: String,
    ino: Ino,
    generation: u32,
}

impl File {
    fn contents(&self) -> [u8; 8] {
        self.ino.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
    }

    /// What a number leads to is this file, with so many names.
    fn is_there(&self, fs: &Fs, names: u32) {
        let attr = fs.getattr(self.ino).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        assert_eq!((attr.generation, attr.nlink, attr.size), (self.generation, names, 8), "{}", self.name);
        let mut bytes = [0; 9];
        assert_eq!(fs.read(self.ino, 0, &mut bytes).unwrap(), 8);
        assert_eq!(bytes[..8], self.contents(), "{}", self.name);
    }
}

fn random(state: &mut u64, below: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % below
}

/// What one of the threads does. Returns how many references it has to each file at the end.
fn work(fs: &Fs, files: &[File], seed: u64) -> Vec<u64> {
    let mut state = seed;
    let mut has = vec![0; files.len()];
    let mut held: Vec<usize> = Vec::new();
    for step in 0..STEPS {
        // Half of the time the same few, for which the threads meet.
        let n = if random(&mut state, 2) == 0 { random(&mut state, 40) } else { random(&mut state, files.len()) };
        match (random(&mut state, 8), held.len()) {
            (0..=3, _) | (_, 0) => {
                // By name, or by number as through a file handle.
                let by_number = random(&mut state, 3) == 0;
                let found = if by_number {
                    fs.reference(files[n].ino)
                } else {
                    fs.lookup(files[n].dir, files[n].name.as_bytes())
                };
                let attr = found.unwrap();
                assert_eq!((attr.ino, attr.generation), (files[n].ino, files[n].generation));
                held.push(n);
                has[n] += 1;
            }
            (4 | 5, len) => {
                let n = held.swap_remove(random(&mut state, len));
                // One of them, or all.
                let all = 1 + held.iter().filter(|h| **h == n).count() as u64;
                let some = if random(&mut state, 2) == 0 { 1 } else { all };
                if some > 1 {
                    held.retain(|h| *h != n);
                }
                has[n] -= some;
                fs.forget(files[n].ino, some);
            }
            (6, len) => files[held[random(&mut state, len)]].is_there(fs, 1),
            (_, len) => {
                let file = &files[held[random(&mut state, len)]];
                // With something to write it stays in memory.
                let perm = Some(0o600 + random(&mut state, 8) as u16);
                fs.setattr(ROOT, file.ino, SetAttr::default().perm(perm)).unwrap();
            }
        }
        if step % 500 == 0 {
            fs.sync().unwrap();
        }
    }
    has
}

#[test]
fn references_outlive_the_nodes_that_threads_evict() {
    for no_embed in [false, true] {
        let dev = plain::fresh(64 << 20, &MkfsOptions::default().no_embed(no_embed));
        // Of the smallest cache an inode each 8 KiB, and some thousands at least.
        let options = MountOptions::default().background(false).cache_bytes(4 << 20);
        let fs = Fs::open(dev.clone() as Arc<dyn Device>, None, options).unwrap();
        let before = fs.statfs();
        // What mkdir returns is a reference, and is kept.
        let dirs: Vec<Ino> =
            (0..DIRS).map(|n| fs.mkdir(ROOT, ROOT_INO, format!("d{n}").as_bytes(), 0o755).unwrap().ino).collect();
        let files: Vec<File> = (0..FILES)
            .map(|n| {
                let (dir, name) = (dirs[n % DIRS], format!("f{n}"));
                let attr = fs.create(ROOT, dir, name.as_bytes(), 0o600).unwrap();
                let file = File { dir, name, ino: attr.ino, generation: attr.generation };
                assert_eq!(fs.write(ROOT, file.ino, 0, &file.contents()).unwrap(), 8);
                fs.forget(file.ino, 1);
                file
            })
            .collect();
        fs.sync().unwrap();
        fs.drop_caches();
        files.iter().for_each(|f| fs.forget(fs.lookup(f.dir, f.name.as_bytes()).unwrap().ino, 1));
        assert!(fs.stats().inodes < FILES as u64, "all {FILES} are in memory: nothing is evicted");
        let working = AtomicUsize::new(THREADS as usize);
        let has: Vec<Vec<u64>> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..THREADS)
                .map(|n| {
                    let (fs, files, working) = (&fs, &files, &working);
                    s.spawn(move || {
                        // Counted also when an assertion ends this thread: the one below waits for all.
                        struct Ends<'a>(&'a AtomicUsize);
                        impl Drop for Ends<'_> {
                            fn drop(&mut self) {
                                self.0.fetch_sub(1, Ordering::Release);
                            }
                        }
                        let _ends = Ends(working);
                        work(fs, files, n * 77 + 1)
                    })
                })
                .collect();
            while working.load(Ordering::Acquire) > 0 {
                fs.drop_caches();
                std::thread::yield_now();
            }
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        fs.sync().unwrap();
        fs.drop_caches();
        assert!(fs.stats().inodes < 64, "{} inodes with nothing to write stay in memory", fs.stats().inodes);
        for (n, f) in files.iter().enumerate() {
            let refs: u64 = has.iter().map(|h| h[n]).sum();
            fs.unlink(f.dir, f.name.as_bytes()).unwrap();
            if n % 100 == 0 {
                fs.sync().unwrap();
                fs.drop_caches();
            }
            if refs > 0 {
                fs.forget(f.ino, refs - 1);
                f.is_there(&fs, 0);
                fs.forget(f.ino, 1);
            }
            let gone = fs.getattr(f.ino);
            assert!(matches!(gone, Err(Error::Stale)), "{refs} references were given back: {gone:?}");
        }
        for (n, dir) in dirs.iter().enumerate() {
            fs.rmdir(ROOT_INO, format!("d{n}").as_bytes()).unwrap();
            fs.forget(*dir, 1);
        }
        fs.sync().unwrap();
        assert_eq!(fs.statfs().free, before.free);
        fs.close().unwrap();
        plain::clean(&dev, "after all");
    }
}
