//! Messages through io_uring (Linux 6.14, if `fuse.enable_uring` is set).
//!
//! Each processor has a queue, and [`queues`] as many threads as should reply at the same time, each with one slot and
//! bound to that processor. So a message is answered on the processor that sent it, with one system call instead of
//! two, and the kernel copies it without looking up pages (see [`cffs_buf::FuseRing`]). FORGET, and messages sent
//! before the rings are ready, still come through `/dev/fuse`, that is from fuser.

mod wire;

use crate::mountpoint::Unmounter;
use crate::ops::{Found, Ops, Reply};
use crate::xattr::Bytes;
use cffs::Ino;
use cffs_buf::{FuseRing, RingMessage};
use fuser::Errno;
use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;
use wire::{Header, Reader, Writer};

/// Fewest threads for a processor: while one waits for the device, another can reply.
const THREADS_MIN: usize = 2;
/// Room for the numbers and names of a message besides its largest contents.
const PAYLOAD_EXTRA: usize = 4096;

/// The numbers of the messages, in `linux/fuse.h`.
mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const READLINK: u32 = 5;
    pub(super) const SYMLINK: u32 = 6;
    pub(super) const MKNOD: u32 = 8;
    pub(super) const MKDIR: u32 = 9;
    pub(super) const UNLINK: u32 = 10;
    pub(super) const RMDIR: u32 = 11;
    pub(super) const RENAME: u32 = 12;
    pub(super) const LINK: u32 = 13;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const SETXATTR: u32 = 21;
    pub(super) const GETXATTR: u32 = 22;
    pub(super) const LISTXATTR: u32 = 23;
    pub(super) const REMOVEXATTR: u32 = 24;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const FSYNCDIR: u32 = 30;
    pub(super) const ACCESS: u32 = 34;
    pub(super) const CREATE: u32 = 35;
    pub(super) const IOCTL: u32 = 39;
    pub(super) const POLL: u32 = 40;
    pub(super) const FALLOCATE: u32 = 43;
    pub(super) const READDIRPLUS: u32 = 44;
    pub(super) const RENAME2: u32 = 45;
    pub(super) const LSEEK: u32 = 46;
    pub(super) const COPY_FILE_RANGE: u32 = 47;
}

/// `FUSE_WRITE_KILL_SUIDGID`, `FUSE_FSYNC_FDATASYNC`.
const KILL_SUIDGID: u32 = 1 << 2;
const FDATASYNC: u32 = 1;
/// `FOPEN_KEEP_CACHE`, `FOPEN_CACHE_DIR`, `FOPEN_NOFLUSH`.
const KEEP_CACHE: u32 = 1 << 1;
const CACHE_DIR: u32 = 1 << 3;
const NOFLUSH: u32 = 1 << 5;

/// The threads of the rings of a mount.
pub(crate) struct Rings {
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Rings {
    /// Registers slots for all queues. Until that is done the kernel delays all messages, so after an error here the
    /// mount has to end.
    pub(crate) fn start(ops: &Arc<Ops>, fuse: &OwnedFd, unmounter: &Unmounter) -> io::Result<Rings> {
        let allowed = sched_getaffinity(None)?;
        let payload = ops.config.max_transfer as usize + PAYLOAD_EXTRA;
        let (sender, ready) = channel();
        let mut threads = Vec::new();
        for (i, own) in queues(processors()?, &allowed, ops.config.threads).into_iter().enumerate() {
            let (ops, fuse, sender) = (ops.clone(), fuse.try_clone()?, sender.clone());
            let unmounter = unmounter.clone();
            let thread = std::thread::Builder::new().name(format!("cffs-ring-{i}")).spawn(move || {
                if let Some(cpu) = own.cpu {
                    bind(cpu);
                }
                match FuseRing::new(fuse, &own.queues, payload) {
                    Ok(ring) => {
                        let _ = sender.send(Ok(()));
                        drop(sender);
                        if let Err(error) = serve(&ops, ring) {
                            // Messages may wait for this thread for ever, so the mount is ended in an orderly way.
                            tracing::error!(%error, "io_uring failed; the mount ends");
                            let _ = unmounter.abort();
                        }
                    }
                    Err(e) => drop(sender.send(Err(e))),
                }
            })?;
            threads.push(thread);
        }
        drop(sender);
        ready.into_iter().collect::<io::Result<()>>()?;
        Ok(Rings { threads: Mutex::new(threads) })
    }

    /// Waits until the last message is answered. The connection has ended.
    pub(crate) fn join(&self) {
        for thread in self.threads.lock().drain(..) {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

/// One more than the highest possible number of a processor. A connection has as many queues.
fn processors() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit(['-', ',']).next().and_then(|n| n.parse::<usize>().ok());
    Ok(last.ok_or_else(|| io::Error::other(format!("no list of processors: {text:?}")))? + 1)
}

/// The part of one thread.
#[derive(Debug, PartialEq)]
struct Own {
    /// The processor to which it is bound.
    cpu: Option<usize>,
    queues: Vec<u16>,
}

/// Distributes the queues: several threads for each processor that this process may run on, and one thread for all
/// other queues. These get few messages or none, but the kernel wants a slot in every queue.
fn queues(processors: usize, allowed: &CpuSet, threads: usize) -> Vec<Own> {
    let may = |cpu: usize| cpu < CpuSet::MAX_CPU && allowed.is_set(cpu);
    let number = (0..processors).filter(|cpu| may(*cpu)).count().max(1);
    let each = threads.div_ceil(number).max(THREADS_MIN);
    let mut all = Vec::new();
    for cpu in (0..processors).filter(|cpu| may(*cpu)) {
        all.extend((0..each).map(|_| Own { cpu: Some(cpu), queues: vec![cpu as u16] }));
    }
    let others: Vec<u16> = (0..processors).filter(|cpu| !may(*cpu)).map(|cpu| cpu as u16).collect();
    if !others.is_empty() {
        all.push(Own { cpu: None, queues: others });
    }
    all
}

/// Binds this thread to a processor. If that fails the thread replies from another processor.
fn bind(cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu);
    if let Err(error) = sched_setaffinity(None, &only) {
        tracing::debug!(cpu, %error, "not bound to its processor");
    }
}

fn serve(ops: &Ops, mut ring: FuseRing) -> io::Result<()> {
    while let Some(slot) = ring.wait()? {
        let mut message = ring.message(slot);
        let header = Header::read(message.header);
        let (error, len) = match answer(ops, &header, &mut message) {
            Ok(len) => (0, len),
            Err(e) => (-e.code(), 0),
        };
        ring.reply(slot, header.unique, error, len)?;
    }
    Ok(())
}

/// Executes a message, and writes the reply over it. Returns the length of the reply.
fn answer(ops: &Ops, header: &Header, message: &mut RingMessage<'_>) -> Reply<usize> {
    let (node, who) = (header.node, header.who);
    let ttl = ops.config.ttl;
    let mut op = Reader::new(message.op);
    let (body, room) = (&message.payload[..message.len], message.payload.len());
    let mut names = Reader::new(body);
    match header.opcode {
        opcode::LOOKUP => {
            let found = ops.lookup(node, names.name())?;
            let mut out = Writer::new(message.payload);
            match &found {
                Found::Entry(a) => out.entry_out(Some(a), ttl, ttl),
                Found::Uncached(a) => out.entry_out(Some(a), Duration::ZERO, ttl),
                Found::Nothing => out.entry_out(None, ttl, ttl),
            }
            Ok(out.len())
        }
        opcode::GETATTR => attributes(ops.getattr(node), ttl, message),
        opcode::SETATTR => attributes(ops.setattr(who, node, wire::set_attr(message.op)), ttl, message),
        opcode::READLINK => bytes(&ops.readlink(node)?, message),
        opcode::SYMLINK => {
            let (name, target) = (names.name(), names.name());
            entry(ops.symlink(who, node, name, target), ttl, message)
        }
        opcode::MKNOD => {
            let (mode, rdev, umask) = (op.u32(), op.u32(), op.u32());
            entry(ops.mknod(who, node, names.name(), mode, umask, rdev), ttl, message)
        }
        opcode::MKDIR => {
            let (mode, umask) = (op.u32(), op.u32());
            entry(ops.mkdir(who, node, names.name(), mode, umask), ttl, message)
        }
        opcode::UNLINK => ops.unlink(node, names.name()).map(|()| 0),
        opcode::RMDIR => ops.rmdir(node, names.name()).map(|()| 0),
        opcode::RENAME | opcode::RENAME2 => {
            let (to, flags) = (op.u64(), if header.opcode == opcode::RENAME2 { op.u32() } else { 0 });
            let (from_name, to_name) = (names.name(), names.name());
            ops.rename(who, (node, from_name), (to, to_name), flags).map(|()| 0)
        }
        opcode::LINK => entry(ops.link(who, op.u64(), node, names.name()), ttl, message),
        opcode::OPEN => open(ops.open(), NOFLUSH, NOFLUSH, message),
        opcode::OPENDIR => open(ops.opendir(), CACHE_DIR, 0, message),
        opcode::READ => {
            let (_handle, offset, size) = (op.u64(), op.u64(), op.u32());
            ops.read(node, offset, &mut message.payload[..(size as usize).min(room)])
        }
        opcode::WRITE => {
            let (_handle, offset, size, flags) = (op.u64(), op.u64(), op.u32(), op.u32());
            let data = &body[..(size as usize).min(body.len())];
            let n = ops.write(who, node, offset, data, flags & KILL_SUIDGID != 0)?;
            Ok(written(n as u32, message))
        }
        opcode::STATFS => {
            let s = ops.statfs(node)?;
            let mut out = Writer::new(message.payload);
            out.statfs(&s);
            Ok(out.len())
        }
        opcode::RELEASE => {
            ops.release();
            Ok(0)
        }
        opcode::RELEASEDIR => {
            ops.releasedir();
            Ok(0)
        }
        opcode::FLUSH => Err(ops.flush()),
        opcode::FSYNC | opcode::FSYNCDIR => {
            let (_handle, flags) = (op.u64(), op.u32());
            let data_only = flags & FDATASYNC != 0;
            let of_dir = header.opcode == opcode::FSYNCDIR;
            if of_dir { ops.fsyncdir(node, data_only) } else { ops.fsync(node, data_only) }.map(|()| 0)
        }
        opcode::SETXATTR => {
            let (size, flags) = (op.u32() as usize, op.i32());
            let name = names.name();
            let value = names.rest();
            let value = value.get(..size).ok_or(Errno::EINVAL)?;
            ops.set_attribute(who, node, name, value, flags).map(|()| 0)
        }
        opcode::GETXATTR => {
            let size = op.u32();
            some_bytes(ops.get_attribute(node, names.name(), size), message)
        }
        opcode::LISTXATTR => some_bytes(ops.list_attributes(who, node, op.u32()), message),
        opcode::REMOVEXATTR => ops.remove_attribute(who, node, names.name()).map(|()| 0),
        opcode::READDIR | opcode::READDIRPLUS => {
            let (_handle, offset, size) = (op.u64(), op.u64(), op.u32());
            let plus = (header.opcode == opcode::READDIRPLUS).then_some(ttl);
            list(ops, node, offset, size as usize, plus, message)
        }
        opcode::CREATE => {
            let (_flags, mode, umask) = (op.u32(), op.u32(), op.u32());
            let a = ops.create(who, node, names.name(), mode, umask)?;
            let mut out = Writer::new(message.payload);
            out.entry_out(Some(&a), ttl, ttl);
            opened(&mut out, KEEP_CACHE | NOFLUSH);
            Ok(out.len())
        }
        opcode::IOCTL => {
            let (_handle, _flags, cmd, _arg) = (op.u64(), op.u32(), op.u32(), op.u64());
            let (in_size, out_size) = (op.u32() as usize, op.u32() as usize);
            let answer = ops.ioctl(who, node, cmd, &body[..in_size.min(body.len())], out_size)?;
            let mut out = Writer::new(message.payload);
            // `struct fuse_ioctl_out`: the result of the system call, without a retry.
            out.put(&[0; 16]);
            out.put(&answer);
            Ok(out.len())
        }
        opcode::FALLOCATE => {
            let (_handle, offset, length, mode) = (op.u64(), op.u64(), op.u64(), op.i32());
            ops.fallocate(who, node, offset, length, mode).map(|()| 0)
        }
        opcode::LSEEK => {
            let (_handle, offset, whence) = (op.u64(), op.i64(), op.i32());
            let at = ops.lseek(node, offset, whence)?;
            bytes(&at.to_ne_bytes(), message)
        }
        opcode::COPY_FILE_RANGE => {
            let (_handle, from) = (op.u64(), op.u64());
            let (to_node, _to_handle, to, len) = (op.u64(), op.u64(), op.u64(), op.u64());
            Ok(written(ops.copy(who, (node, from), (to_node, to), len)?, message))
        }
        opcode::ACCESS | opcode::POLL => Err(ops.unsupported()),
        // fuser does not know newer messages and gives the same reply.
        _ => Err(Errno::ENOSYS),
    }
}

fn entry(a: Reply<cffs::Attr>, ttl: Duration, message: &mut RingMessage<'_>) -> Reply<usize> {
    let a = a?;
    let mut out = Writer::new(message.payload);
    out.entry_out(Some(&a), ttl, ttl);
    Ok(out.len())
}

fn attributes(a: Reply<cffs::Attr>, ttl: Duration, message: &mut RingMessage<'_>) -> Reply<usize> {
    let a = a?;
    let mut out = Writer::new(message.payload);
    out.attr_out(&a, ttl);
    Ok(out.len())
}

fn bytes(bytes: &[u8], message: &mut RingMessage<'_>) -> Reply<usize> {
    let mut out = Writer::new(message.payload);
    out.put(bytes);
    Ok(out.len())
}

fn some_bytes(result: Reply<Bytes>, message: &mut RingMessage<'_>) -> Reply<usize> {
    match result? {
        // `struct fuse_getxattr_out` begins as `fuse_write_out` does.
        Bytes::Size(n) => Ok(written(n, message)),
        Bytes::All(all) => bytes(&all, message),
    }
}

/// `struct fuse_write_out`.
fn written(n: u32, message: &mut RingMessage<'_>) -> usize {
    let mut out = Writer::new(message.payload);
    out.u32(n);
    out.u32(0);
    out.len()
}

/// `struct fuse_open_out`: no handle, flags, no backing file for passthrough.
fn opened(out: &mut Writer<'_>, flags: u32) {
    out.u64(0);
    out.u32(flags);
    out.u32(0);
}

fn open(keep: Reply<bool>, kept: u32, not: u32, message: &mut RingMessage<'_>) -> Reply<usize> {
    let flags = if keep? { kept | KEEP_CACHE } else { not };
    let mut out = Writer::new(message.payload);
    opened(&mut out, flags);
    Ok(out.len())
}

fn list(
    ops: &Ops,
    node: Ino,
    offset: u64,
    size: usize,
    plus: Option<Duration>,
    message: &mut RingMessage<'_>,
) -> Reply<usize> {
    let mut out = Writer::new(message.payload);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_has_a_thread() {
        let mut allowed = CpuSet::new();
        [1, 2].iter().for_each(|cpu| allowed.set(*cpu));
        let own = queues(5, &allowed, 7);
        let count = |queue: u16| own.iter().filter(|o| o.queues.contains(&queue)).count();
        assert_eq!((0..5).map(count).collect::<Vec<_>>(), [1, 4, 4, 1, 1]);
        assert_eq!(own.last(), Some(&Own { cpu: None, queues: vec![0, 3, 4] }));
        assert!(own[..8].iter().all(|o| o.cpu.is_some_and(|cpu| o.queues == [cpu as u16])));
        assert_eq!(queues(2, &allowed, 1).len(), THREADS_MIN + 1, "never less than two for a processor");
        assert!(processors().unwrap() >= 1);
    }
}
