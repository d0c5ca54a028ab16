//! Files without a name, birth times, bits that a change of contents drops, offsets.

use crate::disk::Mount;
use crate::raw::raw;
use crate::{Outcome, expect, expect_errno, failed, on_each};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

fn tmpfile(m: &Mount<'_>, more: OFlags) -> Result<File, String> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | more;
    let fd = rustix::fs::open(m.dir(), flags, Mode::from_raw_mode(0o600)).map_err(failed("open with O_TMPFILE"))?;
    Ok(File::from(fd))
}

fn names(m: &Mount<'_>) -> Vec<String> {
    let all = fs::read_dir(m.dir()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    all.filter(|name| name != "lost+found").collect()
}

#[test]
fn a_file_without_a_name_is_written_and_read() {
    on_each("tmpfile", |disk| {
        let m = disk.mount();
        let mut file = tmpfile(&m, OFlags::empty())?;
        file.write_all(b"contents").map_err(failed("write"))?;
        let meta = file.metadata().map_err(failed("fstat"))?;
        expect(meta.nlink() == 0, || "it has a link".into())?;
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).map_err(failed("read"))?;
        expect(text == "contents", || format!("it has {text:?}"))?;
        expect(names(&m).is_empty(), || format!("a name is visible: {:?}", names(&m)))
    });
}

/// Links it by one of the two ways that linkat(2) has, and looks what the name has then and after the next mount.
fn linked(m: &Mount<'_>, link: impl Fn(&File, &str) -> rustix::io::Result<()>) -> Outcome {
    let mut file = tmpfile(m, OFlags::empty())?;
    file.write_all(b"contents").map_err(failed("write"))?;
    link(&file, &m.path("name")).map_err(failed("linkat"))?;
    expect(names(m) == ["name"], || format!("names are {:?}", names(m)))?;
    file.sync_all().map_err(failed("fsync"))?;
    drop(file);
    let text = fs::read(m.path("name")).map_err(failed("read"))?;
    expect(text == b"contents", || format!("the name has {text:?}"))
}

#[test]
fn a_file_without_a_name_is_linked_by_descriptor() {
    on_each("tmpfile_link_empty_path", |disk| {
        let m = disk.mount();
        linked(&m, |file, to| rustix::fs::linkat(file, "", CWD, to, AtFlags::EMPTY_PATH))?;
        m.unmount();
        expect(fs::read(disk.mount().path("name")).is_ok_and(|t| t == b"contents"), || "lost by an unmount".into())?;
        disk.check()
    });
}

#[test]
fn a_file_without_a_name_is_linked_through_proc() {
    on_each("tmpfile_link_proc", |disk| {
        let m = disk.mount();
        linked(&m, |file, to| {
            let own = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::linkat(CWD, own, CWD, to, AtFlags::SYMLINK_FOLLOW)
        })
    });
}

#[test]
fn a_file_without_a_name_opened_exclusively_gets_none() {
    on_each("tmpfile_exclusive", |disk| {
        let m = disk.mount();
        let file = tmpfile(&m, OFlags::EXCL)?;
        let linked = rustix::fs::linkat(&file, "", CWD, m.path("name"), AtFlags::EMPTY_PATH);
        expect_errno(linked.map_err(Into::into), Errno::NOENT, "linkat of a file opened with O_EXCL")?;
        expect(names(&m).is_empty(), || format!("names are {:?}", names(&m)))
    });
}

#[test]
fn a_file_without_a_name_gives_its_space_back() {
    on_each("tmpfile_space", |disk| {
        let m = disk.mount();
        let free = || rustix::fs::statvfs(m.dir()).unwrap().f_bfree * rustix::fs::statvfs(m.dir()).unwrap().f_frsize;
        // What the first file takes for ever is not its own.
        fs::write(m.path("first"), vec![1; 1 << 20]).unwrap();
        fs::remove_file(m.path("first")).unwrap();
        rustix::fs::syncfs(File::open(m.dir()).unwrap()).unwrap();
        let before = free();
        let mut file = tmpfile(&m, OFlags::empty())?;
        file.write_all(&vec![7; 32 << 20]).map_err(failed("write"))?;
        file.sync_all().map_err(failed("fsync"))?;
        let with = free();
        expect(with + (31 << 20) < before, || format!("{before} bytes were free, {with} are with 32 MiB in it"))?;
        drop(file);
        // XFS frees in the background, others with the next commit.
        let mut after = 0;
        for _ in 0..100 {
            File::open(m.dir()).unwrap().sync_all().unwrap();
            after = free();
            if after + (1 << 20) > before {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        Err(format!("{before} bytes were free before, {after} are afterwards"))
    });
}

fn birth(path: &str) -> Result<(i64, u32), String> {
    let st = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME).map_err(failed("statx"))?;
    let has = st.stx_mask & StatxFlags::BTIME.bits() != 0;
    expect(has, || "statx does not have STATX_BTIME in its mask".into())?;
    Ok((st.stx_btime.tv_sec, st.stx_btime.tv_nsec))
}

#[test]
fn a_birth_time_is_that_of_the_creation_for_ever() {
    on_each("birth_time", |disk| {
        let m = disk.mount();
        let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
        let (path, moved) = (m.path("file"), m.path("moved"));
        let start = now();
        fs::write(&path, "x").unwrap();
        let born = birth(&path)?;
        expect((start - 1..=now()).contains(&born.0), || format!("born at {born:?}, made at {start}"))?;
        // Long enough for a clock of the coarsest grain.
        std::thread::sleep(std::time::Duration::from_millis(30));
        fs::write(&path, "other contents").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        fs::rename(&path, &moved).unwrap();
        let later = birth(&moved)?;
        expect(later == born, || format!("born at {born:?}, after write, chmod and rename at {later:?}"))?;
        m.unmount();
        let later = birth(&disk.mount().path("moved"))?;
        expect(later == born, || format!("born at {born:?}, after the next mount at {later:?}"))
    });
}

/// Every way to change contents by fallocate(2) counts as a write of them.
#[test]
fn allocation_by_another_user_drops_set_id_bits() {
    const USER: u32 = 12345;
    on_each("fallocate_drops_set_id", |disk| {
        let m = disk.mount();
        // Set-gid without group execute: no program would run with it, and it goes all the same, because the caller is not in
        // the group.
        for (mode, group_exec) in [(0o6666, false), (0o6676, true), (0o2666, false), (0o4666, false)] {
            for way in [&["-l", "65536"][..], &["-n", "-l", "65536"], &["-p", "-l", "4096"], &["-z", "-l", "4096"]] {
                let path = m.path("file");
                let _ = fs::remove_file(&path);
                fs::write(&path, vec![7; 16384]).unwrap();
                chown(&path, Some(0), Some(0)).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                let out = Command::new("fallocate").args(way).arg(&path).uid(USER).gid(USER).output().unwrap();
                expect(out.status.success(), || {
                    format!("fallocate {way:?}: {}", String::from_utf8_lossy(&out.stderr))
                })?;
                let left = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
                expect(left == mode & 0o777, || {
                    format!("fallocate {way:?} leaves mode {left:o} of {mode:o} (group execute: {group_exec})")
                })?;
            }
        }
        Ok(())
    });
}

#[test]
fn seeking_for_data_outside_a_file_finds_no_such_address() {
    on_each("seek_data_outside", |disk| {
        let m = disk.mount();
        let path = m.path("file");
        fs::write(&path, vec![1; 10_000]).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(100_000).unwrap();
        for offset in ["-1", "-4096", "100000", "100001", "9223372036854775807"] {
            for whence in ["data", "hole"] {
                let answer = raw(&["lseek", &path, offset, whence]);
                let good = answer.as_ref().is_err_and(|e| e == "ENXIO");
                expect(good, || format!("lseek to {offset} for {whence}: {answer:?}, not ENXIO"))?;
            }
        }
        let hole = raw(&["lseek", &path, "0", "hole"]);
        expect(hole.as_ref().is_ok_and(|l| l[0].parse::<u64>().is_ok_and(|at| (10_000..=16384).contains(&at))), || {
            format!("the hole is at {hole:?}")
        })
    });
}
