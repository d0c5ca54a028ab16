//! `cffs trace graph`: what caused what, as a tree.

use super::load::{Trace, time};
use super::requests::{described, own_time};
use crate::text::{print_json, printable};
use cffs::trace::{Causes, Kind, Record};
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

/// What caused what: each operation with what it led to, as a tree
///
/// A line has when it began, how long it took, and what it was. `~` marks what its cause did not wait for: it was done later, or by
/// another thread. Work that is done for many says for how many of each operation.
#[derive(Args, Debug)]
pub struct GraphArgs {
    /// Print it as JSON: a list of spans, each with the number of its cause
    #[arg(long, conflicts_with = "merged")]
    json: bool,
    /// One line for all that have the same path of causes, with their number and their time (requests of a batch share theirs)
    #[arg(long)]
    merged: bool,
    /// Only operations of this name, with all that they led to
    #[arg(long, value_name = "NAME", value_parser = parse_kind)]
    only: Option<Kind>,
    /// The trace; `-` is standard input
    file: PathBuf,
}

fn parse_kind(text: &str) -> Result<Kind, String> {
    Kind::ALL.iter().copied().find(|k| k.name() == text).ok_or_else(|| {
        let names: Vec<&str> = Kind::ALL.iter().map(|k| k.name()).collect();
        format!("no such kind of span: {}", names.join(", "))
    })
}

/// Runs the subcommand.
pub fn run(args: &GraphArgs) -> anyhow::Result<u8> {
    let trace = Trace::load(&args.file)?;
    let roots: Vec<usize> = (0..trace.records.len())
        .filter(|at| match args.only {
            Some(kind) => trace.records[*at].kind == kind,
            None => trace.parent(*at).is_none(),
        })
        .collect();
    if args.json {
        let mut all = Vec::new();
        walk(&trace, &roots, &mut |at, _| {
            all.push(as_json(&trace, &trace.records[at]));
            Ok(())
        })?;
        print_json(&Value::Array(all))?;
        return Ok(0);
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.merged {
        print_merged(&mut out, &trace, &roots)?
    } else {
        print(&mut out, &trace, &roots)?
    }
    out.flush()?;
    Ok(0)
}

/// Calls `f` for the roots and for all that they led to, each after its cause, with its depth. Each span comes once.
fn walk(trace: &Trace, roots: &[usize], f: &mut dyn FnMut(usize, usize) -> io::Result<()>) -> io::Result<()> {
    let children = trace.children();
    let mut seen = vec![false; trace.records.len()];
    let mut open: Vec<(usize, usize)> = roots.iter().rev().map(|at| (*at, 0)).collect();
    while let Some((at, depth)) = open.pop() {
        if std::mem::replace(&mut seen[at], true) {
            continue;
        }
        f(at, depth)?;
        open.extend(children[at].iter().rev().map(|child| (*child, depth + 1)));
    }
    Ok(())
}

fn as_json(trace: &Trace, r: &Record) -> Value {
    let mut value = json!({
        "id": r.id,
        "kind": r.kind.name(),
        "cause": if r.cause.span == 0 { Value::Null } else { r.cause.span.into() },
        "origin": r.cause.origin.map(Kind::name),
        "thread": r.thread,
        "thread_name": trace.thread(r.thread),
        "start_ns": r.start,
        "ns": r.duration,
        "arguments": r.named_args().filter(|(name, _)| *name != "what").collect::<BTreeMap<_, _>>(),
    });
    if let Some(q) = r.request() {
        value["carries"] = q.kind.name().into();
        value["purpose"] = q.purpose.name().into();
        value["failed"] = q.failed.into();
        value["batch"] = q.batch.into();
    }
    if r.transaction != 0 {
        value["transaction"] = r.transaction.into();
    }
    if let Some(causes) = &r.causes {
        value["causes"] = json!(causes.named());
        value["causes_left_out"] = causes.left_out().into();
        value["for"] = causes
            .counts()
            .map(|(k, n)| (k.map_or("unknown", Kind::name), n))
            .collect::<BTreeMap<_, _>>()
            .into_iter()
            .collect();
        value["bytes"] = causes.weight().into();
        let shares = causes.shares().map(|(k, share)| (k.map_or("unknown", Kind::name), share));
        value["shares"] = json!(shares.collect::<BTreeMap<_, _>>());
    }
    value
}

/// For whom it was done.
fn beneficiaries(causes: &Causes) -> String {
    let share = |share: f64| if causes.weight() > 0 { format!(" ({:.0}%)", share * 100.0) } else { String::new() };
    let counts = causes.counts().zip(causes.shares());
    let counts =
        counts.map(|((kind, n), (_, part))| format!("{n} {}{}", kind.map_or("unknown", Kind::name), share(part)));
    format!(", for {}", counts.collect::<Vec<_>>().join(", "))
}

/// Spaces for a depth. Beyond some it does not grow.
fn indent(depth: usize) -> String {
    "  ".repeat(depth.min(40))
}

fn print(out: &mut impl Write, trace: &Trace, roots: &[usize]) -> io::Result<()> {
    let first = trace.first();
    walk(trace, roots, &mut |at, depth| {
        let r = &trace.records[at];
        let later = depth > 0 && trace.parent(at).is_some_and(|parent| !trace.is_within(at, parent));
        let mark = if later { "~ " } else { "" };
        let whom = r.causes.as_deref().map(beneficiaries).unwrap_or_default();
        let joined = if r.transaction == 0 { String::new() } else { format!(", in transaction {}", r.transaction) };
        let seconds = r.start.saturating_sub(first) as f64 / 1e9;
        write!(out, "{seconds:13.6} {:>8}  {}{mark}{}{whom}{joined}", time(r.duration), indent(depth), described(r))?;
        if depth == 0 || later {
            write!(out, "  [{}]", printable(trace.thread(r.thread).as_bytes()))?;
        }
        writeln!(out)
    })
}

/// Spans with the same path of causes.
#[derive(Default)]
struct Merged {
    count: u64,
    ns: f64,
    below: BTreeMap<&'static str, usize>,
}

fn print_merged(out: &mut impl Write, trace: &Trace, roots: &[usize]) -> io::Result<()> {
    let mut nodes = vec![Merged::default()];
    let mut path = vec![0];
    walk(trace, roots, &mut |at, depth| {
        let r = &trace.records[at];
        path.truncate(depth + 1);
        let above = path[depth];
        let next = nodes.len();
        let node = *nodes[above].below.entry(r.kind.name()).or_insert(next);
        if node == next {
            nodes.push(Merged::default());
        }
        nodes[node].count += 1;
        nodes[node].ns += own_time(r);
        path.push(node);
        Ok(())
    })?;
    let mut open: Vec<(&str, usize, usize)> = nodes[0].below.iter().rev().map(|(name, n)| (*name, *n, 0)).collect();
    while let Some((name, node, depth)) = open.pop() {
        let n = &nodes[node];
        writeln!(out, "{:>9} {:>9}  {}{name}", n.count, time(n.ns as u64), indent(depth))?;
        open.extend(n.below.iter().rev().map(|(name, n)| (*name, *n, depth + 1)));
    }
    Ok(())
}
