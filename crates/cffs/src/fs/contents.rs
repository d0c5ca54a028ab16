//! Contents that become durable in one transaction with their inode: the target of a symbolic link that is too long for
//! the inode, and inline contents that move out of an inode.

use super::Fs;
use crate::cache::BufRef;
use crate::error::{Error, Result};
use crate::format::dirblock::BlockEdit;
use crate::format::{Extent, FragAddr, Ino, Inode, InodeFormat, Run};
use crate::journal::Txn;
use crate::reservation::Reservation;
use crate::space::Space;
use crate::sums::{ChecksumRun, PinnedTables};
use std::cell::Cell;

/// Contents with allocated space that is not committed yet.
pub(super) struct Contents<'a> {
    space: &'a Space,
    reservation: Reservation,
    data: &'a [u8],
    run: Run,
    committed: Cell<bool>,
    /// First fragment, end, and the block if other files own parts of it.
    pieces: Vec<(FragAddr, FragAddr, Option<BufRef>)>,
    /// Their checksums, and the tables for these.
    sums: Option<(PinnedTables, ChecksumRun)>,
}

impl Drop for Contents<'_> {
    fn drop(&mut self) {
        if !self.committed.get() {
            self.space.cancel(self.run);
            self.reservation.deallocated(self.run.len);
        }
    }
}

impl Fs {
    /// Allocates space for contents that become durable together with their inode, such as a long symbolic link target.
    /// [`Fs::log_contents`] commits them to the inode. If they are dropped before, the space returns to the
    /// reservation.
    pub(super) fn allocate_contents<'a>(
        &'a self,
        reservation: &Reservation,
        dir: Ino,
        data: &'a [u8],
    ) -> Result<Contents<'a>> {
        let g = &self.geo;
        let goal = g.frag_of_block(self.placement.inode_goal(dir));
        let frags = g.frags_for(data.len() as u64);
        reservation.reserve(frags, reservation.privileged())?;
        let run = self.space.alloc_near(goal, frags, frags)?.ok_or(Error::NoSpace)?;
        reservation.allocated(frags);
        let mut contents = Contents {
            space: &self.space,
            reservation: reservation.clone(),
            data,
            run,
            committed: Cell::new(false),
            pieces: Vec::new(),
            sums: None,
        };
        self.space.prepare_commit(run)?;
        if let Some(sums) = &self.sums {
            let mut tables = PinnedTables::default();
            sums.pin(&mut tables, run)?;
            let mut bytes = data.to_vec();
            bytes.resize((run.len as usize) << g.frag_shift, 0);
            contents.sums = Some((tables, ChecksumRun::of(run.start, &bytes, g.frag_size())));
        }
        let fpb = g.frags_per_block();
        let mut frag = run.start;
        while frag < run.end() {
            let block = g.block_of_frag(frag);
            let end = g.frag_of_block(block + 1).min(run.end());
            // If other files own parts of the block, the block is read so that these parts stay.
            let shared = if end - frag < fpb { Some(self.cache.data_block(block)?) } else { None };
            contents.pieces.push((frag, end, shared));
            frag = end;
        }
        Ok(contents)
    }

    /// Most bytes that [`Fs::log_contents`] logs.
    pub(super) fn log_bytes_contents(&self, c: &Contents<'_>) -> usize {
        let sums = self.sums.as_ref().map_or(0, |s| s.log_bytes(c.run.len));
        ((c.run.len as usize) << self.geo.frag_shift) + 64 * c.pieces.len() + self.space.log_bytes(c.run.len) + sums
    }

    /// Makes contents those of an inode, through the log: they are durable with the transaction.
    pub(super) fn log_contents(&self, txn: &Txn<'_>, inode: &mut Inode, c: &Contents<'_>) -> Result<()> {
        let g = &self.geo;
        inode.size = c.data.len() as u64;
        inode.format = InodeFormat::Extents(Vec::new());
        let e = Extent { logical: 0, start: c.run.start, len: c.run.len, unwritten: false };
        crate::extent::map(txn, &self.space, inode, e)?;
        c.committed.set(true);
        if let (Some(sums), Some((tables, summed))) = (&self.sums, &c.sums) {
            sums.put(txn, tables, summed)?;
        }
        for (frag, end, shared) in &c.pieces {
            let block = g.block_of_frag(*frag);
            let buf = shared.clone().unwrap_or_else(|| self.cache.install_new(block));
            self.journal.note_data_block(block);
            let at = ((frag - g.frag_of_block(block)) as usize) << g.frag_shift;
            let from = ((frag - c.run.start) as usize) << g.frag_shift;
            let mut edit = txn.edit_data(&buf);
            let out = edit.range(at, ((end - frag) as usize) << g.frag_shift);
            let n = out.len().min(c.data.len() - from);
            out[..n].copy_from_slice(&c.data[from..from + n]);
            out[n..].fill(0);
        }
        Ok(())
    }
}
