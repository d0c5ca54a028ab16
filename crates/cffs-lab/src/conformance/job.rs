//! Programs run for a check, with their output kept.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::process::wait_for;

/// A file that takes what the programs of a check print.
pub struct Job {
    log: RefCell<File>,
}

impl Job {
    /// Starts a new log.
    pub fn new(path: &Path) -> Result<Job> {
        let log = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Job { log: RefCell::new(log) })
    }

    /// A line of our own in the log.
    pub fn note(&self, text: &str) {
        // A log that cannot be written does not make a check fail.
        let _ = writeln!(self.log.borrow_mut(), "{text}");
    }

    /// Runs a program to its end and returns its standard output; all it prints goes into the log.
    ///
    /// # Errors
    /// When it cannot be started, does not end within `limit` (its whole process group is killed then) or fails.
    pub fn run(&self, command: &mut Command, limit: Duration) -> Result<String> {
        let (success, out) = self.outcome(command, limit)?;
        match success {
            true => Ok(out),
            false => bail!("`{}` failed", show(command)),
        }
    }

    /// As [`Job::run`], but a failure of the program is a result: whether it succeeded, and its output.
    ///
    /// # Errors
    /// When it cannot be started or does not end in time.
    pub fn outcome(&self, command: &mut Command, limit: Duration) -> Result<(bool, String)> {
        let shown = show(command);
        self.note(&format!("$ {shown}"));
        let stderr = self.log.borrow().try_clone()?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start `{shown}`"))?;
        let pipe = child.stdout.take();
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut bytes);
            }
            bytes
        });
        let Some(status) = wait_for(&mut child, limit)? else {
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            bail!("`{shown}` did not end within {} s", limit.as_secs());
        };
        let bytes = reader.join().unwrap_or_default();
        let _ = self.log.borrow_mut().write_all(&bytes);
        self.note(&format!("({status})"));
        Ok((status.success(), String::from_utf8_lossy(&bytes).into_owned()))
    }
}

/// A command with these arguments.
pub fn command<S: AsRef<std::ffi::OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

fn show(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    let line = words.join(" ");
    match command.get_current_dir() {
        Some(dir) => format!("cd {}; {line}", dir.display()),
        None => line,
    }
}
