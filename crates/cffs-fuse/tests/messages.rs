//! How many messages common work costs. Each is two switches between processes, so this is what the mount's speed hangs on.

mod common;

use cffs::MountOptions;
use cffs_fuse::MountConfig;
use common::{Image, Mounted, can_mount};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

const DIRS: u64 = 10;
const FILES: u64 = 100;

fn fill(m: &Mounted) {
    for d in 0..DIRS {
        let dir = m.path(&format!("d{d}"));
        fs::create_dir(&dir).unwrap();
        for f in 0..FILES {
            fs::File::create(dir.join(format!("file{f}"))).unwrap().write_all(&[7; 1024]).unwrap();
        }
    }
}

/// Lists every directory, asks for the attributes of every file and reads it.
fn walk(m: &Mounted) -> u64 {
    let mut bytes = 0;
    for dir in fs::read_dir(m.dir()).unwrap() {
        for file in fs::read_dir(dir.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            assert_eq!(fs::symlink_metadata(&path).unwrap().len(), 1024);
            bytes += fs::read(&path).unwrap().len() as u64;
        }
    }
    bytes
}

fn image_with_files() -> Image {
    let image = Image::new();
    let m = image.mount();
    fill(&m);
    m.unmount();
    image
}

#[test]
fn a_cold_read_is_one_message() {
    if !can_mount() {
        return;
    }
    let image = image_with_files();
    let m = image.mount();
    let before = m.messages();
    assert_eq!(walk(&m), DIRS * FILES * 1024);
    let after = m.messages();
    let n = |kind| after.since(&before, kind);
    assert_eq!(n("read"), DIRS * FILES);
    // Once and never again.
    assert!(n("open") <= 1 && n("opendir") <= 1 && n("flush") <= 1);
    assert_eq!((n("release"), n("releasedir")), (0, 0));
    // The listings bring names and attributes.
    assert!(n("lookup") <= DIRS, "{} lookups", n("lookup"));
    assert!(n("getattr") <= 1 + DIRS, "{} getattrs", n("getattr"));
    assert_eq!(n("readdir"), 0);
    assert!(n("readdirplus") <= (DIRS + 1) * 4, "{} readdirplus", n("readdirplus"));
    m.unmount();
}

#[test]
fn a_warm_read_is_none() {
    if !can_mount() {
        return;
    }
    let image = image_with_files();
    let m = image.mount_with(MountOptions::default(), &MountConfig::default());
    for _ in 0..2 {
        walk(&m);
    }
    let before = m.messages();
    for d in 0..DIRS {
        for f in 0..FILES {
            assert_eq!(fs::read(m.path(&format!("d{d}/file{f}"))).unwrap().len(), 1024);
            assert!(!m.path(&format!("d{d}/missing")).exists());
        }
    }
    let after = m.messages();
    let n = |kind| after.since(&before, kind);
    assert_eq!((n("read"), n("open"), n("flush"), n("release")), (0, 0, 0, 0));
    // One for each missing name.
    assert_eq!(n("lookup"), DIRS);
    m.unmount();
}

#[test]
fn a_new_small_file_is_four_messages() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let before = m.messages();
    fill(&m);
    let after = m.messages();
    let n = |kind| after.since(&before, kind);
    let files = DIRS * FILES;
    assert_eq!((n("mknod"), n("write")), (files, files));
    // The name has to be seen to be missing. One more for each directory.
    assert_eq!(n("lookup"), files + DIRS);
    assert!(n("create") <= 1 && n("open") <= 1 && n("flush") <= 1);
    assert_eq!((n("release"), n("setattr")), (0, 0));
    // With a new name the kernel distrusts all it knows of the directory, and asks for its mode before the next one.
    assert!(n("getattr") <= files + DIRS, "{} getattrs", n("getattr"));
    // Whole pages that were written stay readable without asking. (Of a page written in part the kernel does not know the
    // rest, without its writeback cache, and reads it.)
    fs::write(m.path("pages"), [8; 8192]).unwrap();
    let before = m.messages();
    assert_eq!(fs::read(m.path("pages")).unwrap(), [8; 8192]);
    assert_eq!(m.messages().since(&before, "read"), 0);
    assert_eq!(fs::read(m.path("d0/file0")).unwrap(), [7; 1024]);
    assert_eq!(m.messages().since(&before, "read"), 1);
    m.unmount();
}

#[test]
fn large_transfers_are_large() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let before = m.messages();
    fs::write(m.path("big"), vec![1; 16 << 20]).unwrap();
    let writes = m.messages().since(&before, "write");
    assert!(writes <= 20, "{writes} writes for 16 MiB");
    m.unmount();
    let m = image.mount();
    let before = m.messages();
    assert_eq!(fs::read(m.path("big")).unwrap().len(), 16 << 20);
    let reads = m.messages().since(&before, "read");
    assert!(reads <= 70, "{reads} reads for 16 MiB");
    m.unmount();
}

#[test]
fn a_durable_new_file_is_one_message_more() {
    if !can_mount() {
        return;
    }
    // In a directory that has files from before the mount, too.
    let image = image_with_files();
    let m = image.mount();
    let before = m.messages();
    for f in 0..FILES {
        let mut file = fs::File::create(m.path(&format!("d0/new{f}"))).unwrap();
        file.write_all(&[7; 1024]).unwrap();
        file.sync_all().unwrap();
    }
    let after = m.messages();
    let n = |kind| after.since(&before, kind);
    assert_eq!((n("mknod"), n("write"), n("fsync"), n("setattr"), n("release")), (FILES, FILES, FILES, 0, 0));
    m.unmount();
    let m = image.mount();
    for f in 0..FILES {
        assert_eq!(fs::read(m.path(&format!("d0/new{f}"))).unwrap(), [7; 1024]);
        assert_eq!(fs::read(m.path(&format!("d0/file{f}"))).unwrap(), [7; 1024]);
    }
    m.unmount();
}

/// Messages of each kind for creating, writing, syncing and closing `FILES` files as a user, the owner of the directory or
/// not, and for listing them with `ls -l` and reading them after a remount.
fn cost(config: &MountConfig, owner: bool) -> [std::collections::BTreeMap<&'static str, u64>; 2] {
    const KINDS: [&str; 11] = [
        "lookup",
        "getattr",
        "setattr",
        "mknod",
        "write",
        "fsync",
        "getxattr",
        "listxattr",
        "read",
        "readdirplus",
        "unsupported",
    ];
    let image = Image::new();
    let m = image.mount_with(MountOptions::default(), config);
    fs::create_dir(m.path("d")).unwrap();
    let uid = if owner { 0 } else { 1000 };
    fs::set_permissions(m.path("d"), fs::Permissions::from_mode(0o777)).unwrap();
    let script = format!(
        "import os\nfor i in range({FILES}):\n fd = os.open('{}/f%d' % i, os.O_CREAT | os.O_WRONLY | os.O_EXCL)\n \
         os.write(fd, b'x' * 1024)\n os.fsync(fd)\n os.close(fd)\n",
        m.path("d").display()
    );
    let run = |program: &str, args: &[&str]| {
        assert!(Command::new(program).args(args).uid(uid).gid(uid).output().unwrap().status.success());
    };
    // What the kernel asks once and for all.
    fs::write(m.path("first"), b"x").unwrap();
    let _ = m.path("first").metadata();
    let count = |before: &common::Messages, after: &common::Messages| {
        KINDS.iter().map(|k| (*k, after.since(before, k))).filter(|(_, n)| *n > 0).collect()
    };
    let before = m.messages();
    run("python3", &["-c", &script]);
    let created = count(&before, &m.messages());
    m.unmount();
    let m = image.mount_with(MountOptions::default(), config);
    let before = m.messages();
    run("ls", &["-l", m.path("d").to_str().unwrap()]);
    run("sh", &["-c", &format!("cat {}/* > /dev/null", m.path("d").display())]);
    let read = count(&before, &m.messages());
    m.unmount();
    [created, read]
}

#[test]
fn what_extended_attributes_cost() {
    if !can_mount() || Command::new("python3").arg("--version").output().is_err() {
        return;
    }
    let without = MountConfig { xattr: false, ..MountConfig::default() };
    let noacl = MountConfig { acl: false, ..MountConfig::default() };
    for (owner, who) in [(true, "owner"), (false, "other user")] {
        let [created, read] = cost(&without, owner);
        println!("noxattr, {who}: create {created:?}, ls and read {read:?}");
        assert_eq!((created.get("getxattr"), read.get("getxattr")), (None, None));
        let [created, read] = cost(&noacl, owner);
        println!("noacl, {who}: create {created:?}, ls and read {read:?}");
        // `security.capability`, before the first write to a file and not again.
        assert_eq!(created["getxattr"], FILES);
        let [created, read] = cost(&MountConfig::default(), owner);
        println!("default, {who}: create {created:?}, ls and read {read:?}");
        // The lists of the directories on the way, for everybody but their owner.
        assert!(if owner { created["getxattr"] == FILES } else { created["getxattr"] > FILES });
    }
}
