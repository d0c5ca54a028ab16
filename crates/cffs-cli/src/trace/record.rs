//! Recording: takes what the mount has recorded, again and again, and writes it to a file.

use anyhow::{Context, bail};
use cffs::trace::{Classes, frame};
use cffs_fuse::control::{Control, Request, TRACE_READ_BYTES};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often the buffers are emptied. They hold a MiB for each thread, which is the work of a second at the least.
const INTERVAL: Duration = Duration::from_millis(50);

/// What to record.
pub struct Recording<'a> {
    pub dir: &'a Path,
    pub classes: Classes,
    pub output: &'a Path,
    pub limit: Option<Duration>,
    pub command: &'a [OsString],
}

/// Records until it is to end. Returns the exit code.
pub fn run(r: &Recording<'_>) -> anyhow::Result<u8> {
    // Before anything begins, so that no signal leaves it switched on.
    let interrupted = Arc::new(AtomicBool::new(false));
    let ended = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, interrupted.clone())?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, ended.clone())?;
    }
    let control = Control::open(r.dir)?;
    let mut out = open_output(r)?;
    out.write_all(&frame::HEADER)?;
    let recording: u64 = control.call(&Request::TraceStart { classes: r.classes.to_string() })?;
    // An interrupt at the terminal reaches the command as well, and it decides.
    let stops = || ended.load(Ordering::Relaxed) || r.command.is_empty() && interrupted.load(Ordering::Relaxed);
    let mut child = None;
    let traced = record(r, &control, recording, &mut *out, &mut child, &stops);
    // Switched off also after an error, which is the one to be told then.
    let stopped = control.call::<()>(&Request::TraceClasses { recording, classes: Classes::NONE.to_string() });
    let end = || {
        traced?;
        stopped?;
        drain(&control, recording, &mut *out)?;
        out.write_all(&information("end", r, &control)?)?;
        Ok(out.flush()?)
    };
    let written: anyhow::Result<()> = end();
    // The command goes on without being recorded, and is not left alone, whatever became of the recording.
    let code = child.as_mut().map_or(Ok(0), |child| wait(child, &ended));
    written?;
    Ok(code?)
}

/// Waits for the command, which is told to end if this is. Returns its exit code.
fn wait(child: &mut Child, told: &AtomicBool) -> io::Result<u8> {
    let mut passed_on = false;
    loop {
        if let Some(code) = exit_code(child)? {
            return Ok(code);
        }
        if told.load(Ordering::Relaxed) && !passed_on {
            passed_on = true;
            let pid = rustix::process::Pid::from_child(child);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        std::thread::sleep(INTERVAL);
    }
}

fn open_output(r: &Recording<'_>) -> anyhow::Result<Box<dyn Write>> {
    if r.output == Path::new("-") {
        return Ok(Box::new(BufWriter::new(io::stdout())));
    }
    let name = r.output.display();
    // Before anything is made there, or what is there is cut off.
    let parent = r.output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let at = std::fs::metadata(r.output).or_else(|_| std::fs::metadata(parent)).with_context(|| format!("{name}"))?;
    if at.dev() == std::fs::metadata(r.dir)?.dev() {
        bail!("{name}: this is in the file system that is to be traced: name a file elsewhere with -o");
    }
    let file = File::create(r.output).with_context(|| format!("{name}"))?;
    Ok(Box::new(BufWriter::new(file)))
}

/// What the mount says of itself at this moment.
fn information(when: &str, r: &Recording<'_>, control: &Control) -> anyhow::Result<Vec<u8>> {
    let info = control.info()?;
    let stats: Value = control.stats()?;
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    let json = json!({
        "when": when,
        "unix_ms": time,
        "program": info.program,
        "image": info.image,
        "classes": r.classes.to_string(),
        "device": stats["device"],
        "log_device": stats["log_device"],
    });
    Ok(frame::information(&serde_json::to_vec(&json)?))
}

fn record(
    r: &Recording<'_>,
    control: &Control,
    recording: u64,
    out: &mut dyn Write,
    child: &mut Option<Child>,
    stops: &dyn Fn() -> bool,
) -> anyhow::Result<()> {
    out.write_all(&information("start", r, control)?)?;
    let began = Instant::now();
    if let Some((program, args)) = r.command.split_first() {
        *child = Some(Command::new(program).args(args).spawn().with_context(|| program.display().to_string())?);
    }
    loop {
        drain(control, recording, out)?;
        // If this is killed, what was recorded until now is in the file.
        out.flush()?;
        let done = match child {
            Some(child) => exit_code(child)?.is_some(),
            None => false,
        };
        if done || stops() || r.limit.is_some_and(|l| began.elapsed() >= l) {
            return Ok(());
        }
        std::thread::sleep(INTERVAL);
    }
}

/// The exit code of the command, if it has ended.
fn exit_code(child: &mut Child) -> io::Result<Option<u8>> {
    let code = |s: std::process::ExitStatus| s.code().unwrap_or_else(|| 128 + s.signal().unwrap_or(0));
    Ok(child.try_wait()?.map(|s| code(s) as u8))
}

/// Writes everything that the mount has recorded by now.
fn drain(control: &Control, recording: u64, out: &mut dyn Write) -> anyhow::Result<()> {
    loop {
        let text: String = control.call(&Request::TraceRead { recording })?;
        let frames = decode(&text).context("the mount has sent something else than a trace")?;
        out.write_all(&frames)?;
        if frames.len() < TRACE_READ_BYTES {
            return Ok(());
        }
    }
}

/// Bytes of hexadecimal digits.
fn decode(text: &str) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes().chunks_exact(2).map(|two| Some(digit(two[0])? << 4 | digit(two[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_become_bytes() {
        assert_eq!(decode("00ff1A"), Some(vec![0, 255, 26]));
        assert_eq!((decode("0"), decode("0g"), decode("é")), (None, None, None));
    }
}
