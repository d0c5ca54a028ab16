//! File data is compared with its checksums when it is first asked for.

use super::block_cache::Cache;
use super::buf::Buf;
use crate::error::Result;
use crate::format::{self, BlockAddr, FragAddr};
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
        let wanted = (u8::MAX >> (8 - frags.len())) << frags.start;
        if buf.verified_frags() & wanted == wanted {
            return Ok(());
        }
        // Asked for before the block is locked: this may read from the device.
        let sums = self.expected_sums(buf.addr(), verifier)?;
        let fs = self.geo.frag_size();
        let bytes = buf.read();
        let verified = buf.verified_frags();
        let own = &bytes[frags.start * fs..frags.end * fs];
        let good = self.verify_frags(buf.addr(), frags, own, &sums, verified, verifier)?;
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
    /// already. Returns the compared ones, a bit each.
    pub(super) fn verify_frags(
        &self,
        block: BlockAddr,
        frags: Range<usize>,
        bytes: &[u8],
        sums: &[u32],
        verified: u8,
        verifier: &dyn DataVerifier,
    ) -> Result<u8> {
        let base = self.geo.frag_of_block(block);
        let mut good = 0;
        for (f, bytes) in frags.zip(bytes.chunks_exact(self.geo.frag_size())) {
            let bit = 1 << f;
            if verified & bit != 0 {
                continue;
            }
            let outcome = match sums[f] {
                format::sums::NONE => Comparison::Unknown,
                sum if sum == format::sums::sum_of(bytes) => Comparison::Same,
                _ => Comparison::Different,
            };
            verifier.compared(base + f as u64, outcome)?;
            good |= bit;
        }
        Ok(good)
    }

    /// Compares what was read from `frag` on, whole fragments, with its sums.
    pub(super) fn verify_run(&self, frag: FragAddr, bytes: &[u8], verifier: &dyn DataVerifier) -> Result<()> {
        let (bs, fs) = (self.geo.block_size(), self.geo.frag_size());
        let (mut frag, mut bytes) = (frag, bytes);
        while !bytes.is_empty() {
            let block = self.geo.block_of_frag(frag);
            let first = (frag - self.geo.frag_of_block(block)) as usize;
            let (own, rest) = bytes.split_at(bytes.len().min(bs - first * fs));
            let sums = self.expected_sums(block, verifier)?;
            self.verify_frags(block, first..first + own.len() / fs, own, &sums, 0, verifier)?;
            frag += (own.len() / fs) as u64;
            bytes = rest;
        }
        Ok(())
    }
}
