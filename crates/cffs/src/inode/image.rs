//! An inode's bytes at its place: reading and writing them.

use crate::cache::BufRef;
use crate::error::Result;
use crate::format::dirblock::{BlockEdit, entry_len, write_changed};
use crate::format::inode::{INLINE_MAX, INODE_CORE_SIZE, INODE_HINT};
use crate::format::{Corrupt, Geometry, Inode, InodeFormat};
use crate::journal::Txn;

/// Decodes the inode at the start of `bytes`, and checks what later code relies on. `g` is the geometry after the bytes
/// were read: they may lead to where the file system has grown just before.
pub fn read_inode(g: &Geometry, bytes: &[u8]) -> Result<Inode> {
    let inode = Inode::decode(bytes)?;
    let bad = |what: String| Err(Corrupt(format!("inode {}: {what}", inode.ino)).into());
    if let InodeFormat::Extents(list) = &inode.format
        && let Some(e) = list.iter().find(|e| !g.contains(e.start, e.len))
    {
        return bad(format!("extent at fragment {} lies outside the file system", e.start));
    }
    if inode.is_dir() && inode.aux > inode.size / entry_len(1, 0) as u64 {
        return bad(format!("{} names in a directory of {} bytes", inode.aux, inode.size));
    }
    Ok(inode)
}

/// Encodes an inode into its place and logs what differs. `keep_hint` leaves the hint field as it is (an orphan's is
/// its link in the orphan list, kept by [`crate::fs`]).
pub fn write_inode(txn: &Txn<'_>, buf: &BufRef, offset: usize, inode: &Inode, keep_hint: bool) {
    let mut image = [0u8; INODE_CORE_SIZE + INLINE_MAX];
    let image = &mut image[..inode.encoded_len()];
    inode.encode(image);
    let mut edit = txn.edit(buf);
    if keep_hint {
        let hint = INODE_HINT..INODE_HINT + 8;
        image[hint.clone()].copy_from_slice(&edit.bytes()[offset..][hint]);
    }
    write_changed(&mut edit, offset, image, 8);
}
