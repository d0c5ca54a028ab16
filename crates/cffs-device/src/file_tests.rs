//! Tests of [`FileDevice`] on real files.

use super::*;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use tempfile::TempDir;

const BUFFERED: OpenMode = OpenMode { direct: Direct::Never, ..OpenMode::READ_WRITE };

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 512 * 7 + i + seed * 31) as u8).collect()
}

/// A new image of `len` bytes in a directory of its own, once direct if the file system below can, once buffered.
fn each_mode(len: u64, test: impl Fn(&FileDevice)) {
    let dir = TempDir::new().unwrap();
    for (name, mode) in [("direct", OpenMode::READ_WRITE), ("buffered", BUFFERED)] {
        let dev = FileDevice::create(dir.path().join(name), len, mode).unwrap();
        assert!(mode.direct == Direct::Auto || !dev.is_direct());
        test(&dev);
    }
}

#[test]
fn aligned_and_unaligned_memory() {
    each_mode(4 << 20, |dev| {
        for (i, len) in [4096, 65536, 1 << 20, 3 << 20].into_iter().enumerate() {
            let data = pattern(len + 1, i);
            // One of the two starts at an odd address.
            for start in [0, 1] {
                let offset = 8192 * (i as u64 + 1);
                dev.write_at(IoKind::Data, offset, &data[start..start + len]).unwrap();
                let mut odd = vec![0; len + 1];
                dev.read_at(IoKind::Data, offset, &mut odd[1 - start..1 - start + len]).unwrap();
                assert!(odd[1 - start..1 - start + len] == data[start..start + len]);
                let mut aligned = AlignedBuf::zeroed(len);
                dev.read_at(IoKind::Data, offset, &mut aligned).unwrap();
                assert!(aligned[..] == data[start..start + len]);
            }
        }
    });
}

#[test]
fn odd_pieces_in_whole_sectors() {
    each_mode(1 << 20, |dev| {
        let sector = dev.sector_size() as usize;
        let data = pattern(sector * 40, 1);
        for piece in [1, 13, 511, 513, 1000, sector, sector * 3] {
            let bufs: Vec<_> = data.chunks(piece).map(IoSlice::new).collect();
            dev.write_vectored(IoKind::Data, sector as u64, &bufs).unwrap();
            let mut back = vec![0; data.len()];
            let mut bufs: Vec<_> = back.chunks_mut(piece + 1).map(IoSliceMut::new).collect();
            bufs.insert(1, IoSliceMut::new(&mut []));
            dev.read_vectored(IoKind::Data, sector as u64, &mut bufs).unwrap();
            assert!(back == data, "pieces of {piece}");
            dev.write_at(IoKind::Data, sector as u64, &vec![0; data.len()]).unwrap();
        }
    });
}

/// More buffers than one system call takes, all aligned, so that nothing is gathered before.
#[test]
fn more_buffers_than_a_system_call_takes() {
    each_mode(16 << 20, |dev| {
        let sector = dev.sector_size() as usize;
        let n = 2500;
        let blocks: Vec<_> = (0..n).map(|i| AlignedBuf::from_slice(&pattern(sector, i))).collect();
        let bufs: Vec<_> = blocks.iter().map(|b| IoSlice::new(b)).collect();
        dev.write_vectored(IoKind::Data, 4096, &bufs).unwrap();
        let mut back = vec![AlignedBuf::zeroed(sector); n];
        let mut bufs: Vec<_> = back.iter_mut().map(|b| IoSliceMut::new(b)).collect();
        dev.read_vectored(IoKind::Data, 4096, &mut bufs).unwrap();
        assert!(bufs.iter().all(|b| b.len() == sector), "the caller's list stays as it was");
        assert!(back == blocks);
    });
}

#[test]
fn batches() {
    each_mode(16 << 20, |dev| {
        let blocks: Vec<_> = (0..100).map(|i| pattern(8192, i)).collect();
        let request = |(i, b)| WriteRequest {
            kind: IoKind::Data,
            offset: (i as u64 * 37 % 100) * 65536,
            bufs: vec![IoSlice::new(b)],
        };
        let requests: Vec<_> = blocks.iter().map(|b| &b[..]).enumerate().map(request).collect();
        dev.write_batch(&requests).unwrap();
        dev.write_batch(&[]).unwrap();
        dev.flush().unwrap();
        for (r, block) in requests.iter().zip(&blocks) {
            let mut back = vec![0; 8192];
            dev.read_at(IoKind::Data, r.offset, &mut back).unwrap();
            assert!(&back == block);
        }
    });
}

#[test]
fn a_batch_does_what_it_can_and_tells_the_first_error() {
    each_mode(1 << 20, |dev| {
        let data = pattern(4096, 3);
        let request = |offset| WriteRequest { kind: IoKind::Data, offset, bufs: vec![IoSlice::new(&data)] };
        let e = dev.write_batch(&[request(0), request(2 << 20), request(3 << 20), request(65536)]).unwrap_err();
        assert!(e.to_string().contains("offset 2097152"), "{e}");
        for offset in [0, 65536] {
            let mut back = vec![0; 4096];
            dev.read_at(IoKind::Data, offset, &mut back).unwrap();
            assert!(back == data);
        }
    });
}

#[test]
fn a_truncated_image_says_so() {
    each_mode(1 << 20, |dev| {
        let mut buf = vec![0; 8192];
        // Behind the device's back, as a copy that was interrupted; also in the middle of a sector.
        for len in [512 * 1024, 512 * 1024 + 100] {
            File::options().write(true).open(dev.path()).unwrap().set_len(len).unwrap();
            dev.read_at(IoKind::Data, 512 * 1024 - 8192, &mut buf).unwrap();
            for offset in [512 * 1024 - 4096, 512 * 1024, 768 * 1024] {
                let e = dev.read_at(IoKind::Data, offset, &mut buf).unwrap_err();
                assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof);
                assert!(e.to_string().contains("truncated"), "{e}");
                assert!(e.to_string().contains(dev.path().to_str().unwrap()), "{e}");
            }
        }
        let e = dev.read_at(IoKind::Data, 1 << 20, &mut buf).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof);
    });
}

#[test]
fn a_write_never_makes_the_image_longer() {
    each_mode(1 << 20, |dev| {
        let e = dev.write_at(IoKind::Data, (1 << 20) - 4096, &[1; 8192]).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::InvalidInput);
        assert!(dev.write_at(IoKind::Data, 7, &[1; 4096]).is_err(), "not in whole sectors");
        assert_eq!(std::fs::metadata(dev.path()).unwrap().len(), 1 << 20);
    });
}

#[test]
fn create_is_sparse_and_keeps_what_is_there() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("image");
    let dev = FileDevice::create(&path, 1 << 40, OpenMode::READ_WRITE).unwrap();
    assert_eq!(dev.len(), 1 << 40);
    assert!(std::fs::metadata(&path).unwrap().blocks() < 64);
    dev.write_at(IoKind::Data, 0, &[5; 4096]).unwrap();
    drop(dev);
    let dev = FileDevice::create(&path, 1 << 30, OpenMode::READ_WRITE).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 30);
    let mut buf = [0; 4096];
    dev.read_at(IoKind::Data, 0, &mut buf).unwrap();
    assert_eq!(buf, [5; 4096]);
    drop(dev);
    assert_eq!(FileDevice::open(&path, OpenMode::READ_ONLY).unwrap().len(), 1 << 30);
}

#[test]
fn discarding_frees_space_of_the_host() {
    each_mode(8 << 20, |dev| {
        dev.write_at(IoKind::Data, 0, &vec![1; 8 << 20]).unwrap();
        dev.flush().unwrap();
        let before = std::fs::metadata(dev.path()).unwrap().blocks();
        dev.discard(1 << 20, 6 << 20).unwrap();
        dev.discard(100, 50).unwrap();
        dev.discard(32 << 20, 1 << 20).unwrap();
        let mut buf = vec![0; 4096];
        dev.read_at(IoKind::Data, (1 << 20) - 4096, &mut buf).unwrap();
        assert!(buf.iter().all(|&b| b == 1));
        dev.read_at(IoKind::Data, 0, &mut buf).unwrap();
        assert!(buf.iter().all(|&b| b == 1));
        if dev.can_discard.load(Ordering::Relaxed) {
            assert!(std::fs::metadata(dev.path()).unwrap().blocks() <= before - (5 << 20) / 512);
            dev.read_at(IoKind::Data, 2 << 20, &mut buf).unwrap();
            assert!(buf.iter().all(|&b| b == 0));
        }
        assert_eq!(dev.actual_len().unwrap(), 8 << 20);
    });
}

#[test]
fn one_writer_or_many_readers() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("image");
    let refused = |mode| {
        let e = FileDevice::open(&path, mode).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::ResourceBusy);
        assert!(e.to_string().contains("in use"), "{e}");
        e.to_string()
    };
    let writer = FileDevice::create(&path, 1 << 20, OpenMode::READ_WRITE).unwrap();
    let message = refused(OpenMode::READ_WRITE);
    if Path::new("/proc/locks").exists() {
        assert!(message.contains(&format!("by process {}", std::process::id())), "{message}");
    }
    refused(OpenMode::READ_ONLY);
    assert!(FileDevice::create(&path, 5 << 20, OpenMode::READ_WRITE).is_err());
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20, "an image in use is not resized");
    FileDevice::open(&path, OpenMode { lock: Lock::None, ..OpenMode::READ_ONLY }).unwrap();
    drop(writer);

    let reader = FileDevice::open(&path, OpenMode::READ_ONLY).unwrap();
    let second = FileDevice::open(&path, OpenMode::READ_ONLY).unwrap();
    refused(OpenMode::READ_WRITE);
    refused(OpenMode { lock: Lock::Exclusive, ..OpenMode::READ_ONLY });
    drop((reader, second));
    FileDevice::open(&path, OpenMode::READ_WRITE).unwrap();
}

#[test]
fn a_lock_that_goes_soon_is_waited_for() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("image");
    FileDevice::create(&path, 1 << 20, OpenMode::READ_WRITE).unwrap();
    let waited = || {
        let first = FileDevice::open(&path, OpenMode::READ_WRITE).unwrap();
        let release = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            drop(first);
        });
        let second = FileDevice::open(&path, OpenMode::READ_WRITE);
        release.join().unwrap();
        second.is_ok()
    };
    // One of several attempts, because a busy machine may let the first one sleep for longer than a lock is waited for.
    assert!((0..10).any(|_| waited()));
}

#[test]
fn switches_to_buffered_and_keeps_the_lock() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("image");
    let dev = FileDevice::create(&path, 1 << 20, OpenMode::READ_WRITE).unwrap();
    dev.write_at(IoKind::Data, 4096, &[1; 4096]).unwrap();
    dev.use_buffered().unwrap();
    assert!(!dev.is_direct());
    assert_eq!(dev.sector_size(), 512);
    dev.write_at(IoKind::Data, 4096 + 512, &[2; 512]).unwrap();
    let mut buf = [0; 1024];
    dev.read_at(IoKind::Data, 4096, &mut buf).unwrap();
    assert_eq!((&buf[..512], &buf[512..]), (&[1; 512][..], &[2; 512][..]));
    assert!(FileDevice::open(&path, OpenMode::READ_WRITE).is_err());
}

/// The kernel demands more than it said: each of several threads that meet it goes on buffered.
#[test]
fn goes_on_where_direct_io_is_refused() {
    let dir = TempDir::new().unwrap();
    let mut dev = FileDevice::create(dir.path().join("image"), 1 << 20, OpenMode::READ_WRITE).unwrap();
    dev.memory_align = 1;
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let dev = &dev;
            s.spawn(move || {
                let data = pattern(8193, t as usize);
                dev.write_at(IoKind::Data, t * 65536, &data[1..]).unwrap();
                let mut back = vec![0; 8193];
                dev.read_at(IoKind::Data, t * 65536, &mut back[1..]).unwrap();
                assert!(back[1..] == data[1..]);
            });
        }
    });
}

#[test]
fn a_read_only_image_is_not_written() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, pattern(65536, 9)).unwrap();
    let dev = FileDevice::open(&path, OpenMode::READ_ONLY).unwrap();
    assert!(dev.read_only());
    assert_eq!(dev.write_at(IoKind::Data, 0, &[0; 4096]).unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    dev.discard(0, 65536).unwrap();
    dev.flush().unwrap();
    assert!(std::fs::read(&path).unwrap() == pattern(65536, 9));
}

#[test]
fn what_is_no_image_is_refused_with_its_name() {
    let dir = TempDir::new().unwrap();
    let refused = |path: &Path| {
        let e = FileDevice::open(path, OpenMode::READ_WRITE).unwrap_err();
        assert!(e.to_string().contains(path.to_str().unwrap()), "{e}");
        e.kind()
    };
    assert_eq!(refused(&dir.path().join("missing")), io::ErrorKind::NotFound);
    assert!(!dir.path().join("missing").exists());
    assert_eq!(refused(dir.path()), io::ErrorKind::InvalidInput);
    assert_eq!(refused(Path::new("/dev/null")), io::ErrorKind::InvalidInput);
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert_eq!(refused(&fifo), io::ErrorKind::InvalidInput);
}

#[test]
fn empty_and_odd_lengths() {
    let dir = TempDir::new().unwrap();
    for (name, len) in [("empty", 0), ("odd", 70000)] {
        let path = dir.path().join(name);
        std::fs::write(&path, pattern(len, 2)).unwrap();
        let dev = FileDevice::open(&path, OpenMode::READ_WRITE).unwrap();
        assert_eq!(dev.len(), len as u64);
        let mut buf = vec![0; 65536];
        assert_eq!(dev.read_at(IoKind::Data, 0, &mut buf).is_ok(), len > 0);
        assert!(len == 0 || buf == pattern(len, 2)[..65536]);
    }
}

#[test]
fn on_tmpfs() {
    let Ok(dir) = TempDir::new_in("/dev/shm") else { return };
    let dev = FileDevice::create(dir.path().join("image"), 1 << 50, OpenMode::READ_WRITE).unwrap();
    let data = pattern(8193, 4);
    dev.write_at(IoKind::Data, (1 << 50) - 8192, &data[1..]).unwrap();
    let mut back = vec![0; 8192];
    dev.read_at(IoKind::Data, (1 << 50) - 8192, &mut back).unwrap();
    assert!(back == data[1..]);
    dev.discard(0, 1 << 50).unwrap();
}

/// A loop device over a file of its own, taken down again when dropped.
struct LoopDevice {
    path: String,
    _dir: TempDir,
}

impl LoopDevice {
    /// Says so where there can be none: it takes root and loop devices.
    fn new(sector: &str) -> Option<LoopDevice> {
        let dir = TempDir::new().unwrap();
        let image = dir.path().join("image");
        File::create(&image).unwrap().set_len(8 << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show", "--sector-size", sector]).arg(&image).output();
        let Some(out) = made.ok().filter(|out| out.status.success()) else {
            let why = format!("no loop device with sectors of {sector} bytes can be made (takes root and losetup)");
            cffs_testenv::skipped("loop", &why);
            return None;
        };
        Some(LoopDevice { path: String::from_utf8(out.stdout).unwrap().trim().to_owned(), _dir: dir })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.path]).status();
    }
}

#[test]
fn block_device() {
    for sector in ["512", "4096"] {
        if let Some(device) = LoopDevice::new(sector) {
            on_block_device(&device.path);
        }
    }
}

fn on_block_device(path: &str) {
    let dev = FileDevice::open(path, OpenMode::READ_WRITE).unwrap();
    assert!(dev.is_block_device() && dev.is_direct() && dev.len() > 1 << 20);
    let e = FileDevice::open(path, OpenMode::READ_WRITE).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::ResourceBusy);
    let e = FileDevice::open(path, OpenMode::READ_ONLY).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::ResourceBusy);
    let data = pattern(65537, 8);
    dev.write_at(IoKind::Data, 65536, &data[1..]).unwrap();
    dev.flush().unwrap();
    let mut back = vec![0; 65536];
    dev.read_at(IoKind::Data, 65536, &mut back).unwrap();
    assert!(back == data[1..]);
    dev.discard(65536, 65536).unwrap();
    assert!(dev.set_len(dev.len() + 4096).is_err());
    the_claim_can_be_given_up_alone(&dev, path);
    drop(dev);
    let reader = FileDevice::open(path, OpenMode::READ_ONLY).unwrap();
    let second = FileDevice::open(path, OpenMode::READ_ONLY).unwrap();
    assert_eq!(FileDevice::open(path, OpenMode::READ_WRITE).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    drop((reader, second));
    let missing = FileDevice::create(path, u64::MAX / 2, OpenMode::READ_WRITE).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::InvalidInput);
}

fn the_claim_can_be_given_up_alone(dev: &FileDevice, path: &str) {
    let alone = || File::options().read(true).custom_flags(OFlags::EXCL.bits() as i32).open(path);
    let busy = |e: io::Error| assert_eq!(e.kind(), io::ErrorKind::ResourceBusy, "{e}");
    busy(alone().unwrap_err());
    dev.release_claim();
    let other = alone().unwrap();
    busy(dev.reclaim().unwrap_err());
    drop(other);
    busy(FileDevice::open(path, OpenMode::READ_WRITE).unwrap_err());
    assert!(alone().is_ok(), "the lock alone keeps cffs away, and nobody else");
    dev.reclaim().unwrap();
    dev.reclaim().unwrap();
    busy(alone().unwrap_err());
}
