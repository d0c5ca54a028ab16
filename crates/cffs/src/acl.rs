//! POSIX access control lists (POSIX 1003.1e draft 17; acl(5)): decoding, checking, and their relation to permission
//! bits.
//!
//! A list is stored in the form of the kernel's `system.posix_acl_*` attributes: a `u32` with the version, 2, then for
//! each entry `u16` tag, `u16` permissions, `u32` user or group. The kernel enforces the lists.

use crate::error::{Error, Result};
use crate::format::{get_u16, get_u32};

const VERSION: u32 = 2;
const HEADER: usize = 4;
const ENTRY: usize = 8;
/// Id of an entry that is not for a named user or group.
const NO_ID: u32 = u32::MAX;

/// To whom an entry applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
enum Tag {
    Owner = 1,
    User = 2,
    OwningGroup = 4,
    Group = 8,
    Mask = 0x10,
    Other = 0x20,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    perm: u16,
    id: u32,
}

/// A valid list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// Decodes and checks the value of an attribute. `None` for a list without entries, which means no list.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for another version, [`Error::Invalid`] for a list that acl_valid(3) would refuse:
    /// entries missing, twice, out of order, with impossible permissions, or no mask where one is needed.
    pub fn from_xattr(value: &[u8]) -> Result<Option<Acl>> {
        if value.len() < HEADER {
            return Error::invalid("access control list: cut off");
        }
        if get_u32(value, 0) != VERSION {
            return Err(Error::Unsupported);
        }
        let body = &value[HEADER..];
        if !body.len().is_multiple_of(ENTRY) {
            return Error::invalid("access control list: cut off within an entry");
        }
        let entry = |e: &[u8]| {
            let tag = match get_u16(e, 0) {
                1 => Tag::Owner,
                2 => Tag::User,
                4 => Tag::OwningGroup,
                8 => Tag::Group,
                0x10 => Tag::Mask,
                0x20 => Tag::Other,
                t => return Error::invalid(format!("access control list: unknown tag {t:#x}")),
            };
            let perm = get_u16(e, 2);
            if perm > 7 {
                return Error::invalid(format!("access control list: permissions {perm:#o}"));
            }
            let named = matches!(tag, Tag::User | Tag::Group);
            let id = if named { get_u32(e, 4) } else { NO_ID };
            if named && id == NO_ID {
                return Error::invalid("access control list: an entry for a user or group without its number");
            }
            Ok(Entry { tag, perm, id })
        };
        let entries = body.chunks_exact(ENTRY).map(entry).collect::<Result<Vec<Entry>>>()?;
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Acl { entries };
        acl.check()?;
        Ok(Some(acl))
    }

    fn check(&self) -> Result<()> {
        let wrong = |what: &str| Error::invalid(format!("access control list: {what}"));
        let ordered = self.entries.windows(2).all(|w| {
            let named = matches!(w[0].tag, Tag::User | Tag::Group);
            (w[0].tag as u16) < w[1].tag as u16 || named && w[0].tag == w[1].tag
        });
        if !ordered {
            return wrong("entries out of order, or twice");
        }
        let has = |tag: Tag| self.entries.iter().any(|e| e.tag == tag);
        if ![Tag::Owner, Tag::OwningGroup, Tag::Other].into_iter().all(has) {
            return wrong("the owner's, the group's or the others' entry is missing");
        }
        if (has(Tag::User) || has(Tag::Group)) && !has(Tag::Mask) {
            return wrong("named users or groups without a mask");
        }
        Ok(())
    }

    /// Encodes the list as the value of an attribute.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for e in &self.entries {
            out.extend_from_slice(&(e.tag as u16).to_le_bytes());
            out.extend_from_slice(&e.perm.to_le_bytes());
            out.extend_from_slice(&e.id.to_le_bytes());
        }
        out
    }

    fn perm(&mut self, tag: Tag) -> Option<&mut u16> {
        self.entries.iter_mut().find(|e| e.tag == tag).map(|e| &mut e.perm)
    }

    /// The entry that corresponds to the group bits of the mode: the mask if there is one.
    fn group_class(&self) -> Tag {
        if self.entries.iter().any(|e| e.tag == Tag::Mask) { Tag::Mask } else { Tag::OwningGroup }
    }

    /// Whether permission bits can express the list.
    pub fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// The nine permission bits that correspond to the list.
    pub fn mode(&self) -> u16 {
        let group = self.group_class();
        let bits = |tag| self.entries.iter().find(|e| e.tag == tag).map_or(0, |e| e.perm);
        bits(Tag::Owner) << 6 | bits(group) << 3 | bits(Tag::Other)
    }

    /// Applies chmod: owner, mask (or group) and others get the bits of the mode.
    pub fn chmod(&mut self, mode: u16) {
        let group = self.group_class();
        for (tag, shift) in [(Tag::Owner, 6), (group, 3), (Tag::Other, 0)] {
            if let Some(perm) = self.perm(tag) {
                *perm = mode >> shift & 7;
            }
        }
    }

    /// The access list of a new file in a directory with this default list, and the nine permission bits of the file:
    /// those of `mode` that the list allows. `None` if the bits express the list.
    pub fn inherit(&self, mode: u16) -> (Option<Acl>, u16) {
        let mut acl = self.clone();
        let group = acl.group_class();
        for (tag, shift) in [(Tag::Owner, 6), (group, 3), (Tag::Other, 0)] {
            if let Some(perm) = acl.perm(tag) {
                *perm &= mode >> shift & 7;
            }
        }
        let bits = acl.mode();
        ((!acl.is_minimal()).then_some(acl), bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xattr(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut b = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            b.extend_from_slice(&tag.to_le_bytes());
            b.extend_from_slice(&perm.to_le_bytes());
            b.extend_from_slice(&id.to_le_bytes());
        }
        b
    }

    const NONE: u32 = u32::MAX;

    fn named() -> Vec<u8> {
        xattr(&[(1, 7, NONE), (2, 6, 1000), (4, 5, NONE), (8, 4, 50), (0x10, 6, NONE), (0x20, 1, NONE)])
    }

    #[test]
    fn lists_are_read_checked_and_written() {
        let acl = Acl::from_xattr(&named()).unwrap().unwrap();
        assert_eq!((acl.to_xattr(), acl.is_minimal(), acl.mode()), (named(), false, 0o761));
        let minimal = Acl::from_xattr(&xattr(&[(1, 6, NONE), (4, 4, 7), (0x20, 0, NONE)])).unwrap().unwrap();
        assert_eq!((minimal.is_minimal(), minimal.mode()), (true, 0o640));
        assert!(Acl::from_xattr(&xattr(&[])).unwrap().is_none());
    }

    #[test]
    fn impossible_lists_are_refused() {
        let bad: &[&[(u16, u16, u32)]] = &[
            &[(1, 7, NONE), (4, 5, NONE)],
            &[(4, 5, NONE), (1, 7, NONE), (0x20, 0, NONE)],
            &[(1, 7, NONE), (1, 7, NONE), (4, 5, NONE), (0x20, 0, NONE)],
            &[(1, 8, NONE), (4, 5, NONE), (0x20, 0, NONE)],
            &[(1, 7, NONE), (2, 7, 1000), (4, 5, NONE), (0x20, 0, NONE)],
            &[(1, 7, NONE), (2, 7, NONE), (4, 5, NONE), (0x10, 7, NONE), (0x20, 0, NONE)],
            &[(1, 7, NONE), (3, 5, NONE), (4, 5, NONE), (0x20, 0, NONE)],
        ];
        for list in bad {
            assert!(matches!(Acl::from_xattr(&xattr(list)), Err(Error::Invalid(_))), "{list:?}");
        }
        for cut in [0, 3, 5, 11] {
            assert!(matches!(Acl::from_xattr(&named()[..cut]), Err(Error::Invalid(_))), "cut at {cut}");
        }
        let mut other = named();
        other[0] = 1;
        assert!(matches!(Acl::from_xattr(&other), Err(Error::Unsupported)));
    }

    #[test]
    fn chmod_sets_the_mask() {
        let mut acl = Acl::from_xattr(&named()).unwrap().unwrap();
        acl.chmod(0o640);
        let want = xattr(&[(1, 6, NONE), (2, 6, 1000), (4, 5, NONE), (8, 4, 50), (0x10, 4, NONE), (0x20, 0, NONE)]);
        assert_eq!((acl.to_xattr(), acl.mode()), (want, 0o640));
    }

    #[test]
    fn a_new_file_gets_what_list_and_mode_both_allow() {
        let acl = Acl::from_xattr(&named()).unwrap().unwrap();
        let (access, mode) = acl.inherit(0o666);
        let want = xattr(&[(1, 6, NONE), (2, 6, 1000), (4, 5, NONE), (8, 4, 50), (0x10, 6, NONE), (0x20, 0, NONE)]);
        assert_eq!((access.unwrap().to_xattr(), mode), (want, 0o660));
        let minimal = Acl::from_xattr(&xattr(&[(1, 7, NONE), (4, 5, NONE), (0x20, 0, NONE)])).unwrap().unwrap();
        assert_eq!(minimal.inherit(0o666), (None, 0o640));
    }
}
