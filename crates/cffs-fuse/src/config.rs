//! Settings of a mount that the engine does not need to know.

use cffs_logdisk::LogDisk;
use cffs_volume::Volume;
use std::sync::Arc;
use std::time::Duration;

/// Whether messages come through io_uring: two to three times as many in a second, on Linux from 6.14 on, if the administrator
/// allows it with the parameter `enable_uring` of the module `fuse`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoUring {
    /// Where the kernel allows it.
    #[default]
    Allowed,
    /// Mounting fails without it.
    Required,
    /// Never.
    Off,
}

/// What of a log disk is mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogView {
    /// The file system itself.
    #[default]
    FileSystem,
    /// A snapshot or clone, by its name, and nothing else of this log disk in this process.
    Alone(String),
    /// A snapshot or clone, by a process that serves the file system itself.
    Attached(String),
    /// The file system as it was when this was mounted, by such a process.
    Temporary,
}

impl LogView {
    /// Whether the process serves the file system itself as well, and this ends with that.
    pub(crate) fn is_attached(&self) -> bool {
        matches!(self, LogView::Attached(_) | LogView::Temporary)
    }
}

/// How to mount. Whether the mount is read-only is the engine's business: see [`cffs::Fs::is_read_only`].
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// What `mount` and `df` show as the device: the image.
    pub fsname: String,
    /// Other users than the one who mounts may use the file system.
    pub allow_other: bool,
    /// The kernel checks permission bits, as for its own file systems. Without this, anybody who can reach the mount
    /// may do anything.
    pub default_permissions: bool,
    /// Extended attributes. They cost messages: the kernel asks for `security.capability` before the first write to a
    /// file, and programs such as `ls -l` ask for access control lists.
    pub xattr: bool,
    /// POSIX access control lists can be set and are enforced; only with [`MountConfig::xattr`] and
    /// [`MountConfig::default_permissions`]. They cost messages for users other than the owner: the kernel asks for the
    /// list of an inode before it checks permissions.
    pub acl: bool,
    /// statx(2) tells birth times. They cost a message for each inode whose birth time a program asks for, which some do with
    /// every stat (those in Rust, and Node.js), because the kernel gets them in no other.
    pub birth_times: bool,
    /// Set-user-id and set-group-id bits of programs take effect. Only root can have this.
    pub suid: bool,
    /// Device files work. Only root can have this.
    pub dev: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Threads that answer the kernel. Each waits for the device alone, and fsyncs share a commit only if they wait at the
    /// same time, so there are more of them than processors.
    pub threads: usize,
    /// How long the kernel may use cached names and attributes without asking again.
    pub ttl: Duration,
    /// Largest WRITE and READ in bytes.
    pub max_transfer: u32,
    /// How far the kernel reads ahead in a file, in bytes. Only root can set it; otherwise the kernel's own 128 KiB
    /// apply.
    pub readahead: u32,
    /// Requests that the kernel keeps in flight in the background (readahead, asynchronous direct I/O).
    pub max_background: u16,
    /// Whether messages come through io_uring.
    pub io_uring: IoUring,
    /// After which time without an operation files are brought back together (`cffs::Fs::maintain`). `None`: never.
    pub maintenance: Option<Duration>,
    /// Whether it is noted which files programs read, and which parts of large ones, where the key `learned` holds.
    pub learn: bool,
    /// The log disk that the file system is on, in the log layout: it is cleaned in the background, and has snapshots.
    pub log_disk: Option<Arc<LogDisk>>,
    /// What of that log disk is mounted.
    pub log_view: LogView,
    /// The volume that the file system, or its log disk, is on: members that lack something are brought up to date in the background.
    pub volume: Option<Arc<Volume>>,
}

impl Default for MountConfig {
    fn default() -> Self {
        let root = rustix::process::geteuid().is_root();
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        MountConfig {
            fsname: "cffs".into(),
            // A mount by root is for everybody, as with any other file system. Other users need `user_allow_other` in
            // /etc/fuse.conf for that.
            allow_other: root,
            default_permissions: true,
            xattr: true,
            acl: true,
            birth_times: true,
            suid: root,
            dev: root,
            exec: true,
            threads: (2 * cpus).clamp(8, 32),
            ttl: Duration::from_secs(10 * 365 * 86_400),
            max_transfer: 1 << 20,
            readahead: 1 << 20,
            max_background: 64,
            io_uring: IoUring::Allowed,
            maintenance: None,
            learn: true,
            log_disk: None,
            log_view: LogView::FileSystem,
            volume: None,
        }
    }
}

impl MountConfig {
    /// Options for the kernel and for fusermount3, without those that are passed in other ways.
    pub(crate) fn data_options(&self) -> Vec<String> {
        let mut options = Vec::new();
        if self.default_permissions {
            options.push("default_permissions".to_owned());
        }
        if self.allow_other {
            options.push("allow_other".to_owned());
        }
        options.push(format!("max_read={}", self.max_transfer));
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_follow_the_settings() {
        let mut c = MountConfig { allow_other: true, default_permissions: false, ..MountConfig::default() };
        assert_eq!(c.data_options(), ["allow_other", "max_read=1048576"]);
        c.allow_other = false;
        c.default_permissions = true;
        assert_eq!(c.data_options(), ["default_permissions", "max_read=1048576"]);
    }
}
