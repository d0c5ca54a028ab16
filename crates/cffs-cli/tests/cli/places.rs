//! An image that is mounted at several places.

use crate::block::{LoopDevice, block_mounts_work, has_ended, pid_of, table_entry};
use crate::mounting::{is_mounted, mount_point, umount, wait_until};
use crate::tools::*;
use rustix::process::{Signal, kill_process};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// One more mount point.
fn another(dir: &Path, name: &str) -> (PathBuf, String, Mounted) {
    let path = dir.join(name);
    fs::create_dir(&path).unwrap();
    (path.clone(), path.to_str().unwrap().to_owned(), Mounted(path))
}

fn options_of(dir: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().rev().find(|l| l.split(' ').nth(4) == dir.to_str()).expect("mounted");
    line.split(' ').nth(5).unwrap().to_owned()
}

#[test]
fn a_second_mount_is_the_same_file_system() {
    if !block_mounts_work() {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let other_name = dir.path().join("other name").to_str().unwrap().to_owned();
    fs::hard_link(&image, &other_name).unwrap();
    let (first, first_name) = mount_point(dir.path());
    let _first = Mounted(first.clone());
    let (second, second_name, _second) = another(dir.path(), "second");
    let (third, third_name, _third) = another(dir.path(), "third");
    ok(&["mount", "-o", "nosuid", &image, &first_name]);
    ok(&["mount", "-o", "nodev,noexec", &other_name, &second_name]);
    {
        // Through a loop device that somebody else has made.
        let device = LoopDevice::of(&image);
        ok(&["mount", &device.0, &third_name]);
    }
    fs::write(first.join("file"), "contents").unwrap();
    for place in [&second, &third] {
        assert_eq!(fs::read(place.join("file")).unwrap(), b"contents");
        assert_eq!(table_entry(place), table_entry(&first));
    }
    assert_eq!((options_of(&first), options_of(&third)), ("rw,nosuid,relatime".into(), "rw,relatime".into()));
    assert_eq!(options_of(&second), "rw,nodev,noexec,relatime");
    // The last place ends it, whatever the order, and nobody waits for a process that goes on.
    let pid = pid_of(&first_name);
    let start = Instant::now();
    umount(&first_name);
    assert!(start.elapsed() < Duration::from_secs(30) && !is_mounted(&first));
    umount(&third_name);
    assert!(!has_ended(pid));
    assert_eq!(pid_of(&second_name), pid);
    fs::write(second.join("file"), "new").unwrap();
    fails(&["fsck", "-n", &image], 8, &["in use", &second_name]);
    umount(&second_name);
    assert!(has_ended(pid), "it waits for the end of the server");
    assert_eq!(ok(&["cat", &format!("{image}:/file")]), "new");
    ok(&["fsck", "-n", &image]);
}

#[test]
fn a_signal_unmounts_all_places() {
    if !block_mounts_work() {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let (first, first_name) = mount_point(dir.path());
    let _first = Mounted(first.clone());
    let more: Vec<_> = (1..8).map(|n| another(dir.path(), &n.to_string())).collect();
    for used in [false, true] {
        ok(&["mount", &image, &first_name]);
        more.iter().for_each(|(_, name, _)| drop(ok(&["mount", &image, name])));
        let pid = pid_of(&more[0].1);
        fs::write(first.join("file"), format!("{used}")).unwrap();
        let places = || more.iter().map(|(place, ..)| place).chain([&first]);
        let open: Option<Vec<_>> = used.then(|| places().map(|at| fs::File::open(at.join("file")).unwrap()).collect());
        kill_process(pid, Signal::TERM).unwrap();
        wait_until("ended", || has_ended(pid));
        assert_eq!(places().find(|place| is_mounted(place)), None, "in use: {used}");
        drop(open);
        assert_eq!(ok(&["cat", &format!("{image}:/file")]), format!("{used}"));
    }
    ok(&["fsck", "-n", &image]);
}

#[test]
fn what_contradicts_the_first_mount_is_refused_or_told() {
    if !block_mounts_work() {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let (first, first_name) = mount_point(dir.path());
    let _first = Mounted(first.clone());
    let (second, second_name, _second) = another(dir.path(), "second");
    ok(&["mount", &image, &first_name]);
    fails(&["mount", &image, &first_name], 32, &["mounted on", &first_name, "already"]);
    fails(&["mount", "-f", &image, &second_name], 32, &["mounted on", &first_name, "-f"]);
    fails(&["tune", "-L", "label", &image], 1, &["in use", &first_name, "name that directory"]);
    fails(&["mount", "-o", "ro", &image, &second_name], 32, &["for reading and writing", &first_name]);
    assert!(!is_mounted(&second));
    let out = run(&["mount", "-o", "defaults,cache=64M,logdev=/dev/null,nosuid", &image, &second_name]);
    assert!(out.status.success(), "{}", stderr(&out));
    assert!(stderr(&out).contains("ignored: cache=64M,logdev=/dev/null\n"), "{}", stderr(&out));
    umount(&second_name);
    umount(&first_name);
    // To write where the first mount is read-only becomes reading, as with the kernel's file systems.
    ok(&["mount", "-o", "ro", &image, &first_name]);
    let out = run(&["mount", &image, &second_name]);
    assert!(out.status.success() && stderr(&out).contains("mounted read-only"), "{}", stderr(&out));
    assert_eq!(fs::write(second.join("file"), "").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    umount(&first_name);
    umount(&second_name);
}

#[test]
fn as_ext4_does() {
    if !block_mounts_work() || !have(&[Need::Program("mkfs.ext4")]) {
        return;
    }
    // What the test above expects of us is what mount(8) does with a file system of the kernel.
    let dir = temp_dir();
    let image = dir.path().join("image").to_str().unwrap().to_owned();
    fs::File::create(&image).unwrap().set_len(20 << 20).unwrap();
    assert!(Command::new("mkfs.ext4").args(["-q", "-F", &image]).status().unwrap().success());
    let device = LoopDevice::of(&image);
    let (first, first_name) = mount_point(dir.path());
    let _first = Mounted(first);
    let (_, second_name, _second) = another(dir.path(), "second");
    let call = |args: &[&str]| Command::new("timeout").arg("60").args(args).output().unwrap();
    let mount = |options, place| call(&["mount", "-t", "ext4", "-o", options, &device.0, place]);
    if !mount("rw", &first_name).status.success() {
        return skipped("ext4", "the kernel has no ext4");
    }
    assert_eq!(mount("ro", &second_name).status.code(), Some(32));
    assert!(call(&["umount", &first_name]).status.success());
    assert!(mount("ro", &first_name).status.success());
    let out = mount("rw", &second_name);
    assert!(out.status.success() && stderr(&out).contains("mounted read-only"), "{}", stderr(&out));
    assert!(call(&["umount", &first_name]).status.success() && call(&["umount", &second_name]).status.success());
}

#[test]
fn users_hear_where_it_is_mounted() {
    if !have(&[Need::Program("fusermount3")]) {
        return;
    }
    let dir = temp_dir();
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fs::copy(CFFS, dir.path().join("cffs")).unwrap();
    let script = r#"
        set -e
        mkdir home && chown 65534:65534 home
        as() { setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"; }
        as ./cffs mkfs --size 64M home/image >/dev/null
        as mkdir home/mnt home/second
        as ./cffs mount home/image home/mnt
        if as ./cffs mount home/image home/second; then echo mounted; fi
        as ./cffs umount home/mnt
    "#;
    let Some(out) = crate::service::with_own_dev(dir.path(), script) else { return };
    assert!(out.status.success() && stdout(&out).is_empty(), "{}{}", stdout(&out), stderr(&out));
    assert!(stderr(&out).contains("in use") && stderr(&out).contains("mounted on"), "{}", stderr(&out));
    assert!(stderr(&out).contains("/home/mnt"), "{}", stderr(&out));
}

#[test]
fn mounts_of_one_image_at_the_same_time_all_succeed() {
    if !block_mounts_work() {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    for round in 0..3 {
        let places: Vec<_> = (0..6).map(|n| another(dir.path(), &format!("place{round}-{n}"))).collect();
        std::thread::scope(|s| {
            for (_, name, _) in &places {
                s.spawn(|| ok(&["mount", &image, name]));
            }
        });
        fs::write(places[0].0.join("file"), format!("round {round}")).unwrap();
        for (path, name, _) in &places {
            assert_eq!(fs::read_to_string(path.join("file")).unwrap(), format!("round {round}"));
            umount(name);
        }
    }
}
