//! Inodes as they stand on the device: reading one, and writing what differs.

use super::image::{read_inode, write_inode};
use super::location::InodeLocation;
use super::table;
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::format::dirblock::{self, EntryKind};
use crate::format::table::Location;
use crate::format::{BlockId, BlockKind, Corrupt, EXTERNAL_INO, Ino, Inode};
use crate::journal::Txn;

/// Reads the inode at a location.
pub fn load_at(cache: &Cache, ino: Ino, location: Location) -> Result<(Inode, InodeLocation)> {
    let stale = |what: &str| Error::Corrupt(Corrupt(format!("inode {ino}: {what}")));
    let (inode, location) = match location {
        Location::Free => return Err(Error::Stale),
        Location::Embedded { block, offset } => {
            let buf = cache.read_meta_any_owner(BlockKind::Dir, block)?;
            let b = buf.read();
            let e =
                dirblock::entry_at(&b, offset).filter(|e| matches!(e.kind, EntryKind::Embedded | EntryKind::Orphan));
            let e = e.ok_or_else(|| stale("the locator table points to no entry"))?;
            let at = e.inode_offset();
            (
                read_inode(cache.geometry(), &b[at..e.offset + e.len])?,
                InodeLocation::Embedded { block, entry: offset, inode: at },
            )
        }
        Location::External { block, offset } => {
            let id = BlockId { kind: BlockKind::ExternalInodes, addr: block, owner: EXTERNAL_INO };
            let buf = cache.read_meta(id)?;
            let b = buf.read();
            let end = offset + crate::format::geometry::INODE_SLOT_SIZE;
            let slot = b.get(offset..end).ok_or_else(|| stale("slot outside its block"))?;
            (read_inode(cache.geometry(), slot)?, InodeLocation::External { block, offset })
        }
    };
    if inode.ino != ino {
        return Err(stale(&format!("inode {} stands in its place", inode.ino)));
    }
    Ok((inode, location))
}

/// Writes an inode to where it stands. That of an `orphan` keeps its hint field.
///
/// # Errors
/// Another inode stands there, or none: the device has lost a write, and an older block came back. Nothing is written.
pub fn store(txn: &Txn<'_>, location: InodeLocation, inode: &Inode, orphan: bool) -> Result<()> {
    let gone = || Error::Corrupt(Corrupt(format!("inode {}: it no longer stands where it was read", inode.ino)));
    match location {
        InodeLocation::System => table::store_system_inode(txn, inode),
        InodeLocation::Embedded { block, entry, inode: at } => {
            let buf = txn.cache().read_meta_any_owner(BlockKind::Dir, block)?;
            let fits = dirblock::entry_of_inode(&buf.read(), entry, inode.ino)
                .is_some_and(|e| e.inode_offset() == at && e.inode_room() >= inode.encoded_len());
            if !fits {
                return Err(gone());
            }
            write_inode(txn, &buf, at, inode, orphan);
            Ok(())
        }
        InodeLocation::External { block, offset } => {
            let id = BlockId { kind: BlockKind::ExternalInodes, addr: block, owner: EXTERNAL_INO };
            let buf = txn.cache().read_meta(id)?;
            write_inode(txn, &buf, offset, inode, orphan);
            Ok(())
        }
    }
}
