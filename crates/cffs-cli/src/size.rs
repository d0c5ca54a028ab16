//! Sizes on the command line and in output.

/// Parses a size: a number, with a suffix K, M, G, T, P or E for powers of 1024 (`4G`, `256KiB`, `1.5M`).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is not a size: write a number with an optional suffix K, M, G, T, P or E, as in 4G");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        "P" | "PB" | "PIB" => 50,
        "E" | "EB" | "EIB" => 60,
        _ => return Err(bad()),
    };
    let too_large = || format!("'{text}' is too large: at most 8E less one byte");
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) || (shift == 0 && digits.contains('.')) {
        return Err(bad());
    }
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let mut bytes = u128::from(whole) << shift;
    if !fraction.is_empty() {
        // Exact for what people write (1.5G); more digits than these are below one byte of an exabyte.
        let fraction = &fraction[..fraction.len().min(18)];
        let value: u128 = fraction.parse().map_err(|_| bad())?;
        bytes += (value << shift) / 10u128.pow(fraction.len() as u32);
    }
    match u64::try_from(bytes) {
        Ok(bytes) if bytes <= i64::MAX as u64 => Ok(bytes),
        _ => Err(too_large()),
    }
}

/// Parses a size that fits 32 bits (blocks, fragments, groups).
pub fn parse_size_u32(text: &str) -> Result<u32, String> {
    u32::try_from(parse_size(text)?).map_err(|_| format!("'{text}' is too large here"))
}

/// Writes a size with a suffix of powers of 1024 and at most three digits before it: `4 GiB`, `1.5 KiB`, `100 B`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("4096B", 4096),
            ("4k", 4096),
            ("256K", 256 << 10),
            ("256KiB", 256 << 10),
            ("1.5M", 3 << 19),
            ("4G", 4 << 30),
            ("2T", 2 << 40),
            ("1P", 1 << 50),
            ("7E", 7 << 60),
            ("9223372036854775807", i64::MAX as u64),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "+1", "4X", "4 G", "1.5", "1..5K", ".5K", "0x10", "ß", "8E", "99999999999999999999"]
        {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert!(parse_size_u32("4G").is_err());
        assert_eq!(parse_size_u32("64K"), Ok(65536));
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(4 << 30), "4 GiB");
        assert_eq!(human(1 << 60), "1 EiB");
    }
}
