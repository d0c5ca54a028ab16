//! A writeback unit: the data of one file that is being written, and the mapping to commit for it.

use super::FileCtx;
use crate::cache::{BufRef, DataRun};
use crate::error::Result;
use crate::format::Run;
use crate::format::{Extent, FragAddr};
use crate::node::{Node, NodeState, TakenPage};
use crate::reservation::Reservation;
use crate::space::Claim;
use crate::trace::{ForMany, Many};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the data of a unit comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Dirty pages of the file.
    Pages,
    /// The memory of a program, which waits: a direct write, which sets the size of the file and its times.
    Direct {
        /// Time of the write, in nanoseconds since 1970.
        mtime: i64,
        /// The mapping is committed later. Nothing is mapped behind it up to this fragment.
        deferred_until: Option<u64>,
    },
    /// Earlier direct writes: the data is in place, and the node holds the extents until their mapping is committed.
    Deferred,
    /// None: space is allocated ahead, and reads as zeros.
    Preallocated,
    /// Zeros, over the space that was allocated ahead ([`super::zeros`]).
    Zeros,
    /// The file's own place on the device, as it was at this [`Node::data_version`] ([`super::relocate`]). Such a unit is no
    /// writeback that others wait for.
    Moved {
        /// The version.
        version: u64,
    },
}

/// How the mapping of an extent changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The extent is new, written or not as it says.
    Map,
    /// A part of an unwritten extent becomes written.
    Convert,
    /// A part of an extent moves here, from the place that begins with this fragment.
    Move(FragAddr),
}

/// An extent whose mapping is not committed yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) extent: Extent,
    pub(super) change: Change,
}

impl Pending {
    pub(super) fn map(extent: Extent) -> Pending {
        Pending { extent, change: Change::Map }
    }

    pub(super) fn run(&self) -> Run {
        Run { start: self.extent.start, len: self.extent.len }
    }
}

/// Data of one file that is being written.
pub(super) struct Unit<'a> {
    pub(super) node: Arc<Node>,
    pub(super) origin: Origin,
    pub(super) pages: Vec<TakenPage>,
    /// Reservation for the data. Deferred extents have theirs in the node.
    pub(super) reservation: Option<Reservation>,
    /// Space that data will take which was never dirty.
    pub(super) claim: Option<Claim>,
    /// Blocks for the extent tree; `None` means the file's own reservation.
    pub(super) tree: Option<Reservation>,
    /// What is to be written.
    pub(super) runs: Vec<DataRun<'a>>,
    /// Extents to commit, in the order of the file.
    pub(super) extents: Vec<Pending>,
    /// Runs that the file has already, unwritten ones included, whose checksums are to be invalidated.
    pub(super) overwritten: Vec<Run>,
    /// Size when the pages were taken. For a direct write, the size that it sets.
    pub(super) size: u64,
    /// The contents, if they fit into the inode.
    pub(super) inline: Option<Vec<u8>>,
    /// New blocks made in the cache for data that is written through the journal.
    pub(super) fresh: Vec<BufRef>,
    /// The written data stays in the cache.
    pub(super) keep: bool,
    /// For whom it is written, while that is traced.
    pub(super) for_whom: Option<Arc<Many>>,
    /// Fragments that were moved are counted here.
    pub(super) moved: Option<Arc<AtomicU64>>,
    /// Its number, if it is not the only writeback of the file ([`crate::node::UnderWay`]).
    pub(super) turn: Option<u64>,
    /// What of the file's sums over what is in flight is of this unit: fragments, and pages.
    in_flight: u64,
    taken: usize,
}

impl<'a> Unit<'a> {
    /// An empty unit of a file that gets the given size.
    pub(super) fn new(node: Arc<Node>, origin: Origin, size: u64) -> Unit<'a> {
        if !matches!(origin, Origin::Moved { .. }) {
            node.data_version.fetch_add(1, Ordering::Relaxed);
        }
        Unit {
            node,
            origin,
            pages: Vec::new(),
            reservation: None,
            claim: None,
            tree: None,
            runs: Vec::new(),
            extents: Vec::new(),
            overwritten: Vec::new(),
            size,
            inline: None,
            fresh: Vec::new(),
            keep: false,
            for_whom: None,
            moved: None,
            turn: None,
            in_flight: 0,
            taken: 0,
        }
    }

    /// It begins: notes in the node how many fragments were reserved for it, and which places it has allocated.
    pub(super) fn note_begun(&mut self, st: &mut NodeState, frags: u64) {
        (self.in_flight, self.taken) = (frags, self.pages.len());
        st.data.in_flight += self.in_flight;
        st.data.taken += self.taken;
    }

    /// Nothing of it is in flight any more.
    pub(super) fn note_ended(&mut self, st: &mut NodeState) {
        st.data.in_flight -= std::mem::take(&mut self.in_flight);
        st.data.taken -= std::mem::take(&mut self.taken);
        if let Some(turn) = self.turn {
            st.data.allocated.retain(|(of, _)| *of != turn);
        }
    }

    /// Waits until its mapping may be committed.
    ///
    /// # Errors
    /// When data before it has failed: then it must not be committed.
    pub(super) fn wait_for_turn(&self) -> Result<()> {
        self.turn.map_or(Ok(()), |turn| self.node.under_way.wait_for_turn(turn))
    }

    /// While it lives, transactions are those of who made the file dirty.
    pub(super) fn on_behalf(&self) -> Option<ForMany> {
        self.for_whom.clone().map(|whom| ForMany::of(Some(whom)))
    }

    /// It moves data, and is no writeback.
    fn moves(&self) -> bool {
        matches!(self.origin, Origin::Moved { .. })
    }

    /// Ends it: wakes the threads that wait for the writeback.
    pub(super) fn end(&self) {
        match self.turn {
            Some(_) => self.node.under_way.end_turn(),
            None if !self.moves() => self.node.under_way.end_alone(),
            None => {}
        }
    }

    /// Number of dirty bytes in its pages.
    pub(super) fn bytes(&self) -> usize {
        self.pages.iter().map(|p| p.dirty.len()).sum()
    }

    /// Adds an extent that was allocated from the reservation.
    pub(super) fn add_allocated(&mut self, extent: Extent) {
        if let Some(reservation) = &self.reservation {
            reservation.allocated(extent.len);
        }
        self.extents.push(Pending::map(extent));
    }

    /// Notes that so many fragments belong to the inode in the open transaction.
    pub(super) fn note_committed(&mut self, st: &mut NodeState, frags: u64) {
        if self.origin == Origin::Deferred {
            return st.data.note_committed(frags);
        }
        let mut left = frags;
        for p in &mut self.pages {
            let n = left.min(p.reserved);
            p.reserved -= n;
            left -= n;
        }
        debug_assert!(self.pages.is_empty() || left == 0, "fragments allocated that no page had reserved");
        let ours = frags.min(self.in_flight);
        self.in_flight -= ours;
        st.data.in_flight -= ours;
        if let Some(reservation) = &self.reservation {
            reservation.charge(frags);
        }
    }

    /// Gives up what is not committed: pages become dirty again, allocated extents are freed, deferred extents stay in
    /// the node. The node is locked.
    pub(super) fn abort(&mut self, cx: &FileCtx<'_>, st: &mut NodeState) {
        self.note_ended(st);
        self.fresh.drain(..).for_each(|b| cx.cache.release_new(&b));
        let origin = self.origin;
        for p in self.extents.drain(..).filter(|p| p.change != Change::Convert && origin != Origin::Deferred) {
            cx.space.cancel(p.run());
            if let Some(reservation) = &self.reservation {
                reservation.deallocated(p.extent.len);
            }
        }
        let Some(reservation) = self.reservation.take() else { return };
        if origin != Origin::Pages {
            return; // nothing needs it any more
        }
        st.data.reservation(cx.space).merge(reservation);
        for TakenPage { index, dirty, reserved } in self.pages.drain(..) {
            let kept = st.data.change_page(index, |p| {
                p.writing = false;
                p.dirty =
                    if p.dirty.is_empty() { dirty } else { p.dirty.start.min(dirty.start)..p.dirty.end.max(dirty.end) };
                p.reserved += reserved;
            });
            if kept.is_none() {
                st.data.release(reserved);
            }
        }
    }

    /// The data is in place and the mapping is committed. Releases what was reserved and not allocated, because there
    /// was an extent already or the contents go into the inode.
    pub(super) fn finish(&mut self, cx: &FileCtx<'_>, st: &mut NodeState) {
        self.reservation = None;
        for TakenPage { index, .. } in self.pages.drain(..) {
            let Some(p) = st.data.pages.get_mut(&index) else { continue };
            p.writing = false;
            if p.dirty.is_empty() {
                st.data.drop_page(cx.cache, index);
            }
        }
        self.note_ended(st);
        // If there is no space for a greater reservation it stays as it is, because it covered these pages too.
        let _ = super::reserve::reserve_tree(cx, st, true);
    }
}
