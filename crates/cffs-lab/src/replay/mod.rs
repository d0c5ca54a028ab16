//! `cffs-lab replay`: what a recorded workload would cost on other disks, with other settings, and in other file systems.

mod engine;
mod mount;
mod names;
mod outcome;
mod settings;
mod simulated;
mod system_calls;
#[cfg(test)]
mod tests;
mod workload;

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde_json::json;

pub use outcome::Predicted;
pub use settings::Settings;
pub use simulated::predict;
#[cfg(test)]
pub use workload::Op;
pub use workload::Workload;
use workload::{ByPurpose, total};

/// Arguments of `cffs-lab replay`.
#[derive(clap::Args)]
pub struct ReplayArgs {
    /// What `cffs trace --replay` has recorded
    trace: PathBuf,
    /// A simulated disk, with settings behind it: `hdd-2026,group=256K`, `sd-card,layout=log`, `volume-1ms,fs=ext4` (a real mount, as
    /// root). Settings that are not named are those of the recording. May be repeated
    #[arg(long, value_name = "DISK[,SETTING=VALUE...]")]
    on: Vec<Settings>,
    /// Begin with a copy of this image, as it was when the recording began, instead of the tree that the trace lists
    #[arg(long)]
    image: Option<PathBuf>,
    /// In real mounts: pause as long as the programs did
    #[arg(long)]
    pauses: bool,
    /// The program `cffs`, for fs=cffs
    #[arg(long, value_name = "FILE")]
    cffs: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Disks that are tried if none is named.
const DISKS: [&str; 3] = ["hdd-2026", "volume-1ms", "sd-card"];

/// Runs the subcommand.
///
/// # Errors
/// When the trace cannot be read, or a replay is impossible.
pub fn run_replay(args: &ReplayArgs) -> Result<ExitCode> {
    let name = args.trace.display().to_string();
    let file = File::open(&args.trace).with_context(|| name.clone())?;
    let workload = Workload::read(BufReader::new(file)).with_context(|| name.clone())?;
    let all: Vec<Settings> =
        if args.on.is_empty() { DISKS.iter().map(|d| d.parse()).collect::<Result<_>>()? } else { args.on.clone() };
    if workload.lost > 0 {
        eprintln!("cffs-lab: {} spans of the recording were lost: the replay lacks what was in them", workload.lost);
    }
    if let Some(s) = all.iter().find(|s| s.mounted.is_some() && args.image.is_some()) {
        bail!("'{}': --image is for the simulation: leave it out, or fs=", s.text);
    }
    let mut rows: Vec<(String, Predicted)> = Vec::new();
    for s in &all {
        let predicted = match s.mounted {
            None => simulated::predict(s, &workload, args.image.as_deref()),
            Some(kind) => mount::predict(kind, s, &workload, args.pauses, args.cffs.as_deref()),
        };
        rows.push((s.text.clone(), predicted.with_context(|| s.text.clone())?));
    }
    if args.json {
        let found: Vec<_> = rows.iter().map(|(on, p)| json!({"on": on, "predicted": p})).collect();
        let besides = &workload.recorded_besides;
        let recorded = json!({"purposes": workload.recorded, "ns": workload.recorded_time, "besides": besides});
        let left_out = &workload.left_out;
        let out =
            json!({"operations": workload.ops.len(), "recorded": recorded, "left_out": left_out, "replays": found});
        println!("{}", serde_json::to_string_pretty(&out)?);
    } else {
        print(&workload, &rows);
    }
    Ok(ExitCode::SUCCESS)
}

/// Bytes in millions.
fn mb(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

fn print(w: &Workload, rows: &[(String, Predicted)]) {
    let seconds = w.ops.last().map_or(0.0, |op| op.end as f64 / 1e9);
    println!("{} operations of {} threads in {seconds:.2} s", w.ops.len(), w.threads);
    let wide = rows.iter().map(|(on, _)| on.len()).max().unwrap_or(0).max(12);
    println!(
        "\n{:wide$} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>12}",
        "", "reads", "writes", "flushes", "MB read", "MB write", "disk, s", "then sync, s"
    );
    let recorded = w.recorded_total();
    println!(
        "{:wide$} {:>9} {:>9} {:>9} {:>19} {:>10.3}",
        "recorded",
        recorded.reads,
        recorded.writes,
        "",
        format!("{} (both)", mb(recorded.bytes)),
        w.recorded_time as f64 / 1e9
    );
    for (on, p) in rows {
        let d = &p.disk;
        let sync = p.sync.map_or(String::new(), |s| format!("{:.3}", s.seconds()));
        let (read, written) = (mb(d.read_bytes), mb(d.written_bytes));
        println!(
            "{on:wide$} {:>9} {:>9} {:>9} {read:>9} {written:>9} {:>10.3} {sync:>12}",
            d.reads,
            d.writes,
            d.flushes,
            d.seconds()
        );
    }
    print_purposes(w, rows, wide);
    for (on, p) in rows {
        let d = &p.differences;
        if d.other_outcome + d.unknown > 0 {
            let first = d.first.as_deref().unwrap_or_default();
            println!(
                "\n{on}: {} operations ended otherwise than recorded, {} were not possible; the first: {first}",
                d.other_outcome, d.unknown
            );
        }
    }
    if !w.left_out.is_empty() {
        let kinds: Vec<String> = w.left_out.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        println!("\nNot replayed: {}", kinds.join(", "));
    }
    let besides: Vec<String> =
        w.recorded_besides.iter().map(|(origin, r)| format!("{} of {origin}", r.reads + r.writes)).collect();
    if !besides.is_empty() {
        println!("\nRecorded as well, and not replayed, requests: {}", besides.join(", "));
    }
    if !w.tree.is_whole {
        println!("\nThe trace has no listing: the replay began with the names alone that were looked up.");
    }
}

fn print_purposes(w: &Workload, rows: &[(String, Predicted)], wide: usize) {
    let known: Vec<(&str, &ByPurpose)> = std::iter::once(("recorded", &w.recorded))
        .chain(rows.iter().filter_map(|(on, p)| Some((on.as_str(), p.purposes.as_ref()?))))
        .collect();
    let mut purposes: Vec<&String> =
        known.iter().flat_map(|(_, p)| p.iter().filter(|(_, r)| r.reads + r.writes > 0).map(|(n, _)| n)).collect();
    purposes.sort();
    purposes.dedup();
    let columns: String = purposes.iter().map(|p| format!(" {p:>11}")).collect();
    println!("\n{:wide$}{columns} {:>11}", "requests", "all");
    for (on, p) in known {
        let cells: String =
            purposes.iter().map(|name| format!(" {:>11}", p.get(*name).map_or(0, |r| r.reads + r.writes))).collect();
        let all = total(p);
        println!("{on:wide$}{cells} {:>11}", all.reads + all.writes);
    }
}
