//! How a regroup is observed, slowed down and stopped.

use crate::error::Result;

/// What a regroup may do.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes to move.
    pub budget: u64,
    /// Nothing is moved: only what would be gained is found out.
    pub dry_run: bool,
    /// Everything is moved, whatever it saves.
    pub always: bool,
}

/// What has been done so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Directories that were looked at.
    pub directories: u64,
    /// Files that were looked at.
    pub files: u64,
    /// Files of which something was moved.
    pub files_moved: u64,
    /// Directory blocks that were moved.
    pub blocks_moved: u64,
    /// Bytes that were moved, or would be.
    pub bytes_moved: u64,
    /// Bytes that were to be moved, and changed meanwhile, could not be read, or had no block for what maps them.
    pub bytes_kept: u64,
    /// Bytes that should be elsewhere, where no place is free that is so much better.
    pub bytes_waiting: u64,
    /// Requests to read the data of small files, and to read the names: before, in quarters.
    pub before: [u64; 2],
    /// The same afterwards.
    pub after: [u64; 2],
    /// Pieces that large files lie in, before and after, if they are brought together.
    pub pieces: Option<[u64; 2]>,
    /// The longest free runs, before and after, if free space is brought together.
    pub free_runs: Option<[FreeRuns; 2]>,
}

/// How free space lies.
#[derive(Clone, Copy, Debug, Default)]
pub struct FreeRuns {
    /// Fragments of the longest free run.
    pub longest: u64,
    /// Free runs that a file of a tenth of the device needs. 0: there is no space for one.
    pub for_tenth: u64,
}

/// Whoever runs a regroup.
pub trait Control {
    /// Called often: an error ends the regroup, which leaves everything in order.
    fn check(&self) -> Result<()>;
    /// So many bytes were read or written: waits as long as a limit of the rate demands.
    fn pace(&self, bytes: u64);
    /// Somebody may need the device: called before each request, lets others go first for a moment.
    fn give_way(&self);
    /// Whether others go first. Then they do not wait for what moves either.
    fn gives_way(&self) -> bool;
    /// Most bytes of files to move at once: whoever uses the device waits for them. [`u64::MAX`] where no rate is asked for.
    fn most_at_once(&self) -> u64;
    /// Tells what has been done.
    fn report(&self, progress: &Progress);
}
