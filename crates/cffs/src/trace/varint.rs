//! Numbers of variable length: seven bits in a byte, the lowest first; the highest bit says that more follow.

/// Longest number, in bytes.
pub(super) const MAX: usize = 10;

/// Where bytes are appended.
pub(super) trait Out {
    fn push(&mut self, byte: u8);
}

impl Out for Vec<u8> {
    fn push(&mut self, byte: u8) {
        Vec::push(self, byte);
    }
}

/// Appends a number.
#[inline]
pub(super) fn put(out: &mut impl Out, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Appends a number that may be negative: small ones of either sign are short.
#[inline]
pub(super) fn put_signed(out: &mut impl Out, n: i64) {
    put(out, (n << 1 ^ n >> 63) as u64);
}

/// Takes a number off the front. `None` if the bytes end within it, or it is longer than 64 bits.
pub(super) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(first & 0x7F);
        if shift == 63 && part > 1 {
            return None;
        }
        n |= part << shift;
        if first & 0x80 == 0 {
            return Some(n);
        }
    }
    None
}

/// Counterpart of [`put_signed`].
pub(super) fn take_signed(bytes: &mut &[u8]) -> Option<i64> {
    let n = take(bytes)?;
    Some((n >> 1) as i64 ^ -((n & 1) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_bad_ones_are_refused() {
        for n in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put(&mut out, n);
            put_signed(&mut out, n as i64);
            let mut rest = &out[..];
            assert_eq!((take(&mut rest), take_signed(&mut rest), rest.len()), (Some(n), Some(n as i64), 0));
            assert_eq!(take(&mut &[0x80; 3][..]), None, "cut off");
        }
        assert_eq!(take(&mut &[0xFF; 11][..]), None, "too long");
    }
}
