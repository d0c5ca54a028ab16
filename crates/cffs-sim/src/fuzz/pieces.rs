//! The pieces of a corpus by kind.

use super::units::{Unit, UnitKind};
use cffs::format::BlockKind;
use fastrand::Rng;

/// Kinds of units, each of which is as likely as any other.
pub(super) const KINDS: usize = BlockKind::ALL.len() + 3;

fn kind_of(n: usize) -> UnitKind {
    match n {
        0 => UnitKind::Super,
        1 => UnitKind::LogHeader,
        2 => UnitKind::Txn,
        n => UnitKind::Meta(BlockKind::ALL[n - 3]),
    }
}

/// The pieces of a corpus by kind, those of large blocks last.
pub struct PieceIndex(Vec<(Vec<usize>, usize)>);

impl PieceIndex {
    /// Sorts the pieces.
    pub fn new(pieces: &[(usize, Unit, Vec<u8>)]) -> PieceIndex {
        let of = |kind| {
            let mut list: Vec<usize> = (0..pieces.len()).filter(|i| pieces[*i].1.kind == kind).collect();
            list.sort_by_key(|i| pieces[*i].2.len() > 8192);
            let small = list.iter().filter(|i| pieces[**i].2.len() <= 8192).count();
            (list, small)
        };
        PieceIndex((0..KINDS).map(|n| of(kind_of(n))).collect())
    }

    /// One of the pieces of a kind, a large one seldom; `None` if there are none.
    pub(super) fn pick(&self, rng: &mut Rng, kind: usize) -> Option<usize> {
        let (list, small) = &self.0[kind];
        let among = if *small > 0 && rng.u8(..32) != 0 { *small } else { list.len() };
        (among > 0).then(|| list[rng.usize(..among)])
    }
}
