//! mkfs, and what is generated from the definitions of the command line.

use crate::tools::*;
use cffs::device::{Device, FileDevice, IoKind, OpenMode};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;

#[test]
fn mkfs_makes_a_sparse_image_and_says_what_it_chose() {
    let dir = temp_dir();
    let image = dir.path().join("image");
    let out = ok(&["mkfs", "--size", "1T", "--label", "tree", image.to_str().unwrap()]);
    for word in ["measured", "group", "1 TiB", "tree", "uuid", "is ready"] {
        assert!(out.contains(word), "no {word:?} in\n{out}");
    }
    let meta = fs::metadata(&image).unwrap();
    assert_eq!(meta.len(), 1 << 40);
    assert!(meta.blocks() * 512 < 512 << 20, "sparse");
}

#[test]
fn mkfs_reports_as_json_what_it_was_asked_for() {
    let dir = temp_dir();
    let image = dir.path().join("image");
    let uuid = "01234567-89ab-4def-8123-456789abcdef";
    let out = ok(&[
        "mkfs",
        "--json",
        "--size=256M",
        "--block-size=8K",
        "--fragment-size=2K",
        "--group-size=128K",
        "--journal-size=8M",
        "--label=a name",
        "--uuid",
        uuid,
        "--reserve=2.5",
        "--no-embed",
        "--no-group",
        "--dir-blocks=with-data",
        image.to_str().unwrap(),
    ]);
    let v = json(&out);
    assert_eq!(v["bytes"], 256 << 20);
    assert_eq!(v["block_size"], 8192);
    assert_eq!(v["fragment_size"], 2048);
    assert_eq!(v["group_size"], 128 << 10);
    assert_eq!(v["log_bytes"], 8 << 20);
    assert_eq!(v["label"], "a name");
    assert_eq!(v["uuid"], uuid);
    assert_eq!(v["reserve_percent"], 2.5);
    assert_eq!(v["features"], serde_json::json!(["no-embed", "no-group", "dirs-with-data"]));
    assert!(v["measured"].is_null(), "nothing to measure when the group is given");
    let out = ok(&["info", "--quick", "--json", image.to_str().unwrap()]);
    let v = json(&out);
    assert_eq!(v["uuid"], uuid);
    assert_eq!(v["state"], "clean");
    assert_eq!(v["mount_count"], 0);
}

#[test]
fn mkfs_refuses_options_that_make_no_sense_and_leaves_nothing_behind() {
    let dir = temp_dir();
    let image = dir.path().join("image");
    let name = image.to_str().unwrap();
    for (option, word) in [
        ("--block-size=3000", "power of two"),
        ("--block-size=256", "power of two"),
        ("--block-size=128K", "power of two"),
        ("--fragment-size=256", "power of two"),
        ("--fragment-size=8K", "power of two"),
        ("--group-size=100K", "power of two"),
        ("--group-size=8M", "power of two"),
        ("--group-size=big", "not a size"),
        ("--journal-size=1K", "log"),
        ("--journal-size=10G", "log"),
        ("--reserve=90", "percent"),
        ("--uuid=123", "uuid"),
        ("--size=4X", "not a size"),
        ("--size=1K", "too small"),
        ("--dir-blocks=nowhere", "possible values"),
        ("--nosuch", "unexpected argument"),
    ] {
        let mut args = vec!["mkfs", option, name];
        if !option.starts_with("--size") {
            args.push("--size=64M");
        }
        fails(&args, 1, &[word]);
        assert!(!image.exists(), "{option}");
    }
    let label = format!("--label={}", "x".repeat(65));
    fails(&["mkfs", "--size=64M", &label, name], 1, &["64 bytes"]);
    fails(&["mkfs", name], 1, &[name, "--size"]);
    assert!(!image.exists());
    fails(&["mkfs", "--size=64M", dir.path().to_str().unwrap()], 1, &["neither a regular file nor a block device"]);
    fails(&["mkfs", "--size=64M", "/nonexistent/image"], 1, &["/nonexistent/image"]);
}

#[test]
fn mkfs_does_not_overwrite_a_file_system_unless_forced() {
    let dir = temp_dir();
    let path = dir.path().join("image");
    let name = path.to_str().unwrap();
    ok(&["mkfs", "--size=64M", "--group-size=64K", name]);
    let made = contents(&path);
    fails(&["mkfs", name], 1, &["holds a cffs file system", "--force"]);
    fails(&["mkfs", "--size=128M", name], 1, &["holds a cffs file system"]);
    fails(&["mkfs", "--force", "--block-size=3", name], 1, &["power of two"]);
    fails(&["mkfs", "--size=64M", dir.path().join("none").to_str().unwrap(), "--log-device", name], 1, &["--force"]);
    assert!(contents(&path) == made, "forced or not, a bad option changes nothing");
    ok(&["mkfs", "--force", "--group-size=64K", name]);
    assert!(contents(&path) != made);
}

#[test]
fn mkfs_takes_the_length_of_an_existing_file_or_sets_it() {
    let dir = temp_dir();
    let path = dir.path().join("image");
    let name = path.to_str().unwrap();
    File::create(&path).unwrap();
    fails(&["mkfs", name], 1, &["empty", "--size"]);
    ok(&["mkfs", "--size=32M", name]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 32 << 20);
    ok(&["mkfs", "--force", name]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 32 << 20);
    ok(&["mkfs", "--force", "--size=48M", name]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 48 << 20);
}

#[test]
fn mkfs_leaves_an_image_in_use_alone() {
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let before = contents(&image);
    let user = FileDevice::open(&image, OpenMode::READ_ONLY).unwrap();
    user.read_at(IoKind::Super, 0, &mut vec![0; user.sector_size() as usize]).unwrap();
    fails(&["mkfs", "--force", &image], 1, &[&image, "in use", "unmount"]);
    assert!(contents(&image) == before);
}

#[test]
fn mkfs_with_a_log_of_its_own() {
    let dir = temp_dir();
    let log = dir.path().join("log");
    File::create(&log).unwrap().set_len(16 << 20).unwrap();
    let log = log.to_str().unwrap();
    let image = make_image(dir.path(), &["--log-device", log]);
    fails(&["info", "--quick", &image], 1, &[&image, "--log-device"]);
    let out = ok(&["info", "--quick", "--json", "--log-device", log, &image]);
    assert_eq!(json(&out)["external_log"], true);
    let plain = dir.path().join("plain");
    ok(&["mkfs", "--size=64M", plain.to_str().unwrap()]);
    fails(&["info", "--quick", "--log-device", log, plain.to_str().unwrap()], 1, &["within itself"]);
}

#[test]
fn names_stand_for_subcommands() {
    let dir = temp_dir();
    let image = dir.path().join("image");
    let call = |name: &str, args: &[&str]| {
        let link = dir.path().join(name);
        if !link.exists() {
            symlink(CFFS, &link).unwrap();
        }
        Command::new(link).args(args).output().unwrap()
    };
    let name = image.to_str().unwrap();
    assert_eq!(call("mkfs.cffs", &["--size=64M", name]).status.code(), Some(0));
    assert_eq!(call("mkfs.cffs", &["--nosuch", name]).status.code(), Some(1));
    assert_eq!(call("fsck.cffs", &["-a", "-C0", "-T", "-V", name]).status.code(), Some(0));
    assert_eq!(call("fsck.cffs", &["--nosuch", name]).status.code(), Some(16));
    assert_eq!(call("mount.cffs", &["--nosuch", name, "/mnt"]).status.code(), Some(1));
    assert_eq!(call("mount.cffs", &[name, "/nonexistent", "-o", "rw", "-t", "cffs"]).status.code(), Some(32));
    assert_eq!(call("umount.fuse.cffs", &["--nosuch"]).status.code(), Some(1));
    let not_mounted = call("umount.fuse.cffs", &[dir.path().to_str().unwrap()]);
    assert_eq!(not_mounted.status.code(), Some(32), "{}", stderr(&not_mounted));
}

#[test]
fn usage_errors_have_the_exit_code_of_their_kind() {
    for (args, code) in [
        (&["mkfs"][..], 1),
        (&["mount", "a"], 1),
        (&["fsck"], 16),
        (&["fsck", "-n", "-y", "a"], 16),
        (&["info"], 2),
        (&["import", "a"], 2),
        (&["nosuch"], 2),
        (&[], 2),
    ] {
        fails(args, code, &["Usage"]);
    }
    ok(&["--help"]);
    ok(&["--version"]);
    ok(&["mkfs", "--help"]);
}

#[test]
fn man_pages_and_completions_are_generated() {
    let dir = temp_dir();
    let man = dir.path().join("man");
    ok(&["generate", "man", man.to_str().unwrap()]);
    for page in [
        "cffs.1",
        "cffs-mkfs.1",
        "cffs-import.1",
        "mkfs.cffs.8",
        "fsck.cffs.8",
        "mount.cffs.8",
        "umount.fuse.cffs.8",
        "umount.fuseblk.cffs.8",
    ] {
        let text = fs::read_to_string(man.join(page)).unwrap_or_else(|e| panic!("{page}: {e}"));
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
    let mkfs = fs::read_to_string(man.join("mkfs.cffs.8")).unwrap();
    assert!(mkfs.contains("group\\-size"), "options are there");
    let mount = fs::read_to_string(man.join("mount.cffs.8")).unwrap();
    assert!(mount.contains(".SH MOUNT OPTIONS") && mount.contains(".SH EXIT CODES"));
    let completions = dir.path().join("completions");
    ok(&["generate", "completions", completions.to_str().unwrap()]);
    for file in ["cffs.bash", "_cffs", "cffs.fish"] {
        assert!(fs::read_to_string(completions.join(file)).unwrap().contains("mkfs"), "{file}");
    }
}

/// Checksums of data: made, shown, compared; damaged contents are an error for who reads them, and left to a person.
#[test]
fn data_sums_are_kept_if_asked_and_damage_is_named() {
    let dir = temp_dir();
    let (image, source, target) = (dir.path().join("image"), dir.path().join("source"), dir.path().join("target"));
    let name = image.to_str().unwrap();
    let made = json(&ok(&["mkfs", "--json", "--size=64M", "--data-sums", name]));
    assert_eq!(made["features"], serde_json::json!(["data-sums"]));
    fs::create_dir(&source).unwrap();
    let contents: Vec<u8> = (0..50_000u32).flat_map(|i| (i.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
    fs::write(source.join("damaged"), &contents).unwrap();
    fs::write(source.join("whole"), &contents[..5000]).unwrap();
    ok(&["import", source.to_str().unwrap(), name]);
    let out = ok(&["fsck", "-n", "--data", name]);
    assert!(out.contains("fragments have their checksums, 0 have not, of 0 none is known"), "{out}");
    assert!(ok(&["info", name]).contains("data-sums"));

    let file = FileDevice::open(&image, OpenMode::READ_WRITE).unwrap();
    let mut all = vec![0; 64 << 20];
    file.read_at(IoKind::Data, 0, &mut all).unwrap();
    let piece = &contents[100 * 1024..100 * 1024 + 200];
    let at = (0..all.len()).step_by(512).find(|at| all[*at..].starts_with(piece)).unwrap();
    let mut sector = all[at..at + 512].to_vec();
    sector[17] ^= 1;
    file.write_at(IoKind::Data, at as u64, &sector).unwrap();
    drop(file);

    ok(&["fsck", "-n", name]);
    for how in ["-n", "-p", "-y"] {
        let first = 100 * 1024;
        let range = format!("bytes {first} to {}", first + 1023);
        let out = run(&["fsck", how, "--data", name]);
        assert_eq!(out.status.code(), Some(4), "{how}");
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        for word in ["[data-sum]", &range, "from a backup"] {
            assert!(text.contains(word), "{how}: no {word:?} in\n{text}");
        }
    }
    let v = json(&String::from_utf8_lossy(&run(&["fsck", "-n", "--data", "--json", name]).stdout));
    assert_eq!(v["counts"]["frags_failed"], 1);
    let out = run(&["cat", &format!("{name}:/damaged")]);
    assert_ne!(out.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&out.stderr).contains("checksum does not match"));
    let out = run(&["export", name, target.to_str().unwrap()]);
    assert_ne!(out.status.code(), Some(0));
    assert_eq!(fs::read(target.join("whole")).unwrap(), &contents[..5000], "the others come out");

    let plain = dir.path().join("plain");
    ok(&["mkfs", "--size=64M", "--data-sums=off", plain.to_str().unwrap()]);
    assert!(!ok(&["info", plain.to_str().unwrap()]).contains("data-sums"));
}
