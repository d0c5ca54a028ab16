//! A simulated disk for any program: contents in a file, time from a model.
//!
//! In virtual time a clock adds up what the disk would have taken. A request is issued, as far as the model is concerned, when the
//! last answer was given that came before it: so requests that are there at the same time share the disk's queue, and those of a
//! program that waits for each answer do not. A request is delayed for a moment of real time, so that what was issued together
//! arrives together, and the disk serves it in its own order: the file is served by several threads, which would mix what the kernel
//! has sent in order. Its answer then takes a part of the time that the disk would: whoever asks for more meanwhile, as one does who
//! reads ahead, finds the disk at work. In real time each answer waits until the disk would have given it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cffs_disk::{Counters, Model, Ns, Request, profiles};

use super::{Medium, Served, Sparse};

/// Arguments of `cffs-lab disk`.
#[derive(clap::Args)]
pub struct Args {
    /// Which disk; any other word lists them
    profile: String,
    /// Image file with the contents
    image: PathBuf,
    /// Empty directory in which the file `disk` appears
    dir: PathBuf,
    /// Make the image, with this many MiB
    #[arg(long)]
    create: Option<u64>,
    /// Answers take as long as the disk would
    #[arg(long)]
    realtime: bool,
}

/// A disk with a price.
pub struct TimedDisk {
    contents: Sparse,
    began: Option<Instant>,
    state: Mutex<State>,
}

struct State {
    model: Model,
    counters: Counters,
    /// The latest end of a request that was answered.
    answered: Ns,
    /// When all are done.
    done: Ns,
    /// What is to be served, by its number.
    waiting: Vec<(u64, Job)>,
    /// When those that were served end, which are not answered yet, and when to answer them in real time.
    ends: BTreeMap<u64, (Ns, Instant)>,
    /// Jobs until now.
    jobs: u64,
    /// Until then it works, in real time at its [`PACE`].
    free_at: Instant,
}

/// What a disk is asked for.
#[derive(Clone, Copy)]
enum Work {
    Request(Request),
    Flush,
}

#[derive(Clone, Copy)]
struct Job {
    work: Work,
    issued: Ns,
}

impl State {
    fn serve(&mut self, job: Job) -> Ns {
        let end = match job.work {
            Work::Request(request) => self.model.serve(job.issued, &[request]),
            Work::Flush => self.model.flush(job.issued),
        };
        self.done = self.done.max(end);
        end
    }

    /// Serves all that waits: what lies between two flushes in the order of the disk. Until it is through it takes nothing else, so that what comes
    /// meanwhile is put in order too.
    fn serve_waiting(&mut self) {
        let (now, before) = (Instant::now(), self.done.max(self.answered));
        let at = |end: Ns| now + Duration::from_nanos(end.saturating_sub(before) / PACE);
        let waiting = std::mem::take(&mut self.waiting);
        for together in waiting.chunk_by(|(_, a), (_, b)| !a.is_flush() && !b.is_flush()) {
            let mut together = together.to_vec();
            self.model.sort(&mut together, |(_, job)| match job.work {
                Work::Request(request) => request.start,
                Work::Flush => 0,
            });
            for (number, job) in together {
                let end = self.serve(job);
                self.ends.insert(number, (end, at(end)));
            }
        }
        self.free_at = at(self.done);
    }
}

impl Job {
    fn is_flush(self) -> bool {
        matches!(self.work, Work::Flush)
    }
}

/// How long a request is delayed in virtual time.
const TOGETHER: Duration = Duration::from_micros(60);
/// What the disk takes is so many times what is waited for its answer in virtual time: as if programs were as much slower.
const PACE: Ns = 4;
/// Whoever waits for the disk looks so often whether it is free.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

impl TimedDisk {
    /// `realtime`: answers wait.
    pub fn new(contents: Sparse, model: Model, realtime: bool) -> Self {
        let state = State {
            model,
            counters: Counters::default(),
            answered: 0,
            done: 0,
            waiting: Vec::new(),
            ends: BTreeMap::new(),
            jobs: 0,
            free_at: Instant::now(),
        };
        TimedDisk { contents, began: realtime.then(Instant::now), state: Mutex::new(state) }
    }

    /// What was asked until now; the time is that in which the disk was busy.
    pub fn counters(&self) -> Counters {
        let state = self.lock();
        Counters { time: state.done, ..state.counters }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Moves the bytes between the issue of what the disk is asked for and its end.
    fn charge<T>(&self, work: Work, bytes: impl FnOnce() -> T) -> T {
        if let Some(began) = self.began {
            let end = self.lock().serve(Job { work, issued: began.elapsed().as_nanos() as Ns });
            let result = bytes();
            std::thread::sleep(Duration::from_nanos(end).saturating_sub(began.elapsed()));
            return result;
        }
        let number = {
            let mut state = self.lock();
            state.jobs += 1;
            let job = (state.jobs, Job { work, issued: state.answered });
            state.waiting.push(job);
            job.0
        };
        let result = bytes();
        std::thread::sleep(TOGETHER);
        let mut state = self.lock();
        let (end, at) = loop {
            if let Some(served) = state.ends.remove(&number) {
                break served;
            }
            let works = state.free_at.saturating_duration_since(Instant::now());
            if works.is_zero() {
                state.serve_waiting();
                continue;
            }
            drop(state);
            std::thread::sleep(works.min(LOOK_AGAIN));
            state = self.lock();
        };
        drop(state);
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        let mut state = self.lock();
        state.answered = state.answered.max(end);
        result
    }

    fn count(&self, request: Request) {
        let mut state = self.lock();
        let bytes = request.sectors * cffs_disk::SECTOR;
        let requests = bytes.div_ceil(state.model.request_max());
        let counters = &mut state.counters;
        let (n, b) = match request.write {
            true => (&mut counters.writes, &mut counters.written_bytes),
            false => (&mut counters.reads, &mut counters.read_bytes),
        };
        (*n, *b) = (*n + requests, *b + bytes);
    }
}

impl Medium for TimedDisk {
    fn len(&self) -> u64 {
        self.contents.len()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let request = Request::read(offset, buf.len() as u64);
        self.count(request);
        self.charge(Work::Request(request), || self.contents.read(offset, buf))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let request = Request::write(offset, data.len() as u64);
        self.count(request);
        self.charge(Work::Request(request), || self.contents.write(offset, data))
    }

    fn flush(&self) -> io::Result<()> {
        self.lock().counters.flushes += 1;
        self.charge(Work::Flush, || self.contents.flush())
    }
}

/// Serves one until it is unmounted, and prints what it was asked.
///
/// # Errors
/// When it cannot be served.
pub fn run_disk(args: &Args) -> Result<ExitCode> {
    let profile = profiles::find(&args.profile).with_context(|| {
        let names: Vec<String> = profiles::all().iter().map(|p| format!("  {:12} {}", p.name, p.about)).collect();
        format!("no disk is called {}; there are\n{}", args.profile, names.join("\n"))
    })?;
    let contents = match args.create {
        Some(mib) => Sparse::create(&args.image, mib << 20)?,
        None => Sparse::open(&args.image)?,
    };
    let model = profile.model();
    ensure!(
        contents.len() <= model.capacity(),
        "{} has {} bytes, a {} has {}",
        args.image.display(),
        contents.len(),
        profile.name,
        model.capacity()
    );
    let medium = Arc::new(TimedDisk::new(contents, model, args.realtime));
    let served = Served::start(medium.clone(), Path::new(&args.dir))?;
    eprintln!("{} is a {}; `umount {}` ends it", served.file().display(), profile.name, args.dir.display());
    served.wait()?;
    println!("{}", serde_json::to_string_pretty(&medium.counters())?);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(realtime: bool) -> (tempfile::TempDir, TimedDisk) {
        disk_of("volume-1ms", realtime)
    }

    fn disk_of(profile: &str, realtime: bool) -> (tempfile::TempDir, TimedDisk) {
        let dir = tempfile::tempdir().unwrap();
        let contents = Sparse::create(&dir.path().join("image"), 16 << 20).unwrap();
        let model = profiles::find(profile).unwrap().model();
        (dir, TimedDisk::new(contents, model, realtime))
    }

    #[test]
    fn requests_one_after_the_other_add_up() {
        let (_dir, disk) = disk(false);
        for i in 0..100 {
            disk.write(i * 4096, &[i as u8; 4096]).unwrap();
        }
        let mut byte = [0; 1];
        disk.read(99 * 4096, &mut byte).unwrap();
        assert_eq!(byte, [99]);
        let seen = disk.counters();
        assert_eq!((seen.reads, seen.writes, seen.written_bytes), (1, 100, 409_600));
        let expected = 101 * 1_000_000 + 100 * 32_768 + 4096;
        assert!(seen.time.abs_diff(expected) < 10_000, "{} ns", seen.time);
    }

    #[test]
    fn requests_at_the_same_time_share_the_latency() {
        let (_dir, disk) = disk(false);
        // The second is issued while the first is worked on.
        disk.charge(Work::Request(Request::read(0, 4096)), || disk.read(1 << 20, &mut [0; 4096]).unwrap());
        assert!(disk.counters().time < 1_500_000, "{} ns", disk.counters().time);
    }

    #[test]
    fn requests_at_the_same_time_are_served_in_the_order_of_the_disk() {
        let time = |first, second| {
            let (_dir, disk) = disk_of("hdd-2026", false);
            let read = |at| Work::Request(Request::read(at, 64 << 10));
            disk.charge(read(first), || disk.charge(read(second), || ()));
            disk.counters().time
        };
        assert_eq!(time(64 << 10, 0), time(0, 64 << 10));
    }

    #[test]
    fn what_comes_while_the_disk_works_is_put_in_order_too() {
        let time = |places: [u64; 4]| {
            let (_dir, disk) = disk_of("hdd-2026", false);
            let read = |at: u64| disk.charge(Work::Request(Request::read(at << 20, 4096)), || ());
            disk.lock().free_at = Instant::now() + Duration::from_secs(3600);
            std::thread::scope(|scope| {
                let read = &read;
                for (n, at) in places.into_iter().enumerate() {
                    scope.spawn(move || read(at));
                    while disk.lock().waiting.len() <= n {
                        std::thread::yield_now();
                    }
                }
                disk.lock().free_at = Instant::now();
            });
            disk.counters().time
        };
        assert_eq!(time([12, 4, 8, 2]), time([2, 4, 8, 12]));
    }

    #[test]
    fn a_flush_waits_for_what_came_before_it() {
        let write = Work::Request(Request::write(0, 8 << 20));
        let (_dir, alone) = disk(false);
        alone.charge(write, || ());
        let (_dir, both) = disk(false);
        both.charge(write, || both.flush().unwrap());
        assert!(
            both.counters().time >= alone.counters().time + 1_000_000,
            "the flush takes a millisecond, and begins then"
        );
    }

    #[test]
    fn in_real_time_an_answer_waits() {
        let (_dir, disk) = disk(true);
        let clock = Instant::now();
        for i in 0..10 {
            disk.read(i << 16, &mut [0; 512]).unwrap();
        }
        assert!(clock.elapsed() >= Duration::from_millis(10));
    }
}
