//! Allocation group header and free-space bitmap.
//!
//! A set bit is a fragment in use. Bit `i` of bitmap block `n` is fragment `n * bits_per_bitmap + i` of the group.

use super::{META_HEADER_SIZE, META_SPECIFIC, get_u64, put_u64};
use std::ops::Range;

/// Offset in the header block of the number of free fragments (`u64`). Derived: the bitmap is the truth.
pub const AG_FREE_FRAGS: usize = META_HEADER_SIZE;
/// Offset in a bitmap block of its index within the group (`u64`).
pub const BITMAP_INDEX: usize = META_SPECIFIC;
/// Offset of the first bit in a bitmap block.
pub const BITMAP_BITS: usize = META_HEADER_SIZE;

/// Free fragments by a group header.
pub fn ag_free(block: &[u8]) -> u64 {
    get_u64(block, AG_FREE_FRAGS)
}

/// Sets the free fragments of a group header.
pub fn set_ag_free(block: &mut [u8], free: u64) {
    put_u64(block, AG_FREE_FRAGS, free);
}

/// The bits `from..to` of a bitmap: parts of a byte at both ends, as (index, mask) with an empty mask where there is none, and
/// the whole bytes between.
fn parts(from: u64, to: u64) -> ([(usize, u8); 2], Range<usize>) {
    let (first, last) = ((from / 8) as usize, (to / 8) as usize);
    let (head, tail) = (u8::MAX << (from % 8), !(u8::MAX << (to % 8)));
    match first == last {
        _ if from >= to => ([(0, 0); 2], 0..0),
        true => ([(first, head & tail), (0, 0)], 0..0),
        false if head == u8::MAX => ([(0, 0), (last, tail)], first..last),
        false => ([(first, head), (last, tail)], first + 1..last),
    }
}

/// Whether the bits `from..to` of a bitmap all have this value.
pub fn bits_are(bits: &[u8], from: u64, to: u64, used: bool) -> bool {
    let (ends, whole) = parts(from, to);
    let all = if used { u8::MAX } else { 0 };
    let same = |(at, mask): &(usize, u8)| *mask == 0 || bits[*at] & mask == all & mask;
    ends.iter().all(same) && bits[whole].iter().all(|byte| *byte == all)
}

/// Sets or clears the bits `from..to` of a bitmap (the bytes after the header). True if each of them changed.
pub fn set_bits(bits: &mut [u8], from: u64, to: u64, used: bool) -> bool {
    let all_changed = bits_are(bits, from, to, !used);
    let (ends, whole) = parts(from, to);
    for (at, mask) in ends.into_iter().filter(|(_, mask)| *mask != 0) {
        bits[at] = if used { bits[at] | mask } else { bits[at] & !mask };
    }
    bits[whole].fill(if used { u8::MAX } else { 0 });
    all_changed
}

/// The runs of clear bits among the first `len`, as (start, length).
pub fn free_runs(bits: &[u8], len: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
    let mut i = 0;
    let bit = |i: u64| bits[(i / 8) as usize] >> (i % 8) & 1 == 1;
    let skip = move |mut i: u64, value: bool| {
        let whole = if value { 0xff } else { 0 };
        while i < len {
            if i.is_multiple_of(8) && len - i >= 8 && bits[(i / 8) as usize] == whole {
                i += 8;
            } else if bit(i) == value {
                i += 1;
            } else {
                break;
            }
        }
        i
    };
    std::iter::from_fn(move || {
        let start = skip(i, true);
        if start >= len {
            return None;
        }
        let end = skip(start, false);
        i = end;
        Some((start, end - start))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_by_bytes_are_as_bit_by_bit() {
        for (from, to) in (0..40).flat_map(|from| (from..=40).map(move |to| (from, to))) {
            let run = |bit: u64| (from..to).contains(&bit);
            let of = |bits: &[u8], bit: u64| bits[bit as usize / 8] >> (bit % 8) & 1 == 1;
            let mut bits = [0; 5];
            assert!(set_bits(&mut bits, from, to, true), "{from}..{to}");
            assert!((0..40).all(|bit| of(&bits, bit) == run(bit)), "{from}..{to}: {bits:x?}");
            assert!(bits_are(&bits, from, to, true) && (from == to || !bits_are(&bits, from, to, false)));
            for odd in 0..40 {
                let mut other = bits;
                other[odd / 8] ^= 1 << (odd % 8);
                assert_eq!(bits_are(&other, from, to, true), !run(odd as u64), "{from}..{to}, bit {odd}");
            }
            let mut bits = [0xff; 5];
            assert!(set_bits(&mut bits, from, to, false));
            assert!((0..40).all(|bit| of(&bits, bit) != run(bit)), "{from}..{to}: {bits:x?}");
        }
    }

    #[test]
    fn runs_are_what_was_left_clear() {
        let mut bits = vec![0u8; 16];
        assert!(set_bits(&mut bits, 3, 21, true));
        assert!(set_bits(&mut bits, 100, 101, true));
        assert!(!set_bits(&mut bits, 20, 23, true), "bit 20 was set already");
        let runs: Vec<_> = free_runs(&bits, 128).collect();
        assert_eq!(runs, [(0, 3), (23, 77), (101, 27)]);
        assert_eq!(free_runs(&bits, 102).last(), Some((101, 1)));
        assert!(set_bits(&mut bits, 3, 23, false));
        assert_eq!(free_runs(&bits, 100).collect::<Vec<_>>(), [(0, 100)]);
    }
}
