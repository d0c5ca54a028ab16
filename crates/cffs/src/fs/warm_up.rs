//! What a mount needs first, read before anybody asks for it.
//!
//! To create a file the file system looks at the names of its directory, at the table for a free number, and at what is free where the file goes.
//! One leads to the other, so the first program that does it would wait for four requests or five, one after the other. A mount makes them at its
//! beginning. Where there may be an arm it reads only the names of the root, since every path begins there; what only changes need, for which a program
//! that reads would have to wait, the background thread reads when the device had nothing to do for an interval.
//!
//! Whoever needs what cannot be read meets the failure again, and reports it.

use super::Fs;
use crate::dir;
use crate::error::Result;
use crate::format::ROOT_INO;
use crate::placement::STREAM_MIN;
use crate::trace::Kind;
use cffs_device::{Device, Purpose};

impl Fs {
    /// What a mount reads before anybody can use it.
    pub(super) fn warm_up(&self) {
        let _ = self.read_root_names();
        if !self.dev.is_rotational() {
            self.warm_up_for_changes();
        }
    }

    /// What the device was asked until now, for [`Fs::warm_up_idle`]; `None` where all is read.
    pub(super) fn cold_since(&self) -> Option<u64> {
        self.dev.is_rotational().then(|| self.asked())
    }

    /// What the background thread reads after an interval in which the device was asked for nothing.
    pub(super) fn warm_up_idle(&self, asked_before: u64) -> Option<u64> {
        let asked = self.asked();
        if asked != asked_before {
            return Some(asked);
        }
        let _span = self.span(Kind::Background, [0; 3]);
        self.warm_up_for_changes();
        None
    }

    /// Requests to the device until now.
    fn asked(&self) -> u64 {
        let all = self.dev.snapshot();
        all.read_requests() + all.write_requests()
    }

    fn warm_up_for_changes(&self) {
        let _purpose = Purpose::Prefetch.scope();
        let _ = self.inodes.locator.load_ahead(&self.cache);
        let long = STREAM_MIN >> self.geo.frag_shift;
        let goal = self.placement.goal_of(ROOT_INO);
        self.space.read_bitmaps_ahead(goal, long, self.placement.searches_all());
    }

    /// Unless they are too many to be read with one request or two.
    fn read_root_names(&self) -> Result<()> {
        let root = self.node(ROOT_INO)?;
        let st = root.state.read();
        let Some(state) = st.dir.as_ref().filter(|_| st.inode.size <= self.geo.group_size() as u64) else {
            return Ok(());
        };
        // A name that nothing has: what a search looks at.
        dir::lookup(&self.search_cx(st.location), &st.inode, state, b"/").map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::format::extent::Child;
    use crate::format::table::LOCATOR_SIZE;
    use crate::format::{BlockKind, InodeFormat};
    use crate::fs::{Caller, MountOptions};
    use crate::inode::table::SlotTable;
    use crate::mkfs::{MkfsOptions, mkfs};
    use cffs_device::{IoKind, MemoryDevice};
    use std::io::{self, IoSlice, IoSliceMut};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    /// Counts what is read; with an arm or without, and perhaps nothing can be read.
    struct Counting {
        inner: MemoryDevice,
        arm: bool,
        reads: AtomicUsize,
        fails: AtomicBool,
    }

    impl Device for Counting {
        fn len(&self) -> u64 {
            self.inner.len()
        }
        fn sector_size(&self) -> u32 {
            self.inner.sector_size()
        }
        fn is_rotational(&self) -> bool {
            self.arm
        }
        fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            if self.fails.load(Ordering::Relaxed) {
                return Err(io::Error::other("unreadable"));
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

    impl Counting {
        fn reads_of<T>(&self, f: impl FnOnce() -> T) -> (T, usize) {
            let before = self.reads.load(Ordering::Relaxed);
            (f(), self.reads.load(Ordering::Relaxed) - before)
        }
    }

    fn without_thread(dev: &Arc<Counting>) -> Arc<Fs> {
        Fs::open(dev.clone(), None, MountOptions { background: false, ..MountOptions::default() }).unwrap()
    }

    /// A file system in which other files lie between the table's first blocks and its last ones.
    fn used(arm: bool, no_embed: bool) -> Arc<Counting> {
        let dev = Counting {
            inner: MemoryDevice::new(64 << 20),
            arm,
            reads: AtomicUsize::new(0),
            fails: AtomicBool::new(false),
        };
        let dev = Arc::new(dev);
        mkfs(&*dev, None, &MkfsOptions { no_embed, ..MkfsOptions::default() }).unwrap();
        let fs = without_thread(&dev);
        for d in 0..20 {
            let dir = fs.mkdir(Caller::ROOT, ROOT_INO, format!("dir{d}").as_bytes(), 0o755).unwrap().ino;
            for n in 0..100 {
                let file = fs.create(Caller::ROOT, dir, format!("file{n}").as_bytes(), 0o644).unwrap().ino;
                fs.write(Caller::ROOT, file, 0, &[n; 8192]).unwrap();
            }
            fs.sync().unwrap();
        }
        fs.close().unwrap();
        dev
    }

    fn create_and_write(fs: &Fs, name: &str) {
        let file = fs.create(Caller::ROOT, ROOT_INO, name.as_bytes(), 0o644).unwrap().ino;
        fs.write(Caller::ROOT, file, 0, &vec![7; 1 << 20]).unwrap();
        fs.sync().unwrap();
    }

    #[test]
    fn the_first_file_then_waits_for_nothing() {
        let dev = used(false, false);
        let cold = without_thread(&dev);
        let ((), without) = dev.reads_of(|| create_and_write(&cold, "cold"));
        assert!(without >= 3, "{without} reads");
        cold.close().unwrap();
        let fs = without_thread(&dev);
        let ((), warming) = dev.reads_of(|| fs.warm_up());
        assert!((1..=without + 8).contains(&warming), "{warming} reads");
        let ((), with) = dev.reads_of(|| create_and_write(&fs, "warm"));
        assert_eq!(with, 0);
    }

    #[test]
    fn inodes_outside_of_directories_are_all_that_is_left_to_read() {
        let dev = used(false, true);
        let cold = without_thread(&dev);
        let ((), without) = dev.reads_of(|| create_and_write(&cold, "cold"));
        cold.close().unwrap();
        let fs = without_thread(&dev);
        fs.warm_up();
        let ((), with) = dev.reads_of(|| create_and_write(&fs, "warm"));
        assert!(with < without, "{with} reads, {without} without it");
        fs.close().unwrap();
    }

    #[test]
    fn a_table_with_a_node_outside_of_the_device_is_damaged() {
        let fs = without_thread(&used(false, false));
        let mut inode = fs.inodes.locator.with_inode(Clone::clone);
        for block in [u64::MAX, fs.geo.total_blocks] {
            inode.format = InodeFormat::Tree { height: 1, children: vec![Child { key: 0, block }] };
            let table = SlotTable::new(&fs.geo, BlockKind::Locator, LOCATOR_SIZE, 1, inode.clone());
            assert!(matches!(table.load_ahead(&fs.cache), Err(Error::Corrupt(_))), "at block {block}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_no_failure_until_somebody_needs_it() {
        let dev = used(false, false);
        let fs = without_thread(&dev);
        dev.fails.store(true, Ordering::Relaxed);
        fs.warm_up();
        dev.fails.store(false, Ordering::Relaxed);
        create_and_write(&fs, "later");
        fs.close().unwrap();
    }

    #[test]
    fn a_mount_does_it_where_there_is_no_arm() {
        let dev = used(false, false);
        let (fs, mounting) = dev.reads_of(|| without_thread(&dev));
        fs.close().unwrap();
        let (fs, with_it) = dev.reads_of(|| Fs::open(dev.clone(), None, MountOptions::default()).unwrap());
        assert!(with_it >= mounting + 3, "{with_it} reads, {mounting} without it");
        fs.close().unwrap();
    }

    #[test]
    fn with_an_arm_it_is_done_after_an_interval_without_requests() {
        let dev = used(true, false);
        let fs = without_thread(&dev);
        let (asked, paths) = dev.reads_of(|| {
            fs.warm_up();
            fs.cold_since()
        });
        assert!((1..3).contains(&paths), "{paths} reads");
        // Somebody reads meanwhile.
        let file = fs.lookup(ROOT_INO, b"dir7").and_then(|dir| fs.lookup(dir.ino, b"file7")).unwrap().ino;
        assert_eq!(fs.read(file, 0, &mut [0; 8192]).unwrap(), 8192);
        let (asked, busy) = dev.reads_of(|| fs.warm_up_idle(asked.unwrap()));
        assert_eq!(busy, 0);
        let (left, idle) = dev.reads_of(|| fs.warm_up_idle(asked.unwrap()));
        assert!(left.is_none() && idle > 0, "{left:?}, {idle} reads");
        let ((), with) = dev.reads_of(|| create_and_write(&fs, "warm"));
        assert_eq!(with, 0);
        fs.close().unwrap();
    }

    #[test]
    fn the_background_thread_does_it_with_an_arm() {
        let options = MountOptions { commit_interval: Duration::from_millis(1), ..MountOptions::default() };
        let dev = used(true, false);
        let (fs, mounting) = dev.reads_of(|| without_thread(&dev));
        fs.close().unwrap();
        let before = dev.reads.load(Ordering::Relaxed);
        let fs = Fs::open(dev.clone(), None, options).unwrap();
        let patience = Instant::now();
        // The names, the table, the bitmaps.
        while dev.reads.load(Ordering::Relaxed) < before + mounting + 3 {
            assert!(patience.elapsed() < Duration::from_secs(60), "it does not");
            std::thread::sleep(Duration::from_millis(1));
        }
        fs.close().unwrap();
    }
}
