//! The kinds of messages.

macro_rules! opcodes {
    ($($variant:ident = $number:literal, $args:literal, $name:literal;)*) => {
        /// A kind of message that this crate answers, up to version 7.45 of the protocol (Linux 6.18).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Opcode { $($variant = $number),* }

        impl Opcode {
            /// All of them.
            pub(crate) const ALL: &[Opcode] = &[$(Opcode::$variant),*];

            /// The kind with this number; `None` if it is not answered.
            pub(crate) fn of(number: u32) -> Option<Opcode> {
                match number {
                    $($number => Some(Opcode::$variant),)*
                    _ => None,
                }
            }

            /// Bytes of the structure of arguments that every message of this kind begins with.
            pub(crate) fn args_len(self) -> usize {
                match self { $(Opcode::$variant => $args),* }
            }

            /// Its name in the counters. Messages that ask for the same have the same one.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Opcode::$variant => $name),* }
            }
        }
    };
}

opcodes! {
    Lookup = 1, 0, "lookup";
    Forget = 2, 8, "forget";
    GetAttr = 3, 16, "getattr";
    SetAttr = 4, 88, "setattr";
    ReadLink = 5, 0, "readlink";
    SymLink = 6, 0, "symlink";
    MkNod = 8, 16, "mknod";
    MkDir = 9, 8, "mkdir";
    Unlink = 10, 0, "unlink";
    RmDir = 11, 0, "rmdir";
    Rename = 12, 8, "rename";
    Link = 13, 8, "link";
    Open = 14, 8, "open";
    Read = 15, 40, "read";
    Write = 16, 40, "write";
    StatFs = 17, 0, "statfs";
    Release = 18, 24, "release";
    Fsync = 20, 16, "fsync";
    SetXattr = 21, 16, "setxattr";
    GetXattr = 22, 8, "getxattr";
    ListXattr = 23, 8, "listxattr";
    RemoveXattr = 24, 0, "removexattr";
    Flush = 25, 24, "flush";
    Init = 26, 64, "init";
    OpenDir = 27, 8, "opendir";
    ReadDir = 28, 40, "readdir";
    ReleaseDir = 29, 24, "releasedir";
    FsyncDir = 30, 16, "fsyncdir";
    Access = 34, 8, "access";
    Create = 35, 16, "create";
    Interrupt = 36, 8, "interrupt";
    Destroy = 38, 0, "destroy";
    Ioctl = 39, 32, "ioctl";
    Poll = 40, 24, "poll";
    BatchForget = 42, 8, "forget";
    Fallocate = 43, 32, "fallocate";
    ReadDirPlus = 44, 40, "readdirplus";
    Rename2 = 45, 16, "rename";
    Lseek = 46, 24, "lseek";
    CopyFileRange = 47, 56, "copy_file_range";
    SyncFs = 50, 8, "syncfs";
    TmpFile = 51, 16, "tmpfile";
    Statx = 52, 24, "statx";
    CopyFileRange64 = 53, 56, "copy_file_range";
}

impl Opcode {
    /// Whether the kernel waits for a reply.
    pub(crate) fn has_reply(self) -> bool {
        !matches!(self, Opcode::Forget | Opcode::BatchForget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_their_kind() {
        for op in Opcode::ALL {
            assert_eq!(Opcode::of(*op as u32), Some(*op));
            assert!(op.args_len().is_multiple_of(8) && op.args_len() <= 128, "{op:?}");
        }
        assert_eq!(Opcode::of(0), None);
        assert_eq!(Opcode::of(31), None, "locks are the kernel's own");
        assert_eq!(Opcode::of(u32::MAX), None);
    }
}
