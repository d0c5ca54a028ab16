//! Real programs, from their own packages, with the checks they bring: what
//! git, SQLite, rsync or a C compiler do to a file system, nobody thinks of
//! when he writes tests.

mod archives;
mod build;
mod fixture;
mod git;
mod mail;
mod packages;
mod python;
mod sqlite;
mod stressng;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::job::Job;
use super::test_mount::TestMount;
use super::{Check, Format, missing};
use crate::process::find_program;

/// Longer than any of these programs takes, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(3600);

/// Arguments of `cffs-lab conformance programs`.
#[derive(clap::Args)]
pub struct Args {
    /// Only these; without a name, all
    names: Vec<String>,
    /// The repository that git works with, and that is compiled
    #[arg(long, default_value = ".")]
    repo: PathBuf,
    /// Kills of the mount process under each program that has to keep its promises
    #[arg(long, default_value_t = 20)]
    kills: u32,
    /// Starts the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the names and do nothing
    #[arg(long)]
    list: bool,
}

type Run = fn(&Args, &Job, &mut TestMount) -> Result<String>;

/// Every check: its name, the size of its image, and what it does.
const ALL: [(&str, &str, Run); 13] = [
    ("git", "4G", git::run),
    ("c-projects", "2G", build::c_projects),
    ("rust-project", "16G", build::rust_project),
    ("sqlite-wal", "1G", sqlite::wal),
    ("sqlite-rollback", "1G", sqlite::rollback),
    ("rsync", "2G", archives::rsync),
    ("tar", "2G", archives::tar),
    ("cpio", "2G", archives::cpio),
    ("cp", "2G", archives::cp),
    ("maildir", "1G", mail::run),
    ("packages", "4G", packages::run),
    ("python", "4G", python::run),
    ("stress-ng", "4G", stressng::run),
];

/// The checks that were asked for.
pub fn checks(args: &Args) -> Result<Vec<Check<'_>>> {
    if args.list {
        for (name, ..) in ALL {
            println!("{name}");
        }
    }
    for name in &args.names {
        ensure!(ALL.iter().any(|(n, ..)| n == name), "there is no check called '{name}' (see --list)");
    }
    let wanted = |name: &str| !args.list && (args.names.is_empty() || args.names.iter().any(|n| n == name));
    let checks = ALL.into_iter().filter(|(name, ..)| wanted(name));
    Ok(checks
        .map(|(name, size, run)| Check {
            name: name.to_owned(),
            size,
            formats: vec![Format::Default],
            run: Box::new(move |job, mount| run(args, job, mount)),
        })
        .collect())
}

/// Gives up the check if one of these programs is not installed.
fn need(programs: &[&str]) -> Result<()> {
    let absent: Vec<&str> = programs.iter().copied().filter(|p| find_program(p).is_none()).collect();
    if absent.is_empty() { Ok(()) } else { missing(format!("not installed: {}", absent.join(", "))) }
}

/// Gives up the check if we are not root.
fn need_root(why: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { missing(format!("{why}: this takes root")) }
}

/// No difference at all between two trees.
fn same(expected: &Path, found: &Path, what: &str) -> Result<String> {
    let report = crate::compare::compare(expected, found)?;
    let differences = report.differences();
    if let Some(first) = differences.first() {
        bail!("{what}: {} differences, such as: {first}", differences.len());
    }
    Ok(format!("{} files", report.files()))
}
