//! Extents of direct writes whose mapping is not committed yet: the list of them that a node keeps.

use crate::extent::MAPPED_PER_TXN;
use crate::format::extent::EXTENT_LEN_MAX;
use crate::format::{Extent, Geometry};
use std::ops::Range;

/// Most bytes that are deferred together. What committing them logs is little against what a transaction can have.
const BYTES_MAX: u64 = 128 << 20;

/// Extents whose mapping is not committed, in the order of the file, without gaps.
#[derive(Default)]
pub(crate) struct DeferredExtents {
    pub(super) extents: Vec<Extent>,
    pub(super) frags: u64,
    /// Nothing is mapped behind them up to here.
    pub(crate) free_until: u64,
}

impl DeferredExtents {
    /// Nothing is deferred.
    pub(crate) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Fragments of all of them. As many are reserved in quotas.
    pub(crate) fn frags(&self) -> u64 {
        self.frags
    }

    /// The extents.
    pub(crate) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The last of them.
    pub(crate) fn last(&self) -> Option<&Extent> {
        self.extents.last()
    }

    /// Up to where nothing is mapped behind them, if there are any.
    pub(crate) fn free_until(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.free_until)
    }

    /// Whether extents for these fragments can be added.
    pub(crate) fn continues_with(&self, g: &Geometry, frags: &Range<u64>) -> bool {
        let bytes = (self.frags + (frags.end - frags.start)) << g.frag_shift;
        self.last().is_some_and(|last| last.end() == frags.start)
            && bytes <= BYTES_MAX
            && self.extents.len() < MAPPED_PER_TXN
    }

    /// Adds extents that begin where these end.
    pub(crate) fn add(&mut self, g: &Geometry, new: impl IntoIterator<Item = Extent>) {
        let ag = |frag| g.ag_of(g.block_of_frag(frag));
        for e in new {
            debug_assert!(self.last().is_none_or(|last| last.end() == e.logical), "{e:?} leaves a gap");
            self.frags += e.len;
            match self.extents.last_mut() {
                // Of one allocation group, as what is allocated at once.
                Some(last)
                    if last.start + last.len == e.start
                        && last.len + e.len <= EXTENT_LEN_MAX
                        && ag(last.start) == ag(e.start) =>
                {
                    last.len += e.len;
                }
                _ => self.extents.push(e),
            }
        }
    }

    /// The first so many fragments are the inode's: whole extents.
    pub(crate) fn committed(&mut self, frags: u64) {
        let mut left = frags;
        self.extents.retain(|e| {
            let committed = left > 0;
            left = left.saturating_sub(e.len);
            !committed
        });
        self.frags -= frags;
        debug_assert_eq!(
            self.frags,
            self.extents.iter().map(|e| e.len).sum::<u64>(),
            "a part of an extent was committed"
        );
    }
}
