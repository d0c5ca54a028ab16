//! Mounts as a service has them: by users, with the options of fstab, with messages in the system log, over a host disk that
//! fills up. What needs another `/dev` gets it in a mount namespace of its own.

use crate::mounting::{fuse_works, is_mounted, mount_point, umount};
use crate::tools::*;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

/// Runs a script of the shell, as root in a mount namespace of its own whose `/dev` has nothing but `null` and a `fuse` that is
/// open to all, as on other machines. `None` where that cannot be.
pub fn with_own_dev(dir: &Path, script: &str) -> Option<Output> {
    if !have(&[Need::Root, Need::Fuse]) {
        return None;
    }
    let prepare = "mount -t tmpfs -o mode=755 none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/fuse c 10 229 && \
                   test -w /dev/fuse && : 2>/dev/null <>/dev/fuse || exit 77";
    let out = Command::new("timeout")
        .args(["120", "unshare", "-m", "sh", "-c", &format!("{prepare}\n{script}")])
        .env("CFFS", CFFS)
        .env_remove("CFFS_LOG")
        .current_dir(dir)
        .output()
        .unwrap();
    if matches!(out.status.code(), Some(77 | 1)) && !stderr(&out).contains("cffs") && stdout(&out).is_empty() {
        skipped("namespaces", &format!("no device files of its own: {}", stderr(&out)));
        return None;
    }
    Some(out)
}

#[test]
fn a_user_mounts_an_image_of_their_own() {
    if !have(&[Need::Program("fusermount3")]) {
        return;
    }
    let dir = temp_dir();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // The build may lie where others cannot get.
    fs::copy(CFFS, dir.path().join("cffs")).unwrap();
    fs::create_dir(dir.path().join("home")).unwrap();
    let script = r#"
        set -e
        chown 65534:65534 home
        as() { setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"; }
        as ./cffs mkfs --size 64M home/image >/dev/null
        as mkdir home/mnt
        as ./cffs mount home/image home/mnt
        as sh -c 'echo contents >home/mnt/file && cat home/mnt/file && stat -c "%u %F" home/mnt/file'
        if ls home/mnt 2>/dev/null; then echo 'root gets in'; fi
        as ./cffs tune -L mine home/mnt
        as ./cffs umount home/mnt
        as ./cffs fsck -n home/image >/dev/null
        as ./cffs info --quick home/image | grep label
        if as ./cffs mount -o allow_other home/image home/mnt; then as ./cffs umount home/mnt; fi
    "#;
    let Some(out) = with_own_dev(dir.path(), script) else { return };
    let (text, errors) = (stdout(&out), stderr(&out));
    assert!(out.status.success(), "{text}\n{errors}");
    for line in ["contents", "65534 regular file", "label        mine"] {
        assert!(text.lines().any(|l| l == line), "{line:?} in {text}\n{errors}");
    }
    assert!(!text.contains("root gets in"), "{text}");
    // Where /etc/fuse.conf does not allow it, the message says so.
    assert!(errors.is_empty() || errors.contains("user_allow_other"), "{errors}");
}

#[test]
fn messages_of_a_mount_in_the_background_reach_the_system_log() {
    let dir = temp_dir();
    let socket = UnixDatagram::bind(dir.path().join("socket")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let script = r#"
        set -e
        ln -s "$PWD/socket" /dev/log
        $CFFS mkfs --size 64M image >/dev/null
        mkdir mnt
        $CFFS mount -o log=info image mnt
        $CFFS umount mnt
    "#;
    let Some(out) = with_own_dev(dir.path(), script) else { return };
    assert!(out.status.success(), "{}{}", stdout(&out), stderr(&out));
    let mut messages = Vec::new();
    let mut buffer = [0; 4096];
    while messages.len() < 2 {
        let n = socket.recv(&mut buffer).expect("a message for the mount and one for its end");
        let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
        if text.contains("mounted") {
            messages.push(text);
        }
    }
    // Facility daemon, severity info.
    assert!(messages.iter().all(|m| m.starts_with("<30>cffs[")), "{messages:?}");
    assert!(messages[0].contains("image") && messages[1].contains("unmounted"), "{messages:?}");
}

#[test]
fn options_of_fstab_are_accepted_without_a_word() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &[]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    let helper = dir.path().join("mount.cffs");
    std::os::unix::fs::symlink(CFFS, &helper).unwrap();
    let options = "rw,defaults,auto,nofail,user,exec,_netdev,group,owner,x-systemd.automount,x-systemd.requires=a.mount,\
                   comment=mine,async,relatime";
    let out =
        Command::new("timeout").arg("60").arg(&helper).args([&image, &name, "-n", "-o", options]).output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    assert_eq!((stdout(&out), stderr(&out)), (String::new(), String::new()));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|l| l.split(' ').nth(1) == Some(&name)).expect("mounted");
    assert!(line.contains("nosuid") && line.contains("nodev") && !line.contains("noexec"), "{line}");
    umount(&name);
}

#[test]
fn a_host_disk_that_fills_up_under_a_mount() {
    if !have(&[Need::Root, Need::Fuse]) {
        return;
    }
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let tmpfs = |options: &str| {
        Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(&disk).status().unwrap().success()
    };
    if !tmpfs("size=24m") {
        return skipped("tmpfs", "no tmpfs can be mounted");
    }
    let _disk = Mounted(disk.clone());
    let image = make_image(&disk, &[]);
    let (path, name) = mount_point(dir.path());
    let _mounted = Mounted(path.clone());
    let log = dir.path().join("log");
    ok(&["mount", "--log", log.to_str().unwrap(), &image, &name]);
    // Files made durable one by one until the disk below has no more room.
    let contents_of = |i: usize| vec![i as u8 + 1; 1 << 20];
    let mut promised = 0;
    let error = loop {
        assert!(promised < 60, "the disk below has 24 MiB");
        let file = path.join(format!("f{promised}"));
        let written = fs::write(&file, contents_of(promised));
        match written.and_then(|()| fs::File::open(&file)?.sync_all()) {
            Ok(()) => promised += 1,
            Err(e) => break e,
        }
    };
    assert!(promised > 5, "{promised}");
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    let logged = fs::read_to_string(&log).unwrap();
    assert!(logged.contains("the disk that holds the image is full; make room there"), "{logged}");
    let whole = |path: &Path| {
        for i in 0..promised {
            assert!(fs::read(path.join(format!("f{i}"))).unwrap() == contents_of(i), "f{i} of {promised}");
        }
    };
    whole(&path);
    // The end of the mount is no way to lose something in silence.
    fails(&["umount", &name], 32, &[&name, "full"]);
    assert!(tmpfs("remount,size=200m"));
    if is_mounted(&path) {
        // Nothing but data was refused: with room, everything goes on.
        fs::write(path.join("more"), "more").unwrap();
        umount(&name);
    }
    let checked = run(&["fsck", "-n", &image]);
    assert!(checked.status.success(), "{}", stderr(&checked));
    ok(&["mount", &image, &name]);
    whole(&path);
    fs::write(path.join("again"), contents_of(7)).unwrap();
    umount(&name);
    ok(&["fsck", "-n", &image]);
    assert_eq!(ok(&["ls", &format!("{image}:/")]).lines().filter(|l| l.contains("again")).count(), 1);
}
