//! What a check found.

use crate::format::superblock::State;
use serde::Serialize;
use std::collections::BTreeMap;

macro_rules! classes {
    (@is_derived) => { false };
    (@is_derived derived) => { true };
    ($($(#[$doc:meta])* $name:ident = $id:literal $($derived:ident)?,)*) => {
        /// Kind of a problem. The text form is stable: programs may rely on it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Class {
            $($(#[$doc])* $name,)*
        }

        impl Class {
            /// All classes.
            pub const ALL: &[Class] = &[$(Class::$name,)*];

            /// The stable name.
            pub fn id(self) -> &'static str {
                match self {
                    $(Class::$name => $id,)*
                }
            }

            /// Whether the structure is derived from others and can be rebuilt from them.
            pub fn is_derived(self) -> bool {
                match self {
                    $(Class::$name => classes!(@is_derived $($derived)?),)*
                }
            }
        }
    };
}

classes! {
    /// The superblock is damaged or does not fit the file system.
    Superblock = "superblock",
    /// A copy of the superblock is damaged or differs from the primary.
    SuperblockCopy = "superblock-copy" derived,
    /// The log's header is damaged.
    LogHeader = "log-header",
    /// The counters are damaged.
    CountersBlock = "counters-block" derived,
    /// The number of free fragments is wrong.
    CounterFree = "counter-free" derived,
    /// It is wrong how much space was never written.
    CounterUnwritten = "counter-unwritten" derived,
    /// The number of inodes is wrong.
    CounterInodes = "counter-inodes" derived,
    /// The number of initialized allocation groups is impossible.
    CounterGroups = "counter-groups" derived,
    /// The size that the counters are for is impossible.
    CounterBlocks = "counter-blocks",
    /// The header of an allocation group is damaged.
    GroupHeader = "group-header" derived,
    /// The number of free fragments in the header of an allocation group is wrong.
    GroupFree = "group-free" derived,
    /// A bitmap block is damaged.
    Bitmap = "bitmap" derived,
    /// Fragments are marked as used, but nothing uses them.
    FragmentsLeaked = "fragments-leaked" derived,
    /// Fragments are in use, but not marked as used.
    FragmentsUnmarked = "fragments-unmarked" derived,
    /// Fragments have several owners.
    FragmentsShared = "fragments-shared",
    /// Space is in use in an allocation group that counts as never used.
    GroupVirgin = "group-virgin" derived,
    /// One of the system inodes is damaged or not what it must be.
    SystemInode = "system-inode",
    /// An inode cannot be read.
    InodeDamaged = "inode-damaged",
    /// An inode number is used twice, or is not possible for a file.
    InodeNumber = "inode-number",
    /// A field of an inode has a value that it cannot have.
    InodeField = "inode-field",
    /// The type in a directory entry is not that of the inode.
    InodeType = "inode-type",
    /// A link count is wrong.
    InodeLinks = "inode-links",
    /// A size does not fit what is allocated.
    InodeSize = "inode-size",
    /// The count of allocated fragments is wrong.
    InodeSpace = "inode-space" derived,
    /// A directory names another parent than the one it is in.
    DirParent = "dir-parent",
    /// A block of extended attributes is damaged, or not the one that belongs there.
    XattrBlock = "xattr-block",
    /// The list of an inode's extended attributes is damaged.
    XattrList = "xattr-list",
    /// An access control list is impossible, or contradicts the permission bits.
    XattrAcl = "xattr-acl",
    /// An extent is impossible: outside the file system, out of order, overlapping.
    Extent = "extent",
    /// A node of an extent tree is damaged or in the wrong place.
    ExtentNode = "extent-node",
    /// A directory block is damaged.
    DirBlock = "dir-block",
    /// The size of a directory differs from that of its blocks.
    DirSize = "dir-size",
    /// The number of entries of a directory is wrong.
    DirCount = "dir-count" derived,
    /// A directory cannot be reached from the root.
    DirUnreachable = "dir-unreachable",
    /// The hash stored with a name is not its hash.
    NameHash = "name-hash" derived,
    /// A name stands twice in a directory.
    NameDuplicate = "name-duplicate",
    /// A name leads to an inode that is not there.
    NameDangling = "name-dangling",
    /// A bucket of a directory index is damaged or missing.
    IndexBucket = "index-bucket" derived,
    /// A name is missing in the index of its directory.
    IndexMissing = "index-missing" derived,
    /// An index leads to a name that is not there.
    IndexStale = "index-stale" derived,
    /// A block of the inode locator table is damaged.
    LocatorBlock = "locator-block" derived,
    /// An inode is missing in the locator table.
    LocatorMissing = "locator-missing" derived,
    /// The locator table has an entry for an inode that is not there.
    LocatorStale = "locator-stale" derived,
    /// The locator table has another location than the inode.
    LocatorWrong = "locator-wrong" derived,
    /// A block of the external inode table is damaged.
    ExternalBlock = "external-block",
    /// The number of slots in use of a table block, or of its map, is wrong.
    TableCount = "table-count" derived,
    /// A map of a table is damaged or missing.
    TableMap = "table-map" derived,
    /// The list of orphans is broken or incomplete.
    OrphanList = "orphan-list" derived,
    /// A block of a quota file is damaged.
    QuotaBlock = "quota-block",
    /// A quota record differs from the usage of the inodes.
    QuotaUsage = "quota-usage" derived,
    /// A table of data checksums is damaged.
    SumTable = "sum-table" derived,
    /// Data checksums cannot be right: a mount without a journal has crashed.
    SumsUntrusted = "sums-untrusted" derived,
    /// The data of a file is not what was written, by its checksum, or cannot be read.
    DataSum = "data-sum",
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Problem {
    /// What kind of thing.
    pub class: Class,
    /// The structure it was found in.
    pub place: String,
    /// What is wrong with it.
    pub text: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} [{}]", self.place, self.text, self.class.id())
    }
}

/// What the file system holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counts {
    /// Regular files.
    pub files: u64,
    /// Directories, the root included.
    pub dirs: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, pipes and sockets.
    pub special: u64,
    /// Names that are external links.
    pub links: u64,
    /// Unlinked inodes that are still there.
    pub orphans: u64,
    /// Extents of all files and directories.
    pub extents: u64,
    /// Nodes of extent trees.
    pub extent_nodes: u64,
    /// Fragments in use, by what uses them.
    pub frags_used: u64,
    /// Fragments of the file system.
    pub frags_total: u64,
    /// If data was read: fragments that match their checksums.
    pub frags_verified: u64,
    /// Fragments that do not, or that cannot be read.
    pub frags_failed: u64,
    /// Fragments of which no checksum is known.
    pub frags_unsummed: u64,
}

/// How well files are placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Layout {
    /// Small files (at most a group of data) with a small neighbour in their directory.
    pub small_files: u64,
    /// Those of them that lie in one group together with the neighbour before or after them.
    pub co_located: u64,
    /// Blocks of regular files that have a predecessor in their file.
    pub following_blocks: u64,
    /// Those of them that follow their predecessor on the device.
    pub contiguous_blocks: u64,
    /// Groups by how full they are: empty, up to 25%, 50%, 75%, below 100%, full. Only of allocation groups in use.
    pub group_fill: [u64; 6],
    /// Groups in allocation groups that were never used.
    pub virgin_groups: u64,
}

impl Layout {
    /// Share of small files that lie in one group with a directory neighbour; `None` without such files.
    pub fn co_location(&self) -> Option<f64> {
        (self.small_files > 0).then(|| self.co_located as f64 / self.small_files as f64)
    }
    /// Layout score (FFS clustering, 1995): share of blocks that follow their predecessor; `None` without such blocks.
    pub fn score(&self) -> Option<f64> {
        (self.following_blocks > 0).then(|| self.contiguous_blocks as f64 / self.following_blocks as f64)
    }
}

/// The name of a state in reports.
pub(super) fn state_name(state: State) -> &'static str {
    match state {
        State::Clean => "clean",
        State::Journaled => "journaled",
        State::Unjournaled => "unjournaled",
        State::Error => "error",
    }
}

/// Phase of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Phase {
    /// Superblock, log, system area.
    System,
    /// External inode table.
    External,
    /// Directories and files.
    Tree,
    /// Inode locator table.
    Locator,
    /// Search for unmapped blocks in space that is marked as used (repair only).
    Lost,
    /// Free space.
    Space,
    /// Data of files, where it is read.
    Data,
}

impl Phase {
    /// The name of the phase.
    pub fn name(self) -> &'static str {
        match self {
            Phase::System => "system area",
            Phase::External => "external inodes",
            Phase::Tree => "directories and files",
            Phase::Locator => "inode locator",
            Phase::Lost => "lost blocks",
            Phase::Space => "free space",
            Phase::Data => "data",
        }
    }
}

/// How long a phase took.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct PhaseTime {
    /// The phase.
    pub phase: Phase,
    /// Its duration in seconds.
    pub seconds: f64,
}

/// Result of a check.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// What is wrong, at most as many as the options say.
    pub problems: Vec<Problem>,
    /// How many problems there are in all.
    pub problems_total: u64,
    /// How many there are of each class.
    pub by_class: BTreeMap<Class, u64>,
    /// State in the superblock: `clean`, `journaled`, `unjournaled` or `error`.
    pub state: &'static str,
    /// Transactions of the log that were replayed in memory before the check.
    pub replayed: u64,
    /// What the file system holds.
    pub counts: Counts,
    /// How well files are placed.
    pub layout: Layout,
    /// Where the time went.
    pub phases: Vec<PhaseTime>,
}

impl Report {
    /// Nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems_total == 0
    }
    /// All structures are in order. Contents of files may be damaged, which no repair can correct.
    pub fn is_sound(&self) -> bool {
        self.by_class.keys().all(|c| *c == Class::DataSum)
    }
    /// Everything that is wrong is derived from other structures, so that a repair loses nothing and moves nothing:
    /// what `fsck -p` does without asking.
    pub fn is_safe_to_repair(&self) -> bool {
        self.by_class.keys().all(|c| c.is_derived())
    }
    /// Problems of one class among those listed.
    pub fn of_class(&self, class: Class) -> impl Iterator<Item = &Problem> {
        self.problems.iter().filter(move |p| p.class == class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_the_names_in_kebab_case_as_json_has_them() {
        for class in Class::ALL {
            let mut kebab = String::new();
            for c in format!("{class:?}").chars() {
                if c.is_uppercase() && !kebab.is_empty() {
                    kebab.push('-');
                }
                kebab.push(c.to_ascii_lowercase());
            }
            assert_eq!(class.id(), kebab);
        }
    }
}
