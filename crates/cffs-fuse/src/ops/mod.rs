//! The messages of the kernel, executed: one function for each, whichever way it was received.
//!
//! [`Ops`] has them all; each file adds those of one subject.

mod attributes;
mod contents;
mod context;
mod flags;
mod handles;
mod ioctl;
mod ioctl_call;
mod listing;
mod names;
mod ranges;
mod xattr;

pub(crate) use context::{Ops, Reply};
pub(crate) use ioctl_call::Call as IoctlCall;
pub(crate) use names::Found;
pub(crate) use xattr::Bytes;
