//! Files and directories through the public interface of the library.

#[path = "../common/mod.rs"]
mod common;

mod colocation;
mod data_sums;
mod deferred_extents;
mod engine;
mod handles;
mod immutable;
mod large_files;
mod large_writes;
mod learned_parts;
mod library;
mod names;
mod orphans;
mod read_ahead;
mod regroup;
mod regroup_free_space;
mod regroup_full;
mod regroup_large;
mod regroup_reads;
mod scale;
mod space_of_files;
mod tmpfile;
mod xattr;
