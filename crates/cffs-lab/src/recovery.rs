//! How long the mount after a crash takes, for devices of very different sizes
//! with the same full log: it must depend on the log alone.
//!
//! The crash is made with the library, where the log can be filled to the last
//! transaction before it would be emptied; the mount that is timed is the
//! program's, over a disk that counts its requests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cffs::device::{Direct, FileDevice, Lock, OpenMode};
use cffs::{Caller, Fs, MkfsOptions, MountOptions, ROOT_INO, SetAttr, mkfs};
use serde::Serialize;

use crate::peer_harness::{Harness, write_json};
use crate::process::run;
use crate::served::{Counted, Counters, Served, Sparse};

const LIMIT: Duration = Duration::from_secs(600);
const BUFFERED: OpenMode = OpenMode { read_only: false, direct: Direct::Never, lock: Lock::Auto };
/// Files in one directory.
const DIR_FILES: u64 = 100;
/// Enough of any log; a load that does not fill it is wrong.
const STEPS_MAX: u64 = 10_000_000;

/// What fills the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// New files of 1 to 8 KiB, each fsynced: their data is in the log.
    Data,
    /// Empty files, and changes of their modes: as many records as a log can hold.
    Metadata,
}

/// Arguments of `cffs-lab recovery`.
#[derive(clap::Args)]
pub struct Args {
    /// Sizes of the devices in GiB, which are sparse files
    #[arg(long, value_delimiter = ',', default_value = "1,100,10240")]
    sizes: Vec<u64>,
    /// Size of the log in MiB
    #[arg(long, default_value_t = 128)]
    log: u64,
    /// What fills the log
    #[arg(long, value_enum, value_delimiter = ',', default_value = "data,metadata")]
    load: Vec<Load>,
    /// Mounts of each image as the crash left it
    #[arg(long, default_value_t = 3)]
    repeat: u32,
    /// Where the images go; sparse files of these sizes must be possible there
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// The cffs program
    #[arg(long, default_value = "target/release/cffs")]
    cffs: PathBuf,
    /// Also write what was measured to this file
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One device.
#[derive(Clone, Debug, Serialize)]
struct Row {
    load: Load,
    size_gib: u64,
    log_mib: u64,
    /// Bytes in the log that recovery has to read.
    log_bytes: u64,
    /// Operations that the log holds.
    operations: u64,
    /// Mount after the crash, the fastest of all, in seconds.
    recovery: f64,
    /// Mount of the same image when it was unmounted.
    clean: f64,
    /// Reading as many bytes from the same disk.
    reading: f64,
    /// Requests of the mount after the crash.
    requests: Counters,
    /// Requests of the mount of the unmounted image.
    clean_requests: Counters,
}

/// Runs the subcommand: exit code 1 when the target was missed.
///
/// # Errors
/// When it cannot run.
pub fn run_recovery(args: &Args) -> Result<ExitCode> {
    ensure!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse here: nothing can be mounted");
    let harness = Harness::new("recovery", &args.dir, &args.cffs)?;
    let mut rows = Vec::new();
    println!(
        "load      device     operations  log read   recovery  clean mount  reading alone  reads  read bytes   writes  flushes"
    );
    for &load in &args.load {
        for &size in &args.sizes {
            let row = measure(&harness, args, load, size)?;
            println!(
                "{:8} {:6} GiB {:12} {:6.1} MiB {:8.3} s {:10.3} s {:12.3} s {:6} {:7.1} MiB {:8} {:8}",
                format!("{load:?}").to_lowercase(),
                row.size_gib,
                row.operations,
                row.log_bytes as f64 / 1048576.0,
                row.recovery,
                row.clean,
                row.reading,
                row.requests.reads,
                row.requests.read_bytes as f64 / 1048576.0,
                row.requests.writes,
                row.requests.flushes
            );
            rows.push(row);
        }
    }
    write_json(args.json.as_deref(), &rows)?;
    let slow: Vec<&Row> = rows.iter().filter(|row| row.recovery - row.reading > 1.0).collect();
    for row in &slow {
        println!("MISSED: {:?} on {} GiB took more than 1 s beyond reading the log", row.load, row.size_gib);
    }
    Ok(if slow.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(harness: &Harness, args: &Args, load: Load, size: u64) -> Result<Row> {
    let image = harness.dir.join("image");
    let make = |steps| crash(&image, size << 30, args.log << 20, load, steps);
    // The first time to see when the log would be emptied; the second time stops right before.
    let (until, _) = make(STEPS_MAX)?;
    let (operations, log_bytes) = make(until - 1)?;
    ensure!(operations == until - 1, "the log was emptied earlier than the first time: not the same history");

    let kept = harness.dir.join("kept");
    let mut best: Option<(f64, Counters)> = None;
    let mut clean: Option<(f64, Counters)> = None;
    let mut reading = f64::MAX;
    for _ in 0..args.repeat {
        run(&["cp", "--sparse=always", &image.to_string_lossy(), &kept.to_string_lossy()], LIMIT)?;
        let medium = Arc::new(Counted::new(Sparse::open(&kept)?));
        let at = harness.dir.join("disk");
        fs::create_dir(&at)?;
        let served = Served::start(medium.clone(), &at)?;
        reading = reading.min(read_alone(&served.file(), log_bytes)?);
        let (time, requests) = timed_mount(harness, &medium, &served.file())?;
        if best.is_none_or(|(fastest, _)| time < fastest) {
            best = Some((time, requests));
        }
        let (time, requests) = timed_mount(harness, &medium, &served.file())?;
        if clean.is_none_or(|(fastest, _)| time < fastest) {
            clean = Some((time, requests));
        }
        served.stop()?;
        run(&[&harness.cffs, "fsck", "-n", &kept.to_string_lossy()], LIMIT).context("the check is not clean")?;
        fs::remove_file(&kept)?;
        fs::remove_dir(&at)?;
    }
    fs::remove_file(&image)?;
    let ((recovery, requests), (clean, clean_requests)) = best.zip(clean).context("--repeat 0 measures nothing")?;
    Ok(Row {
        load,
        size_gib: size,
        log_mib: args.log,
        log_bytes,
        operations,
        recovery,
        clean,
        reading,
        requests,
        clean_requests,
    })
}

/// Mounts, until the first request is answered, and unmounts; the time and the requests of the former.
fn timed_mount(harness: &Harness, medium: &Counted<Sparse>, disk: &Path) -> Result<(f64, Counters)> {
    let before = medium.counters();
    let clock = Instant::now();
    let mounted = harness.mount(disk, LIMIT)?;
    rustix::fs::statfs(&mounted.root).context("the mount does not serve")?;
    let time = clock.elapsed().as_secs_f64();
    let requests = medium.counters() - before;
    mounted.unmount(LIMIT)?;
    Ok((time, requests))
}

/// Reads so many bytes from the start of the disk in large requests, as recovery reads the log.
fn read_alone(disk: &Path, bytes: u64) -> Result<f64> {
    use std::os::unix::fs::FileExt;
    let file = fs::File::open(disk)?;
    let mut buf = vec![0; 1 << 20];
    let clock = Instant::now();
    let mut at = 0;
    while at < bytes {
        let part = (bytes - at).min(buf.len() as u64) as usize;
        file.read_exact_at(&mut buf[..part], at)?;
        at += part as u64;
    }
    Ok(clock.elapsed().as_secs_f64())
}

/// Makes a file system and works on it for so many steps, or up to the one
/// with which the log was emptied; then everything in memory is dropped.
/// Returns the steps done and the bytes in the log.
fn crash(image: &Path, size: u64, log: u64, load: Load, steps: u64) -> Result<(u64, u64)> {
    let _ = fs::remove_file(image);
    let dev = Arc::new(FileDevice::create(image, size, BUFFERED)?);
    let options = MkfsOptions::default()
        .log_bytes(Some(log))
        .uuid(Some([7; 16]))
        .hash_seed(Some([1, 2]))
        .now_ns(Some(1_000_000_000));
    mkfs(&*dev, None, &options)?;
    // A cache that does not force the log to be emptied before it is full.
    let options = MountOptions::default().background(false).cache_bytes(2 << 30);
    let fs = Fs::open(dev, None, options)?;
    let start = fs.stats().log;
    let mut dir = ROOT_INO;
    let mut before = 0;
    for step in 0..steps {
        if step.is_multiple_of(DIR_FILES) {
            dir = fs.mkdir(Caller::ROOT, ROOT_INO, format!("d{}", step / DIR_FILES).as_bytes(), 0o755)?.ino;
        }
        let name = format!("file{step}");
        let ino = fs.create(Caller::ROOT, dir, name.as_bytes(), 0o644)?.ino;
        match load {
            Load::Data => {
                let len = 1024 * (1 + step as usize % 8);
                fs.write(Caller::ROOT, ino, 0, &vec![step as u8; len])?;
                fs.fsync(ino, false)?;
            }
            Load::Metadata => {
                let set = SetAttr::default().perm(Some(0o600));
                fs.setattr(Caller::ROOT, ino, set)?;
                if step % 10 == 9 {
                    fs.fsync(ino, false)?;
                }
            }
        }
        fs.forget(ino, 1);
        let stats = fs.stats().log;
        if stats.checkpoints > start.checkpoints {
            return Ok((step + 1, before));
        }
        before = stats.bytes - start.bytes;
    }
    if steps == STEPS_MAX {
        bail!("the log was not emptied within {steps} operations");
    }
    Ok((steps, before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_full_when_the_crash_comes_and_the_same_on_any_device() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let log = 4 << 20;
        let mut seen = Vec::new();
        for size in [64 << 20, 16 << 30] {
            let (until, _) = crash(&image, size, log, Load::Data, STEPS_MAX).unwrap();
            let (steps, bytes) = crash(&image, size, log, Load::Data, until - 1).unwrap();
            assert_eq!(steps, until - 1);
            assert!(bytes > log * 2 / 5, "{bytes} bytes of a log of {log}");
            let dev = Arc::new(FileDevice::open(&image, BUFFERED).unwrap());
            let fs = Fs::open(dev, None, MountOptions::default().background(false)).unwrap();
            let last = cffs::path::resolve(&fs, format!("/d{}/file{}", (steps - 1) / DIR_FILES, steps - 1).as_bytes());
            assert!(last.is_ok(), "what the last step promised is there");
            fs.close().unwrap();
            seen.push(steps);
        }
        assert!(seen[0].abs_diff(seen[1]) * 10 < seen[0], "{seen:?} operations fill the log");
    }
}
