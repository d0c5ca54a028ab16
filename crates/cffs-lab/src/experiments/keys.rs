//! Co-location by something else than the directory: keys, lists, and what was learned (the thesis, 2.3.2 and chapter 1).

use std::collections::HashMap;

use anyhow::{Result, ensure};
use cffs::{
    COLOCATION_ATTRIBUTE, Caller, ColocationKey, Fs, Ino, ROOT_INO, Regroup, RegroupOptions, RegroupOutcome, SetAttr,
    SetXattr, TimeSpec,
};

use super::harness::{Harness, Setup};
use super::libraries;
use super::outcome::{Claim, Outcome};
use crate::random::Random;

/// Groups as in an image, of which timing says nothing.
const GROUP: u64 = cffs::device::FALLBACK_GROUP_SIZE as u64;
/// Disks with libraries, and groups of about the longest request of each.
const LIBRARIES: [(&str, u64); 2] = [("volume-1ms", 256 << 10), ("hdd-2026", 1 << 20)];
/// Units of which the requests are counted.
const SAMPLES: usize = 100;
/// Files after which what was written is synced: things do not come all at once.
const AT_ONCE: usize = 500;

/// A file: its directory, its number there, its size, who makes it.
#[derive(Clone, Copy)]
struct Made {
    dir: usize,
    name: usize,
    size: u64,
    by: u32,
}

/// Files in the order in which they are made, and units of them that are read together.
struct Case {
    name: &'static str,
    key: ColocationKey,
    dirs: usize,
    files: Vec<Made>,
    /// Each by the numbers of its files, in the order of reading.
    units: Vec<Vec<usize>>,
    /// Each unit is a list.
    lists: bool,
}

fn size(random: &mut Random) -> u64 {
    let most = 1 + random.below(16_000);
    500 + random.below(most)
}

/// Files of `units` owners or processes in one directory, made by turns.
fn mixed(name: &'static str, key: ColocationKey, units: usize, each: usize) -> Case {
    let mut random = Random::new(7);
    let mut files = Vec::new();
    let mut by_unit = vec![Vec::new(); units];
    for n in 0..units * each {
        let by = random.below(units as u64) as usize;
        by_unit[by].push(n);
        files.push(Made { dir: 0, name: n, size: size(&mut random), by: 1000 + by as u32 });
    }
    Case { name, key, dirs: 1, files, units: by_unit, lists: false }
}

/// A cache of which a tenth is used every day.
fn cache(files: usize) -> Case {
    let mut random = Random::new(8);
    let all: Vec<Made> = (0..files).map(|n| Made { dir: 0, name: n, size: size(&mut random), by: 0 }).collect();
    let used = (0..files).filter(|_| random.below(10) == 0).collect();
    Case { name: "recently used", key: ColocationKey::Age, dirs: 1, files: all, units: vec![used], lists: false }
}

/// Pages of a site: each has two objects of its own in each of four directories, and two that others have too.
fn site(pages: usize) -> Case {
    let mut random = Random::new(9);
    let mut files = Vec::new();
    let mut order: Vec<usize> = (0..pages * 8).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at as u64 + 1) as usize);
    }
    let mut units = vec![Vec::new(); pages];
    for n in order {
        units[n / 8].push(files.len());
        files.push(Made { dir: n % 4, name: n, size: size(&mut random), by: 0 });
    }
    let shared: Vec<usize> = (0..pages / 25)
        .map(|n| {
            files.push(Made { dir: n % 4, name: pages * 8 + n, size: size(&mut random), by: 0 });
            files.len() - 1
        })
        .collect();
    for unit in &mut units {
        unit.sort_unstable_by_key(|n| (files[*n].dir, files[*n].name));
        let first = random.below(shared.len() as u64) as usize;
        unit.extend([shared[first], shared[(first + 1) % shared.len()]]);
    }
    Case { name: "a page of a site", key: ColocationKey::Directory, dirs: 4, files, units, lists: true }
}

/// A program that reads some files of many directories when it starts, always in the same order.
fn program(dirs: usize, each: usize) -> Case {
    let mut random = Random::new(10);
    let mut files = Vec::new();
    let mut start = Vec::new();
    for dir in 0..dirs {
        // A package is read as a whole or hardly.
        let one_in = [5, 20, 80][random.below(3) as usize];
        for name in 0..each {
            if random.below(one_in) == 0 {
                start.push(files.len());
            }
            files.push(Made { dir, name, size: size(&mut random), by: 0 });
        }
    }
    // Packages ask for each other, so their order is not that of the name space.
    start.sort_by_key(|n| (files[*n].dir * 37 % dirs, *n));
    Case { name: "a program's start", key: ColocationKey::Learned, dirs, files, units: vec![start], lists: false }
}

fn dir_of(fs: &Fs, dir: usize) -> Result<Ino> {
    let ino = fs.lookup(ROOT_INO, format!("d{dir:03}").as_bytes())?.ino;
    fs.forget(ino, 1);
    Ok(ino)
}

fn file_of(fs: &Fs, f: Made) -> Result<Ino> {
    let ino = fs.lookup(dir_of(fs, f.dir)?, format!("f{:05}", f.name).as_bytes())?.ino;
    fs.forget(ino, 1);
    Ok(ino)
}

impl Case {
    /// Makes the files.
    fn write(&self, fs: &Fs, key: &ColocationKey) -> Result<()> {
        let content = vec![0x5a; 1 << 16];
        let dirs = (0..self.dirs)
            .map(|d| Ok(fs.mkdir(Caller::ROOT, ROOT_INO, format!("d{d:03}").as_bytes(), 0o755)?.ino))
            .collect::<Result<Vec<Ino>>>()?;
        fs.set_colocation_key(Caller::ROOT, ROOT_INO, Some(key))?;
        for (n, f) in self.files.iter().enumerate() {
            let c = Caller { uid: f.by, gid: 100 };
            let ino = fs.create(c, dirs[f.dir], format!("f{:05}", f.name).as_bytes(), 0o644)?.ino;
            fs.note_creator(ino, f.by);
            fs.write(c, ino, 0, &content[..f.size as usize])?;
            fs.forget(ino, 1);
            if (n + 1) % AT_ONCE == 0 {
                fs.sync()?;
            }
        }
        dirs.into_iter().for_each(|ino| fs.forget(ino, 1));
        Ok(())
    }

    /// What is known only later: lists, times of use, the order of reading.
    fn tell(&self, fs: &Fs) -> Result<()> {
        if self.lists {
            // Those that several pages have are a list of their own. The names that the engine makes for lists have the time in them, which decides
            // over the order of the lists; these are the same in each run.
            let pages = self.pages();
            let list = |name: &str, files: &mut dyn Iterator<Item = usize>| -> Result<()> {
                for (at, n) in files.enumerate() {
                    let (file, value) = (file_of(fs, self.files[n])?, format!("list:{name}:{at}"));
                    fs.setxattr(
                        Caller::ROOT,
                        file,
                        COLOCATION_ATTRIBUTE.as_bytes(),
                        value.as_bytes(),
                        SetXattr::default(),
                    )?;
                }
                Ok(())
            };
            for (page, unit) in self.units.iter().enumerate() {
                list(&format!("page{page}"), &mut unit.iter().copied().filter(|n| pages[n] == 1))?;
            }
            let mut shared: Vec<usize> = pages.iter().filter(|(_, n)| **n > 1).map(|(n, _)| *n).collect();
            shared.sort_unstable();
            list("shared", &mut shared.into_iter())?;
        }
        if self.key == ColocationKey::Age {
            let old = Some(TimeSpec::At(0));
            let used = |n: usize| self.units[0].binary_search(&n).is_ok();
            for (_, f) in self.files.iter().enumerate().filter(|(n, _)| !used(*n)) {
                fs.setattr(Caller::ROOT, file_of(fs, *f)?, SetAttr::default().atime(old).mtime(old))?;
            }
        }
        Ok(())
    }

    /// The same files where nothing stands in the way: each unit in a directory of its own, and what several have in another one.
    fn apart(&self) -> Case {
        let pages = self.pages();
        let mut files = Vec::new();
        let mut made: HashMap<usize, usize> = HashMap::new();
        let mut units = vec![Vec::new(); self.units.len()];
        let shared = self.units.len();
        for (dir, unit) in self.units.iter().enumerate() {
            for n in unit {
                let at = *made.entry(*n).or_insert_with(|| {
                    let dir = if pages[n] == 1 { dir } else { shared };
                    files.push(Made { dir, name: files.len(), ..self.files[*n] });
                    files.len() - 1
                });
                units[dir].push(at);
            }
        }
        Case { name: self.name, key: ColocationKey::Directory, dirs: shared + 1, files, units, lists: false }
    }

    /// In how many units a file is.
    fn pages(&self) -> HashMap<usize, usize> {
        let mut pages: HashMap<usize, usize> = HashMap::new();
        self.units.iter().flatten().for_each(|n| *pages.entry(*n).or_default() += 1);
        pages
    }
}

/// Requests for the data of units that are read with nothing in memory, and all of them with those for names, on average.
fn read_units(harness: &mut Harness, case: &Case, process: u32) -> Result<[f64; 2]> {
    let step = (case.units.len() / SAMPLES).max(1);
    let sample: Vec<&Vec<usize>> = case.units.iter().step_by(step).take(SAMPLES).collect();
    let mut sums = [0.0; 2];
    for unit in &sample {
        let mut data = 0;
        let all = harness.phase(|fs| {
            let mut back = vec![0; 1 << 16];
            for n in *unit {
                let f = case.files[*n];
                let ino = file_of(fs, f)?;
                fs.note_read(process, ino, 0, back.len());
                ensure!(fs.read(ino, 0, &mut back)? as u64 == f.size, "a file has lost bytes");
            }
            data = fs.stats().device.kinds["data"].read_requests;
            Ok(())
        })?;
        sums[0] += data as f64 / sample.len() as f64;
        sums[1] += all.reads as f64 / sample.len() as f64;
    }
    Ok(sums)
}

/// Reads all files, directory by directory, in the order of their names in it. Seconds of disk time.
fn read_all(harness: &mut Harness) -> Result<f64> {
    let c = harness.phase(|fs| super::source::search(fs, ROOT_INO).map(drop))?;
    Ok(c.seconds())
}

fn regroup(harness: &mut Harness) -> Result<()> {
    let handle = Regroup::new();
    harness.phase(|fs| Ok(fs.regroup(&RegroupOptions::default(), &handle)?))?;
    let outcome = handle.status().outcome;
    ensure!(outcome == Some(RegroupOutcome::Complete), "a regroup ended with {outcome:?}");
    Ok(())
}

/// What one case came to.
struct Measured {
    by_directory: [f64; 2],
    by_key: [f64; 2],
    /// With each unit in a directory of its own.
    best: [f64; 2],
    /// Time to read everything: by directory, and by key.
    all: [f64; 2],
}

fn measure(case: &Case) -> Result<Measured> {
    let setup = Setup { group: GROUP as u32, ..Setup::today("volume-1ms") };
    let mut plain = Harness::new(&setup)?;
    plain.phase(|fs| case.write(fs, &ColocationKey::Directory))?;
    regroup(&mut plain)?;
    let by_directory = read_units(&mut plain, case, 1)?;
    let all_by_directory = read_all(&mut plain)?;
    let mut keyed = Harness::new(&setup)?;
    keyed.phase(|fs| case.write(fs, &case.key))?;
    keyed.phase(|fs| case.tell(fs))?;
    if case.key == ColocationKey::Learned {
        for process in 0..2 {
            read_units(&mut keyed, case, 10 + process)?;
        }
    }
    regroup(&mut keyed)?;
    let by_key = read_units(&mut keyed, case, 1)?;
    let all_by_key = read_all(&mut keyed)?;
    keyed.check()?;
    let apart = case.apart();
    let mut best = Harness::new(&setup)?;
    best.phase(|fs| apart.write(fs, &ColocationKey::Directory))?;
    regroup(&mut best)?;
    let best = read_units(&mut best, &apart, 1)?;
    Ok(Measured { by_directory, by_key, best, all: [all_by_directory, all_by_key] })
}

/// The experiment.
///
/// # Errors
/// Those of the engine.
pub fn colocation(scale: u64) -> Result<Outcome> {
    let n = |n: usize| n / scale as usize;
    let cases = [
        mixed("a user's files", ColocationKey::Owner, 50, n(200)),
        mixed("a process's files", ColocationKey::Process, 50, n(200)),
        cache(n(10_000)),
        site(n(1000)),
        program(n(300), 45),
    ];
    let mut outcome = Outcome::default();
    let (mut rows, mut walks) = (Vec::new(), Vec::new());
    for case in &cases {
        let m = measure(case)?;
        let name = case.name;
        rows.push((
            name.to_string(),
            vec![m.by_directory[0], m.by_key[0], m.best[0], m.by_directory[1], m.by_key[1], m.best[1]],
        ));
        walks.push((name.to_string(), m.all.to_vec()));
        outcome.claims.push(Claim::at_most(
            format!("{name}: requests for the data, best possible = 1"),
            1.3,
            m.by_key[0] / m.best[0],
        ));
        outcome.claims.push(Claim::at_least(
            format!("{name}: so many times fewer than by directory"),
            4.0,
            m.by_directory[0] / m.by_key[0].max(1.0),
        ));
        if case.key == ColocationKey::Learned {
            let claim = format!("{name}: time to read everything, by directory = 1");
            outcome.claims.push(Claim::at_most(claim, 1.1, m.all[1] / m.all[0]));
        }
    }
    let mut starts = Vec::new();
    for (disk, group) in LIBRARIES {
        let m = libraries::measure(disk, group, 120 / scale)?;
        let ([before, after, best], name) = (m.start, format!("parts of libraries, {disk}"));
        let claim = format!("{name}: requests for the data, best possible = 1");
        outcome.claims.push(Claim::at_most(claim, 1.3, after / best));
        if disk == "volume-1ms" {
            // On the other one an arm seeks to each of the parts.
            let claim = format!("{name}: time to read everything, before = 1");
            outcome.claims.push(Claim::at_most(claim, 1.1, m.all[1] / m.all[0]));
        }
        walks.push((name.clone(), m.all.to_vec()));
        starts.push((name, vec![before, after, best]));
    }
    let columns = ["before", "after", "best possible"].map(str::to_string);
    outcome.add("Requests for the data of a program's libraries", "requests", "case", &columns, starts, false);
    let columns = [
        "data, by directory",
        "data, by key",
        "data, best possible",
        "all, by directory",
        "all, by key",
        "all, best possible",
    ];
    outcome.add(
        "Requests to read what belongs together",
        "requests",
        "unit",
        &columns.map(str::to_string),
        rows,
        false,
    );
    let columns = ["by directory", "by key"].map(str::to_string);
    outcome.add("Disk time to read everything in the order of the name space", "s", "case", &columns, walks, false);
    outcome.notes = vec![format!(
        "On volume-1ms with groups of {} KiB, after a regroup with and without the key. Files of 0.5 to 16 KB are synced after each {AT_ONCE}; \
         the site's lists, the times of last use and two starts of the program are told after that. Averages of up to {SAMPLES} units, each read with \
         nothing in memory. Best possible: each unit in a directory of its own. Names stay with their directory whatever the key, so claims are of the data. \
         Libraries are of 1 to 7 MiB, with groups of 256 KiB and 1 MiB; of each a program reads 20 KB in up to four places, and parts of 64 KiB come together.",
        GROUP >> 10
    )];
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_of_a_small_case_is_read_with_fewer_requests_by_its_key() {
        for case in [mixed("owner", ColocationKey::Owner, 20, 60), site(100)] {
            let m = measure(&case).unwrap();
            assert!(
                m.by_key[0] < m.by_directory[0],
                "{}: {:?} by directory, {:?} by key",
                case.name,
                m.by_directory,
                m.by_key
            );
            assert!(m.by_key[0] < 3.0 * m.best[0], "{}: {:?}, at best {:?}", case.name, m.by_key, m.best);
        }
    }
}
