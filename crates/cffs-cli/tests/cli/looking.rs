//! `dump` and `image`: what is on an image, for those who look for what is wrong with it.

use crate::log_layout::{make_log_image, noise};
use crate::tools::*;
use std::os::unix::fs::FileExt;

fn filled_image(dir: &std::path::Path) -> String {
    let image = make_image(dir, &[]);
    let tree = dir.join("tree");
    std::fs::create_dir_all(tree.join("some/where")).unwrap();
    std::fs::write(tree.join("some/where/letter.txt"), "the secret of the letter").unwrap();
    std::fs::write(tree.join("some/long.bin"), vec![b'q'; 100_000]).unwrap();
    std::os::unix::fs::symlink("some/where/letter.txt", tree.join("link")).unwrap();
    ok(&["import", tree.to_str().unwrap(), &format!("{image}:/")]);
    image
}

#[test]
fn dump_prints_structures_and_has_them_as_json() {
    let dir = temp_dir();
    let image = filled_image(dir.path());
    let text = ok(&["dump", &image, "superblock"]);
    assert!(text.contains("checksum ok    yes") && text.contains("group          1"), "{text}");
    let copies = json(&ok(&["dump", "--json", &image, "superblock"]));
    assert!(copies.as_array().unwrap().len() > 1);
    assert_eq!(copies[0]["state"], "clean");
    let primary = json(&ok(&["dump", "--json", &image, "superblock", "0"]));
    assert_eq!(primary, copies[0]);
    let group = json(&ok(&["dump", "--json", &image, "group", "0"]));
    assert_eq!(group["header"]["free_fragments"], group["bitmaps"][0]["free_fragments"]);
    let dir_text = ok(&["dump", &image, "dir", "/some/where"]);
    assert!(dir_text.contains("name \"letter.txt\"") && dir_text.contains("embedded: inode "), "{dir_text}");
    let inode = json(&ok(&["dump", "--json", &image, "inode", "/link"]));
    assert_eq!(inode["target"], "some/where/letter.txt");
    let number = inode["inode"].to_string();
    assert_eq!(json(&ok(&["dump", "--json", &image, "inode", &number])), inode);
    let record = json(&ok(&["dump", "--json", &image, "locator", &number]));
    assert_eq!(record["in_block"], inode["in_block"]);
    let block = json(&ok(&["dump", "--json", &image, "block", &inode["in_block"].to_string()]));
    assert_eq!((&block["kind"], &block["fragments_in_use"]), (&"directory block".into(), &"1111".into()));
    assert!(ok(&["dump", &image, "extents", "/some/long.bin"]).contains("extents: 1"));
    assert_eq!(json(&ok(&["dump", "--json", "--replay", &image, "log"]))["replayable"], true);
    for what in [&["counters"][..], &["locator"], &["external"], &["quota", "user"], &["xattrs", "/link"]] {
        ok(&[&["dump", &image], what].concat());
    }
}

#[test]
fn dump_shows_what_is_left_of_a_damaged_image() {
    let dir = temp_dir();
    let image = filled_image(dir.path());
    let inode = json(&ok(&["dump", "--json", &image, "inode", "/some/where/letter.txt"]));
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    let block = inode["in_block"].as_u64().unwrap();
    file.write_all_at(b"!", block * 4096 + 4000).unwrap();
    let text = ok(&["dump", &image, "dir", "/some/where"]);
    assert!(text.contains("checksum does not match") && text.contains("letter.txt"), "{text}");
    file.write_all_at(&[0; 4096], 0).unwrap();
    let out = run(&["dump", &image, "inode", "/some/where"]);
    assert!(out.status.success() && stderr(&out).contains("is used"), "{}", stderr(&out));
    assert!(ok(&["dump", &image, "superblock"]).contains("magic ok  no"));
}

/// From the name of a file to its bytes on the image, also in a snapshot; and what can be seen of a log disk that cannot be opened.
#[test]
fn dump_shows_the_log_disk_below_a_file_system() {
    let dir = temp_dir();
    let image = make_log_image(dir.path(), &[]);
    let dump = |what: &[&str]| json(&ok(&[&["dump", "--json", &image], what].concat()));
    let store = |data: &[u8]| {
        let from = dir.path().join("from");
        std::fs::create_dir_all(&from).unwrap();
        std::fs::write(from.join("letter"), data).unwrap();
        ok(&["import", from.to_str().unwrap(), &image]);
    };
    let there = |map: &serde_json::Value| {
        let extent = &map["extents"][0];
        assert_eq!((&extent["codec"], &extent["blocks"]), (&"plain".into(), &4.into()), "{map}");
        let at = extent["byte"].as_u64().unwrap() as usize;
        (extent["segment"].as_str().unwrap().to_owned(), contents(&image)[at..at + (4 << 12)].to_vec())
    };
    let (first, second) = (noise(1, 4 << 12), noise(2, 4 << 12));
    store(&first);
    ok(&["snapshot", "create", &image, "monday"]);
    let old = dump(&["extents", "/letter"])["extents"][0]["first"].as_u64().unwrap() / 4;
    store(&second);
    let new = dump(&["extents", "/letter"])["extents"][0]["first"].as_u64().unwrap() / 4;
    let branches = dump(&["branches"]);
    assert_eq!(
        (&branches["branches"][0]["name"], &branches["snapshots"][0]["name"]),
        (&"main".into(), &"monday".into())
    );
    let snapshot = branches["snapshots"][0]["id"].to_string();
    let (segment, bytes) = there(&dump(&["map", &new.to_string(), "4"]));
    assert!(bytes == second);
    assert!(there(&dump(&["map", &old.to_string(), "4", "--of", &snapshot])).1 == first);

    let segments = dump(&["segments"]);
    let list = segments["list"].as_array().unwrap();
    assert!(
        list.iter().any(|s| s["segment"] == segment.as_str() && s["live"].as_u64().unwrap() >= 4 << 12),
        "{segments}"
    );
    let entries_of = |segment: &str| {
        let batches = dump(&["segment", segment])["batches"].as_array().unwrap().clone();
        batches.iter().flat_map(|b| b["entries"].as_array().unwrap().clone()).collect::<Vec<_>>()
    };
    let entries = entries_of(&segment);
    assert!(entries.iter().any(|e| e["entry"] == "write" && e["block"] == new && e["blocks"] == 4), "{entries:?}");
    let disk = dump(&["disk"]);
    let [a, b] = [0, 1].map(|n| disk["superblocks"][n]["sequence"].as_u64().unwrap());
    assert!(a.abs_diff(b) == 1 && disk["superblocks"][0]["slots"].as_u64().unwrap() > 10, "{disk}");
    assert!(disk["checkpoint"]["problems"].is_null() && disk["checkpoint"]["logical_bytes"].as_u64().unwrap() > 0);

    // The checkpoint is lost, and a superblock.
    let newer = usize::from(b > a);
    let root = &disk["superblocks"][newer]["root"];
    let of_root = root["segment"].as_str().unwrap().to_owned();
    let start = dump(&["segment", &of_root])["byte"].as_u64().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(&[0; 512], start + root["offset"].as_u64().unwrap()).unwrap();
    fails(&["dump", &image, "segments"], 1, &[&image, "fsck"]);
    let disk = dump(&["disk"]);
    assert!(disk["superblocks"][newer]["problems"].is_null() && !disk["checkpoint"]["problems"].is_null(), "{disk}");
    assert_eq!(entries_of(&segment), entries);
    file.write_all_at(&[0; 512], disk["superblocks"][1 - newer]["at"].as_u64().unwrap()).unwrap();
    assert!(dump(&["disk"])["superblocks"][1 - newer]["problems"].to_string().contains("no superblock"));

    fails(&["dump", &image, "segment", "0xffff"], 1, &[&image, "0xffff is none of this image"]);
    fails(&["dump", &image, "segment", "none"], 2, &["none"]);
    let plain = make_image(dir.path(), &["--force"]);
    for what in [&["disk"][..], &["segments"], &["segment", "1"], &["branches"], &["map", "1"]] {
        fails(&[&["dump", &plain], what].concat(), 1, &[&plain, "no log disk"]);
    }
}

#[test]
fn dump_names_what_is_wrong_with_its_arguments() {
    let dir = temp_dir();
    let image = filled_image(dir.path());
    let none = dir.path().join("none").to_str().unwrap().to_owned();
    let text = dir.path().join("tree/some/long.bin").to_str().unwrap().to_owned();
    fails(&["dump", &image], 2, &["Usage"]);
    fails(&["dump", &image, "nonsense"], 2, &["nonsense"]);
    fails(&["dump", &none, "superblock"], 1, &[&none, "No such file"]);
    fails(&["dump", &text, "counters"], 1, &[&text, "not a cffs", "superblock"]);
    fails(&["dump", &image, "group", "99"], 1, &[&image, "no allocation group 99"]);
    fails(&["dump", &image, "block", "99999999999"], 1, &[&image, "outside"]);
    fails(&["dump", &image, "inode", "some"], 1, &["some", "neither"]);
    fails(&["dump", &image, "inode", "/some/no"], 1, &["/some", "no no in"]);
    fails(&["dump", &image, "inode", "15"], 1, &["no inode 15"]);
    fails(&["dump", &image, "quota", "cats"], 2, &["cats"]);
}

/// Problems that a check of an image finds, and its exit code.
fn verdict(image: &str) -> (serde_json::Value, Option<i32>) {
    let out = run(&["fsck", "-n", "--json", image]);
    let report = json(&stdout(&out));
    (report["by_class"].clone(), out.status.code())
}

fn holds(image: &str, text: &str) -> bool {
    contents(image).windows(text.len()).any(|w| w == text.as_bytes())
}

#[test]
fn image_copies_the_metadata_and_nothing_else() {
    use std::os::unix::fs::MetadataExt;
    let dir = temp_dir();
    let image = filled_image(dir.path());
    let before = contents(&image);
    let copy = dir.path().join("copy").to_str().unwrap().to_owned();
    let said = ok(&["image", &image, &copy]);
    assert!(said.contains("of metadata in") && said.contains("as they are"), "{said}");
    assert!(holds(&image, "the secret of the letter") && !holds(&copy, "the secret of the letter"));
    assert!(holds(&copy, "letter.txt") && !holds(&copy, "qqqqqqqq"));
    let (a, b) = (std::fs::metadata(&image).unwrap(), std::fs::metadata(&copy).unwrap());
    assert!(a.len() == b.len() && b.blocks() < a.blocks());
    assert_eq!(verdict(&copy), verdict(&image));
    assert_eq!(verdict(&copy).1, Some(0));
    assert!(ok(&["ls", &format!("{copy}:/some/where")]).contains("letter.txt"));

    let other = dir.path().join("other").to_str().unwrap().to_owned();
    fails(&["image", &image, &copy], 1, &[&copy, "already", "--force"]);
    let json_said = json(&ok(&["image", "--json", "--force", "--obfuscate", &image, &copy]));
    assert!(json_said["blocks"].as_u64().unwrap() > 5 && json_said["scrambled"] == true);
    assert!(!holds(&copy, "letter") && !holds(&copy, "where"));
    assert_eq!(verdict(&copy).1, Some(0));
    // The target of the link is the path of the file, under its new name too.
    let link = json(&ok(&["ls", "--json", &format!("{copy}:/")]));
    let target = link.as_array().unwrap().iter().find_map(|e| e["target"].as_str()).unwrap().to_owned();
    ok(&["stat", &format!("{copy}:/{target}")]);

    // The same key makes the same names; a random one others.
    let key = dir.path().join("key");
    std::fs::write(&key, "a key of my own").unwrap();
    // `--scramble` is the older name of `--obfuscate`.
    let names = |args: &[&str]| {
        ok(&[&["image", "--force", "--scramble"], args, &[&image, &other]].concat());
        ok(&["ls", &format!("{other}:/")])
    };
    let with_key = ["--key-file", key.to_str().unwrap()];
    assert_eq!(names(&with_key), names(&with_key));
    assert_ne!(names(&[]), names(&[]));
    assert_eq!(contents(&image), before);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|n| n.to_string_lossy().contains(".part")), "{left:?}");
}

#[test]
fn image_of_a_damaged_image_has_the_same_problems() {
    let dir = temp_dir();
    let image = filled_image(dir.path());
    let inode = json(&ok(&["dump", "--json", &image, "inode", "/some/where/letter.txt"]));
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(b"!", inode["in_block"].as_u64().unwrap() * 4096 + 4000).unwrap();
    assert_eq!(verdict(&image).1, Some(4));
    let copy = dir.path().join("copy").to_str().unwrap().to_owned();
    for options in [&[][..], &["--obfuscate"], &["--keep-damaged"]] {
        let said = ok(&[&["image", "-f"], options, &[&image, &copy]].concat());
        assert!(said.contains("1 blocks with a wrong checksum"), "{said}");
        assert_eq!(verdict(&copy), verdict(&image));
    }
}

#[test]
fn image_names_what_is_wrong_with_its_arguments() {
    let dir = temp_dir();
    let image = filled_image(dir.path());
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (copy, text) = (path("copy"), path("tree/some/long.bin"));
    fails(&["image", &image], 2, &["TARGET"]);
    fails(&["image", &path("none"), &copy], 1, &["none", "No such file"]);
    fails(&["image", &text, &copy], 1, &[&text, "not a cffs"]);
    fails(&["image", "--force", &image, &image], 1, &["the same"]);
    fails(&["image", "--force", &image, &path("tree")], 1, &["tree", "not a regular file"]);
    fails(&["image", &image, &path("no/where")], 1, &["where"]);
    fails(&["image", "--key-file", &text, &image, &copy], 2, &["--obfuscate"]);
    std::fs::write(path("key"), "short").unwrap();
    fails(&["image", "--obfuscate", "--key-file", &path("key"), &image, &copy], 1, &["key", "at least 8 bytes"]);
    assert!(!dir.path().join("copy").exists() && !dir.path().join("copy.part").exists());
}

#[test]
fn scrub_finds_what_is_damaged_under_a_mount() {
    use crate::mounting::{fuse_works, mount_point, umount};
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = filled_image(dir.path());
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    fails(&["scrub", &name], 8, &[&name, "not on a mounted cffs"]);
    fails(&["scrub", "--rate", "fast", &name], 16, &["fast"]);
    let before = json(&ok(&["dump", "--json", &image, "inode", "/some/where/letter.txt"]));
    ok(&["mount", &image, &name]);
    fails(&["scrub", "--status", &name], 8, &["no scrub"]);
    let good = ok(&["scrub", "--rate", "1G", &name]);
    assert!(good.contains("scrub complete: 0 problems"), "{good}");
    let status = json(&ok(&["scrub", "--json", "--status", path.join("some").to_str().unwrap()]));
    assert_eq!((&status["findings_total"], &status["outcome"]), (&0.into(), &"complete".into()));

    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    let block = before["in_block"].as_u64().unwrap();
    file.write_all_at(b"!", block * 4096 + 4000).unwrap();
    let out = run(&["scrub", "--json", &name]);
    assert_eq!(out.status.code(), Some(4), "{}", stderr(&out));
    let found = json(&stdout(&out));
    assert_eq!((&found["findings"][0]["block"], &found["findings_total"]), (&block.into(), &1.into()));
    let out = run(&["scrub", "--status", &name]);
    assert!(out.status.code() == Some(4) && stdout(&out).contains("checksum does not match"), "{}", stdout(&out));
    assert!(stderr(&out).contains("fsck"));

    // Stopped by an interrupt, and in the background by another.
    ok(&["scrub", "--background", "--rate", "1K", &name]);
    fails(&["scrub", &name], 8, &["a scrub runs already"]);
    let stopped = ok_or_found(&["scrub", "--stop", &name]);
    assert!(stopped.contains("scrub stopped"), "{stopped}");
    let child = std::process::Command::new(CFFS).args(["scrub", "--rate", "1K", &name]).spawn().unwrap();
    let mut child = child;
    let running = |name: &str| json(&stdout(&run(&["scrub", "--json", "--status", name])))["running"] == true;
    while !running(&name) {
        std::thread::yield_now();
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    let code = child.wait().unwrap().code().unwrap();
    assert!(code == 32 || code == 32 + 4, "{code}");
    assert!(!running(&name));
    umount(&name);
    assert_eq!(json(&ok(&["info", "--quick", "--json", &image]))["state"], "error");
    assert_eq!(run(&["fsck", "-n", &image]).status.code(), Some(4));
}

/// The output of a command whose exit code tells of problems.
fn ok_or_found(args: &[&str]) -> String {
    let out = run(args);
    assert!(matches!(out.status.code(), Some(0 | 4)), "{args:?}: {}", stderr(&out));
    stdout(&out)
}
