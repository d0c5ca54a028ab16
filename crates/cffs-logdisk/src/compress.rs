//! Compression of extents.

use crate::codec::corrupt;
use crate::extent::{BLOCK_BYTES, Codec, UNIT_BLOCKS_MAX};
use crate::options::Compression;
use std::cell::RefCell;
use std::io;
use zstd::bulk::{Compressor, Decompressor};

thread_local! {
    // What zstd works in takes longer to make than a unit takes to go through it.
    static ZSTD: RefCell<(Compressor<'static>, Decompressor<'static>)> = RefCell::default();
}

/// Compresses the blocks of a unit, if that saves at least one part in eight and one sector.
pub(crate) fn compress(how: Compression, data: &[u8]) -> Option<(Codec, Vec<u8>)> {
    let (codec, packed) = match how {
        Compression::None => return None,
        Compression::Lz4 => (Codec::Lz4, lz4_flex::block::compress(data)),
        Compression::Zstd(level) => (Codec::Zstd, zstd_compressed(level, data).ok()?),
    };
    let limit = data.len() - (data.len() / 8).max(512);
    (packed.len() <= limit && !packed.is_empty()).then_some((codec, packed))
}

fn zstd_compressed(level: i32, data: &[u8]) -> io::Result<Vec<u8>> {
    ZSTD.with_borrow_mut(|(zstd, _)| {
        zstd.set_compression_level(level.clamp(1, 19))?;
        zstd.compress(data)
    })
}

/// The blocks of a unit from its stored bytes. Never makes more than `blocks` blocks, whatever the bytes say.
pub(crate) fn decompress(codec: Codec, stored: &[u8], blocks: u32) -> io::Result<Vec<u8>> {
    let bytes = blocks.min(UNIT_BLOCKS_MAX) as usize * BLOCK_BYTES;
    let bad = || corrupt("a compressed extent cannot be decompressed");
    let data = match codec {
        Codec::Plain => stored.to_vec(),
        Codec::Lz4 => lz4_flex::block::decompress(stored, bytes).map_err(|_| bad())?,
        Codec::Zstd => ZSTD.with_borrow_mut(|(_, zstd)| zstd.decompress(stored, bytes)).map_err(|_| bad())?,
    };
    if data.len() == blocks as usize * BLOCK_BYTES { Ok(data) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back_or_an_error() {
        let mut rng = fastrand::Rng::with_seed(5);
        let text: Vec<u8> = (0..16 * BLOCK_BYTES).map(|i| b"some text that comes again "[i % 27]).collect();
        let noise: Vec<u8> = (0..16 * BLOCK_BYTES).map(|_| rng.u8(..)).collect();
        for how in [Compression::Lz4, Compression::Zstd(3)] {
            assert!(compress(how, &noise).is_none(), "noise does not become smaller");
            let (codec, packed) = compress(how, &text).unwrap();
            assert_eq!(decompress(codec, &packed, 16).unwrap(), text);
            assert!(decompress(codec, &packed, 15).is_err());
            for _ in 0..2000 {
                let mut bad = packed.clone();
                let i = rng.usize(..bad.len());
                bad[i] ^= rng.u8(1..);
                if let Ok(data) = decompress(codec, &bad, 16) {
                    assert_eq!(data.len(), text.len());
                }
            }
        }
    }
}
