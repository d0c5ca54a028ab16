//! Allocation group header and free-space bitmap.
//!
//! A set bit is a fragment in use. Bit `i` of bitmap block `n` is fragment `n * bits_per_bitmap + i` of the group.

use super::{META_HEADER_SIZE, META_SPECIFIC, get_u64, put_u64};

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

/// Sets or clears the bits `from..to` of a bitmap (the bytes after the header). True if each of them changed.
pub fn set_bits(bits: &mut [u8], from: u64, to: u64, used: bool) -> bool {
    let mut all_changed = true;
    let mut i = from;
    while i < to {
        let byte = (i / 8) as usize;
        let n = (8 - i % 8).min(to - i);
        let mask = (((1u16 << n) - 1) as u8) << (i % 8);
        all_changed &= if used { bits[byte] & mask == 0 } else { bits[byte] & mask == mask };
        if used {
            bits[byte] |= mask;
        } else {
            bits[byte] &= !mask;
        }
        i += n;
    }
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
