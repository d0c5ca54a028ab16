//! What a small file is placed with: the files of its directory, or those that share something else (the thesis calls it keyed
//! co-location, section 2.3.2).
//!
//! The attribute [`COLOCATE`] of a directory names its *key*, which holds for all directories below it that name none. The same
//! attribute of a file names a label, or a list and the file's place in it. Files that agree in a key are a *unit*: placement
//! and relocation treat it as they treat the files of a directory. All of it is a hint.

use crate::cache::Cache;
use crate::error::Result;
use crate::format::xattr::{COLOCATE, Namespace, decode_list};
use crate::format::{Ino, Inode};
use crate::xattr;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Longest label, and longest name of a list, in bytes.
pub const LABEL_MAX: usize = 32;
/// Numbers of units that are no directories have this bit. No inode number has it.
const UNIT_BIT: u64 = 1 << 63;
/// A file belongs to one of so many ages of last use, each so many times as long as the one before. The first is a day.
const AGES: u64 = 4;
const AGE_FACTOR: i64 = 8;
const DAY_NS: i64 = 86_400 * 1_000_000_000;

/// By what the small files of a subtree are placed together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ColocationKey {
    /// By directory.
    #[default]
    Directory,
    /// By owner.
    Owner,
    /// By the process that created them.
    Process,
    /// By the time since they were last used: a day, a week, two months, more.
    Age,
    /// All of them together, with those of other subtrees that have the same label.
    Label(String),
    /// By the order in which programs read them.
    Learned,
}

impl ColocationKey {
    /// The key of this name: `directory`, `owner`, `process`, `age`, `learned`, or `label:` and a label of 1 to 32 letters, digits,
    /// dots, hyphens and underscores.
    pub fn parse(name: &str) -> Option<ColocationKey> {
        Some(match name {
            "directory" => ColocationKey::Directory,
            "owner" => ColocationKey::Owner,
            "process" => ColocationKey::Process,
            "age" => ColocationKey::Age,
            "learned" => ColocationKey::Learned,
            _ => ColocationKey::Label(label(name.strip_prefix("label:")?)?),
        })
    }
}

impl fmt::Display for ColocationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ColocationKey::Directory => f.write_str("directory"),
            ColocationKey::Owner => f.write_str("owner"),
            ColocationKey::Process => f.write_str("process"),
            ColocationKey::Age => f.write_str("age"),
            ColocationKey::Label(name) => write!(f, "label:{name}"),
            ColocationKey::Learned => f.write_str("learned"),
        }
    }
}

fn label(name: &str) -> Option<String> {
    let valid = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    ((1..=LABEL_MAX).contains(&name.len()) && name.bytes().all(valid)).then(|| name.to_owned())
}

/// What a file says itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// It belongs to those with this label.
    Label(String),
    /// It is read with the others of a list, in the order of their places.
    List {
        /// Name of the list.
        list: String,
        /// Place in it.
        at: u64,
    },
}

impl Mark {
    /// The mark that an attribute names: `label:NAME`, or `list:NAME:PLACE`.
    pub fn parse(value: &str) -> Option<Mark> {
        if let Some(name) = value.strip_prefix("label:") {
            return label(name).map(Mark::Label);
        }
        let (list, at) = value.strip_prefix("list:")?.split_once(':')?;
        let digits = at.bytes().all(|b| b.is_ascii_digit());
        Some(Mark::List { list: label(list)?, at: at.parse().ok().filter(|_| digits)? })
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mark::Label(name) => write!(f, "label:{name}"),
            Mark::List { list, at } => write!(f, "list:{list}:{at}"),
        }
    }
}

/// Whether the attribute of a directory, or of a file, may have this value.
pub fn is_valid(value: &[u8], is_dir: bool) -> bool {
    let valid = |v| if is_dir { ColocationKey::parse(v).is_some() } else { Mark::parse(v).is_some() };
    std::str::from_utf8(value).is_ok_and(valid)
}

/// The key that a directory names itself.
///
/// # Errors
/// Those of reading its attributes.
pub fn key_of(cache: &Cache, dir: &Inode) -> Result<Option<ColocationKey>> {
    let value = xattr::get(cache, dir, Namespace::User, COLOCATE)?;
    Ok(value.and_then(|v| String::from_utf8(v).ok()).and_then(|v| ColocationKey::parse(&v)))
}

/// What a file says of itself, in its inode.
///
/// # Errors
/// [`crate::Error::Corrupt`] for damaged attributes.
pub fn mark_of(file: &Inode) -> Result<Option<Mark>> {
    if file.xattrs.is_empty() {
        return Ok(None);
    }
    // It is in the inode if it fits there. Every writeback asks, so the chain is not read for it.
    let mut all = Vec::new();
    decode_list(&file.xattrs, true, &mut all)?;
    let value = all.into_iter().find(|x| x.is(Namespace::User, COLOCATE));
    Ok(value.and_then(|x| String::from_utf8(x.value).ok()).and_then(|v| Mark::parse(&v)))
}

/// The order of the files of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// That of the name space.
    NameSpace,
    /// By their places.
    Place(u64),
}

/// The unit that a file belongs to, where that is not its directory, and its order there. `now` is the time in nanoseconds, `learned` the place that was learned for it, if there is one.
pub fn unit_of(
    key: &ColocationKey,
    mark: Option<&Mark>,
    file: &Inode,
    now: i64,
    learned: Option<u64>,
) -> Option<(Ino, Order)> {
    match (mark, key) {
        (Some(Mark::List { list, at }), _) => Some((unit((0_u8, list)), Order::Place(*at))),
        (Some(Mark::Label(name)), _) | (None, ColocationKey::Label(name)) => {
            Some((unit((1_u8, name)), Order::NameSpace))
        }
        (None, ColocationKey::Owner) => Some((unit((2_u8, file.uid)), Order::NameSpace)),
        // Files of which nobody knows it are placed by directory.
        (None, ColocationKey::Process) if file.hint == 0 => None,
        (None, ColocationKey::Process) => Some((unit((3_u8, file.hint)), Order::NameSpace)),
        (None, ColocationKey::Age) => {
            let age = now.saturating_sub(file.atime.max(file.mtime));
            let limits = std::iter::successors(Some(DAY_NS), |limit| limit.checked_mul(AGE_FACTOR));
            let rank = limits.take(AGES as usize - 1).filter(|limit| age > *limit).count() as u64;
            Some((unit((4_u8, rank)), Order::NameSpace))
        }
        (None, ColocationKey::Learned) => learned.map(|at| (learned_unit(), Order::Place(at))),
        (None, ColocationKey::Directory) => None,
    }
}

/// The unit of the files that have a learned place. Of large ones it has the parts that are mostly read.
pub fn learned_unit() -> Ino {
    unit((5_u8, 0_u8))
}

/// The number of a unit. It is never stored.
fn unit(of: impl Hash) -> Ino {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish() | UNIT_BIT
}

/// Whether the unit of this number is a directory.
pub fn is_directory(unit: Ino) -> bool {
    unit & UNIT_BIT == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_marks_are_what_their_names_say() {
        for name in ["directory", "owner", "process", "age", "learned", "label:a.B-9_"] {
            assert_eq!(ColocationKey::parse(name).unwrap().to_string(), name);
            assert!(is_valid(name.as_bytes(), true));
        }
        for name in ["label:x", "list:x:0", "list:a-b:18446744073709551615"] {
            assert_eq!(Mark::parse(name).unwrap().to_string(), name);
            assert!(is_valid(name.as_bytes(), false));
        }
        let long = format!("label:{}", "x".repeat(LABEL_MAX + 1));
        for name in
            ["", "Owner", "label:", "label:a b", "label:a:b", "list:a", "list:a:", "list:a:+1", "list::1", &long]
        {
            assert!(!is_valid(name.as_bytes(), true) && !is_valid(name.as_bytes(), false), "{name}");
        }
        assert!(!is_valid(b"list:a:1", true) && !is_valid(b"owner", false) && !is_valid(&[0xff], true));
    }

    #[test]
    fn files_that_agree_in_the_key_are_one_unit() {
        let mut file = Inode::new(77, 0o100_644, 0);
        let of = |key: &ColocationKey, file: &Inode| unit_of(key, None, file, 100 * DAY_NS, None).map(|(unit, _)| unit);
        assert_eq!(of(&ColocationKey::Directory, &file), None);
        let before = of(&ColocationKey::Owner, &file);
        file.uid = 5;
        assert_ne!(of(&ColocationKey::Owner, &file), before);
        let mut ages = Vec::new();
        for days in [0, 36, 93, 100] {
            file.atime = days * DAY_NS;
            ages.push(of(&ColocationKey::Age, &file));
        }
        file.atime = 95 * DAY_NS;
        assert_eq!(of(&ColocationKey::Age, &file), ages[2], "both within eight days");
        ages.dedup();
        assert_eq!(ages.len(), 4);
        let mark = Mark::List { list: "page".into(), at: 3 };
        let (unit, order) = unit_of(&ColocationKey::Owner, Some(&mark), &file, 0, None).unwrap();
        assert!(!is_directory(unit) && order == Order::Place(3));
        let label = Mark::Label("page".into());
        let by_directory = unit_of(&ColocationKey::Label("page".into()), None, &file, 0, None);
        assert_eq!(unit_of(&ColocationKey::Age, Some(&label), &file, 0, None), by_directory);
    }
}
