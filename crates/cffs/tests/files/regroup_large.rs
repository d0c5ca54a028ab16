//! Large files that lie in many pieces are brought into one, byte for byte, and stay so.

use crate::common::plain::{clean, fresh, mount};
use cffs::device::MemoryDevice;
use cffs::{
    Caller, Fallocate, Fs, Ino, MkfsOptions, ROOT_INO, Regroup, RegroupChange, RegroupOptions, RegroupOutcome,
    RegroupStatus,
};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;
const SIZE: u64 = 64 << 20;
/// As long as the gaps.
const SMALL: usize = 40 << 10;
const LARGE: usize = 2_500_000;
const FILES: usize = 3;

/// Large files, and what they contain.
type Files = Vec<(Ino, Vec<u8>)>;

fn options() -> MkfsOptions {
    MkfsOptions::default().group_size(64 << 10).reserve_bp(0)
}

fn contents(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 + i / 4096 + n) as u8).collect()
}

fn regroup(fs: &Fs, options: &RegroupOptions) -> RegroupStatus {
    let handle = Regroup::new();
    fs.regroup(options, &handle).unwrap();
    let status = handle.status();
    assert_eq!(status.outcome, Some(RegroupOutcome::Complete));
    status
}

fn large() -> RegroupOptions {
    RegroupOptions::default().large(true)
}

fn pieces(status: &RegroupStatus) -> RegroupChange {
    status.pieces.expect("large files were looked at")
}

fn make(fs: &Fs, dir: Ino, name: &str, bytes: &[u8]) -> cffs::Result<Ino> {
    let a = fs.create(ROOT, dir, name.as_bytes(), 0o644)?;
    fs.forget(a.ino, 1);
    fs.write(ROOT, a.ino, 0, bytes)?;
    fs.fsync(a.ino, false)?;
    Ok(a.ino)
}

/// A full device, on which every second small file made room for large ones. `keep` of the others stay.
fn in_pieces(fs: &Fs, dir: Ino, keep: bool) -> Files {
    let small = contents(9, SMALL);
    let mut n = 0;
    while make(fs, ROOT_INO, &format!("s{n}"), &small).is_ok() {
        n += 1;
    }
    for i in (0..n).step_by(2) {
        fs.unlink(ROOT_INO, format!("s{i}").as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    let bytes = (0..FILES).map(|i| contents(i, LARGE + i * 1000));
    let files = bytes.enumerate().map(|(i, b)| (make(fs, dir, &format!("large{i}"), &b).unwrap(), b)).collect();
    for i in (1..n).step_by(2).filter(|i| !keep || i % 8 != 1) {
        fs.unlink(ROOT_INO, format!("s{i}").as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    files
}

fn compare(fs: &Fs, files: &[(Ino, Vec<u8>)]) {
    for (ino, bytes) in files {
        let mut back = vec![0; bytes.len() + 1];
        assert_eq!(fs.read(*ino, 0, &mut back).unwrap(), bytes.len());
        assert!(back[..bytes.len()] == bytes[..], "inode {ino}");
    }
}

fn aged(options: &MkfsOptions, keep: bool) -> (Arc<MemoryDevice>, Arc<Fs>, Files) {
    let dev = fresh(SIZE, options);
    let fs = mount(&dev);
    let files = in_pieces(&fs, ROOT_INO, keep);
    (dev, fs, files)
}

#[test]
fn each_large_file_goes_into_one_piece_once() {
    for options in [options(), options().data_sums(true), options().block_size(1024).frag_size(Some(512))] {
        let (dev, fs, files) = aged(&options, false);
        let plan = regroup(&fs, &large().dry_run(true));
        assert!(pieces(&plan).before > 10 * FILES as u64 && plan.files_moved == 0, "{plan:?}");
        assert_eq!(pieces(&plan).after, FILES as u64, "{options:?}: {plan:?}");
        let done = regroup(&fs, &large());
        assert_eq!(pieces(&done), pieces(&plan));
        assert_eq!((done.files_moved, done.bytes_kept, done.blocks_moved), (FILES as u64, 0, 0), "{done:?}");
        assert_eq!(done.bytes_moved, plan.bytes_moved);
        compare(&fs, &files);
        let again = regroup(&fs, &large());
        assert_eq!((again.bytes_moved, pieces(&again).before), (0, FILES as u64), "{again:?}");
        fs.close().unwrap();
        clean(&dev, "large files in one piece");
        let fs = mount(&dev);
        compare(&fs, &files);
        fs.close().unwrap();
    }
}

#[test]
fn without_room_for_all_of_it_a_file_goes_into_fewer_pieces_and_stays_there() {
    let (dev, fs, files) = aged(&options(), true);
    let first = regroup(&fs, &large());
    let (before, after) = (pieces(&first).before, pieces(&first).after);
    assert!(after > FILES as u64 && after * 2 <= before, "{first:?}");
    let again = regroup(&fs, &large());
    assert_eq!((again.bytes_moved, pieces(&again).before), (0, after), "{again:?}");
    compare(&fs, &files);
    fs.close().unwrap();
    clean(&dev, "in fewer pieces");
}

#[test]
fn a_budget_takes_whole_files_and_a_path_what_is_below_it() {
    let dev = fresh(SIZE, &options());
    let fs = mount(&dev);
    let (a, b) =
        (fs.mkdir(ROOT, ROOT_INO, b"a", 0o755).unwrap().ino, fs.mkdir(ROOT, ROOT_INO, b"b", 0o755).unwrap().ino);
    let files = in_pieces(&fs, a, false);
    let nothing = regroup(&fs, &large().directories(vec![b]));
    assert_eq!((nothing.files, nothing.bytes_moved, pieces(&nothing).before), (0, 0, 0), "{nothing:?}");
    let budget = LARGE as u64 * 3 / 2;
    let first = regroup(&fs, &large().directories(vec![a]).budget(Some(budget)));
    assert_eq!(first.files_moved, 1, "{first:?}");
    assert!(first.bytes_moved <= budget);
    let rest = regroup(&fs, &large());
    assert_eq!((rest.files_moved, pieces(&rest).after), (FILES as u64 - 1, FILES as u64), "{rest:?}");
    compare(&fs, &files);
    fs.forget(a, 1);
    fs.forget(b, 1);
    fs.close().unwrap();
    clean(&dev, "with a budget");
}

#[test]
fn holes_and_space_that_was_never_written_stay_as_they_are() {
    let (dev, fs, mut files) = aged(&options(), false);
    let (ino, bytes) = &mut files[0];
    fs.fallocate(ROOT, *ino, Fallocate::PunchHole, 300_000, 100_000).unwrap();
    bytes[300_000..400_000].fill(0);
    fs.fallocate(ROOT, *ino, Fallocate::Zero { keep_size: false }, 700_000, 200_000).unwrap();
    bytes[700_000..900_000].fill(0);
    fs.sync().unwrap();
    let blocks = fs.getattr(*ino).unwrap().blocks;
    let done = regroup(&fs, &large());
    assert_eq!(pieces(&done).after, FILES as u64, "{done:?}");
    assert!(fs.getattr(files[0].0).unwrap().blocks <= blocks, "the hole stays a hole");
    compare(&fs, &files);
    fs.close().unwrap();
    clean(&dev, "with holes");
}
