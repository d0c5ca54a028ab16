//! What caused a span: one other span, or many.

use super::kind::Kind;
use cffs_device::OnBehalf;

/// Most causes that are named; the others are counted.
pub(super) const NAMED_MAX: usize = 16;
/// Most operations that are told apart in the counts.
const OPS_MAX: usize = 16;

/// The span that causes what begins now, and the operation at the root of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// Number of the span; 0: none is known.
    pub span: u64,
    /// The operation (or regroup, scrub) for which all this happens, if it is known.
    pub origin: Option<Kind>,
}

impl Cause {
    /// The innermost span that is open in this thread. Devices below hand it on to threads that work for this one.
    pub(super) fn current() -> Cause {
        Cause::of(OnBehalf::cause())
    }

    /// Makes it the innermost one. Returns the one before.
    pub(super) fn set_current(self) -> Cause {
        Cause::of(OnBehalf::replace_cause([self.span, self.origin.map_or(0, |k| u64::from(k as u8))]))
    }

    fn of([span, origin]: [u64; 2]) -> Cause {
        Cause { span, origin: Kind::from_number(origin as u8) }
    }
}

/// Causes of something that is done for many at once.
#[derive(Clone, Debug, Default)]
pub struct Causes {
    /// The span that was added last: one that is added again is one cause.
    last: u64,
    named: [u64; NAMED_MAX],
    len: usize,
    /// Causes that are not named.
    left_out: u64,
    /// How many causes come from each operation; the first entries are used. 0 is "not known".
    counts: [(u8, u64); OPS_MAX],
    kinds: usize,
}

impl PartialEq for Causes {
    fn eq(&self, other: &Causes) -> bool {
        (self.named(), self.left_out, self.raw_counts()) == (other.named(), other.left_out, other.raw_counts())
    }
}

impl Eq for Causes {}

impl Causes {
    /// Adds one.
    pub fn add(&mut self, cause: Cause) {
        if cause.span != 0 && cause.span == self.last {
            return;
        }
        self.last = cause.span;
        self.name(cause.span);
        self.count(cause.origin.map_or(0, |k| k as u8), 1);
    }

    /// Adds all of others.
    pub fn merge(&mut self, others: &Causes) {
        others.named().iter().for_each(|span| self.name(*span));
        self.left_out = self.left_out.saturating_add(others.left_out);
        others.counts[..others.kinds].iter().for_each(|(op, n)| self.count(*op, *n));
    }

    /// As [`Causes::merge`], where the others reach it through a span: only that is named.
    pub(crate) fn merge_through(&mut self, span: u64, others: &Causes) {
        self.name(span);
        others.counts[..others.kinds].iter().for_each(|(op, n)| self.count(*op, *n));
    }

    fn name(&mut self, span: u64) {
        if span == 0 || self.named().last() == Some(&span) {
            return;
        }
        if self.len < NAMED_MAX {
            self.named[self.len] = span;
            self.len += 1;
        } else {
            self.left_out = self.left_out.saturating_add(1);
        }
    }

    fn count(&mut self, op: u8, n: u64) {
        match self.counts[..self.kinds].iter_mut().find(|(k, _)| *k == op) {
            Some((_, count)) => *count = count.saturating_add(n),
            None if self.kinds < OPS_MAX => {
                self.counts[self.kinds] = (op, n);
                self.kinds += 1;
            }
            // The last entry takes what is left, as not known.
            None => {
                let last = &mut self.counts[OPS_MAX - 1];
                *last = (0, last.1.saturating_add(n));
            }
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        *self = Causes::default();
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0 && self.kinds == 0
    }

    /// Numbers of the first spans.
    pub fn named(&self) -> &[u64] {
        &self.named[..self.len]
    }

    /// Spans that are not named.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// How many causes come from each operation; `None` for those of which it is not known.
    pub fn counts(&self) -> impl Iterator<Item = (Option<Kind>, u64)> + '_ {
        self.counts[..self.kinds].iter().map(|(op, n)| (Kind::from_number(*op), *n))
    }

    /// The operation that most causes come from.
    pub(super) fn main_origin(&self) -> Option<Kind> {
        self.counts().filter(|(op, _)| op.is_some()).max_by_key(|(_, n)| *n)?.0
    }

    /// As it stands in a file.
    pub(super) fn from_parts(named: &[u64], left_out: u64, counts: &[(u8, u64)]) -> Option<Causes> {
        let mut all = Causes { left_out, len: named.len(), kinds: counts.len(), ..Causes::default() };
        all.named.get_mut(..named.len())?.copy_from_slice(named);
        all.counts.get_mut(..counts.len())?.copy_from_slice(counts);
        Some(all)
    }

    /// Counts by number of the operation.
    pub(super) fn raw_counts(&self) -> &[(u8, u64)] {
        &self.counts[..self.kinds]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_bounded_and_nothing_is_lost_in_the_counts() {
        let mut all = Causes::default();
        for span in 1..=1000 {
            let origin = if span % 10 == 0 { Kind::Unlink } else { Kind::Create };
            all.add(Cause { span, origin: Some(origin) });
        }
        assert_eq!((all.named().len(), all.left_out()), (NAMED_MAX, 1000 - NAMED_MAX as u64));
        let counts: Vec<_> = all.counts().collect();
        assert_eq!(counts, [(Some(Kind::Create), 900), (Some(Kind::Unlink), 100)]);
        assert_eq!(all.main_origin(), Some(Kind::Create));
        let mut more = Causes::default();
        more.merge_through(2000, &all);
        more.merge(&all);
        assert_eq!(more.counts().map(|(_, n)| n).sum::<u64>(), 2000);
        assert_eq!(more.named()[0], 2000);
    }

    #[test]
    fn more_operations_than_are_told_apart_become_unknown() {
        let mut all = Causes::default();
        for kind in Kind::ALL.iter().take(20) {
            all.add(Cause { span: 0, origin: Some(*kind) });
        }
        assert_eq!(all.counts().map(|(_, n)| n).sum::<u64>(), 20);
        assert!(all.named().is_empty() && all.counts().count() == OPS_MAX);
    }
}
