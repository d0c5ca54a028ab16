//! A mounted file system as it answers the kernel, and what all operations share.

use crate::config::MountConfig;
use crate::mount_state::MountState;
use crate::protocol::init::Capabilities;
use crate::protocol::opcode::Opcode;
use crate::protocol::wire::{Credentials, permissions};
use crate::stats_file::is_stats_file;
use cffs::{Attr, Caller, Error, Fs, Ino, NewPerm, Result};
use rustix::io::Errno;
use std::sync::Arc;

/// The result for the sender of a message.
pub(crate) type Reply<T> = std::result::Result<T, Errno>;

/// A mounted file system, as it answers the kernel.
pub(crate) struct Ops {
    pub(crate) state: Arc<MountState>,
    pub(crate) config: MountConfig,
    pub(crate) capabilities: Capabilities,
}

/// The sender of a message, for the engine.
pub(super) fn caller(who: Credentials) -> Caller {
    Caller { uid: who.uid, gid: who.gid }
}

/// Fails for a stats file, which cannot be changed.
pub(super) fn not_a_stats_file(ino: Ino) -> Result<()> {
    if is_stats_file(ino) { Err(Error::NotPermitted) } else { Ok(()) }
}

/// Whether the sender of a message is in a group; false if that cannot be found out.
pub(super) fn in_group(who: Credentials, gid: u32) -> bool {
    if who.uid == 0 || who.gid == gid {
        return true;
    }
    // The message has one group only. The others are those of the process.
    status_line(who, "Groups:").split_whitespace().any(|g| g.parse() == Ok(gid))
}

/// What the kernel says of the thread that sent a message, behind a label; nothing if it has ended.
fn status_line(who: Credentials, label: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", who.pid)).unwrap_or_default();
    status.lines().find_map(|l| l.strip_prefix(label)).unwrap_or_default().trim().to_owned()
}

/// Tells the engine which process has made a file, where that decides about its place.
pub(super) fn note_creator(fs: &Fs, who: Credentials, dir: Ino, file: &Attr) {
    if fs.places_by_process(dir) {
        // The message names the thread.
        fs.note_creator(file.ino, status_line(who, "Tgid:").parse().unwrap_or(who.pid));
    }
}

impl Ops {
    pub(crate) fn new(state: Arc<MountState>, config: &MountConfig, capabilities: Capabilities) -> Ops {
        Ops { state, config: config.clone(), capabilities }
    }

    /// Bytes of the structure of arguments that messages of this kind begin with on this connection.
    pub(crate) fn args_len(&self, op: Opcode) -> usize {
        // Older kernels send the first half.
        if op == Opcode::SetXattr && !self.capabilities.setxattr_flags { 8 } else { op.args_len() }
    }

    /// Permissions of a new file. The umask is applied later if the kernel has left it to the server.
    pub(super) fn new_permissions(&self, mode: u32, umask: u32) -> NewPerm {
        let umask = if self.capabilities.acl { permissions(umask) & 0o777 } else { 0 };
        NewPerm { bits: permissions(mode), umask }
    }

    /// Removes set-id bits and capabilities from a file whose contents somebody changes who may not keep them.
    /// Set-group-id without group execution is no identity, and falls where the sender is not in the group.
    pub(super) fn drop_privileges(&self, fs: &Fs, who: Credentials, ino: Ino) -> Result<()> {
        if fs.clear_set_id(ino, |gid| in_group(who, gid))? {
            self.state.attributes_changed(ino);
        }
        Ok(())
    }
}
