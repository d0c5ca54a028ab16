//! Repeats operations with the engine.

use std::collections::HashMap;

use anyhow::{Context, Result};
use cffs::trace::Kind;
use cffs::{Caller, Error, Fallocate, FileType, Fs, Ino, ROOT_INO, RenameFlags, SetAttr, SetXattr, TimeSpec};

use super::names::Names;
use super::workload::{Op, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, StartTree};

/// A pattern for contents, which are in no trace. It is as long as the longest write, and does not shrink under a compressor.
pub fn contents(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// Files with more bytes than this, and less space, have holes.
const DENSE: u64 = 4096;

/// Makes the tree that was there at the beginning.
///
/// # Errors
/// Those of the engine.
pub fn build(fs: &Fs, tree: &StartTree) -> Result<()> {
    let mut made: HashMap<u64, Ino> = HashMap::from([(ROOT_INO, ROOT_INO)]);
    let pattern = contents(1 << 20);
    for (directory, e) in tree.in_order() {
        let Some(dir) = made.get(&directory).copied() else { continue };
        let name = String::from_utf8_lossy(&e.name).into_owned();
        let ino = build_entry(fs, dir, e, made.get(&e.inode).copied(), &pattern)
            .with_context(|| format!("cannot make {name} of the tree of the trace"))?;
        made.insert(e.inode, ino);
    }
    made.into_iter().filter(|(_, ino)| *ino != ROOT_INO).for_each(|(_, ino)| fs.forget(ino, u64::MAX));
    fs.sync()?;
    Ok(())
}

fn build_entry(fs: &Fs, dir: Ino, e: &cffs::trace::Listed, there: Option<Ino>, pattern: &[u8]) -> cffs::Result<Ino> {
    let c = Caller { uid: e.uid, gid: e.gid };
    let perm = (e.mode & 0o7777) as u16;
    if let Some(ino) = there {
        return Ok(fs.link(Caller::ROOT, ino, dir, &e.name)?.ino);
    }
    let attr = match e.mode & S_IFMT {
        S_IFDIR => fs.mkdir(c, dir, &e.name, perm)?,
        S_IFLNK => fs.symlink(c, dir, &e.name, &vec![b'x'; e.size.clamp(1, 4095) as usize])?,
        S_IFREG => fs.create(c, dir, &e.name, perm)?,
        other => fs.mknod(c, dir, &e.name, type_of(other).unwrap_or(FileType::Fifo), perm, 0)?,
    };
    if e.mode & S_IFMT == S_IFREG {
        let written = if e.size > DENSE { e.size.min(e.space) } else { e.size };
        let mut at = 0;
        while at < written {
            let n = (written - at).min(pattern.len() as u64) as usize;
            at += fs.write(Caller::ROOT, attr.ino, at, &pattern[..n])? as u64;
        }
        if written < e.size {
            fs.setattr(Caller::ROOT, attr.ino, SetAttr::default().size(Some(e.size)))?;
        }
    }
    Ok(attr.ino)
}

fn type_of(mode: u32) -> Option<FileType> {
    [FileType::Fifo, FileType::CharDevice, FileType::BlockDevice, FileType::Socket, FileType::Regular]
        .into_iter()
        .find(|t| u32::from(t.mode_bits()) == mode & S_IFMT)
}

/// References of an inode of the recording in the replay.
#[derive(Clone, Copy)]
struct Live {
    ino: Ino,
    /// Those that the recording had too.
    refs: u64,
    /// One of ours, because the recording knew the inode before it began.
    extra: bool,
}

/// Repeats operations, one after the other.
pub struct Engine<'a> {
    fs: &'a Fs,
    names: Names,
    live: HashMap<u64, Live>,
    /// Positions of listings: those of the recording, with those here.
    positions: HashMap<(u64, u64), u64>,
    buffer: Vec<u8>,
}

impl<'a> Engine<'a> {
    /// Begins with the tree that [`build`] has made, or that is there.
    pub fn new(fs: &'a Fs, names: Names, longest: usize) -> Engine<'a> {
        let live = HashMap::from([(ROOT_INO, Live { ino: ROOT_INO, refs: 0, extra: true })]);
        Engine { fs, names, live, positions: HashMap::new(), buffer: contents(longest) }
    }

    /// Repeats one. Returns the errno of its failure, 0 if there is none; `None`: its file is not known.
    pub fn repeat(&mut self, op: &Op) -> Option<u64> {
        match self.try_repeat(op) {
            Ok(()) => Some(0),
            Err(Unknown::File) => None,
            Err(Unknown::Not(e)) => Some(e.errno().unsigned_abs().into()),
        }
    }

    /// Gives all references back.
    pub fn end(self) {
        for (_, live) in self.live.iter().filter(|(_, l)| l.ino != ROOT_INO) {
            self.fs.forget(live.ino, live.refs + u64::from(live.extra));
        }
    }

    /// The inode here of one of the recording.
    fn ino(&mut self, inode: u64) -> Result<Ino, Unknown> {
        if let Some(live) = self.live.get(&inode) {
            return Ok(live.ino);
        }
        let (directory, name) = self.names.place(inode).cloned().ok_or(Unknown::File)?;
        let dir = self.ino(directory)?;
        let ino = self.fs.lookup(dir, &name)?.ino;
        self.live.insert(inode, Live { ino, refs: 0, extra: true });
        Ok(ino)
    }

    /// A reference that the recording has too.
    fn took(&mut self, inode: u64, ino: Ino) {
        let live = self.live.entry(inode).or_insert(Live { ino, refs: 0, extra: false });
        if live.ino != ino {
            // The number belongs to another file by now.
            *live = Live { ino, refs: 0, extra: false };
        }
        live.refs += 1;
    }

    fn forget(&mut self, inode: u64, n: u64) {
        let Some(live) = self.live.get_mut(&inode).filter(|l| l.ino != ROOT_INO) else { return };
        // The kernel gives all references back at once, those before the recording among them.
        let mut given = n.min(live.refs);
        live.refs -= given;
        if live.refs == 0 {
            given += u64::from(live.extra);
            let ino = live.ino;
            self.live.remove(&inode);
            self.fs.forget(ino, given);
        } else {
            self.fs.forget(live.ino, given);
        }
    }

    fn made(&mut self, op: &Op, ino: Ino) {
        self.names.add(op.args[0], op.detail.name(0), op.detail.inode);
        self.live.remove(&op.detail.inode);
        self.took(op.detail.inode, ino);
    }

    fn try_repeat(&mut self, op: &Op) -> Result<(), Unknown> {
        let (fs, d, [a, b, len]) = (self.fs, &op.detail, op.args);
        let name = d.name(0);
        let caller = |at: usize| Caller { uid: d.number(at) as u32, gid: d.number(at + 1) as u32 };
        match op.kind {
            Kind::Lookup if name.is_empty() => {
                let ino = self.ino(a)?;
                if d.inode == 0 {
                    fs.parent(ino)?;
                } else {
                    let attr = fs.reference(ino)?;
                    self.took(a, attr.ino);
                }
            }
            Kind::Lookup => {
                let dir = self.ino(a)?;
                let attr = fs.lookup(dir, name)?;
                if d.inode != 0 {
                    self.names.add(a, name, d.inode);
                    self.took(d.inode, attr.ino);
                } else {
                    fs.forget(attr.ino, 1);
                }
            }
            Kind::Getattr => drop(fs.getattr(self.ino(a)?)?),
            Kind::Setattr => self.set_attributes(op)?,
            Kind::Readdir => self.list(op)?,
            Kind::Readlink => drop(fs.readlink(self.ino(a)?)?),
            Kind::Read => {
                let ino = self.ino(a)?;
                let mut buffer = std::mem::take(&mut self.buffer);
                let read = fs.read(ino, b, &mut buffer[..len as usize]);
                self.buffer = buffer;
                read?;
            }
            Kind::Write => {
                let ino = self.ino(a)?;
                fs.write(caller(0), ino, b, &self.buffer[..len as usize])?;
            }
            Kind::Create | Kind::Mknod => {
                let dir = self.ino(a)?;
                let mode = d.number(0) as u32;
                let file_type = type_of(mode).unwrap_or(FileType::Regular);
                let perm = (mode & 0o7777) as u16;
                let attr = if file_type == FileType::Regular {
                    fs.create(caller(1), dir, name, perm)?
                } else {
                    fs.mknod(caller(1), dir, name, file_type, perm, d.number(3) as u32)?
                };
                self.made(op, attr.ino);
            }
            Kind::Mkdir => {
                let dir = self.ino(a)?;
                let attr = fs.mkdir(caller(1), dir, name, (d.number(0) & 0o7777) as u16)?;
                self.made(op, attr.ino);
            }
            Kind::Symlink => {
                let dir = self.ino(a)?;
                let target = vec![b'x'; d.number(3).clamp(1, 4095) as usize];
                let attr = fs.symlink(caller(1), dir, name, &target)?;
                self.made(op, attr.ino);
            }
            Kind::Tmpfile => {
                let dir = self.ino(a)?;
                let attr = fs.tmpfile(caller(1), dir, (d.number(0) & 0o7777) as u16)?;
                self.live.remove(&d.inode);
                self.took(d.inode, attr.ino);
            }
            Kind::Link => {
                let (dir, ino) = (self.ino(a)?, self.ino(b)?);
                let attr = fs.link(caller(0), ino, dir, name)?;
                self.names.add(a, name, b);
                self.took(b, attr.ino);
            }
            Kind::Unlink | Kind::Rmdir => {
                let dir = self.ino(a)?;
                if op.kind == Kind::Unlink {
                    fs.unlink(dir, name)?
                } else {
                    fs.rmdir(dir, name)?
                }
                self.names.remove(a, name);
            }
            Kind::Rename => {
                let (from, to) = (self.ino(a)?, self.ino(b)?);
                let exchange = d.number(0) & 2 != 0;
                let flags = RenameFlags { no_replace: d.number(0) & 1 != 0, exchange };
                fs.rename(caller(1), from, name, to, d.name(1), flags)?;
                self.names.rename((a, name), (b, d.name(1)), exchange);
            }
            Kind::Fallocate => {
                let ino = self.ino(a)?;
                if let Some(what) = Fallocate::from_number(d.number(0)) {
                    fs.fallocate(caller(1), ino, what, b, len)?;
                }
            }
            Kind::Copy => {
                let (from, to) = (self.ino(a)?, self.ino(b)?);
                fs.copy_range(caller(2), from, d.number(0), to, d.number(1), len)?;
            }
            Kind::Seek => {
                let ino = self.ino(a)?;
                if d.number(0) == 0 {
                    fs.seek_data(ino, b)?
                } else {
                    fs.seek_hole(ino, b)?
                };
            }
            Kind::Fsync => fs.fsync(self.ino(a)?, false)?,
            Kind::Sync => fs.sync()?,
            Kind::Getxattr if name.is_empty() => drop(fs.listxattr(self.ino(a)?)?),
            Kind::Getxattr => drop(fs.getxattr(self.ino(a)?, name)?),
            Kind::Setxattr => self.set_attribute(op)?,
            Kind::Forget => self.forget(a, d.number(0)),
            Kind::Learn => {
                let ino = self.ino(a)?;
                fs.note_read(d.number(0) as u32, ino, d.number(1), d.number(2) as usize);
            }
            _ => {}
        }
        Ok(())
    }

    fn set_attributes(&mut self, op: &Op) -> Result<(), Unknown> {
        let (ino, d) = (self.ino(op.args[0])?, &op.detail);
        let c = Caller { uid: d.number(5) as u32, gid: d.number(6) as u32 };
        let has = |bit: u32| d.number(0) >> bit & 1 != 0;
        if has(6) {
            self.fs.set_flags(c, ino, d.number(1) as u32)?;
        } else if d.number(0) != 0 {
            let time = |bit| has(bit).then_some(TimeSpec::Now);
            let set = SetAttr::default()
                .perm(has(0).then_some(d.number(1) as u16))
                .uid(has(1).then_some(d.number(2) as u32))
                .gid(has(2).then_some(d.number(3) as u32))
                .size(has(3).then_some(d.number(4)))
                .atime(time(4))
                .mtime(time(5));
            self.fs.setattr(c, ino, set)?;
        }
        Ok(())
    }

    fn set_attribute(&mut self, op: &Op) -> Result<(), Unknown> {
        let (ino, d) = (self.ino(op.args[0])?, &op.detail);
        let c = Caller { uid: d.number(1) as u32, gid: d.number(2) as u32 };
        match d.number(0) {
            _ if d.name(0).is_empty() => {}
            u64::MAX => self.fs.removexattr(c, ino, d.name(0))?,
            // A key of co-location says where files go; of others only the length counts.
            _ if !d.name(1).is_empty() => self.fs.setxattr(c, ino, d.name(0), d.name(1), SetXattr::default())?,
            len => {
                let value = &self.buffer[..(len as usize).min(self.buffer.len())];
                self.fs.setxattr(c, ino, d.name(0), value, SetXattr::default())?;
            }
        }
        Ok(())
    }

    /// Lists as many names as the recording did, from the same position on.
    fn list(&mut self, op: &Op) -> Result<(), Unknown> {
        let (ino, d) = (self.ino(op.args[0])?, &op.detail);
        let (directory, from) = (op.args[0], op.args[1]);
        let (with_attr, count, last, stopped) = (d.number(0) != 0, d.number(1), d.number(2), d.number(3) != 0);
        let from = if from == 0 { 0 } else { self.positions.get(&(directory, from)).copied().unwrap_or(0) };
        let (mut listed, mut behind) = (Vec::new(), from);
        let outcome = self.fs.readdir(ino, from, with_attr, &mut |entry| {
            if stopped && listed.len() as u64 >= count {
                return false;
            }
            behind = entry.cookie;
            listed.push((entry.name, entry.ino));
            true
        });
        self.positions.insert((directory, last), behind);
        for (name, ino) in listed.into_iter().filter(|_| with_attr) {
            match self.names.get(directory, &name) {
                Some(inode) => self.took(inode, ino),
                None => self.fs.forget(ino, 1),
            }
        }
        Ok(outcome?)
    }
}

/// Why an operation was not repeated as it was.
enum Unknown {
    /// Nobody knows the name of its file.
    File,
    /// It failed.
    Not(Error),
}

impl From<Error> for Unknown {
    fn from(e: Error) -> Unknown {
        Unknown::Not(e)
    }
}
