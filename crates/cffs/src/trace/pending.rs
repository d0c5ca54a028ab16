//! What made data dirty that is not written back yet.

use super::causes::{Cause, Causes};
use std::collections::HashMap;

/// Most inodes whose causes are kept apart; those of further ones are kept together.
const INODES_MAX: usize = 4096;

/// Causes of dirty data, by inode.
#[derive(Default)]
pub(super) struct Pending {
    inodes: HashMap<u64, Box<Causes>>,
    /// Of inodes that found no room.
    others: Causes,
}

impl Pending {
    pub(super) fn add(&mut self, inode: u64, cause: Cause) {
        let full = self.inodes.len() >= INODES_MAX;
        match self.inodes.get_mut(&inode) {
            Some(causes) => causes.add(cause),
            None if full => self.others.add(cause),
            None => self.inodes.entry(inode).or_default().add(cause),
        }
    }

    /// Takes the causes of these inodes; those that were not kept apart go with the first writeback of several inodes.
    pub(super) fn take(&mut self, inodes: impl Iterator<Item = u64>) -> Causes {
        let mut all = Causes::default();
        let mut count = 0;
        for inode in inodes {
            count += 1;
            if let Some(causes) = self.inodes.remove(&inode) {
                all.merge(&causes);
            }
        }
        if count > 1 && !self.others.is_empty() {
            all.merge(&std::mem::take(&mut self.others));
        }
        all
    }
}
