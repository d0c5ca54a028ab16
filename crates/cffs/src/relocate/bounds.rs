//! Which places are worth a move.

use super::cost::PARTS;
use super::stretch::Stretch;
use crate::format::Geometry;

/// A move has to save one in so many parts of the cost.
const GAIN_DIVISOR: u64 = 10;
/// A good place costs at most so many parts of a request more than the best that there can be.
const GOOD_PARTS: u64 = 2;

/// What a stretch costs, in parts of a request.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// At the least.
    pub least: u64,
    /// Where it is.
    pub stays: u64,
    good: u64,
    /// It moves all the same.
    pub always: bool,
}

impl Bounds {
    /// Those of a stretch that costs so much where it is.
    pub fn new(stretch: &Stretch, g: &Geometry, stays: u64, always: bool) -> Bounds {
        let least = stretch.least(g);
        // At each end of a group a unit may lie in two, side by side.
        let ends = if stretch.units() > 0 { stretch.frags.div_ceil(g.group_frags()) + 1 } else { 0 };
        Bounds { least, stays, good: least + ends.max(GOOD_PARTS), always }
    }

    /// Whether a cost is so much lower that a move is worth it.
    pub fn saves_enough(&self, cost: u64) -> bool {
        let (least_saved, part) = (cost + PARTS - 1, self.stays - self.stays / GAIN_DIVISOR);
        self.always || least_saved <= self.stays && cost <= part
    }

    /// Whether the best of places would be.
    pub fn may_save_enough(&self) -> bool {
        self.saves_enough(self.least)
    }

    /// The same after a part of it has moved, with what it costs now.
    pub fn at(self, stays: u64) -> Bounds {
        Bounds { stays, ..self }
    }

    /// Whether there is hardly a better place.
    pub fn is_good(&self, cost: u64) -> bool {
        self.saves_enough(cost) && (self.always || cost <= self.good)
    }
}
