//! The engine's locks under shuttle: a few threads in thousands of orders, chosen at random or so that rare ones come up
//! (PCT). A deadlock, a panic, and an answer that no order of the calls explains end the test with the schedule that led
//! there.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p cffs-sim --test shuttle` (`make shuttle`); `CFFS_SHUTTLE_SCHEDULES` says how
//! many orders of each plan.
#![cfg(shuttle)]

use cffs_sim::linear::{Stage, plan};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner, thread};
use std::sync::{Arc, Mutex};

fn schedules() -> usize {
    std::env::var("CFFS_SHUTTLE_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(60)
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
    for seed in 0..40 {
        explore(RandomScheduler::new(schedules()), seed, 3, 4);
    }
}

#[test]
fn rare_orders() {
    for seed in 100..140 {
        explore(PctScheduler::new(3, schedules()), seed, 3, 4);
    }
}

#[test]
fn two_threads_and_little_to_do() {
    for seed in 200..280 {
        explore(RandomScheduler::new(schedules()), seed, 2, 2);
    }
}
