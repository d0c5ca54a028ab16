//! Immutable and append-only files are refused when they are opened.

use crate::disk::Mount;
use crate::{Outcome, expect_errno, failed, on_each};
use rustix::fs::IFlags;
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;

/// Gives a file `flags` and no other of the two; what else it has it keeps.
fn set(m: &Mount<'_>, name: &str, flags: IFlags) -> Outcome {
    let file = File::open(m.path(name)).unwrap();
    let others = rustix::fs::ioctl_getflags(&file).map_err(failed("FS_IOC_GETFLAGS"))?;
    let others = others.difference(IFlags::IMMUTABLE | IFlags::APPEND);
    rustix::fs::ioctl_setflags(file, others | flags).map_err(failed("FS_IOC_SETFLAGS"))
}

/// Two files with their flags.
fn make(m: &Mount<'_>) -> Outcome {
    for (name, flag) in [("immutable", IFlags::IMMUTABLE), ("append", IFlags::APPEND)] {
        fs::write(m.path(name), "contents").unwrap();
        set(m, name, flag)?;
    }
    Ok(())
}

fn immutable_is_refused(m: &Mount<'_>) -> Outcome {
    let path = m.path("immutable");
    expect_errno(OpenOptions::new().write(true).open(&path), Errno::PERM, "open for writing of an immutable file")?;
    let both = OpenOptions::new().read(true).append(true).open(&path);
    expect_errno(both, Errno::PERM, "open for appending of an immutable file")?;
    let cut = OpenOptions::new().write(true).truncate(true).open(&path);
    expect_errno(cut, Errno::PERM, "open with O_TRUNC of an immutable file")?;
    let text = fs::read(&path).map_err(failed("reading an immutable file"))?;
    crate::expect(text == b"contents", || format!("the immutable file has {text:?}"))
}

fn append_only_is_refused(m: &Mount<'_>) -> Outcome {
    let path = m.path("append");
    let plain = OpenOptions::new().write(true).open(&path);
    expect_errno(plain, Errno::PERM, "open for writing without O_APPEND of an append-only file")?;
    let cut = OpenOptions::new().write(true).custom_flags(cut_and_append()).open(&path);
    expect_errno(cut, Errno::PERM, "open with O_TRUNC of an append-only file")?;
    let mut file = OpenOptions::new().append(true).open(&path).map_err(failed("open for appending"))?;
    file.write_all(b", more").map_err(failed("appending"))?;
    let text = fs::read(&path).map_err(failed("reading an append-only file"))?;
    crate::expect(text == b"contents, more", || format!("the append-only file has {text:?}"))
}

/// Both flags, which the standard library does not let through together.
fn cut_and_append() -> i32 {
    (rustix::fs::OFlags::TRUNC | rustix::fs::OFlags::APPEND).bits() as i32
}

/// Takes the flags away, so that nothing is left that cannot be removed.
fn clear(m: &Mount<'_>) -> Outcome {
    ["immutable", "append"].iter().try_for_each(|name| set(m, name, IFlags::empty()))
}

#[test]
fn an_immutable_file_is_not_opened_for_writing() {
    on_each("immutable_open", |disk| {
        let m = disk.mount();
        make(&m)?;
        m.unmount();
        let m = disk.mount();
        immutable_is_refused(&m)?;
        clear(&m)
    });
}

#[test]
fn an_append_only_file_is_opened_for_appending_alone() {
    on_each("append_only_open", |disk| {
        let m = disk.mount();
        make(&m)?;
        m.unmount();
        let m = disk.mount();
        append_only_is_refused(&m)?;
        clear(&m)
    });
}

#[test]
fn a_flag_counts_at_once() {
    on_each("flags_open_same_mount", |disk| {
        let m = disk.mount();
        make(&m)?;
        immutable_is_refused(&m)?;
        append_only_is_refused(&m)?;
        clear(&m)?;
        fs::write(m.path("immutable"), "other").map_err(failed("writing after the flag was taken away"))?;
        fs::write(m.path("append"), "other").map_err(failed("writing after the flag was taken away"))
    });
}
