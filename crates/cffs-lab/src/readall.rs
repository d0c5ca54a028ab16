//! Reads every file of a tree once, one thread, in the order of the directories.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

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
    #[arg(long, conflicts_with = "cffs_mount")]
    block_device: Option<String>,
    /// Count the read requests of the cffs mount at this directory
    #[arg(long, requires = "cffs")]
    cffs_mount: Option<PathBuf>,
    /// The program that is asked for them
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
    let (Some(program), Some(mount)) = (&args.cffs, &args.cffs_mount) else {
        return Ok(None);
    };
    let mut command = Command::new(program);
    command.arg("stats").arg(mount).arg("--json");
    let text = run_command(command, Duration::from_secs(60))?;
    let json: serde_json::Value = serde_json::from_str(&text).context("`cffs stats --json` is not JSON")?;
    let device = json.get("device").and_then(read_requests_in);
    device.map(Some).context("`cffs stats --json` has no read requests of the device")
}

/// The sum over the kinds of requests, wherever below `device` they stand. A
/// total beside them is not added to itself.
fn read_requests_in(value: &Value) -> Option<u64> {
    let parts: Vec<&Value> = match value {
        Value::Object(object) => {
            if let Some(count) = object.get("read_requests") {
                return count.as_u64();
            }
            object.iter().filter(|(name, _)| !["all", "total"].contains(&name.as_str())).map(|(_, v)| v).collect()
        }
        Value::Array(items) => items.iter().collect(),
        _ => return None,
    };
    parts.into_iter().filter_map(read_requests_in).reduce(|a, b| a + b)
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn read_requests_are_added_over_the_kinds() {
        let kinds = json!({"kinds": [{"read_requests": 3, "read_bytes": 9}, {"read_requests": 4}], "flushes": 7});
        assert_eq!(read_requests_in(&kinds), Some(7));
        let named = json!({"meta": {"read_requests": 3}, "data": {"read_requests": 4}, "total": {"read_requests": 7}});
        assert_eq!(read_requests_in(&named), Some(7));
        assert_eq!(read_requests_in(&json!({"flushes": 7})), None);
    }

    #[test]
    fn every_file_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("a"), vec![1; 300_000]).unwrap();
        fs::write(dir.path().join("sub/b"), b"xyz").unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        let mut sum = Sum::default();
        read_tree(dir.path(), &mut [0; 4096], &mut sum).unwrap();
        assert_eq!((sum.files, sum.bytes), (2, 300_003));
    }
}
