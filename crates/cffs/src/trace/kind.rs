//! The kinds of spans.

use super::classes::Classes;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal, $class:ident, [$($arg:literal),*];)*) => {
        /// What a span is. The numbers are those of the file format.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $variant = $number,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant,)*];

            /// Its name in tables, lower-case.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$variant => $name,)* }
            }

            /// The class that it is switched on with.
            pub const fn class(self) -> Classes {
                match self { $(Kind::$variant => Classes::$class,)* }
            }

            /// Names of the arguments of its records.
            pub const fn arg_names(self) -> &'static [&'static str] {
                match self { $(Kind::$variant => &[$($arg),*],)* }
            }

            /// The kind with a number in a file.
            pub fn from_number(n: u8) -> Option<Kind> {
                match n { $($number => Some(Kind::$variant),)* _ => None }
            }
        }
    };
}

kinds! {
    /// Mounting: recovery, and what is read first.
    Mount = 1, "mount", OP, [];
    /// Unmounting: everything is written.
    Unmount = 2, "unmount", OP, [];
    /// A name is looked up.
    Lookup = 3, "lookup", OP, ["directory"];
    /// Attributes are read.
    Getattr = 4, "getattr", OP, ["inode"];
    /// Attributes change; a file is cut.
    Setattr = 5, "setattr", OP, ["inode"];
    /// A directory is listed.
    Readdir = 6, "readdir", OP, ["directory", "position"];
    /// A symbolic link is read.
    Readlink = 7, "readlink", OP, ["inode"];
    /// File data is read.
    Read = 8, "read", OP, ["inode", "offset", "length"];
    /// File data is written.
    Write = 9, "write", OP, ["inode", "offset", "length"];
    /// A file is created.
    Create = 10, "create", OP, ["directory"];
    /// A directory is created.
    Mkdir = 11, "mkdir", OP, ["directory"];
    /// A device, FIFO or socket is created.
    Mknod = 12, "mknod", OP, ["directory"];
    /// A symbolic link is created.
    Symlink = 13, "symlink", OP, ["directory"];
    /// A further name.
    Link = 14, "link", OP, ["directory", "inode"];
    /// A name is removed.
    Unlink = 15, "unlink", OP, ["directory"];
    /// A directory is removed.
    Rmdir = 16, "rmdir", OP, ["directory"];
    /// A name changes.
    Rename = 17, "rename", OP, ["from", "to"];
    /// A file without a name.
    Tmpfile = 18, "tmpfile", OP, ["directory"];
    /// Space is allocated, freed or moved.
    Fallocate = 19, "fallocate", OP, ["inode", "offset", "length"];
    /// A range is copied.
    Copy = 20, "copy", OP, ["from", "to", "length"];
    /// The next data or hole is looked for.
    Seek = 21, "seek", OP, ["inode", "offset"];
    /// A file is made durable.
    Fsync = 22, "fsync", OP, ["inode"];
    /// Everything is made durable.
    Sync = 23, "sync", OP, [];
    /// Extended attributes are read.
    Getxattr = 24, "getxattr", OP, ["inode"];
    /// Extended attributes change.
    Setxattr = 25, "setxattr", OP, ["inode"];
    /// References are given back, and an unlinked file goes with the last one; for a replay, those of any file.
    Forget = 26, "forget", OP, ["inode"];
    /// Free space is discarded.
    Trim = 27, "trim", OP, [];
    /// The file system grows.
    Grow = 28, "grow", OP, [];
    /// Settings in the superblock change.
    Tune = 29, "tune", OP, [];
    /// Quotas are read, set or counted.
    Quota = 30, "quota", OP, [];
    /// What a program reads is noted, and perhaps read with its beginning.
    Learn = 31, "learn", OP, ["inode"];
    /// Somebody manages a log disk or a volume: snapshots, members, growth.
    Manage = 32, "manage", OP, [];
    /// A message of the kernel.
    Message = 64, "message", MESSAGE, ["opcode", "inode", "process"];
    /// A block is not cached, and is read.
    Miss = 70, "miss", CACHE, ["block", "blocks"];
    /// Somebody else is transferring the block.
    Wait = 71, "wait", CACHE, ["block"];
    /// The readahead thread reads.
    Readahead = 72, "readahead", READAHEAD, ["block", "blocks"];
    /// Dirty data is written back.
    Writeback = 80, "writeback", WRITEBACK, ["files"];
    /// The running transaction becomes durable.
    Commit = 90, "commit", JOURNAL, ["transaction", "bytes"];
    /// Committed blocks are written in place.
    Checkpoint = 91, "checkpoint", JOURNAL, [];
    /// Another commit is under way.
    CommitWait = 92, "commit-wait", JOURNAL, [];
    /// A log disk writes what was written to it.
    Batch = 93, "batch", JOURNAL, [];
    /// A log disk stores its map.
    MapCheckpoint = 94, "map-checkpoint", JOURNAL, [];
    /// The background thread writes back and commits.
    Background = 96, "background", BACKGROUND, [];
    /// What has come apart is moved back together.
    Regroup = 97, "regroup", BACKGROUND, [];
    /// What is stored is verified.
    Scrub = 98, "scrub", BACKGROUND, [];
    /// A log disk makes space usable again.
    Clean = 99, "clean", BACKGROUND, [];
    /// A member of a mirror gets what it lacks.
    Resync = 100, "resync", BACKGROUND, [];
    /// A log disk is opened, and recovers what was written after its last checkpoint.
    Recover = 101, "recover", BACKGROUND, [];
    /// Another file system on the same log disk uses it: a snapshot or a clone that is mounted beside.
    OtherMount = 102, "other-mount", BACKGROUND, [];
    /// A disk reads.
    DeviceRead = 110, "device-read", DEVICE, ["offset", "length", "what"];
    /// A disk writes.
    DeviceWrite = 111, "device-write", DEVICE, ["offset", "length", "what"];
    /// A disk makes writes durable.
    DeviceFlush = 112, "device-flush", DEVICE, ["offset", "length", "what"];
    /// A disk is told what is no longer used.
    DeviceDiscard = 113, "device-discard", DEVICE, ["offset", "length", "what"];
    /// A log disk or a volume reads, which makes requests of its own for it.
    LogicalRead = 120, "logical-read", DEVICE, ["offset", "length", "what"];
    /// It is written to.
    LogicalWrite = 121, "logical-write", DEVICE, ["offset", "length", "what"];
    /// It makes writes durable.
    LogicalFlush = 122, "logical-flush", DEVICE, ["offset", "length", "what"];
    /// It is told what is no longer used.
    LogicalDiscard = 123, "logical-discard", DEVICE, ["offset", "length", "what"];
}

impl Kind {
    /// Whether other spans are counted as caused by it, in tables of causes: operations, and work that nobody asked for at
    /// that moment.
    pub const fn is_origin(self) -> bool {
        self.class().meets(Classes::OP)
            || matches!(
                self,
                Kind::Regroup | Kind::Scrub | Kind::Clean | Kind::Resync | Kind::Recover | Kind::OtherMount
            )
    }

    /// Whether it is a request of a log disk or a volume.
    pub const fn is_logical_request(self) -> bool {
        self.class().meets(Classes::DEVICE) && !self.is_request()
    }

    /// Whether it is done for many, of whom it has a list.
    pub const fn is_for_many(self) -> bool {
        matches!(
            self,
            Kind::Readahead | Kind::Writeback | Kind::Commit | Kind::Checkpoint | Kind::Batch | Kind::MapCheckpoint
        )
    }

    /// Whether it is recorded where these classes are. What is done for many is also where requests are: only it knows for whom they
    /// were made.
    pub const fn is_recorded(self, on: Classes) -> bool {
        self.class().meets(on) || self.is_for_many() && on.meets(Classes::DEVICE)
    }

    /// Whether it is a request of a disk.
    pub const fn is_request(self) -> bool {
        matches!(self, Kind::DeviceRead | Kind::DeviceWrite | Kind::DeviceFlush | Kind::DeviceDiscard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique() {
        let mut names: Vec<&str> = Kind::ALL.iter().map(|k| k.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Kind::ALL.len());
        assert!(Kind::ALL.iter().all(|k| Kind::from_number(*k as u8) == Some(*k)));
        assert!(Kind::ALL.iter().all(|k| k.arg_names().len() <= 3 && *k as u8 != 0));
        assert_eq!(Kind::from_number(0), None);
    }
}
