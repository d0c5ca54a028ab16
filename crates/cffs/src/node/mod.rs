//! Inodes in memory: the lock of each, its dirty pages and deferred extents, what is known of a directory's names, and the
//! cache of them all.

mod data;
mod deferred;
mod dir_state;
mod inode_cache;
mod locked;
#[expect(clippy::module_inception, reason = "the type that the module is about")]
mod node;
mod readers;
mod under_way;

pub(crate) use data::{PAGE_OVERHEAD, Page, TakenPage};
pub use dir_state::DirState;
pub(crate) use dir_state::{Cursor, NameMap, damaged};
pub use inode_cache::InodeCache;
pub use locked::Locked;
pub use node::{Node, NodeState, store};
