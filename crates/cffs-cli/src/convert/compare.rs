//! Compares two file systems: everything that a copy is to have.

use super::copy::names_of;
use crate::image::EngineResultExt;
use crate::progress::Progress;
use crate::text::printable;
use anyhow::bail;
use cffs::{Attr, Error, FileType, Fs, Ino, ROOT_INO};
use std::collections::HashMap;

const CHUNK: usize = 1 << 20;

/// Compares everything below the root directories; `total` are the bytes of all files. What differs first is the error.
pub fn compare(a: &Fs, b: &Fs, total: u64) -> anyhow::Result<()> {
    let progress = Progress::new(Some(total));
    // Which inode there is which here: names of one file must be names of one file.
    let mut inodes: HashMap<Ino, Ino> = HashMap::new();
    let mut stack = vec![(String::new(), ROOT_INO, ROOT_INO)];
    while let Some((path, one, other)) = stack.pop() {
        let shown = if path.is_empty() { "/" } else { &path };
        let (x, y) = (a.reference(one).about(|| shown)?, b.reference(other).about(|| shown)?);
        let known = inodes.insert(one, other);
        let same = match known {
            Some(known) => Ok((known != other).then_some("what it is a name of")),
            None => same_inode(a, b, &x, &y, &progress),
        };
        a.forget(one, 1);
        b.forget(other, 1);
        if let Some(what) = same.about(|| shown)? {
            bail!("{shown}: the copy differs from the original in {what}");
        }
        if x.file_type != FileType::Directory {
            continue;
        }
        let (names, copied) = (names_of(a, one).about(|| shown)?, names_of(b, other).about(|| shown)?);
        if names != copied {
            bail!("{shown}: the copy has other names than the original");
        }
        for name in names.iter().rev() {
            let inner = format!("{path}/{}", printable(name));
            let ino = |fs: &Fs, dir: Ino| -> anyhow::Result<Ino> {
                let attr = fs.lookup(dir, name).about(|| &inner)?;
                fs.forget(attr.ino, 1);
                Ok(attr.ino)
            };
            let (first, second) = (ino(a, one)?, ino(b, other)?);
            stack.push((inner, first, second));
        }
    }
    Ok(())
}

/// What differs between a file, directory or other and its copy.
fn same_inode(a: &Fs, b: &Fs, x: &Attr, y: &Attr, progress: &Progress) -> cffs::Result<Option<&'static str>> {
    let kind = |a: &Attr| (a.file_type, a.rdev);
    let size = |a: &Attr| if a.file_type == FileType::Directory { 0 } else { a.size };
    let checks = [
        (kind(x) == kind(y), "its type"),
        (x.perm == y.perm, "its mode"),
        ((x.uid, x.gid) == (y.uid, y.gid), "its owner"),
        (x.nlink == y.nlink, "the number of its names"),
        (size(x) == size(y), "its size"),
        ((x.atime, x.mtime) == (y.atime, y.mtime), "its times"),
        (x.flags == y.flags, "its flags"),
        (a.project(x.ino)? == b.project(y.ino)?, "its project"),
        (attributes(a, x.ino)? == attributes(b, y.ino)?, "its extended attributes"),
    ];
    if let Some((_, what)) = checks.into_iter().find(|(same, _)| !same) {
        return Ok(Some(what));
    }
    match x.file_type {
        FileType::Symlink if a.readlink(x.ino)? != b.readlink(y.ino)? => Ok(Some("its target")),
        FileType::Regular => same_contents(a, b, x, y, progress),
        _ => Ok(None),
    }
}

fn attributes(fs: &Fs, ino: Ino) -> cffs::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut all = Vec::new();
    for name in fs.listxattr(ino)? {
        let value = fs.getxattr(ino, &name)?;
        all.push((name, value));
    }
    all.sort_unstable();
    Ok(all)
}

fn same_contents(a: &Fs, b: &Fs, x: &Attr, y: &Attr, progress: &Progress) -> cffs::Result<Option<&'static str>> {
    if a.preallocated(x.ino)?.is_empty() != b.preallocated(y.ino)?.is_empty() {
        return Ok(Some("what is allocated ahead"));
    }
    let (mut one, mut other) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut offset = 0;
    while offset < x.size {
        // Where neither has data both read as zeros.
        let next = |fs: &Fs, ino: Ino| match fs.seek_data(ino, offset) {
            Err(Error::NoDataBeyond) => Ok(x.size),
            other => other,
        };
        offset = next(a, x.ino)?.min(next(b, y.ino)?);
        if offset >= x.size {
            break;
        }
        let want = (x.size - offset).min(CHUNK as u64) as usize;
        let (n, m) = (a.read(x.ino, offset, &mut one[..want])?, b.read(y.ino, offset, &mut other[..want])?);
        if n != m || n == 0 || one[..n] != other[..n] {
            return Ok(Some("its contents"));
        }
        offset += n as u64;
        progress.bytes(n as u64);
    }
    Ok(None)
}
