//! The control channel through real mounts.

mod common;

use cffs::format::Superblock;
use cffs_fuse::control::{Control, ControlError, Request};
use common::{Image, can_mount};
use rustix::io::Errno;
use std::fs;
use std::path::Path;

#[test]
fn any_directory_or_file_of_a_mount_answers() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::create_dir(m.path("dir")).unwrap();
    fs::write(m.path("dir/file"), "x").unwrap();
    for place in [".", "dir", "dir/file"] {
        let info = Control::open(&m.path(place)).unwrap().info().unwrap();
        assert_eq!(info.image, "cffs");
        assert_eq!(info.pid, std::process::id() as i32);
        assert!(!info.read_only);
        assert!(info.available_bytes < info.free_bytes && info.free_bytes < info.total_bytes);
        let sb = Superblock::decode(&info.superblock).unwrap();
        assert_eq!(sb.total_blocks << sb.block_shift, info.total_bytes);
    }
    let control = Control::open(m.dir()).unwrap();
    let stats = control.stats().unwrap();
    assert!(stats["fuse"]["ioctl"].as_u64().unwrap() > 0, "{stats}");
    assert_eq!(stats["fuse"]["server"]["pid"], std::process::id());
    drop(control);
    m.unmount();
}

#[test]
fn sync_makes_durable() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::write(m.path("file"), "contents").unwrap();
    let control = Control::open(m.dir()).unwrap();
    let commits = |c: &Control| c.stats().unwrap()["log"]["commits"].as_u64().unwrap();
    let before = commits(&control);
    control.call::<()>(&Request::Sync).unwrap();
    assert!(commits(&control) > before);
    drop(control);
    m.unmount();
}

#[test]
fn other_mounts_and_other_numbers_are_told_apart() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    // A number that nobody has.
    let dir = fs::File::open(m.dir()).unwrap();
    assert_eq!(rustix::fs::ioctl_blksszget(&dir), Err(Errno::NOTTY));
    // The right number with something else in the buffer.
    let e = cffs_buf::control_ioctl(&dir, &mut [7; cffs_buf::CONTROL_LEN]).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
    drop(dir);
    let around = m.dir().parent().unwrap().to_owned();
    assert!(matches!(Control::open(&around), Err(ControlError::NotMounted(_))));
    m.unmount();
    assert!(matches!(Control::open(Path::new("/sys")), Err(ControlError::NotMounted(_))));
}
