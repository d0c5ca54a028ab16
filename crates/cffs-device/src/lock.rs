//! Keeping two users of one image apart.

use rustix::fs::{FlockOperation, flock, major, minor};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a lock may be held by somebody else before the image counts as in use. udev locks a block device for the
/// moment in which it looks at it, which it does whenever a writer has closed it.
const PATIENCE: Duration = Duration::from_millis(500);

/// The error for an image that somebody else uses.
pub(super) fn in_use(path: &Path, by: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, format!("{}: the image is in use{by}", path.display()))
}

/// Takes the lock of an open image: exclusive, or shared with other readers. It belongs to the open file, so it also
/// stays over a `fork`, and goes when the last descriptor of it is closed.
pub(super) fn lock(file: &File, path: &Path, exclusive: bool) -> io::Result<()> {
    let operation =
        if exclusive { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    let start = Instant::now();
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(20)),
            Err(Errno::WOULDBLOCK) => return Err(in_use(path, &holder(file))),
            Err(Errno::INTR) => {}
            // Some network file systems have no locks. Refusing to work there would be worse than the risk.
            Err(e @ (Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS)) => {
                tracing::warn!(image = %path.display(), error = %e, "the image cannot be locked against a second use");
                return Ok(());
            }
            Err(e) => {
                let e = io::Error::from(e);
                return Err(io::Error::new(e.kind(), format!("{}: cannot lock the image: {e}", path.display())));
            }
        }
    }
}

/// " by process 123 (cffs)" if the kernel's list of locks tells it, else "".
fn holder(file: &File) -> String {
    let (Ok(meta), Ok(locks)) = (file.metadata(), std::fs::read_to_string("/proc/locks")) else {
        return String::new();
    };
    let inode = format!("{:02x}:{:02x}:{}", major(meta.dev()), minor(meta.dev()), meta.ino());
    let pid = locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&inode.as_str())).then(|| fields[4].to_owned())
    });
    // Whoever took the lock may have left it to a child and be gone.
    pid.and_then(|pid| Some((std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?, pid)))
        .map_or(String::new(), |(name, pid)| format!(" by process {pid} ({})", name.trim_end()))
}
