//! Mounting as type `fuse`: by mount(2), or by fusermount3 for users other than root.

use super::table::FUSE;
use crate::config::MountConfig;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::ffi::CString;
use std::io::{self, IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

const DEVICE: &str = "/dev/fuse";
pub(super) const HELPER: &str = "fusermount3";

/// Opens a connection that no mount uses yet.
pub(super) fn open_connection() -> io::Result<OwnedFd> {
    std::fs::OpenOptions::new().read(true).write(true).open(DEVICE).map(OwnedFd::from).map_err(|e| {
        let hint = if e.kind() == io::ErrorKind::NotFound {
            " (is the kernel module loaded? try 'modprobe fuse')"
        } else {
            ""
        };
        io::Error::new(e.kind(), format!("cannot open {DEVICE}: {e}{hint}"))
    })
}

/// Mounts at `dir` (an absolute path without links) and returns the connection to the kernel.
pub(crate) fn attach(dir: &Path, config: &MountConfig, read_only: bool) -> io::Result<OwnedFd> {
    let fuse = match open_connection() {
        Ok(fuse) => fuse,
        // This process may not open it, but perhaps the helper may.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return attach_by_helper(dir, config, read_only),
        Err(e) => return Err(e),
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
    match rustix::mount::mount(config.fsname.as_str(), dir, FUSE, flags(config, read_only), data.as_c_str()) {
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

#[cfg(test)]
mod tests {
    use super::*;

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
