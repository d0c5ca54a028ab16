//! Snapshots and clones of a mounted file system, mounted beside it.
//!
//! The process that serves the file system serves them too, because it alone knows which segments of the log disk are in use: another one would read from segments that
//! are cleaned, and given out anew, under it. A view has an engine, a connection with the kernel and threads of its own. It ends with the
//! file system at the latest.

use crate::config::{LogView, MountConfig};
use crate::mountpoint::Unmounter;
use crate::snapshots::{self, TEMPORARY, TemporarySnapshot};
use cffs::device::Device;
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

/// Mounts an engine at a directory, and serves it in a thread, which keeps the temporary snapshot to its end. The session has it, which this must not use.
pub(crate) type Serve = fn(Arc<Fs>, &Path, &MountConfig, Option<Arc<TemporarySnapshot>>) -> Served;

/// What ends the mount, and its thread; or why there is none.
pub(crate) type Served = std::result::Result<(Unmounter, JoinHandle<()>), String>;

struct View {
    /// None of a temporary snapshot.
    name: Option<String>,
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
        if let Some(first) = all.iter().find(|view| view.name.as_deref() == Some(name) && !is_snapshot) {
            let at = first.unmounter.dir().display();
            return Err(Error::Busy(format!("the clone '{name}' is mounted on {at}: unmount it first")));
        }
        let device = snapshots::device(disk, name)?;
        let config = config(disk, format!("{image}@{name}"), LogView::Attached(name.to_owned()), options);
        let (unmounter, thread) = self.serve(device, None, dir, &config, options)?;
        all.push(View { name: Some(name.to_owned()), unmounter, thread });
        drop(all);
        self.stop_if_over()
    }

    /// Mounts the file system as it is now at a directory, for reading: everything that was done before the call. It is a snapshot that users do not
    /// see, and that is deleted when it is unmounted.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is too little space for it, or the directory cannot be mounted on; those of writing everything back.
    pub(crate) fn mount_now(
        &self,
        disk: &Arc<LogDisk>,
        fs: &Fs,
        image: &str,
        dir: &Path,
        options: &ViewOptions,
    ) -> Result<()> {
        if fs.is_read_only() {
            return Error::invalid("it is mounted read-only, or nothing can be written any more after an error");
        }
        // Kept here until no engine has it that could not be served.
        let temporary = Arc::new(TemporarySnapshot::create(disk, fs).map_err(|e| no_snapshot(disk, e))?);
        let mut all = self.all.lock();
        all.retain(|view| !view.thread.is_finished());
        // No snapshot of a user has such a name.
        let config = config(disk, format!("{image}@{TEMPORARY}"), LogView::Temporary, options);
        let (unmounter, thread) = self.serve(temporary.device()?, Some(temporary.clone()), dir, &config, options)?;
        all.push(View { name: None, unmounter, thread });
        drop((all, temporary));
        self.stop_if_over()
    }

    /// Opens the file system on a device, and mounts it.
    fn serve(
        &self,
        device: Arc<dyn Device>,
        temporary: Option<Arc<TemporarySnapshot>>,
        dir: &Path,
        config: &MountConfig,
        options: &ViewOptions,
    ) -> Result<(Unmounter, JoinHandle<()>)> {
        let engine = MountOptions::default().read_only(options.read_only || device.read_only());
        let fs = Fs::open(device, None, engine.cache_bytes(options.cache))?;
        (self.serve)(fs.clone(), dir, config, temporary).or_else(|why| {
            fs.close()?;
            Error::invalid(why)
        })
    }

    /// What was mounted while all are unmounted goes too.
    fn stop_if_over(&self) -> Result<()> {
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

fn config(disk: &Arc<LogDisk>, fsname: String, log_view: LogView, options: &ViewOptions) -> MountConfig {
    MountConfig {
        fsname,
        log_disk: Some(disk.clone()),
        log_view,
        allow_other: options.allow_other,
        default_permissions: options.default_permissions,
        suid: options.suid,
        dev: options.dev,
        exec: options.exec,
        ..MountConfig::default()
    }
}

/// Why there is no temporary snapshot, and what can be mounted in its place.
fn no_snapshot(disk: &LogDisk, error: Error) -> Error {
    let mut why = match error {
        Error::Invalid(why) => why,
        other => other.to_string(),
    };
    if let Some(newest) = snapshots::list(disk).iter().rfind(|e| e.clone_of.is_none() && !e.received) {
        why += &format!("; the newest snapshot can be mounted: `-o snapshot={}`", newest.name);
    }
    Error::Invalid(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cffs::{Caller, MkfsOptions, ROOT_INO};
    use cffs_logdisk::{LogOptions, MemoryStore};
    use std::time::Duration;

    const OPTIONS: ViewOptions = ViewOptions {
        read_only: true,
        cache: 16 << 20,
        allow_other: false,
        default_permissions: true,
        suid: false,
        dev: false,
        exec: false,
    };

    fn mounted() -> (Arc<LogDisk>, Arc<Fs>) {
        let store = Arc::new(MemoryStore::new(64 << 20, 256 << 10, true));
        let disk = Arc::new(LogDisk::format(store, 256 << 20, &LogOptions::default()).unwrap());
        let options = MkfsOptions::default().log_bytes(Some(cffs::mkfs::log_bytes_min(4096)));
        cffs::mkfs(&*disk, None, &options).unwrap();
        let fs = Fs::open(disk.clone(), None, MountOptions::default().background(false)).unwrap();
        (disk, fs)
    }

    /// A mount that ends by itself after a moment, and has the engine a little longer than it says.
    fn serve(fs: Arc<Fs>, dir: &Path, config: &MountConfig, temporary: Option<Arc<TemporarySnapshot>>) -> Served {
        assert_eq!((config.fsname.as_str(), &config.log_view), ("image@/mounted", &LogView::Temporary));
        assert!(fs.is_read_only());
        fs.lookup(ROOT_INO, b"before").unwrap();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            let longer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                drop(fs);
            });
            drop(temporary);
            longer.join().unwrap();
        });
        Ok((Unmounter::of(dir).map_err(|e| e.to_string())?, thread))
    }

    #[test]
    fn the_snapshot_of_a_mount_goes_with_it_and_without_one_at_once() {
        let (disk, fs) = mounted();
        let dir = tempfile::tempdir().unwrap();
        fs.create(Caller::ROOT, ROOT_INO, b"before", 0o600).unwrap();
        let views = Views::new(serve);
        for _ in 0..2 {
            views.mount_now(&disk, &fs, "image", dir.path(), &OPTIONS).unwrap();
        }
        assert_eq!((disk.snapshots().len(), snapshots::count(&disk)), (2, 0));
        views.stop();
        assert!(disk.snapshots().is_empty());
        let late = views.mount_now(&disk, &fs, "image", dir.path(), &OPTIONS);
        assert!(matches!(late, Err(Error::Busy(_))) && disk.snapshots().is_empty(), "{late:?}");
        let refused = Views::new(|_, _, _, _| Err("it is no directory".into()));
        let error = refused.mount_now(&disk, &fs, "image", dir.path(), &OPTIONS).unwrap_err().to_string();
        assert!(error.contains("it is no directory") && disk.snapshots().is_empty(), "{error}");
        fs.close().unwrap();
        assert!(refused.mount_now(&disk, &fs, "image", dir.path(), &OPTIONS).is_err());
    }

    #[test]
    fn without_space_for_a_snapshot_the_newest_one_is_named() {
        let (disk, fs) = mounted();
        for name in ["monday", "tuesday"] {
            snapshots::create(&disk, Some(&fs), name).unwrap();
        }
        snapshots::clone(&disk, "monday", "work").unwrap();
        let full = "there is too little free space for a snapshot";
        let error = no_snapshot(&disk, Error::Invalid(full.into())).to_string();
        assert!(error.contains(full) && error.contains("`-o snapshot=tuesday`"), "{error}");
        for name in ["work", "monday", "tuesday"] {
            snapshots::delete(&disk, name).unwrap();
        }
        assert!(!no_snapshot(&disk, Error::NoSpace).to_string().contains("newest"));
        fs.close().unwrap();
    }
}
