//! How long programs wait while a mount is regrouped: a mixed load on an aged cffs, on a simulated disk in real time, in turns
//! without and with regroups of another part of the tree.

mod distribution;
mod load;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cffs::device::{Direct, FileDevice, Lock, OpenMode};
use cffs::{Fs, MountOptions};
use cffs_disk::profiles;

use crate::cache_check;
use crate::cleanup::{Cleanup, Guard};
use crate::experiments::{age_image, group_size};
use crate::mounted::{Kind, Loop};
use crate::regroups::{Regroups, Sums};
use crate::served::{Served, Sparse, TimedDisk};
use distribution::Distribution;
use load::{Inputs, KINDS, Samples};

/// The slowest 1% may take so many times as long.
const TARGET: f64 = 1.3;

/// Arguments of `cffs-lab latency`.
#[derive(clap::Args)]
pub struct Args {
    /// The disk
    #[arg(long, default_value = "volume-1ms")]
    disk: String,
    /// Most MiB that a regroup reads and writes in a second
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Size of the disk in MiB
    #[arg(long, default_value_t = 1024)]
    size: u64,
    /// How full it is, in %. With more the aging would not come to its end
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u64).range(1..=95))]
    level: u64,
    /// Creations and deletions of the aging, around that level
    #[arg(long, default_value_t = 20_000)]
    aging: u64,
    /// Operations of a turn
    #[arg(long, default_value_t = 12_000)]
    operations: u64,
    /// Turns without regroups, and as many with them
    #[arg(long, default_value_t = 3)]
    turns: u64,
    /// Threads that work
    #[arg(long, default_value_t = 4)]
    threads: u64,
    /// How long a thread waits between two operations, in milliseconds
    #[arg(long, default_value_t = 4)]
    pause: u64,
    /// Starts the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The cffs program
    #[arg(long, default_value = "target/release/cffs")]
    cffs: PathBuf,
    /// Options of `cffs mount -o`
    #[arg(long, default_value = "cache=32M")]
    cffs_options: String,
}

/// Runs the subcommand: exit code 1 when the target is missed.
///
/// # Errors
/// When it cannot run here, or an operation fails.
pub fn run(args: &Args) -> Result<ExitCode> {
    ensure!(rustix::process::geteuid().is_root(), "loop devices need root: nothing measured");
    ensure!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse here: nothing measured");
    let cffs = std::path::absolute(&args.cffs)?;
    ensure!(cffs.is_file(), "{} is not there (cargo build --release, or --cffs)", cffs.display());
    ensure!(args.threads > 0 && args.turns > 0 && args.operations > 0, "nothing to do");
    let model = profiles::find(&args.disk).with_context(|| format!("no disk is called {}", args.disk))?.model();
    let dir = tempfile::Builder::new().prefix("cffs-lab-latency-").tempdir()?.keep();
    let _dir_guard = Guard::new(Cleanup::RemoveDir(dir.clone()));
    let (image, at, root) = (dir.join("image"), dir.join("disk"), dir.join("mnt"));
    [&at, &root].into_iter().try_for_each(std::fs::create_dir)?;
    drop(Sparse::create(&image, args.size << 20)?);
    let words = ["--group-size".to_string(), format!("{}K", group_size(&args.disk)? >> 10)];
    Kind::Cffs.format(&cffs, &words, &image.to_string_lossy())?;
    let clock = Instant::now();
    age(&image, args)?;
    eprintln!("aged in {:.1} s", clock.elapsed().as_secs_f64());

    let medium = Arc::new(TimedDisk::new(Sparse::open(&image)?, model, true));
    let served = Served::start(medium, &at)?;
    let over = Loop::attach(&served.file())?;
    let mut bench = Bench { args, cffs, root, device: over.device().to_string(), beside: (Sums::default(), 0.0) };
    let mut samples = [Samples::default(), Samples::default()];
    for turn in 0..args.turns {
        for (n, samples) in samples.iter_mut().enumerate() {
            let (seconds, moved) = bench.turn(turn, n == 1, samples)?;
            let name = ["without", "with regroups"][n];
            eprintln!("turn {} {name}: {seconds:.1} s, {:.1} MiB moved", turn + 1, mib(moved));
        }
    }
    Kind::Cffs.check(&bench.cffs, &bench.device)?;
    let (beside, had) = bench.beside;
    over.detach()?;
    served.stop()?;
    println!("{}, {:.1} MiB/s; every check clean", beside.said(), mib(beside.moved) / had);
    let ratio = report(&samples);
    println!("the slowest 1%: {ratio:.2} times; target: at most {TARGET}");
    Ok(if ratio <= TARGET { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Fills and ages the image, not on the disk: that would take its time.
fn age(image: &Path, args: &Args) -> Result<()> {
    let mode = OpenMode { read_only: false, direct: Direct::Never, lock: Lock::Auto };
    let device = Arc::new(FileDevice::open(image, mode)?);
    let fs = Fs::open(device, None, MountOptions::default().background(false))?;
    let aged = age_image(&fs, args.level as f64 / 100.0, args.aging, args.seed);
    fs.close()?;
    aged
}

/// The aged file system on its disk.
struct Bench<'a> {
    args: &'a Args,
    cffs: PathBuf,
    root: PathBuf,
    device: String,
    /// What the regroups came to, and the seconds that they had.
    beside: (Sums, f64),
}

impl Bench<'_> {
    /// One turn from a cold mount; how long it took, and the bytes that were moved beside it. What it made is removed afterwards.
    fn turn(&mut self, turn: u64, regrouped: bool, samples: &mut Samples) -> Result<(f64, u64)> {
        cache_check::cool(&self.device)?;
        let mounted = Kind::Cffs.mount(&self.cffs, &self.args.cffs_options, &self.device, &self.root)?;
        let (worked, others) = halves(&self.root)?;
        let inputs = Inputs {
            dirs: worked,
            made: self.root.join("made"),
            operations: self.args.operations / self.args.threads,
            pause: Duration::from_millis(self.args.pause),
            seed: self.args.seed.wrapping_mul(1000).wrapping_add(turn),
        };
        let regroups = regrouped.then(|| Regroups::start(&self.root, Some(self.args.rate << 20), others));
        let clock = Instant::now();
        let done = inputs.run(self.args.threads, samples);
        let seconds = clock.elapsed().as_secs_f64();
        let mut moved = 0;
        if let Some(regroups) = regroups {
            let sums = regroups.end()?;
            ensure!(sums.moved > 0, "the regroups moved nothing: {}", sums.said());
            moved = sums.moved;
            self.beside.0.add(sums);
            self.beside.1 += seconds;
        }
        done?;
        std::fs::remove_dir_all(&inputs.made)?;
        mounted.unmount()?;
        Ok((seconds, moved))
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The directories that the load works in, and the numbers of those that are regrouped.
fn halves(root: &Path) -> Result<(Vec<PathBuf>, Vec<u64>)> {
    let mut dirs: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            dirs.push(entry.path());
        }
    }
    dirs.sort();
    let others = dirs.split_off(dirs.len() / 2);
    let numbers = others.iter().map(|dir| Ok(dir.metadata()?.ino())).collect::<Result<Vec<_>>>()?;
    Ok((dirs, numbers))
}

/// Prints the table; how many times as long the slowest 1% of all operations take.
fn report(samples: &[Samples; 2]) -> f64 {
    println!(
        "{:10} {:>7}  {:>9} {:>9} {:>9}  {:>9} {:>9} {:>9}  {:>6} {:>6} {:>6}",
        "ms", "number", "median", "99%", "longest", "with: med", "99%", "longest", "median", "99%", "longest"
    );
    let mut last = 0.0;
    for kind in KINDS.iter().map(Some).chain([None]) {
        let [alone, beside] = [0, 1].map(|n| Distribution::of(samples[n].of(kind.copied())));
        let times = [beside.median / alone.median, beside.slow / alone.slow, beside.longest / alone.longest];
        println!(
            "{:10} {:>7}  {:>9.2} {:>9.2} {:>9.2}  {:>9.2} {:>9.2} {:>9.2}  {:>6.2} {:>6.2} {:>6.2}",
            kind.map_or("all", |k| k.name()),
            alone.number,
            alone.median,
            alone.slow,
            alone.longest,
            beside.median,
            beside.slow,
            beside.longest,
            times[0],
            times[1],
            times[2]
        );
        last = times[1];
    }
    last
}
