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
    let trace = Trace::load(&args.file)?;
    let name = args.output.display();
    let out: Box<dyn Write> = if args.output == Path::new("-") {
        Box::new(io::stdout())
    } else {
        Box::new(File::create(&args.output).with_context(|| name.to_string())?)
    };
    write(BufWriter::new(out), &trace).with_context(|| name.to_string())?;
    Ok(0)
}

/// Microseconds, in which the format counts.
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn write(mut out: impl Write, trace: &Trace) -> io::Result<()> {
    let mut before = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
    let mut event = |value: &Value| -> io::Result<()> {
        out.write_all(before.as_bytes())?;
        before = ",\n";
        Ok(serde_json::to_writer(&mut out, value)?)
    };
    let image = trace.start["image"].as_str().unwrap_or("cffs");
    event(&json!({"ph": "M", "pid": PROCESS, "name": "process_name", "args": {"name": image}}))?;
    for (thread, name) in &trace.threads {
        event(&json!({"ph": "M", "pid": PROCESS, "tid": thread, "name": "thread_name", "args": {"name": name}}))?;
    }
    for (at, r) in trace.records.iter().enumerate() {
        event(&json!({
            "ph": "X",
            "pid": PROCESS,
            "tid": r.thread,
            "ts": us(r.start),
            "dur": us(r.duration),
            "name": r.kind.name(),
            "cat": r.kind.class().to_string(),
            "args": arguments(r),
        }))?;
        if let Some(parent) = trace.parent(at).filter(|parent| !trace.is_within(at, *parent)) {
            arrow(&mut event, &trace.records[parent], r, r.id)?;
        }
        // The named ones of many, of which each has an arrow of its own.
        for (n, cause) in r.causes.iter().flat_map(|c| c.named()).enumerate() {
            if let Some(from) = trace.by_id(*cause).filter(|from| from.start <= r.start) {
                arrow(&mut event, from, r, r.id.wrapping_add((n as u64 + 1) << 48))?;
            }
        }
    }
    out.write_all(b"\n]}\n")?;
    out.flush()
}

/// An arrow from one span to another.
fn arrow(event: &mut impl FnMut(&Value) -> io::Result<()>, from: &Record, to: &Record, id: u64) -> io::Result<()> {
    let end = |ph: &str, tid: u64, ts: u64| json!({"ph": ph, "bp": "e", "pid": PROCESS, "tid": tid, "ts": us(ts), "id": id, "name": "cause", "cat": "cause"});
    // It leaves while the cause was going on, and not after what it leads to.
    event(&end("s", from.thread, from.end().min(to.start).max(from.start)))?;
    event(&end("f", to.thread, to.start.max(from.start)))
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
    }
    if r.transaction != 0 {
        args.insert("transaction".into(), r.transaction.into());
    }
    Value::Object(args)
}
