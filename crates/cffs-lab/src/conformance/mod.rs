//! Does a mounted cffs behave as every UNIX program expects? Test suites of
//! others, stress of our own, and real programs with the checks they bring.
//!
//! Each check gets a file system of its own: a fresh image, mounted below a
//! fresh temporary directory. Whatever the check finds, the file system is
//! unmounted afterwards and has to pass `cffs fsck -n`.

mod check;
mod fill;
mod fio;
mod fsx;
mod job;
mod pjdfstest;
mod programs;
mod stress;
mod suites;
mod test_mount;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use check::{Check, Format, Missing};
use job::Job;
use test_mount::TestMount;

/// Arguments of `cffs-lab conformance`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    what: What,
}

/// What all checks share.
#[derive(clap::Args)]
struct Common {
    /// The cffs program
    #[arg(long, default_value = "target/release/cffs", global = true)]
    cffs: PathBuf,
    /// Options of `cffs mount -o`
    #[arg(long, default_value = "cache=64M", global = true)]
    cffs_options: String,
    /// Formats to run on; default: what the check is meant for
    #[arg(long, global = true, value_delimiter = ',')]
    format: Vec<Format>,
    /// Where the output of each check goes
    #[arg(long, default_value = "target/conformance", global = true)]
    logs: PathBuf,
    /// Where pjdfstest and fsx were installed to; others of that name are taken from the path
    #[arg(long, default_value = "target/tools", global = true)]
    tools: PathBuf,
    /// Keep the image of a check that fails
    #[arg(long, global = true)]
    keep: bool,
    /// Move all files again and again while a check runs, as `cffs regroup` does
    #[arg(long, global = true)]
    beside_regroup: bool,
    /// A check that cannot run here counts as failed
    #[arg(long, global = true)]
    strict: bool,
}

#[derive(clap::Subcommand)]
enum What {
    /// The POSIX test suite pjdfstest (root); on both formats
    Pjdfstest(pjdfstest::Args),
    /// Random operations on one file, each read verified
    Fsx(fsx::Args),
    /// Random writes by fio, read back and verified
    Fio(fio::Args),
    /// Filling to the last fragment and emptying, again and again
    Fill(fill::Args),
    /// Processes that work on a mount side by side, in directories of their own and in shared ones
    Stress(stress::Args),
    /// Real programs with the checks they bring
    Programs(programs::Args),
    #[command(hide = true)]
    StressWorker(stress::WorkerArgs),
}

/// Runs the subcommand: exit code 1 when a check failed.
///
/// # Errors
/// When nothing could be checked.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let What::StressWorker(worker) = &args.what {
        return stress::work(worker);
    }
    ensure!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse here: nothing can be mounted, nothing was tested");
    let cffs = std::path::absolute(&args.common.cffs)?;
    ensure!(cffs.is_file(), "{} is not there (cargo build --release, or --cffs)", cffs.display());
    let tools = suites::Tools::new(&args.common.tools)?;
    let checks = match &args.what {
        What::Pjdfstest(a) => pjdfstest::checks(a, &tools),
        What::Fsx(a) => fsx::checks(a, &tools),
        What::Fio(a) => fio::checks(a),
        What::Fill(a) => fill::checks(a),
        What::Stress(a) => stress::checks(a),
        What::Programs(a) => programs::checks(a)?,
        What::StressWorker(_) => Vec::new(),
    };
    std::fs::create_dir_all(&args.common.logs)
        .with_context(|| format!("cannot make the directory {}", args.common.logs.display()))?;
    let mut count = Count::default();
    for check in &checks {
        let formats = if args.common.format.is_empty() { &check.formats } else { &args.common.format };
        for format in formats {
            one(&args.common, &cffs, check, *format, &mut count)?;
        }
    }
    println!("{} passed, {} failed, {} could not run here", count.passed, count.failed, count.missing);
    let failed = count.failed > 0 || args.common.strict && count.missing > 0;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[derive(Default)]
struct Count {
    passed: u32,
    failed: u32,
    missing: u32,
}

fn one(common: &Common, cffs: &Path, check: &Check, format: Format, count: &mut Count) -> Result<()> {
    let title = format!("{} ({})", check.name, format.name());
    let log = common.logs.join(format!("{}.{}.log", check.name, format.name()));
    let job = Job::new(&log)?;
    let clock = Instant::now();
    let mount = TestMount::new(cffs, format.options(), check.size, &common.cffs_options, common.beside_regroup);
    let outcome = mount.and_then(|mut mount| {
        let done = (check.run)(&job, &mut mount);
        // Asked also of a file system that has already failed the check.
        let whole = mount.check();
        let result = match (done, whole) {
            (Ok(line), Ok(())) => Ok(match mount.regrouped() {
                Some(sums) => format!("{line}; {}", sums.said()),
                None => line,
            }),
            (Err(e), Ok(())) => Err(e),
            (Ok(_), Err(e)) => Err(e.context("what it left behind")),
            (Err(first), Err(second)) => Err(first.context(format!("and afterwards: {second:#}"))),
        };
        if let (true, Err(e)) = (common.keep, &result)
            && !e.is::<Missing>()
        {
            println!("kept: {}", mount.keep().display());
        }
        result
    });
    let seconds = clock.elapsed().as_secs_f64();
    match outcome {
        Ok(line) => {
            count.passed += 1;
            println!("pass     {title}: {line}; check clean [{seconds:.1} s]");
        }
        Err(e) if e.is::<Missing>() => {
            count.missing += 1;
            println!("missing  {title}: {e}");
        }
        Err(e) => {
            count.failed += 1;
            job.note(&format!("failed: {e:#}"));
            println!("FAILED   {title}: {e:#}\n         its output: {} [{seconds:.1} s]", log.display());
        }
    }
    Ok(())
}
