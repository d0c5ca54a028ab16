//! Reads every file of a tree once, one thread, in the order of the directories.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::process::run_command;

/// Arguments of `cffs-lab readall`.
#[derive(clap::Args)]
pub struct Args {
    /// The tree
    dir: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
    /// Count the read requests of this block device (`loop0`)
    #[arg(long, conflicts_with = "cffs")]
    block_device: Option<String>,
    /// Count the read requests of the cffs mount by asking this program
    #[arg(long)]
    cffs: Option<PathBuf>,
    /// Print a row of a table, with this name first
    #[arg(long, conflicts_with = "json")]
    row: Option<String>,
}

/// What a walk read.
#[derive(Default, serde::Serialize)]
struct Sum {
    files: u64,
    bytes: u64,
    seconds: f64,
    /// Read requests the device got meanwhile, where somebody counts them.
    read_requests: Option<u64>,
}

/// Runs the subcommand.
///
/// # Errors
/// When a file of the tree cannot be read.
pub fn run(args: &Args) -> Result<ExitCode> {
    let before = read_requests(args)?;
    let start = Instant::now();
    let mut sum = Sum::default();
    let mut buffer = vec![0u8; 256 << 10];
    read_tree(&args.dir, &mut buffer, &mut sum)?;
    sum.seconds = start.elapsed().as_secs_f64();
    if let (Some(before), Some(after)) = (before, read_requests(args)?) {
        sum.read_requests = Some(after.saturating_sub(before));
    }
    if let Some(name) = &args.row {
        let requests = sum
            .read_requests
            .map_or("-".to_string(), |r| format!("{:.1}", r as f64 * 1000.0 / sum.files.max(1) as f64));
        println!("{name:8}{:>18.0}{requests:>30}", sum.files as f64 / sum.seconds);
    } else if args.json {
        println!("{}", serde_json::to_string(&sum)?);
    } else {
        println!(
            "{} files, {} bytes in {:.3} s: {:.0} files/s",
            sum.files,
            sum.bytes,
            sum.seconds,
            sum.files as f64 / sum.seconds
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The device's read requests until now.
fn read_requests(args: &Args) -> Result<Option<u64>> {
    if let Some(device) = &args.block_device {
        let path = format!("/sys/block/{device}/stat");
        let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        // The first number is the read requests that were completed.
        let first = stat.split_whitespace().next();
        let reads = first.and_then(|word| word.parse().ok());
        return Ok(Some(reads.with_context(|| format!("{path}: {stat}"))?));
    }
    let Some(program) = &args.cffs else {
        return Ok(None);
    };
    let mut command = Command::new(program);
    command.arg("stats").arg(&args.dir).arg("--json");
    let text = run_command(command, Duration::from_secs(60))?;
    let json: serde_json::Value = serde_json::from_str(&text).context("`cffs stats --json` is not JSON")?;
    device_reads(&json).map(Some).context("`cffs stats --json` has no count of read requests in \"device\"")
}

fn device_reads(json: &serde_json::Value) -> Option<u64> {
    json.pointer("/device/reads")?.as_u64()
}

fn read_tree(dir: &Path, buffer: &mut [u8], sum: &mut Sum) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", dir.display()))?;
        let path = entry.path();
        let kind = entry.file_type()?;
        if kind.is_dir() {
            read_tree(&path, buffer, sum)?;
        } else if kind.is_file() {
            let mut file = fs::File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
            loop {
                let n = file.read(buffer).with_context(|| format!("cannot read {}", path.display()))?;
                if n == 0 {
                    break;
                }
                sum.bytes += n as u64;
            }
            sum.files += 1;
        }
    }
    Ok(())
}
