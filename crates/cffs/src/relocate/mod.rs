//! Relocation: files and directories that have come apart are brought back together.
//!
//! Space that files leave is filled by others, so what is read together is spread over the device after a while, and no
//! choice of places for new files can undo that (the thesis calls it group maintenance, section 2.3.4). Here three parts do:
//!
//! - [`walk`] goes through the tree in the order of the name space; [`keyed`] has the files that go with others than those of their
//!   directory, which come after it;
//! - [`stretch`] collects what is read one after the other, and [`cost`] says how many requests that takes where it is, and
//!   how many where it would go; [`survey`] sums that up, and [`bounds`] says which places are worth a move. Only what saves requests
//!   is moved, so a second run moves nothing;
//! - [`strays`] are files that lie apart from their stretch, and [`detours`] stretches that lie apart from the way: both go back among the
//!   others; [`apart`] is for what a device with its own order has apart;
//! - [`files`] and [`names`] move data, which [`readahead`] has read with few requests, and directory blocks. They know nothing of why.
//!
//! Two other planners use the same moves: [`large`] for files that are longer than a group, and [`free_space`], which chooses parts
//! of the device that [`evacuate`] empties, [`meta`]data included.
//!
//! A move is invisible: what changes meanwhile, is damaged, or cannot be moved safely stays where it is.

mod apart;
mod area;
mod bounds;
mod control;
mod cost;
mod detours;
mod evacuate;
mod files;
mod free_space;
mod keyed;
mod large;
mod meta;
mod names;
mod pace;
mod plan;
mod readahead;
mod strays;
mod stretch;
mod survey;
mod walk;

pub use apart::{MUCH as MUCH_APART, run as bring_parts_together};
pub use control::{Control, FreeRuns, Limits, Progress};
pub use cost::PARTS as COST_PARTS;
pub use evacuate::Gaps;
pub use free_space::run as bring_free_space_together;
pub use large::run as bring_large_files_together;
pub use plan::{Outlook, run, run_by_need};
pub use walk::DEPTH_MAX;

use cost::Reader;

use crate::dir::DirCtx;
use crate::file::FileCtx;
use crate::learning::Chains;
use crate::node::InodeCache;

/// What relocation works with.
#[derive(Clone, Copy)]
pub struct MoveCtx<'a> {
    /// For data.
    pub file: FileCtx<'a>,
    /// For directories.
    pub dir: DirCtx<'a>,
    /// The inodes.
    pub inodes: &'a InodeCache,
    /// Files that programs were seen to read one after the other.
    pub learned: &'a Chains,
    /// The time, in nanoseconds.
    pub now: i64,
    /// Bytes that a reader has in memory of what it has read.
    pub memory: u64,
}

impl MoveCtx<'_> {
    /// A reader who has read nothing.
    fn reader(&self) -> Reader {
        Reader::new((self.memory / self.file.cache.geometry().group_size() as u64) as usize)
    }
}
