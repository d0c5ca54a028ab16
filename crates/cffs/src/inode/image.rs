//! Writing an inode into its place.

use crate::cache::BufRef;
use crate::format::Inode;
use crate::format::dirblock::BlockEdit;
use crate::format::inode::{INLINE_MAX, INODE_CORE_SIZE, INODE_HINT};
use crate::journal::Txn;

/// Encodes an inode into its place and logs what differs. `keep_hint` leaves the hint field as it is (an orphan's is
/// its link in the orphan list, kept by [`crate::fs`]).
pub fn write_inode(txn: &Txn<'_>, buf: &BufRef, offset: usize, inode: &Inode, keep_hint: bool) {
    let mut image = [0u8; INODE_CORE_SIZE + INLINE_MAX];
    let image = &mut image[..inode.encoded_len()];
    inode.encode(image);
    let mut e = txn.edit(buf);
    let mut at = 0;
    while at < image.len() {
        let differs = |e: &[u8], at: usize| e[offset + at..offset + at + 8] != image[at..at + 8];
        if (keep_hint && at == INODE_HINT) || !differs(e.bytes(), at) {
            at += 8;
            continue;
        }
        let from = at;
        while at < image.len() && differs(e.bytes(), at) && !(keep_hint && at == INODE_HINT) {
            at += 8;
        }
        e.range(offset + from, at - from).copy_from_slice(&image[from..at]);
    }
}
