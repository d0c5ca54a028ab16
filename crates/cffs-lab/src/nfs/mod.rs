//! Exports a mount by NFS, and restarts server and mount under load: every handle that a client has stays good, nothing is lost.
//!
//! A client of NFS has handles and no open files. A server that was restarted has to open files by handles that it has never
//! seen, and after a new mount the file system has to find them without the kernel's memory of them.

mod client;
mod ganesha;
mod work;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cffs_record::RecordOption;
use rustix::process::Signal;

use crate::cleanup::{Cleanup, Guard};
use crate::mounted::{Kind, Loop, Mounted};
use crate::random::Random;
use crate::server::Server;

use client::Client;
use ganesha::Ganesha;
use work::{Progress, Worker};

/// Arguments of `cffs-lab nfs`.
#[derive(clap::Args)]
pub struct Args {
    /// The file system that is exported
    #[arg(long, value_enum, default_value_t = Kind::Cffs)]
    fs: Kind,
    /// Files that are made
    #[arg(long, default_value_t = 20_000)]
    files: usize,
    /// How often the server is restarted under load, every second time with a new mount
    #[arg(long, visible_alias = "rounds", default_value_t = 6)]
    restarts: u64,
    /// Clients, each with a connection of its own
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Starts the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Size of the image in MiB
    #[arg(long, default_value_t = 1024)]
    size: u64,
    /// The cffs program
    #[arg(long, default_value = "target/release/cffs")]
    cffs: PathBuf,
    /// Options of `cffs mount -o`
    #[arg(long, default_value = "")]
    cffs_options: String,
    /// Keep the image and the server's log when something is wrong
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    record: RecordOption,
}

/// Runs the subcommand: exit code 1 when a handle went stale or something is lost.
///
/// # Errors
/// When the campaign itself cannot run.
pub fn run_campaign(args: &Args) -> Result<ExitCode> {
    ensure!(args.clients > 0, "--clients 0: at least one client has to work");
    let cffs = std::path::absolute(&args.cffs)?;
    if let Some(why) = args.fs.missing(&cffs).or_else(ganesha::missing) {
        bail!("{why}: nothing was tested");
    }
    let recorder = args.record.open(format!("NFS over {}, restarts", args.fs))?;
    let dir = tempfile::Builder::new().prefix("cffs-lab-nfs-").tempdir()?.keep();
    let dir_guard = Guard::new(Cleanup::RemoveDir(dir.clone()));
    let clock = Instant::now();
    let mut sums = Sums::default();
    let outcome = campaign(args, &cffs, &dir, &mut sums);
    let failures: Vec<String> = outcome.as_ref().err().map(|e| format!("{e:#}")).into_iter().collect();
    recorder.write(&sums.counts(), &failures)?;
    match outcome {
        Ok(()) => {
            println!(
                "{}: {} operations on {} files through {} restarts of the server, {} of them with a new mount, in {:.0} s: every handle good, every file whole, the check clean",
                args.fs,
                sums.operations,
                sums.files,
                sums.restarts,
                sums.mounts,
                clock.elapsed().as_secs_f64()
            );
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            println!("FAILED: {error:#}");
            if args.keep {
                dir_guard.disarm();
                println!("image and log are kept in {}", dir.display());
            }
            Ok(ExitCode::FAILURE)
        }
    }
}

/// What was done.
#[derive(Default)]
struct Sums {
    operations: u64,
    files: u64,
    restarts: u64,
    mounts: u64,
}

impl Sums {
    /// The counts for the table of campaigns.
    fn counts(&self) -> [(u64, &'static str); 4] {
        [
            (self.restarts, "restarts of the server"),
            (self.mounts, "of them with a new mount"),
            (self.operations, "operations"),
            (self.files, "files compared"),
        ]
    }
}

/// The exported mount and its server, while they are there. Goes in this order when dropped.
struct Exported {
    server: Server,
    mount: Mounted,
}

struct Harness<'a> {
    args: &'a Args,
    cffs: &'a Path,
    device: Loop,
    root: PathBuf,
    ganesha: Ganesha,
}

impl Harness<'_> {
    fn mount(&self) -> Result<Mounted> {
        self.args.fs.mount(self.cffs, &self.args.cffs_options, self.device.device(), &self.root)
    }

    fn export(&self) -> Result<Exported> {
        let mount = self.mount()?;
        Ok(Exported { server: self.ganesha.start()?, mount })
    }

    /// Ends the server, in order or by SIGKILL, perhaps the mount too, and starts them again.
    fn restart(&self, exported: Exported, with_mount: bool, signal: Signal) -> Result<Exported> {
        ganesha::stop(exported.server, signal)?;
        let mount = match with_mount {
            true => {
                exported.mount.unmount().context("cannot unmount after the server had ended")?;
                self.mount()?
            }
            false => exported.mount,
        };
        Ok(Exported { server: self.ganesha.start()?, mount })
    }
}

fn campaign(args: &Args, cffs: &Path, dir: &Path, sums: &mut Sums) -> Result<()> {
    let image = dir.join("image");
    fs::File::create(&image)?.set_len(args.size << 20)?;
    let device = Loop::attach(&image)?;
    args.fs.format(cffs, &[], device.device())?;
    let root = dir.join("mnt");
    fs::create_dir(&root)?;
    let ganesha = Ganesha::prepare(dir, &root)?;
    let harness = Harness { args, cffs, device, root, ganesha };
    let exported = harness.export()?;
    let handle = client::mount(harness.ganesha.address())?;
    let mut random = Random::new(args.seed);
    let mut workers: Vec<Worker> = (0..args.clients)
        .map(|n| Worker::new(Client::new(harness.ganesha.address().clone()), n, handle.clone(), random.next()))
        .collect();
    let exported = load(&harness, exported, &mut workers, &mut random, sums)?;
    // Once more, so that nothing is left of what the kernel and the server remember.
    let exported = harness.restart(exported, true, Signal::TERM)?;
    sums.restarts += 1;
    sums.mounts += 1;
    println!("reading everything by the handles from the beginning");
    for worker in &mut workers {
        worker.check_all()?;
        sums.files += worker.files() as u64;
    }
    ganesha::stop(exported.server, Signal::TERM)?;
    exported.mount.unmount()?;
    args.fs.check(cffs, harness.device.device()).context("the check is not clean")?;
    harness.device.detach()
}

/// All clients work; in equal parts of the work, server and mount are restarted.
fn load(
    harness: &Harness<'_>,
    mut exported: Exported,
    workers: &mut [Worker],
    random: &mut Random,
    sums: &mut Sums,
) -> Result<Exported> {
    let args = harness.args;
    let progress = Progress::default();
    let per_client = args.files.div_ceil(args.clients);
    let total = (per_client * args.clients) as u64;
    let outcome = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                let progress = &progress;
                scope.spawn(move || {
                    let outcome = worker.work(per_client, progress);
                    progress.failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
                    outcome
                })
            })
            .collect();
        let restarts = || -> Result<Exported> {
            for n in 1..=args.restarts {
                let due = total * n / (args.restarts + 1);
                while progress.operations.load(Ordering::Relaxed) < due && !progress.failed.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                if progress.failed.load(Ordering::Relaxed) {
                    break;
                }
                let with_mount = n % 2 == 0;
                let signal = if random.below(2) == 0 { Signal::TERM } else { Signal::KILL };
                let clock = Instant::now();
                exported = harness.restart(exported, with_mount, signal)?;
                sums.restarts += 1;
                sums.mounts += u64::from(with_mount);
                println!(
                    "restart {n} at operation {due}: the server by signal {}{}, back after {:.1} s",
                    signal.as_raw(),
                    if with_mount { ", and the mount" } else { "" },
                    clock.elapsed().as_secs_f64()
                );
            }
            Ok(exported)
        };
        let restarted = restarts();
        if restarted.is_err() {
            progress.failed.store(true, Ordering::Relaxed);
        }
        let outcomes: Vec<Result<()>> =
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| bail!("a client panicked"))).collect();
        let exported = restarted?;
        outcomes.into_iter().collect::<Result<Vec<()>>>().map(|_| exported)
    });
    sums.operations += progress.operations.into_inner();
    let exported = outcome?;
    let interruptions: u64 = workers.iter().map(Worker::interruptions).sum();
    println!("{} operations, the clients lost their connections {interruptions} times", sums.operations);
    ensure!(
        args.restarts == 0 || interruptions > 0,
        "no client noticed a restart: the work was too short for this number of restarts"
    );
    Ok(exported)
}
