//! Kills the mount process again and again under a mixed load, and looks at
//! what a person would find: does it mount, is the check clean, is every file
//! whole whose fsync had returned, does any file show bytes that are not its own.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cffs_record::RecordOption;
use rustix::process::{Signal, kill_process};

use crate::cleanup::{Cleanup, Guard};
use crate::process::run;
use crate::random::Random;
use crate::watched::{MountLog, Watched};

const LIMIT: Duration = Duration::from_secs(120);
/// Contents are made of records: the file's id, and the record's offset.
const RECORD: usize = 16;

/// Arguments of `cffs-lab soak`.
#[derive(clap::Args)]
pub struct Args {
    /// How often the mount process is killed
    #[arg(long, default_value_t = 100)]
    rounds: u32,
    /// Threads that work on the mount
    #[arg(long, default_value_t = 3)]
    workers: u32,
    /// The longest time before a kill, in milliseconds
    #[arg(long, default_value_t = 1500)]
    longest: u64,
    /// Starts the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Size of the image
    #[arg(long, default_value = "1G")]
    size: String,
    /// The cffs program
    #[arg(long, default_value = "target/release/cffs")]
    cffs: PathBuf,
    /// Options of `cffs mount -o`
    #[arg(long, default_value = "cache=64M")]
    cffs_options: String,
    /// Keep the image when something is wrong
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    record: RecordOption,
}

/// Files whose fsync has returned: path below the mount, to id and length.
type DurabilityOracle = Mutex<BTreeMap<PathBuf, (u64, u64)>>;

/// Runs the subcommand: exit code 1 when a promise was broken.
///
/// # Errors
/// When the soak itself cannot run.
pub fn run_soak(args: &Args) -> Result<ExitCode> {
    ensure!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse here: nothing can be mounted, nothing was tested");
    let cffs = std::path::absolute(&args.cffs)?;
    ensure!(cffs.is_file(), "{} is not there (cargo build --release, or --cffs)", cffs.display());
    let recorder = args.record.open("kills of the mount process")?;
    let dir = tempfile::Builder::new().prefix("cffs-lab-soak-").tempdir()?.keep();
    let dir_guard = Guard::new(Cleanup::RemoveDir(dir.clone()));
    let soak = Soak {
        cffs: cffs.to_string_lossy().into_owned(),
        image: dir.join("image").to_string_lossy().into_owned(),
        root: dir.join("mnt"),
        log: MountLog::new(dir.join("mount.log"))?,
        options: args.cffs_options.clone(),
    };
    fs::create_dir(&soak.root)?;
    run(&[&soak.cffs, "mkfs", "--force", "--size", &args.size, &soak.image], LIMIT)?;
    let oracle = DurabilityOracle::default();
    let ids = AtomicU64::new(1);
    let mut random = Random::new(args.seed);
    let mut slowest = Duration::ZERO;
    let (mut operations, mut promised) = (0, 0);
    for round in 1..=args.rounds {
        let outcome = soak.round(args, round, &mut random, &oracle, &ids);
        match outcome {
            Ok(found) => {
                slowest = slowest.max(found.recovery);
                operations += found.operations;
                promised += found.promised as u64;
                println!(
                    "round {round:3}: killed after {:4} ms and {:6} operations, recovered in {:.3} s, {} promised files whole, {} files looked at, check clean",
                    found.load.as_millis(),
                    found.operations,
                    found.recovery.as_secs_f64(),
                    found.promised,
                    found.looked_at
                );
            }
            Err(error) => {
                println!("round {round:3}: FAILED: {error:#}");
                recorder.write(&done(round, operations, promised), &[format!("round {round}")])?;
                if args.keep {
                    dir_guard.disarm();
                    println!("the image is kept: {}", soak.image);
                }
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    println!(
        "{} kills, every mount recovered (slowest {:.3} s), every check clean, every promised file whole",
        args.rounds,
        slowest.as_secs_f64()
    );
    recorder.write(&done(args.rounds, operations, promised), &[])?;
    Ok(ExitCode::SUCCESS)
}

/// The counts for the table of campaigns.
fn done(kills: u32, operations: u64, promised: u64) -> [(u64, &'static str); 3] {
    [(kills.into(), "kills"), (operations, "operations"), (promised, "promised files whole")]
}

struct Soak {
    cffs: String,
    image: String,
    root: PathBuf,
    log: MountLog,
    options: String,
}

/// What one round saw.
struct Found {
    load: Duration,
    operations: u64,
    recovery: Duration,
    promised: usize,
    looked_at: u64,
}

impl Soak {
    fn mount(&self) -> Result<Watched> {
        Watched::start(&self.cffs, &self.options, &self.image, &self.root, &self.log, LIMIT)
    }

    fn round(
        &self,
        args: &Args,
        round: u32,
        random: &mut Random,
        oracle: &DurabilityOracle,
        ids: &AtomicU64,
    ) -> Result<Found> {
        let mount = self.mount().context("cannot mount for the load")?;
        let load = Duration::from_millis(20 + random.below(args.longest.max(1)));
        let stop = AtomicBool::new(false);
        let operations = AtomicU64::new(0);
        let broken = Mutex::new(None);
        std::thread::scope(|scope| {
            for number in 0..args.workers {
                let mut worker = Worker {
                    home: format!("w{number}").into(),
                    root: &self.root,
                    random: Random::new(random.next()),
                    oracle,
                    ids,
                };
                let (stop, operations, broken) = (&stop, &operations, &broken);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        match worker.step(round) {
                            Ok(()) => operations.fetch_add(1, Ordering::Relaxed),
                            Err(error) => {
                                // After the kill everything fails, as it should.
                                if !stop.load(Ordering::Relaxed) {
                                    *lock(broken) = Some(error);
                                }
                                return;
                            }
                        };
                    }
                });
            }
            std::thread::sleep(load);
            stop.store(true, Ordering::Relaxed);
            if let Ok(pid) = mount.pid() {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        if let Some(error) = lock(&broken).take() {
            return Err(error).context("an operation failed before the kill");
        }
        mount.kill(LIMIT)?;

        let clock = Instant::now();
        let mount = self.mount().context("cannot mount after the kill")?;
        let recovery = clock.elapsed();
        let promised = self.check_promises(oracle)?;
        let mut looked_at = 0;
        check_contents(&self.root, &mut looked_at)?;
        mount.unmount(LIMIT)?;
        run(&[&self.cffs, "fsck", "-n", &self.image], LIMIT).context("the check is not clean")?;
        self.log.expect_no_errors()?;
        Ok(Found { load, operations: operations.into_inner(), recovery, promised, looked_at })
    }

    fn check_promises(&self, oracle: &DurabilityOracle) -> Result<usize> {
        let oracle = lock(oracle);
        for (path, (id, len)) in oracle.iter() {
            let full = self.root.join(path);
            let bytes =
                fs::read(&full).with_context(|| format!("{} was fsynced and cannot be read", path.display()))?;
            ensure!(
                bytes == records(*id, 0, *len as usize),
                "{} was fsynced with {len} bytes and is not whole ({} bytes)",
                path.display(),
                bytes.len()
            );
        }
        Ok(oracle.len())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// The bytes of file `id` from `offset` (a multiple of a record) on.
fn records(id: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + RECORD);
    let mut at = offset;
    while bytes.len() < len {
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes.extend_from_slice(&at.to_le_bytes());
        at += RECORD as u64;
    }
    bytes.truncate(len);
    bytes
}

/// Every whole record of every file is zero (a hole, or not written in time)
/// or the file's own, in its own place.
fn check_contents(dir: &Path, looked_at: &mut u64) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", dir.display()))?;
        let path = entry.path();
        let kind = entry.file_type()?;
        if kind.is_dir() {
            check_contents(&path, looked_at)?;
        } else if kind.is_file() {
            let mut bytes = Vec::new();
            File::open(&path)
                .and_then(|mut file| file.read_to_end(&mut bytes))
                .with_context(|| format!("cannot read {}", path.display()))?;
            if let Some(wrong) = foreign_record(&bytes) {
                bail!("{} has bytes at {wrong} that are not its own", path.display());
            }
            *looked_at += 1;
        }
    }
    Ok(())
}

fn foreign_record(bytes: &[u8]) -> Option<usize> {
    let mut id = None;
    for (i, record) in bytes.chunks_exact(RECORD).enumerate() {
        if record.iter().all(|b| *b == 0) {
            continue;
        }
        let (own, at) = record.split_at(8);
        if *id.get_or_insert(own) != own || at != ((i * RECORD) as u64).to_le_bytes() {
            return Some(i * RECORD);
        }
    }
    None
}

/// One thread of the load; it works in a directory of its own.
struct Worker<'a> {
    home: PathBuf,
    root: &'a Path,
    random: Random,
    oracle: &'a DurabilityOracle,
    ids: &'a AtomicU64,
}

impl Worker<'_> {
    fn step(&mut self, round: u32) -> std::io::Result<()> {
        let dir = self.home.join(format!("d{}", self.random.below(20)));
        let full = self.root.join(&dir);
        fs::create_dir_all(&full)?;
        let slot = full.join(format!("s{}", self.random.below(40)));
        let other = self.root.join(&self.home).join(format!("d{}", self.random.below(20)));
        match self.random.below(100) {
            0..25 => self.promise(&dir, round),
            25..50 => self.write_slot(&slot),
            50..58 => self.append(&slot),
            58..66 => tolerate(fs::remove_file(&slot)),
            66..76 => {
                let target = other.join(format!("s{}", self.random.below(40)));
                tolerate(fs::rename(&slot, target))
            }
            76..80 => tolerate(fs::hard_link(&slot, full.join(format!("l{}", self.random.below(10))))),
            80..84 => tolerate(fs::remove_file(full.join(format!("l{}", self.random.below(10))))),
            84..88 => {
                let len = self.random.below(4 << 10) * RECORD as u64;
                tolerate(OpenOptions::new().write(true).open(&slot).and_then(|file| file.set_len(len)))
            }
            88..91 => {
                let name = full.join(format!("y{}", self.random.below(10)));
                tolerate(fs::remove_file(&name))?;
                tolerate(std::os::unix::fs::symlink("some/where", name))
            }
            91..94 => tolerate(fs::remove_dir(full)),
            94..98 => self.break_promise(),
            _ => tolerate(File::open(&slot).and_then(|file| file.sync_all())),
        }
    }

    /// Mostly small. Whole records, so that what follows a file's end later (a
    /// hole, an append) never cuts one in two.
    fn length(&mut self) -> usize {
        let most = match self.random.below(20) {
            0 => 700 << 10,
            1..4 => 40 << 10,
            _ => 3000,
        };
        self.random.below(most) as usize / RECORD * RECORD
    }

    /// A new file, fsynced and never touched again but to be removed.
    fn promise(&mut self, dir: &Path, round: u32) -> std::io::Result<()> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        // Nothing follows here, so that any length will do.
        let len = self.length() + self.random.below(RECORD as u64) as usize;
        let path = dir.join(format!("p{round}-{id}"));
        let mut file = File::create_new(self.root.join(&path))?;
        file.write_all(&records(id, 0, len))?;
        file.sync_all()?;
        lock(self.oracle).insert(path, (id, len as u64));
        Ok(())
    }

    /// Removes a promised file now and then, or the image would fill up. From
    /// the moment before the removal nothing is promised about it.
    fn break_promise(&mut self) -> std::io::Result<()> {
        for _ in 0..8 {
            let path = {
                let mut oracle = lock(self.oracle);
                if oracle.len() < 400 {
                    return Ok(());
                }
                let nth = self.random.below(oracle.len() as u64) as usize;
                let Some(path) = oracle.keys().nth(nth).cloned() else {
                    return Ok(());
                };
                oracle.remove(&path);
                path
            };
            fs::remove_file(self.root.join(path))?;
        }
        Ok(())
    }

    fn write_slot(&mut self, slot: &Path) -> std::io::Result<()> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let len = self.length();
        // Truncating an old file keeps its other names, which show the same
        // new contents: one id in one file, always.
        File::create(slot)?.write_all(&records(id, 0, len))
    }

    /// Goes on where the file ends, perhaps after a hole, with the same id.
    fn append(&mut self, slot: &Path) -> std::io::Result<()> {
        let mut file = match OpenOptions::new().read(true).write(true).open(slot) {
            Ok(file) => file,
            Err(error) => return tolerate(Err(error)),
        };
        let mut first = [0u8; RECORD];
        if file.read_exact(&mut first).is_err() {
            return Ok(());
        }
        let id = u64::from_le_bytes([first[0], first[1], first[2], first[3], first[4], first[5], first[6], first[7]]);
        if id == 0 {
            return Ok(());
        }
        let hole = self.random.below(4) / 3 * 20_000;
        let at = (file.metadata()?.len() + hole) / RECORD as u64 * RECORD as u64;
        if at > 4 << 20 {
            return Ok(());
        }
        let len = self.length();
        file.seek(SeekFrom::Start(at))?;
        file.write_all(&records(id, at, len))
    }
}

/// The load chooses names at random: what is not there, or is there already,
/// is no failure.
fn tolerate(result: std::io::Result<()>) -> std::io::Result<()> {
    use std::io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotFound};
    match result {
        Err(error) if matches!(error.kind(), NotFound | AlreadyExists | DirectoryNotEmpty) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_and_misplaced_bytes_are_seen() {
        let mut own = records(7, 0, 4096);
        assert_eq!(foreign_record(&own), None);
        own[1024..2048].fill(0);
        assert_eq!(foreign_record(&own), None, "holes are allowed");
        own[2048..2064].copy_from_slice(&records(8, 2048, 16));
        assert_eq!(foreign_record(&own), Some(2048));
        own[2048..2064].copy_from_slice(&records(7, 2064, 16));
        assert_eq!(foreign_record(&own), Some(2048));
    }

    #[test]
    fn the_load_keeps_its_own_rules_on_the_host_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let (oracle, ids) = (DurabilityOracle::default(), AtomicU64::new(1));
        let mut worker =
            Worker { home: "w0".into(), root: dir.path(), random: Random::new(42), oracle: &oracle, ids: &ids };
        for _ in 0..600 {
            worker.step(1).unwrap();
        }
        let mut looked_at = 0;
        check_contents(dir.path(), &mut looked_at).unwrap();
        let oracle = lock(&oracle);
        assert!(oracle.len() > 50 && looked_at > oracle.len() as u64);
        for (path, (id, len)) in oracle.iter() {
            assert_eq!(fs::read(dir.path().join(path)).unwrap(), records(*id, 0, *len as usize));
        }
    }
}
