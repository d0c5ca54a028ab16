//! Operations of a test, with a text form in which a failure is reported and kept.
//!
//! Operations name files by path, so that leaving some out of a sequence leaves a meaningful sequence.

use cffs::{Fallocate, Ino, RegroupOptions, RenameFlags};
use std::fmt;
use std::str::FromStr;

/// Places for references that a test keeps ("open files").
pub const SLOTS: usize = 4;

/// With a rate, others go first, and data that moves becomes durable by flushes of its own. This one is none to wait for.
const RATE: Option<u64> = Some(1 << 40);

/// What a regroup moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegroupHow {
    /// Small files and directories, if that saves requests.
    Gains,
    /// All of them.
    Always,
    /// Files into the fewest pieces.
    Large,
    /// What is in the way of long free runs, wherever it is.
    FreeSpace,
}

impl RegroupHow {
    /// All of them.
    pub const ALL: [RegroupHow; 4] = [RegroupHow::Gains, RegroupHow::Always, RegroupHow::Large, RegroupHow::FreeSpace];

    fn name(self) -> &'static str {
        match self {
            RegroupHow::Gains => "gains",
            RegroupHow::Always => "always",
            RegroupHow::Large => "large",
            RegroupHow::FreeSpace => "free-space",
        }
    }

    /// Settings of the engine, for a directory.
    pub fn options(self, dir: Ino) -> RegroupOptions {
        let options = RegroupOptions::default();
        match self {
            RegroupHow::Gains => options.directories(vec![dir]),
            RegroupHow::Always => options.directories(vec![dir]).always(true).rate(RATE),
            RegroupHow::Large => options.directories(vec![dir]).large(true).always(true).rate(RATE),
            RegroupHow::FreeSpace => options.free_space(true).always(true),
        }
    }
}

/// A path, from the root (`/a/b`) or from an open directory (`@2/b`; `@2` is the open file itself).
///
/// Names are written as themselves; one that begins with `M`, `L` or `X` stands for a name padded to 120, 255 or 256
/// bytes (the last is too long for the file system).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path(String);

impl Path {
    /// From its text.
    pub fn new(text: impl Into<String>) -> Path {
        Path(text.into())
    }

    /// The open file it starts from, if not the root.
    pub fn base(&self) -> Option<usize> {
        let first = self.0.split('/').next().unwrap_or_default();
        first.strip_prefix('@').and_then(|n| n.parse().ok())
    }

    /// The names, padded to their real length.
    pub fn names(&self) -> Vec<Vec<u8>> {
        self.0.split('/').skip(1).filter(|n| !n.is_empty()).map(expand).collect()
    }

    /// True for an open file itself, which takes no name to reach.
    pub fn is_open_file(&self) -> bool {
        self.base().is_some() && self.names().is_empty()
    }

    /// The path with another name at the end.
    pub fn join(&self, name: &str) -> Path {
        Path(format!("{}/{name}", self.0.trim_end_matches('/')))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The bytes of a name.
pub fn expand(code: &str) -> Vec<u8> {
    let len = match code.as_bytes().first() {
        Some(b'M') => 120,
        Some(b'L') => 255,
        Some(b'X') => 256,
        _ => 0,
    };
    let mut bytes = code.as_bytes().to_vec();
    bytes.resize(len.max(bytes.len()), b'_');
    bytes
}

/// The text of a name.
pub fn code(name: &[u8]) -> String {
    String::from_utf8_lossy(name).trim_end_matches('_').to_owned()
}

/// Types that mknod makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    Char,
    /// Block device.
    Block,
}

/// An operation. Lengths, offsets and sizes are in bytes.
#[expect(missing_docs, reason = "the text of a variant and the names of its fields say it all")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Make a regular file.
    Create { path: Path, perm: u16, uid: u32 },
    /// Make a regular file without a name, and keep it in a slot (one that is taken is left alone).
    Tmpfile { slot: usize, dir: Path, perm: u16, uid: u32 },
    /// Make a directory.
    Mkdir { path: Path, perm: u16, uid: u32 },
    /// Make a special file.
    Mknod { path: Path, special: Special, rdev: u32 },
    /// Make a symbolic link with a target of some length.
    Symlink { path: Path, len: usize },
    /// Read a symbolic link.
    Readlink { path: Path },
    /// Make another name.
    Link { from: Path, to: Path },
    /// Remove a name.
    Unlink { path: Path },
    /// Remove a directory.
    Rmdir { path: Path },
    /// Rename.
    Rename { from: Path, to: Path, flags: RenameFlags },
    /// Write a range with the pattern of `tag`.
    Write { path: Path, offset: u64, len: usize, tag: u64 },
    /// Set the size.
    Truncate { path: Path, size: u64 },
    /// Change the space of a range.
    Fallocate { path: Path, what: Fallocate, offset: u64, len: u64 },
    /// Copy a range.
    Copy { from: Path, to: Path, offset: u64, to_offset: u64, len: u64 },
    /// Read a range.
    Read { path: Path, offset: u64, len: usize },
    /// Find data and hole from an offset on.
    Seek { path: Path, offset: u64 },
    /// List a directory, with or without attributes.
    Readdir { path: Path, attr: bool },
    /// List the first entries of a directory and remember the position.
    ListStart { path: Path, count: usize },
    /// List the rest from the remembered position.
    ListRest,
    /// Look a file up.
    Lookup { path: Path },
    /// Change permissions (with set-gid on directories only).
    Chmod { path: Path, perm: u16 },
    /// Change owner and group.
    Chown { path: Path, uid: u32, gid: u32 },
    /// Set the flags, as `FS_IOC_SETFLAGS` has them.
    Flags { path: Path, flags: u32 },
    /// Set the modification time.
    Utime { path: Path, mtime: i64 },
    /// Set an extended attribute to `len` bytes with the pattern of `tag`.
    SetXattr { path: Path, name: String, len: usize, tag: u64 },
    /// Remove an extended attribute.
    RemoveXattr { path: Path, name: String },
    /// Set the access list, or the default list, to one of [`LISTS`](crate::model::acl::LISTS); a number behind them
    /// removes it.
    Acl { path: Path, default: bool, list: usize },
    /// Make a file durable.
    Fsync { path: Path },
    /// Make a file's contents durable.
    Fdatasync { path: Path },
    /// Make everything durable.
    Sync,
    /// Keep a reference in a slot (one that is taken is left alone).
    Open { slot: usize, path: Path },
    /// Drop the reference of a slot.
    Close { slot: usize },
    /// Unmount and mount. References are dropped before (`true`) or just lost.
    Remount { forget: bool },
    /// Grow by so many percent of what the device has beyond what mkfs used.
    Grow { percent: u8 },
    /// Give all free space back to the device.
    Trim,
    /// Set what a directory's files, or a file, are placed with, to one of many values ([`colocation_value`]).
    Colocate { path: Path, value: u64 },
    /// Bring a directory and what is below it back together.
    Regroup { path: Path, how: RegroupHow },
    /// Make files `first` to `first + count` of `len` bytes each in a directory.
    CreateMany { dir: Path, first: u32, count: u32, len: usize, tag: u64 },
    /// Remove such files.
    UnlinkMany { dir: Path, first: u32, count: u32 },
}

/// What fallocate can do, with its names in the text.
pub const FALLOCATE: [(&str, Fallocate); 7] = [
    ("allocate", Fallocate::Allocate { keep_size: false }),
    ("ahead", Fallocate::Allocate { keep_size: true }),
    ("punch", Fallocate::PunchHole),
    ("zero", Fallocate::Zero { keep_size: false }),
    ("zeroahead", Fallocate::Zero { keep_size: true }),
    ("collapse", Fallocate::Collapse),
    ("insert", Fallocate::Insert),
];

/// Replaces the operations on many files by single ones.
pub fn expand_all(ops: &[Op]) -> Vec<Op> {
    let mut out = Vec::new();
    for op in ops {
        match op {
            Op::CreateMany { dir, first, count, len, tag } => {
                for i in *first..first + count {
                    let path = dir.join(&format!("f{i}"));
                    out.push(Op::Create { path: path.clone(), perm: 0o644, uid: 0 });
                    if *len > 0 {
                        let tag = tag ^ u64::from(i) << 40;
                        out.push(Op::Write { path, offset: 0, len: *len, tag });
                    }
                }
            }
            Op::UnlinkMany { dir, first, count } => {
                out.extend((*first..first + count).map(|i| Op::Unlink { path: dir.join(&format!("f{i}")) }));
            }
            op => out.push(op.clone()),
        }
    }
    out
}

/// A value of [`cffs::COLOCATION_ATTRIBUTE`]: for a directory a key, for anything else a place in one of a few lists.
pub fn colocation_value(value: u64, is_dir: bool) -> String {
    const KEYS: [&str; 7] = ["owner", "process", "age", "label:x", "label:y", "learned", "directory"];
    if is_dir { KEYS[value as usize % KEYS.len()].into() } else { format!("list:{:016x}:{}", value % 3, value / 3) }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Create { path, perm, uid } => write!(f, "create {path} {perm:o} {uid}"),
            Op::Tmpfile { slot, dir, perm, uid } => write!(f, "tmpfile {slot} {dir} {perm:o} {uid}"),
            Op::Mkdir { path, perm, uid } => write!(f, "mkdir {path} {perm:o} {uid}"),
            Op::Mknod { path, special, rdev } => {
                let special = format!("{special:?}").to_lowercase();
                write!(f, "mknod {path} {special} {rdev}")
            }
            Op::Symlink { path, len } => write!(f, "symlink {path} {len}"),
            Op::Readlink { path } => write!(f, "readlink {path}"),
            Op::Link { from, to } => write!(f, "link {from} {to}"),
            Op::Unlink { path } => write!(f, "unlink {path}"),
            Op::Rmdir { path } => write!(f, "rmdir {path}"),
            Op::Rename { from, to, flags } => {
                let flags = match (flags.no_replace, flags.exchange) {
                    (false, false) => "replace",
                    (true, false) => "noreplace",
                    (false, true) => "exchange",
                    (true, true) => "both",
                };
                write!(f, "rename {from} {to} {flags}")
            }
            Op::Write { path, offset, len, tag } => write!(f, "write {path} {offset} {len} {tag}"),
            Op::Truncate { path, size } => write!(f, "truncate {path} {size}"),
            Op::Fallocate { path, what, offset, len } => {
                let name = FALLOCATE.iter().find(|(_, w)| w == what).map_or("?", |(n, _)| n);
                write!(f, "fallocate {path} {name} {offset} {len}")
            }
            Op::Copy { from, to, offset, to_offset, len } => write!(f, "copy {from} {to} {offset} {to_offset} {len}"),
            Op::Read { path, offset, len } => write!(f, "read {path} {offset} {len}"),
            Op::Seek { path, offset } => write!(f, "seek {path} {offset}"),
            Op::Readdir { path, attr } => write!(f, "readdir {path} {attr}"),
            Op::ListStart { path, count } => write!(f, "list {path} {count}"),
            Op::ListRest => write!(f, "listrest"),
            Op::Lookup { path } => write!(f, "lookup {path}"),
            Op::Chmod { path, perm } => write!(f, "chmod {path} {perm:o}"),
            Op::Chown { path, uid, gid } => write!(f, "chown {path} {uid} {gid}"),
            Op::Flags { path, flags } => write!(f, "flags {path} {flags}"),
            Op::Utime { path, mtime } => write!(f, "utime {path} {mtime}"),
            Op::SetXattr { path, name, len, tag } => write!(f, "setxattr {path} {name} {len} {tag}"),
            Op::RemoveXattr { path, name } => write!(f, "removexattr {path} {name}"),
            Op::Acl { path, default, list } => write!(f, "acl {path} {default} {list}"),
            Op::Fsync { path } => write!(f, "fsync {path}"),
            Op::Fdatasync { path } => write!(f, "fdatasync {path}"),
            Op::Sync => write!(f, "sync"),
            Op::Open { slot, path } => write!(f, "open {slot} {path}"),
            Op::Close { slot } => write!(f, "close {slot}"),
            Op::Remount { forget } => write!(f, "remount {forget}"),
            Op::Trim => write!(f, "trim"),
            Op::Colocate { path, value } => write!(f, "colocate {path} {value}"),
            Op::Regroup { path, how } => write!(f, "regroup {path} {}", how.name()),
            Op::Grow { percent } => write!(f, "grow {percent}"),
            Op::CreateMany { dir, first, count, len, tag } => {
                write!(f, "createmany {dir} {first} {count} {len} {tag}")
            }
            Op::UnlinkMany { dir, first, count } => write!(f, "unlinkmany {dir} {first} {count}"),
        }
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(line: &str) -> Result<Op, String> {
        let mut words = line.split_whitespace();
        let verb = words.next().unwrap_or_default();
        let mut next = || words.next().ok_or_else(|| format!("{line}: a word is missing"));
        fn number<T: FromStr>(word: &str) -> Result<T, String> {
            word.parse().map_err(|_| format!("{word} is not a number"))
        }
        let octal = |word: &str| u16::from_str_radix(word, 8).map_err(|_| format!("{word} is not octal"));
        let flag = |word: &str| word == "true";
        Ok(match verb {
            "create" => Op::Create { path: Path::new(next()?), perm: octal(next()?)?, uid: number(next()?)? },
            "tmpfile" => Op::Tmpfile {
                slot: number(next()?)?,
                dir: Path::new(next()?),
                perm: octal(next()?)?,
                uid: number(next()?)?,
            },
            "mkdir" => Op::Mkdir { path: Path::new(next()?), perm: octal(next()?)?, uid: number(next()?)? },
            "mknod" => {
                let path = Path::new(next()?);
                let special = match next()? {
                    "fifo" => Special::Fifo,
                    "socket" => Special::Socket,
                    "char" => Special::Char,
                    "block" => Special::Block,
                    other => return Err(format!("{other} is not a special file")),
                };
                Op::Mknod { path, special, rdev: number(next()?)? }
            }
            "symlink" => Op::Symlink { path: Path::new(next()?), len: number(next()?)? },
            "readlink" => Op::Readlink { path: Path::new(next()?) },
            "link" => Op::Link { from: Path::new(next()?), to: Path::new(next()?) },
            "unlink" => Op::Unlink { path: Path::new(next()?) },
            "rmdir" => Op::Rmdir { path: Path::new(next()?) },
            "rename" => {
                let (from, to) = (Path::new(next()?), Path::new(next()?));
                let (no_replace, exchange) = match next()? {
                    "replace" => (false, false),
                    "noreplace" => (true, false),
                    "exchange" => (false, true),
                    _ => (true, true),
                };
                Op::Rename { from, to, flags: RenameFlags { no_replace, exchange } }
            }
            "write" => Op::Write {
                path: Path::new(next()?),
                offset: number(next()?)?,
                len: number(next()?)?,
                tag: number(next()?)?,
            },
            "truncate" => Op::Truncate { path: Path::new(next()?), size: number(next()?)? },
            "fallocate" => {
                let path = Path::new(next()?);
                let name = next()?;
                let what = FALLOCATE.iter().find(|(n, _)| *n == name).map(|(_, w)| *w);
                let what = what.ok_or_else(|| format!("{name} is nothing that fallocate does"))?;
                Op::Fallocate { path, what, offset: number(next()?)?, len: number(next()?)? }
            }
            "copy" => Op::Copy {
                from: Path::new(next()?),
                to: Path::new(next()?),
                offset: number(next()?)?,
                to_offset: number(next()?)?,
                len: number(next()?)?,
            },
            "read" => Op::Read { path: Path::new(next()?), offset: number(next()?)?, len: number(next()?)? },
            "seek" => Op::Seek { path: Path::new(next()?), offset: number(next()?)? },
            "readdir" => Op::Readdir { path: Path::new(next()?), attr: flag(next()?) },
            "list" => Op::ListStart { path: Path::new(next()?), count: number(next()?)? },
            "listrest" => Op::ListRest,
            "lookup" => Op::Lookup { path: Path::new(next()?) },
            "chmod" => Op::Chmod { path: Path::new(next()?), perm: octal(next()?)? },
            "chown" => Op::Chown { path: Path::new(next()?), uid: number(next()?)?, gid: number(next()?)? },
            "flags" => Op::Flags { path: Path::new(next()?), flags: number(next()?)? },
            "utime" => Op::Utime { path: Path::new(next()?), mtime: number(next()?)? },
            "setxattr" => Op::SetXattr {
                path: Path::new(next()?),
                name: next()?.to_owned(),
                len: number(next()?)?,
                tag: number(next()?)?,
            },
            "removexattr" => Op::RemoveXattr { path: Path::new(next()?), name: next()?.to_owned() },
            "acl" => Op::Acl { path: Path::new(next()?), default: flag(next()?), list: number(next()?)? },
            "fsync" => Op::Fsync { path: Path::new(next()?) },
            "fdatasync" => Op::Fdatasync { path: Path::new(next()?) },
            "sync" => Op::Sync,
            "open" => Op::Open { slot: number(next()?)?, path: Path::new(next()?) },
            "close" => Op::Close { slot: number(next()?)? },
            "remount" => Op::Remount { forget: flag(next()?) },
            "trim" => Op::Trim,
            "colocate" => Op::Colocate { path: Path::new(next()?), value: number(next()?)? },
            "regroup" => Op::Regroup {
                path: Path::new(next()?),
                how: {
                    let name = next()?;
                    let how = RegroupHow::ALL.into_iter().find(|how| how.name() == name);
                    how.ok_or_else(|| format!("{name}: not what a regroup can do"))?
                },
            },
            "grow" => Op::Grow { percent: number(next()?)? },
            "createmany" => Op::CreateMany {
                dir: Path::new(next()?),
                first: number(next()?)?,
                count: number(next()?)?,
                len: number(next()?)?,
                tag: number(next()?)?,
            },
            "unlinkmany" => {
                Op::UnlinkMany { dir: Path::new(next()?), first: number(next()?)?, count: number(next()?)? }
            }
            other => return Err(format!("{other:?} is not an operation")),
        })
    }
}

/// Reads a sequence, an operation on each line; empty lines and what follows a `#` are left out.
pub fn parse(text: &str) -> Result<Vec<Op>, String> {
    let lines = text.lines().map(|l| l.split('#').next().unwrap_or_default().trim());
    lines.filter(|l| !l.is_empty()).map(str::parse).collect()
}

/// The text of a sequence.
pub fn show(ops: &[Op]) -> String {
    ops.iter().map(|op| format!("{op}\n")).collect()
}
