//! From the bytes of a message to an operation, and from its result to the bytes of the reply.
//!
//! [`crate::device`] receives messages through `/dev/fuse`, [`crate::ring`] through io_uring. The bytes are the same.

use crate::ops::{Bytes, Found, IoctlCall, Ops, Reply};
use crate::protocol::opcode::Opcode;
use crate::protocol::wire::{self, Header, Reader, Writer};
use cffs::Attr;
use cffs::trace::Kind;
use rustix::io::Errno;
use std::time::Duration;

/// `FUSE_WRITE_KILL_SUIDGID`, `FUSE_FSYNC_FDATASYNC`.
const KILL_SUIDGID: u32 = 1 << 2;
const FDATASYNC: u32 = 1;
/// Bytes of `struct fuse_forget_one`.
const FORGET_ONE_LEN: usize = 16;

/// A message, in memory that takes the reply.
pub(crate) struct Message<'a> {
    pub(crate) header: Header,
    /// The structure of arguments that each message of this kind has; what is behind it means nothing.
    pub(crate) args: &'a [u8],
    /// The rest of the message, and then the reply.
    pub(crate) payload: &'a mut [u8],
    /// How much of `payload` belongs to the message.
    pub(crate) len: usize,
}

impl Message<'_> {
    fn rest(&self) -> Reader<'_> {
        Reader::new(&self.payload[..self.len])
    }

    fn writer(&mut self) -> Writer<'_> {
        Writer::new(self.payload)
    }

    /// A reply that `write` makes.
    fn reply(&mut self, write: impl FnOnce(&mut Writer<'_>)) -> Reply<usize> {
        let mut out = self.writer();
        write(&mut out);
        Ok(out.len())
    }
}

/// Executes a message, and writes the reply over it. Returns the length of the reply.
pub(crate) fn answer(ops: &Ops, message: &mut Message<'_>) -> Reply<usize> {
    let Some(op) = Opcode::of(message.header.opcode) else { return Err(ops.state.unsupported()) };
    let header = &message.header;
    let args = [header.opcode.into(), header.node, header.who.pid.into()];
    let _span = ops.state.tracer().span(Kind::Message, args);
    match op {
        Opcode::Lookup
        | Opcode::Link
        | Opcode::SymLink
        | Opcode::MkNod
        | Opcode::MkDir
        | Opcode::Create
        | Opcode::TmpFile => new_entry(ops, op, message),
        Opcode::Unlink | Opcode::RmDir | Opcode::Rename | Opcode::Rename2 => change_names(ops, op, message),
        Opcode::GetAttr | Opcode::SetAttr | Opcode::Statx | Opcode::StatFs => attributes(ops, op, message),
        Opcode::SetXattr | Opcode::GetXattr | Opcode::ListXattr | Opcode::RemoveXattr => xattr(ops, op, message),
        Opcode::Open | Opcode::OpenDir | Opcode::Release | Opcode::ReleaseDir | Opcode::Flush => {
            handle(ops, op, message)
        }
        Opcode::Read | Opcode::Write | Opcode::ReadLink | Opcode::Lseek => contents(ops, op, message),
        Opcode::Fallocate | Opcode::CopyFileRange | Opcode::CopyFileRange64 => ranges(ops, op, message),
        Opcode::Fsync | Opcode::FsyncDir | Opcode::SyncFs => durable(ops, op, message),
        Opcode::ReadDir | Opcode::ReadDirPlus => list(ops, op, message),
        Opcode::Ioctl => ioctl(ops, message),
        Opcode::Forget | Opcode::BatchForget => {
            forget(ops, op, message);
            Ok(0)
        }
        Opcode::Destroy => {
            // A mount of a block device: umount(2) waits for this reply.
            ops.state.count(op);
            ops.state.end();
            Ok(0)
        }
        // ENOSYS to one INTERRUPT is the last of them; the same holds for the others, which need no work here.
        Opcode::Access | Opcode::Poll | Opcode::Interrupt | Opcode::Init => Err(ops.state.unsupported()),
    }
}

/// Messages that the kernel gets an inode for.
fn new_entry(ops: &Ops, op: Opcode, message: &mut Message<'_>) -> Reply<usize> {
    let (node, who, ttl) = (message.header.node, message.header.who, ops.config.ttl);
    let mut args = Reader::new(message.args);
    let mut names = message.rest();
    let mut name_ttl = ttl;
    let entry = match op {
        Opcode::Lookup => match ops.lookup(node, names.name())? {
            Found::Entry(a) => Some(a),
            Found::Uncached(a) => {
                name_ttl = Duration::ZERO;
                Some(a)
            }
            Found::Nothing => None,
        },
        Opcode::Link => Some(ops.link(who, args.u64(), node, names.name())?),
        Opcode::SymLink => {
            let (name, target) = (names.name(), names.name());
            Some(ops.symlink(who, node, name, target)?)
        }
        Opcode::MkNod => {
            let (mode, rdev, umask) = (args.u32(), args.u32(), args.u32());
            Some(ops.mknod(who, node, names.name(), mode, umask, rdev)?)
        }
        Opcode::MkDir => {
            let (mode, umask) = (args.u32(), args.u32());
            Some(ops.mkdir(who, node, names.name(), mode, umask)?)
        }
        _ => {
            let (_flags, mode, umask) = (args.u32(), args.u32(), args.u32());
            Some(match op {
                // Its name is not one that the file gets.
                Opcode::TmpFile => ops.tmpfile(who, node, mode, umask)?,
                _ => ops.create(who, node, names.name(), mode, umask)?,
            })
        }
    };
    message.reply(|out| {
        out.entry_out(entry.as_ref(), name_ttl, ttl);
        if matches!(op, Opcode::Create | Opcode::TmpFile) {
            out.open_out(ops.created());
        }
    })
}

fn change_names(ops: &Ops, op: Opcode, message: &mut Message<'_>) -> Reply<usize> {
    let (node, who) = (message.header.node, message.header.who);
    let mut names = message.rest();
    match op {
        Opcode::Unlink => ops.unlink(node, names.name())?,
        Opcode::RmDir => ops.rmdir(node, names.name())?,
        _ => {
            let mut args = Reader::new(message.args);
            let (to, flags) = (args.u64(), if op == Opcode::Rename2 { args.u32() } else { 0 });
            let (from_name, to_name) = (names.name(), names.name());
            ops.rename(who, (node, from_name), (to, to_name), flags)?;
        }
    }
    Ok(0)
}

fn attributes(ops: &Ops, op: Opcode, message: &mut Message<'_>) -> Reply<usize> {
    let (node, ttl) = (message.header.node, ops.config.ttl);
    let attr: Attr = match op {
        Opcode::GetAttr => ops.getattr(node)?,
        Opcode::SetAttr => {
            let (set, privileges_fall) = wire::set_attr(message.args);
            ops.setattr(message.header.who, node, set, privileges_fall)?
        }
        Opcode::Statx => {
            let a = ops.statx(node)?;
            return message.reply(|out| out.statx_out(&a, ttl));
        }
        _ => {
            let s = ops.statfs(node)?;
            return message.reply(|out| out.statfs(&s));
        }
    };
    message.reply(|out| out.attr_out(&attr, ttl))
}

fn xattr(ops: &Ops, op: Opcode, message: &mut Message<'_>) -> Reply<usize> {
    let (node, who) = (message.header.node, message.header.who);
    let mut args = Reader::new(message.args);
    let mut names = message.rest();
    let bytes = match op {
        Opcode::SetXattr => {
            let (size, flags) = (args.u32() as usize, args.i32());
            let more = ops.capabilities.setxattr_flags.then(|| args.u32());
            let name = names.name();
            let value = names.rest().get(..size).ok_or(Errno::INVAL)?;
            ops.set_attribute(who, node, name, value, (flags, more))?;
            return Ok(0);
        }
        Opcode::RemoveXattr => {
            ops.remove_attribute(who, node, names.name())?;
            return Ok(0);
        }
        Opcode::GetXattr => ops.get_attribute(node, names.name(), args.u32())?,
        _ => ops.list_attributes(who, node, args.u32())?,
    };
    message.reply(|out| match &bytes {
        Bytes::Size(n) => out.write_out(*n),
        Bytes::All(all) => out.put(all),
    })
}

fn handle(ops: &Ops, op: Opcode, message: &mut Message<'_>) -> Reply<usize> {
    let flags = match op {
        Opcode::Open => ops.open(message.header.node, Reader::new(message.args).u32())?,
        Opcode::OpenDir => ops.opendir()?,
        // There is nothing to do at a close.
        Opcode::Flush => {
            ops.state.count(op);
            return Err(Errno::NOSYS);
        }
        _ => {
            ops.state.count(op);
            return Ok(0);
        }
    };
    message.reply(|out| out.open_out(flags))
}

fn contents(ops: &Ops, op: Opcode, message: &mut Message<'_>) -> Reply<usize> {
    let (node, who) = (message.header.node, message.header.who);
    let mut args = Reader::new(message.args);
    match op {
        Opcode::Read => {
            let (_handle, offset, size) = (args.u64(), args.u64(), args.u32() as usize);
            let room = message.payload.len();
            ops.read(who, node, offset, &mut message.payload[..size.min(room)])
        }
        Opcode::Write => {
            let (_handle, offset, size, flags) = (args.u64(), args.u64(), args.u32() as usize, args.u32());
            let data = &message.payload[..size.min(message.len)];
            let n = ops.write(who, node, offset, data, flags & KILL_SUIDGID != 0)?;
            message.reply(|out| out.write_out(n as u32))
        }
        Opcode::ReadLink => {
            let target = ops.readlink(node)?;
            message.reply(|out| out.put(&target))
        }
        _ => {
            let (_handle, offset, whence) = (args.u64(), args.i64(), args.i32());
            let at = ops.lseek(node, offset, whence)?;
            message.reply(|out| out.u64(at))
        }
    }
}

fn ranges(ops: &Ops, op: Opcode, message: &mut Message<'_>) -> Reply<usize> {
    let (node, who) = (message.header.node, message.header.who);
    let mut args = Reader::new(message.args);
    let (_handle, offset) = (args.u64(), args.u64());
    if op == Opcode::Fallocate {
        let (length, mode) = (args.u64(), args.i32());
        return ops.fallocate(who, node, offset, length, mode).map(|()| 0);
    }
    let (to_node, _to_handle, to, len) = (args.u64(), args.u64(), args.u64(), args.u64());
    let copied = ops.copy(who, (node, offset), (to_node, to), len)?;
    message.reply(|out| match op {
        Opcode::CopyFileRange64 => out.u64(copied),
        _ => out.write_out(u32::try_from(copied).unwrap_or(u32::MAX)),
    })
}

fn durable(ops: &Ops, op: Opcode, message: &Message<'_>) -> Reply<usize> {
    let node = message.header.node;
    let mut args = Reader::new(message.args);
    let (_handle, data_only) = (args.u64(), args.u32() & FDATASYNC != 0);
    match op {
        Opcode::SyncFs => ops.syncfs()?,
        Opcode::FsyncDir => ops.fsyncdir(node, data_only)?,
        _ => ops.fsync(node, data_only)?,
    }
    Ok(0)
}

fn list(ops: &Ops, op: Opcode, message: &mut Message<'_>) -> Reply<usize> {
    let mut args = Reader::new(message.args);
    let (_handle, offset, size) = (args.u64(), args.u64(), args.u32() as usize);
    let plus = (op == Opcode::ReadDirPlus).then_some(ops.config.ttl);
    let node = message.header.node;
    let mut out = message.writer();
    let mut referenced = false;
    let listed = ops.readdir(node, offset, plus.is_some(), &mut |e| {
        let added = out.dirent(&e, plus, size);
        referenced |= added && e.attr.is_some();
        !added
    });
    match listed {
        // The reply contains entries for which references were taken, so it is sent. The next message gets the error.
        Err(e) if !referenced => Err(e),
        _ => Ok(out.len()),
    }
}

fn ioctl(ops: &Ops, message: &mut Message<'_>) -> Reply<usize> {
    let (ino, who) = (message.header.node, message.header.who);
    let mut args = Reader::new(message.args);
    let (_handle, _flags, cmd, arg) = (args.u64(), args.u32(), args.u32(), args.u64());
    let (in_size, out_size) = (args.u32() as usize, args.u32() as usize);
    let input = &message.payload[..in_size.min(message.len)];
    let answer = ops.ioctl(&IoctlCall { who, ino, cmd, arg, input, out_size })?;
    message.reply(|out| {
        // `struct fuse_ioctl_out`: the result of the system call, without a retry.
        out.put(&[0; 16]);
        out.put(&answer);
    })
}

fn forget(ops: &Ops, op: Opcode, message: &Message<'_>) {
    let mut args = Reader::new(message.args);
    if op == Opcode::Forget {
        return ops.forget(message.header.node, args.u64());
    }
    let count = (args.u32() as usize).min(message.len / FORGET_ONE_LEN);
    let mut each = message.rest();
    for _ in 0..count {
        let (node, nlookup) = (each.u64(), each.u64());
        ops.forget(node, nlookup);
    }
}
