//! Messages through `/dev/fuse`: each is read with one system call, and its reply written with another.

use crate::config::MountConfig;
use crate::dispatch::{self, Message};
use crate::ops::Ops;
use crate::protocol::init::{self, Capabilities, Outcome};
use crate::protocol::opcode::Opcode;
use crate::protocol::wire::Header;
use crate::worker_pool::WorkerPool;
use cffs_buf::{AlignedBuf, clone_fuse_device};
use rustix::io::{Errno, read, writev};
use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

/// Where the data of a WRITE lands in the buffer of a thread: on a page, as direct I/O wants it.
const DATA_AT: usize = 4096;
/// Where a message begins, so that it does: the header and the arguments of WRITE and READ stand before it.
const MESSAGE_AT: usize = DATA_AT - Header::LEN - 40;
/// Room for names and attributes besides the data of a message. The kernel wants at least 8 KiB in all.
const EXTRA: usize = 4096;
/// Least room for a reply, for the longest attribute and target of a link.
const ROOM_MIN: usize = 128 << 10;
/// Bytes of `struct fuse_out_header`.
const OUT_HEADER: usize = 16;
/// Most bytes that a kind of message has as its arguments.
const ARGS_MAX: usize = 128;

/// Answers the first message of a connection, and returns what was agreed.
pub(crate) fn negotiate(fuse: &OwnedFd, config: &MountConfig) -> io::Result<Capabilities> {
    let mut buffer = vec![0; 2 * DATA_AT];
    loop {
        let n = match read(fuse, &mut buffer[..]) {
            Ok(n) => n,
            Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => continue,
            Err(e) => return Err(e.into()),
        };
        let header = Header::read(&buffer[..n]);
        if Opcode::of(header.opcode) != Some(Opcode::Init) {
            return Err(io::Error::other(format!("the first message is of kind {}, not INIT", header.opcode)));
        }
        let mut out = [0; 256];
        let (outcome, len) = init::answer(buffer.get(Header::LEN..n).unwrap_or_default(), config, &mut out);
        match outcome {
            Outcome::TooOld(major, minor) => {
                reply(fuse, header.unique, Err(Errno::PROTO))?;
                return Err(io::Error::other(format!(
                    "the kernel speaks version {major}.{minor} of the FUSE protocol: this takes Linux 4.20 or newer"
                )));
            }
            Outcome::Again => reply(fuse, header.unique, Ok(&out[..len]))?,
            Outcome::Agreed(capabilities) => {
                reply(fuse, header.unique, Ok(&out[..len]))?;
                return Ok(capabilities);
            }
        }
    }
}

/// Answers messages with several threads until the connection ends.
pub(crate) fn serve(ops: &Arc<Ops>, fuse: &OwnedFd) -> io::Result<()> {
    let number = ops.config.threads.max(1);
    let pool = WorkerPool::new(number);
    let mut threads = Vec::new();
    for i in 0..number {
        let (ops, pool, fuse) = (ops.clone(), pool.clone(), channel(fuse)?);
        let thread = std::thread::Builder::new().name(format!("cffs-fuse-{i}"));
        threads.push(thread.spawn(move || answer_messages(&ops, &fuse, &pool))?);
    }
    let mut outcome = Ok(());
    for thread in threads {
        outcome =
            outcome.and(thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that served it panicked"))));
    }
    outcome
}

/// A descriptor of the connection for one thread, so that replies find their message without a common lock.
fn channel(fuse: &OwnedFd) -> io::Result<OwnedFd> {
    let own = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    match own.and_then(|own| clone_fuse_device(&own, fuse.as_fd()).map(|()| own)) {
        Ok(own) => Ok(own.into()),
        Err(error) => {
            // A user may have the connection from the helper alone.
            tracing::debug!(%error, "threads share one descriptor");
            fuse.try_clone()
        }
    }
}

fn answer_messages(ops: &Ops, fuse: &OwnedFd, pool: &Arc<WorkerPool>) -> io::Result<()> {
    let mut buffer = AlignedBuf::zeroed(MESSAGE_AT + room(ops));
    loop {
        let n = match read(fuse, &mut buffer[MESSAGE_AT..]) {
            Ok(n) => n,
            // Interrupted, or the program that sent the message was.
            Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => continue,
            // Unmounted.
            Err(Errno::NODEV) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        let _entered = pool.enter();
        answer_one(ops, fuse, &mut buffer[MESSAGE_AT..], n)?;
    }
}

/// Bytes of a buffer for messages and replies, from where a message begins.
pub(crate) fn room(ops: &Ops) -> usize {
    DATA_AT - MESSAGE_AT + (ops.config.max_transfer as usize).max(ROOM_MIN) + EXTRA
}

/// Executes the message in the first `n` bytes of `buffer`, and replies.
pub(crate) fn answer_one(ops: &Ops, fuse: &OwnedFd, buffer: &mut [u8], n: usize) -> io::Result<()> {
    let header = Header::read(&buffer[..n]);
    let (unique, op) = (header.unique, Opcode::of(header.opcode));
    let args_len = op.map_or(0, |op| ops.args_len(op)).min(n.saturating_sub(Header::LEN));
    let (front, payload) = buffer.split_at_mut(Header::LEN + args_len);
    let mut args = [0; ARGS_MAX];
    args[..args_len].copy_from_slice(&front[Header::LEN..]);
    let mut message = Message { header, args: &args, payload, len: n.saturating_sub(Header::LEN + args_len) };
    let outcome = dispatch::answer(ops, &mut message);
    match op {
        Some(op) if !op.has_reply() => Ok(()),
        _ => reply(fuse, unique, outcome.map(|len| &payload[..len])),
    }
}

/// Sends `struct fuse_out_header` and what follows it.
fn reply(fuse: &OwnedFd, unique: u64, outcome: Result<&[u8], Errno>) -> io::Result<()> {
    let (error, body) = match outcome {
        Ok(body) => (0, body),
        Err(e) => (-e.raw_os_error(), &[][..]),
    };
    let mut header = [0; OUT_HEADER];
    header[..4].copy_from_slice(&((OUT_HEADER + body.len()) as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    loop {
        match writev(fuse, &[IoSlice::new(&header), IoSlice::new(body)]) {
            Err(Errno::INTR) => {}
            // Nobody waits for it any more; or the mount has ended, which the next read says.
            Err(Errno::NOENT | Errno::NODEV) => return Ok(()),
            // The kernel refuses the reply: the sender must not wait for ever.
            Err(error) if !body.is_empty() => {
                tracing::error!(%error, "the kernel did not take a reply");
                return reply(fuse, unique, Err(Errno::IO));
            }
            done => return done.map(drop).map_err(io::Error::from),
        }
    }
}
