//! The test suites of others, in a form short enough for every run of the tests. The long form is `make conformance`.

use cffs_testenv::{Need, have, skipped};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The `cffs-lab conformance` command, or `None`, with a message, where it cannot run.
fn conformance(tool: &str, logs: &Path) -> Option<Command> {
    let lab = PathBuf::from(env!("CARGO_BIN_EXE_cffs-lab"));
    // Tests of the whole workspace build it, `cargo test -p cffs-lab` does not.
    let cffs = lab.with_file_name("cffs");
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
    if !have(&[Need::Root, Need::Fuse]) {
        return None;
    }
    for (there, name, what) in [
        (cffs.is_file(), "cffs", "the cffs program, which `cargo test --workspace` builds"),
        (tools.join("bin").join(tool).is_file(), tool, "the suite, which scripts/setup.sh installs"),
    ] {
        if !there {
            skipped(name, &format!("{tool} takes {what}"));
            return None;
        }
    }
    let mut command = Command::new(lab);
    command.args(["conformance", "--strict"]).arg("--cffs").arg(cffs).arg("--tools").arg(tools);
    command.arg("--logs").arg(logs).stdin(Stdio::null());
    Some(command)
}

#[track_caller]
fn passes(mut command: Command, tool: &str, args: &[&str], logs: &Path) {
    let out = command.arg(tool).args(args).output().unwrap();
    let mut text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    if !out.status.success() {
        for log in std::fs::read_dir(logs).unwrap().flatten() {
            text.push_str(&String::from_utf8_lossy(&std::fs::read(log.path()).unwrap()));
        }
    }
    assert!(out.status.success(), "{text}");
}

#[test]
fn pjdfstest_on_each_format() {
    let logs = tempfile::tempdir().unwrap();
    if let Some(command) = conformance("pjdfstest", logs.path()) {
        passes(command, "pjdfstest", &[], logs.path());
    }
}

#[test]
fn a_stress_of_a_few_seconds() {
    let logs = tempfile::tempdir().unwrap();
    // Takes no suite; what it takes, pjdfstest takes too.
    if let Some(command) = conformance("pjdfstest", logs.path()) {
        passes(command, "stress", &["--seconds", "4", "--rounds", "2"], logs.path());
    }
}
