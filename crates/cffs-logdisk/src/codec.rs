//! Little-endian fields in byte slices. Reading past the end is an error, never a panic.

use std::io;

/// An error that says what on the store is not as it must be.
pub(crate) fn corrupt(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// Counters of a store stay below this, so that adding to them never overflows.
pub(crate) const COUNTER_MAX: u64 = 1 << 62;

/// A counter that was read.
pub(crate) fn counter(n: u64) -> io::Result<u64> {
    if n < COUNTER_MAX { Ok(n) } else { Err(corrupt(format!("a counter has the impossible value {n}"))) }
}

#[cfg(test)]
std::thread_local! {
    /// All checksums of this thread are 0, so that changed bytes pass for good ones.
    pub(crate) static WITHOUT_CHECKSUMS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// CRC32C (Castagnoli).
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    #[cfg(test)]
    if WITHOUT_CHECKSUMS.get() {
        return 0;
    }
    crc_fast::crc32_iscsi(bytes)
}

/// CRC-64 (NVMe), for long pieces.
pub(crate) fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::crc64_nvme(bytes)
}

/// Takes fields from the front of a slice.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Fields { rest }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn bytes(&mut self, n: usize) -> io::Result<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(n).ok_or_else(|| corrupt("a structure ends too early"))?;
        self.rest = tail;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (head, tail) = self.rest.split_first_chunk::<N>().ok_or_else(|| corrupt("a structure ends too early"))?;
        self.rest = tail;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> io::Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> io::Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> io::Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A number of [`PutFields::put_varint`].
    pub(crate) fn varint(&mut self) -> io::Result<u64> {
        let mut n = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits || byte == 0 && shift > 0 {
                break;
            }
            n |= bits << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err(corrupt("a number of variable length is too long"))
    }

    pub(crate) fn uuid(&mut self) -> io::Result<[u8; 16]> {
        self.array()
    }

    /// A count of things that take at least `each` bytes: more than the slice has room for is an error, so a count
    /// never makes anybody reserve memory that the bytes do not back.
    pub(crate) fn count(&mut self, each: usize) -> io::Result<usize> {
        let n = self.u32()? as usize;
        if n.checked_mul(each).is_none_or(|need| need > self.rest.len()) {
            return Err(corrupt(format!("a count of {n} is more than the structure has room for")));
        }
        Ok(n)
    }
}

/// Appends fields.
pub(crate) trait PutFields {
    fn put_u8(&mut self, v: u8);
    fn put_u16(&mut self, v: u16);
    fn put_u32(&mut self, v: u32);
    fn put_u64(&mut self, v: u64);
    /// Seven bits in each byte, the lowest first; all bytes but the last have the highest bit.
    fn put_varint(&mut self, v: u64);
}

/// Bytes of a number of variable length.
pub(crate) fn varint_bytes(v: u64) -> usize {
    (v | 1).ilog2() as usize / 7 + 1
}

impl PutFields for Vec<u8> {
    fn put_u8(&mut self, v: u8) {
        self.push(v);
    }
    fn put_u16(&mut self, v: u16) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_u32(&mut self, v: u32) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_u64(&mut self, v: u64) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_varint(&mut self, mut v: u64) {
        while v >= 0x80 {
            self.push(v as u8 | 0x80);
            v >>= 7;
        }
        self.push(v as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_variable_length_have_one_form() {
        let ends = (0..64).flat_map(|shift| [(1 << shift) - 1, 1 << shift, (1 << shift) + 1]);
        for n in ends.chain([u64::MAX]) {
            let mut bytes = Vec::new();
            bytes.put_varint(n);
            assert_eq!(bytes.len(), varint_bytes(n), "{n}");
            let mut fields = Fields::new(&bytes);
            assert_eq!(fields.varint().unwrap(), n);
            assert!(fields.u8().is_err(), "nothing is left");
            let (last, short) = bytes.split_last_mut().unwrap();
            assert!(Fields::new(short).varint().is_err());
            *last |= 0x80;
            bytes.push(0);
            assert!(Fields::new(&bytes).varint().is_err(), "{n} in a longer form");
        }
        for long in [[0xff; 11].as_slice(), &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]] {
            assert!(Fields::new(long).varint().is_err());
        }
    }
}
