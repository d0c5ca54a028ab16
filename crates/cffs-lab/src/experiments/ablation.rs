//! What each mechanism is worth: the same work with each of its settings, in place on all disks, and on the log on those of today.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use cffs::{Caller, Fs, PrefetchMode, ROOT_INO};
use cffs_disk::{Counters, profiles};

use super::aging::age_as;
use super::harness::{Harness, Setup, Variant, create, make_dir, with};
use super::outcome::{Claim, Outcome, shown};
use super::source::{Tree, file_name, read_whole, remove_below, search, walk};
use super::volume::Layout;
use crate::random::Random;

/// What is done, each time from a cold cache.
const WORK: [&str; 8] = [
    "unpack",
    "search",
    "walk",
    "one file of each directory",
    "overwrite",
    "create + fsync",
    "remove",
    "a few files of a large tree",
];
/// The last of them, which has a disk of its own.
const FEW: usize = 7;
/// Files and directories of the large tree, bytes of its disk, and files that are read.
const LARGE: (u64, u64) = (16_000, 1280);
const LARGE_BYTES: u64 = 900 << 20;
const FEW_FILES: u64 = 40;
/// Files that are created and fsynced, and files in one directory of them.
const SYNCED: u64 = 200;
const PER_DIR: u64 = 20;
/// Bytes of each.
const SYNCED_BYTES: usize = 4096;
/// Trees, each on a disk that was aged in its own way. One alone says little: where a handful of requests decides, the next tree of the same
/// kind on a disk aged alike takes a tenth more or less.
const HISTORIES: u64 = 4;
/// An alternative has to be better by so much that it counts, in %.
const MARGIN: f64 = 2.0;
/// How full the aged disks are, and how many creations and deletions that takes.
const LEVEL: f64 = 0.7;
const OPERATIONS: u64 = 3000;
/// The name of the rule by which mkfs chooses.
const KNEE: &str = "the knee";
/// Bytes of a fresh and of an aged disk.
const BYTES: [u64; 2] = [512 << 20, 192 << 20];
/// The disks on which the log is looked at.
const LOG_DISKS: [&str; 4] = ["hdd-2026", "volume-1ms", "sd-card", "nvme"];
/// What is no mechanism with a default, but the other way to lay out all of it.
const LAYOUT: &str = "layout";

/// A mechanism with its settings, the default first, and the work that it is there for.
struct Mechanism {
    name: &'static str,
    settings: Vec<(String, Setup)>,
    work: &'static [usize],
}

fn mechanisms(place: Place) -> Vec<Mechanism> {
    let today = place.setup();
    let kib = |bytes: u32| if bytes < 1024 { format!("{bytes} bytes") } else { format!("{} KiB", bytes >> 10) };
    // What mkfs chooses, other rules that could choose, and the same for all.
    let mut groups = vec![(KNEE.to_string(), today.group)];
    let times = |n: u32| (today.group * n).min(4 << 20);
    groups.extend([("half of it".to_string(), (today.group / 2).max(16 << 10)), ("twice it".to_string(), times(2))]);
    groups.push(("four times it".to_string(), times(4)));
    groups.extend([16, 32, 64, 128, 256, 512, 1024, 2048, 4096].map(|k: u32| (kib(k << 10), k << 10)));
    let mut fragments = vec![today.fragment];
    fragments.extend([512, 1024, 2048, 4096].iter().filter(|f| **f != today.fragment));
    let variants = [Variant::BOTH, Variant::NEITHER, Variant::ALL[1], Variant::ALL[2]];
    let mut mechanisms = vec![
        Mechanism {
            name: "embedding and grouping",
            settings: variants.map(|v| (v.name().to_string(), Setup { variant: v, ..today.clone() })).to_vec(),
            work: &[0, 1, 2, 3, 4, 5, 6],
        },
        Mechanism {
            name: "grouping of subtrees",
            settings: [(true, "on"), (false, "off")]
                .map(|(on, name)| (name.to_string(), Setup { subtrees: on, ..today.clone() }))
                .to_vec(),
            work: &[0, 1, 2, 3, 4, 5, 6],
        },
        Mechanism {
            name: "fsync in the log",
            settings: [(true, "on"), (false, "off")]
                .map(|(on, name)| (name.to_string(), Setup { fsync_in_log: on, ..today.clone() }))
                .to_vec(),
            work: &[5],
        },
        Mechanism {
            name: "prefetch",
            settings: [
                (PrefetchMode::Adaptive, "adaptive"),
                (PrefetchMode::Off, "off"),
                (PrefetchMode::Always, "always"),
            ]
            .map(|(prefetch, name)| (name.to_string(), Setup { prefetch, ..today.clone() }))
            .to_vec(),
            work: &[1, 2, 3, 4, FEW],
        },
        Mechanism {
            name: "group size",
            settings: groups.into_iter().map(|(name, group)| (name, Setup { group, ..today.clone() })).collect(),
            work: &[0, 1, 2, 3, 4, 5, 6],
        },
        Mechanism {
            name: "fragment size",
            settings: fragments
                .into_iter()
                .map(|fragment| (kib(fragment), Setup { fragment, ..today.clone() }))
                .collect(),
            work: &[0, 1, 2, 3, 4, 5, 6],
        },
    ];
    if place.layout != Layout::InPlace {
        // There the engine has no log of its own.
        mechanisms.retain(|m| m.name != "fsync in the log");
        let other = Setup { layout: Layout::InPlace, ..today.clone() };
        let settings = [today, other].map(|setup| (setup.layout.name().to_string(), setup)).to_vec();
        mechanisms.push(Mechanism { name: LAYOUT, settings, work: &[0, 1, 2, 3, 4, 5, 6] });
    }
    mechanisms
}

/// What one setup needs for the work: disk time of each, and the bytes on the disk after unpacking.
#[derive(Clone, Copy)]
struct Cost {
    phases: [Counters; 8],
    used: u64,
}

/// How a disk comes by its state: creations and deletions, none on a fresh one, and what they depend on.
#[derive(Clone, Copy)]
struct Aging {
    operations: u64,
    seed: u64,
}

impl Aging {
    fn of(self, harness: &mut Harness) -> Result<()> {
        match self.operations {
            0 => Ok(()),
            n => harness.phase(|fs| age_as(fs, LEVEL, n, self.seed)).map(drop),
        }
    }
}

fn run(setup: &Setup, tree: &Tree, aging: Aging, large: Option<&Tree>) -> Result<Cost> {
    let mut harness = Harness::new(setup)?;
    aging.of(&mut harness)?;
    let empty = harness.used_bytes()?;
    let unpack = harness.phase(|fs| tree.unpack(fs, "tree"))?;
    let used = harness.used_bytes()? - empty;
    let inside = |fs: &Fs, work: &dyn Fn(&[u64]) -> Result<()>| {
        let dirs = tree.open(fs, "tree")?;
        let result = work(&dirs);
        dirs.into_iter().for_each(|ino| fs.forget(ino, 1));
        result
    };
    let top = |fs: &Fs, work: &dyn Fn(u64) -> Result<()>| {
        let dir = fs.lookup(ROOT_INO, b"tree")?.ino;
        let result = work(dir);
        fs.forget(dir, 1);
        result
    };
    let searched = harness.phase(|fs| top(fs, &|dir| search(fs, dir).map(drop)))?;
    let walked = harness.phase(|fs| top(fs, &|dir| walk(fs, dir).map(drop)))?;
    let scattered = harness.phase(|fs| inside(fs, &|dirs| one_of_each(fs, tree, dirs)))?;
    let new = vec![0xa5; 8 << 10];
    let overwritten = harness.phase(|fs| {
        inside(fs, &|dirs| {
            for (n, (dir, size)) in tree.files.iter().enumerate() {
                let piece = &new[..(*size).min(new.len())];
                with(fs, dirs[*dir], &file_name(n), |ino| fs.write(Caller::ROOT, ino, 0, piece))?;
            }
            Ok(())
        })
    })?;
    let synced = harness.phase(|fs| {
        let mut dir = ROOT_INO;
        for n in 0..SYNCED {
            if n.is_multiple_of(PER_DIR) {
                dir = make_dir(fs, &format!("synced{}", n / PER_DIR))?;
            }
            let name = format!("file{n}");
            create(fs, dir, &name, &new[..SYNCED_BYTES])?;
            with(fs, dir, &name, |ino| fs.fsync(ino, false))?;
        }
        Ok(())
    })?;
    let removed = harness.phase(|fs| top(fs, &|dir| remove_below(fs, dir)))?;
    harness.check()?;
    let few = large.map(|tree| few(setup, tree, aging)).transpose()?.unwrap_or_default();
    Ok(Cost { phases: [unpack, searched, walked, scattered, overwritten, synced, removed, few], used })
}

/// Reads a few files of a large tree, in no order: hardly two of a group, and never the next one.
fn few(setup: &Setup, tree: &Tree, aging: Aging) -> Result<Counters> {
    let mut harness = Harness::new(&Setup { bytes: LARGE_BYTES, ..setup.clone() })?;
    aging.of(&mut harness)?;
    harness.phase(|fs| tree.unpack(fs, "tree"))?;
    let mut random = Random::new(8);
    let chosen: Vec<usize> = (0..FEW_FILES).map(|_| random.below(tree.files.len() as u64) as usize).collect();
    harness.phase(|fs| {
        let top = fs.lookup(ROOT_INO, b"tree")?.ino;
        for n in &chosen {
            tree.within(fs, top, tree.files[*n].0, &mut |dir| {
                with(fs, dir, &file_name(*n), |ino| read_whole(fs, ino)).map(drop)
            })?;
        }
        fs.forget(top, 1);
        Ok(())
    })
}

/// Reads one file of each directory, the directories in no order.
fn one_of_each(fs: &Fs, tree: &Tree, dirs: &[u64]) -> Result<()> {
    let mut random = Random::new(7);
    let mut chosen: Vec<Option<usize>> = vec![None; dirs.len()];
    for (n, (dir, _)) in tree.files.iter().enumerate() {
        if chosen[*dir].is_none() || random.below(4) == 0 {
            chosen[*dir] = Some(n);
        }
    }
    let mut chosen: Vec<usize> = chosen.into_iter().flatten().collect();
    for i in (1..chosen.len()).rev() {
        chosen.swap(i, random.below(i as u64 + 1) as usize);
    }
    for n in chosen {
        with(fs, dirs[tree.files[n].0], &file_name(n), |ino| read_whole(fs, ino))?;
    }
    Ok(())
}

/// The mean of several ratios, in %.
fn mean(ratios: impl Iterator<Item = f64>) -> f64 {
    let logs: Vec<f64> = ratios.map(|r| r.max(1e-9).ln()).collect();
    (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp() * 100.0
}

/// One setting: its figure on each fresh and each aged disk, in % of the default; 0 where it found no space.
#[derive(Default)]
struct Row {
    name: String,
    states: [Vec<f64>; 2],
    /// The same on all of these disks, by each of the trees alone.
    alone: Vec<Vec<f64>>,
}

/// The means over all fresh disks, all aged ones, and both. 0 if space was missing anywhere.
fn means(row: &Row) -> [f64; 3] {
    let [fresh, aged] = &row.states;
    [over(&[fresh]), over(&[aged]), over(&[fresh, aged])]
}

fn over(parts: &[&Vec<f64>]) -> f64 {
    let all = || parts.iter().flat_map(|p| p.iter().copied());
    if all().all(|r| r > 0.0) { mean(all().map(|r| r / 100.0)) } else { 0.0 }
}

/// The least and the greatest mean over all disks that one tree alone gives.
fn extremes(row: &Row) -> [f64; 2] {
    let alone = || row.alone.iter().map(|figures| over(&[figures]));
    [alone().fold(f64::INFINITY, f64::min), alone().fold(0.0, f64::max)]
}

/// A disk in one of the two states, and how blocks get there.
#[derive(Clone, Copy)]
struct Place {
    profile: &'static str,
    aged: bool,
    layout: Layout,
}

impl Place {
    fn name(self) -> String {
        format!("{}{}", self.profile, if self.aged { ", aged" } else { "" })
    }

    /// The defaults.
    fn setup(self) -> Setup {
        Setup { bytes: BYTES[usize::from(self.aged)], layout: self.layout, ..Setup::today(self.profile) }
    }
}

/// The trees that all is done with.
struct Trees {
    each: Vec<Tree>,
    large: Tree,
    /// Creations and deletions that age a disk.
    operations: u64,
}

impl Trees {
    fn new(scale: u64) -> Trees {
        let histories = if scale > 1 { 1 } else { HISTORIES };
        Trees {
            each: (0..histories).map(|n| Tree::new(2000 / scale, (160 / scale).max(4), 26 + n)).collect(),
            large: Tree::new(LARGE.0 / scale, (LARGE.1 / scale).max(4), 27),
            operations: (OPERATIONS / scale).max(1),
        }
    }

    /// Space used beyond the contents of the trees, in %.
    fn waste(&self, costs: &[Cost]) -> f64 {
        let contents: u64 = self.each.iter().map(Tree::bytes).sum();
        let used: u64 = costs.iter().map(|cost| cost.used).sum();
        (used as f64 / contents as f64 - 1.0) * 100.0
    }

    /// What a setup needs for each tree; the large one is there once.
    fn run(&self, setup: &Setup, aged: bool, large: bool) -> Result<Vec<Cost>> {
        let operations = if aged { self.operations } else { 0 };
        let of = |(n, tree): (usize, &Tree)| {
            let aging = Aging { operations, seed: 1997 + n as u64 };
            run(setup, tree, aging, (large && n == 0).then_some(&self.large))
        };
        self.each.iter().enumerate().map(of).collect()
    }
}

/// The costs of one setting by tree; `None` where it found no space.
type Costs = Option<Vec<Cost>>;

/// What was measured at one place: the default, each setting of each mechanism, and what could not be done.
struct Measured {
    default: Vec<Cost>,
    settings: Vec<Vec<Costs>>,
    untested: Vec<(String, String)>,
}

fn measure(place: Place, trees: &Trees) -> Result<Measured> {
    let aged = place.aged;
    let default = trees.run(&place.setup(), aged, true)?;
    let mut measured = Measured { default, settings: Vec::new(), untested: Vec::new() };
    for mechanism in mechanisms(place) {
        // Several names may stand for the same size.
        let mut groups: Vec<(u32, Costs)> = Vec::new();
        let mut settings = Vec::new();
        for (s, (name, setup)) in mechanism.settings.iter().enumerate() {
            let known = groups.iter().find(|(g, _)| mechanism.name == "group size" && *g == setup.group);
            let costs = match (s, known) {
                (0, _) => Some(measured.default.clone()),
                (_, Some((_, costs))) => costs.clone(),
                _ => match trees.run(setup, aged, mechanism.work.contains(&FEW)) {
                    Ok(costs) => Some(costs),
                    // Aged, some settings leave no room for the tree: a finding, not the end of the others.
                    Err(error) if matches!(error.downcast_ref(), Some(cffs::Error::NoSpace)) => {
                        let at = format!("{}: {name} on {}", mechanism.name, place.name());
                        measured.untested.push((at, format!("{error:#}")));
                        None
                    }
                    Err(error) => {
                        return Err(error.context(format!("{}: {name} on {}", mechanism.name, place.name())));
                    }
                },
            };
            groups.push((setup.group, costs.clone()));
            settings.push(costs);
        }
        measured.settings.push(settings);
    }
    Ok(measured)
}

/// The same at all places, a thread for each processor. Time is virtual: nobody disturbs anybody.
fn measure_all(places: &[Place], trees: &Trees) -> Result<Vec<Measured>> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(place) = places.get(at) else { return done };
            done.push((at, measure(*place, trees)));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut all = std::thread::scope(|s| {
        let workers: Vec<_> = (0..threads).map(|_| s.spawn(worker)).collect();
        let joined = workers.into_iter().map(|w| w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.flatten().collect::<Vec<_>>()
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, measured)| measured).collect()
}

/// One work with a setting against the default, a ratio, by each tree with which it was done.
fn ratios<'a>(costs: &'a [Cost], default: &'a [Cost], work: usize) -> impl Iterator<Item = f64> + 'a {
    let trees = if work == FEW { 1 } else { costs.len() };
    let seconds = move |cost: &Cost| cost.phases[work].seconds().max(1e-6);
    costs.iter().zip(default).take(trees).map(move |(cost, default)| seconds(cost) / seconds(default))
}

/// All mechanisms on all disks.
///
/// # Errors
/// Those of the engine.
pub fn ablation(scale: u64) -> Result<Outcome> {
    // Where the medium is rewritten in units, that decides everything, and `log-devices` tells it.
    let disks: Vec<&'static str> =
        profiles::all().iter().filter(|p| p.model().units().is_none()).map(|p| p.name).collect();
    on(Layout::InPlace, &disks, scale)
}

/// The same mechanisms on a log disk, and the same work in place.
///
/// # Errors
/// Those of the engine.
pub fn on_log(scale: u64) -> Result<Outcome> {
    on(Layout::log(), &LOG_DISKS, scale)
}

fn on(layout: Layout, disks: &[&'static str], scale: u64) -> Result<Outcome> {
    let trees = Trees::new(scale);
    let place = |aged: &bool, profile: &&'static str| Place { profile, aged: *aged, layout };
    let places: Vec<Place> =
        [false, true].iter().flat_map(|aged| disks.iter().map(move |profile| place(aged, profile))).collect();
    let mut outcome = Outcome::default();
    let mut tables = empty_tables(places[0], trees.each.len());
    let (mut defaults, mut space) = (Vec::new(), Vec::new());
    let mut by_work: [Vec<(String, Vec<f64>)>; 2] = Default::default();
    for (place, measured) in places.iter().zip(measure_all(&places, &trees)?) {
        let state = usize::from(place.aged);
        outcome.untested.extend(measured.untested);
        let default = &measured.default;
        for ((mechanism, work, rows), settings) in tables.iter_mut().zip(measured.settings) {
            for (row, costs) in rows.iter_mut().zip(settings) {
                let Some(costs) = costs else {
                    row.states[state].push(0.0);
                    row.alone.iter_mut().for_each(|figures| figures.push(0.0));
                    continue;
                };
                let ratio = |w: usize| mean(ratios(&costs, default, w)) / 100.0;
                row.states[state].push(mean(work.iter().map(|w| ratio(*w))));
                for (n, figures) in row.alone.iter_mut().enumerate() {
                    figures.push(mean(work.iter().filter_map(|w| ratios(&costs, default, *w).nth(n))));
                }
                if place.profile == "hdd-2026" {
                    let was_done = |w: &usize| *w != FEW || work.contains(w);
                    let figures = (0..WORK.len()).map(|w| if was_done(&w) { ratio(w) * 100.0 } else { 0.0 }).collect();
                    by_work[state].push((format!("{mechanism}: {}", row.name), figures));
                    if !place.aged && ["fragment size", "embedding and grouping"].contains(mechanism) {
                        space.push((format!("{mechanism}: {}", row.name), vec![trees.waste(&costs)]));
                    }
                }
            }
        }
        let seconds = |w: usize| {
            let done = if w == FEW { &default[..1] } else { &default[..] };
            done.iter().map(|cost| cost.phases[w].seconds()).sum::<f64>() / done.len() as f64
        };
        defaults.push((place.name(), (0..WORK.len()).map(seconds).collect()));
    }
    let columns = add_settings(&mut outcome, &tables, disks);
    let kib = |disk: &&'static str| f64::from(Setup::today(disk).group >> 10);
    outcome.table("The knee (KiB)", "", &columns, vec![("group".into(), disks.iter().map(kib).collect())]);
    let [by_work, by_work_aged] = by_work;
    let columns = WORK.map(str::to_string);
    outcome.table("hdd-2026, by work: disk time, in % of the default", "setting", &columns, by_work);
    outcome.table("hdd-2026, aged, by work: disk time, in % of the default", "setting", &columns, by_work_aged);
    outcome.table("Space beyond the contents (%)", "setting", &["waste".to_string()], space);
    outcome.table("The defaults: disk time (s)", "disk", &WORK.map(str::to_string), defaults);
    outcome.notes = notes(&trees, &tables, layout);
    Ok(outcome)
}

/// A mechanism: its name, the work it is there for, its settings.
type MechanismRows = (&'static str, &'static [usize], Vec<Row>);

/// A row for each setting of each mechanism, without figures.
fn empty_tables(place: Place, trees: usize) -> Vec<MechanismRows> {
    let row =
        |(name, _): &(String, Setup)| Row { name: name.clone(), alone: vec![Vec::new(); trees], ..Row::default() };
    let table = |m: Mechanism| (m.name, m.work, m.settings.iter().map(row).collect());
    mechanisms(place).into_iter().map(table).collect()
}

/// The verdict about each default, and the tables behind it. Returns the columns of tables by disk.
fn add_settings(outcome: &mut Outcome, tables: &[MechanismRows], disks: &[&'static str]) -> Vec<String> {
    let mut chosen = Vec::new();
    for (name, _, rows) in tables {
        if *name != LAYOUT {
            outcome.claims.push(verdict(name, rows));
        }
        let figures = |row: &Row| [&means(row)[..], &extremes(row)[..]].concat();
        chosen.extend(rows.iter().map(|row| (format!("{name}: {}", row.name), figures(row))));
    }
    let columns = ["all fresh disks", "all aged disks", "all", "least of one tree", "most of one tree"];
    let columns = columns.map(str::to_string);
    outcome.table("How the defaults were chosen: disk time, in % of the default", "setting", &columns, chosen);
    let columns: Vec<String> = disks.iter().map(|d| d.to_string()).collect();
    for (name, _, rows) in tables {
        for (aged, state) in ["fresh", "aged to 70%"].iter().enumerate() {
            let rows = rows.iter().map(|row| (row.name.clone(), row.states[aged].clone())).collect();
            let title = format!("{name}, {state}: disk time, in % of the default (`{}`)", tables_default(tables, name));
            outcome.table(title, "setting", &columns, rows);
        }
    }
    columns
}

fn notes(trees: &Trees, tables: &[MechanismRows], layout: Layout) -> Vec<String> {
    let about: Vec<String> = tables
        .iter()
        .map(|(name, work, _)| format!("{name}: {}", work.iter().map(|w| WORK[*w]).collect::<Vec<_>>().join(", ")))
        .collect();
    vec![
        format!(
            "{FEW_FILES} files are read of a large tree of {} files, {:.1} MB, on {} MiB of each disk, fresh and aged; for prefetch only. All else: {} files of \
             C-source sizes in {} directories, {} trees of {:.1} MB on average; {}, blocks of 4 KiB, 32 MiB of cache; 512 MiB of each disk, \
             fresh, and 192 MiB of each, aged to 70% by {OPERATIONS} creations and deletions, which are others for each tree. Figures are geometric means \
             over the trees and over the work that a setting is there for. {}.",
            trees.large.files.len(),
            trees.large.bytes() as f64 / 1e6,
            LARGE_BYTES >> 20,
            trees.each[0].files.len(),
            trees.each[0].parents.len(),
            trees.each.len(),
            trees.each.iter().map(Tree::bytes).sum::<u64>() as f64 / 1e6 / trees.each.len() as f64,
            if layout == Layout::InPlace {
                "write-ahead log"
            } else {
                "a log disk, whose 70% are of what it can store, so in place there are more files when it is aged"
            },
            about.join("; ")
        ),
        format!(
            "How a default is judged: the geometric mean of its disk time over this work on all disks, fresh and aged, each disk in each \
             state with the same weight. It is the measured best when no other setting takes less than {:.0}% of its time. 0: no space was left \
             somewhere, so the setting is no candidate. \"{KNEE}\" is the rule of mkfs: the size whose transfer takes as long as the fixed cost of a \
             request, between 64 KiB and 1 MiB, here from the disk's model.",
            100.0 - MARGIN
        ),
    ]
}

fn tables_default<'a>(tables: &'a [MechanismRows], name: &str) -> &'a str {
    tables.iter().find(|(n, ..)| *n == name).and_then(|(_, _, rows)| rows.first()).map_or("", |row| &row.name)
}

/// Whether the default of a mechanism, its first row, is the best.
fn verdict(name: &str, rows: &[Row]) -> Claim {
    let others = rows[1..].iter().map(|row| (row, means(row))).filter(|(_, m)| m[2] > 0.0);
    let best = others.min_by(|a, b| a.1[2].total_cmp(&b.1[2]));
    let Some((best, [fresh, aged, all])) = best else {
        return Claim::at_least(format!("{name}: nothing but `{}` is possible", rows[0].name), 100.0, 100.0);
    };
    let text = format!("{name}: next to `{}` the best is `{}`, in % of its time", rows[0].name, best.name);
    Claim::at_least(text, 100.0 - MARGIN, all).because(|| {
        let [least, most] = extremes(best).map(shown);
        let [fresh, aged] = [fresh, aged].map(shown);
        format!(
            "`{}` takes {fresh}% on fresh disks and {aged}% on aged ones; {least} to {most}% by one tree alone.",
            best.name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_come_first_and_are_those_of_the_engine() {
        let today = Setup::today("nvme");
        for layout in Layout::both() {
            for mechanism in mechanisms(Place { profile: "nvme", aged: false, layout }) {
                let (name, first) = &mechanism.settings[0];
                let same = (first.group, first.fragment, first.prefetch, first.fsync_in_log, first.variant)
                    == (today.group, today.fragment, today.prefetch, today.fsync_in_log, today.variant);
                assert!(same && first.layout == layout, "{}: {name}", mechanism.name);
                assert!(mechanism.settings.len() > 1);
                let others = &mechanism.settings[1..];
                assert_eq!(others.iter().all(|(_, other)| other.layout == layout), mechanism.name != LAYOUT);
            }
        }
    }

    #[test]
    fn a_default_is_judged_over_fresh_and_aged_disks_together() {
        let row = |name: &str, fresh: f64, aged: f64| Row {
            name: name.to_string(),
            states: [vec![fresh; 2], vec![aged; 2]],
            alone: vec![vec![fresh; 2], vec![aged; 2]],
        };
        let rows = [row("a", 100.0, 100.0), row("b", 80.0, 126.0), row("c", 50.0, 0.0), row("d", 99.5, 99.5)];
        assert_eq!(means(&rows[2]), [50.0, 0.0, 0.0], "no space on aged disks");
        let claim = verdict("x", &rows);
        assert!(claim.holds() && claim.text.contains("`d`"), "{claim:?}");
        let claim = verdict("x", &[row("a", 100.0, 100.0), row("b", 80.0, 100.0)]);
        assert!(
            claim
                .why
                .is_some_and(|why| why.contains("80.0% on fresh") && why.ends_with("80.0 to 100% by one tree alone."))
        );
    }

    #[test]
    fn a_setting_is_compared_tree_by_tree() {
        let cost = |seconds: u64| Cost {
            phases: [Counters { time: seconds * 1_000_000_000, ..Counters::default() }; 8],
            used: 0,
        };
        let (default, other) = ([cost(1), cost(4)], [cost(2), cost(1)]);
        assert_eq!(ratios(&other, &default, 0).collect::<Vec<_>>(), [2.0, 0.25]);
        assert_eq!(ratios(&other, &default, FEW).collect::<Vec<_>>(), [2.0], "done with the first tree only");
    }

    #[test]
    fn a_mean_of_ratios_is_that_of_their_logarithms() {
        assert!((mean([0.5, 2.0].into_iter()) - 100.0).abs() < 1e-9);
    }
}
