//! git: its objects are its own checksums.

use anyhow::{Result, ensure};
use std::path::Path;

use super::support::{Args, LIMIT, need};
use crate::conformance::job::{Job, command};
use crate::conformance::test_mount::TestMount;

/// How many revisions are checked out.
const REVISIONS: usize = 60;

fn git(job: &Job, dir: &Path, args: &[&str]) -> Result<String> {
    let mut git = command("git", ["-c", "safe.directory=*", "-c", "advice.detachedHead=false", "-C"]);
    git.arg(dir).args(args).env("LC_ALL", "C").env("GIT_CONFIG_GLOBAL", "/dev/null");
    job.run(&mut git, LIMIT)
}

/// Clone, checkout of many revisions, gc, fsck, on the mount and between mounts.
pub fn run(args: &Args, job: &Job, mount: &mut TestMount) -> Result<String> {
    need(&["git"])?;
    let source = git(job, &args.repo, &["rev-parse", "--show-toplevel"])?;
    let (clone, second) = (mount.root().join("clone"), mount.root().join("second"));
    let head = git(job, &args.repo, &["rev-parse", "HEAD"])?;
    // As over the network: objects are copied and not linked.
    let url = format!("file://{}", source.trim());
    git(job, mount.root(), &["clone", "--quiet", &url, &clone.to_string_lossy()])?;
    let log = git(job, &clone, &["log", "--format=%H", "origin/HEAD"])?;
    let all: Vec<&str> = log.lines().collect();
    ensure!(all.len() > 1, "a repository of one revision is no test");
    let step = all.len().div_ceil(REVISIONS);
    let mut checked_out = 0;
    for revision in all.iter().step_by(step) {
        git(job, &clone, &["checkout", "--quiet", revision])?;
        // Compares the bytes, not the times.
        git(job, &clone, &["diff-index", "--quiet", "HEAD"])?;
        ensure!(git(job, &clone, &["status", "--porcelain"])?.is_empty(), "{revision} is not clean after a checkout");
        checked_out += 1;
        if checked_out == REVISIONS / 2 {
            git(job, &clone, &["gc", "--quiet"])?;
        }
    }
    git(job, &clone, &["fsck", "--full", "--strict"])?;
    git(job, &clone, &["gc", "--quiet", "--aggressive", "--prune=now"])?;
    git(job, &clone, &["fsck", "--full", "--strict"])?;
    mount.again()?;
    ensure!(git(job, &clone, &["status", "--porcelain"])?.is_empty(), "not clean after a cold mount");
    // Its objects are linked.
    git(job, mount.root(), &["clone", "--quiet", &clone.to_string_lossy(), &second.to_string_lossy()])?;
    git(job, &second, &["checkout", "--quiet", head.trim()])?;
    git(job, &second, &["fsck", "--full", "--strict"])?;
    // Of the commit that was HEAD when this began: the repository may be worked in.
    let tree = |dir| git(job, dir, &["rev-parse", &format!("{}^{{tree}}", head.trim())]);
    ensure!(tree(&second)? == tree(&args.repo)?, "the clone has another tree");
    Ok(format!("{} commits cloned, {checked_out} checked out, two gc, three fsck, a second clone", all.len()))
}
