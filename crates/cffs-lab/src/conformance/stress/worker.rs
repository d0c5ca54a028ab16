//! One process of the stress: a private directory with a model of it in
//! memory, and visits to the shared directories.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FallocateFlags, XattrFlags};
use rustix::io::Errno;

use super::shared;
use crate::random::Random;

const DIRS: u64 = 8;
const NAMES: u64 = 40;
const LARGEST: u64 = 300 << 10;

/// What must be in a file, under whatever names.
#[derive(Default)]
struct File {
    bytes: Vec<u8>,
    xattrs: BTreeMap<String, Vec<u8>>,
    names: u64,
}

enum Node {
    File(Rc<RefCell<File>>),
    Symlink(PathBuf),
}

/// The private directory, and what is known of it.
pub struct Worker {
    root: PathBuf,
    home: PathBuf,
    random: Random,
    dirs: BTreeSet<String>,
    nodes: BTreeMap<String, Node>,
    /// False when the file system said that it has none.
    xattrs: bool,
    fallocate: bool,
}

/// `true` when it was done, `false` when the file system does not know such a thing.
fn known<T>(result: rustix::io::Result<T>) -> Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(e) => Err(std::io::Error::from(e).into()),
    }
}

impl Worker {
    pub fn new(root: &Path, number: u64, seed: u64) -> Worker {
        Worker {
            root: root.to_owned(),
            home: root.join(format!("own{number}")),
            random: Random::new(seed),
            dirs: BTreeSet::new(),
            nodes: BTreeMap::new(),
            xattrs: true,
            fallocate: true,
        }
    }

    /// Works until the time is up; returns the number of operations.
    pub fn work(&mut self, time: Duration) -> Result<u64> {
        fs::create_dir_all(&self.home)?;
        let end = Instant::now() + time;
        let mut operations = 0;
        while Instant::now() < end {
            if self.random.below(3) == 0 {
                shared::step(&self.root, &mut self.random)?;
            } else {
                let choice = self.random.below(100);
                let (dir, name) = (self.some_dir(), self.random.below(NAMES));
                let path = format!("{dir}/f{name}");
                self.step(choice, &dir, &path).with_context(|| format!("own {path}, operation {choice}"))?;
            }
            operations += 1;
        }
        Ok(operations)
    }

    fn some_dir(&mut self) -> String {
        format!("d{}", self.random.below(DIRS))
    }

    fn bytes(&mut self) -> Vec<u8> {
        let most = if self.random.below(10) == 0 { 100 << 10 } else { 6000 };
        let len = self.random.below(most) as usize;
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.random.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    fn file(&self, path: &str) -> Option<Rc<RefCell<File>>> {
        match self.nodes.get(path) {
            Some(Node::File(file)) => Some(file.clone()),
            _ => None,
        }
    }

    /// A name is gone, or means something else.
    fn forget(&mut self, path: &str) {
        if let Some(Node::File(file)) = self.nodes.remove(path) {
            file.borrow_mut().names -= 1;
        }
    }

    fn step(&mut self, choice: u64, dir: &str, path: &str) -> Result<()> {
        let full = self.home.join(path);
        if !self.dirs.contains(dir) {
            fs::create_dir(self.home.join(dir))?;
            self.dirs.insert(dir.to_owned());
        }
        match choice {
            0..28 => self.write(path, &full)?,
            28..38 => {
                if let Some(file) = self.file(path) {
                    compare_file(&full, &file.borrow())?;
                } else if !self.nodes.contains_key(path) {
                    ensure!(fs::symlink_metadata(&full).is_err(), "it should not be there");
                }
            }
            38..46 => {
                let there = self.nodes.contains_key(path);
                let removed = fs::remove_file(&full);
                ensure!(removed.is_ok() == there, "unlink: {removed:?}, and it was there: {there}");
                self.forget(path);
            }
            46..56 => self.rename(path, &full)?,
            56..62 => self.link(path, &full)?,
            62..68 => {
                if let Some(file) = self.file(path) {
                    let len = self.random.below(LARGEST);
                    OpenOptions::new().write(true).open(&full)?.set_len(len)?;
                    file.borrow_mut().bytes.resize(len as usize, 0);
                }
            }
            68..71 if !self.nodes.contains_key(path) => {
                let target = PathBuf::from("x".repeat(1 + self.random.below(300) as usize));
                symlink(&target, &full)?;
                self.nodes.insert(path.to_owned(), Node::Symlink(target));
            }
            71..76 => self.remove_dir(dir)?,
            76..81 => {
                let file = fs::File::open(self.home.join(dir))?;
                if self.random.below(2) == 0 { file.sync_all()? } else { self.list(dir)? }
            }
            81..86 if self.file(path).is_some() => {
                let file = OpenOptions::new().write(true).open(&full)?;
                if self.random.below(2) == 0 { file.sync_all()? } else { file.sync_data()? }
            }
            86..94 => self.xattr(path, &full)?,
            94..100 => self.allocate(path, &full)?,
            _ => {}
        }
        Ok(())
    }

    fn write(&mut self, path: &str, full: &Path) -> Result<()> {
        if matches!(self.nodes.get(path), Some(Node::Symlink(_))) {
            return Ok(());
        }
        let bytes = self.bytes();
        let file = match self.file(path) {
            Some(file) => file,
            None => {
                fs::File::create_new(full)?;
                let file = Rc::new(RefCell::new(File { names: 1, ..File::default() }));
                self.nodes.insert(path.to_owned(), Node::File(file.clone()));
                file
            }
        };
        let mut known = file.borrow_mut();
        match self.random.below(4) {
            0 => {
                fs::write(full, &bytes)?;
                known.bytes = bytes;
            }
            1 if (known.bytes.len() as u64) < LARGEST => {
                OpenOptions::new().append(true).open(full)?.write_all(&bytes)?;
                known.bytes.extend_from_slice(&bytes);
            }
            _ => {
                let offset = self.random.below(LARGEST);
                OpenOptions::new().write(true).open(full)?.write_all_at(&bytes, offset)?;
                let end = offset as usize + bytes.len();
                if !bytes.is_empty() && known.bytes.len() < end {
                    known.bytes.resize(end, 0);
                }
                if !bytes.is_empty() {
                    known.bytes[offset as usize..end].copy_from_slice(&bytes);
                }
            }
        }
        Ok(())
    }

    fn rename(&mut self, path: &str, full: &Path) -> Result<()> {
        let dir = self.some_dir();
        let target = format!("{dir}/f{}", self.random.below(NAMES));
        if !self.dirs.contains(&dir) || !self.nodes.contains_key(path) {
            return Ok(());
        }
        let same = match (self.file(path), self.file(&target)) {
            (Some(a), Some(b)) => Rc::ptr_eq(&a, &b),
            _ => path == target,
        };
        fs::rename(full, self.home.join(&target))?;
        // Two names of one file both stay.
        if !same {
            self.forget(&target);
            if let Some(node) = self.nodes.remove(path) {
                self.nodes.insert(target, node);
            }
        }
        Ok(())
    }

    fn link(&mut self, path: &str, full: &Path) -> Result<()> {
        let dir = self.some_dir();
        let target = format!("{dir}/f{}", self.random.below(NAMES));
        let Some(file) = self.file(path) else { return Ok(()) };
        if !self.dirs.contains(&dir) {
            return Ok(());
        }
        let linked = fs::hard_link(full, self.home.join(&target));
        if self.nodes.contains_key(&target) {
            let exists = |e: &std::io::Error| e.kind() == std::io::ErrorKind::AlreadyExists;
            ensure!(linked.as_ref().is_err_and(exists), "link to a name that is taken: {linked:?}");
            return Ok(());
        }
        linked?;
        file.borrow_mut().names += 1;
        self.nodes.insert(target, Node::File(file));
        Ok(())
    }

    fn remove_dir(&mut self, dir: &str) -> Result<()> {
        let prefix = format!("{dir}/");
        let names: Vec<String> = self.nodes.keys().filter(|n| n.starts_with(&prefix)).cloned().collect();
        let removed = fs::remove_dir(self.home.join(dir));
        if !names.is_empty() {
            ensure!(removed.is_err(), "a directory with {} names was removed", names.len());
            if names.len() > 6 {
                return Ok(());
            }
            for name in names {
                fs::remove_file(self.home.join(&name))?;
                self.forget(&name);
            }
            fs::remove_dir(self.home.join(dir))?;
        } else {
            removed?;
        }
        self.dirs.remove(dir);
        Ok(())
    }

    fn list(&self, dir: &str) -> Result<()> {
        let prefix = format!("{dir}/");
        let names = self.nodes.keys().filter_map(|n| n.strip_prefix(&prefix));
        let expected: BTreeSet<String> = names.map(str::to_owned).collect();
        let mut found = BTreeSet::new();
        for entry in fs::read_dir(self.home.join(dir))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            ensure!(found.insert(name.clone()), "{dir} lists {name} twice");
        }
        ensure!(found == expected, "{dir} lists {found:?}, and should {expected:?}");
        Ok(())
    }

    fn xattr(&mut self, path: &str, full: &Path) -> Result<()> {
        let Some(file) = self.file(path).filter(|_| self.xattrs) else { return Ok(()) };
        let mut file = file.borrow_mut();
        let name = format!("user.x{}", self.random.below(6));
        if self.random.below(3) == 0 {
            let removed = rustix::fs::removexattr(full, &*name);
            let there = file.xattrs.remove(&name).is_some();
            ensure!(removed.is_ok() == there || !known(removed)?, "removexattr: {removed:?}, was there: {there}");
        } else {
            let mut value = self.bytes();
            value.truncate(4000);
            self.xattrs = known(rustix::fs::setxattr(full, &*name, &value, XattrFlags::empty()))?;
            if self.xattrs {
                file.xattrs.insert(name, value);
            }
        }
        Ok(())
    }

    fn allocate(&mut self, path: &str, full: &Path) -> Result<()> {
        let Some(file) = self.file(path).filter(|_| self.fallocate) else { return Ok(()) };
        let mut file = file.borrow_mut();
        let (from, len) = (self.random.below(LARGEST), 1 + self.random.below(LARGEST / 4));
        let opened = OpenOptions::new().write(true).open(full)?;
        let (flags, grows, zeros) = match self.random.below(4) {
            0 => (FallocateFlags::empty(), true, false),
            1 => (FallocateFlags::KEEP_SIZE, false, false),
            2 => (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, false, true),
            _ => (FallocateFlags::ZERO_RANGE, true, true),
        };
        self.fallocate = known(rustix::fs::fallocate(&opened, flags, from, len))?;
        if self.fallocate {
            let end = (from + len) as usize;
            if grows && file.bytes.len() < end {
                file.bytes.resize(end, 0);
            }
            let until = end.min(file.bytes.len());
            if zeros && (from as usize) < until {
                file.bytes[from as usize..until].fill(0);
            }
        }
        Ok(())
    }

    /// Compares everything in the private directory; returns the number of names.
    pub fn compare(&self) -> Result<u64> {
        for dir in &self.dirs {
            self.list(dir)?;
        }
        for (path, node) in &self.nodes {
            let full = self.home.join(path);
            match node {
                Node::File(file) => compare_file(&full, &file.borrow()).with_context(|| path.clone())?,
                Node::Symlink(target) => ensure!(fs::read_link(&full)? == *target, "{path} points elsewhere"),
            }
        }
        Ok(self.nodes.len() as u64)
    }
}

fn compare_file(path: &Path, expected: &File) -> Result<()> {
    let bytes = fs::read(path)?;
    if bytes != expected.bytes {
        let at = bytes.iter().zip(&expected.bytes).position(|(a, b)| a != b);
        bail!("{} bytes instead of {}, first difference at {at:?}", bytes.len(), expected.bytes.len());
    }
    let names = fs::metadata(path)?.nlink();
    ensure!(names == expected.names, "{names} links instead of {}", expected.names);
    for (name, value) in &expected.xattrs {
        let mut found = vec![0; value.len() + 1];
        let len = rustix::fs::getxattr(path, &**name, &mut found).map_err(std::io::Error::from)?;
        ensure!(found[..len] == **value, "the extended attribute {name} is another");
    }
    Ok(())
}
