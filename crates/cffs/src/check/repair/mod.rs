//! Repair of a damaged file system. Derived structures are never trusted: they are rebuilt from the primary ones.
//!
//! The repair decides everything before it writes anything. It collects its changes in memory (`volume`), the check verifies
//! the result through them, and `commit` writes them through the log. So a crash leaves the file system either as it was or
//! repaired, or another repair continues from there.
//!
//! 1. `start` chooses a superblock, the primary or a copy, by how many structures agree with it. `recover` replays the log,
//!    or empties it if it cannot be replayed.
//! 2. The survey: walks without changes. Blocks that name their owner but are not mapped (`unmapped`) are reattached to
//!    owners with damaged maps. This comes first, because what seems to be missing may only be unmapped.
//! 3. The walks with changes correct what each structure says about itself: entries, numbers, fields, maps, link counts
//!    (`system`, `external`, `directories`, `inodes`). After each walk follow shared space (`conflicts`), maps (`maps`),
//!    indexes (`index`) and names for disconnected inodes (`lost_found`). Walks are repeated until one changes nothing.
//! 4. The derived structures are rebuilt from the last walk: locator table (`locator`), bitmaps, group headers, counters and
//!    superblock copies (`space`).
//!
//! Memory: about 150 bytes for each inode, 32 for each gap in the used space, 32 MiB of cache, the changed blocks, and the
//! extents of one file.

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
pub use start::has_remains;
pub(crate) use start::{Choice, copies_of, read_super, usable_superblock};
