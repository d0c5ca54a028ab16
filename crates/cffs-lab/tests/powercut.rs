//! Power cuts under a mounted cffs, few enough for every run of the tests. The long form is part of `make soak`.

use cffs_testenv::{Need, have, skipped};
use std::path::PathBuf;
use std::process::{Command, Output};

/// Runs `cffs-lab powercut`; `None`, with a message, where it cannot run.
fn powercut(args: &[&str]) -> Option<Output> {
    let lab = PathBuf::from(env!("CARGO_BIN_EXE_cffs-lab"));
    // Tests of the whole workspace build it, `cargo test -p cffs-lab` does not.
    let cffs = lab.with_file_name("cffs");
    if !have(&[Need::Root, Need::Fuse]) {
        return None;
    }
    if !cffs.is_file() {
        skipped("cffs", "the cffs program is missing, which `cargo test --workspace` builds");
        return None;
    }
    let temp = tempfile::tempdir().unwrap();
    let out = Command::new(lab)
        .env("TMPDIR", temp.path())
        .args(["powercut", "--longest", "300", "--size", "64"])
        .arg("--cffs")
        .arg(cffs)
        .args(args)
        .output()
        .unwrap();
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!table.contains(temp.path().to_str().unwrap()), "mounts are left behind:\n{table}");
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0, "files are left behind");
    Some(out)
}

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

#[test]
fn what_was_promised_is_there_after_power_cuts() {
    for mkfs in [&["--seed", "1"][..], &["--seed", "2", "--mkfs=--no-embed", "--mkfs=--no-group"]] {
        let Some(out) = powercut(&[&["--rounds", "4"], mkfs].concat()) else { return };
        assert!(out.status.success(), "{}", text(&out));
        assert!(text(&out).contains("every check clean"), "{}", text(&out));
    }
}

#[test]
fn a_disk_that_lies_about_flushes_is_found_to_break_promises() {
    let Some(out) = powercut(&["--rounds", "10", "--seed", "3", "--lie"]) else { return };
    assert_eq!(out.status.code(), Some(1), "{}", text(&out));
    // However it shows: a file that is lost, or one that has other contents than it can have.
    assert!(text(&out).contains(": FAILED: "), "{}", text(&out));
}
