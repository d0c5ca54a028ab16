//! Mounting and unmounting: by system calls, or by fusermount3 for users other than root.
//!
//! fuser can mount by itself, but at the end of a session it unmounts whatever is at the path then. That can be another
//! file system, if `umount` and a new mount came first. Here a mount is identified by its device number.

use crate::config::MountConfig;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::{CString, OsStr, OsString};
use std::io::{self, IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// Mounts at `dir` (an absolute path without links) and returns the connection to the kernel.
pub(crate) fn attach(dir: &Path, config: &MountConfig, read_only: bool) -> io::Result<OwnedFd> {
    let fuse = match std::fs::OpenOptions::new().read(true).write(true).open(DEVICE) {
        Ok(file) => OwnedFd::from(file),
        // This process may not open it, but perhaps the helper may.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return attach_by_helper(dir, config, read_only),
        Err(e) => {
            let hint = if e.kind() == io::ErrorKind::NotFound {
                " (is the kernel module loaded? try 'modprobe fuse')"
            } else {
                ""
            };
            return Err(io::Error::new(e.kind(), format!("cannot open {DEVICE}: {e}{hint}")));
        }
    };
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        fuse.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    for option in config.data_options() {
        data.push(',');
        data.push_str(&option);
    }
    let data = CString::new(data).map_err(io::Error::other)?;
    match rustix::mount::mount(config.fsname.as_str(), dir, FSTYPE, flags(config, read_only), data.as_c_str()) {
        Ok(()) => Ok(fuse),
        Err(Errno::PERM) => attach_by_helper(dir, config, read_only),
        Err(e) => Err(io::Error::new(io::Error::from(e).kind(), format!("mount(2) at {}: {e}", dir.display()))),
    }
}

fn flags(config: &MountConfig, read_only: bool) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, read_only);
    flags.set(MountFlags::NOSUID, !config.suid);
    flags.set(MountFlags::NODEV, !config.dev);
    flags.set(MountFlags::NOEXEC, !config.exec);
    flags
}

/// Mounts with the set-uid helper, which sends the connection through a socket.
fn attach_by_helper(dir: &Path, config: &MountConfig, read_only: bool) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut options = config.data_options();
    // An unescaped comma would end the option.
    options.push(format!("fsname={}", config.fsname.replace('\\', "\\\\").replace(',', "\\,")));
    options.push("subtype=cffs".into());
    options.push(if read_only { "ro" } else { "rw" }.into());
    if !config.exec {
        options.push("noexec".into());
    }
    let mut child = Command::new(HELPER)
        .arg("-o")
        .arg(options.join(","))
        .arg("--")
        .arg(dir)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| {
            io::Error::new(e.kind(), format!("mounting without being root needs {HELPER} (package fuse3): {e}"))
        })?;
    let received = receive_fd(&ours);
    let mut complaint = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut complaint);
    }
    child.wait()?;
    match received {
        Ok(Some(fd)) => Ok(fd),
        Ok(None) => Err(io::Error::other(complaint.trim().to_owned())),
        Err(e) => Err(io::Error::new(
            e.kind(),
            format!("{}{}{e}", complaint.trim(), if complaint.is_empty() { "" } else { ": " }),
        )),
    }
}

/// The descriptor that the other end sends; `None` if it closed without sending one.
fn receive_fd(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8];
    loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(control.drain().find_map(|m| match m {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    }))
}

/// A mount as /proc/self/mountinfo shows it.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    major: u32,
    minor: u32,
    dir: PathBuf,
    fstype: String,
}

/// The mounts in a mountinfo file (see proc(5)), from bottom to top.
fn parse_mountinfo(text: &[u8]) -> Vec<Mounted> {
    text.split(|&b| b == b'\n').filter_map(parse_mountinfo_line).collect()
}

fn parse_mountinfo_line(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|&b| b == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let dir = unescape(fields.nth(1)?);
    let fstype = fields.skip_while(|f| *f != b"-").nth(1)?;
    Some(Mounted {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        dir,
        fstype: String::from_utf8_lossy(fstype).into_owned(),
    })
}

/// Decodes escapes such as `\040` in mountinfo.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&b, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        match octal {
            Some(value) if b == b'\\' => {
                out.push(value);
                rest = &tail[3..];
            }
            _ => {
                out.push(b);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

fn mounts() -> io::Result<Vec<Mounted>> {
    Ok(parse_mountinfo(&std::fs::read("/proc/self/mountinfo")?))
}

/// The type of a cffs mount in mountinfo.
const FSTYPE: &str = "fuse.cffs";

/// The device number (major, minor) of the cffs mounted at `dir`, if there is one.
fn device_at(dir: &Path) -> io::Result<Option<(u32, u32)>> {
    let all = mounts()?;
    let top = all.iter().rev().find(|m| m.dir == dir);
    Ok(top.filter(|m| m.fstype == FSTYPE).map(|m| (m.major, m.minor)))
}

/// Sets how far the kernel reads ahead. Only root may, and an error is ignored because this is only for speed.
pub(crate) fn set_readahead(dir: &Path, bytes: u32) {
    if let Ok(Some((major, minor))) = device_at(dir) {
        let file = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        if let Err(error) = std::fs::write(&file, (bytes >> 10).to_string()) {
            tracing::debug!(%file, %error, "readahead stays at the kernel's default");
        }
    }
}

/// Ends a mount, from any thread. It identifies the mount by its device number, and only while the session lasts, so it
/// never unmounts another file system mounted at the same place later.
#[derive(Clone, Debug)]
pub struct Unmounter {
    dir: PathBuf,
    device: Option<(u32, u32)>,
    /// Set when the session has ended. The device number may belong to another mount then.
    over: Arc<AtomicBool>,
    /// Held while unmounting: a second signal waits for the unmount of the first one.
    busy: Arc<Mutex<()>>,
    /// Makes the waiting session end although the kernel keeps the connection open.
    abandon: Option<Sender<Event>>,
}

/// What ends [`crate::Session::wait`].
pub(crate) enum Event {
    /// The kernel has closed the connection, or it broke.
    Ended(io::Result<()>),
    /// Do not wait for the kernel any longer.
    Abandon,
}

impl Unmounter {
    /// For the topmost FUSE mount at `dir`.
    pub(crate) fn of(dir: &Path) -> io::Result<Unmounter> {
        Ok(Unmounter {
            dir: dir.to_owned(),
            device: device_at(dir)?,
            over: Arc::default(),
            busy: Arc::default(),
            abandon: None,
        })
    }

    pub(crate) fn with_session(self, session: Sender<Event>, over: Arc<AtomicBool>) -> Unmounter {
        Unmounter { abandon: Some(session), over, ..self }
    }

    /// Whether a cffs was mounted there when this value was created.
    pub(crate) fn has_mount(&self) -> bool {
        self.device.is_some()
    }

    /// Its mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn is_mounted(&self) -> io::Result<bool> {
        if self.over.load(Ordering::Acquire) {
            return Ok(false);
        }
        let all = mounts()?;
        let top = all.iter().rev().find(|m| m.dir == self.dir);
        Ok(top.is_some_and(|m| Some((m.major, m.minor)) == self.device))
    }

    /// Unmounts as `umount` does: fails with EBUSY while a program uses the file system, and succeeds if it is not
    /// mounted any more. [`crate::Session::wait`] returns once the engine has been closed.
    pub fn unmount(&self) -> io::Result<()> {
        let _one = self.busy.lock();
        self.detach(UnmountFlags::empty(), &["-u"])
    }

    /// For a signal that ends the program: unmounts. If programs use the file system, collects what they have written
    /// from the kernel, and then ends the mount under them (they get ENOTCONN).
    pub fn terminate(&self) -> io::Result<()> {
        let _one = self.busy.lock();
        if !self.is_mounted()? {
            // The mount was detached with `umount -l` while a program uses it; or it is just ending by itself, and then
            // that event comes first.
            if let Some(session) = &self.abandon {
                let _ = session.send(Event::Abandon);
            }
            return Ok(());
        }
        match self.detach(UnmountFlags::empty(), &["-u"]) {
            Err(e) if e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {}
            done => return done,
        }
        tracing::warn!(dir = %self.dir.display(), "still in use; ending the mount anyway");
        // Pages written through mappings are still in the kernel only.
        if let Ok(dir) = std::fs::File::open(&self.dir) {
            let _ = rustix::fs::syncfs(&dir);
        }
        self.abort()
    }

    /// Ends the mount at once, even if it is in use. Data in mappings is lost.
    pub(crate) fn abort(&self) -> io::Result<()> {
        if !self.is_mounted()? {
            return Ok(());
        }
        if let Some((_, minor)) = self.device {
            // The user who mounted may write to this file, but it exists only if fusectl is mounted.
            let _ = std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
        }
        self.detach(UnmountFlags::FORCE | UnmountFlags::DETACH, &["-u", "-z"])
    }

    fn detach(&self, flags: UnmountFlags, helper_args: &[&str]) -> io::Result<()> {
        if !self.is_mounted()? {
            return Ok(());
        }
        match rustix::mount::unmount(&self.dir, flags | UnmountFlags::NOFOLLOW) {
            Ok(()) => Ok(()),
            Err(Errno::PERM) => unmount_by_helper(&self.dir, helper_args),
            // Another process was faster.
            Err(Errno::INVAL | Errno::NOENT) if !self.is_mounted()? => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

fn unmount_by_helper(dir: &Path, args: &[&str]) -> io::Result<()> {
    let out = Command::new(HELPER).args(args).arg("--").arg(dir).stdin(Stdio::null()).output()?;
    if out.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&out.stderr);
    if message.contains("busy") {
        return Err(Errno::BUSY.into());
    }
    Err(io::Error::other(message.trim().to_owned()))
}

/// Checks a mount point; returns its absolute path without links.
pub(crate) fn check(dir: &Path) -> Result<PathBuf, String> {
    let name = dir.display();
    let describe = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => format!("mount point {name} does not exist"),
        _ if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            format!("mount point {name} has a dead mount on it; remove it with 'umount {name}' first")
        }
        _ => format!("mount point {name}: {e}"),
    };
    let path = dir.canonicalize().map_err(describe)?;
    let meta = std::fs::metadata(&path).map_err(describe)?;
    if !meta.is_dir() {
        return Err(format!("mount point {name} is not a directory"));
    }
    if path.as_os_str() == OsStr::from_bytes(b"/") {
        return Err("mount point / is the root of the system".into());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines() {
        let text = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n\
            81 1 0:45 / /tmp/a\\040b rw,nosuid - fuse.cffs disk.img rw,user_id=0\nrubbish\n";
        let all = parse_mountinfo(text);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0], Mounted { major: 98, minor: 0, dir: "/mnt2".into(), fstype: "ext3".into() });
        assert_eq!(all[1], Mounted { major: 0, minor: 45, dir: "/tmp/a b".into(), fstype: "fuse.cffs".into() });
    }

    #[test]
    fn escapes_that_are_none_stay() {
        assert_eq!(unescape(b"a\\b\\13"), Path::new("a\\b\\13"));
        assert_eq!(unescape(b"\\134"), Path::new("\\"));
    }

    #[test]
    fn mount_points_are_checked() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("file");
        std::fs::write(&file, b"").unwrap();
        assert!(check(&tmp.path().join("missing")).unwrap_err().contains("does not exist"));
        assert!(check(&file).unwrap_err().contains("is not a directory"));
        assert!(check(Path::new("/")).unwrap_err().contains("root of the system"));
        assert_eq!(check(tmp.path()).unwrap(), tmp.path().canonicalize().unwrap());
    }

    #[test]
    fn what_is_not_mounted_is_unmounted_already() {
        let tmp = tempfile::tempdir().unwrap();
        let u = Unmounter::of(tmp.path()).unwrap();
        assert_eq!(u.device, None);
        u.unmount().unwrap();
        u.terminate().unwrap();
    }

    #[test]
    fn a_descriptor_comes_over_a_socket() {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        use std::os::fd::AsFd as _;
        let (a, b) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [file.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&a, &[io::IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
        let got = receive_fd(&b).unwrap().unwrap();
        assert_eq!(rustix::fs::fstat(&got).unwrap().st_ino, rustix::fs::fstat(&file).unwrap().st_ino);
        drop(a);
        assert!(receive_fd(&b).unwrap().is_none());
    }
}
