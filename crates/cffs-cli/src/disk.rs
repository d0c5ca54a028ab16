//! What an image is made of: the file system alone (the plain layout), or a log disk with the file system on it (the log layout); either on
//! one file or device, or on a volume of several.

use crate::device::open_device;
use crate::log_args::LogArgs;
use crate::members;
use crate::signature::{Ours, begins_as};
use anyhow::{Context, anyhow};
use cffs::device::{Device, FileDevice, OpenMode};
use cffs_logdisk::{ImageStore, LogDisk, LogOptions};
use cffs_volume::Volume;
use std::path::Path;
use std::sync::Arc;

/// An open image, whatever its layout.
pub struct Disk {
    /// The file or block device; of a volume, the member that was named.
    pub file: Arc<FileDevice>,
    /// What the file system is on.
    pub dev: Arc<dyn Device>,
    /// The volume, if the file is a member of one.
    pub volume: Option<Arc<Volume>>,
    /// The log disk, in the log layout.
    pub log_disk: Option<Arc<LogDisk>>,
}

/// Opens an image, and with a member of a volume the others. Of a log disk, what is behind the last checkpoint is recovered; on the image, if it may be written.
pub fn open_disk(path: &Path, parts: &LogArgs, mode: OpenMode) -> anyhow::Result<Disk> {
    disk_of(open_device(path, mode)?, path, parts)
}

/// What a log disk or a file system is on.
pub struct Below {
    /// The file or block device; of a volume, the member that was named.
    pub file: Arc<FileDevice>,
    /// The same, or the volume.
    pub dev: Arc<dyn Device>,
    /// The volume, if the file is a member of one.
    pub volume: Option<Arc<Volume>>,
    /// What stands at its beginning.
    pub begins: Option<Ours>,
}

/// Opens the volume if the file is a member of one.
pub fn below(file: FileDevice, path: &Path, parts: &LogArgs) -> anyhow::Result<Below> {
    let file = Arc::new(file);
    let name = || path.display().to_string();
    let begins = begins_as(&*file).with_context(name)?;
    if begins != Some(Ours::Member) {
        return Ok(Below { dev: file.clone(), file, volume: None, begins });
    }
    let volume = members::open_volume(&file, path, parts)?;
    let begins = begins_as(&*volume).with_context(name)?;
    Ok(Below { file, dev: volume.clone(), volume: Some(volume), begins })
}

/// What is on an image that is in use as a file already.
pub fn disk_of(file: FileDevice, path: &Path, parts: &LogArgs) -> anyhow::Result<Disk> {
    let name = path.display();
    let Below { file, dev: below, volume, begins } = below(file, path, parts)?;
    if begins != Some(Ours::LogDisk) {
        return Ok(Disk { dev: below, file, volume, log_disk: None });
    }
    let options = LogOptions {
        read_only: below.read_only(),
        unmarked: parts.unmarked,
        observed: parts.observed.clone(),
        ..LogOptions::default()
    };
    let opened =
        ImageStore::open_observed(below, &parts.observed).and_then(|store| LogDisk::open(Arc::new(store), &options));
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
        anyhow!("{name}: {e}{advice}")
    })?);
    Ok(Disk { file, dev: log_disk.clone(), volume, log_disk: Some(log_disk) })
}
