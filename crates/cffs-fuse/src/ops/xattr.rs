//! Extended attributes and access control lists.
//!
//! The kernel checks who may read and set attributes. It enforces access control lists, which it reads once for each
//! inode (GETXATTR) and caches. The server keeps mode and list consistent, applies inheritance and the umask at
//! creation (in the engine), and shows `trusted.` attributes to the superuser only.

use super::context::{Ops, Reply, caller, in_group, not_a_stats_file};
use crate::protocol::opcode::Opcode;
use crate::protocol::wire::Credentials;
use crate::stats_file::is_stats_file;
use cffs::format::xattr::Namespace;
use cffs::{Error, Ino, Result, SetXattr};
use rustix::io::Errno;

/// Flags of setxattr(2).
const CREATE: i32 = 1;
const REPLACE: i32 = 2;
/// `FUSE_SETXATTR_ACL_KILL_SGID`.
const ACL_KILL_SGID: u32 = 1;

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
        n if bytes.len() > n as usize => Err(Errno::RANGE),
        _ => Ok(Bytes::All(bytes)),
    }
}

impl Ops {
    fn with_attributes(&self) -> Reply<()> {
        if self.config.xattr { Ok(()) } else { Err(self.state.unsupported()) }
    }

    /// Fails for access control lists in a mount without them, because they are neither shown nor set.
    fn known(&self, name: &[u8]) -> Result<()> {
        let acl = Namespace::split(name).is_some_and(|(n, _)| n.is_acl());
        if acl && !self.capabilities.acl { Err(Error::Unsupported) } else { Ok(()) }
    }

    /// `more` are the flags that only newer kernels send.
    pub(crate) fn set_attribute(
        &self,
        who: Credentials,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        (flags, more): (i32, Option<u32>),
    ) -> Reply<()> {
        self.with_attributes()?;
        self.state.call(Opcode::SetXattr, ino, |fs| {
            not_a_stats_file(ino)?;
            self.known(name)?;
            let is_list = name == Namespace::AclAccess.prefix();
            let drop_sgid = is_list
                && match more {
                    Some(more) => more & ACL_KILL_SGID != 0,
                    None => {
                        let a = fs.getattr(ino)?;
                        a.perm & 0o2000 != 0 && !in_group(who, a.gid)
                    }
                };
            let how = SetXattr { create: flags & CREATE != 0, replace: flags & REPLACE != 0, drop_sgid };
            fs.setxattr(caller(who), ino, name, value, how)
        })
    }

    pub(crate) fn get_attribute(&self, ino: Ino, name: &[u8], size: u32) -> Reply<Bytes> {
        self.with_attributes()?;
        let value = self.state.call(Opcode::GetXattr, ino, |fs| {
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
        let list = self.state.call(Opcode::ListXattr, ino, |fs| {
            let names = if is_stats_file(ino) { Vec::new() } else { fs.listxattr(ino)? };
            let mut list = Vec::new();
            for name in names {
                let hidden = match Namespace::split(&name) {
                    Some((Namespace::Trusted, _)) => who.uid != 0,
                    Some((n, _)) => n.is_acl() && !self.capabilities.acl,
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
        self.state.call(Opcode::RemoveXattr, ino, |fs| {
            not_a_stats_file(ino)?;
            self.known(name)?;
            fs.removexattr(caller(who), ino, name)
        })
    }
}
