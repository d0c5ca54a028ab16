//! `cffs top`: what a mount is doing at this moment, and for whom.

mod costs;
mod disks;
mod sample;
mod screen;
mod terminal;

use anyhow::bail;
use clap::Args;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use sample::{Between, Sample, Source};
use screen::{Table, View};
use signal_hook::consts::{SIGHUP, SIGTERM};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KEYS_HELP: &str = "\
Keys:
  d, o, p      The table has directories, operations, requests by purpose
  k, m         Or disks below a log disk or a volume, messages of the kernel; Tab: the next table
  s            Sort by the next column (S: by the one before)
  t            What was in the last interval, for a second; or sums since the beginning
  +, -         A longer interval, a shorter one
  space        Pause
  q, Esc       Quit";

/// Show what a mounted file system is doing, and for whom
///
/// Requests of the device by purpose, what is used of what group reads bring, cache, log, space, background work; and a table of
/// the directories or the operations that cost most, or of the disks below a log disk or a volume. For these it records a trace, unless somebody else does. It takes root, or
/// the user who mounted.
#[derive(Args, Debug)]
#[command(after_help = KEYS_HELP)]
pub struct TopArgs {
    /// Seconds between two pictures
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = parse_interval)]
    interval: Duration,
    /// Print so many pictures to standard output, without a terminal
    #[arg(short, long, value_name = "N")]
    batch: Option<u32>,
    /// Do not record: the tables of directories and operations stay empty
    #[arg(long)]
    no_trace: bool,
    /// Directory of a mount (any in it)
    dir: PathBuf,
}

/// Shortest and longest interval.
const INTERVALS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(3600)];
/// How often a signal is looked for.
const GLANCE: Duration = Duration::from_millis(200);
/// Columns of a picture that goes to no terminal, and lines of each of its tables.
const BATCH_WIDTH: usize = 200;
/// See [`BATCH_WIDTH`].
const BATCH_ROWS: usize = 11;

fn parse_interval(text: &str) -> Result<Duration, String> {
    let [least, most] = INTERVALS;
    let interval = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let interval = interval.filter(|interval| (least..=most).contains(interval));
    interval.ok_or_else(|| "must be a number of seconds from 0.1 to 3600".into())
}

/// Runs the subcommand.
pub fn run(args: &TopArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    if args.batch.is_none() && !(io::stdout().is_terminal() && io::stdin().is_terminal()) {
        bail!("standard input and output are no terminal: print pictures with --batch N");
    }
    let kind = std::env::var("TERM").unwrap_or_default();
    if args.batch.is_none() && matches!(kind.as_str(), "" | "dumb" | "unknown") {
        bail!("a terminal of the kind TERM={kind:?} cannot be drawn on: print pictures with --batch N, or set TERM");
    }
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, ends.clone())?;
    }
    let mut source = Source::open(&args.dir, !args.no_trace)?;
    match args.batch {
        Some(n) => batch(&mut source, args.interval, n, &ends)?,
        None => Live::new(source, args.interval)?.run(&ends)?,
    }
    Ok(0)
}

fn head(source: &Source, interval: Duration, paused: bool) -> String {
    let state = if paused { "   PAUSED" } else { "" };
    format!("cffs top   {}   every {:.1} s{state}", source.image, interval.as_secs_f64())
}

fn picture(source: &Source, b: &Between<'_>, view: View, head: &str, room: (usize, usize)) -> Vec<screen::Line> {
    screen::lines(b, view, head, source.without_trace.as_deref(), &|directory| source.path(directory), room)
}

fn batch(source: &mut Source, interval: Duration, n: u32, ends: &AtomicBool) -> anyhow::Result<()> {
    let mut before = source.sample()?;
    for _ in 0..n {
        let until = Instant::now() + interval;
        while Instant::now() < until && !ends.load(Ordering::Relaxed) {
            std::thread::sleep(GLANCE.min(until.saturating_duration_since(Instant::now())));
        }
        if ends.load(Ordering::Relaxed) {
            break;
        }
        let now = source.sample()?;
        let between = Between { before: &before, now: &now };
        let mut lines = screen::overview(&between);
        let disks = (!between.now.stats.disks.is_empty()).then_some(Table::Disks);
        for table in [Table::Directories, Table::Operations, Table::Purposes].into_iter().chain(disks) {
            let view = View { table, column: table.first_column(), total: false };
            let note = source.without_trace.as_deref();
            let table = screen::table(&between, view, note, &|directory| source.path(directory), BATCH_ROWS);
            lines.push(String::new());
            lines.extend(table.into_iter().map(|(line, _)| line));
        }
        let mut out = io::stdout().lock();
        for line in lines {
            writeln!(out, "{}", screen::fit(&line, BATCH_WIDTH).trim_end())?;
        }
        writeln!(out)?;
        out.flush()?;
        before = now;
    }
    Ok(())
}

/// The view in a terminal.
struct Live {
    source: Source,
    interval: Duration,
    view: View,
    paused: bool,
    before: Sample,
    now: Sample,
}

impl Live {
    fn new(mut source: Source, interval: Duration) -> anyhow::Result<Live> {
        let (before, now) = (source.sample()?, source.sample()?);
        let table = Table::Directories;
        let view = View { table, column: table.first_column(), total: false };
        Ok(Live { source, interval, view, paused: false, before, now })
    }

    fn run(&mut self, ends: &AtomicBool) -> anyhow::Result<()> {
        let screen = terminal::Screen::open()?;
        let mut next = Instant::now() + self.interval.min(Duration::from_millis(500));
        while !ends.load(Ordering::Relaxed) {
            let head = head(&self.source, self.interval, self.paused);
            let between = Between { before: &self.before, now: &self.now };
            screen.draw(&picture(&self.source, &between, self.view, &head, screen.room()))?;
            let mut changed = false;
            while !changed && !ends.load(Ordering::Relaxed) {
                let left = next.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                if event::poll(left.min(GLANCE))? {
                    match event::read()? {
                        Event::Key(key) if key.kind != KeyEventKind::Release => {
                            if self.key(key) {
                                return Ok(());
                            }
                            changed = true;
                        }
                        Event::Resize(..) => changed = true,
                        _ => {}
                    }
                }
            }
            if Instant::now() >= next {
                if !self.paused {
                    let now = self.source.sample()?;
                    self.before = std::mem::replace(&mut self.now, now);
                }
                next = Instant::now() + self.interval;
            }
        }
        Ok(())
    }

    /// What a key does. True: quit.
    fn key(&mut self, key: KeyEvent) -> bool {
        let columns = self.view.table.columns().len();
        let [least, most] = INTERVALS;
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            // In raw mode this is no signal.
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Char('d') => self.show(Table::Directories),
            KeyCode::Char('o') => self.show(Table::Operations),
            KeyCode::Char('p') => self.show(Table::Purposes),
            KeyCode::Char('k') => self.show(Table::Disks),
            KeyCode::Char('m') => self.show(Table::Messages),
            KeyCode::Tab => self.show(match self.view.table {
                Table::Directories => Table::Operations,
                Table::Operations => Table::Purposes,
                Table::Purposes => Table::Disks,
                Table::Disks => Table::Messages,
                Table::Messages => Table::Directories,
            }),
            KeyCode::Char('s') => self.view.column = (self.view.column + 1) % columns,
            KeyCode::Char('S') => self.view.column = (self.view.column + columns - 1) % columns,
            KeyCode::Char('t') => self.view.total = !self.view.total,
            KeyCode::Char('+') => self.interval = (self.interval * 2).min(most),
            KeyCode::Char('-') => self.interval = (self.interval / 2).max(least),
            KeyCode::Char(' ') => self.paused = !self.paused,
            _ => {}
        }
        false
    }

    fn show(&mut self, table: Table) {
        self.view = View { table, column: table.first_column(), ..self.view };
    }
}
