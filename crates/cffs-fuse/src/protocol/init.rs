//! What is negotiated with the kernel when a connection begins.

use super::wire::{Reader, Writer};
use crate::config::{IoUring, MountConfig};
use cffs_buf::FuseRing;

/// The version of the protocol that this crate knows. A newer kernel does without what came later.
const MAJOR: u32 = 7;
const MINOR: u32 = 45;
/// The oldest minor version: Linux 4.20. Before it the kernel cannot be told how long a message may be, nor that opening
/// needs no message.
const MINOR_MIN: u32 = 28;

/// Bytes of `struct fuse_init_out`.
const INIT_OUT_LEN: usize = 64;

/// Flags of INIT: those below bit 32 in `flags`, the others in `flags2`.
mod flag {
    pub(super) const ASYNC_READ: u64 = 1 << 0;
    pub(super) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(super) const BIG_WRITES: u64 = 1 << 5;
    pub(super) const DONT_MASK: u64 = 1 << 6;
    pub(super) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(super) const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub(super) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(super) const POSIX_ACL: u64 = 1 << 20;
    pub(super) const MAX_PAGES: u64 = 1 << 22;
    pub(super) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(super) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub(super) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(super) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(super) const SETXATTR_EXT: u64 = 1 << 29;
    pub(super) const INIT_EXT: u64 = 1 << 30;
    pub(super) const OVER_IO_URING: u64 = 1 << 41;
}

/// Requested if the kernel supports it.
const WANTED: u64 = flag::ASYNC_READ
    | flag::BIG_WRITES
    | flag::INIT_EXT
    // Every listing brings attributes: they lie in the directory block, so they cost nothing, and they save the LOOKUPs.
    | flag::DO_READDIRPLUS
    | flag::PARALLEL_DIROPS
    | flag::CACHE_SYMLINKS
    // The server is the only writer, so cached pages become stale only through the kernel itself. Without this flag a
    // size in a reply that differs from the cached one drops the cached pages.
    | flag::EXPLICIT_INVAL_DATA
    | flag::MAX_PAGES
    // File handles stay good after the kernel has forgotten the inode: it asks for `.` and `..` by number then.
    | flag::EXPORT_SUPPORT
    // SETXATTR says whether an access control list takes away the set-group-id bit.
    | flag::SETXATTR_EXT;
// Left out on purpose:
// - WRITEBACK_CACHE, AUTO_INVAL_DATA: see the crate's documentation;
// - ASYNC_DIO: the kernel drops cached pages before an asynchronous direct write and not after it, so that a buffered read
//   beside it can leave old bytes in the page cache for good; and it turns a short write into EIO. Without the flag it
//   does both right. Programs that want several direct requests in flight have threads or io_uring for them;
// - ATOMIC_O_TRUNC: without OPEN messages truncation has to come as SETATTR;
// - POSIX_LOCKS, FLOCK_LOCKS: one kernel, so its own lock tables are the right ones, and free;
// - SECURITY_CTX, CREATE_SUPP_GROUP: nothing here needs the contexts, and the kernel strips set-group-id itself;
// - ALLOW_IDMAP: messages would say who asks only where a file is created, and quotas and privileges need it elsewhere;
// - SUBMOUNTS, MAP_ALIGNMENT, PASSTHROUGH, HAS_RESEND, REQUEST_TIMEOUT: for servers of another kind.

/// What the kernel does without a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// SETXATTR has flags of its own.
    pub(crate) setxattr_flags: bool,
    /// Messages go through io_uring, and wait until it is set up.
    pub(crate) io_uring: bool,
}

/// The kernel's side, in an INIT message.
#[derive(Clone, Copy, Debug)]
struct Offer {
    major: u32,
    minor: u32,
    readahead: u32,
    flags: u64,
}

impl Offer {
    /// `struct fuse_init_in`. Missing bytes of an older kernel read as zeros.
    fn read(args: &[u8]) -> Offer {
        let mut r = Reader::new(args);
        let (major, minor, readahead, flags) = (r.u32(), r.u32(), r.u32(), r.u32());
        let more = if u64::from(flags) & flag::INIT_EXT != 0 { r.u32() } else { 0 };
        Offer { major, minor, readahead, flags: u64::from(flags) | u64::from(more) << 32 }
    }
}

/// The outcome of an INIT message.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The connection can be used.
    Agreed(Capabilities),
    /// The kernel has a newer major version, and sends INIT again in ours.
    Again,
    /// The kernel is too old; its version.
    TooOld(u32, u32),
}

/// Answers an INIT message: writes the reply into `out`, and returns what was agreed with the number of bytes.
pub(crate) fn answer(args: &[u8], config: &MountConfig, out: &mut [u8]) -> (Outcome, usize) {
    let offer = Offer::read(args);
    let mut out = Writer::new(out);
    if offer.major > MAJOR {
        [MAJOR, MINOR].iter().for_each(|n| out.u32(*n));
        return (Outcome::Again, out.len());
    }
    if offer.major < MAJOR || offer.minor < MINOR_MIN {
        return (Outcome::TooOld(offer.major, offer.minor), 0);
    }
    let (flags, capabilities) = choose(offer.flags, config);
    let page = rustix::param::page_size() as u32;
    [MAJOR, MINOR, config.readahead.min(offer.readahead), flags as u32].iter().for_each(|n| out.u32(*n));
    // The kernel counts a device as congested at three quarters of what may be in flight.
    let background = config.max_background.max(1);
    out.put(&background.to_ne_bytes());
    out.put(&(background - background / 4).to_ne_bytes());
    out.u32(config.max_transfer.max(page));
    // Times have a resolution of a nanosecond.
    out.u32(1);
    out.put(&u16::try_from(config.max_transfer.div_ceil(page)).unwrap_or(u16::MAX).to_ne_bytes());
    // No alignment for mappings.
    out.put(&[0; 2]);
    out.u32((flags >> 32) as u32);
    let rest = INIT_OUT_LEN - out.len();
    out.put(&[0; INIT_OUT_LEN][..rest]);
    (Outcome::Agreed(capabilities), out.len())
}

/// The flags that are answered, and what they mean for the server.
fn choose(offered: u64, config: &MountConfig) -> (u64, Capabilities) {
    let has = |flags: u64| offered & flags == flags;
    let mut flags = offered & WANTED;
    // Both or neither, because with access control lists alone the kernel would still apply the umask.
    let for_acl = flag::POSIX_ACL | flag::DONT_MASK;
    let acl = config.acl && config.xattr && config.default_permissions && has(for_acl);
    // A server that answers GETXATTR gets one for `security.capability` before every write, unless the kernel may cache
    // that there is nothing to drop. It may do so only if the server drops these bits. Without extended attributes it
    // never asks, and drops set-id bits itself, with a SETATTR before it writes, truncates or changes the owner.
    let drops_privileges = config.xattr && has(flag::HANDLE_KILLPRIV_V2);
    // This cannot be undone once it is negotiated: from then on all messages wait for the rings.
    let io_uring = config.io_uring != IoUring::Off
        && has(flag::OVER_IO_URING)
        && FuseRing::possible().inspect_err(|error| tracing::debug!(%error, "no io_uring")).is_ok();
    let chosen = [(acl, for_acl), (drops_privileges, flag::HANDLE_KILLPRIV_V2), (io_uring, flag::OVER_IO_URING)];
    chosen.iter().filter(|(on, _)| *on).for_each(|(_, f)| flags |= f);
    let capabilities = Capabilities {
        no_open: has(flag::NO_OPEN_SUPPORT),
        no_opendir: has(flag::NO_OPENDIR_SUPPORT),
        acl,
        drops_privileges,
        setxattr_flags: has(flag::SETXATTR_EXT),
        io_uring,
    };
    (flags, capabilities)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An INIT message with these flags.
    fn offer(major: u32, minor: u32, flags: u64) -> Vec<u8> {
        let words = [major, minor, 128 << 10, flags as u32, (flags >> 32) as u32];
        let mut args: Vec<u8> = words.iter().flat_map(|n| n.to_ne_bytes()).collect();
        args.resize(64, 0);
        args
    }

    fn config() -> MountConfig {
        MountConfig { io_uring: IoUring::Off, ..MountConfig::default() }
    }

    #[test]
    fn what_the_kernel_lacks_is_not_asked_for() {
        let mut out = [0xaa; INIT_OUT_LEN];
        let (outcome, len) = answer(&offer(7, 31, flag::MAX_PAGES | flag::NO_OPEN_SUPPORT), &config(), &mut out);
        let Outcome::Agreed(c) = outcome else { panic!("{outcome:?}") };
        assert_eq!(len, INIT_OUT_LEN);
        assert_eq!(c, Capabilities { no_open: true, ..Capabilities::default() });
        let mut r = Reader::new(&out);
        assert_eq!((r.u32(), r.u32(), r.u32()), (7, MINOR, 128 << 10));
        assert_eq!(u64::from(r.u32()), flag::MAX_PAGES);
    }

    #[test]
    fn all_that_is_wanted_is_agreed_where_it_is_offered() {
        let mut out = [0; INIT_OUT_LEN];
        let (outcome, _) = answer(&offer(7, 45, u64::MAX), &config(), &mut out);
        let Outcome::Agreed(c) = outcome else { panic!("{outcome:?}") };
        assert!(c.acl && c.drops_privileges && c.no_open && c.no_opendir && c.setxattr_flags && !c.io_uring);
        let mut r = Reader::new(&out[12..]);
        let flags = u64::from(r.u32());
        assert_eq!(flags & WANTED, WANTED);
        assert_eq!(flags & (flag::POSIX_ACL | flag::DONT_MASK), flag::POSIX_ACL | flag::DONT_MASK);
        let without = MountConfig { xattr: false, ..config() };
        let (outcome, _) = answer(&offer(7, 45, u64::MAX), &without, &mut out);
        assert!(matches!(outcome, Outcome::Agreed(c) if !c.acl && !c.drops_privileges));
    }

    #[test]
    fn other_versions() {
        let mut out = [0; INIT_OUT_LEN];
        assert!(matches!(answer(&offer(8, 0, 0), &config(), &mut out), (Outcome::Again, 8)));
        assert!(matches!(answer(&offer(7, 9, 0), &config(), &mut out).0, Outcome::TooOld(7, 9)));
        assert!(matches!(answer(&[], &config(), &mut out).0, Outcome::TooOld(0, 0)));
    }
}
