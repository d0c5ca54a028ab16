//! The engine's locks under shuttle: a few threads in thousands of orders, chosen at random or so that rare ones come up
//! (PCT). A deadlock, a panic, and an answer that no order of the calls explains end the test with the schedule that led
//! there.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p cffs-sim --test shuttle` (`make shuttle`); `CFFS_SHUTTLE_SCHEDULES` says how
//! many orders of each plan, `CFFS_RECORD` in which file's table of campaigns each test records what it did.
#![cfg(shuttle)]

use cffs_record::Recorder;
use cffs_sim::linear::{Stage, plan};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner, thread};
use std::sync::{Arc, Mutex};

fn schedules() -> usize {
    std::env::var("CFFS_SHUTTLE_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(60)
}

/// Plans that a test goes through. Their end is recorded, also when one of them fails.
struct Plans {
    recorder: Recorder,
    done: u64,
    current: u64,
}

impl Plans {
    fn new(test: &str) -> Plans {
        let recorder = match std::env::var_os("CFFS_RECORD").filter(|file| !file.is_empty()) {
            Some(file) => Recorder::open(file.as_ref(), format!("shuttle, {test}"), "make shuttle").unwrap(),
            None => Recorder::default(),
        };
        Plans { recorder, done: 0, current: 0 }
    }

    fn explore(&mut self, scheduler: impl Scheduler + 'static, seed: u64, threads: usize, calls: usize) {
        self.current = seed;
        explore(scheduler, seed, threads, calls);
        self.done += 1;
    }
}

impl Drop for Plans {
    fn drop(&mut self) {
        let failures = std::thread::panicking().then(|| format!("plan {}", self.current));
        let done = [(self.done, "plans"), (schedules() as u64, "orders of each")];
        self.recorder.write(&done, failures.as_slice()).unwrap_or_else(|e| eprintln!("{e:#}"));
    }
}

fn explore(scheduler: impl Scheduler + 'static, seed: u64, threads: usize, calls: usize) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    let runner = Runner::new(scheduler, config);
    runner.run(move || {
        let stage = Arc::new(Stage::new(seed.is_multiple_of(2), seed.is_multiple_of(3)).unwrap());
        // Not a lock of shuttle's: nobody waits for it.
        let all = Arc::new(Mutex::new(Vec::new()));
        let running: Vec<_> = plan(seed, threads, calls)
            .into_iter()
            .enumerate()
            .map(|(n, ops)| {
                let (stage, all) = (stage.clone(), all.clone());
                thread::spawn(move || {
                    for op in &ops {
                        let call = stage.call(n, op);
                        all.lock().unwrap().push(call);
                    }
                })
            })
            .collect();
        running.into_iter().for_each(|t| t.join().unwrap());
        let calls = std::mem::take(&mut *all.lock().unwrap());
        stage.check(calls).and_then(|()| stage.finish()).unwrap_or_else(|e| panic!("plan {seed}: {e}"));
    });
}

#[test]
fn any_order() {
    let mut plans = Plans::new("any order");
    for seed in 0..40 {
        plans.explore(RandomScheduler::new(schedules()), seed, 3, 4);
    }
}

#[test]
fn rare_orders() {
    let mut plans = Plans::new("rare orders");
    for seed in 100..140 {
        plans.explore(PctScheduler::new(3, schedules()), seed, 3, 4);
    }
}

#[test]
fn two_threads_and_little_to_do() {
    let mut plans = Plans::new("two threads and little to do");
    for seed in 200..280 {
        plans.explore(RandomScheduler::new(schedules()), seed, 2, 2);
    }
}
