//! What each mechanism is worth: the same work with each of its settings, on all disks.

use anyhow::Result;
use cffs::format::ROOT_INO;
use cffs::fs::Fs;
use cffs::fs::api::{Caller, PrefetchMode};
use cffs_disk::{Counters, profiles};

use super::aging::age;
use super::outcome::{Claim, Outcome, shown};
use super::rig::{Rig, Setup, Variant, create, make_dir, with};
use super::source::{Tree, file_name, read_whole, remove_below, search, walk};
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
/// An alternative has to be better by so much that it counts, in %.
const MARGIN: f64 = 2.0;
/// How full the aged disks are, and how many creations and deletions that takes.
const LEVEL: f64 = 0.7;
const OPERATIONS: u64 = 3000;
/// The name of the rule by which mkfs chooses.
const KNEE: &str = "the knee";
/// Bytes of a fresh and of an aged disk.
const BYTES: [u64; 2] = [512 << 20, 192 << 20];

/// A mechanism with its settings, the default first, and the work that it is there for.
struct Mechanism {
    name: &'static str,
    settings: Vec<(String, Setup)>,
    work: &'static [usize],
}

fn mechanisms(profile: &'static str, aged: bool) -> Vec<Mechanism> {
    let today = Setup { bytes: BYTES[usize::from(aged)], ..Setup::today(profile) };
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
    vec![
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
    ]
}

/// What one setup needs for the work: disk time of each, and the bytes on the disk after unpacking.
#[derive(Clone, Copy)]
struct Cost {
    phases: [Counters; 8],
    used: u64,
}

fn run(setup: &Setup, tree: &Tree, aging: u64, large: Option<&Tree>) -> Result<Cost> {
    let mut rig = Rig::new(setup)?;
    if aging > 0 {
        rig.phase(|fs| age(fs, LEVEL, aging))?;
    }
    let empty = rig.used_bytes()?;
    let unpack = rig.phase(|fs| tree.unpack(fs, "tree"))?;
    let used = rig.used_bytes()? - empty;
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
    let searched = rig.phase(|fs| top(fs, &|dir| search(fs, dir).map(drop)))?;
    let walked = rig.phase(|fs| top(fs, &|dir| walk(fs, dir).map(drop)))?;
    let scattered = rig.phase(|fs| inside(fs, &|dirs| one_of_each(fs, tree, dirs)))?;
    let new = vec![0xa5; 8 << 10];
    let overwritten = rig.phase(|fs| {
        inside(fs, &|dirs| {
            for (n, (dir, size)) in tree.files.iter().enumerate() {
                let piece = &new[..(*size).min(new.len())];
                with(fs, dirs[*dir], &file_name(n), |ino| fs.write(Caller::ROOT, ino, 0, piece))?;
            }
            Ok(())
        })
    })?;
    let synced = rig.phase(|fs| {
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
    let removed = rig.phase(|fs| top(fs, &|dir| remove_below(fs, dir)))?;
    rig.check()?;
    let few = large.map(|tree| few(setup, tree, aging)).transpose()?.unwrap_or_default();
    Ok(Cost { phases: [unpack, searched, walked, scattered, overwritten, synced, removed, few], used })
}

/// Reads a few files of a large tree, in no order: hardly two of a group, and never the next one.
fn few(setup: &Setup, tree: &Tree, aging: u64) -> Result<Counters> {
    let mut rig = Rig::new(&Setup { bytes: LARGE_BYTES, ..setup.clone() })?;
    if aging > 0 {
        rig.phase(|fs| age(fs, LEVEL, aging))?;
    }
    rig.phase(|fs| tree.unpack(fs, "tree"))?;
    let mut random = Random::new(8);
    let chosen: Vec<usize> = (0..FEW_FILES).map(|_| random.below(tree.files.len() as u64) as usize).collect();
    rig.phase(|fs| {
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
type Row = (String, [Vec<f64>; 2]);

/// The means over all fresh disks, all aged ones, and both. 0 if space was missing anywhere.
fn means(row: &Row) -> [f64; 3] {
    let [fresh, aged] = &row.1;
    let of = |parts: &[&Vec<f64>]| {
        let all = || parts.iter().flat_map(|p| p.iter().copied());
        if all().all(|r| r > 0.0) { mean(all().map(|r| r / 100.0)) } else { 0.0 }
    };
    [of(&[fresh]), of(&[aged]), of(&[fresh, aged])]
}

/// All mechanisms on all disks.
///
/// # Errors
/// Those of the engine.
pub fn ablation(scale: u64) -> Result<Outcome> {
    let tree = Tree::new(2000 / scale, (160 / scale).max(4), 26);
    let large = Tree::new(LARGE.0 / scale, (LARGE.1 / scale).max(4), 27);
    let disks: Vec<&'static str> = profiles::all().iter().map(|p| p.name).collect();
    let mut outcome = Outcome::default();
    let mut tables: Vec<(&'static str, &'static [usize], Vec<Row>)> = Vec::new();
    let (mut defaults, mut space) = (Vec::new(), Vec::new());
    let mut by_work: [Vec<(String, Vec<f64>)>; 2] = Default::default();
    for aged in [false, true] {
        let aging = if aged { (OPERATIONS / scale).max(1) } else { 0 };
        for profile in &disks {
            let place = format!("{profile}{}", if aged { ", aged" } else { "" });
            let default =
                run(&Setup { bytes: BYTES[usize::from(aged)], ..Setup::today(profile) }, &tree, aging, Some(&large))?;
            // Several names may stand for the same size.
            let mut groups: Vec<(u32, Option<Cost>)> = Vec::new();
            for (m, mechanism) in mechanisms(profile, aged).into_iter().enumerate() {
                if tables.len() == m {
                    let rows = mechanism.settings.iter().map(|(name, _)| (name.clone(), Default::default())).collect();
                    tables.push((mechanism.name, mechanism.work, rows));
                }
                for (s, (name, setup)) in mechanism.settings.iter().enumerate() {
                    let known = groups.iter().find(|(g, _)| mechanism.name == "group size" && *g == setup.group);
                    let cost = match (s, known) {
                        (0, _) => Some(default),
                        (_, Some((_, cost))) => *cost,
                        _ => match run(setup, &tree, aging, mechanism.work.contains(&FEW).then_some(&large)) {
                            Ok(cost) => Some(cost),
                            // Aged, some settings leave no room for the tree: a finding, not the end of the others.
                            Err(error) if matches!(error.downcast_ref(), Some(cffs::error::Error::NoSpace)) => {
                                let at = format!("{}: {name} on {place}", mechanism.name);
                                outcome.untested.push((at, format!("{error:#}")));
                                None
                            }
                            Err(error) => return Err(error.context(format!("{}: {name} on {place}", mechanism.name))),
                        },
                    };
                    if mechanism.name == "group size" {
                        groups.push((setup.group, cost));
                    }
                    let column = &mut tables[m].2[s].1[usize::from(aged)];
                    let Some(cost) = cost else {
                        column.push(0.0);
                        continue;
                    };
                    let ratio = |w: usize| cost.phases[w].seconds().max(1e-6) / default.phases[w].seconds().max(1e-6);
                    column.push(mean(mechanism.work.iter().map(|w| ratio(*w))));
                    if *profile == "hdd-2026" {
                        let was_done = |w: &usize| *w != FEW || mechanism.work.contains(w);
                        let row = (0..WORK.len()).map(|w| if was_done(&w) { ratio(w) * 100.0 } else { 0.0 }).collect();
                        by_work[usize::from(aged)].push((format!("{}: {name}", mechanism.name), row));
                        if !aged && ["fragment size", "embedding and grouping"].contains(&mechanism.name) {
                            let waste = (cost.used as f64 / tree.bytes() as f64 - 1.0) * 100.0;
                            space.push((format!("{}: {name}", mechanism.name), vec![waste]));
                        }
                    }
                }
            }
            defaults.push((place, default.phases.iter().map(Counters::seconds).collect()));
        }
    }
    let mut chosen = Vec::new();
    for (name, _, rows) in &tables {
        outcome.claims.push(verdict(name, rows));
        chosen.extend(rows.iter().map(|row| (format!("{name}: {}", row.0), means(row).to_vec())));
    }
    let columns = ["all fresh disks", "all aged disks", "all"].map(str::to_string);
    outcome.table("How the defaults were chosen: disk time, in % of the default", "setting", &columns, chosen);
    let columns: Vec<String> = disks.iter().map(|d| d.to_string()).collect();
    for (name, _, rows) in &tables {
        for (aged, state) in ["fresh", "aged to 70%"].iter().enumerate() {
            let rows = rows.iter().map(|(setting, figures)| (setting.clone(), figures[aged].clone())).collect();
            let title =
                format!("{name}, {state}: disk time, in % of the default (`{}`)", tables_default(&tables, name));
            outcome.table(title, "setting", &columns, rows);
        }
    }
    let kib = |disk: &&'static str| f64::from(Setup::today(disk).group >> 10);
    outcome.table("The knee (KiB)", "", &columns, vec![("group".into(), disks.iter().map(kib).collect())]);
    let [by_work, by_work_aged] = by_work;
    let columns = WORK.map(str::to_string);
    outcome.table("hdd-2026, by work: disk time, in % of the default", "setting", &columns, by_work);
    outcome.table("hdd-2026, aged, by work: disk time, in % of the default", "setting", &columns, by_work_aged);
    outcome.table("Space beyond the contents (%)", "setting", &["waste".to_string()], space);
    outcome.table("The defaults: disk time (s)", "disk", &WORK.map(str::to_string), defaults);
    let about: Vec<String> = tables
        .iter()
        .map(|(name, work, _)| format!("{name}: {}", work.iter().map(|w| WORK[*w]).collect::<Vec<_>>().join(", ")))
        .collect();
    outcome.notes = vec![
        format!(
            "{FEW_FILES} files are read of a large tree of {} files, {:.1} MB, on {} MiB of each disk, fresh and aged; for prefetch only. All else: {} files of \
             C-source sizes in {} directories, {:.1} MB; write-ahead log, blocks of 4 KiB, 32 MiB of cache; 512 MiB of each disk, \
             fresh, and 192 MiB of each, aged to 70% by {OPERATIONS} creations and deletions. Figures are geometric means over the work that \
             a setting is there for. {}.",
            large.files.len(),
            large.bytes() as f64 / 1e6,
            LARGE_BYTES >> 20,
            tree.files.len(),
            tree.parents.len(),
            tree.bytes() as f64 / 1e6,
            about.join("; ")
        ),
        format!(
            "How a default is judged: the geometric mean of its disk time over this work on all disks, fresh and aged, each disk in each \
             state with the same weight. It is the measured best when no other setting takes less than {:.0}% of its time. 0: no space was left \
             somewhere, so the setting is no candidate. \"{KNEE}\" is the rule of mkfs: the size whose transfer takes as long as the fixed cost of a \
             request, between 64 KiB and 1 MiB, here from the disk's model.",
            100.0 - MARGIN
        ),
    ];
    Ok(outcome)
}

fn tables_default<'a>(tables: &'a [(&'static str, &'static [usize], Vec<Row>)], name: &str) -> &'a str {
    tables.iter().find(|(n, ..)| *n == name).and_then(|(_, _, rows)| rows.first()).map_or("", |row| &row.0)
}

/// Whether the default of a mechanism, its first row, is the best.
fn verdict(name: &str, rows: &[Row]) -> Claim {
    let others = rows[1..].iter().map(|row| (&row.0, means(row))).filter(|(_, m)| m[2] > 0.0);
    let best = others.min_by(|a, b| a.1[2].total_cmp(&b.1[2]));
    let (setting, [fresh, aged, all]) = best.map_or(("nothing else", [100.0; 3]), |(n, m)| (n.as_str(), m));
    let text = format!("{name}: next to `{}` the best is `{setting}`, in % of its time", rows[0].0);
    Claim::at_least(text, 100.0 - MARGIN, all)
        .because(|| format!("`{setting}` takes {}% on fresh disks and {}% on aged ones.", shown(fresh), shown(aged)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_come_first_and_are_those_of_the_engine() {
        let today = Setup::today("nvme");
        for mechanism in mechanisms("nvme", false) {
            let (name, first) = &mechanism.settings[0];
            let same = (first.group, first.fragment, first.prefetch, first.fsync_in_log, first.variant)
                == (today.group, today.fragment, today.prefetch, today.fsync_in_log, today.variant);
            assert!(same, "{}: {name}", mechanism.name);
            assert!(mechanism.settings.len() > 1);
        }
    }

    #[test]
    fn a_default_is_judged_over_fresh_and_aged_disks_together() {
        let row = |name: &str, fresh: f64, aged: f64| (name.to_string(), [vec![fresh; 2], vec![aged; 2]]);
        let rows = [row("a", 100.0, 100.0), row("b", 80.0, 126.0), row("c", 50.0, 0.0), row("d", 99.5, 99.5)];
        assert_eq!(means(&rows[2]), [50.0, 0.0, 0.0], "no space on aged disks");
        let claim = verdict("x", &rows);
        assert!(claim.holds() && claim.text.contains("`d`"), "{claim:?}");
        let claim = verdict("x", &[row("a", 100.0, 100.0), row("b", 80.0, 100.0)]);
        assert!(claim.why.is_some_and(|why| why.contains("80.0% on fresh")));
    }

    #[test]
    fn a_mean_of_ratios_is_that_of_their_logarithms() {
        assert!((mean([0.5, 2.0].into_iter()) - 100.0).abs() < 1e-9);
    }
}
