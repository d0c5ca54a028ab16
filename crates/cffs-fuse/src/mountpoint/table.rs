//! The table of mounts of this mount namespace.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// The types of a cffs mount in mountinfo.
pub(super) const FUSE: &str = "fuse.cffs";
const FUSEBLK: &str = "fuseblk.cffs";

/// A mount as /proc/self/mountinfo shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    /// The device number (major, minor) of its super block, as stat(2) shows it: that of the block device for `fuseblk`.
    pub(crate) device: (u32, u32),
    /// The mount point.
    pub(crate) dir: PathBuf,
    fstype: String,
    /// The block device for `fuseblk`, otherwise what the server has named: the image.
    pub(crate) source: PathBuf,
    /// Nothing can be changed, at whatever place it is mounted.
    pub(crate) read_only: bool,
}

impl Mounted {
    /// Whether it is a cffs.
    pub(crate) fn is_cffs(&self) -> bool {
        self.fstype == FUSE || self.is_block()
    }

    /// Whether it is a cffs that the kernel knows by a block device.
    pub(crate) fn is_block(&self) -> bool {
        self.fstype == FUSEBLK
    }

    /// The number of its connection, below `/sys/fs/fuse/connections`: the device number in the form that the kernel has
    /// inside (`MKDEV` of `linux/kdev_t.h`).
    pub(super) fn connection(&self) -> u64 {
        u64::from(self.device.0) << 20 | u64::from(self.device.1)
    }

    /// The folder in sysfs for its readahead. It exists as long as the super block does.
    pub(super) fn bdi(&self) -> PathBuf {
        let (major, minor) = self.device;
        let suffix = if self.is_block() { "-fuseblk" } else { "" };
        PathBuf::from(format!("/sys/class/bdi/{major}:{minor}{suffix}"))
    }
}

/// The mounts in a mountinfo file (see proc(5)), from bottom to top.
fn parse_mountinfo(text: &[u8]) -> Vec<Mounted> {
    text.split(|&b| b == b'\n').filter_map(parse_mountinfo_line).collect()
}

fn parse_mountinfo_line(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|&b| b == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let dir = unescape(fields.nth(1)?);
    let mut fields = fields.skip_while(|f| *f != b"-");
    let fstype = fields.nth(1)?;
    Some(Mounted {
        device: (major.parse().ok()?, minor.parse().ok()?),
        dir,
        fstype: String::from_utf8_lossy(fstype).into_owned(),
        source: unescape(fields.next().unwrap_or_default()),
        read_only: fields.next().is_some_and(|options| options.split(|&b| b == b',').any(|o| o == b"ro")),
    })
}

/// Decodes escapes such as `\040` in mountinfo.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&b, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        match octal {
            Some(value) if b == b'\\' => {
                out.push(value);
                rest = &tail[3..];
            }
            _ => {
                out.push(b);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// All mounts, from bottom to top.
pub(crate) fn mounts() -> io::Result<Vec<Mounted>> {
    Ok(parse_mountinfo(&std::fs::read("/proc/self/mountinfo")?))
}

/// The mount that is seen at `dir`, out of `all`.
pub(super) fn top<'a>(all: &'a [Mounted], dir: &Path) -> Option<&'a Mounted> {
    all.iter().rev().find(|m| m.dir == dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines() {
        let text = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n\
            81 1 0:45 / /tmp/a\\040b rw,nosuid - fuse.cffs /a\\040disk.img rw,user_id=0\nrubbish\n\
            82 1 7:3 / /tmp/a\\040b rw - fuseblk.cffs /dev/loop3 ro,user_id=0\n";
        let all = parse_mountinfo(text);
        assert_eq!(all.len(), 3);
        let (ext3, plain, block) = (&all[0], &all[1], &all[2]);
        assert_eq!((ext3.device, ext3.dir.as_path(), ext3.is_cffs()), ((98, 0), Path::new("/mnt2"), false));
        assert_eq!((plain.device, plain.dir.as_path()), ((0, 45), Path::new("/tmp/a b")));
        assert!(plain.is_cffs() && !plain.is_block() && plain.source == Path::new("/a disk.img"));
        assert_eq!((plain.connection(), plain.bdi()), (45, "/sys/class/bdi/0:45".into()));
        assert!(block.is_cffs() && block.is_block() && block.source == Path::new("/dev/loop3"));
        assert_eq!((block.connection(), block.bdi()), (7 << 20 | 3, "/sys/class/bdi/7:3-fuseblk".into()));
        assert_eq!((ext3.read_only, plain.read_only, block.read_only), (false, false, true));
        assert_eq!(top(&all, Path::new("/tmp/a b")), Some(block));
    }

    #[test]
    fn escapes_that_are_none_stay() {
        assert_eq!(unescape(b"a\\b\\13"), Path::new("a\\b\\13"));
        assert_eq!(unescape(b"\\134"), Path::new("\\"));
    }
}
