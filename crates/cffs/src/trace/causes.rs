//! What caused a span: one other span, or many.

use super::kind::Kind;
use cffs_device::OnBehalf;

/// Most causes that are named; all are counted.
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

/// Causes of something that is done for many at once. Each has a weight: the bytes that it made dirty, or that are read for it.
#[derive(Clone, Debug, Default)]
pub struct Causes {
    /// The span that was added last: one that is added again is one cause.
    last: u64,
    last_weight: u64,
    /// No named span has a greater number, and none of a full list a smaller weight: most that are added need not be looked for.
    highest: u64,
    floor: u64,
    /// Those of greatest weight, of equal ones the first.
    named: [u64; NAMED_MAX],
    named_weights: [u64; NAMED_MAX],
    len: usize,
    /// Causes that are not named.
    left_out: u64,
    /// How many causes come from each operation; the first entries are used. 0 is "not known".
    counts: [(u8, u64); OPS_MAX],
    /// Their weights. All causes have one, named or not.
    weights: [u64; OPS_MAX],
    kinds: usize,
}

impl PartialEq for Causes {
    fn eq(&self, other: &Causes) -> bool {
        let all = |c: &Causes| (c.left_out, c.len, c.named, c.named_weights, c.kinds, c.counts, c.weights);
        all(self) == all(other)
    }
}

impl Eq for Causes {}

impl Causes {
    /// Adds one, which made so many bytes dirty.
    pub fn add(&mut self, cause: Cause, weight: u64) {
        let again = cause.span != 0 && cause.span == self.last;
        let whole = if again { self.last_weight.saturating_add(weight) } else { weight };
        (self.last, self.last_weight) = (cause.span, whole);
        self.name(cause.span, weight, whole, again);
        self.count(cause.origin.map_or(0, |k| k as u8), u64::from(!again), weight);
    }

    /// Adds all of others.
    pub fn merge(&mut self, others: &Causes) {
        others
            .named()
            .iter()
            .zip(others.named_weights())
            .for_each(|(span, weight)| self.name(*span, *weight, *weight, false));
        self.left_out = self.left_out.saturating_add(others.left_out);
        others.entries().for_each(|(op, n, weight)| self.count(op, n, weight));
    }

    /// Adds a span that is itself done for others: that one is named, and so many bytes are divided among the others by their
    /// weights. They are counted unless they were before.
    pub(crate) fn merge_through(&mut self, span: u64, others: &Causes, weight: u64, counted: bool) {
        if counted && weight == 0 {
            return;
        }
        self.name(span, weight, weight, false);
        let (mut left, mut of_all) = (u128::from(weight), u128::from(others.measure()));
        for (n, (op, count, own)) in others.entries().enumerate() {
            let own = u128::from(if others.weight() > 0 { own } else { others.counts[n].1 });
            let share = (left * own).checked_div(of_all).unwrap_or(0);
            (left, of_all) = (left - share, of_all - own);
            self.count(op, if counted { 0 } else { count }, share as u64);
        }
        if left > 0 {
            self.count(0, 0, left as u64);
        }
    }

    /// Names a span, unless others have more weight. It has got this weight now, and has this one as a whole if it was added before.
    fn name(&mut self, span: u64, weight: u64, whole: u64, again: bool) {
        if span == 0 {
            return;
        }
        if span <= self.highest
            && let Some(at) = self.named().iter().rposition(|named| *named == span)
        {
            self.named_weights[at] = self.named_weights[at].saturating_add(weight);
            return;
        }
        if self.len < NAMED_MAX {
            self.highest = self.highest.max(span);
            (self.named[self.len], self.named_weights[self.len]) = (span, weight);
            self.len += 1;
            return;
        }
        // One is left out, this one or another, which it is already if it was added before.
        self.left_out = self.left_out.saturating_add(u64::from(!again));
        if whole <= self.floor {
            return;
        }
        let least = (0..NAMED_MAX).rev().min_by_key(|at| self.named_weights[*at]).unwrap_or(0);
        self.floor = self.named_weights[least];
        if whole > self.floor {
            self.highest = self.highest.max(span);
            (self.named[least], self.named_weights[least]) = (span, whole);
        }
    }

    fn count(&mut self, op: u8, n: u64, weight: u64) {
        let at = match self.raw_counts().iter().position(|(k, _)| *k == op) {
            Some(at) => at,
            None if self.kinds < OPS_MAX => {
                self.kinds += 1;
                self.counts[self.kinds - 1].0 = op;
                self.kinds - 1
            }
            // The last entry takes what is left, as not known.
            None => {
                self.counts[OPS_MAX - 1].0 = 0;
                OPS_MAX - 1
            }
        };
        self.counts[at].1 = self.counts[at].1.saturating_add(n);
        self.weights[at] = self.weights[at].saturating_add(weight);
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        *self = Causes::default();
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0 && self.kinds == 0
    }

    /// Numbers of the spans of greatest weight.
    pub fn named(&self) -> &[u64] {
        &self.named[..self.len]
    }

    /// Weights of those that are named.
    pub fn named_weights(&self) -> &[u64] {
        &self.named_weights[..self.len]
    }

    /// Spans that are not named.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// How many causes come from each operation; `None` for those of which it is not known.
    pub fn counts(&self) -> impl Iterator<Item = (Option<Kind>, u64)> + '_ {
        self.raw_counts().iter().map(|(op, n)| (Kind::from_number(*op), *n))
    }

    /// The weight of all.
    pub fn weight(&self) -> u64 {
        self.weights().iter().fold(0, |sum, weight| sum.saturating_add(*weight))
    }

    /// What shares are parts of: the weight of all; where nothing has a weight their number.
    fn measure(&self) -> u64 {
        match self.weight() {
            0 => self.counts().fold(0, |sum, (_, n)| sum.saturating_add(n)),
            weight => weight,
        }
    }

    /// The share of each operation in what is done: by weight; where nothing has a weight each cause has the same. They add up to
    /// one, if there is any.
    pub fn shares(&self) -> impl Iterator<Item = (Option<Kind>, f64)> + '_ {
        let (by_weight, all) = (self.weight() > 0, self.measure());
        let share = move |(op, n, weight)| {
            (Kind::from_number(op), if by_weight { weight } else { n } as f64 / all.max(1) as f64)
        };
        self.entries().filter(move |_| all > 0).map(share)
    }

    /// The shares of those that are named. What is missing to one is that of the others.
    pub fn named_shares(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        let by_weight = self.weight() > 0;
        let all = self.measure().max(if by_weight { 1 } else { self.len as u64 });
        let share = move |weight: u64| if by_weight { weight } else { 1 } as f64 / all as f64;
        self.named().iter().zip(self.named_weights()).map(move |(span, weight)| (*span, share(*weight)))
    }

    /// The operation with the greatest share.
    pub(super) fn main_origin(&self) -> Option<Kind> {
        self.shares().filter(|(op, _)| op.is_some()).max_by(|a, b| a.1.total_cmp(&b.1))?.0
    }

    /// As it stands in a file.
    pub(super) fn from_parts(named: &[u64], left_out: u64, counts: &[(u8, u64)]) -> Option<Causes> {
        let highest = named.iter().copied().max().unwrap_or(0);
        let mut all = Causes { left_out, len: named.len(), kinds: counts.len(), highest, ..Causes::default() };
        all.named.get_mut(..named.len())?.copy_from_slice(named);
        all.counts.get_mut(..counts.len())?.copy_from_slice(counts);
        Some(all)
    }

    /// The weights of the named ones and of the operations, to be read from a file.
    pub(super) fn weights_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        self.named_weights[..self.len].iter_mut().chain(&mut self.weights[..self.kinds])
    }

    /// Counts by number of the operation.
    pub(super) fn raw_counts(&self) -> &[(u8, u64)] {
        &self.counts[..self.kinds]
    }

    /// The weights of the same operations.
    pub(super) fn weights(&self) -> &[u64] {
        &self.weights[..self.kinds]
    }

    fn entries(&self) -> impl Iterator<Item = (u8, u64, u64)> + '_ {
        self.raw_counts().iter().zip(self.weights()).map(|((op, n), weight)| (*op, *n, *weight))
    }
}

/// Causes of one inode's dirty data. Mostly there is one, so that one takes no memory of its own: a file that is made and written at once.
#[derive(Debug)]
pub(super) enum Few {
    One(Cause, u64),
    All(Box<Causes>),
}

impl Few {
    /// As [`Causes::add`].
    pub(super) fn add(&mut self, cause: Cause, weight: u64) {
        match self {
            Few::One(first, sum) if cause.span != 0 && *first == cause => *sum = sum.saturating_add(weight),
            Few::One(first, sum) => {
                let mut all = Box::new(Causes::default());
                all.add(*first, *sum);
                all.add(cause, weight);
                *self = Few::All(all);
            }
            Few::All(all) => all.add(cause, weight),
        }
    }

    /// As [`Causes::merge`].
    pub(super) fn merge_into(&self, all: &mut Causes) {
        match self {
            Few::One(cause, weight) => {
                all.name(cause.span, *weight, *weight, false);
                all.count(cause.origin.map_or(0, |k| k as u8), 1, *weight);
            }
            Few::All(few) => all.merge(few),
        }
    }

    /// As [`Causes::merge_through`].
    pub(super) fn merge_through(&self, span: u64, all: &mut Causes, weight: u64, counted: bool) {
        match self {
            Few::One(..) if counted && weight == 0 => {}
            Few::One(cause, _) => {
                all.name(span, weight, weight, false);
                all.count(cause.origin.map_or(0, |k| k as u8), u64::from(!counted), weight);
            }
            Few::All(few) => all.merge_through(span, few, weight, counted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(span: u64, origin: Kind) -> Cause {
        Cause { span, origin: Some(origin) }
    }

    #[test]
    fn the_list_is_bounded_and_nothing_is_lost_in_the_counts() {
        let mut all = Causes::default();
        for span in 1..=1000 {
            let origin = if span % 10 == 0 { Kind::Unlink } else { Kind::Create };
            all.add(cause(span, origin), 0);
        }
        assert_eq!((all.named().len(), all.left_out()), (NAMED_MAX, 1000 - NAMED_MAX as u64));
        let counts: Vec<_> = all.counts().collect();
        assert_eq!(counts, [(Some(Kind::Create), 900), (Some(Kind::Unlink), 100)]);
        assert_eq!(all.main_origin(), Some(Kind::Create));
        let mut more = Causes::default();
        more.merge_through(2000, &all, 0, false);
        more.merge(&all);
        assert_eq!(more.counts().map(|(_, n)| n).sum::<u64>(), 2000);
        assert_eq!(more.named()[0], 2000);
    }

    #[test]
    fn shares_are_of_bytes_and_those_who_made_most_dirty_are_named() {
        let mut all = Causes::default();
        (1..=2000).for_each(|span| all.add(cause(span, Kind::Read), 0));
        let shares = |all: &Causes| all.shares().collect::<Vec<_>>();
        assert_eq!(shares(&all), [(Some(Kind::Read), 1.0)], "where nobody has a weight each counts");
        all.add(cause(3000, Kind::Write), 300);
        all.add(cause(3001, Kind::Create), 100);
        all.add(cause(3000, Kind::Write), 600);
        assert_eq!(shares(&all), [(Some(Kind::Read), 0.0), (Some(Kind::Write), 0.9), (Some(Kind::Create), 0.1)]);
        assert_eq!((all.weight(), all.main_origin()), (1000, Some(Kind::Write)));
        let named: Vec<(u64, f64)> = all.named_shares().filter(|(_, share)| *share > 0.0).collect();
        assert!(named.contains(&(3000, 0.9)) && named.contains(&(3001, 0.1)), "{named:?}");
        assert_eq!(all.named().len() as u64 + all.left_out(), 2002);
        // One that comes to its weight by and by.
        (4000..4020).for_each(|span| all.add(cause(span, Kind::Write), 7));
        (0..5).for_each(|_| all.add(cause(5000, Kind::Write), 2));
        assert!(all.named_shares().any(|(span, share)| span == 5000 && share == 10.0 / all.weight() as f64));
        assert_eq!(all.named().len() as u64 + all.left_out(), 2023);
    }

    #[test]
    fn the_bytes_of_what_is_done_for_others_are_theirs() {
        let mut others = Causes::default();
        others.add(cause(1, Kind::Write), 2);
        others.add(cause(2, Kind::Create), 1);
        let mut all = Causes::default();
        for (n, counted) in [(100, false), (1, true), (1, true), (0, true)] {
            all.merge_through(7, &others, n, counted);
        }
        assert_eq!(all.weight(), 102, "nothing is lost by rounding");
        assert_eq!(all.counts().collect::<Vec<_>>(), [(Some(Kind::Write), 1), (Some(Kind::Create), 1)]);
        assert_eq!(all.weights(), [66, 36]);
        assert_eq!((all.named(), all.named_weights()), (&[7][..], &[102][..]));
        // Of those without a weight each has the same.
        let mut reads = Causes::default();
        (1..=4).for_each(|span| reads.add(cause(span, if span == 1 { Kind::Readdir } else { Kind::Read }), 0));
        let mut all = Causes::default();
        all.merge_through(8, &reads, 100, false);
        assert_eq!(all.weights(), [25, 75]);
        let mut none = Causes::default();
        none.merge_through(7, &others, 0, true);
        assert!(none.is_empty(), "a cause without a share");
        // Of nobody who is known.
        all.merge_through(9, &Causes::default(), 50, false);
        assert_eq!((all.weight(), all.shares().last()), (150, Some((None, 1.0 / 3.0))));
    }

    #[test]
    fn one_cause_alone_is_as_good_as_a_list() {
        let made = |spans: &[(u64, Kind, u64)]| {
            let mut whole = Causes::default();
            spans.iter().for_each(|(span, kind, weight)| whole.add(cause(*span, *kind), *weight));
            let mut few = Few::One(cause(spans[0].0, spans[0].1), spans[0].2);
            spans[1..].iter().for_each(|(span, kind, weight)| few.add(cause(*span, *kind), *weight));
            (whole, few)
        };
        let (create, write) = ((3, Kind::Create, 10), (4, Kind::Write, 5));
        for spans in [&[create][..], &[create, create], &[create, write], &[(0, Kind::Write, 0), (0, Kind::Write, 0)]] {
            let (whole, few) = made(spans);
            let mut merged = [Causes::default(), Causes::default()];
            merged.iter_mut().for_each(|all| all.add(cause(9, Kind::Unlink), 1));
            merged[0].merge(&whole);
            few.merge_into(&mut merged[1]);
            for (weight, counted) in [(7, false), (7, true), (0, true), (0, false)] {
                merged[0].merge_through(20, &whole, weight, counted);
                few.merge_through(20, &mut merged[1], weight, counted);
            }
            assert_eq!(merged[0], merged[1], "{spans:?}");
        }
    }

    #[test]
    fn more_operations_than_are_told_apart_become_unknown() {
        let mut all = Causes::default();
        for kind in Kind::ALL.iter().take(20) {
            all.add(cause(0, *kind), 1);
        }
        assert_eq!(all.counts().map(|(_, n)| n).sum::<u64>(), 20);
        assert!(all.named().is_empty() && all.counts().count() == OPS_MAX);
        assert_eq!((all.weight(), all.weights()[OPS_MAX - 1]), (20, 5));
    }
}
