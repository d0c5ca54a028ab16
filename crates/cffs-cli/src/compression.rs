//! How a log disk compresses, as people write it.

use cffs_logdisk::Compression;

/// `none`, `lz4`, `zstd` or `zstd:LEVEL`.
pub fn parse_compression(text: &str) -> Result<Compression, String> {
    match text.split_once(':') {
        None if text == "none" => Ok(Compression::None),
        None if text == "lz4" => Ok(Compression::Lz4),
        None if text == "zstd" => Ok(Compression::Zstd(ZSTD_LEVEL)),
        Some(("zstd", level)) => match level.parse() {
            Ok(level @ 1..=19) => Ok(Compression::Zstd(level)),
            _ => Err(format!("'{level}' is not a level of zstd: write a number from 1 to 19")),
        },
        _ => Err(format!("'{text}' is not a compression: write none, lz4, zstd or zstd:LEVEL")),
    }
}

/// How a compression is written.
pub fn compression_name(compression: Compression) -> String {
    match compression {
        Compression::None => "none".into(),
        Compression::Lz4 => "lz4".into(),
        Compression::Zstd(level) => format!("zstd:{level}"),
    }
}

/// The level that zstd(1) takes by default.
const ZSTD_LEVEL: i32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressions() {
        assert_eq!(parse_compression("zstd"), Ok(Compression::Zstd(3)));
        assert_eq!(parse_compression("zstd:19"), Ok(Compression::Zstd(19)));
        for bad in ["zstd:0", "zstd:20", "zstd:", "gzip", "", "lz4:1", "none:1"] {
            assert!(parse_compression(bad).is_err(), "{bad}");
        }
        for name in ["none", "lz4", "zstd:7"] {
            assert_eq!(compression_name(parse_compression(name).unwrap()), name);
        }
    }
}
