//! The engine against the reference model.

use cffs::{Attr, Caller, MetadataMode, PrefetchMode, ROOT_INO};
use cffs_sim::disk::Trace;
use cffs_sim::generate::{Bounds, Profile, generate};
use cffs_sim::model_driver::link_target;
use cffs_sim::ops::{Op, parse, show};
use cffs_sim::pattern::bytes;
use cffs_sim::run::run;
use cffs_sim::setup::{SIZES, Setup, check, check_unmounted};
use cffs_sim::shrink::{Sequences, shrink};
use cffs_sim::streams::{self, with_streams};
use cffs_sim::walk::read;
use proptest::prelude::*;

/// Runs a sequence; on failure shrinks it and says how to repeat it.
fn agree(setup: Setup, seed: u64, profile: Profile, len: usize, bounds: Bounds) {
    agree_on(setup, seed, profile, generate(seed, profile, len, bounds));
}

fn agree_on(setup: Setup, seed: u64, profile: Profile, ops: Vec<Op>) {
    if let Err(first) = run(setup, &ops) {
        let smallest = shrink(ops, 500, |ops| run(setup, ops).is_err());
        let last = run(setup, &smallest).err().unwrap_or(first);
        panic!("seed {seed}, {profile:?}, {setup}\n{last}\nsmallest sequence:\n{}", show(&smallest));
    }
}

#[test]
fn all_formats_and_sizes() {
    for no_embed in [false, true] {
        for no_group in [false, true] {
            for (i, sizes) in SIZES.into_iter().enumerate() {
                let setup = Setup { no_embed, no_group, sizes, device: 96 << 20, ..Setup::default() };
                for (j, profile) in Profile::ALL.into_iter().enumerate() {
                    agree(setup, (i * 10 + j) as u64, profile, 150, Bounds::default());
                }
            }
        }
    }
}

#[test]
fn the_other_metadata_modes() {
    for metadata in [MetadataMode::Sync, MetadataMode::Delayed] {
        for (i, profile) in Profile::ALL.into_iter().enumerate() {
            for no_embed in [false, true] {
                let setup = Setup { metadata, no_embed, ..Setup::default() };
                agree(setup, 1000 + i as u64, profile, 150, Bounds::default());
            }
        }
    }
}

/// Direct writes, and other operations between them.
#[test]
fn files_that_come_in_long_writes() {
    for seed in 0..48 {
        let numbered = Setup::numbered(seed);
        let setup = streams::setup(if seed % 4 == 3 { numbered.small() } else { numbered }, seed);
        let profile = Profile::ALL[seed as usize / 4 % Profile::ALL.len()];
        let bounds = Bounds { write: [200_000, 2_000_000][seed as usize % 2], many: 100 };
        let ops = with_streams(generate(seed, profile, 100, bounds), seed, setup.sizes.0, bounds.write);
        agree_on(setup, seed, profile, ops);
    }
}

#[test]
fn tiny_caches() {
    for (i, profile) in Profile::ALL.into_iter().enumerate() {
        let setup = Setup { cache: 64 << 10, ..Setup::default() };
        agree(setup, 2000 + i as u64, profile, 200, Bounds::default());
    }
}

#[test]
fn full_devices() {
    for (i, profile) in Profile::ALL.into_iter().enumerate() {
        for n in 0..4 {
            let setup = Setup::numbered(n).small();
            agree(setup, 3000 + 10 * n + i as u64, profile, 150, Bounds { write: 2_000_000, many: 300 });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence(
        n in 0u64..1000,
        ops in prop::sample::select(&Profile::ALL[..])
            .prop_flat_map(|profile| Sequences { profile, len: 120, bounds: Bounds::default() }),
    ) {
        let setup = Setup::numbered(n);
        if let Err(f) = run(setup, &ops) {
            return Err(TestCaseError::fail(format!("{setup}\n{f}\n{}", show(&ops))));
        }
    }
}

/// Sequences that once failed, and what was wrong.
const REGRESSIONS: [(&str, &str); 10] = [
    ("blocks of a chunk of the external table that was never used up were lost", "mkdir /e 1777 0"),
    (
        "a remembered group without a fresh block overflowed",
        "mkdir /c 1777 0\ncreate /c/f 644 0\ncreate /c/M2 755 0\nwrite /c/f 0 66 1\nremount true\nwrite /c/M2 0 107 2\nfsync /c/M2",
    ),
    ("an empty write changed times", "create /f 644 0\nwrite /f 0 0 1"),
    ("a page shorter than its block was read beyond its end", "create /g 644 0\nwrite /g 0 1 1\ntruncate /g 22528"),
    ("inline contents did not survive a second write", "create /g 644 0\nwrite /g 0 1 1\nfdatasync /g\nwrite /g 1 1 2"),
    (
        "inline contents did not survive a write elsewhere",
        "create /g 644 0\nwrite /g 0 1 1\nfdatasync /g\nwrite /g 7168 1 2\nremount true",
    ),
    ("names too long were not found rather than too long", "unlink /X\nrmdir /X\nlookup /X\nrename /X /a replace"),
    ("the longest name did not fit the smallest block", "create /L1 644 0\nlink /L1 /L2\nunlink /L1\nlookup /L2"),
    (
        "a removed directory that is kept for an open file counted for nobody (--only model, seed 4000078)",
        "mkdir /d 755 0\ncreate /d/f 644 0\nmkdir /d/e 755 0\ncreate /d/e/g 644 0\nopen 0 /d/f\nopen 1 /d/e/g\nunlink /d/e/g\nrmdir /d/e\nunlink /d/f\nrmdir /d\nsync\nclose 1\nsync\nclose 0\nremount true",
    ),
    ("a hole to the end of the address space", "create /h 644 0\ntruncate /h 9223372036854775807\nread /h 0 5000"),
];

#[test]
fn regressions() {
    for (what, text) in REGRESSIONS {
        let ops = parse(text).unwrap();
        for n in 0..40 {
            if let Err(f) = run(Setup::numbered(n), &ops) {
                panic!("{what}: {}\n{f}\n{text}", Setup::numbered(n));
            }
        }
    }
}

/// A cache smaller than what an operation needs at once was filled and emptied for ever.
#[test]
fn a_cache_of_a_few_blocks_gets_on() {
    let setup = Setup { cache: 256 << 10, prefetch: PrefetchMode::Always, sizes: SIZES[2], ..Setup::default() };
    let ops =
        parse("mkdir /d 755 0\ncreate /d/e 644 0\nwrite /d/e 106496 15665 1\ncreate /d/a 644 0\nwrite /d/a 0 166953 2");
    if let Err(f) = run(setup, &ops.unwrap()) {
        panic!("{f}");
    }
}

/// A directory goes while many files that were unlinked from it are still open: their inodes stand in its blocks.
#[test]
fn a_directory_goes_while_its_unlinked_files_are_open() {
    for n in 0..4 {
        let setup = Setup::numbered(n);
        let trace = Trace::new(setup.make().unwrap());
        let fs = setup.mount(&trace).unwrap();
        let dir = fs.mkdir(Caller::ROOT, ROOT_INO, b"d", 0o755).unwrap();
        let files: Vec<Attr> =
            (0..700).map(|i| fs.create(Caller::ROOT, dir.ino, format!("f{i}").as_bytes(), 0o644).unwrap()).collect();
        let target = link_target(200 + 100 * n as usize);
        let link = fs.symlink(Caller::ROOT, dir.ino, b"link", &target).unwrap();
        fs.unlink(dir.ino, b"link").unwrap();
        for (i, f) in files.iter().enumerate() {
            fs.write(Caller::ROOT, f.ino, 0, &bytes(i as u64, 0, 100 + i)).unwrap();
            fs.unlink(dir.ino, format!("f{i}").as_bytes()).unwrap();
        }
        fs.sync().unwrap();
        fs.rmdir(ROOT_INO, b"d").unwrap();
        fs.forget(dir.ino, 1);
        fs.sync().unwrap();
        check(&trace.images()).unwrap();
        for (i, f) in files.iter().enumerate() {
            assert_eq!(read(&fs, f.ino, 0, 10_000).unwrap(), bytes(i as u64, 0, 100 + i), "file {i}");
            fs.forget(f.ino, 1);
        }
        assert_eq!(fs.readlink(link.ino).unwrap(), target);
        fs.close().unwrap();
        check_unmounted(&trace.images()).unwrap();
    }
}

/// A hole that was copied over a hole within the target became zeros that took space, here more than the device has (seed 810000143).
#[test]
fn a_hole_over_a_hole_takes_no_space() {
    let text = "create /one 644 0\nwrite /one 67108863 1 849346709946380\ncreate /copy 644 0\n\
                copy /one /copy 0 0 9223372036854774656\ncopy /one /copy 0 0 4611686018427387328";
    run(Setup { device: 48 << 20, ..Setup::default() }, &parse(text).unwrap()).unwrap();
}

/// What was learned from reads is stored with the root directory, whose change time is not to tell of it (seed 940000113).
#[test]
fn storing_what_was_learned_changes_no_time() {
    let text = "open 0 /\nmkdir /b 700 1000\ncreate /b/h 600 1000\nwrite /b/h 0 20480 985661558489141\n\
                colocate /b 5\nread /b/h 0 6504\nregroup / always";
    let setup = Setup { device: 48 << 20, no_embed: true, quota: true, data_sums: true, ..Setup::default() };
    run(setup, &parse(text).unwrap()).unwrap();
}

/// A part of the device that is to be emptied may lie in an allocation group that was never used (seed 990000078).
#[test]
fn free_space_may_lie_where_nothing_was_ever_written() {
    let text = "mkdir /e 755 0\nmkdir /e/h 700 0\ngrow 93\nregroup / free-space";
    let sizes = (65536, 8192, 262_144);
    let setup = Setup { device: 512 << 20, made: Some(160 << 20), sizes, no_group: true, ..Setup::default() };
    run(setup, &parse(text).unwrap()).unwrap();
}
