//! Copies of metadata: a check finds in them what it finds in the original, and nobody finds what stood in files.

use crate::repair::{classes, image};
use cffs::check::{CheckOptions, Class, Report, check};
use cffs::device::{Device, IoKind, MemoryDevice};
use cffs::format::*;
use cffs::metadump::{Copied, Devices, MetadumpOptions, Obfuscator, copy_metadata};
use cffs::{Caller, Result, SetXattr};
use image::{Image, pristine};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

const ME: Caller = Caller::ROOT;

fn options(obfuscate: bool) -> MetadumpOptions {
    MetadumpOptions { obfuscate: obfuscate.then(|| Obfuscator::new([11, 12])), keep_damaged: false }
}

fn copy_of(dev: &Arc<MemoryDevice>, o: &MetadumpOptions) -> (Arc<MemoryDevice>, Copied) {
    let target = Arc::new(MemoryDevice::new(dev.len()));
    let source = Devices { dev: dev.clone() as Arc<dyn Device>, log: None };
    let to = Devices { dev: &*target as &dyn Device, log: None };
    let copied = copy_metadata(&source, &to, o, &|_, _, _| {}).unwrap();
    (target, copied)
}

fn look(dev: &Arc<MemoryDevice>) -> Result<Report> {
    check(dev.clone(), None, &CheckOptions::default(), &|_, _, _| {})
}

/// What a check finds: how much of what, or that it could not begin.
fn verdict(dev: &Arc<MemoryDevice>) -> std::result::Result<(BTreeMap<Class, u64>, u64, &'static str), ()> {
    look(dev).map(|r| (r.by_class, r.replayed, r.state)).map_err(drop)
}

fn listing(dev: &Arc<MemoryDevice>) -> String {
    match look(dev) {
        Ok(r) => r.problems.iter().map(|p| format!("  {p}\n")).collect(),
        Err(e) => format!("  {e}\n"),
    }
}

/// The beginnings of all files that have one of sixteen bytes.
fn beginnings(i: &Image) -> HashSet<[u8; 16]> {
    let fs = image::mount(&i.dev, true);
    let mut out = HashSet::new();
    for (path, f) in &i.tree {
        if f.file_type == FileType::Regular as u8 && f.size >= 16 {
            let mut b = [0; 16];
            assert_eq!(fs.read(i.ino(path), 0, &mut b).unwrap(), 16, "{path}");
            if b.iter().any(|x| *x != 0) {
                out.insert(b);
            }
        }
    }
    out
}

fn bytes_of(dev: &MemoryDevice) -> Vec<u8> {
    let mut all = vec![0; dev.len() as usize];
    dev.read_at(IoKind::Data, 0, &mut all).unwrap();
    all
}

fn contains(dev: &MemoryDevice, wanted: &HashSet<[u8; 16]>) -> usize {
    bytes_of(dev).windows(16).step_by(8).filter(|w| wanted.contains(*w)).count()
}

fn has_text(dev: &MemoryDevice, text: &[u8]) -> bool {
    bytes_of(dev).windows(text.len()).any(|w| w == text)
}

#[test]
fn a_metadata_image_has_all_structures_and_no_contents() {
    for no_embed in [false, true] {
        let original = pristine(no_embed);
        let secrets = beginnings(original);
        assert!(secrets.len() > 500 && contains(&original.dev, &secrets) >= secrets.len());
        for obfuscate in [false, true] {
            let (copy, copied) = copy_of(&original.dev, &options(obfuscate));
            assert_eq!(contains(&copy, &secrets), 0, "obfuscated: {obfuscate}");
            assert_eq!(has_text(&copy, b"messages"), !obfuscate);
            assert_eq!(has_text(&copy, b"xxxxxxxxxxxxxxxx"), !obfuscate, "targets of symbolic links");
            assert!(copied.blocks > 50, "{copied:?}");
            assert_eq!((copied.foreign, copied.unreadable, copied.damaged), (0, 0, 0));
            assert!(copy.allocated_bytes() < original.dev.allocated_bytes() / 2);
            assert_eq!(verdict(&copy), verdict(&original.dev), "{}", listing(&copy));
            let (counts, wanted) = (look(&copy).unwrap().counts, look(&original.dev).unwrap().counts);
            assert_eq!(counts, wanted);

            // The tree has the same shape, and every name is found by its hash.
            let fs = image::mount(&copy, true);
            let (mut stack, mut found) = (vec![ROOT_INO], 0);
            while let Some(dir) = stack.pop() {
                let mut names = Vec::new();
                fs.readdir(dir, 0, false, &mut |e| {
                    names.push(e.name);
                    true
                })
                .unwrap();
                for name in names {
                    let a = fs.lookup(dir, &name).unwrap();
                    found += 1;
                    if a.file_type == FileType::Directory {
                        stack.push(a.ino);
                    }
                    if a.file_type == FileType::Symlink {
                        assert_eq!(fs.readlink(a.ino).unwrap().len() as u64, a.size);
                        assert!(!fs.readlink(a.ino).unwrap().contains(&0));
                    }
                }
            }
            assert_eq!(found, original.tree.len());
        }
    }
}

#[test]
fn a_check_finds_the_same_in_the_copy_for_every_class_of_corruption() {
    let mut failed = Vec::new();
    for case in classes::all() {
        let damaged = pristine(case.no_embed).copy();
        (case.damage)(&damaged);
        let wanted = verdict(&damaged.dev);
        for obfuscate in [false, true] {
            for keep_damaged in [false, true] {
                let (copy, _) = copy_of(&damaged.dev, &MetadumpOptions { keep_damaged, ..options(obfuscate) });
                if verdict(&copy) != wanted {
                    failed.push(format!(
                        "{}, obfuscated: {obfuscate}, damaged blocks whole: {keep_damaged}\n{}instead of\n{}",
                        case.name,
                        listing(&copy),
                        listing(&damaged.dev)
                    ));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} copies differ:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn a_check_finds_the_same_in_the_copy_after_random_damage() {
    let original = pristine(false);
    let blocks: Vec<BlockAddr> = original.blocks.values().copied().collect();
    let mut x = 0x2545_f491_4f6c_dd1du64;
    let mut random = |n: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x % n
    };
    for round in 0..60 {
        let damaged = original.copy();
        for _ in 0..4 {
            let addr = blocks[random(blocks.len() as u64) as usize];
            let (at, value) = (64 + random(4000) as usize, random(256) as u8);
            match random(3) {
                0 => damaged.break_block(addr, |b| b[at] ^= value | 1),
                _ => damaged.edit(addr, |b| b[at] = value),
            }
        }
        let classes =
            |dev: &Arc<MemoryDevice>| verdict(dev).map(|(classes, ..)| classes.into_keys().collect::<Vec<_>>());
        for obfuscate in [false, true] {
            let (copy, _) = copy_of(&damaged.dev, &options(obfuscate));
            assert_eq!(
                classes(&copy),
                classes(&damaged.dev),
                "round {round}, obfuscated: {obfuscate}\n{}instead of\n{}",
                listing(&copy),
                listing(&damaged.dev)
            );
        }
    }
}

/// What was in the log when the file system went down: names, contents that fsync put there, and small files within
/// directory blocks.
#[test]
fn a_log_is_copied_without_contents() {
    let dev = Arc::new(MemoryDevice::new(48 << 20));
    cffs::mkfs(&*dev, None, &cffs::MkfsOptions::default()).unwrap();
    let fs = image::mount(&dev, false);
    let path = |p: String| p.into_bytes();
    for n in 0..400 {
        cffs::path::write_file(&fs, ME, &path(format!("/early{n}")), &[b'e'; 3000]).unwrap();
    }
    fs.sync().unwrap();
    for n in 0..300 {
        if n % 3 == 0 {
            fs.unlink(ROOT_INO, format!("early{n}").as_bytes()).unwrap();
        }
        let name = path(format!("/confidential{n}"));
        cffs::path::write_file(&fs, ME, &name, b"SECRET-OF-A-SMALL-FILE").unwrap();
        let name = path(format!("/other{n}"));
        cffs::path::write_file(&fs, ME, &name, &b"SECRET-OF-A-LARGER-FILE ".repeat(40)).unwrap();
        let ino = cffs::path::resolve(&fs, &name).unwrap().ino;
        fs.fsync(ino, false).unwrap();
        let value = format!("SECRET-VALUE-{n}").repeat(if n % 10 == 0 { 600 } else { 1 });
        fs.setxattr(ME, ino, b"user.attribute", value.as_bytes(), SetXattr::default()).unwrap();
    }
    fs.sync().unwrap();
    let crashed = Arc::new(dev.duplicate());
    assert!(has_text(&crashed, b"SECRET-OF-A-SMALL-FILE") && has_text(&crashed, b"SECRET-OF-A-LARGER"));
    let wanted = verdict(&crashed);
    assert!(matches!(&wanted, Ok((classes, replayed, _)) if classes.is_empty() && *replayed > 100), "{wanted:?}");
    for obfuscate in [false, true] {
        let (copy, copied) = copy_of(&crashed, &options(obfuscate));
        assert_eq!(verdict(&copy), wanted, "{}", listing(&copy));
        assert_eq!(Ok(copied.transactions), wanted.as_ref().map(|w| w.1));
        assert!(!has_text(&copy, b"SECRET-OF-A"), "obfuscated: {obfuscate}");
        assert_eq!(has_text(&copy, b"SECRET-VALUE"), !obfuscate);
        assert_eq!(has_text(&copy, b"confidential"), !obfuscate);
        let fs = image::mount(&copy, false);
        let mut names = 0;
        fs.readdir(ROOT_INO, 0, false, &mut |_| {
            names += 1;
            true
        })
        .unwrap();
        assert_eq!(names, 900);
        fs.close().unwrap();
        assert!(look(&copy).unwrap().is_clean(), "{}", listing(&copy));
    }
}

#[test]
fn an_external_log_is_copied_to_a_device_of_its_own() {
    let (dev, log) = (Arc::new(MemoryDevice::new(32 << 20)), Arc::new(MemoryDevice::new(4 << 20)));
    cffs::mkfs(&*dev, Some(&*log), &cffs::MkfsOptions::default()).unwrap();
    let o = cffs::MountOptions::default().background(false);
    let fs = cffs::Fs::open(dev.clone(), Some(log.clone()), o).unwrap();
    for n in 0..50 {
        cffs::path::write_file(&fs, ME, format!("/file{n}").as_bytes(), &[b'd'; 500]).unwrap();
    }
    fs.sync().unwrap();
    drop(fs);
    let source = |log| Devices { dev: dev.clone() as Arc<dyn Device>, log };
    let to = Devices { dev: &*dev as &dyn Device, log: None };
    let without = copy_metadata(&source(None), &to, &options(false), &|_, _, _| {});
    assert!(without.unwrap_err().to_string().contains("another device"));
    for obfuscate in [false, true] {
        let (copy, log_copy) = (Arc::new(MemoryDevice::new(dev.len())), Arc::new(MemoryDevice::new(log.len())));
        let to = Devices { dev: &*copy as &dyn Device, log: Some(&*log_copy as &dyn Device) };
        let source = source(Some(log.clone() as Arc<dyn Device>));
        copy_metadata(&source, &to, &options(obfuscate), &|_, _, _| {}).unwrap();
        let see = |d: &Arc<MemoryDevice>, l: &Arc<MemoryDevice>| {
            let r = check(d.clone(), Some(l.clone()), &CheckOptions::default(), &|_, _, _| {}).unwrap();
            (r.by_class, r.replayed, r.counts)
        };
        assert_eq!(see(&copy, &log_copy), see(&dev, &log));
        assert!(see(&copy, &log_copy).1 > 0);
        assert!(!has_text(&log_copy, b"dddddddddddddddd"));
    }
}

#[test]
fn a_device_without_a_usable_superblock_is_refused() {
    let empty = Arc::new(MemoryDevice::new(1 << 20));
    let source = Devices { dev: empty.clone() as Arc<dyn Device>, log: None };
    let to = Devices { dev: &*empty as &dyn Device, log: None };
    let e = copy_metadata(&source, &to, &options(false), &|_, _, _| {}).unwrap_err();
    assert!(e.to_string().contains("not a cffs"), "{e}");
}
