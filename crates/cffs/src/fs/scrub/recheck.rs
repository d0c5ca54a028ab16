//! Is a block what it has to be? First by what the device says, then, if that looks wrong, while nothing moves.

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

/// What a second look has shown.
pub(super) enum Verdict {
    /// It is as it has to be, with these bytes.
    Good(AlignedBuf),
    /// What is on the device does not count: it is newer in memory.
    Newer,
    /// It is something else's by now, or nothing's.
    Gone,
    /// It is damaged.
    Bad(String),
}

/// A block as it was read.
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
    /// A metadata block that is good on the device; `None` for one that is not, which is reported then, and for one that
    /// is not to be verified there (any more).
    pub(super) fn meta(&mut self, id: BlockId, place: Place) -> Result<Option<Seen>> {
        self.go_on()?;
        if id.addr < self.g.total_blocks
            && let Ok(block) = self.reader.block(id.addr)
            && self.verify(&block, id, place).is_ok()
        {
            self.count(|s| s.blocks += 1);
            return Ok(Some(Seen::Window(block)));
        }
        let verdict = self.recheck(id, place);
        // Paid for afterwards: nobody is to wait for that.
        self.dev.pay(self.g.block_size() as u64);
        self.go_on()?;
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

    /// Checks bytes that the device gave: by themselves, and against the copy in memory if there is one that is to be
    /// the same. A write that never arrived leaves a block that is good by itself.
    fn verify(&self, bytes: &[u8], id: BlockId, place: Place) -> std::result::Result<(), Corrupt> {
        let own = matches!(place, Place::InodeLocation(_)) && id.kind == BlockKind::Dir;
        let id = if own { BlockId { owner: block_owner(bytes), ..id } } else { id };
        verify_block(bytes, self.g.fsid, id)?;
        verify_contents(bytes, id.kind)?;
        let Some(buf) = self.fs.cache.peek(id.addr) else { return Ok(()) };
        let cached = buf.read();
        // Memory keeps checksum and sequence number as they were when the block was read.
        let same = |range: std::ops::Range<usize>| cached[range.clone()] == bytes[range];
        let equal = same(0..META_CRC) && same(META_CRC + 4..META_SEQ) && same(META_SPECIFIC..bytes.len());
        // A pinned block is newer. Its lock is held, so it has not just become so.
        if equal || buf.is_pinned() || !buf.is_verified() {
            return Ok(());
        }
        Err(Corrupt("the device has other contents than were written last: a write was lost".into()))
    }

    /// Reads a block once more, at once.
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

    /// Looks again: at once, and then while nothing is committed, written home or changed.
    pub(super) fn recheck(&self, id: BlockId, place: Place) -> Verdict {
        if let Ok(bytes) = self.fresh(id, place) {
            return Verdict::Good(bytes);
        }
        self.fs.journal.quiesce(|| {
            let refers = match self.refers(id, place) {
                Ok(refers) => refers,
                Err(Error::Stale | Error::NotFound) => false,
                // What leads to it is damaged itself, or it is what is damaged: then it shows now.
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

    /// Whether a block is still at that place, by what is in memory. Nothing changes meanwhile.
    fn refers(&self, id: BlockId, place: Place) -> Result<bool> {
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
            // Nobody keeps quota files' inodes longer than a transaction.
            _ if ino != ROOT_INO && ino <= LAST_SYSTEM_INO => f(&load_system_inode(&fs.cache, ino)?),
            _ => {
                let node = fs.node(ino)?;
                let st = node.state.read();
                if st.freed { Err(Error::Stale) } else { f(&st.inode) }
            }
        }
    }
}
