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
const NOT_YET: &[(&str, &str)] = &[(
    "flags_open_same_mount",
    "the kernel was told once, at the first open, that opening needs no message; only a mount that finds such files makes it ask",
)];

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
