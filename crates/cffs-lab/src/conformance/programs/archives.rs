//! rsync, tar, cpio and cp carry a tree to the mount and back, and nothing is
//! different afterwards.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Result, ensure};

use super::fixture::{self, Extras, SPARSE_DATA, SPARSE_SIZE};
use super::support::{Args, LIMIT, need, need_root, same};
use crate::conformance::job::{Job, command};
use crate::conformance::test_mount::TestMount;

const OWNERS: &str = "owners and devices are carried over";

/// Both ways, and each time a second run has nothing to do.
pub fn rsync(_: &Args, job: &Job, mount: &mut TestMount) -> Result<String> {
    need(&["rsync", "setfattr", "setfacl"])?;
    need_root(OWNERS)?;
    let tree = fixture::tree(job, mount, Extras::All)?;
    let (there, back) = (mount.root().join("there"), mount.beside("back")?);
    let rsync = |extra: &str, from: &Path, to: &Path| {
        // Without --modify-window rsync takes times within one second for the same.
        let flags = ["-aHAXS", "--numeric-ids", "--modify-window=-1", "--itemize-changes", extra];
        let mut rsync = command("rsync", flags);
        rsync.arg(format!("{}/", from.display())).arg(format!("{}/", to.display()));
        job.run(&mut rsync, LIMIT)
    };
    let nothing = |itemized: String, what: &str| {
        let left = itemized.lines().count();
        ensure!(
            left == 0,
            "{what}: {left} items are left to transfer, such as: {}",
            itemized.lines().next().unwrap_or("")
        );
        Ok(())
    };
    let first = rsync("--delete", &tree, &there)?.lines().count();
    ensure!(first > 100, "only {first} items were transferred: too few files on this machine");
    nothing(rsync("--delete", &tree, &there)?, "to the mount, second run")?;
    holes(&there.join("odd/sparse"))?;
    mount.again()?;
    nothing(rsync("--checksum", &tree, &there)?, "to the mount, after a cold mount")?;
    rsync("--delete", &there, &back)?;
    nothing(rsync("--checksum", &there, &back)?, "from the mount, second run")?;
    same(&tree, &there, "on the mount")?;
    same(&tree, &back, "there and back")?;
    Ok(format!("{first} items there and back, nothing left to transfer"))
}

/// An archive of the tree unpacked on the mount, and one made on the mount unpacked beside it.
pub fn tar(_: &Args, job: &Job, mount: &mut TestMount) -> Result<String> {
    need(&["tar", "setfattr", "setfacl"])?;
    need_root(OWNERS)?;
    let tree = fixture::tree(job, mount, Extras::All)?;
    let (there, back) = (mount.root().join("there"), mount.beside("back")?);
    let archives = mount.beside("archives")?;
    fs::create_dir(&there)?;
    let tar = |way: &str, archive: &Path, dir: &Path| {
        let mut tar = command("tar", ["--numeric-owner", "--xattrs", "--xattrs-include=*", "--acls", "--format=pax"]);
        tar.args(["--sparse", "-p", "--atime-preserve=system"]).arg(way).arg("-f").arg(archive);
        job.run(tar.arg("-C").arg(dir).arg("."), LIMIT)
    };
    let (first, second) = (archives.join("first.tar"), archives.join("second.tar"));
    tar("-c", &first, &tree)?;
    tar("-x", &first, &there)?;
    tar("-d", &first, &there)?;
    holes(&there.join("odd/sparse"))?;
    mount.again()?;
    let files = same(&tree, &there, "unpacked on the mount")?;
    tar("-c", &second, &there)?;
    tar("-x", &second, &back)?;
    same(&tree, &back, "there and back")?;
    Ok(format!("{files} with xattrs, ACLs and holes there and back"))
}

/// cpio knows neither extended attributes nor fractions of seconds; what it knows must be the same.
pub fn cpio(_: &Args, job: &Job, mount: &mut TestMount) -> Result<String> {
    need(&["cpio", "find"])?;
    need_root(OWNERS)?;
    let tree = fixture::tree(job, mount, Extras::Plain)?;
    // Its header has four bytes for a time.
    for name in ["before 1970", "after 2038"] {
        fs::remove_file(tree.join("odd").join(name))?;
    }
    let (there, back) = (mount.root().join("there"), mount.beside("back")?);
    fs::create_dir(&there)?;
    let copy = |from: &Path, to: &Path| {
        let script = "find . -depth -print0 | cpio --null --quiet -o -H newc | \
                      cpio --quiet -idm --no-absolute-filenames --sparse -D \"$1\"";
        job.run(command("sh", ["-ec", script, "sh"]).arg(to).current_dir(from), LIMIT)
    };
    let listing = |dir: &Path| {
        // Type, mode, owner, size, whole seconds, links, target; not the size of directories, nor the time of symbolic
        // links, which cpio does not set.
        let script = "find . -type d -printf '%P/ %m %U %G\\n' -o -type l -printf '%P %U %G %n %l\\n' \
                      -o -printf '%P %y %m %U %G %s %Ts %n\\n' | LC_ALL=C sort";
        job.run(command("sh", ["-ec", script]).current_dir(dir), LIMIT)
    };
    copy(&tree, &there)?;
    holes(&there.join("odd/sparse"))?;
    let expected = listing(&tree)?;
    ensure!(listing(&there)? == expected, "the tree on the mount is another");
    mount.again()?;
    ensure!(listing(&there)? == expected, "the tree on the mount is another after a cold mount");
    job.run(
        command("diff", ["-r", "--no-dereference", "-x", "fifo", "-x", "null", "-x", "disk"]).arg(&tree).arg(&there),
        LIMIT,
    )?;
    copy(&there, &back)?;
    ensure!(listing(&back)? == expected, "the tree is another there and back");
    Ok(format!("{} names there and back", expected.lines().count()))
}

/// Holes are made and kept, on the way in, within the mount and on the way out.
pub fn cp(_: &Args, job: &Job, mount: &mut TestMount) -> Result<String> {
    need(&["cp", "cmp", "setfattr", "setfacl"])?;
    need_root(OWNERS)?;
    let tree = fixture::tree(job, mount, Extras::All)?;
    let (there, again) = (mount.root().join("there"), mount.root().join("again"));
    let back = mount.beside("copies")?.join("back");
    let zeros = mount.beside("copies")?.join("zeros");
    fs::write(&zeros, vec![0; 8 << 20])?;
    let cp = |from: &Path, to: &Path| {
        job.run(command("cp", ["-a", "--reflink=auto", "--sparse=always"]).arg(from).arg(to), LIMIT)
    };
    cp(&tree, &there)?;
    cp(&there, &again)?;
    cp(&zeros, &mount.root().join("zeros"))?;
    mount.again()?;
    cp(&again, &back)?;
    for copy in [&there, &again, &back] {
        same(&tree, copy, &copy.to_string_lossy())?;
    }
    holes(&there.join("odd/sparse"))?;
    holes(&again.join("odd/sparse"))?;
    let zeros = mount.root().join("zeros").metadata()?;
    ensure!((zeros.len(), zeros.blocks()) == (8 << 20, 0), "8 MiB of zeros take {} sectors", zeros.blocks());
    // Without --sparse: cp asks for the holes, and may copy within the file system.
    let plain = mount.root().join("plain");
    job.run(command("cp", ["--sparse=auto"]).arg(there.join("odd/sparse")).arg(&plain), LIMIT)?;
    job.run(command("cmp", ["--"]).arg(there.join("odd/sparse")).arg(&plain), LIMIT)?;
    holes(&plain)?;
    Ok("a tree copied in, within and out; holes made and kept".into())
}

/// The sparse file takes little more than its data.
fn holes(file: &Path) -> Result<()> {
    let meta = file.metadata()?;
    let allocated = meta.blocks() * 512;
    ensure!(meta.len() == SPARSE_SIZE, "{} has {} bytes", file.display(), meta.len());
    ensure!(allocated >= SPARSE_DATA, "{} has less space than data", file.display());
    // rsync and cp look for zeros in pieces, so the islands may have wide shores.
    ensure!(allocated <= 4 * SPARSE_DATA, "{} takes {allocated} bytes for {SPARSE_DATA} of data", file.display());
    Ok(())
}
