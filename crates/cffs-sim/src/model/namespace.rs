//! What can be seen of a file system by walking it: names and attributes, without contents and times.

use super::{Body, Id, Model, ROOT};
use cffs::FileType;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

/// A file as its name shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Which file: names of one file show the same number. The engine's inode number.
    pub ino: u64,
    /// Type, as in a mode.
    pub file_type: u8,
    /// Permission bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Number of names.
    pub nlink: u32,
    /// Flags.
    pub flags: u32,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// All names, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Namespace(pub BTreeMap<Vec<u8>, Node>);

impl Namespace {
    /// A number that differs between different namespaces.
    pub fn digest(&self) -> u64 {
        let mut h = std::hash::DefaultHasher::new();
        self.hash(&mut h);
        h.finish()
    }

    /// The same, with number 0 for files that have none of these numbers: what they have got nobody was told.
    pub fn with_numbers(mut self, known: &BTreeSet<u64>) -> Self {
        self.0.values_mut().filter(|node| !known.contains(&node.ino)).for_each(|node| node.ino = 0);
        self
    }

    /// What differs from another one, a line for each path.
    pub fn difference(&self, other: &Namespace) -> Vec<String> {
        let mut out = Vec::new();
        let paths: BTreeSet<&Vec<u8>> = self.0.keys().chain(other.0.keys()).collect();
        for path in paths {
            let (a, b) = (self.0.get(path), other.0.get(path));
            if a != b {
                out.push(format!("{}: {} | {}", show(path), describe(a), describe(b)));
            }
        }
        out
    }
}

fn describe(node: Option<&Node>) -> String {
    let Some(n) = node else {
        return "absent".into();
    };
    let Node { ino, file_type, perm, uid, gid, rdev, nlink, flags, target, xattrs } = n;
    let file_type = FileType::from_mode(u16::from(*file_type) << 12);
    let mut s = format!("ino {ino} {file_type:?} {perm:o} {uid}:{gid} rdev {rdev} nlink {nlink} flags {flags:x}");
    if !target.is_empty() {
        s += &format!(" -> {} bytes", target.len());
    }
    for (name, value) in xattrs {
        s += &format!(" {name}: {} bytes from {:?}", value.len(), value.first());
    }
    s
}

fn show(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    if text.len() <= 80 { text.into_owned() } else { format!("{}…({} bytes)", &text[..60], text.len()) }
}

impl Model {
    /// The namespace, with the engine's inode numbers.
    pub fn namespace(&self, ino_of: &BTreeMap<Id, u64>) -> Namespace {
        let mut out = Namespace::default();
        self.walk(ROOT, b"/".to_vec(), ino_of, &mut out);
        out
    }

    fn walk(&self, id: Id, path: Vec<u8>, ino_of: &BTreeMap<Id, u64>, out: &mut Namespace) {
        let i = self.get(id);
        let target = match &i.body {
            Body::Symlink(target) => target.clone(),
            _ => Vec::new(),
        };
        let node = Node {
            ino: ino_of[&id],
            file_type: i.file_type as u8,
            perm: i.perm,
            uid: i.uid,
            gid: i.gid,
            rdev: i.rdev,
            nlink: i.nlink,
            flags: i.flags,
            target,
            xattrs: i.xattrs.clone(),
        };
        for (name, entry) in i.entries().into_iter().flatten() {
            let mut below = path.clone();
            if below.len() > 1 {
                below.push(b'/');
            }
            below.extend_from_slice(name);
            self.walk(entry.id, below, ino_of, out);
        }
        out.0.insert(path, node);
    }
}
