//! The engine under several threads at once.
//!
//! Eight threads choose operations at random. Each has files of its own, which it verifies byte for byte wherever they
//! have been moved or linked to; all share a few directories and the files in them, whose contents say whose they are.
//! A watchdog aborts the process with what every thread is doing when one of them stands still. At the end the file
//! system passes the check, before and after everything was removed, and all space is free again.
//!
//! `CFFS_STRESS_SECONDS` sets for how long to go on (in rounds with other seeds), `CFFS_STRESS_SEED` the first seed,
//! `CFFS_STRESS_SETUP` the only setup ("full device"; with its rounds as short as without it).

use cffs::check::{CheckOptions, check};
use cffs::device::{Device, MemoryDevice};
use cffs::{
    Attr, Caller, DirEntry, DirectWrite, Error, FileType, Fs, Ino, MetadataMode, MkfsOptions, MountOptions, ROOT_INO,
    Regroup, RegroupOptions, RegroupOutcome, RenameFlags, Result, SetAttr, StatFs, mkfs,
};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const ROOT: Caller = Caller::ROOT;
const THREADS: usize = 8;
/// Directories that are always there and that everybody uses.
const SHARED: usize = 4;
/// A thread that takes longer than this for one operation hangs.
const HANG: Duration = Duration::from_secs(60);
/// Shared files consist of records of this size, each of which says whose and where it is.
const RECORD: usize = 64;
const SHARED_FILE_MAX: u64 = 48 << 10;

#[derive(Clone, Debug)]
struct Setup {
    name: &'static str,
    no_embed: bool,
    metadata: MetadataMode,
    device: u64,
    cache: usize,
    fsync_in_log: bool,
    /// Everything is moved, again and again, beside the threads; in a small log, and writes are direct where that is possible.
    regroup: bool,
    data_sums: bool,
}

fn setups() -> Vec<Setup> {
    let base = |name, metadata| Setup {
        name,
        no_embed: false,
        metadata,
        device: 96 << 20,
        cache: 16 << 20,
        fsync_in_log: true,
        regroup: false,
        data_sums: false,
    };
    let mut all = vec![
        base("journal", MetadataMode::Journal),
        Setup { cache: 1 << 20, ..base("small cache", MetadataMode::Journal) },
        Setup { device: 14 << 20, ..base("full device", MetadataMode::Journal) },
        Setup { fsync_in_log: false, ..base("fsync in place", MetadataMode::Journal) },
        Setup { regroup: true, ..base("regroup", MetadataMode::Journal) },
        Setup {
            regroup: true,
            data_sums: true,
            cache: 1 << 20,
            ..base("regroup with checksums", MetadataMode::Journal)
        },
        Setup { regroup: true, device: 14 << 20, ..base("regroup full device", MetadataMode::Journal) },
        base("sync", MetadataMode::Sync),
        base("delayed", MetadataMode::Delayed),
    ];
    let outside: Vec<Setup> = all.iter().map(|s| Setup { no_embed: true, ..s.clone() }).collect();
    all.extend(outside);
    all
}

/// splitmix64
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend_from_slice(&self.next().to_le_bytes());
        }
        out.truncate(len);
        out
    }

    /// Mostly small sizes, some that are not.
    fn size(&mut self) -> usize {
        match self.below(10) {
            0 => 0,
            1..=3 => self.index(60) + 1,
            4..=7 => self.index(9_000) + 1,
            8 => self.index(70_000) + 1,
            _ => self.index(400_000) + 1,
        }
    }
}

/// What a thread is doing, for the watchdog.
struct Post {
    doing: Mutex<String>,
    steps: AtomicU64,
    finished: AtomicBool,
}

/// Aborts if a thread hangs.
fn watch(posts: &[Post], title: &str) {
    let mut seen: Vec<(u64, Instant)> = posts.iter().map(|_| (u64::MAX, Instant::now())).collect();
    while !posts.iter().all(|p| p.finished.load(Ordering::Acquire)) {
        std::thread::sleep(Duration::from_millis(50));
        let mut hangs = false;
        for (p, seen) in posts.iter().zip(&mut seen) {
            let steps = p.steps.load(Ordering::Relaxed);
            if steps != seen.0 || p.finished.load(Ordering::Acquire) {
                *seen = (steps, Instant::now());
            }
            hangs |= seen.1.elapsed() > HANG;
        }
        if hangs {
            // Past the test harness, which would keep it to itself.
            let mut err = std::io::stderr();
            let _ = writeln!(err, "{title}: no progress for {HANG:?}");
            for (i, (p, seen)) in posts.iter().zip(&seen).enumerate() {
                let doing = p.doing.lock().unwrap();
                let _ = writeln!(err, "thread {i}: {doing} (for {:?}, {} steps)", seen.1.elapsed(), seen.0);
            }
            std::process::abort();
        }
    }
}

/// A reference to an inode, given back at the end.
struct Held<'a> {
    fs: &'a Fs,
    attr: Attr,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.fs.forget(self.attr.ino, 1);
    }
}

/// A file that only its thread changes.
struct Private {
    names: Vec<(usize, String)>,
    data: Vec<u8>,
}

/// A file without a name that is still open.
struct Unlinked<'a> {
    held: Held<'a>,
    data: Vec<u8>,
}

struct Worker<'a> {
    fs: &'a Fs,
    rng: Rng,
    /// The thread's own directory, then the shared ones.
    dirs: Vec<Ino>,
    files: Vec<Private>,
    open: Vec<Unlinked<'a>>,
    next_name: u64,
    id: usize,
    post: &'a Post,
    may_be_full: bool,
}

/// Fills a shared file's record.
fn record(ino: Ino, offset: u64, salt: u64) -> [u8; RECORD] {
    let mut r = [0u8; RECORD];
    for (i, v) in [ino, offset, salt, !(ino ^ offset ^ salt)].into_iter().enumerate() {
        r[i * 8..i * 8 + 8].copy_from_slice(&v.to_le_bytes());
    }
    let half = RECORD / 2;
    r.copy_within(0..half, half);
    r
}

/// Whether bytes at an offset of a shared file are its own.
fn own_bytes(ino: Ino, offset: u64, bytes: &[u8]) -> bool {
    let word = |i: usize| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().unwrap());
    bytes.iter().all(|b| *b == 0) || (bytes.len() == RECORD && *bytes == record(ino, offset, word(2)))
}

impl<'a> Worker<'a> {
    fn doing(&self, what: String) {
        *self.post.doing.lock().unwrap() = what;
        self.post.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// An outcome that the others' doings, or a full device, may explain.
    fn allowed<T>(&self, outcome: Result<T>) -> Option<T> {
        match outcome {
            Ok(v) => Some(v),
            Err(
                Error::NotFound
                | Error::Exists
                | Error::NotEmpty
                | Error::NotDir
                | Error::IsDir
                | Error::NotPermitted
                | Error::Invalid(_),
            ) => None,
            Err(Error::NoSpace) if self.may_be_full => None,
            Err(e) => panic!("thread {}: {}: {e}", self.id, self.post.doing.lock().unwrap()),
        }
    }

    /// An outcome that only a full device explains.
    fn full<T>(&self, outcome: Result<T>) -> Option<T> {
        match outcome {
            Ok(v) => Some(v),
            Err(Error::NoSpace) if self.may_be_full => None,
            Err(e) => panic!("thread {}: {}: {e}", self.id, self.post.doing.lock().unwrap()),
        }
    }

    fn sure<T>(&self, outcome: Result<T>) -> T {
        outcome.unwrap_or_else(|e| panic!("thread {}: {}: {e}", self.id, self.post.doing.lock().unwrap()))
    }

    fn held(&self, attr: Attr) -> Held<'a> {
        Held { fs: self.fs, attr }
    }

    fn fresh_name(&mut self) -> String {
        self.next_name += 1;
        let long =
            if self.rng.one_in(6) { "-with-a-much-longer-name-than-the-others-have".repeat(3) } else { String::new() };
        format!("p{}-{}{long}", self.id, self.next_name)
    }

    /// A shared directory, or one somewhere below.
    fn shared_dir(&mut self) -> (Ino, Option<Held<'a>>) {
        let mut at = self.dirs[1 + self.rng.index(SHARED)];
        let mut held = None;
        while self.rng.one_in(2) {
            let name = format!("s{}", self.rng.below(4));
            let Some(attr) = self.allowed(self.fs.lookup(at, name.as_bytes())) else { break };
            let next = self.held(attr);
            if attr.file_type != FileType::Directory {
                break;
            }
            at = attr.ino;
            held = Some(next);
        }
        (at, held)
    }

    fn shared_name(&mut self) -> String {
        match self.rng.below(3) {
            0 => format!("s{}", self.rng.below(4)),
            1 => format!("l{}", self.rng.below(4)),
            _ => format!("f{}", self.rng.below(6)),
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..=44 => self.private_step(),
            45..=96 => self.shared_step(),
            _ => self.global_step(),
        }
    }

    fn global_step(&mut self) {
        match self.rng.below(8) {
            0 | 1 => {
                self.doing("sync".into());
                self.sure(self.fs.sync());
            }
            2..=4 => {
                self.doing("drop_caches".into());
                self.fs.drop_caches();
            }
            _ => {
                self.doing("statfs".into());
                let s = self.fs.statfs();
                assert!(s.available <= s.free && s.free <= s.total, "{s:?}");
                let _ = self.fs.stats();
            }
        }
    }

    // ---- the thread's own files

    fn private_step(&mut self) {
        if self.files.len() < 3 || (self.files.len() < 14 && self.rng.one_in(6)) {
            return self.private_create();
        }
        let i = self.rng.index(self.files.len());
        match self.rng.below(16) {
            0..=3 => self.private_write(i),
            4 => self.private_truncate(i),
            5..=7 => self.private_verify(i),
            8 => self.private_fsync(i),
            9 | 10 => self.private_rename(i),
            11 => self.private_replace(i),
            12 | 13 => self.private_link(i),
            14 => self.private_unlink(i),
            _ => self.open_step(),
        }
    }

    /// Looks a file up by one of its names.
    fn find(&mut self, i: usize) -> Held<'a> {
        let n = self.rng.index(self.files[i].names.len());
        let (dir, name) = self.files[i].names[n].clone();
        let held = self.held(self.sure(self.fs.lookup(self.dirs[dir], name.as_bytes())));
        let f = &self.files[i];
        let found = (held.attr.size, held.attr.nlink as usize, held.attr.file_type);
        assert_eq!(found, (f.data.len() as u64, f.names.len(), FileType::Regular), "{name}: {:?}", f.names);
        held
    }

    fn private_create(&mut self) {
        let (dir, name) = (self.rng.index(1 + SHARED), self.fresh_name());
        self.doing(format!("create {dir}/{name}"));
        let Some(attr) = self.full(self.fs.create(ROOT, self.dirs[dir], name.as_bytes(), 0o644)) else { return };
        let held = self.held(attr);
        self.files.push(Private { names: vec![(dir, name)], data: Vec::new() });
        let data = {
            let n = self.rng.size();
            self.rng.bytes(n)
        };
        self.write_at(self.files.len() - 1, held.attr.ino, 0, &data);
    }

    fn write_at(&mut self, i: usize, ino: Ino, offset: usize, data: &[u8]) {
        self.doing(format!("write {:?} {offset}+{}", self.files[i].names, data.len()));
        let Some(n) = self.full(self.fs.write(ROOT, ino, offset as u64, data)) else { return };
        assert!(n == data.len() || self.may_be_full);
        put(&mut self.files[i].data, offset, &data[..n]);
    }

    fn private_write(&mut self, i: usize) {
        self.doing(format!("find {:?}", self.files[i].names));
        let held = self.find(i);
        let len = self.files[i].data.len();
        let offset = match self.rng.below(4) {
            0 => len,
            1 => len + self.rng.index(20_000),
            _ => self.rng.index(len + 1),
        };
        let data = {
            let n = self.rng.size();
            self.rng.bytes(n)
        };
        if offset + data.len() <= 900_000 {
            self.write_at(i, held.attr.ino, offset, &data);
        }
    }

    fn private_truncate(&mut self, i: usize) {
        self.doing(format!("find {:?}", self.files[i].names));
        let held = self.find(i);
        let len = self.files[i].data.len();
        let size = if self.rng.one_in(3) { len + self.rng.index(30_000) } else { self.rng.index(len + 1) };
        self.doing(format!("truncate {:?} {size}", self.files[i].names));
        let set = SetAttr::default().size(Some(size as u64));
        if self.full(self.fs.setattr(ROOT, held.attr.ino, set)).is_some() {
            self.files[i].data.resize(size, 0);
        }
    }

    fn verify(&self, ino: Ino, data: &[u8], what: &dyn std::fmt::Debug) {
        let mut buf = vec![0xa5; data.len() + 100];
        let n = self.sure(self.fs.read(ino, 0, &mut buf));
        assert_eq!(n, data.len(), "thread {}: {what:?}", self.id);
        if buf[..n] != *data {
            let at = (0..n).find(|i| buf[*i] != data[*i]).unwrap();
            let end = (at..n).find(|i| buf[*i] == data[*i]).unwrap_or(n);
            let (found, wanted) = (&buf[at..n.min(at + 16)], &data[at..n.min(at + 16)]);
            panic!(
                "thread {}: {what:?}: {n} bytes, wrong from {at} to {end}: {found:x?}, expected {wanted:x?}",
                self.id
            );
        }
    }

    fn private_verify(&mut self, i: usize) {
        self.doing(format!("verify {:?}", self.files[i].names));
        let held = self.find(i);
        self.verify(held.attr.ino, &self.files[i].data, &self.files[i].names);
    }

    fn private_fsync(&mut self, i: usize) {
        self.doing(format!("fsync {:?}", self.files[i].names));
        let held = self.find(i);
        self.sure(self.fs.fsync(held.attr.ino, false));
    }

    fn private_rename(&mut self, i: usize) {
        let n = self.rng.index(self.files[i].names.len());
        let (from, old) = self.files[i].names[n].clone();
        let (to, new) = (self.rng.index(1 + SHARED), self.fresh_name());
        self.doing(format!("rename {from}/{old} {to}/{new}"));
        let flags = RenameFlags { no_replace: self.rng.one_in(4), exchange: false };
        let outcome = self.fs.rename(ROOT, self.dirs[from], old.as_bytes(), self.dirs[to], new.as_bytes(), flags);
        if self.full(outcome).is_some() {
            self.files[i].names[n] = (to, new);
        }
    }

    /// Renames one file over a name of another, or swaps the two.
    fn private_replace(&mut self, i: usize) {
        let j = self.rng.index(self.files.len());
        if i == j {
            return;
        }
        let (a, b) = (self.rng.index(self.files[i].names.len()), self.rng.index(self.files[j].names.len()));
        let ((from, old), (to, new)) = (self.files[i].names[a].clone(), self.files[j].names[b].clone());
        let exchange = self.rng.one_in(2);
        self.doing(format!("rename {from}/{old} over {to}/{new}, exchange: {exchange}"));
        let open = self.rng.one_in(2).then(|| self.find(j));
        let flags = RenameFlags { exchange, no_replace: false };
        let outcome = self.fs.rename(ROOT, self.dirs[from], old.as_bytes(), self.dirs[to], new.as_bytes(), flags);
        if self.full(outcome).is_none() {
            return;
        }
        if exchange {
            self.files[i].names[a] = (to, new);
            self.files[j].names[b] = (from, old);
            return;
        }
        self.files[i].names[a] = (to, new);
        self.files[j].names.swap_remove(b);
        self.without_names(j, open);
    }

    /// If the file has no name left, it is open at most.
    fn without_names(&mut self, i: usize, open: Option<Held<'a>>) {
        if self.files[i].names.is_empty() {
            let data = self.files.swap_remove(i).data;
            self.open.extend(open.map(|held| Unlinked { held, data }));
        }
    }

    fn private_link(&mut self, i: usize) {
        if self.files[i].names.len() >= 3 {
            return self.private_unlink(i);
        }
        self.doing(format!("find {:?}", self.files[i].names));
        let held = self.find(i);
        let (dir, name) = (self.rng.index(1 + SHARED), self.fresh_name());
        self.doing(format!("link {:?} {dir}/{name}", self.files[i].names));
        if let Some(attr) = self.full(self.fs.link(ROOT, held.attr.ino, self.dirs[dir], name.as_bytes())) {
            let _again = self.held(attr);
            self.files[i].names.push((dir, name));
            assert_eq!(attr.nlink as usize, self.files[i].names.len());
        }
    }

    fn private_unlink(&mut self, i: usize) {
        let n = self.rng.index(self.files[i].names.len());
        let open = self.rng.one_in(2).then(|| self.find(i));
        let (dir, name) = self.files[i].names[n].clone();
        self.doing(format!("unlink {dir}/{name}"));
        self.sure(self.fs.unlink(self.dirs[dir], name.as_bytes()));
        self.files[i].names.swap_remove(n);
        self.without_names(i, open);
    }

    /// Uses a file without a name, and lets go of it some time.
    fn open_step(&mut self) {
        let Some(mut f) = self.open.pop() else { return };
        let ino = f.held.attr.ino;
        self.doing(format!("open unlinked inode {ino}"));
        self.verify(ino, &f.data, &"unlinked");
        if f.data.len() < 200_000 {
            let (offset, data) = (f.data.len(), {
                let n = self.rng.size();
                self.rng.bytes(n)
            });
            if let Some(n) = self.full(self.fs.write(ROOT, ino, offset as u64, &data)) {
                put(&mut f.data, offset, &data[..n]);
            }
            if self.rng.one_in(3) {
                self.sure(self.fs.fsync(ino, false));
            }
            let denied = self.fs.link(ROOT, ino, self.dirs[0], b"back");
            let full = self.may_be_full && matches!(denied, Err(Error::NoSpace));
            assert!(full || matches!(denied, Err(Error::NotFound)), "{denied:?}");
        }
        self.verify(ino, &f.data, &"unlinked");
        if self.open.len() < 4 && !self.rng.one_in(3) {
            self.open.insert(0, f);
        }
    }

    // ---- what everybody shares

    fn shared_step(&mut self) {
        let ((dir, _held), name) = (self.shared_dir(), self.shared_name());
        match self.rng.below(20) {
            0..=2 => self.shared_create(dir, &name),
            3..=5 => self.shared_write(dir, &name),
            6..=8 => self.shared_read(dir, &name),
            9 => {
                self.doing(format!("unlink {dir}/{name}"));
                self.allowed(self.fs.unlink(dir, name.as_bytes()));
            }
            10 => {
                self.doing(format!("rmdir {dir}/{name}"));
                self.allowed(self.fs.rmdir(dir, name.as_bytes()));
            }
            11..=14 => {
                let ((to, _held), new) = (self.shared_dir(), self.shared_name());
                let flags = RenameFlags { exchange: self.rng.one_in(4), no_replace: false };
                let flags = RenameFlags { no_replace: !flags.exchange && self.rng.one_in(4), ..flags };
                self.doing(format!("rename {dir}/{name} {to}/{new} {flags:?}"));
                self.allowed(self.fs.rename(ROOT, dir, name.as_bytes(), to, new.as_bytes(), flags));
            }
            15 | 16 => {
                let ((to, _held), new) = (self.shared_dir(), self.shared_name());
                self.doing(format!("link {dir}/{name} {to}/{new}"));
                let Some(attr) = self.allowed(self.fs.lookup(dir, name.as_bytes())) else { return };
                let held = self.held(attr);
                if let Some(attr) = self.allowed(self.fs.link(ROOT, held.attr.ino, to, new.as_bytes())) {
                    drop(self.held(attr));
                }
            }
            17 => self.shared_truncate(dir, &name),
            _ => self.shared_list(dir),
        }
    }

    fn shared_create(&mut self, dir: Ino, name: &str) {
        self.doing(format!("make {dir}/{name}"));
        let made = match name.as_bytes()[0] {
            b's' => self.fs.mkdir(ROOT, dir, name.as_bytes(), 0o755),
            b'l' => {
                let len = [20, 100, 200, 900, 3000][self.rng.index(5)];
                self.fs.symlink(ROOT, dir, name.as_bytes(), &vec![b'a' + (len % 26) as u8; len])
            }
            _ => self.fs.create(ROOT, dir, name.as_bytes(), 0o600),
        };
        if let Some(attr) = self.allowed(made) {
            drop(self.held(attr));
        }
    }

    fn shared_write(&mut self, dir: Ino, name: &str) {
        self.doing(format!("shared write {dir}/{name}"));
        let Some(attr) = self.allowed(self.fs.lookup(dir, name.as_bytes())) else { return };
        let held = self.held(attr);
        if attr.file_type != FileType::Regular {
            return;
        }
        let first = self.rng.below(SHARED_FILE_MAX / RECORD as u64);
        let count = [1, 3, 40, 200][self.rng.index(4)];
        let data: Vec<u8> =
            (first..first + count).flat_map(|n| record(attr.ino, n * RECORD as u64, self.rng.next())).collect();
        self.full(self.fs.write(ROOT, held.attr.ino, first * RECORD as u64, &data));
        if self.rng.one_in(4) {
            self.sure(self.fs.fsync(held.attr.ino, true));
        }
    }

    fn shared_read(&mut self, dir: Ino, name: &str) {
        self.doing(format!("shared read {dir}/{name}"));
        let Some(attr) = self.allowed(self.fs.lookup(dir, name.as_bytes())) else { return };
        let held = self.held(attr);
        match attr.file_type {
            FileType::Symlink => {
                let target = self.sure(self.fs.readlink(attr.ino));
                let byte = b'a' + (target.len() % 26) as u8;
                assert!(target.len() as u64 == attr.size && target.iter().all(|b| *b == byte), "{target:?}");
            }
            FileType::Regular => {
                let mut buf = vec![0xa5; 2 * SHARED_FILE_MAX as usize];
                let n = self.sure(self.fs.read(held.attr.ino, 0, &mut buf));
                for (i, bytes) in buf[..n].chunks(RECORD).enumerate() {
                    let at = (i * RECORD) as u64;
                    assert!(own_bytes(attr.ino, at, bytes), "inode {} at {at} of {n}: {bytes:x?}", attr.ino);
                }
            }
            _ => {
                let up = self.allowed(self.fs.parent(attr.ino));
                assert_ne!(up, Some(attr.ino));
            }
        }
        let again = self.sure(self.fs.getattr(held.attr.ino));
        assert_eq!((again.ino, again.generation, again.file_type), (attr.ino, attr.generation, attr.file_type));
    }

    fn shared_truncate(&mut self, dir: Ino, name: &str) {
        self.doing(format!("shared truncate {dir}/{name}"));
        let Some(attr) = self.allowed(self.fs.lookup(dir, name.as_bytes())) else { return };
        let held = self.held(attr);
        let size = if self.rng.one_in(2) { 0 } else { self.rng.below(SHARED_FILE_MAX / RECORD as u64) * RECORD as u64 };
        let set = SetAttr::default().size(Some(size)).perm(Some(0o640));
        self.allowed(self.fs.setattr(ROOT, held.attr.ino, set));
    }

    fn shared_list(&mut self, dir: Ino) {
        let with_attr = self.rng.one_in(2);
        let stop = if self.rng.one_in(3) { self.rng.index(20) } else { usize::MAX };
        self.doing(format!("list {dir}, attributes: {with_attr}"));
        let mut seen: Vec<DirEntry> = Vec::new();
        let listed = self.fs.readdir(dir, 0, with_attr, &mut |e| {
            if seen.len() == stop {
                return false;
            }
            seen.push(e);
            true
        });
        self.sure(listed);
        let mut cookies: Vec<u64> = seen.iter().map(|e| e.cookie).collect();
        cookies.dedup();
        assert!(cookies.len() == seen.len() && cookies.is_sorted());
        for e in seen {
            if let Some(attr) = e.attr {
                let _held = self.held(attr);
                assert_eq!((attr.ino, attr.file_type), (e.ino, e.file_type), "{:?}", e.name);
            }
        }
    }
}

/// Overwrites a part of a file's contents, with zeros before it if it lies beyond the end.
fn put(data: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    if data.len() < offset + bytes.len() {
        data.resize(offset + bytes.len(), 0);
    }
    data[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// Marks a thread's end, and stops the others when it is a panic.
struct Leave<'a> {
    post: &'a Post,
    stop: &'a AtomicBool,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.stop.fetch_or(std::thread::panicking(), Ordering::Relaxed);
        self.post.finished.store(true, Ordering::Release);
    }
}

fn mount(dev: &Arc<MemoryDevice>, setup: &Setup) -> Arc<Fs> {
    let opts = MountOptions::default()
        .cache_bytes(setup.cache)
        .metadata(setup.metadata)
        .commit_interval(Duration::from_millis(20))
        .fsync_in_log(setup.fsync_in_log)
        .direct_write(if setup.regroup { DirectWrite::Always } else { DirectWrite::default() })
        .background(true);
    Fs::open(dev.clone() as Arc<dyn Device>, None, opts).expect("mount")
}

fn assert_clean(dev: &Arc<MemoryDevice>, when: &str) {
    let report = check(dev.clone(), None, &CheckOptions::default(), &|_, _, _| {}).expect("check");
    let list: Vec<String> = report.problems.iter().take(12).map(|p| p.to_string()).collect();
    assert!(report.is_clean(), "{when}: {} problems\n{}", report.problems_total, list.join("\n"));
}

fn remove_all(fs: &Fs, dir: Ino) {
    let mut names = Vec::new();
    fs.readdir(dir, 0, false, &mut |e| {
        names.push((e.name, e.ino, e.file_type));
        true
    })
    .unwrap();
    for (name, ino, file_type) in names {
        if file_type == FileType::Directory {
            let attr = fs.lookup(dir, &name).unwrap();
            assert_eq!(attr.ino, ino);
            remove_all(fs, ino);
            fs.forget(ino, 1);
            fs.rmdir(dir, &name).unwrap();
        } else {
            fs.unlink(dir, &name).unwrap();
        }
    }
}

/// Free space when nothing is pending.
fn settled(fs: &Fs) -> StatFs {
    fs.sync().unwrap();
    fs.statfs()
}

/// Moves everything until the threads have finished. Returns how many files and blocks.
fn move_all(fs: &Fs, posts: &[Post]) -> u64 {
    let mut moved = 0;
    while !posts.iter().all(|p| p.finished.load(Ordering::Acquire)) {
        let handle = Regroup::new();
        fs.regroup(&RegroupOptions::default().always(true), &handle).unwrap();
        let status = handle.status();
        assert_eq!(status.outcome, Some(RegroupOutcome::Complete));
        moved += status.files_moved + status.blocks_moved;
        fs.drop_caches();
    }
    moved
}

/// One round. Returns the number of operations.
fn round(setup: &Setup, seed: u64, length: Duration) -> u64 {
    let title = format!("{}, no_embed: {}, seed {seed}", setup.name, setup.no_embed);
    let dev = Arc::new(MemoryDevice::new(setup.device));
    let options = MkfsOptions::default().no_embed(setup.no_embed).data_sums(setup.data_sums);
    let log = setup.regroup.then(|| 2 * cffs::mkfs::log_bytes_min(4096));
    mkfs(&*dev, None, &options.log_bytes(log)).expect("mkfs");
    let fs = mount(&dev, setup);
    let fresh = settled(&fs);
    let make = |name: String| fs.mkdir(ROOT, ROOT_INO, name.as_bytes(), 0o755).unwrap().ino;
    let shared: Vec<Ino> = (0..SHARED).map(|i| make(format!("d{i}"))).collect();
    let own: Vec<Ino> = (0..THREADS).map(|i| make(format!("t{i}"))).collect();
    let posts: Vec<Post> = (0..THREADS)
        .map(|_| Post { doing: Mutex::default(), steps: AtomicU64::new(0), finished: AtomicBool::new(false) })
        .collect();
    let stop = AtomicBool::new(false);
    let end = Instant::now() + length;
    let files: Vec<Vec<Private>> = std::thread::scope(|s| {
        let work = |id: usize| {
            let (fs, posts, stop, shared, own) = (&*fs, &posts, &stop, &shared, &own);
            move || {
                let _leave = Leave { post: &posts[id], stop };
                let mut w = Worker {
                    fs,
                    rng: Rng(seed.wrapping_mul(1000) + id as u64),
                    dirs: [own[id]].into_iter().chain(shared.iter().copied()).collect(),
                    files: Vec::new(),
                    open: Vec::new(),
                    next_name: 0,
                    id,
                    post: &posts[id],
                    may_be_full: setup.device < 32 << 20,
                };
                while Instant::now() < end && !stop.load(Ordering::Relaxed) {
                    w.step();
                }
                (0..w.files.len()).for_each(|i| w.private_verify(i));
                while !w.open.is_empty() {
                    w.open_step();
                }
                w.doing("done".into());
                w.files
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|id| s.spawn(work(id))).collect();
        let mover = setup.regroup.then(|| s.spawn(|| move_all(&fs, &posts)));
        watch(&posts, &title);
        if let Some(mover) = mover {
            let moved = mover.join().unwrap_or_else(|_| panic!("{title}: the mover failed"));
            assert!(moved > 0, "{title}: nothing was moved");
        }
        let done: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        let failed = done.iter().filter(|d| d.is_err()).count();
        assert_eq!(failed, 0, "{title}: {failed} threads failed");
        done.into_iter().flatten().collect()
    });
    let steps = posts.iter().map(|p| p.steps.load(Ordering::Relaxed)).sum();

    fs.close().unwrap_or_else(|e| panic!("{title}: close: {e}"));
    drop(fs);
    assert_clean(&dev, &format!("{title}: with everything"));
    let fs = mount(&dev, setup);
    for (id, files) in files.iter().enumerate() {
        for f in files {
            for (dir, name) in &f.names {
                let dir = if *dir == 0 { own[id] } else { shared[*dir - 1] };
                let held = Held { fs: &fs, attr: fs.lookup(dir, name.as_bytes()).expect(name) };
                let mut buf = vec![0; f.data.len() + 1];
                let n = fs.read(held.attr.ino, 0, &mut buf).unwrap();
                assert!(buf[..n] == f.data, "{title}: {name} after the unmount");
            }
        }
    }
    remove_all(&fs, ROOT_INO);
    let now = settled(&fs);
    assert_eq!(now, fresh, "{title}: space after everything is removed");
    fs.close().unwrap();
    assert_clean(&dev, &format!("{title}: empty"));
    steps
}

#[test]
fn threads_together() {
    let number = |name: &str| std::env::var(name).ok().map(|v| v.parse::<u64>().expect(name));
    let only = std::env::var("CFFS_STRESS_SETUP").ok();
    let mut setups = setups();
    setups.retain(|s| only.as_ref().is_none_or(|name| name == s.name));
    assert!(!setups.is_empty(), "no setup {only:?}");
    let all = number("CFFS_STRESS_SECONDS");
    let mut seed = number("CFFS_STRESS_SEED").unwrap_or(1);
    let started = Instant::now();
    loop {
        for setup in &setups {
            let length = Duration::from_millis(if all.is_some() && only.is_none() { 8000 } else { 700 });
            let (began, steps) = (Instant::now(), round(setup, seed, length));
            if all.is_some() {
                let (name, no_embed, after) = (setup.name, setup.no_embed, began.elapsed());
                let _ =
                    writeln!(std::io::stderr(), "{name}, no_embed: {no_embed}, seed {seed}: {steps} steps {after:?}");
            }
            seed += 1;
        }
        if all.is_none_or(|all| started.elapsed().as_secs() >= all) {
            return;
        }
    }
}
