//! What developers do with a source tree: unpack or check out, compile, clean, search, remove.

use anyhow::Result;
use cffs::{Fs, Ino, MetadataMode};
use cffs_disk::Counters;

use super::harness::{Harness, Setup, Variant, create};
use super::large::raw;
use super::outcome::{Claim, Outcome, asked, shown};
use super::source::{Tree, file_name, read_whole, remove_below, search};

/// Headers that a compilation reads, besides its own source.
const HEADERS: usize = 12;

fn name_of(n: usize) -> String {
    format!("object{n}.o")
}

/// Compiles the files of some directories, one after the other: each reads its source and headers of the tree, and writes an
/// object of one and a half times its size.
fn compile(fs: &Fs, tree: &Tree, dirs: &[Ino], chosen: &dyn Fn(usize) -> bool) -> Result<()> {
    let read = |n: usize| -> Result<u64> {
        let ino = fs.lookup(dirs[tree.files[n].0], file_name(n).as_bytes())?.ino;
        let result = read_whole(fs, ino);
        fs.forget(ino, 1);
        Ok(result?)
    };
    let object = vec![0x6f; 256 << 10];
    let headers: Vec<usize> = (0..HEADERS).map(|i| i * tree.files.len() / HEADERS).collect();
    for (n, (dir, _)) in tree.files.iter().enumerate().filter(|(_, (dir, _))| chosen(*dir)) {
        let bytes = read(n)?;
        for header in &headers {
            read(*header)?;
        }
        create(fs, dirs[*dir], &name_of(n), &object[..bytes as usize * 3 / 2])?;
    }
    Ok(())
}

fn clean(fs: &Fs, tree: &Tree, dirs: &[Ino], chosen: &dyn Fn(usize) -> bool) -> Result<()> {
    for (n, (dir, _)) in tree.files.iter().enumerate().filter(|(_, (dir, _))| chosen(*dir)) {
        fs.unlink(dirs[*dir], name_of(n).as_bytes())?;
    }
    Ok(())
}

fn in_tree(fs: &Fs, tree: &Tree, work: impl FnOnce(&[Ino]) -> Result<()>) -> Result<()> {
    let dirs = tree.open(fs, "tree")?;
    let result = work(&dirs);
    dirs.into_iter().for_each(|ino| fs.forget(ino, 1));
    result
}

/// The tree of figure 9: about 1,000 C files; one directory has the 32 that are compiled.
fn figure9_tree(files: u64) -> (Tree, usize) {
    let mut tree = Tree::new(files, (files / 20).max(2), 9);
    let compiled = 1;
    let mut moved = 0;
    for (dir, _) in &mut tree.files {
        if *dir == compiled {
            *dir = 0;
        }
    }
    for (dir, _) in tree.files.iter_mut().filter(|(dir, _)| *dir != compiled).take(32) {
        *dir = compiled;
        moved += 1;
    }
    debug_assert!(moved > 0);
    tree.files.sort_by_key(|(dir, _)| *dir);
    (tree, compiled)
}

const FIGURE9: [&str; 4] = ["pax", "gmake", "clean", "rm"];

fn figure9_phases(setup: &Setup, files: u64) -> Result<[Counters; 4]> {
    let (tree, compiled) = figure9_tree(files);
    let chosen = |dir: usize| dir == compiled;
    let mut harness = Harness::new(setup)?;
    let pax = harness.phase(|fs| tree.unpack(fs, "tree"))?;
    let gmake = harness.phase(|fs| in_tree(fs, &tree, |dirs| compile(fs, &tree, dirs, &chosen)))?;
    let cleaned = harness.phase(|fs| in_tree(fs, &tree, |dirs| clean(fs, &tree, dirs, &chosen)))?;
    let rm = harness.phase(|fs| in_tree(fs, &tree, |dirs| remove_below(fs, dirs[0])))?;
    harness.check()?;
    Ok([pax, gmake, cleaned, rm])
}

/// Ganger and Kaashoek 1997, figure 9.
///
/// # Errors
/// Those of the engine.
pub fn figure9(files: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let at = FIGURE9.map(str::to_string);
    for (metadata, name) in [(MetadataMode::Sync, "synchronous"), (MetadataMode::Delayed, "delayed")] {
        let mut runs = Vec::new();
        for variant in Variant::ALL {
            // The paper spreads files for its small-file benchmark alone.
            let setup = Setup { scatter: false, ..Setup::ganger(variant, metadata) };
            runs.push((variant, figure9_phases(&setup, files)?));
        }
        let rows = |of: &dyn Fn(&Counters) -> f64| -> Vec<(String, Vec<f64>)> {
            runs.iter().map(|(v, phases)| (v.name().to_string(), phases.iter().map(of).collect())).collect()
        };
        outcome.add(&format!("Disk time, {name} metadata"), "s", "variant", &at, rows(&Counters::seconds), false);
        outcome.table(format!("Requests, {name} metadata"), "variant", &at, rows(&|c| c.requests() as f64));
        let of = |v: Variant| runs.iter().find(|(x, _)| *x == v).map(|(_, p)| *p).unwrap_or_default();
        let (both, neither) = (of(Variant::BOTH), of(Variant::NEITHER));
        for phase in [0, 3] {
            let less = (1.0 - both[phase].seconds() / neither[phase].seconds()) * 100.0;
            let text = format!("{}, {name} metadata: less time, in % (paper: 50 to 66)", FIGURE9[phase]);
            outcome.claims.push(Claim::at_least(text, 50.0, less).because(|| {
                let (ours, other) = (&both[phase], &neither[phase]);
                let bytes = other.written_bytes.min(ours.written_bytes);
                let [_, write] = raw("st31200", bytes.max(1 << 20), 0);
                let what = match phase {
                    0 => format!(
                        "On a fresh disk the conventional placement is contiguous too, and delayed metadata are written once: {} MB take {} s at the \
                         disk's bandwidth, whatever the variant.",
                        shown(bytes as f64 / 1e6),
                        shown(bytes as f64 / write / 1e6)
                    ),
                    _ => "With delayed metadata removing reads each directory once and writes next to nothing, in every variant.".into(),
                };
                let (a, b) = (shown(ours.seconds()), shown(other.seconds()));
                format!("Both: {}, {a} s. Neither: {}, {b} s. {what}", asked(ours), asked(other))
            }));
        }
    }
    outcome.untested = vec![(
        "gmake: 10% less time".into(),
        "mostly processor time and starting processes in the paper; virtual time has disk time alone, which is in the table"
            .into(),
    )];
    outcome.notes = vec![
        format!(
            "{files} files made up with sizes of C sources, half of them at most 4 KB; the paper's tree is not known."
        ),
        "Unpacking reads no archive: what is measured is what arrives.".into(),
    ];
    Ok(outcome)
}

const TABLE43: [&str; 3] = ["checkout", "compile", "search"];

/// Sapuntzakis 1998, table 4.3.
///
/// # Errors
/// Those of the engine.
pub fn table43(scale: u64) -> Result<Outcome> {
    let tree = Tree::new(5955 / scale, 952 / scale, 43);
    // Files of the checkout's own in every directory are among the thesis's 5,955; half of the directories have sources.
    let chosen = |dir: usize| dir % 2 == 1;
    let mut runs = Vec::new();
    for variant in [Variant::NEITHER, Variant { embed: true, group: false }, Variant::BOTH] {
        let mut harness = Harness::new(&Setup::sapuntzakis(variant))?;
        let checkout = harness.phase(|fs| tree.unpack(fs, "tree"))?;
        let compiled = harness.phase(|fs| in_tree(fs, &tree, |dirs| compile(fs, &tree, dirs, &chosen)))?;
        let searched = harness.phase(|fs| in_tree(fs, &tree, |dirs| search(fs, dirs[0]).map(drop)))?;
        harness.check()?;
        runs.push((variant.name().to_string(), [checkout, compiled, searched]));
    }
    let mut outcome = Outcome::default();
    let at = TABLE43.map(str::to_string);
    let rows = |of: &dyn Fn(&Counters) -> f64| -> Vec<(String, Vec<f64>)> {
        runs.iter().map(|(name, phases)| (name.clone(), phases.iter().map(of).collect())).collect()
    };
    outcome.add("Disk time", "s", "variant", &at, rows(&Counters::seconds), false);
    outcome.table("Reads", "variant", &at, rows(&|c| c.reads as f64));
    outcome.table("Writes", "variant", &at, rows(&|c| c.writes as f64));
    // Seconds, reads, writes.
    let thesis: [(&str, [[f64; 3]; 3]); 3] = [
        ("FFS in the thesis", [[322.0, 1201.0, 46.1], [9990.0, 10_000.0, 6350.0], [39_700.0, 29_430.0, 680.0]]),
        (
            "C-FFS without grouping in the thesis",
            [[177.0, 1219.0, 33.6], [8440.0, 16_200.0, 8330.0], [30_700.0, 35_400.0, 840.0]],
        ),
        (
            "C-FFS with grouping in the thesis",
            [[170.0, 1200.75, 42.8], [8340.0, 6580.0, 2520.0], [21_400.0, 20_630.0, 780.0]],
        ),
    ];
    for (name, figures) in thesis {
        for (table, figures) in outcome.tables.iter_mut().zip(figures) {
            table.rows.push((name.to_string(), figures.to_vec()));
        }
    }
    let (neither, both) = (runs[0].1, runs[2].1);
    let less = |a: u64, b: u64| (1.0 - b as f64 / a.max(1) as f64) * 100.0;
    let side_by_side = |phase: usize| {
        format!(
            "Both: {}. Neither: {}. The tree was written at once on a fresh disk, so that the conventional placement has its files side by side, \
             and one read brings several: there is little left to save.",
            asked(&both[phase]),
            asked(&neither[phase])
        )
    };
    outcome.claims = vec![
        Claim::at_least("checkout: fewer writes, in %", 46.0, less(neither[0].writes, both[0].writes)),
        Claim::at_most(
            "checkout: time, in % of the conventional one's",
            52.8,
            both[0].seconds() / neither[0].seconds() * 100.0,
        ),
        Claim::at_least("compile: fewer writes, in %", 30.0, less(neither[1].writes, both[1].writes)),
        Claim::at_least("compile: fewer reads, in %", 34.0, less(neither[1].reads, both[1].reads))
            .because(|| side_by_side(1)),
        Claim::at_least("search: fewer reads, in %", 60.0, less(neither[2].reads, both[2].reads))
            .because(|| side_by_side(2)),
        Claim::at_most(
            "search: time, in % of the conventional one's",
            92.9,
            both[2].seconds() / neither[2].seconds() * 100.0,
        ),
    ];
    outcome.untested = vec![("share of the processor's time".into(), "virtual time has disk time alone".into())];
    outcome.notes = vec![
        "The thesis's requests are those of all partitions, with the repository that is checked out, compilers and their \
         libraries; ours are those of the tree alone. The tree is made up: 5,955 files in 952 directories with sizes of C sources."
            .into(),
    ];
    Ok(outcome)
}
