//! Running experiments: as many at a time as there are processors, those in real time alone, with a bar that shows how far they are.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::outcome::{Outcome, shown};
use super::{EXPERIMENTS, Experiment, find};

/// Arguments of `cffs-lab run`.
#[derive(clap::Args)]
pub struct RunArgs {
    /// Names of experiments
    names: Vec<String>,
    /// All of them
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Those too that have a result
    #[arg(long)]
    again: bool,
    /// A tenth of the files: a look, not a measurement. The result is not kept
    #[arg(long)]
    quick: bool,
    /// How many at a time; those in real time are always alone [default: one for each processor]
    #[arg(long)]
    jobs: Option<usize>,
    /// Where results are kept
    #[arg(long, default_value = "target/lab")]
    results: PathBuf,
}

/// How far all is.
struct Progress {
    total: usize,
    state: Mutex<State>,
    changed: Condvar,
    terminal: bool,
}

#[derive(Default)]
struct State {
    done: usize,
    running: Vec<(&'static str, Instant)>,
    over: bool,
}

const BAR: usize = 24;

impl Progress {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bar(&self, state: &State) -> String {
        let full = BAR * state.done / self.total.max(1);
        let running: Vec<String> =
            state.running.iter().map(|(name, since)| format!("{name} {} s", since.elapsed().as_secs())).collect();
        let (done, total) = (state.done, self.total);
        format!("[{}{}] {done}/{total} {}", "#".repeat(full), ".".repeat(BAR - full), running.join(", "))
    }

    /// Draws the bar once a second until everything is over.
    fn draw(&self) {
        let mut state = self.lock();
        while !state.over {
            eprint!("\r\x1b[K{}", self.bar(&state));
            let waited = self.changed.wait_timeout(state, Duration::from_secs(1));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        eprint!("\r\x1b[K");
    }

    fn begin(&self, name: &'static str) {
        self.lock().running.push((name, Instant::now()));
        self.changed.notify_all();
    }

    /// Prints a result between two bars.
    fn end(&self, name: &'static str, outcome: Option<(&str, &Outcome)>) {
        let mut state = self.lock();
        state.done += 1;
        let at = state.running.iter().position(|(n, _)| *n == name);
        let took = at.map_or(0.0, |at| state.running.remove(at).1.elapsed().as_secs_f64());
        if self.terminal {
            eprint!("\r\x1b[K");
        }
        if let Some((title, outcome)) = outcome {
            let _ = std::io::stdout().write_all(text(title, outcome).as_bytes());
        }
        eprintln!("[{}/{}] {name}: {took:.1} s", state.done, self.total);
        self.changed.notify_all();
    }

    fn over(&self) {
        self.lock().over = true;
        self.changed.notify_all();
    }
}

/// `cffs-lab run`. With `--all`, what has a result already is passed over.
///
/// # Errors
/// When a name is unknown or an experiment fails.
pub fn run_named(args: &RunArgs) -> Result<ExitCode> {
    let mut chosen: Vec<&Experiment> = match args.all {
        true => EXPERIMENTS.iter().collect(),
        false => args.names.iter().map(|name| find(name)).collect::<Result<_>>()?,
    };
    ensure!(!chosen.is_empty(), "name an experiment (`cffs-lab list` has their names), or --all");
    if args.all && !args.again && !args.quick {
        chosen.retain(|e| {
            let there = path(args, e).is_file();
            if there {
                eprintln!("{}: has a result", e.name);
            }
            !there
        });
    }
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get())).max(1);
    let progress = Progress {
        total: chosen.len(),
        state: Mutex::default(),
        changed: Condvar::new(),
        terminal: std::io::stderr().is_terminal(),
    };
    // The last ones take longest.
    let (alone, together): (Vec<&Experiment>, Vec<&Experiment>) = chosen.into_iter().partition(|e| e.real_time);
    let queue = Mutex::new(together);
    let failed = Mutex::new(None);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let failure = || failed.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|s| {
        if progress.terminal {
            s.spawn(|| progress.draw());
        }
        let workers: Vec<_> = (0..jobs)
            .map(|_| {
                s.spawn(|| {
                    while failure().is_none()
                        && let Some(experiment) = next()
                    {
                        if let Err(error) = run_one(args, experiment, &progress) {
                            failure().get_or_insert(error);
                        }
                    }
                })
            })
            .collect();
        let panicked = workers.into_iter().filter_map(|w| w.join().err()).next();
        for experiment in alone {
            if panicked.is_none() && failure().is_none() {
                let done = run_one(args, experiment, &progress);
                *failure() = done.err();
            }
        }
        progress.over();
        if let Some(panicked) = panicked {
            std::panic::resume_unwind(panicked);
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn path(args: &RunArgs, experiment: &Experiment) -> PathBuf {
    args.results.join(format!("{}.json", experiment.name))
}

fn run_one(args: &RunArgs, experiment: &'static Experiment, progress: &Progress) -> Result<()> {
    progress.begin(experiment.name);
    let ran = (experiment.run)(if args.quick { 10 } else { 1 }).with_context(|| format!("{} failed", experiment.name));
    let mut outcome = match ran {
        Ok(outcome) => outcome,
        Err(error) => {
            progress.end(experiment.name, None);
            return Err(error);
        }
    };
    outcome.name = experiment.name.to_string();
    // What could not run here has nothing to keep, and may run another time.
    if !args.quick && !outcome.is_empty() {
        keep(&path(args, experiment), &outcome)?;
    }
    progress.end(experiment.name, Some((experiment.title, &outcome)));
    Ok(())
}

fn keep(path: &Path, outcome: &Outcome) -> Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    // Under another name first: what is there is whole.
    let part = path.with_extension("part");
    fs::write(&part, serde_json::to_vec_pretty(outcome)?)
        .and_then(|()| fs::rename(&part, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Tables and verdicts for a terminal.
fn text(title: &str, outcome: &Outcome) -> String {
    let mut out = format!("{title}\n\n");
    for table in &outcome.tables {
        let width = table.columns[1..].iter().map(|c| c.chars().count() + 2).max().unwrap_or(0).max(10);
        let names = table.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let first = names.max(table.columns[0].chars().count()).max(20);
        let head: String = table.columns[1..].iter().map(|c| format!("{c:>width$}")).collect();
        out += &format!("{}\n  {:first$}{head}\n", table.title, table.columns[0]);
        for (name, values) in &table.rows {
            let values: String = values.iter().map(|v| format!("{:>width$}", shown(*v))).collect();
            out += &format!("  {name:first$}{values}\n");
        }
        out.push('\n');
    }
    out += &format!("  {:74}{:>8}{:>8}{:>8}\n", "claim", "paper", "ours", "ratio");
    for claim in &outcome.claims {
        let verdict = if claim.holds() { "confirmed" } else { "NOT confirmed" };
        let (paper, ours, ratio) = (shown(claim.paper), shown(claim.ours), claim.ratio());
        out += &format!("  {:74}{paper:>8}{ours:>8}{ratio:>8}  {verdict}\n", claim.text);
        if let Some(why) = &claim.why {
            out += &format!("      {why}\n");
        }
    }
    for (claim, why) in &outcome.untested {
        out += &format!("  {claim}: not tested: {why}\n");
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_run_together_and_the_failure_of_one_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let args = |names: &[&str], all| RunArgs {
            names: names.iter().map(|n| n.to_string()).collect(),
            all,
            again: false,
            quick: false,
            jobs: Some(2),
            results: dir.path().to_path_buf(),
        };
        run_named(&args(&["ganger97-fig2", "disks"], false)).unwrap();
        for name in ["ganger97-fig2", "disks"] {
            let kept = super::super::read(&dir.path().join(format!("{name}.json"))).unwrap().unwrap();
            assert_eq!(kept.name, name);
        }
        // A directory where the result should be.
        fs::create_dir(dir.path().join("ganger97-fig8.json")).unwrap();
        let error = run_named(&args(&["ganger97-fig8"], false)).unwrap_err();
        assert!(format!("{error:#}").contains("cannot write"), "{error:#}");
        assert!(run_named(&args(&[], false)).is_err());
    }

    #[test]
    fn the_bar_says_how_far_it_is() {
        let state = State { done: 5, running: vec![("layout", Instant::now())], over: false };
        let progress = Progress { total: 10, state: Mutex::default(), changed: Condvar::new(), terminal: false };
        assert_eq!(progress.bar(&state), "[############............] 5/10 layout 0 s");
    }
}
