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
    let traced = record(r, &control, recording, &mut *out, &stops);
    // Switched off also after an error, which is the one to be told then.
    let stopped = control.call::<()>(&Request::TraceClasses { recording, classes: Classes::NONE.to_string() });
    let code = traced?;
    stopped?;
    drain(&control, recording, &mut *out)?;
    out.write_all(&information("end", r, &control)?)?;
    out.flush()?;
    Ok(code)
}

fn open_output(r: &Recording<'_>) -> anyhow::Result<Box<dyn Write>> {
    if r.output == Path::new("-") {
        return Ok(Box::new(BufWriter::new(io::stdout())));
    }
    let name = r.output.display();
    let file = File::create(r.output).with_context(|| format!("{name}"))?;
    if file.metadata()?.dev() == std::fs::metadata(r.dir)?.dev() {
        drop(file);
        let _ = std::fs::remove_file(r.output);
        bail!("{name}: this is in the file system that is to be traced: name a file elsewhere with -o");
    }
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
    stops: &dyn Fn() -> bool,
) -> anyhow::Result<u8> {
    out.write_all(&information("start", r, control)?)?;
    let began = Instant::now();
    let mut child = match r.command.split_first() {
        Some((program, args)) => {
            let started = Command::new(program).args(args).spawn();
            Some(started.with_context(|| program.display().to_string())?)
        }
        None => None,
    };
    loop {
        drain(control, recording, out)?;
        if let Some(code) = ended(child.as_mut())? {
            return Ok(code);
        }
        if stops() || r.limit.is_some_and(|l| began.elapsed() >= l) {
            return Ok(0);
        }
        std::thread::sleep(INTERVAL);
    }
}

/// The exit code of the command, if it has ended.
fn ended(child: Option<&mut Child>) -> io::Result<Option<u8>> {
    let Some(child) = child else { return Ok(None) };
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
