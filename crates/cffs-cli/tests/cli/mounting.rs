//! Mounts with the real program; where FUSE is missing these tests say that they were skipped.

use crate::tools::*;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

pub fn fuse_works() -> bool {
    have(&[Need::Fuse]) && (is_root() || have(&[Need::Program("fusermount3")]))
}

pub fn mount_point(dir: &Path) -> (PathBuf, String) {
    let path = dir.join("mnt");
    fs::create_dir_all(&path).unwrap();
    let name = path.to_str().unwrap().to_owned();
    (path, name)
}

pub fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|l| l.split(' ').nth(1) == path.to_str())
}

#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
pub fn umount(name: &str) {
    let unmounted = when_not_busy(|| match run(&["umount", name]) {
        out if out.status.success() => Ok(()),
        out if stderr(&out).contains("busy") => Err(ErrorKind::ResourceBusy.into()),
        out => Err(io::Error::other(stderr(&out))),
    });
    unmounted.unwrap_or_else(|e| panic!("umount {name}: {e}"));
}

#[test]
fn mount_returns_when_ready_and_umount_leaves_a_clean_image() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", "-o", "defaults,noatime,cache=32M", &image, &name]);
    assert!(is_mounted(&path), "ready means mounted");
    fs::create_dir(path.join("dir")).unwrap();
    fs::write(path.join("dir/file"), "contents").unwrap();
    assert_eq!(fs::read(path.join("dir/file")).unwrap(), b"contents");
    fails(&["mount", &image, &name], 32, &[&image, "mounted on", &name]);
    fails(&["fsck", "-n", &image], 8, &["in use"]);
    fails(&["mkfs", "--force", &image], 1, &["in use"]);
    let stats = json(&ok(&["stats", "--json", &name]));
    assert!(stats.is_object() && !stats.as_object().unwrap().is_empty());
    assert!(stats["device"]["purposes"]["demand"]["read_requests"].as_u64().unwrap() > 0, "{stats}");
    assert!(ok(&["stats", &name]).lines().any(|l| l.trim_start().starts_with("checkpoint ")), "a row for each purpose");
    assert!(ok(&["stats", path.join("dir").to_str().unwrap()]).contains("commits"));
    let info = json(&ok(&["info", "--json", &name]));
    assert_eq!(info["mount"]["image"], image.as_str());
    assert_eq!(info["mount"]["read_only"], false);
    assert_eq!((&info["bytes"], &info["state"]), (&serde_json::json!(64 << 20), &"journaled".into()));
    assert!(ok(&["info", &name]).contains("for reading and writing"));
    umount(&name);
    assert!(!is_mounted(&path));
    ok(&["fsck", "-n", &image]);
    assert_eq!(ok(&["cat", &format!("{image}:/dir/file")]), "contents");
    assert_eq!(json(&ok(&["info", "--quick", "--json", &image]))["state"], "clean");
    fails(&["umount", &name], 32, &[&name]);
}

#[test]
fn a_read_only_mount_changes_nothing() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let before = contents(&image);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", "-o", "ro", &image, &name]);
    let error = fs::write(path.join("file"), "").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    umount(&name);
    assert!(contents(&image) == before);
}

/// A mount in the foreground.
pub struct Foreground(pub Child);

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn signals_unmount() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    for (signal, file) in [(rustix::process::Signal::TERM, "a"), (rustix::process::Signal::INT, "b")] {
        let mut served = Foreground(Command::new(CFFS).args(["mount", "-f", &image, &name]).spawn().unwrap());
        wait_until("mounted", || is_mounted(&path));
        fs::write(path.join(file), "contents").unwrap();
        let pid = rustix::process::Pid::from_raw(served.0.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        wait_until("ended", || served.0.try_wait().unwrap().is_some());
        assert_eq!(served.0.wait().unwrap().code(), Some(0), "{signal:?}");
        assert!(!is_mounted(&path));
        assert_eq!(ok(&["cat", &format!("{image}:/{file}")]), "contents");
    }
    ok(&["fsck", "-n", &image]);
}

#[test]
fn a_killed_mount_recovers() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let (path, name) = mount_point(dir.path());
    {
        let _mounted = Mounted(path.clone());
        let served = Foreground(Command::new(CFFS).args(["mount", "-f", &image, &name]).spawn().unwrap());
        wait_until("mounted", || is_mounted(&path));
        fs::write(path.join("file"), "contents").unwrap();
        fs::File::open(path.join("file")).unwrap().sync_all().unwrap();
        drop(served);
    }
    let out = run(&["fsck", "-p", &image]);
    assert_eq!(out.status.code(), Some(1), "the log was replayed: {}", stderr(&out));
    ok(&["fsck", "-f", "-p", &image]);
    assert_eq!(ok(&["cat", &format!("{image}:/file")]), "contents");
}

#[test]
fn the_helper_of_mount_follows_its_convention() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    let helper = dir.path().join("mount.cffs");
    std::os::unix::fs::symlink(CFFS, &helper).unwrap();
    let call = |args: &[&str]| {
        let out = Command::new("timeout").arg("60").arg(&helper).args(args).output().unwrap();
        (out.status.code(), stderr(&out))
    };
    assert_eq!(call(&[&image, &name, "-f", "-o", "rw"]), (Some(0), String::new()), "fake");
    assert!(!is_mounted(&path));
    assert_eq!(call(&[&image, &name, "-o", "rw,nosuch"]).0, Some(1));
    assert_eq!(call(&[&image, &name, "-s", "-n", "-v", "-o", "rw,nosuch,nosuid,nodev", "-t", "cffs"]).0, Some(0));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|l| l.split(' ').nth(1) == Some(&name)).expect("mounted");
    assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");
    if is_root() {
        // As mount(8) calls it for `mount -o remount,ro DIR`, with what the table of mounts says.
        let remount = dir.path().join("mount.fuseblk.cffs");
        std::os::unix::fs::symlink(CFFS, &remount).unwrap();
        let call = |options: &str| {
            let args = ["60", remount.to_str().unwrap(), &image, &name, "-o", options, "-t", "fuseblk.cffs"];
            let out = Command::new("timeout").args(args).output().unwrap();
            (out.status.code(), stderr(&out))
        };
        let shown =
            "nosuid,nodev,relatime,user_id=0,group_id=0,default_permissions,allow_other,max_read=1048576,remount";
        assert_eq!(call(&format!("ro,{shown}")), (Some(0), String::new()));
        assert!(fs::write(path.join("f"), "").is_err(), "it is read-only");
        assert_eq!(call(&format!("rw,{shown}")), (Some(0), String::new()));
        fs::write(path.join("f"), "").unwrap();
        let (code, complaint) = call("remount,nosuch");
        assert!(code == Some(1) && complaint.contains("'nosuch'"), "{code:?} {complaint}");
        umount(&name);
        let (code, complaint) = call("remount,ro");
        assert!(code == Some(32) && complaint.contains("no cffs is mounted"), "{code:?} {complaint}");
    } else {
        umount(&name);
    }
}

#[test]
fn whoever_comes_after_umount_waits_for_the_rest() {
    // umount(8) is for root.
    if !have(&[Need::Root, Need::Fuse]) {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    let mut served = Foreground(Command::new(CFFS).args(["mount", "-f", &image, &name]).spawn().unwrap());
    wait_until("mounted", || is_mounted(&path));
    fs::write(path.join("file"), "contents").unwrap();
    let pid = rustix::process::Pid::from_raw(served.0.id() as i32).unwrap();
    let signal = |signal| rustix::process::kill_process(pid, signal).unwrap();
    signal(rustix::process::Signal::STOP);
    // Directly, so that nothing but the kernel waits for the process that serves the mount; it does so for type `fuseblk`.
    let unmounting = std::thread::spawn({
        let path = path.clone();
        move || rustix::mount::unmount(&path, rustix::mount::UnmountFlags::empty())
    });
    wait_until("unmounted", || !is_mounted(&path));
    let mut next = Foreground(Command::new(CFFS).args(["fsck", "-n", &image]).spawn().unwrap());
    std::thread::sleep(Duration::from_millis(1500));
    let early = next.0.try_wait().unwrap();
    signal(rustix::process::Signal::CONT);
    unmounting.join().unwrap().unwrap();
    assert_eq!(early, None, "waits");
    assert_eq!(next.0.wait().unwrap().code(), Some(0));
    assert_eq!(served.0.wait().unwrap().code(), Some(0));
    assert_eq!(ok(&["cat", &format!("{image}:/file")]), "contents");
}
