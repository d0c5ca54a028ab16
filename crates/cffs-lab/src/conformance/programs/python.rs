//! Python's own tests of the modules that talk to the file system.

use anyhow::{Result, bail};

use super::support::{Args, LIMIT};
use crate::conformance::check::missing;
use crate::conformance::job::{Job, command};
use crate::conformance::test_mount::TestMount;

const PYTHON: &str = "/usr/bin/python3";

const MODULES: [&str; 14] = [
    "test_os",
    "test_posix",
    "test_shutil",
    "test_tempfile",
    "test_mailbox",
    "test_mmap",
    "test_pathlib",
    "test_glob",
    "test_genericpath",
    "test_posixpath",
    "test_tarfile",
    "test_zipfile",
    "test_file",
    "test_largefile",
];

/// Each module in a process of its own, with its temporary files on the mount.
pub fn run(_: &Args, job: &Job, mount: &mut TestMount) -> Result<String> {
    let probe = command(PYTHON, ["-c", "import test.test_os, test.test_mailbox"]).output();
    if !probe.is_ok_and(|out| out.status.success()) {
        return missing("Python's tests are not installed (package libpython3.N-testsuite)");
    }
    let temp = mount.root().join("tmp");
    std::fs::create_dir(&temp)?;
    let mut failed = Vec::new();
    for module in MODULES {
        let mut test = command(PYTHON, ["-m", "test", "-w", "-u", "largefile", "--tempdir"]);
        test.arg(&temp).arg(module).env("TMPDIR", &temp).current_dir(&temp);
        if !job.outcome(&mut test, LIMIT)?.0 {
            failed.push(module);
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} modules fail: {}", failed.len(), MODULES.len(), failed.join(" "));
    }
    Ok(format!("{} test modules pass", MODULES.len()))
}
