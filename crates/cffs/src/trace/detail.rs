//! What the replay of an operation needs beside its arguments. The bytes are in `docs/format-trace.md`.

use super::varint::{put, take};

/// Most numbers and names of an operation.
const NUMBERS_MAX: usize = 12;
const NAMES_MAX: usize = 2;
/// Longest name that is kept, in bytes. A longer one is no name.
const NAME_MAX: usize = 255;
/// Most bytes that it takes in a record.
pub(super) const DETAIL_MAX: usize = 10 * (NUMBERS_MAX + 4) + NAMES_MAX * (NAME_MAX + 2);

/// What the replay of an operation needs beside its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// Why it failed, as errno(3); 0 if it did not.
    pub errno: u64,
    /// The inode that it found or made; 0: none.
    pub inode: u64,
    pub(super) numbers: Vec<u64>,
    pub(super) names: Vec<Vec<u8>>,
}

impl Detail {
    /// Adds a number. There is room for 12.
    pub fn add_number(&mut self, n: u64) {
        if self.numbers.len() < NUMBERS_MAX {
            self.numbers.push(n);
        }
    }

    /// Adds a name, or its first 255 bytes. There is room for two.
    pub fn add_name(&mut self, name: &[u8]) {
        if self.names.len() < NAMES_MAX {
            self.names.push(name[..name.len().min(NAME_MAX)].to_vec());
        }
    }

    /// A number; 0 if there are fewer.
    pub fn number(&self, n: usize) -> u64 {
        self.numbers.get(n).copied().unwrap_or(0)
    }

    /// A name; empty if there are fewer.
    pub fn name(&self, n: usize) -> &[u8] {
        self.names.get(n).map_or(&[], Vec::as_slice)
    }

    /// The names, to replace them by others.
    pub fn names_mut(&mut self) -> impl Iterator<Item = &mut Vec<u8>> {
        self.names.iter_mut()
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put(out, self.errno);
        put(out, self.inode);
        put(out, self.numbers.len() as u64);
        self.numbers.iter().for_each(|n| put(out, *n));
        put(out, self.names.len() as u64);
        for name in &self.names {
            put(out, name.len() as u64);
            out.extend_from_slice(name);
        }
    }

    pub(super) fn decode(b: &mut &[u8]) -> Option<Detail> {
        let mut detail = Detail { errno: take(b)?, inode: take(b)?, ..Detail::default() };
        // A later version may have more of both.
        for _ in 0..take(b)? {
            detail.add_number(take(b)?);
        }
        for _ in 0..take(b)? {
            let len = usize::try_from(take(b)?).ok()?;
            let (name, rest) = b.split_at_checked(len)?;
            detail.add_name(name);
            *b = rest;
        }
        Some(detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_and_is_bounded() {
        let mut d = Detail { errno: 2, inode: 1 << 40, ..Detail::default() };
        (0..20).for_each(|n| d.add_number(u64::MAX - n));
        (0..3).for_each(|n| d.add_name(&[b'a' + n; 300]));
        assert_eq!((d.number(11), d.number(12), d.name(1).len(), d.name(2).len()), (u64::MAX - 11, 0, 255, 0));
        let mut bytes = Vec::new();
        d.encode(&mut bytes);
        assert!(bytes.len() <= DETAIL_MAX, "{}", bytes.len());
        assert_eq!(Detail::decode(&mut &bytes[..]), Some(d));
        for len in 0..bytes.len() {
            assert_eq!(Detail::decode(&mut &bytes[..len]), None);
        }
    }
}
