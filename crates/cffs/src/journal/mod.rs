//! The journal: transactions, asynchronous group commit, checkpoint and recovery (XFS 1996, sections 5.6 and 6.3; byte-range
//! records are our own).
//!
//! - A [`Txn`] is one operation: it changes blocks in the cache and records which bytes. All since the last commit form the
//!   *running transaction*, with one sequence number; to the log they are one.
//! - A *commit* waits until no [`Txn`] is open, copies the changed bytes out, lets new ones start, and writes
//!   one contiguous run to the log. File data that was written in place before is flushed first, so nothing on the device
//!   ever points to data that is not there.
//! - A *checkpoint* writes every committed block in place and empties the log. It always empties the whole log: hot blocks
//!   are copied in the same moment as the commit that precedes it.
//! - *Recovery* ([`recovery`]) applies the log's records, in order, to the blocks in place.
//!
//! The modes `sync` and `delayed` use the same transactions without a log. Changed blocks wait for the next commit, which
//! writes them in place; in `sync` those that a transaction names ([`Txn::write_ordered`]) are written at its end, in that
//! order. After a crash both need fsck.
//!
//! Lock order: a transaction is begun before any inode or allocation group is locked, and never inside another.

mod checkpoint;
mod commit;
mod header;
mod log_layout;
mod log_reader;
mod log_writer;
mod manager;
mod mode;
pub mod recovery;
mod replay_readahead;
mod replay_target;
mod revocations;
mod txn;

pub use header::{CurrentHeader, current_header, read_header, read_headers, reset_headers, write_header};
pub(crate) use log_layout::COMMIT_DIVISOR;
pub use log_layout::log_extent;
pub(crate) use log_reader::LogReader;
pub use manager::{CommitHook, Journal};
pub use mode::MetadataMode;
pub use txn::{BlockEditGuard, Txn};
