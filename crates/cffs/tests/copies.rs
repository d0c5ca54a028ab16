//! Copies inside the file system, while others write.

use cffs::device::{Device, IoKind, MemoryDevice};
use cffs::format::ROOT_INO;
use cffs::fs::{Caller, Fs, MountOptions};
use cffs::mkfs::{MkfsOptions, mkfs};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex};

const ROOT: Caller = Caller::ROOT;
const MIB: u64 = 1 << 20;

type Action = Box<dyn FnOnce() + Send>;

/// Runs an action in the middle of the next read of file data.
struct Interrupted {
    inner: Arc<MemoryDevice>,
    action: Mutex<Option<Action>>,
}

impl Device for Interrupted {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn sector_size(&self) -> u32 {
        self.inner.sector_size()
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let action = (kind == IoKind::Data).then(|| self.action.lock().unwrap().take()).flatten();
        if let Some(action) = action {
            action();
        }
        self.inner.read_vectored(kind, offset, bufs)
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.inner.write_vectored(kind, offset, bufs)
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
}

#[test]
fn a_hole_is_copied_over_what_another_writer_put_there_meanwhile() {
    let inner = Arc::new(MemoryDevice::new(64 << 20));
    mkfs(&*inner, None, &MkfsOptions::default()).unwrap();
    let dev = Arc::new(Interrupted { inner, action: Mutex::default() });
    let mount = MountOptions { background: false, ..MountOptions::default() };
    let fs = Fs::open(dev.clone() as Arc<dyn Device>, None, mount).unwrap();
    let from = fs.create(ROOT, ROOT_INO, b"from", 0o644).unwrap().ino;
    let to = fs.create(ROOT, ROOT_INO, b"to", 0o644).unwrap().ino;
    fs.write(ROOT, from, 0, &vec![1; MIB as usize]).unwrap();
    fs.write(ROOT, from, 2 * MIB, &vec![3; MIB as usize]).unwrap();
    fs.sync().unwrap();
    fs.drop_caches();
    let other = fs.clone();
    *dev.action.lock().unwrap() = Some(Box::new(move || {
        other.write(ROOT, to, 3 * MIB / 2, &[9; 5000]).unwrap();
    }));
    assert_eq!(fs.copy_range(ROOT, from, 0, to, 0, 3 * MIB).unwrap(), 3 * MIB);
    assert!(dev.action.lock().unwrap().is_none(), "the source was read");
    let mut got = vec![0xff; 3 * MIB as usize];
    assert_eq!(fs.read(to, 0, &mut got).unwrap(), got.len());
    for (i, want) in [1, 0, 3].into_iter().enumerate() {
        let part = &got[i * MIB as usize..(i + 1) * MIB as usize];
        assert!(part.iter().all(|b| *b == want), "mebibyte {i}");
    }
    fs.close().unwrap();
}
