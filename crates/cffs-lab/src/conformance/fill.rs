//! Fills a mounted file system to the last fragment and empties it again, many
//! times: what is free, and what everybody uses, is the same after each round. On a log disk what is free is nearly the same, because
//! what the log itself has in the segments differs.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::{StatVfs, XattrFlags, setxattr, statvfs};

use super::check::{Check, Format};
use super::job::Job;
use super::test_mount::TestMount;
use crate::process::run;
use crate::random::Random;

/// Arguments of `cffs-lab conformance fill`.
#[derive(clap::Args)]
pub struct Args {
    /// How often it is filled and emptied
    #[arg(long, default_value_t = 100)]
    rounds: u32,
    /// Starts the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const LIMIT: Duration = Duration::from_secs(60);
/// The users whose files they are.
const USERS: [u32; 3] = [1000, 1001, 1002];
/// Rounds between two unmounts.
const ROUNDS_PER_MOUNT: u32 = 10;

/// The one check.
pub fn checks(args: &Args) -> Vec<Check<'_>> {
    vec![Check {
        name: "fill".into(),
        size: "48M",
        formats: vec![Format::Default, Format::Conventional, Format::Log, Format::LogZstd],
        run: Box::new(|job, mount| check(args, job, mount)),
    }]
}

/// What has to be the same after each round.
#[derive(Debug, PartialEq, Eq)]
struct Free {
    blocks: u64,
    available: u64,
    inodes: u64,
}

impl Free {
    fn of(root: &Path) -> Result<Free> {
        let s: StatVfs = statvfs(root)?;
        Ok(Free { blocks: s.f_bfree, available: s.f_bavail, inodes: s.f_ffree })
    }
}

/// Share of what was free that may be missing on a log disk after a round, or be left when it is full: one in so many.
const SLACK: u64 = 8;

impl Free {
    /// Whether as much is free as before.
    fn is_as(&self, before: &Free, on_log_disk: bool) -> bool {
        if on_log_disk {
            self.blocks >= before.blocks - before.blocks / SLACK
                && self.available >= before.available - before.available / SLACK
        } else {
            self == before
        }
    }
}

/// Waits until all that was removed is free. Every FUSE mount hears of this sync.
fn sync(root: &Path) -> Result<()> {
    Ok(File::open(root)?.sync_all()?)
}

/// What is free once the kernel has let go of all that was removed, which it does in its own time: a file goes when it
/// is forgotten. Does not wait for long.
fn free_after_removal(root: &Path, expected: &Free, on_log_disk: bool) -> Result<Free> {
    let mut tries = 0;
    loop {
        sync(root)?;
        let now = Free::of(root)?;
        tries += 1;
        if now.is_as(expected, on_log_disk) || tries == 100 {
            return Ok(now);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn check(args: &Args, job: &Job, mount: &mut TestMount) -> Result<String> {
    let (root, log) = (mount.root().to_owned(), mount.is_on_log_disk());
    mount.switch_quotas_on()?;
    // Records of quotas take space, which is not given back while it is mounted: everybody has his from the beginning.
    let first = |mount: &TestMount| -> Result<Free> {
        for uid in USERS {
            let file = mount.root().join("first");
            fs::write(&file, b"x")?;
            chown(&file, Some(uid), Some(uid))?;
            fs::remove_file(&file)?;
        }
        // The file may take a moment to go.
        std::thread::sleep(Duration::from_millis(200));
        sync(mount.root())?;
        Free::of(mount.root())
    };
    let before = first(mount)?;
    let mut random = Random::new(args.seed);
    let (mut files, mut bytes) = (0, 0);
    for round in 0..args.rounds {
        let what = || format!("round {round}");
        let filled = fill(&root, &mut random).with_context(what)?;
        (files, bytes) = (files + filled.names, bytes + filled.bytes);
        let full = Free::of(&root)?;
        let most = if log { before.blocks / SLACK } else { 0 };
        ensure!(full.blocks <= most, "round {round}: {} fragments are free on a full file system", full.blocks);
        for entry in fs::read_dir(&root)? {
            let path = entry?.path();
            let gone =
                if path.is_dir() && !path.is_symlink() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            gone.with_context(|| format!("round {round}: removing {} on a full file system", path.display()))?;
        }
        let after = free_after_removal(&root, &before, log)?;
        ensure!(after.is_as(&before, log), "round {round}: {after:?} is free, and it was {before:?}");
        nothing_used(mount).with_context(what)?;
        job.note(&format!("round {round}: {} names, {} bytes", filled.names, filled.bytes));
        if round % ROUNDS_PER_MOUNT == ROUNDS_PER_MOUNT - 1 {
            mount.check()?;
            mount.mount()?;
            first(mount)?;
            let again = free_after_removal(&root, &before, log)?;
            ensure!(
                again.is_as(&before, log),
                "round {round}, mounted again: {again:?} is free, and it was {before:?}"
            );
        }
    }
    Ok(format!(
        "filled and emptied {} times, {files} names and {} MiB in all; the same is free and nothing is used each time",
        args.rounds,
        bytes >> 20
    ))
}

/// What was made.
#[derive(Default)]
struct Filled {
    names: u64,
    bytes: u64,
}

/// True if there was space.
fn fits(outcome: std::io::Result<()>) -> Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::StorageFull => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Makes files of many sizes with extended attributes, links and directories until nothing more has room; the last
/// fragments go one by one to a file.
fn fill(root: &Path, random: &mut Random) -> Result<Filled> {
    let mut filled = Filled::default();
    let mut dirs = vec![root.to_owned()];
    let mut files: Vec<PathBuf> = Vec::new();
    let mut refused = 0;
    let mut n = 0;
    while refused < 30 {
        n += 1;
        let path = dirs[random.below(dirs.len() as u64) as usize]
            .join(format!("{}{n}", "n".repeat(random.below(60) as usize)));
        let uid = USERS[random.below(3) as usize];
        let outcome = match random.below(12) {
            0 => fs::create_dir(&path).inspect(|()| dirs.push(path.clone())),
            1 => symlink("t".repeat(1 + random.below(3000) as usize), &path),
            2 if !files.is_empty() => fs::hard_link(&files[random.below(files.len() as u64) as usize], &path),
            3 if !files.is_empty() => {
                let file = &files[random.below(files.len() as u64) as usize];
                let value = vec![b'v'; [5, 40, 900, 20_000, 60_000][random.below(5) as usize]];
                let name = format!("user.{}", random.below(4));
                if fits(setxattr(file, &*name, &value, XattrFlags::empty()).map_err(Into::into))? {
                    refused = 0;
                } else {
                    refused += 1;
                }
                continue;
            }
            _ => {
                let len = [0, 50, 1000, 1025, 4096, 10_000, 70_000, 1_500_000][random.below(8) as usize];
                let made = File::create(&path).and_then(|mut f| {
                    files.push(path.clone());
                    f.write_all(&vec![n as u8; len])
                });
                // A file that got only a part of its bytes is there all the same.
                filled.bytes += fs::metadata(&path).map_or(0, |m| m.len());
                made
            }
        };
        if fits(outcome)? {
            (refused, filled.names) = (0, filled.names + 1);
        } else {
            refused += 1;
        }
        if path.symlink_metadata().is_ok() {
            lchown(&path, Some(uid), Some(uid))?;
        }
    }
    // Fragment by fragment at the ends of the files that there are.
    for file in &files {
        let mut f = File::options().append(true).open(file)?;
        while fits(f.write_all(&[7; 512]))? {
            filled.bytes += 512;
        }
        if Free::of(root)?.blocks == 0 {
            break;
        }
    }
    sync(root)?;
    Ok(filled)
}

/// Nobody but root, whose the root directory is, uses anything.
fn nothing_used(mount: &TestMount) -> Result<()> {
    let root = mount.root().to_string_lossy().into_owned();
    let report = run(&[mount.cffs(), "quota", "report", "--json", &root], LIMIT)?;
    let report: serde_json::Value = serde_json::from_str(&report).context("the report of quotas")?;
    for kind in ["user", "group", "project"] {
        let all = report[kind].as_array().with_context(|| format!("no {kind} quotas in the report: {report}"))?;
        for q in all {
            let number = |key: &str| q[key].as_u64().with_context(|| format!("no {key} in the report: {q}"));
            ensure!(number("id")? == 0 || (number("bytes")?, number("inodes")?) == (0, 0), "still used: {q}");
        }
    }
    Ok(())
}
