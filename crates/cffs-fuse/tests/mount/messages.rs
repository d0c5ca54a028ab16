//! How many messages common work costs. Each is two switches between processes, so this is what the mount's speed hangs on.

use crate::common::{Image, Messages, Mounted, can_mount, has_program, in_some_round};
use cffs::MountOptions;
use cffs_fuse::MountConfig;
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
    let round = |_| {
        let m = image.mount();
        let cost = m.messages_of(|| assert_eq!(walk(&m), DIRS * FILES * 1024));
        m.unmount();
        cost
    };
    in_some_round(round, |cost| {
        let n = |kind| cost.get(kind);
        n("read") == DIRS * FILES
            // Once and never again.
            && n("open") <= 1 && n("opendir") <= 1 && n("flush") <= 1
            && (n("release"), n("releasedir")) == (0, 0)
            // The listings bring names and attributes.
            && n("lookup") <= DIRS && n("getattr") <= 1 + DIRS
            && n("readdir") == 0 && n("readdirplus") <= (DIRS + 1) * 4
    });
}

#[test]
fn a_warm_read_is_none() {
    if !can_mount() {
        return;
    }
    let image = image_with_files();
    let m = image.mount_with(MountOptions::default(), &MountConfig::default());
    let round = |round| {
        for _ in 0..2 {
            walk(&m);
        }
        m.messages_of(|| {
            for d in 0..DIRS {
                for f in 0..FILES {
                    assert_eq!(fs::read(m.path(&format!("d{d}/file{f}"))).unwrap().len(), 1024);
                    assert!(!m.path(&format!("d{d}/missing{round}")).exists());
                }
            }
        })
    };
    in_some_round(round, |cost| {
        let n = |kind| cost.get(kind);
        // One lookup for each missing name.
        (n("read"), n("open"), n("flush"), n("release"), n("lookup")) == (0, 0, 0, 0, DIRS)
    });
    m.unmount();
}

#[test]
fn a_new_small_file_is_four_messages() {
    if !can_mount() {
        return;
    }
    let round = |_| {
        let image = Image::new();
        let m = image.mount();
        let cost = m.messages_of(|| fill(&m));
        m.unmount();
        cost
    };
    in_some_round(round, |cost| {
        let n = |kind| cost.get(kind);
        let files = DIRS * FILES;
        (n("mknod"), n("write")) == (files, files)
            // The name has to be seen to be missing. One more for each directory.
            && n("lookup") == files + DIRS
            && n("create") <= 1 && n("open") <= 1 && n("flush") <= 1
            && (n("release"), n("setattr")) == (0, 0)
            // With a new name the kernel distrusts all it knows of the directory, and asks for its mode before the next one.
            && n("getattr") <= files + DIRS
    });
}

/// Of a page written in part the kernel does not know the rest, without its writeback cache, and reads it.
#[test]
fn whole_pages_that_were_written_are_read_without_a_message() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    for (len, reads) in [(8192, 0), (1024, 1)] {
        let round = |round| {
            let path = m.path(&format!("{len}-{round}"));
            fs::write(&path, vec![8; len]).unwrap();
            m.messages_of(|| assert_eq!(fs::read(&path).unwrap(), vec![8; len]))
        };
        in_some_round(round, |cost| cost.get("read") == reads);
    }
    m.unmount();
}

#[test]
fn large_transfers_are_large() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let write = |round| m.messages_of(|| fs::write(m.path(&format!("big{round}")), vec![1; 16 << 20]).unwrap());
    in_some_round(write, |cost| cost.get("write") <= 20);
    m.unmount();
    let read = |_| {
        let m = image.mount();
        let cost = m.messages_of(|| assert_eq!(fs::read(m.path("big0")).unwrap().len(), 16 << 20));
        m.unmount();
        cost
    };
    in_some_round(read, |cost| cost.get("read") <= 70);
}

#[test]
fn a_durable_new_file_is_one_message_more() {
    if !can_mount() {
        return;
    }
    // In a directory that has files from before the mount, too.
    let image = image_with_files();
    let round = |round| {
        let m = image.mount();
        let cost = m.messages_of(|| {
            for f in 0..FILES {
                let mut file = fs::File::create(m.path(&format!("d{round}/new{f}"))).unwrap();
                file.write_all(&[7; 1024]).unwrap();
                file.sync_all().unwrap();
            }
        });
        m.unmount();
        cost
    };
    in_some_round(round, |cost| {
        let n = |kind| cost.get(kind);
        (n("mknod"), n("write"), n("fsync"), n("setattr"), n("release")) == (FILES, FILES, FILES, 0, 0)
    });
    let m = image.mount();
    for f in 0..FILES {
        assert_eq!(fs::read(m.path(&format!("d0/new{f}"))).unwrap(), [7; 1024]);
        assert_eq!(fs::read(m.path(&format!("d0/file{f}"))).unwrap(), [7; 1024]);
    }
    m.unmount();
}

/// Messages for creating, writing, syncing and closing `FILES` files as a user, the owner of the directory or not, and for
/// listing them with `ls -l` and reading them after a remount.
fn cost(config: &MountConfig, owner: bool) -> [Messages; 2] {
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
    let created = m.messages_of(|| run("python3", &["-c", &script]));
    m.unmount();
    let m = image.mount_with(MountOptions::default(), config);
    let read = m.messages_of(|| {
        run("ls", &["-l", m.path("d").to_str().unwrap()]);
        run("sh", &["-c", &format!("cat {}/* > /dev/null", m.path("d").display())]);
    });
    m.unmount();
    [created, read]
}

#[test]
fn what_extended_attributes_cost() {
    if !can_mount() || !has_program("python3") {
        return;
    }
    let without = MountConfig { xattr: false, ..MountConfig::default() };
    let noacl = MountConfig { acl: false, ..MountConfig::default() };
    for owner in [true, false] {
        let measured = |name: &str, config: &MountConfig| {
            let [created, read] = cost(config, owner);
            let who = if owner { "owner" } else { "other user" };
            println!("{name}, {who}: create {created:?}, ls and read {read:?}");
            [created, read]
        };
        for cost in measured("noxattr", &without) {
            assert_eq!(cost.get("getxattr"), 0, "noxattr: {cost:?}");
        }
        let created = |name: &str, config: &MountConfig| measured(name, config).into_iter().next().unwrap();
        // `security.capability`, before the first write to a file and not again.
        in_some_round(|_| created("noacl", &noacl), |cost| cost.get("getxattr") == FILES);
        // The lists of the directories on the way, for everybody but their owner.
        let holds = |n| if owner { n == FILES } else { n > FILES };
        in_some_round(|_| created("default", &MountConfig::default()), |cost| holds(cost.get("getxattr")));
    }
}
