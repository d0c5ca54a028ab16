//! What the journal knows of a changed block.

use crate::format::log::RANGE_UNIT;

/// What the journal knows of a changed block.
#[derive(Default)]
pub(crate) struct LogState {
    /// Units of [`RANGE_UNIT`] bytes changed in the running transaction, one bit each.
    pub(crate) dirty: Box<[u64]>,
    /// On the running transaction's list of changed blocks.
    pub(crate) in_txn: bool,
    /// Initialized in the running transaction.
    pub(crate) init: bool,
    /// File contents: no header, no checksum.
    pub(crate) data: bool,
    /// Freed in the running transaction: nothing of it is logged any more.
    pub(crate) freed: bool,
    /// Sequence number of the last transaction with changes of it (0: none committed yet).
    pub(crate) last_seq: u64,
    /// Committed changes are not checkpointed yet.
    pub(crate) awaits_checkpoint: bool,
    /// Fragments of a data block that the checkpoint is to write, one bit each (metadata blocks are written whole).
    pub(crate) checkpoint_frags: u8,
}

impl LogState {
    pub(crate) fn new(block_size: usize, data: bool) -> Box<LogState> {
        let words = (block_size / RANGE_UNIT).div_ceil(64);
        Box::new(LogState { dirty: vec![0; words].into_boxed_slice(), data, ..LogState::default() })
    }

    /// Marks units as changed; returns how many were not before.
    pub(crate) fn mark(&mut self, offset: usize, len: usize) -> usize {
        let (first, end) = (offset / RANGE_UNIT, (offset + len).div_ceil(RANGE_UNIT));
        let mut new = 0;
        let mut unit = first;
        while unit < end {
            let (word, bit) = (unit / 64, unit % 64);
            let n = (64 - bit).min(end - unit);
            let mask = (u64::MAX >> (64 - n)) << bit;
            new += (mask & !self.dirty[word]).count_ones() as usize;
            self.dirty[word] |= mask;
            unit += n;
        }
        new
    }

    /// The runs of changed units as (first, count), and clears them.
    pub(crate) fn take_runs(&mut self, out: &mut Vec<(u32, u32)>) {
        out.clear();
        for w in 0..self.dirty.len() {
            let mut word = std::mem::take(&mut self.dirty[w]);
            let mut base = w as u32 * 64;
            while word != 0 {
                let skip = word.trailing_zeros();
                word >>= skip;
                base += skip;
                let n = word.trailing_ones();
                match out.last_mut() {
                    Some((first, count)) if *first + *count == base => *count += n,
                    _ => out.push((base, n)),
                }
                word = if n == 64 { 0 } else { word >> n };
                base += n;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_units_come_back_as_runs() {
        let mut s = LogState::new(4096, false);
        assert_eq!(s.mark(0, 1), 1);
        assert_eq!(s.mark(4, 8), 1, "unit 0 is marked already");
        assert_eq!(s.mark(500, 30), 5);
        assert_eq!(s.mark(4088, 8), 1);
        assert_eq!(s.mark(1024, 1024), 128);
        let mut runs = Vec::new();
        s.take_runs(&mut runs);
        assert_eq!(runs, [(0, 2), (62, 5), (128, 128), (511, 1)]);
        s.take_runs(&mut runs);
        assert!(runs.is_empty());
    }
}
