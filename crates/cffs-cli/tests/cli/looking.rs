//! `dump` and `image`: what is on an image, for those who look for what is wrong with it.

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
