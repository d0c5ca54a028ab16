//! What has to be durable when a system call returns: each test looks at the device as a crash of that moment would leave it.

use crate::common::{Image, Mounted, can_mount, has_program, script};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;

/// What a file holds after a crash now; `None` if it is not there.
fn after_crash(image: &Image, name: &str) -> Option<Vec<u8>> {
    let copy = image.as_after_a_crash();
    let m = copy.mount();
    let bytes = fs::read(m.path(name)).ok();
    m.unmount();
    bytes
}

fn mounted() -> (Image, Mounted) {
    let image = Image::new();
    // Nothing becomes durable by itself while the test runs.
    let options = cffs::MountOptions::default().commit_interval(std::time::Duration::from_secs(3600));
    let m = image.mount_with(options, &cffs_fuse::MountConfig::default());
    (image, m)
}

#[test]
fn a_synchronous_write_is_durable_when_it_returns() {
    if !can_mount() {
        return;
    }
    let (image, m) = mounted();
    // O_DSYNC, O_SYNC; of small and of larger writes.
    for (name, flags) in [("dsync", 0o10_000), ("sync", 0o4_010_000)] {
        for len in [100, 300_000] {
            let name = format!("{name}{len}");
            let mut f = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .custom_flags(flags)
                .open(m.path(&name))
                .unwrap();
            f.write_all(&vec![7; len]).unwrap();
            assert_eq!(after_crash(&image, &name), Some(vec![7; len]), "{name}");
            drop(f);
        }
    }
    // Without them it is not: the test sees the difference.
    fs::write(m.path("plain"), b"x").unwrap();
    assert_ne!(after_crash(&image, "plain"), Some(b"x".to_vec()));
    m.unmount();
}

#[test]
fn fsync_of_a_file_and_of_a_directory() {
    if !can_mount() {
        return;
    }
    let (image, m) = mounted();
    fs::create_dir(m.path("d")).unwrap();
    let mut f = fs::File::create(m.path("d/f")).unwrap();
    f.write_all(b"contents").unwrap();
    f.sync_all().unwrap();
    assert_eq!(after_crash(&image, "d/f"), Some(b"contents".to_vec()));
    fs::rename(m.path("d/f"), m.path("d/g")).unwrap();
    fs::File::open(m.path("d")).unwrap().sync_all().unwrap();
    assert_eq!(after_crash(&image, "d/g"), Some(b"contents".to_vec()));
    assert_eq!(after_crash(&image, "d/f"), None);
    drop(f);
    m.unmount();
}

#[test]
fn what_a_shared_mapping_wrote_is_durable_after_msync() {
    if !can_mount() || !has_program("python3") {
        return;
    }
    let (image, m) = mounted();
    fs::write(m.path("f"), vec![b'.'; 20_000]).unwrap();
    script(
        &m,
        &["python3", "-c"],
        "import mmap\nf=open('f','r+b'); m=mmap.mmap(f.fileno(),0); m[9000:9004]=b'MMAP'; m.flush()",
    );
    let found = after_crash(&image, "f").unwrap();
    assert_eq!((&found[9000..9004], found.len()), (&b"MMAP"[..], 20_000));
    m.unmount();
}

/// A mount of type `fuse` does not hear of syncfs(2) and sync(2), but of an fsync of the root.
#[test]
fn sync_of_the_mount_point_makes_everything_durable_and_syncfs_sends_no_message() {
    if !can_mount() {
        return;
    }
    let (image, m) = mounted();
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/f"), b"contents").unwrap();
    let before = m.messages();
    let root = fs::File::open(m.dir()).unwrap();
    rustix::fs::syncfs(root.as_fd()).unwrap();
    let after = m.messages();
    for kind in ["fsync", "fsyncdir", "unsupported"] {
        assert_eq!(after.since(&before, kind), 0, "{kind}");
    }
    assert_eq!(after_crash(&image, "d/f"), None);
    root.sync_all().unwrap();
    assert_eq!(m.messages().since(&after, "fsyncdir"), 1);
    assert_eq!(after_crash(&image, "d/f"), Some(b"contents".to_vec()));
    drop(root);
    m.unmount();
}

#[test]
fn an_fsync_of_space_allocated_ahead_shows_zeros_and_what_was_written() {
    if !can_mount() {
        return;
    }
    let (image, m) = mounted();
    use std::os::unix::fs::FileExt as _;
    let f = fs::File::create(m.path("f")).unwrap();
    rustix::fs::fallocate(&f, rustix::fs::FallocateFlags::empty(), 0, 1 << 20).unwrap();
    for (at, len) in [(5000, 100), (400_000, 200_000)] {
        f.write_all_at(&vec![3; len], at).unwrap();
        f.sync_data().unwrap();
        let found = after_crash(&image, "f").unwrap();
        assert_eq!(found.len(), 1 << 20);
        assert!(found[at as usize..at as usize + len].iter().all(|b| *b == 3));
        assert!(found[..5000].iter().all(|b| *b == 0) && found[600_000..].iter().all(|b| *b == 0));
    }
    drop(f);
    m.unmount();
}
