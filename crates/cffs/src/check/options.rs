//! Settings of a check.

use super::report::Phase;

/// Settings of a check.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CheckOptions {
    /// Problems listed in the report; more are counted only.
    pub max_problems: usize,
    /// Read the data of all files too, and compare it with its checksums. Takes 32 bytes of memory for each extent.
    pub data: bool,
    /// Threads that read and verify, at most 64; 0: as many as there are processors. The report does not depend on it.
    pub jobs: usize,
}

setters!(CheckOptions { max_problems: usize, data: bool, jobs: usize });

impl Default for CheckOptions {
    /// One thread.
    fn default() -> Self {
        CheckOptions { max_problems: 1000, data: false, jobs: 1 }
    }
}

/// Called now and then with the phase, what is done, and how much there is to do (a guess while the tree is walked).
pub type Progress<'a> = &'a dyn Fn(Phase, u64, u64);
