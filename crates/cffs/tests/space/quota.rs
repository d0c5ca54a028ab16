//! Quotas: usage is exact at every commit, limits are enforced where space is asked for, and nowhere later.

use cffs::check::{CheckOptions, check};
use cffs::device::{Device, MemoryDevice};
use cffs::{
    Caller, Error, FileType, Fs, Ino, MkfsOptions, MountOptions, QuotaGrace, QuotaKind, QuotaLimits, ROOT_INO, SetAttr,
    mkfs,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const ALICE: Caller = Caller { uid: 1000, gid: 100 };
const BOB: Caller = Caller { uid: 70_000, gid: 100 };
const KINDS: [QuotaKind; 3] = QuotaKind::ALL;

fn make(options: MkfsOptions) -> Arc<MemoryDevice> {
    let dev = Arc::new(MemoryDevice::new(64 << 20));
    mkfs(&*dev, None, &options).unwrap();
    dev
}

fn with_quota() -> Arc<MemoryDevice> {
    make(MkfsOptions::default().quota(KINDS.to_vec()).root_uid(1000))
}

fn open(dev: &Arc<MemoryDevice>) -> Arc<Fs> {
    Fs::open(dev.clone(), None, MountOptions::default().background(false)).unwrap()
}

fn assert_clean(dev: &Arc<MemoryDevice>, when: &str) {
    let report = check(dev.clone(), None, &CheckOptions::default(), &|_, _, _| {}).unwrap();
    let list: Vec<String> = report.problems.iter().take(12).map(|p| p.to_string()).collect();
    assert!(report.is_clean(), "{when}: {} problems\n{}", report.problems_total, list.join("\n"));
}

fn file(fs: &Fs, c: Caller, dir: Ino, name: &str, size: usize) -> Ino {
    let a = fs.create(c, dir, name.as_bytes(), 0o644).unwrap();
    assert_eq!(fs.write(c, a.ino, 0, &vec![7; size]).unwrap(), size);
    fs.forget(a.ino, 1);
    a.ino
}

/// Bytes and inodes of a user.
fn used(fs: &Fs, c: Caller) -> (u64, u64) {
    let q = fs.quota(QuotaKind::User, c.uid).unwrap();
    (q.bytes, q.inodes)
}

/// A little of everything that changes what inodes have.
fn work(fs: &Fs, round: u64) {
    let top = fs.mkdir(ALICE, ROOT_INO, format!("round{round}").as_bytes(), 0o755).unwrap().ino;
    for n in 0..120u64 {
        let c = if n % 3 == 0 { BOB } else { ALICE };
        let ino = file(fs, c, top, &format!("a file with a longer name {n}"), (n * n * 7) as usize);
        match n % 7 {
            0 => fs.fsync(ino, false).unwrap(),
            1 => drop(fs.setattr(Caller::ROOT, ino, SetAttr::default().uid(Some(5))).unwrap()),
            2 => drop(fs.setattr(c, ino, SetAttr::default().size(Some(n * 100))).unwrap()),
            3 => drop(fs.link(c, ino, ROOT_INO, format!("link {round} {n}").as_bytes()).unwrap()),
            4 => fs.unlink(top, format!("a file with a longer name {n}").as_bytes()).unwrap(),
            5 => drop(fs.symlink(c, top, format!("symlink {n}").as_bytes(), &vec![b'x'; 1 + n as usize * 20]).unwrap()),
            _ => fs
                .rename(
                    c,
                    top,
                    format!("a file with a longer name {n}").as_bytes(),
                    ROOT_INO,
                    b"moved",
                    Default::default(),
                )
                .unwrap(),
        }
    }
}

#[test]
fn records_agree_with_the_inodes_after_unmounts_and_crashes_in_all_kinds_of_file_system() {
    for no_embed in [false, true] {
        for (block_size, frag_size) in [(4096, 1024), (512, 512)] {
            let dev = make(
                MkfsOptions::default()
                    .quota(KINDS.to_vec())
                    .block_size(block_size)
                    .frag_size(Some(frag_size))
                    .no_embed(no_embed)
                    .root_uid(1000),
            );
            assert_clean(&dev, "new");
            let fs = open(&dev);
            work(&fs, 0);
            fs.sync().unwrap();
            assert_clean(&dev, "after sync");
            work(&fs, 1);
            drop(fs); // a crash
            assert_clean(&dev, "after the first crash");
            let fs = open(&dev);
            work(&fs, 2);
            fs.close().unwrap();
            assert_clean(&dev, "unmounted");
        }
    }
}

#[test]
fn usage_returns_to_zero_after_emptying() {
    let dev = with_quota();
    let fs = open(&dev);
    assert_eq!(used(&fs, BOB), (0, 0));
    let empty = used(&fs, ALICE);
    let dir = fs.mkdir(BOB, ROOT_INO, b"dir", 0o755).unwrap();
    for n in 0..50 {
        file(&fs, BOB, dir.ino, &format!("{n}"), n * 1000);
    }
    assert_eq!(used(&fs, BOB).1, 51);
    fs.sync().unwrap();
    let full = used(&fs, BOB);
    // Data of 1 to 49 KB in fragments of 1 KiB, and the blocks of the directory; the smallest stand in their inodes.
    let data: u64 = (1..50u64).map(|n| (n * 1000).div_ceil(1024)).sum();
    let dir_bytes = fs.getattr(dir.ino).unwrap().blocks * 512;
    assert_eq!(full.0, data * 1024 + dir_bytes);
    for n in 0..50 {
        fs.unlink(dir.ino, format!("{n}").as_bytes()).unwrap();
    }
    fs.rmdir(ROOT_INO, b"dir").unwrap();
    fs.forget(dir.ino, 1);
    assert_eq!(used(&fs, BOB), (0, 0));
    assert_eq!(used(&fs, ALICE), empty);
    fs.close().unwrap();
    assert_clean(&dev, "emptied");
    let fs = open(&dev);
    assert!(fs.quota_list(QuotaKind::User).unwrap().iter().all(|q| q.id != BOB.uid));
}

#[test]
fn unlinked_files_count_until_they_are_closed() {
    let dev = with_quota();
    let fs = open(&dev);
    let a = fs.create(BOB, ROOT_INO, b"f", 0o644).unwrap();
    fs.write(BOB, a.ino, 0, &[1; 10_000]).unwrap();
    fs.unlink(ROOT_INO, b"f").unwrap();
    assert_eq!(used(&fs, BOB), (10 << 10, 1));
    fs.sync().unwrap();
    assert_eq!(used(&fs, BOB), (10 << 10, 1));
    assert_clean(&dev, "an orphan");
    fs.forget(a.ino, 1);
    assert_eq!(used(&fs, BOB), (0, 0));
}

#[test]
fn what_was_never_counted_is_counted_at_the_next_mount() {
    let dev = make(MkfsOptions::default().root_uid(1000));
    let fs = open(&dev);
    assert!(fs.quota_kinds().is_empty());
    assert!(matches!(fs.quota(QuotaKind::User, 1000), Err(Error::Invalid(_))));
    work(&fs, 0);
    fs.close().unwrap();
    Fs::switch_quotas(dev.clone(), None, &KINDS).unwrap();
    assert_clean(&dev, "switched on");
    let fs = open(&dev);
    assert_eq!(fs.quota_kinds(), KINDS);
    assert!(used(&fs, BOB).0 > 0);
    assert!(fs.recount_quota(QuotaKind::Group).unwrap().is_empty());
    fs.set_quota(QuotaKind::User, BOB.uid, limits(0, 1 << 30, 0, 0)).unwrap();
    fs.sync().unwrap();
    drop(fs); // not unmounted
    // Off: changes are not recorded. On again: what has changed is counted, limits are as before.
    Fs::switch_quotas(dev.clone(), None, &[QuotaKind::Group]).unwrap();
    let fs = open(&dev);
    assert_eq!(fs.quota_kinds(), [QuotaKind::Group]);
    work(&fs, 1);
    fs.close().unwrap();
    assert_clean(&dev, "one kind only");
    Fs::switch_quotas(dev.clone(), None, &KINDS).unwrap();
    let fs = open(&dev);
    assert_eq!(fs.quota(QuotaKind::User, BOB.uid).unwrap().limits.hard_bytes, 1 << 30);
    fs.close().unwrap();
    assert_clean(&dev, "counted");
}

fn limits(soft_bytes: u64, hard_bytes: u64, soft_inodes: u64, hard_inodes: u64) -> QuotaLimits {
    QuotaLimits { soft_bytes, hard_bytes, soft_inodes, hard_inodes }
}

/// Writes 1 KiB at a time until an error; returns the bytes taken and the error.
fn fill(fs: &Fs, c: Caller, ino: Ino) -> (u64, Error) {
    let mut at = 0;
    loop {
        match fs.write(c, ino, at, &[5; 1024]) {
            Ok(n) => at += n as u64,
            Err(e) => return (at, e),
        }
    }
}

#[test]
fn at_the_hard_limit_write_fails_and_nothing_later_does() {
    let dev = with_quota();
    let fs = open(&dev);
    for (kind, id) in [(QuotaKind::User, BOB.uid), (QuotaKind::Group, 100), (QuotaKind::Project, 9)] {
        fs.set_quota(kind, id, limits(0, 100 << 10, 0, 0)).unwrap();
        let f = fs.create(BOB, ROOT_INO, b"f", 0o644).unwrap();
        if kind == QuotaKind::Project {
            fs.set_project(BOB, f.ino, 9, false).unwrap();
        }
        let before = fs.quota(kind, id).unwrap().bytes;
        let (taken, error) = fill(&fs, BOB, f.ino);
        assert!(matches!(error, Error::Quota), "{error}");
        assert_eq!(before + taken, 100 << 10, "to the last fragment");
        fs.fsync(f.ino, false).unwrap();
        fs.sync().unwrap();
        assert_eq!(fs.quota(kind, id).unwrap().bytes, 100 << 10);
        // What it has can be written over; it can become shorter, and grow again.
        fs.write(BOB, f.ino, 5000, &[1; 20_000]).unwrap();
        fs.sync().unwrap();
        assert!(matches!(fs.write(BOB, f.ino, 200 << 10, b"x"), Err(Error::Quota)));
        fs.setattr(BOB, f.ino, SetAttr::default().size(Some(50 << 10))).unwrap();
        fs.write(BOB, f.ino, 50 << 10, &[1; 10 << 10]).unwrap();
        // The superuser is not refused.
        fs.write(Caller::ROOT, f.ino, 60 << 10, &vec![1; 100 << 10]).unwrap();
        assert!(matches!(fs.write(BOB, f.ino, 300 << 10, b"x"), Err(Error::Quota)));
        assert!(fs.quota_refusals() > 0);
        fs.sync().unwrap();
        assert_clean(&dev, "full");
        fs.unlink(ROOT_INO, b"f").unwrap();
        fs.forget(f.ino, 1);
        assert_eq!(fs.quota(kind, id).unwrap().bytes, before);
        fs.set_quota(kind, id, limits(0, 0, 0, 0)).unwrap();
    }
    fs.close().unwrap();
    assert_clean(&dev, "unmounted");
}

#[test]
fn a_limit_on_inodes_stops_everything_that_makes_one() {
    let dev = with_quota();
    let fs = open(&dev);
    fs.set_quota(QuotaKind::User, BOB.uid, limits(0, 0, 0, 3)).unwrap();
    for n in ["a", "b", "c"] {
        file(&fs, BOB, ROOT_INO, n, 10);
    }
    assert!(matches!(fs.create(BOB, ROOT_INO, b"d", 0o644), Err(Error::Quota)));
    assert!(matches!(fs.mkdir(BOB, ROOT_INO, b"d", 0o755), Err(Error::Quota)));
    assert!(matches!(fs.symlink(BOB, ROOT_INO, b"d", b"target"), Err(Error::Quota)));
    assert!(matches!(fs.mknod(BOB, ROOT_INO, b"d", cffs::FileType::Fifo, 0o644, 0), Err(Error::Quota)));
    let a = fs.lookup(ROOT_INO, b"a").unwrap();
    fs.link(BOB, a.ino, ROOT_INO, b"another name of a").unwrap();
    fs.unlink(ROOT_INO, b"b").unwrap();
    fs.create(BOB, ROOT_INO, b"d", 0o644).unwrap();
    // A gift is refused too, but not from the superuser.
    let e = file(&fs, ALICE, ROOT_INO, "e", 10);
    let give = SetAttr::default().uid(Some(BOB.uid));
    assert!(matches!(fs.setattr(ALICE, e, give), Err(Error::Quota)));
    assert_eq!(fs.getattr(e).unwrap().uid, ALICE.uid);
    fs.setattr(Caller::ROOT, e, give).unwrap();
    assert_eq!(used(&fs, BOB).1, 4);
    fs.close().unwrap();
    assert_clean(&dev, "unmounted");
}

#[test]
fn a_change_of_owner_takes_along_what_has_no_place_yet() {
    let dev = with_quota();
    let fs = open(&dev);
    fs.set_quota(QuotaKind::User, BOB.uid, limits(0, 64 << 10, 0, 0)).unwrap();
    let f = fs.create(ALICE, ROOT_INO, b"f", 0o644).unwrap();
    fs.sync().unwrap();
    let before = used(&fs, ALICE);
    fs.write(ALICE, f.ino, 0, &vec![1; 70 << 10]).unwrap();
    let give = SetAttr::default().uid(Some(BOB.uid));
    assert!(matches!(fs.setattr(ALICE, f.ino, give), Err(Error::Quota)));
    fs.setattr(ALICE, f.ino, SetAttr::default().size(Some(40 << 10))).unwrap();
    fs.setattr(ALICE, f.ino, give).unwrap();
    assert_eq!(used(&fs, BOB), (40 << 10, 1));
    assert_eq!(used(&fs, ALICE), (before.0, before.1 - 1));
    assert!(matches!(fs.write(BOB, f.ino, 40 << 10, &[1; 25 << 10]), Ok(n) if n == 24 << 10));
    fs.sync().unwrap();
    assert_eq!(used(&fs, BOB), (64 << 10, 1));
    assert_clean(&dev, "given away");
}

#[test]
fn a_directory_grows_within_its_owners_quota_only() {
    let dev = with_quota();
    let fs = open(&dev);
    let d = fs.mkdir(BOB, ROOT_INO, b"d", 0o777).unwrap();
    fs.set_quota(QuotaKind::User, BOB.uid, limits(0, 8 << 10, 0, 0)).unwrap();
    let refused = (0..1000).find(|n| fs.create(BOB, d.ino, format!("name {n}").as_bytes(), 0o644).is_err());
    let refused = refused.unwrap();
    assert!(matches!(fs.create(BOB, d.ino, b"one more", 0o644), Err(Error::Quota)));
    assert_eq!(used(&fs, BOB), (8 << 10, 1 + refused as u64));
    let f = fs.lookup(d.ino, b"name 2").unwrap();
    assert!(matches!(fs.link(BOB, f.ino, d.ino, b"one more"), Err(Error::Quota)));
    file(&fs, BOB, ROOT_INO, "elsewhere", 0);
    assert!(matches!(
        fs.rename(BOB, ROOT_INO, b"elsewhere", d.ino, b"one more", Default::default()),
        Err(Error::Quota)
    ));
    fs.unlink(d.ino, b"name 3").unwrap();
    fs.forget(fs.lookup(d.ino, b"name 4").unwrap().ino, 1);
    fs.sync().unwrap();
    assert_clean(&dev, "full");
}

#[test]
fn grace_begins_at_the_soft_limit_and_ends_with_it() {
    let dev = with_quota();
    let fs = open(&dev);
    let kind = QuotaKind::User;
    assert!(matches!(fs.set_quota(kind, 0, limits(1, 1, 1, 1)), Err(Error::Invalid(_))));
    assert!(matches!(fs.set_quota(kind, 7, limits(5000, 4000, 0, 0)), Err(Error::Invalid(_))));
    fs.set_quota(kind, BOB.uid, limits(10 << 10, 50 << 10, 0, 0)).unwrap();
    let f = fs.create(BOB, ROOT_INO, b"f", 0o644).unwrap();
    fs.write(BOB, f.ino, 0, &[1; 10 << 10]).unwrap();
    assert_eq!(fs.quota(kind, BOB.uid).unwrap().bytes_deadline, None);
    fs.write(BOB, f.ino, 10 << 10, b"x").unwrap();
    let week = fs.quota(kind, BOB.uid).unwrap().bytes_deadline.unwrap();
    fs.write(BOB, f.ino, 11 << 10, &[1; 4096]).unwrap();
    assert_eq!(fs.quota(kind, BOB.uid).unwrap().bytes_deadline, Some(week), "it runs on");
    fs.setattr(BOB, f.ino, SetAttr::default().size(Some(1000))).unwrap();
    assert_eq!(fs.quota(kind, BOB.uid).unwrap().bytes_deadline, None);
    // The shortest grace there is.
    fs.set_quota_grace(kind, QuotaGrace { bytes: 1, inodes: 1 }).unwrap();
    fs.write(BOB, f.ino, 0, &[1; 12 << 10]).unwrap();
    let deadline = fs.quota(kind, BOB.uid).unwrap().bytes_deadline.unwrap();
    assert!(deadline < week);
    assert!(matches!(fs.write(BOB, f.ino, 12 << 10, b"x"), Err(Error::Quota)));
    fs.write(Caller::ROOT, f.ino, 12 << 10, b"x").unwrap();
    // It is remembered.
    fs.sync().unwrap();
    drop(fs);
    let fs = open(&dev);
    assert_eq!(fs.quota_grace(kind).unwrap(), QuotaGrace { bytes: 1, inodes: 1 });
    assert_eq!(fs.quota(kind, BOB.uid).unwrap().bytes_deadline, Some(deadline));
    let f = fs.lookup(ROOT_INO, b"f").unwrap();
    assert!(matches!(fs.write(BOB, f.ino, 20 << 10, b"x"), Err(Error::Quota)));
    // A higher limit ends it.
    let q = fs.set_quota(kind, BOB.uid, limits(30 << 10, 50 << 10, 0, 0)).unwrap();
    assert_eq!(q.bytes_deadline, None);
    fs.write(BOB, f.ino, 20 << 10, b"x").unwrap();
    fs.close().unwrap();
    assert_clean(&dev, "unmounted");
}

#[test]
fn a_project_is_handed_down() {
    let dev = with_quota();
    let fs = open(&dev);
    let d = fs.mkdir(BOB, ROOT_INO, b"d", 0o777).unwrap();
    fs.set_project(Caller::ROOT, d.ino, 42, true).unwrap();
    let sub = fs.mkdir(BOB, d.ino, b"sub", 0o777).unwrap();
    assert_eq!(fs.project(sub.ino).unwrap(), (42, true));
    let f = file(&fs, BOB, sub.ino, "f", 5000);
    assert_eq!(fs.project(f).unwrap(), (42, false));
    assert!(matches!(fs.set_project(BOB, f, 42, true), Err(Error::Invalid(_))));
    let q = fs.quota(QuotaKind::Project, 42).unwrap();
    let dirs: u64 = [d.ino, sub.ino].iter().map(|i| fs.getattr(*i).unwrap().blocks * 512).sum();
    assert_eq!((q.bytes, q.inodes), ((5 << 10) + dirs, 3));
    // Nothing of another project comes in; what is inside moves about and out.
    let other = file(&fs, BOB, ROOT_INO, "other", 10);
    assert!(matches!(fs.rename(BOB, ROOT_INO, b"other", d.ino, b"other", Default::default()), Err(Error::CrossDevice)));
    assert!(matches!(fs.link(BOB, other, d.ino, b"other"), Err(Error::CrossDevice)));
    fs.rename(BOB, sub.ino, b"f", d.ino, b"f", Default::default()).unwrap();
    fs.rename(BOB, d.ino, b"f", ROOT_INO, b"f", Default::default()).unwrap();
    assert_eq!(fs.project(f).unwrap().0, 42, "its project stays");
    fs.close().unwrap();
    assert_clean(&dev, "unmounted");
}

#[test]
fn records_that_are_wrong_or_damaged_are_found_and_counted_anew() {
    let dev = with_quota();
    let fs = open(&dev);
    work(&fs, 0);
    fs.set_quota(QuotaKind::User, 5, limits(1 << 20, 1 << 30, 100, 1000)).unwrap();
    fs.close().unwrap();
    let good = { open(&dev).quota(QuotaKind::User, 5).unwrap() };
    open(&dev).close().unwrap();
    // The blocks of the user quota file, by kind and owner.
    let g = cffs::Geometry::new(&cffs::mkfs::read_superblock(&*dev).unwrap()).unwrap();
    let mut blocks = Vec::new();
    for addr in 0..g.total_blocks {
        let mut b = vec![0; 4096];
        dev.read_at(cffs::device::IoKind::Meta, addr * 4096, &mut b).unwrap();
        if cffs::format::get_u32(&b, 0) == cffs::format::BlockKind::Quota as u32 && cffs::format::block_owner(&b) == 4 {
            blocks.push((addr, b));
        }
    }
    assert_eq!(blocks.len(), 3, "for users 0 and 5, 1000, 70000");
    let (lblock, at) = cffs::format::quota::place(4096, 5);
    let number = |b: &[u8]| cffs::format::get_u64(b, cffs::format::quota::QUOTA_LBLOCK);
    let (addr, block) = blocks.iter_mut().find(|(_, b)| number(b) == lblock).unwrap();
    cffs::format::put_u64(block, at, 1 << 40);
    let seq = cffs::format::block_seq(block);
    cffs::format::seal(block, seq);
    dev.write_at(cffs::device::IoKind::Meta, *addr * 4096, block).unwrap();
    let classes = || -> Vec<&str> {
        let report = check(dev.clone(), None, &CheckOptions::default(), &|_, _, _| {}).unwrap();
        report.problems.iter().map(|p| p.class.id()).collect()
    };
    assert_eq!(classes(), ["quota-usage"]);
    let fs = open(&dev);
    let wrong = fs.recount_quota(QuotaKind::User).unwrap();
    assert_eq!(wrong.len(), 1);
    assert_eq!((wrong[0].id, wrong[0].bytes), (5, [1 << 50, good.bytes]));
    assert_eq!(fs.quota(QuotaKind::User, 5).unwrap(), good, "the limits stay");
    fs.close().unwrap();
    assert_clean(&dev, "repaired");

    block[100] ^= 1;
    dev.write_at(cffs::device::IoKind::Meta, *addr * 4096, block).unwrap();
    assert_eq!(classes(), ["quota-block"]);
    let fs = open(&dev);
    // Nobody is kept from working, and nobody's data are lost, for want of a record.
    let f = file(&fs, Caller { uid: 5, gid: 5 }, ROOT_INO, "new", 5000);
    fs.sync().unwrap();
    fs.recount_quota(QuotaKind::User).unwrap();
    let q = fs.quota(QuotaKind::User, 5).unwrap();
    assert_eq!((q.bytes, q.inodes), (good.bytes + (5 << 10), good.inodes + 1));
    assert_eq!(q.limits, limits(0, 0, 0, 0), "the limits of this block are lost");
    assert_eq!(fs.getattr(f).unwrap().size, 5000);
    fs.close().unwrap();
    assert_clean(&dev, "repaired again");
}

/// A node of an extent tree is charged when it is made, and never refused: nobody who was told yes hears no later. So
/// the nodes of a file, and nothing else, can stand above a limit (as on XFS and ext4).
#[test]
fn nodes_of_extent_trees_are_charged_and_not_refused() {
    let dev = with_quota();
    let fs = open(&dev);
    fs.set_quota(QuotaKind::User, BOB.uid, limits(0, 40 << 10, 0, 0)).unwrap();
    let f = file(&fs, BOB, ROOT_INO, "f", 0);
    // One fragment in each other block.
    for n in 0..40u64 {
        fs.write(BOB, f, n * 8192, &[7; 1024]).unwrap();
    }
    assert!(matches!(fs.write(BOB, f, 40 * 8192, b"x"), Err(Error::Quota)));
    assert_eq!(fs.quota(QuotaKind::User, BOB.uid).unwrap().bytes, 40 << 10);
    fs.sync().unwrap();
    assert_eq!(fs.quota(QuotaKind::User, BOB.uid).unwrap().bytes, 44 << 10);
    fs.close().unwrap();
    assert_clean(&dev, "unmounted");
}

/// Threads of several users write, grow directories, cut and remove against their limits, while root gives files away
/// and changes limits, and commits come as they please. Nobody's data are ever seen above a hard limit, and every record
/// is exact in the end.
#[test]
fn threads_of_several_users_never_pass_a_limit() {
    const INODES: u64 = 40;
    for seed in 0..4u64 {
        // Files of two fragments never have an extent tree. Its nodes are charged, but not refused: those of larger files
        // may stand above the limit, one for each file.
        let (file_bytes, hard, nodes) =
            if seed % 2 == 0 { (2000, 60 << 10, 0) } else { (90_000, 300 << 10, INODES * 4096) };
        let dev = with_quota();
        let options = MountOptions::default().commit_interval(Duration::from_millis(3));
        let fs = Fs::open(dev.clone(), None, options).unwrap();
        let users: Vec<Caller> = (0..4).map(|n| Caller { uid: 500 + n, gid: 600 + n % 2 }).collect();
        let heir = 999;
        for c in &users {
            fs.set_quota(QuotaKind::User, c.uid, limits(hard / 2, hard, 0, INODES)).unwrap();
        }
        let stop = AtomicBool::new(false);
        let refused = AtomicU64::new(0);
        std::thread::scope(|s| {
            let workers: Vec<_> = users
                .iter()
                .enumerate()
                .flat_map(|(n, c)| [(n, *c, 0), (n, *c, 1)])
                .map(|(n, c, half)| {
                    let (fs, refused) = (&fs, &refused);
                    s.spawn(move || user_of_quota(fs, c, seed * 100 + n as u64 * 2 + half, file_bytes, refused))
                })
                .collect();
            let (fs, stop, users) = (&fs, &stop, &users);
            s.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for c in users {
                        let q = fs.quota(QuotaKind::User, c.uid).unwrap();
                        assert!(q.bytes <= hard + nodes && q.inodes <= INODES, "{q:?}");
                    }
                }
            });
            s.spawn(move || {
                let mut n = 0u32;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    let to = SetAttr::default().uid(Some(heir)).gid(Some(600 + n % 3));
                    let found = fs.lookup(ROOT_INO, format!("u{}-{}", 500 + n % 4, n % 20).as_bytes());
                    if let Ok(a) = found {
                        let _ = fs.setattr(Caller::ROOT, a.ino, to); // it may be gone by now
                        fs.forget(a.ino, 1);
                    }
                    fs.set_quota(
                        QuotaKind::Group,
                        600,
                        limits(0, if n.is_multiple_of(2) { 0 } else { 400 << 10 }, 0, 0),
                    )
                    .unwrap();
                }
            });
            let failed = workers.into_iter().filter_map(|w| w.join().err()).count();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(failed, 0, "threads failed");
        });
        assert!(refused.load(Ordering::Relaxed) > 0, "the limits were never met");
        fs.sync().unwrap();
        assert_clean(&dev, "after the threads");
        for kind in KINDS {
            assert_eq!(fs.recount_quota(kind).unwrap(), []);
        }
        fs.close().unwrap();
        assert_clean(&dev, "unmounted");
    }
}

/// splitmix64
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB) % n
    }
}

/// The work of one thread of one user. Counts what was refused.
fn user_of_quota(fs: &Fs, c: Caller, seed: u64, file_bytes: u64, refused: &AtomicU64) {
    let mut rng = Rng(seed);
    let check = |outcome: Result<(), Error>| match outcome {
        Err(Error::Quota) => drop(refused.fetch_add(1, Ordering::Relaxed)),
        // Names are chosen at random.
        Err(Error::NotFound | Error::Exists | Error::Stale | Error::NotEmpty | Error::IsDir | Error::NotDir) => {}
        other => other.unwrap(),
    };
    for _ in 0..1500 {
        let name = format!("u{}-{}", c.uid, rng.below(20));
        let find = |name: &str| fs.lookup(ROOT_INO, name.as_bytes());
        let with = |f: &dyn Fn(Ino) -> Result<(), Error>| {
            let a = find(&name)?;
            let done = f(a.ino);
            fs.forget(a.ino, 1);
            done
        };
        match rng.below(12) {
            0..3 => check(fs.create(c, ROOT_INO, name.as_bytes(), 0o644).map(|a| fs.forget(a.ino, 1))),
            3 => check(fs.mkdir(c, ROOT_INO, name.as_bytes(), 0o755).map(|a| fs.forget(a.ino, 1))),
            4..7 => {
                let (at, len) = (rng.below(file_bytes * 2 / 3), rng.below(file_bytes / 3) as usize);
                check(with(&|ino| fs.write(c, ino, at, &vec![3; len]).map(drop)));
            }
            7 => check(with(&|ino| fs.setattr(c, ino, SetAttr::default().size(Some(seed * 7 % 5000))).map(drop))),
            8 => check(with(&|ino| fs.fsync(ino, false))),
            9 => check(fs.unlink(ROOT_INO, name.as_bytes())),
            10 => {
                let long = format!("{name}{}", "x".repeat(rng.below(200) as usize));
                let inside = rng.below(2) == 0;
                check(with(&|ino| {
                    let to = if inside && fs.getattr(ino)?.file_type == FileType::Directory { ino } else { ROOT_INO };
                    fs.create(c, to, long.as_bytes(), 0o644).map(|a| fs.forget(a.ino, 1))
                }));
            }
            _ => {
                let to = format!("u{}-{}", c.uid, rng.below(20));
                check(fs.rename(c, ROOT_INO, name.as_bytes(), ROOT_INO, to.as_bytes(), Default::default()));
            }
        }
    }
}
