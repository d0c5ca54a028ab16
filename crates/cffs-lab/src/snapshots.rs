//! Many snapshots of a file system of many files: what each costs to make, to list, to look into and to delete, in time and space.
//! What some of them have is compared, file by file, with what was there when they were made.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cffs::device::{Device, FileDevice, OpenMode};
use cffs::mkfs::log_bytes_min;
use cffs::{Caller, Fs, Ino, MkfsOptions, MountOptions, ROOT_INO};
use cffs_logdisk::{ImageOptions, ImageStore, LogDisk, LogOptions, MAIN_BRANCH, SnapshotInfo};
use serde::Serialize;

use crate::peer_harness::write_json;
use crate::random::Random;

/// Arguments of `cffs-lab snapshots`.
#[derive(clap::Args)]
pub struct Args {
    /// Files of the tree, 100 to a directory
    #[arg(long, default_value_t = 100_000)]
    files: usize,
    /// Bytes of each
    #[arg(long, default_value_t = 1024)]
    bytes: usize,
    /// Snapshots
    #[arg(long, default_value_t = 10_000)]
    snapshots: usize,
    /// Files that are written anew between two snapshots
    #[arg(long, default_value_t = 4)]
    changes: usize,
    /// Snapshots of which every file is read and compared
    #[arg(long, default_value_t = 3)]
    compared: usize,
    /// Chooses the files that are written anew, and the snapshots that are compared
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Size of the image in MiB, a sparse file
    #[arg(long, default_value_t = 4096)]
    size: u64,
    /// Where the image goes
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Also write what was measured to this file
    #[arg(long)]
    json: Option<PathBuf>,
}

/// What was measured. Times are in seconds, sizes in bytes.
#[derive(Debug, Default, Serialize)]
struct Row {
    files: usize,
    snapshots: usize,
    changes: usize,
    /// The tree, and what lives on the log disk then.
    fill_time: f64,
    live_before: u64,
    /// Making one, after a sync: mean, 99th percentile and longest.
    make_mean: f64,
    make_p99: f64,
    make_longest: f64,
    /// The changes and the sync before each, together.
    change_time: f64,
    /// Bytes of log for each snapshot with its changes, and of those that live.
    written_each: u64,
    live_each: u64,
    /// Opening the image with all of them, from its last checkpoint.
    open_time: f64,
    list_time: f64,
    /// Mounting one, and reading all files of it, mean.
    mount_time: f64,
    read_time: f64,
    /// Deleting all: noting it, and giving the space back.
    delete_time: f64,
    give_back_time: f64,
    live_after: u64,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<ExitCode> {
    ensure!(args.files > 0 && args.snapshots > 0, "there must be files and snapshots");
    let dir = tempfile::tempdir_in(&args.dir).with_context(|| args.dir.display().to_string())?;
    let row = measure(args, &dir.path().join("image"))?;
    print(&row);
    write_json(args.json.as_deref(), &row)?;
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &Args, image: &std::path::Path) -> Result<Row> {
    let device = Arc::new(FileDevice::create(image, args.size << 20, OpenMode::READ_WRITE)?);
    let options = LogOptions::default();
    let store = Arc::new(ImageStore::format(device.clone(), &ImageOptions { uuid: [7; 16], slot_bytes: 0 })?);
    let disk = Arc::new(LogDisk::format(store, args.size << 24, &options)?);
    cffs::mkfs(&*disk, None, &MkfsOptions::default().group_size(64 << 10).log_bytes(Some(log_bytes_min(4096))))?;
    let mut row = Row { files: args.files, snapshots: args.snapshots, changes: args.changes, ..Row::default() };
    let mut random = Random::new(args.seed);

    let fs = open(disk.clone(), false)?;
    let began = Instant::now();
    let inodes = fill(&fs, args)?;
    fs.sync()?;
    disk.checkpoint()?;
    (row.fill_time, row.live_before) = (seconds(began), disk.stats().live);

    // The file, and the snapshot that is the first to have it as it was written then.
    let mut changed: Vec<(usize, usize)> = Vec::new();
    let mut made: Vec<Duration> = Vec::new();
    let mut ids = Vec::new();
    let written = disk.stats().written;
    let mut changing = Duration::ZERO;
    for round in 0..args.snapshots {
        let began = Instant::now();
        for _ in 0..args.changes {
            let file = random.below(args.files as u64) as usize;
            fs.write(Caller::ROOT, inodes[file], 0, &content(file, round + 1, args.bytes))?;
            changed.push((file, round));
        }
        fs.sync()?;
        changing += began.elapsed();
        let began = Instant::now();
        ids.push(disk.snapshot(MAIN_BRANCH, &format!("number {round}"))?);
        made.push(began.elapsed());
    }
    fs.close()?;
    disk.checkpoint()?;
    let n = args.snapshots as u64;
    made.sort_unstable();
    row.make_mean = made.iter().sum::<Duration>().as_secs_f64() / n as f64;
    row.make_p99 = made[made.len() * 99 / 100].as_secs_f64();
    row.make_longest = made.last().map_or(0.0, Duration::as_secs_f64);
    row.change_time = changing.as_secs_f64();
    row.written_each = (disk.stats().written - written) / n;
    row.live_each = disk.stats().live.saturating_sub(row.live_before) / n;
    drop(disk);

    let began = Instant::now();
    let disk = Arc::new(LogDisk::open(Arc::new(ImageStore::open(device)?), &options)?);
    row.open_time = seconds(began);
    let began = Instant::now();
    let all: Vec<SnapshotInfo> = disk.snapshots();
    row.list_time = seconds(began);
    ensure!(all.iter().map(|s| s.id).eq(ids.iter().copied()), "{} snapshots are listed", all.len());

    for _ in 0..args.compared {
        let round = random.below(n) as usize;
        let began = Instant::now();
        let fs = open(Arc::new(disk.open_snapshot(ids[round])?), true)?;
        row.mount_time += seconds(began) / args.compared as f64;
        let began = Instant::now();
        compare(&fs, args, &changed, round).with_context(|| format!("snapshot {round}"))?;
        row.read_time += seconds(began) / args.compared as f64;
        fs.close()?;
    }

    for i in (1..ids.len()).rev() {
        ids.swap(i, random.below(i as u64 + 1) as usize);
    }
    let began = Instant::now();
    ids.iter().try_for_each(|id| disk.delete_snapshot(*id))?;
    row.delete_time = seconds(began);
    let began = Instant::now();
    while disk.delete_step(4096)? {}
    disk.checkpoint()?;
    row.give_back_time = seconds(began);
    row.live_after = disk.stats().live;
    let problems = disk.check(false)?;
    ensure!(problems.is_empty(), "the log disk is wrong: {problems:?}");
    ensure!(disk.snapshots().is_empty(), "some are left");
    let more = row.live_after.saturating_sub(row.live_before);
    // The map of what was written in another order has other nodes.
    ensure!(more <= row.live_before / 20 + (1 << 20), "{more} bytes are not free again");
    let fs = open(disk, true)?;
    compare(&fs, args, &changed, args.snapshots)?;
    fs.close()?;
    Ok(row)
}

fn open(device: Arc<dyn Device>, read_only: bool) -> Result<Arc<Fs>> {
    Ok(Fs::open(device, None, MountOptions::default().read_only(read_only).background(false))?)
}

fn seconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64()
}

/// Files of a directory.
const PER_DIR: usize = 100;

fn dir_name(file: usize) -> String {
    format!("d{:05}", file / PER_DIR)
}

fn file_name(file: usize) -> String {
    format!("f{:03}", file % PER_DIR)
}

/// What a file has after it was written in a round; 0 is the first.
fn content(file: usize, round: usize, bytes: usize) -> Vec<u8> {
    let mut random = Random::new((file as u64) << 32 | round as u64);
    std::iter::repeat_with(|| random.next().to_le_bytes()).flatten().take(bytes).collect()
}

fn fill(fs: &Fs, args: &Args) -> Result<Vec<Ino>> {
    let mut inodes = Vec::with_capacity(args.files);
    let mut dir = ROOT_INO;
    for file in 0..args.files {
        if file % PER_DIR == 0 {
            dir = fs.mkdir(Caller::ROOT, ROOT_INO, dir_name(file).as_bytes(), 0o755)?.ino;
        }
        let attr = fs.create(Caller::ROOT, dir, file_name(file).as_bytes(), 0o644)?;
        fs.write(Caller::ROOT, attr.ino, 0, &content(file, 0, args.bytes))?;
        inodes.push(attr.ino);
    }
    Ok(inodes)
}

/// Whether every file is as it was when a snapshot was made.
fn compare(fs: &Fs, args: &Args, changed: &[(usize, usize)], round: usize) -> Result<()> {
    let last: BTreeMap<usize, usize> = changed.iter().take_while(|(_, r)| *r <= round).copied().collect();
    let mut buf = vec![0; args.bytes + 1];
    let mut dir = ROOT_INO;
    for file in 0..args.files {
        if file % PER_DIR == 0 {
            dir = fs.lookup(ROOT_INO, dir_name(file).as_bytes())?.ino;
        }
        let attr = fs.lookup(dir, file_name(file).as_bytes())?;
        let n = fs.read(attr.ino, 0, &mut buf)?;
        let want = content(file, last.get(&file).map_or(0, |r| r + 1), args.bytes);
        ensure!(buf[..n] == want, "file {file} is not what it was");
        fs.forget(attr.ino, 1);
    }
    Ok(())
}

fn print(row: &Row) {
    let ms = |s: f64| s * 1e3;
    let mib = |n: u64| n as f64 / f64::from(1 << 20);
    println!("{} snapshots of {} files, {} of them written anew between two", row.snapshots, row.files, row.changes);
    println!("tree         {:.1} s, {:.1} MiB live", row.fill_time, mib(row.live_before));
    println!(
        "made         {:.3} ms each (99% below {:.3}, longest {:.1}); the changes {:.3} ms",
        ms(row.make_mean),
        ms(row.make_p99),
        ms(row.make_longest),
        ms(row.change_time / row.snapshots as f64)
    );
    println!("space        {} bytes written for each with its changes, {} live", row.written_each, row.live_each);
    println!("opened       {:.1} ms with all of them, listed in {:.1} ms", ms(row.open_time), ms(row.list_time));
    println!(
        "mounted      one in {:.1} ms, all its files read and compared in {:.1} s",
        ms(row.mount_time),
        row.read_time
    );
    println!(
        "deleted      all in {:.1} s, their space given back in {:.1} s; {:.1} MiB live",
        row.delete_time,
        row.give_back_time,
        mib(row.live_after)
    );
}
