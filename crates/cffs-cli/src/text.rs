//! Output: names, modes and times as text and JSON, and standard output that may go away.

use cffs::FileType;
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// A name for the terminal: what could be taken for a control sequence, and what is not UTF-8, is escaped.
pub fn printable(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
        }
        for b in chunk.invalid() {
            out.push_str(&format!("\\x{b:02x}"));
        }
    }
    out
}

/// Puts a name into a JSON object: as text, and in hexadecimal too if it is not UTF-8 and the text is only similar.
pub fn put_name(object: &mut Map<String, Value>, key: &str, name: &[u8]) {
    match std::str::from_utf8(name) {
        Ok(text) => object.insert(key.into(), json!(text)),
        Err(_) => {
            let hex: String = name.iter().map(|b| format!("{b:02x}")).collect();
            object.insert(format!("{key}_hex"), json!(hex));
            object.insert(key.into(), json!(String::from_utf8_lossy(name)))
        }
    };
}

/// The word for a type of file.
pub fn type_name(t: FileType) -> &'static str {
    match t {
        FileType::Fifo => "fifo",
        FileType::CharDevice => "character device",
        FileType::Directory => "directory",
        FileType::BlockDevice => "block device",
        FileType::Regular => "regular file",
        FileType::Symlink => "symbolic link",
        FileType::Socket => "socket",
    }
}

/// Type and permissions as ls(1) writes them.
pub fn mode_string(t: FileType, perm: u16) -> String {
    let kind = match t {
        FileType::Fifo => 'p',
        FileType::CharDevice => 'c',
        FileType::Directory => 'd',
        FileType::BlockDevice => 'b',
        FileType::Regular => '-',
        FileType::Symlink => 'l',
        FileType::Socket => 's',
    };
    let mut out = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = perm >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (bits & 1 != 0, perm & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    out
}

/// A time in the local time zone, with nanoseconds as stat(1) writes them or to the minute as ls(1) does.
pub fn time_string(ns: i64, full: bool) -> String {
    let Ok(time) = jiff::Timestamp::from_nanosecond(i128::from(ns)) else { return ns.to_string() };
    let local = time.to_zoned(jiff::tz::TimeZone::system());
    local.strftime(if full { "%Y-%m-%d %H:%M:%S.%9f %z" } else { "%Y-%m-%d %H:%M" }).to_string()
}

/// Major and minor number of a device number in the kernel's encoding.
pub fn device_numbers(rdev: u32) -> (u32, u32) {
    (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xfff00)
}

/// The kernel's 32-bit encoding of a device number; `None` if it does not fit.
pub fn encode_device(major: u32, minor: u32) -> Option<u32> {
    (major < 1 << 12 && minor < 1 << 20).then_some(minor & 0xff | major << 8 | (minor & !0xff) << 12)
}

/// Prints a JSON value and a line end on standard output.
pub fn print_json(value: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    out.flush()
}

/// The value of each digit; 16 for what is none.
const DIGITS: [u8; 256] = {
    let mut values = [16; 256];
    let mut n = 0;
    while n < 16 {
        let digit = b"0123456789abcdef"[n as usize];
        values[digit as usize] = n;
        values[digit.to_ascii_uppercase() as usize] = n;
        n += 1;
    }
    values
};

/// Bytes of hexadecimal digits. A trace comes so, megabytes in a second.
pub fn bytes_of(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let mut all = 0;
    let byte = |two: &[u8]| {
        let (high, low) = (DIGITS[usize::from(two[0])], DIGITS[usize::from(two[1])]);
        all |= high | low;
        high << 4 | low & 15
    };
    let bytes = text.as_bytes().chunks_exact(2).map(byte).collect();
    (all < 16).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_drive_the_terminal() {
        assert_eq!(printable("straße".as_bytes()), "straße");
        assert_eq!(printable(b"a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(printable(b"a\xff"), "a\\xff");
        let mut object = Map::new();
        put_name(&mut object, "name", b"a\xff");
        put_name(&mut object, "plain", b"a");
        assert_eq!(Value::Object(object), json!({"name": "a\u{fffd}", "name_hex": "61ff", "plain": "a"}));
    }

    #[test]
    fn modes_are_those_of_ls() {
        assert_eq!(mode_string(FileType::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_string(FileType::Regular, 0o4644), "-rwSr--r--");
        assert_eq!(mode_string(FileType::Regular, 0o2755), "-rwxr-sr-x");
        assert_eq!(mode_string(FileType::Symlink, 0o777), "lrwxrwxrwx");
    }

    #[test]
    fn device_numbers_survive() {
        for (major, minor) in [(8, 1), (259, 70000), (4095, 0xfffff), (0, 0)] {
            assert_eq!(device_numbers(encode_device(major, minor).unwrap()), (major, minor));
        }
        assert_eq!(encode_device(4096, 0), None);
        assert_eq!(encode_device(0, 1 << 20), None);
        assert_eq!(encode_device(1, 3), Some(0x103));
    }

    #[test]
    fn times_have_nanoseconds() {
        let text = time_string(1_000_000_001, true);
        assert!(text.contains(":01.000000001 "), "{text}");
        assert!(time_string(i64::MIN, true).starts_with("1677-"), "the oldest time there is");
    }

    #[test]
    fn digits_become_bytes() {
        assert_eq!(bytes_of("00ff1A"), Some(vec![0, 255, 26]));
        assert_eq!((bytes_of("0"), bytes_of("0g"), bytes_of("é")), (None, None, None));
    }
}
