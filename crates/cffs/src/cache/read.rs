//! Reads through the cache: metadata blocks, checked against their identity, and file data.

use super::block_cache::Cache;
use super::buf::BufRef;
use super::locality::LocalityHint;
use super::verify::DataVerifier;
use crate::copies::{newest_copy, right_copy};
use crate::error::{Error, Result};
use crate::format::{self, BlockAddr, BlockId, BlockKind, FragAddr};
use cffs_buf::AlignedBuf;
use cffs_device::IoKind;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Whether a block is about the whole file system or an allocation group: an old one would have space given out twice, a changed counter lost, or make right
/// data wrong.
fn is_of_all(kind: BlockKind) -> bool {
    use BlockKind::{AgHeader, Bitmap, Counters, DataSums, SystemInodes};
    matches!(kind, Counters | SystemInodes | AgHeader | Bitmap | DataSums)
}

/// The bytes of a read that lie in one block.
struct Span {
    block: BlockAddr,
    /// Offset in the block.
    at: usize,
    /// Place in the bytes that are read.
    out: Range<usize>,
}

impl Cache {
    /// A metadata block, checked against its identity.
    pub fn read_meta(&self, id: BlockId) -> Result<BufRef> {
        self.read_meta_near(id, &LocalityHint::default())
    }

    /// The same. If the block is not cached, the hint says what else to read with it.
    pub fn read_meta_near(&self, id: BlockId, hint: &LocalityHint) -> Result<BufRef> {
        let buf = self.get_near(IoKind::Meta, self.metadata_policy(id.kind), id.addr, hint)?;
        self.check_identity(&buf, id)?;
        Ok(buf)
    }

    /// A metadata block if it is cached, checked against its identity. `None` is a miss: the caller works out a locality hint
    /// and calls [`Cache::read_meta_near`].
    pub fn cached_meta(&self, id: BlockId) -> Result<Option<BufRef>> {
        let Some(buf) = self.cached_or_wait(id.addr) else { return Ok(None) };
        self.touch(&buf, self.metadata_policy(id.kind));
        self.check_identity(&buf, id)?;
        Ok(Some(buf))
    }

    /// A metadata block around which nothing is about to be needed: it is read alone.
    pub(crate) fn read_meta_alone(&self, id: BlockId) -> Result<BufRef> {
        if id.addr < self.geo.total_blocks && self.cached_or_wait(id.addr).is_none() {
            self.counters.misses.fetch_add(1, Ordering::Relaxed);
            self.fill(IoKind::Meta, id.addr..id.addr + 1, id.addr..id.addr + 1, false)?;
        }
        self.read_meta(id)
    }

    fn check_identity(&self, buf: &BufRef, id: BlockId) -> Result<()> {
        let bytes = buf.read();
        if !buf.is_verified() {
            if let Err(damage) = self.verify_meta(&bytes, id) {
                drop(bytes);
                return self.restore_meta(buf, id, damage);
            }
            drop(bytes);
            if is_of_all(id.kind) && self.dev.copies() > 1 {
                self.take_newest(buf, id);
            }
            buf.set_verified(true);
        } else if format::get_u32(&bytes, 0) != id.kind as u32 || format::block_owner(&bytes) != id.owner {
            let what = format!("{} at block {}: another structure is there", id.kind.name(), id.addr);
            return Err(format::Corrupt(what).into());
        }
        Ok(())
    }

    /// An old state of a block is whole by itself, where a copy of the device has lost a write or was put back. What would spoil more than itself by that is
    /// taken from the newest copy.
    #[cold]
    fn take_newest(&self, buf: &BufRef, id: BlockId) {
        let (offset, len) = (id.addr << self.geo.block_shift, self.geo.block_size());
        let age = |bytes: &[u8]| self.verify_meta(bytes, id).is_ok().then(|| format::block_seq(bytes));
        let Some(newest) = newest_copy(&*self.dev, IoKind::Meta, offset, len, &age) else { return };
        let mut inner = buf.lock();
        if !buf.is_verified() {
            inner.bytes.copy_from_slice(&newest);
        }
    }

    fn verify_meta(&self, bytes: &[u8], id: BlockId) -> std::result::Result<(), format::Corrupt> {
        format::verify_block(bytes, self.geo.fsid, id)?;
        format::verify_contents(bytes, id.kind)
    }

    /// Takes the contents of a damaged metadata block from another copy, where the device has one that is right.
    #[cold]
    fn restore_meta(&self, buf: &BufRef, id: BlockId, damage: format::Corrupt) -> Result<()> {
        if !self.take_right_copy(buf, &mut |bytes| self.verify_meta(bytes, id).is_ok()) {
            return Err(damage.into());
        }
        self.check_identity(buf, id)
    }

    /// Takes the contents of a metadata block from a copy that is right. Says whether there is one.
    fn take_right_copy(&self, buf: &BufRef, is_right: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let (offset, len) = (buf.addr() << self.geo.block_shift, self.geo.block_size());
        let Some(good) = right_copy(&*self.dev, IoKind::Meta, offset, len, is_right) else { return false };
        let mut inner = buf.lock();
        // Not if it was restored or changed meanwhile.
        if !buf.is_verified() {
            inner.bytes.copy_from_slice(&good);
            buf.set_verified(true);
        }
        true
    }

    /// A metadata block with the owner it names itself (for finding an inode through the locator).
    pub fn read_meta_any_owner(&self, kind: BlockKind, addr: BlockAddr) -> Result<BufRef> {
        let buf = self.get(IoKind::Meta, addr)?;
        let own = |bytes: &[u8]| BlockId { kind, addr, owner: format::block_owner(bytes) };
        let mut is_right = |bytes: &[u8]| self.verify_meta(bytes, own(bytes)).is_ok();
        let damaged = {
            let bytes = buf.read();
            let good = buf.is_verified() || is_right(&bytes);
            if good {
                buf.set_verified(true);
            }
            !good
        };
        if damaged {
            // It names any owner. If no copy is right, what is wrong is said below.
            self.take_right_copy(&buf, &mut is_right);
        }
        let id = own(&buf.read());
        drop(buf);
        self.read_meta(id)
    }

    /// Copies file data from `frag` on into `out`. What is missing is read in requests of up to 1 MiB. Fragments that come
    /// from the device are verified when they are first asked for.
    pub fn read_data(&self, frag: FragAddr, out: &mut [u8], verifier: Option<&dyn DataVerifier>) -> Result<()> {
        self.must_contain(frag, self.geo.frags_for(out.len() as u64))?;
        let behind = self.geo.block_of_frag(frag + self.geo.frags_for(out.len() as u64) - 1) + 1;
        for span in self.spans(frag, out.len()) {
            let block = span.block;
            let buf = match self.cached_or_wait(block) {
                Some(buf) => {
                    self.touch(&buf, &self.data_policy);
                    Ok(buf)
                }
                None => {
                    // One request for what is missing of the run.
                    let end = behind.min(block + self.transfer_blocks());
                    self.counters.misses.fetch_add(1, Ordering::Relaxed);
                    // If that fails, the block alone: the others may be the ones that cannot be read.
                    let _ = self.fill(IoKind::Data, block..end, block..end, false);
                    self.get(IoKind::Data, block)
                }
            };
            self.copy_out(buf, &span, &mut out[span.out.clone()], verifier)?;
        }
        Ok(())
    }

    /// Copies file data from `frag` on into `out`, up to the first block that is not cached. Returns how many bytes: all, or
    /// whole fragments. After a miss the caller works out a locality hint and calls [`Cache::read_data_near`].
    pub fn read_cached_data(
        &self,
        frag: FragAddr,
        out: &mut [u8],
        verifier: Option<&dyn DataVerifier>,
    ) -> Result<usize> {
        self.must_contain(frag, self.geo.frags_for(out.len() as u64))?;
        for span in self.spans(frag, out.len()) {
            let Some(buf) = self.cached_or_wait(span.block) else { return Ok(span.out.start) };
            self.touch(&buf, &self.data_policy);
            self.copy_out(Ok(buf), &span, &mut out[span.out.clone()], verifier)?;
        }
        Ok(out.len())
    }

    /// Copies file data from `frag` on into `out`, from one block, which is read if need be: in a group transfer, as the
    /// policy decides, with what the hint says. Returns how many bytes: all, or whole fragments.
    pub fn read_data_near(
        &self,
        frag: FragAddr,
        out: &mut [u8],
        hint: &LocalityHint,
        verifier: Option<&dyn DataVerifier>,
    ) -> Result<usize> {
        self.must_contain(frag, self.geo.frags_for(out.len() as u64))?;
        let Some(span) = self.spans(frag, out.len()).next() else { return Ok(0) };
        let buf = self.get_near(IoKind::Data, &self.data_policy, span.block, hint);
        self.copy_out(buf, &span, &mut out[span.out.clone()], verifier)?;
        Ok(span.out.end)
    }

    /// The parts of `len` bytes from `frag` on, by block.
    fn spans(&self, frag: FragAddr, len: usize) -> impl Iterator<Item = Span> + use<> {
        let (bs, fs) = (self.geo.block_size(), self.geo.frag_size());
        let first = self.geo.block_of_frag(frag);
        let skip = (frag - self.geo.frag_of_block(first)) as usize * fs;
        let blocks = (skip + len).div_ceil(bs) as u64;
        (first..first + blocks).zip(0..).map(move |(block, n): (BlockAddr, usize)| {
            let at = if n == 0 { skip } else { 0 };
            Span { block, at, out: (n * bs).saturating_sub(skip)..((n + 1) * bs - skip).min(len) }
        })
    }

    /// Copies a part of a data block that was read, or could not be read, into `out`.
    fn copy_out(
        &self,
        buf: Result<BufRef>,
        span: &Span,
        out: &mut [u8],
        verifier: Option<&dyn DataVerifier>,
    ) -> Result<()> {
        let (fs, n) = (self.geo.frag_size(), out.len());
        let frags = span.at / fs..(span.at + n).div_ceil(fs);
        match buf {
            Ok(buf) => {
                buf.use_frags(frags.clone(), self.geo.frags_per_block() as usize);
                if let Some(verifier) = verifier {
                    self.verify_cached(&buf, frags, verifier)?;
                }
                out.copy_from_slice(&buf.read()[span.at..span.at + n]);
            }
            // The bad sector may be in a fragment of another file.
            Err(Error::Io(_)) if n.next_multiple_of(fs) < self.geo.block_size() => {
                let mut own = AlignedBuf::zeroed(n.next_multiple_of(fs));
                let at = (span.block << self.geo.block_shift) + span.at as u64;
                self.dev.read_at(IoKind::Data, at, &mut own)?;
                if let Some(verifier) = verifier {
                    let sums = self.expected_sums(span.block, verifier)?;
                    let first = frags.start;
                    let (_, restored) = self.verify_frags(span.block, frags, &own, &sums, 0, verifier)?;
                    for (f, good) in restored {
                        own[(f - first) * fs..][..fs].copy_from_slice(&good);
                    }
                }
                out.copy_from_slice(&own[..n]);
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Refuses data that a damaged file maps outside of the file system.
    pub(super) fn must_contain(&self, frag: FragAddr, frags: u64) -> Result<()> {
        if !self.geo.contains(frag, frags) {
            let what = format!("data at fragment {frag} lies outside the file system");
            return Err(Error::Corrupt(format::Corrupt(what)));
        }
        Ok(())
    }
}
