//! The messages of `linux/fuse.h` as bytes: their numbers and layouts, and what is negotiated when a connection begins.
//! Nothing here knows the file system or the way by which a message came.

pub(crate) mod init;
pub(crate) mod opcode;
pub(crate) mod wire;
