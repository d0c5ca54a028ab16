//! Counts the messages of the kernel, by kind.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! messages {
    ($($field:ident $variant:ident),* $(,)?) => {
        /// A kind of message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Message { $($variant),* }

        impl Message {
            pub(crate) fn name(self) -> &'static str {
                match self { $(Message::$variant => stringify!($field)),* }
            }
        }

        /// The number of messages of each kind.
        #[derive(Debug, Default)]
        pub(crate) struct Messages { $($field: AtomicU64),* }

        /// The counts at one time.
        #[derive(Clone, Copy, Debug, Default, Serialize)]
        pub(crate) struct MessageCounts { $($field: u64),* }

        impl Messages {
            pub(crate) fn count(&self, m: Message) {
                match m { $(Message::$variant => &self.$field),* }.fetch_add(1, Ordering::Relaxed);
            }

            pub(crate) fn counts(&self) -> MessageCounts {
                MessageCounts { $($field: self.$field.load(Ordering::Relaxed)),* }
            }
        }
    };
}

messages! {
    lookup Lookup,
    forget Forget,
    getattr GetAttr,
    setattr SetAttr,
    readlink ReadLink,
    mknod MkNod,
    mkdir MkDir,
    unlink Unlink,
    rmdir RmDir,
    symlink SymLink,
    rename Rename,
    link Link,
    open Open,
    read Read,
    write Write,
    flush Flush,
    release Release,
    fsync Fsync,
    opendir OpenDir,
    readdir ReadDir,
    readdirplus ReadDirPlus,
    releasedir ReleaseDir,
    fsyncdir FsyncDir,
    statfs StatFs,
    create Create,
    lseek Lseek,
    fallocate Fallocate,
    copy_file_range CopyFileRange,
    getxattr GetXattr,
    setxattr SetXattr,
    listxattr ListXattr,
    removexattr RemoveXattr,
    ioctl Ioctl,
    unsupported Unsupported,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_kind() {
        let m = Messages::default();
        m.count(Message::Read);
        m.count(Message::Read);
        m.count(Message::Lookup);
        let c = m.counts();
        assert_eq!((c.read, c.lookup, c.write), (2, 1, 0));
        assert_eq!(Message::ReadDirPlus.name(), "readdirplus");
    }
}
