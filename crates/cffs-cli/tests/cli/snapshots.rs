//! Snapshots of file systems with the log layout, by the program.

use crate::log_layout::noise;
use crate::mounting::{Foreground, fuse_works, is_mounted, mount_point, umount, wait_until};
use crate::tools::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn make_log_image(dir: &Path) -> String {
    let image = dir.join("image").to_str().unwrap().to_owned();
    ok(&["mkfs", "--layout=log", "--size", "48M", "--group-size", "64K", "--compress=lz4", &image]);
    image
}

fn second_point(dir: &Path) -> (PathBuf, String) {
    let path = dir.join("second");
    let _ = fs::create_dir(&path);
    (path.clone(), path.to_str().unwrap().to_owned())
}

fn list(of: &str) -> Vec<String> {
    ok(&["snapshot", "list", of]).lines().map(str::to_owned).collect()
}

#[test]
fn snapshots_of_an_image_are_made_compared_cloned_and_deleted() {
    let dir = temp_dir();
    let image = make_log_image(dir.path());
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("stays"), "1").unwrap();
    fs::write(from.join("changes"), "1").unwrap();
    ok(&["import", from.to_str().unwrap(), &image]);
    ok(&["snapshot", "create", &image, "monday"]);
    fails(&["snapshot", "create", &image, "monday"], 1, &["monday", "already"]);
    fs::remove_file(from.join("stays")).unwrap();
    fs::write(from.join("changes"), "two").unwrap();
    fs::write(from.join("comes"), "2").unwrap();
    ok(&["import", from.to_str().unwrap(), &image]);
    ok(&["rm", &format!("{image}:/stays")]);
    assert_eq!(ok(&["snapshot", "diff", &image, "monday"]), "M changes\n- stays\n+ comes\n");
    ok(&["snapshot", "create", &image, "tuesday"]);
    assert_eq!(ok(&["snapshot", "diff", &image, "tuesday"]), "");
    let told = json(&ok(&["snapshot", "diff", "--json", &image, "monday", "tuesday"]));
    assert_eq!(told[0], serde_json::json!({"change": "changed", "path": "changes"}));
    ok(&["snapshot", "clone", &image, "monday", "again"]);
    let names = list(&image);
    assert!(names.contains(&"again (clone of monday)".to_owned()) && names.len() == 3, "{names:?}");
    fails(&["snapshot", "delete", &image, "monday"], 1, &["monday", "clones"]);
    fails(&["snapshot", "delete", &image, "sunday"], 1, &["sunday", "snapshot list"]);
    ok(&["fsck", "-n", "--data", &image]);
    ok(&["snapshot", "delete", &image, "again", "monday", "tuesday"]);
    assert!(list(&image).is_empty());
    ok(&["fsck", "-n", "--data", &image]);
    // What has no log disk has no snapshots.
    let plain = dir.path().join("plain").to_str().unwrap().to_owned();
    ok(&["mkfs", "--size", "32M", &plain]);
    fails(&["snapshot", "list", &plain], 1, &["log layout"]);
    fails(&["snapshot", "create", &plain, "x"], 1, &["--layout=log"]);
}

#[test]
fn snapshots_of_a_mount_are_mounted_later() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_log_image(dir.path());
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", &image, &name]);
    fs::create_dir(path.join("dir")).unwrap();
    fs::write(path.join("dir/file"), "monday").unwrap();
    // What nobody has synced is in it.
    ok(&["snapshot", "create", &name, "monday"]);
    fs::write(path.join("dir/file"), "tuesday").unwrap();
    fs::write(path.join("new"), "tuesday").unwrap();
    assert_eq!(ok(&["snapshot", "diff", &name, "monday"]), "+ new\nM dir/file\n");
    ok(&["snapshot", "clone", &name, "monday", "other"]);
    ok(&["snapshot", "create", &name, "gone"]);
    ok(&["snapshot", "delete", &name, "gone"]);
    assert_eq!(list(&name).len(), 2);
    umount(&name);
    {
        ok(&["snapshot", "mount", &image, "monday", &name]);
        assert_eq!(fs::read(path.join("dir/file")).unwrap(), b"monday");
        assert!(!path.join("new").exists());
        assert!(fs::write(path.join("x"), "").is_err(), "it is read-only");
        assert_eq!(list(&name).len(), 2);
        fails(&["snapshot", "create", &name, "more"], 1, &["'monday'", "file system itself"]);
        // Nothing is written for it, so that another process can have one too.
        let (second, at) = second_point(dir.path());
        let _second = Mounted(second.clone());
        ok(&["mount", "-o", "snapshot=monday", &image, &at]);
        assert_eq!(fs::read(second.join("dir/file")).unwrap(), b"monday");
        umount(&at);
        umount(&name);
    }
    ok(&["mount", "-o", "snapshot=other", &image, &name]);
    fs::write(path.join("dir/file"), "a clone").unwrap();
    fails(&["snapshot", "create", &name, "more"], 1, &["'other'", "file system itself"]);
    umount(&name);
    fails(&["mount", "-o", "snapshot=nosuch", &image, &name], 32, &["nosuch"]);
    assert_eq!(ok(&["cat", &format!("{image}:/dir/file")]), "tuesday");
    assert_eq!(ok(&["snapshot", "diff", &image, "monday", "other"]), "M dir/file\n");
    ok(&["fsck", "-n", "--data", &image]);
}

/// A snapshot is read while the file system is changed, and its segments are cleaned, as long as anybody likes.
#[test]
fn snapshots_and_clones_are_mounted_beside_the_file_system() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_log_image(dir.path());
    let (path, name) = mount_point(dir.path());
    let (second, at) = second_point(dir.path());
    let third = dir.path().join("third");
    fs::create_dir(&third).unwrap();
    let _mounted = [Mounted(third.clone()), Mounted(second.clone()), Mounted(path.clone())];
    ok(&["mount", &image, &name]);
    let data = |seed: u64| noise(seed, 3 << 20);
    fs::write(path.join("large"), data(1)).unwrap();
    fs::write(path.join("small"), "monday").unwrap();
    ok(&["snapshot", "create", &name, "monday"]);
    // By the directory, and by the image.
    ok(&["snapshot", "mount", &name, "monday", &at]);
    ok(&["snapshot", "clone", &name, "monday", "work"]);
    ok(&["mount", "-o", "snapshot=work,noatime", &image, third.to_str().unwrap()]);
    fails(&["snapshot", "mount", &name, "work", dir.path().to_str().unwrap()], 32, &["work", "mounted on"]);
    fails(&["snapshot", "mount", &name, "nosuch", &at], 32, &["nosuch"]);
    fails(&["snapshot", "create", &at, "x"], 1, &["'monday'"]);
    fails(&["snapshot", "mount", &at, "monday", &name], 32, &["beside"]);
    fails(&["snapshot", "delete", &name, "monday"], 1, &["mounted"]);
    fails(&["snapshot", "delete", &name, "work"], 1, &["mounted"]);
    assert!(fs::write(second.join("x"), "").is_err(), "a snapshot is not written");
    fs::write(third.join("small"), "a clone").unwrap();
    fs::write(path.join("small"), "tuesday").unwrap();
    let cleaned = || json(&ok(&["stats", "--json", &name]))["log_disk"]["cleaned_bytes"].as_u64().unwrap();
    // Files that are overwritten in no order leave segments that are half dead.
    let write = |n: u64, seed: u64| fs::write(path.join(format!("file{n}")), noise(seed, 30_000)).unwrap();
    (0..700).for_each(|n| write(n, n + 10));
    let (mut seed, mut chance) = (1000, 1u64);
    while cleaned() < 2 << 20 {
        for _ in 0..60 {
            seed += 1;
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            write((chance >> 33) % 700, seed);
        }
        assert!(seed < 20_000, "the log disk is never cleaned");
        rustix::fs::syncfs(fs::File::open(&path).unwrap()).unwrap();
        fs::write(third.join("other"), noise(seed, 100_000)).unwrap();
    }
    // Nothing of it is in memory.
    for place in [&second, &third] {
        let large = fs::File::open(place.join("large")).unwrap();
        rustix::fs::fadvise(&large, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert!(fs::read(place.join("large")).unwrap() == data(1));
    }
    let read = |place: &Path| fs::read(place.join("small")).unwrap();
    assert_eq!([read(&path), read(&second), read(&third)], [&b"tuesday"[..], b"monday", b"a clone"]);
    // A view can be unmounted by itself; the others go with the file system.
    umount(&at);
    ok(&["snapshot", "mount", &image, "monday", &at]);
    assert_eq!(read(&second), b"monday");
    umount(&name);
    wait_until("unmounted", || !is_mounted(&second) && !is_mounted(&third));
    ok(&["fsck", "-n", "--data", &image]);
    ok(&["mount", "-o", "snapshot=work", &image, &name]);
    assert_eq!(fs::read(path.join("small")).unwrap(), b"a clone");
    umount(&name);
    ok(&["snapshot", "delete", &image, "work", "monday"]);
    ok(&["fsck", "-n", "--data", &image]);
}

/// Of many that ask for the same name at once one gets it.
#[test]
fn a_name_is_given_once() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_log_image(dir.path());
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", &image, &name]);
    for round in 0..5 {
        let snapshot = format!("round {round}");
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let ask = || scope.spawn(|| run(&["snapshot", "create", &name, &snapshot]));
            let asked: Vec<_> = (0..6).map(|_| ask()).collect();
            asked.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let refused: Vec<_> = outcomes.iter().filter(|out| !out.status.success()).collect();
        assert_eq!(refused.len(), 5);
        assert!(refused.iter().all(|out| stderr(out).contains("already")), "{}", stderr(refused[0]));
        assert_eq!(list(&name).iter().filter(|n| **n == snapshot).count(), 1);
    }
    umount(&name);
}

/// Whoever wants the image for himself is told at once where a snapshot of it is mounted, and does not wait for a process that serves that.
#[test]
fn an_image_whose_snapshot_is_mounted_says_so_at_once() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_log_image(dir.path());
    ok(&["snapshot", "create", &image, "mon@day"]);
    ok(&["snapshot", "clone", &image, "mon@day", "work"]);
    let (path, name) = mount_point(dir.path());
    let (_, second) = second_point(dir.path());
    for mounted in ["mon@day", "work"] {
        let _mounted = Mounted(path.clone());
        ok(&["mount", "-o", &format!("snapshot={mounted}"), &image, &name]);
        let began = std::time::Instant::now();
        let place = format!("'{mounted}' of it is mounted on {name}");
        fails(&["mount", &image, &second], 32, &[&place]);
        fails(&["snapshot", "create", &image, "tuesday"], 1, &[&place]);
        fails(&["grow", &image], 1, &[&place]);
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
        umount(&name);
    }
    ok(&["snapshot", "create", &image, "tuesday"]);
}

/// A name cannot drive a terminal: it is refused, and one that is there already is escaped.
#[test]
fn names_have_no_control_characters() {
    let dir = temp_dir();
    let image = make_log_image(dir.path());
    for name in ["a\u{1b}[2Jb", "a\tb", "a\nb", "a\u{9b}b"] {
        fails(&["snapshot", "create", &image, name], 1, &["control character"]);
    }
    let device = cffs::device::FileDevice::open(Path::new(&image), cffs::device::OpenMode::READ_WRITE).unwrap();
    let store = cffs_logdisk::ImageStore::open(std::sync::Arc::new(device)).unwrap();
    let disk = cffs_logdisk::LogDisk::open(std::sync::Arc::new(store), &cffs_logdisk::LogOptions::default()).unwrap();
    let id = disk.snapshot(cffs_logdisk::MAIN_BRANCH, "a\u{1b}[2Jb").unwrap();
    disk.clone_snapshot(id, "c\u{1b}[2Jd").unwrap();
    disk.checkpoint().unwrap();
    drop(disk);
    assert_eq!(list(&image), ["a\\u{1b}[2Jb", "c\\u{1b}[2Jd (clone of a\\u{1b}[2Jb)"]);
    fails(&["snapshot", "clone", &image, "a\u{1b}[2Jb", "x\u{7f}"], 1, &["control character"]);
    ok(&["snapshot", "delete", &image, "c\u{1b}[2Jd", "a\u{1b}[2Jb"]);
    assert!(list(&image).is_empty());
}

/// The mount of a clone cleans and gives space back as any other does.
#[test]
fn the_mount_of_a_clone_is_maintained() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_log_image(dir.path());
    ok(&["snapshot", "create", &image, "empty"]);
    ok(&["snapshot", "clone", &image, "empty", "work"]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", "-o", "snapshot=work", &image, &name]);
    let live = || json(&ok(&["stats", "--json", &name]))["log_disk"]["live_bytes"].as_u64().unwrap();
    fs::write(path.join("file"), noise(1, 12 << 20)).unwrap();
    fs::File::open(path.join("file")).unwrap().sync_all().unwrap();
    assert!(live() > 12 << 20);
    fs::remove_file(path.join("file")).unwrap();
    wait_until("the space is back", || live() < 4 << 20);
    umount(&name);
    ok(&["fsck", "-n", "--data", &image]);
}

/// What `cffs dump` shows of the snapshots on the log disk of an image, also of those that nobody sees or that are being deleted.
fn stored(image: &str) -> Vec<(String, bool)> {
    let branches = json(&ok(&["dump", "--json", image, "branches"]));
    let all = branches["snapshots"].as_array().cloned().unwrap_or_default();
    all.iter().map(|s| (s["name"].as_str().unwrap().to_owned(), s["deleting"] == true)).collect()
}

/// Mounts an image read-only that is written to meanwhile, and returns what it is told.
#[track_caller]
fn mount_now(image: &str, at: &str) -> String {
    let out = run(&["mount", "-o", "ro", image, at]);
    assert!(out.status.success(), "{}", stderr(&out));
    stderr(&out)
}

/// Who mounts an image read-only that is written to meanwhile sees the file system as it is at that moment, and makes no snapshot for it.
#[test]
fn a_read_only_mount_of_a_mounted_image_shows_it_as_it_is_now() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_log_image(dir.path());
    let (path, name) = mount_point(dir.path());
    let (second, at) = second_point(dir.path());
    let _mounted = [Mounted(second.clone()), Mounted(path.clone())];
    ok(&["mount", &image, &name]);
    let live = || json(&ok(&["stats", "--json", &name]))["log_disk"]["live_bytes"].as_u64().unwrap();
    let before = live();
    // Nobody has synced it.
    fs::create_dir(path.join("dir")).unwrap();
    fs::write(path.join("dir/file"), "now").unwrap();
    fs::write(path.join("large"), noise(1, 8 << 20)).unwrap();
    let told = mount_now(&image, &at);
    assert!(
        told.contains(&format!("mounted on {name} for reading and writing")) && told.contains("as it is now"),
        "{told}"
    );
    fs::write(path.join("dir/file"), "later").unwrap();
    fs::write(path.join("new"), "later").unwrap();
    fs::remove_file(path.join("large")).unwrap();
    rustix::fs::syncfs(fs::File::open(&path).unwrap()).unwrap();
    assert_eq!(fs::read(second.join("dir/file")).unwrap(), b"now");
    assert!(fs::read(second.join("large")).unwrap() == noise(1, 8 << 20));
    assert!(!second.join("new").exists() && fs::write(second.join("x"), "").is_err());
    assert_eq!(fs::read(path.join("dir/file")).unwrap(), b"later");
    // It is no snapshot for anybody.
    for of in [&name, &at] {
        assert!(list(of).is_empty());
        fails(&["snapshot", "mount", of, "/mounted", dir.path().to_str().unwrap()], 32, &[]);
        assert_eq!(json(&ok(&["stats", "--json", of]))["log_disk"]["snapshots"], 0);
    }
    fails(&["snapshot", "create", &at, "x"], 1, &["as it was when this was mounted", "file system itself"]);
    fails(&["snapshot", "send", "-o", "/dev/null", &name, "/mounted"], 1, &["no snapshot"]);
    assert!(live() > before + (8 << 20), "what was removed is kept");
    let source = |place: &Path| {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = mounts.lines().find(|l| l.split(' ').nth(1) == place.to_str()).unwrap();
        line.split(' ').next().unwrap().to_owned()
    };
    assert!(source(&second).ends_with("/image@/mounted"), "{}", source(&second));
    umount(&at);
    wait_until("the space is back", || live() < before + (4 << 20));
    assert_eq!(fs::read(path.join("dir/file")).unwrap(), b"later");
    umount(&name);
    assert!(stored(&image).iter().all(|(_, deleting)| *deleting), "{:?}", stored(&image));
    ok(&["fsck", "-n", "--data", &image]);
    ok(&["mount", &image, &name]);
    // A view that goes with the file system.
    mount_now(&image, &at);
    assert_eq!(fs::read(second.join("dir/file")).unwrap(), b"later");
    umount(&name);
    wait_until("unmounted", || !is_mounted(&second));
    assert!(stored(&image).iter().all(|(_, deleting)| *deleting), "{:?}", stored(&image));
    assert!(list(&image).is_empty());
    ok(&["fsck", "-n", "--data", &image]);
}

/// Also where there are snapshots; and they stay.
#[test]
fn a_read_only_mount_of_a_mounted_image_with_snapshots_shows_it_as_it_is_now_too() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_log_image(dir.path());
    let (path, name) = mount_point(dir.path());
    let (second, at) = second_point(dir.path());
    let _mounted = [Mounted(second.clone()), Mounted(path.clone())];
    ok(&["mount", &image, &name]);
    for day in ["monday", "tuesday"] {
        fs::write(path.join("file"), day).unwrap();
        ok(&["snapshot", "create", &name, day]);
    }
    ok(&["snapshot", "clone", &name, "monday", "work"]);
    fs::write(path.join("file"), "wednesday").unwrap();
    mount_now(&image, &at);
    fs::write(path.join("file"), "thursday").unwrap();
    assert_eq!(fs::read(second.join("file")).unwrap(), b"wednesday");
    assert_eq!(ok(&["snapshot", "diff", &at, "tuesday"]), "M file\n");
    assert_eq!(list(&name).len(), 3);
    umount(&at);
    umount(&name);
    assert_eq!(list(&image), ["monday", "tuesday", "work (clone of monday)"]);
    ok(&["mount", "-o", "ro", &image, &name]);
    let refused = format!("{name}: the log disk is open read-only");
    fails(&["snapshot", "create", &name, "wednesday"], 1, &[&refused]);
    fails(&["snapshot", "delete", &name, "monday"], 1, &[&refused]);
    umount(&name);
    ok(&["mount", &image, &name]);
    // Without ro it is the same file system.
    ok(&["mount", &image, &at]);
    assert_eq!(fs::read(second.join("file")).unwrap(), b"thursday");
}

/// Where there is no space for what would be kept, nothing is mounted, and why is told.
#[test]
fn a_full_image_is_not_shown_as_it_is_now() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_log_image(dir.path());
    let (path, name) = mount_point(dir.path());
    let (second, at) = second_point(dir.path());
    let _mounted = [Mounted(second.clone()), Mounted(path.clone())];
    ok(&["mount", &image, &name]);
    let full = (0..10_000).find(|n| fs::write(path.join(format!("file{n}")), noise(*n, 100_000)).is_err());
    assert!(full.is_some());
    fails(&["mount", "-o", "ro", &image, &at], 32, &[&image, &name, "as it is now", "too little free space"]);
    assert!(!is_mounted(&second));
    (0..150).for_each(|n| fs::remove_file(path.join(format!("file{n}"))).unwrap());
    mount_now(&image, &at);
    assert!(fs::read(second.join("file200")).unwrap() == noise(200, 100_000));
    umount(&at);
    umount(&name);
    ok(&["fsck", "-n", "--data", &image]);
}

/// An image of which a clone alone is mounted for writing is not mounted by anybody else; one of which a snapshot is is only read.
#[test]
fn a_read_only_mount_beside_a_snapshot_or_clone_alone() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_log_image(dir.path());
    ok(&["snapshot", "create", &image, "monday"]);
    ok(&["snapshot", "clone", &image, "monday", "work"]);
    let (path, name) = mount_point(dir.path());
    let (second, at) = second_point(dir.path());
    let _mounted = [Mounted(second.clone()), Mounted(path.clone())];
    ok(&["mount", "-o", "snapshot=work", &image, &name]);
    fails(&["mount", "-o", "ro", &image, &at], 32, &[&format!("'work' of it is mounted on {name}")]);
    umount(&name);
    ok(&["mount", "-o", "snapshot=monday", &image, &name]);
    ok(&["mount", "-o", "ro", &image, &at]);
    umount(&at);
    umount(&name);
    assert_eq!(stored(&image), [("monday".to_owned(), false)]);
}

/// What a mount that was killed has left is gone with the next one, or with a repair.
#[test]
fn a_killed_mount_leaves_no_snapshot_for_ever() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_log_image(dir.path());
    let (path, name) = mount_point(dir.path());
    let (second, at) = second_point(dir.path());
    for repaired in [false, true] {
        {
            let _mounted = [Mounted(second.clone()), Mounted(path.clone())];
            let served = Foreground(Command::new(CFFS).args(["mount", "-f", &image, &name]).spawn().unwrap());
            wait_until("mounted", || is_mounted(&path));
            fs::write(path.join("file"), noise(1, 8 << 20)).unwrap();
            mount_now(&image, &at);
            fs::write(path.join("file"), "new").unwrap();
            rustix::fs::syncfs(fs::File::open(&path).unwrap()).unwrap();
            drop(served);
        }
        assert_eq!(stored(&image), [("/mounted".to_owned(), false)]);
        assert!(list(&image).is_empty());
        ok(&["fsck", "-n", "--data", &image]);
        let _mounted = Mounted(path.clone());
        // Who only reads leaves it as it is.
        ok(&["mount", "-o", "ro", &image, &name]);
        assert_eq!(fs::read(path.join("file")).unwrap(), b"new");
        umount(&name);
        if repaired {
            assert_eq!(run(&["fsck", "-p", &image]).status.code(), Some(1));
            assert_eq!(stored(&image), []);
        }
        ok(&["mount", &image, &name]);
        let live = || json(&ok(&["stats", "--json", &name]))["log_disk"]["live_bytes"].as_u64().unwrap();
        wait_until("the space is back", || live() < 4 << 20);
        umount(&name);
        assert_eq!(stored(&image), []);
        ok(&["fsck", "-n", "--data", &image]);
    }
}
