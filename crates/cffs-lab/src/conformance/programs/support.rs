//! What the programs share: arguments, what must be installed, comparing trees.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};

use crate::conformance::check::missing;
use crate::process::find_program;

/// Longer than any of these programs takes, also on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(3600);

/// Arguments of `cffs-lab conformance programs`.
#[derive(clap::Args)]
pub struct Args {
    /// Only these; without a name, all
    pub names: Vec<String>,
    /// The repository that git works with, and that is compiled
    #[arg(long, default_value = ".")]
    pub repo: PathBuf,
    /// Kills of the mount process under each program that has to keep its promises
    #[arg(long, default_value_t = 20)]
    pub kills: u32,
    /// Starts the random choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print the names and do nothing
    #[arg(long)]
    pub list: bool,
}

/// Gives up the check if one of these programs is not installed.
pub fn need(programs: &[&str]) -> Result<()> {
    let absent: Vec<&str> = programs.iter().copied().filter(|p| find_program(p).is_none()).collect();
    if absent.is_empty() { Ok(()) } else { missing(format!("not installed: {}", absent.join(", "))) }
}

/// Gives up the check if we are not root.
pub fn need_root(why: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { missing(format!("{why}: this takes root")) }
}

/// No difference at all between two trees.
pub fn same(expected: &Path, found: &Path, what: &str) -> Result<String> {
    let report = crate::compare::compare(expected, found)?;
    let differences = report.differences();
    if let Some(first) = differences.first() {
        bail!("{what}: {} differences, such as: {first}", differences.len());
    }
    Ok(format!("{} files", report.files()))
}
