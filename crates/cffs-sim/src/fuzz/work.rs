//! What is done with a mounted image: everything is read, and then changed here and there.

use crate::ops::RegroupHow;
use cffs::{
    Attr, Caller, DirEntry, Error, Fallocate, FileType, Fs, Ino, QuotaKind, ROOT_INO, Regroup, RegroupOutcome,
    RenameFlags, SetAttr, SetXattr,
};
use fastrand::Rng;
use std::collections::HashSet;

/// Inodes that a walk visits at most.
const VISITED_MAX: usize = 20_000;
/// Bytes that are read of a file at each place.
const PIECE: usize = 64 << 10;

/// Bytes that follow from a number.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::with_seed(seed);
    (0..len).map(|_| rng.u8(..)).collect()
}

/// What there was to see.
#[derive(Default)]
pub struct Walked {
    /// Directories.
    pub dirs: Vec<Ino>,
    /// Names: directory, name, inode, type.
    pub names: Vec<(Ino, Vec<u8>, Ino, FileType)>,
    /// What could not be read.
    pub errors: Vec<String>,
}

/// Reads everything that a bounded number of calls can read. Never follows a directory twice.
pub fn walk(fs: &Fs) -> Walked {
    let mut w = Walked::default();
    let mut seen = HashSet::from([ROOT_INO]);
    let mut stack = vec![ROOT_INO];
    let _ = fs.statfs();
    for kind in QuotaKind::ALL {
        if let Err(e) = fs.quota_list(kind) {
            w.note("quotas", 0, e);
        }
    }
    match fs.getattr(ROOT_INO) {
        Ok(a) => look(fs, &a, &mut w),
        Err(e) => w.note("getattr", ROOT_INO, e),
    }
    while let Some(dir) = stack.pop() {
        w.dirs.push(dir);
        let mut list: Vec<DirEntry> = Vec::new();
        let room = VISITED_MAX.saturating_sub(seen.len()).max(1);
        let outcome = fs.readdir(dir, 0, true, &mut |e| {
            list.push(e);
            list.len() < room
        });
        if let Err(e) = outcome {
            w.note("readdir", dir, e);
        }
        if let Err(e) = fs.parent(dir) {
            w.note("parent", dir, e);
        }
        for e in list {
            match fs.lookup(dir, &e.name) {
                Ok(a) if a.ino == e.ino => {
                    if seen.insert(a.ino) {
                        look(fs, &a, &mut w);
                        if a.file_type == FileType::Directory && seen.len() < VISITED_MAX {
                            stack.push(a.ino);
                        }
                    }
                    fs.forget(a.ino, 1);
                }
                Ok(a) => {
                    w.errors.push(format!("name {:?} is listed as inode {} and found as {}", e.name, e.ino, a.ino))
                }
                Err(err) => w.note("lookup", e.ino, err),
            }
            w.names.push((dir, e.name, e.ino, e.file_type));
            if e.attr.is_some() {
                fs.forget(e.ino, 1);
            }
        }
    }
    let named: Vec<Ino> = seen.iter().copied().take(VISITED_MAX).collect();
    by_number(fs, &named, &mut w);
    w
}

/// Looks for inodes by their numbers, as file handles have them: those with names, their neighbours, and impossible ones.
fn by_number(fs: &Fs, named: &[Ino], w: &mut Walked) {
    let most = fs.geometry().inodes_max();
    let others = [0, 2, 3, 15, 16, 17, most - 1, most, most + 1, 1 << 40, u64::MAX];
    for ino in named.iter().flat_map(|ino| [*ino, ino.wrapping_add(1)]).chain(others) {
        match fs.reference(ino) {
            Ok(a) => {
                if a.ino != ino {
                    w.errors.push(format!("inode {} is found by the number {ino}", a.ino));
                }
                if a.file_type == FileType::Directory
                    && let Err(e) = fs.parent(ino)
                {
                    w.note("parent", ino, e);
                }
                if let Err(e) = fs.getattr(ino) {
                    w.note("getattr", ino, e);
                }
                fs.forget(ino, 1);
            }
            Err(Error::Stale) if !named.contains(&ino) => {}
            Err(e) => w.note("reference", ino, e),
        }
    }
}

impl Walked {
    fn note(&mut self, what: &str, ino: Ino, e: Error) {
        // What a file system in order may answer too.
        if !matches!(e, Error::NoDataBeyond | Error::NoAttribute | Error::Unsupported | Error::Invalid(_)) {
            self.errors.push(format!("{what} of inode {ino}: {e}"));
        }
    }
}

fn look(fs: &Fs, a: &Attr, w: &mut Walked) {
    match fs.listxattr(a.ino) {
        Err(e) => w.note("listxattr", a.ino, e),
        Ok(names) => {
            for name in names {
                if let Err(e) = fs.getxattr(a.ino, &name) {
                    w.note("getxattr", a.ino, e);
                }
            }
        }
    }
    match a.file_type {
        FileType::Symlink => {
            if let Err(e) = fs.readlink(a.ino) {
                w.note("readlink", a.ino, e);
            }
        }
        FileType::Regular => {
            let mut buf = vec![0; PIECE];
            let mut at = 0;
            for _ in 0..24 {
                if let Err(e) = fs.read(a.ino, at, &mut buf) {
                    w.note("read", a.ino, e);
                }
                // To the next piece with data behind this one.
                let next = fs.seek_data(a.ino, at + PIECE as u64);
                if let Err(e) = fs.seek_hole(a.ino, at) {
                    w.note("seek_hole", a.ino, e);
                }
                match next {
                    Ok(next) if next > at => at = next,
                    Ok(_) => break,
                    Err(e) => {
                        w.note("seek_data", a.ino, e);
                        break;
                    }
                }
            }
            if let Err(e) = fs.read(a.ino, a.size.saturating_sub(100), &mut buf[..200]) {
                w.note("read", a.ino, e);
            }
        }
        _ => {}
    }
}

/// Changes this and that. What fails is told; a file system in order answers some of it with errors too, but never that it
/// is damaged.
pub fn work(fs: &Fs, w: &Walked, rng: &mut Rng, steps: usize) -> Vec<String> {
    let mut errors = Vec::new();
    let mut dirs = w.dirs.clone();
    let mut files: Vec<Ino> = w.names.iter().filter(|n| n.3 == FileType::Regular).map(|n| n.2).collect();
    for step in 0..steps {
        let c = [Caller::ROOT, Caller { uid: 1000, gid: 100 }][rng.usize(..2)];
        let dir = dirs[rng.usize(..dirs.len())];
        let to = dirs[rng.usize(..dirs.len())];
        let fresh = format!("new{}", rng.u8(..30)).into_bytes();
        let (from, name, ino) = match w.names.len() {
            0 => (dir, fresh.clone(), ROOT_INO),
            n => {
                let (d, name, ino, _) = &w.names[rng.usize(..n)];
                (*d, name.clone(), *ino)
            }
        };
        let file = if files.is_empty() { ino } else { files[rng.usize(..files.len())] };
        let (what, outcome) = match rng.u8(..23) {
            0..=2 => (
                "create",
                fs.create(c, dir, &fresh, 0o644).and_then(|a| {
                    files.push(a.ino);
                    let len = [0, 10, 3000, 70_000][rng.usize(..4)];
                    fs.write(c, a.ino, 0, &vec![step as u8; len]).map(drop)
                }),
            ),
            3 => ("mkdir", fs.mkdir(c, dir, &fresh, 0o755).map(|a| dirs.push(a.ino))),
            4 => ("symlink", fs.symlink(c, dir, &fresh, &vec![b'y'; [9, 400][rng.usize(..2)]]).map(drop)),
            5 | 6 => ("write", {
                let at = [0, 100, 5000, 1 << 20, 1 << 40][rng.usize(..5)];
                fs.write(c, file, at, &vec![9; [1, 700, 30_000][rng.usize(..3)]]).map(drop)
            }),
            7 | 8 => ("unlink", fs.unlink(from, &name)),
            9 => ("rmdir", fs.rmdir(from, &name)),
            10 | 11 => ("rename", {
                let flags = RenameFlags { exchange: rng.u8(..4) == 0, no_replace: rng.u8(..4) == 0 };
                let new = if rng.bool() { fresh } else { name.clone() };
                fs.rename(c, from, &name, to, &new, flags)
            }),
            12 => ("link", fs.link(c, file, to, &fresh).map(drop)),
            13 => ("truncate", {
                let size = Some([0, 1, 5000, 100_000, 1 << 41][rng.usize(..5)]);
                fs.setattr(c, file, SetAttr::default().size(size)).map(drop)
            }),
            14 => ("setattr", {
                let set = SetAttr::default().perm(Some(0o600)).uid(Some(1001));
                fs.setattr(Caller::ROOT, ino, set).map(drop)
            }),
            15 => ("setxattr", {
                let value = vec![3; [5, 300, 5000][rng.usize(..3)]];
                let name = ["user.small", "user.other", "trusted.larger"][rng.usize(..3)];
                fs.setxattr(Caller::ROOT, file, name.as_bytes(), &value, SetXattr::default())
            }),
            16 => ("removexattr", fs.removexattr(Caller::ROOT, file, b"user.small")),
            17 => ("fallocate", {
                let how = [
                    Fallocate::Allocate { keep_size: true },
                    Fallocate::PunchHole,
                    Fallocate::Zero { keep_size: false },
                    Fallocate::Collapse,
                    Fallocate::Insert,
                ][rng.usize(..5)];
                fs.fallocate(c, file, how, rng.u64(..8) * 65_536, 65_536)
            }),
            18 => ("fsync", fs.fsync(file, false)),
            19 => ("sync", fs.sync()),
            21 => ("regroup", {
                let handle = Regroup::new();
                let outcome =
                    fs.regroup(&RegroupHow::ALL[rng.usize(..RegroupHow::ALL.len())].options(ROOT_INO), &handle);
                outcome.and_then(|()| match handle.status().outcome {
                    Some(RegroupOutcome::Failed(why)) => Err(std::io::Error::other(why).into()),
                    _ => Ok(()),
                })
            }),
            20 => ("copy_range", fs.copy_range(c, file, 0, ino, rng.u64(..10_000), 20_000).map(drop)),
            _ => {
                fs.drop_caches();
                ("getattr", fs.getattr(ino).map(drop))
            }
        };
        if let Err(e @ (Error::Corrupt(_) | Error::Io(_) | Error::ReadOnly)) = outcome {
            errors.push(format!("{what} (step {step}): {e}"));
        }
    }
    errors
}
