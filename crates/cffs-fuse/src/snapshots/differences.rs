//! What differs between two states of a file system.

use cffs::{Attr, Error, FileType, Fs, Ino, ROOT_INO, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What happened to a name between two states of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// It is in the later one only.
    Added,
    /// It is in the earlier one only.
    Removed,
    /// Contents, attributes or what it is are others. Of a directory, owner or permissions.
    Changed,
}

/// A name that differs between two states of a file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// How.
    pub change: Change,
    /// From the root directory on, without a slash before it. What is not UTF-8 is replaced.
    pub path: String,
}

/// The names that differ between an earlier state and a later one, each directory before what is in it. Below a directory that was added or
/// removed everything is told.
///
/// # Errors
/// Those of reading both.
pub fn differences(earlier: &Fs, later: &Fs) -> Result<Vec<Difference>> {
    let mut all = Vec::new();
    let mut stack = vec![(String::new(), Some(ROOT_INO), Some(ROOT_INO))];
    while let Some((path, before, after)) = stack.pop() {
        let (old, mut new) = (entries(earlier, before)?, entries(later, after)?);
        let mut below = Vec::new();
        let mut tell = |change, name: &[u8], before: Option<&Attr>, after: Option<&Attr>| {
            let path = format!("{path}{}", String::from_utf8_lossy(name));
            let directory = |a: Option<&Attr>| a.filter(|a| a.file_type == FileType::Directory).map(|a| a.ino);
            if directory(before).or(directory(after)).is_some() {
                below.push((format!("{path}/"), directory(before), directory(after)));
            }
            if let Some(change) = change {
                all.push(Difference { change, path });
            }
        };
        for (name, a) in &old {
            match new.remove(name) {
                None => tell(Some(Change::Removed), name, Some(a), None),
                Some(b) => tell(differ(a, &b).then_some(Change::Changed), name, Some(a), Some(&b)),
            }
        }
        for (name, b) in &new {
            tell(Some(Change::Added), name, None, Some(b));
        }
        stack.extend(below.into_iter().rev());
    }
    Ok(all)
}

fn differ(a: &Attr, b: &Attr) -> bool {
    let what = |a: &Attr| (a.ino, a.generation, a.file_type, a.perm, a.uid, a.gid, a.flags, a.rdev);
    what(a) != what(b) || (a.file_type != FileType::Directory && (a.size, a.ctime) != (b.size, b.ctime))
}

/// Names and attributes of a directory, by name.
fn entries(fs: &Fs, dir: Option<Ino>) -> Result<BTreeMap<Vec<u8>, Attr>> {
    let Some(dir) = dir else { return Ok(BTreeMap::new()) };
    let mut names = Vec::new();
    fs.readdir(dir, 0, false, &mut |e| {
        if e.name != b"." && e.name != b".." {
            names.push(e.name);
        }
        true
    })?;
    let mut all = BTreeMap::new();
    for name in names {
        match fs.lookup(dir, &name) {
            Ok(attr) => {
                fs.forget(attr.ino, 1);
                all.insert(name, attr);
            }
            // Somebody has just removed it.
            Err(Error::NotFound) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}
