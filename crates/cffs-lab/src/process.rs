//! Running other programs with a time limit, and looking at the mount table.

use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cleanup::{Guard, Cleanup};

/// Runs a program, waits at most `limit`, and returns its standard output.
///
/// # Errors
/// When it cannot be started, does not end in time, or fails; the message has
/// its standard error.
pub fn run(argv: &[&str], limit: Duration) -> Result<String> {
    let mut command = Command::new(argv[0]);
    command.args(&argv[1..]);
    run_command(command, limit)
}

/// [`run`] for a prepared command.
///
/// # Errors
/// As [`run`].
pub fn run_command(mut command: Command, limit: Duration) -> Result<String> {
    let shown = show(&command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{shown}`"))?;
    // Both pipes are drained while we wait, or a talkative program would block.
    let out = drain(child.stdout.take());
    let err = drain(child.stderr.take());
    let status = match wait_for(&mut child, limit)? {
        Some(status) => status,
        None => {
            // No second wait: a process stuck on a dead mount may never end.
            let _ = child.kill();
            bail!("`{shown}` did not end within {} s", limit.as_secs());
        }
    };
    let stdout = out.join().unwrap_or_default();
    let stderr = err.join().unwrap_or_default();
    if !status.success() {
        bail!("`{shown}` failed ({status}): {}", stderr.trim());
    }
    Ok(stdout)
}

fn drain<R: Read + Send + 'static>(pipe: Option<R>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn show(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Waits for a child at most `limit`; `None` if it still runs.
///
/// # Errors
/// When the child cannot be waited for.
pub fn wait_for(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// A long-running helper of ours (a server), ended when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    name: String,
    guard: Option<Guard>,
}

impl Server {
    /// Starts it in a process group of its own, so that an interrupt from the
    /// terminal reaches only us and the order of taking down is ours.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command) -> Result<Self> {
        let name = show(&command);
        let child =
            command.stdin(Stdio::null()).process_group(0).spawn().with_context(|| format!("cannot start `{name}`"))?;
        let guard = Guard::new(Cleanup::End(child.id()));
        Ok(Server { child, name, guard: Some(guard) })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready` says so.
    ///
    /// # Errors
    /// When the server ends before that or `limit` passes.
    pub fn wait_until(&mut self, limit: Duration, mut ready: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !ready() {
            if let Some(status) = self.child.try_wait()? {
                self.forget();
                bail!("`{}` ended before it was ready ({status}); its message is above", self.name);
            }
            if Instant::now() >= deadline {
                bail!("`{}` was not ready after {} s", self.name, limit.as_secs());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Waits for it to end by itself.
    ///
    /// # Errors
    /// When it does not end within `limit`.
    pub fn wait_end(mut self, limit: Duration) -> Result<ExitStatus> {
        match wait_for(&mut self.child, limit)? {
            Some(status) => {
                self.forget();
                Ok(status)
            }
            None => bail!("`{}` did not end within {} s", self.name, limit.as_secs()),
        }
    }

    /// Its peak memory so far, in bytes.
    pub fn peak_memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
        let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib * 1024)
    }

    fn forget(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.disarm();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ends it if it still runs; then it is reaped.
        self.guard.take();
        let _ = wait_for(&mut self.child, Duration::from_secs(10));
    }
}

/// The mount points of this machine that are `dir` or lie below it.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else {
        return Vec::new();
    };
    table
        .split(|b| *b == b'\n')
        .filter_map(|line| line.split(|b| *b == b' ').nth(4))
        .map(unescape)
        .filter(|point| point.starts_with(dir))
        .collect()
}

/// Whether something is mounted at `dir` itself.
pub fn is_mounted(dir: &Path) -> bool {
    mounts_below(dir).iter().any(|point| point == dir)
}

/// mountinfo writes blanks, tabs, newlines and backslashes as octal `\ooo`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'\\' && tail.len() >= 3 && tail[..3].iter().all(|b| (b'0'..=b'7').contains(b)) {
            let code = tail[..3].iter().fold(0u32, |sum, b| sum * 8 + u32::from(b - b'0'));
            bytes.push(code as u8);
            rest = &tail[3..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// Where a program is, searched as root's path has it (mkfs lives in sbin).
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_unescaped() {
        assert_eq!(unescape(b"/a\\040b\\134c"), PathBuf::from("/a b\\c"));
        assert_eq!(unescape(b"/plain"), PathBuf::from("/plain"));
    }

    #[test]
    fn a_program_that_hangs_is_given_up() {
        let start = Instant::now();
        let error = run(&["sleep", "30"], Duration::from_millis(200)).unwrap_err();
        assert!(error.to_string().contains("did not end"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_failing_program_says_why() {
        let error = run(&["sh", "-c", "echo the reason >&2; exit 3"], Duration::from_secs(10)).unwrap_err();
        assert!(error.to_string().contains("the reason"), "{error}");
    }
}
