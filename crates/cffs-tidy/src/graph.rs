//! Which file uses which.

use crate::sources::{ModPath, Module, Sources};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

/// Names followed from one import to the next, at most: a chain of re-exports is never that long.
const STEPS_MAX: usize = 16;

/// One file uses a name of another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrow {
    /// Module that uses it; the crate's root has no names.
    pub from: Vec<String>,
    /// Module that has it. For a name of another crate, that crate's name alone.
    pub to: Vec<String>,
    /// What is used.
    pub name: String,
    /// The file that uses it.
    pub file: PathBuf,
}

impl fmt::Display for Arrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |path: &[String]| if path.is_empty() { "the crate's root".to_string() } else { path.join("::") };
        write!(f, "{}: {} uses {} of {}", self.file.display(), show(&self.from), self.name, show(&self.to))
    }
}

/// What the files of a crate use of each other, and of the `others`: crates of the workspace, with underscores.
///
/// `use` lines count and paths in the code. A name that came by way of a re-export counts as used of the file that defines
/// it. A file that only re-exports what its own children define uses nothing by that.
pub fn arrows(sources: &Sources, others: &[&str]) -> Vec<Arrow> {
    let mut found = BTreeSet::new();
    for (from, module) in &sources.modules {
        let mut add = |path: &[String], name: &str| {
            let to = match path.first() {
                Some(first) if others.contains(&first.as_str()) => vec![first.clone()],
                _ => match sources.absolute(from, path).and_then(|p| sources.resolve(&p, 0)) {
                    Some(to) if to != *from => to,
                    _ => return,
                },
            };
            found.insert(Arrow { from: from.clone(), to, name: name.to_string(), file: module.file.clone() });
        };
        for (name, import) in &module.imports {
            if !is_reexport(sources, from, module, name, &import.path, import.public) {
                add(&import.path, name);
            }
        }
        for glob in module.globs.iter().filter(|g| !g.public) {
            add(&glob.path, "*");
        }
        for path in &module.paths {
            add(path, path.last().map_or("", String::as_str));
        }
    }
    found.into_iter().collect()
}

/// Whether an import only hands on what a child defines.
fn is_reexport(s: &Sources, from: &ModPath, m: &Module, name: &str, path: &[String], public: bool) -> bool {
    let below = || {
        let to = s.absolute(from, path).and_then(|p| s.resolve(&p, 0));
        to.is_some_and(|to| to.len() > from.len() && to.starts_with(from))
    };
    public && !m.mentions.contains(name) && below()
}

impl Sources {
    /// A path as written in a module, from the crate's root on. `None` for what is not of this crate.
    fn absolute(&self, from: &ModPath, path: &[String]) -> Option<Vec<String>> {
        let first = path.first()?.as_str();
        let ups = path.iter().take_while(|p| *p == "super").count();
        match first {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([from, &path[1..]].concat()),
            "super" if ups <= from.len() => Some([&from[..from.len() - ups], &path[ups..]].concat()),
            _ => {
                let module = self.modules.get(from)?;
                let known = module.children.contains(first) || module.imports.contains_key(first);
                known.then(|| [from, path].concat())
            }
        }
    }

    /// The module whose file defines what an absolute path names.
    fn resolve(&self, path: &[String], steps: usize) -> Option<ModPath> {
        if steps > STEPS_MAX {
            return None;
        }
        if self.modules.contains_key(path) {
            return Some(path.to_vec());
        }
        let depth = (0..path.len()).rev().find(|n| self.modules.contains_key(&path[..*n]))?;
        let at = path[..depth].to_vec();
        let module = &self.modules[&at];
        let name = &path[depth];
        if module.items.contains(name) {
            return Some(at);
        }
        if let Some(import) = module.imports.get(name) {
            let to = self.absolute(&at, &import.path).filter(|to| to.as_slice() != path)?;
            return self.resolve(&[to.as_slice(), &path[depth + 1..]].concat(), steps + 1);
        }
        for glob in &module.globs {
            let Some(to) = self.absolute(&at, &glob.path) else { continue };
            let here = self.modules.get(&to).is_some_and(|m| m.items.contains(name) || m.imports.contains_key(name));
            if here {
                return self.resolve(&[to.as_slice(), &path[depth..]].concat(), steps + 1);
            }
        }
        Some(at)
    }
}

/// Groups of files that use each other, directly or around a corner.
pub fn circles(arrows: &[Arrow]) -> Vec<Vec<String>> {
    let mut next: BTreeMap<&[String], BTreeSet<&[String]>> = BTreeMap::new();
    for a in arrows {
        next.entry(&a.from).or_default().insert(&a.to);
    }
    let reach = |from: &[String]| {
        let mut seen: BTreeSet<&[String]> = BTreeSet::new();
        let mut open: Vec<&[String]> = next.get(from).into_iter().flatten().copied().collect();
        while let Some(at) = open.pop() {
            if seen.insert(at) {
                open.extend(next.get(at).into_iter().flatten().copied());
            }
        }
        seen
    };
    let reached: BTreeMap<&[String], BTreeSet<&[String]>> = next.keys().map(|k| (*k, reach(k))).collect();
    let mut found: BTreeSet<Vec<String>> = BTreeSet::new();
    for (from, to) in &reached {
        if to.contains(from) {
            let members = to.iter().filter(|t| reached.get(**t).is_some_and(|r| r.contains(from)));
            found.insert(members.map(|m| if m.is_empty() { "lib".to_string() } else { m.join("::") }).collect());
        }
    }
    found.into_iter().collect()
}
