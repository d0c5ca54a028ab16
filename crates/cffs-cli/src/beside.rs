//! Mounting a snapshot or clone beside the file system that it is of.

use crate::exit::{self, ExitCodeExt, with_code};
use crate::mount_options::Options;
use anyhow::anyhow;
use cffs_fuse::control::{Control, Request};
use cffs_fuse::{JobOutcome, ViewOptions};
use std::path::Path;
use std::time::Duration;

/// Mounts a snapshot or clone of the file system that is mounted at `first`: the process that serves that serves it too.
pub fn mount_beside(first: &Path, snapshot: &str, dir: &Path, options: &Options) -> anyhow::Result<()> {
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
    let request = Request::SnapshotMount { name: snapshot.into(), dir: dir.into(), options: view };
    let mounted = Control::open(first).and_then(|control| {
        let job: u64 = control.call(&request)?;
        loop {
            let outcome: Option<JobOutcome> = control.call(&Request::SnapshotOutcome { job })?;
            match outcome {
                Some(outcome) => return Ok(outcome),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    });
    match mounted.exit_code(exit::mount::FAILED)? {
        JobOutcome::Failed(why) => {
            Err(with_code(exit::mount::FAILED, anyhow!("{}: '{snapshot}' of it: {why}", first.display())))
        }
        _ => Ok(()),
    }
}
