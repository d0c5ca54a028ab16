//! The control channel through real mounts.

use crate::common::{Image, can_mount, script, test_name};
use cffs::{Grown, MountOptions, ScrubOptions, ScrubOutcome, ScrubStatus, Superblock, TrimRange, Tune};
use cffs_fuse::MountConfig;
use cffs_fuse::control::{Control, ControlError, Request, Tuned};
use rustix::io::Errno;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

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

/// What df shows, in bytes: size, and what everybody may use.
fn space(m: &crate::common::Mounted) -> (u64, u64) {
    let s = rustix::fs::statvfs(m.dir()).unwrap();
    (s.f_blocks * s.f_frsize, s.f_bavail * s.f_frsize)
}

#[test]
fn settings_change_under_the_mount() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let control = Control::open(m.dir()).unwrap();
    let (total, available) = space(&m);
    let change = Tune::default().reserve_bp(Some(0)).label(Some("here".into()));
    let tuned: Tuned = control.call(&Request::Tune(change)).unwrap();
    assert_eq!(Superblock::decode(&tuned.before).unwrap().reserve_bp, 500);
    assert_eq!(Superblock::decode(&tuned.after).unwrap().label_str(), "here");
    assert!(space(&m).1 > available + total / 25, "the reserve is free for all");
    let refused = control.call::<Tuned>(&Request::Tune(Tune::default().reserve_bp(Some(9000)))).unwrap_err();
    assert_eq!(refused.errno(), Some(Errno::INVAL.raw_os_error()));
    assert!(refused.to_string().contains("90%"), "{refused}");
    let refused = control.call::<Tuned>(&Request::Tune(Tune::default().uuid(Some([1; 16])))).unwrap_err();
    assert_eq!(refused.errno(), Some(Errno::BUSY.raw_os_error()));
    drop(control);
    m.unmount();
    let m = image.mount();
    let control = Control::open(m.dir()).unwrap();
    let sb = Superblock::decode(&control.info().unwrap().superblock).unwrap();
    assert_eq!((sb.label_str(), sb.reserve_bp), ("here".to_owned(), 0));
    drop(control);
    m.unmount();
}

#[test]
fn it_grows_under_the_mount() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::write(m.path("file"), "contents").unwrap();
    let control = Control::open(m.dir()).unwrap();
    let (total, available) = space(&m);
    let grown: Grown = control.call(&Request::Grow { size: Some(2 * total) }).unwrap();
    assert_eq!(grown, Grown { from: total, to: 2 * total });
    let now = space(&m);
    assert!(now.0 == 2 * total && now.1 > available + total / 10 * 9, "{now:?}");
    let shrunk = control.call::<Grown>(&Request::Grow { size: Some(total) }).unwrap_err();
    assert!(shrunk.to_string().contains("cannot shrink"), "{shrunk}");
    drop(control);
    fs::write(m.path("large"), vec![1; total as usize]).unwrap();
    m.unmount();
    let m = image.mount();
    assert_eq!(fs::metadata(m.path("large")).unwrap().len(), total);
    m.unmount();
}

#[test]
fn only_root_and_the_owner_change_something() {
    // This test runs itself once more as another user.
    if let Some(dir) = std::env::var_os("CFFS_TEST_DIR") {
        return as_another_user(Path::new(&dir));
    }
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    // Another user, in a process of its own.
    let program = std::env::current_exe().unwrap();
    let copy = image.dir().parent().unwrap().join("asker");
    fs::copy(program, &copy).unwrap();
    let out = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&copy)
        .args(["--exact", "--nocapture", &test_name(module_path!(), "only_root_and_the_owner_change_something")])
        .env("CFFS_TEST_DIR", m.dir())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("1 passed"), "{text}");
    m.unmount();
}

fn as_another_user(dir: &Path) {
    assert_ne!(rustix::process::geteuid().as_raw(), 0);
    let control = Control::open(dir).unwrap();
    assert!(control.stats().unwrap().is_object(), "asking is for everybody");
    for request in [
        Request::Tune(Tune::default().reserve_bp(Some(0))),
        Request::Grow { size: None },
        Request::Trim(TrimRange::default()),
    ] {
        let e = control.call::<serde_json::Value>(&request).unwrap_err();
        assert_eq!(e.errno(), Some(Errno::PERM.raw_os_error()), "{request:?}: {e}");
        assert!(e.to_string().contains("only root"), "{e}");
    }
}

/// Removes a file, and waits until so many bytes more are free: the kernel sends FORGET for it in its own time.
fn remove_and_wait(m: &crate::common::Mounted, name: &str, bytes: u64) {
    let (_, before) = space(m);
    fs::remove_file(m.path(name)).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while space(m).1 < before + bytes {
        assert!(Instant::now() < end, "never freed");
        fs::File::open(m.dir()).unwrap().sync_all().unwrap();
    }
}

#[test]
fn fstrim_works() {
    if !can_mount() || !crate::common::has_program("fstrim") {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::write(m.path("large"), vec![1; 20 << 20]).unwrap();
    fs::File::open(m.path("large")).unwrap().sync_all().unwrap();
    let full = image.allocated_bytes();
    remove_and_wait(&m, "large", 19 << 20);
    let out = std::process::Command::new("fstrim").arg("-v").arg(m.dir()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(image.allocated_bytes() + (19 << 20) < full, "{} of {full}", image.allocated_bytes());
    m.unmount();
}

#[test]
fn freed_space_is_discarded_where_the_mount_asks_for_it() {
    if !can_mount() {
        return;
    }
    for discard in [true, false] {
        let image = Image::new();
        let m = image.mount_with(MountOptions::default().discard(discard), &MountConfig::default());
        fs::write(m.path("large"), vec![1; 20 << 20]).unwrap();
        fs::File::open(m.path("large")).unwrap().sync_all().unwrap();
        let full = image.allocated_bytes();
        remove_and_wait(&m, "large", 19 << 20);
        fs::File::open(m.dir()).unwrap().sync_all().unwrap();
        let freed = full.saturating_sub(image.allocated_bytes());
        assert_eq!(freed > 19 << 20, discard, "{freed} bytes");
        m.unmount();
    }
}

/// A scrub in the background, while a program writes: nothing is found, and it can be stopped.
#[test]
fn scrub_runs_beside_writers_and_stops() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let control = Control::open(m.dir()).unwrap();
    assert_eq!(control.call::<Option<ScrubStatus>>(&Request::ScrubStatus).unwrap(), None);
    assert_eq!(control.call::<Option<ScrubStatus>>(&Request::ScrubStop).unwrap(), None);
    let zero = control.call::<()>(&Request::ScrubStart(ScrubOptions::default().rate(Some(0))));
    assert!(matches!(zero, Err(ControlError::Refused { refusal, .. }) if refusal.errno == Errno::INVAL.raw_os_error()));
    for round in 0..5 {
        control.call::<()>(&Request::ScrubStart(ScrubOptions::default())).unwrap();
        let text = format!("mkdir d{round}; cd d{round}; for i in $(seq 200); do echo $i > f$i; done; rm f1*; sync .");
        script(&m, &["sh", "-c"], &text);
        let status = loop {
            let status = control.call::<Option<ScrubStatus>>(&Request::ScrubStatus).unwrap().unwrap();
            if status.outcome.is_some() {
                break status;
            }
            std::thread::yield_now();
        };
        assert_eq!((status.outcome, status.findings), (Some(ScrubOutcome::Complete), Vec::new()));
    }
    // One that would take hours: there is no second one beside it, and unmounting does not wait for it.
    let slow = Request::ScrubStart(ScrubOptions::default().rate(Some(10)));
    control.call::<()>(&slow).unwrap();
    let second = control.call::<()>(&slow);
    assert!(
        matches!(second, Err(ControlError::Refused { refusal, .. }) if refusal.errno == Errno::BUSY.raw_os_error())
    );
    let stopped = control.call::<Option<ScrubStatus>>(&Request::ScrubStop).unwrap().unwrap();
    assert_eq!(stopped.outcome, Some(ScrubOutcome::Stopped));
    control.call::<()>(&slow).unwrap();
    drop(control);
    m.unmount();
}
