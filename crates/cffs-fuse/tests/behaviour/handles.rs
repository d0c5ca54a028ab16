//! File handles, as NFS servers use them: name_to_handle_at(2) and open_by_handle_at(2).

use crate::disk::{Disk, Mount};
use crate::raw::{Answer, raw};
use crate::{Outcome, expect, failed, on_each};
use std::fs;
use std::os::unix::fs::MetadataExt as _;

/// A handle: type and bytes, as `raw.py` prints them.
#[derive(Clone, Debug)]
struct Handle {
    kind: String,
    data: String,
}

impl Handle {
    fn of(path: &str, connectable: bool) -> Result<Handle, String> {
        let word = if connectable { "connectable" } else { "plain" };
        let lines = raw(&["handle", path, word]).map_err(failed("name_to_handle_at"))?;
        let (kind, data) = lines[0].split_once(' ').ok_or_else(|| format!("no handle: {lines:?}"))?;
        Ok(Handle { kind: kind.to_owned(), data: data.to_owned() })
    }

    /// Inode number, path, and contents or names.
    fn open(&self, m: &Mount<'_>) -> Answer {
        raw(&["open_handle", m.dir().to_str().unwrap(), &self.kind, &self.data])
    }

    fn expect(&self, m: &Mount<'_>, ino: u64, inside: &str) -> Outcome {
        let lines = self.open(m).map_err(failed("open_by_handle_at"))?;
        let good = lines.first() == Some(&ino.to_string()) && lines.last().map(String::as_str) == Some(inside);
        expect(good, || format!("the handle opens {lines:?}, and should open inode {ino} with {inside}"))
    }

    fn expect_stale(&self, m: &Mount<'_>) -> Outcome {
        let answer = self.open(m);
        expect(answer.as_ref().is_err_and(|e| e == "ESTALE"), || format!("a stale handle opens {answer:?}"))
    }
}

/// A directory with a file deep in the tree, their handles and inode numbers.
struct Tree {
    file: (Handle, u64),
    dir: (Handle, u64),
}

fn make_tree(m: &Mount<'_>, connectable: bool) -> Result<Tree, String> {
    fs::create_dir_all(m.dir().join("a/b/c")).unwrap();
    fs::write(m.path("a/b/c/file"), "contents").unwrap();
    let with_ino = |name: &str| {
        let path = m.path(name);
        Ok::<_, String>((Handle::of(&path, connectable)?, fs::metadata(&path).unwrap().ino()))
    };
    Ok(Tree { file: with_ino("a/b/c/file")?, dir: with_ino("a/b/c")? })
}

/// Makes the kernel forget every inode that nobody uses.
fn drop_caches() {
    rustix::fs::sync();
    for what in ["2", "3"] {
        fs::write("/proc/sys/vm/drop_caches", what).unwrap();
    }
}

impl Tree {
    fn expect(&self, m: &Mount<'_>) -> Outcome {
        self.file.0.expect(m, self.file.1, "contents")?;
        self.dir.0.expect(m, self.dir.1, "file")
    }
}

#[test]
fn a_handle_opens_its_file_after_the_inode_left_memory() {
    on_each("handle_after_drop_caches", |disk| {
        let m = disk.mount();
        let tree = make_tree(&m, false)?;
        tree.expect(&m)?;
        drop_caches();
        tree.expect(&m)
    });
}

#[test]
fn a_handle_opens_its_file_after_the_next_mount() {
    on_each("handle_after_remount", |disk| {
        let m = disk.mount();
        let tree = make_tree(&m, false)?;
        m.unmount();
        let m = disk.mount();
        tree.expect(&m)?;
        // Once more with names that are cached.
        assert_eq!(fs::read(m.path("a/b/c/file")).unwrap(), b"contents");
        tree.expect(&m)
    });
}

#[test]
fn a_handle_of_the_root_is_good_for_ever() {
    on_each("handle_of_root", |disk| {
        let m = disk.mount();
        fs::write(m.path("file"), "x").unwrap();
        let handle = Handle::of(m.dir().to_str().unwrap(), false)?;
        m.unmount();
        let m = disk.mount();
        let lines = handle.open(&m).map_err(failed("open_by_handle_at"))?;
        expect(lines[2].split(',').any(|name| name == "file"), || format!("the root's handle opens {lines:?}"))
    });
}

#[test]
fn a_connectable_handle_brings_the_path() {
    on_each("connectable_handle", |disk| {
        let m = disk.mount();
        let tree = make_tree(&m, true)?;
        let paths = |m: &Mount<'_>, when: &str| {
            for (handle, name) in [(&tree.file.0, "a/b/c/file"), (&tree.dir.0, "a/b/c")] {
                let lines = handle.open(m).map_err(failed("open_by_handle_at"))?;
                expect(lines[1] == m.path(name), || format!("{when} the path of {name} is {}", lines[1]))?;
            }
            Ok::<(), String>(())
        };
        paths(&m, "at once")?;
        drop_caches();
        paths(&m, "after drop_caches")?;
        m.unmount();
        paths(&disk.mount(), "after the next mount")
    });
}

#[test]
fn a_handle_follows_a_rename() {
    on_each("handle_after_rename", |disk| {
        let m = disk.mount();
        let tree = make_tree(&m, false)?;
        fs::create_dir(m.path("other")).unwrap();
        fs::rename(m.path("a/b/c/file"), m.path("other/moved")).unwrap();
        fs::rename(m.path("a/b"), m.path("other/b")).unwrap();
        let expect_both = |m: &Mount<'_>| {
            tree.file.0.expect(m, tree.file.1, "contents")?;
            tree.dir.0.expect(m, tree.dir.1, "")
        };
        expect_both(&m)?;
        drop_caches();
        expect_both(&m)?;
        m.unmount();
        expect_both(&disk.mount())
    });
}

#[test]
fn the_handle_of_a_removed_file_is_stale() {
    on_each("stale_handle", |disk| {
        let m = disk.mount();
        let tree = make_tree(&m, false)?;
        // If no handle opened anything, ESTALE would prove nothing.
        tree.expect(&m)?;
        drop_caches();
        tree.expect(&m)?;
        fs::remove_dir_all(m.path("a")).unwrap();
        tree.file.0.expect_stale(&m)?;
        tree.dir.0.expect_stale(&m)?;
        m.unmount();
        let m = disk.mount();
        tree.file.0.expect_stale(&m)?;
        tree.dir.0.expect_stale(&m)
    });
}

/// Makes files beside the removed one until one has the number `ino`; whether that came.
fn reuse(m: &Mount<'_>, ino: u64) -> bool {
    (0..2000).any(|n| {
        let path = m.path(&format!("a/b/c/new{n}"));
        fs::write(&path, "another").unwrap();
        fs::metadata(path).unwrap().ino() == ino
    })
}

#[test]
fn a_handle_never_opens_another_file_with_the_same_number() {
    on_each("stale_handle_reused_number", |disk| {
        let m = disk.mount();
        let tree = make_tree(&m, false)?;
        drop_caches();
        tree.expect(&m)?;
        // The number may be given out again only when the removal is durable, or at the next mount.
        fs::remove_file(m.path("a/b/c/file")).unwrap();
        fs::File::open(m.dir()).unwrap().sync_all().unwrap();
        let reused = reuse(&m, tree.file.1);
        tree.file.0.expect_stale(&m)?;
        m.unmount();
        let m = disk.mount();
        let reused = reused || reuse(&m, tree.file.1);
        assert!(reused || !gives_numbers_again(disk), "{:?} did not use the number again", disk.kind());
        tree.file.0.expect_stale(&m)
    });
}

/// Which of them give a number out again soon, so that the test is worth something.
fn gives_numbers_again(disk: &Disk) -> bool {
    disk.kind() != crate::disk::Kind::Cffs
}
