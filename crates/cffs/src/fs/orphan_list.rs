//! The list of orphans in memory.

use crate::error::Result;
use crate::format::{Corrupt, Ino};
use crate::inode::InodeLocation;
use std::collections::HashMap;

/// The list as it stands on the device: head in the counters, links in the inodes' hint fields.
#[derive(Default)]
pub(super) struct OrphanList {
    pub(super) head: Ino,
    pub(super) links: HashMap<Ino, Link>,
}

pub(super) struct Link {
    pub(super) before: Ino,
    pub(super) after: Ino,
    pub(super) location: InodeLocation,
}

impl OrphanList {
    /// Location of the orphan before this one. It is valid only while the list is locked, because that orphan's block
    /// may be freed once it is off the list.
    pub(super) fn before(&self, ino: Ino) -> Result<Option<InodeLocation>> {
        let link = self.links.get(&ino).ok_or_else(|| Corrupt(format!("inode {ino} is not on the orphan list")))?;
        Ok(self.links.get(&link.before).map(|b| b.location))
    }
}
