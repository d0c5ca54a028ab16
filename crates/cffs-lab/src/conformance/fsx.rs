//! fsx, the file system exerciser: random reads, writes, mappings, truncations
//! and so on of one file, every byte that is read compared.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::check::{Check, Format};
use super::job::{Job, command};
use super::suites::Tools;
use super::test_mount::TestMount;

/// Arguments of `cffs-lab conformance fsx`.
#[derive(clap::Args)]
pub struct Args {
    /// How many sequences, with the seeds from --first-seed on
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Operations of each sequence
    #[arg(long, default_value_t = 200_000)]
    operations: u64,
}

/// Every operation that fsx 0.3 knows. Sizes up to several blocks and beyond a group, in a file of at most 1 MiB. None is of no bytes: fsx
/// takes it for a failure that posix_fallocate(3) refuses that, as it has to.
const CONFIGURATION: &str = "\
flen = 1048576
[opsize]
min = 1
max = 131072
[weights]
close_open = 2
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 3
punch_hole = 5
sendfile = 3
posix_fadvise = 2
copy_file_range = 5
";

/// One check for all seeds: each starts with an empty file on the same file system.
pub fn checks<'a>(args: &'a Args, tools: &'a Tools) -> Vec<Check<'a>> {
    vec![Check {
        name: "fsx".into(),
        size: "1G",
        formats: vec![Format::Default, Format::Log],
        run: Box::new(|job, mount| check(args, tools, job, mount)),
    }]
}

fn check(args: &Args, tools: &Tools, job: &Job, mount: &mut TestMount) -> Result<String> {
    let program = tools.find("fsx")?;
    let beside = mount.beside("fsx")?;
    let config = beside.join("fsx.toml");
    fs::write(&config, CONFIGURATION)?;
    // Far beyond what it takes, which is about half a millisecond for an operation.
    let limit = Duration::from_secs(120) + Duration::from_millis(20) * u32::try_from(args.operations)?;
    for seed in args.first_seed..args.first_seed + args.seeds {
        let file = mount.root().join(format!("seed-{seed}"));
        let (operations, seed_word) = (args.operations.to_string(), seed.to_string());
        let mut fsx = command(&program, ["-N", &operations, "-S", &seed_word]);
        fsx.arg("-f").arg(&config).arg("-P").arg(&beside).arg(&file);
        let done = job.run(&mut fsx, limit).with_context(|| format!("seed {seed}"))?;
        ensure!(done.contains("A-OK"), "seed {seed}: fsx does not say that all is well");
        let left = fs::read(&file)?;
        // What it left is the same after a cold mount.
        mount.again()?;
        ensure!(fs::read(&file)? == left, "seed {seed}: the file changed by an unmount");
        fs::remove_file(&file)?;
    }
    Ok(format!("{} sequences of {} operations, no mismatch", args.seeds, args.operations))
}
