//! What a reader in order of a large file asks of the device, and what is read ahead of it.

use crate::common::large::{MIB, ROOT, create};
use crate::common::observed::{Observed, Seen};
use cffs::device::{IoKind, MemoryDevice};
use cffs::{Fs, Ino, MkfsOptions, MountOptions, mkfs};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Action = Box<dyn FnOnce() + Send>;

/// A file of 12 MiB in one piece, on a cold mount, and the reads of data since then.
struct Cold {
    fs: Arc<Fs>,
    ino: Ino,
    reads: Arc<Mutex<Vec<(u64, usize)>>>,
    /// What happens in the middle of the next one.
    meanwhile: Arc<Mutex<Option<Action>>>,
}

impl Cold {
    fn new() -> Cold {
        let dev = Arc::new(MemoryDevice::new(96 << 20));
        mkfs(&*dev, None, &MkfsOptions::default()).unwrap();
        let options = MountOptions::default().background(false);
        let fs = Fs::open(dev.clone(), None, options.clone()).unwrap();
        let ino = create(&fs, "large");
        fs.write(ROOT, ino, 0, &vec![7; 12 * MIB]).unwrap();
        fs.close().unwrap();
        let (reads, meanwhile) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<Option<Action>>>::default());
        let (seen, next) = (reads.clone(), meanwhile.clone());
        let observed = Observed::new(dev, move |event| {
            if let Seen::Read(IoKind::Data, offset, len) = event {
                seen.lock().unwrap().push((offset, len));
                let action = next.lock().unwrap().take();
                action.into_iter().for_each(|action| action());
            }
        });
        let fs = Fs::open(observed, None, options).unwrap();
        let ino = fs.lookup(cffs::ROOT_INO, b"large").unwrap().ino;
        reads.lock().unwrap().clear();
        Cold { fs, ino, reads, meanwhile }
    }

    fn read(&self, mib: usize) {
        read(&self.fs, self.ino, mib);
    }

    /// The reads as whole MiB of the file.
    fn asked(&self) -> Vec<u64> {
        let reads = self.reads.lock().unwrap();
        let first = reads[0].0;
        assert!(reads.iter().all(|(_, len)| *len == MIB), "{reads:?}");
        reads.iter().map(|(offset, _)| (offset - first) / MIB as u64).collect()
    }
}

fn read(fs: &Fs, ino: Ino, mib: usize) {
    let mut bytes = vec![0; MIB];
    assert_eq!(fs.read(ino, (mib * MIB) as u64, &mut bytes).unwrap(), MIB);
    assert!(bytes.iter().all(|b| *b == 7));
}

#[test]
fn a_long_read_is_one_request_wherever_the_parts_of_the_cache_meet() {
    let cold = Cold::new();
    (0..12).for_each(|mib| cold.read(mib));
    assert_eq!(cold.asked(), (0..12).collect::<Vec<u64>>());
    let reads = cold.reads.lock().unwrap();
    assert!(reads.iter().any(|(at, len)| at >> 22 != (at + *len as u64 - 1) >> 22), "none crosses 4 MiB: {reads:?}");
}

#[test]
fn nothing_is_read_ahead_of_a_reader_who_has_the_next_long_read_under_way() {
    let cold = Cold::new();
    cold.fs.queue_readahead();
    cold.read(0);
    // MiB 2 is asked for while 1 is not there yet, as a kernel does that reads ahead.
    let (fs, ino) = (cold.fs.clone(), cold.ino);
    fs.readahead_step(0);
    *cold.meanwhile.lock().unwrap() = Some(Box::new(move || {
        let queue = fs.clone();
        std::thread::spawn(move || read(&queue, ino, 1)).join().unwrap();
    }));
    cold.read(2);
    assert_eq!(cold.asked(), [0, 2, 1]);
    cold.fs.readahead_step(usize::MAX);
    // What was asked for when 0 had been read alone is there; 3 would be new.
    assert_eq!(cold.asked(), [0, 2, 1]);
    cold.read(3);
    cold.fs.readahead_step(usize::MAX);
    assert_eq!(cold.asked(), [0, 2, 1, 3, 4, 5], "whoever reads one at a time is read ahead of");
}

#[test]
fn what_is_read_ahead_does_not_overtake_the_read_before_it() {
    let cold = Cold::new();
    cold.fs.queue_readahead();
    cold.read(0);
    let (fs, reads) = (cold.fs.clone(), cold.reads.clone());
    let ahead = Arc::new(Mutex::new(None));
    let handle = ahead.clone();
    *cold.meanwhile.lock().unwrap() = Some(Box::new(move || {
        // 1 is under way, and the queue has 1 and 2.
        *handle.lock().unwrap() = Some(std::thread::spawn(move || fs.readahead_step(usize::MAX)));
        // If it did not wait it would be there by now, mostly.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(reads.lock().unwrap().len(), 2, "0 and 1");
    }));
    cold.read(1);
    ahead.lock().unwrap().take().unwrap().join().unwrap();
    // 3 is asked for once 1 is there.
    assert_eq!(cold.asked()[..3], [0, 1, 2]);
}
