//! Volumes of several images: made, mounted by any member, damaged, degraded, changed while they are mounted.

use crate::mounting::{Foreground, fuse_works, is_mounted, mount_point, umount, wait_until};
use crate::tools::*;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

fn image(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}

/// A volume of new images with a small file system.
fn make(dir: &Path, how: &[&str], names: &[&str]) -> Vec<String> {
    let members: Vec<String> = names.iter().map(|n| image(dir, n)).collect();
    let args = ["mkfs", "--size", "40M", "--group-size", "64K"];
    let all: Vec<&str> = args.iter().chain(how).copied().chain(members.iter().map(String::as_str)).collect();
    ok(&all);
    members
}

fn sparse(dir: &Path, name: &str, bytes: u64) -> String {
    let path = image(dir, name);
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

fn tree(root: &Path) {
    for d in 0..5 {
        let dir = root.join(format!("d{d}"));
        fs::create_dir_all(&dir).unwrap();
        (0..30).for_each(|n| fs::write(dir.join(format!("f{n}")), vec![(d * 31 + n) as u8; n * 211]).unwrap());
    }
    fs::write(root.join("large"), (0..3_000_000u32).map(|n| (n / 100) as u8).collect::<Vec<_>>()).unwrap();
}

fn check_tree(root: &Path) {
    for d in 0..5 {
        for n in 0..30usize {
            let found = fs::read(root.join(format!("d{d}/f{n}"))).unwrap();
            assert!(found == vec![(d * 31 + n) as u8; n * 211], "d{d}/f{n}");
        }
    }
    let large: Vec<u8> = (0..3_000_000u32).map(|n| (n / 100) as u8).collect();
    assert!(fs::read(root.join("large")).unwrap() == large);
}

fn status(name: &str) -> serde_json::Value {
    json(&ok(&["volume", name, "status", "--json"]))
}

fn states(report: &serde_json::Value) -> Vec<String> {
    let list = report["members"].as_array().unwrap().iter();
    list.map(|m| m["state"].as_str().unwrap().to_owned()).collect()
}

/// Zeros a piece of each megabyte behind the first two, on one member.
fn damage(path: &str) {
    let file = File::options().write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    // The superblock of the file system, and what is written first.
    file.write_all_at(&[0; 65536], 1 << 20).unwrap();
    (3..len >> 20).for_each(|mib| file.write_all_at(&[0xa5; 100_000], mib << 20).unwrap());
}

#[test]
fn any_member_names_a_volume_to_every_command() {
    let dir = temp_dir();
    let from = dir.path().join("from");
    tree(&from);
    for (how, names) in [
        (&["--mirror"][..], &["m1", "m2"][..]),
        (&["--stripe", "1M"], &["s1", "s2", "s3"]),
        (&["--concat"], &["c1", "c2"]),
        (&["--mirror", "--layout=log"], &["l1", "l2"]),
    ] {
        let members = make(dir.path(), how, names);
        ok(&["import", from.to_str().unwrap(), &members[1]]);
        for member in &members {
            let info = json(&ok(&["info", "--json", member]));
            assert_eq!(info["volume"]["members"].as_array().unwrap().len(), names.len(), "{how:?}");
            assert!(states(&info["volume"]).iter().all(|s| s == "in-sync"));
            ok(&["fsck", "-n", "--data", member]);
            assert!(ok(&["ls", &format!("{member}:/")]).contains("large"));
            assert!(ok(&["cat", &format!("{member}:/d1/f7")]).len() == 7 * 211);
            assert_eq!(json(&ok(&["stats", "--json", member]))["volume"]["kind"], info["volume"]["kind"]);
            ok(&["dump", member, "superblock"]);
        }
        ok(&["tune", "--label", "several", &members[0]]);
        ok(&["fsck", "-fy", members.last().unwrap()]);
        let out = dir.path().join(format!("out-{}", names[0]));
        ok(&["export", &members[1], out.to_str().unwrap()]);
        check_tree(&out);
        fails(&["grow", &members[0]], 1, &["members of a volume keep their size"]);
        let copy = image(dir.path(), &format!("{}.meta", names[0]));
        if !how.contains(&"--layout=log") {
            ok(&["image", &members[0], &copy]);
            ok(&["fsck", "-n", &copy]);
        }
    }
}

#[test]
fn a_mount_heals_a_mirror_and_a_scrub_finds_the_rest() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let members = make(dir.path(), &["--mirror", "--data-sums=on"], &["a", "b"]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", &members[1], &name]);
    tree(&path);
    umount(&name);
    damage(&members[0]);
    ok(&["mount", &members[0], &name]);
    check_tree(&path);
    let repaired = || status(&name)["mirror"]["repaired"].as_u64().unwrap();
    // How many depends on how many reads went to the damaged one, and that on what else the machine does.
    let by_reading = repaired();
    assert!(by_reading > 0, "{}", status(&name));
    let out = ok(&["volume", &name, "scrub"]);
    assert!(repaired() > 10.max(by_reading), "{by_reading} repaired by reading; {}", status(&name));
    assert!(out.contains("members compared") && out.contains("0 problems"), "{out}");
    let again = json(&ok(&["volume", &name, "status", "--json"]));
    assert_eq!(again["work"]["compared"]["unknown"], 0, "{again}");
    ok(&["volume", &name, "scrub", "--compare-only"]);
    let compared = status(&name)["work"]["compared"].clone();
    assert_eq!((&compared["differences"], &compared["unknown"]), (&0.into(), &0.into()), "{compared}");
    let text = ok(&["stats", "--prometheus", &name]);
    assert!(
        text.matches("cffs_volume_member_up{").count() == 2 && text.contains("cffs_mirror_repaired_total{"),
        "{text}"
    );
    let info = ok(&["info", &name]);
    assert!(info.contains("mirror of 2 members") && info.contains("member 1"), "{info}");
    umount(&name);
    // Each alone has everything.
    for member in &members {
        let alone = temp_dir();
        let copy = image(alone.path(), "alone");
        fs::copy(member, &copy).unwrap();
        fails(&["fsck", "-n", &copy], 8, &["1 of 2 members are there", "--degraded"]);
        ok(&["fsck", "-n", "--data", "--degraded", &copy]);
        let out = alone.path().join("out");
        ok(&["export", "--degraded", &copy, out.to_str().unwrap()]);
        check_tree(&out);
    }
}

#[test]
fn a_mirror_without_a_member_is_mounted_when_that_is_asked_for() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let members = make(dir.path(), &["--mirror"], &["a", "b"]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    let away = dir.path().join("away");
    fs::create_dir(&away).unwrap();
    let moved = image(&away, "b");
    fs::rename(&members[1], &moved).unwrap();
    let before = contents(&members[0]);
    fails(&["mount", &members[0], &name], 32, &["1 of 2 members", "-o members=PATH", "-o degraded"]);
    assert!(contents(&members[0]) == before, "a refusal has changed something");
    // Elsewhere it is found if that is said, as a directory or as a file.
    for place in [away.to_str().unwrap(), &moved] {
        ok(&["mount", "-o", &format!("members={place}"), &members[0], &name]);
        assert_eq!(states(&status(&name)), ["in-sync", "in-sync"]);
        umount(&name);
    }
    ok(&["info", "-q", "--members", &moved, &members[0]]);
    let out = run(&["mount", "-o", "degraded", &members[0], &name]);
    assert!(out.status.success() && stderr(&out).contains("degraded"), "{}", stderr(&out));
    tree(&path);
    assert!(ok(&["volume", &name, "status"]).contains("DEGRADED"));
    // It comes back while the mirror is in use, and gets what was written meanwhile.
    ok(&["volume", &name, "add", &moved]);
    let report = status(&name);
    assert_eq!(states(&report), ["in-sync", "in-sync"]);
    assert_eq!(report["work"]["outcome"], "complete");
    assert!(report["mirror"]["resynced_bytes"].as_u64().unwrap() < 20 << 20, "by the bitmap: {report}");
    fails(&["volume", &name, "add", &moved], 8, &["a member already"]);
    umount(&name);
    ok(&["mount", "-o", "degraded", &moved, &name]);
    check_tree(&path);
    umount(&name);
    // That was without the other one, so by itself the other one is the past; both together know.
    ok(&["mount", "-o", &format!("members={}", members[0]), &moved, &name]);
    wait_until("in sync", || states(&status(&name)) == ["in-sync", "in-sync"]);
    check_tree(&path);
    umount(&name);
}

#[test]
fn halves_used_apart_are_refused_and_the_way_out_works() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let members = make(dir.path(), &["--mirror"], &["a", "b"]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    let apart: Vec<_> = (0..2).map(|_| temp_dir()).collect();
    let moved: Vec<String> = (0..2).map(|i| image(apart[i].path(), "half")).collect();
    for i in 0..2 {
        fs::rename(&members[i], &moved[i]).unwrap();
        ok(&["mount", "-o", "degraded", &moved[i], &name]);
        fs::write(path.join("which"), format!("half {i}")).unwrap();
        umount(&name);
    }
    (0..2).for_each(|i| fs::rename(&moved[i], &members[i]).unwrap());
    let before = [contents(&members[0]), contents(&members[1])];
    for member in &members {
        fails(&["mount", "-o", "degraded", member, &name], 32, &["each used without the other", "add --force"]);
        fails(&["fsck", "-y", member], 8, &["each used without the other"]);
    }
    assert!(before == [contents(&members[0]), contents(&members[1])], "a refusal has changed something");
    fs::rename(&members[1], &moved[1]).unwrap();
    ok(&["mount", "-o", "degraded", &members[0], &name]);
    fails(&["volume", &name, "add", &moved[1]], 8, &["each used without the other"]);
    ok(&["volume", &name, "add", "--force", &moved[1]]);
    let absent = states(&status(&name)).iter().position(|s| s == "absent").unwrap();
    ok(&["volume", &name, "remove", &absent.to_string()]);
    assert_eq!(states(&status(&name)), ["in-sync", "in-sync"]);
    umount(&name);
    fs::rename(&moved[1], &members[1]).unwrap();
    ok(&["mount", &members[1], &name]);
    assert_eq!(fs::read_to_string(path.join("which")).unwrap(), "half 0");
    umount(&name);
}

#[test]
fn members_are_added_replaced_and_removed_while_files_are_written() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let members = make(dir.path(), &["--mirror"], &["a", "b"]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", &members[0], &name]);
    let small = sparse(dir.path(), "small", 30 << 20);
    let (c, d) = (sparse(dir.path(), "c", 40 << 20), sparse(dir.path(), "d", 50 << 20));
    fails(&["volume", &name, "add", &small], 8, &["a member of this volume", "take a larger one"]);
    fails(&["volume", &name, "replace", "0", &small], 8, &["take a larger one"]);
    fails(&["volume", &name, "replace", "7", &c], 8, &["no member is called 7"]);
    fails(&["volume", &name, "add", &image(dir.path(), "nosuch")], 8, &["truncate -s"]);
    let taken = make_image(dir.path(), &[]);
    fails(&["volume", &name, "add", &taken], 8, &["holds a cffs file system", "--force"]);
    assert_eq!(states(&status(&name)), ["in-sync", "in-sync"], "nothing was changed");
    let writer = std::thread::spawn({
        let path = path.clone();
        move || (0..4).for_each(|n| tree(&path.join(format!("t{n}"))))
    });
    // At a rate, with progress.
    ok(&["volume", &name, "replace", "--rate", "20M", "--background", &members[1], &c]);
    let mut seen = 0;
    wait_until("replaced", || {
        let work = status(&name)["work"].clone();
        let done = work["done"].as_u64().unwrap();
        seen += u64::from(done > 0 && work["outcome"].is_null());
        assert!(work["outcome"].is_null() || work["outcome"] == "complete", "{work}");
        work["outcome"] == "complete"
    });
    assert!(seen > 1, "progress was seen {seen} times");
    let tenths = status(&name)["work"]["deciseconds"].as_u64().unwrap();
    assert!(tenths >= 18, "39 MiB at 20 MiB a second took {tenths} tenths of a second");
    ok(&["volume", &name, "add", &d]);
    let disk = |n: u64| {
        let all = json(&ok(&["stats", "--json", &name]))["disks"].as_array().unwrap().clone();
        all.into_iter().find(|d| d["disk"] == n).map(|d| d["purposes"]["writeback"]["write_requests"].as_u64().unwrap())
    };
    let of_c = disk(2).unwrap();
    ok(&["volume", &name, "remove", &members[0]]);
    writer.join().unwrap();
    let report = status(&name);
    // Disks keep their numbers and so their counters, and no number is given again.
    assert_eq!([&report["members"][0]["disk"], &report["members"][1]["disk"]], [&json("2"), &json("3")], "{report}");
    assert!(disk(0).is_none() && disk(1).is_none() && disk(2).unwrap() >= of_c && disk(3).is_some());
    assert_eq!(states(&report), ["in-sync", "in-sync"]);
    let names: Vec<_> = report["members"].as_array().unwrap().iter().map(|m| m["name"].clone()).collect();
    assert_eq!(names, [c.as_str(), d.as_str()]);
    fails(&["volume", &name, "remove", "nosuch"], 16, &["status"]);
    umount(&name);
    // Who was removed is no member any more.
    fails(&["fsck", "-n", &members[0]], 8, &["not a cffs"]);
    ok(&["fsck", "-n", "--data", &d]);
    ok(&["mount", &c, &name]);
    (0..4).for_each(|n| check_tree(&path.join(format!("t{n}"))));
    let out = ok(&["volume", &name, "scrub", "--compare-only"]);
    assert!(out.contains(" 0 blocks differed"), "{out}");
    umount(&name);
}

/// A mount on a mirror of two new images.
fn mirrored(dir: &Path) -> (Vec<String>, std::path::PathBuf, String) {
    let members = make(dir, &["--mirror"], &["a", "b"]);
    let (path, name) = mount_point(dir);
    (members, path, name)
}

#[test]
fn a_member_that_is_away_or_damaged_is_told() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let (members, path, name) = mirrored(dir.path());
    let _mounted = Mounted(path.clone());
    // Its superblocks are gone.
    let file = File::options().write(true).open(&members[1]).unwrap();
    [0, 65536].iter().for_each(|at| file.write_all_at(&[0; 4096], *at).unwrap());
    let said = ["1 of 2 members", "b is as long as a member and has no superblock of one"];
    fails(&["mount", &members[0], &name], 32, &said);
    // They are there, with wrong checksums.
    [0, 65536].iter().for_each(|at| {
        let mut block = contents(&members[0])[*at as usize..*at as usize + 4096].to_vec();
        block[3000] ^= 1;
        file.write_all_at(&block, *at).unwrap();
    });
    fails(&["mount", &members[0], &name], 32, &["1 of 2 members", "b looks like a damaged member"]);
    ok(&["mount", "-o", "degraded", &members[0], &name]);
    tree(&path);
    fails(&["volume", &name, "resync"], 8, &["is missing", "the mirror is degraded"]);
    fails(&["volume", &name, "scrub"], 4, &["is missing", "the mirror is degraded"]);
    // It is made a member again, and the one that is missing is no more.
    ok(&["volume", &name, "replace", "--force", "1", &members[1]]);
    assert_eq!(states(&status(&name)), ["in-sync", "in-sync"]);
    ok(&["volume", &name, "resync"]);
    ok(&["volume", &name, "scrub"]);
    umount(&name);
}

#[test]
fn a_replacement_that_is_stopped_is_undone() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let (members, path, name) = mirrored(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", &members[0], &name]);
    tree(&path);
    let c = sparse(dir.path(), "c", 40 << 20);
    ok(&["volume", &name, "replace", "--rate", "2M", "--background", &members[1], &c]);
    let said = ok(&["volume", &name, "status"]);
    assert!(said.contains("in sync, being replaced"), "{said}");
    fails(&["volume", &name, "scrub"], 8, &["a replace of members runs", "wait for its end"]);
    ok(&["volume", &name, "stop"]);
    let report = status(&name);
    assert_eq!((states(&report), &report["work"]["outcome"]), (vec!["in-sync".into(); 2], &"stopped".into()));
    assert!(report["members"].as_array().unwrap().iter().all(|m| m["outgoing"] == false), "{report}");
    // By an unmount too.
    ok(&["volume", &name, "replace", "--rate", "2M", "--background", &members[1], &c]);
    umount(&name);
    ok(&["mount", &members[1], &name]);
    assert_eq!(states(&status(&name)), ["in-sync", "in-sync"]);
    check_tree(&path);
    umount(&name);
}

#[test]
fn a_replacement_that_a_kill_has_ended_goes_on() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let (members, path, name) = mirrored(dir.path());
    let c = sparse(dir.path(), "c", 40 << 20);
    {
        let _mounted = Mounted(path.clone());
        let served = Foreground(Command::new(CFFS).args(["mount", "-f", &members[0], &name]).spawn().unwrap());
        wait_until("mounted", || is_mounted(&path));
        tree(&path);
        rustix::fs::syncfs(File::open(&path).unwrap()).unwrap();
        ok(&["volume", &name, "replace", "--rate", "2M", "--background", &members[1], &c]);
        wait_until("begun", || status(&name)["work"]["done"].as_u64().unwrap() > 0);
        drop(served);
    }
    let _mounted = Mounted(path.clone());
    ok(&["mount", &members[0], &name]);
    wait_until("replaced", || status(&name)["members"].as_array().unwrap().len() == 2);
    let report = status(&name);
    assert_eq!(states(&report), ["in-sync", "in-sync"]);
    assert_eq!(report["members"][1]["name"], c.as_str(), "{report}");
    check_tree(&path);
    umount(&name);
}

/// The file system below one member is full, so that writes to it fail.
#[test]
fn a_member_that_fails_is_dropped_and_the_mount_goes_on() {
    if !fuse_works() || !have(&[Need::Root]) {
        return;
    }
    let dir = temp_dir();
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    let _small = Mounted(small.clone());
    let made = Command::new("mount").args(["-t", "tmpfs", "-o", "size=6M", "none"]).arg(&small).status().unwrap();
    assert!(made.success());
    let (a, b) = (image(dir.path(), "a"), image(&small, "b"));
    ok(&["mkfs", "--mirror", "--size", "40M", "--group-size", "64K", &a, &b]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    let log = image(dir.path(), "log");
    ok(&["mount", "--log", &log, "-o", &format!("members={b}"), &a, &name]);
    tree(&path);
    fs::write(path.join("more"), vec![7; 8 << 20]).unwrap();
    rustix::fs::syncfs(File::open(&path).unwrap()).unwrap();
    let report = status(&name);
    assert_eq!((states(&report), &report["mirror"]["dropped"]), (vec!["in-sync".into(), "absent".into()], &1.into()));
    let messages = fs::read_to_string(&log).unwrap();
    assert!(messages.contains("a member of the mirror failed and is no longer used"), "{messages}");
    check_tree(&path);
    let c = sparse(dir.path(), "c", 40 << 20);
    ok(&["volume", &name, "replace", &b, &c]);
    assert_eq!(states(&status(&name)), ["in-sync", "in-sync"]);
    umount(&name);
    ok(&["mount", "-o", "degraded", "-o", &format!("members={c}"), &c, &name]);
    check_tree(&path);
    assert_eq!(fs::read(path.join("more")).unwrap(), vec![7; 8 << 20]);
    umount(&name);
}

#[test]
fn after_a_kill_members_are_compared_where_the_bitmap_says() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let members = make(dir.path(), &["--mirror"], &["a", "b"]);
    let (path, name) = mount_point(dir.path());
    {
        let _mounted = Mounted(path.clone());
        let served = Foreground(Command::new(CFFS).args(["mount", "-f", &members[0], &name]).spawn().unwrap());
        wait_until("mounted", || is_mounted(&path));
        tree(&path);
        rustix::fs::syncfs(File::open(&path).unwrap()).unwrap();
        drop(served);
    }
    let _mounted = Mounted(path.clone());
    ok(&["mount", &members[1], &name]);
    check_tree(&path);
    wait_until("compared", || status(&name)["work"]["outcome"] == "complete");
    let report = status(&name);
    let copied = report["mirror"]["resynced_bytes"].as_u64().unwrap();
    assert!(copied > 0 && copied < 30 << 20, "{report}");
    let out = ok(&["volume", &name, "scrub", "--compare-only"]);
    assert!(out.contains(" 0 blocks differed"), "{out}");
    umount(&name);
}

#[test]
fn what_is_wrong_with_a_volume_is_said_and_nothing_is_changed() {
    let dir = temp_dir();
    let one = |name: &str| image(dir.path(), name);
    fails(&["mkfs", "--size", "40M", "--mirror", &one("x")], 1, &["a mirror of one member", "name at least one more"]);
    fails(&["mkfs", "--size", "40M", &one("x"), &one("y")], 1, &["--mirror, --stripe UNIT or --concat"]);
    fails(&["mkfs", "--size", "40M", "--mirror", &one("x"), &one("x")], 1, &["give each member once"]);
    fails(&["mkfs", "--mirror", &one("x"), &one("y")], 1, &["--size"]);
    let unit = ["mkfs", "--size", "40M", "--group-size", "64K", "--stripe", "96K"];
    fails(&[&unit[..], &[&one("x"), &one("y")]].concat(), 1, &["multiple of the group"]);
    fails(&["mkfs", "--size", "40M", "--stripe", "0", &one("x"), &one("y")], 1, &["a stripe unit of 0 bytes"]);
    fails(&["mkfs", "--size", "500K", "--mirror", &one("x"), &one("y")], 1, &["are needed"]);
    fails(&["mkfs", "--size", "40M", "--mirror", "--concat", &one("x"), &one("y")], 1, &["cannot be used with"]);
    assert!(!Path::new(&one("x")).exists() && !Path::new(&one("y")).exists());

    let mirror = make(dir.path(), &["--mirror"], &["m1", "m2"]);
    let stripe = make(dir.path(), &["--stripe", "64K"], &["s1", "s2", "s3"]);
    let all: Vec<&String> = mirror.iter().chain(&stripe).collect();
    let before: Vec<Vec<u8>> = all.iter().map(contents).collect();
    // Each member is protected.
    let fresh = sparse(dir.path(), "fresh", 40 << 20);
    fails(&["mkfs", "--mirror", &fresh, &mirror[0]], 1, &["m1: holds a member of a cffs volume", "--force"]);
    fails(&["mkfs", &stripe[2]], 1, &["holds a member of a cffs volume"]);
    // Members of two volumes, and strangers.
    fails(&["info", "--members", &stripe[0], &mirror[0]], 1, &["belongs to volume", "members of one volume"]);
    fails(&["info", "--members", &fresh, &mirror[0]], 1, &["fresh: not a member of a volume"]);
    // A copy in the same directory is taken for neither.
    let copy = one("copy");
    fs::copy(&mirror[1], &copy).unwrap();
    fails(&["info", &mirror[0]], 1, &["are both member", "--members FILE"]);
    ok(&["info", "--members", &mirror[1], &mirror[0]]);
    fs::remove_file(&copy).unwrap();
    // A member that was cut short is none: the other one has everything.
    let elsewhere = temp_dir();
    let [whole, cut] = [0, 1].map(|i| {
        let to = image(elsewhere.path(), ["m1", "m2"][i]);
        fs::copy(&mirror[i], &to).unwrap();
        to
    });
    fs::File::options().write(true).open(&cut).unwrap().set_len(20 << 20).unwrap();
    fails(&["info", &whole], 1, &["m2 has 20971520 bytes", "--degraded"]);
    assert!(stderr(&run(&["info", "--degraded", &whole])).contains("left out"));
    ok(&["export", "--degraded", &whole, elsewhere.path().join("out").to_str().unwrap()]);
    // Without a member a stripe is nothing.
    let away = temp_dir();
    let moved = image(away.path(), "s2");
    fs::rename(&stripe[1], &moved).unwrap();
    for degraded in [&[][..], &["--degraded"]] {
        let args = [&["info"], degraded, &[stripe[0].as_str()]].concat();
        fails(&args, 1, &["2 of 3 members are there", "without all members there is no volume"]);
    }
    ok(&["info", "--members", dir.path().to_str().unwrap(), "--members", away.path().to_str().unwrap(), &stripe[0]]);
    fs::rename(&moved, &stripe[1]).unwrap();
    let after: Vec<Vec<u8>> = all.iter().map(contents).collect();
    assert!(before == after, "a refusal has changed something");
    // A new file system in place of a member is no member.
    ok(&["mkfs", "--force", &mirror[0]]);
    ok(&["info", &mirror[0]]);
    fails(&["info", &mirror[1]], 1, &["1 of 2 members"]);
    // A command for mounts, on something else.
    fails(&["volume", dir.path().to_str().unwrap(), "status"], 8, &["not on a mounted cffs"]);
}

/// What stood on the members before does not make them differ where nothing was ever written.
#[test]
fn a_mirror_of_devices_that_were_in_use_is_sound() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let members = ["a", "b"].map(|name| image(dir.path(), name));
    for (i, member) in members.iter().enumerate() {
        fs::write(member, vec![i as u8 + 1; 64 << 20]).unwrap();
    }
    ok(&["mkfs", "--force", "--mirror", "--group-size", "64K", &members[0], &members[1]]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", &members[0], &name]);
    tree(&path);
    let said = ok(&["volume", &name, "scrub"]);
    assert!(said.contains("members compared"), "{said}");
    umount(&name);
}

#[test]
fn a_volume_is_asked_for_where_there_is_none() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let single = make_image(dir.path(), &[]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    ok(&["mount", &single, &name]);
    fails(&["volume", &name, "status"], 8, &["on a single device", "--mirror"]);
    let other = sparse(dir.path(), "other", 70 << 20);
    fails(&["volume", &name, "add", &other], 8, &["on a single device"]);
    umount(&name);
    let stripe = make(dir.path(), &["--stripe", "64K"], &["s1", "s2"]);
    ok(&["mount", &stripe[1], &name]);
    tree(&path);
    fails(&["volume", &name, "add", &other], 8, &["its members for good"]);
    fails(&["volume", &name, "scrub"], 16, &["use cffs scrub"]);
    // The other name of what is mounted.
    let second = dir.path().join("second");
    fs::create_dir(&second).unwrap();
    let second = second.to_str().unwrap();
    if is_root() {
        let _second = Mounted(second.into());
        ok(&["mount", &stripe[0], second]);
        check_tree(Path::new(second));
        umount(second);
    } else {
        fails(&["mount", &stripe[0], second], 32, &["mounted on", "unmount it first"]);
    }
    fails(&["fsck", "-y", &stripe[0]], 8, &["mounted on", "unmount it first"]);
    umount(&name);
    ok(&["mount", &stripe[0], &name]);
    check_tree(&path);
    umount(&name);
}
