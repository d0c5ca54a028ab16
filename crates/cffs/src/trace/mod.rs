//! Tracing: spans of what the file system does, each with what caused it.
//!
//! A [`Span`] is a piece of work with a beginning and an end: an operation, a cache miss, a writeback, a commit, a request of a
//! device. Its cause is the span that was open in its thread when it began, or the one that left the work in a queue. Work
//! that is done for many at once (a writeback, a commit, a checkpoint) has a bounded list of causes ([`Causes`]), each with the bytes
//! that it made dirty, says how many were left out, and counts all of them by operation. An operation names the transaction that it joined, so that each cause of
//! a commit is known all the same.
//!
//! A span is recorded when it ends, as one record in a buffer of its thread. Buffers are bounded; what finds no room is counted
//! as lost. Whoever records the trace drains them ([`Tracer::read`]) as frames ([`frame`]), which [`Reader`] reads again. The
//! bytes are in `docs/format-trace.md`.
//!
//! An operation can be recorded with what a replay needs ([`Detail`]), and the recording can begin with the names in all
//! directories ([`Listing`]).
//!
//! While it is off, a place that could begin a span costs one relaxed load and a branch: no clock, no allocation, no lock.

mod buffer;
mod causes;
mod classes;
mod detail;
mod device;
pub mod frame;
mod kind;
mod listing;
mod mount;
mod pending;
mod reader;
mod record;
mod tracer;
mod varint;

pub use causes::{Cause, Causes};
pub use classes::Classes;
pub use detail::Detail;
pub(crate) use device::{DeviceTracer, Place};
pub use kind::Kind;
pub use listing::{Listed, Listing};
pub use mount::MountTrace;
pub(crate) use pending::{Dirtied, ForMany, Many};
pub use reader::{Item, Reader};
pub use record::{Record, Request};
pub use tracer::{Span, Tracer};
