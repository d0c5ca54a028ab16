//! What was done and what was promised: which states of each name and of each
//! file a power cut may leave.
//!
//! A name has a list of what it may stand for; the last one is what it stands
//! for now. An operation adds to the list before it is asked for, since one
//! that was cut short may have happened; a promise (a successful fsync) leaves
//! only the last. A file knows up to where its content is promised, and which
//! generations of it each region may show.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

/// Contents are records: file, generation, offset.
pub const RECORD: usize = 16;
/// What is overwritten at once is whole regions, in bytes.
pub const REGION: usize = 4096;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thing {
    /// Nothing has this name.
    Nothing,
    /// A directory.
    Dir,
    /// The file with this id.
    File(u32),
}

/// What may be found in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Its length now, in bytes.
    pub len: usize,
    /// Promised up to here.
    pub promised: usize,
    /// The longest it may be found.
    longest: usize,
    /// Per region: the oldest and the newest generation that may be found.
    pub regions: Vec<(u32, u32)>,
    /// It lost something nobody had promised; it is only good for removal.
    pub spoiled: bool,
}

/// The states that one writer's part of the tree may have.
#[derive(Debug, Default)]
pub struct DurabilityOracle {
    names: BTreeMap<PathBuf, Vec<Thing>>,
    files: BTreeMap<u32, Content>,
    /// Renames of promised files that nothing has made durable: one of the two names has the file.
    renames: Vec<(PathBuf, PathBuf, u32)>,
}

/// One record's bytes.
fn record(id: u32, generation: u32, at: usize) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    bytes[..4].copy_from_slice(&id.to_le_bytes());
    bytes[4..8].copy_from_slice(&generation.to_le_bytes());
    bytes[8..].copy_from_slice(&(at as u64).to_le_bytes());
    bytes
}

impl DurabilityOracle {
    /// Names that stand for something now, with it.
    pub fn present(&self) -> impl Iterator<Item = (&Path, Thing)> {
        self.names.iter().filter_map(|(path, may)| match may.last() {
            Some(Thing::Nothing) | None => None,
            Some(thing) => Some((path.as_path(), *thing)),
        })
    }

    /// What is known of a file.
    pub fn content(&self, id: u32) -> Option<&Content> {
        self.files.get(&id)
    }

    /// Promises in force: names whose state is certain, and bytes.
    pub fn promises(&self) -> (usize, usize) {
        let names = self.names.values().filter(|may| may.len() == 1).count();
        (names, self.files.values().map(|file| file.promised).sum())
    }

    /// An operation that makes `path` stand for `thing` is about to be asked for.
    pub fn will_be(&mut self, path: &Path, thing: Thing) {
        self.renames.retain(|(from, to, _)| from != path && to != path);
        self.names.entry(path.to_path_buf()).or_insert_with(|| vec![Thing::Nothing]).push(thing);
        if let Thing::File(id) = thing {
            self.files.entry(id).or_default();
        }
    }

    /// A rename is about to be asked for.
    pub fn will_move(&mut self, from: &Path, to: &Path, id: u32) {
        let certain = self.names.get(from).is_some_and(|may| may.as_slice() == [Thing::File(id)]);
        self.will_be(from, Thing::Nothing);
        self.will_be(to, Thing::File(id));
        if certain {
            self.renames.push((from.to_path_buf(), to.to_path_buf(), id));
        }
    }

    /// The state of `path` is durable.
    pub fn promise_name(&mut self, path: &Path) {
        self.renames.retain(|(from, to, _)| from != path && to != path);
        if let Some(may) = self.names.get_mut(path) {
            may.drain(..may.len() - 1);
        }
    }

    /// The states of all names in `dir` are durable.
    pub fn promise_dir(&mut self, dir: &Path) {
        let inside: Vec<PathBuf> = self.names.keys().filter(|path| path.parent() == Some(dir)).cloned().collect();
        for path in inside {
            self.promise_name(&path);
        }
    }

    /// The bytes of a write of `len` bytes at `at`, which is about to be asked
    /// for: the end of the file, or the start of a region up to the end of one
    /// or of the file.
    pub fn will_write(&mut self, id: u32, at: usize, len: usize) -> Vec<u8> {
        let file = self.files.entry(id).or_default();
        let append = at == file.len;
        file.len = file.len.max(at + len);
        file.longest = file.longest.max(file.len);
        // Never fewer: a file that was cut may be found as it was.
        let regions = file.regions.len().max(file.len.div_ceil(REGION));
        file.regions.resize(regions, (0, 0));
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let here = at + bytes.len();
            let region = &mut file.regions[here / REGION];
            // What is appended to a region has the generation that it has.
            if here.is_multiple_of(REGION) && !append {
                region.1 += 1;
            }
            bytes.extend_from_slice(&record(id, region.1, here));
        }
        bytes.truncate(len);
        bytes
    }

    /// The file is about to be cut to nothing.
    pub fn will_cut(&mut self, id: u32) {
        let file = self.files.entry(id).or_default();
        file.promised = 0;
        file.len = 0;
        for region in &mut file.regions {
            region.1 += 1;
        }
    }

    /// The file's content is durable as it is now.
    pub fn promise_content(&mut self, id: u32) {
        if let Some(file) = self.files.get_mut(&id) {
            file.promised = file.len;
            file.longest = file.len;
            file.regions.truncate(file.len.div_ceil(REGION));
            for region in &mut file.regions {
                region.0 = region.1;
            }
        }
    }

    /// Everything is durable as it is now.
    pub fn promise_all(&mut self) {
        self.renames.clear();
        for may in self.names.values_mut() {
            may.drain(..may.len() - 1);
        }
        // Of what is spoiled nobody knows which mixture it is.
        let sound: Vec<u32> = self.files.iter().filter(|(_, file)| !file.spoiled).map(|(id, _)| *id).collect();
        for id in sound {
            self.promise_content(id);
        }
    }

    /// Compares what is there after a power cut (all names with what they stand
    /// for and, of files, the bytes) with what may be, and goes on from there.
    ///
    /// # Errors
    /// When a promise was broken, or something is there that nobody wrote.
    pub fn compare(&mut self, found: &BTreeMap<PathBuf, Option<Vec<u8>>>) -> Result<()> {
        let mut things = BTreeMap::new();
        let mut candidates = BTreeMap::new();
        for (path, bytes) in found {
            let may: BTreeSet<Thing> = self.names.get(path).into_iter().flatten().copied().collect();
            match bytes {
                Some(bytes) => drop(candidates.insert(path, self.candidates(path, bytes, &may)?)),
                None => {
                    ensure!(
                        may.contains(&Thing::Dir),
                        "{} is a directory, and can only be one of {may:?}",
                        path.display()
                    );
                    things.insert(path.clone(), Thing::Dir);
                }
            }
        }
        things.extend(one_name_each(&candidates)?);
        for (path, may) in &self.names {
            ensure!(
                things.contains_key(path) || may.contains(&Thing::Nothing),
                "{} is not there, and can only be one of {may:?}",
                path.display()
            );
        }
        for (from, to, id) in &self.renames {
            let at = [from, to].map(|path| things.get(path) == Some(&Thing::File(*id)));
            ensure!(at[0] != at[1], "renamed {} to {}: found at {at:?}", from.display(), to.display());
        }
        self.renames.clear();
        self.names = things.iter().map(|(path, thing)| (path.clone(), vec![*thing])).collect();
        let alive: BTreeMap<u32, &Vec<u8>> = things
            .iter()
            .filter_map(|(path, thing)| match (thing, &found[path]) {
                (Thing::File(id), Some(bytes)) => Some((*id, bytes)),
                _ => None,
            })
            .collect();
        self.files.retain(|id, _| alive.contains_key(id));
        for (id, bytes) in alive {
            if let Some(file) = self.files.get_mut(&id) {
                file.go_on_from(id, bytes);
            }
        }
        Ok(())
    }

    /// Which of the files that may have this name may have these bytes, the newest first: of two empty ones it is the one more
    /// likely meant.
    fn candidates(&self, path: &Path, bytes: &[u8], may: &BTreeSet<Thing>) -> Result<Vec<u32>> {
        let mut why = Vec::new();
        let mut ids = Vec::new();
        for thing in may.iter().rev() {
            let Thing::File(id) = thing else { continue };
            match self.files.get(id).map(|file| file.allows(*id, bytes)) {
                Some(Ok(())) => ids.push(*id),
                Some(Err(reason)) => why.push(format!("as file {id}: {reason:#}")),
                None => {}
            }
        }
        if ids.is_empty() && why.is_empty() {
            bail!("{} is a file of {} bytes, and can only be one of {may:?}", path.display(), bytes.len());
        }
        ensure!(!ids.is_empty(), "{} is not what it may be: {}", path.display(), why.join("; "));
        Ok(ids)
    }
}

/// Says which file each name stands for. No file has two names, and only so can files without bytes be told apart: where a rename
/// may not have happened, the name that would be gone has the file, and the other one has what it had.
///
/// # Errors
/// When a file has two names.
fn one_name_each(candidates: &BTreeMap<&PathBuf, Vec<u32>>) -> Result<BTreeMap<PathBuf, Thing>> {
    /// Finds a file for `path`, and another one for the name that has it, if need be.
    fn find<'a>(
        path: &'a PathBuf,
        candidates: &BTreeMap<&'a PathBuf, Vec<u32>>,
        seen: &mut BTreeSet<u32>,
        names: &mut BTreeMap<u32, &'a PathBuf>,
    ) -> bool {
        for id in &candidates[path] {
            let other = names.get(id).copied();
            if seen.insert(*id) && other.is_none_or(|other| find(other, candidates, seen, names)) {
                names.insert(*id, path);
                return true;
            }
        }
        false
    }
    let mut names = BTreeMap::new();
    for path in candidates.keys() {
        if !find(path, candidates, &mut BTreeSet::new(), &mut names) {
            let ids = &candidates[path];
            let others: Vec<_> = ids.iter().filter_map(|id| names.get(id)).map(|path| path.display()).collect();
            bail!("{} can only be one of the files {ids:?}, and those are {others:?}", path.display());
        }
    }
    Ok(names.into_iter().map(|(id, path)| (path.clone(), Thing::File(id))).collect())
}

impl Content {
    /// Whether a power cut may leave `bytes`.
    fn allows(&self, id: u32, bytes: &[u8]) -> Result<()> {
        ensure!(bytes.len() >= self.promised, "{} bytes, of {} promised ones", bytes.len(), self.promised);
        ensure!(bytes.len() <= self.longest, "{} bytes, and cannot have more than {}", bytes.len(), self.longest);
        for (n, found) in bytes.chunks(RECORD).enumerate() {
            let at = n * RECORD;
            let (oldest, newest) = self.regions.get(at / REGION).copied().unwrap_or((0, 0));
            let own = (oldest..=newest).any(|generation| record(id, generation, at)[..found.len()] == *found);
            if own {
                continue;
            }
            ensure!(
                at >= self.promised,
                "promised bytes at {at} are {found:02x?}, not generation {oldest} to {newest}"
            );
            // Where nothing is promised there may be the hole that comes before the data, and the end of what is
            // promised may lie within this record.
            ensure!(found.iter().all(|b| *b == 0), "bytes at {at} are not its own: {found:02x?}");
        }
        Ok(())
    }

    /// What was found is durable now.
    fn go_on_from(&mut self, id: u32, bytes: &[u8]) {
        let mut regions = Vec::new();
        let mut whole = true;
        for (n, region) in bytes.chunks(REGION).enumerate() {
            let (oldest, newest) = self.regions.get(n).copied().unwrap_or((0, 0));
            let seen = (oldest..=newest).find(|generation| {
                region
                    .chunks(RECORD)
                    .enumerate()
                    .all(|(r, found)| record(id, *generation, n * REGION + r * RECORD)[..found.len()] == *found)
            });
            whole &= seen.is_some();
            let seen = seen.unwrap_or(newest);
            regions.push((seen, seen));
        }
        self.spoiled |= !whole;
        self.len = bytes.len();
        self.longest = self.len;
        self.promised = if self.spoiled { 0 } else { self.len };
        if self.spoiled {
            // Any mixture that was found may be found again.
            for (old, new) in self.regions.iter().zip(&mut regions) {
                *new = *old;
            }
        }
        self.regions = regions;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(entries: &[(&str, &[u8])]) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        entries.iter().map(|(path, bytes)| (PathBuf::from(path), Some(bytes.to_vec()))).collect()
    }

    #[test]
    fn a_promised_file_must_be_there_and_whole() {
        let start = || {
            let mut oracle = DurabilityOracle::default();
            oracle.will_be(Path::new("a"), Thing::File(1));
            let bytes = oracle.will_write(1, 0, 10_000);
            (oracle, bytes)
        };
        let (mut oracle, _) = start();
        oracle.compare(&found(&[])).unwrap();
        let (mut oracle, bytes) = start();
        oracle.compare(&found(&[("a", &bytes[..5000])])).unwrap();
        let (mut oracle, mut bytes) = start();
        bytes[4096..8192].fill(0);
        oracle.compare(&found(&[("a", &bytes)])).unwrap();
        assert!(oracle.content(1).unwrap().spoiled, "a hole where data was");

        let (mut oracle, bytes) = start();
        oracle.promise_content(1);
        oracle.promise_name(Path::new("a"));
        for wrong in [&bytes[..9999], &[0; 10_000][..], &[&bytes[..], &[0; 16]].concat()[..4096]] {
            assert!(oracle.compare(&found(&[("a", wrong)])).is_err(), "{} bytes", wrong.len());
        }
        assert!(oracle.compare(&found(&[])).is_err());
        assert!(oracle.compare(&found(&[("a", &bytes), ("b", &bytes)])).is_err(), "a name nobody gave");
        oracle.compare(&found(&[("a", &bytes)])).unwrap();
    }

    #[test]
    fn overwritten_regions_are_old_or_new_until_promised() {
        let mut oracle = DurabilityOracle::default();
        oracle.will_be(Path::new("a"), Thing::File(1));
        let old = oracle.will_write(1, 0, 3 * REGION);
        oracle.promise_content(1);
        oracle.promise_name(Path::new("a"));
        let new = oracle.will_write(1, REGION, REGION);
        assert_ne!(old[REGION..2 * REGION], new);
        let mut changed = old.clone();
        changed[REGION..2 * REGION].copy_from_slice(&new);
        let file = oracle.content(1).unwrap().clone();
        file.allows(1, &old).unwrap();
        file.allows(1, &changed).unwrap();
        let mut torn = old.clone();
        torn[REGION..REGION + 512].copy_from_slice(&new[..512]);
        file.allows(1, &torn).unwrap();
        oracle.promise_content(1);
        let file = oracle.content(1).unwrap().clone();
        file.allows(1, &changed).unwrap();
        assert!(file.allows(1, &old).is_err() && file.allows(1, &torn).is_err());
        torn[0] ^= 1;
        assert!(file.allows(1, &torn).is_err());
    }

    #[test]
    fn of_empty_files_the_one_that_was_not_renamed_has_its_old_name() {
        let start = || {
            let mut oracle = DurabilityOracle::default();
            for (name, id) in [("a", 1), ("b", 2)] {
                oracle.will_be(Path::new(name), Thing::File(id));
                oracle.will_write(id, 0, 32);
            }
            // Over the older one; nothing was promised.
            oracle.will_move(Path::new("b"), Path::new("a"), 2);
            oracle
        };
        let mut oracle = start();
        oracle.compare(&found(&[("a", &[]), ("b", &[])])).unwrap();
        let is: Vec<(&Path, Thing)> = oracle.present().collect();
        assert_eq!(is, [(Path::new("a"), Thing::File(1)), (Path::new("b"), Thing::File(2))]);
        // One name after the other has the file that another may have.
        let mut oracle = start();
        oracle.will_be(Path::new("c"), Thing::File(3));
        oracle.will_move(Path::new("c"), Path::new("b"), 3);
        oracle.compare(&found(&[("a", &[]), ("b", &[]), ("c", &[])])).unwrap();
        let is: Vec<Thing> = oracle.present().map(|(_, thing)| thing).collect();
        assert_eq!(is, [1, 2, 3].map(Thing::File));
        let mut oracle = start();
        oracle.compare(&found(&[("a", &[])])).unwrap();
        assert_eq!(oracle.present().next(), Some((Path::new("a"), Thing::File(2))), "more likely");
        let two: Vec<u8> = [record(2, 0, 0), record(2, 0, 16)].concat();
        start().compare(&found(&[("a", &[]), ("b", &two)])).unwrap();
        let twice = start().compare(&found(&[("a", &two), ("b", &two)])).unwrap_err();
        assert!(twice.to_string().contains("can only be one of the files [2]"), "{twice}");
        assert!(start().compare(&found(&[("a", &two), ("b", &[])])).is_err(), "b can only be file 2, and a is");
    }

    #[test]
    fn a_renamed_file_has_one_of_its_names() {
        let start = || {
            let mut oracle = DurabilityOracle::default();
            for (name, id) in [("a", 1), ("b", 2)] {
                oracle.will_be(Path::new(name), Thing::File(id));
                oracle.will_write(id, 0, 32);
                oracle.promise_content(id);
                oracle.promise_name(Path::new(name));
            }
            oracle.will_move(Path::new("a"), Path::new("b"), 1);
            oracle
        };
        let one: Vec<u8> = [record(1, 0, 0), record(1, 0, 16)].concat();
        let two: Vec<u8> = [record(2, 0, 0), record(2, 0, 16)].concat();
        start().compare(&found(&[("a", &one), ("b", &two)])).unwrap();
        start().compare(&found(&[("b", &one)])).unwrap();
        assert!(start().compare(&found(&[("a", &one)])).is_err(), "the replaced name is never gone");
        assert!(start().compare(&found(&[("b", &two)])).is_err(), "the renamed file is never gone");
        assert!(start().compare(&found(&[("a", &one), ("b", &one)])).is_err(), "nor there twice");
        for promise in [
            |oracle: &mut DurabilityOracle| oracle.promise_dir(Path::new("")),
            |oracle: &mut DurabilityOracle| oracle.promise_all(),
        ] {
            let mut oracle = start();
            promise(&mut oracle);
            assert!(oracle.compare(&found(&[("a", &one), ("b", &two)])).is_err(), "promised to be renamed");
            oracle.compare(&found(&[("b", &one)])).unwrap();
        }
    }
}
