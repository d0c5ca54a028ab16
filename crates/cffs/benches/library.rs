//! The engine through the library: memory device, one thread, no mount.
//!
//! `cargo bench -p cffs --bench library` (or `make bench`). Prints rates; nothing is asserted. With `-- create` only the
//! creations are run, five times, for a profiler; with `-- names N` a million creations in directories of N names, five
//! times; with `-- quota` what quotas cost; with `-- sums [FILE]` what checksums of data cost, in time and requests, on a
//! memory device or on a new image of that name; with `-- trace [PROGRAM]` what tracing costs, PROGRAM being this benchmark built
//! with `RUSTFLAGS="--cfg cffs_untraced"` (`make bench-trace` does both).

use cffs::device::{Device, FileDevice, MemoryDevice, OpenMode};
use cffs::trace::Classes;
use cffs::{Caller, Fs, MkfsOptions, MountOptions, QuotaKind, QuotaLimits, ROOT_INO, mkfs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    let opts = MountOptions::default().cache_bytes(cache_bytes);
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
    mkfs(&*dev, None, &MkfsOptions::default().quota(quota)).expect("mkfs");
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

/// What one case took: seconds, requests to read and to write, flushes, megabytes moved.
type Took = (f64, u64, u64, u64, f64);

/// Names of the cases of [`sums_round`], in their order.
const SUMS_CASES: [&str; 8] = [
    "100,000 files of 1 KB created, sync",
    "cached lookup of each, twenty times",
    "the files read, cold",
    "512 MB written, sync",
    "512 MB read, cold",
    "512 MB read, cached",
    "512 MB written over, sync",
    "1,000 files of 1 KB created, fsync each",
];

/// Seconds that this thread has run: on a memory device nothing else takes part, and other programs do not count. Where the
/// system does not say, the time of the clock.
fn cpu_seconds(start: Instant) -> f64 {
    let ran = std::fs::read_to_string("/proc/thread-self/schedstat");
    let ns = ran.ok().and_then(|s| s.split(' ').next().and_then(|n| n.parse::<f64>().ok()));
    ns.map_or_else(|| start.elapsed().as_secs_f64(), |ns| ns / 1e9)
}

/// All cases on a new file system with or without checksums of data.
fn sums_round(on: bool, image: Option<&std::path::Path>) -> Vec<Took> {
    let dev: Arc<dyn Device> = match image {
        None => Arc::new(MemoryDevice::new(4 << 30)),
        Some(path) => {
            let _ = std::fs::remove_file(path);
            Arc::new(FileDevice::create(path, 4 << 30, OpenMode::READ_WRITE).expect("image"))
        }
    };
    mkfs(&*dev, None, &MkfsOptions::default().data_sums(on)).expect("mkfs");
    let opts = || MountOptions::default().cache_bytes(1 << 30).background(false);
    let fs = Fs::open(dev.clone(), None, opts()).expect("mount");
    // A new mount: nothing is in memory, also not what waited for its way home.
    let again = |fs: Arc<Fs>| {
        fs.close().expect("close");
        drop(fs);
        Fs::open(dev.clone(), None, opts()).expect("mount")
    };
    let mut took = Vec::new();
    let clock = Instant::now();
    let seconds = || if image.is_some() { clock.elapsed().as_secs_f64() } else { cpu_seconds(clock) };
    let mut case = |fs: &Fs, f: &mut dyn FnMut(&Fs)| {
        let count = || {
            let d = fs.stats().device;
            let sum = |f: fn(&cffs::device::KindStats) -> u64| d.kinds.values().map(f).sum::<u64>();
            let moved = sum(|k| k.read_bytes) + sum(|k| k.write_bytes);
            (sum(|k| k.read_requests), sum(|k| k.write_requests), d.flushes, moved)
        };
        let before = count();
        let start = seconds();
        f(fs);
        let end = seconds();
        let after = count();
        let moved = (after.3 - before.3) as f64 / 1e6;
        took.push((end - start, after.0 - before.0, after.1 - before.1, after.2 - before.2, moved));
    };
    let small: Vec<u8> = (0..1024u32).map(|i| (i * 7) as u8).collect();
    let large: Vec<u8> = (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    case(&fs, &mut |fs| {
        for d in 0..1000 {
            let dir = fs.mkdir(ROOT, ROOT_INO, format!("d{d}").as_bytes(), 0o755).expect("mkdir");
            for f in 0..100 {
                let a = fs.create(ROOT, dir.ino, format!("file{f:04}").as_bytes(), 0o644).expect("create");
                fs.write(ROOT, a.ino, 0, &small).expect("write");
                fs.forget(a.ino, 1);
            }
            fs.forget(dir.ino, 1);
        }
        fs.sync().expect("sync");
    });
    let visit = |fs: &Fs, f: &mut dyn FnMut(u64)| {
        for d in 0..1000 {
            let dir = fs.lookup(ROOT_INO, format!("d{d}").as_bytes()).expect("lookup");
            for n in 0..100 {
                let a = fs.lookup(dir.ino, format!("file{n:04}").as_bytes()).expect("lookup");
                f(a.ino);
                fs.forget(a.ino, 1);
            }
            fs.forget(dir.ino, 1);
        }
    };
    case(&fs, &mut |fs| (0..20).for_each(|_| visit(fs, &mut |_| ())));
    let fs = again(fs);
    let mut buf = vec![0; 1 << 20];
    case(&fs, &mut |fs| visit(fs, &mut |ino| assert_eq!(fs.read(ino, 0, &mut buf[..1024]).expect("read"), 1024)));
    let stream = fs.create(ROOT, ROOT_INO, b"large", 0o644).expect("create").ino;
    let mut write = |fs: &Fs| {
        for n in 0..512 {
            fs.write(ROOT, stream, n << 20, &large).expect("write");
        }
        fs.sync().expect("sync");
    };
    case(&fs, &mut write);
    let fs = again(fs);
    let stream = fs.lookup(ROOT_INO, b"large").expect("lookup").ino;
    let mut read = |fs: &Fs| {
        for n in 0..512 {
            assert_eq!(fs.read(stream, n << 20, &mut buf).expect("read"), 1 << 20);
        }
    };
    case(&fs, &mut read);
    case(&fs, &mut read);
    case(&fs, &mut write);
    case(&fs, &mut |fs| {
        let dir = fs.mkdir(ROOT, ROOT_INO, b"synced", 0o755).expect("mkdir");
        for f in 0..1000 {
            let a = fs.create(ROOT, dir.ino, format!("file{f:04}").as_bytes(), 0o644).expect("create");
            fs.write(ROOT, a.ino, 0, &small).expect("write");
            fs.fsync(a.ino, false).expect("fsync");
            fs.forget(a.ino, 1);
        }
        fs.forget(dir.ino, 1);
    });
    fs.close().expect("close");
    took
}

fn sums_cost(image: Option<&std::path::Path>) {
    let mut rounds = [Vec::new(), Vec::new()];
    for n in 0..if image.is_some() { 4 } else { 7 } {
        for on in [n % 2 == 1, n % 2 == 0] {
            rounds[usize::from(on)].push(sums_round(on, image));
        }
    }
    println!("medians of {}, without and with checksums of data", rounds[0].len());
    for (i, what) in SUMS_CASES.iter().enumerate() {
        let median = |on: usize| {
            let mut all: Vec<Took> = rounds[on].iter().map(|r| r[i]).collect();
            all.sort_by(|a, b| a.0.total_cmp(&b.0));
            all[all.len() / 2]
        };
        let (off, on) = (median(0), median(1));
        println!(
            "{what:<42} {:.3} s, {:.3} s ({:+.1}%); reads {}, {}; writes {}, {}; flushes {}, {}; MB {:.1}, {:.1}",
            off.0,
            on.0,
            (on.0 / off.0 - 1.0) * 100.0,
            off.1,
            on.1,
            off.2,
            on.2,
            off.3,
            on.3,
            off.4,
            on.4
        );
    }
    image.map(std::fs::remove_file);
}

/// Creations with everything traced, and the trace taken as `cffs trace` does; or not. Prints the seconds that they took by the
/// clock and of the processors, and the bytes of the trace.
fn trace_round(on: bool) {
    let (_dev, fs) = fresh(2);
    let recording = fs.tracer().start(if on { Classes::ALL } else { Classes::NONE });
    let over = AtomicBool::new(false);
    let processors = || rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    std::thread::scope(|s| {
        let reader = s.spawn(|| {
            let mut bytes = 0;
            while on && !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
                bytes += fs.tracer().read(recording, usize::MAX).map_or(0, |frames| frames.len());
            }
            bytes
        });
        let before = processors();
        let took = creations(&fs, 1000).as_secs_f64();
        let after = processors();
        over.store(true, Ordering::Relaxed);
        let spent = (after.tv_sec - before.tv_sec) as f64 + (after.tv_nsec - before.tv_nsec) as f64 / 1e9;
        println!("round {took} {spent} {}", reader.join().expect("the reader"));
    });
}

/// What a round printed that ran as a process of its own.
fn round_of(program: &std::path::Path, on: bool) -> [f64; 3] {
    let way = if on { "round-on" } else { "round-off" };
    let out = std::process::Command::new(program).arg(way).output().expect("a round");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let line = text.lines().find_map(|l| l.strip_prefix("round ")).unwrap_or_else(|| panic!("{program:?}: {out:?}"));
    let mut numbers = line.split(' ').map(|n| n.parse().expect("a number"));
    std::array::from_fn(|_| numbers.next().expect("three numbers"))
}

/// Rounds with and without a trace, in turns, and those of a benchmark into which tracing was not compiled, if one is named.
fn trace_cost(untraced: Option<&std::path::Path>) {
    let own = std::env::current_exe().expect("this program");
    let mut ways = vec![("not traced", own.clone(), false), ("everything traced", own, true)];
    ways.extend(untraced.map(|path| ("tracing not compiled in", path.to_owned(), false)));
    let mut rounds: Vec<Vec<[f64; 3]>> = ways.iter().map(|_| Vec::new()).collect();
    const TURNS: usize = 15;
    for turn in 0..TURNS {
        for n in 0..ways.len() {
            let n = (n + turn) % ways.len();
            rounds[n].push(round_of(&ways[n].1, ways[n].2));
        }
    }
    println!(
        "100,000 creations of 1 KB and sync, {TURNS} turns: seconds by the clock (least, median), of the processors, MB of trace"
    );
    let of = |way: usize, i: usize| {
        let mut all: Vec<f64> = rounds[way].iter().map(|r| r[i]).collect();
        all.sort_by(f64::total_cmp);
        (all[0], all[TURNS / 2])
    };
    for (n, (name, ..)) in ways.iter().enumerate() {
        let (clock, processors, bytes) = (of(n, 0), of(n, 1), of(n, 2));
        println!(
            "{name:<24} {:.3} {:.3}   {:.3} {:.3}   {:.1}",
            clock.0,
            clock.1,
            processors.0,
            processors.1,
            bytes.1 / 1e6
        );
    }
    let ratio = |a: usize, b: usize| {
        let [(c, cm), (p, pm)] = [0, 1].map(|i| (of(a, i).0 / of(b, i).0, of(a, i).1 / of(b, i).1));
        format!("{c:.3} times by the clock (medians {cm:.3}), {p:.3} of the processors ({pm:.3})")
    };
    println!("everything traced, to not traced: {}", ratio(1, 0));
    if ways.len() > 2 {
        println!("not traced, to not compiled in:   {}", ratio(0, 2));
    }
}

fn main() {
    // As in the `cffs` program.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    if std::env::args().any(|a| a == "sums") {
        let image = std::env::args().skip_while(|a| a != "sums").nth(1).filter(|a| !a.starts_with('-'));
        return sums_cost(image.as_deref().map(std::path::Path::new));
    }
    if let Some(word) = std::env::args().find(|a| ["round-on", "round-off"].contains(&a.as_str())) {
        return trace_round(word == "round-on");
    }
    if std::env::args().any(|a| a == "trace") {
        let untraced = std::env::args().skip_while(|a| a != "trace").nth(1).filter(|a| !a.starts_with('-'));
        return trace_cost(untraced.as_deref().map(std::path::Path::new));
    }
    if std::env::args().any(|a| a == "quota") {
        return quota_cost();
    }
    if let Some(n) = std::env::args().skip_while(|a| a != "names").nth(1) {
        let n = n.parse().expect("number of names");
        for _ in 0..5 {
            one_directory(n);
        }
        return;
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
