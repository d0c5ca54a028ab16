//! `tune`, `grow` and `trim`, of images and of mounts.

use crate::mounting::{fuse_works, mount_point, umount};
use crate::tools::*;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

#[test]
fn tune_says_what_changed_and_keeps_it() {
    let dir = temp_dir();
    let image = make_image(dir.path(), &["--label", "before"]);
    let out = ok(&["tune", "-L", "after", "--reserve", "1.5", "-o", "noatime,cache=8M", &image]);
    for line in
        ["label after (was before)", "reserve percent 1.5 (was 5.0)", "mount options noatime,cache=8M (was none)"]
    {
        assert!(out.contains(line), "{line:?} in {out}");
    }
    assert!(ok(&["tune", "-L", "after", &image]).contains("nothing to change"));
    let info = json(&ok(&["info", "--quick", "--json", &image]));
    assert_eq!((&info["label"], &info["mount_options"]), (&"after".into(), &"noatime,cache=8M".into()));
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    assert!(ok(&["tune", "-U", uuid, &image]).contains(uuid));
    let random = json(&ok(&["tune", "--json", "--uuid", "random", &image]));
    assert!(random["uuid"].is_string() && random["uuid"] != uuid);
    ok(&["fsck", "-n", &image]);
    ok(&["tune", "-L", "", "-o", "", &image]);
    assert_eq!(json(&ok(&["info", "--quick", "--json", &image]))["label"], "");
}

#[test]
fn wrong_settings_change_nothing() {
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let before = contents(&image);
    fails(&["tune", &image], 2, &["required"]);
    fails(&["tune", "--reserve", "51", &image], 2, &["51", "0 to 50"]);
    fails(&["tune", "-o", "noatime,ro", &image], 2, &["'ro'", "cannot be a default"]);
    fails(&["tune", "-o", "commit=0", &image], 2, &["commit=0"]);
    fails(&["tune", "-U", "nonsense", &image], 2, &["nonsense", "not a uuid"]);
    fails(&["tune", "-L", &"x".repeat(65), &image], 1, &[&image, "at most 64 bytes"]);
    fails(&["grow", "--size", "1M", &image], 1, &[&image, "cannot shrink"]);
    assert_eq!(fs::metadata(&image).unwrap().len(), before.len() as u64);
    // Grow and trim have it in hand like a mount, which the superblock counts.
    ok(&["fsck", "-n", &image]);
    let name = dir.path().to_str().unwrap();
    for command in [&["tune", "-L", "x"][..], &["grow"], &["trim"]] {
        fails(&[command, &[name]].concat(), 1, &[name, "not on a mounted cffs"]);
        fails(&[command, &["/nonexistent/image"]].concat(), 1, &["/nonexistent/image"]);
    }
}

#[test]
fn grow_takes_what_the_image_has_or_makes_it_longer() {
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    assert!(ok(&["grow", &image]).contains("nothing to gain"));
    fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(80 << 20).unwrap();
    let out = ok(&["grow", &image]);
    assert!(out.contains("80 MiB (was 64 MiB)"), "{out}");
    let grown = json(&ok(&["grow", "--json", "--size", "200M", &image]));
    assert_eq!((&grown["from"], &grown["to"]), (&(80 << 20).into(), &(200 << 20).into()));
    assert_eq!(fs::metadata(&image).unwrap().len(), 200 << 20);
    assert_eq!(json(&ok(&["info", "--quick", "--json", &image]))["bytes"], 200 << 20);
    ok(&["fsck", "-n", &image]);
}

#[test]
fn a_mount_is_changed_by_its_directory() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    ok(&["tune", "-o", "cache=8M,noatime,commit=9", &image]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", &image, &name]);
    let cache = |name: &str| json(&ok(&["stats", "--json", name]))["cache"]["limit_bytes"].as_u64().unwrap();
    assert_eq!(cache(&name), 8 << 20, "a default of the file system");
    fails(&["tune", "-L", "x", &image], 1, &[&image, "in use", "name that directory"]);
    fails(&["tune", "-U", "random", &name], 1, &[&name, "uuid"]);
    assert!(ok(&["tune", "-L", "live", "--reserve", "0", &name]).contains("label live (was none)"));
    assert!(ok(&["info", &name]).contains("live"));
    fs::write(path.join("file"), vec![7; 20 << 20]).unwrap();
    assert!(ok(&["grow", "--size", "96M", &name]).contains("96 MiB (was 64 MiB)"));
    let space = rustix::fs::statvfs(&path).unwrap();
    assert_eq!(space.f_blocks * space.f_frsize, 96 << 20);
    fs::File::open(path.join("file")).unwrap().sync_all().unwrap();
    let full = fs::metadata(&image).unwrap().blocks() * 512;
    fs::remove_file(path.join("file")).unwrap();
    let trimmed = run(&["trim", "--min-len", "64K", &name]);
    if trimmed.status.success() {
        let now = fs::metadata(&image).unwrap().blocks() * 512;
        assert!(now + (15 << 20) < full, "{now} of {full}");
    } else {
        assert!(stderr(&trimmed).contains("not supported"), "{}", stderr(&trimmed));
        skipped("holes", "the temporary directory cannot punch holes");
    }
    umount(&name);
    ok(&["fsck", "-n", &image]);
    ok(&["trim", &image]);
    ok(&["mount", "-o", "cache=16M", &image, &name]);
    assert_eq!(cache(&name), 16 << 20, "the mount has the last word");
    umount(&name);
    assert_eq!(json(&ok(&["info", "--quick", "--json", &image]))["label"], "live");
}

/// A block device, detached when dropped.
struct LoopDevice(String);

impl LoopDevice {
    fn new(image: &str) -> Option<LoopDevice> {
        let out = Command::new("losetup").args(["--find", "--show", image]).output().ok()?;
        out.status.success().then(|| LoopDevice(String::from_utf8_lossy(&out.stdout).trim().to_owned()))
    }

    /// Takes over the size of its file.
    fn resize(&self) {
        assert!(Command::new("losetup").args(["--set-capacity", &self.0]).status().unwrap().success());
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_block_device_grows_and_is_trimmed_under_its_mount() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = dir.path().join("device").to_str().unwrap().to_owned();
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let Some(device) = LoopDevice::new(&image) else {
        return skipped("loop", "no loop device can be made (takes root and losetup)");
    };
    ok(&["mkfs", &device.0]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", &device.0, &name]);
    fs::write(path.join("kept"), vec![7; 5 << 20]).unwrap();
    fails(&["grow", "--size", "96M", &name], 1, &[&device.0]);
    assert!(ok(&["grow", &name]).contains("nothing to gain"));
    fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(160 << 20).unwrap();
    device.resize();
    assert!(ok(&["grow", &name]).contains("160 MiB (was 64 MiB)"));
    // More than there was room for before.
    fs::write(path.join("gone"), vec![8; 100 << 20]).unwrap();
    fs::File::open(path.join("gone")).unwrap().sync_all().unwrap();
    let full = fs::metadata(&image).unwrap().blocks() * 512;
    fs::remove_file(path.join("gone")).unwrap();
    // The space is free when the kernel has told the mount to forget the file, which it does after unlink(2) has returned.
    let free = || {
        let s = rustix::fs::statvfs(&path).unwrap();
        s.f_bfree * s.f_frsize
    };
    for _ in 0..300 {
        if free() > 100 << 20 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(free() > 100 << 20, "{} bytes free", free());
    let trimmed = run(&["trim", &name]);
    if trimmed.status.success() {
        let now = fs::metadata(&image).unwrap().blocks() * 512;
        assert!(now + (90 << 20) < full, "{now} of {full}");
    } else {
        assert!(stderr(&trimmed).contains("not supported"), "{}", stderr(&trimmed));
        skipped("holes", "the loop device cannot discard");
    }
    umount(&name);
    ok(&["fsck", "-n", &device.0]);
    ok(&["mount", &device.0, &name]);
    assert_eq!(fs::read(path.join("kept")).unwrap(), vec![7; 5 << 20]);
    umount(&name);
}
