//! Mounting a snapshot or clone beside the file system that it is of, or that file system as it is now.

use crate::exit::{self, ExitCodeExt, with_code};
use crate::mount_options::Options;
use anyhow::anyhow;
use cffs_fuse::control::{Control, ControlError, Request};
use cffs_fuse::{JobOutcome, ViewOptions};
use std::path::Path;
use std::time::Duration;

/// Mounts a snapshot or clone of the file system that is mounted at `first`: the process that serves that serves it too.
pub fn mount_beside(first: &Path, snapshot: &str, dir: &Path, options: &Options) -> anyhow::Result<()> {
    match ask(first, Some(snapshot), dir, options).exit_code(exit::mount::FAILED)? {
        JobOutcome::Failed(why) => {
            Err(with_code(exit::mount::FAILED, anyhow!("{}: '{snapshot}' of it: {why}", first.display())))
        }
        _ => Ok(()),
    }
}

/// Mounts the file system that is mounted at `first` as it is now, for reading. An error of the inner result is for people.
pub fn mount_now(first: &Path, dir: &Path, options: &Options) -> Result<Result<(), String>, ControlError> {
    Ok(match ask(first, None, dir, options)? {
        JobOutcome::Failed(why) => Err(why),
        _ => Ok(()),
    })
}

/// Has the process that serves a mount mount something beside it.
fn ask(first: &Path, snapshot: Option<&str>, dir: &Path, options: &Options) -> Result<JobOutcome, ControlError> {
    let config = &options.config;
    let view = ViewOptions {
        read_only: options.engine.read_only,
        cache: options.engine.cache_bytes,
        allow_other: config.allow_other,
        default_permissions: config.default_permissions,
        suid: config.suid,
        dev: config.dev,
        exec: config.exec,
    };
    let request = Request::SnapshotMount { name: snapshot.map(str::to_owned), dir: dir.into(), options: view };
    let control = Control::open(first)?;
    let job: u64 = control.call(&request)?;
    loop {
        let outcome: Option<JobOutcome> = control.call(&Request::SnapshotOutcome { job })?;
        match outcome {
            Some(outcome) => return Ok(outcome),
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
