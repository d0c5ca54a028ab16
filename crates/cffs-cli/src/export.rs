//! `cffs export`: copies a directory out of an image, without a mount.

use crate::exit::with_code;
use crate::image::{EngineResultExt, ImagePath, LogArgs, open_read_only};
use crate::progress::Progress;
use crate::size::human;
use crate::text::{device_numbers, printable};
use anyhow::{Context, anyhow, bail};
use cffs::path::resolve;
use cffs::{Attr, Error, FileType, Fs, Ino};
use clap::Args;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

/// Copy a directory out of an image
///
/// Copies what is in the root directory of the image, or in the given directory of it, into DIR, which is made if it is
/// missing. Keeps permissions, times, extended attributes, access control lists, symbolic and hard links, special files and
/// holes; owners, and the attributes that only root may set, when run by root. Files that DIR has already are replaced.
#[derive(Args, Debug)]
pub struct ExportArgs {
    #[command(flatten)]
    log: LogArgs,
    /// Image, and directory in it to copy
    #[arg(value_name = "IMAGE[:/PATH]")]
    source: OsString,
    /// Directory to copy to
    dir: PathBuf,
}

/// Runs the subcommand.
pub fn run(args: &ExportArgs) -> anyhow::Result<u8> {
    let at = ImagePath::parse(&args.source);
    let fs = open_read_only(&at.image, &args.log)?;
    let attr = resolve(&fs, &at.path).about(|| at.display())?;
    if attr.file_type != FileType::Directory {
        bail!("{}: not a directory: `cffs cat` writes out a single file", at.display());
    }
    fs::create_dir_all(&args.dir).with_context(|| format!("{}: cannot make the directory", args.dir.display()))?;
    let dir = File::open(&args.dir).with_context(|| args.dir.display().to_string())?;
    // Each directory on the way down keeps a descriptor open, and some trees are deep.
    raise_descriptor_limit();
    let mut export = Export {
        fs: &fs,
        at: &at,
        root: args.dir.display().to_string(),
        keep_owners: rustix::process::geteuid().is_root(),
        links: HashMap::new(),
        progress: Progress::new(None),
        buf: vec![0; 1 << 20],
        bytes: 0,
        failed: 0,
    };
    let start = Instant::now();
    let result = export.tree(dir.into(), attr);
    let (files, bytes, failed) = (export.progress.files(), export.bytes, export.failed);
    drop(export);
    fs.forget(attr.ino, 1);
    let closed = fs.close().about(|| at.image.display().to_string());
    result?;
    closed?;
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("{files} files, {} in {seconds:.1} s, {:.0} files/s", human(bytes), files as f64 / seconds.max(1e-9));
    if failed > 0 {
        return Err(with_code(1, anyhow!("{}: {failed} files could not be copied", at.display())));
    }
    Ok(0)
}

fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Without it, only trees of more than a thousand levels fail, with an error that says why.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Entries of a directory that are read together.
const BATCH: usize = 1024;

/// A directory on the way down.
struct Level {
    name: Vec<u8>,
    attr: Attr,
    dir: OwnedFd,
    cookie: u64,
    /// Entries read but not copied yet, last one first.
    waiting: Vec<(Vec<u8>, u64)>,
    more: bool,
}

struct Export<'a> {
    fs: &'a Fs,
    at: &'a ImagePath,
    /// The target, for messages.
    root: String,
    keep_owners: bool,
    /// Path below the target of the first copy of files with several names.
    links: HashMap<Ino, Vec<u8>>,
    progress: Progress,
    buf: Vec<u8>,
    bytes: u64,
    failed: u64,
}

/// What went wrong with one file; either way the others are still copied, unless the target is full.
type Step<T> = anyhow::Result<T>;

fn host_error(what: &str) -> impl FnOnce(Errno) -> anyhow::Error + '_ {
    move |e| anyhow!(std::io::Error::from(e)).context(what.to_owned())
}

fn is_full(e: &anyhow::Error) -> bool {
    let full = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS].map(|e| Some(e.raw_os_error()));
    e.chain().filter_map(|e| e.downcast_ref::<std::io::Error>()).any(|e| full.contains(&e.raw_os_error()))
}

impl Export<'_> {
    /// Path below the root of the export, without a slash at its start.
    fn path(stack: &[Level], name: &[u8]) -> Vec<u8> {
        let names: Vec<&[u8]> =
            stack.iter().skip(1).map(|l| l.name.as_slice()).chain([name]).filter(|n| !n.is_empty()).collect();
        names.join(&b'/')
    }

    /// Copies the tree below a directory of the image into one of the host. Trees may be deeper than a stack, so this
    /// keeps its own.
    fn tree(&mut self, dir: OwnedFd, attr: Attr) -> anyhow::Result<()> {
        let level = |name, attr, dir| Level { name, attr, dir, cookie: 0, waiting: Vec::new(), more: true };
        let mut stack = vec![level(Vec::new(), attr, dir)];
        while let Some(here) = stack.last_mut() {
            if here.waiting.is_empty() && here.more {
                let read = Self::refill(self.fs, here);
                if let Err(e) = read {
                    here.more = false;
                    let path = Self::path(&stack, b"");
                    self.complain(e.context(format!("{}:/{}", self.at.image.display(), printable(&path))));
                }
                continue;
            }
            let Some((name, cookie)) = here.waiting.pop() else {
                self.finish_dir(&mut stack)?;
                continue;
            };
            here.cookie = cookie;
            match self.entry(&stack, &name) {
                Ok(Some((attr, dir))) => stack.push(level(name, attr, dir)),
                Ok(None) => self.progress.file(),
                Err(e) => {
                    let path = Self::path(&stack, &name);
                    let e = e.context(format!("{}/{}", self.root, printable(&path)));
                    if is_full(&e) {
                        return Err(e);
                    }
                    self.complain(e);
                }
            }
        }
        Ok(())
    }

    fn complain(&mut self, e: anyhow::Error) {
        self.failed += 1;
        self.progress.complain(&format!("{e:#}"));
    }

    fn refill(fs: &Fs, here: &mut Level) -> anyhow::Result<()> {
        let mut batch = Vec::new();
        fs.readdir(here.attr.ino, here.cookie, false, &mut |e| {
            // The one at which the batch is full is not consumed: it comes again next time.
            if batch.len() == BATCH {
                return false;
            }
            batch.push((e.name, e.cookie));
            true
        })?;
        here.more = batch.len() == BATCH;
        batch.reverse();
        here.waiting = batch;
        Ok(())
    }

    /// The last directory of the stack is complete: its attributes come last, since filling it changed its times.
    fn finish_dir(&mut self, stack: &mut Vec<Level>) -> anyhow::Result<()> {
        let path = Self::path(stack, b"");
        let Some(done) = stack.pop() else { return Ok(()) };
        let result = self.set_attributes(done.dir.as_fd(), None, &done.attr);
        if !stack.is_empty() {
            self.fs.forget(done.attr.ino, 1);
            self.progress.file();
        }
        if let Err(e) = result {
            self.complain(e.context(format!("{}/{}", self.root, printable(&path))));
        }
        Ok(())
    }

    /// Copies one entry of the last directory of the stack. A directory is only made, and returned with a reference.
    fn entry(&mut self, stack: &[Level], name: &[u8]) -> Step<Option<(Attr, OwnedFd)>> {
        let Some(here) = stack.last() else { return Ok(None) };
        // The image may be damaged or made by an enemy; such a name would lead out of the target.
        if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
            bail!("not a possible file name");
        }
        let attr = self.fs.lookup(here.attr.ino, name)?;
        let os_name = OsStr::from_bytes(name);
        if attr.file_type == FileType::Directory {
            let made = if stack.iter().any(|l| l.attr.ino == attr.ino) {
                Err(anyhow!("the directory contains itself: run `cffs fsck -n` on the image"))
            } else {
                make_dir(here.dir.as_fd(), os_name)
            };
            if made.is_err() {
                self.fs.forget(attr.ino, 1);
            }
            return made.map(|dir| Some((attr, dir)));
        }
        let result = self.file(stack, here.dir.as_fd(), name, &attr);
        self.fs.forget(attr.ino, 1);
        result.map(|()| None)
    }

    /// Copies anything but a directory.
    fn file(&mut self, stack: &[Level], dir: BorrowedFd<'_>, name: &[u8], attr: &Attr) -> Step<()> {
        let os_name = OsStr::from_bytes(name);
        match rustix::fs::unlinkat(dir, os_name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(host_error("cannot replace what is there")(e)),
        }
        if attr.nlink > 1 {
            if let Some(first) = self.links.get(&attr.ino)
                && let Some(root) = stack.first()
            {
                let first = OsStr::from_bytes(first);
                return rustix::fs::linkat(&root.dir, first, dir, os_name, AtFlags::empty())
                    .map_err(host_error("cannot make a hard link"));
            }
            self.links.insert(attr.ino, Self::path(stack, name));
        }
        let mode = Mode::from_raw_mode(0o600);
        let node = |file_type, number| {
            rustix::fs::mknodat(dir, os_name, file_type, mode, number).map_err(host_error("cannot make a special file"))
        };
        match attr.file_type {
            FileType::Regular => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = File::from(
                    rustix::fs::openat(dir, os_name, flags, mode).map_err(host_error("cannot make the file"))?,
                );
                if let Err(e) = self.contents(attr, &file) {
                    // A part would look like the whole. No other name of it is linked to what is not there.
                    self.links.remove(&attr.ino);
                    let _ = rustix::fs::unlinkat(dir, os_name, AtFlags::empty());
                    return Err(e.context("left out, as it cannot be copied as a whole (`cffs cat` writes out what comes before the error)"));
                }
                return self.set_attributes(file.as_fd(), None, attr);
            }
            FileType::Symlink => {
                let target = self.fs.readlink(attr.ino)?;
                rustix::fs::symlinkat(OsStr::from_bytes(&target), dir, os_name)
                    .map_err(host_error("cannot make the symbolic link"))?;
            }
            FileType::Fifo => node(rustix::fs::FileType::Fifo, 0)?,
            FileType::Socket => node(rustix::fs::FileType::Socket, 0)?,
            FileType::CharDevice | FileType::BlockDevice => {
                let (major, minor) = device_numbers(attr.rdev);
                let file_type = if attr.file_type == FileType::CharDevice {
                    rustix::fs::FileType::CharacterDevice
                } else {
                    rustix::fs::FileType::BlockDevice
                };
                node(file_type, rustix::fs::makedev(major, minor))?;
            }
            FileType::Directory => {}
        }
        self.set_attributes(dir, Some(os_name), attr)
    }

    /// Copies the data and leaves holes where the image has them.
    fn contents(&mut self, attr: &Attr, file: &File) -> Step<()> {
        let mut offset = 0;
        while offset < attr.size {
            offset = match self.fs.seek_data(attr.ino, offset) {
                Ok(data) => data,
                // Nothing but a hole follows.
                Err(Error::NoDataBeyond) => break,
                Err(e) => return Err(e.into()),
            };
            let until = self.fs.seek_hole(attr.ino, offset)?.min(attr.size);
            if until <= offset {
                break;
            }
            while offset < until {
                let want = (until - offset).min(self.buf.len() as u64) as usize;
                let n = self.fs.read(attr.ino, offset, &mut self.buf[..want])?;
                if n == 0 {
                    bail!("the file ends at {offset}, before its size of {}", attr.size);
                }
                file.write_all_at(&self.buf[..n], offset).context("cannot write the file")?;
                offset += n as u64;
                self.bytes += n as u64;
                self.progress.bytes(n as u64);
            }
        }
        file.set_len(attr.size).context("cannot set the length of the file")
    }

    /// Owner, permissions and times: in this order, since changing the owner takes the set-user-ID bit away.
    fn set_attributes(&self, at: BorrowedFd<'_>, name: Option<&OsStr>, attr: &Attr) -> Step<()> {
        let (path, flags) = match name {
            Some(name) => (name, AtFlags::SYMLINK_NOFOLLOW),
            None => (OsStr::new(""), AtFlags::EMPTY_PATH),
        };
        if self.keep_owners {
            let (uid, gid) = (Uid::from_raw(attr.uid), Gid::from_raw(attr.gid));
            rustix::fs::chownat(at, path, Some(uid), Some(gid), flags).map_err(host_error("cannot set the owner"))?;
        }
        let mode = Mode::from_raw_mode(attr.perm.into());
        match name {
            _ if attr.file_type == FileType::Symlink => {}
            Some(name) => {
                rustix::fs::chmodat(at, name, mode, AtFlags::empty()).map_err(host_error("cannot set the mode"))?
            }
            None => rustix::fs::fchmod(at, mode).map_err(host_error("cannot set the mode"))?,
        }
        let attributes = self.set_xattrs(at, name, attr);
        let time = |ns: i64| Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) };
        let times = Timestamps { last_access: time(attr.atime), last_modification: time(attr.mtime) };
        match name {
            Some(name) => rustix::fs::utimensat(at, name, &times, AtFlags::SYMLINK_NOFOLLOW),
            None => rustix::fs::futimens(at, &times),
        }
        .map_err(host_error("cannot set the times"))?;
        attributes
    }

    /// Extended attributes, where the target takes them: after the owner, whose change drops some, and the mode, which
    /// an access control list contains.
    fn set_xattrs(&self, at: BorrowedFd<'_>, name: Option<&OsStr>, attr: &Attr) -> Step<()> {
        for x in self.fs.listxattr(attr.ino)? {
            if !self.keep_owners && (x.starts_with(b"trusted.") || x.starts_with(b"security.")) {
                continue;
            }
            let value = self.fs.getxattr(attr.ino, &x)?;
            crate::xattr::write(at, name, &x, &value)
                .map_err(|e| host_error(&format!("cannot set the extended attribute {}", printable(&x)))(e))?;
        }
        Ok(())
    }
}

/// Makes a directory, or takes the one that is there; never one behind a symbolic link.
fn make_dir(dir: BorrowedFd<'_>, name: &OsStr) -> Step<OwnedFd> {
    match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(host_error("cannot make the directory")(e)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(|e| match e {
        Errno::NOTDIR | Errno::LOOP => anyhow!("a file is there where a directory is to go: remove it first"),
        e => host_error("cannot open the directory")(e),
    })
}
