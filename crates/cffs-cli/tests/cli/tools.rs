//! Running the program, and what the tests share.

pub use cffs_testenv::{Need, have, skipped, when_not_busy};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub const CFFS: &str = env!("CARGO_BIN_EXE_cffs");

/// A directory of the test's own.
pub fn temp_dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("cffs-cli-").tempdir().unwrap()
}

pub fn run<S: AsRef<OsStr>>(args: &[S]) -> Output {
    // A mount that hangs must not hang the tests; 124 is no exit code of ours.
    Command::new("timeout").arg("120").arg(CFFS).args(args).env_remove("CFFS_LOG").output().unwrap()
}

pub fn stdout(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

pub fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Runs the program, which must succeed; returns its standard output.
#[track_caller]
pub fn ok<S: AsRef<OsStr> + std::fmt::Debug>(args: &[S]) -> String {
    let out = run(args);
    assert!(out.status.success(), "{args:?}: {:?}\n{}", out.status, stderr(&out));
    stdout(&out)
}

/// Runs the program, which must fail with this exit code and a message that contains all of `words`.
#[track_caller]
pub fn fails<S: AsRef<OsStr> + std::fmt::Debug>(args: &[S], code: i32, words: &[&str]) {
    let out = run(args);
    let message = stderr(&out);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {message}");
    for word in words {
        assert!(message.contains(word), "{args:?}: no {word:?} in: {message}");
    }
    assert!(!message.contains("panicked"), "{args:?}: {message}");
}

/// A new image with a small file system.
pub fn make_image(dir: &Path, more: &[&str]) -> String {
    let image = dir.join("image").to_str().unwrap().to_owned();
    ok(&[&["mkfs", "--size", "64M", "--group-size", "64K"], more, &[&image]].concat());
    image
}

pub fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e} in {text}"))
}

/// What a file has, to see that it is as it was.
pub fn contents(path: impl AsRef<Path>) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Something mounted by a test, detached at its end whatever happens.
pub struct Mounted(pub PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("timeout").arg("20").arg("umount").arg("-l").arg(&self.0).output();
    }
}
