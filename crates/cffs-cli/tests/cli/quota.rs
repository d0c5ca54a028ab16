//! `cffs quota`, of images and of mounts.

use crate::mounting::umount;
use crate::tools::*;
use std::fs;
use std::path::Path;
use std::process::Command;

fn user(report: &serde_json::Value, id: u64) -> &serde_json::Value {
    let found = report["user"].as_array().unwrap().iter().find(|q| q["id"] == id);
    found.unwrap_or_else(|| panic!("no user {id} in {report}"))
}

#[test]
fn quotas_of_an_image() {
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    fails(&["quota", "report", &image], 1, &["keeps no quotas", "cffs quota on"]);
    fails(&["quota", "check", &image], 1, &["keeps no quotas"]);
    fails(&["quota", "on", "user,friend", &image], 2, &["friend"]);
    ok(&["quota", "on", "user,project", &image]);
    let info = ok(&["info", "--quick", &image]);
    assert!(info.contains("user-quota") && info.contains("project-quota") && !info.contains("group-quota"), "{info}");
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("below")).unwrap();
    fs::write(tree.join("below/file"), vec![1; 10_000]).unwrap();
    ok(&["import", tree.to_str().unwrap(), &image]);
    ok(&["quota", "check", &image]);
    let me = u64::from(rustix::process::geteuid().as_raw());
    let report = json(&ok(&["quota", "report", "--json", &image]));
    assert!(user(&report, me)["bytes"].as_u64().unwrap() >= 10 << 10, "{report}");
    assert_eq!(user(&report, me)["inodes"], 3);
    assert!(report.get("group").is_none());
    ok(&["quota", "set", "user:4711", "--soft", "1M", "--hard", "2M", "--hard-inodes", "7", &image]);
    ok(&["quota", "set", "user:4711", "--soft-inodes", "5", &image]);
    let report = json(&ok(&["quota", "report", "--json", "--for", "user:4711", &image]));
    let q = user(&report, 4711);
    assert_eq!((&q["soft_bytes"], &q["hard_bytes"]), (&(1u64 << 20).into(), &(2u64 << 20).into()));
    assert_eq!((&q["soft_inodes"], &q["hard_inodes"]), (&5.into(), &7.into()));
    let text = ok(&["quota", "report", "--kind", "user", &image]);
    assert!(text.contains("4711") && text.contains("1 MiB") && text.contains("root"), "{text}");
    fails(&["quota", "set", "user:0", "--hard", "1M", &image], 1, &["user 0", "no limits"]);
    fails(&["quota", "set", "user:5", "--hard", "1M", "--soft", "2M", &image], 1, &["soft", "hard"]);
    fails(&["quota", "set", "group:5", "--hard", "1M", &image], 1, &["group quotas are off"]);
    fails(&["quota", "report", "--kind", "group", &image], 1, &["keeps no group quotas"]);
    assert!(ok(&["quota", "grace", "user", &image]).contains("7 d"));
    assert!(ok(&["quota", "grace", "user", "--space", "2h", &image]).contains("2 h 0 min"));
    assert!(ok(&["quota", "grace", "user", &image]).contains("7 d"), "of inodes as before");
    ok(&["quota", "project", "12", &format!("{image}:/below")]);
    let report = json(&ok(&["quota", "report", "--json", "--for", "project:12", &image]));
    assert_eq!(report["project"][0]["inodes"], 2);
    ok(&["quota", "check", &image]);
    ok(&["fsck", "-n", &image]);
    assert_eq!(ok(&["quota", "repair", &image]), "", "nothing was wrong");
    ok(&["quota", "off", "user", &image]);
    fails(&["quota", "report", "--kind", "user", &image], 1, &["keeps no user quotas"]);
    ok(&["fsck", "-n", &image]);
    ok(&["quota", "on", "user", &image]);
    let report = json(&ok(&["quota", "report", "--json", "--for", "user:4711", &image]));
    assert_eq!(user(&report, 4711)["hard_inodes"], 7, "limits are remembered");
}

/// Runs a shell command as another user; returns its output and whether it succeeded.
fn as_user(uid: u32, script: &str) -> (bool, String) {
    let out = Command::new("timeout")
        .args(["60", "setpriv", "--reuid", &uid.to_string(), "--regid", &uid.to_string(), "--clear-groups", "sh", "-c"])
        .arg(script)
        .output()
        .unwrap();
    (out.status.success(), format!("{}{}", stdout(&out), stderr(&out)))
}

#[test]
fn quotas_of_a_mount() {
    if !have(&[Need::Root, Need::Fuse, Need::Program("setpriv")]) {
        return;
    }
    let dir = temp_dir();
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let image = make_image(dir.path(), &["--quota", "user,group,project"]);
    let path = dir.path().join("mnt");
    fs::create_dir(&path).unwrap();
    let at = path.to_str().unwrap();
    let _mounted = Mounted(path.clone());
    ok(&["mount", &image, at]);
    let home = path.join("home");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(4711), Some(4711)).unwrap();
    ok(&["quota", "set", "user:4711", "--hard", "1M", "--hard-inodes", "4", at]);
    let home = home.to_str().unwrap();
    // At the hard limit write(2) says EDQUOT, and an fsync of what it took succeeds.
    let (done, text) = as_user(4711, &format!("dd if=/dev/zero of={home}/f bs=1000 count=2000 conv=fsync"));
    assert!(!done && text.contains("quota exceeded"), "{text}");
    let (done, text) = as_user(4711, &format!("dd if=/dev/zero of={home}/f bs=1000 count=500 conv=fsync,notrunc"));
    assert!(done, "{text}");
    let (done, text) = as_user(4711, &format!("for n in 1 2 3; do touch {home}/$n || exit 1; done"));
    assert!(!done && text.contains("quota exceeded"), "{text}");
    let report = json(&ok(&["quota", "report", "--json", at]));
    let q = user(&report, 4711);
    assert!(q["bytes"].as_u64().unwrap() <= 1 << 20 && q["bytes"].as_u64().unwrap() > 1000 << 10, "{q}");
    assert_eq!(q["inodes"], 4);
    // Everybody sees his own, and changes nothing.
    let cffs = Path::new(CFFS).display();
    let copy = dir.path().join("cffs");
    fs::copy(CFFS, &copy).unwrap_or_else(|e| panic!("{cffs}: {e}"));
    let cffs = copy.display();
    let (done, text) = as_user(4711, &format!("{cffs} quota report --json {home}"));
    assert!(done, "{text}");
    let own = json(&text);
    assert_eq!((own["user"].as_array().unwrap().len(), &own["user"][0]["id"]), (1, &4711.into()));
    assert!(!as_user(4711, &format!("{cffs} quota report --for user:0 {home}")).0);
    assert!(!as_user(4711, &format!("{cffs} quota set user:4711 --hard 1G {home}")).0);
    // A project: everything below, and what is made there later.
    let tree = path.join("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/file"), vec![1; 5000]).unwrap();
    ok(&["quota", "project", "33", tree.to_str().unwrap()]);
    fs::write(tree.join("a/b/later"), vec![1; 5000]).unwrap();
    let report = json(&ok(&["quota", "report", "--json", "--for", "project:33", at]));
    assert_eq!(report["project"][0]["inodes"], 5);
    ok(&["quota", "set", "project:33", "--soft", "1K", at]);
    assert!(ok(&["quota", "grace", "project", "--space", "1h", at]).contains("1 h"));
    let report = ok(&["quota", "report", "--for", "project:33", at]);
    assert!(report.contains("6 d 23 h"), "its grace began before: {report}");
    let e = fs::hard_link(path.join("home/f"), tree.join("f")).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(rustix::io::Errno::XDEV.raw_os_error()));
    umount(at);
    ok(&["quota", "check", &image]);
    ok(&["fsck", "-n", &image]);
}
