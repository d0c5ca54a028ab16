//! Reads a mounted file system through the engine: everything that its names lead to.

use crate::model::{Namespace, NamespaceNode};
use cffs::{Attr, Caller, FileType, Fs, Ino, ROOT_INO};
use std::collections::{BTreeMap, BTreeSet};

/// What a walk found.
#[derive(Default)]
pub struct Found {
    /// Names and attributes.
    pub namespace: Namespace,
    /// Regular files, with one of their paths.
    pub files: BTreeMap<Ino, (Attr, Vec<u8>)>,
    /// Directories, below the root, deepest last.
    pub dirs: Vec<Vec<u8>>,
}

/// A reference that is given back when dropped.
pub struct Held<'a> {
    fs: &'a Fs,
    /// The inode.
    pub ino: Ino,
    refs: u64,
}

impl<'a> Held<'a> {
    /// Guards a reference that a call of the engine has returned.
    pub fn new(fs: &'a Fs, ino: Ino) -> Held<'a> {
        Held { fs, ino, refs: 1 }
    }
    /// An inode that somebody else keeps.
    pub fn borrowed(fs: &'a Fs, ino: Ino) -> Held<'a> {
        Held { fs, ino, refs: 0 }
    }
    /// Leaves the reference to the caller. The root needs none.
    pub fn keep(mut self) -> Ino {
        assert!(self.refs == 1 || self.ino == ROOT_INO, "a reference to keep");
        self.refs = 0;
        self.ino
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.refs > 0 {
            self.fs.forget(self.ino, self.refs);
        }
    }
}

/// Walks the whole tree.
pub fn walk(fs: &Fs) -> Result<Found, String> {
    let mut found = Found::default();
    let root = fs.getattr(ROOT_INO).map_err(|e| format!("getattr /: {e}"))?;
    visit(fs, root, b"/".to_vec(), &mut found)?;
    Ok(found)
}

fn visit(fs: &Fs, attr: Attr, path: Vec<u8>, found: &mut Found) -> Result<(), String> {
    let shown = String::from_utf8_lossy(&path).into_owned();
    let fail = |what: &str, e: cffs::Error| format!("{what} {shown} (inode {}): {e}", attr.ino);
    let target = match attr.file_type {
        FileType::Symlink => fs.readlink(attr.ino).map_err(|e| fail("readlink", e))?,
        _ => Vec::new(),
    };
    let node = NamespaceNode {
        ino: attr.ino,
        file_type: attr.file_type as u8,
        perm: attr.perm,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        nlink: attr.nlink,
        flags: attr.flags,
        target,
        xattrs: xattrs(fs, attr.ino).map_err(|e| fail("extended attributes of", e))?,
    };
    match attr.file_type {
        FileType::Regular => {
            found.files.insert(attr.ino, (attr, path.clone()));
        }
        FileType::Directory => {
            if path != b"/" {
                found.dirs.push(path.clone());
            }
            let mut below = Vec::new();
            let listed = fs.readdir(attr.ino, 0, true, &mut |e| {
                below.push(e);
                true
            });
            let held: Vec<Held> = below.iter().map(|e| Held::new(fs, e.ino)).collect();
            listed.map_err(|e| fail("readdir", e))?;
            for e in &below {
                let mut name = path.clone();
                if name.len() > 1 {
                    name.push(b'/');
                }
                name.extend_from_slice(&e.name);
                let below = e.attr.ok_or_else(|| format!("readdir {shown}: no attributes"))?;
                if (below.ino, below.file_type) != (e.ino, e.file_type) {
                    return Err(format!("readdir {shown}: entry {e:?} contradicts itself"));
                }
                visit(fs, below, name, found)?;
            }
            drop(held);
        }
        _ => {}
    }
    if found.namespace.0.insert(path, node).is_some() {
        return Err(format!("{shown} is listed twice"));
    }
    Ok(())
}

/// All regular files that can be reached, by path. What cannot be read is left out. Each directory is read once, because names of a damaged file
/// system may lead in a circle.
pub fn survivors(fs: &Fs) -> BTreeMap<Vec<u8>, Attr> {
    let mut files = BTreeMap::new();
    let mut todo = vec![(ROOT_INO, b"/".to_vec())];
    let mut seen = BTreeSet::new();
    while let Some((dir, path)) = todo.pop() {
        if !seen.insert(dir) {
            continue;
        }
        let mut names = Vec::new();
        let _ = fs.readdir(dir, 0, false, &mut |e| {
            names.push(e.name);
            true
        });
        for name in names {
            let Ok(attr) = fs.lookup(dir, &name) else { continue };
            let below = [&path[..], if path.len() > 1 { &b"/"[..] } else { b"" }, &name].concat();
            match attr.file_type {
                FileType::Directory => todo.push((attr.ino, below)),
                FileType::Regular => drop(files.insert(below, attr)),
                _ => {}
            }
        }
    }
    files
}

/// The extended attributes of a file.
pub fn xattrs(fs: &Fs, ino: Ino) -> cffs::Result<BTreeMap<String, Vec<u8>>> {
    let names = fs.listxattr(ino)?.into_iter();
    names.map(|n| Ok((String::from_utf8_lossy(&n).into_owned(), fs.getxattr(ino, &n)?))).collect()
}

/// The file under an absolute path.
pub fn resolve<'a>(fs: &'a Fs, path: &[u8]) -> cffs::Result<Held<'a>> {
    let mut names = path.split(|b| *b == b'/').filter(|n| !n.is_empty());
    names.try_fold(Held::borrowed(fs, ROOT_INO), |dir, name| Ok(Held::new(fs, fs.lookup(dir.ino, name)?.ino)))
}

/// Reads a range of a file; short at its end only.
pub fn read(fs: &Fs, ino: Ino, offset: u64, len: usize) -> cffs::Result<Vec<u8>> {
    let mut buf = vec![0xa5; len];
    let n = fs.read(ino, offset, &mut buf)?;
    buf.truncate(n);
    Ok(buf)
}

/// Removes everything below the root, and the root's extended attributes.
pub fn remove_all(fs: &Fs) -> Result<(), String> {
    fs.set_flags(Caller::ROOT, ROOT_INO, 0).map_err(|e| format!("set_flags /: {e}"))?;
    for name in fs.listxattr(ROOT_INO).map_err(|e| format!("extended attributes of /: {e}"))? {
        fs.removexattr(Caller::ROOT, ROOT_INO, &name).map_err(|e| format!("removexattr /: {e}"))?;
    }
    remove_below(fs, ROOT_INO)
}

fn remove_below(fs: &Fs, dir: Ino) -> Result<(), String> {
    let mut entries = Vec::new();
    let fail = |what: &str, e: cffs::Error| format!("{what} in inode {dir}: {e}");
    let listed = fs.readdir(dir, 0, false, &mut |e| {
        entries.push(e);
        true
    });
    listed.map_err(|e| fail("readdir", e))?;
    let writable = |ino| fs.set_flags(cffs::Caller::ROOT, ino, 0).map(drop);
    writable(dir).map_err(|e| fail("set_flags", e))?;
    for e in entries {
        if e.file_type == FileType::Regular {
            let attr = fs.lookup(dir, &e.name).map_err(|e| fail("lookup", e))?;
            let held = Held::new(fs, attr.ino);
            writable(held.ino).map_err(|e| fail("set_flags", e))?;
        }
        if e.file_type == FileType::Directory {
            let attr = fs.lookup(dir, &e.name).map_err(|e| fail("lookup", e))?;
            let held = Held::new(fs, attr.ino);
            remove_below(fs, held.ino)?;
            fs.rmdir(dir, &e.name).map_err(|e| fail("rmdir", e))?;
        } else {
            fs.unlink(dir, &e.name).map_err(|e| fail("unlink", e))?;
        }
    }
    Ok(())
}
