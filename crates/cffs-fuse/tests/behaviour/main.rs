//! Behaviours that programs expect of a file system of Linux, each tried on ext4, on XFS and on cffs.
//!
//! What ext4 and XFS both do is the measure: a behaviour that one of them lacks is no test here.

mod direct;
mod disk;
mod durable;
mod files;
mod flags;
mod handles;
mod mounts;
mod raw;
mod shutdown;
mod space;

use disk::{Disk, Kind};

/// What a behaviour comes to: an error says what is different.
pub type Outcome = Result<(), String>;

/// The behaviours that cffs does not have yet, and why. Its test then asserts that cffs still fails, so that the entry goes
/// when the behaviour comes.
const NOT_YET: &[(&str, &str)] = &[
    ("aio_enospc", "an error of a direct write in the background is handed on as EIO"),
    ("append_only_open", NO_FLAGS),
    ("birth_time", "the answer to STATX is not given"),
    (
        "buffered_read_beside_aio",
        "the kernel does not drop cached pages at the end of a direct write in the background",
    ),
    ("connectable_handle", NO_HANDLES),
    ("fallocate_drops_set_id", "set-gid without group execute stays"),
    ("flags_open_same_mount", NO_FLAGS),
    ("handle_after_drop_caches", NO_HANDLES),
    ("handle_after_remount", NO_HANDLES),
    ("handle_after_rename", NO_HANDLES),
    ("immutable_open", NO_FLAGS),
    ("mount_table", "the mount is not of type fuseblk, so it has a device number of its own"),
    ("norecovery", "there is no such mount option"),
    ("preallocated_on_full", "writing into unwritten extents asks for space that was not set aside"),
    ("second_mount", "the mount process holds the device for itself"),
    ("seek_data_outside", "a negative offset is EINVAL"),
    ("shutdown", NO_SHUTDOWN),
    ("shutdown_cached_read", NO_SHUTDOWN),
    ("shutdown_refused", NO_SHUTDOWN),
    ("stale_handle", NO_HANDLES),
    ("stale_handle_reused_number", NO_HANDLES),
    ("sync", NO_SYNCFS),
    ("syncfs", NO_SYNCFS),
    ("tmpfile", NO_TMPFILE),
    ("tmpfile_exclusive", NO_TMPFILE),
    ("tmpfile_link_empty_path", NO_TMPFILE),
    ("tmpfile_link_proc", NO_TMPFILE),
    ("tmpfile_space", NO_TMPFILE),
    ("trim_too_short", "any length is taken"),
    ("umount_complete", "umount(2) returns while the mount process still writes"),
];

// Reasons that several behaviours share.
const NO_FLAGS: &str =
    "the kernel does not know the flags of a file on FUSE, so it opens the file, and the write fails";
const NO_HANDLES: &str = "the mount does not say that its handles survive (FUSE_EXPORT_SUPPORT)";
const NO_SYNCFS: &str = "the kernel passes sync(2) on to mounts of type fuseblk alone, and FUSE_SYNCFS is not answered";
const NO_TMPFILE: &str = "FUSE_TMPFILE is not answered";
const NO_SHUTDOWN: &str = "FS_IOC_SHUTDOWN is not answered";

/// Tries a behaviour on a fresh device with each file system, and names the one that fails.
///
/// # Panics
/// When a file system fails, or one that is listed in [`NOT_YET`] does not.
#[track_caller]
pub fn on_each(name: &str, behaviour: impl Fn(&Disk) -> Outcome) {
    let not_yet = NOT_YET.iter().find(|(listed, _)| *listed == name);
    for kind in Kind::ALL.into_iter().filter(|kind| kind.is_there()) {
        let outcome = behaviour(&Disk::new(kind));
        println!("{name} on {kind:?}: {outcome:?}");
        match (not_yet, outcome) {
            (Some((_, why)), Ok(())) if kind == Kind::Cffs => {
                panic!("cffs has {name} now: remove it from NOT_YET, where it is because of this: {why}")
            }
            (Some(_), Err(_)) if kind == Kind::Cffs => {}
            (_, Ok(())) => {}
            (_, Err(what)) => panic!("{name} on {kind:?}: {what}"),
        }
    }
}

/// Ends a behaviour with an error unless `holds`.
///
/// # Errors
/// The text that `what` makes.
pub fn expect(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(what()) }
}

/// The error of a system call that has to fail with `errno`.
///
/// # Errors
/// When it succeeded, or failed with another one.
pub fn expect_errno<T>(result: std::io::Result<T>, errno: rustix::io::Errno, what: &str) -> Outcome {
    match result {
        Ok(_) => Err(format!("{what} succeeded, and should fail with {errno}")),
        Err(e) if e.raw_os_error() == Some(errno.raw_os_error()) => Ok(()),
        Err(e) => Err(format!("{what} failed with {e}, and should fail with {errno}")),
    }
}

/// An error of a system call that has to succeed, with what was tried.
pub fn failed<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> String {
    move |e| format!("{what}: {e}")
}

#[test]
fn what_is_not_yet_there_is_a_behaviour_and_has_a_reason() {
    let sources = [
        include_str!("direct.rs"),
        include_str!("durable.rs"),
        include_str!("files.rs"),
        include_str!("flags.rs"),
        include_str!("handles.rs"),
        include_str!("mounts.rs"),
        include_str!("shutdown.rs"),
        include_str!("space.rs"),
    ];
    for (name, why) in NOT_YET {
        assert!(sources.iter().any(|s| s.contains(&format!("on_each(\"{name}\""))), "no behaviour is called {name}");
        assert!(!why.is_empty(), "{name}: why not?");
    }
}
