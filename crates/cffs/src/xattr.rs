//! Storage of extended attributes: small ones at the end of the inode's inline area, others in a chain of blocks.
//!
//! An attribute is in one of the two places. Every change divides them anew ([`pack`]). What placement asks for comes first, then
//! access control lists, because every permission check needs them. The chain is one list divided into blocks; a change
//! rewrites the bytes that differ, in place, within the caller's transaction.

use crate::cache::{BufRef, Cache};
use crate::error::{Error, Result};
use crate::format::Run;
use crate::format::dirblock::write_changed;
use crate::format::xattr::{COLOCATE, ChainBlock, Namespace, XATTR_NEXT, Xattr, chain_max, decode_list, payload};
use crate::format::{BlockAddr, BlockId, BlockKind, Corrupt, Geometry, Ino, Inode, META_HEADER_SIZE};
use crate::journal::Txn;
use crate::reservation::Reservation;
use crate::space::Space;

/// The blocks of an inode's chain, and the list in them.
#[derive(Default)]
pub struct Chain {
    /// The list.
    pub list: Vec<u8>,
    /// The blocks in order, pinned so that changing them cannot fail.
    pub blocks: Vec<BufRef>,
}

fn damaged<T>(ino: Ino, what: impl std::fmt::Display) -> Result<T> {
    Err(Corrupt(format!("inode {ino}: extended attributes: {what}")).into())
}

/// Reads the chain of an inode.
pub fn read_chain(cache: &Cache, inode: &Inode) -> Result<Chain> {
    let mut chain = Chain::default();
    let g = cache.geometry();
    let mut addr = inode.xattr_block;
    while addr != 0 {
        if addr >= g.total_blocks {
            return damaged(inode.ino, format_args!("block {addr} lies outside the file system"));
        }
        if chain.blocks.len() >= chain_max(g.block_size()) {
            return damaged(inode.ino, "the chain of blocks does not end");
        }
        let buf = cache.read_meta(BlockId { kind: BlockKind::Xattr, addr, owner: inode.ino })?;
        {
            let b = buf.read();
            let head = ChainBlock::decode(&b)?;
            if head.index as usize != chain.blocks.len() {
                return damaged(inode.ino, format_args!("block {addr} is number {} of the chain", head.index));
            }
            chain.list.extend_from_slice(&b[META_HEADER_SIZE..META_HEADER_SIZE + head.used]);
            addr = head.next;
        }
        chain.blocks.push(buf);
    }
    Ok(chain)
}

/// All attributes of an inode, and its chain.
pub fn load(cache: &Cache, inode: &Inode) -> Result<(Vec<Xattr>, Chain)> {
    let chain = read_chain(cache, inode)?;
    let mut all = Vec::new();
    let read = decode_list(&inode.xattrs, true, &mut all).and_then(|()| decode_list(&chain.list, false, &mut all));
    match read {
        Ok(()) => Ok((all, chain)),
        Err(c) => damaged(inode.ino, c),
    }
}

/// The value of one attribute. Reads the chain only if the attribute is not in the inode.
pub fn get(cache: &Cache, inode: &Inode, namespace: Namespace, name: &[u8]) -> Result<Option<Vec<u8>>> {
    if !inode.has_xattrs() {
        return Ok(None);
    }
    let mut here = Vec::new();
    if let Err(c) = decode_list(&inode.xattrs, true, &mut here) {
        return damaged(inode.ino, c);
    }
    if inode.xattr_block != 0 && !here.iter().any(|x| x.is(namespace, name)) {
        here = load(cache, inode)?.0;
    }
    Ok(here.into_iter().find(|x| x.is(namespace, name)).map(|x| x.value))
}

/// Attributes divided between inode and chain.
pub struct Packed {
    /// For the inode: a list, padded to a multiple of eight bytes.
    pub inline: Vec<u8>,
    /// For the chain.
    pub chain: Vec<u8>,
}

/// Divides attributes between `room` bytes in the inode and the chain.
pub fn pack(all: &[Xattr], room: usize) -> Packed {
    let rank = |x: &Xattr| match x.namespace {
        _ if x.is(Namespace::User, COLOCATE) => 0,
        Namespace::AclAccess => 0,
        Namespace::AclDefault => 1,
        Namespace::Security => 2,
        Namespace::Trusted => 3,
        Namespace::User => 4,
    };
    let mut order: Vec<&Xattr> = all.iter().collect();
    order.sort_by_key(|x| rank(x));
    let mut packed = Packed { inline: Vec::new(), chain: Vec::new() };
    for x in order {
        let fits = packed.inline.len() + x.encoded_len() <= room & !7;
        x.encode(if fits { &mut packed.inline } else { &mut packed.chain });
    }
    packed.inline.resize(packed.inline.len().next_multiple_of(8), 0);
    packed
}

/// Number of blocks of a chain with this list.
pub fn blocks_for(g: &Geometry, list: &[u8]) -> usize {
    list.len().div_ceil(payload(g.block_size()))
}

/// Allocated blocks that nothing points to yet. Dropping them returns them.
pub struct Fresh<'a> {
    space: &'a Space,
    reservation: Reservation,
    runs: Vec<Run>,
}

impl<'a> Fresh<'a> {
    /// Allocates `n` blocks near `goal` from a reservation, ready to be committed.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and errors of reading a bitmap. Nothing has changed then.
    pub fn take(
        g: &Geometry,
        space: &'a Space,
        reservation: &Reservation,
        goal: BlockAddr,
        n: usize,
    ) -> Result<Fresh<'a>> {
        let n = n as u64;
        let mut fresh = Fresh { space, reservation: reservation.clone(), runs: Vec::new() };
        let mut left = n;
        while left > 0 {
            let run = space.alloc_meta_near(&fresh.reservation, goal, left, 1)?.ok_or(Error::NoSpace)?;
            fresh.runs.push(run);
            space.prepare_commit(run)?;
            left -= run.len / g.frags_per_block();
        }
        Ok(fresh)
    }

    /// Blocks that were allocated, ready to be committed.
    ///
    /// # Errors
    /// Those of reading a bitmap. The blocks are given back then.
    pub fn of(space: &'a Space, reservation: &Reservation, runs: Vec<Run>) -> Result<Fresh<'a>> {
        let fresh = Fresh { space, reservation: reservation.clone(), runs };
        fresh.runs.iter().try_for_each(|run| space.prepare_commit(*run))?;
        Ok(fresh)
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        self.runs.drain(..).for_each(|run| self.space.cancel_meta(&self.reservation, run));
    }
}

/// Replaces the contents of an inode's chain, `old`, by `list`. `fresh` has the blocks by which the chain grows. The
/// caller stores the inode, whose number of fragments and first chain block change.
pub fn write_chain(
    txn: &Txn<'_>,
    space: &Space,
    inode: &mut Inode,
    old: &Chain,
    mut fresh: Fresh<'_>,
    list: &[u8],
) -> Result<()> {
    let g = *txn.cache().geometry();
    let need = blocks_for(&g, list);
    let mut blocks: Vec<BufRef> = old.blocks.iter().take(need).cloned().collect();
    for run in fresh.runs.drain(..) {
        space.commit_alloc(txn, run)?;
        for addr in g.block_of_frag(run.start)..g.block_of_frag(run.end()) {
            blocks.push(txn.init_block(BlockId { kind: BlockKind::Xattr, addr, owner: inode.ino }));
        }
    }
    if blocks.len() != need {
        return Error::invalid(format!("{} blocks for a chain of {need}", blocks.len()));
    }
    let next: Vec<BlockAddr> = blocks.iter().skip(1).map(|b| b.addr()).chain([0]).collect();
    let pieces = list.chunks(payload(g.block_size()));
    for (index, ((buf, next), piece)) in blocks.iter().zip(next).zip(pieces).enumerate() {
        let head = ChainBlock { next, index: index as u32, used: piece.len() };
        let mut edit = txn.edit(buf);
        write_changed(&mut edit, XATTR_NEXT, &head.encode(), PIECE);
        write_changed(&mut edit, META_HEADER_SIZE, piece, PIECE);
        // Nothing of removed values remains.
        let end = META_HEADER_SIZE + piece.len();
        let tail = vec![0; g.block_size() - end];
        write_changed(&mut edit, end, &tail, PIECE);
    }
    for gone in &old.blocks[need.min(old.blocks.len())..] {
        txn.free_block(gone.addr());
        space.free(txn, Run { start: g.frag_of_block(gone.addr()), len: g.frags_per_block() })?;
    }
    let (before, now) = (old.blocks.len() as u64, need as u64);
    inode.frags = (inode.frags + now * g.frags_per_block()).saturating_sub(before * g.frags_per_block());
    inode.xattr_block = blocks.first().map_or(0, |b| b.addr());
    Ok(())
}

/// Moves all blocks of an inode's chain to those of `fresh`, as many as it has. The whole chain moves, because whoever has read it
/// compares the first block only. The caller stores the inode.
pub fn relocate_chain(txn: &Txn<'_>, space: &Space, inode: &mut Inode, chain: &Chain, fresh: Fresh<'_>) -> Result<()> {
    let blocks = |b: &BufRef| Run { start: b.addr() * space.frags_per_block(), len: space.frags_per_block() };
    chain.blocks.iter().try_for_each(|b| space.prepare_free(blocks(b)))?;
    let list = chain.list.clone();
    // All of the old blocks go, and none of them stays.
    let old = Chain { list: Vec::new(), blocks: Vec::new() };
    let frags = inode.frags;
    write_chain(txn, space, inode, &old, fresh, &list)?;
    inode.frags = frags;
    for gone in &chain.blocks {
        txn.free_block(gone.addr());
        space.free(txn, blocks(gone))?;
    }
    Ok(())
}

/// Granularity in which a changed chain is compared with the old one, in bytes.
const PIECE: usize = 64;

/// Most bytes that [`write_chain`] logs when the chain has `old` blocks before and `new` afterwards.
pub fn log_bytes(g: &Geometry, space: &Space, old: usize, new: usize) -> usize {
    let each = g.block_size() + 2 * META_HEADER_SIZE + 8 * (g.block_size() / (2 * PIECE) + 4);
    let bits = space.log_bytes(g.frags_per_block()) + 64;
    new * each + new.abs_diff(old) * bits
}
