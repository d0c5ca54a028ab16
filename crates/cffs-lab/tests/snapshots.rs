//! Many snapshots of many files, in small. `cffs-lab snapshots` alone takes 10,000 of 100,000.

use std::process::Command;

#[test]
fn many_snapshots_are_what_was_there_and_give_their_space_back() {
    let dir = tempfile::tempdir().unwrap();
    let files = std::env::var("CFFS_SNAPSHOT_FILES").unwrap_or_else(|_| "3000".into());
    let snapshots = std::env::var("CFFS_SNAPSHOTS").unwrap_or_else(|_| "300".into());
    let mut lab = Command::new(env!("CARGO_BIN_EXE_cffs-lab"));
    lab.args(["snapshots", "--files", &files, "--snapshots", &snapshots, "--compared", "5", "--dir"]).arg(dir.path());
    let out = lab.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && text.contains("given back"), "{text}");
}
