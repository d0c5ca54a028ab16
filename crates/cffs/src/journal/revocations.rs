//! Which fragments the log revokes: records of older transactions must not be applied to them.

use crate::format::FragAddr;
use std::collections::BTreeMap;

/// Runs of fragments with the newest transaction that revoked them.
#[derive(Default)]
pub(super) struct Revocations(BTreeMap<FragAddr, (FragAddr, u64)>);

impl Revocations {
    /// Transactions are added in the order of the log, so a new run takes precedence over what it overlaps.
    pub(super) fn add(&mut self, start: FragAddr, end: FragAddr, seq: u64) {
        let before = self.0.range(..start).next_back().map(|(s, v)| (*s, *v));
        if let Some((s, (e, q))) = before.filter(|(_, (e, _))| *e > start) {
            self.0.insert(s, (start, q));
            if e > end {
                self.0.insert(end, (e, q));
            }
        }
        let inside: Vec<FragAddr> = self.0.range(start..end).map(|(s, _)| *s).collect();
        for s in inside {
            if let Some((e, q)) = self.0.remove(&s).filter(|(e, _)| *e > end) {
                self.0.insert(end, (e, q));
            }
        }
        self.0.insert(start, (end, seq));
    }

    /// Whether transaction `seq`, or a later one, revoked the fragment.
    pub(super) fn covers(&self, frag: FragAddr, seq: u64) -> bool {
        self.0.range(..=frag).next_back().is_some_and(|(_, (end, q))| *end > frag && *q >= seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_revocation_of_a_fragment_counts() {
        let mut r = Revocations::default();
        r.add(10, 20, 1);
        r.add(15, 17, 5);
        r.add(18, 30, 3);
        assert!(r.covers(10, 1) && !r.covers(10, 2));
        assert!(r.covers(15, 5) && r.covers(16, 4) && !r.covers(17, 2) && r.covers(17, 1));
        assert!(r.covers(18, 3) && r.covers(29, 3) && !r.covers(30, 1) && !r.covers(9, 1));
    }
}
