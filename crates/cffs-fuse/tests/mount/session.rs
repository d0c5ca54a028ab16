//! How a mount begins and ends.

use crate::common::{Image, can_mount, test_name, when_not_busy};
use cffs::{Caller, MountOptions, SetAttr};
use cffs_fuse::{Error, MountConfig, Remount, remount};
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;

#[test]
fn umount_ends_the_session_and_the_image_is_clean() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::write(m.path("f"), b"kept").unwrap();
    let dir = m.dir().to_owned();
    let session = m.into_session();
    assert!(Command::new("umount").arg(&dir).status().unwrap().success());
    session.wait().unwrap();
    let m = image.mount();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"kept");
    m.unmount();
}

#[test]
fn a_mount_in_use_is_busy_until_it_is_terminated() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let mut open = fs::File::create(m.path("f")).unwrap();
    open.write_all(b"written").unwrap();
    let dir = m.dir().to_owned();
    let session = m.into_session();
    let unmounter = session.unmounter();
    assert_eq!(unmounter.unmount().unwrap_err().raw_os_error(), Some(Errno::BUSY.raw_os_error()));
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"written");
    unmounter.terminate().unwrap();
    session.wait().unwrap();
    assert!(open.write_all(b"too late").is_err());
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "the directory below is there again");
    drop(open);
    let m = image.mount();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"written");
    m.unmount();
}

#[test]
fn a_lazily_detached_mount_can_be_terminated() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let open = fs::File::create(m.path("f")).unwrap();
    let dir = m.dir().to_owned();
    let session = m.into_session();
    assert!(Command::new("umount").arg("-l").arg(&dir).status().unwrap().success());
    // It still works for the one who has it open.
    (&open).write_all(b"detached").unwrap();
    open.sync_all().unwrap();
    session.unmounter().terminate().unwrap();
    session.wait().unwrap();
    assert!((&open).write_all(b"too late").is_err());
    drop(open);
    let m = image.mount();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"detached");
    m.unmount();
}

#[test]
fn an_old_unmounter_leaves_a_new_mount_alone() {
    if !can_mount() {
        return;
    }
    let (first, second) = (Image::new(), Image::new());
    let m = first.mount();
    let old = m.session().unmounter();
    m.unmount();
    let session =
        cffs_fuse::mount(second.engine(MountOptions::default()), &first.dir(), &MountConfig::default()).unwrap();
    fs::write(first.dir().join("f"), b"new").unwrap();
    old.unmount().unwrap();
    old.terminate().unwrap();
    assert_eq!(fs::read(first.dir().join("f")).unwrap(), b"new");
    session.unmounter().unmount().unwrap();
    session.wait().unwrap();
}

#[test]
fn a_read_only_mount_refuses_changes() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::write(m.path("f"), b"kept").unwrap();
    m.unmount();
    let m = image.mount_with(MountOptions::default().read_only(true), &MountConfig::default());
    assert_eq!(fs::read(m.path("f")).unwrap(), b"kept");
    let e = fs::write(m.path("g"), b"").unwrap_err();
    assert_eq!(e.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    let e = fs::remove_file(m.path("f")).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    m.unmount();
}

#[test]
fn a_mount_becomes_read_only_and_writable_again() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let set = |read_only| remount(m.dir(), Remount { read_only: Some(read_only), ..Remount::default() });
    let rofs = Some(Errno::ROFS.raw_os_error());
    let open = fs::File::create(m.path("f")).unwrap();
    (&open).write_all(b"kept").unwrap();
    assert_eq!(set(true).unwrap_err().raw_os_error(), Some(Errno::BUSY.raw_os_error()), "a file is open for writing");
    drop(open);
    when_not_busy(|| set(true)).unwrap();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"kept");
    assert_eq!(fs::write(m.path("f"), b"new").unwrap_err().raw_os_error(), rofs);
    assert_eq!(fs::remove_file(m.path("f")).unwrap_err().raw_os_error(), rofs);
    // What was written before is on the image: a look at it as after a crash shows it.
    let copy = image.engine(MountOptions::default().read_only(true));
    let root = cffs::ROOT_INO;
    assert_eq!(copy.lookup(root, b"f").unwrap().size, 4);
    copy.close().unwrap();
    set(false).unwrap();
    fs::write(m.path("f"), b"new").unwrap();
    // One flag does not touch another.
    remount(m.dir(), Remount { suid: Some(false), exec: Some(false), ..Remount::default() }).unwrap();
    set(true).unwrap();
    let flags = rustix::fs::statvfs(m.dir()).unwrap().f_flag;
    assert!(flags.contains(StatVfsMountFlags::NOSUID | StatVfsMountFlags::NOEXEC | StatVfsMountFlags::RDONLY));
    assert!(!flags.contains(StatVfsMountFlags::NODEV));
    remount(m.dir(), Remount { suid: Some(true), ..Remount::default() }).unwrap();
    let flags = rustix::fs::statvfs(m.dir()).unwrap().f_flag;
    assert!(!flags.contains(StatVfsMountFlags::NOSUID) && flags.contains(StatVfsMountFlags::RDONLY));
    m.unmount();
}

#[test]
fn what_was_mounted_read_only_does_not_become_writable() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount_with(MountOptions::default().read_only(true), &MountConfig::default());
    let e = remount(m.dir(), Remount { read_only: Some(false), ..Remount::default() }).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    assert!(rustix::fs::statvfs(m.dir()).unwrap().f_flag.contains(StatVfsMountFlags::RDONLY));
    let below = m.path("");
    m.unmount();
    let e = remount(&below, Remount::default()).unwrap_err();
    assert_eq!(e.kind(), std::io::ErrorKind::InvalidInput, "nothing is mounted there: {e}");
}

#[test]
fn bad_mount_points_are_named() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    fs::write(image.dir().join("file"), b"").unwrap();
    for (name, complaint) in [("file", "is not a directory"), ("missing", "does not exist")] {
        let fs = image.engine(MountOptions::default());
        let Err(Error::MountPoint(text)) =
            cffs_fuse::mount(fs.clone(), &image.dir().join(name), &MountConfig::default())
        else {
            panic!("{name} accepted")
        };
        assert!(text.contains(complaint) && text.contains(name), "{text}");
        // Still ours to close.
        fs.close().unwrap();
    }
}

#[test]
fn the_mount_table_says_what_it_is() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let config = MountConfig { fsname: "/some where/disk.img".into(), suid: false, ..MountConfig::default() };
    let m = image.mount_with(MountOptions::default(), &config);
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|l| l.contains(m.dir().to_str().unwrap())).unwrap();
    assert!(line.starts_with("/some\\040where/disk.img "), "{line}");
    assert!(line.contains(" fuse.cffs rw,nosuid,"), "{line}");
    assert!(line.contains("default_permissions") && line.contains("allow_other"), "{line}");
    assert!(!line.contains("nodev"), "{line}");
    m.unmount();
}

#[test]
fn statistics_are_live_and_out_of_the_way() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let stats = |m: &crate::common::Mounted| -> serde_json::Value {
        serde_json::from_str(&cffs_fuse::read_stats(m.dir()).unwrap()).unwrap()
    };
    let first = stats(&m);
    assert_eq!(first["fuse"]["server"]["pid"], std::process::id());
    fs::write(m.path("f"), b"x").unwrap();
    let second = stats(&m);
    assert_eq!(second["fuse"]["write"].as_u64().unwrap() - first["fuse"]["write"].as_u64().unwrap(), 1);
    // A reader keeps what it opened.
    let mut held = fs::File::open(m.path(cffs_fuse::STATS_FILE)).unwrap();
    stats(&m);
    let mut text = String::new();
    held.read_to_string(&mut text).unwrap();
    assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
    assert_eq!(fs::read_dir(m.dir()).unwrap().count(), 1, "it is listed");
    let name = m.path(cffs_fuse::STATS_FILE);
    assert!(fs::write(&name, b"").is_err());
    assert!(fs::remove_file(&name).is_err());
    assert!(fs::rename(m.path("f"), &name).is_err());
    assert!(fs::hard_link(&name, m.path("g")).is_err());
    drop(held);
    m.unmount();
    assert!(cffs_fuse::read_stats(&image.dir()).is_err());
}

#[test]
fn dropping_a_session_unmounts() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::write(m.path("f"), b"x").unwrap();
    drop(m);
    assert_eq!(fs::read_dir(image.dir()).unwrap().count(), 0);
    let m = image.mount();
    assert!(m.path("f").exists());
    m.unmount();
}

const UNPRIVILEGED: &str = "CFFS_TEST_AS_USER";

/// Runs itself again as a user, who mounts with fusermount3.
#[test]
fn users_mount_with_the_helper() {
    if !can_mount() || !crate::common::has_program("fusermount3") {
        return;
    }
    let tmp = tempfile::tempdir().unwrap();
    fs::set_permissions(tmp.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // Where the test programs are built may be closed to others.
    let program = tmp.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    // A device file that users may open, in a mount namespace of its own: the machine's may be closed to them.
    let script = "mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse && \
        exec setpriv --reuid=1000 --regid=1000 --clear-groups ./program --exact \"$0\" --nocapture";
    let out = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, &test_name(module_path!(), "as_user")])
        .env(UNPRIVILEGED, "1")
        .env("TMPDIR", tmp.path())
        .current_dir(tmp.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("mounted as a user"), "{text}");
}

/// The part of [`users_mount_with_the_helper`] that is run as a user.
#[test]
fn as_user() {
    if std::env::var_os(UNPRIVILEGED).is_none() {
        return;
    }
    let image = Image::new();
    let config = MountConfig { fsname: "my,image".into(), ..MountConfig::default() };
    assert!(!config.allow_other);
    let engine = image.engine(MountOptions::default());
    let mine = SetAttr::default().uid(Some(1000)).gid(Some(1000));
    engine.setattr(Caller::ROOT, cffs::ROOT_INO, mine).unwrap();
    let m = image.mount_engine(engine, &config);
    fs::write(m.path("f"), b"mine").unwrap();
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|l| l.contains(m.dir().to_str().unwrap())).unwrap();
    assert!(line.starts_with("my,image ") && line.contains(" fuse.cffs ") && line.contains("nosuid"), "{line}");
    // Ended by us, and while in use.
    m.unmount();
    let m = image.mount();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"mine");
    let open = fs::File::open(m.path("f")).unwrap();
    let session = m.into_session();
    assert_eq!(session.unmounter().unmount().unwrap_err().raw_os_error(), Some(Errno::BUSY.raw_os_error()));
    let closer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(open);
    });
    session.unmounter().terminate().unwrap();
    session.wait().unwrap();
    closer.join().unwrap();
    println!("mounted as a user");
}
