//! Cuts the power of a disk under a mounted cffs, again and again, and looks
//! whether what was promised is there: the disk loses any part of what it was
//! not told to flush. Killing the mount process alone (`soak`) loses nothing
//! that had been written.

mod load;
mod medium;
mod oracle;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cffs_record::RecordOption;
use rustix::process::{Pid, Signal, kill_process};

use crate::cleanup::{Cleanup, Guard};
use crate::mount_table::is_mounted;
use crate::process::run;
use crate::random::Random;
use crate::regroups::{self, Regroups};
use crate::served::Served;
use crate::server::Server;

pub use load::Writer;
pub use medium::{Aftermath, VolatileCacheDisk};

const LIMIT: Duration = Duration::from_secs(120);

/// Arguments of `cffs-lab powercut`.
#[derive(clap::Args)]
pub struct Args {
    /// How often the power goes
    #[arg(long, default_value_t = 500)]
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
    /// The disk says that it flushed and does not: promises must be found broken
    #[arg(long)]
    lie: bool,
    /// The cffs program
    #[arg(long, default_value = "target/release/cffs")]
    cffs: PathBuf,
    /// Options of `cffs mount -o`
    #[arg(long, default_value = "cache=64M,commit=1")]
    cffs_options: String,
    /// Options of `cffs mkfs`
    #[arg(long, num_args = 0.., allow_hyphen_values = true)]
    mkfs: Vec<String>,
    /// Move all files again and again under the load, as `cffs regroup` does
    #[arg(long)]
    beside_regroup: bool,
    /// Keep the state of the disk when something is wrong
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    record: RecordOption,
}

/// Sums over all rounds.
#[derive(Default)]
struct Sums {
    operations: u64,
    cuts: u64,
    in_recovery: u64,
    promises: usize,
    looked_at: usize,
    sectors: u64,
    lost: u64,
    slowest: Duration,
    regrouped: regroups::Sums,
}

impl Sums {
    /// The counts for the table of campaigns.
    fn counts(&self) -> [(u64, &'static str); 5] {
        [
            (self.cuts, "power cuts"),
            (self.in_recovery, "of them in a recovery"),
            (self.operations, "operations"),
            (self.promises as u64, "promises in force at the cuts"),
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
    let recorder = args.record.open(match (args.lie, args.beside_regroup) {
        (true, _) => "power cuts, flushes ignored",
        (false, true) => "power cuts beside regroups",
        (false, false) => "power cuts",
    })?;
    let dir = tempfile::Builder::new().prefix("cffs-lab-powercut-").tempdir()?.keep();
    let dir_guard = Guard::new(Cleanup::RemoveDir(dir.clone()));
    let medium = Arc::new(VolatileCacheDisk::create(&dir, args.size << 20, args.lie)?);
    let at = dir.join("disk");
    fs::create_dir(&at)?;
    let served = Served::start(medium.clone(), &at)?;
    let harness = Harness {
        cffs: cffs.to_string_lossy().into_owned(),
        disk: served.file().to_string_lossy().into_owned(),
        root: dir.join("mnt"),
        options: args.cffs_options.clone(),
        said: dir.join("said"),
        medium,
    };
    fs::create_dir(&harness.root)?;
    let mut mkfs = vec![harness.cffs.as_str(), "mkfs", "--force"];
    mkfs.extend(args.mkfs.iter().map(String::as_str));
    mkfs.push(&harness.disk);
    run(&mkfs, LIMIT)?;

    let mut random = Random::new(args.seed);
    let mut writers = harness.prepare(args.writers, &mut random)?;
    let mut sums = Sums::default();
    let mut failure = None;
    for round in 1..=args.rounds {
        match harness.round(args, &mut random, &mut writers, &mut sums) {
            Ok(line) => println!("round {round:3}: {line}"),
            Err(error) => {
                println!("round {round:3}: FAILED: {error:#}");
                print!("{}", fs::read_to_string(&harness.said).unwrap_or_default());
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
        "{} rounds: {} power cuts, {} of them in a recovery; {} operations, {} promises in force at the cuts and all kept, {} names looked at; {} of {} sectors in the disk's cache lost; slowest mount {:.3} s; every check clean",
        args.rounds,
        sums.cuts,
        sums.in_recovery,
        sums.operations,
        sums.promises,
        sums.looked_at,
        sums.lost,
        sums.sectors,
        sums.slowest.as_secs_f64()
    );
    if args.beside_regroup {
        println!("{}", sums.regrouped.said());
    }
    Ok(ExitCode::SUCCESS)
}

struct Harness {
    cffs: String,
    disk: String,
    root: PathBuf,
    options: String,
    /// What the newest mount process said.
    said: PathBuf,
    medium: Arc<VolatileCacheDisk>,
}

impl Harness {
    fn start(&self) -> Result<Server> {
        let mut command = Command::new(&self.cffs);
        command.args(["mount", "-f", "-o", &self.options, &self.disk]).arg(&self.root);
        // What it says about a disk without power is expected, and shown only when something is wrong.
        command.stderr(fs::File::create(&self.said)?);
        Server::start(command)
    }

    fn mount(&self) -> Result<(Server, Guard)> {
        let mut server = self.start()?;
        let guard = Guard::new(Cleanup::Unmount(self.root.clone()));
        server.wait_until(LIMIT, || is_mounted(&self.root))?;
        rustix::fs::statfs(&self.root).context("the mount does not serve")?;
        Ok((server, guard))
    }

    fn unmount(&self, server: Server, guard: Guard) -> Result<()> {
        run(&["umount", &self.root.to_string_lossy()], LIMIT)?;
        guard.disarm();
        let status = server.wait_end(LIMIT)?;
        ensure!(status.success(), "the mount process ended with {status}");
        Ok(())
    }

    /// The computer goes off together with its disk.
    fn end(&self, server: Server, guard: Guard) -> Result<()> {
        if let Some(pid) = i32::try_from(server.pid()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        server.wait_end(LIMIT)?;
        if is_mounted(&self.root) {
            run(&["umount", "-l", &self.root.to_string_lossy()], LIMIT)?;
        }
        guard.disarm();
        Ok(())
    }

    /// Makes the writers' directories; a disk that ignores flushes honours them until then.
    fn prepare(&self, writers: u32, random: &mut Random) -> Result<Vec<Writer>> {
        let (server, guard) = self.mount().context("cannot mount for the first time")?;
        let mut made = Vec::new();
        for number in 0..writers {
            made.push(Writer::prepare(&self.root, number, random.next()).context("cannot make the directories")?);
        }
        self.unmount(server, guard)?;
        self.medium.write_out()?;
        Ok(made)
    }

    fn round(&self, args: &Args, random: &mut Random, writers: &mut [Writer], sums: &mut Sums) -> Result<String> {
        let operations = self.load(args, random, writers, &mut sums.regrouped)?;
        let mut after = self.power_on(random, sums)?;
        if random.below(2) == 0 {
            self.check().context("the check of the disk as the cut left it is not clean")?;
        }
        let mut cuts = 0;
        while random.below(3) == 0 && cuts < 4 {
            // The power goes in any case, in the recovery or right after it.
            let within = self.cut_recovery(random)?;
            cuts += u64::from(within);
            let again = self.power_on(random, sums)?;
            after.lost += again.lost;
            after.sectors += again.sectors;
            if !within {
                break;
            }
        }
        sums.in_recovery += cuts;

        let clock = Instant::now();
        let (server, guard) = self.mount().context("cannot mount after the power cut")?;
        let recovery = clock.elapsed();
        let (mut promises, mut names) = (0, 0);
        for writer in writers.iter_mut() {
            promises += writer.oracle.promises().0;
            let found = look_at(&self.root, writer)?;
            names += found.len();
            writer.oracle.compare(&found)?;
        }
        self.unmount(server, guard)?;
        self.check().context("the check after the recovery is not clean")?;
        self.medium.write_out()?;

        sums.operations += operations;
        sums.promises += promises;
        sums.looked_at += names;
        sums.slowest = sums.slowest.max(recovery);
        Ok(format!(
            "{operations:5} operations, {:5} of {:6} unflushed sectors lost, {cuts} cuts in the recovery, mounted in {:.3} s, {promises:3} promises kept, {names:3} names looked at",
            after.lost,
            after.sectors,
            recovery.as_secs_f64()
        ))
    }

    /// Works until the power goes; how many operations that were.
    fn load(
        &self,
        args: &Args,
        random: &mut Random,
        writers: &mut [Writer],
        regrouped: &mut regroups::Sums,
    ) -> Result<u64> {
        let (server, guard) = self.mount().context("cannot mount for the load")?;
        let beside = args.beside_regroup.then(|| Regroups::start(&self.root, None, Vec::new()));
        // Some time first, so that not every cut finds an empty log; then at a request.
        let quiet = Duration::from_millis(random.below(args.longest.max(1)));
        let magnitude = random.below(9);
        let requests = 1 + random.below(1 << magnitude);
        let grace = Duration::from_millis(random.below(30));
        let stop = AtomicBool::new(false);
        let operations = AtomicU64::new(0);
        let broken = Mutex::new(None);
        std::thread::scope(|scope| {
            for writer in writers.iter_mut() {
                let (stop, operations, broken) = (&stop, &operations, &broken);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        match writer.step() {
                            Ok(()) => operations.fetch_add(1, Ordering::Relaxed),
                            Err(error) => {
                                // Without power everything fails, as it should.
                                if !self.medium.is_off() {
                                    *broken.lock().unwrap_or_else(|poison| poison.into_inner()) = Some(error);
                                }
                                return;
                            }
                        };
                    }
                });
            }
            std::thread::sleep(quiet);
            self.medium.cut_after(requests);
            if !self.medium.wait_for_cut(Duration::from_secs(2)) {
                self.medium.cut();
            }
            // No fsync may say yes from here on: what it says is believed.
            std::thread::sleep(grace);
            stop.store(true, Ordering::Relaxed);
            self.end(server, guard)
        })?;
        if let Some(beside) = beside {
            regrouped.add(beside.end_killed());
        }
        if let Some(error) = broken.into_inner().unwrap_or_else(|poison| poison.into_inner()) {
            return Err(error).context("an operation failed while there was power");
        }
        Ok(operations.into_inner())
    }

    fn power_on(&self, random: &mut Random, sums: &mut Sums) -> Result<Aftermath> {
        let after = self.medium.power_on(random).context("cannot put the disk's state together")?;
        sums.cuts += 1;
        sums.sectors += after.sectors;
        sums.lost += after.lost;
        Ok(after)
    }

    /// Mounts, and cuts the power while that recovers; false if the recovery
    /// was over before.
    fn cut_recovery(&self, random: &mut Random) -> Result<bool> {
        let magnitude = random.below(7);
        self.medium.cut_after(1 + random.below(1 << magnitude));
        let mut server = self.start()?;
        let guard = Guard::new(Cleanup::Unmount(self.root.clone()));
        // Whether it fails or comes up without power makes no difference.
        let _ = server.wait_until(LIMIT, || self.medium.is_off() || is_mounted(&self.root));
        let went = self.medium.is_off();
        self.medium.cut();
        self.end(server, guard)?;
        Ok(went)
    }

    fn check(&self) -> Result<()> {
        run(&[&self.cffs, "fsck", "-n", &self.disk], LIMIT).map(drop)
    }
}

/// Everything in a writer's directory but the directories it began with: path
/// below the mount, and of files the bytes.
///
/// # Errors
/// What cannot be read.
pub fn look_at(root: &Path, writer: &Writer) -> Result<BTreeMap<PathBuf, Option<Vec<u8>>>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![writer.home().to_path_buf()];
    while let Some(dir) = dirs.pop() {
        let entries = fs::read_dir(root.join(&dir)).with_context(|| format!("cannot list {}", dir.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot list {}", dir.display()))?;
            let path = dir.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                if !writer.is_own_dir(&path) {
                    found.insert(path.clone(), None);
                }
                dirs.push(path);
            } else {
                let bytes = fs::read(entry.path()).with_context(|| format!("cannot read {}", path.display()))?;
                found.insert(path, Some(bytes));
            }
        }
    }
    Ok(found)
}
