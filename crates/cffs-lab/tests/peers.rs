//! The comparison on a real kernel file system: its counts are what everybody
//! else's are measured by, and it must leave nothing behind.

use cffs_testenv::{Need, have};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Whether this machine can run it at all; says loudly when not.
fn can_run() -> bool {
    have(&[Need::Root, Need::Fuse, Need::Loop])
        && have(&["nbdkit", "nbdfuse", "losetup", "mkfs.ext4"].map(Need::Program))
}

fn lab(temp: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cffs-lab"));
    command.arg("peers").args(args).args(["--size", "512M"]).env("TMPDIR", temp);
    command
}

/// No mount, loop device or process of a run below `temp`, and no file in it.
fn assert_nothing_left(temp: &Path) {
    let shown = temp.to_string_lossy();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&*shown), "still mounted:\n{mounts}");
    let loops = Command::new("losetup").arg("-a").output().unwrap();
    let loops = String::from_utf8_lossy(&loops.stdout).into_owned();
    assert!(!loops.contains(&*shown), "still attached:\n{loops}");
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        if let Ok(words) = std::fs::read(process.path().join("cmdline")) {
            let words = String::from_utf8_lossy(&words).into_owned();
            assert!(!words.contains(&*shown), "still running: {words}");
        }
    }
    let files: Vec<_> = std::fs::read_dir(temp).unwrap().flatten().map(|e| e.path()).collect();
    assert!(files.is_empty(), "left behind: {files:?}");
}

#[test]
fn ext4_is_measured_and_nothing_is_left() {
    if !can_run() {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let results = tempfile::NamedTempFile::new().unwrap();
    let json = results.path().to_str().unwrap();
    let args = ["--only", "ext4", "--workload", "read", "--files", "300", "--json", json];
    let out = lab(temp.path(), &args).stdin(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(results.path()).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "what a workload needs is measured too: {rows:?}");
    let create = &rows[0]["disk"];
    assert!(create["write_bytes"].as_u64().unwrap() >= 300 * 1024, "{create}");
    assert!(create["flushes"].as_u64().unwrap() >= 1, "a sync reaches the disk's cache: {create}");
    // A cold ext4 reads each file with a request of its own; fewer would mean
    // that some cache on the way was not cold.
    let reads = rows[1]["disk"]["reads"].as_u64().unwrap();
    assert!((300..1000).contains(&reads), "{reads} requests for 300 files");
    let seconds = rows[1]["seconds"].as_f64().unwrap();
    assert!(seconds >= 0.3, "300 requests of 1 ms took {seconds} s");
    assert_nothing_left(temp.path());
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    if !can_run() {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let mut child = lab(temp.path(), &["--only", "ext4", "--workload", "read"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // In the middle: once the kernel's file system is mounted.
    let deadline = Instant::now() + Duration::from_secs(60);
    let mounted = format!("{}/cffs-lab-ext4-", temp.path().display());
    loop {
        let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
        if table.lines().any(|l| l.contains(&mounted) && l.contains("/mnt ext4 ")) {
            break;
        }
        assert!(Instant::now() < deadline, "nothing was mounted in a minute");
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was interrupted");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(300));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert_nothing_left(temp.path());
}
