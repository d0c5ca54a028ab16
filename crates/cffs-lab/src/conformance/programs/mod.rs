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
mod support;

use anyhow::{Result, ensure};

use super::check::{Check, Format};
use super::job::Job;
use super::test_mount::TestMount;
pub use support::Args;

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
