//! Little space: what was promised for the worst case, or was freed a moment ago, serves whoever needs space now.

use crate::common::plain::{clean, fresh, mount};
use cffs::{Caller, Error, Fallocate, Fs, MkfsOptions, ROOT_INO, RenameFlags, SetAttr};

const ROOT: Caller = Caller::ROOT;

/// Fills the device with the files `fill0`, `fill1`, ... of a directory, until not even a small write finds space.
fn fill(fs: &Fs, dir: u64) {
    for k in 0..20 {
        let Ok(attr) = fs.create(ROOT, dir, format!("fill{k}").as_bytes(), 0o600) else { break };
        let mut size = if k == 0 { 1 << 16 } else { 4096 };
        let mut done = 0;
        while size >= 512 {
            match fs.write(ROOT, attr.ino, done, &vec![7; size]) {
                Ok(n) => done += n as u64,
                Err(Error::NoSpace) => size /= 2,
                Err(e) => panic!("filling the device: {e}"),
            }
        }
        fs.forget(attr.ino, 1);
        fs.sync().unwrap();
    }
}

#[test]
fn removing_files_of_a_full_device_works_where_tables_cannot_be_cut() {
    for (no_embed, block_size, frag_size) in [(false, 4096, 1024), (true, 1024, 512)] {
        let dev = fresh(
            24 << 20,
            &MkfsOptions::default().no_embed(no_embed).block_size(block_size).frag_size(Some(frag_size)).reserve_bp(0),
        );
        let fs = mount(&dev);
        let record = if no_embed { cffs::format::geometry::INODE_SLOT_SIZE } else { 16 };
        let per_block = cffs::format::table::TableShape::new(block_size as usize, record).per_block;
        let dir = fs.mkdir(ROOT, ROOT_INO, b"d", 0o700).unwrap().ino;
        let filled = fs.mkdir(ROOT, ROOT_INO, b"fill", 0o700).unwrap().ino;
        let files: Vec<u64> = (0..per_block * 16)
            .map(|i| {
                let ino = fs.create(ROOT, dir, i.to_string().as_bytes(), 0o600).unwrap().ino;
                fs.forget(ino, 1);
                ino
            })
            .collect();
        fs.sync().unwrap();
        fill(&fs, filled);
        // Every other block of a table loses its records: more cuts than the table's inode has extents.
        for (i, ino) in files.iter().enumerate() {
            if !(ino / per_block).is_multiple_of(2) {
                fs.unlink(dir, i.to_string().as_bytes()).unwrap();
                assert!(!fs.is_read_only(), "blocks of {block_size}: read-only after file {i}");
            }
        }
        fs.sync().unwrap();
        assert!(!fs.is_read_only());
        // What stayed behind empty is used again, and goes with the rest.
        for i in 0..per_block {
            if let Ok(a) = fs.create(ROOT, dir, format!("again{i}").as_bytes(), 0o600) {
                fs.forget(a.ino, 1);
            }
        }
        fs.close().unwrap();
        drop(fs);
        clean(&dev, "with empty table blocks");
        let fs = mount(&dev);
        for (i, ino) in files.iter().enumerate() {
            if (ino / per_block).is_multiple_of(2) {
                fs.unlink(dir, i.to_string().as_bytes()).unwrap();
            }
        }
        fs.close().unwrap();
        drop(fs);
        clean(&dev, "after everything went");
    }
}

#[test]
fn a_new_name_finds_the_space_that_was_promised_for_the_worst_case() {
    let dev = fresh(24 << 20, &MkfsOptions::default().reserve_bp(0));
    let fs = mount(&dev);
    // Each page promises more nodes of the extent tree than it comes to need.
    let sparse = fs.create(ROOT, ROOT_INO, b"sparse", 0o600).unwrap().ino;
    let other = fs.create(ROOT, ROOT_INO, b"other", 0o600).unwrap().ino;
    let mut pages = 0u64;
    while fs.statfs().free > 60 {
        fs.write(ROOT, sparse, pages * 1_000_000, &[1; 512]).unwrap();
        pages += 1;
    }
    fs.create(ROOT, ROOT_INO, b"new", 0o600).unwrap();
    while fs.statfs().free > 60 {
        fs.write(ROOT, sparse, pages * 1_000_000, &[1; 512]).unwrap();
        pages += 1;
    }
    fs.link(ROOT, other, ROOT_INO, b"link").unwrap();
    fs.close().unwrap();
    drop(fs);
    clean(&dev, "names beside promises");
}

#[test]
fn space_is_punched_and_allocated_where_a_file_was_removed_a_moment_ago() {
    let options = MkfsOptions::default().reserve_bp(0);
    let steps = [
        (Fallocate::PunchHole, 300_000, 4096),
        (Fallocate::Allocate { keep_size: true }, 5_000_000, 100_000),
        (Fallocate::Zero { keep_size: true }, 280_000, 200_000),
        (Fallocate::Collapse, 4096 * 50, 4096 * 3),
        (Fallocate::Insert, 4096 * 50, 4096 * 3),
    ];
    for (what, offset, len) in steps {
        let dev = fresh(24 << 20, &options);
        let fs = mount(&dev);
        let file = fs.create(ROOT, ROOT_INO, b"scattered", 0o600).unwrap().ino;
        for i in 0..40 {
            fs.write(ROOT, file, i * 100_000, &[1; 4096]).unwrap();
        }
        let gone = fs.create(ROOT, ROOT_INO, b"gone", 0o600).unwrap().ino;
        fs.write(ROOT, gone, 0, &vec![3; 2 << 20]).unwrap();
        fs.sync().unwrap();
        fill(&fs, ROOT_INO);
        fs.unlink(ROOT_INO, b"gone").unwrap();
        fs.forget(gone, 1);
        let outcome = fs.fallocate(ROOT, file, what, offset, len);
        assert!(outcome.is_ok(), "{what:?}: {outcome:?}");
        fs.close().unwrap();
        drop(fs);
        clean(&dev, "after fallocate");
    }
}

#[test]
fn removing_a_directory_takes_no_space_that_data_was_promised() {
    let dev = fresh(24 << 20, &MkfsOptions::default().reserve_bp(0));
    let fs = mount(&dev);
    // The external inode table is there, with room.
    let file = fs.create(ROOT, ROOT_INO, b"file", 0o600).unwrap().ino;
    fs.link(ROOT, file, ROOT_INO, b"link").unwrap();
    fs.write(ROOT, file, 0, &[5; 4096]).unwrap();
    let dir = fs.mkdir(ROOT, ROOT_INO, b"d", 0o700).unwrap().ino;
    // Its inode is too long for a slot of that table: what is in it needs fragments when the directory goes.
    let open = fs.symlink(ROOT, dir, b"long", &[b'x'; 900]).unwrap().ino;
    fs.unlink(dir, b"long").unwrap();
    for i in 0..6 {
        let one = fs.create(ROOT, ROOT_INO, format!("one{i}").as_bytes(), 0o600).unwrap().ino;
        fs.write(ROOT, one, 0, &[2; 1024]).unwrap();
        fs.forget(one, 1);
    }
    fs.sync().unwrap();
    fill(&fs, ROOT_INO);
    for i in 0..6 {
        fs.unlink(ROOT_INO, format!("one{i}").as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    // All that is left is promised to data.
    let mut at = 4096;
    while fs.write(ROOT, file, at, &[6; 1024]).is_ok() {
        at += 1024;
    }
    let _ = fs.rmdir(ROOT_INO, b"d");
    fs.sync().unwrap();
    let mut bytes = vec![0; at as usize];
    assert_eq!(fs.read(file, 0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes[4096..].iter().all(|b| *b == 6));
    fs.forget(open, 1);
    fs.close().unwrap();
    drop(fs);
    clean(&dev, "after the directory went");
}

#[test]
fn the_reserve_is_for_the_privileged_also_where_only_a_name_is_made() {
    const USER: Caller = Caller { uid: 1000, gid: 1000 };
    let dev = fresh(24 << 20, &MkfsOptions::default().reserve_bp(1000));
    let fs = mount(&dev);
    let dir = |name: &[u8]| {
        let attr = fs.mkdir(ROOT, ROOT_INO, name, 0o777).unwrap();
        fs.setattr(ROOT, attr.ino, SetAttr::default().uid(Some(1000))).unwrap();
        attr.ino
    };
    let (from, to) = (dir(b"from"), dir(b"to"));
    let file = fs.create(USER, from, b"file", 0o600).unwrap().ino;
    let names: Vec<String> = (0..40).map(|i| format!("{i:0>240}")).collect();
    for name in &names {
        let attr = fs.create(USER, from, name.as_bytes(), 0o600).unwrap();
        fs.forget(attr.ino, 1);
    }
    // A user takes all that he gets; then the directory `to` must grow for most of the names that come.
    let filler = fs.create(USER, ROOT_INO, b"filler", 0o600).unwrap().ino;
    let (mut at, mut piece) = (0, 1 << 16);
    while piece >= 512 {
        match fs.write(USER, filler, at, &vec![1; piece]) {
            Ok(n) => at += n as u64,
            Err(Error::NoSpace) => piece /= 2,
            Err(e) => panic!("{e}"),
        }
    }
    fs.sync().unwrap();
    let kept = fs.statfs();
    assert!(kept.available == 0 && kept.free > 0, "{kept:?}");
    let refused = |outcome: Result<(), Error>| match outcome {
        Ok(()) => 0,
        Err(Error::NoSpace) => 1,
        Err(e) => panic!("{e}"),
    };
    let linked: usize =
        names.iter().map(|n| refused(fs.link(USER, file, to, format!("l{}", &n[1..]).as_bytes()).map(drop))).sum();
    let moved: usize = names
        .iter()
        .map(|n| refused(fs.rename(USER, from, n.as_bytes(), to, n.as_bytes(), RenameFlags::default())))
        .sum();
    assert!(linked > 20 && moved > 20, "{linked} links and {moved} renames were refused");
    let after = fs.statfs();
    assert!(kept.free - after.free <= u64::from(kept.block_size / kept.frag_size) * 2, "{kept:?}, then {after:?}");
    // The privileged go on where the others were stopped.
    for n in &names {
        match fs.rename(ROOT, from, n.as_bytes(), to, n.as_bytes(), RenameFlags::default()) {
            Ok(()) | Err(Error::NotFound) => {}
            Err(e) => panic!("root moves {n}: {e}"),
        }
    }
    fs.close().unwrap();
    drop(fs);
    clean(&dev, "after names in the reserve");
}
