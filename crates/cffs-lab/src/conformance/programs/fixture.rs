//! A tree with everything in it that archivers have to carry over.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::support::LIMIT;
use crate::conformance::job::{Job, command};
use crate::conformance::test_mount::TestMount;

/// Size of the sparse file.
pub const SPARSE_SIZE: u64 = 200 << 20;
/// Bytes in its islands of data.
pub const SPARSE_DATA: u64 = 5 * (64 << 10);

/// What an archive format can carry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extras {
    /// Extended attributes and ACLs too.
    All,
    /// Files, links, owners, modes.
    Plain,
}

/// Makes the tree beside the mount, on the file system of the temporary directory.
pub fn tree(job: &Job, mount: &TestMount, extras: Extras) -> Result<PathBuf> {
    let top = mount.beside("tree")?;
    // Many small real files.
    let real =
        ["/usr/include/linux", "/usr/include/c++", "/usr/share/perl5", "/usr/share/zoneinfo", "/usr/share/locale/de"];
    for dir in real.iter().map(Path::new).filter(|d| d.is_dir()) {
        job.run(command("cp", ["-a"]).arg(dir).arg(&top), LIMIT)?;
    }
    let odd = top.join("odd");
    fs::create_dir(&odd)?;
    sparse(&odd.join("sparse"))?;
    fs::write(odd.join("x".repeat(255)), "the longest name")?;
    fs::write(odd.join("blank, comma and\nnewline"), "")?;
    fs::write(odd.join("\u{e4}\u{4f60}\u{1f600}"), "unicode")?;
    fs::write(odd.join("one byte"), "1")?;
    fs::write(odd.join("a block"), [7; 4096])?;
    fs::create_dir(odd.join("empty"))?;
    for n in 0..40 {
        let dir = odd.join(format!("links{}", n % 4));
        fs::create_dir_all(&dir)?;
        fs::hard_link(odd.join("one byte"), dir.join(format!("link{n}")))?;
    }
    symlink("one byte", odd.join("symlink"))?;
    symlink("y".repeat(1500), odd.join("long symlink"))?;
    symlink("/nowhere/at/all", odd.join("dangling"))?;
    let sh = |script: &str| job.run(command("sh", ["-ec", script]).current_dir(&odd), LIMIT);
    sh("mkfifo fifo; mknod null c 1 3; mknod disk b 7 200")?;
    sh(
        "touch -d '1955-03-04 05:06:07.123456789' 'before 1970'; touch -d '2100-01-01 00:00:00.000000001' 'after 2038'",
    )?;
    sh("echo x > owned; chown 12345:54321 owned; chown -h 7:8 symlink; chmod 0000 'a block'")?;
    fs::set_permissions(odd.join("owned"), fs::Permissions::from_mode(0o6755))?;
    fs::set_permissions(odd.join("empty"), fs::Permissions::from_mode(0o3777))?;
    if extras == Extras::All {
        sh("setfattr -n user.small -v value owned; setfattr -n trusted.mine -v secret owned
            setfattr -n user.empty owned; setfattr -n user.dir -v value empty
            for i in 1 2 3 4 5 6 7 8; do setfattr -n user.many$i -v \"$(seq 60 | tr '\\n' ,)\" 'one byte'; done
            setfattr -h -n trusted.link -v value symlink
            setfacl -m u:nobody:rw,g:daemon:r owned; setfacl -d -m u:daemon:rwx,o::- empty")?;
        if crate::process::find_program("setcap").is_some() {
            sh("cp /bin/true capable; setcap cap_net_raw+ep capable")?;
        }
    }
    Ok(top)
}

/// Data at five places, holes between them and at the end.
fn sparse(path: &Path) -> Result<()> {
    let file = File::create_new(path)?;
    for (i, place) in [1u64, 20 << 20, (64 << 20) + 5000, 100 << 20, 150 << 20].into_iter().enumerate() {
        let island = vec![i as u8 + 1; (SPARSE_DATA / 5) as usize];
        file.write_all_at(&island, place)?;
    }
    Ok(file.set_len(SPARSE_SIZE)?)
}
