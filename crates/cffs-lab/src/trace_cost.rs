//! What tracing costs programs on a mount: a cold `grep -r`, and unpacking, in turns without a trace and with one of all classes;
//! and with a cffs into which tracing was not compiled, to see what it costs while it is off.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cleanup::{Cleanup, Guard};
use crate::mounted::{Kind, LIMIT, Mounted};
use crate::process::run_command;
use crate::served::Sparse;
use crate::server::Server;
use crate::tree;

/// How many times as long a program may take while everything is traced.
const TARGET: f64 = 1.05;
/// A word that no file has.
const NEEDLE: &str = "zyxwv-no-file-has-this-uzyxwv";
/// Bytes of an image.
const IMAGE: u64 = 2 << 30;

/// Files of a piece: its work takes some tens of milliseconds, less than what else a machine does lasts.
const PIECE: usize = 200;

/// Arguments of `cffs-lab tracecost`.
#[derive(clap::Args)]
pub struct Args {
    /// The cffs program
    #[arg(long, default_value = "target/release/cffs")]
    cffs: PathBuf,
    /// A cffs built with RUSTFLAGS="--cfg cffs_untraced", into which tracing was not compiled
    #[arg(long)]
    untraced: Option<PathBuf>,
    /// Files of the tree
    #[arg(long, default_value_t = 10_000)]
    files: usize,
    /// Turns; each has every piece once in every way
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..))]
    turns: u64,
    /// Where images and traces lie; by default a temporary directory
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Options of `cffs mount -o`
    #[arg(long, default_value = "")]
    cffs_options: String,
}

/// Whether a trace is recorded, and with which program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Off,
    On,
    Untraced,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Off => "not traced",
            Way::On => "everything traced",
            Way::Untraced => "not compiled in",
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Unpack,
    Grep,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Unpack => "unpack",
            Work::Grep => "grep -r",
        }
    }
}

/// What pieces of a work took in one way: the shortest of all turns.
struct Took {
    /// Seconds by the clock, of each piece; the last one is the sync after unpacking.
    clock: Vec<f64>,
    /// Seconds of the mount's and the recorder's processors, for the whole.
    processors: f64,
}

/// Runs the subcommand: exit code 1 when the target is missed.
///
/// # Errors
/// When it cannot run here, or something fails.
pub fn run(args: &Args) -> Result<ExitCode> {
    ensure!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse here: nothing measured");
    let cffs = std::path::absolute(&args.cffs)?;
    let untraced = args.untraced.as_ref().map(std::path::absolute).transpose()?;
    for program in [Some(&cffs), untraced.as_ref()].into_iter().flatten() {
        ensure!(program.is_file(), "{} is not there (make bench-trace, cargo build --release)", program.display());
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix("cffs-lab-tracecost-");
    let dir = args.dir.as_ref().map_or_else(|| builder.tempdir(), |at| builder.tempdir_in(at))?.keep();
    let _guard = Guard::new(Cleanup::RemoveDir(dir.clone()));
    let selection = tree::select(args.files);
    let mut pieces = Vec::new();
    for (n, paths) in selection.paths.chunks(PIECE).enumerate() {
        let archive = dir.join(format!("piece{n}.tar"));
        tree::pack(&tree::Selection { paths: paths.to_vec(), ..Default::default() }, &archive)?;
        pieces.push(archive);
    }
    println!(
        "{} files, {} MB, in {} pieces, each in every way one right after the other; the shortest of {} turns",
        selection.files,
        selection.bytes / 1_000_000,
        pieces.len(),
        args.turns
    );
    let mut ways = vec![Way::Off, Way::On];
    ways.extend(untraced.is_some().then_some(Way::Untraced));
    let bench = Bench { args, cffs, untraced, dir, pieces };
    let mut met = true;
    let mut took: Vec<[Option<Took>; 2]> = ways.iter().map(|_| [None, None]).collect();
    for turn in 0..args.turns {
        for (n, work) in [Work::Unpack, Work::Grep].into_iter().enumerate() {
            let one = bench.turn(work, &ways, turn as usize)?;
            for (way, new) in took.iter_mut().zip(one) {
                least(&mut way[n], new);
            }
        }
    }
    for (n, work) in [Work::Unpack, Work::Grep].into_iter().enumerate() {
        let of: Vec<&Took> = took.iter().filter_map(|way| way[n].as_ref()).collect();
        for (way, took) in ways.iter().zip(&of) {
            let clock: f64 = took.clock.iter().sum();
            println!(
                "{:8} {:18} {clock:8.3} s by the clock, {:7.2} s of the mount's and the recorder's processors",
                work.name(),
                way.name(),
                took.processors
            );
        }
        met &= compare(work, "everything traced, to not traced", of[1], of[0]) <= TARGET;
        if let Some(untraced) = of.get(2) {
            compare(work, "not traced, to not compiled in", of[0], untraced);
        }
    }
    println!("target: everything traced, at most {TARGET} times the time by the clock");
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Bench<'a> {
    args: &'a Args,
    cffs: PathBuf,
    untraced: Option<PathBuf>,
    dir: PathBuf,
    /// Archives.
    pieces: Vec<PathBuf>,
}

/// A mount for one way.
struct Mount {
    way: Way,
    root: PathBuf,
    mounted: Mounted,
    recorder: Option<(Server, PathBuf)>,
}

impl Mount {
    /// Seconds of the processors of all that serves it.
    fn processors(&self) -> f64 {
        let recorder = self.recorder.as_ref().and_then(|(recorder, _)| recorder.processor_seconds());
        self.mounted.processor_seconds().unwrap_or(0.0) + recorder.unwrap_or(0.0)
    }
}

impl Bench<'_> {
    /// Mounts an image for a way, a new one for unpacking; nothing of it is in memory.
    fn mount(&self, work: Work, way: Way) -> Result<Mount> {
        let program = if way == Way::Untraced { self.untraced.as_ref().unwrap_or(&self.cffs) } else { &self.cffs };
        let number = way as usize;
        let (image, root) = (self.dir.join(format!("image{number}")), self.dir.join(format!("mnt{number}")));
        let name = image.to_string_lossy().into_owned();
        if work == Work::Unpack {
            let _ = std::fs::remove_file(&image);
            drop(Sparse::create(&image, IMAGE)?);
            Kind::Cffs.format(program, &[], &name)?;
        }
        std::fs::create_dir_all(&root)?;
        let mounted = Kind::Cffs.mount(program, &self.args.cffs_options, &name, &root)?;
        let trace = self.dir.join("trace");
        let recorder = (way == Way::On).then(|| self.record(&root, &trace)).transpose()?;
        Ok(Mount { way, root, mounted, recorder: recorder.map(|r| (r, trace)) })
    }

    /// Does a piece of the work; how long it took.
    fn piece(&self, work: Work, root: &Path, number: usize) -> Result<f64> {
        let at = root.join(format!("piece{number}"));
        if work == Work::Unpack {
            std::fs::create_dir(&at)?;
        }
        let clock = Instant::now();
        match work {
            Work::Unpack => {
                let mut tar = Command::new("tar");
                tar.arg("-C").arg(&at).arg("-xpf").arg(&self.pieces[number]);
                run_command(tar, LIMIT)?;
            }
            Work::Grep => {
                let mut grep = Command::new("grep");
                grep.args(["-r", "-F", NEEDLE]).arg(&at);
                // With an output of /dev/null it would stop reading at the first match.
                let status = grep.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?.wait()?;
                // 1 says that it read everything and found nothing.
                ensure!(status.code() == Some(1), "grep ended with {status}");
            }
        }
        Ok(clock.elapsed().as_secs_f64())
    }

    /// All pieces in every way, one way after the other with each piece, and the first one changes.
    fn turn(&self, work: Work, ways: &[Way], turn: usize) -> Result<Vec<Took>> {
        let mounts: Vec<Mount> = ways.iter().map(|way| self.mount(work, *way)).collect::<Result<_>>()?;
        let before: Vec<f64> = mounts.iter().map(Mount::processors).collect();
        let mut clocks: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
        for piece in 0..self.pieces.len() {
            for n in 0..ways.len() {
                let n = (n + piece + turn) % ways.len();
                clocks[n].push(self.piece(work, &mounts[n].root, piece)?);
            }
        }
        if work == Work::Unpack {
            for (mount, clocks) in mounts.iter().zip(&mut clocks) {
                let root = std::fs::File::open(&mount.root)?;
                let clock = Instant::now();
                rustix::fs::syncfs(root)?;
                clocks.push(clock.elapsed().as_secs_f64());
            }
        }
        // The recorder takes what is left.
        std::thread::sleep(Duration::from_millis(120));
        let spent: Vec<f64> = mounts.iter().zip(before).map(|(m, before)| m.processors() - before).collect();
        for mount in mounts {
            debug_assert_eq!(mount.way == Way::On, mount.recorder.is_some());
            if let Some((recorder, trace)) = mount.recorder {
                kill_process(Pid::from_raw(recorder.pid() as i32).context("no process")?, Signal::INT)?;
                ensure!(recorder.wait_end(LIMIT)?.success(), "the recording has failed");
                self.complete(&trace)?;
            }
            mount.mounted.unmount()?;
        }
        Ok(clocks.into_iter().zip(spent).map(|(clock, processors)| Took { clock, processors }).collect())
    }

    /// Starts a recording of all classes.
    fn record(&self, root: &Path, trace: &Path) -> Result<Server> {
        let _ = std::fs::remove_file(trace);
        let mut command = Command::new(&self.cffs);
        command.args(["trace", "-o"]).arg(trace).arg(root);
        let mut recorder = Server::start(command)?;
        // It writes the first bytes when it has begun.
        recorder.wait_until(LIMIT, || trace.metadata().is_ok_and(|m| m.len() > 0))?;
        Ok(recorder)
    }

    /// A trace that has lost something, or has less than an operation for each file, has cost too little.
    fn complete(&self, trace: &Path) -> Result<()> {
        let mut command = Command::new(&self.cffs);
        command.args(["trace", "summary", "--json", "--slowest", "0"]).arg(trace);
        let summary: Value = serde_json::from_str(&run_command(command, LIMIT)?)?;
        let spans = summary["spans"].as_u64().unwrap_or(0);
        ensure!(summary["lost"] == 0, "the trace has lost {} spans", summary["lost"]);
        ensure!(spans > self.args.files as u64, "the trace has {spans} spans only");
        Ok(())
    }
}

/// Keeps the shorter time of each piece: what else a machine does makes it longer, never shorter.
fn least(kept: &mut Option<Took>, new: Took) {
    let Some(kept) = kept else {
        *kept = Some(new);
        return;
    };
    kept.clock.iter_mut().zip(new.clock).for_each(|(kept, new)| *kept = kept.min(new));
    kept.processors = kept.processors.min(new.processors);
}

/// A value of which as many are larger as smaller, a quarter is smaller, a quarter is larger.
fn quartiles(mut all: Vec<f64>) -> [f64; 3] {
    all.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let rank = part * (all.len().saturating_sub(1)) as f64;
        let (low, high) = (all[rank.floor() as usize], all[rank.ceil() as usize]);
        low + (high - low) * rank.fract()
    };
    [at(0.5), at(0.25), at(0.75)]
}

/// Prints how many times as long the first took, by the sums and piece by piece, with the quartiles; returns the first of these.
fn compare(work: Work, what: &str, first: &Took, second: &Took) -> f64 {
    let sums = first.clock.iter().sum::<f64>() / second.clock.iter().sum::<f64>();
    let [median, low, high] = quartiles(first.clock.iter().zip(&second.clock).map(|(a, b)| a / b).collect());
    let processors = first.processors / second.processors;
    println!(
        "{:8} {what}: {sums:.3} times as long; a piece {median:.3} (quartiles {low:.3}, {high:.3}); of the processors {processors:.3}",
        work.name()
    );
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between() {
        assert_eq!(quartiles(vec![4.0, 1.0, 3.0, 2.0, 5.0]), [3.0, 2.0, 4.0]);
        assert_eq!(quartiles(vec![1.0, 2.0]), [1.5, 1.25, 1.75]);
        assert_eq!(quartiles(vec![7.0]), [7.0, 7.0, 7.0]);
    }

    #[test]
    fn of_each_piece_the_shortest_is_kept() {
        let took = |clock: &[f64], processors| Took { clock: clock.to_vec(), processors };
        let mut kept = None;
        least(&mut kept, took(&[1.0, 5.0, 3.0], 9.0));
        least(&mut kept, took(&[2.0, 4.0, 3.0], 8.0));
        let kept = kept.unwrap();
        assert_eq!((kept.clock.as_slice(), kept.processors), ([1.0, 4.0, 3.0].as_slice(), 8.0));
        assert_eq!(compare(Work::Grep, "twice", &took(&[2.0, 8.0, 6.0], 8.0), &kept), 2.0);
    }
}
