//! `cffs import`: copies a directory into an image, without a mount.

use crate::exit::with_code;
use crate::image::{EngineResultExt, ImagePath, LogArgs, open_read_write};
use crate::progress::Progress;
use crate::size::human;
use crate::text::encode_device;
use anyhow::{Context, anyhow, bail};
use cffs::path::resolve;
use cffs::{Attr, Caller, Error, FileType, Fs, Ino, SetAttr, SetXattr, TimeSpec};
use clap::Args;
use rustix::fs::SeekFrom;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Copy a directory into an image
///
/// Copies what is in DIR into the root directory of the image, or into the given directory of it, which is made if it
/// is missing. Keeps permissions, times, extended attributes, access control lists, symbolic and hard links, special
/// files and holes; owners when run by root.
#[derive(Args, Debug)]
pub struct ImportArgs {
    #[command(flatten)]
    log: LogArgs,
    /// Directory to copy
    dir: PathBuf,
    /// Image, and directory in it to copy to
    #[arg(value_name = "IMAGE[:/PATH]")]
    target: OsString,
}

/// Runs the subcommand.
pub fn run(args: &ImportArgs) -> anyhow::Result<u8> {
    let source = fs::metadata(&args.dir).with_context(|| args.dir.display().to_string())?;
    if !source.is_dir() {
        bail!("{}: not a directory: name the directory whose contents are to be copied", args.dir.display());
    }
    let at = ImagePath::parse(&args.target);
    let fs = open_read_write(&at.image, &args.log)?;
    let total = Progress::visible().then(|| size_below(&args.dir));
    let root = rustix::process::geteuid().is_root();
    let mut import = Import {
        fs: &fs,
        keep_owners: root,
        links: HashMap::new(),
        progress: Progress::new(total),
        bytes: 0,
        failed: 0,
    };
    let start = Instant::now();
    let result = import.run(&args.dir, &source, &at);
    let (files, bytes, failed) = (import.progress.files(), import.bytes, import.failed);
    drop(import);
    // Closed after an error too: what was copied until then stays, and the image in order.
    let closed = fs.close().about(|| at.image.display().to_string());
    result?;
    closed?;
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("{files} files, {} in {seconds:.1} s, {:.0} files/s", human(bytes), files as f64 / seconds.max(1e-9));
    if failed > 0 {
        return Err(with_code(1, anyhow!("{}: {failed} files could not be copied", args.dir.display())));
    }
    Ok(0)
}

/// Bytes of all files below a directory, as far as they can be seen: for the progress bar only.
fn size_below(dir: &Path) -> u64 {
    let mut stack = vec![dir.to_owned()];
    let mut sum = 0;
    while let Some(dir) = stack.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(m) if m.is_dir() => stack.push(entry.path()),
                Ok(m) if m.is_file() => sum += m.len(),
                _ => {}
            }
        }
    }
    sum
}

/// What went wrong with one file.
enum Trouble {
    /// The source could not be read: the others still can.
    Source(anyhow::Error),
    /// The image could not take it: nor will it take the next.
    Image(anyhow::Error),
}

type Step<T> = Result<T, Trouble>;

struct Import<'a> {
    fs: &'a Fs,
    keep_owners: bool,
    /// Files with several names that were copied: (device, inode) there, inode here. Holds a reference to each.
    links: HashMap<(u64, u64), Ino>,
    progress: Progress,
    bytes: u64,
    failed: u64,
}

/// Errors of the source directory.
fn source<T, E: Into<anyhow::Error>>(result: Result<T, E>, path: &Path) -> Step<T> {
    result.map_err(|e| Trouble::Source(e.into().context(path.display().to_string())))
}

/// Errors of the image.
fn image<T>(result: cffs::Result<T>, path: &Path) -> Step<T> {
    result.about(|| path.display().to_string()).map_err(Trouble::Image)
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

impl Import<'_> {
    fn run(&mut self, dir: &Path, meta: &Metadata, at: &ImagePath) -> anyhow::Result<()> {
        let target = self.make_target(at)?;
        let result = self.copy_dir(dir, target).and_then(|()| self.set_attributes(dir, meta, target));
        self.fs.forget(target, 1);
        for ino in self.links.values() {
            self.fs.forget(*ino, 1);
        }
        result.map_err(|trouble| match trouble {
            Trouble::Source(e) | Trouble::Image(e) => e,
        })
    }

    /// The directory to copy to, made with those above it where missing. With a reference.
    fn make_target(&self, at: &ImagePath) -> anyhow::Result<Ino> {
        let mut here = resolve(self.fs, b"/").about(|| at.display())?;
        for name in at.path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            let next = match self.fs.lookup(here.ino, name) {
                Err(Error::NotFound) => self.fs.mkdir(self.me(), here.ino, name, 0o755),
                other => other,
            };
            let next = next.about(|| at.display())?;
            self.fs.forget(here.ino, 1);
            here = next;
        }
        if here.file_type != FileType::Directory {
            bail!("{}: not a directory: files can only be copied into a directory", at.display());
        }
        Ok(here.ino)
    }

    fn me(&self) -> Caller {
        Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    /// Owner of a copy.
    fn owner(&self, meta: &Metadata) -> Caller {
        if self.keep_owners { Caller { uid: meta.uid(), gid: meta.gid() } } else { self.me() }
    }

    fn copy_dir(&mut self, dir: &Path, to: Ino) -> Step<()> {
        // Only the names are kept, so that a large directory does not take much memory; in their order, because that
        // is the order in which cffs places files, and in which most programs will read them.
        let mut names = Vec::new();
        for entry in source(fs::read_dir(dir), dir)? {
            names.push(source(entry, dir)?.file_name().into_vec());
        }
        names.sort_unstable();
        for name in names {
            let path = dir.join(std::ffi::OsStr::from_bytes(&name));
            match self.copy(&path, to, &name) {
                Ok(()) => self.progress.file(),
                Err(Trouble::Source(e)) => {
                    self.failed += 1;
                    self.progress.complain(&format!("{e:#}"));
                }
                Err(image) => return Err(image),
            }
        }
        Ok(())
    }

    fn copy(&mut self, path: &Path, to: Ino, name: &[u8]) -> Step<()> {
        let meta = source(fs::symlink_metadata(path), path)?;
        if meta.is_dir() {
            let dir = match self.fs.lookup(to, name) {
                Err(Error::NotFound) => image(self.fs.mkdir(self.owner(&meta), to, name, 0o700), path)?,
                other => image(other, path)?,
            };
            if dir.file_type != FileType::Directory {
                let e = anyhow!("{}: the image has a file of this name where a directory is to go", path.display());
                self.fs.forget(dir.ino, 1);
                return Err(Trouble::Source(e));
            }
            // Attributes come last, since filling the directory changes its times. They also come if that failed in
            // parts.
            let result = self.copy_dir(path, dir.ino).and_then(|()| self.set_attributes(path, &meta, dir.ino));
            self.fs.forget(dir.ino, 1);
            return result;
        }
        let several_names = meta.nlink() > 1;
        let identity = (meta.dev(), meta.ino());
        self.clear_the_way(path, to, name)?;
        if several_names && let Some(ino) = self.links.get(&identity) {
            let attr = image(self.fs.link(Caller::ROOT, *ino, to, name), path)?;
            self.fs.forget(attr.ino, 1);
            return Ok(());
        }
        let attr = self.copy_file(path, &meta, to, name)?;
        if several_names {
            self.links.insert(identity, attr.ino);
        } else {
            self.fs.forget(attr.ino, 1);
        }
        Ok(())
    }

    /// Removes what has the name of a file that is about to be copied.
    fn clear_the_way(&self, path: &Path, to: Ino, name: &[u8]) -> Step<()> {
        match self.fs.lookup(to, name) {
            Err(Error::NotFound) => Ok(()),
            Err(e) => image(Err(e), path),
            Ok(old) => {
                self.fs.forget(old.ino, 1);
                if old.file_type == FileType::Directory {
                    let e = anyhow!("{}: the image has a directory of this name where a file is to go", path.display());
                    return Err(Trouble::Source(e));
                }
                image(self.fs.unlink(to, name), path)
            }
        }
    }

    /// Copies anything but a directory. The result has a reference.
    fn copy_file(&mut self, path: &Path, meta: &Metadata, to: Ino, name: &[u8]) -> Step<Attr> {
        let (fs, owner) = (self.fs, self.owner(meta));
        let t = meta.file_type();
        let attr = if t.is_file() {
            // Opened first: what cannot be read leaves no empty file behind.
            let mut file = source(File::open(path), path)?;
            let attr = image(fs.create(owner, to, name, 0o600), path)?;
            let copied = self.copy_contents(path, &mut file, attr.ino, owner);
            if let Err(trouble) = copied {
                // Half a file is worse than none.
                let _ = fs.unlink(to, name);
                fs.forget(attr.ino, 1);
                return Err(trouble);
            }
            attr
        } else if t.is_symlink() {
            let target = source(fs::read_link(path), path)?;
            image(fs.symlink(owner, to, name, target.as_os_str().as_bytes()), path)?
        } else {
            let (file_type, has_number) = match t {
                t if t.is_fifo() => (FileType::Fifo, false),
                t if t.is_socket() => (FileType::Socket, false),
                t if t.is_char_device() => (FileType::CharDevice, true),
                _ => (FileType::BlockDevice, true),
            };
            let number = || {
                let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
                encode_device(major, minor).ok_or_else(|| anyhow!("device number {major}, {minor} is too large"))
            };
            let rdev = if has_number { source(number(), path)? } else { 0 };
            image(fs.mknod(owner, to, name, file_type, 0o600, rdev), path)?
        };
        let result = self.set_attributes(path, meta, attr.ino);
        if let Err(trouble) = result {
            fs.forget(attr.ino, 1);
            return Err(trouble);
        }
        Ok(attr)
    }

    /// Copies the data and leaves holes where the source has them.
    fn copy_contents(&mut self, path: &Path, file: &mut File, ino: Ino, owner: Caller) -> Step<()> {
        const CHUNK: u64 = 1 << 20;
        let len = source(file.metadata(), path)?.len();
        let mut buf = vec![0; CHUNK.min(len.max(4096)) as usize];
        let mut done = 0;
        let mut written_to = 0;
        while done < len {
            let (from, until) = match data_range(file, done, len) {
                Some(range) => range,
                None => break,
            };
            self.progress.bytes(from - done);
            source(rustix::fs::seek(&*file, SeekFrom::Start(from)), path)?;
            done = from;
            while done < until {
                let want = (until - done).min(buf.len() as u64) as usize;
                let n = source(file.read(&mut buf[..want]), path)?;
                if n == 0 {
                    // Became shorter meanwhile: what there is now is what is copied.
                    return Ok(());
                }
                let mut rest = &buf[..n];
                while !rest.is_empty() {
                    let w = image(self.fs.write(owner, ino, done, rest), path)?;
                    rest = &rest[w.min(rest.len())..];
                    done += w as u64;
                    written_to = done;
                }
                self.progress.bytes(n as u64);
                self.bytes += n as u64;
            }
        }
        if written_to < len {
            // The file ends with a hole.
            image(self.fs.setattr(Caller::ROOT, ino, SetAttr::default().size(Some(len))), path)?;
        }
        Ok(())
    }

    fn set_attributes(&self, path: &Path, meta: &Metadata, ino: Ino) -> Step<()> {
        let owner = self.owner(meta);
        let set = SetAttr::default()
            .perm((!meta.is_symlink()).then_some((meta.mode() & 0o7777) as u16))
            .uid(Some(owner.uid))
            .gid(Some(owner.gid))
            .atime(Some(TimeSpec::At(nanoseconds(meta.atime(), meta.atime_nsec()))))
            .mtime(Some(TimeSpec::At(nanoseconds(meta.mtime(), meta.mtime_nsec()))));
        image(self.fs.setattr(Caller::ROOT, ino, set), path)?;
        // After the owner, and after the mode, which an access control list contains.
        self.set_xattrs(path, ino)
    }

    /// Extended attributes. Those of namespaces that cffs does not have (of other file systems) stay behind.
    fn set_xattrs(&self, path: &Path, ino: Ino) -> Step<()> {
        let there = source(crate::xattr::read(path), path)?;
        for name in image(self.fs.listxattr(ino), path)? {
            // Inherited from the directory in the image.
            if name.starts_with(b"system.") && !there.contains_key(&name) {
                image(self.fs.removexattr(Caller::ROOT, ino, &name), path)?;
            }
        }
        for (name, value) in there {
            match self.fs.setxattr(Caller::ROOT, ino, &name, &value, SetXattr::default()) {
                Err(Error::Unsupported) => {}
                other => image(other, path)?,
            }
        }
        Ok(())
    }
}

/// The next range with data from `from` on; `None` if only a hole follows. Where the file system knows no holes, all
/// is data.
fn data_range(file: &File, from: u64, len: u64) -> Option<(u64, u64)> {
    match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => {
            let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(len);
            Some((start, end.clamp(start, len.max(start))))
        }
        Err(rustix::io::Errno::NXIO) => None,
        Err(_) => Some((from, len)),
    }
}
