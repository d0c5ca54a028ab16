//! Cuts the power of a disk after sync(2) and syncfs(2), again and again: nothing may be missing that was written before.
//!
//! The load is that of `powercut`, but no writer syncs a file or a directory of its own. Now and then a writer calls sync(2) or
//! syncfs(2), while the others go on; what it had done until then is promised.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use cffs_record::RecordOption;
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};

use crate::cleanup::{Cleanup, Guard};
use crate::mount_table::{is_mounted, type_of_mount};
use crate::mounted::Loop;
use crate::powercut::{VolatileCacheDisk, Writer, look_at};
use crate::process::run;
use crate::random::Random;
use crate::served::Served;
use crate::server::Server;

const LIMIT: Duration = Duration::from_secs(120);
/// Most operations of a writer between two syncs of its.
const BETWEEN_SYNCS: u64 = 60;

/// Which system calls the writers make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum How {
    /// sync(2): all file systems of the machine.
    Sync,
    /// syncfs(2): this one.
    Syncfs,
    /// One or the other.
    Both,
    /// fsync(2) of the root directory, which makes everything durable on cffs.
    FsyncRoot,
}

/// Arguments of `cffs-lab synccut`.
#[derive(clap::Args)]
pub struct Args {
    /// How often the power goes
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// Threads that work on the mount
    #[arg(long, default_value_t = 3)]
    writers: u32,
    /// The longest time that the power lasts under load, in milliseconds
    #[arg(long, default_value_t = 1000)]
    longest: u64,
    /// Starts the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Size of the disk in MiB
    #[arg(long, default_value_t = 256)]
    size: u64,
    /// The system call that has to make everything durable
    #[arg(long, value_enum, default_value_t = How::Both)]
    how: How,
    /// Mount the disk's file itself, not a loop device over it
    #[arg(long)]
    file: bool,
    /// The disk says that it flushed and does not: promises must be found broken
    #[arg(long)]
    lie: bool,
    /// The cffs program
    #[arg(long, default_value = "target/release/cffs")]
    cffs: PathBuf,
    /// Options of `cffs mount -o`. With a long interval of commits nothing but a sync makes anything durable
    #[arg(long, default_value = "cache=64M,commit=60")]
    cffs_options: String,
    /// Keep the state of the disk when something is wrong
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    record: RecordOption,
}

/// Sums over all rounds.
#[derive(Default)]
struct Sums {
    cuts: u64,
    operations: u64,
    syncs: u64,
    promises: u64,
    lost: u64,
}

impl Sums {
    /// The counts for the table of campaigns.
    fn counts(&self) -> [(u64, &'static str); 5] {
        [
            (self.cuts, "power cuts"),
            (self.operations, "operations"),
            (self.syncs, "syncs"),
            (self.promises, "promises in force at the cuts"),
            (self.lost, "sectors lost"),
        ]
    }
}

/// Runs the subcommand: exit code 1 when a promise was broken.
///
/// # Errors
/// When the campaign itself cannot run.
pub fn run_campaign(args: &Args) -> Result<ExitCode> {
    ensure!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse here: nothing can be mounted, nothing was tested");
    let cffs = std::path::absolute(&args.cffs)?;
    ensure!(cffs.is_file(), "{} is not there (cargo build --release, or --cffs)", cffs.display());
    let place = if args.file { "image file" } else { "block device" };
    let recorder = args
        .record
        .open(format!("syncs and power cuts, {place}{}", if args.lie { ", flushes ignored" } else { "" }))?;
    let dir = tempfile::Builder::new().prefix("cffs-lab-synccut-").tempdir()?.keep();
    let dir_guard = Guard::new(Cleanup::RemoveDir(dir.clone()));
    let medium = Arc::new(VolatileCacheDisk::create(&dir, args.size << 20, args.lie)?);
    let at = dir.join("disk");
    std::fs::create_dir(&at)?;
    let served = Served::start(medium.clone(), &at)?;
    let harness = Harness {
        cffs: cffs.to_string_lossy().into_owned(),
        disk: served.file().to_path_buf(),
        on_loop: !args.file,
        root: dir.join("mnt"),
        options: args.cffs_options.clone(),
        said: dir.join("said"),
        medium,
    };
    std::fs::create_dir(&harness.root)?;
    run(&[&harness.cffs, "mkfs", "--force", &harness.disk.to_string_lossy()], LIMIT)?;

    let mut random = Random::new(args.seed);
    let (mut writers, kind) = harness.prepare(args.writers, &mut random)?;
    println!("{} writers on a mount of type {kind} over the {place}", args.writers);
    let mut sums = Sums::default();
    let mut failure = None;
    for round in 1..=args.rounds {
        match harness.round(args, &mut random, &mut writers, &mut sums) {
            Ok(line) => println!("round {round:3}: {line}"),
            Err(error) => {
                println!("round {round:3}: FAILED: {error:#}");
                print!("{}", std::fs::read_to_string(&harness.said).unwrap_or_default());
                failure = Some(format!("round {round}"));
                break;
            }
        }
    }
    served.stop()?;
    recorder.write(&sums.counts(), failure.as_slice())?;
    if failure.is_some() {
        if args.keep {
            dir_guard.disarm();
            println!("the disk is kept: {}", dir.join("durable").display());
        }
        return Ok(ExitCode::FAILURE);
    }
    println!(
        "{} power cuts after {} syncs and {} operations; {} promises in force at the cuts and all kept; {} sectors in the disk's cache lost; every check clean",
        sums.cuts, sums.syncs, sums.operations, sums.promises, sums.lost
    );
    Ok(ExitCode::SUCCESS)
}

struct Harness {
    cffs: String,
    /// The file that is the disk.
    disk: PathBuf,
    /// Whether it is mounted through a loop device.
    on_loop: bool,
    root: PathBuf,
    options: String,
    /// What the newest mount process said.
    said: PathBuf,
    medium: Arc<VolatileCacheDisk>,
}

/// A mount with what lies below it. Goes in this order when dropped.
struct Mount {
    guard: Guard,
    server: Server,
    device: Option<Loop>,
}

impl Harness {
    /// Each mount has a loop device of its own, because one that has seen the power go may have pages of what is lost.
    fn mount(&self) -> Result<Mount> {
        let device = if self.on_loop { Some(Loop::attach(&self.disk)?) } else { None };
        let mut command = Command::new(&self.cffs);
        command.args(["mount", "-f", "-o", &self.options]);
        match &device {
            Some(device) => command.arg(device.device()),
            None => command.arg(&self.disk),
        };
        // What it says about a disk without power is expected, and shown only when something is wrong.
        command.arg(&self.root).stderr(File::create(&self.said)?);
        let mut server = Server::start(command)?;
        let guard = Guard::new(Cleanup::Unmount(self.root.clone()));
        server.wait_until(LIMIT, || is_mounted(&self.root))?;
        rustix::fs::statfs(&self.root).context("the mount does not serve")?;
        Ok(Mount { guard, server, device })
    }

    fn unmount(&self, mount: Mount) -> Result<()> {
        run(&["umount", &self.root.to_string_lossy()], LIMIT)?;
        mount.guard.disarm();
        let status = mount.server.wait_end(LIMIT)?;
        ensure!(status.success(), "the mount process ended with {status}");
        mount.device.map_or(Ok(()), Loop::detach)
    }

    /// The computer goes off together with its disk.
    fn end(&self, mount: Mount) -> Result<()> {
        if let Some(pid) = i32::try_from(mount.server.pid()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        mount.server.wait_end(LIMIT)?;
        if is_mounted(&self.root) {
            run(&["umount", "-l", &self.root.to_string_lossy()], LIMIT)?;
        }
        mount.guard.disarm();
        mount.device.map_or(Ok(()), Loop::detach)
    }

    /// Makes the writers' directories; also the type of the mount.
    fn prepare(&self, writers: u32, random: &mut Random) -> Result<(Vec<Writer>, String)> {
        let mount = self.mount().context("cannot mount for the first time")?;
        let kind = type_of_mount(&self.root).context("the mount is not in the table")?;
        let mut made = Vec::new();
        for number in 0..writers {
            let mut writer =
                Writer::prepare(&self.root, number, random.next()).context("cannot make the directories")?;
            writer.leave_syncs_to_others();
            made.push(writer);
        }
        self.unmount(mount)?;
        self.medium.write_out()?;
        Ok((made, kind))
    }

    fn round(&self, args: &Args, random: &mut Random, writers: &mut [Writer], sums: &mut Sums) -> Result<String> {
        let (operations, syncs) = self.load(args, random, writers)?;
        let after = self.medium.power_on(random).context("cannot put the disk's state together")?;
        let clock = Instant::now();
        let mount = self.mount().context("cannot mount after the power cut")?;
        let recovery = clock.elapsed();
        let mut promises = 0;
        for writer in writers.iter_mut() {
            promises += writer.oracle.promises().0 as u64;
            let found = look_at(&self.root, writer)?;
            writer.oracle.compare(&found)?;
        }
        self.unmount(mount)?;
        run(&[&self.cffs, "fsck", "-n", &self.disk.to_string_lossy()], LIMIT)
            .context("the check after the recovery is not clean")?;
        self.medium.write_out()?;
        sums.cuts += 1;
        sums.operations += operations;
        sums.syncs += syncs;
        sums.promises += promises;
        sums.lost += after.lost;
        Ok(format!(
            "{operations:5} operations, {syncs:3} syncs, {:5} of {:6} unflushed sectors lost, mounted in {:.3} s, {promises:3} promises kept",
            after.lost,
            after.sectors,
            recovery.as_secs_f64()
        ))
    }

    /// Works until the power goes; how many operations and syncs that were.
    fn load(&self, args: &Args, random: &mut Random, writers: &mut [Writer]) -> Result<(u64, u64)> {
        let mount = self.mount().context("cannot mount for the load")?;
        let quiet = Duration::from_millis(random.below(args.longest.max(1)));
        let magnitude = random.below(7);
        let requests = 1 + random.below(1 << magnitude);
        let stop = AtomicBool::new(false);
        let (operations, syncs) = (AtomicU64::new(0), AtomicU64::new(0));
        let broken = Mutex::new(None);
        std::thread::scope(|scope| {
            for writer in writers.iter_mut() {
                let mut random = Random::new(random.next());
                let (stop, operations, syncs, broken) = (&stop, &operations, &syncs, &broken);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        match self.work(args.how, writer, &mut random, operations) {
                            // What came back before the power went is a promise.
                            Ok(()) if !self.medium.is_off() => {
                                writer.oracle.promise_all();
                                syncs.fetch_add(1, Ordering::Relaxed);
                            }
                            Ok(()) => return,
                            // Without power everything fails, as it should.
                            Err(_) if self.medium.is_off() => return,
                            Err(error) => {
                                *broken.lock().unwrap_or_else(|poison| poison.into_inner()) = Some(error);
                                return;
                            }
                        }
                    }
                });
            }
            std::thread::sleep(quiet);
            self.medium.cut_after(requests);
            if !self.medium.wait_for_cut(Duration::from_secs(2)) {
                self.medium.cut();
            }
            stop.store(true, Ordering::Relaxed);
            self.end(mount)
        })?;
        match broken.into_inner().unwrap_or_else(|poison| poison.into_inner()) {
            Some(error) => Err(error).context("an operation failed while there was power"),
            None => Ok((operations.into_inner(), syncs.into_inner())),
        }
    }

    /// Some operations, and a sync.
    fn work(&self, how: How, writer: &mut Writer, random: &mut Random, operations: &AtomicU64) -> Result<()> {
        for _ in 0..=random.below(BETWEEN_SYNCS) {
            writer.step()?;
            operations.fetch_add(1, Ordering::Relaxed);
            if self.medium.is_off() {
                return Err(anyhow!("no power"));
            }
        }
        let how = match how {
            How::Both if random.below(2) == 0 => How::Sync,
            How::Both => How::Syncfs,
            one => one,
        };
        match how {
            // It has no error: what the caller looks at is whether there is power afterwards.
            How::Sync => rustix::fs::sync(),
            How::FsyncRoot => File::open(&self.root)?.sync_all().context("fsync of the root directory")?,
            How::Syncfs | How::Both => {
                rustix::fs::syncfs(File::open(self.root.join(writer.home()))?).context("syncfs")?;
            }
        }
        Ok(())
    }
}
