//! `cffs trace`: records what a mounted file system does, with the causes, and explains it.

mod causes;
mod counted;
mod explain;
mod graph;
mod load;
mod perfetto;
mod record;
mod requests;
mod summary;

use anyhow::anyhow;
use cffs::trace::Classes;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Record what a mounted file system does and why, and explain it
///
/// Records operations, cache misses, readahead, writeback, commits, checkpoints, and each request of the device, with what caused
/// them, until it is interrupted, the time is over, or the command has ended. It takes root, or the user who mounted.
///
/// The rest reads what was recorded: `summary` for tables and the slowest operations, `graph` for what caused what, `perfetto` for
/// a timeline in ui.perfetto.dev or chrome://tracing.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "cffs trace [OPTIONS] <DIR> [-- COMMAND...]\n       cffs trace summary|graph|perfetto [OPTIONS] <FILE>"
)]
pub struct TraceArgs {
    #[command(subcommand)]
    explain: Option<Explain>,
    /// What to record: `all`, or names with commas between them: op, message, cache, readahead, writeback, journal, background,
    /// device. And `replay`, which `all` does not have: see --replay
    #[arg(long, default_value_t = Classes::ALL)]
    classes: Classes,
    /// Where the trace goes; `-` is standard output, for a pipe to another machine (what COMMAND prints then goes to standard error).
    /// Not a file in DIR: writing it would be traced
    #[arg(short, long, value_name = "FILE", default_value = "cffs.trace")]
    output: PathBuf,
    /// End after so many seconds
    #[arg(long, value_name = "N", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// Record what `cffs-lab replay` needs as well: a listing of all directories at the beginning, then the names and the settings of
    /// each operation. Before it begins, everything is written and dropped from the cache
    #[arg(long)]
    replay: bool,
    /// With --replay: replace names by others of the same length, so that the trace can be given away
    #[arg(long, requires = "replay")]
    scramble: bool,
    /// Directory of a mount (any in it)
    #[arg(required = true)]
    dir: Option<PathBuf>,
    /// A command to run, which ends the recording when it ends; its exit code becomes that of `cffs trace`
    #[arg(last = true)]
    command: Vec<OsString>,
}

#[derive(Subcommand, Debug)]
enum Explain {
    Summary(summary::SummaryArgs),
    Graph(graph::GraphArgs),
    Perfetto(perfetto::PerfettoArgs),
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let limit = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    limit.ok_or_else(|| "must be a number of seconds, 0 or more".into())
}

/// Runs the subcommand.
pub fn run(args: &TraceArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    match (&args.explain, &args.dir) {
        (Some(Explain::Summary(a)), _) => summary::run(a),
        (Some(Explain::Graph(a)), _) => graph::run(a),
        (Some(Explain::Perfetto(a)), _) => perfetto::run(a),
        (None, Some(dir)) => record::run(&record::Recording {
            dir,
            classes: if args.replay { args.classes.with(Classes::REPLAY).with(Classes::OP) } else { args.classes },
            replay: args.replay,
            scramble: args.scramble,
            output: &args.output,
            limit: args.seconds,
            command: &args.command,
        }),
        (None, None) => Err(anyhow!("no directory was named")),
    }
}
