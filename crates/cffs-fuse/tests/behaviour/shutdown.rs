//! The end without an unmount: FS_IOC_SHUTDOWN, and mounts that skip the recovery.

use crate::disk::{Disk, Kind, Mount};
use crate::raw::{raw, raw_as};
use crate::{Outcome, expect, expect_errno, failed, on_each};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Ways to stop a file system: after everything was written, after the log was written, or right away.
const WAYS: [&str; 3] = ["0", "1", "2"];

fn stopped(disk: &Disk, m: Mount<'_>, flags: &str) -> Outcome {
    let write_durably = |name: &str, text: &[u8]| {
        let mut file = File::create(m.path(name)).unwrap();
        file.write_all(text).unwrap();
        file.sync_all().unwrap();
    };
    let name = |n: usize| format!("durable{flags}-{n}");
    for n in 0..20 {
        write_durably(&name(n), name(n).as_bytes());
    }
    let mut cold = File::open(m.path(&name(0))).unwrap();
    let mut open = File::options().append(true).open(m.path(&name(1))).unwrap();
    raw(&["shutdown", m.dir().to_str().unwrap(), flags]).map_err(failed("FS_IOC_SHUTDOWN"))?;
    expect_errno(open.write_all(b"more").and_then(|()| open.sync_all()), Errno::IO, "write to an open file")?;
    expect_errno(fs::write(m.path("new"), "new"), Errno::IO, "creating a file")?;
    expect_errno(fs::create_dir(m.path("dir")), Errno::IO, "creating a directory")?;
    expect_errno(cold.read(&mut [0; 100]), Errno::IO, "read of a file that is open")?;
    drop((cold, open));
    m.unmount();
    let m = disk.mount();
    for n in 0..20 {
        let found = fs::read(m.path(&name(n))).map_err(failed("after the next mount"))?;
        expect(found == name(n).as_bytes(), || format!("{} has {} bytes after the next mount", name(n), found.len()))?;
    }
    expect(!m.dir().join("new").exists(), || "what was refused is there".into())?;
    m.unmount();
    disk.check()
}

#[test]
fn a_file_system_that_was_shut_down_refuses_everything_and_keeps_what_was_synced() {
    on_each("shutdown", |disk| WAYS.iter().try_for_each(|flags| stopped(disk, disk.mount(), flags)));
}

/// Also what the page cache has.
#[test]
fn after_a_shutdown_cached_pages_are_not_read_either() {
    on_each("shutdown_cached_read", |disk| {
        let m = disk.mount();
        fs::write(m.path("file"), vec![7; 65_536]).unwrap();
        let mut file = File::open(m.path("file")).unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::read(m.path("file")).unwrap(), vec![7; 65_536]);
        raw(&["shutdown", m.dir().to_str().unwrap(), "2"]).map_err(failed("FS_IOC_SHUTDOWN"))?;
        expect_errno(file.read(&mut [0; 100]), Errno::IO, "read of cached pages")
    });
}

#[test]
fn only_root_shuts_down_and_only_in_ways_that_exist() {
    on_each("shutdown_refused", |disk| {
        let m = disk.mount();
        let answer = raw(&["shutdown", m.dir().to_str().unwrap(), "77"]);
        expect(answer.as_ref().is_err_and(|e| e == "EINVAL"), || format!("a shutdown by flags 77: {answer:?}"))?;
        let answer = raw_as(Some(12345), &["shutdown", m.dir().to_str().unwrap(), "2"]);
        expect(answer.as_ref().is_err_and(|e| e == "EPERM"), || format!("a shutdown by a user: {answer:?}"))?;
        fs::write(m.path("file"), "x").map_err(failed("writing after a shutdown that was refused"))
    });
}

#[test]
fn the_recovery_is_skipped_by_read_only_mounts_alone() {
    on_each("norecovery", |disk| {
        let m = disk.mount();
        let mut file = File::create(m.path("file")).unwrap();
        file.write_all(b"contents").unwrap();
        file.sync_all().unwrap();
        let crashed = disk.copy();
        // ext4 knows it by this name too.
        let refused = crashed.try_mount("mnt", "norecovery").map(|_| ());
        expect(refused.is_err(), || "a mount for writing skipped the recovery".into())?;
        let read_only = crashed.try_mount("mnt", "ro,norecovery").map_err(failed("ro,norecovery"))?;
        expect_errno(fs::write(read_only.path("new"), "x"), Errno::ROFS, "creating a file")?;
        read_only.unmount();
        if disk.kind() == Kind::Ext4 {
            let refused = crashed.try_mount("mnt", "noload").map(|_| ());
            expect(refused.is_err(), || "a mount for writing skipped the recovery".into())?;
        }
        // Nothing was recovered, and nothing was lost.
        let m = crashed.mount();
        expect(fs::read(m.path("file")).is_ok_and(|t| t == b"contents"), || "lost what was fsynced".into())
    });
}

/// Readers whose pages come from the file system just then must not be waited for by those who answer them.
#[test]
fn shutdowns_at_once_and_under_readers_all_end() {
    on_each("shutdowns_at_once", |disk| {
        let m = disk.mount();
        for n in 0..200 {
            fs::write(m.path(&format!("file{n}")), vec![7; 20_000]).map_err(failed("write"))?;
        }
        m.unmount();
        // One thread that answers is the hardest case.
        let options = if disk.kind() == Kind::Cffs { "threads=1,noio_uring" } else { "" };
        let m = disk.try_mount("mnt", options)?;
        let (refused, shut) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|s| {
            for reader in 0..6 {
                let (m, refused, shut) = (&m, &refused, &shut);
                s.spawn(move || {
                    // Each file is cold for the one who comes first. All of them once more after the shutdown.
                    let mut left = 200;
                    for n in (0_u64..).map(|n| (n * 7 + reader * 31) % 200) {
                        left -= u32::from(shut.load(Ordering::SeqCst));
                        if left == 0 {
                            break;
                        }
                        let Ok(bytes) = fs::read(m.path(&format!("file{n}"))) else {
                            refused.fetch_add(1, Ordering::SeqCst);
                            break;
                        };
                        assert_eq!(bytes, vec![7; 20_000]);
                    }
                });
            }
            let stops: Vec<_> =
                (0..4).map(|_| s.spawn(|| raw(&["shutdown", m.dir().to_str().unwrap(), "2"]))).collect();
            // Whoever comes later may find it shut down already, and be told so.
            let ends: Vec<_> = stops.into_iter().map(|stop| stop.join()).collect();
            shut.store(true, Ordering::SeqCst);
            let done = ends.into_iter().filter_map(|end| end.unwrap().ok()).count();
            expect(done > 0, || "no shutdown succeeded".into())
        })?;
        expect(refused.load(Ordering::SeqCst) > 0, || "readers never noticed".into())
    });
}
