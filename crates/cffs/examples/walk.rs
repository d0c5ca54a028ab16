//! Prints every file of an image: type, permissions, owner, size and path.
//!
//! ```text
//! cargo run --release --example walk -- src.img
//! ```

use cffs::device::{FileDevice, OpenMode};
use cffs::{Attr, Dir, FileType, Fs, MountOptions};
use std::error::Error;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Prints the whole image, and returns the number of files.
pub fn run(image: &Path, out: &mut impl Write) -> Result<u64, Box<dyn Error>> {
    let device = Arc::new(FileDevice::open(image, OpenMode::READ_ONLY)?);
    // A file system that was not unmounted is recovered in memory.
    let fs = Fs::open(device, None, MountOptions::default().read_only(true))?;
    let count = walk(&fs.root()?, out)?;
    fs.close()?;
    Ok(count)
}

/// First the files of a directory, then its directories, because they stand on the device in this order.
fn walk(root: &Dir, out: &mut impl Write) -> Result<u64, Box<dyn Error>> {
    let mut count = 0;
    // A list and not recursion, because an image may be deeper than the stack.
    let mut todo = vec![PathBuf::from("/")];
    while let Some(path) = todo.pop() {
        let mut dirs = Vec::new();
        for entry in root.open_dir(&path)?.entries_with_attributes()? {
            let entry = entry?;
            let path = path.join(OsStr::from_bytes(&entry.name));
            if let Some(attr) = entry.attr {
                let target = match entry.file_type {
                    FileType::Symlink => Some(root.read_link(&path)?),
                    _ => None,
                };
                line(&path, &attr, target.as_deref(), out)?;
            }
            count += 1;
            if entry.file_type == FileType::Directory {
                dirs.push(path);
            }
        }
        todo.extend(dirs.into_iter().rev());
    }
    Ok(count)
}

fn line(path: &Path, a: &Attr, target: Option<&Path>, out: &mut impl Write) -> io::Result<()> {
    let kind = match a.file_type {
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::Regular => '-',
        _ => '?',
    };
    write!(out, "{kind}{:04o} {:>5} {:>5} {:>12} {}", a.perm, a.uid, a.gid, a.size, path.display())?;
    match target {
        Some(target) => writeln!(out, " -> {}", target.display()),
        None => writeln!(out),
    }
}

#[allow(dead_code, reason = "the test of the examples calls run")]
fn main() -> Result<(), Box<dyn Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: walk IMAGE")?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    let count = run(Path::new(&image), &mut out)?;
    writeln!(out, "{count} files")?;
    Ok(out.flush()?)
}
