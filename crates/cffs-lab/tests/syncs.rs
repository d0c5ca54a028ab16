//! What sync(2), syncfs(2) and umount(2) promise, few rounds of the campaigns. Mounts of type `fuseblk` hear of sync(2) from Linux 6.18 on.

mod common;

use cffs_testenv::{Need, have};
use common::{lab, text};

#[test]
fn what_was_written_before_a_sync_is_there_after_a_power_cut() {
    if !have(&[Need::Loop]) {
        return;
    }
    let short = ["synccut", "--rounds", "6", "--longest", "300", "--size", "64"];
    let Some(out) = lab(&[&short[..], &["--how", "fsync-root"]].concat()) else { return };
    assert!(out.status.success() && text(&out).contains("every check clean"), "{}", text(&out));
    for how in ["sync", "syncfs"] {
        let Some(out) = lab(&[&short[..], &["--how", how]].concat()) else { return };
        assert!(out.status.success(), "{how}: {}", text(&out));
    }
}

#[test]
fn a_disk_that_ignores_flushes_is_found_to_break_the_promise_of_a_sync() {
    let lie =
        ["synccut", "--rounds", "10", "--longest", "300", "--size", "64", "--file", "--how", "fsync-root", "--lie"];
    let Some(out) = lab(&lie) else { return };
    assert_eq!(out.status.code(), Some(1), "{}", text(&out));
    assert!(text(&out).contains(": FAILED: "), "{}", text(&out));
}

#[test]
fn a_copy_right_after_an_unmount_is_clean_and_complete() {
    if !have(&[Need::Loop]) {
        return;
    }
    let short = ["umountcopy", "--rounds", "10", "--longest", "200", "--size", "64"];
    let Some(out) = lab(&[&short[..], &["--helper"]].concat()) else { return };
    assert!(out.status.success() && text(&out).contains("10 copies clean and complete, 0 not"), "{}", text(&out));
    let Some(out) = lab(&short) else { return };
    assert!(out.status.success(), "{}", text(&out));
}
