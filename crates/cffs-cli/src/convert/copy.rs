//! Copies a whole tree from one file system into another that is empty.

use crate::image::EngineResultExt;
use crate::progress::Progress;
use crate::text::printable;
use anyhow::bail;
use cffs::{
    Attr, COLOCATION_ATTRIBUTE, Caller, Error, Fallocate, FileType, Fs, Ino, ROOT_INO, SetAttr, SetXattr, TimeSpec,
};
use std::collections::HashMap;

/// Bytes that are read and written at once.
const CHUNK: usize = 1 << 20;

/// A directory on the way down. Trees may be deeper than a stack.
struct Level {
    name: Vec<u8>,
    from: Attr,
    to: Ino,
    /// Names that are still to be copied, the last one first.
    names: Vec<Vec<u8>>,
}

/// The copy.
pub struct Copy<'a> {
    from: &'a Fs,
    to: &'a Fs,
    /// Files with several names: inode there, inode here. Holds a reference to each.
    links: HashMap<Ino, Ino>,
    /// Flags of these, set at the end: an immutable file gets no more names.
    flags: Vec<(Ino, u32)>,
    buf: Vec<u8>,
    progress: Progress,
    /// Bytes of files that were copied.
    pub bytes: u64,
}

impl<'a> Copy<'a> {
    /// Copies everything; `total` are the bytes of all, for the progress bar.
    pub fn new(from: &'a Fs, to: &'a Fs, total: u64) -> Copy<'a> {
        let (links, flags, progress) = (HashMap::new(), Vec::new(), Progress::new(Some(total)));
        Copy { from, to, links, flags, buf: vec![0; CHUNK], progress, bytes: 0 }
    }

    /// Number of names that were copied.
    pub fn files(&self) -> u64 {
        self.progress.files()
    }

    /// Copies the tree. The first error ends it: half a copy is none.
    pub fn run(&mut self) -> anyhow::Result<()> {
        let root = self.from.reference(ROOT_INO).about(|| "/")?;
        let result = self.tree(root);
        self.from.forget(ROOT_INO, 1);
        result?;
        for (ino, flags) in std::mem::take(&mut self.flags) {
            self.to.set_flags(Caller::ROOT, ino, flags).about(|| format!("inode {ino}"))?;
        }
        for ino in self.links.values() {
            self.to.forget(*ino, 1);
        }
        Ok(())
    }

    fn tree(&mut self, root: Attr) -> anyhow::Result<()> {
        let mut stack = vec![self.level(Vec::new(), root, ROOT_INO)?];
        while let Some(here) = stack.last_mut() {
            let Some(name) = here.names.pop() else {
                let Some(done) = stack.pop() else { break };
                let path = path_of(&stack, &done.name);
                self.attributes(&done.from, done.to).about(|| &path)?;
                if !stack.is_empty() {
                    self.from.forget(done.from.ino, 1);
                    self.to.forget(done.to, 1);
                    self.progress.file();
                }
                continue;
            };
            let (dir, to) = (here.from.ino, here.to);
            let path = path_of(&stack, &name);
            let attr = self.from.lookup(dir, &name).about(|| &path)?;
            if attr.file_type == FileType::Directory {
                if stack.iter().any(|level| level.from.ino == attr.ino) {
                    bail!("{path}: the directory contains itself: run `cffs fsck -n` on the image");
                }
                let made = self.to.mkdir(Caller::ROOT, to, &name, 0o700).about(|| &path)?;
                stack.push(self.level(name, attr, made.ino)?);
                continue;
            }
            let copied = self.file(&attr, to, &name).about(|| &path);
            self.from.forget(attr.ino, 1);
            copied?;
            self.progress.file();
        }
        Ok(())
    }

    fn level(&self, name: Vec<u8>, from: Attr, to: Ino) -> anyhow::Result<Level> {
        // Before there is anything in it: what it says is where that goes.
        match self.from.getxattr(from.ino, COLOCATION_ATTRIBUTE.as_bytes()) {
            Ok(key) => self.to.setxattr(Caller::ROOT, to, COLOCATION_ATTRIBUTE.as_bytes(), &key, SetXattr::default()),
            Err(Error::NoAttribute | Error::Unsupported) => Ok(()),
            Err(e) => Err(e),
        }
        .about(|| printable(&name))?;
        let mut names = names_of(self.from, from.ino).about(|| printable(&name))?;
        names.reverse();
        Ok(Level { name, from, to, names })
    }

    /// Copies anything but a directory.
    fn file(&mut self, from: &Attr, to: Ino, name: &[u8]) -> cffs::Result<()> {
        if let Some(first) = self.links.get(&from.ino) {
            let made = self.to.link(Caller::ROOT, *first, to, name)?;
            self.to.forget(made.ino, 1);
            return Ok(());
        }
        let made = match from.file_type {
            FileType::Regular => self.to.create(Caller::ROOT, to, name, 0o600)?,
            FileType::Symlink => self.to.symlink(Caller::ROOT, to, name, &self.from.readlink(from.ino)?)?,
            kind => self.to.mknod(Caller::ROOT, to, name, kind, 0o600, from.rdev)?,
        };
        let outcome = match from.file_type {
            FileType::Regular => self.contents(from, made.ino),
            _ => Ok(()),
        };
        let outcome = outcome.and_then(|()| self.attributes(from, made.ino));
        if from.nlink > 1 && outcome.is_ok() {
            self.links.insert(from.ino, made.ino);
        } else {
            self.to.forget(made.ino, 1);
        }
        outcome
    }

    /// Copies the data, leaves holes where there are any, and allocates what was allocated ahead.
    fn contents(&mut self, from: &Attr, to: Ino) -> cffs::Result<()> {
        let mut offset = 0;
        while offset < from.size {
            offset = match self.from.seek_data(from.ino, offset) {
                Ok(data) => data,
                Err(Error::NoDataBeyond) => break,
                Err(e) => return Err(e),
            };
            let until = self.from.seek_hole(from.ino, offset)?.min(from.size);
            while offset < until {
                let want = (until - offset).min(CHUNK as u64) as usize;
                let n = self.from.read(from.ino, offset, &mut self.buf[..want])?;
                if n == 0 {
                    return Err(cffs::format::Corrupt(format!("the file ends at {offset}, before its size")).into());
                }
                let mut rest = &self.buf[..n];
                while !rest.is_empty() {
                    let written = self.to.write(Caller::ROOT, to, offset, rest)?;
                    rest = &rest[written..];
                    offset += written as u64;
                }
                self.bytes += n as u64;
                self.progress.bytes(n as u64);
            }
        }
        self.to.setattr(Caller::ROOT, to, SetAttr::default().size(Some(from.size)))?;
        for (offset, len) in self.from.preallocated(from.ino)? {
            self.to.fallocate(Caller::ROOT, to, Fallocate::Allocate { keep_size: true }, offset, len)?;
        }
        Ok(())
    }

    /// Everything else, in this order: a new owner takes set-id bits away, a list of rights contains the mode, and an immutable file cannot be changed.
    fn attributes(&mut self, from: &Attr, to: Ino) -> cffs::Result<()> {
        let mode = (from.file_type != FileType::Symlink).then_some(from.perm);
        let owner = SetAttr::default().uid(Some(from.uid)).gid(Some(from.gid));
        self.to.setattr(Caller::ROOT, to, owner)?;
        self.to.setattr(Caller::ROOT, to, SetAttr::default().perm(mode))?;
        for name in self.from.listxattr(from.ino)? {
            let value = self.from.getxattr(from.ino, &name)?;
            self.to.setxattr(Caller::ROOT, to, &name, &value, SetXattr::default())?;
        }
        let project = self.from.project(from.ino)?;
        if project != self.to.project(to)? {
            self.to.set_project(Caller::ROOT, to, project.0, project.1)?;
        }
        let (atime, mtime) = (TimeSpec::At(from.atime), TimeSpec::At(from.mtime));
        self.to.setattr(Caller::ROOT, to, SetAttr::default().atime(Some(atime)).mtime(Some(mtime)))?;
        if from.flags != self.to.getattr(to)?.flags {
            if from.nlink > 1 && from.file_type != FileType::Directory {
                self.flags.push((to, from.flags));
            } else {
                self.to.set_flags(Caller::ROOT, to, from.flags)?;
            }
        }
        Ok(())
    }
}

/// The names in a directory, sorted: in this order cffs places files, and most programs read them.
pub fn names_of(fs: &Fs, dir: Ino) -> cffs::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, false, &mut |e| {
        if e.name != b"." && e.name != b".." {
            names.push(e.name);
        }
        true
    })?;
    names.sort_unstable();
    Ok(names)
}

fn path_of(stack: &[Level], name: &[u8]) -> String {
    let names = stack.iter().map(|level| level.name.as_slice()).chain([name]).filter(|n| !n.is_empty());
    names.fold(String::new(), |path, name| format!("{path}/{}", printable(name)))
}
