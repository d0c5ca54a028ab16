//! What maintenance may move, and what there is to look at.

use crate::format::{Ino, ROOT_INO};
use std::collections::BTreeSet;

/// Bytes that may be moved for each byte written, in parts of ten.
const TENTHS: u64 = 15;
/// The credit is at most so many times what is in use.
const MOST: u64 = 4;
/// Directories that are remembered.
const DIRS_MAX: usize = 4096;

/// The credit of maintenance.
#[derive(Debug, Default)]
pub(super) struct Credit {
    /// Bytes that may be moved.
    pub bytes: u64,
    /// Credit at which it is worth looking again.
    pub wanted: u64,
    /// Directories to look at.
    pub dirs: BTreeSet<Ino>,
    /// Steps that were taken.
    pub runs: u64,
    /// Bytes that they moved.
    pub moved: u64,
}

impl Credit {
    /// With what is left of an earlier mount. Which directories it was earned by is forgotten.
    pub(super) fn left(bytes: u64) -> Credit {
        let dirs = if bytes > 0 { BTreeSet::from([ROOT_INO]) } else { BTreeSet::new() };
        Credit { bytes, dirs, ..Credit::default() }
    }

    /// So many bytes were written, by these directories among others. `used`: bytes in use.
    pub(super) fn earn(&mut self, dirs: Vec<Ino>, written: u64, used: u64) {
        let earned = written.saturating_mul(TENTHS) / 10;
        self.bytes = self.bytes.saturating_add(earned).min(used.saturating_mul(MOST));
        self.dirs.extend(dirs);
        if self.dirs.len() > DIRS_MAX {
            self.dirs = BTreeSet::from([ROOT_INO]);
        }
    }

    /// A step has moved so many bytes. `complete`: the directories are done.
    pub(super) fn charge(&mut self, moved: u64, complete: bool) {
        self.bytes = self.bytes.saturating_sub(moved);
        (self.runs, self.moved, self.wanted) = (self.runs + 1, self.moved + moved, 0);
        if complete {
            self.dirs.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_earned_by_writing_up_to_a_bound_and_spent_by_moving() {
        let mut credit = Credit::left(0);
        assert!(credit.dirs.is_empty());
        credit.earn(vec![7, 9], 1000, 10_000);
        assert_eq!((credit.bytes, credit.dirs.len()), (1500, 2));
        credit.charge(400, false);
        assert_eq!((credit.bytes, credit.moved, credit.runs, credit.dirs.len()), (1100, 400, 1, 2));
        credit.charge(5000, true);
        assert_eq!((credit.bytes, credit.dirs.len()), (0, 0));
        credit.earn(vec![7], u64::MAX, 10_000);
        assert_eq!(credit.bytes, 40_000);
        credit.earn((100..100 + DIRS_MAX as u64).collect(), 0, 5000);
        assert_eq!((credit.bytes, credit.dirs.iter().copied().collect::<Vec<_>>()), (20_000, vec![ROOT_INO]));
        assert_eq!(Credit::left(u64::MAX).dirs.len(), 1);
    }
}
