//! Dumps: what is on an image is shown as it is, and whatever is damaged, what can be shown is.

use crate::repair::{classes, image};
use cffs::device::{Device, IoKind, MemoryDevice};
use cffs::dump::{Dumper, Value, Which, superblocks};
use cffs::format::*;
use cffs::{Caller, Error, SetXattr};
use image::{Image, pristine};
use std::sync::Arc;

const ME: Caller = Caller::ROOT;

fn path(p: &str) -> Which {
    Which::Path(p.as_bytes().to_vec())
}

fn number(v: &Value, at: &str) -> u64 {
    match v.at(at) {
        Some(Value::Number(n)) => *n,
        other => panic!("{at}: {other:?}"),
    }
}

fn list<'v>(v: &'v Value, at: &str) -> &'v [Value] {
    match v.at(at) {
        Some(Value::List(l)) => l,
        other => panic!("{at}: {other:?}"),
    }
}

fn text<'v>(v: &'v Value, at: &str) -> &'v str {
    match v.at(at) {
        Some(Value::Text(t)) => t,
        other => panic!("{at}: {other:?}"),
    }
}

/// Everything there is to show; returns it, and what could not be shown at all.
fn everything(dev: &dyn Device, image: &Image) -> (Vec<Value>, Vec<String>) {
    let (mut shown, mut errors) = (superblocks(dev), Vec::new());
    let d = match Dumper::open(dev, None) {
        Ok(d) => d,
        Err(e) => return (shown, vec![e.to_string()]),
    };
    let mut take = |r: cffs::Result<Value>| match r {
        Ok(v) => shown.push(v),
        Err(e) => errors.push(e.to_string()),
    };
    take(Ok(d.counters()));
    (0..d.geometry().ag_count).for_each(|ag| take(d.group(ag)));
    image.blocks.values().for_each(|b| take(d.block(*b)));
    for ino in (0..20).chain(image.places.keys().copied()) {
        take(d.inode(&Which::Number(ino)));
        take(d.extents(&Which::Number(ino)));
        take(d.xattrs(&Which::Number(ino)));
    }
    for p in ["/", "/big", "/src/package0", "/misc/sparse", "/src/link0-0"] {
        take(d.directory(&path(p)));
        take(d.inode(&path(p)));
    }
    take(d.locator());
    take(d.external());
    QuotaKind::ALL.into_iter().for_each(|k| take(d.quota(k)));
    take(d.log());
    (shown, errors)
}

/// All texts under names that end with `problems`.
fn problems(v: &Value, out: &mut Vec<String>) {
    match v {
        Value::List(l) => l.iter().for_each(|v| problems(v, out)),
        Value::Fields(f) => {
            for (name, v) in &f.0 {
                if let (true, Value::List(l)) = (name.ends_with("problems"), v) {
                    out.extend(l.iter().map(|t| format!("{t:?}")));
                }
                problems(v, out);
            }
        }
        _ => {}
    }
}

fn all_problems(shown: &[Value], mut errors: Vec<String>) -> Vec<String> {
    shown.iter().for_each(|v| problems(v, &mut errors));
    errors
}

#[test]
fn an_undamaged_image_is_shown_as_it_is() {
    for no_embed in [false, true] {
        let image = pristine(no_embed);
        let dev = &*image.dev;
        let (shown, errors) = everything(dev, image);
        // Numbers that no file has, and paths that are no directories.
        let unexpected = |e: &&String| !e.contains("there is no inode") && !e.contains("not a directory");
        assert_eq!(errors.iter().find(unexpected), None);
        assert_eq!(all_problems(&shown, Vec::new()), Vec::<String>::new());

        let d = Dumper::open(dev, None).unwrap();
        assert!(d.notes().is_empty());
        let g = *d.geometry();
        let groups: Vec<Value> = (0..g.ag_count).map(|ag| d.group(ag).unwrap()).collect();
        let free: u64 = groups
            .iter()
            .map(|v| match v.at("initialized") {
                Some(Value::Flag(true)) => {
                    let by_bitmap = list(v, "bitmaps").iter().map(|b| number(b, "free_fragments")).sum::<u64>();
                    let runs = list(v, "bitmaps").iter().flat_map(|b| list(b, "free"));
                    assert_eq!(runs.map(|r| number(r, "fragments")).sum::<u64>(), by_bitmap);
                    assert_eq!(number(v, "header.free_fragments"), by_bitmap);
                    by_bitmap
                }
                _ => number(v, "fragments") - g.ag_header_blocks() * g.frags_per_block(),
            })
            .sum();
        assert_eq!(number(&d.counters(), "free_fragments"), free);

        let package = d.directory(&path("/src/package0")).unwrap();
        let mut names: Vec<String> = list(&package, "blocks")
            .iter()
            .flat_map(|b| list(b, "entries"))
            .filter_map(|e| e.at("name").map(|n| format!("{n:?}")))
            .collect();
        names.sort();
        let wanted: Vec<String> =
            (0..8).map(|n| format!("{:?}", Value::Bytes(format!("mod{n}.c").into_bytes()))).collect();
        assert_eq!(names, wanted);
        assert!(list(&d.directory(&path("/big")).unwrap(), "index").len() > 1);
        for p in ["/src/package0/mod1.c", "/links/first0", "/big", "/"] {
            let ino = if p == "/" { ROOT_INO } else { image.ino(p) };
            let by_path = d.inode(&path(p)).unwrap();
            assert_eq!(by_path, d.inode(&Which::Number(ino)).unwrap(), "{p}");
            assert_eq!(number(&by_path, "inode"), ino);
        }
        let place = image.places[&image.ino("/links/first0")];
        let record = d.locator_of(image.ino("/links/first0")).unwrap();
        assert_eq!((text(&record, "state"), number(&record, "in_block")), ("external", place.block));
        let nodes = d.extents(&path("/misc/sparse")).unwrap();
        let extents: usize =
            list(&nodes, "nodes").iter().map(|n| n.at("extents").map_or(0, |_| list(n, "extents").len())).sum();
        assert!(extents > 100, "{extents} extents");
        let sb = d.superblock_of(0).unwrap();
        assert_eq!((number(&sb, "total_blocks"), sb.at("checksum_ok")), (g.total_blocks, Some(&Value::Flag(true))));
    }
}

#[test]
fn an_error_names_what_does_not_exist() {
    let d_image = pristine(false);
    let d = Dumper::open(&*d_image.dev, None).unwrap();
    for (result, words) in [
        (d.group(1 << 40), "0 to"),
        (d.block(1 << 60), "outside the file system"),
        (d.superblock_of(u64::MAX), "there is no allocation group"),
        (d.inode(&Which::Number(14)), "there is no inode 14"),
        (d.inode(&path("/src/nothing")), "no nothing in what can be read of it"),
        (d.inode(&path("/src/package0/mod1.c/x")), "not a directory"),
        (d.directory(&path("/src/package0/mod1.c")), "not a directory"),
        (d.locator_of(3), "system area"),
    ] {
        match result {
            Err(e @ Error::Invalid(_)) => assert!(e.to_string().contains(words), "{e}"),
            other => panic!("{words}: {other:?}"),
        }
    }
}

#[test]
fn every_class_of_corruption_can_be_dumped() {
    // What only shows when structures are compared with each other: each of them is in order by itself.
    let mut in_order = Vec::new();
    for case in classes::all() {
        let image = pristine(case.no_embed).copy();
        (case.damage)(&image);
        let (shown, errors) = everything(&*image.dev, &image);
        let (before, errors_before) = everything(&*pristine(case.no_embed).dev, &image);
        assert!(!shown.is_empty(), "{}", case.name);
        assert!(shown != before || errors != errors_before, "{}: nothing shows", case.name);
        if all_problems(&shown, errors).is_empty() {
            in_order.push(case.name);
        }
    }
    assert!(!in_order.iter().any(|n| n.contains("destroyed") || n.contains("checksum")), "{in_order:?}");
}

#[test]
fn a_damaged_superblock_is_replaced_by_a_copy_and_shown() {
    let image = pristine(false).copy();
    image.break_block(0, |b| b[130] ^= 4);
    let d = Dumper::open(&*image.dev, None).unwrap();
    assert!(d.notes()[0].contains("checksum does not match") && d.notes()[0].contains("is used"), "{:?}", d.notes());
    assert_eq!(number(&d.inode(&path("/big")).unwrap(), "inode"), image.ino("/big"));
    let all = superblocks(&*image.dev);
    assert_eq!(all[0].at("checksum_ok"), Some(&Value::Flag(false)));
    assert_eq!(all[1].at("checksum_ok"), Some(&Value::Flag(true)));
    let empty = MemoryDevice::new(1 << 20);
    assert!(Dumper::open(&empty, None).is_err());
    assert_eq!(superblocks(&empty)[0].at("magic_ok"), Some(&Value::Flag(false)));
    assert_eq!(superblocks(&MemoryDevice::new(100)).len(), 1);
}

/// Bytes changed anywhere in the metadata, under a checksum that is right: nothing panics, nothing goes on for ever.
#[test]
fn hostile_contents_are_shown() {
    let original = pristine(false);
    let mut x = 0x1234_5678_9abc_def1u64;
    let mut random = |n: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x % n
    };
    let blocks: Vec<BlockAddr> = original.blocks.values().copied().collect();
    for _ in 0..60 {
        let image = original.copy();
        for _ in 0..20 {
            let addr = blocks[random(blocks.len() as u64) as usize];
            let (at, value) = (32 + random(500) as usize, random(256) as u8);
            image.edit(addr, |b| b[at] = value);
        }
        everything(&*image.dev, &image);
    }
}

#[test]
fn the_log_of_a_file_system_that_was_not_unmounted() {
    let dev = Arc::new(MemoryDevice::new(48 << 20));
    cffs::mkfs(&*dev, None, &cffs::MkfsOptions::default()).unwrap();
    let fs = image::mount(&dev, false);
    cffs::path::write_file(&fs, ME, b"/file", &[7; 10_000]).unwrap();
    let ino = cffs::path::resolve(&fs, b"/file").unwrap().ino;
    fs.setxattr(ME, ino, b"user.small", b"value", SetXattr::default()).unwrap();
    fs.setxattr(ME, ino, b"user.large", &[9; 9000], SetXattr::default()).unwrap();
    fs.sync().unwrap();
    let crashed = dev.duplicate();
    fs.close().unwrap();

    let d = Dumper::open(&crashed, None).unwrap();
    let log = d.log().unwrap();
    assert_eq!(log.at("replayable"), Some(&Value::Flag(true)), "{log:?}");
    let transactions = list(&log, "list");
    assert!(!transactions.is_empty() && number(&log, "transactions") == transactions.len() as u64);
    assert!(transactions.iter().all(|t| !list(t, "records").is_empty()));
    // What is only in the log is not in its place, and is after a replay.
    assert!(d.inode(&path("/file")).is_err());
    let view = cffs::device::OverlayDevice::new(Arc::new(crashed.duplicate()));
    let d = Dumper::open(&view, None).unwrap();
    d.replay().unwrap();
    assert_eq!(number(&d.inode(&path("/file")).unwrap(), "size"), 10_000);
    let xattrs = d.xattrs(&path("/file")).unwrap();
    let attributes = |at: &str| list(&xattrs, at).iter().map(|x| x.at("name").cloned()).collect::<Vec<_>>();
    assert_eq!(attributes("in_inode"), [Some(Value::Bytes(b"user.small".to_vec()))]);
    assert_eq!(attributes("in_chain"), [Some(Value::Bytes(b"user.large".to_vec()))]);
    assert_eq!(list(&xattrs, "blocks").len(), 3);

    // The last byte of the last transaction: it does not count any more, and why is said.
    let (at, bytes) = (number(&log, "byte") + (64 << 10), number(&log, "transaction_bytes"));
    let last = at + (number(&log, "tail") + bytes - 1) % number(&log, "ring_bytes");
    let mut sector = vec![0; 512];
    crashed.read_at(IoKind::Log, last / 512 * 512, &mut sector).unwrap();
    sector[511] ^= 1;
    crashed.write_at(IoKind::Log, last / 512 * 512, &sector).unwrap();
    let cut = Dumper::open(&crashed, None).unwrap().log().unwrap();
    assert_eq!(number(&cut, "transactions"), transactions.len() as u64 - 1);
    assert!(text(&cut, "end").contains("checksum"), "{cut:?}");
}
