//! Self-describing file contents: every write fills its range with bytes that no other write makes.

/// Byte values of the write `tag`, for a buffer that begins at file offset `offset`.
pub fn fill(tag: u64, offset: u64, buf: &mut [u8]) {
    let mut done = 0;
    while done < buf.len() {
        let at = offset + done as u64;
        let word = mix(tag, at / 8).to_le_bytes();
        let skip = (at % 8) as usize;
        let n = (8 - skip).min(buf.len() - done);
        buf[done..done + n].copy_from_slice(&word[skip..skip + n]);
        done += n;
    }
}

/// The bytes of a write.
pub fn bytes(tag: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    fill(tag, offset, &mut buf);
    buf
}

/// Finalizer of SplitMix64 over both numbers.
fn mix(tag: u64, word: u64) -> u64 {
    let mut z = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word.wrapping_mul(0xd1b5_4a32_d192_ed03);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_agree_and_tags_differ() {
        let whole = bytes(5, 1000, 300);
        for from in 0..40 {
            assert_eq!(bytes(5, 1000 + from, 100), whole[from as usize..from as usize + 100]);
        }
        let same = whole.iter().zip(bytes(6, 1000, 300)).filter(|(a, b)| **a == *b).count();
        assert!(same < 20, "{same} of 300 bytes agree");
    }
}
