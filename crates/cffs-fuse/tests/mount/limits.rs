//! Limits, identities, appending and direct transfers, special cases of unmounting.

use crate::common::{Image, can_mount, has_program, script};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::Path;

fn errno<T: std::fmt::Debug>(r: std::io::Result<T>) -> Errno {
    Errno::from_io_error(&r.unwrap_err()).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn names_paths_links_and_sizes_have_their_limits() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let long = "n".repeat(256);
    assert_eq!(errno(fs::write(m.path(&long), b"")), Errno::NAMETOOLONG);
    assert_eq!(errno(fs::create_dir(m.path(&long))), Errno::NAMETOOLONG);
    assert_eq!(errno(fs::metadata(m.path(&long))), Errno::NAMETOOLONG);
    assert_eq!(errno(fs::metadata(m.path(&"d/".repeat(2100)))), Errno::NAMETOOLONG);
    assert_eq!(errno(symlink("t".repeat(4096), m.path("l"))), Errno::NAMETOOLONG);
    symlink("t".repeat(4095), m.path("l")).unwrap();
    symlink("b", m.path("a")).unwrap();
    symlink("a", m.path("b")).unwrap();
    assert_eq!(errno(fs::read(m.path("a"))), Errno::LOOP);
    assert_eq!(
        errno(OpenOptions::new().read(true).custom_flags(0o400_000).open(m.path("a"))),
        Errno::LOOP,
        "O_NOFOLLOW"
    );
    let f = fs::File::create(m.path("f")).unwrap();
    // The largest size is the largest offset: Linux stops what goes beyond by itself.
    assert_eq!(errno(f.write_at(b"xx", i64::MAX as u64 - 1)), Errno::INVAL);
    f.write_all_at(b"x", (1 << 62) - 1).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 1 << 62);
    assert_eq!(errno(OpenOptions::new().write(true).create_new(true).open(m.path("f"))), Errno::EXIST);
    drop(f);
    drop(OpenOptions::new().write(true).truncate(true).open(m.path("f")).unwrap());
    assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 0);
    m.unmount();
}

#[test]
fn renames_that_are_not_possible() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::create_dir_all(m.path("d/e")).unwrap();
    fs::write(m.path("f"), b"x").unwrap();
    let rename = |a: &str, b: &str, f| rustix::fs::renameat_with(CWD, m.path(a), CWD, m.path(b), f);
    assert_eq!(rename("d", "d/e/x", RenameFlags::empty()), Err(Errno::INVAL));
    assert_eq!(rename("d", "d/e", RenameFlags::empty()), Err(Errno::INVAL));
    assert_eq!(rename("d/e", "d", RenameFlags::empty()), Err(Errno::NOTEMPTY));
    assert_eq!(rename("d", "d/e", RenameFlags::EXCHANGE), Err(Errno::INVAL));
    assert_eq!(rename("f", "g", RenameFlags::WHITEOUT), Err(Errno::INVAL));
    assert_eq!(rename("f", "d", RenameFlags::empty()), Err(Errno::ISDIR));
    assert_eq!(rename("d", "f", RenameFlags::empty()), Err(Errno::NOTDIR));
    assert_eq!(fs::read(m.path("f")).unwrap(), b"x");
    assert!(m.path("d/e").exists() && !m.path("g").exists());
    m.unmount();
}

#[test]
fn set_group_id_is_handed_down_and_taken_away() {
    if !can_mount() || !has_program("setpriv") {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::create_dir(m.path("d")).unwrap();
    std::os::unix::fs::chown(m.path("d"), None, Some(2000)).unwrap();
    fs::set_permissions(m.path("d"), fs::Permissions::from_mode(0o2777)).unwrap();
    // Somebody who is not in the group 2000.
    let user = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "sh", "-ec"];
    script(&m, &user, "umask 0; touch d/f; mkdir d/sub; mknod d/p p; ln -s x d/l");
    for name in ["d/f", "d/sub", "d/p", "d/l"] {
        assert_eq!(fs::symlink_metadata(m.path(name)).unwrap().gid(), 2000, "{name}");
    }
    assert_eq!(mode(&m.path("d/sub")), 0o2777);
    assert_eq!(mode(&m.path("d/f")), 0o666);
    // Nobody gets the set-gid bit of a group that is not theirs: neither by chmod nor at creation.
    script(&m, &user, "chmod 2755 d/f");
    assert_eq!(mode(&m.path("d/f")), 0o755);
    if has_program("perl") {
        let perl = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "perl", "-e"];
        script(&m, &perl, "use Fcntl; umask 0; sysopen(my $f, 'd/g', O_CREAT|O_WRONLY, 02775) or die $!");
        assert_eq!(mode(&m.path("d/g")), 0o775);
    }
    // Who is in the group keeps it.
    let member = ["setpriv", "--reuid", "1000", "--regid", "1000", "--groups", "2000", "sh", "-ec"];
    script(&m, &member, "chmod 2755 d/f");
    assert_eq!(mode(&m.path("d/f")), 0o2755);
    // Space that somebody else changes takes set-id bits along.
    fs::set_permissions(m.path("d/f"), fs::Permissions::from_mode(0o6777)).unwrap();
    let stranger = ["setpriv", "--reuid", "1001", "--regid", "1001", "--clear-groups", "sh", "-ec"];
    script(&m, &stranger, "fallocate -l 10000 d/f");
    assert_eq!(mode(&m.path("d/f")), 0o777);
    m.unmount();
}

#[test]
fn in_a_sticky_directory_only_owners_remove() {
    if !can_mount() || !has_program("setpriv") {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::create_dir(m.path("t")).unwrap();
    fs::set_permissions(m.path("t"), fs::Permissions::from_mode(0o1777)).unwrap();
    let a = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "sh", "-ec"];
    let b = ["setpriv", "--reuid", "1001", "--regid", "1001", "--clear-groups", "sh", "-ec"];
    script(&m, &a, "touch t/f t/g; mkdir t/d; chmod 777 t/f");
    script(&m, &b, "touch t/mine; ! rm -f t/f; ! mv t/f t/x; ! mv t/mine t/f; ! rmdir t/d; ! ln t/g t/h; rm t/mine");
    script(&m, &a, "mv t/f t/x; rm t/x t/g; rmdir t/d");
    m.unmount();
}

#[test]
fn appends_of_two_processes_do_not_mix() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let one = "i=0; while [ $i -lt 400 ]; do printf '%s%060d\\n' X $i >> log; i=$((i+1)); done";
    script(&m, &["sh", "-ec"], &format!("({one}) & (X=b; {}) & wait", one.replace('X', "Y")));
    let log = fs::read_to_string(m.path("log")).unwrap();
    let mut seen = [0; 2];
    for line in log.lines() {
        assert_eq!(line.len(), 61, "{line}");
        let who = usize::from(line.starts_with('Y'));
        assert_eq!(line[1..].parse::<usize>().unwrap(), seen[who], "{line}");
        seen[who] += 1;
    }
    assert_eq!(seen, [400, 400]);
    m.unmount();
}

#[test]
fn direct_transfers_of_any_size_and_place() {
    if !can_mount() || !has_program("python3") {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    script(
        &m,
        &["python3", "-c"],
        "
import os, random
fd = os.open('f', os.O_RDWR | os.O_CREAT | os.O_DIRECT)
want = bytearray()
rng = random.Random(5)
for i in range(200):
    at, n = rng.randrange(100_000), rng.choice([1, 511, 512, 4095, 4096, 5000, 70_001])
    data = rng.randbytes(n)
    assert os.pwrite(fd, data, at) == n
    want += bytes(max(0, at + n - len(want)))
    want[at:at + n] = data
    at, n = rng.randrange(100_000), rng.randrange(1, 10_000)
    assert os.pread(fd, n, at) == want[at:at + n]
assert open('f', 'rb').read() == want
",
    );
    m.unmount();
}

#[test]
fn what_stat_calls_the_best_transfer() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let engine = image.engine(Default::default());
    let (group, block) = (engine.geometry().group_size(), engine.geometry().block_size());
    let m = image.mount_engine(engine, &Default::default());
    fs::write(m.path("f"), b"x").unwrap();
    assert_eq!(fs::metadata(m.path("f")).unwrap().blksize(), group as u64);
    assert_eq!(fs::metadata(m.dir()).unwrap().blksize(), block as u64);
    m.unmount();
}

#[test]
fn a_listing_shows_what_stays_while_names_come_and_go() {
    if !can_mount() || !has_program("python3") {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    script(
        &m,
        &["python3", "-c"],
        "
import os
for i in range(3000): open(f's{i}', 'w').close()
seen, n = [], 0
with os.scandir('.') as it:
    for e in it:
        seen.append(e.name)
        n += 1
        open(f'new{n}', 'w').close()
        if n % 2: os.unlink(f'new{n}')
        if n % 3 == 0: os.rename(f's{n}', f't{n}') if os.path.exists(f's{n}') else None
        if n > 20000: raise SystemExit('the listing does not end')
assert len(seen) == len(set(seen)), 'twice'
stay = {f's{i}' for i in range(3000) if os.path.exists(f's{i}')}
assert stay <= set(seen), stay - set(seen)
",
    );
    m.unmount();
}

#[test]
fn a_mount_with_a_busy_writer_is_busy_and_can_be_detached() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let file = fs::File::create(m.path("f")).unwrap();
    file.write_all_at(&[1; 100_000], 0).unwrap();
    assert_eq!(rustix::mount::unmount(m.dir(), rustix::mount::UnmountFlags::empty()), Err(Errno::BUSY));
    rustix::mount::unmount(m.dir(), rustix::mount::UnmountFlags::DETACH).unwrap();
    // The writer goes on, and its end is the mount's.
    file.write_all_at(&[2; 100_000], 100_000).unwrap();
    drop(file);
    m.into_session().wait().unwrap();
    let m = image.mount();
    let found = fs::read(m.path("f")).unwrap();
    assert!(found.len() == 200_000 && found[..100_000] == [1; 100_000] && found[100_000..] == [2; 100_000]);
    m.unmount();
}
