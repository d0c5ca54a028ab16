//! A regroup reads what it moves with few requests, and leaves the cache to those who use the file system.

use super::regroup::{aged, compare, regroup, small_groups};
use crate::common::observed::{Observed, Seen};
use crate::common::plain::{clean, fresh, mount};
use cffs::device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation};
use cffs::{Caller, Fs, MkfsOptions, MountOptions, ROOT_INO, RegroupOptions, RegroupOutcome};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device that counts reads of file data.
fn counting(inner: Arc<MemoryDevice>) -> (Arc<Observed>, Arc<AtomicU64>) {
    let reads = Arc::new(AtomicU64::new(0));
    let counter = reads.clone();
    let dev = Observed::new(inner, move |seen| {
        counter.fetch_add(u64::from(matches!(seen, Seen::Read(IoKind::Data, ..))), Ordering::Relaxed);
    });
    (dev, reads)
}

/// A device with files that have come apart, and what is in them.
fn aged_device(options: &MkfsOptions) -> (Arc<MemoryDevice>, BTreeMap<String, Vec<u8>>) {
    let dev = fresh(64 << 20, options);
    let fs = mount(&dev);
    let all = aged(&fs);
    fs.close().unwrap();
    (dev, all)
}

fn read(fs: &Fs, path: &str) -> Vec<u8> {
    let (dir, name) = path.split_once('/').unwrap();
    let dir = fs.lookup(ROOT_INO, dir.as_bytes()).unwrap();
    let file = fs.lookup(dir.ino, name.as_bytes()).unwrap();
    let mut bytes = vec![0; file.size as usize];
    fs.read(file.ino, 0, &mut bytes).unwrap();
    fs.forget(file.ino, 1);
    fs.forget(dir.ino, 1);
    bytes
}

#[test]
fn files_that_lie_near_each_other_are_read_with_one_request() {
    let large = MountOptions::default().background(false);
    let small = large.clone().cache_bytes(4 << 20);
    for (options, mount_options, times) in [
        (small_groups(), &large, 5),
        (small_groups().data_sums(true), &large, 5),
        (small_groups().block_size(1024).frag_size(Some(512)), &large, 5),
        (small_groups(), &small, 4),
    ] {
        let (inner, all) = aged_device(&options);
        let (dev, reads) = counting(inner);
        let fs = Fs::open(dev.clone(), None, mount_options.clone()).unwrap();
        let done = regroup(&fs, &RegroupOptions::default());
        let reads = reads.load(Ordering::Relaxed);
        assert!(done.outcome == Some(RegroupOutcome::Complete) && done.bytes_kept == 0, "{done:?}");
        assert!(reads * times < done.files_moved, "{reads} requests for {done:?}");
        compare(&fs, &all);
        fs.close().unwrap();
        clean(&dev.inner, "regrouped");
    }
}

/// With a rate every byte takes its time, so what lies in between is not read.
#[test]
fn with_a_rate_only_what_moves_is_read() {
    let (inner, all) = aged_device(&small_groups().frag_size(Some(4096)));
    let bytes = Arc::new(AtomicU64::new(0));
    let counter = bytes.clone();
    let dev = Observed::new(inner, move |seen| {
        if let Seen::Read(IoKind::Data, _, len) = seen {
            counter.fetch_add(len as u64, Ordering::Relaxed);
        }
    });
    let fs = mount(&dev);
    let done = regroup(&fs, &RegroupOptions::default().rate(Some(1 << 30)));
    assert_eq!(done.outcome, Some(RegroupOutcome::Complete));
    assert!(done.bytes_moved > 1 << 20, "{done:?}");
    let read = bytes.load(Ordering::Relaxed);
    assert!(read <= done.bytes_moved - (done.blocks_moved << 12), "{read} bytes read for {done:?}");
    compare(&fs, &all);
    fs.close().unwrap();
}

#[test]
fn what_moves_stays_in_the_cache_only_if_it_was_there() {
    let (inner, all) = aged_device(&small_groups());
    let (dev, reads) = counting(inner);
    let fs = mount(&dev);
    let in_use: Vec<&String> = all.keys().filter(|path| path.starts_with("d7/")).collect();
    in_use.iter().for_each(|path| drop(read(&fs, path)));
    let done = regroup(&fs, &RegroupOptions::default().always(true));
    assert!(done.outcome == Some(RegroupOutcome::Complete) && done.bytes_kept == 0, "{done:?}");
    let requests_for = |path: &str| {
        let before = reads.load(Ordering::Relaxed);
        assert!(read(&fs, path) == all[path], "{path}");
        reads.load(Ordering::Relaxed) - before
    };
    let of_those = in_use.iter().map(|path| requests_for(path)).sum::<u64>();
    // At either end they may share a block with a file that nobody has asked for.
    assert!(
        of_those <= 2 && in_use.len() > 10,
        "{of_those} requests for {} files that were in the cache",
        in_use.len()
    );
    assert!(requests_for("d3/f39") > 0, "nobody had asked for it");
    fs.close().unwrap();
}

#[test]
fn a_bad_sector_among_files_keeps_one_of_them_where_it_is() {
    let (inner, all) = aged_device(&small_groups());
    let failing = Arc::new(FailingDevice::new(inner.clone()));
    let (victim, bytes) = all.iter().find(|(_, bytes)| bytes.len() > 3000).unwrap();
    let mut image = vec![0; inner.len() as usize];
    inner.read_at(IoKind::Data, 0, &mut image).unwrap();
    // Files begin at a fragment.
    let fragments = (0..image.len() - bytes.len()).step_by(1024);
    let at = fragments.into_iter().find(|at| image[*at..].starts_with(bytes)).unwrap() as u64;
    let fs = mount(&failing);
    failing.set(Operation::Read, Fault::from_now_on().of_kind(IoKind::Data).in_range(at, at + 512));
    let done = regroup(&fs, &RegroupOptions::default().always(true));
    assert_eq!(done.outcome, Some(RegroupOutcome::Complete));
    let whole_files = all.len() as u64;
    assert_eq!(done.files_moved, whole_files - 1, "{done:?}");
    assert_eq!(done.bytes_kept, (bytes.len() as u64).next_multiple_of(1024), "{done:?}");
    failing.clear();
    assert!(read(&fs, victim) == *bytes);
    compare(&fs, &all);
    fs.close().unwrap();
    clean(&inner, "with a file that could not be read");
}

/// Between the request that brings a file and its move there is time for a program.
#[test]
fn what_is_written_while_files_are_brought_is_not_lost() {
    let (inner, mut all) = aged_device(&small_groups());
    let dev = Observed::interrupted(inner.clone(), Operation::Read);
    let fs = mount(&dev);
    let dir = fs.lookup(ROOT_INO, b"d1").unwrap().ino;
    let names: Vec<String> = all.keys().filter_map(|path| path.strip_prefix("d1/").map(String::from)).collect();
    assert!(names.len() > 10);
    let (begin, begun) = std::sync::mpsc::channel();
    dev.meanwhile(move || begin.send(()).unwrap());
    let (other, of_writer) = (fs.clone(), names.clone());
    let writer = std::thread::spawn(move || {
        begun.recv().unwrap();
        for name in of_writer {
            let file = other.lookup(dir, name.as_bytes()).unwrap();
            other.write(Caller::ROOT, file.ino, 0, &[9; 200]).unwrap();
            other.fsync(file.ino, false).unwrap();
            other.forget(file.ino, 1);
        }
    });
    let done = regroup(&fs, &RegroupOptions::default().always(true));
    assert_eq!(done.outcome, Some(RegroupOutcome::Complete));
    assert!(dev.happened(), "data was read");
    writer.join().unwrap();
    names.iter().for_each(|name| all.get_mut(&format!("d1/{name}")).unwrap()[..200].fill(9));
    compare(&fs, &all);
    fs.forget(dir, 1);
    fs.close().unwrap();
    clean(&inner, "written meanwhile");
}
