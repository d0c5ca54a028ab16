//! The control channel of a mounted file system: an `ioctl` on its root directory, or on any directory or file in it.
//!
//! Requests ([`Request`]) and answers are JSON. Both travel in the buffer of one `ioctl` number
//! ([`cffs_buf::CONTROL_IOCTL`]) behind a header of 32 bytes, little-endian:
//!
//! | offset | type | request | reply |
//! | --- | --- | --- | --- |
//! | 0 | u32 | magic: `cffc` | the same |
//! | 4 | u32 | version of the protocol, 1 | the same |
//! | 8 | u32 | length of the JSON that follows | the same |
//! | 16 | u64 | 0, or the ticket of an answer to go on with | ticket, if the answer goes on |
//! | 24 | u64 | 0, or where to go on | length of the whole answer |
//!
//! An answer longer than the buffer waits in the server under a *ticket*, and the client fetches the rest piece by
//! piece. Answers that are not fetched are dropped for newer ones. So an answer is of one moment, whatever its length.
//!
//! The answer is `{"ok": …}` with what the request's documentation says, or `{"error": {"errno": …, "message": …}}`.
//! The `ioctl` itself fails only if nobody understands it: `ENOTTY` if this is no cffs, `EINVAL` if the buffer is no
//! request.
//!
//! Anybody who can open the directory may send requests. Changes ([`Request::changes`]) are for root and the user whose
//! process serves the mount.
//!
//! Programs send requests with [`Control`]; the server side is `Answers` and the module `service`.

mod answers;
mod asker;
mod client;
mod frame;
mod quota;
mod request;
mod service;
mod trace;

pub(crate) use answers::Answers;
pub(crate) use asker::Asker;
pub use client::{Control, ControlError};
pub use request::{MountInfo, Refusal, Request, TRACE_READ_BYTES, Tuned};
pub(crate) use service::answer;
