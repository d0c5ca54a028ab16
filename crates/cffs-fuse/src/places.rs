//! Where an image is mounted, and mounting it at a second place.
//!
//! A second mount of an image shows the same file system at another directory, as it does with the kernel's own: the kernel
//! makes one more mount of the same super block. It does so by itself for mounts of type `fuseblk`.

use crate::config::MountConfig;
use crate::control::Control;
use crate::mountpoint::{self, LOOP_MAJOR, Mounted, backing_file};
use crate::snapshots::TEMPORARY;
use rustix::fs::{major, minor};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// What an image is, whatever its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Identity {
    /// Device and inode of a regular file: the image, or what the loop device shows that is the image.
    file: Option<(u64, u64)>,
    /// A block device.
    device: Option<(u32, u32)>,
}

impl Identity {
    fn of_path(path: &Path) -> io::Result<Identity> {
        let meta = std::fs::metadata(path)?;
        Ok(match meta.file_type() {
            kind if kind.is_block_device() => Identity::of_device((major(meta.rdev()), minor(meta.rdev()))),
            kind if kind.is_file() => Identity { file: Some(inode(&meta)), device: None },
            _ => Identity::default(),
        })
    }

    fn of_device(device: (u32, u32)) -> Identity {
        let shown = if device.0 == LOOP_MAJOR { backing_file(device.1) } else { None };
        let file = shown.and_then(|path| std::fs::metadata(path).ok()).map(|meta| inode(&meta));
        Identity { file, device: Some(device) }
    }

    fn of_mount(mounted: &Mounted) -> Identity {
        if mounted.is_block() {
            Identity::of_device(mounted.device)
        } else if mounted.source.is_absolute() {
            // The image may be gone since.
            Identity::of_path(&mounted.source).unwrap_or_default()
        } else {
            Identity::default()
        }
    }

    fn is_same(&self, other: &Identity) -> bool {
        (self.file.is_some() && self.file == other.file) || (self.device.is_some() && self.device == other.device)
    }
}

fn inode(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// A directory that an image is mounted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    mounted: Mounted,
    identity: Identity,
}

impl Place {
    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.mounted.dir
    }

    /// Whether a process answers there. Waits for it as any access to the mount does.
    pub fn is_served(&self) -> bool {
        Control::open(self.dir()).is_ok()
    }

    /// Whether the image can be mounted at a second place: whether it is mounted as `fuseblk`.
    pub fn can_be_joined(&self) -> bool {
        self.mounted.is_block()
    }

    /// Mounts the same file system at `dir` too, with the flags `suid`, `dev` and `exec` of `config`. All else is as at the
    /// first place. Only root may.
    ///
    /// # Errors
    /// - `AlreadyExists`: it is mounted at `dir` already;
    /// - `ResourceBusy`: it is mounted read-only and `read_only` is false, or the other way round, as for any file system;
    /// - `NotFound`: it is not mounted any more;
    /// - what fsopen(2) and move_mount(2) report.
    pub fn mount_again(&self, dir: &Path, config: &MountConfig, read_only: bool) -> io::Result<()> {
        let dir = mountpoint::check(dir).map_err(io::Error::other)?;
        let all = mountpoint::mounts()?;
        if all.iter().rev().find(|m| m.dir == dir).is_some_and(|m| m.is_cffs() && m.device == self.mounted.device) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is mounted there already"));
        }
        let gone = || io::Error::new(io::ErrorKind::NotFound, "it is not mounted any more");
        let mount = mountpoint::join(&self.device_file()?, read_only, mountpoint::attributes(config, read_only));
        let mount = mount.map_err(|e| if e.kind() == io::ErrorKind::InvalidInput { gone() } else { e })?;
        // From here on the super block stays, and so does the loop device. Before, it may have become that of another image.
        if !self.identity.is_same(&Identity::of_mount(&self.mounted)) {
            return Err(gone());
        }
        mount.attach(&dir)
    }

    /// A device file of the block device.
    fn device_file(&self) -> io::Result<PathBuf> {
        let device = self.mounted.device;
        let named = [self.mounted.source.clone(), format!("/dev/block/{}:{}", device.0, device.1).into()];
        let is_it = |path: &PathBuf| {
            std::fs::metadata(path)
                .is_ok_and(|m| m.file_type().is_block_device() && (major(m.rdev()), minor(m.rdev())) == device)
        };
        named.into_iter().find(is_it).ok_or_else(|| {
            let text = format!("there is no device file for block device {}:{}", device.0, device.1);
            io::Error::other(text)
        })
    }
}

/// Where an image, a file or a device, is mounted in this mount namespace, the newest place first; also if it was mounted by
/// another path, or through a loop device.
///
/// # Errors
/// What looking at `image` and reading the table of mounts report.
pub fn places_of(image: &Path) -> io::Result<Vec<Place>> {
    let identity = Identity::of_path(image)?;
    let all = mountpoint::mounts()?;
    let cffs = all.into_iter().rev().filter(Mounted::is_cffs);
    Ok(cffs
        .filter(|mounted| identity.is_same(&Identity::of_mount(mounted)))
        .map(|mounted| Place { mounted, identity })
        .collect())
}

/// Where snapshots and clones of an image are mounted that is not mounted itself, in this mount namespace: their names, and the directories. Not
/// temporary ones, which end with the mount of the image.
pub fn views_of(image: &Path) -> Vec<(String, PathBuf)> {
    let (Ok(identity), Ok(all)) = (Identity::of_path(image), mountpoint::mounts()) else { return Vec::new() };
    let view = |mounted: Mounted| {
        let source = mounted.source.to_str()?;
        // Either name may have an @.
        let mut splits = source.match_indices('@').map(|(at, _)| (&source[..at], &source[at + 1..]));
        let (_, name) = splits.find(|(path, _)| {
            Path::new(path).is_absolute() && Identity::of_path(Path::new(path)).is_ok_and(|of| of.is_same(&identity))
        })?;
        (name != TEMPORARY).then(|| (name.to_owned(), mounted.dir.clone()))
    };
    all.into_iter().rev().filter(|m| m.is_cffs() && !m.is_block()).filter_map(view).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_its_inode_not_its_path() {
        let tmp = tempfile::tempdir().unwrap();
        let (a, b, other) = (tmp.path().join("a"), tmp.path().join("b"), tmp.path().join("other"));
        std::fs::write(&a, b"image").unwrap();
        std::fs::hard_link(&a, &b).unwrap();
        std::fs::write(&other, b"image").unwrap();
        let identity = |path| Identity::of_path(path).unwrap();
        assert!(identity(&a).is_same(&identity(&b)) && !identity(&a).is_same(&identity(&other)));
        let directory = identity(tmp.path());
        assert!(!directory.is_same(&directory), "nothing that could be an image");
        assert!(places_of(&a).unwrap().is_empty());
        assert!(places_of(&tmp.path().join("missing")).is_err());
    }
}
