//! Running other programs with a time limit.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

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

/// A command as it would be typed.
pub fn show(command: &Command) -> String {
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
