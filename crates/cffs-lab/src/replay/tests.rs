//! Programs are recorded on simulated disks, and replayed there and elsewhere.

use cffs::trace::{Classes, Item, Reader, frame};
use cffs::{
    AtimeMode, Caller, Fs, Ino, ROOT_INO, Regroup, RegroupOptions, RenameFlags, Scrub, ScrubOptions, SetAttr, SetXattr,
};
use cffs_disk::Counters;

use super::settings::Settings;
use super::simulated::{made, options, predict};
use super::system_calls::repeat_all;
use super::workload::{Workload, total};
use crate::random::Random;

const C: Caller = Caller::ROOT;
/// Directories of the tree, and files in each.
const DIRS: u64 = 24;
const FILES: u64 = 40;

fn make(fs: &Fs, dir: Ino, name: &str, size: usize) -> cffs::Result<()> {
    let ino = fs.create(C, dir, name.as_bytes(), 0o644)?.ino;
    fs.write(C, ino, 0, &super::engine::contents(size))?;
    fs.forget(ino, 1);
    Ok(())
}

fn tree(fs: &Fs) -> cffs::Result<()> {
    let mut random = Random::new(7);
    for d in 0..DIRS {
        let dir = fs.mkdir(C, ROOT_INO, format!("dir{d}").as_bytes(), 0o755)?.ino;
        for f in 0..FILES {
            make(fs, dir, &format!("file{f}"), 200 + random.below(16_000) as usize)?;
        }
        fs.forget(dir, 1);
    }
    make(fs, ROOT_INO, "large", 3 << 20)?;
    fs.sync()
}

fn in_dir(fs: &Fs, name: &str, work: impl FnOnce(Ino) -> cffs::Result<()>) -> cffs::Result<()> {
    let dir = fs.lookup(ROOT_INO, name.as_bytes())?.ino;
    let outcome = work(dir);
    fs.forget(dir, 1);
    outcome
}

fn with(fs: &Fs, dir: Ino, name: &str, work: impl FnOnce(Ino) -> cffs::Result<()>) -> cffs::Result<()> {
    let ino = fs.lookup(dir, name.as_bytes())?.ino;
    let outcome = work(ino);
    fs.forget(ino, 1);
    outcome
}

/// Reads, as grep does; changes and removes, as an editor, a mail server and a build do.
fn program(fs: &Fs) -> cffs::Result<()> {
    let mut buffer = vec![0; 128 << 10];
    for d in 0..DIRS / 2 {
        in_dir(fs, &format!("dir{d}"), |dir| {
            let mut names = Vec::new();
            fs.readdir(dir, 0, d % 2 == 0, &mut |e| {
                names.push((e.name, e.attr.map(|a| a.ino)));
                true
            })?;
            for (name, referenced) in names {
                let ino = fs.lookup(dir, &name)?.ino;
                fs.read(ino, 0, &mut buffer)?;
                fs.forget(ino, 1 + u64::from(referenced.is_some()));
            }
            Ok(())
        })?;
    }
    with(fs, ROOT_INO, "large", |ino| {
        for at in (0..3 << 20).step_by(128 << 10) {
            fs.read(ino, at, &mut buffer)?;
        }
        fs.setattr(C, ino, SetAttr::default().size(Some(1 << 20))).map(drop)
    })?;
    let new = fs.mkdir(C, ROOT_INO, b"new", 0o755)?.ino;
    for n in 0..60 {
        let name = format!("message{n}");
        make(fs, new, &format!("tmp{n}"), 3000)?;
        with(fs, new, &format!("tmp{n}"), |ino| fs.fsync(ino, false))?;
        fs.rename(C, new, format!("tmp{n}").as_bytes(), new, name.as_bytes(), RenameFlags::default())?;
        if n % 3 == 0 {
            fs.unlink(new, name.as_bytes())?;
        }
    }
    with(fs, new, "message1", |ino| {
        fs.link(C, ino, ROOT_INO, b"other").map(|a| fs.forget(a.ino, 1))?;
        fs.setxattr(C, ino, b"user.note", b"something", SetXattr::default())?;
        fs.getxattr(ino, b"user.note").map(drop)
    })?;
    fs.forget(new, 1);
    in_dir(fs, "dir3", |dir| {
        for f in 0..FILES {
            fs.unlink(dir, format!("file{f}").as_bytes())?;
        }
        Ok(())
    })?;
    fs.rmdir(ROOT_INO, b"dir3")?;
    in_dir(fs, "dir20", |dir| {
        for f in 0..FILES / 2 {
            with(fs, dir, &format!("file{f}"), |ino| fs.write(C, ino, 100, &buffer[..2000]).map(drop))?;
        }
        let link = fs.symlink(C, dir, b"link", b"file3")?.ino;
        fs.readlink(link)?;
        fs.forget(link, 1);
        let nameless = fs.tmpfile(C, dir, 0o600)?.ino;
        fs.write(C, nameless, 0, &buffer[..9000])?;
        fs.forget(nameless, 1);
        assert!(fs.lookup(dir, b"nothing").is_err());
        Ok(())
    })?;
    fs.sync()
}

/// Runs the program there and records it. Returns the trace, and the requests of the disk.
fn record(on: &str, scramble: bool) -> (Vec<u8>, Counters) {
    record_of(on, scramble, &program)
}

fn record_of(on: &str, scramble: bool, program: &dyn Fn(&Fs) -> cffs::Result<()>) -> (Vec<u8>, Counters) {
    let s: Settings = on.parse().unwrap();
    let empty = Workload::default();
    let is_log = s.is_log(&empty);
    let volume = made(&s, &empty, is_log).unwrap();
    let opened = volume.open().unwrap();
    let fs = Fs::open(opened.device.clone(), None, options(&s, &empty, is_log)).unwrap();
    tree(&fs).unwrap();
    fs.close().unwrap();
    opened.close().unwrap();
    let opened = volume.open().unwrap();
    let fs = Fs::open(opened.device.clone(), None, options(&s, &empty, is_log)).unwrap();
    fs.obfuscate_trace(scramble).unwrap();
    let mut trace = frame::HEADER.to_vec();
    let mut left = vec![ROOT_INO];
    while let Some(directory) = left.pop() {
        let listing = fs.trace_listing(directory, 0).unwrap();
        assert_eq!(listing.next, 0);
        left.extend(listing.entries.iter().rev().filter(|e| e.is_dir()).map(|e| e.inode));
        trace.extend(listing.frame().unwrap());
    }
    fs.cool().unwrap();
    let (before, counted) = (volume.disk().counters(), requests(&fs));
    let recording = fs.tracer().start(Classes::ALL.with(Classes::REPLAY));
    program(&fs).unwrap();
    assert!(fs.tracer().switch(recording, Classes::NONE));
    let asked = volume.disk().counters() - before;
    let counted = requests(&fs) - counted;
    trace.extend(frame::information(br#"{"when":"start","classes":"all"}"#));
    trace.extend(fs.tracer().read(recording, usize::MAX).unwrap());
    fs.close().unwrap();
    opened.close().unwrap();
    let w = Workload::read(&trace[..]).unwrap();
    let all = w.recorded_besides.values().map(|r| r.reads + r.writes);
    let recorded = w.recorded_total().reads + w.recorded_total().writes + all.sum::<u64>();
    assert_eq!(recorded, counted, "the trace has what the file system has counted");
    (trace, asked)
}

/// Reads and writes that the file system has counted, at the disks.
fn requests(fs: &Fs) -> u64 {
    let stats = fs.stats();
    let below: Vec<_> = stats.disks.iter().map(|d| &d.counters).collect();
    let disks = if below.is_empty() { vec![&stats.device] } else { below };
    disks.iter().flat_map(|d| d.kinds.values()).map(|k| k.read_requests + k.write_requests).sum()
}

fn replayed(trace: &[u8], on: &str) -> Counters {
    let w = Workload::read(trace).unwrap();
    assert!(w.tree.is_whole && w.lost == 0);
    let p = predict(&on.parse().unwrap(), &w, None).unwrap();
    let d = &p.differences;
    assert_eq!((d.repeated, d.other_outcome, d.unknown), (w.ops.len() as u64, 0, 0), "{:?}", d.first);
    // The disk divides what is longer than it takes at once.
    let counted = total(p.purposes.as_ref().unwrap());
    assert!(p.disk.requests() >= counted.reads + counted.writes && p.disk.time > 0);
    assert_eq!(counted.bytes, p.disk.read_bytes + p.disk.written_bytes);
    p.disk
}

/// Deviation in %.
fn deviation(predicted: u64, of: u64) -> f64 {
    (predicted as f64 / of as f64 - 1.0).abs() * 100.0
}

/// Requests are as predicted, up to so many %, and time up to 10%: how long a disk with an arm takes depends on all that came before.
fn within(percent: f64, on: &str, predicted: Counters, asked: Counters) {
    let pairs =
        [("requests", percent, predicted.requests(), asked.requests()), ("ns", 10.0, predicted.time, asked.time)];
    for (what, most, p, a) in pairs {
        let off = deviation(p, a);
        println!("{on}: {a} {what}, replayed {p}: {off:.2}% off");
        assert!(off <= most, "{on}: {a} {what}, replayed {p}");
    }
}

/// Bytes that the kernel of a mount takes at once.
const REQUEST: usize = 1 << 20;

const HERE: &str = "volume-1ms,size=256M,group=256K";

#[test]
fn a_replay_on_the_same_disk_asks_for_what_was_recorded() {
    for on in [HERE, "hdd-2026,size=256M,group=64K,prefetch=off"] {
        let (trace, asked) = record(on, false);
        within(2.0, on, replayed(&trace, on), asked);
    }
}

#[test]
fn a_replay_predicts_other_settings() {
    let (trace, here) = record(HERE, false);
    let others = [
        "volume-1ms,size=256M,group=32K",
        "volume-1ms,size=256M,group=1M",
        "volume-1ms,size=256M,group=256K,layout=log",
        "sd-card,size=256M,group=256K,prefetch=off",
        "hdd-2026,size=256M,group=256K,metadata=sync",
    ];
    let mut differs = false;
    for on in others {
        let (_, asked) = record(on, false);
        within(10.0, on, replayed(&trace, on), asked);
        differs |= deviation(here.requests(), asked.requests()) > 30.0;
    }
    assert!(differs, "settings that change nothing test nothing");
}

#[test]
fn what_a_mount_does_besides_is_none_of_what_programs_cost() {
    let besides = |fs: &Fs| {
        program(fs)?;
        fs.regroup(&RegroupOptions::default(), &Regroup::default())?;
        fs.scrub(&ScrubOptions::default(), &Scrub::default())
    };
    let [alone, with] = [&program as &dyn Fn(&Fs) -> cffs::Result<()>, &besides]
        .map(|program| Workload::read(&record_of(HERE, false, program).0[..]).unwrap());
    assert!(alone.recorded_besides.is_empty(), "{:?}", alone.recorded_besides);
    // A regroup writes what programs have left in memory.
    assert_eq!(alone.recorded_total().reads, with.recorded_total().reads);
    assert_eq!(with.recorded_besides.keys().copied().collect::<Vec<_>>(), ["regroup", "scrub"]);
    assert!(with.recorded_besides.values().all(|r| r.reads + r.writes > 0), "{:?}", with.recorded_besides);
}

#[test]
fn a_trace_can_be_given_away() {
    let (trace, asked) = record(HERE, true);
    for name in ["message", "dir1", "file1", "large", "nothing", "note"] {
        assert!(!trace.windows(name.len()).any(|w| w == name.as_bytes()), "{name}");
    }
    within(2.0, HERE, replayed(&trace, HERE), asked);
    let (open, _) = record(HERE, false);
    assert!(open.windows(7).any(|w| w == b"message"));
}

#[test]
fn without_a_listing_the_names_come_from_what_was_looked_up() {
    let (trace, _) = record(HERE, false);
    let mut reader = Reader::new(&trace[..]).unwrap();
    let mut listings = 0;
    while let Some(item) = reader.next_item().unwrap() {
        listings += usize::from(matches!(item, Item::Listing(_)));
    }
    assert_eq!(listings as u64, DIRS + 1);
    // The frames of the listings come first.
    let mut at = frame::HEADER.len();
    for _ in 0..listings {
        at += 8 + u32::from_le_bytes(trace[at..at + 4].try_into().unwrap()) as usize;
    }
    let short = [&frame::HEADER[..], &trace[at..]].concat();
    let w = Workload::read(&short[..]).unwrap();
    assert!(!w.tree.is_whole);
    let p = predict(&HERE.parse().unwrap(), &w, None).unwrap();
    assert_eq!((p.differences.other_outcome, p.differences.unknown), (0, 0), "{:?}", p.differences.first);
}

#[test]
fn system_calls_repeat_the_same_anywhere() {
    let (trace, _) = record(HERE, false);
    let w = Workload::read(&trace[..]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    super::system_calls::build(dir.path(), &w.tree, None).unwrap();
    let d = repeat_all(dir.path(), &w, false).unwrap();
    // The file system of the temporary directory may lack attributes, or files without a name.
    assert!(d.repeated == w.ops.len() as u64 && d.unknown == 0 && d.other_outcome <= 4, "{d:?}");
    assert_eq!(std::fs::read(dir.path().join("new/message1")).unwrap().len(), 3000);
    assert!(!dir.path().join("dir3").exists() && !dir.path().join("new/message0").exists());
    assert_eq!(std::fs::metadata(dir.path().join("large")).unwrap().len(), 1 << 20);
}

#[test]
fn a_trace_names_nothing_outside_of_where_it_is_repeated() {
    let (trace, _) = record(HERE, false);
    let whole = Workload::read(&trace[..]).unwrap();
    let outside = tempfile::tempdir().unwrap();
    let inside = outside.path().join("a/b");
    let absolute = outside.path().join("victim");
    for name in [b"../../victim".to_vec(), absolute.as_os_str().as_encoded_bytes().to_vec(), b"..".to_vec()] {
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::write(&absolute, "stays").unwrap();
        let mut w = whole.clone();
        w.tree.directories[0].1[0].name = name.clone();
        let error = super::system_calls::build(&inside, &w.tree, None).unwrap_err();
        assert!(error.to_string().contains("no file can be called"), "{error:#}");
        // In an operation.
        let mut w = whole.clone();
        for op in &mut w.ops {
            let names = op.detail.names_mut().count();
            let inode = std::mem::take(&mut op.detail).inode;
            op.detail.inode = inode;
            (0..names).for_each(|_| op.detail.add_name(&name));
            [0o600 | 0o100_000, 0, 0, 0].into_iter().for_each(|n| op.detail.add_number(n));
        }
        std::fs::remove_dir_all(&inside).unwrap();
        std::fs::create_dir(&inside).unwrap();
        super::system_calls::build(&inside, &w.tree, None).unwrap();
        repeat_all(&inside, &w, false).unwrap();
        assert_eq!(std::fs::read(&absolute).unwrap(), b"stays");
        let names = |at: &std::path::Path| std::fs::read_dir(at).unwrap().count();
        assert_eq!((names(outside.path()), names(inside.parent().unwrap())), (2, 1));
        std::fs::remove_dir_all(outside.path().join("a")).unwrap();
    }
}

/// A walk over all files on something like a mount: what is read ahead is read beside it, by a thread that comes to it with every
/// so-manyth operation. The kernel takes longer requests than the disk. Returns the trace.
fn walk_recorded_on_a_mount(on: &str, late: u64) -> Vec<u8> {
    let s: Settings = on.parse().unwrap();
    let empty = Workload::default();
    let volume = made(&s, &empty, false).unwrap();
    volume.disk().say_max_request(REQUEST);
    let opened = volume.open().unwrap();
    let mount = || Fs::open(opened.device.clone(), None, options(&s, &empty, false)).unwrap();
    let fs = mount();
    tree(&fs).unwrap();
    fs.close().unwrap();
    let fs = mount();
    fs.queue_readahead();
    let mut trace = frame::HEADER.to_vec();
    let mut left = vec![ROOT_INO];
    while let Some(directory) = left.pop() {
        let listing = fs.trace_listing(directory, 0).unwrap();
        left.extend(listing.entries.iter().rev().filter(|e| e.is_dir()).map(|e| e.inode));
        trace.extend(listing.frame().unwrap());
    }
    fs.readahead_step(usize::MAX);
    fs.cool().unwrap();
    let recording = fs.tracer().start(Classes::ALL.with(Classes::REPLAY));
    let mut buffer = vec![0; 128 << 10];
    let mut since = 0;
    let mut step = || {
        since += 1;
        if since % late == 0 {
            fs.readahead_step(usize::MAX);
        }
    };
    for d in 0..DIRS {
        let dir = fs.lookup(ROOT_INO, format!("dir{d}").as_bytes()).unwrap().ino;
        step();
        for f in 0..FILES {
            let ino = fs.lookup(dir, format!("file{f}").as_bytes()).unwrap().ino;
            step();
            fs.read(ino, 0, &mut buffer).unwrap();
            step();
            fs.forget(ino, 1);
        }
        fs.forget(dir, 1);
    }
    // With the version of the program, as `cffs trace` has it.
    let settings = serde_json::json!({"request": fs.stats().max_request});
    let information = serde_json::json!({"when": "start", "classes": "all", "program": "0.1.0", "settings": settings});
    trace.extend(frame::information(information.to_string().as_bytes()));
    trace.extend(fs.tracer().read(recording, usize::MAX).unwrap());
    fs.close().unwrap();
    opened.close().unwrap();
    trace
}

#[test]
fn what_a_mount_has_read_ahead_is_read_ahead_again() {
    let mut by_program = Vec::new();
    for (on, late) in [(HERE, 1), (HERE, 400), ("hdd-2026,size=256M,group=64K", 1)] {
        let w = Workload::read(&walk_recorded_on_a_mount(on, late)[..]).unwrap();
        assert!(w.is_of_mount() && w.recorded["prefetch"].reads > 2, "{:?}", w.recorded);
        assert_eq!(w.setting("request"), Some(REQUEST as u64));
        let p = predict(&on.parse().unwrap(), &w, None).unwrap();
        let asked = p.purposes.unwrap();
        // What a late thread reads may be there in part by then, and that in other places.
        let purposes = if late > 1 { &["demand"][..] } else { &["demand", "prefetch"] };
        for purpose in purposes.iter().copied() {
            // The tree is made in the order of the listing, so it lies a little differently.
            let (asked, recorded) = (asked[purpose].reads, w.recorded[purpose].reads);
            assert!(asked.abs_diff(recorded) <= 1, "{on}, {late}: {asked} for {purpose}, recorded {recorded}");
        }
        by_program.push(w.recorded["demand"].reads);
    }
    assert!(by_program[1] > by_program[0] + 1, "a thread that is late leaves reads to the program: {by_program:?}");
}

#[test]
fn a_damaged_recording_is_refused_or_replayed_and_nothing_else() {
    let (trace, _) = record(HERE, false);
    let mut random = Random::new(3);
    let (mut refused, mut read) = (0, 0);
    let mut frames = Vec::new();
    let mut at = frame::HEADER.len();
    while at < trace.len() {
        let len = u32::from_le_bytes(trace[at..at + 4].try_into().unwrap()) as usize;
        frames.push((at, len));
        at += 8 + len;
    }
    for round in 0..90 {
        let mut bad = trace.clone();
        // Some bits of a frame, and its checksum made right again.
        let (at, len) = frames[random.below(frames.len() as u64) as usize];
        let body = &mut bad[at + 8..at + 8 + len];
        for _ in 0..1 + round % 3 {
            body[1 + random.below(len as u64 - 1) as usize] ^= 1 << random.below(8);
        }
        let crc = cffs::format::crc32c(body);
        bad[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        if round % 3 == 0 {
            bad.truncate(random.below(bad.len() as u64) as usize);
        }
        let Ok(w) = Workload::read(&bad[..]) else {
            refused += 1;
            continue;
        };
        read += 1;
        // Times can be anything, and a disk in virtual time does not wait for them.
        if let Err(e) = predict(&HERE.parse().unwrap(), &w, None) {
            assert!(format!("{e:#}").len() > 10, "{e:#}");
        }
    }
    assert!(refused > 5 && read > 5, "{refused} refused, {read} read");
}

#[test]
fn what_is_no_recording_for_a_replay_is_refused() {
    let message = |bytes: &[u8]| Workload::read(bytes).unwrap_err().to_string();
    assert!(message(b"something else of 16 bytes").contains("not a trace"));
    assert!(message(&frame::HEADER).contains("--replay"));
    let s: Settings = "volume-1ms".parse().unwrap();
    assert_eq!(s.atime, AtimeMode::Relatime);
}
