//! Recording: takes what the mount has recorded, again and again, and writes it to a file.

use crate::text::bytes_of;
use anyhow::{Context, anyhow, bail};
use cffs::trace::{Classes, Item, Reader, frame};
use cffs::{ROOT_INO, Superblock};
use cffs_fuse::control::{Control, ControlError, MountInfo, Request, TRACE_READ_BYTES};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often the buffers are emptied. They hold a MiB for each thread, which is the work of a second at the least.
const INTERVAL: Duration = Duration::from_millis(50);

/// What programs have left to others, as what is read ahead, belongs to them: for how long nothing is in flight then, and the longest wait for that.
const QUIET: Duration = Duration::from_millis(5);
const SETTLE_MAX: Duration = Duration::from_millis(500);
/// Longest wait for requests that are in flight when a recording has ended. What they are a part of ends soon after them.
const FINISH_MAX: Duration = Duration::from_millis(500);

/// What to record.
pub struct Recording<'a> {
    pub dir: &'a Path,
    pub classes: Classes,
    /// What a replay begins with is recorded too.
    pub replay: bool,
    pub scramble: bool,
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
    let mut out = open_output(r, &control)?;
    out.write_all(&frame::HEADER)?;
    // A listing would be traced itself.
    let first = if r.replay { Classes::NONE } else { r.classes };
    let waiting: Classes = control.info()?.traced_since_mount.parse().unwrap_or_default();
    let recording: u64 =
        control.call(&Request::TraceStart { classes: first.to_string(), scramble: r.scramble, yields: false })?;
    let since_mount = waiting.meets(Classes::DEVICE) && recording == 1;
    // An interrupt at the terminal reaches the command as well, and it decides.
    let stops = || ended.load(Ordering::Relaxed) || r.command.is_empty() && interrupted.load(Ordering::Relaxed);
    let mut child = None;
    let traced = record(r, &control, (recording, since_mount), &mut *out, &mut child, &stops);
    if traced.is_ok() && r.limit.is_none() {
        wait_until_quiet(&control, recording, QUIET, SETTLE_MAX);
    }
    // Switched off also after an error, which is the one to be told then.
    let stopped = switch(&control, recording, Classes::NONE, false);
    let end = || {
        traced?;
        stopped?;
        wait_until_quiet(&control, recording, QUIET, FINISH_MAX);
        drain(&control, recording, &mut *out)?;
        out.write_all(&information("end", since_mount, r, &control)?)?;
        Ok(out.flush()?)
    };
    let written: anyhow::Result<()> = end();
    // The command goes on without being recorded, and is not left alone, whatever became of the recording.
    let code = child.as_mut().map_or(Ok(0), |child| wait(child, &ended));
    written.map_err(|error| match error.downcast_ref::<io::Error>().map(io::Error::kind) {
        // Elsewhere this is no news; here a recording has ended that somebody wanted.
        Some(io::ErrorKind::BrokenPipe) => anyhow!("the recording has ended early: whoever read the trace has gone"),
        Some(io::ErrorKind::StorageFull) => error.context(r.output.display().to_string()),
        _ => error,
    })?;
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

/// Where the trace goes: neither into the file system that is traced, nor over what it lies on.
fn open_output(r: &Recording<'_>, control: &Control) -> anyhow::Result<Box<dyn Write>> {
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
    let info = control.info()?;
    // Whatever the file system lies on, the process that serves it has it open: image, members, the log.
    let open = std::fs::read_dir(format!("/proc/{}/fd", info.pid)).into_iter().flatten().flatten().map(|fd| fd.path());
    let is_same = |other: &Path| {
        let (Ok(ours), Ok(theirs)) = (std::fs::metadata(r.output), std::fs::metadata(other)) else { return false };
        // Not what any process may have open, as /dev/null.
        let is_storage = ours.is_file() || ours.file_type().is_block_device();
        is_storage
            && ((ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino())
                || ours.rdev() != 0 && ours.rdev() == theirs.rdev())
    };
    if open.chain([info.image.into()]).any(|other| is_same(&other)) {
        bail!(
            "{name}: the process that serves the file system has this open, as all that the file system lies on: name another file with -o"
        );
    }
    let file = File::create(r.output).with_context(|| format!("{name}"))?;
    Ok(Box::new(BufWriter::new(file)))
}

/// What the mount says of itself at this moment.
fn information(when: &str, since_mount: bool, r: &Recording<'_>, control: &Control) -> anyhow::Result<Vec<u8>> {
    let info = control.info()?;
    let stats: Value = control.stats()?;
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    let json = json!({
        "when": when,
        // It has all requests since the mount, whose counters began with zero.
        "since_mount": since_mount,
        "unix_ms": time,
        "program": info.program,
        // A path is a name too.
        "image": (!r.scramble).then_some(&info.image),
        "classes": r.classes.to_string(),
        "device": stats["device"],
        "log_device": stats["log_device"],
        "disks": stats["disks"],
        "settings": settings(&info, &stats),
    });
    Ok(frame::information(&serde_json::to_vec(&json)?))
}

/// What a replay elsewhere takes over, in bytes, if it is known; `log_layout` is 1 or 0.
fn settings(info: &MountInfo, stats: &Value) -> Value {
    let Ok(sb) = Superblock::decode(&info.superblock) else { return Value::Null };
    let log_layout = stats.get("log_disk").is_some_and(|l| !l.is_null());
    json!({
        "block": 1u64 << sb.block_shift,
        "fragment": 1u64 << sb.frag_shift,
        "group": 1u64 << sb.group_shift,
        "size": (!log_layout).then_some(sb.total_blocks << sb.block_shift),
        "log": (!log_layout && sb.log_start != 0).then_some(sb.log_blocks << sb.block_shift),
        "cache": stats["cache"]["limit_bytes"],
        "request": stats["max_request"],
        "log_layout": u64::from(log_layout),
    })
}

fn record(
    r: &Recording<'_>,
    control: &Control,
    (recording, since_mount): (u64, bool),
    out: &mut dyn Write,
    child: &mut Option<Child>,
    stops: &dyn Fn() -> bool,
) -> anyhow::Result<()> {
    if r.replay {
        list(control, recording, out, stops)?;
        switch(control, recording, r.classes, true)?;
    }
    out.write_all(&information("start", since_mount, r, control)?)?;
    let began = Instant::now();
    if let Some((program, args)) = r.command.split_first() {
        let mut command = Command::new(program);
        command.args(args);
        if r.output == Path::new("-") {
            // Standard output has the trace.
            command.stdout(io::stderr().as_fd().try_clone_to_owned()?);
        }
        *child = Some(command.spawn().with_context(|| program.display().to_string())?);
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

/// Records other classes from now on, perhaps with nothing in the cache.
fn switch(control: &Control, recording: u64, classes: Classes, cold: bool) -> anyhow::Result<()> {
    Ok(control.call(&Request::TraceClasses { recording, classes: classes.to_string(), cold })?)
}

/// Writes a listing of all directories.
fn list(control: &Control, recording: u64, out: &mut dyn Write, stops: &dyn Fn() -> bool) -> anyhow::Result<()> {
    let mut left = vec![(ROOT_INO, 0)];
    while let Some((directory, position)) = left.pop() {
        if stops() {
            bail!("interrupted before the recording began");
        }
        let listed = control.call::<String>(&Request::TraceListing { recording, directory, position });
        let text = match listed {
            // It was removed meanwhile.
            Err(ControlError::Refused { refusal, .. }) if refusal.errno == Errno::STALE.raw_os_error() => continue,
            other => other?,
        };
        let frame = bytes_of(&text).context("the mount has sent something else than a listing")?;
        out.write_all(&frame)?;
        let file = [&frame::HEADER[..], &frame].concat();
        let Some(Item::Listing(listing)) = Reader::new(&file[..])?.next_item()? else { continue };
        let below = listing.entries.iter().filter(|e| e.is_dir());
        left.extend(below.map(|e| (e.inode, 0)));
        if listing.next != 0 {
            left.push((directory, listing.next));
        }
    }
    Ok(())
}

/// Waits until no request has been in flight for so long, or longer than `most`.
fn wait_until_quiet(control: &Control, recording: u64, quiet: Duration, most: Duration) {
    let began = Instant::now();
    let mut busy = began;
    loop {
        // A mount of an earlier version does not know.
        if control.call::<u64>(&Request::TraceInFlight { recording }).unwrap_or(0) > 0 {
            busy = Instant::now();
        } else if busy.elapsed() >= quiet {
            return;
        }
        if began.elapsed() >= most {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes everything that the mount has recorded by now.
fn drain(control: &Control, recording: u64, out: &mut dyn Write) -> anyhow::Result<()> {
    loop {
        let text: String = control.call(&Request::TraceRead { recording })?;
        let frames = bytes_of(&text).context("the mount has sent something else than a trace")?;
        out.write_all(&frames)?;
        if frames.len() < TRACE_READ_BYTES {
            return Ok(());
        }
    }
}
