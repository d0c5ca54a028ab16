//! The parts of cffs that cannot be written without `unsafe`, each behind a safe interface: buffers aligned for direct
//! I/O, a worker pool that may borrow from its caller, and one `ioctl`. The engine itself forbids `unsafe`.
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

mod aligned;
mod blkdev;
mod pool;

pub use aligned::AlignedBuf;
pub use blkdev::discard_blocks;
pub use pool::WorkerPool;
