//! `regroup`, of images and of mounts.

use crate::mounting::{fuse_works, mount_point, umount, wait_until};
use crate::tools::*;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};

const DIRS: usize = 12;
const ROUNDS: usize = 60;

fn body(n: usize) -> Vec<u8> {
    (0..300 + n * 97 % 5000).map(|i| (i * 7 + n) as u8).collect()
}

fn file(d: usize, round: usize) -> String {
    format!("top/d{d}/f{round}")
}

/// An image with files that were made in turns over many directories, through the library, each on the device before the
/// next one.
fn aged_image(dir: &Path) -> String {
    let image = make_image(dir, &[]);
    let device = cffs::device::FileDevice::open(Path::new(&image), cffs::device::OpenMode::READ_WRITE).unwrap();
    let fs = cffs::Fs::open(std::sync::Arc::new(device), None, cffs::MountOptions::default()).unwrap();
    for d in 0..DIRS {
        fs.root().unwrap().create_dir_all(format!("top/d{d}")).unwrap();
    }
    for round in 0..ROUNDS {
        for d in 0..DIRS {
            fs.root().unwrap().write(file(d, round), body(round * DIRS + d)).unwrap();
            fs.sync().unwrap();
        }
    }
    fs.root().unwrap().write("alone", "x").unwrap();
    fs.close().unwrap();
    image
}

/// Every file is as it was made.
fn same(top: &Path) {
    for (d, round) in (0..DIRS).flat_map(|d| (0..ROUNDS).map(move |r| (d, r))) {
        let path = top.join(file(d, round));
        assert!(fs::read(&path).unwrap() == body(round * DIRS + d), "{path:?}");
    }
}

fn same_in_image(dir: &Path, image: &str) {
    let out = dir.join("out");
    let _ = fs::remove_dir_all(&out);
    ok(&["export", image, out.to_str().unwrap()]);
    same(&out);
    ok(&["fsck", "-n", image]);
}

fn moved(text: &str) -> u64 {
    json(text)["bytes_moved"].as_u64().unwrap()
}

fn start(args: &[&str]) -> Child {
    Command::new(CFFS).args(args).spawn().unwrap()
}

fn interrupt(child: &Child) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), rustix::process::Signal::INT).unwrap();
}

#[test]
fn an_image_is_regrouped_once_in_parts_or_as_a_whole() {
    let dir = temp_dir();
    let image = aged_image(dir.path());
    // A dry run tells what the regroup does then, and changes nothing.
    let plan = ok(&["regroup", "--dry-run", &image]);
    assert!(plan.contains("regroup complete") && plan.contains("would move"), "{plan}");
    let plan = json(&ok(&["regroup", "--dry-run", "--json", &image]));
    assert_eq!((&plan["dry_run"], &plan["files_moved"]), (&true.into(), &0.into()), "{plan}");
    assert!(plan["bytes_moved"].as_u64().unwrap() > 0, "the first dry run moved it: {plan}");

    // Subtrees, a path twice, and a budget.
    let one = json(&ok(&["regroup", "--json", "/top/d3", "top/d3/", &image]));
    assert_eq!(
        (&one["directories"], &one["running"], &one["target"]),
        (&1.into(), &false.into(), &image.as_str().into())
    );
    assert!(one["files_moved"].as_u64().unwrap() > 0, "{one}");
    same_in_image(dir.path(), &image);
    let some = moved(&ok(&["regroup", "--json", "--budget", "100K", &image]));
    assert!(some > 0 && some <= 100 << 10, "{some}");
    same_in_image(dir.path(), &image);

    let text = ok(&["regroup", &image]);
    for word in ["regroup complete", "moved ", "requests to read all small files", "names and inodes", "% less"] {
        assert!(text.contains(word), "{word:?} in {text}");
    }
    let again = json(&ok(&["regroup", "--json", &image]));
    assert_eq!((&again["bytes_moved"], &again["blocks_moved"]), (&0.into(), &0.into()), "{again}");
    same_in_image(dir.path(), &image);
}

#[test]
fn what_cannot_be_regrouped_is_named() {
    let dir = temp_dir();
    let image = aged_image(dir.path());
    let before = contents(&image);
    fails(&["regroup"], 16, &["required"]);
    fails(&["regroup", "--rate", "0", &image], 16, &["--rate", "nothing would ever be moved"]);
    fails(&["regroup", "--budget", "0", &image], 16, &["--budget", "nothing would ever be moved"]);
    fails(&["regroup", "--budget", "much", &image], 16, &["much"]);
    fails(&["regroup", "--status", "--dry-run", &image], 16, &["cannot be used with"]);
    for option in ["--status", "--stop", "--background"] {
        fails(&["regroup", option, &image], 16, &[&image, "not a directory", "mounted"]);
    }
    let name = dir.path().to_str().unwrap();
    fails(&["regroup", name], 8, &[name, "not on a mounted cffs"]);
    fails(&["regroup", "--status", "top", name], 16, &[name, "take one directory"]);
    fails(&["regroup", "/nonexistent/image"], 8, &["/nonexistent/image", "No such file"]);
    assert!(contents(&image) == before, "changed");
    fails(&["regroup", "/top/d3/f1", &image], 8, &[&image, ":/top/d3/f1: not a directory"]);
    fails(&["regroup", "/top/d3/f1/x", &image], 8, &[":/top/d3/f1/x"]);
    fails(&["regroup", "/top", "missing", &image], 8, &[":/missing: no such directory"]);
    same_in_image(dir.path(), &image);
}

#[test]
fn an_interrupt_closes_the_image_in_order() {
    let dir = temp_dir();
    let image = aged_image(dir.path());
    let mut child = start(&["regroup", "--rate", "1K", &image]);
    // The lock of the image shows that it works on it.
    wait_until("the regroup has begun", || !run(&["info", "--quick", &image]).status.success());
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(32));
    assert_eq!(json(&ok(&["info", "--quick", "--json", &image]))["state"], "clean");
    same_in_image(dir.path(), &image);
}

#[test]
fn a_mount_is_regrouped_while_it_is_used() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = aged_image(dir.path());
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", &image, &name]);
    fails(&["regroup", "--status", &name], 8, &[&name, "no regroup"]);
    fails(&["regroup", &image], 8, &[&image, "name that directory instead of the image"]);
    fails(&["regroup", "top/d3/f1", &name], 8, &["top/d3/f1: not a directory"]);
    fails(&["regroup", "top/d33", &name], 8, &["top/d33: no such directory"]);
    fails(&["regroup", "/proc", &name], 8, &["/proc: not in the file system", &name]);
    let inside = path.join("top/d3");
    let inside = inside.to_str().unwrap();
    fails(&["regroup", inside], 8, &[inside, "regroup ."]);

    // The same directory by its path from the mount on, by its own, and from where the command is called.
    for args in [&["top/d3", &name][..], &[inside, &name], &[".", inside]] {
        let one = json(&ok(&[&["regroup", "--dry-run", "--json"][..], args].concat()));
        assert_eq!(one["directories"], 1, "{args:?}: {one}");
    }
    assert!(ok(&["regroup", "--status", inside]).contains("would move"));
    let one = json(&ok(&["regroup", "--json", "top/d3", "top/d4", &name]));
    assert_eq!(one["directories"], 2, "{one}");
    assert!(one["files_moved"].as_u64().unwrap() > 0, "{one}");

    ok(&["regroup", "--background", "--rate", "1K", &name]);
    fails(&["regroup", &name], 8, &["a regroup runs already"]);
    assert_eq!(json(&ok(&["regroup", "--status", "--json", &name]))["running"], true);
    let stopped = ok(&["regroup", "--stop", &name]);
    assert!(stopped.contains("regroup stopped"), "{stopped}");
    let mut child = start(&["regroup", "--rate", "1K", &name]);
    wait_until("the regroup runs", || json(&ok(&["regroup", "--status", "--json", &name]))["running"] == true);
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(32));

    assert!(moved(&ok(&["regroup", "--json", &name])) > 0);
    assert_eq!(moved(&ok(&["regroup", "--json", &name])), 0);
    same(&path);
    umount(&name);
    same_in_image(dir.path(), &image);

    for (option, words) in [("ro", "read-only"), ("metadata=sync", "metadata=journal")] {
        ok(&["mount", "-o", option, &image, &name]);
        fails(&["regroup", &name], 8, &[&name, words]);
        umount(&name);
    }
    if is_root() {
        ok(&["mount", &image, &name]);
        assert!(Command::new("mount").args(["-o", "remount,ro", &name]).status().unwrap().success());
        fails(&["regroup", &name], 8, &[&name, "mounted read-only"]);
        umount(&name);
    }
}

/// An image on which large files lie in the gaps that every second small file left.
fn image_with_large_files(dir: &Path) -> (String, Vec<u8>) {
    let image = make_image(dir, &[]);
    let device = cffs::device::FileDevice::open(Path::new(&image), cffs::device::OpenMode::READ_WRITE).unwrap();
    let fs = cffs::Fs::open(std::sync::Arc::new(device), None, cffs::MountOptions::default()).unwrap();
    let root = fs.root().unwrap();
    let small = |n: usize| format!("s{n}");
    let mut n = 0;
    while root.write(small(n), vec![n as u8; 40 << 10]).is_ok() && fs.sync().is_ok() {
        n += 1;
    }
    (0..n).step_by(2).for_each(|i| root.remove_file(small(i)).unwrap());
    fs.sync().unwrap();
    let bytes: Vec<u8> = (0..1_500_000_usize).map(|i| (i / 5 + i / 4096) as u8).collect();
    root.create_dir_all("top/below").unwrap();
    root.write("top/below/large", &bytes).unwrap();
    fs.sync().unwrap();
    (1..n).step_by(2).for_each(|i| root.remove_file(small(i)).unwrap());
    fs.close().unwrap();
    (image, bytes)
}

#[test]
fn large_files_of_an_image_are_brought_into_one_piece() {
    let dir = temp_dir();
    let (image, bytes) = image_with_large_files(dir.path());
    let plan = json(&ok(&["regroup", "--large", "--dry-run", "--json", &image]));
    assert!(plan["pieces"]["before"].as_u64() > Some(10), "{plan}");
    assert_eq!((&plan["pieces"]["after"], &plan["files_moved"]), (&1.into(), &0.into()), "{plan}");
    let text = ok(&["regroup", "--large", "top/below", &image]);
    assert!(text.contains("pieces of large files: ") && text.contains(" before, 1 after"), "{text}");
    assert!(!text.contains("requests to read"), "small files were not looked at: {text}");
    assert_eq!(moved(&ok(&["regroup", "--large", "--json", &image])), 0);
    let out = dir.path().join("out");
    ok(&["export", &image, out.to_str().unwrap()]);
    assert!(fs::read(out.join("top/below/large")).unwrap() == bytes);
    ok(&["fsck", "-n", &image]);
    fails(&["regroup", "--large", "--status", "."], 16, &["--large"]);
}

#[test]
fn free_space_of_an_image_is_brought_into_one_run() {
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let device = cffs::device::FileDevice::open(Path::new(&image), cffs::device::OpenMode::READ_WRITE).unwrap();
    let fs = cffs::Fs::open(std::sync::Arc::new(device), None, cffs::MountOptions::default()).unwrap();
    let root = fs.root().unwrap();
    let small = |n: usize| format!("s{n}");
    let mut n = 0;
    while root.write(small(n), vec![n as u8; 40 << 10]).is_ok() && fs.sync().is_ok() {
        n += 1;
    }
    (0..n).step_by(4).for_each(|i| root.remove_file(small(i)).unwrap());
    fs.close().unwrap();
    // The image is free when nobody has the file system any more.
    drop((root, fs));
    let plan = json(&ok(&["regroup", "--free-space", "--dry-run", "--json", &image]));
    let runs = &plan["free_runs"];
    assert!(runs["before"]["for_tenth"].as_u64() > Some(10), "{plan}");
    assert_eq!((&runs["after"]["for_tenth"], &plan["files_moved"]), (&1.into(), &0.into()), "{plan}");
    let text = ok(&["regroup", "--free-space", &image]);
    assert!(text.contains("longest free run: ") && text.contains(" before, 1 after"), "{text}");
    assert_eq!(moved(&ok(&["regroup", "--free-space", "--json", &image])), 0);
    ok(&["fsck", "-n", &image]);
    let out = dir.path().join("out");
    ok(&["export", &image, out.to_str().unwrap()]);
    for i in (0..n).filter(|i| !i.is_multiple_of(4)) {
        assert!(std::fs::read(out.join(small(i))).unwrap() == vec![i as u8; 40 << 10], "s{i}");
    }
    fails(&["regroup", "--free-space", "/", &image], 16, &["no PATH"]);
    fails(&["regroup", "--free-space", "--status", "."], 16, &["--free-space"]);
}
