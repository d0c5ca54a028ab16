//! The counters of a mounted file system, read through the mount.
//!
//! Every lookup of [`STATS_FILE`] in the root creates a new read-only file with the counters of that moment. It is in
//! no listing, and has another inode number each time, so that the kernel's caches cannot mix up two of them. An
//! extended attribute would do too, but a file system that answers GETXATTR once gets that message before every write.

use crate::mountpoint::Unmounter;
use cffs::{Attr, FileType, Ino};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// Name of the file in the root directory of a mount that holds the counters.
pub const STATS_FILE: &str = ".cffs-stats";

/// Inode numbers from here on are stats files. The file system itself counts up from 16.
const FIRST: Ino = 1 << 63;

/// Whether `ino` is a stats file.
pub(crate) fn is_stats_file(ino: Ino) -> bool {
    ino >= FIRST
}

/// The stats files that the kernel knows.
#[derive(Debug, Default)]
pub(crate) struct StatsFiles {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    made: u64,
    live: HashMap<Ino, StatsFile>,
}

#[derive(Clone, Debug)]
struct StatsFile {
    text: Arc<str>,
    time: i64,
}

impl StatsFiles {
    /// Creates one, and takes one reference to it.
    pub(crate) fn make(&self, text: String) -> Attr {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let stats_file = StatsFile { text: text.into(), time: i64::try_from(now.as_nanos()).unwrap_or(i64::MAX) };
        let mut inner = self.inner.lock();
        let ino = FIRST + inner.made;
        inner.made += 1;
        let attr = stats_file.attr(ino);
        inner.live.insert(ino, stats_file);
        attr
    }

    pub(crate) fn forget(&self, ino: Ino) {
        self.inner.lock().live.remove(&ino);
    }

    pub(crate) fn attr(&self, ino: Ino) -> Option<Attr> {
        self.inner.lock().live.get(&ino).map(|s| s.attr(ino))
    }

    pub(crate) fn text(&self, ino: Ino) -> Option<Arc<str>> {
        self.inner.lock().live.get(&ino).map(|s| s.text.clone())
    }
}

impl StatsFile {
    fn attr(&self, ino: Ino) -> Attr {
        let size = self.text.len() as u64;
        Attr {
            ino,
            generation: 0,
            file_type: FileType::Regular,
            perm: 0o444,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: size.div_ceil(512),
            atime: self.time,
            mtime: self.time,
            ctime: self.time,
            btime: self.time,
            flags: 0,
            transfer: 4096,
        }
    }
}

/// The counters of the file system mounted at `dir`, as JSON: those of the engine ([`cffs::stats::FsStats`]), under
/// `fuse` the process that serves the mount and the messages it got, by kind, and under `read_only` whether the engine
/// refuses to write (it was mounted so, or its log has failed).
pub fn read_stats(dir: &Path) -> io::Result<String> {
    std::fs::read_to_string(dir.join(STATS_FILE)).map_err(|e| {
        let what = match e.kind() {
            io::ErrorKind::NotFound => format!("{} is not the root of a mounted cffs", dir.display()),
            _ => format!("{}: {e}", dir.display()),
        };
        io::Error::new(e.kind(), what)
    })
}

/// Unmounts the file system at `dir`. If it was not mounted anywhere else, waits for the process that served it to end: only
/// then is everything on the image. umount(2) alone returns earlier for a mount of type `fuse`.
pub fn unmount(dir: &Path) -> io::Result<()> {
    let path = dir.canonicalize()?;
    let unmounter = Unmounter::of(&path)?;
    if !unmounter.has_mount() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no cffs is mounted at {}", dir.display())));
    }
    let server = server_of(&path);
    unmounter.unmount()?;
    if unmounter.lives_on()? {
        tracing::info!(dir = %path.display(), "still mounted elsewhere");
        return Ok(());
    }
    if let Some(server) = server {
        loop {
            match rustix::event::poll(&mut [PollFd::new(&server, PollFlags::IN)], None) {
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
                Ok(_) => break,
            }
        }
    }
    Ok(())
}

/// The process that serves a mount, according to its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerProcess {
    pid: i32,
    /// Its start time in clock ticks since boot. It tells the process from one of another PID namespace with the same
    /// number.
    start: u64,
}

impl ServerProcess {
    pub(crate) fn current() -> Option<ServerProcess> {
        ServerProcess::with_pid(rustix::process::getpid().as_raw_pid())
    }

    fn with_pid(pid: i32) -> Option<ServerProcess> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field, in parentheses, can contain anything; the start time is the 22nd.
        let start = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
        Some(ServerProcess { pid, start })
    }
}

/// The process that serves the mount, unless it is this one or is not visible here.
fn server_of(dir: &Path) -> Option<OwnedFd> {
    let stats: serde_json::Value = serde_json::from_str(&read_stats(dir).ok()?).ok()?;
    let server: ServerProcess = serde_json::from_value(stats["fuse"]["server"].clone()).ok()?;
    if server.pid == rustix::process::getpid().as_raw_pid() {
        return None;
    }
    let fd = rustix::process::pidfd_open(Pid::from_raw(server.pid)?, PidfdFlags::empty()).ok()?;
    (ServerProcess::with_pid(server.pid) == Some(server)).then_some(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stats_file_has_its_own_number_until_forgotten() {
        let s = StatsFiles::default();
        let a = s.make("one".into());
        let b = s.make("three".into());
        assert_ne!(a.ino, b.ino);
        assert!(is_stats_file(a.ino) && is_stats_file(b.ino) && !is_stats_file(cffs::ROOT_INO));
        assert_eq!((a.size, b.size), (3, 5));
        assert_eq!(s.text(a.ino).as_deref(), Some("one"));
        s.forget(a.ino);
        assert_eq!(s.text(a.ino), None);
        assert_eq!(s.attr(b.ino), Some(b));
    }

    #[test]
    fn a_process_is_known_by_its_start_too() {
        let me = ServerProcess::current().unwrap();
        assert_eq!(ServerProcess::with_pid(me.pid), Some(me));
        assert!(me.start > 0);
        assert_ne!(ServerProcess::with_pid(1), Some(me));
        let text = serde_json::to_value(me).unwrap();
        assert_eq!(serde_json::from_value::<ServerProcess>(text).unwrap(), me);
    }

    #[test]
    fn nothing_mounted_is_nothing_to_unmount() {
        let tmp = tempfile::tempdir().unwrap();
        assert_eq!(unmount(tmp.path()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(unmount(Path::new("/proc")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_plain_directory_has_no_stats() {
        let tmp = tempfile::tempdir().unwrap();
        let e = read_stats(tmp.path()).unwrap_err();
        assert!(e.to_string().contains("not the root of a mounted cffs"), "{e}");
    }
}
