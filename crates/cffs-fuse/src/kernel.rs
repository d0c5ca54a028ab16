//! What is negotiated with the kernel when a session starts.

use crate::config::{IoUring, MountConfig};
use cffs_buf::FuseRing;
use fuser::{InitFlags, KernelConfig};

/// What the kernel does without a message.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Capabilities {
    /// After one OPEN was answered with ENOSYS, it opens without asking.
    pub(crate) no_open: bool,
    /// The same for OPENDIR.
    pub(crate) no_opendir: bool,
    /// It checks access control lists, and leaves the umask to the server.
    pub(crate) acl: bool,
    /// It leaves dropping set-id bits and capabilities to the server when a file is written, truncated or changes its
    /// owner.
    pub(crate) drops_privileges: bool,
    /// Messages go through io_uring, and wait until it is set up.
    pub(crate) io_uring: bool,
}

/// Requested if the kernel supports it.
const WANTED: [InitFlags; 6] = [
    // Every listing brings attributes: they lie in the directory block, so they cost nothing, and they save the LOOKUPs.
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    // The server is the only writer, so cached pages become stale only through the kernel itself. Without this flag a
    // size in a reply that differs from the cached one drops the cached pages.
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_MAX_PAGES,
];
// Left out on purpose:
// - WRITEBACK_CACHE, AUTO_INVAL_DATA: see the crate's documentation;
// - ATOMIC_O_TRUNC: without OPEN messages truncation has to come as SETATTR;
// - POSIX_LOCKS, FLOCK_LOCKS: one kernel, so its own lock tables are the right ones, and free;
// - HANDLE_KILLPRIV: see below;
// - SETXATTR_EXT: fuser does not know the longer message;
// - EXPORT_SUPPORT: would look up inodes that the kernel holds no reference to.

/// Sets up the connection.
pub(crate) fn negotiate(kernel: &mut KernelConfig, config: &MountConfig) -> Capabilities {
    for flag in WANTED {
        if kernel.add_capabilities(flag).is_err() {
            tracing::debug!(?flag, "not supported by this kernel");
        }
    }
    // These return the nearest possible value where ours is not.
    if let Err(nearest) = kernel.set_max_write(config.max_transfer) {
        let _ = kernel.set_max_write(nearest);
    }
    if let Err(nearest) = kernel.set_max_readahead(config.readahead) {
        let _ = kernel.set_max_readahead(nearest);
    }
    if let Err(nearest) = kernel.set_max_background(config.max_background) {
        let _ = kernel.set_max_background(nearest);
    }
    let has = kernel.capabilities();
    // Both or neither, because with access control lists alone the kernel would still apply the umask.
    let for_acl = InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
    let acl = config.acl && config.xattr && config.default_permissions && kernel.add_capabilities(for_acl).is_ok();
    // A server that answers GETXATTR gets one for `security.capability` before every write, unless the kernel may cache
    // that there is nothing to drop. It may do so only if the server drops these bits. Without extended attributes it
    // never asks, and drops set-id bits itself, with a SETATTR before it writes, truncates or changes the owner.
    let drops_privileges = config.xattr && kernel.add_capabilities(InitFlags::FUSE_HANDLE_KILLPRIV_V2).is_ok();
    // This cannot be undone once it is negotiated: from then on all messages wait for the rings.
    let io_uring = config.io_uring != IoUring::Off
        && FuseRing::possible().inspect_err(|error| tracing::debug!(%error, "no io_uring")).is_ok()
        && kernel.add_capabilities(InitFlags::FUSE_OVER_IO_URING).is_ok();
    Capabilities {
        io_uring,
        no_open: has.contains(InitFlags::FUSE_NO_OPEN_SUPPORT),
        no_opendir: has.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT),
        acl,
        drops_privileges,
    }
}
