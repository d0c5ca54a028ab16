//! Messages about attributes of files and of the file system.

use super::context::{Ops, Reply, caller, not_a_stats_file};
use crate::protocol::opcode::Opcode;
use crate::protocol::wire::Credentials;
use crate::stats_file::is_stats_file;
use cffs::{Attr, Error, FileType, Fs, Ino, Result, SetAttr, StatFs};

/// Bits that a change of the owner drops. Set-group-id without group execution marks mandatory locking.
fn set_id_bits(perm: u16) -> u16 {
    perm & 0o4000 | if perm & 0o010 != 0 { perm & 0o2000 } else { 0 }
}

impl Ops {
    fn attributes(&self, op: Opcode, ino: Ino) -> Reply<Attr> {
        self.state.call(op, ino, |fs| {
            if is_stats_file(ino) { self.state.stats_files.attr(ino).ok_or(Error::Stale) } else { fs.getattr(ino) }
        })
    }

    pub(crate) fn getattr(&self, ino: Ino) -> Reply<Attr> {
        self.attributes(Opcode::GetAttr, ino)
    }

    /// The kernel asks so where a program wants to know the birth time.
    pub(crate) fn statx(&self, ino: Ino) -> Reply<Attr> {
        if !self.config.birth_times {
            return Err(self.state.unsupported());
        }
        self.attributes(Opcode::Statx, ino)
    }

    /// With `privileges_fall` a new owner or size drops set-id bits.
    pub(crate) fn setattr(&self, who: Credentials, ino: Ino, set: SetAttr, privileges_fall: bool) -> Reply<Attr> {
        self.state.call(Opcode::SetAttr, ino, |fs| {
            not_a_stats_file(ino)?;
            let set = if privileges_fall { self.without_privileges(fs, who, ino, set)? } else { set };
            fs.setattr(caller(who), ino, set)
        })
    }

    fn without_privileges(&self, fs: &Fs, who: Credentials, ino: Ino, set: SetAttr) -> Result<SetAttr> {
        if set.size.is_some() {
            self.drop_privileges(fs, who, ino)?;
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

    pub(crate) fn statfs(&self, ino: Ino) -> Reply<StatFs> {
        self.state.call(Opcode::StatFs, ino, |fs| Ok(fs.statfs()))
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
