//! Unmounts by the system call alone and copies the image at once, again and again: the copy must be clean and complete, as a copy
//! of an unmounted ext4 is. `cffs umount` would wait for the mount process; a shutting down system, a container and most
//! programs call umount(2).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cffs_record::RecordOption;
use clap::ValueEnum;

use crate::cleanup::{Cleanup, Guard};
use crate::mount_table::type_of_mount;
use crate::mounted::Loop;
use crate::powercut::{Writer, look_at};
use crate::process::run;
use crate::random::Random;
use crate::watched::{MountLog, Watched};

const LIMIT: Duration = Duration::from_secs(120);

/// What is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Place {
    /// A loop device over the image.
    Loop,
    /// The image itself.
    File,
    /// One and the other in turns.
    Both,
}

/// Arguments of `cffs-lab umountcopy`.
#[derive(clap::Args)]
pub struct Args {
    /// How often it is unmounted
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// Threads that work on the mount
    #[arg(long, default_value_t = 3)]
    writers: u32,
    /// The longest time of the work before an unmount, in milliseconds
    #[arg(long, default_value_t = 500)]
    longest: u64,
    /// Starts the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Size of the image in MiB
    #[arg(long, default_value_t = 128)]
    size: u64,
    /// What is mounted
    #[arg(long, value_enum, default_value_t = Place::Both)]
    on: Place,
    /// Unmount by `cffs umount`, which waits for the mount process in any case
    #[arg(long)]
    helper: bool,
    /// The cffs program
    #[arg(long, default_value = "target/release/cffs")]
    cffs: PathBuf,
    /// Options of `cffs mount -o`
    #[arg(long, default_value = "cache=64M")]
    cffs_options: String,
    /// Go on after a failure, and count
    #[arg(long)]
    go_on: bool,
    /// Keep the copy when something is wrong
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    record: RecordOption,
}

/// Runs the subcommand: exit code 1 when a copy was not clean or not complete.
///
/// # Errors
/// When the campaign itself cannot run.
pub fn run_campaign(args: &Args) -> Result<ExitCode> {
    ensure!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse here: nothing can be mounted, nothing was tested");
    let cffs = std::path::absolute(&args.cffs)?;
    ensure!(cffs.is_file(), "{} is not there (cargo build --release, or --cffs)", cffs.display());
    let recorder = args.record.open("copies right after umount(2)")?;
    let dir = tempfile::Builder::new().prefix("cffs-lab-umountcopy-").tempdir()?.keep();
    let dir_guard = Guard::new(Cleanup::RemoveDir(dir.clone()));
    let campaign = Campaign {
        cffs: cffs.to_string_lossy().into_owned(),
        image: dir.join("image"),
        copy: dir.join("copy"),
        root: dir.join("mnt"),
        log: MountLog::new(dir.join("mount.log"))?,
        options: args.cffs_options.clone(),
    };
    fs::create_dir(&campaign.root)?;
    fs::File::create(&campaign.image)?.set_len(args.size << 20)?;
    run(&[&campaign.cffs, "mkfs", "--force", &campaign.image.to_string_lossy()], LIMIT)?;

    let mut random = Random::new(args.seed);
    let mut writers = campaign.prepare(args.writers, &mut random)?;
    let mut sums = Sums::default();
    for round in 1..=args.rounds {
        if !campaign.counted_round(args, round, &mut random, &mut writers, &mut sums) {
            break;
        }
    }
    let Sums { good, operations, names, failures } = sums;
    recorder.write(
        &[(good, "copies clean and complete"), (operations, "operations"), (names, "names compared")],
        &failures,
    )?;
    println!("{good} copies clean and complete, {} not", failures.len());
    if failures.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if args.keep {
        dir_guard.disarm();
        println!("the newest copy is kept: {}", campaign.copy.display());
    }
    Ok(ExitCode::FAILURE)
}

/// Sums over all rounds.
#[derive(Default)]
struct Sums {
    good: u64,
    operations: u64,
    names: u64,
    /// The rounds that failed.
    failures: Vec<String>,
}

struct Campaign {
    cffs: String,
    image: PathBuf,
    copy: PathBuf,
    root: PathBuf,
    log: MountLog,
    options: String,
}

/// What one round saw.
struct Found {
    kind: String,
    operations: u64,
    /// Time of the system call, and from then to the end of the mount process.
    unmount: Duration,
    rest: Duration,
    names: usize,
    /// Whether the copy was clean and complete.
    outcome: Result<()>,
}

impl Campaign {
    fn mount(&self, what: &str, options: &str) -> Result<Watched> {
        Watched::start(&self.cffs, options, what, &self.root, &self.log, LIMIT)
    }

    /// Makes the writers' directories.
    fn prepare(&self, writers: u32, random: &mut Random) -> Result<Vec<Writer>> {
        let mount =
            self.mount(&self.image.to_string_lossy(), &self.options).context("cannot mount for the first time")?;
        let mut made = Vec::new();
        for number in 0..writers {
            let mut writer =
                Writer::prepare(&self.root, number, random.next()).context("cannot make the directories")?;
            writer.leave_syncs_to_others();
            made.push(writer);
        }
        mount.unmount(LIMIT)?;
        Ok(made)
    }

    /// One round, told and counted; false if it is the last one.
    fn counted_round(
        &self,
        args: &Args,
        round: u32,
        random: &mut Random,
        writers: &mut [Writer],
        sums: &mut Sums,
    ) -> bool {
        let on_loop = match args.on {
            Place::Loop => true,
            Place::File => false,
            Place::Both => round.is_multiple_of(2),
        };
        let found = match self.round(args, on_loop, random, writers) {
            Ok(found) => found,
            Err(error) => {
                println!("round {round:3}: FAILED: {error:#}");
                sums.failures.push(format!("round {round}"));
                return false;
            }
        };
        sums.operations += found.operations;
        sums.names += found.names as u64;
        let times = format!(
            "mount of type {}, {:5} operations, the unmount took {:.3} s, the mount process {:.3} s more than the copy",
            found.kind,
            found.operations,
            found.unmount.as_secs_f64(),
            found.rest.as_secs_f64()
        );
        match found.outcome {
            Ok(()) => {
                println!("round {round:3}: {times}; {} names in the copy, clean and complete", found.names);
                sums.good += 1;
                true
            }
            Err(error) => {
                println!("round {round:3}: FAILED, {times}: {error:#}");
                sums.failures.push(format!("round {round}"));
                args.go_on
            }
        }
    }

    fn round(&self, args: &Args, on_loop: bool, random: &mut Random, writers: &mut [Writer]) -> Result<Found> {
        let device = if on_loop { Some(Loop::attach(&self.image)?) } else { None };
        let image = self.image.to_string_lossy();
        let mount = self.mount(device.as_ref().map_or(&image, Loop::device), &self.options).context("cannot mount")?;
        let kind = type_of_mount(&self.root).context("the mount is not in the table")?;
        let operations = work(writers, Duration::from_millis(random.below(args.longest.max(1))))?;
        let clock = Instant::now();
        let server = match args.helper {
            true => mount.unmount_by(&[&self.cffs, "umount"], LIMIT)?,
            false => mount.unmount_by_system_call(LIMIT)?,
        };
        let unmount = clock.elapsed();
        fs::copy(&self.image, &self.copy).context("cannot copy the image")?;
        let clock = Instant::now();
        let status = server.wait_end(LIMIT)?;
        let rest = clock.elapsed();
        ensure!(status.success(), "the mount process ended with {status}");
        if let Some(device) = device {
            device.detach()?;
        }
        self.log.expect_no_errors()?;
        let mut names = 0;
        let outcome = self.check_copy(writers, &mut names);
        if outcome.is_err() {
            self.go_on_from_image(writers).context("the image itself, after the mount process had ended")?;
        }
        Ok(Found { kind, operations, unmount, rest, names, outcome })
    }

    /// The copy is clean, and has all that was written.
    fn check_copy(&self, writers: &mut [Writer], names: &mut usize) -> Result<()> {
        let copy = self.copy.to_string_lossy();
        let info = run(&[&self.cffs, "info", "--json", &copy], LIMIT)?;
        let info: serde_json::Value = serde_json::from_str(&info).context("cffs info --json")?;
        ensure!(info["state"] == "clean", "the copy is not that of an unmounted image: its state is {}", info["state"]);
        run(&[&self.cffs, "fsck", "-n", &copy], LIMIT).context("the check of the copy is not clean")?;
        self.compare(&copy, writers, names)
    }

    /// The image is complete now, at least; the work goes on from what is there.
    fn go_on_from_image(&self, writers: &mut [Writer]) -> Result<()> {
        self.compare(&self.image.to_string_lossy(), writers, &mut 0)
    }

    fn compare(&self, image: &str, writers: &mut [Writer], names: &mut usize) -> Result<()> {
        let mount = self.mount(image, "ro").context("cannot mount the copy")?;
        for writer in writers {
            let found = look_at(&self.root, writer)?;
            *names += found.len();
            writer.oracle.compare(&found)?;
        }
        mount.unmount(LIMIT)
    }
}

/// All writers work for some time; then all they did is promised by the unmount that follows.
fn work(writers: &mut [Writer], time: Duration) -> Result<u64> {
    let operations = AtomicU64::new(0);
    let end = Instant::now() + time;
    let outcomes: Vec<std::io::Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = writers
            .iter_mut()
            .map(|writer| {
                let operations = &operations;
                scope.spawn(move || {
                    while Instant::now() < end {
                        writer.step()?;
                        operations.fetch_add(1, Ordering::Relaxed);
                    }
                    writer.oracle.promise_all();
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err(std::io::Error::other("a writer panicked"))))
            .collect()
    });
    outcomes.into_iter().collect::<std::io::Result<Vec<()>>>().context("an operation failed")?;
    Ok(operations.into_inner())
}
