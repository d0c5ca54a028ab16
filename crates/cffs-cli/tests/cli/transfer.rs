//! Trees in and out of an image, and looking at what is in it.

use crate::tools::*;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Everything about a file that a copy keeps.
#[derive(Debug, PartialEq)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    rdev: u64,
    data: Vec<u8>,
    /// Extended attributes.
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Names of the same file, in order.
    names: Vec<PathBuf>,
}

fn tree(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut all = BTreeMap::new();
    let mut links: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
    let mut stack = vec![PathBuf::new()];
    while let Some(inside) = stack.pop() {
        let path = root.join(&inside);
        let meta = path.symlink_metadata().unwrap();
        let data = if meta.is_symlink() {
            path.read_link().unwrap().into_os_string().into_vec()
        } else if meta.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        if meta.is_dir() {
            stack.extend(fs::read_dir(&path).unwrap().map(|e| inside.join(e.unwrap().file_name())));
        } else if meta.nlink() > 1 {
            links.entry(meta.ino()).or_default().push(inside.clone());
        }
        let seen = Seen {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            rdev: meta.rdev(),
            data,
            xattrs: xattrs(&path),
            names: Vec::new(),
        };
        all.insert(inside, seen);
    }
    for mut names in links.into_values() {
        names.sort();
        for name in &names {
            all.get_mut(name).unwrap().names = names.clone();
        }
    }
    all
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut buf = vec![0; 70_000];
    let n = rustix::fs::llistxattr(path, &mut buf[..]).unwrap_or(0);
    let names: Vec<Vec<u8>> = buf[..n].split(|b| *b == 0).filter(|n| !n.is_empty()).map(<[u8]>::to_vec).collect();
    let value = |name: &Vec<u8>| {
        let mut value = vec![0; 70_000];
        let n = rustix::fs::lgetxattr(path, &name[..], &mut value[..]).unwrap();
        value.truncate(n);
        value
    };
    names.into_iter().map(|n| (n.clone(), value(&n))).collect()
}

fn set_time(path: &Path, seconds: i64, nanoseconds: i64) {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// A tree with one of everything.
/// Attributes of several kinds and sizes, as far as the file system of the test takes them.
fn set_xattrs(root: &Path) {
    // Everybody's bits, and a user's of his own.
    let entry = |tag: u8, perm: u8, id: u32| [&[tag, 0, perm, 0][..], &id.to_le_bytes()].concat();
    let none = u32::MAX;
    let entries = [entry(1, 7, none), entry(2, 5, 1000), entry(4, 5, none), entry(16, 5, none), entry(32, 5, none)];
    let acl = [&[2, 0, 0, 0][..], &entries.concat()].concat();
    let all: [(&str, &str, &[u8]); 6] = [
        ("dir", "user.comment", b"a value"),
        ("dir", "system.posix_acl_default", &acl),
        ("dir", "system.posix_acl_access", &acl),
        ("dir/file003", "user.large", &[7; 2000]),
        ("dir/file003", "user.empty", b""),
        ("dir/below/link", "trusted.link", b"of a symbolic link"),
    ];
    for (file, name, value) in all {
        if let Err(e) = rustix::fs::lsetxattr(root.join(file), name, value, rustix::fs::XattrFlags::empty()) {
            skipped(name, &e.to_string());
        }
    }
}

fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("dir/below/deep")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    for i in 0..300 {
        let size = [0, 1, 50, 100, 1000, 1024, 1025, 4096, 5000, 70_000][i % 10];
        let data: Vec<u8> = (0..size).map(|j| (i * 7 + j) as u8).collect();
        fs::write(root.join(format!("dir/file{i:03}")), data).unwrap();
    }
    let large: Vec<u8> = (0..3_000_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(root.join("dir/below/large"), large).unwrap();
    fs::hard_link(root.join("dir/file005"), root.join("dir/below/linked")).unwrap();
    fs::hard_link(root.join("dir/file005"), root.join("third name")).unwrap();
    symlink("../file003", root.join("dir/below/link")).unwrap();
    symlink("/nowhere/".repeat(30), root.join("long link")).unwrap();
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"not utf-8 \xff")), "x").unwrap();
    fs::write(root.join("n".repeat(255)), "y").unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(&[7; 5000], 10 << 20).unwrap();
    sparse.set_len(20 << 20).unwrap();
    let mode = |name: &str, mode| fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    mode("dir/file001", 0o4755);
    mode("dir/file002", 0o000);
    mode("empty", 0o1777);
    if is_root() {
        use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
        let node = |name: &str, t, dev| mknodat(CWD, root.join(name), t, Mode::from_raw_mode(0o640), dev).unwrap();
        node("fifo", FileType::Fifo, 0);
        node("socket", FileType::Socket, 0);
        node("char", FileType::CharacterDevice, makedev(1, 3));
        node("block", FileType::BlockDevice, makedev(259, 70000));
        std::os::unix::fs::lchown(root.join("dir/file003"), Some(1234), Some(5678)).unwrap();
        std::os::unix::fs::lchown(root.join("dir/below/link"), Some(4_000_000_000), Some(1)).unwrap();
    }
    set_xattrs(root);
    set_time(&root.join("dir/file004"), 1_000_000_000, 123_456_789);
    set_time(&root.join("long link"), 1, 999_999_999);
    set_time(&root.join("dir/file006"), -5, 1);
    set_time(&root.join("dir/below"), 1_234_567_890, 1);
    set_time(&root.join("dir"), 1_234_567_890, 2);
    set_time(root, 1_234_567_890, 3);
}

#[track_caller]
fn assert_same(a: &Path, b: &Path) {
    let (a, b) = (tree(a), tree(b));
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    for (path, seen) in &a {
        let other = &b[path];
        assert!(seen.data == other.data, "{}: contents", path.display());
        let strip = |s: &Seen| (s.mode, s.owner, s.mtime, s.rdev, s.names.clone());
        assert_eq!(strip(seen), strip(other), "{}", path.display());
    }
}

#[test]
fn a_tree_comes_back_as_it_went_in() {
    for switches in
        [&[][..], &["--no-embed"], &["--no-group"], &["--no-embed", "--no-group"], &["--dir-blocks=with-data"]]
    {
        let dir = temp_dir();
        let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
        make_tree(&source);
        let image = make_image(dir.path(), switches);
        ok(&["import", source.to_str().unwrap(), &image]);
        ok(&["fsck", "-n", &image]);
        ok(&["export", &image, copy.to_str().unwrap()]);
        assert_same(&source, &copy);
        let sparse = copy.join("sparse").metadata().unwrap();
        assert!(sparse.blocks() * 512 < 1 << 20, "holes stay holes: {} blocks", sparse.blocks());
    }
}

#[test]
fn paths_in_the_image() {
    let dir = temp_dir();
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    make_tree(&source);
    let image = make_image(dir.path(), &[]);
    let source_name = source.to_str().unwrap();
    ok(&["import", source_name, &format!("{image}:/new/place")]);
    ok(&["export", &format!("{image}:/new/place/"), copy.to_str().unwrap()]);
    assert_same(&source, &copy);

    // A second time: files are replaced, directories are merged, on both sides.
    fs::write(source.join("dir/file000"), "new").unwrap();
    fs::write(source.join("dir/more"), "more").unwrap();
    set_time(&source.join("dir"), 1_234_567_890, 2);
    ok(&["import", source_name, &format!("{image}:/new/place")]);
    ok(&["export", &format!("{image}:/new/place"), copy.to_str().unwrap()]);
    assert_same(&source, &copy);

    ok(&["fsck", "-n", &image]);
    fails(&["export", &format!("{image}:/nosuch"), copy.to_str().unwrap()], 1, &["/nosuch", "no such file"]);
    fails(&["export", &format!("{image}:/new/place/dir/more"), copy.to_str().unwrap()], 1, &["not a directory"]);
    fails(&["import", source_name, &format!("{image}:/new/place/dir/more")], 1, &["not a directory"]);
    fails(&["import", source.join("dir/more").to_str().unwrap(), &image], 1, &["not a directory"]);
    fails(&["import", "/nonexistent", &image], 1, &["/nonexistent"]);
}

#[test]
fn an_image_that_is_too_small() {
    let dir = temp_dir();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a small one"), "here").unwrap();
    fs::write(source.join("large"), vec![5; 90 << 20]).unwrap();
    let image = make_image(dir.path(), &[]);
    fails(&["import", source.to_str().unwrap(), &image], 1, &["large", "no space left"]);
    assert_eq!(ok(&["cat", &format!("{image}:/a small one")]), "here");
    ok(&["fsck", "-n", &image]);
}

#[test]
fn looking_and_removing() {
    let dir = temp_dir();
    let source = dir.path().join("source");
    make_tree(&source);
    let image = make_image(dir.path(), &[]);
    ok(&["import", source.to_str().unwrap(), &image]);
    let at = |path: &str| format!("{image}:{path}");

    let names = ok(&["ls", &at("/dir/below")]);
    assert_eq!(names, "deep\nlarge\nlink\nlinked\n");
    let long = ok(&["ls", "-l", &at("/dir/below")]);
    assert!(long.lines().any(|l| l.starts_with("lrwxrwxrwx") && l.ends_with("link -> ../file003")), "{long}");
    assert!(long.lines().any(|l| l.contains(" 3000001 ") && l.ends_with(" large")), "{long}");
    let list = json(&ok(&["ls", "--json", &image]));
    let find = |name: &str| list.as_array().unwrap().iter().find(|e| e["name"] == name).unwrap().clone();
    assert_eq!(find("sparse")["size"], 20 << 20);
    assert_eq!(find("empty")["type"], "directory");
    assert_eq!(find("third name")["links"], 3);
    assert_eq!(ok(&["ls", &at("/dir/file004")]), "/dir/file004\n");

    let stat = json(&ok(&["stat", "--json", &at("/dir/file004")]));
    assert_eq!(stat["mtime_ns"], 1_000_000_000_123_456_789i64);
    assert_eq!(stat["size"], 1000);
    assert!(ok(&["stat", &at("/dir/file001")]).contains("4755 -rwsr-xr-x"));
    let data = run(&["cat", &at("/dir/below/large")]).stdout;
    assert!(data == fs::read(source.join("dir/below/large")).unwrap());
    fails(&["cat", &at("/dir")], 1, &["is a directory"]);
    fails(&["cat", &at("/dir/nosuch")], 1, &["/dir/nosuch", "no such file"]);
    fails(&["ls", &at("/dir/file001/x")], 1, &["/dir/file001/x", "not a directory"]);

    ok(&["rm", &at("/dir/file004")]);
    fails(&["rm", &at("/dir/file004")], 1, &["no such file"]);
    ok(&["rm", "-f", &at("/dir/file004")]);
    fails(&["rm", &at("/dir")], 1, &["is a directory", "-r"]);
    fails(&["rm", "-r", &at("/")], 1, &["names no file"]);
    fails(&["rm", &image], 1, &["names no file"]);
    ok(&["rm", "-r", &at("/dir")]);
    assert!(!ok(&["ls", &image]).lines().any(|l| l == "dir"));
    assert_eq!(run(&["cat", &at("/third name")]).stdout.len(), 1024, "a name elsewhere keeps a hard-linked file");
    ok(&["fsck", "-n", &image]);
}

#[test]
fn what_info_and_stats_and_fsck_say() {
    let dir = temp_dir();
    let source = dir.path().join("source");
    make_tree(&source);
    let image = make_image(dir.path(), &["--label", "a name"]);
    ok(&["import", source.to_str().unwrap(), &image]);
    let info = json(&ok(&["info", "--json", &image]));
    assert_eq!(info["label"], "a name");
    assert_eq!(info["counts"]["dirs"], 5);
    assert_eq!(info["problems"], 0);
    assert!(info["layout"]["co_location"].as_f64().unwrap() > 0.5, "{info}");
    assert!(info["space"]["used_bytes"].as_u64().unwrap() > 3_000_000);
    let text = ok(&["info", &image]);
    for word in ["a name", "clean", "group", "layout", "5 directories"] {
        assert!(text.contains(word), "no {word:?} in\n{text}");
    }
    let stats = json(&ok(&["stats", "--json", &image]));
    assert_eq!(stats["total bytes"], 64 << 20);
    assert!(ok(&["stats", &image]).contains("inodes"));
    let fsck = json(&ok(&["fsck", "-n", "--json", &image]));
    assert_eq!(fsck["clean"], true);
    assert_eq!(fsck["problems_total"], 0);
    ok(&["fsck", "-p", &image]);
    ok(&["fsck", "-a", "-T", "-C0", "-V", &image]);
    fails(&["stats", dir.path().to_str().unwrap()], 1, &["not on a mounted cffs"]);
}

#[test]
fn damage_is_found_and_repaired() {
    let dir = temp_dir();
    let source = dir.path().join("source");
    make_tree(&source);
    let image = make_image(dir.path(), &[]);
    ok(&["import", source.to_str().unwrap(), &image]);
    // Any directory block: its magic number is at its start.
    let data = contents(&image);
    let block = data.chunks(4096).rposition(|b| b.starts_with(b"CFDR")).expect("a directory block");
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(&[0xaa; 100], block as u64 * 4096 + 500).unwrap();
    let damaged = contents(&image);
    fails(&["fsck", "-n", &image], 4, &[&image, "fsck -y"]);
    fails(&["fsck", &image], 4, &[&image, "fsck -y"]);
    let out = run(&["fsck", "-n", "--json", &image]);
    let report = json(&stdout(&out));
    assert_eq!((&report["clean"], &report["by_class"]["dir-block"]), (&false.into(), &1.into()));
    assert!(stdout(&run(&["fsck", "-n", &image])).contains("checksum"));
    assert!(contents(&image) == damaged, "without -p or -y nothing is written");
    // What loses something is nothing for -p.
    fails(&["fsck", "-f", "-p", &image], 4, &[&image, "by hand"]);
    assert!(contents(&image) == damaged);

    let out = run(&["fsck", "-y", "--json", &image]);
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    let report = json(&stdout(&out));
    assert_eq!((&report["clean"], &report["state"]), (&true.into(), &"clean".into()), "{report}");
    let done = &report["repair"];
    assert!(done["actions_total"].as_u64().unwrap() > 0 && done["blocks_written"].as_u64().unwrap() > 0, "{done}");
    assert_eq!(done["by_class_before"]["dir-block"], 1);
    assert!(ok(&["fsck", "-f", "-n", &image]).contains("clean"));
    assert_eq!(run(&["fsck", "-f", "-y", &image]).status.code(), Some(0), "a second repair finds nothing");
}

#[test]
fn preen_repairs_what_is_derived_and_superblocks_come_from_copies() {
    let dir = temp_dir();
    let source = dir.path().join("source");
    make_tree(&source);
    let image = make_image(dir.path(), &[]);
    ok(&["import", source.to_str().unwrap(), &image]);
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    let damage = |magic: &[u8]| {
        let block = contents(&image).chunks(4096).position(|b| b.starts_with(magic)).unwrap() as u64;
        file.write_all_at(&[0x55; 300], block * 4096 + 200).unwrap();
    };
    damage(b"CFBM");
    damage(b"CFLO");
    ok(&["fsck", "-p", &image]); // marked clean: not looked at
    let out = run(&["fsck", "-f", "-p", &image]);
    assert_eq!(out.status.code(), Some(1), "{}{}", stdout(&out), stderr(&out));
    assert!(stdout(&out).contains("REPAIRED"), "{}", stdout(&out));
    ok(&["fsck", "-f", "-n", &image]);

    file.write_all_at(&[0; 4096], 0).unwrap();
    fails(&["fsck", "-n", &image], 8, &[&image, "copies"]);
    let out = run(&["fsck", "-y", &image]);
    assert_eq!(out.status.code(), Some(1), "{}{}", stdout(&out), stderr(&out));
    assert!(stdout(&out).contains("restore it from the copy"), "{}", stdout(&out));
    ok(&["fsck", "-f", "-n", &image]);
    let copy = dir.path().join("copy");
    ok(&["export", &image, copy.to_str().unwrap()]);
    assert_same(&source, &copy);
}

#[test]
fn a_group_is_filled_over_several_mounts() {
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    for round in 0..3 {
        fs::create_dir_all(&source).unwrap();
        for i in 0..5 {
            fs::write(source.join(format!("{round}-{i}")), vec![round; 1500]).unwrap();
        }
        ok(&["import", source.to_str().unwrap(), &image]);
        ok(&["fsck", "-n", &image]);
    }
    ok(&["export", &image, copy.to_str().unwrap()]);
    assert_same(&source, &copy);
}
