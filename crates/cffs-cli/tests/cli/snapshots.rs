//! Snapshots of file systems with the log layout, by the program.

use crate::mounting::{fuse_works, mount_point, umount};
use crate::tools::*;
use std::fs;
use std::path::Path;

fn make_log_image(dir: &Path) -> String {
    let image = dir.join("image").to_str().unwrap().to_owned();
    ok(&["mkfs", "--layout=log", "--size", "48M", "--group-size", "64K", "--compress=lz4", &image]);
    image
}

fn list(of: &str) -> Vec<String> {
    ok(&["snapshot", "list", of]).lines().map(str::to_owned).collect()
}

#[test]
fn snapshots_of_an_image_are_made_compared_cloned_and_deleted() {
    let dir = temp_dir();
    let image = make_log_image(dir.path());
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("stays"), "1").unwrap();
    fs::write(from.join("changes"), "1").unwrap();
    ok(&["import", from.to_str().unwrap(), &image]);
    ok(&["snapshot", "create", &image, "monday"]);
    fails(&["snapshot", "create", &image, "monday"], 1, &["monday", "already"]);
    fs::remove_file(from.join("stays")).unwrap();
    fs::write(from.join("changes"), "two").unwrap();
    fs::write(from.join("comes"), "2").unwrap();
    ok(&["import", from.to_str().unwrap(), &image]);
    ok(&["rm", &format!("{image}:/stays")]);
    assert_eq!(ok(&["snapshot", "diff", &image, "monday"]), "M changes\n- stays\n+ comes\n");
    ok(&["snapshot", "create", &image, "tuesday"]);
    assert_eq!(ok(&["snapshot", "diff", &image, "tuesday"]), "");
    let told = json(&ok(&["snapshot", "diff", "--json", &image, "monday", "tuesday"]));
    assert_eq!(told[0], serde_json::json!({"change": "changed", "path": "changes"}));
    ok(&["snapshot", "clone", &image, "monday", "again"]);
    let names = list(&image);
    assert!(names.contains(&"again (clone of monday)".to_owned()) && names.len() == 3, "{names:?}");
    fails(&["snapshot", "delete", &image, "monday"], 1, &["monday", "clones"]);
    fails(&["snapshot", "delete", &image, "sunday"], 1, &["sunday", "snapshot list"]);
    ok(&["fsck", "-n", "--data", &image]);
    ok(&["snapshot", "delete", &image, "again", "monday", "tuesday"]);
    assert!(list(&image).is_empty());
    ok(&["fsck", "-n", "--data", &image]);
    // What has no log disk has no snapshots.
    let plain = dir.path().join("plain").to_str().unwrap().to_owned();
    ok(&["mkfs", "--size", "32M", &plain]);
    fails(&["snapshot", "list", &plain], 1, &["log layout"]);
    fails(&["snapshot", "create", &plain, "x"], 1, &["--layout=log"]);
}

#[test]
fn snapshots_of_a_mount_are_mounted_later() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_log_image(dir.path());
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", &image, &name]);
    fs::create_dir(path.join("dir")).unwrap();
    fs::write(path.join("dir/file"), "monday").unwrap();
    // What nobody has synced is in it.
    ok(&["snapshot", "create", &name, "monday"]);
    fs::write(path.join("dir/file"), "tuesday").unwrap();
    fs::write(path.join("new"), "tuesday").unwrap();
    assert_eq!(ok(&["snapshot", "diff", &name, "monday"]), "+ new\nM dir/file\n");
    ok(&["snapshot", "clone", &name, "monday", "other"]);
    ok(&["snapshot", "create", &name, "gone"]);
    ok(&["snapshot", "delete", &name, "gone"]);
    assert_eq!(list(&name).len(), 2);
    let second = dir.path().join("second");
    fs::create_dir(&second).unwrap();
    let second = second.to_str().unwrap();
    fails(&["snapshot", "mount", &image, "monday", second], 32, &["unmount it first"]);
    umount(&name);
    {
        ok(&["snapshot", "mount", &image, "monday", &name]);
        assert_eq!(fs::read(path.join("dir/file")).unwrap(), b"monday");
        assert!(!path.join("new").exists());
        assert!(fs::write(path.join("x"), "").is_err(), "it is read-only");
        fails(&["snapshot", "list", &name], 1, &["snapshot"]);
        umount(&name);
    }
    ok(&["mount", "-o", "snapshot=other", &image, &name]);
    fs::write(path.join("dir/file"), "a clone").unwrap();
    umount(&name);
    fails(&["mount", "-o", "snapshot=nosuch", &image, &name], 32, &["nosuch"]);
    assert_eq!(ok(&["cat", &format!("{image}:/dir/file")]), "tuesday");
    assert_eq!(ok(&["snapshot", "diff", &image, "monday", "other"]), "M dir/file\n");
    ok(&["fsck", "-n", "--data", &image]);
}
