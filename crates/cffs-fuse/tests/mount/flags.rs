//! Inode flags: chattr and lsattr, and what they forbid.

use crate::common::{Image, can_mount, has_program, script};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

fn set(path: &Path, flags: IFlags) {
    ioctl_setflags(File::open(path).unwrap(), flags).unwrap();
}

fn refused<T: std::fmt::Debug>(r: std::io::Result<T>) {
    assert_eq!(Errno::from_io_error(&r.unwrap_err()), Some(Errno::PERM));
}

#[test]
fn nothing_of_an_immutable_file_changes() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let f = m.path("f");
    fs::write(&f, b"contents").unwrap();
    let before = fs::metadata(&f).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2));
    set(&f, IFlags::IMMUTABLE);
    let after = fs::metadata(&f).unwrap();
    assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()), "the change time is cached");
    let check = |m: &crate::common::Mounted| {
        let f = m.path("f");
        assert_eq!(ioctl_getflags(File::open(&f).unwrap()).unwrap(), IFlags::IMMUTABLE);
        refused(OpenOptions::new().write(true).open(&f).and_then(|mut f| f.write_all(b"x")));
        refused(OpenOptions::new().write(true).open(&f).and_then(|f| f.set_len(3)));
        refused(fs::remove_file(&f));
        refused(fs::rename(&f, m.path("g")));
        refused(fs::hard_link(&f, m.path("g")));
        refused(fs::set_permissions(&f, fs::Permissions::from_mode(0o600)));
        refused(std::os::unix::fs::chown(&f, Some(3), None));
        refused(File::open(&f).unwrap().set_modified(std::time::SystemTime::now()));
        assert_eq!(fs::read(&f).unwrap(), b"contents");
    };
    check(&m);
    m.unmount();
    let m = image.mount();
    check(&m);
    set(&m.path("f"), IFlags::empty());
    fs::remove_file(m.path("f")).unwrap();
    // In a directory.
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/old"), b"").unwrap();
    set(&m.path("d"), IFlags::IMMUTABLE);
    refused(fs::write(m.path("d/new"), b""));
    refused(fs::remove_file(m.path("d/old")));
    refused(fs::rename(m.path("d/old"), m.path("out")));
    fs::write(m.path("d/old"), b"its files are not meant").unwrap();
    set(&m.path("d"), IFlags::APPEND);
    fs::write(m.path("d/new"), b"").unwrap();
    refused(fs::remove_file(m.path("d/new")));
    set(&m.path("d"), IFlags::empty());
    fs::remove_file(m.path("d/new")).unwrap();
    m.unmount();
}

#[test]
fn an_append_only_file_only_grows() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let f = m.path("log");
    fs::write(&f, b"one\n").unwrap();
    set(&f, IFlags::APPEND);
    let log = OpenOptions::new().append(true).open(&f).unwrap();
    (&log).write_all(b"two\n").unwrap();
    refused(OpenOptions::new().write(true).open(&f).and_then(|f| f.write_all_at(b"X", 0)));
    refused(OpenOptions::new().write(true).open(&f).and_then(|f| f.set_len(0)));
    refused(
        rustix::fs::fallocate(
            &log,
            rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
            0,
            2,
        )
        .map_err(std::io::Error::from),
    );
    refused(fs::remove_file(&f));
    (&log).write_all(b"three\n").unwrap();
    assert_eq!(fs::read(&f).unwrap(), b"one\ntwo\nthree\n");
    drop(log);
    m.unmount();
}

#[test]
fn chattr_and_lsattr_work() {
    if !can_mount() || !has_program("chattr") || !has_program("lsattr") {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::write(m.path("f"), b"x").unwrap();
    fs::create_dir(m.path("d")).unwrap();
    script(&m, &["sh", "-ec"], "
        chattr +dAS f; lsattr f | grep -q '^-\\{2\\}S[-d]*'; lsattr f | cut -d' ' -f1 | grep -q d; lsattr f | cut -d' ' -f1 | grep -q A
        chattr =i f; lsattr f | cut -d' ' -f1 | grep -q i; ! echo more >> f; chattr -i f; echo more >> f
        chattr +D d; lsattr -d d | cut -d' ' -f1 | grep -q D
        ! chattr +D f; ! chattr +c f
        chattr -p 77 f; lsattr -p f | grep -q '^ *77 '
        touch d/below; mkdir d/sub; lsattr -d d/sub | cut -d' ' -f1 | grep -q D; ! lsattr d/below | cut -d' ' -f1 | grep -q D
        setpriv --reuid 1000 --regid 1000 --clear-groups sh -c '! chattr +d f && ! chattr +i f'
    ");
    m.unmount();
}

#[test]
fn synchronous_files_and_directories_are_durable_at_once() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let options = cffs::MountOptions::default().commit_interval(std::time::Duration::from_secs(3600));
    let m = image.mount_with(options, &cffs_fuse::MountConfig::default());
    fs::write(m.path("f"), b"old").unwrap();
    fs::create_dir(m.path("d")).unwrap();
    set(&m.path("f"), IFlags::SYNC);
    set(&m.path("d"), IFlags::DIRSYNC);
    fs::write(m.path("f"), b"new contents").unwrap();
    fs::write(m.path("d/f"), b"").unwrap();
    let copy = image.as_after_a_crash();
    let c = copy.mount();
    assert_eq!(fs::read(c.path("f")).unwrap(), b"new contents");
    assert!(c.path("d/f").exists());
    c.unmount();
    m.unmount();
}

#[test]
fn noatime_of_a_file() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let options = cffs::MountOptions::default().atime(cffs::AtimeMode::Strictatime);
    let m = image.mount_with(options, &cffs_fuse::MountConfig::default());
    fs::write(m.path("f"), b"x").unwrap();
    let atime = || fs::metadata(m.path("f")).map(|a| (a.atime(), a.atime_nsec())).unwrap();
    set(&m.path("f"), IFlags::NOATIME);
    let before = atime();
    fs::read(m.path("f")).unwrap();
    assert_eq!(atime(), before);
    set(&m.path("f"), IFlags::empty());
    fs::read(m.path("f")).unwrap();
    assert!(atime() > before);
    let _ = OpenOptions::new().read(true).custom_flags(0).open(m.path("f")).unwrap();
    m.unmount();
}
