//! Images: opening them, what their superblock says, and what is in them without a mount.

use crate::device::open_device;
use crate::disk::{Disk, open_disk};
pub use crate::log_args::LogArgs;
use crate::mount_options::compression_of;
use crate::signature::{self, Ours};
use anyhow::{Context, anyhow, bail};
use cffs::device::{Device, FileDevice, IoKind, OpenMode};
use cffs::format::superblock::{INCOMPAT_EXTERNAL_LOG, SUPERBLOCK_SIZE};
use cffs::trace::MountTrace;
use cffs::{Error, Fs, Geometry, MountOptions, Superblock};
use cffs_fuse::snapshots;
use cffs_logdisk::LogDisk;
use cffs_volume::Volume;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `IMAGE` or `IMAGE:/path` on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePath {
    /// The image.
    pub image: PathBuf,
    /// The path in it; empty for the root directory.
    pub path: Vec<u8>,
}

impl ImagePath {
    /// Splits at the last colon before which the name of an existing file (or device) ends: a colon may also be part
    /// of the image's name, or of the path in it.
    pub fn parse(arg: &OsStr) -> ImagePath {
        let is_image = |p: &Path| std::fs::metadata(p).is_ok_and(|m| !m.is_dir());
        let whole = ImagePath { image: PathBuf::from(arg), path: Vec::new() };
        if is_image(&whole.image) {
            return whole;
        }
        let bytes = arg.as_bytes();
        let split = |i: usize| ImagePath {
            image: PathBuf::from(OsStr::from_bytes(&bytes[..i])),
            path: bytes[i + 1..].to_vec(),
        };
        let colons = || (0..bytes.len()).filter(|i| bytes[*i] == b':').map(split);
        if let Some(found) = colons().rev().find(|t| is_image(&t.image)) {
            return found;
        }
        // No such image: the error that follows should name what was most likely meant.
        let likely = colons().rev().find(|t| t.path.first() == Some(&b'/'));
        likely.unwrap_or(whole)
    }

    /// For messages: the image, and the path where there is one.
    pub fn display(&self) -> String {
        if self.path.is_empty() {
            self.image.display().to_string()
        } else {
            format!("{}:{}", self.image.display(), String::from_utf8_lossy(&self.path))
        }
    }
}

/// An image that was opened and looks like a cffs file system.
pub struct Image {
    /// Where it is.
    pub path: PathBuf,
    /// The file or block device; of a volume, the member that was named.
    pub file: Arc<FileDevice>,
    /// What the file system is on: the same, the volume, or the log disk in it.
    pub dev: Arc<dyn Device>,
    /// The volume, if the file is a member of one.
    pub volume: Option<Arc<Volume>>,
    /// The log disk, in the log layout.
    pub log_disk: Option<Arc<LogDisk>>,
    /// The device of the log, if that is another one.
    pub log_dev: Option<Arc<FileDevice>>,
    /// The superblock.
    pub superblock: Superblock,
    /// What follows from it.
    pub geometry: Geometry,
}

impl Image {
    /// Opens an image, with the other members of its volume and its log, and checks what can be checked by the superblock alone.
    pub fn open(path: &Path, parts: &LogArgs, mode: OpenMode) -> anyhow::Result<Image> {
        let Disk { file, dev, volume, log_disk } = open_disk(path, parts, mode)?;
        let log = parts.log_device.as_deref();
        let read = read_superblock(&file, &*dev, volume.is_some(), log_disk.is_some());
        let (superblock, geometry) = read.with_context(|| path.display().to_string())?;
        if let Some(log_disk) = &log_disk {
            log_disk.set_compression(compression_of(&superblock.mount_options_str()));
        }
        let external = superblock.incompat & INCOMPAT_EXTERNAL_LOG != 0;
        let log_dev = match log {
            None if external => bail!(
                "{}: the log of this file system is on another device: name it with --log-device FILE (mount: -o logdev=FILE)",
                path.display()
            ),
            Some(log) if !external => bail!(
                "{}: this file system has its log within itself: leave out the log device {}",
                path.display(),
                log.display()
            ),
            Some(log) => Some(Arc::new(open_device(log, mode)?)),
            None => None,
        };
        Ok(Image { path: path.to_owned(), file, dev, volume, log_disk, log_dev, superblock, geometry })
    }

    /// One of its snapshots or clones in place of the file system that has them.
    pub fn at_snapshot(self, name: &str) -> anyhow::Result<Image> {
        let at = self.path.display().to_string();
        let Some(disk) = &self.log_disk else { bail!("{at}: it has not the log layout, so it has no snapshots") };
        let dev = snapshots::device(disk, name).about(|| &at)?;
        let (superblock, geometry) =
            read_superblock(&self.file, &*dev, self.volume.is_some(), true).with_context(|| format!("{at}: {name}"))?;
        Ok(Image { dev, superblock, geometry, ..self })
    }

    /// Lets the engine mount it.
    pub fn mount(self, options: MountOptions) -> anyhow::Result<Arc<Fs>> {
        self.mount_with(|dev, log_dev| Fs::open(dev, log_dev, options))
    }

    /// The same, where it was opened under a trace.
    pub fn mount_traced(self, options: MountOptions, trace: &MountTrace) -> anyhow::Result<Arc<Fs>> {
        self.mount_with(|dev, log_dev| Fs::open_traced(dev, log_dev, options, trace))
    }

    fn mount_with(
        self,
        open: impl FnOnce(Arc<dyn Device>, Option<Arc<dyn Device>>) -> cffs::Result<Arc<Fs>>,
    ) -> anyhow::Result<Arc<Fs>> {
        let log_dev = self.log_dev.map(|d| d as Arc<dyn Device>);
        open(self.dev, log_dev).map_err(|e| engine_error(e, &self.path.display().to_string()))
    }
}

/// Reads and checks the superblock. Says what is there instead if it is none of ours, and what to do.
fn read_superblock(
    file: &FileDevice,
    dev: &dyn Device,
    on_volume: bool,
    on_log_disk: bool,
) -> anyhow::Result<(Superblock, Geometry)> {
    if !on_log_disk && !on_volume {
        use_sectors_of_the_format(file)?;
    }
    match cffs::mkfs::read_superblock(dev).and_then(|sb| Ok((Geometry::new(&sb)?, sb))) {
        Ok((geometry, superblock)) => Ok((superblock, geometry)),
        // What it is instead is only a help.
        Err(Error::Corrupt(c)) if c.0.contains("not a cffs") && on_log_disk => {
            bail!("a cffs log disk without a file system on it: make one with `cffs mkfs --layout=log --force`")
        }
        Err(Error::Corrupt(c)) if c.0.contains("not a cffs") && on_volume => {
            if signature::remains(dev) == Some(Ours::LogDisk) {
                bail!(
                    "the superblocks of the log disk on the volume are destroyed, what is stored is not: run `cffs fsck -y` on it"
                );
            }
            bail!(
                "a cffs volume at whose beginning no file system was found: if the first member is damaged, another one may have it: \
                 name that alone, with `--degraded --members OTHER OTHER` (mount: -o degraded,members=OTHER)"
            )
        }
        Err(Error::Corrupt(c)) if c.0.contains("not a cffs") => match signature::detect(file) {
            Ok(Some(name)) => {
                bail!("not a cffs file system but {name}: give the right image, or the right type to mount")
            }
            _ => match signature::remains(dev) {
                Some(Ours::LogDisk) => bail!(
                    "not a cffs file system as it is: the superblocks of its log disk are destroyed, what is stored is not: run `cffs fsck -y` on it, best on a copy"
                ),
                Some(_) => bail!(
                    "{c}, but it has been one, whose superblock and copies of it are destroyed: see whether `cffs fsck -y` finds another, best on a copy, or take a backup"
                ),
                None => bail!("{c}: give the right image, or make one with `cffs mkfs`"),
            },
        },
        Err(Error::Corrupt(c)) if c.0.contains("truncated") => {
            bail!(
                "{c}: get the whole image again from where it came, or set its length with truncate(1) if its end was a hole"
            )
        }
        Err(e) => bail!(e),
    }
}

/// Direct I/O of whole sectors cannot transfer single fragments of a file system made with smaller ones: goes over to
/// buffered I/O for such.
fn use_sectors_of_the_format(dev: &FileDevice) -> anyhow::Result<()> {
    let mut block = vec![0; (dev.sector_size() as usize).max(SUPERBLOCK_SIZE)];
    if dev.len() >= block.len() as u64 {
        dev.read_at(IoKind::Super, 0, &mut block)?;
        if Superblock::decode(&block).is_ok_and(|sb| dev.sector_size() > 1 << sb.frag_shift.clamp(9, 16)) {
            dev.use_buffered()?;
        }
    }
    Ok(())
}

/// Opens the file system of an image for reading; nothing is written to it, other readers may be there.
pub fn open_read_only(path: &Path, log: &LogArgs) -> anyhow::Result<Arc<Fs>> {
    Image::open(path, log, OpenMode::READ_ONLY)?.mount(MountOptions::default().read_only(true))
}

/// Opens the file system of an image for changes, alone.
pub fn open_read_write(path: &Path, log: &LogArgs) -> anyhow::Result<Arc<Fs>> {
    Image::open(path, log, OpenMode::READ_WRITE)?.mount(MountOptions::default())
}

/// An error of the engine, with the object it is about and what to do.
pub fn engine_error(e: Error, object: &str) -> anyhow::Error {
    let advice = match &e {
        Error::NoSpace => ": remove something, or use a larger image",
        Error::Corrupt(c) if !c.0.contains("use a newer") => ": run `cffs fsck -n` on the image to see what else is",
        Error::Busy(_) => ": unmount it, or wait for the other program to end",
        _ => "",
    };
    anyhow!("{object}: {e}{advice}")
}

/// Errors of engine calls, by the object they are about.
pub trait EngineResultExt<T> {
    /// Names the object in the error.
    fn about<S: AsRef<str>>(self, object: impl FnOnce() -> S) -> anyhow::Result<T>;
}

impl<T> EngineResultExt<T> for cffs::Result<T> {
    fn about<S: AsRef<str>>(self, object: impl FnOnce() -> S) -> anyhow::Result<T> {
        self.map_err(|e| engine_error(e, object().as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_at_the_longest_name_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["a", "a:/b", "c:d", "x:"] {
            std::fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            std::fs::write(path(name), "").unwrap();
        }
        let check = |arg: &str, image: &str, inside: &str| {
            let got = ImagePath::parse(path(arg).as_os_str());
            assert_eq!(got, ImagePath { image: path(image), path: inside.into() }, "{arg}");
        };
        check("a", "a", "");
        check("a:/", "a", "/");
        check("a:/c", "a", "/c");
        check("a:/c:/d", "a", "/c:/d");
        check("a:c", "a", "c");
        check("a:/b", "a:/b", "");
        check("a:/b:/c", "a:/b", "/c");
        check("c:d:/e:f", "c:d", "/e:f");
        check("x::/y", "x:", "/y");
        check("none", "none", "");
        check("none:/etc", "none", "/etc");
    }
}
