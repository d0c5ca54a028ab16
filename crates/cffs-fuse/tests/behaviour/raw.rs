//! System calls that take unsafe code in Rust, made by a script of Python (`raw.py`).

use std::process::Command;

/// What a call answers: the lines that it prints, or the name of an error such as `ESTALE`.
pub type Answer = Result<Vec<String>, String>;

/// Calls a command of the script. Gives up after two minutes.
///
/// # Panics
/// When the script itself fails, because that is no answer of a file system.
#[track_caller]
pub fn raw(words: &[&str]) -> Answer {
    let out =
        Command::new("timeout").args(["120", "python3", "-c", include_str!("raw.py")]).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "raw.py {words:?}: {} {}", out.status, String::from_utf8_lossy(&out.stderr));
    match said.trim().strip_prefix("errno ") {
        Some(error) => Err(error.to_owned()),
        None => Ok(said.lines().map(str::to_owned).collect()),
    }
}
