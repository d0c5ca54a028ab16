//! Snapshots and clones of a mounted file system, mounted beside it.
//!
//! The process that serves the file system serves them too, because it alone knows which segments of the log disk are in use: another one would read from segments that
//! are cleaned, and given out anew, under it. A view has an engine, a connection with the kernel and threads of its own. It ends with the
//! file system at the latest.

use crate::config::{LogView, MountConfig};
use crate::mountpoint::Unmounter;
use crate::snapshots;
use cffs::{Error, Fs, MountOptions, Result};
use cffs_logdisk::LogDisk;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// How a view is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewOptions {
    /// Nothing can be written, also to a clone.
    pub read_only: bool,
    /// Memory for metadata and unwritten data, in bytes.
    pub cache: usize,
    /// As in [`MountConfig`].
    pub allow_other: bool,
    /// As in [`MountConfig`].
    pub default_permissions: bool,
    /// As in [`MountConfig`].
    pub suid: bool,
    /// As in [`MountConfig`].
    pub dev: bool,
    /// As in [`MountConfig`].
    pub exec: bool,
}

/// Mounts an engine at a directory, and serves it in a thread. The session has it, which this must not use.
pub(crate) type Serve = fn(Arc<Fs>, &Path, &MountConfig) -> std::result::Result<(Unmounter, JoinHandle<()>), String>;

struct View {
    name: String,
    unmounter: Unmounter,
    thread: JoinHandle<()>,
}

/// The views of a mount.
pub(crate) struct Views {
    serve: Serve,
    all: Mutex<Vec<View>>,
    over: AtomicBool,
}

impl Views {
    /// None yet.
    pub(crate) fn new(serve: Serve) -> Views {
        Views { serve, all: Mutex::default(), over: AtomicBool::new(false) }
    }

    /// Mounts a snapshot, or a clone, of the file system in `image` at a directory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such snapshot, or the directory cannot be mounted on; [`Error::Busy`] for a clone that is mounted already.
    pub(crate) fn mount(
        &self,
        disk: &Arc<LogDisk>,
        image: &str,
        name: &str,
        dir: &Path,
        options: &ViewOptions,
    ) -> Result<()> {
        let is_snapshot = snapshots::is_snapshot(disk, name)?;
        // Held while it is opened: two engines on one clone would destroy it.
        let mut all = self.all.lock();
        all.retain(|view| !view.thread.is_finished());
        if let Some(first) = all.iter().find(|view| view.name == name && !is_snapshot) {
            let at = first.unmounter.dir().display();
            return Err(Error::Busy(format!("the clone '{name}' is mounted on {at}: unmount it first")));
        }
        let device = snapshots::device(disk, name)?;
        let engine = MountOptions::default().read_only(options.read_only || device.read_only());
        let fs = Fs::open(device, None, engine.cache_bytes(options.cache))?;
        let config = MountConfig {
            fsname: format!("{image}@{name}"),
            log_disk: Some(disk.clone()),
            log_view: LogView::Attached(name.to_owned()),
            allow_other: options.allow_other,
            default_permissions: options.default_permissions,
            suid: options.suid,
            dev: options.dev,
            exec: options.exec,
            ..MountConfig::default()
        };
        let (unmounter, thread) = match (self.serve)(fs.clone(), dir, &config) {
            Ok(served) => served,
            Err(why) => {
                fs.close()?;
                return Error::invalid(why);
            }
        };
        drop(fs);
        all.push(View { name: name.to_owned(), unmounter, thread });
        drop(all);
        if self.over.load(Ordering::Acquire) {
            self.stop();
            return Err(Error::Busy("the file system is being unmounted".into()));
        }
        Ok(())
    }

    /// Unmounts all, and waits for them. What still uses them gets ENOTCONN.
    pub(crate) fn stop(&self) {
        self.over.store(true, Ordering::Release);
        let all = std::mem::take(&mut *self.all.lock());
        for view in all {
            if let Err(error) = view.unmounter.terminate() {
                tracing::error!(dir = %view.unmounter.dir().display(), %error, "cannot unmount a snapshot");
                continue;
            }
            let _ = view.thread.join();
        }
    }
}
