//! Reads every file of a tree once, one thread, in the order of the directories.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};

/// Arguments of `cffs-lab readall`.
#[derive(clap::Args)]
pub struct Args {
    /// The tree
    dir: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// What a walk read.
#[derive(Default, serde::Serialize)]
struct Sum {
    files: u64,
    bytes: u64,
    seconds: f64,
}

/// Runs the subcommand.
///
/// # Errors
/// When a file of the tree cannot be read.
pub fn run(args: &Args) -> Result<ExitCode> {
    let start = Instant::now();
    let mut sum = Sum::default();
    let mut buffer = vec![0u8; 256 << 10];
    read_tree(&args.dir, &mut buffer, &mut sum)?;
    sum.seconds = start.elapsed().as_secs_f64();
    if args.json {
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
