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
use crate::node::NodeState;
use crate::trace::{Detail, Kind};
use std::ops::Range;

/// Most groups that come at once with parts of a large file, and the part of the cache that they may take.
const BRING_GROUPS: u64 = 4;
const BRING_DIVISOR: usize = 16;
/// Shortest read of a part of which nothing is known that comes with its group.
const AROUND_MIN: usize = 64 << 10;

impl Fs {
    /// A process reads a file, from this byte on: where the key `learned` holds, the order in which processes read files, and which
    /// parts of large ones, is noted, and becomes their place with the next regroup; and what is mostly read of a large file is read with its beginning. For mounts; reads by this program itself need not be told.
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
        let bytes = offset..offset.saturating_add(len as u64);
        let (parent, size, is_large) = {
            let st = node.state.read();
            let has_data =
                st.inode.file_type() == FileType::Regular && !matches!(st.inode.format, InodeFormat::Inline(_));
            let is_large = self.is_large(&st);
            if !has_data || offset > 0 && !is_large {
                return;
            }
            (st.inode.parent, st.inode.size, is_large)
        };
        // Its beginning was noted only where the key is.
        if offset == 0 {
            let learns = self.placement.learns(parent).or_else(|| {
                self.track_path(parent);
                self.placement.learns(parent)
            });
            if learns != Some(true) {
                if is_large {
                    self.learning.forget_large(file);
                }
                return;
            }
            if self.learning.note(process, file) {
                self.placement.note_decay(parent);
            }
        }
        if !is_large {
            return;
        }
        if offset == 0 {
            let parts = self.learning.begin_large(process, file);
            self.bring(&node.state.read(), &parts);
        }
        let noted = self.learning.note_part(process, file, bytes.clone(), size);
        if noted.counts {
            self.placement.note_decay(parent);
        }
        // A kernel that was told to read ahead little reads so much around a page that a program touches.
        if noted.begun && len >= AROUND_MIN {
            self.bring(&node.state.read(), &[bytes]);
        }
    }

    /// Whether a file has parts of which something may be known.
    fn is_large(&self, st: &NodeState) -> bool {
        st.inode.size > self.placement.small_max()
    }

    /// Reads parts of a large file that a program is about to read. An error is met again by who reads them.
    fn bring(&self, st: &NodeState, parts: &[Range<u64>]) {
        let groups = (self.opts.cache_bytes / BRING_DIVISOR) >> self.geo.group_shift;
        let _ = file::bring(&self.file_cx(), st, parts, (groups as u64).clamp(1, BRING_GROUPS));
    }

    /// The parts that are mostly read in these bytes of a file come with what they lie among, before the rest is read. Whether one begins them.
    pub(super) fn bring_parts(&self, st: &NodeState, bytes: Range<u64>) -> bool {
        if !self.is_large(st) {
            return false;
        }
        let parts = self.learning.parts_within(st.inode.ino, bytes.clone());
        if !parts.is_empty() {
            self.bring(st, &parts);
        }
        parts.first().is_some_and(|part| part.start == bytes.start)
    }

    /// Has these bytes of a file fetched ahead, without the parts that are mostly read: where they lie is no place to pass by.
    pub(super) fn read_ahead(&self, st: &NodeState, bytes: Range<u64>) {
        if bytes.is_empty() || !self.is_large(st) {
            return;
        }
        let mut from = bytes.start;
        for part in self.learning.parts_within(st.inode.ino, bytes.clone()) {
            file::read_ahead(&self.file_cx(), st, from..part.start);
            from = part.end;
        }
        file::read_ahead(&self.file_cx(), st, from..bytes.end);
    }

    /// Whether parts of large files are read, where the key `learned` holds. A kernel is to read ahead little then, if what it reads around a page
    /// that a program touches is to be told from what the program reads.
    pub fn reads_parts(&self) -> bool {
        self.learning.knows_large()
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
