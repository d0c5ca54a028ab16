//! Paths, for programs that use the library without a mount, and for tests.

use super::{Attr, Caller, Fs};
use crate::error::{Error, Result};
use crate::format::{FileType, ROOT_INO};

/// Follows a path from the root, without following symbolic links. Returns the attributes with one reference, which the
/// caller releases with [`Fs::forget`].
pub fn resolve(fs: &Fs, path: &[u8]) -> Result<Attr> {
    let mut at = fs.reference(ROOT_INO)?;
    for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".") {
        let next = if name == b".." {
            fs.parent(at.ino).and_then(|up| fs.reference(up))
        } else if at.file_type != FileType::Directory {
            Err(Error::NotDir)
        } else {
            fs.lookup(at.ino, name)
        };
        fs.forget(at.ino, 1);
        at = next?;
    }
    Ok(at)
}

/// Directory and last name of a path. The directory's attributes come with one reference.
pub fn resolve_parent<'a>(fs: &Fs, path: &'a [u8]) -> Result<(Attr, &'a [u8])> {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |i| i + 1);
    let path = &path[..end];
    let cut = path.iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
    let name = &path[cut..];
    if name.is_empty() {
        return Err(Error::Exists); // the root itself
    }
    Ok((resolve(fs, &path[..cut])?, name))
}

/// Reads a whole regular file.
pub fn read_file(fs: &Fs, path: &[u8]) -> Result<Vec<u8>> {
    let attr = resolve(fs, path)?;
    let mut out = Vec::new();
    // Read piece by piece, because the size of a file on a damaged image may be anything.
    let mut piece = vec![0; 1 << 20];
    let outcome = loop {
        match fs.read(attr.ino, out.len() as u64, &mut piece) {
            Ok(0) => break Ok(()),
            Ok(n) => out.extend_from_slice(&piece[..n]),
            Err(e) => break Err(e),
        }
    };
    fs.forget(attr.ino, 1);
    outcome.map(|()| out)
}

/// Creates a regular file, or replaces its contents.
pub fn write_file(fs: &Fs, c: Caller, path: &[u8], data: &[u8]) -> Result<Attr> {
    let (dir, name) = resolve_parent(fs, path)?;
    let made = match fs.create(c, dir.ino, name, 0o644) {
        Err(Error::Exists) => fs.lookup(dir.ino, name).and_then(|attr| {
            let set = super::SetAttr { size: Some(0), ..Default::default() };
            fs.setattr(c, attr.ino, set).inspect_err(|_| fs.forget(attr.ino, 1))
        }),
        other => other,
    };
    fs.forget(dir.ino, 1);
    let attr = made?;
    let mut done = 0;
    while done < data.len() {
        match fs.write(c, attr.ino, done as u64, &data[done..]) {
            Ok(n) => done += n,
            Err(e) => {
                fs.forget(attr.ino, 1);
                return Err(e);
            }
        }
    }
    let attr = fs.getattr(attr.ino);
    if let Ok(a) = &attr {
        fs.forget(a.ino, 1);
    }
    attr
}
