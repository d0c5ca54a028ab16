//! How far the kernel reads ahead in a file.
//!
//! It reads as far around a page that a program touches. Where the engine learns which parts of files are touched, that has to be little: all that the
//! kernel asks for looks like what the program needs.

use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where parts are learned, in bytes. Linux has as much where nobody sets it.
const OF_PARTS: u32 = 128 << 10;

/// The setting of one mount.
#[derive(Debug, Default)]
pub(crate) struct Readahead {
    /// Parts are learned.
    parts: AtomicBool,
    /// The file in sysfs, and how much it is otherwise.
    file: Mutex<Option<(PathBuf, u32)>>,
}

impl Readahead {
    /// The mount begins, with so many bytes, or fewer where parts were learned before.
    pub(crate) fn begin(&self, file: Option<PathBuf>, bytes: u32, parts: bool) {
        let mut own = self.file.lock();
        *own = file.map(|file| (file, bytes));
        self.parts.fetch_or(parts, Ordering::Relaxed);
        self.set(own.as_ref());
    }

    /// Parts are learned from now on.
    pub(crate) fn note_parts(&self) {
        if !self.parts.load(Ordering::Relaxed) {
            let own = self.file.lock();
            self.parts.store(true, Ordering::Relaxed);
            self.set(own.as_ref());
        }
    }

    /// Only root may, and an error is ignored because this is only for speed.
    fn set(&self, own: Option<&(PathBuf, u32)>) {
        let Some((file, bytes)) = own else { return };
        let bytes = if self.parts.load(Ordering::Relaxed) { OF_PARTS.min(*bytes) } else { *bytes };
        if let Err(error) = std::fs::write(file, (bytes >> 10).to_string()) {
            tracing::debug!(file = %file.display(), %error, "readahead stays at the kernel's default");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_parts_are_learned_it_is_short() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("read_ahead_kb");
        let set = || std::fs::read_to_string(&file).unwrap();
        let r = Readahead::default();
        r.begin(Some(file.clone()), 1 << 20, false);
        assert_eq!(set(), "1024");
        r.note_parts();
        assert_eq!(set(), "128");
        std::fs::write(&file, "4").unwrap();
        r.note_parts();
        assert_eq!(set(), "4", "once is enough");
        Readahead::default().begin(Some(file.clone()), 1 << 20, true);
        assert_eq!(set(), "128");
        let short = Readahead::default();
        short.begin(Some(file.clone()), 64 << 10, false);
        short.note_parts();
        assert_eq!(set(), "64");
        // Before the mount has begun.
        let early = Readahead::default();
        early.note_parts();
        early.begin(Some(file.clone()), 1 << 20, false);
        assert_eq!(set(), "128");
    }
}
