//! pjdfstest, the test suite for POSIX system calls on names, modes, owners
//! and times, in its version in Rust.
//!
//! It runs twice. Some of its tests leave files open for writing until the
//! program ends, and a file system with such files cannot be mounted read-only
//! again, which is what its `erofs` tests begin with. So those have a run of
//! their own.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::check::{Check, Format, missing};
use super::job::{Job, command};
use super::suites::Tools;
use super::test_mount::TestMount;
use crate::cleanup::{Cleanup, Guard};

const LIMIT: Duration = Duration::from_secs(1800);

/// The version whose tests are counted here.
const VERSION: &str = "0.2.2";

/// Tests that no FUSE file system can be asked: glibc tells LINK_MAX by the type of the file system, knows none for FUSE,
/// and the test passes over what has no known limit. See docs/testing.md.
const NOT_FOR_FUSE: [&str; 1] = ["link::link_count_max"];

/// Arguments of `cffs-lab conformance pjdfstest`.
#[derive(clap::Args)]
pub struct Args {
    /// Only tests whose names have one of these words
    patterns: Vec<String>,
}

/// The one check.
pub fn checks<'a>(args: &'a Args, tools: &'a Tools) -> Vec<Check<'a>> {
    vec![Check {
        name: "pjdfstest".into(),
        size: "1G",
        formats: vec![Format::Default, Format::Conventional, Format::Log],
        run: Box::new(|job, mount| check(args, tools, job, mount)),
    }]
}

fn check(args: &Args, tools: &Tools, job: &Job, mount: &mut TestMount) -> Result<String> {
    let program = tools.find("pjdfstest")?;
    if !rustix::process::geteuid().is_root() {
        return missing("the tests change owners and mount: this takes root");
    }
    let version = job.run(&mut command(&program, ["--version"]), LIMIT)?;
    ensure!(version.contains(VERSION), "this is {}, and not {VERSION}", version.trim());
    // Some tests rename and link to another file system.
    let other = mount.beside("other")?;
    job.run(&mut command("mount", ["-t", "tmpfs", "none", &other.to_string_lossy()]), LIMIT)?;
    let _other_guard = Guard::new(Cleanup::Unmount(other.clone()));
    let helpers = mount.beside("helpers")?;
    for name in ["mount.fuse.cffs", "mount.fuseblk.cffs"] {
        symlink(mount.cffs(), helpers.join(name))?;
    }

    let mut results = BTreeMap::new();
    for remount in [false, true] {
        let config = helpers.join(format!("remount-{remount}.toml"));
        fs::write(&config, configuration(remount))?;
        let mut suite = if remount { with_helper(&helpers) } else { Command::new("env") };
        suite.arg(&program).arg("-c").arg(&config).arg("-p").arg(mount.root()).arg("-s").arg(&other);
        suite.env("NO_COLOR", "1");
        if remount {
            suite.arg("erofs");
        }
        let (_, text) = job.outcome(&mut suite, LIMIT)?;
        let ran = parse(&text);
        ensure!(!ran.is_empty(), "pjdfstest ran no test");
        for (name, outcome) in ran {
            // What was passed over in the first run counts by the second.
            let known = results.entry(name).or_insert(Outcome::Skipped);
            if *known != Outcome::Failed && outcome != Outcome::Skipped {
                *known = outcome;
            }
        }
    }
    let wanted = |name: &String| args.patterns.is_empty() || args.patterns.iter().any(|p| name.contains(p));
    results.retain(|name, _| wanted(name));
    judge(&results)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Passed,
    Failed,
    Skipped,
}

fn judge(results: &BTreeMap<String, Outcome>) -> Result<String> {
    let with = |outcome| results.iter().filter(move |(_, o)| **o == outcome).map(|(name, _)| name.as_str());
    let failed: Vec<_> = with(Outcome::Failed).collect();
    let (not_for_fuse, skipped): (Vec<_>, Vec<_>) =
        with(Outcome::Skipped).partition(|name| NOT_FOR_FUSE.contains(name));
    let passed = with(Outcome::Passed).count();
    if !failed.is_empty() || !skipped.is_empty() {
        bail!("{passed} tests passed, failed: {}; did not run: {}", list(&failed), list(&skipped));
    }
    ensure!(passed > 0, "no test has such a name");
    Ok(format!("{passed} tests passed, none failed; not for FUSE: {}", list(&not_for_fuse)))
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "none".into() } else { names.join(" ") }
}

fn configuration(remount: bool) -> String {
    // Two users that every Debian has, each in a group of its own.
    format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nstat_st_birthtime = {{}}\nutime_now = {{}}\n\
         utimensat = {{}}\n[settings]\nnaptime = 0.02\nallow_remount = {remount}\n[dummy_auth]\n\
         entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n"
    )
}

/// A command in a mount namespace where mount(8) finds `mount.fuseblk.cffs` of this build, whatever is installed.
fn with_helper(helpers: &Path) -> Command {
    let sbin = Path::new("/sbin").canonicalize().unwrap_or_else(|_| "/sbin".into());
    let script = "mount -t overlay -o \"lowerdir=$1:$2\" none \"$2\" && shift 2 && exec \"$@\"";
    let mut unshare = command("unshare", ["--mount", "sh", "-c", script, "sh"]);
    unshare.arg(helpers).arg(sbin);
    unshare
}

/// The lines "name … ok", "name … FAILED" and "name … skipped".
fn parse(text: &str) -> Vec<(String, Outcome)> {
    let outcome = |word: &str| match word {
        "ok" => Some(Outcome::Passed),
        "FAILED" => Some(Outcome::Failed),
        "skipped" => Some(Outcome::Skipped),
        _ => None,
    };
    text.lines()
        .filter(|line| !line.starts_with(char::is_whitespace))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, word) = (words.next()?, words.next()?);
            (words.next().is_none() && name.contains("::")).then_some(())?;
            Some((name.to_owned(), outcome(word)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "unlink::a  ok\nunlink::b::dir   FAILED\n\tcalled ok\n   0: pjdfstest::main ok\n\
        chmod::c  skipped\n\trequires root\n\nSummary: 1 failed, 1 skipped, 1 passed\n";

    #[test]
    fn outcomes_are_read() {
        let found = parse(TEXT);
        let expected =
            [("unlink::a", Outcome::Passed), ("unlink::b::dir", Outcome::Failed), ("chmod::c", Outcome::Skipped)];
        assert_eq!(found, expected.map(|(n, o)| (n.to_owned(), o)));
    }

    #[test]
    fn one_failure_or_one_test_that_did_not_run_is_a_failure() {
        let results = |extra: Option<Outcome>| {
            let mut map = BTreeMap::from([("a::b".to_owned(), Outcome::Passed)]);
            map.insert(NOT_FOR_FUSE[0].to_owned(), Outcome::Skipped);
            map.extend(extra.map(|o| ("x::y".to_owned(), o)));
            map
        };
        assert!(judge(&results(None)).unwrap().starts_with("1 tests passed"));
        for bad in [Outcome::Failed, Outcome::Skipped] {
            assert!(judge(&results(Some(bad))).unwrap_err().to_string().contains("x::y"));
        }
    }
}
