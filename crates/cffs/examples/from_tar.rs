//! Makes an image and fills it from a tar archive, without a mount and without privileges:
//!
//! ```text
//! tar c ~/src | cargo run --release --example from_tar -- - src.img 2G
//! ```
//!
//! Names of the archive lead nowhere but into the image, whatever stands in them.

use cffs::device::{FileDevice, OpenMode};
use cffs::{Caller, Dir, FileType, Fs, MkfsOptions, MountOptions, SetAttr, TimeSpec, mkfs};
use std::error::Error;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use tar::{Archive, EntryType, Header};

/// What was taken from the archive.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Entries of the archive that are in the image now.
    pub entries: u64,
    /// Bytes of regular files.
    pub bytes: u64,
    /// Entries of kinds that are left out.
    pub skipped: u64,
}

/// Makes a file system in `image` and unpacks the archive into its root.
pub fn run(archive: impl Read, image: &Path, size: u64) -> Result<Copied, Box<dyn Error>> {
    let device = Arc::new(FileDevice::create(image, size, OpenMode::READ_WRITE)?);
    mkfs(&*device, None, &MkfsOptions::default())?;
    let fs = Fs::open(device, None, MountOptions::default())?;
    let copied = unpack(archive, &fs.root()?);
    // Also after an error: what was copied so far is durable then.
    fs.close()?;
    copied
}

fn unpack(archive: impl Read, root: &Dir) -> Result<Copied, Box<dyn Error>> {
    let mut copied = Copied::default();
    // Times of directories come last, because filling a directory changes them.
    let mut dirs = Vec::new();
    for entry in Archive::new(archive).entries()? {
        let mut entry = entry?;
        let path = inside(&entry.path()?);
        let header = entry.header().clone();
        let set = attributes(&header)?;
        if let (Some(above), true) = (path.parent(), path != Path::new(".")) {
            root.create_dir_all(Path::new(".").join(above))?;
        }
        match header.entry_type() {
            EntryType::Directory => {
                root.create_dir_all(&path)?;
                dirs.push((path, set));
                copied.entries += 1;
                continue;
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                replace(root, &path)?;
                copied.bytes += io::copy(&mut entry, &mut root.create(&path)?)?;
            }
            EntryType::Symlink => {
                replace(root, &path)?;
                root.symlink(entry.link_name()?.unwrap_or_default(), &path)?;
            }
            EntryType::Link => {
                replace(root, &path)?;
                root.hard_link(inside(&entry.link_name()?.unwrap_or_default()), root, &path)?;
            }
            EntryType::Fifo => {
                replace(root, &path)?;
                let dir = root.open_dir(Path::new(".").join(path.parent().unwrap_or(Path::new(""))))?;
                let name = path.file_name().unwrap_or(OsStr::new("")).as_bytes();
                let made = dir.fs().mknod(Caller::ROOT, dir.ino(), name, FileType::Fifo, 0o644, 0)?;
                // An operation by number hands out a reference.
                dir.fs().forget(made.ino, 1);
            }
            _ => {
                copied.skipped += 1;
                continue;
            }
        }
        copied.entries += 1;
        if header.entry_type() != EntryType::Link {
            root.set_attributes(&path, set)?;
        }
    }
    for (path, set) in dirs.into_iter().rev() {
        root.set_attributes(&path, set)?;
    }
    Ok(copied)
}

/// The names of a path, without a root and without `..`; `.` if there is none.
fn inside(path: &Path) -> PathBuf {
    let names = path.components().filter(|c| matches!(c, Component::Normal(_)));
    let path: PathBuf = names.collect();
    if path.as_os_str().is_empty() { ".".into() } else { path }
}

/// An archive may have a name twice: the last one counts.
fn replace(root: &Dir, path: &Path) -> cffs::Result<()> {
    match root.remove_file(path) {
        Err(cffs::Error::NotFound) => Ok(()),
        outcome => outcome,
    }
}

fn attributes(header: &Header) -> io::Result<SetAttr> {
    let set = SetAttr::default().uid(Some(header.uid()? as u32)).gid(Some(header.gid()? as u32));
    let set = set.mtime(Some(TimeSpec::At((header.mtime()? as i64).saturating_mul(1_000_000_000))));
    // The permissions of a symbolic link are always the same.
    let link = header.entry_type() == EntryType::Symlink;
    Ok(if link { set } else { set.perm(Some((header.mode()? & 0o7777) as u16)) })
}

/// A number of bytes, perhaps with K, M, G or T behind it.
fn size(text: &str) -> Option<u64> {
    let shift = match text.bytes().last()?.to_ascii_uppercase() {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => return text.parse().ok(),
    };
    text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[allow(dead_code, reason = "the test of the examples calls run")]
fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let (Some(archive), Some(image), Some(size)) = (args.get(1), args.get(2), args.get(3).and_then(|s| size(s))) else {
        return Err("usage: from_tar ARCHIVE|- IMAGE SIZE[K|M|G|T]".into());
    };
    let input: Box<dyn Read> =
        if archive == "-" { Box::new(io::stdin().lock()) } else { Box::new(std::fs::File::open(archive)?) };
    let copied = run(io::BufReader::with_capacity(1 << 20, input), Path::new(image), size)?;
    println!("{} entries, {} bytes, {} left out", copied.entries, copied.bytes, copied.skipped);
    Ok(())
}
