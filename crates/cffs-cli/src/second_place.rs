//! `cffs mount` of an image that is mounted here already: the same file system at a second directory.

use crate::exit::{self, with_code};
use crate::mount_options::{Options, is_generic};
use crate::remount;
use anyhow::anyhow;
use cffs_fuse::{Place, places_of};
use std::io::ErrorKind;
use std::path::Path;

/// Mounts `image` at `dir` too, if it is mounted and root asks; returns the exit code then. `None` if it is to be mounted as
/// any other image: it is not mounted, or its mount has no server any more, or cannot be joined. `lists` are the options as
/// they were given.
pub fn mount(
    image: &Path,
    dir: &Path,
    options: &Options,
    lists: &[String],
    foreground: bool,
) -> anyhow::Result<Option<u8>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    // Wrong names are told by who opens the image.
    let places = places_of(image).unwrap_or_default();
    let Some(first) = places.iter().find(|place| place.can_be_joined() && place.is_served()) else { return Ok(None) };
    let (name, at) = (image.display(), first.dir().display());
    if foreground {
        let text = format!("{name}: it is mounted on {at} already, so there is nothing to serve: leave out -f");
        return Err(with_code(exit::mount::FAILED, anyhow!(text)));
    }
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
            Ok(Some(0))
        }
        // It was unmounted just now.
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => {
            let what = match e.kind() {
                ErrorKind::AlreadyExists => format!("it is mounted on {} already", dir.display()),
                ErrorKind::ResourceBusy if read_only => format!(
                    "it is mounted on {at} for reading and writing, and a second mount cannot be read-only: mount it \
                     without ro, then use `mount -o remount,bind,ro {}`",
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
