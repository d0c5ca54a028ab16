//! A device that is mounted twice is one file system.

use crate::{expect, failed, on_each};
use std::fs;
use std::os::unix::fs::MetadataExt as _;

#[test]
fn a_second_mount_of_the_device_is_the_same_file_system() {
    on_each("second_mount", |disk| {
        let first = disk.mount();
        fs::write(first.path("one"), "through the first").unwrap();
        let second = disk.try_mount("second", "").map_err(failed("the second mount"))?;
        let read = |path: String| fs::read_to_string(path).map_err(failed("read"));
        expect(read(second.path("one"))? == "through the first", || "the second mount has another file".into())?;
        fs::write(second.path("two"), "through the second").map_err(failed("write"))?;
        expect(read(first.path("two"))? == "through the second", || "the first mount has another file".into())?;
        let numbers = |dir: &std::path::Path| dir.metadata().map(|m| (m.dev(), m.ino())).map_err(failed("stat"));
        expect(numbers(first.dir())? == numbers(second.dir())?, || "they have two device numbers".into())?;
        // A name that the other mount has cached goes for both.
        fs::remove_file(first.path("one")).map_err(failed("unlink"))?;
        expect(!second.dir().join("one").exists(), || "a removed file is still there in the other mount".into())?;
        first.unmount();
        expect(read(second.path("two"))? == "through the second", || "the second mount ended with the first".into())?;
        fs::write(second.path("three"), "after the first ended").map_err(failed("write"))?;
        second.unmount();
        disk.check()?;
        let m = disk.mount();
        expect(read(m.path("three"))? == "after the first ended", || "lost what was written last".into())
    });
}

#[test]
fn the_device_in_the_mount_table_is_the_one_that_was_mounted() {
    on_each("mount_table", |disk| {
        let m = disk.mount();
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = table.lines().find(|l| l.split(' ').nth(1) == m.dir().to_str()).ok_or("it is not in the table")?;
        expect(line.split(' ').next() == Some(disk.device()), || format!("the table has {line}"))?;
        let device = fs::metadata(disk.device()).unwrap().rdev();
        let mount = m.dir().metadata().unwrap().dev();
        expect(device == mount, || format!("files have device {mount:#x}, the block device is {device:#x}"))
    });
}
