//! The parts of cffs that cannot be written without `unsafe`, each behind a safe interface: buffers aligned for direct
//! I/O, a worker pool that may borrow from its caller, FUSE over io_uring, and a few `ioctl`s. The engine itself forbids `unsafe`.
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

mod aligned;
mod blkdev;
mod control;
mod free_list;
mod fuse_device;
mod loop_device;
mod pool;
mod ring;

pub use aligned::AlignedBuf;
pub use blkdev::discard_blocks;
pub use control::{CONTROL_IOCTL, CONTROL_LEN, control_ioctl};
pub use fuse_device::clone_fuse_device;
pub use loop_device::{configure_loop_device, free_loop_device};
pub use pool::WorkerPool;
pub use ring::{FuseRing, RingMessage};
