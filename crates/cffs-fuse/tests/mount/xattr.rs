//! Extended attributes and access control lists through a mount, with the programs that people use for them.

use crate::common::{Image, Mounted, can_mount};
use cffs::MountOptions;
use cffs_fuse::MountConfig;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::fs;
use std::io::{Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn get(path: &Path, name: &str) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; 70_000];
    let n = rustix::fs::lgetxattr(path, name, &mut value[..])?;
    value.truncate(n);
    Ok(value)
}

fn set(path: &Path, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
}

fn list(path: &Path) -> Vec<String> {
    let mut names = vec![0; 70_000];
    let n = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let mut names: Vec<String> = String::from_utf8_lossy(&names[..n]).split_terminator('\0').map(Into::into).collect();
    names.sort();
    names
}

/// Runs a program as a user without other groups; its output, or `None` if it failed.
fn run_as(uid: u32, program: &str, args: &[&str]) -> Option<String> {
    let mut c = Command::new(program);
    c.args(args).uid(uid).gid(uid);
    let out = c.output().unwrap_or_else(|e| panic!("{program}: {e}"));
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

fn run(program: &str, args: &[&str]) -> String {
    run_as(0, program, args).unwrap_or_else(|| panic!("{program} {args:?} failed"))
}

/// False, with a message, where the programs of the packages attr and acl are missing.
fn has_tools() -> bool {
    let all = ["setfattr", "getfattr", "setfacl", "getfacl"];
    cffs_testenv::have(&all.map(cffs_testenv::Need::Program))
}

fn text(m: &Mounted, name: &str) -> String {
    m.path(name).to_str().unwrap().to_owned()
}

#[test]
fn attributes_survive_a_remount() {
    if !can_mount() || !has_tools() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let large: Vec<u8> = (0..65_536u32).map(|i| (i * 7 + i / 251) as u8).collect();
    fs::write(m.path("file"), b"contents").unwrap();
    fs::create_dir(m.path("dir")).unwrap();
    std::os::unix::fs::symlink("file", m.path("link")).unwrap();
    run("setfattr", &["-n", "user.comment", "-v", "a value", &text(&m, "file")]);
    run("setfattr", &["-n", "user.empty", &text(&m, "dir")]);
    set(&m.path("file"), "user.large", &large).unwrap();
    set(&m.path("link"), "trusted.on-a-link", b"yes").unwrap();
    set(&m.path("dir"), "security.label", b"x").unwrap();
    m.unmount();
    let m = image.mount();
    assert!(run("getfattr", &["-d", &text(&m, "file")]).contains("user.comment=\"a value\""));
    assert_eq!(get(&m.path("file"), "user.large").unwrap(), large);
    assert_eq!(list(&m.path("file")), ["user.comment", "user.large"]);
    assert_eq!(list(&m.path("dir")), ["security.label", "user.empty"]);
    assert_eq!(get(&m.path("link"), "trusted.on-a-link").unwrap(), b"yes");
    run("setfattr", &["-x", "user.comment", &text(&m, "file")]);
    assert_eq!(get(&m.path("file"), "user.comment"), Err(Errno::NODATA));
    assert_eq!(fs::read(m.path("file")).unwrap(), b"contents");
    m.unmount();
}

#[test]
fn errors_are_those_of_the_manual() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::write(m.path("file"), b"").unwrap();
    std::os::unix::fs::symlink("file", m.path("link")).unwrap();
    let file = m.path("file");
    set(&file, "user.a", b"12345").unwrap();
    assert_eq!(rustix::fs::lsetxattr(&file, "user.a", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(rustix::fs::lsetxattr(&file, "user.b", b"2", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(rustix::fs::lgetxattr(&file, "user.a", &mut [0u8; 4][..]), Err(Errno::RANGE));
    assert_eq!(rustix::fs::llistxattr(&file, &mut [0u8; 3][..]), Err(Errno::RANGE));
    assert_eq!(rustix::fs::lremovexattr(&file, "user.b"), Err(Errno::NODATA));
    assert_eq!(set(&file, "nonsense.a", b"1"), Err(Errno::OPNOTSUPP));
    assert_eq!(set(&file, "user.big", &vec![0; 65_537]), Err(Errno::TOOBIG));
    assert_eq!(set(&m.path("link"), "user.a", b"1"), Err(Errno::PERM));
    // Only the superuser sees trusted attributes.
    set(&file, "trusted.secret", b"1").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    if has_tools() {
        let seen = run_as(1000, "getfattr", &["-m", "-", "-d", file.to_str().unwrap()]).unwrap();
        assert!(seen.contains("user.a") && !seen.contains("trusted"), "{seen}");
        assert!(run_as(1000, "setfattr", &["-n", "trusted.x", "-v", "1", file.to_str().unwrap()]).is_none());
        // And nobody changes another's file that is read-only to him.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(run_as(1000, "setfattr", &["-n", "user.x", "-v", "1", file.to_str().unwrap()]).is_none());
    }
    assert_eq!(list(&file), ["trusted.secret", "user.a"]);
    m.unmount();
}

#[test]
fn access_lists_decide_who_gets_in() {
    if !can_mount() || !has_tools() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::set_permissions(m.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(m.path("dir")).unwrap();
    let file = text(&m, "dir/file");
    fs::write(&file, b"secret").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let reads = |uid| run_as(uid, "cat", &[&file]).is_some();
    let writes =
        |uid| run_as(uid, "dd", &["if=/dev/zero", "bs=1", "count=1", "conv=notrunc", &format!("of={file}")]).is_some();
    assert!(!reads(1000) && !reads(1001));
    run("setfacl", &["-m", "u:1000:rw,u:1001:r", &file]);
    assert_eq!(mode(Path::new(&file)), 0o660, "the group bits are the mask");
    assert!(reads(1000) && writes(1000) && reads(1001) && !writes(1001) && !reads(1002));
    // chmod changes the mask, and the kernel knows at once.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(run("getfacl", &["-cpn", &file]).contains("mask::r--"));
    assert!(reads(1000) && !writes(1000));
    run("setfacl", &["-m", "m::rw", &file]);
    assert_eq!(mode(Path::new(&file)), 0o660);
    assert!(writes(1000));
    // Groups, and taking the list away.
    run("setfacl", &["-x", "u:1000", "-m", "g:1000:r", &file]);
    assert!(reads(1000) && !writes(1000));
    run("setfacl", &["-b", &file]);
    assert_eq!(mode(Path::new(&file)), 0o600);
    assert!(!reads(1000) && !reads(1001) && list(Path::new(&file)).is_empty());
    // A directory that only one user gets through.
    run("setfacl", &["-m", "u:1001:x,o::-,g::-", &text(&m, "dir")]);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(reads(1001) && !reads(1000));
    // Only its owner changes a file's list.
    assert!(run_as(1001, "setfacl", &["-m", "u:1001:rw", &file]).is_none());
    m.unmount();
    let m = image.mount();
    assert!(run("getfacl", &["-cpn", &text(&m, "dir")]).contains("user:1001:--x"));
    assert!(run_as(1001, "cat", &[&file]).is_some() && run_as(1000, "cat", &[&file]).is_none());
    m.unmount();
}

#[test]
fn default_lists_are_inherited_and_the_umask_is_not_applied_to_them() {
    if !can_mount() || !has_tools() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    for dir in ["plain", "shared"] {
        fs::create_dir(m.path(dir)).unwrap();
        fs::set_permissions(m.path(dir), fs::Permissions::from_mode(0o777)).unwrap();
    }
    let dir = text(&m, "shared");
    run("setfacl", &["-d", "-m", "u:1000:rwx,g::r-x,o::-", &dir]);
    let script = |dir: &str| {
        format!("umask 077; cd {}; mkdir sub; : > file; mkfifo pipe; : > sub/file; cp /bin/true program", text(&m, dir))
    };
    run_as(1001, "sh", &["-c", &script("plain")]).unwrap();
    run_as(1001, "sh", &["-c", &script("shared")]).unwrap();
    let modes = |dir: &str| ["sub", "file", "pipe", "sub/file"].map(|f| mode(&m.path(&format!("{dir}/{f}"))));
    assert_eq!(modes("plain"), [0o700, 0o600, 0o600, 0o600]);
    assert_eq!(modes("shared"), [0o770, 0o660, 0o660, 0o660]);
    let acl = run("getfacl", &["-cpn", &text(&m, "shared/sub")]);
    assert!(acl.contains("user:1000:rwx") && acl.contains("default:user:1000:rwx"), "{acl}");
    assert_eq!(list(&m.path("shared/file")), ["system.posix_acl_access"]);
    assert!(run_as(1000, "sh", &["-c", &format!("echo x > {dir}/sub/file && mkdir {dir}/sub/mine")]).is_some());
    assert!(run_as(1002, "cat", &[&format!("{dir}/sub/file")]).is_none());
    m.unmount();
}

#[test]
fn set_id_bits_and_capabilities_fall_away_with_a_change() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::set_permissions(m.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    // Version 2 of a file capability: CAP_NET_RAW, permitted.
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let changes = [
        ("write", "printf x >> f"),
        ("truncate", "truncate -s 1 f"),
        ("overwrite", "printf y > f"),
        ("direct", "dd if=/dev/zero of=f bs=4096 count=1 oflag=direct conv=notrunc"),
    ];
    for (what, script) in changes {
        let path = m.path("f");
        fs::write(&path, vec![1; 5000]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        set(&path, "security.capability", &capability).unwrap();
        assert_eq!(mode(&path), 0o6777);
        run_as(1000, "sh", &["-c", &format!("cd {} && {script}", m.dir().display())]).unwrap();
        assert_eq!(mode(&path), 0o777, "{what}");
        assert_eq!(get(&path, "security.capability"), Err(Errno::NODATA), "{what}");
        fs::remove_file(&path).unwrap();
    }
    let path = m.path("f");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(&[1; 5000]).unwrap();
    // The superuser writes without losing them, and they go when the file is given away.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    file.rewind().unwrap();
    file.write_all(b"more").unwrap();
    assert_eq!(mode(&path), 0o6755);
    std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
    assert_eq!(mode(&path), 0o755);
    // Set-group-id goes with a list of somebody who is not in the group.
    if has_tools() {
        std::os::unix::fs::chown(&path, Some(1000), Some(2000)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o2755)).unwrap();
        run_as(1000, "setfacl", &["-m", "u:1001:r", path.to_str().unwrap()]).unwrap();
        assert_eq!(mode(&path), 0o755);
    }
    drop(file);
    m.unmount();
}

#[test]
fn a_mount_may_be_without_lists_or_without_attributes() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::write(m.path("file"), b"").unwrap();
    set(&m.path("file"), "user.a", b"1").unwrap();
    m.unmount();
    let none =
        [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 5, 0, 255, 255, 255, 255, 0x20, 0, 0, 0, 255, 255, 255, 255];
    let without = MountConfig { acl: false, ..MountConfig::default() };
    let m = image.mount_with(MountOptions::default(), &without);
    assert_eq!(get(&m.path("file"), "user.a").unwrap(), b"1");
    assert_eq!(set(m.dir(), "system.posix_acl_default", &none), Err(Errno::OPNOTSUPP));
    m.unmount();
    let m = image.mount();
    set(m.dir(), "system.posix_acl_default", &none).unwrap();
    assert_eq!(get(m.dir(), "system.posix_acl_default").unwrap(), none);
    m.unmount();
    let m = image.mount_with(MountOptions::default(), &without);
    assert_eq!(get(m.dir(), "system.posix_acl_default"), Err(Errno::OPNOTSUPP));
    assert!(list(m.dir()).is_empty());
    m.unmount();
    let m = image.mount_with(MountOptions::default(), &MountConfig { xattr: false, ..MountConfig::default() });
    assert_eq!(get(&m.path("file"), "user.a"), Err(Errno::OPNOTSUPP));
    assert_eq!(set(&m.path("file"), "user.b", b"1"), Err(Errno::OPNOTSUPP));
    m.unmount();
}
