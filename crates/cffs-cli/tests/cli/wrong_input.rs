//! Images and arguments that are wrong: a message that says what and what to do, the right exit code, nothing changed.

use crate::tools::*;
use cffs::Superblock;
use cffs::device::{FileDevice, OpenMode};
use cffs::format::superblock::{FORMAT_VERSION, INCOMPAT_NO_EMBED, SUPERBLOCK_SIZE};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Every command that takes an image, with its exit code for one that cannot be used.
fn all_commands_fail(dir: &Path, image: &str, words: &[&str]) {
    commands_fail(dir, image, words, true);
}

/// The same; `repair_too`: also `fsck -y`, which can do something about some of it.
fn commands_fail(dir: &Path, image: &str, words: &[&str], repair_too: bool) {
    let inside = format!("{image}:/file");
    let tree = dir.join("tree");
    let target = dir.join("target");
    let mount_point = dir.join("mnt");
    for d in [&tree, &mount_point] {
        fs::create_dir_all(d).unwrap();
    }
    fs::write(tree.join("file"), "contents").unwrap();
    let before = fs::read(image).ok();
    let (tree, target, mount_point) = (tree.to_str().unwrap(), target.to_str().unwrap(), mount_point.to_str().unwrap());
    for (args, code) in [
        (&["info", image][..], 1),
        (&["info", "--quick", "--json", image], 1),
        (&["stats", image], 1),
        (&["fsck", "-n", image], 8),
        (&["fsck", "-p", image], 8),
        (&["fsck", "-y", image], 8),
        (&["mount", image, mount_point], 32),
        (&["mount", "-f", "-o", "ro", image, mount_point], 32),
        (&["import", tree, image], 1),
        (&["export", image, target], 1),
        (&["ls", image], 1),
        (&["cat", &inside], 1),
        (&["stat", &inside], 1),
        (&["rm", &inside], 1),
    ] {
        if args[1] != "-y" || repair_too {
            fails(args, code, words);
        }
    }
    assert!(fs::read(image).ok() == before, "changed");
    assert!(!Path::new(target).exists(), "nothing was made for an export that could not begin");
}

#[test]
fn no_image_at_all() {
    let dir = temp_dir();
    let image = dir.path().join("none");
    all_commands_fail(dir.path(), image.to_str().unwrap(), &[image.to_str().unwrap(), "No such file"]);
    assert!(!image.exists());
}

#[test]
fn an_image_of_something_else() {
    let dir = temp_dir();
    let path = dir.path().join("image");
    let image = path.to_str().unwrap();
    let file = File::create(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    all_commands_fail(dir.path(), image, &[image, "not a cffs file system", "mkfs"]);
    if have(&[Need::Program("mkfs.minix"), Need::Program("blkid")]) {
        assert!(Command::new("mkfs.minix").arg(&path).output().unwrap().status.success());
        all_commands_fail(dir.path(), image, &[image, "not a cffs file system but a file system of type minix"]);
    }
    file.set_len(100).unwrap();
    all_commands_fail(dir.path(), image, &[image, "not a cffs file system"]);
    file.set_len(0).unwrap();
    all_commands_fail(dir.path(), image, &[image, "not a cffs file system"]);
}

#[test]
fn a_directory_instead_of_an_image() {
    let dir = temp_dir();
    let name = dir.path().to_str().unwrap();
    for command in ["info", "stats"] {
        fails(&[command, name], 1, &[name, "not on a mounted cffs"]);
    }
    fails(&["ls", name], 1, &[name, "neither a regular file nor a block device"]);
    fails(&["fsck", "-n", name], 8, &[name, "neither a regular file nor a block device"]);
}

fn edit_superblock(image: &str, change: impl Fn(&mut Superblock)) {
    let file = OpenOptions::new().read(true).write(true).open(image).unwrap();
    let mut block = [0; SUPERBLOCK_SIZE];
    file.read_exact_at(&mut block, 0).unwrap();
    let mut sb = Superblock::decode(&block).unwrap();
    change(&mut sb);
    file.write_all_at(&sb.encode(), 0).unwrap();
}

#[test]
fn an_image_of_a_newer_format() {
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    edit_superblock(&image, |sb| sb.version = FORMAT_VERSION + 1);
    all_commands_fail(dir.path(), &image, &[&image, "format version 2", "newer"]);
}

#[test]
fn an_image_with_an_unknown_feature() {
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    edit_superblock(&image, |sb| sb.incompat = INCOMPAT_NO_EMBED | 1 << 63);
    all_commands_fail(dir.path(), &image, &[&image, "feature bit 63", "newer"]);
}

#[test]
fn a_truncated_image() {
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    OpenOptions::new().write(true).open(&image).unwrap().set_len(40 << 20).unwrap();
    all_commands_fail(dir.path(), &image, &[&image, "truncated", "whole image"]);
}

#[test]
fn a_damaged_superblock() {
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let file = OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(&[0xff; 8], 200).unwrap();
    commands_fail(dir.path(), &image, &[&image, "superblock", "copies"], false);
    let out = run(&["fsck", "-y", &image]);
    assert_eq!(out.status.code(), Some(1), "{}{}", stdout(&out), stderr(&out));
    ok(&["fsck", "-f", "-n", &image]);
}

#[test]
fn an_image_in_use() {
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let _user = FileDevice::open(&image, OpenMode::READ_WRITE).unwrap();
    all_commands_fail(dir.path(), &image, &[&image, "in use", "unmount it"]);
}

#[test]
fn mount_points_that_are_none() {
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let before = contents(&image);
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    fails(&["mount", &image, file.to_str().unwrap()], 32, &["file", "not a directory"]);
    let missing = dir.path().join("missing");
    fails(&["mount", &image, missing.to_str().unwrap()], 32, &["missing", "does not exist", "mkdir"]);
    assert!(contents(&image) == before);
}

#[test]
fn mount_options_that_are_none() {
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let before = contents(&image);
    let mount_point = dir.path().to_str().unwrap();
    for option in ["nosuch", "cache=much", "cache=1", "metadata=none", "commit=0", "threads=many", "prefetch=maybe"] {
        fails(&["mount", "-o", &format!("ro,{option}"), &image, mount_point], 1, &[&image, &format!("'{option}'")]);
    }
    fails(&["mount", "-o", "remount,ro", &image, mount_point], 32, &[mount_point, "no cffs is mounted"]);
    fails(&["mount", "-o", "logdev=/nonexistent", &image, mount_point], 32, &["/nonexistent"]);
    assert!(contents(&image) == before);
}

#[test]
fn a_full_host_disk() {
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    if !have(&[Need::Root]) {
        return;
    }
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "none"]).arg(&disk).status().unwrap().success();
    if !mounted {
        return skipped("tmpfs", "no tmpfs can be mounted");
    }
    let _mounted = Mounted(disk.clone());
    let image = disk.join("image");
    fs::write(disk.join("filler"), vec![1; 3 << 20]).unwrap_err();
    fails(&["mkfs", "--size=64M", image.to_str().unwrap()], 1, &["image", "full"]);
    assert!(!image.exists(), "no half of an image stays");
}
