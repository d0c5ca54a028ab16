//! What long writes have added to the end of a file, and its inode was not told of yet.
//!
//! To tell of places takes a transaction. A program that writes a long file would wait for one after each of its writes, and
//! the device with it. So what it adds past the cache ([`super::direct`]) stays *deferred* at first: the bytes are in their
//! places, and those are known in memory alone. The next writeback of the file tells of the places of many writes at once.
//!
//! DeferredExtents is to a crash what pages are: as if never written. While a file has some,
//!
//! - it lies at the end, from [`NodeState::disk_size`] to the size, in whole blocks, and nothing is mapped there;
//! - the file has no pages. Whoever makes some, or changes what is mapped, holds [`Node::resize`] and has it told before
//!   that ([`flush_deferred`]);
//! - it stays in the node until the transaction that tells of it, and readers look it up there ([`lookup`]).

use super::mapping::EXTENTS_PER_TXN;
use super::unit::Unit;
use super::{FileCtx, FileData, writeback};
use crate::error::{Error, Result};
use crate::extent::{self, Mapping};
use crate::format::Run;
use crate::format::extent::EXTENT_LEN_MAX;
use crate::format::{Extent, Geometry};
use crate::inode::{Node, NodeState};
use std::ops::Range;
use std::sync::Arc;

/// Bytes to which others are added while all of them are deferred: what they log is little beside what a transaction can have.
const BYTES_MAX: u64 = 128 << 20;

/// Places of a file that its inode was not told of, in the order of the file, without gaps.
#[derive(Default)]
pub(crate) struct DeferredExtents {
    extents: Vec<Extent>,
    frags: u64,
    /// Nothing is mapped behind them up to here.
    free_until: u64,
}

impl DeferredExtents {
    /// There is nothing to tell.
    pub(crate) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Fragments of all of it. As many are promised by quotas.
    pub(crate) fn frags(&self) -> u64 {
        self.frags
    }

    /// The places.
    pub(crate) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The last of the places.
    pub(super) fn last(&self) -> Option<&Extent> {
        self.extents.last()
    }

    /// Up to where nothing is mapped behind them, if there are any.
    pub(super) fn free_until(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.free_until)
    }

    /// Whether places for these fragments can be added to those that there are.
    pub(super) fn continues_with(&self, g: &Geometry, frags: &Range<u64>) -> bool {
        let bytes = (self.frags + (frags.end - frags.start)) << g.frag_shift;
        self.last().is_some_and(|last| last.end() == frags.start)
            && bytes <= BYTES_MAX
            && self.extents.len() < EXTENTS_PER_TXN
    }

    /// Adds places that go on where these end.
    fn add(&mut self, g: &Geometry, new: impl IntoIterator<Item = Extent>) {
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
    fn committed(&mut self, frags: u64) {
        let mut left = frags;
        self.extents.retain(|e| {
            let told = left > 0;
            left = left.saturating_sub(e.len);
            !told
        });
        self.frags -= frags;
        debug_assert_eq!(self.frags, self.extents.iter().map(|e| e.len).sum::<u64>(), "a part of an extent was told");
    }
}

/// What the file has at a fragment, told or not.
pub(super) fn lookup(cx: &FileCtx<'_>, st: &NodeState, logical: u64) -> Result<Mapping> {
    let extents = st.data.deferred.extents();
    if let Some(e) = extents.iter().find(|e| (e.logical..e.end()).contains(&logical)) {
        return Ok(Mapping::Data(*e));
    }
    Ok(match (extent::lookup(cx.cache, &st.inode, logical)?, extents.first()) {
        (Mapping::Hole { until }, Some(first)) if first.logical > logical => {
            Mapping::Hole { until: until.min(first.logical) }
        }
        (found, _) => found,
    })
}

/// Up to where the device has the file's bytes.
pub(super) fn written_size(st: &NodeState) -> u64 {
    if st.data.deferred.is_empty() { st.disk_size } else { st.inode.size }
}

/// Keeps the places of a job whose bytes are there.
pub(super) fn keep(cx: &FileCtx<'_>, st: &mut NodeState, unit: &mut Unit<'_>, free_until: u64) {
    st.data.deferred.free_until = free_until;
    st.data.deferred.add(cx.cache.geometry(), unit.extents.drain(..).map(|p| p.extent));
    if let Some(reservation) = unit.reservation.take() {
        st.data.reservation(cx).merge(reservation);
    }
    (st.data.in_flight, st.data.taken) = (0, 0);
    st.dirty = true;
}

/// Has everything told. [`Node::resize`] is held, so nothing comes after it.
pub fn flush_deferred(cx: &FileCtx<'_>, node: &Arc<Node>) -> Result<()> {
    if node.state.read().data.deferred.is_empty() {
        return Ok(());
    }
    writeback::write_back(cx, vec![node.clone()])?;
    // Only that of a file that nobody has any more stays, until it is gone.
    if node.state.read().data.deferred.is_empty() { Ok(()) } else { Err(Error::Stale) }
}

impl FileData {
    /// The first so many deferred fragments have become the inode's, in the transaction that is open.
    pub(super) fn note_committed(&mut self, frags: u64) {
        self.deferred.committed(frags);
        self.charge(frags);
    }

    /// Gives back what was not told of (the file is gone).
    pub(super) fn drop_deferred(&mut self, cx: &FileCtx<'_>) {
        let DeferredExtents { extents, frags, .. } = std::mem::take(&mut self.deferred);
        if frags == 0 {
            return;
        }
        extents.iter().for_each(|e| cx.space.cancel(Run { start: e.start, len: e.len }));
        let reservation = self.reservation(cx);
        reservation.deallocated(frags);
        reservation.release(frags);
    }
}
