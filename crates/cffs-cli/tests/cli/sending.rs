//! Snapshots sent to other images, by the program.

use crate::mounting::{fuse_works, mount_point, umount};
use crate::tools::*;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn make_log_image(dir: &Path, name: &str, more: &[&str]) -> String {
    let image = dir.join(name).to_str().unwrap().to_owned();
    let args = ["mkfs", "--layout=log", "--size", "64M", "--thin=512M", "--group-size", "64K"];
    ok(&[&args, more, &[&image]].concat());
    image
}

/// The stream that the arguments of `snapshot send` make.
#[track_caller]
fn stream(args: &[&str]) -> Vec<u8> {
    let out = run(&[&["snapshot", "send"], args].concat());
    assert!(out.status.success(), "{args:?}: {}", stderr(&out));
    out.stdout
}

/// `snapshot receive` with these bytes as its input; it is killed when it has read them if `kill`.
fn receive(args: &[&str], bytes: &[u8], kill: bool) -> Output {
    let mut command = Command::new(CFFS);
    command.args(["snapshot", "receive"]).args(args).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // What does not want it says why.
    let _ = input.write_all(bytes);
    if kill {
        std::thread::sleep(std::time::Duration::from_millis(20));
        child.kill().unwrap();
    }
    drop(input);
    child.wait_with_output().unwrap()
}

#[track_caller]
fn received(args: &[&str], bytes: &[u8]) {
    let out = receive(args, bytes, false);
    assert!(out.status.success(), "{args:?}: {}", stderr(&out));
}

fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut x = seed | 1;
    move |below| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x % below as u64) as usize
    }
}

/// Files of all sizes, links and a hole; the next call changes some of them.
fn change(root: &Path, round: usize) {
    let mut random = random(77 + round as u64);
    for number in 0..5 {
        let dir = root.join(format!("dir{number}"));
        fs::create_dir_all(&dir).unwrap();
        for n in 0..30 {
            let path = dir.join(format!("file{n}"));
            if round > 0 && random(4) > 0 {
                continue;
            }
            if random(5) == 0 && round > 0 {
                let _ = fs::remove_file(&path);
                continue;
            }
            let len = if n == 0 { 300_000 + random(900_000) } else { random(20_000) };
            fs::write(&path, (0..len).map(|_| random(256) as u8).collect::<Vec<_>>()).unwrap();
        }
    }
    let large = File::create(root.join("sparse")).unwrap();
    large.set_len(40 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&large, &[round as u8 + 1; 5000], 30 << 20).unwrap();
    if round == 0 {
        symlink("dir0/file0", root.join("link")).unwrap();
        fs::hard_link(root.join("dir1/file1"), root.join("second name")).unwrap();
        fs::set_permissions(root.join("dir2"), fs::Permissions::from_mode(0o710)).unwrap();
    }
}

/// All that a tree has: of each name kind, mode, owner, size, time of the last change, and contents.
fn tree(root: &Path) -> Vec<(PathBuf, Vec<u64>, Vec<u8>)> {
    let mut all = Vec::new();
    let mut stack = vec![PathBuf::new()];
    while let Some(inside) = stack.pop() {
        let path = root.join(&inside);
        let m = fs::symlink_metadata(&path).unwrap();
        let data = if m.is_dir() {
            stack.extend(fs::read_dir(&path).unwrap().map(|e| inside.join(e.unwrap().file_name())));
            Vec::new()
        } else if m.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else {
            fs::read(&path).unwrap()
        };
        let size = if m.is_dir() { 0 } else { m.len() };
        let numbers =
            [m.ino(), m.mode().into(), m.uid().into(), m.nlink(), size, m.mtime() as u64, m.ctime_nsec() as u64];
        all.push((inside, numbers.to_vec(), data));
    }
    all.sort();
    all
}

/// A whole stream and two incremental ones, each interrupted 20 times: the sender ends early, or the receiver is killed.
#[test]
fn a_tree_that_was_sent_with_interruptions_is_the_same_byte_for_byte() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let source = make_log_image(dir.path(), "source", &["--compress=lz4"]);
    let target = make_log_image(dir.path(), "target", &[]);
    let (path, name) = mount_point(dir.path());
    let mut random = random(5);
    let mut trees = Vec::new();
    for (round, snapshot) in ["monday", "tuesday", "wednesday"].into_iter().enumerate() {
        let _mounted = Mounted(path.clone());
        ok(&["mount", &source, &name]);
        change(&path, round);
        ok(&["snapshot", "create", &name, snapshot]);
        trees.push(tree(&path));
        // What comes later is not sent.
        fs::write(path.join("later"), "later").unwrap();
        let earlier = ["--from", "monday", "--from", "tuesday"];
        let from: &[&str] = if round == 0 { &[] } else { &earlier[2 * round - 2..2 * round] };
        let mut resumed = 0;
        for interruption in 0..=20 {
            let token = ok(&["snapshot", "receive", "--unfinished", &target]);
            let token: Vec<&str> = token.lines().collect();
            let resume: Vec<&str> = token.iter().flat_map(|t| ["--resume", *t]).collect();
            resumed += resume.len() / 2;
            // From the mount, which holds the image.
            let mut bytes = stream(&[&[&name, snapshot], from, &resume[..]].concat());
            if interruption == 20 {
                received(&[&target], &bytes);
                break;
            }
            bytes.truncate(random(bytes.len()));
            let out = receive(&[&target], &bytes, interruption % 3 == 2);
            assert!(!out.status.success());
            if interruption % 3 < 2 {
                assert!(stderr(&out).contains("ended early"), "{}", stderr(&out));
            }
            let there = ok(&["snapshot", "list", &target]);
            assert_eq!(there.lines().count(), round, "nothing is seen of what is not whole: {there}");
        }
        assert!(resumed > 10, "{resumed} streams went on where the last one had ended");
        assert_eq!(ok(&["snapshot", "receive", "--unfinished", &target]), "");
        umount(&name);
    }
    ok(&["fsck", "-n", "--data", &target]);
    for (snapshot, want) in ["monday", "tuesday", "wednesday"].into_iter().zip(&trees) {
        let _mounted = Mounted(path.clone());
        ok(&["snapshot", "mount", &target, snapshot, &name]);
        assert!(tree(&path) == *want, "{snapshot} is not what was sent");
        umount(&name);
    }
    // It goes on from there: a clone can be written, and what was received can be sent to a third.
    ok(&["snapshot", "clone", &target, "tuesday", "work"]);
    let third = make_log_image(dir.path(), "third", &[]);
    received(&[&third], &stream(&[&target, "monday"]));
    received(&[&third], &stream(&[&target, "wednesday", "--from", "monday"]));
    {
        let _mounted = Mounted(path.clone());
        ok(&["snapshot", "mount", &third, "wednesday", &name]);
        assert!(tree(&path) == trees[2]);
        umount(&name);
    }
    ok(&["snapshot", "delete", &target, "work", "monday", "tuesday", "wednesday"]);
    assert_eq!(ok(&["snapshot", "list", &target]), "");
    ok(&["fsck", "-n", "--data", &target]);
    let live = json(&ok(&["info", "--quick", "--json", &target]))["log_disk"]["live_bytes"].as_u64().unwrap();
    assert!(live < 2 << 20, "{live} bytes live, although all that was received is deleted");
}

#[test]
fn a_mount_receives_beside_what_it_has() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let source = make_log_image(dir.path(), "source", &[]);
    let from = dir.path().join("from");
    change(&from, 0);
    ok(&["import", from.to_str().unwrap(), &source]);
    ok(&["snapshot", "create", &source, "monday"]);
    let target = make_log_image(dir.path(), "target", &[]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", &target, &name]);
    fs::write(path.join("own"), "own").unwrap();
    let bytes = stream(&[&source, "monday"]);
    let out = receive(&[&name], &bytes[..bytes.len() / 2], false);
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr(&out).contains("--resume"), "{}", stderr(&out));
    let token = ok(&["snapshot", "receive", "--unfinished", &name]);
    let rest = stream(&[&source, "monday", "--resume", token.trim()]);
    assert!(rest.len() < bytes.len() * 3 / 4, "{} of {} bytes", rest.len(), bytes.len());
    received(&[&name, "--name", "from elsewhere"], &rest);
    assert_eq!(ok(&["snapshot", "list", &name]), "from elsewhere (received)\n");
    assert_eq!(fs::read(path.join("own")).unwrap(), b"own");
    umount(&name);
    ok(&["fsck", "-n", "--data", &target]);
}

#[test]
fn what_does_not_fit_is_refused_and_can_be_forgotten() {
    let dir = temp_dir();
    let source = make_log_image(dir.path(), "source", &[]);
    let from = dir.path().join("from");
    change(&from, 0);
    ok(&["import", from.to_str().unwrap(), &source]);
    ok(&["snapshot", "create", &source, "monday"]);
    fs::write(from.join("dir0/file1"), "changed").unwrap();
    ok(&["import", from.to_str().unwrap(), &source]);
    ok(&["snapshot", "create", &source, "tuesday"]);
    ok(&["snapshot", "clone", &source, "tuesday", "clone"]);
    fails(&["snapshot", "send", &source, "sunday"], 1, &["sunday", "snapshot list"]);
    fails(&["snapshot", "send", &source, "clone"], 1, &["is a clone"]);
    fails(&["snapshot", "send", &source, "monday", "--from", "tuesday"], 1, &["earlier"]);
    fails(&["snapshot", "send", &source, "monday", "--resume", "00"], 1, &["--unfinished", "00"]);
    let file = dir.path().join("stream").to_str().unwrap().to_owned();
    ok(&["snapshot", "send", &source, "monday", "-o", &file]);
    let step = stream(&[&source, "tuesday", "--from", "monday"]);
    let refused = |args: &[&str], bytes: &[u8], words: &[&str]| {
        let out = receive(args, bytes, false);
        assert_eq!(out.status.code(), Some(1));
        words.iter().for_each(|w| assert!(stderr(&out).contains(w), "no {w:?} in {}", stderr(&out)));
    };
    let target = make_log_image(dir.path(), "target", &[]);
    refused(&[&target], &step, &["send that one first"]);
    refused(&[&target], b"no stream at all, but some text", &["no frame"]);
    refused(&[&target], b"", &["ended early"]);
    let mut damaged = contents(&file);
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    refused(&[&target], &damaged, &["checksum"]);
    assert_ne!(ok(&["snapshot", "receive", "--unfinished", &target]), "");
    ok(&["snapshot", "receive", "--abandon", &target]);
    assert_eq!(ok(&["snapshot", "receive", "--unfinished", &target]), "");
    ok(&["fsck", "-n", "--data", &target]);
    ok(&["snapshot", "receive", &target, "-i", &file]);
    refused(&[&target], &contents(&file), &["already", "monday"]);
    ok(&["snapshot", "create", &target, "tuesday"]);
    refused(&[&target], &step, &["already", "--name"]);
    received(&[&target, "--name", "received tuesday"], &step);
    // A clone of it keeps it, and so does what it was received with.
    ok(&["snapshot", "clone", &target, "received tuesday", "mine"]);
    fails(&["snapshot", "delete", &target, "received tuesday"], 1, &["clones"]);
    ok(&["fsck", "-n", "--data", &target]);
    let small = dir.path().join("small").to_str().unwrap().to_owned();
    ok(&["mkfs", "--layout=log", "--size", "64M", "--thin=256M", "--group-size", "64K", &small]);
    refused(&[&small], &contents(&file), &["--thin=536870912"]);
    let plain = dir.path().join("plain").to_str().unwrap().to_owned();
    ok(&["mkfs", "--size", "32M", &plain]);
    refused(&[&plain], &contents(&file), &["log layout"]);
    // Looking writes nothing.
    let before = contents(&source);
    ok(&["snapshot", "list", &source]);
    ok(&["snapshot", "diff", &source, "monday"]);
    ok(&["snapshot", "diff", &source, "monday", "clone"]);
    stream(&[&source, "monday"]);
    assert!(contents(&source) == before, "the image has changed");
}

/// What cannot be written is named: it is not the image.
#[test]
fn an_output_that_takes_no_more_is_named() {
    let dir = temp_dir();
    let image = make_log_image(dir.path(), "source", &[]);
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("file"), vec![7; 3 << 20]).unwrap();
    ok(&["import", from.to_str().unwrap(), &image]);
    ok(&["snapshot", "create", &image, "monday"]);
    fails(&["snapshot", "send", "-o", "/dev/full", &image, "monday"], 1, &["/dev/full", "No space left"]);
    if fuse_works() {
        let (path, name) = mount_point(dir.path());
        let _mounted = Mounted(path);
        ok(&["mount", &image, &name]);
        fails(&["snapshot", "send", "-o", "/dev/full", &name, "monday"], 1, &["/dev/full", "No space left"]);
        umount(&name);
    }
}

/// A file that has an older stream keeps it if there is nothing to send.
#[test]
fn a_stream_that_cannot_be_sent_takes_no_other_with_it() {
    let dir = temp_dir();
    let image = make_log_image(dir.path(), "source", &[]);
    ok(&["snapshot", "create", &image, "monday"]);
    ok(&["snapshot", "create", &image, "tuesday"]);
    let file = dir.path().join("stream");
    let name = file.to_str().unwrap();
    ok(&["snapshot", "send", "-o", name, &image, "monday"]);
    let before = fs::read(&file).unwrap();
    assert!(!before.is_empty());
    fails(&["snapshot", "send", "--from", "tuesday", "-o", name, &image, "monday"], 1, &["tuesday"]);
    fails(&["snapshot", "send", "-o", name, &image, "sunday"], 1, &["sunday"]);
    assert!(fs::read(&file).unwrap() == before, "the older stream is gone");
    ok(&["snapshot", "send", "--from", "monday", "-o", name, &image, "tuesday"]);
    assert!(fs::read(&file).unwrap() != before);
}
