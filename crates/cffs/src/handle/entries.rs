//! The iterator over a directory.

use super::inode::InodeRef;
use crate::error::{Error, Result};
use crate::fs::DirEntry;
use std::collections::VecDeque;

/// Entries that are read under one call of [`Fs::readdir`](crate::Fs::readdir).
const BATCH: usize = 128;

/// The entries of a directory, in the order in which they stand on the device; `.` and `..` are not among them.
///
/// An entry that is created or removed meanwhile may be seen or not; every other one is seen once. An error ends the
/// iteration.
#[derive(Debug)]
#[must_use = "iterators are lazy and read nothing unless they are used"]
pub struct Entries {
    dir: InodeRef,
    with_attr: bool,
    batch: VecDeque<DirEntry>,
    /// Where the next batch begins; `None` after the last one.
    cookie: Option<u64>,
    error: Option<Error>,
}

impl Entries {
    pub(super) fn new(dir: InodeRef, with_attr: bool) -> Entries {
        Entries { dir, with_attr, batch: VecDeque::new(), cookie: Some(0), error: None }
    }

    fn fill(&mut self, cookie: u64) {
        let fs = &self.dir.fs;
        let batch = &mut self.batch;
        let outcome = fs.readdir(self.dir.ino, cookie, self.with_attr, &mut |entry| {
            if batch.len() == BATCH {
                return false;
            }
            if entry.attr.is_some() {
                fs.forget(entry.ino, 1);
            }
            batch.push_back(entry);
            true
        });
        self.error = outcome.err();
        let full = self.error.is_none() && batch.len() == BATCH;
        self.cookie = batch.back().filter(|_| full).map(|e| e.cookie);
    }
}

impl Iterator for Entries {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        if let (true, Some(cookie)) = (self.batch.is_empty(), self.cookie) {
            self.fill(cookie);
        }
        self.batch.pop_front().map(Ok).or_else(|| self.error.take().map(Err))
    }
}
