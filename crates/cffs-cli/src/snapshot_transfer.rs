//! `cffs snapshot send` and `receive`: snapshots as streams.
//!
//! An image is read and written by this process. A mount is served by another one, which gets an end of a pipe of this process; the bytes
//! between that pipe and standard input or output are copied here.

use crate::image::EngineResultExt;
use crate::size::human;
use crate::snapshot_target::{Of, Target, disk_of};
use crate::text::print_json;
use anyhow::{Context, anyhow, bail};
use cffs_fuse::JobOutcome;
use cffs_fuse::control::{Control, Request};
use cffs_fuse::snapshots::{self, Received, Sent, Unfinished};
use clap::Args;
use std::fs::File;
use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

/// How often to ask whether a transfer has ended whose pipe is at its end.
const INTERVAL: Duration = Duration::from_millis(20);

/// Send a snapshot as a stream
///
/// Writes the snapshot, or with --from only what differs from an earlier one, to standard output or a file: for a pipe to `cffs snapshot
/// receive`, also on another machine. A stream has checksums, and what is received is compared with what was sent. While the file system is mounted, name the directory.
#[derive(Args, Debug)]
pub struct SendArgs {
    #[command(flatten)]
    of: Of,
    /// Name of the snapshot
    name: String,
    /// Name of an earlier snapshot that the receiver has: send only what differs
    #[arg(long, value_name = "NAME")]
    from: Option<String>,
    /// Send what the receiver does not have yet of a stream that was interrupted: `receive --unfinished` tells this text
    #[arg(long, value_name = "TOKEN")]
    resume: Option<String>,
    /// Write to this file, not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Receive a snapshot from a stream
///
/// Reads what `cffs snapshot send` has written from standard input or a file. The snapshot is there when the command ends, whole and verified, beside
/// what the image has itself, which stays as it is. Mount it, or make a clone of it to write to. If the stream ends early, what came
/// of it is kept, and the command tells what to give `send --resume`.
#[derive(Args, Debug)]
pub struct ReceiveArgs {
    #[command(flatten)]
    of: Of,
    /// Name of the snapshot here [default: as it is called where it comes from]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Read from this file, not from standard input
    #[arg(short, long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Receive nothing: show what has come of streams that were interrupted, and what to give `send --resume`
    #[arg(long, conflicts_with_all = ["name", "input"])]
    unfinished: bool,
    /// Receive nothing: forget what has come of streams that were interrupted
    #[arg(long, conflicts_with_all = ["name", "input", "unfinished"])]
    abandon: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `send`.
pub fn send(args: &SendArgs) -> anyhow::Result<u8> {
    let at = args.of.name();
    let name = args.output.as_ref().map_or("standard output".to_owned(), |path| path.display().to_string());
    let out: Box<dyn Write> = match &args.output {
        Some(path) => Box::new(OnFirstWrite::At(path.clone())),
        None if io::stdout().is_terminal() => {
            bail!("{at}: a stream is not for a terminal: write it to a file with -o, or to a pipe")
        }
        None => Box::new(io::stdout().lock()),
    };
    let mut out = Output { out, failed: None };
    let sent = send_to(args, &at, &mut out);
    if let Some(e) = out.failed {
        return Err(anyhow!(e).context(format!("{name}: cannot write the stream")));
    }
    let sent = sent?;
    eprintln!("{} sent, {} of data", human(sent.stream), human(sent.data));
    Ok(0)
}

/// A file that is made anew by what is first written to it: what it has is not lost to a stream that cannot be sent at all.
enum OnFirstWrite {
    At(PathBuf),
    Open(File),
}

impl OnFirstWrite {
    fn file(&mut self) -> io::Result<&mut File> {
        if let OnFirstWrite::At(path) = self {
            *self = OnFirstWrite::Open(File::create(path)?);
        }
        match self {
            OnFirstWrite::Open(file) => Ok(file),
            OnFirstWrite::At(_) => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl Write for OnFirstWrite {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.file()?.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        if let OnFirstWrite::Open(file) = self { file.flush() } else { Ok(()) }
    }
}

/// Where a stream goes. What fails there is no error of the image.
struct Output {
    out: Box<dyn Write>,
    failed: Option<io::Error>,
}

impl Output {
    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|e| {
            let kind = e.kind();
            if kind != io::ErrorKind::Interrupted {
                self.failed.get_or_insert(e);
                return io::Error::other("cannot write the stream");
            }
            kind.into()
        })
    }
}

impl Write for Output {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.out.write(buf);
        self.note(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.note(flushed)
    }
}

fn send_to(args: &SendArgs, at: &str, mut out: &mut Output) -> anyhow::Result<Sent> {
    let (from, token) = (args.from.as_deref(), args.resume.as_deref());
    match args.of.open_to_read()? {
        Target::Mounted(control) => send_from_mount(args, &control, out),
        Target::Image(image) => {
            let disk = disk_of(&image, at)?;
            let mut out = io::BufWriter::with_capacity(1 << 20, &mut out);
            let sent = snapshots::send(disk, &args.name, from, token, &mut out);
            out.flush().context("cannot write the stream")?;
            sent.about(|| at)
        }
    }
}

fn send_from_mount(args: &SendArgs, control: &Control, out: &mut dyn Write) -> anyhow::Result<Sent> {
    let (mut reader, writer): (PipeReader, PipeWriter) = io::pipe()?;
    let request = Request::SnapshotSend {
        name: args.name.clone(),
        from: args.from.clone(),
        token: args.resume.clone(),
        fd: u32::try_from(writer.as_raw_fd())?,
    };
    let job: u64 = control.call(&request)?;
    // The end of the stream is seen when the server has closed its end, and nobody else has one.
    drop(writer);
    let copied = io::copy(&mut reader, out).and_then(|_| out.flush());
    drop(reader);
    let outcome = outcome_of(control, job)?;
    copied.context("cannot write the stream")?;
    match outcome {
        JobOutcome::Sent(sent) => Ok(sent),
        JobOutcome::Failed(why) => Err(anyhow!("{}: {why}", args.of.name())),
        _ => bail!("{}: the mount has answered something else", args.of.name()),
    }
}

fn outcome_of(control: &Control, job: u64) -> anyhow::Result<JobOutcome> {
    loop {
        let outcome: Option<JobOutcome> = control.call(&Request::SnapshotOutcome { job })?;
        match outcome {
            Some(outcome) => return Ok(outcome),
            None => std::thread::sleep(INTERVAL),
        }
    }
}

/// Runs `receive`.
pub fn receive(args: &ReceiveArgs) -> anyhow::Result<u8> {
    let at = args.of.name();
    if args.unfinished {
        return show_unfinished(args, &at);
    }
    if args.abandon {
        let n: usize = match args.of.open()? {
            Target::Mounted(control) => control.call(&Request::SnapshotAbandon)?,
            Target::Image(image) => {
                let disk = disk_of(&image, &at)?;
                let n = snapshots::abandon(disk).about(|| &at)?;
                snapshots::finish_deletions(disk).about(|| &at)?;
                n
            }
        };
        eprintln!("{n} forgotten");
        return Ok(0);
    }
    let mut input: Box<dyn Read + Send> = match &args.input {
        Some(path) => Box::new(File::open(path).with_context(|| path.display().to_string())?),
        None if io::stdin().is_terminal() => {
            bail!("{at}: a stream does not come from a terminal: read it from a file with -i, or from a pipe")
        }
        None => Box::new(io::stdin()),
    };
    let received = match args.of.open()? {
        Target::Mounted(control) => receive_in_mount(args, &control, input)?,
        Target::Image(image) => {
            let disk = disk_of(&image, &at)?;
            let mut input = io::BufReader::with_capacity(1 << 20, &mut input);
            let received = snapshots::receive(disk, None, args.name.as_deref(), &mut input);
            received.map_err(|e| anyhow!("{at}: {e}"))?
        }
    };
    if args.json {
        print_json(&serde_json::to_value(&received)?)?;
    } else {
        let (data, verified) = (human(received.data), human(received.verified));
        eprintln!("'{}' received: {data} of data, {verified} verified", received.name);
    }
    Ok(0)
}

fn receive_in_mount(
    args: &ReceiveArgs,
    control: &Control,
    mut input: Box<dyn Read + Send>,
) -> anyhow::Result<Received> {
    let (reader, mut writer): (PipeReader, PipeWriter) = io::pipe()?;
    let fd = u32::try_from(reader.as_raw_fd())?;
    let job: u64 = control.call(&Request::SnapshotReceive { name: args.name.clone(), fd })?;
    drop(reader);
    // In a thread, because the transfer may end before the stream does, and then the input may have nothing for a long time.
    std::thread::spawn(move || {
        // If the server reads no more it has said why.
        let _ = io::copy(&mut input, &mut writer);
    });
    match outcome_of(control, job)? {
        JobOutcome::Received(received) => Ok(received),
        JobOutcome::Failed(why) => Err(anyhow!("{}: {why}", args.of.name())),
        _ => bail!("{}: the mount has answered something else", args.of.name()),
    }
}

fn show_unfinished(args: &ReceiveArgs, at: &str) -> anyhow::Result<u8> {
    let all: Vec<Unfinished> = match args.of.open_to_read()? {
        Target::Mounted(control) => control.call(&Request::SnapshotUnfinished)?,
        Target::Image(image) => snapshots::unfinished(disk_of(&image, at)?).about(|| at)?,
    };
    if args.json {
        print_json(&serde_json::to_value(all)?)?;
    } else {
        let mut out = io::stdout().lock();
        for u in all {
            writeln!(out, "{}", u.token)?;
        }
    }
    Ok(0)
}
