//! POSIX access control lists in the model: what they have to do with permission bits and new files (acl(5)).

use super::{Errno, FLAG_APPEND, FLAG_IMMUTABLE, Id, Model, Result};
use cffs::FileType;

/// Names of the attributes that hold lists.
pub const ACCESS: &str = "system.posix_acl_access";
/// See [`ACCESS`].
pub const DEFAULT: &str = "system.posix_acl_default";

/// An entry: tag, permissions, user or group.
type Entry = (u16, u16, u32);

const OWNER: u16 = 1;
const GROUP: u16 = 4;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NOBODY: u32 = u32::MAX;

/// Lists that operations set, by number. The first is empty, the second says no more than permission bits.
pub const LISTS: [&[Entry]; 6] = [
    &[],
    &[(OWNER, 6, NOBODY), (GROUP, 4, NOBODY), (OTHER, 0, NOBODY)],
    &[(OWNER, 7, NOBODY), (2, 6, 1000), (GROUP, 5, NOBODY), (MASK, 7, NOBODY), (OTHER, 1, NOBODY)],
    &[(OWNER, 6, NOBODY), (GROUP, 6, NOBODY), (8, 4, 50), (MASK, 4, NOBODY), (OTHER, 4, NOBODY)],
    &[(OWNER, 7, NOBODY), (GROUP, 7, NOBODY), (MASK, 5, NOBODY), (OTHER, 5, NOBODY)],
    &[
        (OWNER, 7, NOBODY),
        (2, 7, 1),
        (2, 6, 2),
        (2, 5, 3),
        (2, 4, 4),
        (GROUP, 7, NOBODY),
        (8, 3, 1),
        (8, 2, 2),
        (8, 1, 3),
        (MASK, 7, NOBODY),
        (OTHER, 0, NOBODY),
    ],
];

/// The value of the attribute for a list, in the kernel's form.
pub fn encode(list: &[Entry]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in list {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

fn decode(value: &[u8]) -> Vec<Entry> {
    let entry = |e: &[u8]| {
        let short = |at: usize| u16::from_le_bytes([e[at], e[at + 1]]);
        (short(0), short(2), u32::from_le_bytes([e[4], e[5], e[6], e[7]]))
    };
    value[4..].chunks_exact(8).map(entry).collect()
}

/// The entry that the group bits of a mode are about.
fn class(list: &[Entry]) -> u16 {
    if list.iter().any(|e| e.0 == MASK) { MASK } else { GROUP }
}

fn mode(list: &[Entry]) -> u16 {
    let of = |tag| list.iter().find(|e| e.0 == tag).map_or(0, |e| e.1);
    of(OWNER) * 64 + of(class(list)) * 8 + of(OTHER)
}

/// Changes the three entries that a mode is about.
fn with_mode(list: &mut [Entry], f: impl Fn(u16, u16) -> u16) {
    let class = class(list);
    for e in list {
        let shift = [(OWNER, 6), (class, 3), (OTHER, 0)].into_iter().find(|(tag, _)| *tag == e.0);
        if let Some((_, shift)) = shift {
            e.1 = f(e.1, shift);
        }
    }
}

impl Model {
    /// Sets the access list, or the default list, of a file.
    pub fn set_acl(&mut self, id: Id, default: bool, list: &[Entry]) -> Result<()> {
        self.check_acl(id)?;
        if default && !self.get(id).is_dir() {
            return if list.is_empty() { Ok(()) } else { Err(Errno::ACCESS.into()) };
        }
        self.changed(id, false);
        let i = self.inode(id);
        if !default && !list.is_empty() {
            i.perm = i.perm & !0o777 | mode(list);
        }
        let kept = if default { !list.is_empty() } else { list.len() > 3 };
        let name = if default { DEFAULT } else { ACCESS };
        if kept {
            i.xattrs.insert(name.into(), encode(list));
        } else {
            i.xattrs.remove(name);
        }
        Ok(())
    }

    /// Removes a list, which need not be there.
    pub fn remove_acl(&mut self, id: Id, default: bool) -> Result<()> {
        self.check_acl(id)?;
        if self.inode(id).xattrs.remove(if default { DEFAULT } else { ACCESS }).is_some() {
            self.changed(id, false);
        }
        Ok(())
    }

    fn check_acl(&self, id: Id) -> Result<()> {
        if self.get(id).flags & (FLAG_IMMUTABLE | FLAG_APPEND) != 0 {
            return Err(Errno::PERM.into());
        }
        if self.get(id).file_type == FileType::Symlink {
            return Err(Errno::OPNOTSUPP.into());
        }
        Ok(())
    }

    /// New permission bits are a new access list.
    pub(super) fn chmod_acl(&mut self, id: Id, perm: u16) {
        if let Some(value) = self.inode(id).xattrs.get_mut(ACCESS) {
            let mut list = decode(value);
            with_mode(&mut list, |_, shift| perm >> shift & 7);
            *value = encode(&list);
        }
    }

    /// A new file takes the default list of its directory; returns its permission bits.
    pub(super) fn inherit_acl(&mut self, dir: Id, id: Id, perm: u16) -> u16 {
        let Some(value) = self.get(dir).xattrs.get(DEFAULT).cloned() else { return perm };
        let mut list = decode(&value);
        with_mode(&mut list, |has, shift| has & (perm >> shift & 7));
        let i = self.inode(id);
        if list.len() > 3 {
            i.xattrs.insert(ACCESS.into(), encode(&list));
        }
        if i.is_dir() {
            i.xattrs.insert(DEFAULT.into(), value);
        }
        perm & !0o777 | mode(&list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NewFile, ROOT};
    use cffs::Caller;

    #[test]
    fn lists_bits_and_new_files() {
        let mut m = Model::new();
        m.set_acl(ROOT, true, LISTS[2]).unwrap();
        let f = m.create(Caller::ROOT, ROOT, b"f", NewFile::Regular, 0o640).unwrap();
        assert_eq!(m.get(f).perm, 0o640);
        let want = [(OWNER, 6, NOBODY), (2, 6, 1000), (GROUP, 5, NOBODY), (MASK, 4, NOBODY), (OTHER, 0, NOBODY)];
        assert_eq!(m.get(f).xattrs[ACCESS], encode(&want));
        m.set_acl(f, false, LISTS[1]).unwrap();
        assert!(m.get(f).xattrs.is_empty() && m.get(f).perm == 0o640, "the bits say it all");
        assert!(m.set_acl(f, true, LISTS[2]).is_err(), "only directories have default lists");
    }
}
