//! Messages from the server to the kernel that nobody asked for.

use cffs::Ino;
use rustix::io::write;
use std::os::fd::OwnedFd;

/// `FUSE_NOTIFY_INVAL_INODE`.
const INVAL_INODE: i32 = 2;
/// Bytes of `struct fuse_out_header` and `fuse_notify_inval_inode_out`.
const LEN: usize = 16 + 24;

/// Sends them over the connection of a mount.
#[derive(Debug)]
pub(crate) struct Notifier(OwnedFd);

impl Notifier {
    pub(crate) fn new(fuse: OwnedFd) -> Notifier {
        Notifier(fuse)
    }

    /// Makes the kernel drop the attributes that it has cached for an inode.
    pub(crate) fn attributes_changed(&self, ino: Ino) {
        // A negative offset stands for attributes alone.
        self.invalidate(ino, -1);
    }

    /// Makes the kernel drop the cached pages and attributes of an inode. Waits for pages that are being read, so that
    /// other threads have to answer meanwhile.
    pub(crate) fn contents_gone(&self, ino: Ino) {
        self.invalidate(ino, 0);
    }

    fn invalidate(&self, ino: Ino, offset: i64) {
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&(LEN as u32).to_ne_bytes());
        // The field of the error has the kind of the notification, and there is no message that it replies to.
        bytes[4..8].copy_from_slice(&INVAL_INODE.to_ne_bytes());
        bytes[16..24].copy_from_slice(&ino.to_ne_bytes());
        bytes[24..32].copy_from_slice(&offset.to_ne_bytes());
        // This fails only if the kernel has forgotten the inode.
        let _ = write(&self.0, &bytes);
    }
}
