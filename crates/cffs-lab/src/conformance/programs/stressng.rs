//! stress-ng: its stressors for file systems, which verify what they do.

use anyhow::{Result, bail, ensure};

use super::support::{Args, LIMIT, need};
use crate::conformance::job::{Job, command};
use crate::conformance::test_mount::TestMount;

/// Those of version 0.15 that work on a directory. Not `fiemap` and `verity`: no FUSE file system has them.
const STRESSORS: [&str; 36] = [
    "access",
    "chattr",
    "chdir",
    "chmod",
    "chown",
    "copy-file",
    "dentry",
    "dir",
    "dirdeep",
    "dirmany",
    "dnotify",
    "dup",
    "fallocate",
    "fcntl",
    "filename",
    "flock",
    "fstat",
    "getdent",
    "hdd",
    "inotify",
    "io",
    "iomix",
    "link",
    "locka",
    "lockf",
    "lockofd",
    "mknod",
    "open",
    "rename",
    "seek",
    "symlink",
    "sync-file",
    "touch",
    "utime",
    "file-ioctl",
    "xattr",
];

/// Each stressor in two processes, for three seconds.
pub fn run(_: &Args, job: &Job, mount: &mut TestMount) -> Result<String> {
    need(&["stress-ng"])?;
    let temp = mount.root().join("tmp");
    std::fs::create_dir(&temp)?;
    let (mut failed, mut skipped) = (Vec::new(), Vec::new());
    for stressor in STRESSORS {
        let mut stress = command("stress-ng", ["--verify", "--timeout", "3s", "--stdout", "--temp-path"]);
        stress.arg(&temp).arg(format!("--{stressor}")).arg("2").current_dir("/");
        let (success, text) = job.outcome(&mut stress, LIMIT)?;
        // It calls that a success, or not, by stressor.
        if text.contains("not support") && text.contains("skipp") {
            skipped.push(stressor);
        } else if !success {
            failed.push(stressor);
        }
    }
    if !failed.is_empty() {
        bail!("{} stressors fail: {}", failed.len(), failed.join(" "));
    }
    ensure!(skipped.is_empty(), "stressors that found nothing to work on: {}", skipped.join(" "));
    Ok(format!("{} stressors, none failed", STRESSORS.len()))
}
