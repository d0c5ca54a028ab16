//! Opening a file or block device.

use crate::member_search;
use crate::text::printable;
use crate::unmount_wait;
use anyhow::anyhow;
use cffs::device::{FileDevice, OpenMode};
use cffs_fuse::views_of;
use std::path::Path;

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
            ResourceBusy => match member_search::places(path).first() {
                Some(place) => return anyhow!("{e}; it is mounted on {}: unmount it first", place.dir().display()),
                None => match views_of(path).first() {
                    Some((name, dir)) => {
                        let (name, dir) = (printable(name.as_bytes()), dir.display());
                        return anyhow!("{e}; '{name}' of it is mounted on {dir}: unmount that first");
                    }
                    None => "unmount it, or wait for the other program to end",
                },
            },
            ReadOnlyFilesystem => "open it read-only, as with `cffs mount -o ro`",
            _ => return anyhow!(e),
        };
        anyhow!("{e}: {advice}")
    })
}
