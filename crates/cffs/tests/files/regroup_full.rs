//! Regrouping where there is hardly any room, on a device that fails, and killed in the middle: it goes on or says clearly
//! why not, and nothing is lost.

use crate::common::plain::{clean, fresh, mount};
use cffs::device::{FailingDevice, Fault, MemoryDevice, Operation, OverlayDevice};
use cffs::{
    Caller, Error, Fs, Ino, MkfsOptions, ROOT_INO, Regroup, RegroupOptions, RegroupOutcome, RegroupStatus, SetAttr,
};
use std::collections::BTreeMap;
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;
const DIRS: usize = 12;
const GROUP: u64 = 64 << 10;

type Files = BTreeMap<(usize, String), Vec<u8>>;

fn contents(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 5 + i / 4096 + n * 11) as u8).collect()
}

/// How much is free: so much of everything, in percent, or so many whole groups and nothing else.
#[derive(Clone, Copy, Debug)]
enum Room {
    Percent(u64),
    Groups(u64),
}

/// An image whose directories have come apart, with a file in many pieces, and with so much room.
fn aged(room: Room) -> (Arc<MemoryDevice>, Files) {
    let dev = fresh(24 << 20, &MkfsOptions::default().group_size(GROUP as u32).reserve_bp(0));
    let fs = mount(&dev);
    let dirs: Vec<Ino> =
        (0..DIRS).map(|d| fs.mkdir(ROOT, ROOT_INO, format!("d{d}").as_bytes(), 0o755).unwrap().ino).collect();
    let mut files = Files::new();
    let write = |files: &mut Files, d: usize, name: String, bytes: Vec<u8>| {
        let a = fs.create(ROOT, dirs[d], name.as_bytes(), 0o644)?;
        // A write that finds room for a part of it says so by its length.
        let whole = |n| if n == bytes.len() { Ok(()) } else { Err(Error::NoSpace) };
        let outcome = fs.write(ROOT, a.ino, 0, &bytes).and_then(whole).and_then(|()| fs.fsync(a.ino, false));
        fs.forget(a.ino, 1);
        match outcome {
            Ok(_) => files.insert((d, name), bytes),
            Err(e) => {
                fs.unlink(dirs[d], name.as_bytes())?;
                return Err(e);
            }
        };
        Ok(())
    };
    // In turns over the directories, with some removed: gaps everywhere.
    for round in 0..60 {
        for d in 0..DIRS {
            let n = round * DIRS + d;
            write(&mut files, d, format!("f{round}"), contents(n, 300 + n * 97 % 9000)).unwrap();
        }
    }
    for n in (0..60 * DIRS).step_by(3) {
        let (d, name) = (n % DIRS, format!("f{}", n / DIRS));
        fs.unlink(dirs[d], name.as_bytes()).unwrap();
        files.remove(&(d, name));
    }
    fs.sync().unwrap();
    // What is left goes to large files, and then to small ones in all gaps.
    let frag = fs.geometry().frag_shift;
    let free = |fs: &Fs| fs.statfs().free << frag;
    let keep = match room {
        Room::Percent(p) => (fs.statfs().total << frag) * p / 100,
        Room::Groups(_) => 0,
    };
    let mut n = 0;
    for len in [1 << 20, 128 << 10, 20_000, 5_000, 1_500, 700] {
        while free(&fs) > keep + len as u64 {
            match write(&mut files, n * 7 % DIRS, format!("late{n}"), contents(n, len)) {
                Ok(()) => n += 1,
                Err(Error::NoSpace) => break,
                Err(e) => panic!("{e}"),
            }
        }
    }
    if let Room::Groups(groups) = room {
        // Files of one megabyte were written while there was room for them in one piece: a part of one is whole groups.
        let large = files.iter().find(|(_, bytes)| bytes.len() == 1 << 20).map(|(at, _)| at.clone());
        if let (Some(at), true) = (large, groups > 0) {
            let ino = fs.lookup(dirs[at.0], at.1.as_bytes()).unwrap().ino;
            let len = (1 << 20) - groups * GROUP;
            fs.setattr(ROOT, ino, SetAttr::default().size(Some(len))).unwrap();
            fs.forget(ino, 1);
            files.get_mut(&at).unwrap().truncate(len as usize);
        }
    }
    dirs.into_iter().for_each(|d| fs.forget(d, 1));
    fs.close().unwrap();
    clean(&dev, "filled");
    (dev, files)
}

fn compare(fs: &Fs, files: &Files, when: &str) {
    for ((d, name), bytes) in files {
        let dir = fs.lookup(ROOT_INO, format!("d{d}").as_bytes()).unwrap();
        let f = fs.lookup(dir.ino, name.as_bytes()).unwrap();
        let mut back = vec![0; bytes.len() + 1];
        let n = fs.read(f.ino, 0, &mut back).unwrap_or_else(|e| panic!("{when}: d{d}/{name}: {e}"));
        assert!(n == bytes.len() && back[..n] == bytes[..], "{when}: d{d}/{name} is not what was written");
        fs.forget(f.ino, 1);
        fs.forget(dir.ino, 1);
    }
}

fn kinds() -> [(&'static str, RegroupOptions); 3] {
    let plain = RegroupOptions::default;
    [("regroup", plain()), ("large", plain().large(true)), ("free space", plain().free_space(true))]
}

fn regroup(fs: &Fs, options: &RegroupOptions) -> (cffs::Result<()>, RegroupStatus) {
    let handle = Regroup::new();
    let outcome = fs.regroup(options, &handle);
    (outcome, handle.status())
}

/// Either all was done, or there is a word on why not.
#[track_caller]
fn ended_clearly(outcome: cffs::Result<()>, status: &RegroupStatus, when: &str) {
    match (outcome, &status.outcome) {
        (Ok(()), Some(RegroupOutcome::Complete)) | (Err(Error::Io(_) | Error::ReadOnly), _) => {}
        (Ok(()), Some(RegroupOutcome::Failed(why))) if !why.is_empty() => {}
        (outcome, _) => panic!("{when}: {outcome:?}, {status:?}"),
    }
}

/// With a tenth free many files move.
const ROOMS: [Room; 5] = [Room::Percent(10), Room::Percent(1), Room::Groups(2), Room::Groups(1), Room::Groups(0)];

#[test]
fn with_hardly_any_room_it_does_what_it_can_and_ends() {
    for room in ROOMS {
        let (dev, files) = aged(room);
        for (kind, options) in kinds() {
            let when = format!("{room:?}, {kind}");
            let over = Arc::new(OverlayDevice::new(dev.clone()));
            let fs = mount(&over);
            let (outcome, first) = regroup(&fs, &options);
            outcome.unwrap_or_else(|e| panic!("{when}: {e}"));
            assert_eq!(first.outcome, Some(RegroupOutcome::Complete), "{when}: {first:?}");
            assert!(first.read.after <= first.read.before, "{when}: {first:?}");
            // What could be better and is not has a reason.
            match first.free_runs {
                Some(runs) => assert!(runs.after.longest >= runs.before.longest, "{when}: {first:?}"),
                None => {
                    let gained = first.read.after * 5.0 < first.read.before
                        || first.pieces.is_some_and(|pieces| pieces.after * 5 < pieces.before);
                    assert!(gained || first.bytes_waiting + first.bytes_kept > 0, "{when}: {first:?}");
                }
            }
            let (outcome, second) = regroup(&fs, &options);
            assert!(
                outcome.is_ok() && second.bytes_moved <= first.bytes_moved / 8,
                "{when}: {first:?} then {second:?}"
            );
            compare(&fs, &files, &when);
            fs.close().unwrap();
            clean(&over, &when);
        }
    }
}

#[test]
fn a_device_that_dies_in_the_middle_costs_nothing_that_was_there() {
    let mut all = 0;
    for room in ROOMS {
        let (dev, files) = aged(room);
        let mut died = 0;
        for (kind, options) in kinds() {
            for n in [1, 2, 3, 5, 8, 13, 40, 90, 200] {
                let when = format!("{room:?}, {kind}, dead from write {n} on");
                let over = Arc::new(OverlayDevice::new(dev.clone()));
                let failing = Arc::new(FailingDevice::new(over.clone()));
                let fs = mount(&failing);
                failing.set(Operation::Write, Fault::from_nth(n));
                let (outcome, status) = regroup(&fs, &options);
                died += u64::from(status.outcome != Some(RegroupOutcome::Complete));
                ended_clearly(outcome, &status, &when);
                drop(fs);
                let fs = mount(&over);
                compare(&fs, &files, &when);
                fs.close().unwrap();
                clean(&over, &when);
            }
        }
        // Where nothing is free nothing is written.
        assert!(died > 0 || matches!(room, Room::Groups(0)), "{room:?}: no deaths while it worked");
        all += died;
    }
    assert!(all > 20, "{all} deaths while it worked");
}

#[test]
fn places_that_cannot_be_read_or_written_once_do_not_end_it_badly() {
    for room in [Room::Percent(10), Room::Percent(1), Room::Groups(1)] {
        let (dev, files) = aged(room);
        for (kind, options) in kinds() {
            for (op, n) in [(Operation::Read, 4), (Operation::Read, 30), (Operation::Write, 2), (Operation::Flush, 1)] {
                let when = format!("{room:?}, {kind}, {op:?} {n} fails");
                let over = Arc::new(OverlayDevice::new(dev.clone()));
                let failing = Arc::new(FailingDevice::new(over.clone()));
                let fs = mount(&failing);
                failing.set(op, Fault::nth(n));
                let (outcome, status) = regroup(&fs, &options);
                ended_clearly(outcome, &status, &when);
                failing.clear();
                compare(&fs, &files, &when);
                let read_only = fs.close().is_err();
                assert!(!read_only || op != Operation::Read, "{when}: a read that failed ends all writing");
                drop(fs);
                let fs = mount(&over);
                compare(&fs, &files, &when);
                fs.close().unwrap();
                clean(&over, &when);
            }
        }
    }
}
