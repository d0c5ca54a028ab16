//! `cffs trace perfetto`: a timeline for Perfetto and Chrome, in the Trace Event Format of the latter.

use super::load::Trace;
use anyhow::Context;
use cffs::trace::{Kind, Record};
use clap::Args;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A timeline that ui.perfetto.dev and chrome://tracing open
///
/// Each thread has a track. Arrows lead from a cause to what another thread, or the same one later, did because of it.
#[derive(Args, Debug)]
pub struct PerfettoArgs {
    /// Where it goes; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// The trace; `-` is standard input
    file: PathBuf,
}

/// The number of the process in the timeline, which has only one.
const PROCESS: u32 = 1;

/// Runs the subcommand.
pub fn run(args: &PerfettoArgs) -> anyhow::Result<u8> {
    let mut out = Output { path: &args.output, file: None };
    let done = write(&mut out, &args.file);
    // Half a timeline is none.
    if done.is_err() && out.file.take().is_some() && args.output.is_file() {
        let _ = std::fs::remove_file(&args.output);
    }
    done.map(|()| 0)
}

/// A file that is made, or cut, when the first bytes come: what is no trace leaves it as it was. `-` is standard output.
struct Output<'a> {
    path: &'a Path,
    file: Option<Box<dyn Write>>,
}

impl Output<'_> {
    fn opened(&mut self) -> anyhow::Result<&mut dyn Write> {
        if self.file.is_none() {
            let file: Box<dyn Write> = if self.path == Path::new("-") {
                Box::new(BufWriter::new(io::stdout()))
            } else {
                Box::new(BufWriter::new(File::create(self.path).with_context(|| self.path.display().to_string())?))
            };
            self.file = Some(file);
        }
        self.file.as_deref_mut().map(|f| f as _).context("no output")
    }

    fn put(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let name = self.path;
        self.opened()?.write_all(bytes).with_context(|| name.display().to_string())
    }
}

/// Microseconds, in which the format counts.
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn write(out: &mut Output<'_>, file: &Path) -> anyhow::Result<()> {
    let mut before = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
    let mut text = Vec::new();
    let mut event = |out: &mut Output<'_>, value: &Value| -> anyhow::Result<()> {
        text.clear();
        text.extend_from_slice(std::mem::replace(&mut before, ",\n").as_bytes());
        serde_json::to_writer(&mut text, value)?;
        out.put(&text)
    };
    let rest = Trace::walk(file, &mut |trace, positions| {
        for at in positions {
            let r = &trace.records[at];
            event(out, &complete(r))?;
            if let Some(parent) = trace.parent(at).filter(|parent| !trace.is_within(at, *parent)) {
                arrow(&trace.records[parent], r, r.id).iter().try_for_each(|end| event(out, end))?;
            }
            // The named ones of many, of which each has an arrow of its own.
            for (n, cause) in r.causes.iter().flat_map(|c| c.named()).enumerate() {
                if let Some(from) = trace.by_id(*cause).filter(|from| from.start <= r.start) {
                    let id = r.id.wrapping_add((n as u64 + 1) << 48);
                    arrow(from, r, id).iter().try_for_each(|end| event(out, end))?;
                }
            }
        }
        Ok(())
    })?;
    let image = rest.start["image"].as_str().unwrap_or("cffs");
    event(out, &json!({"ph": "M", "pid": PROCESS, "name": "process_name", "args": {"name": image}}))?;
    for (thread, name) in &rest.threads {
        let args = json!({"name": name});
        event(out, &json!({"ph": "M", "pid": PROCESS, "tid": thread, "name": "thread_name", "args": args}))?;
    }
    out.put(b"\n]}\n")?;
    out.opened()?.flush().with_context(|| out.path.display().to_string())
}

/// A span.
fn complete(r: &Record) -> Value {
    json!({
        "ph": "X",
        "pid": PROCESS,
        "tid": r.thread,
        "ts": us(r.start),
        "dur": us(r.duration),
        "name": r.kind.name(),
        "cat": r.kind.class().to_string(),
        "args": arguments(r),
    })
}

/// An arrow from one span to another: its two ends.
fn arrow(from: &Record, to: &Record, id: u64) -> [Value; 2] {
    let end = |ph: &str, tid: u64, ts: u64| json!({"ph": ph, "bp": "e", "pid": PROCESS, "tid": tid, "ts": us(ts), "id": id, "name": "cause", "cat": "cause"});
    // It leaves while the cause was going on, and not after what it leads to.
    [end("s", from.thread, from.end().min(to.start).max(from.start)), end("f", to.thread, to.start.max(from.start))]
}

fn arguments(r: &Record) -> Value {
    let mut args: Map<String, Value> =
        r.named_args().filter(|(name, _)| *name != "what").map(|(name, value)| (name.into(), value.into())).collect();
    args.insert("id".into(), r.id.into());
    if let Some(q) = r.request() {
        args.insert("carries".into(), q.kind.name().into());
        args.insert("purpose".into(), q.purpose.name().into());
        args.insert("failed".into(), q.failed.into());
    }
    if let Some(origin) = r.cause.origin {
        args.insert("caused by".into(), origin.name().into());
    }
    if let Some(causes) = &r.causes {
        let counts = causes.counts().map(|(kind, n)| (kind.map_or("unknown", Kind::name).to_owned(), n.into()));
        args.insert("for".into(), Value::Object(counts.collect()));
        let shares = causes.shares().map(|(kind, share)| (kind.map_or("unknown", Kind::name).to_owned(), share.into()));
        args.insert("shares".into(), Value::Object(shares.collect()));
    }
    if r.transaction != 0 {
        args.insert("transaction".into(), r.transaction.into());
    }
    Value::Object(args)
}
