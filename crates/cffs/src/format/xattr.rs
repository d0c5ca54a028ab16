//! Extended attributes: a list of entries, at the end of the inode's inline area and in a chain of blocks.
//!
//! ```text
//! entry: u32 = namespace (bits 0-3) | bytes of the name behind its prefix (bits 4-11) | bytes of the value (bits 12-28)
//!        the name without its prefix, the value, zeros up to a multiple of four bytes
//! ```
//!
//! The list in the inode ends with its area or with a zero word. What does not fit there stands in the chain: the
//! blocks' payloads, one after the other, are one list without an end mark. An attribute is in one of the two places.

use super::{BlockAddr, Corrupt, META_HEADER_SIZE, META_SPECIFIC, corrupt, get_u32, get_u64, put_u32, put_u64};

/// Offset in a block of the next block of the chain (`u64`), 0 at its end.
pub const XATTR_NEXT: usize = META_SPECIFIC;
/// Offset in a block of its number within the chain (`u32`), from 0.
pub const XATTR_INDEX: usize = META_SPECIFIC + 8;
/// Offset in a block of the bytes of the list in it (`u32`). All blocks but the last are full.
pub const XATTR_USED: usize = META_SPECIFIC + 12;

/// Longest name in bytes, prefix included (as of the kernel).
pub const XATTR_NAME_MAX: usize = 255;
/// Longest value in bytes (as of the kernel).
pub const XATTR_VALUE_MAX: usize = 65_536;
/// Most bytes of all names of a file, each with its prefix and a zero byte (as of the kernel's listing).
pub const XATTR_LIST_MAX: usize = 65_536;
/// Most bytes that the entries of a file take together.
pub const XATTR_TOTAL_MAX: usize = 128 << 10;

/// Name of the attribute that says what a file is placed with, in the namespace `user.`.
pub const COLOCATE: &[u8] = b"cffs.colocate";
/// Name of the attribute of the root directory with the order in which programs were seen to read files, in the namespace
/// `trusted.`. It is in no listing.
pub const LEARNED: &[u8] = b"cffs.learned";

const ENTRY_HEADER: usize = 4;

/// Namespace of an attribute: what its name begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Namespace {
    /// `user.`: whoever may read and write the file.
    User = 1,
    /// `trusted.`: the superuser alone.
    Trusted = 2,
    /// `security.`: security modules, file capabilities.
    Security = 3,
    /// `system.posix_acl_access`: the access control list. No name follows.
    AclAccess = 4,
    /// `system.posix_acl_default`: what new files in a directory get. No name follows.
    AclDefault = 5,
}

impl Namespace {
    /// All of them.
    pub const ALL: [Namespace; 5] =
        [Namespace::User, Namespace::Trusted, Namespace::Security, Namespace::AclAccess, Namespace::AclDefault];

    /// What names of this kind begin with.
    pub fn prefix(self) -> &'static [u8] {
        match self {
            Namespace::User => b"user.",
            Namespace::Trusted => b"trusted.",
            Namespace::Security => b"security.",
            Namespace::AclAccess => b"system.posix_acl_access",
            Namespace::AclDefault => b"system.posix_acl_default",
        }
    }

    /// Whether the prefix is the whole name.
    pub fn is_acl(self) -> bool {
        matches!(self, Namespace::AclAccess | Namespace::AclDefault)
    }

    fn from_bits(bits: u32) -> Option<Namespace> {
        Self::ALL.into_iter().find(|n| *n as u32 == bits)
    }

    /// Splits a full name; `None` if it is in none of the namespaces.
    pub fn split(name: &[u8]) -> Option<(Namespace, &[u8])> {
        Self::ALL.into_iter().find_map(|n| {
            let rest = name.strip_prefix(n.prefix())?;
            (n.is_acl() == rest.is_empty() || !n.is_acl()).then_some((n, rest))
        })
    }
}

/// An attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// What its name begins with.
    pub namespace: Namespace,
    /// The rest of its name; empty for an access control list.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

impl Xattr {
    /// The whole name.
    pub fn full_name(&self) -> Vec<u8> {
        [self.namespace.prefix(), &self.name].concat()
    }

    /// Whether this is its name.
    pub fn is(&self, namespace: Namespace, name: &[u8]) -> bool {
        self.namespace == namespace && self.name == name
    }

    /// Bytes of its entry.
    pub fn encoded_len(&self) -> usize {
        (ENTRY_HEADER + self.name.len() + self.value.len()).next_multiple_of(4)
    }

    /// Appends its entry.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let end = out.len() + self.encoded_len();
        let word = self.namespace as u32 | (self.name.len() as u32) << 4 | (self.value.len() as u32) << 12;
        out.extend_from_slice(&word.to_le_bytes());
        out.extend_from_slice(&self.name);
        out.extend_from_slice(&self.value);
        out.resize(end, 0);
    }
}

/// Decodes a list and appends what is in it to `out`, where no name stands twice then. `padded`: the list may end with
/// zeros (in an inode).
pub fn decode_list(list: &[u8], padded: bool, out: &mut Vec<Xattr>) -> Result<(), Corrupt> {
    decode_entries(list, padded, out)?;
    let mut names: Vec<_> = out.iter().map(|x| (x.namespace, &x.name)).collect();
    names.sort_unstable();
    match names.windows(2).find(|w| w[0] == w[1]) {
        Some(w) => {
            let name = [w[0].0.prefix(), w[0].1].concat();
            corrupt(format!("extended attribute {} stands there twice", String::from_utf8_lossy(&name)))
        }
        None => Ok(()),
    }
}

fn decode_entries(list: &[u8], padded: bool, out: &mut Vec<Xattr>) -> Result<(), Corrupt> {
    let mut at = 0;
    while at < list.len() {
        let bad = |what: &str| corrupt(format!("extended attribute at byte {at}: {what}"));
        if list.len() - at < ENTRY_HEADER {
            return bad("cut off");
        }
        let word = get_u32(list, at);
        if word == 0 && padded {
            return if list[at..].iter().all(|b| *b == 0) { Ok(()) } else { bad("bytes behind the end of the list") };
        }
        let Some(namespace) = Namespace::from_bits(word & 0xf) else {
            return bad("unknown namespace");
        };
        let (name_len, value_len) = ((word >> 4 & 0xff) as usize, (word >> 12 & 0x1_ffff) as usize);
        if word >> 29 != 0 || value_len > XATTR_VALUE_MAX {
            return bad("value too long");
        }
        if namespace.is_acl() != (name_len == 0) || namespace.prefix().len() + name_len > XATTR_NAME_MAX {
            return bad("impossible length of a name");
        }
        let (name_at, value_at) = (at + ENTRY_HEADER, at + ENTRY_HEADER + name_len);
        let end = value_at + value_len;
        let next = end.next_multiple_of(4);
        if next > list.len() {
            return bad("reaches behind the end of its list");
        }
        if list[name_at..value_at].contains(&0) {
            return bad("zero byte in its name");
        }
        if list[end..next].iter().any(|b| *b != 0) {
            return bad("padding is not zero");
        }
        let x = Xattr { namespace, name: list[name_at..value_at].to_vec(), value: list[value_at..end].to_vec() };
        out.push(x);
        at = next;
    }
    Ok(())
}

/// Bytes of the list that a block holds.
pub fn payload(block_size: usize) -> usize {
    block_size - META_HEADER_SIZE
}

/// Most blocks of a chain.
pub fn chain_max(block_size: usize) -> usize {
    XATTR_TOTAL_MAX.div_ceil(payload(block_size))
}

/// What a block of the chain says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainBlock {
    /// The next block, 0 at the end.
    pub next: BlockAddr,
    /// Number within the chain.
    pub index: u32,
    /// Bytes of the list in it.
    pub used: usize,
}

impl ChainBlock {
    /// Reads the fields of a block whose identity was checked.
    pub fn decode(block: &[u8]) -> Result<ChainBlock, Corrupt> {
        let c = ChainBlock {
            next: get_u64(block, XATTR_NEXT),
            index: get_u32(block, XATTR_INDEX),
            used: get_u32(block, XATTR_USED) as usize,
        };
        let room = payload(block.len());
        if c.used == 0 || c.used > room || (c.next != 0 && c.used != room) {
            return corrupt(format!("extended attribute block {}: {} bytes in use", get_u64(block, 16), c.used));
        }
        if c.index as usize >= chain_max(block.len()) {
            return corrupt(format!("extended attribute block {}: number {}", get_u64(block, 16), c.index));
        }
        Ok(c)
    }

    /// The fields as they stand in a block, from [`XATTR_NEXT`] on.
    pub fn encode(&self) -> [u8; 16] {
        let mut b = [0; 16];
        put_u64(&mut b, 0, self.next);
        put_u32(&mut b, 8, self.index);
        put_u32(&mut b, 12, self.used as u32);
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn x(namespace: Namespace, name: &str, value: &[u8]) -> Xattr {
        Xattr { namespace, name: name.as_bytes().to_vec(), value: value.to_vec() }
    }

    #[test]
    fn names_are_split_at_their_namespace() {
        assert_eq!(Namespace::split(b"user.a"), Some((Namespace::User, &b"a"[..])));
        assert_eq!(Namespace::split(b"user."), Some((Namespace::User, &b""[..])));
        assert_eq!(Namespace::split(b"system.posix_acl_access"), Some((Namespace::AclAccess, &b""[..])));
        assert_eq!(Namespace::split(b"system.posix_acl_accessories"), None);
        assert_eq!(Namespace::split(b"system.other"), None);
        assert_eq!(Namespace::split(b"user"), None);
    }

    #[test]
    fn an_acl_with_one_named_user_takes_48_bytes() {
        assert_eq!(x(Namespace::AclAccess, "", &[1; 44]).encoded_len(), 48);
    }

    #[test]
    fn damage_of_a_list_is_seen() {
        let mut list = Vec::new();
        x(Namespace::User, "name", b"value").encode(&mut list);
        x(Namespace::Security, "capability", &[7; 20]).encode(&mut list);
        let ok = |l: &[u8], padded| decode_list(l, padded, &mut Vec::new());
        assert_eq!(ok(&list, false), Ok(()));
        let twice = [&list[..], &list[..]].concat();
        assert!(ok(&twice, false).is_err(), "a name twice");
        let padded = [&list[..], &[0; 8]].concat();
        assert_eq!((ok(&padded, true), ok(&padded, false).is_err()), (Ok(()), true));
        for cut in 1..list.len() {
            assert!(ok(&list[..cut], false).is_err() || cut == 16, "cut at {cut}");
        }
        assert!(ok(&x_bytes(Namespace::User, "", b"v"), false).is_err(), "no name");
        assert!(ok(&x_bytes(Namespace::AclAccess, "n", b"v"), false).is_err(), "a name behind an ACL");
        assert!(ok(&x_bytes(Namespace::User, "a\0", b"v"), false).is_err());
        assert!(ok(&x_bytes(Namespace::User, &"a".repeat(251), b""), false).is_err(), "name of 256 bytes");
        let mut odd = x_bytes(Namespace::User, "abc", b"vw");
        *odd.last_mut().unwrap() = 1;
        assert!(ok(&odd, false).is_err(), "padding");
    }

    fn x_bytes(n: Namespace, name: &str, value: &[u8]) -> Vec<u8> {
        let mut b = Vec::new();
        x(n, name, value).encode(&mut b);
        b
    }

    proptest! {
        #[test]
        fn lists_come_back(values in proptest::collection::vec((0usize..5, proptest::collection::vec(any::<u8>(), 0..300)), 0..20)) {
            let all: Vec<Xattr> = values.iter().enumerate().filter_map(|(i, (n, v))| {
                let n = Namespace::ALL[*n];
                let fresh = !values[..i].iter().any(|(m, _)| Namespace::ALL[*m] == n);
                let name = if n.is_acl() { String::new() } else { format!("n{i}") };
                (!n.is_acl() || fresh).then(|| x(n, &name, v))
            }).collect();
            let mut list = Vec::new();
            all.iter().for_each(|x| x.encode(&mut list));
            prop_assert_eq!(list.len(), all.iter().map(Xattr::encoded_len).sum::<usize>());
            let mut back = Vec::new();
            decode_list(&list, false, &mut back).unwrap();
            prop_assert_eq!(back, all);
        }

        #[test]
        fn any_bytes_decode_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), padded: bool) {
            let _ = decode_list(&bytes, padded, &mut Vec::new());
        }
    }
}
