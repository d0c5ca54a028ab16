//! Messages of a FUSE connection that come and go through io_uring (Linux 6.14, `Documentation/filesystems/fuse-io-uring`).
//!
//! Memory for one message, a *slot*, is handed to the kernel for one of the connection's queues, of which each processor
//! has its own. The kernel fills it with a message that was sent on that processor and gives it back; the reply is written
//! into the same memory, and handing that over asks for the next message. So replying to one and waiting for the next are a
//! single system call, on the processor of the sender.

use crate::AlignedBuf;
use io_uring::opcode::UringCmd80;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, types};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

/// `FUSE_IO_URING_CMD_REGISTER` and `FUSE_IO_URING_CMD_COMMIT_AND_FETCH` of `linux/fuse.h`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// `struct fuse_uring_req_header`: the header of the message (or of its reply), the arguments of its kind, and what ring
/// and server tell each other: flags, the number to commit it by, and the length of the payload.
const COMMIT_ID_AT: usize = 264;
const PAYLOAD_LEN_AT: usize = 272;
const HEADER_LEN: usize = 288;
/// Bytes of `struct fuse_out_header`.
const OUT_HEADER: usize = 16;

/// Offset of `len` in `struct io_uring_sqe`.
const SQE_LEN_AT: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// This process: it may read and write the memory.
    Process,
    /// The kernel.
    Kernel,
}

struct Slot {
    queue: u16,
    owner: Owner,
    header: AlignedBuf,
    payload: AlignedBuf,
    /// `struct iovec` for each of them; read by the kernel when the slot is registered.
    iovecs: Box<[usize; 4]>,
}

/// A ring, and the slots that it has registered with a connection. It belongs to the thread that made it.
pub struct FuseRing {
    ring: IoUring<Entry128, cqueue::Entry>,
    /// Kept open while the kernel has a slot.
    fuse: OwnedFd,
    slots: Vec<Slot>,
}

/// A message, in the memory of its slot.
pub struct RingMessage<'a> {
    /// `struct fuse_in_header`; what is behind it means nothing.
    pub header: &'a [u8; 128],
    /// The arguments that each message of this kind has; what is behind them means nothing.
    pub op: &'a [u8; 128],
    /// Room for the rest of the message and then for the reply.
    pub payload: &'a mut [u8],
    /// How much of `payload` belongs to the message.
    pub len: usize,
}

/// Commands of 128 bytes; completions are made when the one thread that uses it waits for them.
fn ring(entries: u32) -> io::Result<IoUring<Entry128, cqueue::Entry>> {
    IoUring::builder().dontfork().setup_single_issuer().setup_defer_taskrun().build(entries)
}

impl FuseRing {
    /// Whether rings can be made here at all: the kernel may lack io_uring, or forbid it to this process.
    pub fn possible() -> io::Result<()> {
        ring(1).map(drop)
    }

    /// Registers a slot with `payload` bytes for each of `queues` with the connection `fuse`. The kernel must have agreed to
    /// io_uring when the connection was set up, and `payload` must be as large as any message may become.
    pub fn new(fuse: OwnedFd, queues: &[u16], payload: usize) -> io::Result<FuseRing> {
        let entries = (queues.len() as u32).max(1).next_power_of_two();
        let ring = ring(entries)?;
        let slots = queues.iter().map(|queue| Slot::new(*queue, payload)).collect();
        let mut this = FuseRing { ring, fuse, slots };
        for slot in 0..this.slots.len() {
            this.hand_over(slot, REGISTER, 0)?;
        }
        this.ring.submit()?;
        Ok(this)
    }

    /// Hands over the slots with a reply and waits for a message; returns its slot. `None` once the connection has
    /// ended and no slot is left with the kernel; an error if a slot is refused.
    pub fn wait(&mut self) -> io::Result<Option<usize>> {
        loop {
            if let Some(done) = self.ring.completion().next() {
                // The number is ours, and the index of a slot.
                let slot = usize::try_from(done.user_data()).unwrap_or(usize::MAX);
                let Some(s) = self.slots.get_mut(slot) else { continue };
                s.owner = Owner::Process;
                match done.result() {
                    0 => return Ok(Some(slot)),
                    // Unmounted, or aborted: the others come back in the same way.
                    e if -e == ENOTCONN || -e == ECONNABORTED || -e == ENODEV || -e == ECANCELED => continue,
                    e => return Err(io::Error::from_raw_os_error(-e)),
                }
            }
            if self.slots.iter().all(|s| s.owner == Owner::Process) {
                return Ok(None);
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// The message in a slot that [`FuseRing::wait`] has returned and that has no reply yet.
    pub fn message(&mut self, slot: usize) -> RingMessage<'_> {
        let s = &mut self.slots[slot];
        assert_eq!(s.owner, Owner::Process, "the slot is the kernel's");
        let len = u32_at(&s.header, PAYLOAD_LEN_AT) as usize;
        let len = len.min(s.payload.len());
        let (header, rest) = s.header.split_first_chunk().expect("as long as the structure");
        let op = rest.first_chunk().expect("as long as the structure");
        RingMessage { header, op, payload: &mut s.payload, len }
    }

    /// Replies to the message `unique` in a slot: with an error (a negative number of errno(3)), or 0 and the first `len` bytes of
    /// the payload. The kernel gets it with the next [`FuseRing::wait`].
    pub fn reply(&mut self, slot: usize, unique: u64, error: i32, len: usize) -> io::Result<()> {
        let s = &mut self.slots[slot];
        assert_eq!(s.owner, Owner::Process, "the slot is the kernel's");
        let commit_id = u64_at(&s.header, COMMIT_ID_AT);
        s.header[..4].copy_from_slice(&((OUT_HEADER + len) as u32).to_ne_bytes());
        s.header[4..8].copy_from_slice(&error.to_ne_bytes());
        s.header[8..16].copy_from_slice(&unique.to_ne_bytes());
        s.header[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + 4].copy_from_slice(&(len as u32).to_ne_bytes());
        self.hand_over(slot, COMMIT_AND_FETCH, commit_id)
    }

    /// Puts the command for a slot into the submission queue, where there is a place for each.
    fn hand_over(&mut self, slot: usize, command: u32, commit_id: u64) -> io::Result<()> {
        const { assert!(size_of::<Entry128>() == 128) };
        let s = &mut self.slots[slot];
        // `struct fuse_uring_cmd_req`: flags, the number of the message, the queue.
        let mut request = [0; 80];
        request[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        request[16..18].copy_from_slice(&s.queue.to_ne_bytes());
        let fd = types::Fd(self.fuse.as_raw_fd());
        let mut entry = UringCmd80::new(fd, command)
            .cmd(request)
            .addr(Some(s.iovecs.as_ptr() as u64))
            .build()
            .user_data(slot as u64);
        // SAFETY: an Entry128 is a `struct io_uring_sqe` of 128 bytes, which has a u32 of any value there: the number of iovecs.
        unsafe { (&raw mut entry).byte_add(SQE_LEN_AT).cast::<u32>().write(2) };
        s.owner = Owner::Kernel;
        // SAFETY: the command names the descriptor, which is open as long as `self`, and the memory of the slot, which is
        // neither read, written, moved nor freed before its completion has come: `message` and `reply` look at the
        // owner, and `drop` keeps what the kernel has.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)
    }
}

impl Drop for FuseRing {
    fn drop(&mut self) {
        // The kernel takes commands back in its own time after the ring is closed; it may write until then.
        for s in self.slots.drain(..).filter(|s| s.owner == Owner::Kernel) {
            std::mem::forget(s);
        }
    }
}

impl Slot {
    fn new(queue: u16, payload: usize) -> Slot {
        let (header, payload) = (AlignedBuf::zeroed(HEADER_LEN), AlignedBuf::zeroed(payload));
        let iovecs = Box::new([header.as_ptr() as usize, header.len(), payload.as_ptr() as usize, payload.len()]);
        Slot { queue, owner: Owner::Process, header, payload, iovecs }
    }
}

const ENODEV: i32 = rustix::io::Errno::NODEV.raw_os_error();
const ENOTCONN: i32 = rustix::io::Errno::NOTCONN.raw_os_error();
const ECONNABORTED: i32 = rustix::io::Errno::CONNABORTED.raw_os_error();
const ECANCELED: i32 = rustix::io::Errno::CANCELED.raw_os_error();

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(*bytes[at..].first_chunk().expect("inside the header"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(*bytes[at..].first_chunk().expect("inside the header"))
}
