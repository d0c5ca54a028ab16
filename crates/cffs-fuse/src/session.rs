//! A mounted file system, from mount to the closing of the engine.

use crate::config::{IoUring, MountConfig};
use crate::device;
use crate::mount_state::MountState;
use crate::mountpoint::{self, BlockMount, Event, Unmounter};
use crate::notifier::Notifier;
use crate::ops::Ops;
use crate::ring::Rings;
use crate::snapshots::TemporarySnapshot;
use crate::views::{Served, Views};
use cffs::Fs;
use parking_lot::Mutex;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Why a mount could not be made, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory cannot be mounted on; the text says why.
    #[error("{0}")]
    MountPoint(String),
    /// The kernel or fusermount3 refused.
    #[error("cannot mount: {0}")]
    Mount(#[source] io::Error),
    /// The connection with the kernel broke.
    #[error("connection with the kernel failed: {0}")]
    Connection(#[source] io::Error),
    /// The kernel does not offer io_uring to FUSE.
    #[error(
        "this kernel has no FUSE over io_uring, or does not allow it: that takes Linux 6.14 and \
         `echo Y > /sys/module/fuse/parameters/enable_uring`, and io_uring itself (kernel.io_uring_disabled)"
    )]
    NoRing,
    /// Setting up io_uring failed.
    #[error("cannot set up io_uring (mount with noio_uring to do without): {0}")]
    Ring(#[source] io::Error),
    /// Closing the engine failed: not everything has reached the image.
    #[error("writing to the image failed at unmount: {0}")]
    Close(#[source] cffs::Error),
    /// An operation hit a bug. The image was left as after a crash: the next mount recovers it.
    #[error("an internal error occurred; the image was left for recovery by the next mount")]
    Internal,
}

/// Result of mounting.
pub type Result<T> = std::result::Result<T, Error>;

/// Mounts `fs` at `dir` and serves it with threads of its own. When this returns, the mount can be used.
///
/// After an error the engine is unchanged, and the caller closes it. Once a session exists, the session closes it.
pub fn mount(fs: Arc<Fs>, dir: &Path, config: &MountConfig) -> Result<Session> {
    let dir = mountpoint::check(dir).map_err(Error::MountPoint)?;
    let connection = mountpoint::attach(&dir, config, fs.is_read_only()).map_err(Error::Mount)?;
    let unmounter = Unmounter::of(&dir).map_err(Error::Mount)?;
    serve_until(fs, connection, &unmounter, config)
}

/// As [`mount`], by a mount of type `fuseblk` that was made before `fs` was opened.
pub fn mount_block(fs: Arc<Fs>, mount: BlockMount, dir: &Path, config: &MountConfig) -> Result<Session> {
    let dir = mountpoint::check(dir).map_err(Error::MountPoint)?;
    let device = mount.device();
    let connection = mount.attach(&dir).map_err(Error::Mount)?;
    let unmounter = Unmounter::of_device(&dir, device).map_err(Error::Mount)?;
    serve_until(fs, connection, &unmounter, config)
}

/// Mounts a snapshot or clone beside a file system, and serves it in a thread. A temporary snapshot goes with the mount.
fn serve_view(fs: Arc<Fs>, dir: &Path, config: &MountConfig, temporary: Option<Arc<TemporarySnapshot>>) -> Served {
    let session = mount(fs, dir, config).map_err(|e| e.to_string())?;
    let (unmounter, at) = (session.unmounter(), session.dir().to_owned());
    let serve = move || {
        if let Err(error) = session.wait() {
            tracing::error!(dir = %at.display(), %error, "the mount of a snapshot did not end well");
        }
        drop(temporary);
    };
    // Without the thread the session is dropped, which unmounts.
    let thread = std::thread::Builder::new().name("cffs-view".into()).spawn(serve);
    thread.map(|thread| (unmounter, thread)).map_err(|e| e.to_string())
}

fn serve_until(fs: Arc<Fs>, connection: OwnedFd, unmounter: &Unmounter, config: &MountConfig) -> Result<Session> {
    start(fs, connection, unmounter, config).inspect_err(|_| {
        // No thread will answer on this mount.
        let _ = unmounter.abort();
    })
}

fn start(fs: Arc<Fs>, connection: OwnedFd, unmounter: &Unmounter, config: &MountConfig) -> Result<Session> {
    let view = (config.log_view.clone(), Views::new(serve_view));
    let state =
        Arc::new(MountState::new(fs, config.fsname.clone(), config.log_disk.clone(), view, config.volume.clone()));
    state.delete_left_over_snapshots();
    let mut capabilities = device::negotiate(&connection, config).map_err(Error::Connection)?;
    capabilities.no_open &= !state.must_be_asked();
    capabilities.no_opendir &= !state.strict_atime();
    let ops = Arc::new(Ops::new(state.clone(), config, capabilities));
    state.set_notifier(Notifier::new(connection.try_clone().map_err(Error::Connection)?));
    let rings = match (capabilities.io_uring, config.io_uring) {
        (true, _) => Some(Rings::start(&ops, &connection, unmounter).map_err(Error::Ring)?),
        (false, IoUring::Required) => return Err(Error::NoRing),
        (false, _) => None,
    };
    let (sender, events) = channel();
    let unmounter = unmounter.clone().with_session(sender.clone(), state.over());
    std::thread::Builder::new()
        .name("cffs-fuse".into())
        .spawn({
            let state = state.clone();
            move || {
                state.serving();
                let outcome = device::serve(&ops, &connection);
                drop(ops);
                if let Some(rings) = rings {
                    rings.join();
                }
                state.end();
                // Who waits for the end may delete the snapshot that the engine has open.
                drop(state);
                // Nobody waits any more if the session was abandoned.
                let _ = sender.send(Event::Ended(outcome));
            }
        })
        .map_err(Error::Connection)?;
    if let Some(idle) = config.maintenance {
        // Without it everything else works.
        if let Err(e) = state.start_maintenance(idle, unmounter.writable_test()) {
            tracing::warn!("no maintenance: {e}");
        }
    }
    if let Err(e) = state.start_log_maintenance() {
        tracing::warn!("the log disk is cleaned by those who write only: {e}");
    }
    state.members.start();
    state.readahead.begin(mountpoint::readahead_file(unmounter.dir()), config.readahead, state.fs().reads_parts());
    Ok(Session { events: Mutex::new(Some(events)), state, unmounter })
}

/// How long a session waits for the kernel to end it, once it was asked to end.
const GRACE: Duration = Duration::from_secs(2);

/// A mounted file system. Dropping it unmounts.
#[must_use = "dropping a session unmounts"]
pub struct Session {
    /// In a lock only because `Session` has to be `Sync`.
    events: Mutex<Option<Receiver<Event>>>,
    state: Arc<MountState>,
    unmounter: Unmounter,
}

impl Session {
    /// A handle to end the mount, for other threads.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// The counters of the mount as an object, for whoever asks from another thread.
    pub fn counters(&self) -> Counters {
        Counters { state: Arc::downgrade(&self.state) }
    }

    /// Its mount point.
    pub fn dir(&self) -> &Path {
        self.unmounter.dir()
    }

    /// Waits for the unmount, whoever asked for it (`umount`, an [`Unmounter`]). Returns after the engine has been
    /// closed, with the result of that.
    pub fn wait(mut self) -> Result<()> {
        self.join()
    }

    fn join(&mut self) -> Result<()> {
        let Some(events) = self.events.get_mut().take() else { return Ok(()) };
        let broken = || Event::Ended(Err(io::Error::other("the thread that served it panicked")));
        let served = match events.recv().unwrap_or_else(|_| broken()) {
            Event::Ended(result) => result,
            Event::Abandon => match events.recv_timeout(GRACE) {
                Ok(Event::Ended(result)) => result,
                _ => Ok(()),
            },
        };
        // After an error the mount may still exist, and nobody would answer.
        let _ = self.unmounter.abort();
        self.unmounter.wait_for_others();
        if self.state.panicked() {
            return Err(Error::Internal);
        }
        self.state.close().map_err(Error::Close)?;
        served.map_err(Error::Connection)
    }
}

/// The counters of a mount. It does not keep the mount.
#[derive(Clone)]
pub struct Counters {
    state: Weak<MountState>,
}

impl Counters {
    /// The counters now, as the file `.cffs-stats` has them. `None` when the mount has ended.
    ///
    /// # Errors
    /// They cannot be written as JSON.
    pub fn read(&self) -> Option<cffs::Result<serde_json::Value>> {
        self.state.upgrade().map(|state| state.stats())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.events.get_mut().is_some() {
            if let Err(error) = self.unmounter.terminate() {
                tracing::error!(dir = %self.dir().display(), %error, "cannot unmount");
                return;
            }
            if let Err(error) = self.join() {
                tracing::error!(%error);
            }
        }
    }
}
