//! An image that is looked into: how its superblock and blocks are reached.

use crate::check::repair::{Choice, usable_superblock};
use crate::error::{Error, Result};
use crate::format::{BlockAddr, Geometry, Superblock};
use cffs_device::{Device, IoKind};

/// An image to look into.
pub struct Dumper<'a> {
    pub(super) dev: &'a dyn Device,
    pub(super) log_dev: Option<&'a dyn Device>,
    pub(super) sb: Superblock,
    pub(super) g: Geometry,
    notes: Vec<String>,
}

impl<'a> Dumper<'a> {
    /// Opens an image by its superblock, or where that is damaged by one of its copies ([`Dumper::notes`] says so then).
    /// `log_dev` is the device of an external log; without it only the log cannot be shown.
    pub fn open(dev: &'a dyn Device, log_dev: Option<&'a dyn Device>) -> Result<Dumper<'a>> {
        let Choice { superblock: sb, g, instead } = usable_superblock(dev)?;
        let mut notes: Vec<String> =
            instead.iter().map(|(e, at)| format!("{e}; the copy at byte {at} is used")).collect();
        if dev.len() < g.total_bytes() {
            notes.push(format!(
                "the device is truncated: it has {} bytes, the file system {}",
                dev.len(),
                g.total_bytes()
            ));
        }
        Ok(Dumper { dev, log_dev, sb, g, notes })
    }

    /// What is remarkable about the image as a whole.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The superblock that everything else goes by.
    pub fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// What follows from it.
    pub fn geometry(&self) -> &Geometry {
        &self.g
    }

    /// Replays the log on the devices, which are to be views that keep what is written to themselves.
    pub fn replay(&self) -> Result<()> {
        crate::journal::recovery::replay(self.dev, self.log_dev, &self.sb, &self.g).map(drop)
    }

    /// The bytes of a block.
    pub(super) fn read(&self, addr: BlockAddr) -> Result<Vec<u8>> {
        if addr >= self.g.total_blocks {
            return Error::invalid(format!("block {addr}: the file system has {} blocks", self.g.total_blocks));
        }
        let mut bytes = vec![0; self.g.block_size()];
        self.dev.read_at(IoKind::Meta, addr << self.g.block_shift, &mut bytes)?;
        Ok(bytes)
    }
}
