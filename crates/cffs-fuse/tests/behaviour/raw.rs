//! System calls that take unsafe code in Rust, made by a script of Python (`raw.py`).

use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// What a call answers: the lines that it prints, or the name of an error such as `ESTALE`.
pub type Answer = Result<Vec<String>, String>;

/// Calls a command of the script. Gives up after two minutes.
///
/// # Panics
/// When the script itself fails, because that is no answer of a file system.
#[track_caller]
pub fn raw(words: &[&str]) -> Answer {
    raw_as(None, words)
}

/// The same, as the user and the group with this number.
///
/// # Panics
/// As [`raw`].
#[track_caller]
pub fn raw_as(user: Option<u32>, words: &[&str]) -> Answer {
    let mut command = Command::new("timeout");
    // A user may not get to the interpreter that root's PATH finds first.
    let system = "/usr/bin/python3";
    let python = if user.is_some() && std::path::Path::new(system).exists() { system } else { "python3" };
    command.args(["120", python, "-c", include_str!("raw.py")]).args(words);
    if let Some(user) = user {
        command.uid(user).gid(user).current_dir("/");
    }
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "raw.py {words:?}: {} {}", out.status, String::from_utf8_lossy(&out.stderr));
    match said.trim().strip_prefix("errno ") {
        Some(error) => Err(error.to_owned()),
        None => Ok(said.lines().map(str::to_owned).collect()),
    }
}
