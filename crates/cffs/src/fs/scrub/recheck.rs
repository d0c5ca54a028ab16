//! Verifying a metadata block: first as it was read, then, if it looks wrong, once more while the journal is quiesced.

use super::{Place, Walk};
use crate::check::Block;
use crate::error::{Error, Result};
use crate::extent::{self, Mapping};
use crate::format::table::Location;
use crate::format::{
    BlockId, BlockKind, Corrupt, EXTERNAL_INO, Inode, LAST_SYSTEM_INO, LOCATOR_INO, META_CRC, META_SEQ, META_SPECIFIC,
    ROOT_INO, block_owner, verify_block, verify_contents,
};
use crate::inode::table::load_system_inode;
use cffs_buf::AlignedBuf;
use cffs_device::{Device, IoKind};

/// Result of verifying a block for the second time.
pub(super) enum Verdict {
    /// The block is intact, with these bytes.
    Good(AlignedBuf),
    /// The block is newer in memory.
    Newer,
    /// The block is used for something else by now, or is free.
    Gone,
    /// The block is damaged.
    Bad(String),
}

/// A block that was read.
pub(super) enum Seen {
    Window(Block),
    Fresh(AlignedBuf),
}

impl std::ops::Deref for Seen {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Seen::Window(b) => b,
            Seen::Fresh(b) => b,
        }
    }
}

impl Walk<'_> {
    /// Reads and verifies a metadata block. `None` for a damaged one, which is reported, and for one that is newer in
    /// memory or was freed.
    pub(super) fn meta(&mut self, id: BlockId, place: Place) -> Result<Option<Seen>> {
        self.check_stopped()?;
        if self.has_copies()
            && id.addr < self.g.total_blocks
            && let Some(block) = self.right_meta(id, place)
        {
            self.count(|s| s.blocks += 1);
            return Ok(Some(Seen::Window(block)));
        }
        if id.addr < self.g.total_blocks
            && let Ok(block) = self.reader.block(id.addr)
            && self.verify(&block, id, place).is_ok()
        {
            self.count(|s| s.blocks += 1);
            return Ok(Some(Seen::Window(block)));
        }
        let verdict = self.recheck(id, place);
        // Throttled afterwards, so that nobody waits for it.
        self.dev.throttle(self.g.block_size() as u64);
        self.check_stopped()?;
        Ok(match verdict {
            Verdict::Good(bytes) => {
                self.count(|s| s.blocks += 1);
                Some(Seen::Fresh(bytes))
            }
            Verdict::Newer => {
                self.count(|s| s.newer += 1);
                None
            }
            Verdict::Gone => None,
            Verdict::Bad(what) => {
                self.report_block(id, place, what);
                None
            }
        })
    }

    /// Verifies the bytes of a block: by themselves, and against the cached copy if the two must be equal. The second
    /// check finds lost writes, which leave an old block that is intact by itself.
    pub(super) fn verify(&self, bytes: &[u8], id: BlockId, place: Place) -> std::result::Result<(), Corrupt> {
        let own = matches!(place, Place::InodeLocation(_)) && id.kind == BlockKind::Dir;
        let id = if own { BlockId { owner: block_owner(bytes), ..id } } else { id };
        verify_block(bytes, self.g.fsid, id)?;
        verify_contents(bytes, id.kind)?;
        let Some(buf) = self.fs.cache.peek(id.addr) else { return Ok(()) };
        let cached = buf.read();
        // The cached copy has the checksum and sequence number with which the block was read.
        let same = |range: std::ops::Range<usize>| cached[range.clone()] == bytes[range];
        let equal = same(0..META_CRC) && same(META_CRC + 4..META_SEQ) && same(META_SPECIFIC..bytes.len());
        // A pinned block is newer. It cannot have been pinned just now, because its lock is held.
        if equal || buf.is_pinned() || !buf.is_verified() {
            return Ok(());
        }
        Err(Corrupt("the device has other contents than were written last: a write was lost".into()))
    }

    /// Reads and verifies a block once more, without throttling.
    fn fresh(&self, id: BlockId, place: Place) -> std::result::Result<AlignedBuf, String> {
        if id.addr >= self.g.total_blocks {
            return Err(format!("block {} lies outside the file system", id.addr));
        }
        let mut bytes = AlignedBuf::zeroed(self.g.block_size());
        let read = self.fs.dev.read_at(IoKind::Meta, id.addr << self.g.block_shift, &mut bytes);
        read.map_err(|e| format!("cannot be read: {e}"))?;
        self.verify(&bytes, id, place).map_err(|c| c.0)?;
        Ok(bytes)
    }

    /// Verifies a block again: at once, and then with the journal quiesced, so that nothing is committed, checkpointed
    /// or changed.
    pub(super) fn recheck(&self, id: BlockId, place: Place) -> Verdict {
        if let Ok(bytes) = self.fresh(id, place) {
            return Verdict::Good(bytes);
        }
        self.fs.journal.quiesce(|| {
            let refers = match self.refers(id, place) {
                Ok(refers) => refers,
                Err(Error::Stale | Error::NotFound) => false,
                // The path to the block is damaged, or the block itself is. The second read shows which.
                Err(_) => true,
            };
            if !refers {
                return Verdict::Gone;
            }
            if self.fs.cache.peek(id.addr).is_some_and(|buf| buf.is_pinned()) {
                return Verdict::Newer;
            }
            match self.fresh(id, place) {
                Ok(bytes) => Verdict::Good(bytes),
                Err(what) => Verdict::Bad(what),
            }
        })
    }

    /// Whether the file system still uses the block as `place` says, according to memory. The journal is quiesced.
    pub(super) fn refers(&self, id: BlockId, place: Place) -> Result<bool> {
        let cache = &self.fs.cache;
        let fpb = self.g.frags_per_block();
        match place {
            Place::Fixed => Ok(true),
            Place::Block(ino, lblock) => self.with_inode(ino, |inode| {
                Ok(match extent::lookup(cache, inode, lblock.saturating_mul(fpb))? {
                    Mapping::Data(e) => (e.start + (lblock * fpb - e.logical)) / fpb == id.addr,
                    Mapping::Hole { .. } => false,
                })
            }),
            Place::Node(ino, key) => self.with_inode(ino, |inode| extent::has_node(cache, inode, key, id.addr)),
            Place::Chain(ino, index) => self.with_inode(ino, |inode| {
                let chain = crate::xattr::read_chain(cache, inode)?;
                Ok(chain.blocks.get(index).is_some_and(|b| b.addr() == id.addr))
            }),
            Place::InodeLocation(ino) => Ok(match self.fs.inodes.locate(cache, ino)? {
                Location::Embedded { block, .. } => block == id.addr && id.kind == BlockKind::Dir,
                Location::External { block, .. } => block == id.addr && id.kind == BlockKind::ExternalInodes,
                Location::Free => false,
            }),
        }
    }

    /// Calls `f` with an inode as it is in memory.
    pub(super) fn with_inode<T>(&self, ino: u64, f: impl FnOnce(&Inode) -> Result<T>) -> Result<T> {
        let fs = self.fs;
        match ino {
            LOCATOR_INO => fs.inodes.locator.with_inode(f),
            EXTERNAL_INO => fs.inodes.external.with_inode(f),
            // The inodes of quota files stay in memory only during a transaction.
            _ if ino != ROOT_INO && ino <= LAST_SYSTEM_INO => f(&load_system_inode(&fs.cache, ino)?),
            _ => {
                let node = fs.node(ino)?;
                let st = node.state.read();
                if st.freed { Err(Error::Stale) } else { f(&st.inode) }
            }
        }
    }
}
