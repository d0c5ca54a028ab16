//! `cffs mount` of an image that is mounted here already: the same file system at a second directory.

use crate::beside::mount_beside;
use crate::exit::{self, with_code};
use crate::member_search;
use crate::mount_options::{Options, is_generic};
use crate::remount;
use anyhow::anyhow;
use cffs_fuse::Place;
use cffs_fuse::control::{Control, Request};
use cffs_fuse::snapshots::SnapshotEntry;
use std::io::ErrorKind;
use std::path::Path;

/// Where `image` is mounted, if it can be mounted at a second place: if its mount has a server and can be joined, and root
/// asks.
pub fn first_of(image: &Path) -> Option<Place> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    // Wrong names are told by who opens the image.
    member_search::places(image).into_iter().find(|place| place.can_be_joined() && place.is_served())
}

/// Mounts `image`, which is mounted at `first`, at `dir` too. False if it was unmounted just now, so that it is to be mounted
/// as any other image. `lists` are the options as they were given.
pub fn mount(first: &Place, image: &Path, dir: &Path, options: &Options, lists: &[String]) -> anyhow::Result<bool> {
    let (name, at) = (image.display(), first.dir().display());
    let read_only = options.engine.read_only;
    let mut result = first.mount_again(dir, &options.config, read_only);
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
        Err(e)
            if e.kind() == ErrorKind::ResourceBusy
                && read_only
                && let Some(snapshot) = newest_snapshot(first) =>
        {
            mount_beside(first.dir(), &snapshot, dir, options)?;
            eprintln!(
                "cffs: warning: {name} is mounted on {at} for reading and writing: this is its newest snapshot, '{snapshot}'"
            );
            Ok(true)
        }
        Err(e) => {
            let what = match e.kind() {
                ErrorKind::AlreadyExists => format!("it is mounted on {} already", dir.display()),
                ErrorKind::ResourceBusy if read_only => format!(
                    "it is mounted on {at} for reading and writing, and a second mount cannot be read-only, unless it has a \
                     snapshot: mount it without ro, then use `mount -o remount,bind,ro {}`",
                    dir.display()
                ),
                _ => format!("it is mounted on {at}, and cannot be mounted on {} too: {e}", dir.display()),
            };
            Err(with_code(exit::mount::FAILED, anyhow!("{name}: {what}")))
        }
    }
}

/// The snapshot of a file system that was made last: who wants to look at a log layout that somebody writes to sees that.
fn newest_snapshot(place: &Place) -> Option<String> {
    let all: Vec<SnapshotEntry> = Control::open(place.dir()).ok()?.call(&Request::SnapshotList).ok()?;
    all.into_iter().rfind(|e| e.clone_of.is_none() && !e.received).map(|e| e.name)
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
