//! What tests need of the machine that they run on.
//!
//! A test that misses something says so on standard error, where the test harness does not hide it, and ends. If the
//! environment variable `CFFS_REQUIRE` names what is missing (`CFFS_REQUIRE=fuse,root`), the test fails instead.

use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// The environment variable with the names of what must not be missing, separated by commas.
pub const REQUIRE: &str = "CFFS_REQUIRE";

/// Something that a machine may not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// The rights of root. Called "root".
    Root,
    /// `/dev/fuse`, to be opened by whoever runs the tests. Called "fuse".
    Fuse,
    /// Loop devices. Called "loop".
    Loop,
    /// A kernel with FUSE over io_uring. Called "ring".
    Ring,
    /// A program in one of the folders of `PATH`. Called by its own name.
    Program(&'a str),
}

impl Need<'_> {
    /// What it is called in [`REQUIRE`].
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Need::Root => "root",
            Need::Fuse => "fuse",
            Need::Loop => "loop",
            Need::Ring => "ring",
            Need::Program(name) => name,
        }
    }

    /// Whether the machine has it.
    #[must_use]
    pub fn is_there(&self) -> bool {
        match self {
            Need::Root => rustix::process::geteuid().is_root(),
            Need::Fuse => is_fuse(Path::new("/dev/fuse")),
            Need::Loop => Path::new("/dev/loop-control").exists(),
            Need::Ring => Path::new("/sys/module/fuse/parameters/enable_uring").exists(),
            Need::Program(name) => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
            }
        }
    }

    fn missing(&self) -> String {
        match self {
            Need::Root => "not run as root".into(),
            Need::Fuse => "/dev/fuse is missing or closed".into(),
            Need::Loop => "there are no loop devices".into(),
            Need::Ring => "the kernel has no FUSE over io_uring".into(),
            Need::Program(name) => format!("the program {name} is missing"),
        }
    }
}

/// Whether it is the device of FUSE, and not a file that hides it.
fn is_fuse(path: &Path) -> bool {
    let device =
        path.metadata().is_ok_and(|m| m.file_type().is_char_device() && m.rdev() == rustix::fs::makedev(10, 229));
    device && std::fs::OpenOptions::new().read(true).write(true).open(path).is_ok()
}

/// Whether the machine has all of it; if not, the test that asks ends ([`skipped`]).
///
/// # Panics
/// When [`REQUIRE`] names what is missing.
#[must_use]
#[track_caller]
pub fn have(needs: &[Need<'_>]) -> bool {
    for need in needs.iter().filter(|n| !n.is_there()) {
        skipped(need.name(), &need.missing());
    }
    needs.iter().all(Need::is_there)
}

/// Says that the running test, or a part of it, tests nothing, because what is called `name` is missing.
///
/// # Panics
/// When [`REQUIRE`] has this name.
#[track_caller]
pub fn skipped(name: &str, why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    assert!(!names(&std::env::var(REQUIRE).unwrap_or_default(), name), "{test}: {why}, and {REQUIRE} has \"{name}\"");
    // Not by a macro, whose output the harness keeps to itself.
    let _ = std::io::stderr().write_all(format!("SKIPPED {test}: {why} (\"{name}\")\n").as_bytes());
}

/// Repeats what is refused as busy: a program that another test is just starting can hold our files open until its exec.
///
/// # Errors
/// What the last call returned: any other error at once, busy after a minute.
pub fn when_not_busy<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let done = call();
        if !done.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::ResourceBusy) || Instant::now() > end {
            return done;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn names(list: &str, name: &str) -> bool {
    list.split(',').any(|word| word.trim() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_names() {
        assert!(names("fuse, root", "root") && names("fuse", "fuse"));
        assert!(!names("fuse,root", "loop") && !names("", "fuse") && !names("fusermount3", "fuse"));
    }

    #[test]
    fn only_what_is_busy_is_repeated() {
        let mut answers =
            [io::ErrorKind::ResourceBusy, io::ErrorKind::ResourceBusy, io::ErrorKind::NotFound].into_iter();
        let done: io::Result<()> = when_not_busy(|| Err(answers.next().unwrap().into()));
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(when_not_busy(|| Ok(1)).unwrap(), 1);
    }

    #[test]
    fn programs_and_devices_are_found_or_not() {
        assert!(Need::Program("sh").is_there());
        assert!(!Need::Program("there is no such program").is_there());
        assert!(!is_fuse(Path::new("/dev/null")) && !is_fuse(Path::new("/nonexistent")));
    }
}
