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
    /// Turns; each has every way once, in an order that changes
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u64).range(1..))]
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
    Untraced,
    Off,
    On,
}

/// What is measured.
#[derive(Clone, Copy)]
enum Work {
    Grep,
    Unpack,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Grep => "grep -r",
            Work::Unpack => "unpack",
        }
    }
}

/// Seconds by the clock, and of all processors: the program, the mount, the recorder.
#[derive(Clone, Copy)]
struct Took {
    clock: f64,
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
    let bench = Bench { args, cffs, untraced, archive: dir.join("tree.tar"), root: dir.join("mnt"), dir };
    std::fs::create_dir(&bench.root)?;
    let selection = tree::select(args.files);
    tree::pack(&selection, &bench.archive)?;
    println!(
        "{} files, {} MB, {} turns; least seconds by the clock, and of the processors (program, mount and recorder)",
        selection.files,
        selection.bytes / 1_000_000,
        args.turns
    );
    let mut met = true;
    for work in [Work::Grep, Work::Unpack] {
        met &= bench.measure(work)?;
    }
    println!("target: everything traced, at most {TARGET} times the least time by the clock");
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Bench<'a> {
    args: &'a Args,
    cffs: PathBuf,
    untraced: Option<PathBuf>,
    dir: PathBuf,
    archive: PathBuf,
    root: PathBuf,
}

impl Bench<'_> {
    fn image(&self) -> String {
        self.dir.join("image").to_string_lossy().into_owned()
    }

    /// A new file system.
    fn format(&self) -> Result<()> {
        let image = self.image();
        let _ = std::fs::remove_file(&image);
        drop(Sparse::create(Path::new(&image), IMAGE)?);
        Kind::Cffs.format(&self.cffs, &[], &image)
    }

    fn mount(&self, program: &Path) -> Result<Mounted> {
        Kind::Cffs.mount(program, &self.args.cffs_options, &self.image(), &self.root)
    }

    fn unpack(&self) -> Result<()> {
        let at = self.root.join("tree");
        std::fs::create_dir(&at)?;
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(&at).arg("-xpf").arg(&self.archive);
        run_command(tar, LIMIT)?;
        Ok(rustix::fs::syncfs(std::fs::File::open(&self.root)?)?)
    }

    fn grep(&self) -> Result<()> {
        let mut grep = Command::new("grep");
        grep.args(["-r", "-F", NEEDLE]).arg(self.root.join("tree"));
        // With an output of /dev/null it would stop reading at the first match.
        let status = grep.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?.wait()?;
        // 1 says that it read everything and found nothing.
        ensure!(status.code() == Some(1), "grep ended with {status}");
        Ok(())
    }

    /// One way to do the work, from a cold mount.
    fn one(&self, work: Work, way: Way) -> Result<Took> {
        if matches!(work, Work::Unpack) {
            self.format()?;
        }
        let program = if way == Way::Untraced { self.untraced.as_ref().unwrap_or(&self.cffs) } else { &self.cffs };
        let mounted = self.mount(program)?;
        let trace = self.dir.join("trace");
        let recorder = (way == Way::On).then(|| self.record(&trace)).transpose()?;
        let spent = || -> Result<f64> {
            let own = own_children()?;
            let mount = mounted.processor_seconds().context("the mount has no process")?;
            Ok(own + mount + recorder.as_ref().and_then(Server::processor_seconds).unwrap_or(0.0))
        };
        let before = spent()?;
        let clock = Instant::now();
        match work {
            Work::Grep => self.grep()?,
            Work::Unpack => self.unpack()?,
        }
        let clock = clock.elapsed().as_secs_f64();
        // The recorder takes what is left.
        std::thread::sleep(Duration::from_millis(120));
        let processors = spent()? - before;
        if let Some(recorder) = recorder {
            kill_process(Pid::from_raw(recorder.pid() as i32).context("no process")?, Signal::INT)?;
            ensure!(recorder.wait_end(LIMIT)?.success(), "the recording has failed");
            self.complete(&trace)?;
        }
        mounted.unmount()?;
        Ok(Took { clock, processors })
    }

    /// Starts a recording of all classes.
    fn record(&self, trace: &Path) -> Result<Server> {
        let _ = std::fs::remove_file(trace);
        let mut command = Command::new(&self.cffs);
        command.args(["trace", "-o"]).arg(trace).arg(&self.root);
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

    /// All turns of one work; whether the target was met.
    fn measure(&self, work: Work) -> Result<bool> {
        self.format()?;
        let mounted = self.mount(&self.cffs)?;
        self.unpack()?;
        mounted.unmount()?;
        let mut ways = vec![Way::Off, Way::On];
        if self.untraced.is_some() {
            ways.push(Way::Untraced);
        }
        let mut took: Vec<[Option<Took>; 3]> = Vec::new();
        // The first round of all is not counted: it brings programs and image into memory.
        for turn in 0..=self.args.turns {
            let mut round = [None; 3];
            for way in &ways {
                round[*way as usize] = Some(self.one(work, *way)?);
            }
            ways.rotate_left(1);
            if turn > 0 {
                took.push(round);
            }
        }
        let clock = |t: Took| t.clock;
        let processors = |t: Took| t.processors;
        let ratio = compare(work, "everything traced, to not traced", &took, (Way::On, Way::Off), clock);
        compare(work, "  of the processors", &took, (Way::On, Way::Off), processors);
        if self.untraced.is_some() {
            compare(work, "not traced, to not compiled in", &took, (Way::Off, Way::Untraced), clock);
            compare(work, "  of the processors", &took, (Way::Off, Way::Untraced), processors);
        }
        Ok(ratio <= TARGET)
    }
}

/// Seconds of the processors that children have had that were waited for.
fn own_children() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    crate::server::seconds_in(&stat, 13).context("/proc/self/stat")
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

/// Prints how long both took at least, and how many times as long the first took: by that, and in the same turn, with the quartiles.
/// What else the machine does makes a turn longer and never shorter, so the first of these is returned.
fn compare(
    work: Work,
    what: &str,
    took: &[[Option<Took>; 3]],
    (first, second): (Way, Way),
    of: impl Fn(Took) -> f64,
) -> f64 {
    let pairs: Vec<(f64, f64)> =
        took.iter().filter_map(|round| Some((of(round[first as usize]?), of(round[second as usize]?)))).collect();
    let a = pairs.iter().map(|p| p.0).fold(f64::INFINITY, f64::min);
    let b = pairs.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let [median, low, high] = quartiles(pairs.iter().map(|(a, b)| a / b).collect());
    println!(
        "{:8} {what:34} {a:7.3} s to {b:7.3} s: {:.3}; in the same turn {median:.3} (quartiles {low:.3}, {high:.3})",
        work.name(),
        a / b
    );
    a / b
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
    fn what_children_took_is_seen() {
        let before = own_children().unwrap();
        let mut busy = Command::new("sh");
        busy.args(["-c", "n=0; while [ $n -lt 100000 ]; do n=$((n + 1)); done"]);
        run_command(busy, LIMIT).unwrap();
        assert!(own_children().unwrap() > before);
    }
}
