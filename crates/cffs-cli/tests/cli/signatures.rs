//! What mkfs does not overwrite unless it is forced to.

use crate::tools::*;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

/// A file that `make` has put something into.
fn refused(make: &[&str], input: &str, words: &[&str]) {
    if !have(&[Need::Program("blkid"), Need::Program(make[0])]) {
        return;
    }
    let dir = temp_dir();
    let image = dir.path().join("image").to_str().unwrap().to_owned();
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let mut maker = Command::new(make[0])
        .args(&make[1..])
        .arg(&image)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    maker.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(maker.wait().unwrap().success(), "{make:?}");
    is_refused(&image, words);
}

#[track_caller]
fn is_refused(image: &str, words: &[&str]) {
    let before = contents(image);
    fails(&["mkfs", image], 1, &[&[image, "holds", "--force"], words].concat());
    let log = format!("{image}.new");
    fails(&["mkfs", "--size=64M", &log, "--log-device", image], 1, &[&[image, "holds"], words].concat());
    assert!(contents(image) == before);
    assert!(fs::metadata(&log).is_err(), "nothing was made");
    ok(&["mkfs", "--force", "--group-size=64K", image]);
    fails(&["mkfs", image], 1, &["holds a cffs file system", "--force"]);
}

#[test]
fn file_systems() {
    refused(&["mkfs.minix"], "", &["file system of type minix"]);
    refused(&["mkfs.bfs"], "", &["file system of type bfs"]);
    refused(&["mkfs.ext4", "-q", "-F"], "", &["file system of type ext4"]);
}

/// All superblocks are destroyed: what is left is told by its checksums.
#[test]
fn what_is_left_of_our_own() {
    let dir = temp_dir();
    for (more, size) in
        [("--block-size=4K", "64M"), ("--block-size=1K", "8M"), ("--layout=log", "64M"), ("--block-size=4K", "3G")]
    {
        let image = dir.path().join("image").to_str().unwrap().to_owned();
        ok(&["mkfs", more, "--size", size, "--group-size=64K", &image]);
        let file = File::options().read(true).write(true).open(&image).unwrap();
        let len = file.metadata().unwrap().len();
        let mut sector = [0; 8];
        let mut destroyed = 0;
        for at in (0..len).step_by(1024) {
            file.read_exact_at(&mut sector, at).unwrap();
            if [&b"cffsLOG"[..], b"\x89CFFS"].iter().any(|magic| sector.starts_with(magic)) {
                file.write_all_at(&[0; 512], at).unwrap();
                destroyed += 1;
            }
        }
        assert!(destroyed > 0);
        fails(&["mkfs", &image], 1, &["looks like a cffs file system", "--force"]);
        fails(&["info", &image], 1, &["not a cffs", "fsck -y"]);
        ok(&["mkfs", "--force", "--group-size=64K", &image]);
        fs::remove_file(&image).unwrap();
    }
    // What only has zeros is nobody's.
    let image = dir.path().join("zeros");
    fs::write(&image, vec![0; 16 << 20]).unwrap();
    ok(&["mkfs", "--group-size=64K", image.to_str().unwrap()]);
}

#[test]
fn swap_space() {
    refused(&["mkswap"], "", &["swap space"]);
}

#[test]
fn partition_tables() {
    refused(&["sfdisk", "-q"], "label: gpt\n,,\n", &["partition table of type gpt"]);
    refused(&["sfdisk", "-q"], "label: dos\n,,\n", &["partition table of type dos"]);
}

#[test]
fn encrypted_volumes() {
    if !have(&[Need::Program("blkid")]) {
        return;
    }
    let dir = temp_dir();
    let image = dir.path().join("image");
    let file = File::create(&image).unwrap();
    file.set_len(64 << 20).unwrap();
    file.write_all_at(b"LUKS\xba\xbe\x00\x01", 0).unwrap();
    is_refused(image.to_str().unwrap(), &["encrypted volume of type crypto_LUKS"]);
}

#[test]
fn what_cannot_be_looked_at_is_not_overwritten() {
    if !have(&[Need::Root, Need::Program("unshare")]) {
        return;
    }
    let dir = temp_dir();
    let script = r#"
        mount -t tmpfs none /usr/sbin || exit 77
        test -e /sbin/blkid && { mount -t tmpfs none /sbin || exit 77; }
        export PATH=/usr/bin:/bin
        truncate -s 64M hole && $CFFS mkfs hole >/dev/null || exit 1
        echo something >data && truncate -s 64M data
        $CFFS mkfs data && exit 2
        $CFFS mkfs --force data >/dev/null
    "#;
    let out = Command::new("timeout")
        .args(["120", "unshare", "-m", "sh", "-c", script])
        .env("CFFS", CFFS)
        .current_dir(dir.path())
        .output()
        .unwrap();
    if out.status.code() == Some(77) {
        return skipped("namespaces", &format!("no folder can be hidden: {}", stderr(&out)));
    }
    assert!(out.status.success(), "{:?}{}{}", out.status, stdout(&out), stderr(&out));
    for word in ["data", "blkid (package util-linux) is not installed", "--force"] {
        assert!(stderr(&out).contains(word), "{}", stderr(&out));
    }
}
