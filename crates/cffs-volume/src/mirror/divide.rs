//! Who reads what, of several reads at once.
//!
//! Members that read alternate pieces of what is together pass over each other's pieces, which costs a disk as much as reading them. So each gets one
//! stretch, as long as its share, and the first one goes to whoever is nearest. What lies apart costs a request by itself, whatever its length.

/// What a member has to do already, in bytes, and where its last read ended.
#[derive(Clone, Copy)]
pub(super) struct Reader {
    pub(super) bytes: u64,
    pub(super) position: u64,
}

/// The member for each of these pieces, offset and length, in their order. What is together is cut into parts of at least `least` bytes.
pub(super) fn divide(pieces: &[(u64, u64)], readers: &[Reader], least: u64) -> Vec<usize> {
    let goes_on = |n: usize| n > 0 && pieces[n - 1].0 + pieces[n - 1].1 == pieces[n].0;
    let weight = |n: usize| pieces[n].1 + if goes_on(n) { 0 } else { least };
    let all: u64 = (0..pieces.len()).map(weight).sum::<u64>() + readers.iter().map(|r| r.bytes).sum::<u64>();
    let share = all.div_ceil(readers.len().max(1) as u64);
    let mut left: Vec<usize> = (0..readers.len()).filter(|n| readers[*n].bytes < share).collect();
    // The reader of the last piece, what it has by then, and how much of that is together.
    let (mut reader, mut taken, mut run) = (0, u64::MAX, 0);
    let mut chosen = Vec::with_capacity(pieces.len());
    for (n, (offset, len)) in pieces.iter().enumerate() {
        run = if goes_on(n) { run } else { 0 };
        let stays = taken < share || run > 0 && run + len <= least;
        if !stays && let Some(at) = (0..left.len()).min_by_key(|at| readers[left[*at]].position.abs_diff(*offset)) {
            reader = left.remove(at);
            (taken, run) = (readers[reader].bytes, 0);
        }
        taken = taken.saturating_add(weight(n));
        run += len;
        chosen.push(reader);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u64 = 1000;

    fn readers(list: &[(u64, u64)]) -> Vec<Reader> {
        list.iter().map(|(bytes, position)| Reader { bytes: *bytes, position: *position }).collect()
    }

    fn run(from: u64, count: u64, len: u64) -> Vec<(u64, u64)> {
        (0..count).map(|n| (from + n * len, len)).collect()
    }

    #[test]
    fn what_is_together_is_divided_into_one_stretch_each() {
        assert_eq!(divide(&run(0, 8, 1000), &readers(&[(0, 0), (0, 0)]), LEAST), [0, 0, 0, 0, 1, 1, 1, 1]);
        let three = divide(&run(0, 12, 1000), &readers(&[(0, 0), (0, 0), (0, 0)]), LEAST);
        // Of three the shares differ by a piece or two, and stay in one.
        assert_eq!(three, [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2]);
    }

    #[test]
    fn the_nearest_goes_on() {
        assert_eq!(divide(&run(8000, 4, 1000), &readers(&[(0, 4000), (0, 8000)]), LEAST), [1, 1, 0, 0]);
    }

    #[test]
    fn who_is_busy_gets_less() {
        assert_eq!(divide(&run(0, 8, 1000), &readers(&[(4000, 0), (0, 9000)]), LEAST), [0, 0, 1, 1, 1, 1, 1, 1]);
        assert_eq!(divide(&run(0, 4, 1000), &readers(&[(90_000, 0), (0, 9000)]), LEAST), [1; 4]);
    }

    #[test]
    fn what_is_short_and_together_stays_together_and_what_lies_apart_does_not() {
        assert_eq!(divide(&run(0, 4, 250), &readers(&[(0, 0), (0, 0)]), LEAST), [0; 4]);
        let apart: Vec<(u64, u64)> = (0..8).map(|n| (n * 50_000, 10)).collect();
        assert_eq!(divide(&apart, &readers(&[(0, 0), (0, 0)]), LEAST), [0, 0, 0, 0, 1, 1, 1, 1]);
    }

    #[test]
    fn everything_is_read_by_somebody() {
        assert_eq!(divide(&run(0, 3, 10), &readers(&[(0, 0)]), LEAST), [0; 3]);
        assert_eq!(divide(&[], &readers(&[(0, 0), (0, 0)]), LEAST), Vec::<usize>::new());
    }
}
