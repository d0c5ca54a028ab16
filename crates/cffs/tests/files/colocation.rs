//! Keys, lists and learning: small files lie with what they are read with, whatever directory they are in.

use crate::common::plain::{clean, fresh};
use cffs::device::{Device, MemoryDevice};
use cffs::{
    Caller, ColocationKey, Error, Fs, Ino, MkfsOptions, MountOptions, PrefetchMode, ROOT_INO, Regroup, RegroupOptions,
    RegroupOutcome,
};
use cffs::{RegroupStatus, SetXattr};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;
const KEY: &[u8] = b"user.cffs.colocate";
const GROUP: u64 = 64 << 10;
const FILE: usize = 3000;
/// Bytes that such a file takes.
const TAKEN: u64 = 3 << 10;

/// Whole groups are read, whatever became of those before.
fn mount(dev: &Arc<MemoryDevice>) -> Arc<Fs> {
    let options = MountOptions::default().background(false).prefetch(PrefetchMode::Always);
    Fs::open(dev.clone() as Arc<dyn Device>, None, options).unwrap()
}

fn new_device() -> Arc<MemoryDevice> {
    fresh(64 << 20, &MkfsOptions::default().group_size(GROUP as u32))
}

fn contents(ino: Ino) -> Vec<u8> {
    (0..FILE).map(|i| (i as u64 * 7 + ino * 31) as u8).collect()
}

fn file(fs: &Fs, c: Caller, dir: Ino, name: &str) -> Ino {
    let a = fs.create(c, dir, name.as_bytes(), 0o644).unwrap();
    fs.write(c, a.ino, 0, &contents(a.ino)).unwrap();
    a.ino
}

fn directory(fs: &Fs, above: Ino, name: &str) -> Ino {
    fs.mkdir(ROOT, above, name.as_bytes(), 0o755).unwrap().ino
}

fn regroup(fs: &Fs) -> RegroupStatus {
    let handle = Regroup::new();
    fs.regroup(&RegroupOptions::default(), &handle).unwrap();
    let status = handle.status();
    assert_eq!(status.outcome, Some(RegroupOutcome::Complete));
    status
}

/// Requests for the data of these files, with nothing of it in memory.
fn requests(fs: &Fs, files: &[Ino]) -> u64 {
    fs.drop_caches();
    let reads = || fs.stats().device.kinds["data"].read_requests;
    let before = reads();
    for ino in files {
        let mut back = vec![0; FILE + 1];
        assert_eq!(fs.read(*ino, 0, &mut back).unwrap(), FILE);
        assert!(back[..FILE] == contents(*ino), "inode {ino}");
    }
    reads() - before
}

/// The fewest groups that so many files fit into, and one: they may begin and end within a group.
fn groups_of(files: usize) -> u64 {
    (files as u64 * TAKEN).div_ceil(GROUP) + 1
}

fn is_stable(fs: &Fs) {
    let again = regroup(fs);
    assert_eq!((again.files_moved, again.blocks_moved), (0, 0), "{again:?}");
}

fn ends_clean(dev: &Arc<MemoryDevice>, fs: &Fs) {
    fs.close().unwrap();
    clean(dev, "colocated");
}

/// A spool: 20 users with 60 files each, in one directory, written in turns. By user.
fn spool(fs: &Fs, dir: Ino, rounds: std::ops::Range<usize>) -> Vec<Vec<Ino>> {
    let mut by_user = vec![Vec::new(); 20];
    for round in rounds {
        for (user, files) in by_user.iter_mut().enumerate() {
            let c = Caller { uid: 1000 + user as u32, gid: 100 };
            files.push(file(fs, c, dir, &format!("{round}.{user}")));
        }
    }
    fs.sync().unwrap();
    by_user
}

#[test]
fn the_files_of_an_owner_lie_together_from_the_first_writeback_on() {
    let dev = new_device();
    let fs = mount(&dev);
    let (plain, keyed) = (directory(&fs, ROOT_INO, "plain"), directory(&fs, ROOT_INO, "keyed"));
    fs.set_colocation_key(ROOT, keyed, Some(&ColocationKey::Owner)).unwrap();
    let (by_directory, by_owner) = (spool(&fs, plain, 0..60), spool(&fs, keyed, 0..60));
    let (before, after) = (requests(&fs, &by_directory[3]), requests(&fs, &by_owner[3]));
    assert!(before > 3 * after && after <= groups_of(60), "{before} requests by directory, {after} by owner");
    ends_clean(&dev, &fs);
}

#[test]
fn a_regroup_brings_files_together_by_a_key_that_was_set_later() {
    let dev = new_device();
    let fs = mount(&dev);
    let above = directory(&fs, ROOT_INO, "spool");
    let dir = directory(&fs, above, "mail");
    let files = spool(&fs, dir, 0..60);
    fs.set_colocation_key(ROOT, above, Some(&ColocationKey::Owner)).unwrap();
    assert_eq!(fs.colocation_key(dir).unwrap(), (ColocationKey::Owner, above));
    let before = requests(&fs, &files[7]);
    let done = regroup(&fs);
    let after = requests(&fs, &files[7]);
    assert!(before > 3 * after && after <= groups_of(60), "{before} requests before, {after} after: {done:?}");
    is_stable(&fs);
    // Back to the order of the directory.
    fs.set_colocation_key(ROOT, above, None).unwrap();
    fs.set_colocation_key(ROOT, above, None).unwrap();
    assert_eq!(fs.colocation_key(dir).unwrap(), (ColocationKey::Directory, ROOT_INO));
    regroup(&fs);
    assert!(requests(&fs, &files[7]) > 2 * after);
    ends_clean(&dev, &fs);
}

#[test]
fn a_key_holds_for_what_is_written_after_a_remount() {
    let dev = new_device();
    let fs = mount(&dev);
    let dir = directory(&fs, directory(&fs, ROOT_INO, "a"), "b");
    fs.set_colocation_key(ROOT, dir, Some(&ColocationKey::Owner)).unwrap();
    let deep = directory(&fs, dir, "deep");
    ends_clean(&dev, &fs);
    let fs = mount(&dev);
    let files = spool(&fs, deep, 0..60);
    let n = requests(&fs, &files[0]);
    assert!(n <= groups_of(60), "{n} requests");
    ends_clean(&dev, &fs);
}

#[test]
fn the_files_of_a_process_lie_together_and_stay_so() {
    let dev = new_device();
    let fs = mount(&dev);
    let dir = directory(&fs, ROOT_INO, "tmp");
    fs.set_colocation_key(ROOT, dir, Some(&ColocationKey::Process)).unwrap();
    assert!(fs.places_by_process(dir) && !fs.places_by_process(ROOT_INO));
    let mut of_process = vec![Vec::new(); 10];
    for n in 0..60 {
        for (process, files) in of_process.iter_mut().enumerate() {
            let a = fs.create(ROOT, dir, format!("{n}.{process}").as_bytes(), 0o600).unwrap();
            fs.note_creator(a.ino, 4000 + process as u32);
            fs.write(ROOT, a.ino, 0, &contents(a.ino)).unwrap();
            files.push(a.ino);
        }
    }
    fs.sync().unwrap();
    let before = requests(&fs, &of_process[4]);
    assert!(before <= groups_of(60), "{before} requests");
    regroup(&fs);
    assert!(requests(&fs, &of_process[4]) <= before);
    is_stable(&fs);
    ends_clean(&dev, &fs);
}

#[test]
fn what_was_used_lately_lies_together_after_a_regroup() {
    let dev = new_device();
    let fs = mount(&dev);
    let dir = directory(&fs, ROOT_INO, "cache");
    fs.set_colocation_key(ROOT, dir, Some(&ColocationKey::Age)).unwrap();
    let files: Vec<Ino> = (0..600).map(|n| file(&fs, ROOT, dir, &format!("{n}"))).collect();
    fs.sync().unwrap();
    for (n, ino) in files.iter().enumerate() {
        if n % 10 != 0 {
            let old = Some(cffs::TimeSpec::At(0));
            let times = cffs::SetAttr::default().atime(old).mtime(old);
            fs.setattr(ROOT, *ino, times).unwrap();
        }
    }
    fs.sync().unwrap();
    let recent: Vec<Ino> = files.iter().step_by(10).copied().collect();
    let before = requests(&fs, &recent);
    // The reads above made the time of last use of the recent ones anew, and of no others.
    regroup(&fs);
    let after = requests(&fs, &recent);
    assert!(before > 3 * after && after <= groups_of(60), "{before} requests before, {after} after");
    is_stable(&fs);
    ends_clean(&dev, &fs);
}

/// Ten directories with 100 files each.
fn site(fs: &Fs) -> Vec<Vec<Ino>> {
    let dirs: Vec<Ino> = (0..10).map(|d| directory(fs, ROOT_INO, &format!("d{d}"))).collect();
    let files = dirs.iter().map(|d| (0..100).map(|n| file(fs, ROOT, *d, &format!("f{n}"))).collect()).collect();
    fs.sync().unwrap();
    files
}

#[test]
fn files_of_a_list_lie_together_in_its_order_from_whatever_directories() {
    let dev = new_device();
    let fs = mount(&dev);
    let files = site(&fs);
    let page: Vec<Ino> = (0..50).map(|n| files[n * 7 % 10][n * 37 % 100]).collect();
    fs.read_together(ROOT, &page).unwrap();
    let before = requests(&fs, &page);
    regroup(&fs);
    let after = requests(&fs, &page);
    assert!(before > 3 * after && after <= groups_of(50), "{before} requests before, {after} after");
    is_stable(&fs);
    // A file that is written anew goes to the others.
    for ino in &page {
        fs.setattr(ROOT, *ino, cffs::SetAttr::default().size(Some(0))).unwrap();
        fs.write(ROOT, *ino, 0, &contents(*ino)).unwrap();
    }
    fs.sync().unwrap();
    let anew = requests(&fs, &page);
    assert!(anew <= groups_of(50), "{anew} requests");
    ends_clean(&dev, &fs);
    let fs = mount(&dev);
    regroup(&fs);
    is_stable(&fs);
    assert!(matches!(fs.read_together(ROOT, &[page[0], ROOT_INO]), Err(Error::Invalid(_))));
    ends_clean(&dev, &fs);
}

/// These files are a list of this name.
fn list(fs: &Fs, name: usize, files: &[Ino]) {
    for (at, ino) in files.iter().enumerate() {
        fs.setxattr(ROOT, *ino, KEY, format!("list:l{name}:{at}").as_bytes(), SetXattr::default()).unwrap();
    }
}

#[test]
fn a_short_list_lies_in_one_group_and_no_other_moves_for_it() {
    let dev = new_device();
    let fs = mount(&dev);
    let files = site(&fs);
    // Four fit into a group.
    let lists: Vec<Vec<Ino>> =
        (0..200).map(|l| (0..5).map(|n| files[(l + 2 * n) % 10][(l / 10 * 5 + n) * 37 % 100]).collect()).collect();
    lists.iter().enumerate().for_each(|(name, files)| list(&fs, name, files));
    let read = |lists: &[Vec<Ino>]| lists.iter().map(|l| requests(&fs, l)).sum::<u64>();
    let before = read(&lists);
    regroup(&fs);
    let after = read(&lists);
    assert!(before > 800 && after <= 202, "{before} requests for 200 lists before, {after} after");
    is_stable(&fs);
    // One that is longer than a group, and another list of what lies in ten groups.
    let long = lists[..8].concat();
    list(&fs, 300, &long);
    regroup(&fs);
    let before = requests(&fs, &long);
    assert!(before <= groups_of(long.len()), "{before} requests for a long list");
    let other: Vec<Ino> = (0..10).map(|n| lists[20 * n + 10][n % 5]).collect();
    list(&fs, 200, &other);
    let done = regroup(&fs);
    assert_eq!((requests(&fs, &other), done.files_moved, requests(&fs, &long)), (1, 10, before), "{done:?}");
    is_stable(&fs);
    ends_clean(&dev, &fs);
}

#[test]
fn what_a_program_reads_again_and_again_is_learned_kept_over_mounts_and_hidden() {
    let dev = new_device();
    let fs = mount(&dev);
    let files = site(&fs);
    let start: Vec<Ino> = (0..60).map(|n| files[n * 3 % 10][n * 53 % 100]).collect();
    let run = |fs: &Fs, process| {
        for ino in &start {
            fs.note_read(process, *ino, 0, FILE);
        }
    };
    run(&fs, 1);
    run(&fs, 2);
    assert_eq!(fs.learned_files(), (0, 0), "no directory has the key");
    fs.set_colocation_key(ROOT, ROOT_INO, Some(&ColocationKey::Learned)).unwrap();
    run(&fs, 3);
    assert_eq!(fs.learned_files().0, 0, "once is no habit");
    ends_clean(&dev, &fs);

    let fs = mount(&dev);
    let mut names = fs.listxattr(ROOT_INO).unwrap();
    names.sort();
    assert_eq!(names, [KEY.to_vec()], "what was learned is in no listing");
    run(&fs, 4);
    assert_eq!(fs.learned_files(), (59, 59));
    let (before, all) = (requests(&fs, &start), files.concat());
    let walk_before = requests(&fs, &all);
    regroup(&fs);
    let (after, walk_after) = (requests(&fs, &start), requests(&fs, &all));
    assert!(before > 3 * after && after <= groups_of(60), "{before} requests before, {after} after");
    assert!(walk_after <= walk_before + groups_of(60), "{walk_before} requests for all before, {walk_after} after");
    is_stable(&fs);
    ends_clean(&dev, &fs);
    let fs = mount(&dev);
    assert_eq!(fs.learned_files(), (59, 59));
    is_stable(&fs);
    ends_clean(&dev, &fs);
}

#[test]
fn wrong_keys_are_refused_and_change_nothing() {
    let dev = new_device();
    let fs = mount(&dev);
    let dir = directory(&fs, ROOT_INO, "d");
    let f = file(&fs, ROOT, dir, "f");
    let set = |ino, value: &[u8]| fs.setxattr(ROOT, ino, KEY, value, SetXattr::default());
    for bad in [&b"size"[..], b"", b"label:", b"label:a/b", b"list:x:1", b"owner "] {
        assert!(matches!(set(dir, bad), Err(Error::Invalid(_))), "{}", String::from_utf8_lossy(bad));
    }
    for bad in [&b"owner"[..], b"", b"list:x", b"list:x:y", b"label:\xff"] {
        assert!(matches!(set(f, bad), Err(Error::Invalid(_))), "{}", String::from_utf8_lossy(bad));
    }
    assert!(matches!(fs.set_colocation_key(ROOT, f, Some(&ColocationKey::Owner)), Err(Error::NotDir)));
    assert!(matches!(fs.colocation_key(f), Err(Error::NotDir)));
    assert!(fs.listxattr(dir).unwrap().is_empty() && fs.listxattr(f).unwrap().is_empty());
    set(dir, b"label:web").unwrap();
    set(f, b"label:web").unwrap();
    assert_eq!(fs.colocation_key(dir).unwrap().0.to_string(), "label:web");
    ends_clean(&dev, &fs);
}
