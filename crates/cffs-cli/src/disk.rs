//! What an image is made of: the file system alone (the plain layout), or a log disk with the file system on it (the log layout).

use crate::signature::{Ours, begins_as};
use crate::unmount_wait;
use anyhow::{Context, anyhow};
use cffs::device::{Device, FileDevice, OpenMode};
use cffs_fuse::places_of;
use cffs_logdisk::{ImageStore, LogDisk, LogOptions};
use std::path::Path;
use std::sync::Arc;

/// An open image, whatever its layout.
pub struct Disk {
    /// The file or block device.
    pub file: Arc<FileDevice>,
    /// What the file system is on.
    pub dev: Arc<dyn Device>,
    /// The log disk, in the log layout.
    pub log_disk: Option<Arc<LogDisk>>,
}

/// Opens a device; the errors of [`FileDevice`] name it, here is added what to do.
pub fn open_device(path: &Path, mode: OpenMode) -> anyhow::Result<FileDevice> {
    let opened = match FileDevice::open(path, mode) {
        Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy && unmount_wait::wait_for_server(path) => {
            FileDevice::open(path, mode)
        }
        other => other,
    };
    opened.map_err(|e| {
        use std::io::ErrorKind::*;
        let advice = match e.kind() {
            NotFound => "check the name, or make one with `cffs mkfs --size`",
            PermissionDenied => "become root, or ask for the permission",
            ResourceBusy => match places_of(path).unwrap_or_default().first() {
                Some(place) => return anyhow!("{e}; it is mounted on {}: unmount it first", place.dir().display()),
                None => "unmount it, or wait for the other program to end",
            },
            ReadOnlyFilesystem => "open it read-only, as with `cffs mount -o ro`",
            _ => return anyhow!(e),
        };
        anyhow!("{e}: {advice}")
    })
}

/// Opens an image. Of a log disk, what is behind the last checkpoint is recovered; on the image, if it may be written.
pub fn open_disk(path: &Path, mode: OpenMode) -> anyhow::Result<Disk> {
    disk_of(open_device(path, mode)?, path)
}

/// The same, of an image that is in use as a file already.
pub fn disk_of(file: FileDevice, path: &Path) -> anyhow::Result<Disk> {
    let file = Arc::new(file);
    let ours = begins_as(&file).with_context(|| path.display().to_string())?;
    if ours != Some(Ours::LogDisk) {
        return Ok(Disk { dev: file.clone(), file, log_disk: None });
    }
    let options = LogOptions { read_only: file.read_only(), ..LogOptions::default() };
    let opened = ImageStore::open(file.clone()).and_then(|store| LogDisk::open(Arc::new(store), &options));
    let log_disk = Arc::new(opened.map_err(|e| {
        let advice = match e.kind() {
            std::io::ErrorKind::InvalidData => {
                ": the log disk is damaged; see what `cffs fsck -n` says, and let `cffs fsck -y` rebuild it"
            }
            std::io::ErrorKind::StorageFull => {
                ": there is no room to recover it; open it read-only, as with `cffs mount -o ro`"
            }
            _ => "",
        };
        anyhow!("{}: {e}{advice}", path.display())
    })?);
    Ok(Disk { file, dev: log_disk.clone(), log_disk: Some(log_disk) })
}
