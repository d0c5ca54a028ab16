//! Extended attributes, access control lists, and the bits that are dropped when somebody other than the owner changes
//! a file.
//!
//! The kernel checks who may read and set attributes. It enforces access control lists, which it reads once for each
//! inode (GETXATTR) and caches. The server keeps mode and list consistent, applies inheritance and the umask at
//! creation (in the engine), shows `trusted.` attributes to the superuser only, and drops set-id bits.

use crate::convert;
use crate::messages::Message;
use crate::ops::{Credentials, Ops, Reply};
use crate::stats_file::is_stats_file;
use cffs::format::xattr::Namespace;
use cffs::{Attr, Error, FileType, Fs, Ino, NewPerm, Result, SetAttr, SetXattr};
use fuser::Errno;

/// Flags of setxattr(2).
const CREATE: i32 = 1;
const REPLACE: i32 = 2;

/// Bits that are dropped by a change of somebody else. Set-group-id without group execution marks mandatory locking.
fn set_id_bits(perm: u16) -> u16 {
    perm & 0o4000 | if perm & 0o010 != 0 { perm & 0o2000 } else { 0 }
}

/// Whether the sender of a message is in a group; false if that cannot be found out.
fn in_group(who: Credentials, gid: u32) -> bool {
    if who.uid == 0 || who.gid == gid {
        return true;
    }
    // The message has one group only. The others are those of the process.
    let status = std::fs::read_to_string(format!("/proc/{}/status", who.pid)).unwrap_or_default();
    let groups = status.lines().find_map(|l| l.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_whitespace().any(|g| g.parse() == Ok(gid))
}

/// The reply to a program that reads an attribute or the list of names.
pub(crate) enum Bytes {
    /// Their number, because the program asked with an empty buffer.
    Size(u32),
    /// The bytes.
    All(Vec<u8>),
}

fn fit(bytes: Vec<u8>, size: u32) -> Reply<Bytes> {
    match size {
        0 => Ok(Bytes::Size(bytes.len() as u32)),
        n if bytes.len() > n as usize => Err(Errno::ERANGE),
        _ => Ok(Bytes::All(bytes)),
    }
}

impl Ops {
    /// Permissions of a new file. The umask is applied later if the kernel has left it to the server.
    pub(crate) fn new_permissions(&self, mode: u32, umask: u32) -> NewPerm {
        let umask = if self.capabilities().acl { convert::permissions(umask) & 0o777 } else { 0 };
        NewPerm { bits: convert::permissions(mode), umask }
    }

    fn with_attributes(&self) -> Reply<()> {
        if self.config.xattr { Ok(()) } else { Err(self.unsupported()) }
    }

    /// Fails for access control lists in a mount without them, because they are neither shown nor set.
    fn known(&self, name: &[u8]) -> Result<()> {
        let acl = Namespace::split(name).is_some_and(|(n, _)| n.is_acl());
        if acl && !self.capabilities().acl { Err(Error::Unsupported) } else { Ok(()) }
    }

    pub(crate) fn set_attribute(&self, who: Credentials, ino: Ino, name: &[u8], value: &[u8], flags: i32) -> Reply<()> {
        self.with_attributes()?;
        self.shared.call(Message::SetXattr, ino, |fs| {
            if is_stats_file(ino) {
                return Err(Error::NotPermitted);
            }
            self.known(name)?;
            let is_list = name == Namespace::AclAccess.prefix();
            let drop_sgid = is_list && {
                let a: Attr = fs.getattr(ino)?;
                a.perm & 0o2000 != 0 && !in_group(who, a.gid)
            };
            let how = SetXattr { create: flags & CREATE != 0, replace: flags & REPLACE != 0, drop_sgid };
            fs.setxattr(who.caller(), ino, name, value, how)
        })
    }

    pub(crate) fn get_attribute(&self, ino: Ino, name: &[u8], size: u32) -> Reply<Bytes> {
        self.with_attributes()?;
        let value = self.shared.call(Message::GetXattr, ino, |fs| {
            if is_stats_file(ino) {
                return Err(Error::NoAttribute);
            }
            self.known(name)?;
            fs.getxattr(ino, name)
        });
        fit(value?, size)
    }

    pub(crate) fn list_attributes(&self, who: Credentials, ino: Ino, size: u32) -> Reply<Bytes> {
        self.with_attributes()?;
        let list = self.shared.call(Message::ListXattr, ino, |fs| {
            let names = if is_stats_file(ino) { Vec::new() } else { fs.listxattr(ino)? };
            let mut list = Vec::new();
            for name in names {
                let hidden = match Namespace::split(&name) {
                    Some((Namespace::Trusted, _)) => who.uid != 0,
                    Some((n, _)) => n.is_acl() && !self.capabilities().acl,
                    None => false,
                };
                if !hidden {
                    list.extend_from_slice(&name);
                    list.push(0);
                }
            }
            Ok(list)
        });
        fit(list?, size)
    }

    pub(crate) fn remove_attribute(&self, who: Credentials, ino: Ino, name: &[u8]) -> Reply<()> {
        self.with_attributes()?;
        self.shared.call(Message::RemoveXattr, ino, |fs| {
            if is_stats_file(ino) {
                return Err(Error::NotPermitted);
            }
            self.known(name)?;
            fs.removexattr(who.caller(), ino, name)
        })
    }

    /// Adds to a change of attributes the bits that it drops, if the kernel leaves that to the server: set-id bits when
    /// the owner changes, and when an unprivileged user changes the size. (The kernel marks privileged callers with a
    /// flag that fuser does not pass on, so only the superuser counts as privileged.)
    pub(crate) fn drop_privileges(&self, fs: &Fs, who: Credentials, ino: Ino, set: SetAttr) -> Result<SetAttr> {
        if !self.capabilities().drops_privileges {
            return Ok(set);
        }
        if set.size.is_some() && who.uid != 0 {
            fs.clear_set_id(ino)?;
        }
        let mut set = set;
        if (set.uid.is_some() || set.gid.is_some()) && set.perm.is_none() {
            let a = fs.getattr(ino)?;
            let drop = set_id_bits(a.perm);
            if drop != 0 && a.file_type != FileType::Directory {
                set.perm = Some(a.perm & !drop);
            }
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_mark_is_no_identity() {
        assert_eq!(set_id_bits(0o6755), 0o6000);
        assert_eq!(set_id_bits(0o6745), 0o4000);
        assert_eq!(set_id_bits(0o1777), 0);
    }
}
