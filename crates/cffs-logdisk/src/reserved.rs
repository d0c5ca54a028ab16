//! What of the free space is reserved for those who write to a branch.
//!
//! A file system accepts data long before it writes it, because it knows how much space there is. Where two of them are on one disk, a file
//! system and a clone of it, each has to know what the other has accepted; and so has who only writes, such as one who receives a snapshot.

use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Reserved bytes of each branch.
#[derive(Default)]
pub(crate) struct Reserved(Mutex<BTreeMap<u32, u64>>);

fn of_others(all: &BTreeMap<u32, u64>, branch: u32) -> u64 {
    all.iter().filter(|(of, _)| **of != branch).map(|(_, bytes)| bytes).sum()
}

impl Reserved {
    /// Bytes that are not for who writes to this branch.
    pub(crate) fn of_others(&self, branch: u32) -> u64 {
        of_others(&self.0.lock(), branch)
    }

    /// Reserves so many bytes for a branch, instead of what was reserved before. If less is free, nothing changes; or, with `or_less`, what is free is
    /// reserved. Whether all of it is.
    pub(crate) fn set(&self, branch: u32, bytes: u64, or_less: bool, free: impl FnOnce() -> u64) -> bool {
        let mut all = self.0.lock();
        // Also what was reserved may have gone: metadata asks nobody.
        let most = free().saturating_sub(of_others(&all, branch));
        let fits = bytes <= most;
        if fits || or_less {
            all.insert(branch, bytes.min(most));
        }
        fits
    }

    /// Nobody writes to this branch any more.
    pub(crate) fn end(&self, branch: u32) {
        self.0.lock().remove(&branch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_what_others_have_reserved() {
        let reserved = Reserved::default();
        assert!(reserved.set(0, 60, false, || 100));
        assert!(!reserved.set(1, 41, false, || 100) && reserved.set(1, 40, false, || 100));
        assert_eq!([0, 1, 2].map(|branch| reserved.of_others(branch)), [40, 60, 100]);
        // Written: it is not free any more, and the reservation is smaller.
        assert!(reserved.set(0, 30, false, || 70));
        assert!(!reserved.set(0, 31, false, || 70), "the other 40 are not its");
        assert_eq!(reserved.of_others(1), 30, "and it has what it had");
        reserved.end(1);
        assert!(reserved.set(0, 70, false, || 70));
    }

    #[test]
    fn what_is_not_free_is_not_reserved_and_what_was_reserved_stays() {
        let reserved = Reserved::default();
        assert!(reserved.set(0, 60, false, || 100));
        assert!(!reserved.set(1, 50, true, || 100));
        assert_eq!(reserved.of_others(0), 40, "what is left");
        // Space has gone for which nobody has asked: it was that of who has used it, not the others'.
        assert!(!reserved.set(0, 61, true, || 90));
        assert_eq!((reserved.of_others(1), reserved.of_others(0)), (50, 40));
        assert!(reserved.set(0, 10, true, || 90));
        assert_eq!(reserved.of_others(1), 10);
    }
}
