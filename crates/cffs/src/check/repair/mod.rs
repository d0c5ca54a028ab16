//! Repair: brings a damaged file system into order, trusting nothing that can be found out otherwise.
//!
//! Nothing is written while the repair thinks. All changes are kept beside the device (`volume`), the check looks at the
//! result through them, and then they reach the device through the log (`commit`): a crash leaves the file system as it
//! was or as it is to be, and another repair goes on from there.
//!
//! 1. `start`: a superblock to go by, chosen among the primary and its copies by what agrees with it; the log is replayed,
//!    or emptied if that is not possible.
//! 2. A walk that only looks. What says whose it is but is mapped by nobody (`lost`) is given back to those whose maps are
//!    damaged, before anything is decided on what seems to be missing.
//! 3. Walks (`walk`, `tables`) that put right what each structure says about itself: entries, numbers, fields, maps, link
//!    counts. After each: shared space (`conflicts`), maps (`maps`), indexes (`index`), what has lost its name
//!    (`lost`), and again, until a walk changes nothing.
//! 4. What follows from that walk is written wholesale: locator table, bitmaps and headers, counters, superblock copies
//!    (`space`).
//!
//! Memory: about 150 bytes for each inode, 32 for each gap in the used space, 32 MiB of cache, the blocks that change, and
//! the extents of the file that is looked at.

mod alloc;
mod commit;
mod conflicts;
mod directories;
mod entries;
mod extent_map;
mod external;
mod findings;
mod index;
mod inodes;
mod intervals;
mod locator;
mod lost_found;
mod maps;
mod passes;
mod recover;
mod repairer;
mod report;
mod session;
mod space;
mod space_map;
mod start;
mod sums;
mod system;
mod tables;
mod unmapped;
mod volume;
mod xattrs;

pub use passes::{has_superblock, repair};
pub use recover::recover_log;
pub use report::{Action, Ask, RepairOptions, Repaired};
pub(crate) use start::copies_of;
