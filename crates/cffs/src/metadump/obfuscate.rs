//! Obfuscation: replaces each name by another one of the same length, under a key.
//!
//! The map is one-to-one, so what was different stays different, and the same name becomes the same everywhere: in every
//! directory, and as a step of a symbolic link's target. Letters, digits and `_` become such, bytes above ASCII become such,
//! and the rest, like dots, stays what it is: so the result can stand in a directory where the original could.

use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// Passes over the bytes. After the second one every byte depends on every other.
const PASSES: u8 = 4;

/// Letters, digits and `_`, in the order in which they are numbered.
const WORD: &[u8; 63] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";

/// The key of the names of one copy.
#[derive(Clone, Debug)]
pub struct Obfuscator {
    key: [u64; 2],
}

/// Number within its class, and size of the class; `None` for what stays.
fn place(b: u8) -> Option<(u8, u8)> {
    match b {
        b'a'..=b'z' => Some((b - b'a', 63)),
        b'A'..=b'Z' => Some((b - b'A' + 26, 63)),
        b'0'..=b'9' => Some((b - b'0' + 52, 63)),
        b'_' => Some((62, 63)),
        0x80.. => Some((b - 0x80, 128)),
        _ => None,
    }
}

fn byte(n: u8, class: u8) -> u8 {
    if class == 128 { n + 0x80 } else { WORD[n as usize] }
}

impl Obfuscator {
    /// A obfuscator with this key. Who knows the key can find the names again.
    pub fn new(key: [u64; 2]) -> Obfuscator {
        Obfuscator { key }
    }

    /// A obfuscator whose key is made from any bytes.
    pub fn from_bytes(bytes: &[u8]) -> Obfuscator {
        let word = |n: u64| {
            let mut h = SipHasher24::new_with_keys(n, !n);
            h.write(bytes);
            h.finish()
        };
        Obfuscator::new([word(1), word(2)])
    }

    fn hash(&self, use_for: u8, words: &[u64], bytes: &[u8]) -> u64 {
        let mut h = SipHasher24::new_with_keys(self.key[0], self.key[1]);
        h.write_u8(use_for);
        for w in words {
            h.write_u64(*w);
        }
        h.write(bytes);
        h.finish()
    }

    /// Obfuscates a name in place.
    pub fn name(&self, name: &mut [u8]) {
        let mut others = name.to_vec();
        for pass in 0..PASSES {
            for i in 0..name.len() {
                let Some((n, class)) = place(name[i]) else { continue };
                // Of the byte itself only its class goes in, so the step can be undone: it is one-to-one, and so is all of it.
                others[i] = class;
                let shift = self.hash(0, &[u64::from(pass), i as u64], &others) % u64::from(class);
                name[i] = byte(((u64::from(n) + shift) % u64::from(class)) as u8, class);
                others[i] = name[i];
            }
        }
    }

    /// Obfuscates the steps of a symbolic link's target, each as the name that it is.
    pub fn target(&self, target: &mut [u8]) {
        target.split_mut(|b| *b == b'/').for_each(|step| self.name(step));
    }

    /// Replaces a value by others of the same length; the same value by the same.
    pub fn value(&self, value: &mut [u8]) {
        let seed = self.hash(1, &[value.len() as u64], value);
        for (i, piece) in value.chunks_mut(8).enumerate() {
            let word = self.hash(2, &[seed, i as u64], &[]).to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::dirblock::check_name;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn obfuscated(s: &Obfuscator, name: &[u8]) -> Vec<u8> {
        let mut n = name.to_vec();
        s.name(&mut n);
        n
    }

    #[test]
    fn different_names_stay_different() {
        let s = Obfuscator::new([1, 2]);
        let one: HashSet<Vec<u8>> = (0..=255u8).map(|b| obfuscated(&s, &[b])).collect();
        assert_eq!(one.len(), 256);
        let two: HashSet<Vec<u8>> = (0..=0xffffu32).map(|b| obfuscated(&s, &[b as u8, (b >> 8) as u8])).collect();
        assert_eq!(two.len(), 65536);
        assert_ne!(obfuscated(&s, b"letter.txt"), obfuscated(&Obfuscator::new([1, 3]), b"letter.txt"));
        assert_eq!(obfuscated(&s, b".."), b"..");
        let mut target = b"/usr/../letter.txt".to_vec();
        s.target(&mut target);
        assert!(target.ends_with(&obfuscated(&s, b"letter.txt")) && target.starts_with(b"/"), "{target:?}");
    }

    proptest! {
        #[test]
        fn what_can_be_a_name_stays_one(name in proptest::collection::vec(any::<u8>(), 1..40), key: [u64; 2]) {
            let s = Obfuscator::new(key);
            let new = obfuscated(&s, &name);
            prop_assert_eq!(new.len(), name.len());
            prop_assert_eq!(check_name(&name).is_ok(), check_name(&new).is_ok());
            prop_assert_eq!(&new, &obfuscated(&s, &name));
        }

        #[test]
        fn a_byte_changes_them_all(name in proptest::collection::vec(b'a'..=b'z', 6..20), at: prop::sample::Index) {
            // Not by a shift of each byte for itself: two names that differ in one byte have little in common.
            let s = Obfuscator::new([7, 8]);
            let mut other = name.clone();
            let i = at.index(name.len());
            other[i] = if other[i] == b'z' { b'a' } else { other[i] + 1 };
            let (a, b) = (obfuscated(&s, &name), obfuscated(&s, &other));
            prop_assert_ne!(&a, &b);
            let same = a.iter().zip(&b).filter(|(x, y)| x == y).count();
            prop_assert!(same < name.len() - 1, "{:?} {:?}", a, b);
        }
    }
}
