//! Whether a device may be overwritten.

use crate::signature;
use anyhow::{anyhow, bail};
use cffs::device::FileDevice;
use std::fs;
use std::path::Path;

/// Refuses a device on which there is something, unless forced; and one that the kernel has attached, always.
pub fn refuse_if_taken(path: &Path, dev: &FileDevice, force: bool) -> anyhow::Result<()> {
    let name = path.display();
    if let Some(place) = cffs_fuse::places_of(path).unwrap_or_default().first() {
        bail!(
            "{name}: in use by a mount whose server is gone: remove it with `umount -l {}` first",
            place.dir().display()
        );
    }
    if let Some(by) = loop_device_of(path) {
        bail!("{name}: in use by {by}: detach it with `losetup -d {by}` first");
    }
    if force {
        return Ok(());
    }
    match signature::detect(dev).map_err(|e| anyhow!("{e:#}, or use --force to overwrite it"))? {
        Some(what) => bail!("{name}: holds {what}: use --force to overwrite it"),
        None if signature::has_data(dev)? && signature::remains(dev).is_some() => bail!(
            "{name}: holds what looks like a cffs file system whose superblocks are destroyed: `cffs fsck -y` may bring it back, \
             or use --force to overwrite it"
        ),
        None => Ok(()),
    }
}

/// The loop device that has this file as its backing file.
fn loop_device_of(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    fs::read_dir("/sys/block").ok()?.flatten().find_map(|entry| {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        (Path::new(backing.trim_end_matches('\n')) == path)
            .then(|| format!("/dev/{}", entry.file_name().to_string_lossy()))
    })
}
