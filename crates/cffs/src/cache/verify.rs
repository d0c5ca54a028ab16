//! File data is compared with its checksums when it is first asked for.

use super::block_cache::Cache;
use super::buf::{Buf, frag_bits};
use crate::copies::right_copy;
use crate::error::Result;
use crate::format::{self, BlockAddr, FragAddr};
use cffs_buf::AlignedBuf;
use cffs_device::IoKind;
use std::ops::Range;

/// Supplies the checksums of file data, and takes the outcome of each comparison.
pub trait DataVerifier {
    /// What is compared next is mapped so: a fragment of the device, and which of the file it is. For messages.
    fn set_position(&self, frag: FragAddr, logical: u64);
    /// The sums of all fragments of a block, [`format::sums::NONE`] where none is known. May read from the device.
    fn expected(&self, block: BlockAddr, sums: &mut [u32]) -> Result<()>;
    /// A fragment was compared, with this outcome. An error is passed to the reader.
    fn compared(&self, frag: FragAddr, outcome: Comparison) -> Result<()>;
}

/// Fragments of a block, by number, with the contents that another copy of the device has and that have the right sum.
pub(super) type Restored = Vec<(usize, AlignedBuf)>;

/// The outcome of comparing a fragment with its sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// It has the sum.
    Same,
    /// It has another one.
    Different,
    /// There is none to compare with.
    Unknown,
}

impl Cache {
    /// Verifies fragments of a cached block, unless that was done since they came from the device.
    pub(super) fn verify_cached(&self, buf: &Buf, frags: Range<usize>, verifier: &dyn DataVerifier) -> Result<()> {
        let wanted = frag_bits(frags.clone());
        if buf.verified_frags() & wanted == wanted {
            return Ok(());
        }
        // Asked for before the block is locked: this may read from the device.
        let sums = self.expected_sums(buf.addr(), verifier)?;
        let fs = self.geo.frag_size();
        let bytes = buf.read();
        let verified = buf.verified_frags();
        let own = &bytes[frags.start * fs..frags.end * fs];
        let (good, restored) = self.verify_frags(buf.addr(), frags, own, &sums, verified, verifier)?;
        drop(bytes);
        if !restored.is_empty() {
            let mut inner = buf.lock();
            for (f, bytes) in restored {
                // Not what was written here meanwhile.
                if buf.verified_frags() >> f & 1 == 0 {
                    inner.bytes[f * fs..][..fs].copy_from_slice(&bytes);
                    buf.add_verified_frags(1 << f);
                }
            }
        }
        buf.add_verified_frags(good);
        Ok(())
    }

    /// The sums of the fragments of a block.
    pub(super) fn expected_sums(&self, block: BlockAddr, verifier: &dyn DataVerifier) -> Result<[u32; 8]> {
        let mut sums = [0; 8];
        verifier.expected(block, &mut sums[..self.geo.frags_per_block() as usize])?;
        Ok(sums)
    }

    /// Compares fragments of a block, which have these bytes, with the sums of the block, except those that are verified
    /// already. Returns the compared ones, a bit each, and what is right in the place of those that are wrong here and right
    /// in another copy of the device.
    pub(super) fn verify_frags(
        &self,
        block: BlockAddr,
        frags: Range<usize>,
        bytes: &[u8],
        sums: &[u32],
        verified: u8,
        verifier: &dyn DataVerifier,
    ) -> Result<(u8, Restored)> {
        let base = self.geo.frag_of_block(block);
        let (mut good, mut restored) = (0, Vec::new());
        for (f, bytes) in frags.zip(bytes.chunks_exact(self.geo.frag_size())) {
            let bit = 1 << f;
            if verified & bit != 0 {
                continue;
            }
            let outcome = match sums[f] {
                format::sums::NONE => Comparison::Unknown,
                sum if sum == format::sums::sum_of(bytes) => Comparison::Same,
                sum => match self.right_frag(base + f as u64, sum) {
                    Some(bytes) => {
                        restored.push((f, bytes));
                        Comparison::Same
                    }
                    None => Comparison::Different,
                },
            };
            verifier.compared(base + f as u64, outcome)?;
            good |= bit;
        }
        Ok((good, restored))
    }

    /// The contents of a fragment from a copy of the device in which they have this sum.
    #[cold]
    fn right_frag(&self, frag: FragAddr, sum: u32) -> Option<AlignedBuf> {
        let mut is_right = |bytes: &[u8]| format::sums::sum_of(bytes) == sum;
        let offset = frag << self.geo.frag_shift;
        right_copy(&*self.dev, IoKind::Data, offset, self.geo.frag_size(), &mut is_right)
    }

    /// Compares what was read from `frag` on, whole fragments, with its sums, and puts right what another copy of the device has.
    pub(super) fn verify_run(&self, frag: FragAddr, bytes: &mut [u8], verifier: &dyn DataVerifier) -> Result<()> {
        let (bs, fs) = (self.geo.block_size(), self.geo.frag_size());
        let (mut frag, mut bytes) = (frag, bytes);
        while !bytes.is_empty() {
            let block = self.geo.block_of_frag(frag);
            let first = (frag - self.geo.frag_of_block(block)) as usize;
            let len = bytes.len().min(bs - first * fs);
            let (own, rest) = bytes.split_at_mut(len);
            let sums = self.expected_sums(block, verifier)?;
            let (_, restored) = self.verify_frags(block, first..first + len / fs, own, &sums, 0, verifier)?;
            for (f, good) in restored {
                own[(f - first) * fs..][..fs].copy_from_slice(&good);
            }
            frag += (len / fs) as u64;
            bytes = rest;
        }
        Ok(())
    }
}
