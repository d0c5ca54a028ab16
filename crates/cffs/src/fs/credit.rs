//! What maintenance may move, and what there is to look at.

use crate::format::{Ino, ROOT_INO};
use std::collections::BTreeSet;

/// Bytes that may be moved for each byte allocated, in parts of ten.
const TENTHS: u64 = 15;
/// The credit is at most so many times what is in use.
const MOST: u64 = 4;
/// Directories that are remembered. With more, everything is looked at.
const DIRS_MAX: usize = 4096;

/// How a file system is used while it is maintained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Usage {
    /// Nobody has used it for a while.
    Idle,
    /// Programs use it. Half of the credit is kept for when it is idle.
    InUse,
}

/// The credit of maintenance.
#[derive(Debug, Default)]
pub(super) struct Credit {
    /// Bytes that may be moved.
    pub bytes: u64,
    /// Bytes to be earned before it is worth looking again: when the file system is idle, and in use.
    wait: [u64; 2],
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

    /// So many bytes were allocated, by these directories among others. `used`: bytes in use.
    pub(super) fn earn(&mut self, dirs: Vec<Ino>, allocated: u64, used: u64) {
        let earned = allocated.saturating_mul(TENTHS) / 10;
        self.wait = self.wait.map(|wait| wait.saturating_sub(earned));
        self.bytes = self.bytes.saturating_add(earned).min(used.saturating_mul(MOST));
        self.dirs.extend(dirs);
        if self.dirs.len() > DIRS_MAX || self.dirs.contains(&ROOT_INO) {
            self.dirs = BTreeSet::from([ROOT_INO]);
        }
    }

    /// Whether it is worth looking.
    pub(super) fn is_due(&self, usage: Usage) -> bool {
        self.wait[usage as usize] == 0 && !self.dirs.is_empty()
    }

    /// It is not worth looking again before so many bytes were earned. In use less of the credit counts, so that says nothing of
    /// an idle file system.
    pub(super) fn wait_for(&mut self, bytes: u64, usage: Usage) {
        self.wait[Usage::InUse as usize] = bytes;
        if usage == Usage::Idle {
            self.wait[Usage::Idle as usize] = bytes;
        }
    }

    /// A step has moved so many bytes, and copied so many in vain.
    pub(super) fn charge(&mut self, moved: u64, in_vain: u64) {
        self.bytes = self.bytes.saturating_sub(moved.saturating_add(in_vain));
        (self.runs, self.moved) = (self.runs + 1, self.moved + moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_earned_by_writing_up_to_a_bound_and_charged_for_moves() {
        let mut credit = Credit::left(0);
        assert!(!credit.is_due(Usage::Idle));
        credit.earn(vec![7, 9], 1000, 10_000);
        assert_eq!((credit.bytes, credit.dirs.len()), (1500, 2));
        credit.charge(300, 100);
        assert_eq!((credit.bytes, credit.moved, credit.runs), (1100, 300, 1));
        credit.charge(5000, 0);
        assert_eq!(credit.bytes, 0);
        credit.earn(vec![7], u64::MAX, 10_000);
        assert_eq!(credit.bytes, 40_000);
        credit.earn((100..100 + DIRS_MAX as u64).collect(), 0, 5000);
        assert_eq!((credit.bytes, credit.dirs.iter().copied().collect::<Vec<_>>()), (20_000, vec![ROOT_INO]));
        assert_eq!(Credit::left(u64::MAX).dirs.len(), 1);
    }

    #[test]
    fn it_is_looked_at_again_after_more_was_written_also_at_the_bound() {
        let mut credit = Credit::left(40_000);
        credit.wait_for(1500, Usage::Idle);
        credit.earn(Vec::new(), 900, 10_000);
        assert!(!credit.is_due(Usage::Idle) && !credit.is_due(Usage::InUse));
        credit.earn(Vec::new(), 100, 10_000);
        assert!(credit.is_due(Usage::Idle) && credit.is_due(Usage::InUse) && credit.bytes == 40_000);
        credit.wait_for(1500, Usage::InUse);
        assert!(credit.is_due(Usage::Idle) && !credit.is_due(Usage::InUse), "more counts when nobody uses it");
    }
}
