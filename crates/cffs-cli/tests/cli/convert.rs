//! Images copied into another layout.

use crate::log_layout::{make_tree, noise};
use crate::mounting::{fuse_works, mount_point, umount};
use crate::tools::*;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

/// Everything that a file can have; what takes a mount, or root, only where that is there.
fn fill(dir: &Path, image: &str) {
    let from = dir.join("from");
    make_tree(&from);
    symlink("dir0/file0", from.join("link")).unwrap();
    fs::hard_link(from.join("large"), from.join("dir1/again")).unwrap();
    fs::set_permissions(from.join("dir2"), fs::Permissions::from_mode(0o3750)).unwrap();
    let sparse = File::create(from.join("sparse")).unwrap();
    sparse.set_len(300 << 20).unwrap();
    sparse.write_all_at(&noise(4, 10_000), 200 << 20).unwrap();
    ok(&["import", from.to_str().unwrap(), image]);
    ok(&["colocate", "--by", "label:x", &format!("{image}:/dir3")]);
    if !fuse_works() {
        return;
    }
    let (path, name) = mount_point(dir);
    let _mounted = Mounted(path.clone());
    ok(&["mount", image, &name]);
    rustix::fs::setxattr(path.join("dir0/file1"), "user.note", b"value", rustix::fs::XattrFlags::empty()).unwrap();
    let ahead = File::create(path.join("ahead")).unwrap();
    rustix::fs::fallocate(&ahead, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
    ahead.write_all_at(b"begins", 0).unwrap();
    drop(ahead);
    if is_root() {
        std::os::unix::fs::chown(path.join("dir0/file2"), Some(1000), Some(1001)).unwrap();
        let node = rustix::fs::FileType::CharacterDevice;
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, path.join("null"), node, mode, rustix::fs::makedev(1, 3)).unwrap();
        ok(&["quota", "set", "user:1000", "--hard", "100M", &name]);
        let chattr = Command::new("chattr").arg("+i").arg(path.join("dir1/file7")).status();
        assert!(chattr.is_err() || chattr.unwrap().success());
    }
    umount(&name);
}

fn extents(image: &str) -> String {
    ok(&["dump", image, "extents", "/ahead"])
}

/// There and back: what comes back is compared with what was there, by the program and here.
#[test]
fn a_file_system_goes_to_the_log_layout_and_back() {
    let dir = temp_dir();
    let image = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (first, log, back) = (image("first"), image("log"), image("back"));
    ok(&[
        "mkfs",
        "--size",
        "64M",
        "--group-size",
        "64K",
        "--fragment-size=512",
        "--label",
        "a name",
        "--reserve=1.5",
        "--quota",
        "user,project",
        "--data-sums",
        &first,
    ]);
    ok(&["tune", "--mount-options", "noatime,commit=7", &first]);
    fill(dir.path(), &first);
    let before = contents(&first);
    ok(&["convert", "--layout=log", "--compress=zstd", &first, &log]);
    assert!(contents(&first) == before, "the source has changed");
    let info = json(&ok(&["info", "--json", "--quick", &log]));
    assert_eq!((&info["image_layout"], &info["label"]), (&"log".into(), &"a name".into()));
    assert_ne!(info["uuid"], json(&ok(&["info", "--json", "--quick", &first]))["uuid"]);
    ok(&["fsck", "-n", "--data", &log]);
    let options = |image: &str| json(&ok(&["info", "--json", "--quick", image]))["mount_options"].clone();
    assert_eq!(options(&log), "noatime,commit=7,compress=zstd:3");
    // Snapshots stay, one of them can be what is copied.
    ok(&["snapshot", "create", &log, "monday"]);
    ok(&["rm", &format!("{log}:/dir0/file0")]);
    let out = run(&["convert", "--layout=plain", "--snapshot=monday", &log, &back]);
    assert!(out.status.success(), "{}", stderr(&out));
    ok(&["fsck", "-n", "--data", &back]);
    assert_eq!(options(&back), "noatime,commit=7");
    let tree = |image: &str| {
        let to = dir.path().join("out");
        let _ = fs::remove_dir_all(&to);
        ok(&["export", image, to.to_str().unwrap()]);
        let mut all = Vec::new();
        let mut stack = vec![to.clone()];
        while let Some(path) = stack.pop() {
            let m = fs::symlink_metadata(&path).unwrap();
            if m.is_dir() {
                stack.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
            }
            let data = if m.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let numbers = (m.mode(), m.uid(), m.gid(), m.nlink(), m.rdev(), m.mtime(), m.mtime_nsec());
            all.push((path.strip_prefix(&to).unwrap().to_owned(), numbers, data));
        }
        all.sort();
        all
    };
    assert!(tree(&first) == tree(&back), "what came back is not what was there");
    assert_eq!(
        ok(&["colocate", &format!("{back}:/dir3")]),
        ok(&["colocate", &format!("{first}:/dir3")]).replace("first", "back")
    );
    if fuse_works() {
        assert!(extents(&first).contains("unwritten") && extents(&back).contains("unwritten"));
        if is_root() {
            let limits = |image: &str| json(&ok(&["quota", "report", "--json", image]));
            assert_eq!(limits(&first), limits(&back));
        }
    }
    // A snapshot that is left behind is told.
    let plain = image("plain");
    let out = run(&["convert", "--layout=plain", "--size=128M", &log, &plain]);
    assert!(out.status.success() && stderr(&out).contains("stay behind"), "{}", stderr(&out));
    assert_eq!(fs::metadata(&plain).unwrap().len(), 128 << 20);
}

#[test]
fn what_cannot_be_converted_leaves_nothing_behind() {
    let dir = temp_dir();
    let image = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("noise"), noise(9, 40 << 20)).unwrap();
    let (first, other) = (image("first"), image("other"));
    ok(&["mkfs", "--size", "64M", "--group-size", "64K", &first]);
    ok(&["import", from.to_str().unwrap(), &first]);
    fails(&["convert", "--layout=log", "--size=32M", &first, &other], 1, &["no space", "other"]);
    assert!(!Path::new(&other).exists());
    fails(&["convert", "--layout=log", "--size=8M", &first, &other], 1, &["at least 32 MiB"]);
    fails(&["convert", "--layout=plain", "--compress=lz4", &first, &other], 1, &["--layout=log"]);
    fails(&["convert", "--layout=log", "--snapshot=x", &first, &other], 1, &["log layout"]);
    assert!(!Path::new(&other).exists());
    ok(&["convert", "--layout=log", "--size=96M", &first, &other]);
    // What is there is not written over unasked, nor is the image itself.
    fails(&["convert", "--layout=log", "--size=96M", &first, &other], 1, &["--force"]);
    ok(&["convert", "--layout=log", "--force", &first, &other]);
    fails(&["convert", "--layout=log", "--force", &first, &first], 1, &["in use"]);
    ok(&["fsck", "-n", &first]);
    if fuse_works() {
        let (path, name) = mount_point(dir.path());
        let _mounted = Mounted(path);
        ok(&["mount", &first, &name]);
        fails(&["convert", "--layout=log", "--force", &first, &other], 1, &["mounted on"]);
        umount(&name);
    }
}
