//! Readers of one file that go through it in order, told apart: what to read ahead of each.
//!
//! Calls of one reader may come in another order than that of the file, because a kernel has several in flight. So a reader goes on where a call is
//! near to the end of those before it.

use parking_lot::Mutex;
use std::ops::Range;

/// Readers of a file that are told apart.
const READERS_MAX: usize = 4;
/// Calls that one of them has in flight.
const IN_FLIGHT: u64 = 4;
/// More is asked for when less than such a part of what may be read ahead is left.
const REFILL_DIVISOR: u64 = 2;
/// Calls of more than such a part of what may be read ahead keep the devices busy by themselves, several at a time even more so.
const CALL_DIVISOR: u64 = 8;

/// A reader that none of so many calls was of has stopped, or was none: the others need not share with it.
const QUIET: u64 = 32;

struct Reader {
    /// Where it began, how far its calls have come, and what was read ahead.
    start: u64,
    end: u64,
    asked: u64,
    /// Its last call, as a number.
    last: u64,
}

impl Reader {
    /// Whether a call belongs to this reader. A thread that was held up comes later than the others that take turns with it: where they were a short
    /// time ago, at most `most` bytes back, it is no reader by itself, for whom what they have read would be read again.
    fn goes_on_with(&self, offset: u64, len: u64, most: u64) -> bool {
        let near = IN_FLIGHT.saturating_mul(len);
        let follows = offset.saturating_add(near) >= self.end;
        let is_late = offset >= self.start && offset.saturating_add(most) >= self.end;
        offset <= self.end.saturating_add(near) && (follows || is_late)
    }
}

/// Readers of a file.
#[derive(Default)]
pub struct Readers(Mutex<State>);

#[derive(Default)]
struct State {
    /// The last one first.
    readers: Vec<Reader>,
    calls: u64,
}

impl Readers {
    /// A call reads `len` bytes at `offset`. Returns what to read ahead now: nothing at first, then as much as the reader has read so far, and at
    /// most `most` bytes for all together that read.
    pub fn note(&self, offset: u64, len: u64, most: u64) -> Range<u64> {
        let State { readers, calls } = &mut *self.0.lock();
        *calls += 1;
        let reader = match readers.iter().position(|r| r.goes_on_with(offset, len, most)) {
            Some(at) => readers.remove(at),
            None => Reader { start: offset, end: offset, asked: 0, last: 0 },
        };
        let end = reader.end.max(offset.saturating_add(len));
        readers.truncate(READERS_MAX - 1);
        let others = readers.iter().filter(|r| r.last + QUIET > *calls).count();
        let most = most / (others as u64 + 1);
        let window = (end - reader.start.min(offset)).min(most);
        let (from, until) = (reader.asked.max(end), end.saturating_add(window));
        let wants = len <= (most / CALL_DIVISOR).min(window / REFILL_DIVISOR)
            && from <= end.saturating_add(window / REFILL_DIVISOR);
        let asked = if wants { until } else { reader.asked };
        readers.insert(0, Reader { start: reader.start.min(offset), end, asked, last: *calls });
        if wants { from..until } else { 0..0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 1 << 20;

    fn calls(readers: &Readers, offsets: impl IntoIterator<Item = u64>, len: u64) -> Vec<Range<u64>> {
        offsets.into_iter().map(|at| readers.note(at, len, MOST)).filter(|r| !r.is_empty()).collect()
    }

    #[test]
    fn a_reader_in_order_is_read_ahead_of_without_gaps_and_within_bounds() {
        let readers = Readers::default();
        let len = 4096;
        let (mut asked, mut end) = (0, 0);
        for n in 0..1000 {
            let more = readers.note(n * len, len, MOST);
            end += len;
            if more.is_empty() {
                continue;
            }
            assert!(more.start == asked || asked == 0 && more.start == end, "{more:?} after {asked}");
            asked = more.end;
            assert!(asked - end <= MOST.min(end));
        }
        assert!(asked - end > MOST / 2 - len);
    }

    #[test]
    fn whoever_has_stopped_takes_no_share() {
        let readers = Readers::default();
        // Calls as long as one reader alone may make that is read ahead of.
        let len = MOST / CALL_DIVISOR;
        readers.note(1 << 40, len, MOST);
        let ahead = calls(&readers, (0..100).map(|n| n * len), len);
        let last = ahead.last().map_or(0, |range| range.end);
        assert!(last > 100 * len, "{last}");
        // Two that take turns have half each, and make calls that are too long for that.
        let two = calls(&readers, (0..100).flat_map(|n| [(1 << 41) + n * len, (1 << 42) + n * len]), len);
        assert!(two.len() < 10, "{two:?}");
    }

    #[test]
    fn calls_that_are_in_flight_at_the_same_time_come_in_any_order() {
        let readers = Readers::default();
        let mut last = 0;
        for n in 0..100u64 {
            // 3 2 1 0 7 6 5 4 ...
            last = last.max(readers.note((n ^ 3) * 4096, 4096, MOST).end);
        }
        assert!(last > 100 * 4096, "{last}");
    }

    #[test]
    fn a_call_that_was_held_up_is_of_the_same_reader() {
        let readers = Readers::default();
        let len = 4096;
        let asked = (0..100).map(|n| readers.note(n * len, len, MOST).end).max().unwrap();
        // One of four that take turns is twenty calls behind, and goes on where it was.
        for n in (80..100).step_by(4) {
            let more = readers.note(n * len, len, MOST);
            assert!(more.is_empty() || more.start >= asked, "{more:?} was read");
        }
    }

    #[test]
    fn nothing_is_read_ahead_of_random_calls() {
        let readers = Readers::default();
        assert_eq!(calls(&readers, (0..1000).map(|n| n * 7919 % 1000 * (64 << 10)), 4096), []);
    }

    #[test]
    fn several_readers_share_what_may_be_read_ahead() {
        let readers = Readers::default();
        let mut ahead = [0; 4];
        for n in 0..1000u64 {
            for (reader, ahead) in (0..).zip(&mut ahead) {
                let offset = (reader << 30) + n * 4096;
                *ahead = readers.note(offset, 4096, MOST).end.max(*ahead);
                assert!(n < 10 || (*ahead).saturating_sub(offset + 4096) <= MOST / 4);
            }
        }
        assert!(ahead.iter().zip(0..).all(|(end, reader)| *end > (reader << 30) + 1000 * 4096));
    }

    #[test]
    fn long_calls_need_nothing() {
        assert_eq!(calls(&Readers::default(), (0..100).map(|n| n * MOST), MOST), []);
    }
}
