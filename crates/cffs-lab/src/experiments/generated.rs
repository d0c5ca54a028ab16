//! A made-up history of a large source repository, the same on every machine: many commits, each with a few files in a few
//! directories.

use std::collections::BTreeMap;

use super::source::size;
use crate::random::Random;

/// A change of a path: its new size, or none when it is removed.
pub type Change = (String, Option<u64>);

/// Files of the first commit, and the directories that they are in.
const FIRST: u64 = 40_000;
const DIRS: u64 = 3000;
/// Commits after it.
const COMMITS: u64 = 4000;
/// One commit in so many brings a new directory, with from 40 to 200 files.
const NEW_PART: u64 = 50;
/// A directory is this deep at most.
const DEPTH: usize = 6;
/// Most directories that a commit touches, and most files that it changes in each.
const TOUCHED: u64 = 4;
const CHANGED: u64 = 6;
/// Of a hundred changes so many write a file anew, make one, and remove one. The others rename one.
const REWRITTEN: u64 = 70;
const MADE: u64 = 18;
const REMOVED: u64 = 7;

/// The repository as it grows.
struct Repository {
    random: Random,
    dirs: Vec<String>,
    /// Names and sizes of the files in each directory.
    files: Vec<Vec<(String, u64)>>,
    next: u64,
}

impl Repository {
    /// One more directory below another.
    fn add_dir(&mut self) -> usize {
        let number = self.dirs.len();
        let path = loop {
            // Low numbers more often: most directories have few below them, and some have many.
            let at = self.skewed(number);
            let parent = &self.dirs[at];
            if parent.matches('/').count() < DEPTH {
                break format!("{parent}d{number}/");
            }
        };
        self.dirs.push(path);
        self.files.push(Vec::new());
        number
    }

    /// A number below `bound`, low ones more often.
    fn skewed(&mut self, bound: usize) -> usize {
        let most = self.random.below(bound as u64) + 1;
        self.random.below(most) as usize
    }

    fn path(&self, dir: usize, name: &str) -> String {
        format!("{}{name}", self.dirs[dir])
    }

    fn add_file(&mut self, dir: usize, changes: &mut BTreeMap<String, Option<u64>>) {
        let (name, bytes) = (format!("f{}.c", self.next), size(&mut self.random) as u64);
        self.next += 1;
        changes.insert(self.path(dir, &name), Some(bytes));
        self.files[dir].push((name, bytes));
    }

    fn take_file(&mut self, dir: usize) -> Option<(String, u64)> {
        let n = self.files[dir].len() as u64;
        (n > 0).then(|| self.random.below(n) as usize).map(|at| self.files[dir].swap_remove(at))
    }

    /// One change in a directory. A commit changes a path once.
    fn change(&mut self, dir: usize, changes: &mut BTreeMap<String, Option<u64>>) {
        let kind = self.random.below(100);
        if (REWRITTEN..REWRITTEN + MADE).contains(&kind) {
            return self.add_file(dir, changes);
        }
        let Some((name, bytes)) = self.take_file(dir) else { return self.add_file(dir, changes) };
        let path = self.path(dir, &name);
        if changes.contains_key(&path) {
            self.files[dir].push((name, bytes));
        } else if kind < REWRITTEN {
            // Some lines more or less: from nine tenths to six fifths.
            let bytes = bytes * (90 + self.random.below(31)) / 100 + 1;
            changes.insert(path, Some(bytes));
            self.files[dir].push((name, bytes));
        } else {
            changes.insert(path, None);
            if kind >= REWRITTEN + MADE + REMOVED {
                // Half of the renamed files go to another directory.
                let to = if self.random.below(2) == 0 { dir } else { self.skewed(self.dirs.len()) };
                let name = format!("f{}.c", self.next);
                self.next += 1;
                changes.insert(self.path(to, &name), Some(bytes));
                self.files[to].push((name, bytes));
            }
        }
    }
}

/// All commits, the first with the tree that it began with; of each the changes in the order in which git writes them.
/// `scale` divides the numbers of files and commits.
pub fn commits(scale: u64, seed: u64) -> Vec<Vec<Change>> {
    let mut r = Repository { random: Random::new(seed), dirs: vec![String::new()], files: vec![Vec::new()], next: 0 };
    let mut all = Vec::new();
    let mut changes = BTreeMap::new();
    for _ in 0..(DIRS / scale).max(1) {
        r.add_dir();
    }
    for _ in 0..FIRST / scale {
        let dir = r.random.below(r.dirs.len() as u64) as usize;
        r.add_file(dir, &mut changes);
    }
    all.push(std::mem::take(&mut changes).into_iter().collect());
    for commit in 0..COMMITS / scale {
        if commit.is_multiple_of(NEW_PART) {
            let dir = r.add_dir();
            for _ in 0..40 + r.random.below(161) {
                r.add_file(dir, &mut changes);
            }
        }
        for _ in 0..1 + r.skewed(TOUCHED as usize) {
            let dir = r.skewed(r.dirs.len());
            for _ in 0..1 + r.random.below(CHANGED) {
                r.change(dir, &mut changes);
            }
        }
        all.push(std::mem::take(&mut changes).into_iter().collect());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_history_is_the_same_each_time_and_follows_from_commit_to_commit() {
        let all = commits(20, 7);
        assert_eq!(all, commits(20, 7));
        assert_ne!(all, commits(20, 8));
        assert_eq!(all.len(), 201);
        let mut there = BTreeSet::new();
        let (mut made, mut rewritten, mut removed) = (0, 0, 0);
        for changes in &all[1..] {
            assert!(changes.is_sorted_by(|a, b| a.0 < b.0), "a path changes once: {changes:?}");
        }
        for (path, size) in all.iter().flatten() {
            match size {
                Some(_) if there.insert(path.clone()) => made += 1,
                Some(_) => rewritten += 1,
                None => {
                    assert!(there.remove(path), "{path} is removed and not there");
                    removed += 1;
                }
            }
        }
        assert!(made > 2000 && rewritten > 300 && removed > 30, "{made} {rewritten} {removed}");
    }

    #[test]
    fn the_whole_history_ends_with_fifty_thousand_files() {
        let all = commits(1, 2026);
        let (made, removed): (Vec<_>, Vec<_>) = all.iter().flatten().partition(|(_, size)| size.is_some());
        let names: BTreeSet<&str> = made.iter().map(|(path, _)| path.as_str()).collect();
        assert!(names.len() - removed.len() >= 50_000, "{} - {}", names.len(), removed.len());
    }
}
