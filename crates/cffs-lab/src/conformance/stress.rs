//! Processes that work on one mount at the same time.
//!
//! Each has a directory of its own, where it knows what must be there and looks
//! (see [`worker`]), and all of them work in shared directories, where
//! nobody can know what the others have just done, but only certain errors are
//! right. At the end everything that is known is compared, before and after an
//! unmount.

mod shared;
mod worker;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::check::{Check, Format};
use super::job::Job;
use super::test_mount::TestMount;
use crate::cleanup::{Cleanup, Guard};
use crate::process::wait_for;

/// Arguments of `cffs-lab conformance stress`.
#[derive(clap::Args)]
pub struct Args {
    /// How long the processes work
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// How many there are
    #[arg(long, default_value_t = 8)]
    processes: u64,
    /// Starts the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Unmount and compare so often on the way
    #[arg(long, default_value_t = 5)]
    rounds: u64,
}

/// Arguments of one of the processes.
#[derive(clap::Args)]
pub struct WorkerArgs {
    #[arg(long)]
    root: PathBuf,
    #[arg(long)]
    number: u64,
    #[arg(long)]
    seed: u64,
}

/// The one check.
pub fn checks(args: &Args) -> Vec<Check<'_>> {
    vec![Check {
        name: "stress".into(),
        size: "4G",
        formats: vec![Format::Default],
        run: Box::new(|job, mount| check(args, job, mount)),
    }]
}

/// A process of ours that takes a line for each thing to do, and answers with one.
struct Process {
    child: Child,
    guard: Option<Guard>,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(args: &Args, number: u64, mount: &TestMount) -> Result<Process> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["conformance", "stress-worker"])
            .arg("--root")
            .arg(mount.root())
            .args(["--number", &number.to_string()])
            .args(["--seed", &args.seed.wrapping_mul(1000).wrapping_add(number).to_string()])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let guard = Some(Guard::new(Cleanup::End(child.id())));
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("no standard output")?);
        Ok(Process { child, guard, input, output })
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("no standard input")?;
        writeln!(input, "{line}")?;
        Ok(input.flush()?)
    }

    /// The number it answers with.
    fn answer(&mut self) -> Result<u64> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        match line.trim().split_once(' ') {
            Some(("ok", number)) => Ok(number.parse()?),
            _ if line.is_empty() => bail!("it ended without an answer"),
            _ => bail!("{}", line.trim()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // No more lines: it ends. One that hangs is killed, and may not even then go away from a dead mount.
        self.input.take();
        if let (Ok(Some(_)), Some(guard)) = (wait_for(&mut self.child, Duration::from_secs(10)), self.guard.take()) {
            guard.disarm();
        }
    }
}

fn check(args: &Args, job: &Job, mount: &mut TestMount) -> Result<String> {
    for n in 0..shared::DIRS {
        std::fs::create_dir(mount.root().join(format!("shared{n}")))?;
    }
    let mut processes = (0..args.processes).map(|n| Process::start(args, n, mount)).collect::<Result<Vec<_>>>()?;
    let mut all = |line: &str| -> Result<u64> {
        for process in &mut processes {
            process.tell(line)?;
        }
        let mut sum = 0;
        let mut wrong = Vec::new();
        for (number, process) in processes.iter_mut().enumerate() {
            match process.answer() {
                Ok(n) => sum += n,
                Err(e) => wrong.push(format!("process {number}: {e:#}")),
            }
        }
        if wrong.is_empty() { Ok(sum) } else { bail!("{}", wrong.join("; ")) }
    };
    let (mut operations, mut compared) = (0, 0);
    let slice = Duration::from_secs(args.seconds) / u32::try_from(args.rounds.max(1))?;
    for round in 1..=args.rounds.max(1) {
        operations += all(&format!("work {}", slice.as_millis()))?;
        compared += all("compare")?;
        mount.again()?;
        compared += all("compare")?;
        job.note(&format!("after round {round}: {operations} operations, {compared} files compared"));
    }
    Ok(format!(
        "{} processes, {} s, {operations} operations, {compared} files compared, also after {} unmounts",
        args.processes,
        args.seconds,
        args.rounds.max(1)
    ))
}

/// What such a process does: lines on standard input, answers on standard output.
///
/// # Errors
/// When it cannot be told what to do any more.
pub fn work(args: &WorkerArgs) -> Result<ExitCode> {
    let mut worker = worker::Worker::new(&args.root, args.number, args.seed);
    for line in std::io::stdin().lines() {
        let line = line?;
        let done = match line.split_once(' ') {
            Some(("work", time)) => worker.work(Duration::from_millis(time.parse()?)),
            None if line == "compare" => worker.compare(),
            _ => bail!("unknown order '{line}'"),
        };
        match done {
            Ok(number) => println!("ok {number}"),
            Err(e) => println!("{}", format!("{e:#}").replace('\n', " ")),
        }
    }
    Ok(ExitCode::SUCCESS)
}
