//! Mounts of type `fuseblk`, and more than one place of a mount.

use crate::common::{Image, can_mount, when_not_busy};
use cffs::MountOptions;
use cffs_fuse::{BlockMount, MountConfig, Place, Remount, Session, mount_block, places_of, remount};
use cffs_testenv::{Need, have};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is mounted has a file by which the kernel knows it; the file system itself is in memory.
struct Token {
    image: Image,
    file: PathBuf,
}

impl Token {
    fn new() -> Token {
        let image = Image::new();
        let file = image.dir().with_file_name("token");
        File::create(&file).unwrap().set_len(1 << 20).unwrap();
        Token { image, file }
    }

    fn mount(&self, config: &MountConfig) -> Session {
        let mount = BlockMount::of_file(&self.file, config, false).unwrap();
        mount_block(self.image.engine(MountOptions::default()), mount, &self.image.dir(), config).unwrap()
    }

    fn place(&self) -> Place {
        places_of(&self.file).unwrap().into_iter().next().expect("mounted")
    }

    fn another_dir(&self, name: &str) -> PathBuf {
        let dir = self.image.dir().with_file_name(name);
        fs::create_dir(&dir).unwrap();
        dir
    }
}

fn block_mounts_work() -> bool {
    can_mount() && have(&[Need::Loop])
}

/// The file that a loop device shows, if it is in use.
fn shown_by(minor: u32) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/sys/dev/block/7:{minor}/loop/backing_file")).ok()?;
    Some(text.trim_end().into())
}

fn claim(device: &Path) -> std::io::Result<File> {
    File::options().read(true).custom_flags(rustix::fs::OFlags::EXCL.bits() as i32).open(device)
}

#[test]
fn what_is_not_attached_is_claimed_all_the_same_and_leaves_nothing() {
    if !block_mounts_work() {
        return;
    }
    let token = Token::new();
    let config = MountConfig::default();
    let mount = BlockMount::of_file(&token.file, &config, false).unwrap();
    let (major, minor) = mount.device();
    let device = PathBuf::from(format!("/dev/loop{minor}"));
    assert_eq!((major, shown_by(minor).as_ref()), (7, Some(&token.file)));
    let busy = Some(Errno::BUSY.raw_os_error());
    assert_eq!(claim(&device).unwrap_err().raw_os_error(), busy);
    assert_eq!(BlockMount::of_device(&device, &config, false).unwrap_err().kind(), ErrorKind::ResourceBusy);
    assert!(places_of(&token.file).unwrap().is_empty(), "no directory shows it");
    drop(mount);
    assert_ne!(shown_by(minor).as_ref(), Some(&token.file));
}

#[test]
fn a_device_that_somebody_has_claimed_is_left_alone() {
    if !block_mounts_work() {
        return;
    }
    let token = Token::new();
    let out = Command::new("losetup").args(["--find", "--show"]).arg(&token.file).output().unwrap();
    let device = PathBuf::from(String::from_utf8(out.stdout).unwrap().trim());
    let config = MountConfig::default();
    let other = claim(&device).unwrap();
    let e = BlockMount::of_device(&device, &config, false).unwrap_err();
    drop(other);
    let mount = BlockMount::of_device(&device, &config, false);
    let session =
        mount.map(|m| mount_block(token.image.engine(MountOptions::default()), m, &token.image.dir(), &config));
    let dir = places_of(&device).unwrap().first().map(|p| p.dir().to_owned());
    drop(session);
    let claimed = claim(&device).map(drop);
    assert!(Command::new("losetup").arg("--detach").arg(&device).status().unwrap().success());
    assert_eq!(e.kind(), ErrorKind::ResourceBusy);
    assert_eq!(dir, Some(token.image.dir()));
    claimed.unwrap();
}

#[test]
fn each_place_has_its_flags_and_the_last_one_ends_the_session() {
    if !block_mounts_work() {
        return;
    }
    let token = Token::new();
    let session = token.mount(&MountConfig::default());
    let second = token.another_dir("second");
    let first = token.place();
    assert!(first.is_served() && first.can_be_joined() && first.dir() == token.image.dir());
    let strict = MountConfig { suid: false, dev: false, exec: false, ..MountConfig::default() };
    first.mount_again(&second, &strict, false).unwrap();
    assert_eq!(first.mount_again(&second, &strict, false).unwrap_err().kind(), ErrorKind::AlreadyExists);
    let third = token.another_dir("third");
    assert_eq!(first.mount_again(&third, &strict, true).unwrap_err().kind(), ErrorKind::ResourceBusy);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|l| l.contains(second.to_str().unwrap())).unwrap();
    assert!(line.contains(" rw,nosuid,nodev,noexec,") && line.contains(" fuseblk.cffs /dev/loop"), "{line}");
    fs::write(second.join("f"), b"kept").unwrap();
    // The first place goes, the second stays, and is ended with the session.
    when_not_busy(|| session.unmounter().unmount()).unwrap();
    assert_eq!(fs::read_dir(token.image.dir()).unwrap().count(), 0);
    assert_eq!(fs::read(second.join("f")).unwrap(), b"kept");
    session.unmounter().terminate().unwrap();
    session.wait().unwrap();
    assert_eq!(fs::read_dir(&second).unwrap().count(), 0);
    // It cannot be joined any more, whatever has the loop device now.
    assert_eq!(first.mount_again(&third, &strict, false).unwrap_err().kind(), ErrorKind::NotFound);
    let m = token.image.mount();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"kept");
    m.unmount();
}

#[test]
fn a_block_mount_becomes_read_only_and_writable_again() {
    if !block_mounts_work() {
        return;
    }
    let token = Token::new();
    let session = token.mount(&MountConfig::default());
    let dir = token.image.dir();
    let set = |read_only| remount(&dir, Remount { read_only: Some(read_only), ..Remount::default() });
    fs::write(dir.join("f"), b"kept").unwrap();
    when_not_busy(|| set(true)).unwrap();
    assert_eq!(fs::write(dir.join("f"), b"new").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    set(false).unwrap();
    fs::write(dir.join("f"), b"new").unwrap();
    session.unmounter().terminate().unwrap();
    session.wait().unwrap();
}

/// Somebody looks for a mount on a loop device ([`Place::mount_again`] does), which has just been given to another image. For that moment the kernel takes it
/// for one that has a file system.
#[test]
fn mounts_begin_while_others_are_looked_for() {
    if !block_mounts_work() {
        return;
    }
    let (token, other) = (Token::new(), Token::new());
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for n in (0..32).filter(|n| shown_by(*n).as_deref() == Some(&*token.file)) {
                    // Without a connection it is none that could begin.
                    let (device, flags) = (format!("/dev/loop{n}"), rustix::mount::MountFlags::empty());
                    if rustix::mount::mount(device, other.image.dir(), "fuseblk", flags, None).is_ok() {
                        rustix::mount::unmount(other.image.dir(), rustix::mount::UnmountFlags::DETACH).unwrap();
                    }
                }
            }
        });
        let failed = (0..2000).find_map(|_| BlockMount::of_file(&token.file, &MountConfig::default(), false).err());
        ended.store(true, Ordering::Relaxed);
        assert!(failed.is_none(), "{failed:?}");
    });
}

fn all_threads_stopped(pid: u32) -> bool {
    let mut tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.all(|task| {
        let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    })
}

#[test]
fn umount_waits_for_the_answer_of_the_server() {
    if !block_mounts_work() {
        return;
    }
    // The server is this process, which therefore cannot be stopped: the mount has a server of its own, which is the tests'
    // program again.
    let token = Token::new();
    let dir = token.image.dir();
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &crate::common::test_name(module_path!(), "server_of_its_own"), "--nocapture"])
        .env(OWN_SERVER, &dir)
        .spawn()
        .unwrap();
    let table = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_mounted = || table().contains(dir.to_str().unwrap());
    while !is_mounted() {
        assert!(server.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(fs::metadata(dir.join("missing")).is_err(), "it answers");
    let pid = rustix::process::Pid::from_raw(server.id() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    while !all_threads_stopped(server.id()) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let unmounting = std::thread::spawn({
        let dir = dir.clone();
        move || rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::empty())
    });
    while is_mounted() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    let early = unmounting.is_finished();
    // A server that is gone keeps nobody waiting.
    kill_process(pid, Signal::KILL).unwrap();
    unmounting.join().unwrap().unwrap();
    assert!(!early);
    server.wait().unwrap();
}

const OWN_SERVER: &str = "CFFS_TEST_SERVES";

/// The part of [`umount_waits_for_the_answer_of_the_server`] that serves.
#[test]
fn server_of_its_own() {
    let Some(dir) = std::env::var_os(OWN_SERVER) else { return };
    let token = Token::new();
    let config = MountConfig::default();
    let mount = BlockMount::of_file(&token.file, &config, false).unwrap();
    let session = mount_block(token.image.engine(MountOptions::default()), mount, Path::new(&dir), &config).unwrap();
    session.wait().unwrap();
}
