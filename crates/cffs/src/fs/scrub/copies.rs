//! On a mirror: every copy is read, and made like one that is right.
//!
//! A walk by what is on the device may follow an old pointer. So nothing is written before memory has said, with the journal
//! quiesced, that the block or the fragment is still used as the walk believes.

use super::{Place, Throttled, Walk};
use crate::check::Block;
use crate::error::Result;
use crate::extent::{self, Mapping};
use crate::format::sums::sum_of;
use crate::format::{BlockId, FragAddr, Ino, META_SEQ, get_u64};
use cffs_device::{Device, IoKind};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// One copy of a mirror.
pub(super) struct OneCopy<'a> {
    dev: &'a Throttled<'a>,
    pub(super) copy: usize,
    /// What was last asked for is not there: a copy may be missing, out of date, or be dropped meanwhile.
    pub(super) is_missing: AtomicBool,
}

impl Throttled<'_> {
    /// The copies, of which some may be missing; none if the device is no mirror.
    pub(super) fn each_copy(&self) -> Vec<OneCopy<'_>> {
        let all = self.fs.dev.copies();
        let all = if all < 2 { 0 } else { all };
        (0..all).map(|copy| OneCopy { dev: self, copy, is_missing: AtomicBool::new(false) }).collect()
    }
}

/// Whether a copy is missing or out of date; an unreadable sector is something else.
fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

impl Device for OneCopy<'_> {
    fn len(&self) -> u64 {
        self.dev.len()
    }
    fn sector_size(&self) -> u32 {
        self.dev.sector_size()
    }
    fn max_request(&self) -> usize {
        self.dev.max_request()
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let mut all = vec![0; bufs.iter().map(|b| b.len()).sum()];
        self.read_at(kind, offset, &mut all)?;
        let mut rest = &all[..];
        for buf in bufs {
            let (head, tail) = rest.split_at(buf.len());
            buf.copy_from_slice(head);
            rest = tail;
        }
        Ok(())
    }
    fn read_at(&self, kind: IoKind, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let outcome = self.dev.read_copy_throttled(kind, self.copy, offset, buf);
        self.is_missing.store(outcome.as_ref().is_err_and(is_missing), Ordering::Relaxed);
        outcome
    }
    fn write_vectored(&self, _: IoKind, _: u64, _: &[IoSlice<'_>]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn read_only(&self) -> bool {
        true
    }
}

impl Walk<'_> {
    /// Whether there are several copies to compare.
    pub(super) fn has_copies(&self) -> bool {
        !self.copies.is_empty()
    }

    /// A metadata block from a copy in which it is right; the newest, where an old one is intact too. The others are made like it.
    /// `None` if it is right in none.
    pub(super) fn right_meta(&mut self, id: BlockId, place: Place) -> Option<Block> {
        let mut all: Vec<(usize, Option<Block>)> = Vec::new();
        for (copy, is_missing, reader) in &self.copies {
            let block = reader.block(id.addr).ok();
            if block.is_some() || !is_missing.load(Ordering::Relaxed) {
                all.push((*copy, block));
            }
        }
        let right = all.iter().filter_map(|(copy, block)| Some((*copy, block.clone()?)));
        let right = right.filter(|(_, block)| self.verify(block, id, place).is_ok());
        let (copy, block) = right.max_by_key(|(_, block)| get_u64(block, META_SEQ))?;
        if all.iter().any(|(_, other)| other.as_deref() != Some(&block[..])) {
            let offset = id.addr << self.g.block_shift;
            let still_used = || {
                let used = self.refers(id, place)? && !self.is_pinned(id.addr);
                if used {
                    self.renew(id.addr, &block);
                }
                Ok(used)
            };
            self.repair(IoKind::Meta, copy, offset, &block, still_used);
        }
        Some(block)
    }

    /// Puts the newest state of a block into the cache, where somebody has read an old one into it.
    fn renew(&self, addr: u64, newest: &[u8]) {
        let Some(buf) = self.fs.cache.peek(addr).filter(|buf| !buf.is_pinned()) else { return };
        let mut inner = buf.lock();
        if get_u64(&inner.bytes, META_SEQ) < get_u64(newest, META_SEQ) {
            inner.bytes.copy_from_slice(newest);
        }
    }

    fn is_pinned(&self, addr: u64) -> bool {
        self.fs.cache.peek(addr).is_some_and(|buf| buf.is_pinned())
    }

    /// What each copy has in a range, whole fragments; nothing if there is only one copy. A fragment that a copy cannot read differs
    /// from the others.
    pub(super) fn read_copies(&self, at: u64, len: usize) -> Vec<(usize, Vec<u8>)> {
        let fs = self.g.frag_size();
        let mut all: Vec<(usize, Vec<u8>)> = Vec::new();
        let mut unreadable = Vec::new();
        'copies: for (copy, ..) in &self.copies {
            let mut bytes = vec![0; len];
            let mut wrong = Vec::new();
            match self.dev.read_copy_throttled(IoKind::Data, *copy, at, &mut bytes) {
                Ok(()) => {}
                Err(e) if is_missing(&e) => continue,
                Err(_) => {
                    for (i, frag) in bytes.chunks_mut(fs).enumerate() {
                        match self.fs.dev.read_copy(IoKind::Data, *copy, at + (i * fs) as u64, frag) {
                            Ok(()) => {}
                            // It was dropped just now.
                            Err(e) if is_missing(&e) => continue 'copies,
                            Err(_) => wrong.push((all.len(), i * fs..i * fs + frag.len())),
                        }
                    }
                }
            }
            unreadable.append(&mut wrong);
            all.push((*copy, bytes));
        }
        for (n, range) in unreadable {
            let other = all[(n + 1) % all.len()].1[range.clone()].to_vec();
            all[n].1[range].iter_mut().zip(other).for_each(|(b, other)| *b = !other);
        }
        all
    }

    /// Whether a fragment has the right contents in one of these copies, which differ. The others are made like it.
    pub(super) fn right_data(
        &self,
        ino: Ino,
        logical: u64,
        frag: FragAddr,
        sum: u32,
        copies: &[(usize, &[u8])],
    ) -> bool {
        let Some((copy, good)) = copies.iter().find(|(_, bytes)| sum_of(bytes) == sum) else { return false };
        let still_used = || {
            let node = self.fs.node(ino)?;
            let st = node.state.read();
            let mapped = match extent::lookup(&self.fs.cache, &st.inode, logical)? {
                Mapping::Data(e) => !e.unwritten && e.start + (logical - e.logical) == frag,
                _ => false,
            };
            let same_sum = match self.fs.sums.as_deref() {
                Some(sums) => sums.sum(frag)? == sum,
                None => false,
            };
            Ok(!st.freed && mapped && same_sum)
        };
        self.repair(IoKind::Data, *copy, frag << self.g.frag_shift, good, still_used);
        true
    }

    fn repair(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8], still_used: impl FnOnce() -> Result<bool>) {
        if self.fs.is_read_only() {
            return;
        }
        let outcome = self.fs.journal.quiesce(|| match still_used() {
            Ok(true) => self.fs.dev.repair(kind, copy, offset, good),
            // Changed meanwhile, or the path to it is damaged, which is reported elsewhere.
            Ok(false) | Err(_) => Ok(false),
        });
        self.count_repair(offset, outcome);
    }

    pub(super) fn count_repair(&self, offset: u64, outcome: io::Result<bool>) {
        match outcome {
            Ok(true) => self.count(|s| s.repaired += 1),
            Ok(false) => {}
            Err(e) => tracing::error!("scrub: a wrong copy at byte {offset} could not be repaired: {e}"),
        }
    }
}
