//! The directories that are named on the command line, as inode numbers.

use anyhow::{Context, anyhow, bail};
use cffs::path::resolve;
use cffs::{Attr, Error, FileType, Fs, Ino, ROOT_INO};
use rustix::fs::StatVfsMountFlags;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const NOT_A_DIRECTORY: &str = "not a directory: name the directory that it is in";

/// Directories of the mount that `mount` is in: each by its path, or by its path from `mount` on. None of them: the whole file
/// system, for which `mount` has to be its root directory.
pub(super) fn of_mount(mount: &Path, paths: &[PathBuf]) -> anyhow::Result<Vec<Ino>> {
    let top = std::fs::metadata(mount).with_context(|| mount.display().to_string())?;
    if paths.is_empty() && top.ino() != ROOT_INO {
        let name = mount.display();
        bail!(
            "{name}: a directory inside of a file system: write `cffs regroup . {name}` for what is below it, or name the \
             mount point for the whole file system"
        );
    }
    let flags = rustix::fs::statvfs(mount).with_context(|| mount.display().to_string())?.f_flag;
    if flags.contains(StatVfsMountFlags::RDONLY) {
        // After `mount -o remount,ro` the engine could still write, and nobody expects it to.
        bail!("{}: mounted read-only: mount it for writing first", mount.display());
    }
    let mut found = Vec::new();
    for path in paths {
        let meta = lookup(mount, path)?;
        if meta.dev() != top.dev() {
            bail!("{}: not in the file system that {} is in", path.display(), mount.display());
        }
        if !meta.is_dir() {
            bail!("{}: {NOT_A_DIRECTORY}", path.display());
        }
        add(&mut found, meta.ino());
    }
    Ok(found)
}

/// What a path means: first from the mount on, then from the working directory.
fn lookup(mount: &Path, path: &Path) -> anyhow::Result<Metadata> {
    let not_found = |e: &std::io::Error| matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
    let found = match std::fs::metadata(mount.join(path)) {
        Err(e) if not_found(&e) => std::fs::metadata(path).map_err(|_| e),
        other => other,
    };
    found.map_err(|e| match e.kind() {
        ErrorKind::NotFound => {
            anyhow!("{}: no such directory: write its path, or its path from {} on", path.display(), mount.display())
        }
        _ => anyhow!("{}: {e}", path.display()),
    })
}

/// Directories of an image by their paths in it. Each comes with a reference.
pub(super) fn of_image(fs: &Fs, image: &str, paths: &[&[u8]]) -> anyhow::Result<Vec<Ino>> {
    let mut found = Vec::new();
    for path in paths {
        let name = || format!("{image}:/{}", String::from_utf8_lossy(path).trim_start_matches('/'));
        let outcome = match resolve(fs, path) {
            Ok(Attr { ino, file_type: FileType::Directory, .. }) => {
                if !add(&mut found, ino) {
                    fs.forget(ino, 1);
                }
                continue;
            }
            Ok(attr) => {
                fs.forget(attr.ino, 1);
                anyhow!("{}: {NOT_A_DIRECTORY}", name())
            }
            Err(Error::NotFound) => anyhow!("{}: no such directory in the image", name()),
            Err(e) => anyhow!("{}: {e}", name()),
        };
        return Err(outcome);
    }
    Ok(found)
}

/// Adds a directory, unless it was named already. Whether it was added.
fn add(found: &mut Vec<Ino>, ino: Ino) -> bool {
    let new = !found.contains(&ino);
    if new {
        found.push(ino);
    }
    new
}
