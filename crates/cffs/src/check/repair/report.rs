//! Settings of a repair, its questions, and its result.

use crate::check::{Class, Report};
use serde::Serialize;

/// Settings of a repair.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RepairOptions {
    /// Actions, and problems of the check afterwards, that are listed in the report; more are counted only.
    pub max_problems: usize,
    /// Bring back all directories whose blocks are found in space that is not known to be free, even if nothing else
    /// confirms that they existed at the end: for a device whose superblocks, tables or directories are destroyed.
    pub scavenge: bool,
    /// In the check afterwards, read the data of all files too ([`CheckOptions::data`](crate::check::CheckOptions::data)).
    pub data: bool,
    /// Threads that read ahead, and that verify in the check afterwards
    /// ([`CheckOptions::jobs`](crate::check::CheckOptions::jobs)). The result does not depend on it.
    pub jobs: usize,
}

setters!(RepairOptions { max_problems: usize, scavenge: bool, data: bool, jobs: usize });

impl Default for RepairOptions {
    fn default() -> Self {
        RepairOptions { max_problems: 1000, scavenge: false, data: false, jobs: 1 }
    }
}

/// A problem, and what a repair would do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Action {
    /// The kind of problem.
    pub class: Class,
    /// The structure with the problem.
    pub place: String,
    /// The problem.
    pub text: String,
    /// The repair of it.
    pub action: String,
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}: {} [{}]", self.place, self.text, self.action, self.class.id())
    }
}

/// Asked before each change; `false` leaves the structure as it is. Refusing a change on which all others depend ends
/// the repair, and then nothing has been written.
pub type Ask<'a> = &'a mut dyn FnMut(&Action) -> bool;

/// The result of a repair.
#[derive(Clone, Debug, Serialize)]
pub struct Repaired {
    /// Repairs that were made, in order; at most as many as the options say.
    pub actions: Vec<Action>,
    /// The number of all repairs.
    pub actions_total: u64,
    /// Inodes that were given a name in lost+found.
    pub named: u64,
    /// Blocks of metadata written.
    pub blocks_written: u64,
    /// Fragments of contents that were copied, for files that shared them.
    pub fragments_copied: u64,
    /// Transactions of the log that were replayed first.
    pub replayed: u64,
    /// Walks through the tree.
    pub rounds: u32,
    /// The check of the result.
    pub after: Report,
}
