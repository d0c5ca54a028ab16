//! Who sends requests.

/// The sender of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    /// The user.
    pub(crate) uid: u32,
    /// The process, or a thread of it; 0 if it is in no process namespace that this process sees.
    pub(crate) pid: u32,
}

impl Asker {
    /// Whether this user may change the file system as a whole.
    pub(crate) fn may_change(self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}
