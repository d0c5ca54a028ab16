//! Repair under crashes: of mounts without a journal, and of the repair itself.

use cffs::check::repair::{RepairOptions, Repaired, repair};
use cffs::check::{CheckOptions, Report, check};
use cffs::device::{Device, IoKind};
use cffs::format::{BlockKind, get_u32, seal};
use cffs::mkfs::read_superblock;
use cffs::{Caller, Fs, Geometry, Ino, MetadataMode, MkfsOptions, MountOptions, ROOT_INO, RenameFlags, mkfs};
use cffs_sim::disk::{CrashStates, Image, Survival, Trace};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;

const ME: Caller = Caller { uid: 7, gid: 7 };
const SIZE: u64 = 12 << 20;

fn mount(trace: &Trace, metadata: MetadataMode) -> Arc<Fs> {
    let o = MountOptions::default().background(false).metadata(metadata).cache_bytes(8 << 20);
    Fs::open(trace.device(0), None, o).unwrap()
}

fn made(no_embed: bool) -> Image {
    let trace = Trace::new(vec![Image::new(SIZE)]);
    let o = MkfsOptions::default().no_embed(no_embed).log_bytes(Some(2 << 20)).group_size(64 << 10);
    mkfs(&*trace.device(0), None, &o).unwrap();
    trace.images().remove(0)
}

/// A little of everything, at random. Errors are part of it.
fn work(fs: &Fs, rng: &mut Rng, steps: usize) {
    let mut dirs: Vec<Ino> = vec![ROOT_INO];
    let mut files: Vec<Ino> = Vec::new();
    for _ in 0..steps {
        let (dir, other) = (dirs[rng.usize(..dirs.len())], dirs[rng.usize(..dirs.len())]);
        let name = format!("n{}", rng.u8(..40));
        let name = name.as_bytes();
        match rng.u8(..12) {
            0 => {
                if let Ok(a) = fs.mkdir(ME, dir, name, 0o755) {
                    dirs.push(a.ino);
                }
            }
            1..=4 => {
                if let Ok(a) = fs.create(ME, dir, name, 0o644) {
                    let data = vec![rng.u8(..); [10, 900, 5000, 70_000][rng.usize(..4)]];
                    let _ = fs.write(ME, a.ino, [0, 0, 300_000][rng.usize(..3)], &data);
                    files.push(a.ino);
                }
            }
            5 => {
                let _ = fs.unlink(dir, name);
            }
            6 => {
                let _ = fs.rmdir(dir, name);
            }
            7 | 8 => {
                let to = format!("n{}", rng.u8(..40));
                let flags = RenameFlags { exchange: rng.u8(..4) == 0, ..RenameFlags::default() };
                let _ = fs.rename(ME, dir, name, other, to.as_bytes(), flags);
            }
            9 if !files.is_empty() => {
                let _ = fs.link(ME, files[rng.usize(..files.len())], dir, name);
            }
            10 => {
                let _ = fs.symlink(ME, dir, name, &vec![b'x'; [5, 200][rng.usize(..2)]]);
            }
            _ => {
                let _ = fs.sync();
            }
        }
    }
    let _ = fs.sync();
}

fn look(trace: &Trace) -> Result<Report, String> {
    check(trace.device(0), None, &CheckOptions::default().max_problems(20).data(false).jobs(1), &|_, _, _| {})
        .map_err(|e| e.to_string())
}

fn fix(trace: &Trace, what: &str) -> Repaired {
    let done = repair(trace.device(0), None, &RepairOptions::default(), &mut |_| true, &|_, _, _| {});
    let done = done.unwrap_or_else(|e| panic!("{what}: {e}"));
    let report = look(trace).unwrap_or_else(|e| panic!("{what}: {e}"));
    let told: Vec<String> = done.actions.iter().map(|a| a.to_string()).collect();
    assert!(report.is_clean() && report.state == "clean", "{what}: {}\n{:#?}", told.join("\n"), report.problems);
    done
}

/// Contents by path.
fn tree(trace: &Trace) -> BTreeMap<String, Vec<u8>> {
    let o = MountOptions::default().background(false).read_only(true).cache_bytes(8 << 20);
    let fs = Fs::open(trace.device(0), None, o).unwrap();
    let mut out = BTreeMap::new();
    let mut stack = vec![(ROOT_INO, String::new())];
    while let Some((dir, path)) = stack.pop() {
        let mut names = Vec::new();
        fs.readdir(dir, 0, false, &mut |e| {
            names.push(e.name);
            true
        })
        .unwrap();
        for name in names {
            let a = fs.lookup(dir, &name).unwrap();
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            let mut data = vec![0; a.size.min(1 << 20) as usize];
            match a.file_type {
                cffs::FileType::Directory => stack.push((a.ino, path.clone())),
                cffs::FileType::Regular => {
                    let n = fs.read(a.ino, 0, &mut data).unwrap();
                    data.truncate(n);
                }
                _ => data = fs.readlink(a.ino).unwrap_or_default(),
            }
            if a.file_type == cffs::FileType::Directory {
                data.clear();
            }
            out.insert(path, data);
        }
    }
    out
}

#[test]
fn mounts_without_a_journal_are_brought_to_clean_after_any_crash() {
    let (mut states, mut damaged) = (0, 0);
    for seed in 0..24u64 {
        let mode = [MetadataMode::Sync, MetadataMode::Delayed][seed as usize % 2];
        let before = made(seed % 3 == 2);
        let trace = Trace::new(vec![before.clone()]);
        let mut rng = Rng::with_seed(seed);
        let fs = mount(&trace, mode);
        work(&fs, &mut rng, 120);
        drop(fs);
        let events = trace.events();
        let mut crashes = CrashStates::new(vec![before], &events);
        let mut points: Vec<usize> = (0..12).map(|_| rng.usize(..=events.len())).collect();
        points.sort_unstable();
        for at in points {
            crashes.advance(at);
            let survival = Survival::EVERY[rng.usize(..Survival::EVERY.len())];
            let image = Trace::new(crashes.crash(survival, &mut rng));
            damaged += usize::from(look(&image).is_ok_and(|r| !r.is_clean()));
            fix(&image, &format!("seed {seed}, {mode:?}, crash after {at} of {} ({survival:?})", events.len()));
            tree(&image);
            states += 1;
        }
    }
    println!("{states} crashes, {damaged} of them left damage");
    assert!(damaged > states / 5, "only {damaged} of {states} crashes left damage");
}

/// Changes some bytes of some metadata blocks, with or without making the checksum right again.
fn damage(trace: &Trace, rng: &mut Rng, blocks: usize) {
    let dev = trace.device(0);
    let g = Geometry::new(&read_superblock(&*dev).unwrap()).unwrap();
    let mut meta = Vec::new();
    let mut b = vec![0; g.block_size()];
    for addr in 1..g.total_blocks {
        dev.read_at(IoKind::Meta, addr << g.block_shift, &mut b).unwrap();
        if BlockKind::from_magic(get_u32(&b, 0)).is_some() {
            meta.push(addr);
        }
    }
    for _ in 0..blocks {
        let addr = meta[rng.usize(..meta.len())];
        dev.read_at(IoKind::Meta, addr << g.block_shift, &mut b).unwrap();
        for _ in 0..1 + rng.usize(..4) {
            let at = if rng.bool() { rng.usize(..b.len()) } else { 24 + rng.usize(..400) };
            b[at] = [0, 1, 0x7f, 0x80, 0xff, rng.u8(..)][rng.usize(..6)];
        }
        match rng.u8(..8) {
            0 => b.fill(0),
            1 => {}
            _ => seal(&mut b, 1),
        }
        dev.write_at(IoKind::Meta, addr << g.block_shift, &b).unwrap();
    }
}

#[test]
fn a_repair_that_is_interrupted_anywhere_is_finished_by_the_next() {
    let mut states = 0;
    for seed in 0..16u64 {
        let mut rng = Rng::with_seed(1000 + seed);
        let trace = Trace::new(vec![made(seed % 4 == 3)]);
        let fs = mount(&trace, MetadataMode::Journal);
        work(&fs, &mut rng, 200);
        fs.close().unwrap();
        drop(fs);
        damage(&trace, &mut rng, 3);
        let before = trace.images();
        let trace = Trace::new(before.clone());
        fix(&trace, &format!("seed {seed}, not interrupted"));
        let whole = tree(&trace);
        let events = trace.events();
        let mut crashes = CrashStates::new(before, &events);
        for at in 0..=events.len() {
            crashes.advance(at);
            for survival in [Survival::Some, Survival::Torn] {
                let what = format!("seed {seed}, repair interrupted after {at} of {} ({survival:?})", events.len());
                let image = Trace::new(crashes.crash(survival, &mut rng));
                fix(&image, &what);
                assert!(tree(&image) == whole, "{what}: another tree than without the interruption");
                states += 1;
            }
        }
    }
    println!("{states} interrupted repairs");
    assert!(states > 200);
}

/// Many damages at once: a repair ends, and leaves nothing to a second one.
#[test]
fn random_damages_are_repaired() {
    let rounds: u64 = std::env::var("CFFS_REPAIR_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(250);
    let first: u64 = std::env::var("CFFS_REPAIR_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let images: Vec<Vec<Image>> = (0..8u64)
        .map(|n| {
            let trace = Trace::new(vec![made(n % 3 == 2)]);
            let fs = mount(&trace, MetadataMode::Journal);
            work(&fs, &mut Rng::with_seed(n), 250);
            fs.close().unwrap();
            trace.images()
        })
        .collect();
    let mut damaged = 0;
    for seed in first..first + rounds {
        let mut rng = Rng::with_seed(seed);
        let trace = Trace::new(images[seed as usize % images.len()].clone());
        let blocks = 1 + rng.usize(..12);
        damage(&trace, &mut rng, blocks);
        damaged += u64::from(look(&trace).map_or(true, |r| !r.is_clean()));
        fix(&trace, &format!("seed {seed}, {blocks} blocks damaged"));
        tree(&trace);
    }
    println!("{rounds} images, {damaged} of them damaged");
    assert!(damaged > rounds * 3 / 4, "only {damaged} of {rounds}");
}
