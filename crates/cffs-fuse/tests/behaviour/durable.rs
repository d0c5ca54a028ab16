//! What sync(2), syncfs(2) and umount(2) promise, seen in a copy of the device that is made right afterwards.

use crate::disk::{Disk, Mount};
use crate::{Outcome, expect, failed, on_each};
use std::fs::{self, File};
use std::path::Path;

/// Some directories with files of all sizes, a rename and a removal, none of it synced.
fn write_tree(m: &Mount<'_>) {
    for d in 0..8 {
        fs::create_dir(m.path(&format!("d{d}"))).unwrap();
        for f in 0..20 {
            fs::write(m.path(&format!("d{d}/f{f}")), contents(d, f)).unwrap();
        }
        fs::rename(m.path(&format!("d{d}/f0")), m.path(&format!("d{d}/renamed"))).unwrap();
        fs::remove_file(m.path(&format!("d{d}/f1"))).unwrap();
    }
}

fn contents(d: usize, f: usize) -> Vec<u8> {
    let len = [10, 1000, 5000, 70_000, 1_200_000][(d + f) % 5];
    (0..len).map(|n| (n * (d + 3) + f) as u8).collect()
}

/// Mounts the device and looks for everything that [`write_tree`] made.
fn expect_tree(disk: &Disk) -> Outcome {
    let m = disk.mount();
    for d in 0..8 {
        let mut names: Vec<String> = list(&m.dir().join(format!("d{d}")))?;
        names.sort();
        let mut wanted: Vec<String> = (2..20).map(|f| format!("f{f}")).chain(["renamed".into()]).collect();
        wanted.sort();
        expect(names == wanted, || format!("d{d} has {} names of {}", names.len(), wanted.len()))?;
        for f in (0..20).filter(|f| *f != 1) {
            let name = if f == 0 { "renamed".into() } else { format!("f{f}") };
            let found = fs::read(m.path(&format!("d{d}/{name}"))).map_err(failed("read"))?;
            let (is, wanted) = (found.len(), contents(d, f));
            expect(found == wanted, || format!("d{d}/{name}: {is} bytes, {} were written", wanted.len()))?;
        }
    }
    m.unmount();
    Ok(())
}

fn list(dir: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(dir).map_err(|e| format!("{} is not there: {e}", dir.file_name().unwrap().display()))?;
    Ok(entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect())
}

#[test]
fn sync_makes_everything_durable() {
    on_each("sync", |disk| {
        let m = disk.mount();
        write_tree(&m);
        rustix::fs::sync();
        let copy = disk.copy();
        drop(m);
        expect_tree(&copy)
    });
}

#[test]
fn syncfs_makes_everything_durable() {
    on_each("syncfs", |disk| {
        let m = disk.mount();
        write_tree(&m);
        rustix::fs::syncfs(File::open(m.path("d3/f3")).unwrap()).map_err(failed("syncfs"))?;
        let copy = disk.copy();
        drop(m);
        expect_tree(&copy)
    });
}

#[test]
fn an_unmount_by_system_call_is_complete_when_it_returns() {
    on_each("umount_complete", |disk| {
        let m = disk.mount();
        write_tree(&m);
        m.unmount();
        let copy = disk.copy();
        copy.check()?;
        expect_tree(&copy)
    });
}

/// The opposite, so that the tests above can fail: what nobody synced is not in a copy of the same moment.
#[test]
fn without_a_sync_something_is_missing() {
    on_each("no_sync", |disk| {
        let m = disk.mount();
        write_tree(&m);
        let copy = disk.copy();
        drop(m);
        expect(expect_tree(&copy).is_err(), || "everything was there without a sync".into())
    });
}
