//! Learning which parts of large files are read: they lie together, in the order in which programs come to them.

use crate::common::plain::{clean, fresh};
use cffs::device::{Device, MemoryDevice};
use cffs::{
    Caller, ColocationKey, Fs, Ino, MkfsOptions, MountOptions, PrefetchMode, ROOT_INO, Regroup, RegroupOptions,
    RegroupOutcome, RegroupStatus, SetAttr,
};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const ROOT: Caller = Caller::ROOT;
const MIB: usize = 1 << 20;
/// Bytes of a library, and what a program reads of each of them: offsets and lengths.
const LIBRARY: usize = 2 * MIB + 5000;
const READ: [(usize, usize); 3] = [(0, 16 << 10), (700_000, 4096), (2 * MIB, 5000)];
/// All parts of the libraries, in groups, and one, because they may begin and end within a group.
const GROUPS: u64 = (12_u64 * 3 * (64 << 10)).div_ceil(MIB as u64) + 1;

fn mount(dev: &Arc<MemoryDevice>) -> Arc<Fs> {
    let options = MountOptions::default().background(false).prefetch(PrefetchMode::Always);
    Fs::open(dev.clone() as Arc<dyn Device>, None, options).unwrap()
}

fn contents(ino: Ino) -> Vec<u8> {
    (0..LIBRARY as u64).map(|i| (i * 7 + i / 4096 * 3 + ino * 31) as u8).collect()
}

fn libraries(fs: &Fs) -> Vec<Ino> {
    let dir = fs.mkdir(ROOT, ROOT_INO, b"lib", 0o755).unwrap().ino;
    fs.set_colocation_key(ROOT, dir, Some(&ColocationKey::Learned)).unwrap();
    let create = |n: usize| {
        let ino = fs.create(ROOT, dir, format!("{n}.so").as_bytes(), 0o755).unwrap().ino;
        fs.write(ROOT, ino, 0, &contents(ino)).unwrap();
        ino
    };
    let files = (0..12).map(create).collect();
    fs.sync().unwrap();
    files
}

/// A start of the program, with nothing in memory. Requests for data.
fn start(fs: &Fs, process: u32, files: &[Ino]) -> u64 {
    fs.drop_caches();
    let reads = || fs.stats().device.kinds["data"].read_requests;
    let before = reads();
    for ino in files {
        let right = contents(*ino);
        for (offset, len) in READ {
            fs.note_read(process, *ino, offset as u64, len);
            let mut back = vec![0; len];
            assert_eq!(fs.read(*ino, offset as u64, &mut back).unwrap(), len);
            assert!(back == right[offset..offset + len], "inode {ino} at {offset}");
        }
    }
    reads() - before
}

fn regroup(fs: &Fs, options: &RegroupOptions) -> RegroupStatus {
    let handle = Regroup::new();
    fs.regroup(options, &handle).unwrap();
    let status = handle.status();
    assert_eq!(status.outcome, Some(RegroupOutcome::Complete));
    status
}

fn are_whole(fs: &Fs, files: &[Ino]) {
    fs.drop_caches();
    for ino in files {
        let mut back = vec![0; LIBRARY + 1];
        assert_eq!(fs.read(*ino, 0, &mut back).unwrap(), LIBRARY);
        assert!(back[..LIBRARY] == contents(*ino), "inode {ino}");
    }
}

#[test]
fn the_parts_of_libraries_that_a_program_reads_lie_together() {
    let dev = fresh(128 << 20, &MkfsOptions::default().group_size(MIB as u32));
    let fs = mount(&dev);
    let files = libraries(&fs);
    // In another order than that of their directory.
    let order: Vec<Ino> = (0..12).map(|n| files[n * 5 % 12]).collect();
    let large = RegroupOptions::default().large(true);
    assert!(!fs.reads_parts());
    start(&fs, 1, &order);
    assert!(fs.reads_parts());
    let before = start(&fs, 2, &order);
    let done = regroup(&fs, &RegroupOptions::default());
    let after = start(&fs, 3, &order);
    assert!(before >= 4 * after && after <= GROUPS, "{before} requests before, {after} after: {done:?}");
    assert!(done.files_moved >= 12 && done.bytes_moved < 2 * 12 * 3 * (64 << 10), "no more than the parts: {done:?}");
    are_whole(&fs, &files);
    // They stay there, with other settings too.
    for options in [RegroupOptions::default(), large.clone()] {
        let again = regroup(&fs, &options);
        assert_eq!(again.bytes_moved, 0, "{again:?}");
    }
    fs.close().unwrap();
    clean(&dev, "with parts of files elsewhere");

    let fs = mount(&dev);
    assert!(fs.reads_parts(), "that is kept");
    assert!(start(&fs, 4, &order) <= GROUPS);
    // Without the key each file is for itself again.
    let dir = fs.lookup(ROOT_INO, b"lib").unwrap().ino;
    fs.set_colocation_key(ROOT, dir, None).unwrap();
    let back = regroup(&fs, &large);
    assert_eq!(back.files_moved, 12, "{back:?}");
    assert!(start(&fs, 5, &order) > GROUPS);
    are_whole(&fs, &files);
    fs.close().unwrap();
    clean(&dev, "with whole files");
}

/// A backup, as a kernel asks for it.
fn backup(fs: &Fs, process: u32, files: &[Ino], size: usize) {
    for ino in files {
        (0..size as u64).step_by(128 << 10).for_each(|offset| fs.note_read(process, *ino, offset, 128 << 10));
    }
}

#[test]
fn libraries_that_are_read_from_end_to_end_keep_their_parts() {
    let dev = fresh(128 << 20, &MkfsOptions::default().group_size(MIB as u32));
    let fs = mount(&dev);
    let files = libraries(&fs);
    for process in 1..=4 {
        start(&fs, process, &files);
    }
    (20..25).for_each(|process| backup(&fs, process, &files, LIBRARY));
    let done = regroup(&fs, &RegroupOptions::default());
    assert!(done.bytes_moved < 2 * 12 * 3 * (64 << 10), "no more than the parts: {done:?}");
    assert!(start(&fs, 30, &files) <= GROUPS);
    are_whole(&fs, &files);
    fs.close().unwrap();
    clean(&dev, "after backups");
}

#[test]
fn nothing_moves_of_large_files_that_are_only_read_from_end_to_end() {
    let dev = fresh(128 << 20, &MkfsOptions::default().group_size(MIB as u32));
    let fs = mount(&dev);
    let files = libraries(&fs);
    (1..5).for_each(|process| backup(&fs, process, &files, LIBRARY));
    let done = regroup(&fs, &RegroupOptions::default());
    assert_eq!((done.files_moved, done.bytes_moved), (0, 0), "{done:?}");
    fs.close().unwrap();
    clean(&dev, "after nothing but backups");
}

#[test]
fn parts_longer_than_a_group_move_also_where_no_free_run_has_all_of_one() {
    let dev = fresh(64 << 20, &MkfsOptions::default().group_size(64 << 10));
    let fs = mount(&dev);
    let files = libraries(&fs);
    let read = |process| {
        for ino in &files {
            fs.note_read(process, *ino, 0, 4096);
            for offset in (MIB as u64..MIB as u64 + (640 << 10)).step_by(128 << 10) {
                fs.note_read(process, *ino, offset, 128 << 10);
            }
        }
    };
    (1..4).for_each(read);
    // The free space is cut into pieces of 256 KiB.
    let dir = fs.mkdir(ROOT, ROOT_INO, b"full", 0o755).unwrap().ino;
    let content = vec![7; 256 << 10];
    let mut fill = Vec::new();
    while let Ok(attr) = fs.create(ROOT, dir, format!("{}", fill.len()).as_bytes(), 0o644) {
        fill.push(attr.ino);
        if fs.write(ROOT, attr.ino, 0, &content).is_err() || fs.sync().is_err() {
            break;
        }
    }
    for n in (0..fill.len()).step_by(2) {
        fs.unlink(dir, format!("{n}").as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    // At a rate, nothing is moved at once that takes longer than a moment.
    for options in [RegroupOptions::default().rate(Some(64 << 20)), RegroupOptions::default().always(true)] {
        regroup(&fs, &options);
        are_whole(&fs, &files);
    }
    fs.close().unwrap();
    clean(&dev, "with parts in gaps");
}

#[test]
fn a_file_that_is_cut_or_written_anew_loses_nothing_by_its_parts() {
    let dev = fresh(128 << 20, &MkfsOptions::default().group_size(MIB as u32));
    let options = MountOptions::default().background(false);
    let fs = Fs::open(dev.clone() as Arc<dyn Device>, None, options).unwrap();
    let files = libraries(&fs);
    for process in 1..=3 {
        start(&fs, process, &files);
    }
    // Where a part was there is no file any more, a hole, other data.
    let cut = |ino, size| fs.setattr(ROOT, ino, SetAttr::default().size(Some(size))).unwrap();
    cut(files[0], 100_000);
    cut(files[1], 650_000);
    cut(files[1], LIBRARY as u64);
    fs.write(ROOT, files[2], 690_000, &[0xee; 30_000]).unwrap();
    regroup(&fs, &RegroupOptions::default());
    regroup(&fs, &RegroupOptions::default().large(true));
    fs.drop_caches();
    let mut back = vec![0; LIBRARY];
    let mut right = contents(files[0]);
    assert_eq!(fs.read(files[0], 0, &mut back).unwrap(), 100_000);
    assert!(back[..100_000] == right[..100_000]);
    right = contents(files[1]);
    right[650_000..].fill(0);
    assert_eq!(fs.read(files[1], 0, &mut back).unwrap(), LIBRARY);
    assert!(back == right);
    right = contents(files[2]);
    right[690_000..720_000].fill(0xee);
    assert_eq!(fs.read(files[2], 0, &mut back).unwrap(), LIBRARY);
    assert!(back == right);
    are_whole(&fs, &files[3..]);
    fs.close().unwrap();
    clean(&dev, "with changed libraries");
}

#[test]
fn readers_and_a_writer_beside_regroups_never_see_a_wrong_byte() {
    let dev = fresh(128 << 20, &MkfsOptions::default().group_size(MIB as u32));
    let fs = Fs::open(dev.clone() as Arc<dyn Device>, None, MountOptions::default().background(false)).unwrap();
    let files = libraries(&fs);
    start(&fs, 1, &files);
    start(&fs, 2, &files);
    let (read, written) = files.split_at(9);
    let over = AtomicBool::new(false);
    let work = |f: &dyn Fn()| {
        while !over.load(Ordering::Relaxed) {
            f();
        }
    };
    std::thread::scope(|s| {
        let (fs, work) = (&fs, &work);
        for process in 3..5 {
            s.spawn(move || {
                work(&|| {
                    start(fs, process, read);
                })
            });
        }
        s.spawn(move || {
            let round = Cell::new(0_u8);
            work(&|| {
                round.set(round.get().wrapping_add(1));
                for ino in written {
                    for (offset, len) in READ {
                        let new = vec![round.get(); len];
                        fs.write(ROOT, *ino, offset as u64, &new).unwrap();
                        fs.fsync(*ino, false).unwrap();
                        let mut back = vec![0; len];
                        fs.note_read(7, *ino, offset as u64, len);
                        assert_eq!(fs.read(*ino, offset as u64, &mut back).unwrap(), len);
                        assert!(back == new, "inode {ino} at {offset} in round {}", round.get());
                    }
                }
            });
            // As it was, all of which was moved meanwhile.
            for ino in written {
                let right = contents(*ino);
                READ.iter().for_each(|(offset, len)| {
                    fs.write(ROOT, *ino, *offset as u64, &right[*offset..offset + len]).unwrap();
                });
            }
        });
        for round in 0..40 {
            regroup(fs, &RegroupOptions::default().always(round % 2 == 0).large(round % 4 == 2));
        }
        over.store(true, Ordering::Relaxed);
    });
    are_whole(&fs, &files);
    fs.close().unwrap();
    clean(&dev, "after readers, a writer and regroups");
}
