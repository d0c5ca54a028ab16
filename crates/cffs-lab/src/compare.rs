//! A strict comparison of two trees: names, types, bytes, modes, owners, times
//! to the nanosecond, symbolic link targets, hard links, device numbers,
//! extended attributes.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

/// Arguments of `cffs-lab compare`.
#[derive(clap::Args)]
pub struct Args {
    /// The tree that is right
    expected: PathBuf,
    /// The tree to check against it
    found: PathBuf,
    /// Print at most so many differences
    #[arg(long, default_value_t = 20)]
    max: usize,
}

/// What was compared, and what differed.
#[derive(Debug, Default)]
pub struct Report {
    files: u64,
    dirs: u64,
    symlinks: u64,
    specials: u64,
    bytes: u64,
    /// Groups of two or more names of one file.
    link_groups: u64,
    differences: Vec<String>,
}

impl Report {
    /// Regular files that were compared.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// What differed, a line each.
    pub fn differences(&self) -> &[String] {
        &self.differences
    }
}

/// Runs the subcommand: exit code 0 when the trees are alike, 1 when not.
///
/// # Errors
/// When something in either tree cannot be read.
pub fn run(args: &Args) -> Result<ExitCode> {
    let report = compare(&args.expected, &args.found)?;
    for line in report.differences.iter().take(args.max) {
        println!("differs: {line}");
    }
    let count = report.differences.len();
    if count > args.max {
        println!("… and {} more", count - args.max);
    }
    println!(
        "compared {} files ({} bytes), {} directories, {} symbolic links, {} special files, {} hard-link groups: {}",
        report.files,
        report.bytes,
        report.dirs,
        report.symlinks,
        report.specials,
        report.link_groups,
        if count == 0 { "no difference".to_string() } else { format!("{count} differences") }
    );
    Ok(ExitCode::from(u8::from(count > 0)))
}

/// Compares two trees, the two top directories included.
///
/// # Errors
/// When something in either tree cannot be read.
pub fn compare(expected: &Path, found: &Path) -> Result<Report> {
    let mut walk = Walk::default();
    walk.object(expected, found, Path::new("."))?;
    walk.report.link_groups = walk.links.values().filter(|names| names.count > 1).count() as u64;
    Ok(walk.report)
}

/// The name under which a file was first met in the one and the other tree.
struct Names {
    first: PathBuf,
    count: u64,
}

#[derive(Default)]
struct Walk {
    report: Report,
    links: HashMap<(u64, u64), Names>,
    links_found: HashMap<(u64, u64), PathBuf>,
}

impl Walk {
    fn differ(&mut self, name: &Path, what: impl std::fmt::Display) {
        self.report.differences.push(format!("{}: {what}", name.display()));
    }

    fn object(&mut self, a: &Path, b: &Path, name: &Path) -> Result<()> {
        let ma = stat(a)?;
        let mb = stat(b)?;
        if ma.file_type() != mb.file_type() {
            self.differ(name, format_args!("type is {}, should be {}", kind(&mb), kind(&ma)));
            return Ok(());
        }
        self.attributes(name, &ma, &mb);
        self.xattrs(a, b, name)?;
        if !ma.is_dir() {
            self.hard_links(name, &ma, &mb);
        }
        if ma.is_dir() {
            self.report.dirs += 1;
            self.directory(a, b, name)?;
        } else if ma.is_symlink() {
            self.report.symlinks += 1;
            let ta = fs::read_link(a).with_context(|| format!("cannot read link {}", a.display()))?;
            let tb = fs::read_link(b).with_context(|| format!("cannot read link {}", b.display()))?;
            if ta != tb {
                self.differ(name, format_args!("points to {tb:?}, should be {ta:?}"));
            }
        } else if ma.is_file() {
            self.report.files += 1;
            if ma.len() == mb.len() {
                self.report.bytes += ma.len();
                if let Some(at) = first_difference(a, b)? {
                    self.differ(name, format_args!("content differs at byte {at}"));
                }
            }
        } else {
            self.report.specials += 1;
            if ma.rdev() != mb.rdev() {
                self.differ(name, format_args!("device {:#x}, should be {:#x}", mb.rdev(), ma.rdev()));
            }
        }
        Ok(())
    }

    fn attributes(&mut self, name: &Path, ma: &Metadata, mb: &Metadata) {
        // The size of a directory is the file system's own affair.
        if !ma.is_dir() && ma.len() != mb.len() {
            self.differ(name, format_args!("size {}, should be {}", mb.len(), ma.len()));
        }
        if ma.mode() != mb.mode() {
            self.differ(name, format_args!("mode {:o}, should be {:o}", mb.mode(), ma.mode()));
        }
        if (ma.uid(), ma.gid()) != (mb.uid(), mb.gid()) {
            self.differ(name, format_args!("owner {}:{}, should be {}:{}", mb.uid(), mb.gid(), ma.uid(), ma.gid()));
        }
        if (ma.mtime(), ma.mtime_nsec()) != (mb.mtime(), mb.mtime_nsec()) {
            self.differ(
                name,
                format_args!(
                    "modified {}.{:09}, should be {}.{:09}",
                    mb.mtime(),
                    mb.mtime_nsec(),
                    ma.mtime(),
                    ma.mtime_nsec()
                ),
            );
        }
    }

    /// Two names are one file here exactly when they are one file there.
    fn hard_links(&mut self, name: &Path, ma: &Metadata, mb: &Metadata) {
        if ma.nlink() != mb.nlink() {
            self.differ(name, format_args!("link count {}, should be {}", mb.nlink(), ma.nlink()));
        }
        let here = self.links.entry((ma.dev(), ma.ino())).or_insert(Names { first: name.to_path_buf(), count: 0 });
        here.count += 1;
        let first_here = here.first.clone();
        let first_there = self.links_found.entry((mb.dev(), mb.ino())).or_insert_with(|| name.to_path_buf()).clone();
        if first_here != first_there {
            self.differ(
                name,
                format_args!("is one file with {}, should be with {}", first_there.display(), first_here.display()),
            );
        }
    }

    fn xattrs(&mut self, a: &Path, b: &Path, name: &Path) -> Result<()> {
        let xa = xattrs(a)?;
        let xb = xattrs(b)?;
        if xa != xb {
            self.differ(
                name,
                format_args!(
                    "extended attributes {:?}, should be {:?}",
                    xb.keys().collect::<Vec<_>>(),
                    xa.keys().collect::<Vec<_>>()
                ),
            );
        }
        Ok(())
    }

    fn directory(&mut self, a: &Path, b: &Path, name: &Path) -> Result<()> {
        let na = list(a)?;
        let nb = list(b)?;
        for entry in &na {
            if nb.binary_search(entry).is_err() {
                self.differ(&name.join(entry), "is missing");
            }
        }
        for entry in &nb {
            if na.binary_search(entry).is_err() {
                self.differ(&name.join(entry), "should not be there");
            }
        }
        if let Some(twice) = nb.windows(2).find(|pair| pair[0] == pair[1]) {
            self.differ(&name.join(&twice[0]), "is listed twice");
        }
        for entry in &na {
            if nb.binary_search(entry).is_ok() {
                self.object(&a.join(entry), &b.join(entry), &name.join(entry))?;
            }
        }
        Ok(())
    }
}

fn stat(path: &Path) -> Result<Metadata> {
    fs::symlink_metadata(path).with_context(|| format!("cannot stat {}", path.display()))
}

fn kind(m: &Metadata) -> &'static str {
    let t = m.file_type();
    if t.is_dir() {
        "a directory"
    } else if t.is_symlink() {
        "a symbolic link"
    } else if t.is_file() {
        "a file"
    } else if t.is_fifo() {
        "a fifo"
    } else if t.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

fn list(dir: &Path) -> Result<Vec<OsString>> {
    let mut names = Vec::new();
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    for entry in entries {
        names.push(entry.with_context(|| format!("cannot list {}", dir.display()))?.file_name());
    }
    names.sort();
    Ok(names)
}

/// Extended attributes, with them ACLs and file capabilities; what a security
/// module labels by itself is not part of the copy.
fn xattrs(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0u8; 64 << 10];
    let len = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(len) => len,
        // A file system without extended attributes has none.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => return Ok(BTreeMap::new()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot list extended attributes of {}", path.display()));
        }
    };
    let mut out = BTreeMap::new();
    for name in names[..len].split(|b| *b == 0) {
        if name.is_empty() || name.starts_with(b"security.") && name != b"security.capability" {
            continue;
        }
        let mut value = vec![0u8; 64 << 10];
        let n = rustix::fs::lgetxattr(path, name, &mut value[..])
            .with_context(|| format!("cannot read extended attributes of {}", path.display()))?;
        value.truncate(n);
        out.insert(name.to_vec(), value);
    }
    Ok(out)
}

fn first_difference(a: &Path, b: &Path) -> Result<Option<u64>> {
    let mut fa = File::open(a).with_context(|| format!("cannot open {}", a.display()))?;
    let mut fb = File::open(b).with_context(|| format!("cannot open {}", b.display()))?;
    let mut ba = vec![0u8; 128 << 10];
    let mut bb = vec![0u8; 128 << 10];
    let mut at = 0u64;
    loop {
        let na = fill(&mut fa, &mut ba).with_context(|| format!("cannot read {}", a.display()))?;
        let nb = fill(&mut fb, &mut bb).with_context(|| format!("cannot read {}", b.display()))?;
        let common = na.min(nb);
        if let Some(i) = (0..common).find(|&i| ba[i] != bb[i]) {
            return Ok(Some(at + i as u64));
        }
        if na != nb {
            return Ok(Some(at + common as u64));
        }
        if na == 0 {
            return Ok(None);
        }
        at += na as u64;
    }
}

fn fill(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match file.read(&mut buffer[have..])? {
            0 => break,
            n => have += n,
        }
    }
    Ok(have)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::{Duration, SystemTime};

    fn make(dir: &Path) {
        fs::create_dir_all(dir.join("d")).unwrap();
        fs::write(dir.join("d/one"), b"hello").unwrap();
        fs::write(dir.join("two"), b"world").unwrap();
        fs::hard_link(dir.join("d/one"), dir.join("again")).unwrap();
        symlink("d/one", dir.join("link")).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        for name in ["d/one", "two", "d", "."] {
            File::open(dir.join(name)).unwrap().set_modified(time).unwrap();
        }
        rustix::fs::utimensat(
            rustix::fs::CWD,
            dir.join("link"),
            &rustix::fs::Timestamps {
                last_access: rustix::fs::Timespec { tv_sec: 5, tv_nsec: 5 },
                last_modification: rustix::fs::Timespec { tv_sec: 5, tv_nsec: 5 },
            },
            rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
        )
        .unwrap();
    }

    /// Makes two equal trees, changes the second, returns what is reported.
    fn after(change: impl FnOnce(&Path)) -> Vec<String> {
        let base = tempfile::tempdir().unwrap();
        let (a, b) = (base.path().join("a"), base.path().join("b"));
        make(&a);
        make(&b);
        change(&b);
        compare(&a, &b).unwrap().differences
    }

    /// Changes something and puts the directory's time back.
    fn keeping_time(dir: &Path, change: impl FnOnce()) {
        let time = fs::metadata(dir).unwrap().modified().unwrap();
        change();
        File::open(dir).unwrap().set_modified(time).unwrap();
    }

    #[test]
    fn equal_trees_are_equal() {
        assert_eq!(after(|_| {}), Vec::<String>::new());
    }

    #[test]
    fn a_changed_byte_is_seen_even_with_the_same_time() {
        let seen = after(|b| {
            let two = b.join("two");
            keeping_time(&two, || fs::write(&two, b"worle").unwrap());
        });
        assert_eq!(seen, ["./two: content differs at byte 4"]);
    }

    #[test]
    fn mode_time_and_target_are_seen() {
        let seen = after(|b| {
            fs::set_permissions(b.join("two"), fs::Permissions::from_mode(0o4711)).unwrap();
            File::open(b.join("d/one"))
                .unwrap()
                .set_modified(SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_788))
                .unwrap();
        });
        assert_eq!(seen.len(), 3, "{seen:?}"); // two names of d/one
        assert!(seen[2].contains("mode 104711"), "{seen:?}");
        assert!(seen[0].contains("modified 1000000000.123456788"), "{seen:?}");
    }

    #[test]
    fn a_broken_hard_link_is_seen() {
        let seen = after(|b| {
            keeping_time(b, || {
                fs::remove_file(b.join("again")).unwrap();
                fs::copy(b.join("d/one"), b.join("again")).unwrap();
                let time = fs::metadata(b.join("d/one")).unwrap().modified().unwrap();
                File::open(b.join("again")).unwrap().set_modified(time).unwrap();
            });
        });
        assert!(seen.iter().any(|line| line.contains("is one file with")), "{seen:?}");
    }

    #[test]
    fn missing_and_extra_names_are_seen() {
        let seen = after(|b| {
            keeping_time(b, || fs::rename(b.join("two"), b.join("three")).unwrap());
        });
        assert_eq!(seen, ["./two: is missing", "./three: should not be there"]);
    }
}
