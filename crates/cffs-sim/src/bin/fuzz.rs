//! Fuzzing campaigns: decoders, log replay and whole images, case after case, until the time is up or enough was done.
//!
//! The cases run in processes of their own, so that an abort, a stack that overflows, memory without end or a hang is a
//! failure like any other, told with the case that did it.

use anyhow::{Context, Result, bail};
use cffs::device::IoKind;
use cffs_record::RecordOption;
use cffs_sim::fuzz::corpus::{Corpus, IMAGE_SPECS};
use cffs_sim::fuzz::{Done, Failure, Target, case_rng, image, run_case};
use clap::Parser;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Fuzzes the decoders, the replay of the log, and whole images.
///
/// A failure is told with its seed and case; `--seed N --only TARGET --case M` repeats it.
#[derive(Parser)]
struct Args {
    /// How long, in seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// How many cases, of all targets together.
    #[arg(long)]
    execs: Option<u64>,
    /// Seed of the campaign.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this case, in this process.
    #[arg(long, requires = "only", conflicts_with = "record")]
    case: Option<u64>,
    /// Number of the first case.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// What to do; all three, if not given, with most of the time for whole images.
    #[arg(long, value_enum)]
    only: Option<Target>,
    /// Processes.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Stop after so many different failures.
    #[arg(long, default_value_t = 20)]
    failures: usize,
    /// Seconds of processor time after which a case hangs.
    #[arg(long, default_value_t = 60)]
    patience: u64,
    /// Writes the summary as JSON into this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// With --case: writes the damaged image into this directory.
    #[arg(long)]
    keep: Option<PathBuf>,
    #[command(flatten)]
    record: RecordOption,
    /// Takes cases from the standard input (how the program calls itself).
    #[arg(long, hide = true)]
    worker: bool,
}

/// Memory that a worker may have, in bytes of address space.
const ADDRESS_SPACE: u64 = 6 << 30;

/// A piece of work for a worker.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Job {
    target: usize,
    from: u64,
    count: u64,
    /// Cases between two signs of life.
    step: u64,
}

/// What a worker says, a line each.
#[derive(Serialize, Deserialize)]
enum Word {
    /// This case and those up to the next sign of life come now.
    At(u64),
    Failed {
        case: u64,
        key: String,
        text: String,
    },
    Done(Tally),
}

/// What was done.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Tally {
    cases: u64,
    /// Cases whose damage was believed.
    accepted: u64,
    /// Stages of whole images: checks, walks, workloads, repairs.
    stages: u64,
    repaired: u64,
    refused: u64,
    /// The most requests that a stage needed, in thousandths of its limit.
    requests: u64,
    seconds: f64,
}

impl Tally {
    fn add(&mut self, o: &Tally) {
        self.cases += o.cases;
        self.accepted += o.accepted;
        self.stages += o.stages;
        self.repaired += o.repaired;
        self.refused += o.refused;
        self.requests = self.requests.max(o.requests);
        self.seconds += o.seconds;
    }

    fn note(&mut self, d: &Done) {
        self.accepted += u64::from(d.accepted);
        self.stages += d.stages;
        self.repaired += d.repaired;
        self.refused += d.refused;
        self.requests = self.requests.max(d.requests);
    }
}

fn say(word: &Word) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, word)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

fn worker(seed: u64) -> Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    setrlimit(Resource::As, Rlimit { current: Some(ADDRESS_SPACE), maximum: Some(ADDRESS_SPACE) })?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let corpus = Corpus::new(&IMAGE_SPECS);
    let mut told = HashSet::new();
    for line in std::io::stdin().lock().lines() {
        let job: Job = serde_json::from_str(&line?)?;
        let target = Target::ALL[job.target];
        let started = Instant::now();
        let mut tally = Tally::default();
        for case in job.from..job.from + job.count {
            if (case - job.from).is_multiple_of(job.step) {
                say(&Word::At(case))?;
            }
            tally.cases += 1;
            match run_case(&corpus, target, seed, case) {
                Ok(done) => tally.note(&done),
                Err(f) => {
                    let f = if told.insert(f.key.clone()) { smaller(&corpus, target, seed, case, f) } else { f };
                    say(&Word::Failed { case, key: f.key, text: f.text })?;
                }
            }
        }
        tally.seconds = started.elapsed().as_secs_f64();
        say(&Word::Done(tally))?;
    }
    Ok(())
}

/// The failure with the smallest damage found for it.
fn smaller(corpus: &Corpus, target: Target, seed: u64, case: u64, f: Failure) -> Failure {
    if target != Target::Image {
        return f;
    }
    let plan = image::plan(corpus, &mut case_rng(target, seed, case));
    let small = image::smaller(plan, &f.key, 40);
    match image::run(&small.devices(), small.seed) {
        Err(s) if s.key == f.key => Failure { text: format!("{}\nsmallest damage: {}", s.text, small.describe()), ..s },
        _ => f,
    }
}

/// A process that runs cases.
struct Worker {
    child: Child,
    orders: ChildStdin,
    words: Receiver<Word>,
}

impl Worker {
    fn start(seed: u64) -> Result<Worker> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--worker", "--seed", &seed.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a worker")?;
        let orders = child.stdin.take().context("no standard input")?;
        let out = BufReader::new(child.stdout.take().context("no standard output")?);
        let (send, words) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(|l| l.ok()) {
                if let Ok(word) = serde_json::from_str(&line)
                    && send.send(word).is_err()
                {
                    break;
                }
            }
        });
        Ok(Worker { child, orders, words })
    }

    /// Processor time that it has used so far, in seconds.
    fn processor_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // Behind the name, which may have anything in it: state is the first field, user and system time the 12th and 13th.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks: u64 = rest.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64
    }

    fn stop(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What all jobs share.
struct Campaign<'a> {
    args: &'a Args,
    end: Option<Instant>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: [u64; 3],
    /// Cases given out so far.
    given: u64,
    /// Seconds spent on each target, as estimated when work was given out and corrected by what it took.
    spent: [f64; 3],
    tallies: [Tally; 3],
    /// By key: how often, and the first.
    failures: BTreeMap<String, (u64, String)>,
}

/// Share of the time for each target, and cases given out at once.
const SHARES: [(f64, u64, u64); 3] = [(0.2, 20_000, 500), (0.2, 400, 20), (0.6, 40, 1)];

impl Campaign<'_> {
    /// The next piece of work; `None` when all is done.
    fn next(&self) -> Option<Job> {
        let mut s = self.state.lock().expect("no thread panics while it holds this");
        let all = self.args.execs.unwrap_or(u64::MAX);
        if self.end.is_some_and(|end| Instant::now() >= end) || s.given >= all || s.failures.len() >= self.args.failures
        {
            return None;
        }
        let target = match self.args.only {
            Some(t) => t as usize,
            None => (0..3).min_by(|a, b| (s.spent[*a] / SHARES[*a].0).total_cmp(&(s.spent[*b] / SHARES[*b].0)))?,
        };
        let (_, chunk, step) = SHARES[target];
        let count = chunk.min(all - s.given);
        let from = s.next[target];
        s.next[target] += count;
        s.given += count;
        // Until it is known what it takes: so that others take something else.
        s.spent[target] += 0.5;
        Some(Job { target, from, count, step })
    }

    fn failed(&self, target: usize, case: u64, key: String, text: &str) {
        let mut s = self.state.lock().expect("no thread panics while it holds this");
        let entry = s.failures.entry(key.clone()).or_insert((0, String::new()));
        entry.0 += 1;
        if entry.0 == 1 {
            let seed = self.args.seed;
            entry.1 = format!("--seed {seed} --only {} --case {case}: {key}\n{text}", Target::ALL[target].name());
            println!("FAILED {}\n", entry.1);
        }
    }

    fn done(&self, target: usize, tally: &Tally) {
        let mut s = self.state.lock().expect("no thread panics while it holds this");
        s.tallies[target].add(tally);
        s.spent[target] += tally.seconds - 0.5;
    }

    /// Runs work until there is no more.
    fn run(&self) -> Result<()> {
        let mut worker = Worker::start(self.args.seed)?;
        while let Some(job) = self.next() {
            let mut job = job;
            while job.count > 0 {
                worker = self.run_job(worker, &mut job)?;
            }
        }
        worker.stop();
        Ok(())
    }

    /// Runs a piece of work until it is done or the worker is lost; what is left of it stays in `job`.
    fn run_job(&self, mut worker: Worker, job: &mut Job) -> Result<Worker> {
        let Job { target, .. } = *job;
        let end = job.from + job.count;
        let order = serde_json::to_string(job)?;
        let (started, mut at) = (Instant::now(), job.from);
        let mut used = worker.processor_seconds();
        let mut idle = 0;
        let mut lost = writeln!(worker.orders, "{order}").is_err().then_some("dies");
        while lost.is_none() {
            match worker.words.recv_timeout(Duration::from_secs(self.args.patience)) {
                Ok(Word::At(case)) => {
                    at = case;
                    used = worker.processor_seconds();
                }
                Ok(Word::Failed { case, key, text }) => self.failed(target, case, key, &text),
                Ok(Word::Done(tally)) => {
                    self.done(target, &tally);
                    job.count = 0;
                    return Ok(worker);
                }
                // A machine that is busy with other things is none of its fault; one that waits for ever uses nothing.
                Err(RecvTimeoutError::Timeout) => {
                    let working = worker.processor_seconds() - used;
                    idle = if working > 0.0 { 0 } else { idle + 1 };
                    if working >= self.args.patience as f64 || idle >= 3 {
                        lost = Some("hangs");
                    }
                }
                Err(RecvTimeoutError::Disconnected) => lost = Some("dies"),
            }
        }
        let how = lost.unwrap_or("dies");
        let _ = worker.child.kill();
        let status = worker.child.wait()?;
        let seconds = started.elapsed().as_secs_f64();
        self.done(target, &Tally { cases: at - job.from, seconds, ..Tally::default() });
        if job.step > 1 {
            // One of several: the same again, one by one.
            *job = Job { from: at, count: end - at, step: 1, ..*job };
        } else {
            self.failed(target, at, format!("{how}: case {at}"), &format!("the process {how} ({status})"));
            *job = Job { from: at + 1, count: end - at - 1, ..*job };
        }
        Worker::start(self.args.seed)
    }
}

fn one(args: &Args, target: Target, case: u64) -> Result<()> {
    let corpus = Corpus::new(&IMAGE_SPECS);
    if target == Target::Image {
        let plan = image::plan(&corpus, &mut case_rng(target, args.seed, case));
        print!("{}", plan.describe());
        if let Some(dir) = &args.keep {
            keep(dir, &plan)?;
        }
    }
    match run_case(&corpus, target, args.seed, case) {
        Ok(_) => {
            println!("passed");
            Ok(())
        }
        Err(f) => {
            let f = smaller(&corpus, target, args.seed, case, f);
            bail!("{}\n{}", f.key, f.text)
        }
    }
}

fn keep(dir: &Path, plan: &image::Plan<'_>) -> Result<()> {
    for (name, dev) in ["image", "log"].iter().zip(plan.devices()) {
        let path = dir.join(name);
        let mut file = std::fs::File::create(&path)?;
        let mut b = vec![0; 1 << 16];
        // What is zero stays a hole.
        for at in (0..dev.len().min(1 << 32)).step_by(b.len()) {
            dev.read_at(IoKind::Data, at, &mut b)?;
            if b.iter().any(|x| *x != 0) {
                std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(at))?;
                file.write_all(&b)?;
            }
        }
        file.set_len(dev.len())?;
        println!("{}", path.display());
    }
    Ok(())
}

#[derive(Serialize)]
struct Summary<'a> {
    seed: u64,
    seconds: f64,
    cases: u64,
    targets: BTreeMap<&'a str, Tally>,
    failures: BTreeMap<String, (u64, String)>,
}

/// Cases of each target with what came of them, for the table of campaigns.
fn counts(tallies: &[Tally; 3]) -> Vec<(u64, &'static str)> {
    let [blocks, logs, images] = tallies;
    let all = [
        (blocks.cases, "blocks"),
        (blocks.accepted, "of them decoded"),
        (logs.cases, "logs"),
        (logs.accepted, "of them replayed"),
        (images.cases, "images"),
        (images.stages, "stages"),
        (images.repaired, "repairs"),
        (images.refused, "repairs refused"),
    ];
    all.into_iter().filter(|(n, _)| *n > 0).collect()
}

/// The words that repeat a failure, which its text begins with.
fn repeat(text: &str) -> &str {
    text.split(": ").next().unwrap_or(text)
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.worker {
        return worker(args.seed);
    }
    if let (Some(target), Some(case)) = (args.only, args.case) {
        return one(&args, target, case);
    }
    if args.seconds.is_none() && args.execs.is_none() {
        bail!("how long? --seconds or --execs");
    }
    let recorder =
        args.record.open(format!("fuzzing{}", args.only.map_or(String::new(), |t| format!(", only {}", t.name()))))?;
    let started = Instant::now();
    let end = args.seconds.map(|s| started + Duration::from_secs(s));
    let state = Mutex::new(State { next: [args.from; 3], ..State::default() });
    let campaign = Campaign { args: &args, end, state };
    std::thread::scope(|s| {
        let jobs: Vec<_> = (0..args.jobs.max(1)).map(|_| s.spawn(|| campaign.run())).collect();
        jobs.into_iter().try_for_each(|j| j.join().expect("a job does not panic"))
    })?;
    let state = campaign.state.into_inner().expect("all threads have ended");
    let seconds = started.elapsed().as_secs_f64();
    let mut cases = 0;
    let mut targets = BTreeMap::new();
    for (target, t) in Target::ALL.into_iter().zip(state.tallies) {
        cases += t.cases;
        targets.insert(target.name(), t);
        println!(
            "{}: {} cases in {:.0} s, {} of them believed, {} stages, {} repairs, {} repairs refused, at most {} per mille of the requests allowed",
            target.name(),
            t.cases,
            t.seconds,
            t.accepted,
            t.stages,
            t.repaired,
            t.refused,
            t.requests
        );
    }
    let different = state.failures.len();
    println!("{cases} cases in {seconds:.0} s, {different} different failures");
    for (key, (n, _)) in &state.failures {
        println!("  {n} times: {key}");
    }
    let failures: Vec<String> = state.failures.values().map(|(_, text)| repeat(text).to_owned()).collect();
    recorder.write(&counts(&state.tallies), &failures)?;
    if let Some(path) = &args.json {
        let summary = Summary { seed: args.seed, seconds, cases, targets, failures: state.failures };
        std::fs::write(path, serde_json::to_string_pretty(&summary)?)?;
    }
    if different > 0 {
        bail!("{different} different failures");
    }
    Ok(())
}
