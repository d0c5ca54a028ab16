//! What each mechanism is worth: the same work with each of its settings, on all disks.

use anyhow::Result;
use cffs::format::ROOT_INO;
use cffs::fs::Fs;
use cffs::fs::api::{Caller, PrefetchMode};
use cffs_disk::{Counters, profiles};

use super::aging::age;
use super::outcome::{Claim, Outcome};
use super::rig::{Rig, Setup, Variant, create, make_dir, with};
use super::source::{Tree, file_name, read_whole, remove_below, search, walk};
use crate::random::Random;

/// What is done, each time from a cold cache.
const WORK: [&str; 7] =
    ["unpack", "search", "walk", "one file of each directory", "overwrite", "create + fsync", "remove"];
/// Files that are created and fsynced, and files in one directory of them.
const SYNCED: u64 = 200;
const PER_DIR: u64 = 20;
/// Bytes of each.
const SYNCED_BYTES: usize = 4096;
/// An alternative has to be better by so much that it counts, in %.
const MARGIN: f64 = 2.0;
/// Disks on which the same is done after aging, how full they are then, and how many creations and deletions that takes.
const AGED: [&str; 3] = ["hdd-2026", "volume-1ms", "sd-card"];
const LEVEL: f64 = 0.7;
const OPERATIONS: u64 = 3000;
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
    let mut groups = vec![today.group];
    groups.extend([16, 32, 64, 128, 256, 512, 1024, 4096].map(|k| k << 10).iter().filter(|g| **g != today.group));
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
            work: &[1, 2, 3, 4],
        },
        Mechanism {
            name: "group size",
            settings: groups.into_iter().map(|group| (kib(group), Setup { group, ..today.clone() })).collect(),
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
struct Cost {
    phases: [Counters; 7],
    used: u64,
}

fn run(setup: &Setup, tree: &Tree, aging: u64) -> Result<Cost> {
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
    Ok(Cost { phases: [unpack, searched, walked, scattered, overwritten, synced, removed], used })
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

/// All mechanisms on all disks.
///
/// # Errors
/// Those of the engine.
pub fn ablation(scale: u64) -> Result<Outcome> {
    let tree = Tree::new(2000 / scale, (160 / scale).max(4), 26);
    let mut places: Vec<(&'static str, bool)> = profiles::all().iter().map(|p| (p.name, false)).collect();
    let fresh = places.len();
    places.extend(AGED.map(|name| (name, true)));
    let place = |(disk, aged): &(&str, bool)| if *aged { format!("{disk}, aged") } else { disk.to_string() };
    let mut outcome = Outcome::default();
    // For each mechanism and setting: a column for each place.
    let mut tables: Vec<Vec<(String, Vec<f64>)>> = Vec::new();
    let mut names = Vec::new();
    let mut defaults = Vec::new();
    let mut space: Vec<(String, Vec<f64>)> = Vec::new();
    let mut by_work: [Vec<(String, Vec<f64>)>; 2] = Default::default();
    for (at, (profile, aged)) in places.iter().enumerate() {
        let aging = if *aged { (OPERATIONS / scale).max(1) } else { 0 };
        let default = run(&Setup { bytes: BYTES[usize::from(*aged)], ..Setup::today(profile) }, &tree, aging)?;
        for (m, mechanism) in mechanisms(profile, *aged).into_iter().enumerate() {
            if at == 0 {
                names.push((mechanism.name, mechanism.work));
                tables.push(mechanism.settings.iter().map(|(name, _)| (name.clone(), Vec::new())).collect());
            }
            for (s, (name, setup)) in mechanism.settings.iter().enumerate() {
                let found = if s == 0 { None } else { Some(run(setup, &tree, aging)) };
                let cost = match found.transpose() {
                    Ok(cost) => cost,
                    Err(error) => {
                        let at = format!("{}: {name} on {}", mechanism.name, place(&(*profile, *aged)));
                        // Aged, some settings leave no room for the tree: a finding, not the end of the others.
                        if !matches!(error.downcast_ref(), Some(cffs::error::Error::NoSpace)) {
                            return Err(error.context(at));
                        }
                        outcome.untested.push((at, format!("{error:#}")));
                        tables[m][s].1.push(0.0);
                        continue;
                    }
                };
                let cost = cost.as_ref().unwrap_or(&default);
                let ratio = |w: usize| cost.phases[w].seconds().max(1e-6) / default.phases[w].seconds().max(1e-6);
                tables[m][s].1.push(mean(mechanism.work.iter().map(|w| ratio(*w))));
                if *profile == "hdd-2026" {
                    let row = (0..WORK.len()).map(|w| ratio(w) * 100.0).collect();
                    by_work[usize::from(*aged)].push((format!("{}: {name}", mechanism.name), row));
                    if !aged && ["fragment size", "embedding and grouping"].contains(&mechanism.name) {
                        let waste = (cost.used as f64 / tree.bytes() as f64 - 1.0) * 100.0;
                        space.push((format!("{}: {name}", mechanism.name), vec![waste]));
                    }
                }
            }
        }
        defaults.push((place(&(*profile, *aged)), default.phases.iter().map(Counters::seconds).collect()));
    }
    let mut columns: Vec<String> = places.iter().map(&place).collect();
    columns.extend(["all fresh disks", "all aged disks"].map(str::to_string));
    for ((name, _), rows) in names.iter().zip(&mut tables) {
        for (_, row) in rows.iter_mut() {
            let means =
                [&row[..fresh], &row[fresh..]].map(|part| mean(part.iter().filter(|r| **r > 0.0).map(|r| r / 100.0)));
            row.extend(means);
        }
        let whole = |row: &&(String, Vec<f64>)| row.1.iter().all(|r| *r > 0.0);
        for (column, state) in [(places.len(), "fresh"), (places.len() + 1, "aged")] {
            if let Some((best, row)) = rows[1..].iter().filter(whole).min_by(|a, b| a.1[column].total_cmp(&b.1[column]))
            {
                let text =
                    format!("{state} disks, {name}: next to `{}` the best is `{best}`, in % of its time", rows[0].0);
                outcome.claims.push(Claim::at_least(text, 100.0 - MARGIN, row[column]));
            }
        }
        let title = format!("{name}: disk time, in % of the default (`{}`)", rows[0].0);
        outcome.table(title, "setting", &columns, rows.clone());
    }
    let [by_work, by_work_aged] = by_work;
    let columns = WORK.map(str::to_string);
    outcome.table("hdd-2026, by work: disk time, in % of the default", "setting", &columns, by_work);
    outcome.table("hdd-2026, aged, by work: disk time, in % of the default", "setting", &columns, by_work_aged);
    outcome.table("Space beyond the contents (%)", "setting", &["waste".to_string()], space);
    outcome.table("The defaults: disk time (s)", "disk", &WORK.map(str::to_string), defaults);
    let about: Vec<String> = names
        .iter()
        .map(|(name, work)| format!("{name}: {}", work.iter().map(|w| WORK[*w]).collect::<Vec<_>>().join(", ")))
        .collect();
    outcome.notes = vec![
        format!(
            "{} files of C-source sizes in {} directories, {:.1} MB; write-ahead log, blocks of 4 KiB, 32 MiB of cache; 512 MiB of each \
             disk, fresh, and 192 MiB of three of them, aged to 70%. Figures are geometric means over the work that a setting is there for. {}.",
            tree.files.len(),
            tree.parents.len(),
            tree.bytes() as f64 / 1e6,
            about.join("; ")
        ),
        format!(
            "A default is the measured best when no other setting takes less than {:.0}% of its time, over all fresh and over all aged disks. 0: no space left.",
            100.0 - MARGIN
        ),
    ];
    outcome.untested.push(("grouping of subtrees on and off".into(), "there is no such switch".into()));
    Ok(outcome)
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
    fn a_mean_of_ratios_is_that_of_their_logarithms() {
        assert!((mean([0.5, 2.0].into_iter()) - 100.0).abs() < 1e-9);
    }
}
