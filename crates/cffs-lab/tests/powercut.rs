//! Power cuts under a mounted cffs, few enough for every run of the tests. The long form is part of `make soak`.

mod common;

use common::{lab, text};
use std::process::Output;

/// Runs `cffs-lab powercut`; `None`, with a message, where it cannot run.
fn powercut(args: &[&str]) -> Option<Output> {
    lab(&[&["powercut", "--longest", "300", "--size", "64"], args].concat())
}

#[test]
fn what_was_promised_is_there_after_power_cuts() {
    for mkfs in [&["--seed", "1"][..], &["--seed", "2", "--mkfs=--no-embed", "--mkfs=--no-group"]] {
        let Some(out) = powercut(&[&["--rounds", "4"], mkfs].concat()) else { return };
        assert!(out.status.success(), "{}", text(&out));
        assert!(text(&out).contains("every check clean"), "{}", text(&out));
    }
}

#[test]
fn what_was_promised_is_there_also_when_the_power_goes_under_a_regroup() {
    let Some(out) = powercut(&["--rounds", "4", "--seed", "4", "--beside-regroup"]) else { return };
    assert!(out.status.success(), "{}", text(&out));
    let said = text(&out);
    assert!(said.contains(" regroups beside it, ") && !said.contains("\n0 regroups"), "{said}");
}

#[test]
fn a_disk_that_lies_about_flushes_is_found_to_break_promises() {
    let Some(out) = powercut(&["--rounds", "10", "--seed", "3", "--lie"]) else { return };
    assert_eq!(out.status.code(), Some(1), "{}", text(&out));
    // However it shows: a file that is lost, or one that has other contents than it can have.
    assert!(text(&out).contains(": FAILED: "), "{}", text(&out));
}
