//! The engine through the library: memory device, one thread, no mount.
//!
//! `cargo bench -p cffs --bench library` (or `make bench`). Prints rates; nothing is asserted. With `-- create` only the
//! creations are run, five times, for a profiler; with `-- quota` what quotas cost.

use cffs::device::{Device, MemoryDevice};
use cffs::format::{QuotaKind, ROOT_INO};
use cffs::fs::{Caller, Fs, MountOptions, QuotaLimits};
use cffs::mkfs::{MkfsOptions, mkfs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// As in the `cffs` program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROOT: Caller = Caller::ROOT;

fn fresh(gib: u64) -> (Arc<MemoryDevice>, Arc<Fs>) {
    let dev = Arc::new(MemoryDevice::new(gib << 30));
    mkfs(&*dev, None, &MkfsOptions::default()).expect("mkfs");
    let fs = mount(&dev, 1 << 30);
    (dev, fs)
}

fn mount(dev: &Arc<MemoryDevice>, cache_bytes: usize) -> Arc<Fs> {
    let opts = MountOptions { cache_bytes, ..MountOptions::default() };
    Fs::open(dev.clone() as Arc<dyn Device>, None, opts).expect("mount")
}

fn line(what: &str, n: u64, t: Duration) {
    println!("{what:<58} {:>12.0} /s   ({:.2} us each)", n as f64 / t.as_secs_f64(), t.as_secs_f64() * 1e6 / n as f64);
}

/// Creates files of 1 KB, 100 to a directory, then makes all of it durable.
fn creations(fs: &Fs, dirs: u64) -> Duration {
    let data = [0x5au8; 1024];
    let start = Instant::now();
    for d in 0..dirs {
        let dir = fs.mkdir(ROOT, ROOT_INO, format!("d{d}").as_bytes(), 0o755).expect("mkdir");
        for f in 0..100 {
            let a = fs.create(ROOT, dir.ino, format!("file{f:04}").as_bytes(), 0o644).expect("create");
            fs.write(ROOT, a.ino, 0, &data).expect("write");
            fs.forget(a.ino, 1);
        }
        fs.forget(dir.ino, 1);
    }
    let created = start.elapsed();
    fs.sync().expect("sync");
    line("create 1 KB files, 100 to a directory", dirs * 100, created);
    line("  the same with sync at the end", dirs * 100, start.elapsed());
    start.elapsed()
}

fn lookups(fs: &Fs, dirs: u64) {
    let names: Vec<String> = (0..100).map(|f| format!("file{f:04}")).collect();
    let start = Instant::now();
    let mut n = 0;
    for round in 0..20 {
        for d in 0..dirs.min(100) {
            let dir = fs.lookup(ROOT_INO, format!("d{d}").as_bytes()).expect("lookup");
            for f in &names {
                let a = fs.lookup(dir.ino, f.as_bytes()).expect("lookup");
                fs.forget(a.ino, 1);
            }
            fs.forget(dir.ino, 1);
            n += 101;
        }
        if round == 0 {
            continue;
        }
    }
    line("cached lookup of a path component", n, start.elapsed());
}

fn reads(fs: &Fs, dirs: u64) {
    let mut buf = [0u8; 1024];
    let start = Instant::now();
    for d in 0..dirs {
        let dir = fs.lookup(ROOT_INO, format!("d{d}").as_bytes()).expect("lookup");
        for f in 0..100 {
            let a = fs.lookup(dir.ino, format!("file{f:04}").as_bytes()).expect("lookup");
            fs.read(a.ino, 0, &mut buf).expect("read");
            fs.forget(a.ino, 1);
        }
        fs.forget(dir.ino, 1);
    }
    line("lookup and read 1 KB files", dirs * 100, start.elapsed());
}

fn removals(fs: &Fs, dirs: u64) {
    let start = Instant::now();
    for d in 0..dirs {
        let name = format!("d{d}");
        let dir = fs.lookup(ROOT_INO, name.as_bytes()).expect("lookup");
        for f in 0..100 {
            fs.unlink(dir.ino, format!("file{f:04}").as_bytes()).expect("unlink");
        }
        fs.forget(dir.ino, 1);
        fs.rmdir(ROOT_INO, name.as_bytes()).expect("rmdir");
    }
    fs.sync().expect("sync");
    line("remove, with sync at the end", dirs * 100, start.elapsed());
}

/// Creation and lookup in one directory of `n` names.
fn one_directory(n: u64) -> (f64, f64) {
    let (dev, fs) = fresh(8);
    let mut made = 0;
    // Small directories are repeated, so that both sizes create the same number of files.
    let rounds = (1_000_000 / n).max(1);
    let start = Instant::now();
    for r in 0..rounds {
        let dir = fs.mkdir(ROOT, ROOT_INO, format!("d{r}").as_bytes(), 0o755).expect("mkdir");
        for f in 0..n {
            let a = fs.create(ROOT, dir.ino, format!("name-{f}").as_bytes(), 0o644).expect("create");
            fs.forget(a.ino, 1);
        }
        fs.forget(dir.ino, 1);
        made += n;
    }
    let create = made as f64 / start.elapsed().as_secs_f64();
    fs.sync().expect("sync");
    let mut x = 12345u64;
    let start = Instant::now();
    let lookups = 300_000u64;
    let dirs: Vec<u64> =
        (0..rounds).map(|r| fs.lookup(ROOT_INO, format!("d{r}").as_bytes()).expect("lookup").ino).collect();
    for i in 0..lookups {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let dir = dirs[(i % rounds) as usize];
        let a = fs.lookup(dir, format!("name-{}", (x >> 33) % n).as_bytes()).expect("lookup");
        fs.forget(a.ino, 1);
    }
    let lookup = lookups as f64 / start.elapsed().as_secs_f64();
    println!("{:<58} {create:>12.0} /s create, {lookup:>12.0} /s lookup", format!("one directory of {n} names"));
    fs.close().expect("close");
    drop(fs);
    if n >= 100_000 {
        let fs = mount(&dev, 1 << 30);
        let dir = fs.lookup(ROOT_INO, b"d0").expect("lookup");
        let before = fs.stats();
        let a = fs.lookup(dir.ino, b"name-4711").expect("lookup");
        fs.forget(a.ino, 1);
        let after = fs.stats();
        println!(
            "  cold lookup in it: {} blocks missed, {} requests",
            after.cache.misses - before.cache.misses,
            after.device.kinds.values().map(|k| k.read_requests).sum::<u64>()
                - before.device.kinds.values().map(|k| k.read_requests).sum::<u64>(),
        );
    }
    (create, lookup)
}

/// One user creates small files and writes a large one, without quotas and with all three kinds and limits, in turns;
/// seconds of each.
fn quota_round(on: bool) -> (f64, f64) {
    let user = Caller { uid: 1000, gid: 1000 };
    let dev = Arc::new(MemoryDevice::new(4 << 30));
    let quota = if on { QuotaKind::ALL.to_vec() } else { Vec::new() };
    mkfs(&*dev, None, &MkfsOptions { quota, ..MkfsOptions::default() }).expect("mkfs");
    let fs = mount(&dev, 1 << 30);
    for kind in fs.quota_kinds() {
        let limits =
            QuotaLimits { soft_bytes: 1 << 40, hard_bytes: 1 << 41, soft_inodes: 1 << 30, hard_inodes: 1 << 31 };
        fs.set_quota(kind, 1000, limits).expect("limits");
    }
    let data = [0x5au8; 4096];
    let start = Instant::now();
    for d in 0..1000 {
        let dir = fs.mkdir(user, ROOT_INO, format!("d{d}").as_bytes(), 0o755).expect("mkdir");
        for f in 0..100 {
            let a = fs.create(user, dir.ino, format!("file{f:04}").as_bytes(), 0o644).expect("create");
            fs.write(user, a.ino, 0, &data[..1024]).expect("write");
            fs.forget(a.ino, 1);
        }
        fs.forget(dir.ino, 1);
    }
    fs.sync().expect("sync");
    let small = start.elapsed().as_secs_f64();
    let a = fs.create(user, ROOT_INO, b"large", 0o644).expect("create");
    let start = Instant::now();
    for n in 0..(256 << 20) / 4096 {
        fs.write(user, a.ino, n * 4096, &data).expect("write");
    }
    fs.sync().expect("sync");
    (small, start.elapsed().as_secs_f64())
}

fn quota_cost() {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..7 {
        for on in [false, true] {
            times[usize::from(on)].push(quota_round(on));
        }
    }
    let median = |on: usize, f: fn(&(f64, f64)) -> f64| {
        let mut all: Vec<f64> = times[on].iter().map(f).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    for (what, f) in [
        ("100,000 files of 1 KB and sync", (|t| t.0) as fn(&(f64, f64)) -> f64),
        ("256 MB in 4 KB writes and sync", |t| t.1),
    ] {
        let (off, on) = (median(0, f), median(1, f));
        println!("{what:<40} {off:.3} s without quotas, {on:.3} s with three kinds: {:.3} times the time", on / off);
    }
}

fn main() {
    if std::env::args().any(|a| a == "quota") {
        return quota_cost();
    }
    let dirs = 2000;
    if std::env::args().any(|a| a == "create") {
        for _ in 0..5 {
            creations(&fresh(4).1, dirs);
        }
        return;
    }
    let (_dev, fs) = fresh(4);
    creations(&fs, dirs);
    lookups(&fs, dirs);
    reads(&fs, dirs);
    removals(&fs, dirs);
    fs.close().expect("close");
    drop(fs);
    let (c1, l1) = one_directory(1000);
    let (c2, l2) = one_directory(1_000_000);
    println!("1,000,000 names against 1,000: create {:.2}, lookup {:.2} times the rate", c2 / c1, l2 / l1);
}
