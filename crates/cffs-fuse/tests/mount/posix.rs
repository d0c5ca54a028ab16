//! What programs may expect of a file system, asked for through a real mount.

use crate::common::{Image, can_mount};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{
    FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink,
};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

fn errno(e: std::io::Error) -> Option<Errno> {
    Errno::from_io_error(&e)
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Bytes that do not repeat with any block size.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

#[test]
fn names_of_all_kinds_survive_a_remount() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::create_dir_all(m.path("a/b/c")).unwrap();
    fs::write(m.path("a/file"), b"hello").unwrap();
    fs::set_permissions(m.path("a/file"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("../a/file", m.path("a/link")).unwrap();
    fs::hard_link(m.path("a/file"), m.path("a/b/second")).unwrap();
    rustix::fs::mknodat(CWD, m.path("fifo"), rustix::fs::FileType::Fifo, Mode::from(0o600), 0).unwrap();
    let null = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(CWD, m.path("null"), rustix::fs::FileType::CharacterDevice, Mode::from(0o666), null).unwrap();
    let long = "n".repeat(255);
    fs::write(m.path(&long), b"x").unwrap();
    let check = |m: &crate::common::Mounted| {
        assert_eq!(names(m.dir()), BTreeSet::from(["a".into(), "fifo".into(), "null".into(), long.clone()]));
        assert_eq!(names(&m.path("a")), BTreeSet::from(["b".into(), "file".into(), "link".into()]));
        assert_eq!(fs::read(m.path("a/link")).unwrap(), b"hello");
        assert_eq!(fs::read_link(m.path("a/link")).unwrap(), Path::new("../a/file"));
        let (one, two) = (fs::metadata(m.path("a/file")).unwrap(), fs::metadata(m.path("a/b/second")).unwrap());
        assert_eq!((one.ino(), one.nlink(), one.mode() & 0o7777), (two.ino(), 2, 0o640));
        assert!(fs::metadata(m.path("fifo")).unwrap().file_type().is_fifo());
        let device = fs::metadata(m.path("null")).unwrap();
        assert!(device.file_type().is_char_device());
        assert_eq!(device.rdev(), null);
        assert_eq!(fs::metadata(m.path("a")).unwrap().nlink(), 3);
    };
    check(&m);
    // The device is one.
    OpenOptions::new().write(true).open(m.path("null")).unwrap().write_all(b"gone").unwrap();
    m.unmount();
    let m = image.mount();
    check(&m);
    fs::remove_file(m.path("a/file")).unwrap();
    assert_eq!(fs::metadata(m.path("a/b/second")).unwrap().nlink(), 1);
    assert_eq!(errno(fs::remove_dir(m.path("a/b")).unwrap_err()), Some(Errno::NOTEMPTY));
    fs::remove_dir(m.path("a/b/c")).unwrap();
    assert_eq!(errno(fs::metadata(m.path("a/b/c")).unwrap_err()), Some(Errno::NOENT));
    assert_eq!(errno(fs::write(m.path(&"n".repeat(256)), b"").unwrap_err()), Some(Errno::NAMETOOLONG));
    m.unmount();
}

#[test]
fn a_name_that_was_missing_is_found_when_it_is_made() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    for how in 0..5 {
        let name = m.path(&format!("new{how}"));
        assert!(!name.exists());
        match how {
            0 => fs::write(&name, b"").unwrap(),
            1 => fs::create_dir(&name).unwrap(),
            2 => symlink("x", &name).unwrap(),
            3 => fs::hard_link(m.path("new0"), &name).unwrap(),
            _ => fs::rename(m.path("new0"), &name).unwrap(),
        }
        assert!(fs::symlink_metadata(&name).is_ok(), "{how}");
    }
    assert!(!m.path("new0").exists());
    m.unmount();
}

#[test]
fn rename_and_its_flags() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let rename = |a: &str, b: &str, f| rustix::fs::renameat_with(CWD, m.path(a), CWD, m.path(b), f);
    fs::write(m.path("one"), b"1").unwrap();
    fs::write(m.path("two"), b"2").unwrap();
    fs::create_dir(m.path("dir")).unwrap();
    assert_eq!(rename("one", "two", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("one", "two", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(m.path("one")).unwrap(), fs::read(m.path("two")).unwrap()), (b"2".to_vec(), b"1".to_vec()));
    rename("one", "dir/three", RenameFlags::NOREPLACE).unwrap();
    assert_eq!(fs::read(m.path("dir/three")).unwrap(), b"2");
    assert!(!m.path("one").exists());
    rename("two", "dir", RenameFlags::EXCHANGE).unwrap();
    assert!(m.path("two").is_dir() && m.path("dir").is_file());
    assert_eq!(fs::read(m.path("two/three")).unwrap(), b"2");
    assert_eq!(rename("two", "gone", RenameFlags::WHITEOUT), Err(Errno::INVAL));
    assert_eq!(rename("gone", "two", RenameFlags::EXCHANGE), Err(Errno::NOENT));
    // Over a file that is open: the old contents stay readable.
    let mut open = fs::File::open(m.path("dir")).unwrap();
    fs::rename(m.path("two/three"), m.path("dir")).unwrap();
    let mut old = String::new();
    open.read_to_string(&mut old).unwrap();
    drop(open);
    assert_eq!((old.as_str(), fs::read_to_string(m.path("dir")).unwrap().as_str()), ("1", "2"));
    // `..` of a directory that moved.
    fs::create_dir_all(m.path("p/q")).unwrap();
    fs::rename(m.path("p/q"), m.path("two/q")).unwrap();
    assert_eq!(fs::metadata(m.path("two/q/..")).unwrap().ino(), fs::metadata(m.path("two")).unwrap().ino());
    m.unmount();
}

#[test]
fn an_unlinked_file_lives_while_it_is_open() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let body = pattern(300_000);
    fs::write(m.path("f"), &body).unwrap();
    let mut f = OpenOptions::new().read(true).write(true).open(m.path("f")).unwrap();
    fs::remove_file(m.path("f")).unwrap();
    assert!(!m.path("f").exists());
    assert_eq!(f.metadata().unwrap().nlink(), 0);
    f.seek(std::io::SeekFrom::End(0)).unwrap();
    f.write_all(b"more").unwrap();
    f.sync_all().unwrap();
    // From us, not from the page cache.
    rustix::fs::fadvise(&f, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut back = vec![0; body.len() + 4];
    f.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back[..body.len()], &body[..]);
    assert_eq!(&back[body.len()..], b"more");
    // The name can be used anew meanwhile.
    fs::write(m.path("f"), b"new").unwrap();
    assert_ne!(f.metadata().unwrap().ino(), fs::metadata(m.path("f")).unwrap().ino());
    drop(f);
    assert_eq!(fs::read(m.path("f")).unwrap(), b"new");
    m.unmount();
}

#[test]
fn a_listing_survives_changes() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let all: BTreeSet<String> = (0..3000).map(|i| format!("file-with-a-name-of-some-length-{i:05}")).collect();
    for n in &all {
        fs::write(m.path(n), n).unwrap();
    }
    assert_eq!(names(m.dir()), all);
    // Removing what was just listed must not make the listing skip or repeat others.
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(m.dir()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(['0', '2', '4', '6', '8']) {
            fs::remove_file(m.path(&name)).unwrap();
        }
        assert!(seen.insert(name), "listed twice");
    }
    assert_eq!(seen, all);
    let odd: BTreeSet<String> = all.into_iter().filter(|n| n.ends_with(['1', '3', '5', '7', '9'])).collect();
    assert_eq!(names(m.dir()), odd);
    // What the kernel has cached of a listing goes when the directory changes.
    fs::write(m.path("added"), b"").unwrap();
    assert!(names(m.dir()).contains("added"));
    fs::remove_file(m.path("added")).unwrap();
    assert_eq!(names(m.dir()), odd);
    m.unmount();
}

#[test]
fn sparse_files_and_seeking_over_holes() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let f = OpenOptions::new().read(true).write(true).create_new(true).open(m.path("sparse")).unwrap();
    f.write_all_at(b"head", 0).unwrap();
    f.write_all_at(b"tail", 64 << 20).unwrap();
    let end = (64 << 20) + 4;
    assert_eq!(f.metadata().unwrap().len(), end);
    assert!(f.metadata().unwrap().blocks() * 512 < 1 << 20, "the hole takes space");
    f.sync_all().unwrap();
    rustix::fs::fadvise(&f, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut middle = vec![1; 100_000];
    f.read_exact_at(&mut middle, 32 << 20).unwrap();
    assert!(middle.iter().all(|&b| b == 0));
    let hole = rustix::fs::seek(&f, SeekFrom::Hole(0)).unwrap();
    assert!((4..=1 << 20).contains(&hole), "first hole at {hole}");
    let data = rustix::fs::seek(&f, SeekFrom::Data(hole)).unwrap();
    assert!(data > 1 << 20 && data <= 64 << 20, "next data at {data}");
    assert_eq!(rustix::fs::seek(&f, SeekFrom::Hole(data)).unwrap(), end);
    assert_eq!(rustix::fs::seek(&f, SeekFrom::Data(end)), Err(Errno::NXIO));
    drop(f);
    m.unmount();
}

#[test]
fn large_files_come_back() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let body = pattern(24 << 20);
    fs::write(m.path("big"), &body).unwrap();
    // The second half once more, directly and in odd pieces.
    let f = OpenOptions::new().write(true).open(m.path("big")).unwrap();
    for (i, piece) in body[12 << 20..].chunks(777_777).enumerate() {
        f.write_all_at(piece, (12 << 20) + i as u64 * 777_777).unwrap();
    }
    drop(f);
    m.unmount();
    let m = image.mount();
    assert_eq!(fs::metadata(m.path("big")).unwrap().len(), body.len() as u64);
    assert!(fs::read(m.path("big")).unwrap() == body, "contents differ");
    m.unmount();
}

#[test]
fn direct_io() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let body = pattern(1 << 20);
    fs::write(m.path("src"), &body).unwrap();
    let dd = |from: &str, to: &str, flag: &str| {
        let out = Command::new("dd")
            .args([format!("if={}", m.path(from).display()), format!("of={}", m.path(to).display())])
            .args(["bs=64k", flag, "status=none"])
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    };
    dd("src", "copy", "oflag=direct");
    // Through the page cache, which must not hold anything older.
    assert!(fs::read(m.path("copy")).unwrap() == body);
    dd("copy", "again", "iflag=direct");
    assert!(fs::read(m.path("again")).unwrap() == body);
    m.unmount();
}

#[test]
fn appends_and_truncations() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let path = m.path("log");
    let open = || OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let (mut a, mut b) = (open(), open());
    for i in 0..50 {
        write!(a, "a{i} ").unwrap();
        write!(b, "b{i} ").unwrap();
    }
    let expected: String = (0..50).map(|i| format!("a{i} b{i} ")).collect();
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    a.set_len(5).unwrap();
    assert_eq!(fs::read(&path).unwrap(), &expected.as_bytes()[..5]);
    b.write_all(b"end").unwrap();
    assert_eq!(fs::read(&path).unwrap(), [&expected.as_bytes()[..5], b"end"].concat());
    a.set_len(10_000).unwrap();
    let long = fs::read(&path).unwrap();
    assert_eq!(long.len(), 10_000);
    assert!(long[8..].iter().all(|&x| x == 0));
    // What was cut off must not come back.
    a.set_len(4).unwrap();
    a.set_len(4096).unwrap();
    assert!(fs::read(&path).unwrap()[4..].iter().all(|&x| x == 0));
    let _ = OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    drop((a, b));
    m.unmount();
    assert_eq!(fs::metadata(image.mount().path("log")).unwrap().len(), 0);
}

#[test]
fn times() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let path = m.path("f");
    fs::write(&path, b"x").unwrap();
    let set = |atime: (i64, i64), mtime: (i64, i64)| {
        let t = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec: tv_nsec as _ };
        let times = Timestamps { last_access: t(atime), last_modification: t(mtime) };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    };
    let got = || {
        let a = fs::metadata(&path).unwrap();
        ((a.atime(), a.atime_nsec()), (a.mtime(), a.mtime_nsec()))
    };
    set((1_000_000_000, 123_456_789), (2_000_000_000, 987_654_321));
    assert_eq!(got(), ((1_000_000_000, 123_456_789), (2_000_000_000, 987_654_321)));
    // Before 1970, and beyond 2038.
    set((-2, 800_000_000), (5_000_000_000, 1));
    assert_eq!(got(), ((-2, 800_000_000), (5_000_000_000, 1)));
    // Far beyond what nanoseconds in 64 bits express: the nearest that they do.
    set((i64::MIN, 5), (i64::MAX, 5));
    assert_eq!(got(), ((-9_223_372_037, 145_224_192), (9_223_372_036, 854_775_807)));
    set((i64::MIN + 1, 5), (0, 0));
    assert_eq!(got(), ((-9_223_372_037, 145_224_192), (0, 0)));
    set((-2, 800_000_000), (5_000_000_000, 1));
    // A write moves mtime and ctime, in the cached attributes too; nothing else moves mtime.
    let before = fs::metadata(&path).unwrap();
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"y").unwrap();
    let after = fs::metadata(&path).unwrap();
    assert!(after.mtime() > 1_700_000_000 && after.mtime() < 5_000_000_000);
    assert!((after.ctime(), after.ctime_nsec()) >= (before.ctime(), before.ctime_nsec()));
    assert_eq!(after.len(), 2);
    let dir_before = fs::metadata(m.dir()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(5));
    fs::write(m.path("g"), b"").unwrap();
    let dir_after = fs::metadata(m.dir()).unwrap();
    assert!((dir_after.mtime(), dir_after.mtime_nsec()) > (dir_before.mtime(), dir_before.mtime_nsec()));
    set((7, 7), (8, 8));
    m.unmount();
    let m = image.mount();
    let a = fs::metadata(m.path("f")).unwrap();
    assert_eq!((a.mtime(), a.mtime_nsec()), (8, 8));
    m.unmount();
}

#[test]
fn space_is_reported() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let s = rustix::fs::statvfs(m.dir()).unwrap();
    assert!(s.f_blocks > 0 && s.f_bfree <= s.f_blocks && s.f_bavail <= s.f_bfree);
    assert!(s.f_frsize >= 512 && s.f_bsize >= s.f_frsize);
    assert_eq!(s.f_namemax, 255);
    m.unmount();
}

#[test]
fn creating_honours_mode_and_exclusiveness() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let out = Command::new("sh").arg("-c").arg("umask 027; echo x > f; mkdir d").current_dir(m.dir()).status().unwrap();
    assert!(out.success());
    assert_eq!((mode(&m.path("f")), mode(&m.path("d"))), (0o640, 0o750));
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    assert_eq!(rustix::fs::open(m.path("f"), flags, Mode::from(0o600)).unwrap_err(), Errno::EXIST);
    // A file that nobody may write, written through the descriptor that made it; by somebody without privileges.
    fs::set_permissions(m.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    let script = "umask 0777; exec 3> sealed && echo kept >&3";
    let ok = Command::new("sh").arg("-c").arg(script).current_dir(m.dir()).uid(1000).gid(1000).status().unwrap();
    assert!(ok.success());
    assert_eq!(fs::read(m.path("sealed")).unwrap(), b"kept\n");
    let a = fs::metadata(m.path("sealed")).unwrap();
    assert_eq!((a.mode() & 0o7777, a.uid(), a.gid()), (0, 1000, 1000));
    m.unmount();
}

#[test]
fn the_kernel_checks_permissions() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    fs::write(m.path("secret"), b"s").unwrap();
    fs::set_permissions(m.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let try_as_user = |script: &str| {
        Command::new("sh")
            .arg("-c")
            .arg(script)
            .current_dir(m.dir())
            .uid(1000)
            .gid(1000)
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap()
            .success()
    };
    assert!(try_as_user("ls -l secret > /dev/null"));
    assert!(!try_as_user("cat secret"));
    assert!(!try_as_user("touch new"));
    assert!(!try_as_user("rm -f secret"));
    fs::set_permissions(m.path("secret"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(try_as_user("cat secret > /dev/null"));
    m.unmount();
}

#[test]
fn set_id_bits_go_when_somebody_else_writes() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let as_user = |script: &str| {
        let ok = Command::new("sh").arg("-c").arg(script).current_dir(m.dir()).uid(1000).gid(1000).status().unwrap();
        assert!(ok.success(), "{script}");
    };
    for (name, script) in [
        ("written", "echo more >> written"),
        ("direct", "dd if=/dev/zero of=direct bs=4096 count=1 oflag=direct conv=notrunc status=none"),
        ("cut", "truncate -s 1 cut"),
        ("opened", ": > opened"),
    ] {
        fs::write(m.path(name), pattern(4096)).unwrap();
        fs::set_permissions(m.path(name), fs::Permissions::from_mode(0o6777)).unwrap();
        assert_eq!(mode(&m.path(name)), 0o6777);
        as_user(script);
        assert_eq!(mode(&m.path(name)), 0o777, "{name}");
    }
    fs::write(m.path("owned"), b"").unwrap();
    fs::set_permissions(m.path("owned"), fs::Permissions::from_mode(0o6755)).unwrap();
    std::os::unix::fs::chown(m.path("owned"), Some(1000), None).unwrap();
    assert_eq!(mode(&m.path("owned")), 0o755);
    // The image has it too.
    m.unmount();
    let m = image.mount();
    assert_eq!((mode(&m.path("direct")), mode(&m.path("written"))), (0o777, 0o777));
    m.unmount();
}

#[test]
fn mappings() {
    if !can_mount() || !crate::common::has_program("python3") {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let body = pattern(1 << 20);
    fs::write(m.path("f"), &body).unwrap();
    let script = "import mmap,sys\n\
        f=open('f','r+b'); m=mmap.mmap(f.fileno(),0)\n\
        assert m[:]==open('f','rb').read()\n\
        m[500000:500004]=b'MMAP'; m.flush(); m[100:104]=b'LATE'; m.close()\n";
    let out = Command::new("python3").args(["-c", script]).current_dir(m.dir()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    m.unmount();
    let m = image.mount();
    let back = fs::read(m.path("f")).unwrap();
    assert_eq!((&back[500_000..500_004], &back[100..104]), (&b"MMAP"[..], &b"LATE"[..]));
    assert_eq!((back.len(), &back[..100], &back[500_004..]), (body.len(), &body[..100], &body[500_004..]));
    m.unmount();
}

#[test]
fn locks_between_processes() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let f = fs::File::create(m.path("lock")).unwrap();
    rustix::fs::flock(&f, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let try_lock =
        || Command::new("flock").args(["-n", "lock", "true"]).current_dir(m.dir()).status().unwrap().success();
    assert!(!try_lock());
    rustix::fs::flock(&f, rustix::fs::FlockOperation::Unlock).unwrap();
    assert!(try_lock());
    drop(f);
    m.unmount();
}

#[test]
fn many_threads_at_once() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    std::thread::scope(|s| {
        for t in 0..8 {
            let m = &m;
            s.spawn(move || {
                let dir = m.path(&format!("t{t}"));
                fs::create_dir(&dir).unwrap();
                for i in 0..100usize {
                    let body = pattern(1 + i * 97);
                    let (tmp, name) = (dir.join("tmp"), dir.join(format!("{i}")));
                    let mut f = fs::File::create(&tmp).unwrap();
                    f.write_all(&body).unwrap();
                    if i % 10 == 0 {
                        f.sync_all().unwrap();
                    }
                    fs::rename(&tmp, &name).unwrap();
                    assert_eq!(fs::read(&name).unwrap(), body);
                    fs::hard_link(&name, m.path(&format!("l{t}-{i}"))).unwrap();
                    if i % 3 == 0 {
                        fs::remove_file(&name).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(names(m.dir()).len(), 8 + 800);
    m.unmount();
    let m = image.mount();
    for t in 0..8 {
        assert_eq!(names(&m.path(&format!("t{t}"))).len(), 66);
        for i in 0..100usize {
            let link = m.path(&format!("l{t}-{i}"));
            assert!(fs::read(&link).unwrap() == pattern(1 + i * 97), "{}", link.display());
            assert_eq!(fs::metadata(&link).unwrap().nlink(), if i % 3 == 0 { 1 } else { 2 });
        }
    }
    m.unmount();
}

#[test]
fn synchronous_writes_are_synced() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let before = m.messages();
    // O_DSYNC
    let mut f = OpenOptions::new().write(true).create_new(true).custom_flags(0o10000).open(m.path("f")).unwrap();
    f.write_all(b"durable").unwrap();
    assert_eq!(m.messages().since(&before, "fsync"), 1);
    drop(f);
    m.unmount();
}
