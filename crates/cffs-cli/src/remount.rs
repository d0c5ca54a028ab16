//! `cffs mount -o remount`: other flags for a mount that stays.
//!
//! mount(8) finds the type `fuseblk.cffs` (or `fuse.cffs`) in the table of mounts and calls this program as
//! `mount.fuseblk.cffs`, with the options of fstab or of that table merged with those of the command line.

use crate::exit::{self, with_code};
use crate::mount_options::{Options, split};
use anyhow::anyhow;
use cffs_fuse::Remount;
use std::io::ErrorKind;
use std::path::Path;

/// What the table of mounts shows as options of a FUSE mount, besides those that `mount` takes.
const SHOWN: [&str; 6] = ["user_id", "group_id", "max_read", "rootmode", "fd", "blksize"];

/// Whether these lists of options ask for a remount.
pub fn is_wanted(lists: &[String]) -> bool {
    lists.iter().flat_map(|list| split(list)).any(|option| option == "remount")
}

/// Changes the flags of the mount at `dir`.
pub fn run(dir: &Path, lists: &[String], sloppy: bool) -> anyhow::Result<u8> {
    let name = dir.display();
    let (change, kept) = parse(lists, sloppy).map_err(|e| with_code(exit::mount::USAGE, anyhow!("{name}: {e}")))?;
    if !kept.is_empty() {
        tracing::info!(options = kept.join(","), "stay as they were at the mount");
    }
    match cffs_fuse::remount(dir, change) {
        Ok(()) => Ok(0),
        Err(e) => {
            let advice = match e.kind() {
                ErrorKind::ResourceBusy => {
                    ": a program has a file open for writing; `fuser -vm` or `lsof` on the directory shows which"
                }
                ErrorKind::ReadOnlyFilesystem => {
                    ": it was mounted read-only, or a write to the image has failed; unmount it and mount it again"
                }
                ErrorKind::PermissionDenied => ": only root may change a mount",
                ErrorKind::NotConnected => ": the process that served it is gone; remove the mount with `umount -l`",
                _ => "",
            };
            let code = if e.kind() == ErrorKind::PermissionDenied { exit::mount::USAGE } else { exit::mount::FAILED };
            Err(with_code(code, anyhow!("{name}: cannot remount: {e}{advice}")))
        }
    }
}

/// The change, and the options that take effect at a mount only.
pub fn parse(lists: &[String], sloppy: bool) -> Result<(Remount, Vec<String>), String> {
    let mut change = Remount::default();
    let mut kept = Vec::new();
    for option in lists.iter().flat_map(|list| split(list)) {
        match option.as_str() {
            "remount" => {}
            "ro" => change.read_only = Some(true),
            "rw" => change.read_only = Some(false),
            "suid" => change.suid = Some(true),
            "nosuid" => change.suid = Some(false),
            "dev" => change.dev = Some(true),
            "nodev" => change.dev = Some(false),
            "exec" => change.exec = Some(true),
            "noexec" => change.exec = Some(false),
            shown if shown.split_once('=').is_some_and(|(name, _)| SHOWN.contains(&name)) => {}
            other => {
                // Wrong ones are told all the same.
                Options::parse([other], sloppy)?;
                kept.push(option);
            }
        }
    }
    Ok((change, kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(text: &str) -> Vec<String> {
        vec![text.to_owned()]
    }

    #[test]
    fn what_mount_hands_over_is_understood() {
        // As mount(8) merges it from the table of mounts.
        let list =
            lists("ro,nosuid,relatime,user_id=0,group_id=0,default_permissions,allow_other,max_read=1048576,remount");
        assert!(is_wanted(&list));
        let (change, kept) = parse(&list, false).unwrap();
        assert_eq!(change, Remount { read_only: Some(true), suid: Some(false), ..Remount::default() });
        assert_eq!(kept, ["relatime", "default_permissions", "allow_other"]);
    }

    #[test]
    fn later_ones_win_and_wrong_ones_are_named() {
        let (change, kept) = parse(&["rw,remount".into(), "ro,exec,cache=64M".into()], false).unwrap();
        assert_eq!(change, Remount { read_only: Some(true), exec: Some(true), ..Remount::default() });
        assert_eq!(kept, ["cache=64M"]);
        assert!(parse(&lists("remount,nosuch"), false).unwrap_err().contains("'nosuch'"));
        assert!(parse(&lists("remount,cache=x"), true).unwrap_err().contains("'cache=x'"));
        assert!(!is_wanted(&lists("ro,x-remount,comment=remount")));
    }
}
