//! Learning from what programs read, for directories whose key is `learned`.
//!
//! What was learned is kept as the attribute `trusted.cffs.learned` of the root directory, which is in no listing: copies of the
//! file system made with rsync or tar have other inode numbers. It is a hint, and lost where it does not fit.

use super::Fs;
use crate::error::{Error, Result};
use crate::file;
use crate::format::xattr::{LEARNED, Namespace};
use crate::format::{FileType, Ino, InodeFormat, ROOT_INO};
use crate::learning::Chains;
use crate::trace::{Detail, Kind};

impl Fs {
    /// A process reads a file, from this byte on: where the key `learned` holds, the order in which processes read small files is
    /// noted, and becomes their place with the next regroup; and of a large file what is mostly read of it comes with the first
    /// request. For mounts; reads by this program itself need not be told.
    pub fn note_read(&self, process: u32, file: Ino, offset: u64, len: usize) {
        let detail = |d: &mut Detail| [u64::from(process), offset, len as u64].iter().for_each(|n| d.add_number(*n));
        let work = || {
            self.learn_read(process, file, offset, len);
            Ok(())
        };
        // Nothing of it can fail.
        let _ = self.op(Kind::Learn, [file, 0, 0], detail, work);
    }

    fn learn_read(&self, process: u32, file: Ino, offset: u64, len: usize) {
        let Ok(node) = self.node(file) else { return };
        let (parent, small, cacheable) = {
            let st = node.state.read();
            let has_data =
                st.inode.file_type() == FileType::Regular && !matches!(st.inode.format, InodeFormat::Inline(_));
            let small = st.inode.size <= self.placement.small_max();
            if !has_data || small && offset > 0 {
                return;
            }
            if offset > 0 {
                // Its beginning was noted only where the key is.
                self.learning.note_more(file, offset.saturating_add(len as u64));
                return;
            }
            (st.inode.parent, small, !self.cache.is_large(st.inode.size))
        };
        let learns = self.placement.learns(parent).or_else(|| {
            self.track_path(parent);
            self.placement.learns(parent)
        });
        if learns != Some(true) {
            return;
        }
        if small {
            if self.learning.note(process, file) {
                self.placement.note_decay(parent);
            }
        } else if let Some(bytes) = self.learning.note_head(file).filter(|bytes| cacheable && *bytes > len as u64) {
            // An error is met again by who reads that part.
            let _ = file::read(&self.file_cx(), &node.state.read(), 0, &mut vec![0; bytes as usize]);
        }
    }

    /// The chains that were learned.
    pub(super) fn learned_chains(&self) -> Chains {
        self.learning.chains()
    }

    /// Number of files that have a learned place, and of those that something is known of.
    pub fn learned_files(&self) -> (u64, u64) {
        self.learning.counts()
    }

    /// Takes up what was learned before.
    pub(super) fn load_learned(&self) {
        let node = self.node(ROOT_INO);
        let stored = node.and_then(|root| {
            let st = root.state.read();
            crate::xattr::get(&self.cache, &st.inode, Namespace::Trusted, LEARNED)
        });
        if let Ok(Some(stored)) = stored {
            self.learning.load(&stored);
        }
    }

    /// Stores what was learned since the last call.
    pub(super) fn store_learned(&self) -> Result<()> {
        let Some(stored) = self.learning.take_changed() else { return Ok(()) };
        self.writable()?;
        match self.set_hidden_xattr(&self.node(ROOT_INO)?, Namespace::Trusted, LEARNED, &stored) {
            // There is no room for it.
            Err(Error::NoSpace | Error::Quota) => Ok(()),
            outcome => outcome,
        }
    }
}
