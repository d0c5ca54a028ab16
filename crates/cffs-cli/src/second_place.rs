//! `cffs mount` of an image that is mounted here already: the same file system at a second directory, or, read-only, what it is now.

use crate::beside::mount_now;
use crate::exit::{self, with_code};
use crate::member_search;
use crate::mount_options::{Options, is_generic};
use crate::remount;
use anyhow::anyhow;
use cffs_fuse::Place;
use cffs_fuse::control::Control;
use std::io::ErrorKind;
use std::path::Path;

/// Where `image` is mounted, if its mount has a server and it can be mounted at a second place: by root, if the mount can be joined; or
/// read-only, if the server can show it as it is now.
pub fn first_of(image: &Path, read_only: bool) -> Option<Place> {
    // Wrong names are told by who opens the image.
    let mut places = member_search::places(image).into_iter();
    places.find(|place| joins(place) && place.is_served() || read_only && shows_now(place))
}

/// Whether who asks may mount the same super block at a second place.
fn joins(place: &Place) -> bool {
    place.can_be_joined() && rustix::process::geteuid().is_root()
}

/// Whether a file system is written to that can be shown as it is now: it has snapshots.
fn shows_now(place: &Place) -> bool {
    let info = Control::open(place.dir()).and_then(|control| control.info());
    info.is_ok_and(|info| info.log_layout && !info.read_only)
}

/// Mounts `image`, which is mounted at `first`, at `dir` too. False if it was unmounted just now, so that it is to be mounted
/// as any other image. `lists` are the options as they were given.
pub fn mount(first: &Place, image: &Path, dir: &Path, options: &Options, lists: &[String]) -> anyhow::Result<bool> {
    let (name, at) = (image.display(), first.dir().display());
    let read_only = options.engine.read_only;
    let mut result = match joins(first) {
        true => first.mount_again(dir, &options.config, read_only),
        false => Err(ErrorKind::ResourceBusy.into()),
    };
    if !read_only && result.as_ref().is_err_and(|e| e.kind() == ErrorKind::ResourceBusy) && is_read_only(first) {
        // As mount(8) does for the kernel's file systems.
        eprintln!("cffs: warning: {name} is mounted read-only on {at}, so it is mounted read-only here too");
        result = first.mount_again(dir, &options.config, true);
    }
    match result {
        Ok(()) => {
            tell_ignored(lists, &format!("{name} is mounted on {at} already"));
            Ok(true)
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) if e.kind() == ErrorKind::ResourceBusy && read_only && shows_now(first) => {
            let mounted = mount_now(first.dir(), dir, options).map_err(|e| e.to_string()).flatten();
            mounted.map_err(|why| {
                let what =
                    format!("{name}: it is mounted on {at} for reading and writing, and cannot be shown as it is now");
                with_code(exit::mount::FAILED, anyhow!("{what}: {why}"))
            })?;
            eprintln!(
                "cffs: warning: {name} is mounted on {at} for reading and writing: this is the file system as it is now, and \
                 what is written later does not appear here"
            );
            Ok(true)
        }
        Err(e) => {
            let what = match e.kind() {
                ErrorKind::AlreadyExists => format!("it is mounted on {} already", dir.display()),
                ErrorKind::ResourceBusy if read_only => format!(
                    "it is mounted on {at} for reading and writing, and a second mount cannot be read-only, unless it has \
                     the log layout: mount it without ro, then use `mount -o remount,bind,ro {}`",
                    dir.display()
                ),
                _ => format!("it is mounted on {at}, and cannot be mounted on {} too: {e}", dir.display()),
            };
            Err(with_code(exit::mount::FAILED, anyhow!("{name}: {what}")))
        }
    }
}

fn is_read_only(place: &Place) -> bool {
    let flags = rustix::fs::statvfs(place.dir()).map(|s| s.f_flag);
    flags.is_ok_and(|f| f.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// Options of the super block, which the running mount has for all its places.
fn tell_ignored(lists: &[String], why: &str) {
    // They were parsed before, so nothing is wrong with them.
    let Ok((_, kept)) = remount::parse(lists, true) else { return };
    let ignored: Vec<String> = kept.into_iter().filter(|o| !is_generic(o)).collect();
    if !ignored.is_empty() {
        eprintln!("cffs: warning: {why}; ignored: {}", ignored.join(","));
    }
}
