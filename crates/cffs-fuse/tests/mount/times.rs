//! Which times which calls change, and the ways of keeping access times.

use crate::common::{Image, Mounted, can_mount};
use cffs::{AtimeMode, MountOptions};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

type Time = (i64, i64);

#[derive(Clone, Copy, PartialEq, Debug)]
struct Times {
    atime: Time,
    mtime: Time,
    ctime: Time,
}

fn times(path: &Path) -> Times {
    let a = fs::symlink_metadata(path).unwrap();
    Times { atime: (a.atime(), a.atime_nsec()), mtime: (a.mtime(), a.mtime_nsec()), ctime: (a.ctime(), a.ctime_nsec()) }
}

fn mounted(atime: AtimeMode, lazytime: bool) -> (Image, Mounted) {
    let image = Image::new();
    let options = MountOptions::default().atime(atime).lazytime(lazytime);
    let m = image.mount_with(options, &cffs_fuse::MountConfig::default());
    (image, m)
}

/// Does something and says which of a file's times moved: a letter for each.
fn moved(path: &Path, what: impl FnOnce()) -> String {
    let before = times(path);
    std::thread::sleep(Duration::from_millis(2));
    what();
    let after = times(path);
    let mut out = String::new();
    for (letter, before, after) in
        [('a', before.atime, after.atime), ('m', before.mtime, after.mtime), ('c', before.ctime, after.ctime)]
    {
        assert!(after >= before, "{letter} went back");
        if after > before {
            out.push(letter);
        }
    }
    out
}

#[test]
fn every_call_moves_the_times_it_has_to() {
    if !can_mount() {
        return;
    }
    let (_image, m) = mounted(AtimeMode::Noatime, false);
    let (f, d) = (m.path("d/f"), m.path("d"));
    fs::create_dir(&d).unwrap();
    assert_eq!(moved(&d, || fs::write(&f, b"0123456789").unwrap()), "mc", "create: the directory");
    let file = OpenOptions::new().read(true).write(true).open(&f).unwrap();
    assert_eq!(moved(&f, || file.write_all_at(b"x", 3).unwrap()), "mc", "write");
    assert_eq!(moved(&f, || file.write_all_at(b"", 3).unwrap()), "", "write of nothing");
    assert_eq!(moved(&f, || file.set_len(5).unwrap()), "mc", "truncate");
    assert_eq!(moved(&f, || file.set_len(50).unwrap()), "mc", "extend");
    assert_eq!(moved(&f, || fs::set_permissions(&f, fs::Permissions::from_mode(0o600)).unwrap()), "c", "chmod");
    assert_eq!(moved(&f, || std::os::unix::fs::chown(&f, Some(5), None).unwrap()), "c", "chown");
    assert_eq!(moved(&f, || fs::hard_link(&f, m.path("d/g")).unwrap()), "c", "link: the file");
    assert_eq!(moved(&d, || fs::hard_link(&f, m.path("d/h")).unwrap()), "mc", "link: the directory");
    assert_eq!(moved(&f, || fs::remove_file(m.path("d/g")).unwrap()), "c", "unlink: the file");
    assert_eq!(moved(&d, || fs::remove_file(m.path("d/h")).unwrap()), "mc", "unlink: the directory");
    fs::create_dir(m.path("e")).unwrap();
    let to = m.path("e/f");
    assert_eq!(moved(&m.path("e"), || fs::rename(&f, &to).unwrap()), "mc", "rename: the new directory");
    assert_eq!(moved(&d, || fs::rename(&to, &f).unwrap()), "mc", "rename back: the directory");
    let before = times(&f);
    std::thread::sleep(Duration::from_millis(2));
    fs::rename(&f, &to).unwrap();
    let after = times(&to);
    assert!(
        after.ctime > before.ctime && (after.mtime, after.atime) == (before.mtime, before.atime),
        "rename: the file"
    );
    assert_eq!(moved(m.dir(), || fs::create_dir(m.path("sub")).unwrap()), "mc", "mkdir");
    assert_eq!(moved(m.dir(), || fs::remove_dir(m.path("sub")).unwrap()), "mc", "rmdir");
    assert_eq!(moved(&to, || drop(fs::read(&to).unwrap())), "", "read, with noatime");
    assert_eq!(moved(&to, || assert!(fs::metadata(&to).is_ok())), "", "stat");
    // UTIME_OMIT leaves one alone, UTIME_NOW takes the present.
    let omit = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let set = |last_access, last_modification| {
        let t = rustix::fs::Timestamps { last_access, last_modification };
        rustix::fs::utimensat(rustix::fs::CWD, &to, &t, rustix::fs::AtFlags::empty()).unwrap();
    };
    assert_eq!(moved(&to, || set(omit, now)), "mc");
    assert_eq!(moved(&to, || set(now, omit)), "ac");
    assert_eq!(moved(&to, || set(now, now)), "amc");
    assert_eq!(moved(&to, || set(omit, omit)), "");
    drop(file);
    m.unmount();
}

#[test]
fn strictatime_notes_every_open_that_reads() {
    if !can_mount() {
        return;
    }
    let (_image, m) = mounted(AtimeMode::Strictatime, false);
    let (f, d) = (m.path("f"), m.path("d"));
    fs::write(&f, vec![1; 10_000]).unwrap();
    fs::create_dir(&d).unwrap();
    std::os::unix::fs::symlink("f", m.path("l")).unwrap();
    for _ in 0..3 {
        assert_eq!(moved(&f, || drop(fs::read(&f).unwrap())), "a");
        assert_eq!(moved(&d, || assert_eq!(fs::read_dir(&d).unwrap().count(), 0)), "a");
    }
    m.unmount();
}

#[test]
fn relatime_notes_the_first_read_after_a_change() {
    if !can_mount() {
        return;
    }
    let (image, m) = mounted(AtimeMode::Relatime, false);
    fs::write(m.path("f"), vec![1; 10_000]).unwrap();
    m.unmount();
    let m = image.mount();
    let f = m.path("f");
    assert_eq!(moved(&f, || drop(fs::read(&f).unwrap())), "a");
    assert_eq!(moved(&f, || drop(fs::read(&f).unwrap())), "");
    m.unmount();
}

#[test]
fn lazytime_writes_times_at_fsync_and_at_unmount_only() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let options =
        |atime| MountOptions::default().atime(atime).lazytime(true).commit_interval(Duration::from_millis(50));
    let m = image.mount_with(options(AtimeMode::Strictatime), &cffs_fuse::MountConfig::default());
    let f = m.path("f");
    fs::write(&f, vec![1; 10_000]).unwrap();
    fs::File::open(m.dir()).unwrap().sync_all().unwrap();
    let on_device = |image: &Image| {
        let copy = image.as_after_a_crash();
        let m = copy.mount_with(MountOptions::default().atime(AtimeMode::Noatime), &Default::default());
        let t = times(&m.path("f"));
        m.unmount();
        t
    };
    let first = times(&f);
    assert_eq!(on_device(&image), first);
    // Reading, and writing over what is there.
    std::thread::sleep(Duration::from_millis(5));
    fs::read(&f).unwrap();
    OpenOptions::new().write(true).open(&f).unwrap().write_all_at(&[2; 10_000], 0).unwrap();
    let second = times(&f);
    assert!(second.atime > first.atime && second.mtime > first.mtime);
    // Until the contents are there; the background thread has then had its turn.
    let mut turns = 0;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let copy = image.as_after_a_crash();
        let c = copy.mount();
        let there = fs::read(c.path("f")).unwrap() == vec![2; 10_000];
        c.unmount();
        turns += usize::from(there);
        if turns == 3 {
            break;
        }
    }
    assert_eq!(on_device(&image), first, "times were written alone");
    assert_eq!(times(&f), second);
    fs::File::open(&f).unwrap().sync_all().unwrap();
    assert_eq!(on_device(&image), second, "after fsync");
    std::thread::sleep(Duration::from_millis(5));
    fs::read(&f).unwrap();
    let third = times(&f);
    assert!(third.atime > second.atime);
    m.unmount();
    assert_eq!(on_device(&image), third, "after unmount");
}

#[test]
fn birth_times_cost_a_message_once_and_can_be_left_out() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let with = image.mount();
    fs::write(with.path("f"), "x").unwrap();
    let born = fs::metadata(with.path("f")).unwrap().created().unwrap();
    fs::write(with.path("f"), "more").unwrap();
    assert_eq!(fs::metadata(with.path("f")).unwrap().created().unwrap(), born);
    with.unmount();
    let config = cffs_fuse::MountConfig { birth_times: false, ..cffs_fuse::MountConfig::default() };
    let without = image.mount_with(MountOptions::default(), &config);
    assert!(fs::metadata(without.path("f")).unwrap().created().is_err(), "not told");
    let asked = without.messages();
    fs::metadata(without.path("f")).unwrap();
    assert_eq!(without.messages().since(&asked, "unsupported"), 0, "the kernel has learned that it need not ask");
    without.unmount();
    let again = image.mount();
    assert_eq!(fs::metadata(again.path("f")).unwrap().created().unwrap(), born, "kept over mounts");
}
