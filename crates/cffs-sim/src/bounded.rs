//! The bounded black-box method (Mohan et al., *Finding Crash-Consistency Bugs with Bounded Black-Box Crash Testing*,
//! OSDI 2018): **every** sequence of one, two or three operations over a small set of files and directories, with
//! something made durable after each of them, crashed at every one of its writes and flushes.
//!
//! Most crash bugs that file systems have had need no more than two operations and an fsync. So instead of many random
//! sequences this takes all short ones. They are numbered: the sequence of a length and a number is always the same, and
//! "all of them" is a range of numbers.

use crate::crash::{Coverage, Failure, History, guarded, recover};
use crate::disk::{CrashStates, Event, Survival};
use crate::ops::{Op, parse};
use crate::setup::Setup;
use fastrand::Rng;

/// What every sequence starts from, durable: a directory with a file, and a file beside it.
const BASE: &str = "mkdir /A 755 0\ncreate /A/foo 644 0\nwrite /A/foo 0 6000 1\ncreate /bar 644 0\nwrite /bar 0 2500 2\n\
                    setxattr /bar user.a 20 3\nremount true";

/// The operations, each with the file and the directory that are made durable after it.
const OPERATIONS: [(&str, &str, &str); 51] = [
    ("create /foo 644 0", "/foo", "/"),
    ("create /A/bar 644 0", "/A/bar", "/A"),
    ("mkdir /B 755 0", "/B", "/"),
    ("mkdir /A/C 755 0", "/A/C", "/A"),
    ("mknod /A/fifo fifo 0", "/A/fifo", "/A"),
    ("symlink /foo 9", "/bar", "/"),
    ("symlink /A/bar 500", "/A/foo", "/A"),
    ("write /A/foo 0 3000 10", "/A/foo", "/A"),
    ("write /A/foo 6000 5000 11", "/A/foo", "/A"),
    ("write /A/foo 40000 700 12", "/A/foo", "/A"),
    ("write /A/foo 0 90000 13", "/A/foo", "/A"),
    ("write /bar 0 2500 14", "/bar", "/"),
    ("write /bar 2500 30 15", "/bar", "/"),
    ("write /foo 0 40 16", "/foo", "/"),
    ("write /A/bar 0 4000 17", "/A/bar", "/A"),
    ("truncate /A/foo 0", "/A/foo", "/A"),
    ("truncate /A/foo 1000", "/A/foo", "/A"),
    ("truncate /A/foo 9000", "/A/foo", "/A"),
    ("fallocate /A/foo allocate 0 20000", "/A/foo", "/A"),
    ("fallocate /A/foo ahead 6000 20000", "/A/foo", "/A"),
    ("fallocate /A/foo punch 500 4000", "/A/foo", "/A"),
    ("fallocate /A/foo zero 3000 9000", "/A/foo", "/A"),
    ("fallocate /A/foo collapse 0 4096", "/A/foo", "/A"),
    ("fallocate /A/foo insert 0 4096", "/A/foo", "/A"),
    ("copy /A/foo /bar 0 0 6000", "/bar", "/"),
    ("copy /bar /A/foo 0 6000 2500", "/A/foo", "/A"),
    ("link /A/foo /foo", "/foo", "/"),
    ("link /A/foo /A/bar", "/A/bar", "/A"),
    ("link /bar /A/bar", "/bar", "/A"),
    ("unlink /A/foo", "/bar", "/A"),
    ("unlink /bar", "/A/foo", "/"),
    ("unlink /foo", "/A/foo", "/"),
    ("unlink /A/bar", "/A/foo", "/A"),
    ("rmdir /A", "/bar", "/"),
    ("rmdir /B", "/bar", "/"),
    ("rename /A/foo /foo replace", "/foo", "/A"),
    ("rename /A/foo /bar replace", "/bar", "/"),
    ("rename /bar /A/foo replace", "/A/foo", "/A"),
    ("rename /bar /A/bar replace", "/A/bar", "/"),
    ("rename /A/foo /A/bar replace", "/A/bar", "/A"),
    ("rename /A/foo /bar exchange", "/bar", "/A"),
    ("rename /A /B replace", "/B", "/"),
    ("setxattr /A/foo user.b 300 20", "/A/foo", "/A"),
    ("setxattr /A user.c 3000 21", "/A", "/"),
    ("removexattr /bar user.a", "/bar", "/"),
    ("chmod /A/foo 400", "/A/foo", "/A"),
    ("regroup / always", "/A/foo", "/A"),
    ("tmpfile 0 /A 644 0", "@0", "/A"),
    ("write @0 0 4000 18", "@0", "/A"),
    ("link @0 /A/bar", "/A/bar", "/A"),
    ("link @0 /foo", "@0", "/"),
];

/// What can follow an operation. After the last one, something does.
const DURABLE: [&str; 5] = ["", "sync", "fsync F", "fdatasync F", "fsync D"];

/// Longest sequences that have a number.
pub const LENGTH_MAX: usize = 3;

/// How many sequences there are of a length (in operations, without what makes them durable; 1 to [`LENGTH_MAX`]).
pub fn count(len: usize) -> u64 {
    let choices = (OPERATIONS.len() * DURABLE.len()) as u64;
    choices.pow(len as u32 - 1) * (OPERATIONS.len() * (DURABLE.len() - 1)) as u64
}

/// The sequence of a length and a number below [`count`], with what it starts from, and the number of operations that
/// belong to the start.
pub fn sequence(len: usize, number: u64) -> (Vec<Op>, usize) {
    assert!((1..=LENGTH_MAX).contains(&len) && number < count(len), "there is no sequence {number} of length {len}");
    let mut left = number;
    let mut digit = |base: usize| {
        let d = left % base as u64;
        left /= base as u64;
        d as usize
    };
    let mut text = format!("{BASE}\n");
    let base = BASE.lines().count();
    for nth in 0..len {
        let last = nth + 1 == len;
        let (op, file, dir) = OPERATIONS[digit(OPERATIONS.len())];
        let durable = if last { DURABLE[1 + digit(DURABLE.len() - 1)] } else { DURABLE[digit(DURABLE.len())] };
        text += &format!("{op}\n{}\n", durable.replace('F', file).replace('D', dir));
    }
    (parse(&text).expect("the lists above hold operations"), base)
}

/// The file system that the sequences run on: the default format (`variant` 0) or, for other numbers, another format or
/// way of keeping the log, or on a log disk; small, so that a crash state costs little.
pub fn setup(variant: u64) -> Setup {
    let small = Setup { device: 8 << 20, log: Some(2 << 20), cache: 2 << 20, ..Setup::default() };
    match variant {
        0 => small,
        1 => Setup { no_embed: true, ..small },
        2 => Setup { no_group: true, ..small },
        3 => Setup { no_embed: true, no_group: true, dirs_with_data: true, ..small },
        4 => Setup { external_log: true, ..small },
        5 => Setup { fsync_in_log: false, ..small },
        6 => Setup { quota: true, discard: true, ..small },
        // With snapshots and cleaning between operations, and with compression.
        8 => small.on_log_disk(0),
        9 => small.on_log_disk(3),
        _ => Setup { sizes: (512, 512, 16 << 10), ..small },
    }
}

/// Number of [`setup`]s that differ and are in place. Seeds choose among them.
pub const IN_PLACE: u64 = 8;

/// Number of [`setup`]s that differ; the last ones are on a log disk.
pub const VARIANTS: u64 = IN_PLACE + 2;

/// Crashes a sequence at every write and flush that follow its start. Where at most three writes are undecided, every
/// subset of them survives once; otherwise none, all, all but each one, and some at random; and torn ones.
pub fn explore(setup: Setup, len: usize, number: u64, coverage: &mut Coverage) -> Result<(), Failure> {
    let (ops, base) = sequence(len, number);
    explore_ops(setup, &ops, base, number, coverage)
}

/// The same for any operations, of which the first `base` are the start.
pub fn explore_ops(setup: Setup, ops: &[Op], base: usize, seed: u64, coverage: &mut Coverage) -> Result<(), Failure> {
    let h = guarded(|| History::record(setup, ops));
    let h = h.map_err(|text| Failure { event: 0, op: None, survival: None, second: None, text })?;
    let mut rng = Rng::with_seed(seed);
    let mut states = CrashStates::new(h.before.clone(), &h.events);
    let from = h.starts.get(base).copied().unwrap_or(h.events.len());
    for event in from..=h.events.len() {
        states.advance(event);
        // What a flush is about to decide: the same image comes with it, and more is promised then.
        let flush_next = matches!(h.events.get(event), Some(Event::Flush { .. })) && setup.devices() == 1;
        let last = event == h.events.len();
        for survival in ways(states.undecided(), flush_next, last) {
            let failure = |second, text| {
                let op = h.starts.partition_point(|s| *s < event).checked_sub(1);
                let op = op.map(|i| Box::new((i, h.ops[i].clone())));
                Failure { event, op, survival: Some(survival), second, text }
            };
            let images = states.crash(survival, &mut rng);
            let use_it = rng.u8(..16) == 0;
            let recovery =
                guarded(|| recover(&h, event, images.clone(), use_it, coverage)).map_err(|text| failure(None, text))?;
            if rng.u8(..8) == 0 && !recovery.is_empty() {
                let mut again = CrashStates::new(images, &recovery);
                let at = rng.usize(..=recovery.len());
                again.advance(at);
                let second = Survival::EVERY[rng.usize(..Survival::EVERY.len())];
                let images = again.crash(second, &mut rng);
                coverage.in_recovery += 1;
                guarded(|| recover(&h, event, images, false, coverage))
                    .map_err(|text| failure(Some((at, second)), text))?;
            }
        }
    }
    Ok(())
}

/// The ways to lose writes. That nothing survives is the same image at every point since the last flush, and the last
/// of them has most promises; that everything survives a flush is what follows it.
fn ways(undecided: usize, flush_next: bool, last: bool) -> Vec<Survival> {
    let mut out = Vec::new();
    if undecided == 0 {
        return vec![Survival::None];
    }
    if flush_next || last {
        out.push(Survival::None);
    }
    if !flush_next {
        out.push(Survival::All);
    }
    match undecided {
        1 => {}
        2..=3 => out.extend((1..(1 << undecided) - 1).map(Survival::Subset)),
        _ => {
            out.extend((0..undecided.min(16)).map(|n| Survival::Subset(!(1 << n))));
            out.extend([Survival::Some, Survival::Some]);
        }
    }
    out.extend([Survival::Torn, Survival::Torn]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_number_is_another_sequence_that_ends_with_a_promise() {
        assert_eq!(count(1), 51 * 4);
        assert_eq!(count(2), 51 * 5 * 51 * 4);
        let mut seen = BTreeSet::new();
        for number in 0..count(1) {
            let (ops, base) = sequence(1, number);
            assert!(matches!(ops.last(), Some(Op::Sync | Op::Fsync { .. } | Op::Fdatasync { .. })), "{ops:?}");
            assert_eq!(ops.len(), base + 2);
            assert!(seen.insert(crate::ops::show(&ops)), "{number} comes twice");
        }
        let mut seen = BTreeSet::new();
        for number in 0..count(2) {
            assert!(seen.insert(crate::ops::show(&sequence(2, number).0)), "{number} comes twice");
        }
    }

    #[test]
    fn all_subsets_of_few_writes() {
        let subsets = ways(3, false, false).into_iter().filter(|s| matches!(s, Survival::Subset(_))).count();
        assert_eq!(subsets, 6, "with none and all these are eight");
        assert!(!ways(2, true, false).contains(&Survival::All), "comes behind the flush");
    }
}
