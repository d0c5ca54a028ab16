//! Ending a mount.

use super::attach::HELPER;
use super::table::{Mounted, mounts, top};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// Longest wait for another thread that unmounts.
const OTHERS_MAX: Duration = Duration::from_secs(10);

/// The file in sysfs for how far the kernel reads ahead, in KiB. `None` where the kernel does not say what is mounted.
pub(crate) fn readahead_file(dir: &Path) -> Option<PathBuf> {
    cffs_at(dir).ok()?.map(|mounted| mounted.bdi().join("read_ahead_kb"))
}

/// The cffs that is seen at `dir`, if there is one.
fn cffs_at(dir: &Path) -> io::Result<Option<Mounted>> {
    Ok(top(&mounts()?, dir).filter(|m| m.is_cffs()).cloned())
}

/// `None` where the kernel does not show it.
fn bdi_inode(mounted: &Mounted) -> Option<u64> {
    Some(std::fs::metadata(mounted.bdi()).ok()?.ino())
}

/// Ends a mount, from any thread. A file system can be mounted at several places; it identifies them by their device number,
/// and only while the session lasts, so it never unmounts another file system mounted at the same place later.
#[derive(Clone, Debug)]
pub struct Unmounter {
    dir: PathBuf,
    mounted: Option<Mounted>,
    /// The inode number of the super block's folder in sysfs. The kernel gives numbers of devices again at once, for one loop
    /// device after the other; these it counts up.
    bdi: Option<u64>,
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
    /// For the cffs that is seen at `dir`.
    pub(crate) fn of(dir: &Path) -> io::Result<Unmounter> {
        Ok(Unmounter::new(dir, cffs_at(dir)?))
    }

    /// For the mount of this block device at `dir`, even if another one was put on top of it meanwhile.
    pub(crate) fn of_device(dir: &Path, device: (u32, u32)) -> io::Result<Unmounter> {
        let mut ours = mounts()?.into_iter().filter(|m| m.is_cffs() && m.dir == dir && m.device == device);
        Ok(Unmounter::new(dir, ours.next_back()))
    }

    fn new(dir: &Path, mounted: Option<Mounted>) -> Unmounter {
        Unmounter {
            dir: dir.to_owned(),
            bdi: mounted.as_ref().and_then(bdi_inode),
            mounted,
            over: Arc::default(),
            busy: Arc::default(),
            abandon: None,
        }
    }

    pub(crate) fn with_session(self, session: Sender<Event>, over: Arc<AtomicBool>) -> Unmounter {
        Unmounter { abandon: Some(session), over, ..self }
    }

    /// Tells whether it is mounted for writing: not if it was made read-only, as by `mount -o remount,ro`, or is not to be
    /// found, as after `umount -l`.
    pub(crate) fn writable_test(&self) -> impl Fn() -> bool + Send + 'static {
        let device = self.mounted.as_ref().map(|m| m.device);
        move || mounts().is_ok_and(|all| all.iter().any(|m| m.is_cffs() && Some(m.device) == device && !m.read_only))
    }

    /// Whether a cffs was mounted there when this value was created.
    pub(crate) fn has_mount(&self) -> bool {
        self.mounted.is_some()
    }

    /// Its mount point; the first one, if it is mounted at several places.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The places at which it is seen, the newest first.
    fn places(&self) -> io::Result<Vec<PathBuf>> {
        if self.over.load(Ordering::Acquire) {
            return Ok(Vec::new());
        }
        if self.is_super_block_gone() {
            return Ok(Vec::new());
        }
        let all = mounts()?;
        let ours = all.iter().rev().filter(|m| self.is_ours(m));
        Ok(ours.filter(|m| top(&all, &m.dir) == Some(m)).map(|m| m.dir.clone()).collect())
    }

    fn is_ours(&self, mounted: &Mounted) -> bool {
        mounted.is_cffs() && self.mounted.as_ref().is_some_and(|m| m.device == mounted.device)
    }

    /// Whether the file system is still mounted somewhere: at another place, in another mount namespace, or nowhere that has
    /// a name, because a program has used it while it was detached.
    pub(crate) fn lives_on(&self) -> io::Result<bool> {
        if self.bdi.is_some() {
            return Ok(!self.is_super_block_gone());
        }
        Ok(mounts()?.iter().any(|m| self.is_ours(m)))
    }

    /// Whether what has the device number now is another super block.
    fn is_super_block_gone(&self) -> bool {
        self.bdi.is_some() && self.mounted.as_ref().and_then(bdi_inode) != self.bdi
    }

    /// Unmounts as `umount` does: fails with EBUSY while a program uses the file system, and succeeds if it is not
    /// mounted there any more. [`crate::Session::wait`] returns once the last place is unmounted and the engine has been
    /// closed.
    pub fn unmount(&self) -> io::Result<()> {
        let _one = self.busy.lock();
        self.detach(&self.dir)
    }

    /// For a signal that ends the program: unmounts all places. If programs use the file system, collects what they have
    /// written from the kernel, and then ends the mount under them (they get ENOTCONN).
    pub fn terminate(&self) -> io::Result<()> {
        let _one = self.busy.lock();
        let places = self.places()?;
        if places.is_empty() {
            // The mount was detached with `umount -l` while a program uses it; or it is just ending by itself, and then
            // that event comes first.
            if let Some(session) = &self.abandon {
                let _ = session.send(Event::Abandon);
            }
            return Ok(());
        }
        let mut used = None;
        for place in places {
            match self.detach(&place) {
                Err(e) if e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => used = Some(place),
                done => done?,
            }
        }
        let Some(used) = used else { return Ok(()) };
        tracing::warn!(dir = %used.display(), "still in use; ending the mount anyway");
        // Pages written through mappings are still in the kernel only.
        if let Ok(dir) = std::fs::File::open(&used) {
            let _ = rustix::fs::syncfs(&dir);
        }
        self.abort()
    }

    /// Waits for an unmount that another thread is at, not for ever. The first of several places can end the session, and the others are to go
    /// as well before the program does; but where nobody serves any more, what that thread asks the kernel for may end with the program only.
    pub(crate) fn wait_for_others(&self) {
        drop(self.busy.try_lock_for(OTHERS_MAX));
    }

    /// Ends the mount at once, at all places and even if it is in use. Data in mappings is lost.
    pub(crate) fn abort(&self) -> io::Result<()> {
        let places = self.places()?;
        if let (Some(mounted), false) = (&self.mounted, places.is_empty()) {
            // The user who mounted may write to this file, but it exists only if fusectl is mounted.
            let _ = std::fs::write(format!("/sys/fs/fuse/connections/{}/abort", mounted.connection()), "1");
        }
        // The first one ends the super block; the other places are left to it all the same.
        places.iter().try_for_each(|place| {
            match unmount_at(place, UnmountFlags::FORCE | UnmountFlags::DETACH, &["-u", "-z"]) {
                Err(e) if is_not_there(&e) => Ok(()),
                done => done,
            }
        })
    }

    fn detach(&self, place: &Path) -> io::Result<()> {
        let is_there = || Ok::<bool, io::Error>(self.places()?.iter().any(|p| p == place));
        if !is_there()? {
            return Ok(());
        }
        match unmount_at(place, UnmountFlags::empty(), &["-u"]) {
            // Another process was faster.
            Err(e) if is_not_there(&e) && !is_there()? => Ok(()),
            done => done,
        }
    }
}

/// Whether umount(2) has found nothing to unmount.
fn is_not_there(e: &io::Error) -> bool {
    [Errno::INVAL, Errno::NOENT].iter().any(|errno| e.raw_os_error() == Some(errno.raw_os_error()))
}

fn unmount_at(place: &Path, flags: UnmountFlags, helper_args: &[&str]) -> io::Result<()> {
    match rustix::mount::unmount(place, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => unmount_by_helper(place, helper_args),
        Err(e) => Err(e.into()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mounted_is_unmounted_already() {
        let tmp = tempfile::tempdir().unwrap();
        let u = Unmounter::of(tmp.path()).unwrap();
        assert!(!u.has_mount() && !u.lives_on().unwrap());
        u.unmount().unwrap();
        u.terminate().unwrap();
    }
}
