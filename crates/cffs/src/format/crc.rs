//! CRC32C, the checksum of everything on the device.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC32C (Castagnoli) of some bytes.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The CRC32C of some bytes in which short holes (offset, length), in order, count as zeros: the places of the checksum itself and of what
/// else it must not depend on.
pub fn crc32c_without(bytes: &[u8], holes: &[(usize, usize)]) -> u32 {
    const ZEROS: [u8; 8] = [0; 8];
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    let mut at = 0;
    for (hole, len) in holes {
        digest.update(&bytes[at..*hole]);
        digest.update(&ZEROS[..*len]);
        at = hole + len;
    }
    digest.update(&bytes[at..]);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit, as the polynomial says.
    fn reference(bytes: &[u8]) -> u32 {
        let step = |crc: u32, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 };
        !bytes.iter().fold(!0, |crc, b| (0..8).fold(crc ^ u32::from(*b), step))
    }

    #[test]
    fn the_checksum_is_that_of_the_polynomial_for_all_lengths() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        let bytes: Vec<u8> = (0..9000u32).map(|i| ((i * i) >> 3) as u8).collect();
        for len in (0..2000).chain([4096, 8192, 8999]) {
            assert_eq!(crc32c(&bytes[..len]), reference(&bytes[..len]), "{len}");
        }
    }

    #[test]
    fn holes_count_as_zeros() {
        let bytes: Vec<u8> = (1..=200).collect();
        for holes in [&[][..], &[(0, 4)], &[(4, 4), (40, 8)], &[(196, 4)]] {
            let mut copy = bytes.clone();
            holes.iter().for_each(|(at, len)| copy[*at..at + len].fill(0));
            assert_eq!(crc32c_without(&bytes, holes), crc32c(&copy), "{holes:?}");
        }
    }
}
