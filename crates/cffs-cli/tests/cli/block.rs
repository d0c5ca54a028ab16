//! Mounts by root are of type `fuseblk`: the kernel knows them by a block device, which for an image in a file is a loop
//! device.

use crate::mounting::{Foreground, mount_point, umount, wait_until};
use crate::tools::*;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub fn block_mounts_work() -> bool {
    have(&[Need::Root, Need::Fuse, Need::Loop])
}

/// The type and the device number of the mount at a directory.
pub fn table_entry(dir: &Path) -> (String, String) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().rev().find(|l| l.split(' ').nth(4) == dir.to_str()).expect("mounted");
    let kind = line.split(" - ").nth(1).unwrap().split(' ').next().unwrap();
    (kind.to_owned(), line.split(' ').nth(2).unwrap().to_owned())
}

/// The loop devices that show a file, as folders in sysfs.
fn loop_devices_of(image: &str) -> Vec<PathBuf> {
    let all = fs::read_dir("/sys/block").unwrap().map(|e| e.unwrap().path());
    let shows = |dev: &PathBuf| fs::read_to_string(dev.join("loop/backing_file")).is_ok_and(|f| f.trim_end() == image);
    all.filter(shows).collect()
}

/// Waits until no loop device shows a file. A mount namespace that another process has made meanwhile has our mount as well,
/// and keeps its device until it ends.
fn until_free(image: &str) {
    wait_until("the loop device is free", || loop_devices_of(image).is_empty());
}

pub fn pid_of(dir: &str) -> Pid {
    let info = json(&ok(&["info", "--json", dir]));
    Pid::from_raw(info["mount"]["pid"].as_i64().unwrap() as i32).unwrap()
}

/// Whether a process has ended, collected by its parent or not.
pub fn has_ended(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
    stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
}

/// Whether somebody may have a device alone, as mkfs and mount ask for it.
fn can_be_claimed(device: &str) -> bool {
    let excl = rustix::fs::OFlags::EXCL.bits() as i32;
    File::options().read(true).custom_flags(excl).open(device).is_ok()
}

/// A loop device of the test's own, detached at its end.
pub struct LoopDevice(pub String);

impl LoopDevice {
    pub fn of(image: &str) -> LoopDevice {
        let out = Command::new("losetup").args(["--find", "--show", image]).output().unwrap();
        assert!(out.status.success(), "{}", stderr(&out));
        LoopDevice(stdout(&out).trim().to_owned())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn an_image_in_a_file_gets_a_loop_device_that_goes_with_the_mount() {
    if !block_mounts_work() {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    // No whole number of sectors.
    File::options().write(true).open(&image).unwrap().set_len((64 << 20) + 100).unwrap();
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    for (options, read_only) in [("rw", "0"), ("ro", "1")] {
        ok(&["mount", "-o", options, &image, &name]);
        let (kind, number) = table_entry(&path);
        assert_eq!(kind, "fuseblk.cffs");
        let devices = loop_devices_of(&image);
        assert_eq!(devices.len(), 1, "{devices:?}");
        let text = |file: &str| fs::read_to_string(devices[0].join(file)).unwrap().trim().to_owned();
        assert_eq!((text("dev"), text("ro"), text("loop/autoclear")), (number.clone(), read_only.into(), "1".into()));
        let info = json(&ok(&["info", "--json", &name]));
        assert_eq!(info["mount"]["image"], image.as_str(), "not the loop device");
        if read_only == "0" {
            fs::write(path.join("file"), "contents").unwrap();
        }
        assert_eq!(fs::read(path.join("file")).unwrap(), b"contents");
        umount(&name);
        until_free(&image);
    }
    ok(&["fsck", "-n", &image]);
}

#[test]
fn the_kernel_reads_ahead_farther_where_no_arm_serves_the_device() {
    if !block_mounts_work() {
        return;
    }
    for words in [&[][..], &["--layout=log"]] {
        let dir = temp_dir();
        let device = LoopDevice::of(&make_image(dir.path(), words));
        let rotational = Path::new("/sys/block").join(device.0.trim_start_matches("/dev/")).join("queue/rotational");
        let (path, name) = mount_point(dir.path());
        let _mounted = Mounted(path.clone());
        for (arm, kib) in [("0", "4096"), ("1", "1024")] {
            fs::write(&rotational, arm).unwrap();
            ok(&["mount", &device.0, &name]);
            let (kind, number) = table_entry(&path);
            assert_eq!(kind, "fuseblk.cffs");
            let ahead = fs::read_to_string(format!("/sys/class/bdi/{number}-fuseblk/read_ahead_kb")).unwrap();
            assert_eq!(ahead.trim(), kib, "{words:?}, rotational {arm}");
            umount(&name);
        }
    }
}

#[test]
fn an_image_on_tmpfs_too() {
    if !block_mounts_work() {
        return;
    }
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let made = Command::new("mount").args(["-t", "tmpfs", "-o", "size=100m", "none"]).arg(&disk).status().unwrap();
    if !made.success() {
        return skipped("tmpfs", "no tmpfs can be mounted");
    }
    let _disk = Mounted(disk.clone());
    let image = make_image(&disk, &[]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", &image, &name]);
    assert_eq!(table_entry(&path).0, "fuseblk.cffs");
    fs::write(path.join("file"), "contents").unwrap();
    umount(&name);
    assert_eq!(ok(&["cat", &format!("{image}:/file")]), "contents");
}

#[test]
fn without_loop_devices_the_mount_is_of_type_fuse() {
    let dir = temp_dir();
    let script = r#"
        set -e
        $CFFS mkfs --size 64M image >/dev/null
        mkdir mnt
        $CFFS mount image mnt
        grep "$PWD/mnt" /proc/self/mountinfo
        echo contents >mnt/file
        mkdir second
        $CFFS mount image second || true
        $CFFS umount mnt
        $CFFS cat image:/file
    "#;
    let Some(out) = crate::service::with_own_dev(dir.path(), script) else { return };
    assert!(out.status.success(), "{}{}", stdout(&out), stderr(&out));
    assert!(stdout(&out).contains(" fuse.cffs ") && stdout(&out).ends_with("contents\n"), "{}", stdout(&out));
    // There is no second place for such a mount, and the error says where the first is.
    assert!(stderr(&out).contains("in use") && stderr(&out).contains("/mnt"), "{}", stderr(&out));
}

#[test]
fn the_kernel_keeps_others_from_a_mounted_device() {
    if !block_mounts_work() {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let device = LoopDevice::of(&image);
    let dev = device.0.as_str();
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", dev, &name]);
    assert_eq!(table_entry(&path).0, "fuseblk.cffs");
    assert!(!can_be_claimed(dev));
    fails(&["mkfs", "--force", dev], 1, &[dev, "in use", &name]);
    fails(&["fsck", "-n", dev], 8, &[dev, "in use", &name]);
    fs::write(path.join("file"), "contents").unwrap();
    umount(&name);
    wait_until("free", || can_be_claimed(dev));
    assert_eq!(ok(&["cat", &format!("{dev}:/file")]), "contents");
    // What somebody else has claimed is not mounted, and not written to.
    let before = contents(&image);
    let excl = rustix::fs::OFlags::EXCL.bits() as i32;
    let other = File::options().read(true).custom_flags(excl).open(dev).unwrap();
    fails(&["mount", dev, &name], 32, &[dev, "in use"]);
    assert!(contents(&image) == before);
    drop(other);
    ok(&["mount", dev, &name]);
    umount(&name);
}

/// Mounts of which one process has a file open and written to, and their ends.
struct InUse {
    image: String,
    path: PathBuf,
    name: String,
    open: File,
    served: Foreground,
}

impl InUse {
    fn new(dir: &Path, image: String) -> InUse {
        let (path, name) = mount_point(dir);
        let served = Foreground(Command::new(CFFS).args(["mount", "-f", &image, &name]).spawn().unwrap());
        wait_until("mounted", || crate::mounting::is_mounted(&path) && fs::read_dir(&path).is_ok());
        fs::write(path.join("synced"), "synced").unwrap();
        File::open(path.join("synced")).unwrap().sync_all().unwrap();
        let mut open = File::create(path.join("open")).unwrap();
        open.write_all(b"written").unwrap();
        InUse { image, path, name, open, served }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.served.0.id() as i32).unwrap(), signal).unwrap();
    }

    fn umount(&self, flag: &str) {
        let start = Instant::now();
        let args = ["30", "umount", "-i", flag, &self.name];
        let out = Command::new("timeout").args(args).output().unwrap();
        assert!(out.status.success(), "umount {flag}: {}", stderr(&out));
        assert!(start.elapsed() < Duration::from_secs(20), "umount {flag}");
    }

    /// Everything is gone once the file is closed, and what was synced is on the image.
    fn check(mut self) {
        wait_until("the server ends", || self.served.0.try_wait().unwrap().is_some());
        assert!(self.open.write_all(b"too late").is_err());
        wait_until("unmounted", || !crate::mounting::is_mounted(&self.path));
        drop(self.open);
        until_free(&self.image);
        let recovered = run(&["fsck", "-p", &self.image]);
        assert!(matches!(recovered.status.code(), Some(0 | 1)), "{}", stderr(&recovered));
        ok(&["fsck", "-n", &self.image]);
        assert_eq!(ok(&["cat", &format!("{}:/synced", self.image)]), "synced");
    }
}

#[test]
fn every_end_of_a_mount_in_use_leaves_nothing_behind() {
    if !block_mounts_work() {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let _mounted = Mounted(dir.path().join("mnt"));
    let new = || InUse::new(dir.path(), image.clone());
    // The process that serves it is gone.
    let used = new();
    used.signal(Signal::KILL);
    used.umount("-l");
    used.check();
    // It is told to end.
    let used = new();
    used.signal(Signal::TERM);
    used.check();
    // The mount is ended under it.
    let used = new();
    used.umount("-fl");
    used.check();
    // Detached, it lives until the file is closed.
    let mut used = new();
    used.umount("-l");
    used.open.write_all(b" and more").unwrap();
    assert_eq!(loop_devices_of(&image).len(), 1);
    used.signal(Signal::TERM);
    used.check();
    assert_eq!(ok(&["cat", &format!("{image}:/open")]), "written and more");
}

#[test]
fn umount_of_a_dead_mount_returns() {
    if !block_mounts_work() {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", &image, &name]);
    kill_process(pid_of(&name), Signal::KILL).unwrap();
    // The kernel answers from its cache what it can.
    wait_until("dead", || fs::write(path.join("file"), "").is_err());
    // Until then it keeps the loop device, and another mount gets one of its own.
    assert_eq!(loop_devices_of(&image).len(), 1);
    fails(&["mkfs", "--force", &image], 1, &[&image, "server is gone", "umount -l"]);
    let second = dir.path().join("second");
    fs::create_dir(&second).unwrap();
    let _second = Mounted(second.clone());
    ok(&["mount", &image, second.to_str().unwrap()]);
    fs::write(second.join("file"), "contents").unwrap();
    umount(second.to_str().unwrap());
    let out = Command::new("timeout").args(["30", "umount", "-i", &name]).output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    until_free(&image);
    assert_eq!(ok(&["cat", &format!("{image}:/file")]), "contents");
}

#[test]
fn umount_with_much_to_write_ends() {
    if !block_mounts_work() {
        return;
    }
    let dir = temp_dir();
    let image = dir.path().join("image").to_str().unwrap().to_owned();
    ok(&["mkfs", "--size", "512M", "--group-size", "64K", &image]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", "-o", "cache=400M", &image, &name]);
    let piece: Vec<u8> = (0..1 << 20).map(|i: u32| (i % 251) as u8).collect();
    for i in 0..100 {
        fs::write(path.join(format!("f{i}")), &piece).unwrap();
    }
    let pid = pid_of(&name);
    let out = Command::new("timeout").args(["60", "umount", "-i", &name]).output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    wait_until("ended", || has_ended(pid));
    ok(&["fsck", "-n", &image]);
    let out = run(&["cat", &format!("{image}:/f99")]);
    assert!(out.stdout == piece);
}

/// In a mount namespace of its own: other tests make namespaces too, and one that is made from ours while this mount is
/// there has it as well, so that umount(2) would end the one mount but not the other.
#[test]
fn umount_returns_when_everything_is_on_the_image() {
    if !block_mounts_work() {
        return;
    }
    let dir = temp_dir();
    make_image(dir.path(), &[]);
    fs::create_dir(dir.path().join("mnt")).unwrap();
    // -i: by the system call alone. Without it umount(8) calls our own helper, which waits.
    let script = r#"
        set -e
        trap 'umount -l mnt 2>/dev/null || true' EXIT
        for round in $(seq 50); do
            $CFFS mount image mnt
            yes "round $round" | head -c 300000 | split -b 5000 - mnt/f
            umount -i mnt
            cp image copy
            echo "$round $($CFFS info --quick copy | grep state)"
            $CFFS fsck -n copy >/dev/null
        done
    "#;
    let out = Command::new("timeout")
        .args(["300", "unshare", "-m", "sh", "-c", script])
        .env("CFFS", CFFS)
        .env_remove("CFFS_LOG")
        .current_dir(dir.path())
        .output()
        .unwrap();
    let text = stdout(&out);
    assert!(out.status.success(), "{text}{}", stderr(&out));
    assert_eq!(text.lines().count(), 50, "{text}");
    assert!(text.lines().all(|l| l.ends_with(" clean")), "{text}");
}
