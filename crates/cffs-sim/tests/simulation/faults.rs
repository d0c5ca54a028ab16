//! A fault of the device at any request: see [`cffs_sim::faults::history`] for what must hold.

use cffs_sim::faults::Fault;
use cffs_sim::faults::history::{
    Case, Phase, Tally, cases, operations, requests, run, setup, setup_on_log_disk, setup_on_mirror,
};
use cffs_sim::ops::{parse, show};
use cffs_sim::streams::{self, with_streams};

#[test]
fn whatever_the_device_does() {
    let mut tally = Tally::default();
    // The last six are histories that once failed: a file made after a lost write, a block that a repair gave up and mapped again, a
    // directory with a block mapped so far behind that nobody looked, a file whose map had become longer than its size, two
    // files with the same block, which hung, and directories in a circle, in which the judge went on for ever.
    for seed in (0..12).chain([500_112, 500_175, 1_795_399_607, 1_795_400_120, 1_795_400_483, 18_011_199]) {
        let (setup, ops) = (setup(seed), operations(seed));
        let requests = requests(setup, &ops).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", show(&ops)));
        for case in cases(setup, requests, seed) {
            if let Err(e) = run(setup, &ops, case, &mut tally) {
                panic!("--faults --once --seed {seed}: {setup}\n{case}: {e}\n{}", show(&ops));
            }
        }
    }
    // Direct writes. In the last one the bit that was flipped belonged to a file, and came with a directory (the
    // judge's).
    for seed in (0..4).chain([1_795_500_028]) {
        let setup = streams::setup(setup(seed), seed);
        let ops = with_streams(operations(seed), seed, setup.sizes.0, 100_000);
        let requests = requests(setup, &ops).unwrap_or_else(|e| panic!("streams, seed {seed}: {e}\n{}", show(&ops)));
        for case in cases(setup, requests, seed) {
            if let Err(e) = run(setup, &ops, case, &mut tally) {
                panic!("--faults --streams --once --seed {seed}: {setup}\n{case}: {e}\n{}", show(&ops));
            }
        }
    }
    println!("{tally:?}");
    assert!(tally.histories > 1500 && tally.struck > tally.histories * 3 / 4, "{tally:?}");
    assert!(tally.errors > 500 && tally.read_only > 100 && tally.files > 30, "{tally:?}");
}

/// A member of a mirror fails in every way. In the first five, once: a block whose rest the log does not have was wrong on a member, and recovery wrote
/// it so to all of them; a superblock that went astray was taken for the copy of an allocation group; and a repair mended a directory
/// block with what was left of it on one member.
#[test]
fn whatever_a_member_of_a_mirror_does() {
    let mut tally = Tally::default();
    let [misdirected, lost] = [Fault::Misdirected, Fault::Lost];
    for (seed, fault, at, of) in [
        (1, misdirected, 66, 14_524_020_690_023_041_505),
        (2, misdirected, 66, 12_806_384_479_089_666_740),
        (4, lost, 297, 12_410_442_180_592_065_623),
        (2058, misdirected, 154, 788_453_952_164_021_069),
        (1010, Fault::FlippedMedium, 169, 2_797_052_225_555_026_311),
    ] {
        let case = Case { phase: Phase::Use, fault, at, seed: of };
        let kept = "mkdir /kept 755 0\nmkdir /kept/b 755 0\ncreatemany /kept/b 0 3 0 9\nsync\nsymlink /g 4095";
        let long = format!("{kept}\nremount true\ncreate /c 755 1000");
        for text in ["remount true", "sync\nremount true", "mkdir /kept 755 0\nremount true", &long] {
            let ops = parse(text).expect("operations");
            run(setup_on_mirror(seed), &ops, case, &mut tally)
                .unwrap_or_else(|e| panic!("{seed}, {case}: {e}\n{text}"));
        }
    }
    for seed in 0..8 {
        let (setup, ops) = (setup_on_mirror(seed), operations(seed));
        let requests = requests(setup, &ops).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", show(&ops)));
        for case in cases(setup, requests, seed).into_iter().step_by(9) {
            if let Err(e) = run(setup, &ops, case, &mut tally) {
                panic!("--faults --only volume --once --seed {seed}: {setup}\n{case}: {e}\n{}", show(&ops));
            }
        }
    }
    println!("{tally:?}");
    assert!(tally.histories > 500 && tally.struck > tally.histories * 3 / 4 && tally.repairs > 300, "{tally:?}");
}

/// A log disk fails. What was promised survives a read error, or a bit that a read gets wrong, while it is opened.
#[test]
fn whatever_the_device_of_a_log_disk_does() {
    let mut tally = Tally::default();
    // The last ones once took a batch that could not be read for the end of the log.
    for seed in (0..6).chain([6, 8, 1055, 1081]) {
        let (setup, ops) = (setup_on_log_disk(seed), operations(seed));
        let requests = requests(setup, &ops).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", show(&ops)));
        for case in cases(setup, requests, seed).into_iter().step_by(4) {
            if let Err(e) = run(setup, &ops, case, &mut tally) {
                panic!("--faults --only log --once --seed {seed}: {setup}\n{case}: {e}\n{}", show(&ops));
            }
        }
    }
    println!("{tally:?}");
    assert!(tally.histories > 300 && tally.struck > tally.histories * 3 / 4 && tally.errors > 100, "{tally:?}");
}

/// Histories that once failed: what was wrong, the number of the setup, fault, operations.
const REGRESSIONS: [(&str, u64, Fault, &str); 20] = [
    (
        "a repair could not do without what stands in unreadable sectors of the log",
        8,
        Fault::Unreadable,
        "remount true",
    ),
    (
        "a repair did not find its own result clean over an unreadable bitmap",
        8,
        Fault::Unreadable,
        "setxattr / user.a 2237 7340040",
    ),
    (
        "a quota record alone was wrong, and the repair left it so (seed 6 of --faults)",
        6,
        Fault::Misdirected,
        "create /e 600 0\nwrite /e 0 107 31457287\nremount true\nwrite /e 0 1405 31457293",
    ),
    (
        "a bad sector in one half of a block of inodes cost those in the other (seed 1075)",
        3,
        Fault::Unreadable,
        "create /a 755 0\nremount true\nread /a 0 1866",
    ),
    (
        "a bad sector in a fragment cost the files in the others of its block (seed 1078)",
        6,
        Fault::Unreadable,
        "create /d 755 0\nwrite /d 112016 1 1\nfsync /d\nremount true\nwrite /d 0 1 2",
    ),
    (
        "a write that met an error half way, and said how far it came, was taken for a failure (the judge's; seed 1079)",
        7,
        Fault::Error,
        "create /b 755 0\nwrite /b 10231 10041 1\nremount true\nwrite /b 0 12551 2",
    ),
    (
        "a flush that failed for the superblock's sake lost data that the next fsync then promised",
        0,
        Fault::Error,
        "create /f 644 0\nwrite /f 0 120000 1\nwrite /f 120000 120000 2\nmkdir /d 755 0\nacl /d true 2\nfsync /f\nsync",
    ),
    (
        "a repair took the last fragment of the largest file for one behind its end (seed 10)",
        2,
        Fault::Lost,
        "create /f 644 0\nwrite /f 9223372036854775000 807 1\nwrite /f 0 3000 2\nsync\nwrite /f 9000 3000 3\nsync",
    ),
    (
        "a file that a repair left in its place was missed in lost+found, where more damage would have put it (the judge's; seed 500005)",
        5,
        Fault::FlippedMedium,
        "mkdir /kept 755 0\ncreatemany /kept 0 6 0 9\nmkdir /kept/b 755 0\ncreatemany /kept/b 0 1 0 9\nremount true\ncreate /a/a 755 0",
    ),
    (
        "a file that got another number, being the second with it, was taken for lost (the judge's; seed 500021)",
        5,
        Fault::Lost,
        "mkdir /g 755 1000\nmkdir /g/g 700 0\nremount true\ncreate /g/g/f 755 0\nremount true\ncreate /c 755 1000",
    ),
    (
        "the log header that a replay wrote made a transaction its own that belonged to a lost one (seed 500074)",
        10,
        Fault::Lost,
        "create /L1 755 0\nremount true\nwrite /L1 0 77 1\nfsync /L1\nwrite /L1 0 1 3\nfsync /",
    ),
    (
        "half a removal went unnoticed that had changed only bytes that were to be logged already (seed 600039)",
        15,
        Fault::FlippedMedium,
        "mkdir /a 1777 0\ncreate /a/e 600 1000\nremount true\nremount true\nlink /a/e /c\nrename /a/e /a/b replace\nrename /a/b /a/a replace\nunlink /a/a\nmkdir /a/a 700 0",
    ),
    (
        "a lost write left the locator table at what it said before a directory was moved, and a repair believed it: the bytes there, \
         in free space, still said that it was the directory's (seed 7800015)",
        15,
        Fault::Lost,
        "setxattr / trusted.t 1811 1\nremount true\nmkdir /M1 1777 1000\nremount true\nrename /M1 /h replace\ncreate /h/e 600 0",
    ),
    (
        "a file whose directory is synchronous was made, and only then the device failed (the judge's; seed 500029)",
        13,
        Fault::Error,
        "flags / 8\ncreate /f 600 1000\nremount true",
    ),
    (
        "where a range could not be zeroed, what had been written there last was gone, and older contents back (seed 5015)",
        7,
        Fault::Error,
        "mkdir /g 1777 0\nfsync /g\ncreate /g/f 600 0\nrename /g/f /g/h replace\nremount true\nwrite /g/h 8992 2841 1\nfsync /g/h\nwrite /g/h 0 16880 2\nfallocate /g/h zeroahead 10669 785",
    ),
    (
        "the current log header could not be read and had no transaction yet: a replay from the header before it wrote logged contents over newer ones (seed 90000110)",
        14,
        Fault::Error,
        "mkdir /kept 755 0\ncreatemany /kept 0 1 3000 9\nsync\ncreate /f 755 0\nwrite /f 0 811 94371955343362\nfsync /f\nwrite /f 0 1 94371955343363\nacl /f false 0\nremount true",
    ),
    (
        "one lost write left both the bitmap and the locator table at what they said before a directory was moved (seed 830000178)",
        830_000_178,
        Fault::Lost,
        "mkdir /kept 755 0\ncreatemany /kept 0 1 0 9\nremount true\nregroup / always\ncreate /e 644 0\nfallocate /e ahead 11127 2342",
    ),
    (
        "a lost write brought an older bitmap back, and what a regroup counts no longer added up, which ended the history (seed 1200000044)",
        1_200_000_044,
        Fault::Lost,
        "mkdir /kept 755 0\ncreatemany /kept 0 3 3000 9\nmkdir /kept/b 755 0\ncreatemany /kept/b 0 1 200 9\nsync\nwrite / 0 1 1258291246137345\nremount true\ncolocate /e 3\nregroup / large\nunlink /e\nfallocate / allocate 0 18166\nregroup / always",
    ),
    (
        "a file lost its attributes, and for that its data to a file that an older directory block still had there (seed 1230000122)",
        1_230_000_122,
        Fault::Lost,
        "mkdir /kept 755 0\ncreatemany /kept 0 6 3000 9\ncreate /g 644 1000\nremount true\nregroup / large\nsetxattr /g security.s 488 1289748607926279\nwrite /g 0 122 1289748607926281\nregroup / large",
    ),
    (
        "a truncation that had failed before it changed anything left its times, which a later fsync did not store (seed 1230000440)",
        1_230_000_440,
        Fault::Gone,
        "read /b 0 2746\ncreate /f 755 0\nfallocate /b zeroahead 0 5204\nwrite /f 0 1 1289748941373442\nfallocate /f allocate 9592 2859\nwrite /f 12451 1 1289748941373443\ncolocate /b 10\ncolocate /f 8\ncolocate /b 6\nregroup / always\nremount true\ntruncate /f 0\nfsync /f",
    ),
];

#[test]
fn regressions() {
    for (what, number, fault, text) in REGRESSIONS {
        let (setup, ops) = (setup(number), parse(text).unwrap());
        let [(_, n), ..] = requests(setup, &ops).unwrap();
        for (at, seed) in (0..n).flat_map(|at| (0..6).map(move |seed| (at, seed * 77 + at))) {
            let case = Case { phase: Phase::Use, fault, at, seed };
            if let Err(e) = run(setup, &ops, case, &mut Tally::default()) {
                panic!("{what}\n{case}: {e}\n{text}");
            }
        }
    }
}

/// The bit that was flipped made the map of a directory lead to a block of the locator table, and what the directory had
/// there was not mapped again (seed 830000271).
#[test]
fn a_flipped_map_that_leads_to_the_locator_table() {
    let text = "mkdir /kept 755 0\ncreatemany /kept 0 6 0 9\nmkdir /kept/b 755 0\ncreatemany /kept/b 0 4 0 9\nmkdir /e 755 0\n\
                remount false\ntmpfile 2 /e/L2 600 1000";
    let case = Case { phase: Phase::Use, fault: Fault::FlippedMedium, at: 25, seed: 17_986_124_797_117_071_286 };
    let mut tally = Tally::default();
    run(setup(830_000_271), &parse(text).unwrap(), case, &mut tally).unwrap();
    assert_eq!(tally.struck, 1);
}

/// The write that took a renamed directory out of its old place was lost, with the new block of the locator table, so that the old name and the
/// new one looked equally good. The one that is older by its inode's ctime stayed (seed 18010215).
#[test]
fn of_two_entries_of_one_directory_the_later_one_stays() {
    let text = "mkdir /kept 755 0\ncreatemany /kept 0 5 0 9\nmkdir /kept/b 755 0\ncreatemany /kept/b 0 4 0 9\ncreate /a 644 1000\n\
                mkdir /b 1777 0\nunlink /a\ncreate /b/f 755 0\nsymlink /f 8\nremount true\nrename /b /g replace";
    let case = Case { phase: Phase::Use, fault: Fault::Misdirected, at: 35, seed: 9_006_342_983_736_783_966 };
    let mut tally = Tally::default();
    run(setup(18_010_215), &parse(text).unwrap(), case, &mut tally).unwrap();
    assert_eq!((tally.struck, tally.repairs), (1, 1));
}

/// The nodes of a checkpoint wait to be written together. When that failed, a reader was told, and the root that followed referred to nodes that were
/// nowhere (seeds of --faults --only log).
#[test]
fn what_waited_and_could_not_be_written_is_not_forgotten() {
    let ops = parse("remount true\nremount true").unwrap();
    let mut tally = Tally::default();
    for seed in [180_900_002, 180_900_007, 180_900_009] {
        let setup = setup_on_log_disk(seed);
        let [(_, used), ..] = requests(setup, &ops).unwrap();
        for case in (0..used).map(|at| Case { phase: Phase::Use, fault: Fault::Error, at, seed: seed + at }) {
            run(setup, &ops, case, &mut tally).unwrap_or_else(|e| panic!("{seed}, {case}: {e}"));
        }
    }
    assert!(tally.struck > 100, "{tally:?}");
}

/// A rename and a creation in directories whose changes are durable when they return had failed, and were there; the judge could not walk through the
/// directories any more, which were not in memory when the device went, and did not know the number of what was created (its own; seeds 1795920002020 and
/// 20261131202 of --faults --only log).
#[test]
fn what_failed_when_it_was_done_may_be_found_also_if_the_device_is_gone() {
    let rename = "mkdir /kept 755 0\ncreatemany /kept 0 3 3000 9\nsync\nflags / 65536\nmkdir /c 700 1000\ncreate /c/g 755 0\n\
                  setxattr /c/g user.b 15814 1883158612038123522\nremount true\nsymlink /c/c 8\nrename /c/c /c/h replace";
    let create = "mkdir /kept 755 0\ncreatemany /kept 0 6 3000 9\nmkdir /kept/b 755 0\ncreatemany /kept/b 0 4 200 9\nsync\nflags / 65536\n\
                  regroup / free-space\nmkdir /h 1777 0\nremount true\ncreate /h/a 644 1000";
    for (number, seed, text) in
        [(1_795_920_002_020, 2_178_712_013_045_105_309, rename), (20_261_131_202, 5_437_350_252_884_550_232, create)]
    {
        let (setup, ops) = (setup_on_log_disk(number), parse(text).unwrap());
        let [(_, used), ..] = requests(setup, &ops).unwrap();
        let mut tally = Tally::default();
        for at in 0..used {
            let case = Case { phase: Phase::Use, fault: Fault::Gone, at, seed };
            run(setup, &ops, case, &mut tally).unwrap_or_else(|e| panic!("{case}: {e}"));
        }
        assert!(tally.struck > 50, "{tally:?}");
    }
}

/// As in the table, at the requests and with the choices that showed it.
#[test]
fn faults_that_only_some_choices_show() {
    for (what, number, fault, at, seed) in [
        ("lost attributes", 1_230_000_122, Fault::Lost, 56, 12_162_037_304_732_230_232),
        ("times of a truncation", 1_230_000_440, Fault::Gone, 42, 13_957_740_158_732_884_384),
    ] {
        let (.., text) = REGRESSIONS.into_iter().find(|r| r.1 == number).unwrap();
        let case = Case { phase: Phase::Use, fault, at, seed };
        let mut tally = Tally::default();
        run(setup(number), &parse(text).unwrap(), case, &mut tally).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(tally.struck, 1, "{what}");
    }
}
