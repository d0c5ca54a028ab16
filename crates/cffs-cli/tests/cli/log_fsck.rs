//! Checking and repairing images with the log layout.

use crate::log_layout::{contents_of, make_log_image, make_tree, noise};
use crate::mounting::{Foreground, fuse_works, is_mounted, mount_point, umount, wait_until};
use crate::tools::*;
use cffs::device::{FileDevice, OpenMode};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Bytes at which sectors begin with a magic.
fn structures(image: &str, magic: &[u8]) -> Vec<u64> {
    let bytes = contents(image);
    (0..bytes.len()).step_by(512).filter(|at| bytes[*at..].starts_with(magic)).map(|at| at as u64).collect()
}

fn wipe(image: &str, places: &[u64]) {
    let file = File::options().write(true).open(image).unwrap();
    places.iter().for_each(|at| file.write_all_at(&[0x5a; 512], *at).unwrap());
}

/// An image with a tree, a snapshot with another one, and a clone.
fn image_with_snapshots(dir: &Path, more: &[&str]) -> String {
    let image = make_log_image(dir, more);
    let from = dir.join("from");
    make_tree(&from);
    ok(&["import", from.to_str().unwrap(), &image]);
    ok(&["snapshot", "create", &image, "monday"]);
    fs::write(from.join("dir1/file1"), "changed").unwrap();
    fs::remove_file(from.join("large")).unwrap();
    ok(&["import", from.join("dir1").to_str().unwrap(), &format!("{image}:/dir1")]);
    ok(&["rm", &format!("{image}:/large")]);
    ok(&["snapshot", "clone", &image, "monday", "other"]);
    image
}

#[track_caller]
fn has_the_tree(dir: &Path, image: &str) {
    let out = dir.join("out");
    let _ = fs::remove_dir_all(&out);
    ok(&["export", image, out.to_str().unwrap()]);
    assert!(contents_of(&out) == contents_of(&dir.join("from")), "the tree is not what it was");
}

#[test]
fn a_log_disk_without_superblocks_is_what_it_was_after_a_repair() {
    let dir = temp_dir();
    let image = image_with_snapshots(dir.path(), &["--compress=lz4"]);
    let diff = ["snapshot", "diff", &image, "monday"];
    let (list, differences) = (ok(&["snapshot", "list", &image]), ok(&diff));
    ok(&["fsck", "-n", "--snapshot", "monday", &image]);
    ok(&["fsck", "-f", "-p", "--snapshot", "other", &image]);
    fails(&["fsck", "-y", "--snapshot", "monday", &image], 16, &["monday", "clone"]);
    fails(&["fsck", "-n", "--snapshot", "nosuch", &image], 8, &["nosuch"]);
    wipe(&image, &[0, 64 << 10]);
    let damaged = contents(&image);
    for command in [&["ls"][..], &["info"], &["snapshot", "list"], &["snapshot", "create"]] {
        let more: &[&str] = if command.contains(&"create") { &["new"] } else { &[] };
        fails(&[command, &[&image], more].concat(), 1, &["not a cffs", "fsck -y"]);
    }
    fails(&["mount", &image, dir.path().to_str().unwrap()], 32, &["not a cffs", "fsck -y"]);
    fails(&["mkfs", &image], 1, &["looks like a cffs file system", "fsck -y", "--force"]);
    fails(&["mkfs", "--layout=log", &image], 1, &["looks like a cffs file system", "--force"]);
    fails(&["fsck", "-n", &image], 4, &["log disk is damaged", "fsck -y"]);
    fails(&["fsck", "-p", &image], 4, &["by hand"]);
    assert!(contents(&image) == damaged, "fsck -n and -p have written to it");
    let out = run(&["fsck", "-y", &image]);
    assert_eq!(out.status.code(), Some(1), "{}{}", stdout(&out), stderr(&out));
    assert!(stdout(&out).contains("REBUILT") && stdout(&out).contains("nothing is lost"), "{}", stdout(&out));
    ok(&["fsck", "-n", "--data", &image]);
    has_the_tree(dir.path(), &image);
    assert_eq!((ok(&["snapshot", "list", &image]), ok(&diff)), (list, differences));
}

#[test]
fn a_log_disk_without_a_map_has_its_files_after_a_repair() {
    let dir = temp_dir();
    for compress in ["none", "zstd"] {
        let image = image_with_snapshots(dir.path(), &["--force", "--compress", compress]);
        wipe(&image, &structures(&image, b"CLN1"));
        let damaged = contents(&image);
        fails(&["cat", &format!("{image}:/dir1/file1")], 1, &["damaged", "fsck -y"]);
        let told = json(&stdout(&run(&["fsck", "-n", "--json", &image])));
        assert!(!told["log_disk"]["problems"].as_array().unwrap().is_empty(), "{told}");
        fails(&["fsck", &image], 4, &["fsck -y"]);
        assert!(contents(&image) == damaged, "fsck has written to it unasked");
        let out = run(&["fsck", "-y", "--json", &image]);
        assert_eq!(out.status.code(), Some(1), "{}{}", stdout(&out), stderr(&out));
        let rebuilt = json(&stdout(&out))["log_disk"]["rebuilt"].clone();
        assert_eq!(rebuilt["from_checkpoint"], false);
        assert!(rebuilt["lost"].to_string().contains("snapshot"), "snapshots are lost, and that is told: {rebuilt}");
        ok(&["fsck", "-n", "--data", &image]);
        has_the_tree(dir.path(), &image);
        assert_eq!(ok(&["snapshot", "list", &image]), "");
        ok(&["snapshot", "create", &image, "tuesday"]);
        ok(&["fsck", "-n", "--data", &image]);
        fs::remove_dir_all(dir.path().join("from")).unwrap();
    }
}

#[test]
fn damaged_data_is_told_and_the_rest_is_checked() {
    let dir = temp_dir();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    let data = noise(3, 1 << 20);
    fs::write(from.join("file"), &data).unwrap();
    let image = make_log_image(dir.path(), &[]);
    ok(&["import", from.to_str().unwrap(), &image]);
    let bytes = contents(&image);
    let at = bytes.windows(64).position(|w| w == &data[500_000..500_064]).unwrap() as u64;
    File::options().write(true).open(&image).unwrap().write_all_at(&[1; 64], at).unwrap();
    ok(&["fsck", "-n", &image]);
    let out = run(&["fsck", "-n", "--data", &image]);
    assert_eq!(out.status.code(), Some(4), "{}", stderr(&out));
    assert!(stdout(&out).contains("log disk: branch 0") && stdout(&out).contains("1 files"), "{}", stdout(&out));
    assert!(stderr(&out).contains("from a backup"), "{}", stderr(&out));
    if fuse_works() {
        let (path, name) = mount_point(dir.path());
        let _mounted = Mounted(path);
        ok(&["mount", "-o", "ro", &image, &name]);
        let out = run(&["scrub", &name]);
        assert_eq!(out.status.code(), Some(4), "{}{}", stdout(&out), stderr(&out));
        assert!(stdout(&out).contains("stored data: branch 0"), "{}", stdout(&out));
        assert!(stderr(&out).contains("from a backup"), "it is no damage that a check could repair: {}", stderr(&out));
        ok(&["scrub", "--metadata-only", &name]);
        umount(&name);
    }
    let told = ok_or_damaged(&["fsck", "-n", "--data", &image]);
    assert!(told.contains("/file: data is damaged from byte 499712 to 503808"), "{told}");
    // A part of a file is not left where the whole was to go.
    let out = dir.path().join("out");
    fails(&["export", &image, out.to_str().unwrap()], 1, &["out/file", "left out", "cffs cat"]);
    assert!(!out.join("file").exists());
    // It is no reason to give up what is whole.
    let out = run(&["fsck", "-y", "--data", &image]);
    assert_eq!(out.status.code(), Some(4), "{}", stdout(&out));
    assert!(!stdout(&out).contains("REBUILT"));
    ok(&["rm", &format!("{image}:/file")]);
    ok(&["trim", &image]);
    ok(&["fsck", "-n", "--data", &image]);
}

/// The summaries that a log disk can be opened without.
fn spare_summaries(image: &str) -> Vec<u64> {
    let whole = contents(image);
    let is_spare = |at: &u64| {
        wipe(image, &[*at]);
        let out = run(&["fsck", "-n", "--json", image]);
        fs::write(image, &whole).unwrap();
        out.status.code() == Some(4) && json(&stdout(&out))["log_disk"]["problems"].as_array().unwrap().is_empty()
    };
    structures(image, b"CLB1").into_iter().filter(is_spare).collect()
}

/// Nothing but the summary of a batch is damaged: files can be read, the check tells it, and the repair moves what is there.
#[test]
fn a_damaged_summary_is_told_and_mended() {
    let dir = temp_dir();
    let image = image_with_snapshots(dir.path(), &["--compress=lz4"]);
    let differences = ok(&["snapshot", "diff", &image, "monday"]);
    let spare = spare_summaries(&image);
    assert!(spare.len() > 1, "{spare:?}");
    let whole = contents(&image);
    for (i, at) in spare.iter().enumerate() {
        fs::write(&image, &whole).unwrap();
        wipe(&image, &[*at]);
        let damaged = contents(&image);
        has_the_tree(dir.path(), &image);
        let out = run(&["fsck", "-n", &image]);
        assert_eq!(out.status.code(), Some(4));
        assert!(stdout(&out).contains("the summary of the batch in segment"), "{}", stdout(&out));
        assert!(stderr(&out).contains("files can be read") && stderr(&out).contains("fsck -y"), "{}", stderr(&out));
        let out = run(&["fsck", "-n", "--data", "--json", &image]);
        let told = json(&stdout(&out))["log_disk"].clone();
        assert_eq!((told["damage"].as_array().unwrap().len(), out.status.code()), (0, Some(4)), "{told}");
        assert!(contents(&image) == damaged, "fsck -n has written to it");
        // What loses nothing -p does too.
        let out = run(&["fsck", "-f", ["-y", "-p"][i % 2], &image]);
        assert_eq!(out.status.code(), Some(1), "{}{}", stdout(&out), stderr(&out));
        assert!(stdout(&out).contains("MENDED") && !stdout(&out).contains("REBUILT"), "{}", stdout(&out));
        ok(&["fsck", "-n", "--data", &image]);
        has_the_tree(dir.path(), &image);
        assert_eq!(ok(&["snapshot", "diff", &image, "monday"]), differences);
    }
    if fuse_works() {
        fs::write(&image, &whole).unwrap();
        wipe(&image, &spare[..1]);
        let (path, name) = mount_point(dir.path());
        let _mounted = Mounted(path);
        ok(&["mount", &image, &name]);
        let out = run(&["scrub", &name]);
        assert_eq!(out.status.code(), Some(4), "{}{}", stdout(&out), stderr(&out));
        assert!(stderr(&out).contains("all files can be read") && stderr(&out).contains("fsck -y"), "{}", stderr(&out));
        umount(&name);
    }
}

/// The map is lost, and a batch: the file that has lost data is named, and reading that is an error and does not give zeros.
#[test]
fn files_that_have_lost_data_by_a_rebuild_are_named() {
    let dir = temp_dir();
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("dir")).unwrap();
    let data = noise(3, 6 << 20);
    fs::write(from.join("dir/large"), &data).unwrap();
    fs::write(from.join("small"), noise(4, 100_000)).unwrap();
    let image = make_log_image(dir.path(), &[]);
    ok(&["import", from.to_str().unwrap(), &image]);
    let bytes = contents(&image);
    let at = bytes.windows(64).position(|w| w == &data[3_000_000..3_000_064]).unwrap() as u64;
    let batch = structures(&image, b"CLB1").into_iter().filter(|b| *b < at).max().unwrap();
    wipe(&image, &structures(&image, b"CLN1"));
    wipe(&image, &[batch]);
    let out = run(&["fsck", "-y", &image]);
    assert_eq!(out.status.code(), Some(5), "{}{}", stdout(&out), stderr(&out));
    assert!(
        stdout(&out).contains("REBUILT") && stdout(&out).contains("/dir/large: data is lost from byte"),
        "{}",
        stdout(&out)
    );
    assert!(!stdout(&out).contains("/small"), "{}", stdout(&out));
    let out = run(&["cat", &format!("{image}:/dir/large")]);
    assert_ne!(out.status.code(), Some(0));
    assert!(out.stdout == data[..out.stdout.len()], "what was read before the error is not what was written");
    assert!(ok(&["cat", &format!("{image}:/small")]).len() > 10);
    // The check names it from now on, until it is written anew.
    ok(&["fsck", "-n", &image]);
    let out = run(&["fsck", "-n", "--data", &image]);
    assert_eq!(out.status.code(), Some(4), "{}{}", stdout(&out), stderr(&out));
    assert!(stdout(&out).contains("/dir/large: data is damaged"), "{}", stdout(&out));
    ok(&["import", from.to_str().unwrap(), &image]);
    ok(&["trim", &image]);
    ok(&["fsck", "-n", "--data", &image]);
    assert!(run(&["cat", &format!("{image}:/dir/large")]).stdout == data);
}

/// The same, with a repair that is killed when it has made the map, and has not looked at files yet.
#[test]
fn a_rebuilding_that_was_killed_is_not_used_before_it_is_ended() {
    let dir = temp_dir();
    let from = dir.path().join("from");
    fs::create_dir_all(&from).unwrap();
    let data = noise(5, 6 << 20);
    fs::write(from.join("large"), &data).unwrap();
    let image = make_log_image(dir.path(), &[]);
    ok(&["import", from.to_str().unwrap(), &image]);
    let bytes = contents(&image);
    let at = bytes.windows(64).position(|w| w == &data[3_000_000..3_000_064]).unwrap() as u64;
    let batch = structures(&image, b"CLB1").into_iter().filter(|b| *b < at).max().unwrap();
    wipe(&image, &structures(&image, b"CLN1"));
    wipe(&image, &[batch]);
    let device = FileDevice::open(Path::new(&image), OpenMode::READ_WRITE).unwrap();
    let store = cffs_logdisk::recover_image(Arc::new(device)).unwrap();
    cffs_logdisk::rebuild(Arc::new(store), &cffs_logdisk::LogOptions::default()).unwrap();
    let killed = contents(&image);
    let out = dir.path().join("out");
    let (mount_at, out) = (dir.path().to_str().unwrap(), out.to_str().unwrap());
    let cat = format!("{image}:/large");
    for (command, code) in [
        (&["cat", &cat][..], 1),
        (&["info", &image], 1),
        (&["export", &image, out], 1),
        (&["mount", &image, mount_at], 32),
    ] {
        fails(command, code, &["not to its end", "fsck -y"]);
    }
    fails(&["mount", "-o", "ro", &image, mount_at], 32, &["not to its end", "fsck -y"]);
    fails(&["fsck", "-p", &image], 4, &["1 problem", "by hand"]);
    fails(&["fsck", "-n", &image], 4, &["not to its end", "fsck -y"]);
    assert!(contents(&image) == killed, "what only looks has written");
    let out = run(&["fsck", "-y", &image]);
    assert_eq!(out.status.code(), Some(5), "{}{}", stdout(&out), stderr(&out));
    assert!(stdout(&out).contains("/large: data is lost from byte"), "{}", stdout(&out));
    let out = run(&["cat", &cat]);
    assert_ne!(out.status.code(), Some(0));
    assert!(out.stdout == data[..out.stdout.len()], "what was read before the error is not what was written");
    ok(&["fsck", "-n", &image]);
}

/// What a command says that found damage.
#[track_caller]
fn ok_or_damaged(args: &[&str]) -> String {
    let out = run(args);
    assert_eq!(out.status.code(), Some(4), "{}{}", stdout(&out), stderr(&out));
    stdout(&out)
}

/// What the file system is made of is damaged as well: the check says what is gone, and the repair brings back what it can.
#[test]
fn a_file_system_on_a_damaged_log_disk_is_repaired() {
    let dir = temp_dir();
    let from = dir.path().join("from");
    make_tree(&from);
    let image = make_log_image(dir.path(), &[]);
    ok(&["import", from.to_str().unwrap(), &image]);
    // All that was stored but for the nodes of the map; the superblocks stay.
    let whole = contents(&image);
    let mut damaged = whole.clone();
    damaged[1 << 20..4 << 20].fill(0x55);
    for at in (1 << 20..4 << 20).step_by(512) {
        if [b"CLN1", b"CLB1"].iter().any(|magic| whole[at..].starts_with(*magic)) {
            damaged[at..at + 4096].copy_from_slice(&whole[at..at + 4096]);
        }
    }
    fs::write(&image, &damaged).unwrap();
    let out = run(&["fsck", "-n", "--data", &image]);
    assert_eq!(out.status.code(), Some(4), "{}{}", stdout(&out), stderr(&out));
    assert!(stdout(&out).contains("log disk: branch 0"), "{}", stdout(&out));
    assert!(contents(&image) == damaged);
    let out = run(&["fsck", "-y", &image]);
    assert_eq!(out.status.code(), Some(1), "{}{}", stdout(&out), stderr(&out));
    ok(&["fsck", "-n", &image]);
    ok(&["ls", &image]);
}

/// After a crash: whoever only looks writes nothing; and what the crash has left is discarded by who puts the file system in order.
#[test]
fn looking_writes_nothing_and_a_repair_discards_what_a_crash_has_left() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    for how in ["-p", "-y", "mount"] {
        let image = make_log_image(dir.path(), &["--force"]);
        let (path, name) = mount_point(dir.path());
        {
            let _mounted = Mounted(path.clone());
            let served = Foreground(Command::new(CFFS).args(["mount", "-f", &image, &name]).spawn().unwrap());
            wait_until("mounted", || is_mounted(&path));
            fs::write(path.join("kept"), "kept").unwrap();
            ok(&["snapshot", "create", &name, "monday"]);
            ok(&["snapshot", "delete", &name, "monday"]);
            // Data reaches the device long before its mapping is committed.
            fs::write(path.join("left over"), noise(7, 12 << 20)).unwrap();
            drop(served);
        }
        let before = contents(&image);
        let live = || json(&ok(&["info", "--quick", "--json", &image]))["log_disk"]["live_bytes"].as_u64().unwrap();
        let left = live();
        ok(&["fsck", "-n", "--data", &image]);
        ok(&["info", &image]);
        ok(&["ls", &image]);
        ok(&["cat", &format!("{image}:/kept")]);
        ok(&["stats", &image]);
        ok(&["dump", &image, "superblock"]);
        ok(&["snapshot", "list", &image]);
        ok(&["export", &image, dir.path().join("out").to_str().unwrap()]);
        assert!(contents(&image) == before, "somebody who only looks has written");
        if how == "mount" {
            let _mounted = Mounted(path.clone());
            ok(&["mount", &image, &name]);
            let live = || json(&ok(&["stats", "--json", &name]))["log_disk"]["live_bytes"].as_u64().unwrap();
            wait_until("discarded", || live() < 4 << 20 || path.join("left over").exists());
            umount(&name);
        } else {
            assert_eq!(run(&["fsck", how, &image]).status.code(), Some(1));
        }
        let there = ok(&["ls", &image]).contains("left over");
        assert!(there || live() < 4 << 20, "{how}: {} of {left} bytes live", live());
        ok(&["fsck", "-n", "--data", &image]);
    }
}

/// An image with a tree, and without any checkpoint.
fn image_without_checkpoints(dir: &Path) -> String {
    let image = make_log_image(dir, &[]);
    let from = dir.join("from");
    make_tree(&from);
    ok(&["import", from.to_str().unwrap(), &image]);
    wipe(&image, &structures(&image, b"CLR1"));
    wipe(&image, &structures(&image, b"CLN1"));
    image
}

/// Only checkpoints say how long a log disk is. Without any, it is as long as the file system on it, also if the rebuilding ended before that.
#[test]
fn a_log_disk_without_checkpoints_is_as_long_as_its_file_system() {
    let dir = temp_dir();
    let image = image_without_checkpoints(dir.path());
    let interrupted = dir.path().join("interrupted");
    let rebuilt = || {
        let dev = FileDevice::open(&interrupted, OpenMode::READ_WRITE).unwrap();
        let store = cffs_logdisk::recover_image(Arc::new(dev)).unwrap();
        cffs_logdisk::rebuild(Arc::new(store), &cffs_logdisk::LogOptions::default()).unwrap().logical_bytes
    };
    // Nor the batch that has what lies last.
    let is_last = |batch: &u64| {
        fs::copy(&image, &interrupted).unwrap();
        wipe(interrupted.to_str().unwrap(), &[*batch]);
        rebuilt() < 512 << 20
    };
    let last = structures(&image, b"CLB1").into_iter().find(is_last).unwrap();
    wipe(&image, &[last]);
    for image in [&*image, interrupted.to_str().unwrap()] {
        let out = run(&["fsck", "-y", "-f", image]);
        let said = stdout(&out);
        assert_eq!(out.status.code(), Some(1), "{said} {}", stderr(&out));
        assert!(said.contains("LENGTHENED"), "{said}");
        let info = ok(&["info", image]);
        assert!(info.contains("size         512 MiB"), "{info}");
        has_the_tree(dir.path(), image);
        ok(&["fsck", "-n", "-f", "--data", image]);
    }
}

/// A log disk whose checkpoints are gone is rebuilt; where the file system on it is gone as well, that is said, and not to rebuild it again.
#[test]
fn where_no_file_system_is_left_on_a_rebuilt_log_disk_that_is_said() {
    let dir = temp_dir();
    let image = image_without_checkpoints(dir.path());
    wipe(&image, &structures(&image, b"\x89CFFS\r\n\x1a"));
    for _ in 0..2 {
        let out = run(&["fsck", "-y", "-f", &image]);
        let said = stderr(&out);
        assert_eq!(out.status.code(), Some(4), "{said}");
        assert!(said.contains("no file system on it") && !said.contains("run cffs fsck"), "{said}");
    }
}
