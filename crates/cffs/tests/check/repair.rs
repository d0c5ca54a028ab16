//! Repair: each class of corruption is found, repaired, and gone at the second check, and what the damage did not hit is
//! whole; the same for many random damages at once.

pub mod classes;
pub mod image;

use cffs::check::repair::{RepairOptions, Repaired, repair};
use cffs::check::{CheckOptions, Report, check};
use cffs::device::{Device, IoKind, MemoryDevice};
use cffs::{Geometry, Result};
use classes::Case;
use image::{Image, Tree, pristine, tree};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Checks with one thread and with four: both say the same.
fn look(dev: &Arc<MemoryDevice>) -> Result<Report> {
    let [one, four] = [1, 4].map(|jobs| {
        let report = check(dev.clone(), None, &CheckOptions::default().jobs(jobs), &|_, _, _| {});
        report.map(|mut r| {
            r.phases.clear();
            r
        })
    });
    let text = |r: &Result<Report>| match r {
        Ok(r) => format!("{r:?}"),
        Err(e) => e.to_string(),
    };
    assert_eq!(text(&one), text(&four), "one thread, and four");
    one
}

fn lines<T: ToString>(list: &[T]) -> String {
    list.iter().map(|x| x.to_string()).collect::<Vec<_>>().join("\n  ")
}

/// Repairs with yes to all; then there is nothing left to find.
fn repaired(dev: &Arc<MemoryDevice>, what: &str) -> Repaired {
    let other = Arc::new(dev.duplicate());
    let [done, four] = [(dev, 1), (&other, 4)].map(|(dev, jobs)| {
        let options = RepairOptions::default().jobs(jobs);
        let done = repair(dev.clone(), None, &options, &mut |_| true, &|_, _, _| {});
        done.unwrap_or_else(|e| panic!("{what}: {e}"))
    });
    assert_eq!((&done.actions, done.blocks_written), (&four.actions, four.blocks_written), "{what}: four threads");
    let second = look(dev).unwrap_or_else(|e| panic!("{what}: second check: {e}"));
    let (told, left) = (lines(&done.actions), lines(&second.problems));
    assert!(second.is_clean(), "{what}: repaired\n  {told}\nleft\n  {left}");
    assert_eq!(second.state, "clean", "{what}");
    done
}

fn below(path: &str, list: &[&str]) -> bool {
    list.iter().any(|p| path == *p || path.strip_prefix(p).is_some_and(|rest| rest.starts_with('/')))
}

/// What the damage did not hit is where it was, and as it was.
fn whole(before: &Tree, after: &Tree, hit: &[&str], moved: &[&str]) -> std::result::Result<(), String> {
    for (path, was) in before.iter().filter(|(p, _)| !below(p, hit) && !below(p, moved)) {
        match after.get(path) {
            None => return Err(format!("{path} is gone")),
            Some(is) if is != was => return Err(format!("{path}: {is:?} instead of {was:?}")),
            Some(_) => {}
        }
    }
    let mut found: BTreeMap<_, u64> = BTreeMap::new();
    for (path, f) in after.iter().filter(|(p, _)| p.starts_with("/lost+found/")) {
        if f.file_type != cffs::FileType::Directory as u8 {
            *found.entry((f, path.is_empty())).or_default() += 1;
        }
    }
    let directory = cffs::FileType::Directory as u8;
    for (path, was) in before.iter().filter(|(p, f)| below(p, moved) && f.file_type != directory) {
        match found.get_mut(&(was, false)) {
            Some(n) if *n > 0 => *n -= 1,
            _ => return Err(format!("{path} is not in lost+found: {was:?}")),
        }
    }
    Ok(())
}

fn run(case: &Case) {
    let name = case.name;
    let image = pristine(case.no_embed).copy();
    (case.damage)(&image);
    match (look(&image.dev), case.class) {
        (Ok(report), Some(class)) => {
            assert!(
                report.by_class.contains_key(&class),
                "{name}: not seen as {}:\n  {}",
                class.id(),
                lines(&report.problems)
            );
        }
        (Err(e), Some(class)) => panic!("{name}: the check did not begin ({e}) instead of finding {}", class.id()),
        (Ok(report), None) => panic!("{name}: the check began\n  {}", lines(&report.problems)),
        (Err(_), None) => {}
    }
    let done = repaired(&image.dev, name);
    assert!(done.actions_total > 0, "{name}: nothing was told");
    let after = tree(&image.dev);
    if let Err(what) = whole(&image.tree, &after, case.hit, case.moved) {
        panic!("{name}: {what}\nrepaired\n  {}", lines(&done.actions));
    }
    // And it can be used.
    let fs = image::mount(&image.dev, false);
    cffs::path::write_file(&fs, cffs::Caller::ROOT, b"/after", &[1; 5000]).unwrap();
    fs.close().unwrap();
    let report = look(&image.dev).unwrap();
    assert!(report.is_clean(), "{name}: after use\n  {}", lines(&report.problems));
}

#[test]
fn every_class_of_corruption_is_repaired() {
    let cases = classes::all();
    assert!(cases.len() >= 40);
    let mut failed = Vec::new();
    for case in &cases {
        if let Err(panic) = std::panic::catch_unwind(|| run(case)) {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "panicked".into());
            failed.push(text);
        }
    }
    assert!(failed.is_empty(), "{} of {} classes:\n{}", failed.len(), cases.len(), failed.join("\n\n"));
}

#[test]
fn the_undamaged_image_is_clean_and_has_one_of_everything() {
    for no_embed in [false, true] {
        let image = pristine(no_embed);
        let report = look(&image.dev).unwrap();
        assert!(report.is_clean(), "{}", lines(&report.problems));
        assert!(report.counts.extent_nodes > 0 && report.counts.orphans == 3 && report.counts.links > 10);
        assert!(no_embed || classes::has_orphans(image));
        assert!(whole(&image.tree, &tree(&image.dev), &[], &[]).is_ok());
    }
}

/// Quota records that are wrong while everything that they follow from is right (seed 1, case 917 of the fuzzing campaign).
#[test]
fn wrong_quota_records_alone_are_counted_again() {
    use cffs::QuotaKind;
    use cffs::format::quota::{QUOTA_RECORD_SIZE, place};
    use cffs::format::{BlockKind, META_HEADER_SIZE, get_u32, put_u64, seal};
    let dev = Arc::new(MemoryDevice::new(16 << 20));
    let o = cffs::MkfsOptions::default().quota(QuotaKind::ALL.to_vec()).log_bytes(Some(2 << 20));
    let g = Geometry::new(&cffs::mkfs(&*dev, None, &o).unwrap()).unwrap();
    let fs = image::mount(&dev, false);
    cffs::path::write_file(&fs, cffs::Caller { uid: 7, gid: 8 }, b"/file", &[1; 5000]).unwrap();
    fs.close().unwrap();
    drop(fs);
    let mut b = vec![0; g.block_size()];
    for addr in 0..g.total_blocks {
        dev.read_at(IoKind::Meta, addr << g.block_shift, &mut b).unwrap();
        if get_u32(&b, 0) == BlockKind::Quota as u32 {
            let (_, at) = place(b.len(), 7);
            assert!(at >= META_HEADER_SIZE && at + QUOTA_RECORD_SIZE <= b.len());
            put_u64(&mut b, at, 4711);
            seal(&mut b, 1);
            dev.write_at(IoKind::Meta, addr << g.block_shift, &b).unwrap();
        }
    }
    let report = look(&dev).unwrap();
    assert_eq!(report.by_class.keys().collect::<Vec<_>>(), [&cffs::check::Class::QuotaUsage]);
    repaired(&dev, "quota records");
    let fs = image::mount(&dev, false);
    assert_eq!(fs.quota(QuotaKind::User, 7).unwrap().inodes, 1);
    fs.close().unwrap();
    assert!(look(&dev).unwrap().is_clean());
}

/// What a newer program has made is not repaired by this one, which would have to write to it.
#[test]
fn a_file_system_with_unknown_features_is_left_alone() {
    let image = pristine(false).copy();
    let sb = cffs::Superblock { ro_compat: image.sb.ro_compat | 1 << 40, ..image.sb.clone() };
    cffs::mkfs::write_superblock(&*image.dev, &image.g, &sb).unwrap();
    let before = image.read(image.g.counters_block());
    let e = repair(image.dev.clone(), None, &RepairOptions::default(), &mut |_| true, &|_, _, _| {}).unwrap_err();
    assert!(e.to_string().contains("unknown feature bit 40"), "{e}");
    let e = cffs::check::repair::recover_log(&*image.dev, None).unwrap_err();
    assert!(e.to_string().contains("unknown feature bit 40"), "{e}");
    assert_eq!(image.read(image.g.counters_block()), before);
}

/// The first 64 MiB of a device of 1 GiB are gone, and with them superblock, log, tables and root directory: every file
/// whose inode and contents stood behind them comes back under its name, with its contents.
#[test]
fn scavenging_brings_back_what_is_not_destroyed() {
    const LOST: u64 = 64 << 20;
    let dev = Arc::new(MemoryDevice::new(1 << 30));
    cffs::mkfs(&*dev, None, &cffs::MkfsOptions::default()).unwrap();
    let fs = image::mount(&dev, false);
    let me = cffs::Caller::ROOT;
    for top in 0..10 {
        fs.mkdir(me, cffs::ROOT_INO, format!("top{top}").as_bytes(), 0o755).unwrap();
        for dir in 0..20 {
            let path = format!("/top{top}/dir{dir}");
            let (parent, name) = cffs::path::resolve_parent(&fs, path.as_bytes()).unwrap();
            fs.mkdir(me, parent.ino, name, 0o755).unwrap();
            for file in 0..50u64 {
                let seed = top * 1000 + dir * 50 + file + 1;
                let data: Vec<u8> = (0..2000 + seed * 7919 % 30_000).map(|i| ((i * seed) >> 5) as u8).collect();
                cffs::path::write_file(&fs, me, format!("{path}/file{top}-{dir}-{file}").as_bytes(), &data).unwrap();
            }
        }
        fs.sync().unwrap();
    }
    fs.close().unwrap();
    drop(fs);
    let image = Image::of(dev, Vec::new());
    assert!(image.tree.len() >= 10_210);
    let first = LOST >> image.g.frag_shift;
    let survives = |ino: u64| {
        let inode = image.inode(ino);
        let data = match inode.format {
            cffs::format::InodeFormat::Extents(list) => list.iter().all(|e| e.start >= first),
            cffs::format::InodeFormat::Inline(_) => true,
            cffs::format::InodeFormat::Tree { .. } => false,
        };
        data && image.places[&ino].block << image.g.block_shift >= LOST
    };
    let files = || image.tree.iter().filter(|(_, f)| f.file_type == cffs::FileType::Regular as u8);
    let expected: Vec<_> = files().filter(|(path, _)| survives(image.ino(path))).collect();
    assert!(
        expected.len() > 3000,
        "only {} of {} files stand behind what is destroyed",
        expected.len(),
        files().count()
    );

    for at in (0..LOST).step_by(1 << 20) {
        cffs::device::Device::write_at(&*image.dev, cffs::device::IoKind::Data, at, &vec![0; 1 << 20]).unwrap();
    }
    let options = cffs::check::repair::RepairOptions::default().scavenge(true);
    let done = repair(image.dev.clone(), None, &options, &mut |_| true, &|_, _, _| {}).unwrap();
    let second = look(&image.dev).unwrap();
    assert!(second.is_clean(), "{}", lines(&second.problems));
    let after = tree(&image.dev);
    let mut by_name: BTreeMap<&str, Vec<&image::Found>> = BTreeMap::new();
    for (path, f) in &after {
        by_name.entry(path.rsplit('/').next().unwrap()).or_default().push(f);
    }
    for (path, was) in &expected {
        let name = path.rsplit('/').next().unwrap();
        assert!(by_name.get(name).is_some_and(|list| list.contains(was)), "{path} did not come back");
    }
    println!(
        "{} of {} files came back, {} directories named in lost+found",
        expected.len(),
        files().count(),
        done.named
    );
}

/// docs/testing.md has the same classes.
#[test]
fn the_documentation_lists_the_classes() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/testing.md")).unwrap();
    let cases = classes::all();
    let rows = rows_of(&cases);
    for row in &rows {
        assert!(page.contains(row), "docs/testing.md lacks\n{row}\nof\n{}", rows.join("\n"));
    }
    assert!(page.contains(&format!("{} classes", cases.len())));
}

/// A row for each structure: damages that are found as the same class and hit the same files stand together.
fn rows_of(cases: &[Case]) -> Vec<String> {
    type Found = (String, Vec<&'static str>);
    let mut structures: Vec<(&str, Vec<Found>)> = Vec::new();
    for case in cases {
        let (structure, damage) = case.name.split_once(": ").expect("structure: damage");
        let mut found = case.class.map_or("cannot be read", |c| c.id()).to_owned();
        if !case.hit.is_empty() {
            found += &format!("; hits {}", case.hit.join(", "));
        }
        if !case.moved.is_empty() {
            found += &format!("; to lost+found: {}", case.moved.join(", "));
        }
        let known = structures.iter().position(|(name, _)| *name == structure);
        let known = known.unwrap_or_else(|| {
            structures.push((structure, Vec::new()));
            structures.len() - 1
        });
        let all = &mut structures[known].1;
        match all.iter_mut().find(|(name, _)| *name == found) {
            Some((_, damages)) => damages.push(damage),
            None => all.push((found, vec![damage])),
        }
    }
    let cell = |all: &[Found]| {
        let parts: Vec<String> =
            all.iter().map(|(found, damages)| format!("{} ({found})", damages.join("; "))).collect();
        parts.join(" / ")
    };
    structures.iter().map(|(structure, all)| format!("| {structure} | {} |", cell(all))).collect()
}
