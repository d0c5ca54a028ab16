//! Campaigns of `cffs-lab`, run as a person runs them.

use cffs_testenv::{Need, have, skipped};
use std::path::PathBuf;
use std::process::{Command, Output};

/// Runs a campaign with the program `cffs` beside it; `None`, with a message, where it cannot run. Nothing may be left behind.
pub fn lab(args: &[&str]) -> Option<Output> {
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
    let out = Command::new(lab).env("TMPDIR", temp.path()).args(args).arg("--cffs").arg(cffs).output().unwrap();
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!table.contains(temp.path().to_str().unwrap()), "mounts are left behind:\n{table}");
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0, "files are left behind");
    Some(out)
}

/// All that it said.
pub fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}
