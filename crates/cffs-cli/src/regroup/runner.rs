//! Who does a regroup: the process that serves a mount, or a thread of this one.

use super::directories;
use crate::image::{EngineResultExt, Image};
use anyhow::Context;
use cffs::{Fs, Ino, MountOptions, Regroup, RegroupOptions, RegroupStatus};
use cffs_fuse::control::{Control, Request};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often to look whether a regroup has stopped.
const NAP: Duration = Duration::from_millis(20);

/// A regroup that has begun.
pub(super) enum Runner {
    /// The process that serves a mount does it.
    Mounted(Control),
    /// A thread of this process does it.
    Here(Here),
}

/// A regroup of an image that is not mounted.
pub(super) struct Here {
    fs: Arc<Fs>,
    /// Those that were named, each with a reference.
    directories: Vec<Ino>,
    regroup: Arc<Regroup>,
    thread: JoinHandle<()>,
}

impl Runner {
    /// Begins to regroup an image, or some directories of it.
    pub(super) fn of_image(image: Image, paths: &[&[u8]], options: RegroupOptions) -> anyhow::Result<Runner> {
        let name = image.path.display().to_string();
        // With its own threads, as a mount has them, because a long regroup fills the log many times.
        let fs = image.mount(MountOptions::default())?;
        match begin(&fs, &name, paths, options) {
            Ok((directories, regroup, thread)) => Ok(Runner::Here(Here { fs, directories, regroup, thread })),
            Err(e) => {
                let closed = fs.close();
                closed.context(name).and(Err(e))
            }
        }
    }

    /// How far it is.
    pub(super) fn status(&self) -> anyhow::Result<RegroupStatus> {
        match self {
            Runner::Mounted(control) => ask(control, &Request::RegroupStatus),
            Runner::Here(here) => Ok(here.regroup.status()),
        }
    }

    /// Stops it and waits for its end.
    pub(super) fn stop(&self) -> anyhow::Result<RegroupStatus> {
        match self {
            Runner::Mounted(control) => ask(control, &Request::RegroupStop),
            Runner::Here(here) => {
                here.regroup.stop();
                while !here.regroup.is_over() {
                    std::thread::sleep(NAP);
                }
                Ok(here.regroup.status())
            }
        }
    }

    /// Closes the image, unless a mount was regrouped.
    pub(super) fn end(self, name: &str) -> anyhow::Result<()> {
        let Runner::Here(here) = self else { return Ok(()) };
        // An error on the way here may have left it running.
        here.regroup.stop();
        // A panic of the thread is in the status.
        let _ = here.thread.join();
        here.directories.iter().for_each(|ino| here.fs.forget(*ino, 1));
        here.fs.close().context(name.to_owned())
    }
}

fn ask(control: &Control, request: &Request) -> anyhow::Result<RegroupStatus> {
    let status: Option<RegroupStatus> = control.call(request)?;
    status.context("the regroup is gone: was it mounted anew?")
}

/// The directories, the handle, and the thread.
type Begun = (Vec<Ino>, Arc<Regroup>, JoinHandle<()>);

fn begin(fs: &Arc<Fs>, name: &str, paths: &[&[u8]], options: RegroupOptions) -> anyhow::Result<Begun> {
    let directories = directories::of_image(fs, name, paths)?;
    let options = options.directories(directories.clone());
    fs.check_regroup(&options).about(|| name)?;
    let regroup = Arc::new(Regroup::new());
    let (fs, mine) = (fs.clone(), regroup.clone());
    let thread = std::thread::Builder::new().name("cffs-regroup".into()).spawn(move || {
        match catch_unwind(AssertUnwindSafe(|| fs.regroup(&options, &mine))) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => mine.fail(e.to_string()),
            Err(_) => mine.fail("internal error".into()),
        }
    });
    Ok((directories, regroup, thread.context("cannot start a thread")?))
}
