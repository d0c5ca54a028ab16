//! Images with the log layout: made, mounted, killed, filled, looked at.

use crate::mounting::{Foreground, fuse_works, is_mounted, mount_point, umount, wait_until};
use crate::tools::*;
use rustix::fs::statvfs;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A new image with the log layout.
pub fn make_log_image(dir: &Path, more: &[&str]) -> String {
    let image = dir.join("image").to_str().unwrap().to_owned();
    let args = ["mkfs", "--layout=log", "--size", "32M", "--group-size", "64K"];
    ok(&[&args, more, &[&image]].concat());
    image
}

/// Bytes that do not compress.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let word = std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    });
    word.flatten().take(len).collect()
}

/// Some directories of files, of which some compress and some do not.
pub fn make_tree(root: &Path) {
    for number in 0..6 {
        let dir = root.join(format!("dir{number}"));
        fs::create_dir_all(&dir).unwrap();
        for n in 0..40 {
            let len = (number * 1511 + n * 379) % 9000;
            let data = if n % 2 == 0 { noise(n as u64, len) } else { vec![b'a'; len] };
            fs::write(dir.join(format!("file{n}")), data).unwrap();
        }
    }
    fs::write(root.join("large"), (0..2_000_000u32).map(|n| (n / 50) as u8).collect::<Vec<_>>()).unwrap();
}

/// Everything below a directory.
pub fn contents_of(root: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut all = Vec::new();
    let mut stack = vec![PathBuf::new()];
    while let Some(inside) = stack.pop() {
        let path = root.join(&inside);
        if path.is_dir() {
            stack.extend(fs::read_dir(&path).unwrap().map(|e| inside.join(e.unwrap().file_name())));
            all.push((inside, None));
        } else {
            all.push((inside, Some(fs::read(&path).unwrap())));
        }
    }
    all.sort();
    all
}

fn sync(path: &Path) {
    rustix::fs::syncfs(File::open(path).unwrap()).unwrap();
}

#[test]
fn what_was_synced_survives_a_kill() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let from = dir.path().join("from");
    make_tree(&from);
    for compress in ["none", "lz4", "zstd:9"] {
        let image = make_log_image(dir.path(), &["--force", "--compress", compress]);
        let (path, name) = mount_point(dir.path());
        {
            let _mounted = Mounted(path.clone());
            let served = Foreground(Command::new(CFFS).args(["mount", "-f", &image, &name]).spawn().unwrap());
            wait_until("mounted", || is_mounted(&path));
            make_tree(&path.join("to"));
            sync(&path);
            fs::write(path.join("later"), vec![1; 300_000]).unwrap();
            fs::remove_file(path.join("to/dir0/file0")).unwrap();
            drop(served);
        }
        ok(&["fsck", "-n", "--data", &image]);
        {
            let _mounted = Mounted(path.clone());
            ok(&["mount", &image, &name]);
            // What came after the sync is there or not.
            let mut now = contents_of(&path.join("to"));
            let mut then = contents_of(&from);
            now.retain(|(name, _)| name != Path::new("dir0/file0"));
            then.retain(|(name, _)| name != Path::new("dir0/file0"));
            assert!(now == then, "{compress}");
            fs::rename(path.join("to"), path.join("moved")).unwrap();
            umount(&name);
        }
        ok(&["fsck", "-n", "--data", &image]);
        let info = json(&ok(&["info", "--json", &image]));
        assert_eq!((&info["image_layout"], &info["state"]), (&"log".into(), &"clean".into()));
        let live = info["log_disk"]["live_bytes"].as_u64().unwrap();
        let all = 2_000_000 + 6 * 40 * 4500;
        assert!(if compress == "none" { live > all / 2 } else { live < all / 2 }, "{compress}: {live} bytes live");
        let out = dir.path().join(format!("out-{compress}"));
        ok(&["export", &format!("{image}:/moved"), out.to_str().unwrap()]);
        assert!(contents_of(&out).len() >= contents_of(&from).len() - 1);
    }
}

#[test]
fn a_full_one_says_so_and_can_be_emptied() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    for compress in ["none", "zstd"] {
        let image = make_log_image(dir.path(), &["--force", "--compress", compress, "--reserve", "0"]);
        let (path, name) = mount_point(dir.path());
        let _mounted = Mounted(path.clone());
        ok(&["mount", &image, &name]);
        let free = || {
            let s = statvfs(&path).unwrap();
            assert!(s.f_bavail <= s.f_bfree && s.f_bfree <= s.f_blocks);
            s.f_bavail * s.f_frsize
        };
        let empty = free();
        assert!((20 << 20..32 << 20).contains(&empty), "{empty} bytes free, which are those of the image");
        let mut seed = 0;
        let mut fill = |path: &Path| -> u64 {
            let (file, mut at) = (File::create(path).unwrap(), 0);
            loop {
                seed += 1;
                match file.write_at(&noise(seed, 64 << 10), at) {
                    Ok(n) => at += n as u64,
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::StorageFull);
                        break;
                    }
                }
            }
            // What was taken is stored.
            file.sync_all().unwrap();
            at
        };
        let took = fill(&path.join("first"));
        assert!(took > empty / 10 * 8, "{took} of {empty} bytes");
        assert!(free() < 1 << 20, "{} bytes are free", free());
        // Overwriting works where each block has its own place: what is in a compressed unit may need more than there was. Deleting always does.
        let again = File::options().write(true).open(path.join("first")).unwrap().write_all_at(&vec![7; 1 << 20], 0);
        match again {
            Ok(()) => {}
            Err(e) => assert!(compress != "none" && e.kind() == ErrorKind::StorageFull, "{compress}: {e}"),
        }
        sync(&path);
        for round in 0..3 {
            fs::remove_file(path.join("first")).unwrap();
            sync(&path);
            wait_until("the space is back", || free() > empty / 10 * 8);
            let again = fill(&path.join("first"));
            assert!(again > empty / 10 * 7, "round {round}: {again} of {empty} bytes");
        }
        umount(&name);
        ok(&["fsck", "-n", "--data", &image]);
    }
}

#[test]
fn the_tools_see_the_file_system_on_it() {
    let dir = temp_dir();
    let from = dir.path().join("from");
    make_tree(&from);
    let image = make_log_image(dir.path(), &["--thin", "256M", "--compress", "zstd"]);
    ok(&["import", from.to_str().unwrap(), &image]);
    assert_eq!(json(&ok(&["info", "--json", "--quick", &image]))["bytes"], 256 << 20);
    assert!(ok(&["info", &image]).contains("log layout"));
    assert!(ok(&["stats", &image]).contains("log disk"));
    assert!(ok(&["ls", &image]).contains("large"));
    assert!(ok(&["dump", &image, "superblock"]).contains("uuid"));
    assert_eq!(
        ok(&["cat", &format!("{image}:/dir1/file1")]).len() as u64,
        from.join("dir1/file1").metadata().unwrap().len()
    );
    ok(&["tune", "--label", "name", &image]);
    ok(&["regroup", &image]);
    ok(&["trim", &image]);
    ok(&["rm", "-r", &format!("{image}:/dir2")]);
    let out = dir.path().join("out");
    ok(&["export", &image, out.to_str().unwrap()]);
    fs::remove_dir_all(from.join("dir2")).unwrap();
    assert!(contents_of(&out) == contents_of(&from));
    let meta = dir.path().join("meta");
    ok(&["image", &image, meta.to_str().unwrap()]);
    ok(&["fsck", "-n", meta.to_str().unwrap()]);
    assert_eq!(json(&ok(&["fsck", "-n", "--json", &image]))["log_disk"]["problems"], serde_json::json!([]));
}

/// The space that is shown is what can be stored, and no log is shown that is never used.
#[test]
fn space_and_log_are_those_of_the_log_disk() {
    let dir = temp_dir();
    let image = make_log_image(dir.path(), &[]);
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("file"), noise(1, 20 << 20)).unwrap();
    ok(&["import", from.to_str().unwrap(), &image]);
    let told = ok(&["fsck", "-n", &image]);
    let share: f64 = told.split("% of the space").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!((60.0..99.0).contains(&share), "20 of 32 MiB, less what cannot be used: {told}");
    let told = json(&ok(&["fsck", "-n", "--json", &image]));
    assert!(told["stored"]["live_bytes"].as_u64().unwrap() > 20 << 20, "{told}");
    assert!(ok(&["info", "--quick", &image]).contains("none but the log disk"));
    assert_eq!(json(&ok(&["info", "--quick", "--json", &image]))["log_bytes"], 0);
    if fuse_works() {
        let (path, name) = mount_point(dir.path());
        let _mounted = Mounted(path);
        ok(&["mount", &image, &name]);
        assert!(ok(&["info", &name]).contains("none but the log disk"));
        let told = json(&ok(&["info", "--json", &name]));
        assert_eq!((&told["log_bytes"], &told["image_layout"]), (&0.into(), &"log".into()));
        umount(&name);
    }
}

#[test]
fn an_image_that_grew_stores_more() {
    let dir = temp_dir();
    let image = make_log_image(dir.path(), &[]);
    let usable = || json(&ok(&["info", "--quick", "--json", &image]))["log_disk"]["usable_bytes"].as_u64().unwrap();
    let before = usable();
    assert!(ok(&["grow", &image]).contains("nothing to gain"));
    // Nothing has failed: the words of an error of the device are not those of a refusal.
    fails(&["grow", "--size", "16M", &image], 1, &[&format!("{image}: the image has "), "cannot shrink"]);
    ok(&["grow", "--size", "96M", &image]);
    assert!(usable() > 2 * before, "{} of {before} bytes", usable());
    ok(&["fsck", "-n", &image]);
    if fuse_works() {
        let (path, name) = mount_point(dir.path());
        let _mounted = Mounted(path.clone());
        ok(&["mount", &image, &name]);
        let free = || statvfs(&path).map(|s| s.f_bfree * s.f_frsize).unwrap();
        let before = free();
        fs::write(path.join("file"), noise(1, 30 << 20)).unwrap();
        assert!(ok(&["grow", &name]).contains("nothing to gain"));
        fails(&["grow", "--size", "64M", &name], 1, &[&format!("{name}: the image has "), "cannot shrink"]);
        ok(&["grow", "--size", "200M", &name]);
        assert!(free() > before + (50 << 20), "{} of {before} bytes free", free());
        fs::write(path.join("more"), noise(2, 80 << 20)).unwrap();
        sync(&path);
        ok(&["snapshot", "create", &name, "kept"]);
        fs::remove_file(path.join("more")).unwrap();
        sync(&path);
        let status = json(&ok(&["scrub", "--json", &name]));
        assert!(status["stored_verified"].as_u64().unwrap() > 110 << 20, "with what only a snapshot has: {status}");
        assert_eq!(status["findings_total"], 0);
        assert!(fs::read(path.join("file")).unwrap() == noise(1, 30 << 20));
        umount(&name);
        assert_eq!(fs::metadata(&image).unwrap().len(), 200 << 20);
        ok(&["fsck", "-n", "--data", &image]);
    }
}

#[test]
fn options_that_contradict_the_layout_are_refused() {
    let dir = temp_dir();
    let image = dir.path().join("new").to_str().unwrap().to_owned();
    let log = |more: &[&str], words: &[&str]| {
        fails(&[&["mkfs", "--layout=log", "--size", "32M"], more, &[&image]].concat(), 1, words);
        assert!(!Path::new(&image).exists());
    };
    log(&["--journal-size", "4M"], &["--journal-size", "leave it out"]);
    log(&["--data-sums=on"], &["--data-sums", "checksums"]);
    log(&["--block-size", "2K"], &["4K"]);
    log(&["--thin", "1000000"], &["--thin", "4K"]);
    log(&["--compress", "gzip"], &["gzip"]);
    fails(&["mkfs", "--layout=log", "--size", "8M", &image], 1, &["at least 32 MiB"]);
    fails(&["mkfs", "--compress=lz4", "--size", "32M", &image], 1, &["--compress", "--layout=log"]);
    fails(&["mkfs", "--thin=1G", "--size", "32M", &image], 1, &["--thin", "--layout=log"]);
    // A file system of the plain layout is none of a log disk that was there, and says that it does not compress.
    let image = make_log_image(dir.path(), &[]);
    fails(&["mkfs", "--size", "32M", &image], 1, &["log layout", "--force"]);
    ok(&["mkfs", "--force", "--size", "32M", &image]);
    assert_eq!(json(&ok(&["info", "--quick", "--json", &image]))["image_layout"], "plain");
    if fuse_works() {
        let (_, name) = mount_point(dir.path());
        fails(&["mount", "-o", "compress=lz4", &image, &name], 1, &["log layout"]);
    }
}
