//! Shutting a mounted file system down: what is durable, and that nothing happens any more.

use crate::common::plain::{clean, fresh};
use cffs::device::{CountingDevice, Device, MemoryDevice};
use cffs::{
    Caller, Error, Fallocate, Fs, MkfsOptions, MountOptions, QuotaKind, ROOT_INO, Result, Scrub, ScrubOptions, SetAttr,
    SetXattr, Shutdown, TrimRange, path,
};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const ROOT: Caller = Caller::ROOT;

type Counted = Arc<CountingDevice<Arc<dyn Device>>>;

fn mount(dev: &Arc<MemoryDevice>) -> (Counted, Arc<Fs>) {
    let counted = Arc::new(CountingDevice::new(dev.clone() as Arc<dyn Device>));
    let fs = Fs::open(counted.clone(), None, MountOptions::default().background(false)).unwrap();
    (counted, fs)
}

/// Files with what was promised for each: `/synced` its contents, `/named` its name, `/dirty` nothing.
fn prepared() -> (Arc<MemoryDevice>, Counted, Arc<Fs>) {
    let dev = fresh(32 << 20, &MkfsOptions::default().quota(QuotaKind::ALL.to_vec()));
    let (counted, fs) = mount(&dev);
    path::write_file(&fs, ROOT, b"/synced", &[1; 100_000]).unwrap();
    let synced = fs.lookup(ROOT_INO, b"synced").unwrap().ino;
    fs.fsync(synced, false).unwrap();
    path::write_file(&fs, ROOT, b"/dirty", &[2; 50_000]).unwrap();
    (dev, counted, fs)
}

#[test]
fn each_way_makes_durable_what_it_says_and_the_next_mount_recovers() {
    for (how, name, contents) in
        [(Shutdown::Flush, true, true), (Shutdown::LogFlush, true, false), (Shutdown::NoLogFlush, false, false)]
    {
        let (dev, _, fs) = prepared();
        fs.shutdown(how).unwrap();
        assert!(matches!(fs.close(), Err(Error::ShutDown)), "{how:?}");
        drop(fs);
        let (_, fs) = mount(&dev);
        assert_eq!(path::read_file(&fs, b"/synced").unwrap(), [1; 100_000], "{how:?}");
        match path::read_file(&fs, b"/dirty") {
            Ok(bytes) => assert_eq!((bytes.len(), name), (if contents { 50_000 } else { 0 }, true), "{how:?}"),
            Err(e) => assert!(matches!(e, Error::NotFound) && !name, "{how:?}: {e}"),
        }
        fs.close().unwrap();
        clean(&dev, "recovered");
    }
}

#[test]
fn nothing_works_afterwards_and_nothing_reaches_the_device() {
    let (_, counted, fs) = prepared();
    let f = fs.lookup(ROOT_INO, b"synced").unwrap().ino;
    let open = fs.tmpfile(ROOT, ROOT_INO, 0o600).unwrap().ino;
    fs.shutdown(Shutdown::NoLogFlush).unwrap();
    let before = counted.snapshot();
    let mut buf = [0; 10];
    let refused: Vec<(&str, Result<()>)> = vec![
        ("lookup", fs.lookup(ROOT_INO, b"synced").map(drop)),
        ("getattr", fs.getattr(f).map(drop)),
        ("reference", fs.reference(f).map(drop)),
        ("reference to a wrong number", fs.reference(u64::MAX).map(drop)),
        ("parent", fs.parent(ROOT_INO).map(drop)),
        ("readdir", fs.readdir(ROOT_INO, 0, true, &mut |_| true)),
        ("read", fs.read(f, 0, &mut buf).map(drop)),
        ("write", fs.write(ROOT, f, 0, &[9; 10]).map(drop)),
        ("truncate", fs.setattr(ROOT, f, SetAttr::default().size(Some(0))).map(drop)),
        ("fallocate", fs.fallocate(ROOT, f, Fallocate::PunchHole, 0, 4096)),
        ("copy", fs.copy_range(ROOT, f, 0, f, 1 << 20, 10).map(drop)),
        ("seek", fs.seek_data(f, 0).map(drop)),
        ("create", fs.create(ROOT, ROOT_INO, b"new", 0o600).map(drop)),
        ("tmpfile", fs.tmpfile(ROOT, ROOT_INO, 0o600).map(drop)),
        ("link", fs.link(ROOT, open, ROOT_INO, b"new").map(drop)),
        ("unlink", fs.unlink(ROOT_INO, b"synced")),
        ("rename", fs.rename(ROOT, ROOT_INO, b"synced", ROOT_INO, b"x", Default::default())),
        ("setxattr", fs.setxattr(ROOT, f, b"user.a", b"b", SetXattr::default())),
        ("getxattr", fs.getxattr(f, b"user.a").map(drop)),
        ("listxattr", fs.listxattr(f).map(drop)),
        ("flags", fs.set_flags(ROOT, f, 0x10).map(drop)),
        ("fsync", fs.fsync(f, false)),
        ("fsync of the root", fs.fsync(ROOT_INO, false)),
        ("sync", fs.sync()),
        ("trim", fs.trim(TrimRange::default()).map(drop)),
        ("grow", fs.grow(None).map(drop)),
        ("quota", fs.quota(QuotaKind::User, 0).map(drop)),
        ("scrub", fs.scrub(&ScrubOptions::default(), &Scrub::new())),
    ];
    for (what, outcome) in refused {
        let e = outcome.expect_err(what);
        assert!(matches!(e, Error::ShutDown) && e.errno() == Errno::IO.raw_os_error(), "{what}: {e}");
    }
    fs.forget(open, 1);
    fs.forget(f, 1);
    fs.drop_caches();
    assert!(fs.is_read_only());
    assert_eq!(fs.failure(), Some("the file system was shut down"));
    fs.shutdown(Shutdown::Flush).unwrap();
    assert!(matches!(fs.close(), Err(Error::ShutDown)));
    assert!(matches!(fs.close(), Err(Error::ShutDown)));
    drop(fs);
    let after = counted.snapshot();
    assert_eq!((before.kinds, before.flushes), (after.kinds, after.flushes));
}

#[test]
fn a_read_only_mount_can_be_shut_down_too() {
    let (dev, _, fs) = prepared();
    fs.close().unwrap();
    let options = MountOptions::default().background(false).read_only(true);
    let fs = Fs::open(dev.clone(), None, options).unwrap();
    fs.shutdown(Shutdown::Flush).unwrap();
    assert!(matches!(fs.lookup(ROOT_INO, b"synced"), Err(Error::ShutDown)));
    assert!(matches!(fs.sync(), Err(Error::ShutDown)));
    drop(fs);
    clean(&dev, "as it was");
}

#[test]
fn threads_and_the_background_thread_are_stopped_with_it() {
    for how in [Shutdown::Flush, Shutdown::LogFlush, Shutdown::NoLogFlush] {
        let dev = fresh(32 << 20, &MkfsOptions::default());
        let counted = Arc::new(CountingDevice::new(dev.clone() as Arc<dyn Device>));
        let options = MountOptions::default().commit_interval(std::time::Duration::from_millis(1));
        let fs = Fs::open(counted.clone(), None, options).unwrap();
        let begun = AtomicBool::new(false);
        let fs = &fs;
        // Each thread knows the last of its files that fsync promised.
        let promised: Vec<u32> = std::thread::scope(|s| {
            let work = |t: u8| {
                let begun = &begun;
                move || {
                    let mut n = 0u32;
                    loop {
                        let name = format!("{t}-{n}");
                        let made = fs.create(ROOT, ROOT_INO, name.as_bytes(), 0o600).and_then(|f| {
                            fs.write(ROOT, f.ino, 0, &[t; 3000])?;
                            fs.fsync(f.ino, false)
                        });
                        match made {
                            Ok(()) => n += 1,
                            Err(e) => {
                                assert!(matches!(e, Error::ShutDown | Error::Io(_)), "{e}");
                                return n;
                            }
                        }
                        begun.store(n > 5, Ordering::Release);
                    }
                }
            };
            let threads: Vec<_> = (0..3).map(|t| s.spawn(work(t))).collect();
            while !begun.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let _ = fs.shutdown(how);
            let stopped = counted.snapshot();
            let promised = threads.into_iter().map(|t| t.join().unwrap()).collect();
            std::thread::sleep(std::time::Duration::from_millis(20));
            let after = counted.snapshot();
            assert_eq!((stopped.kinds, stopped.flushes), (after.kinds, after.flushes), "{how:?}");
            promised
        });
        assert!(fs.close().is_err());
        let again = Fs::open(dev.clone(), None, MountOptions::default().background(false)).unwrap();
        for (t, promised) in promised.into_iter().enumerate() {
            for n in 0..promised {
                let path = format!("/{t}-{n}");
                assert_eq!(path::read_file(&again, path.as_bytes()).unwrap(), [t as u8; 3000], "{how:?}: {path}");
            }
        }
        again.close().unwrap();
        clean(&dev, "recovered");
    }
}
