//! Handles: files and directories by path, as in [`std::fs`].
//!
//! A handle holds a reference to its inode and releases it when it is dropped, so a file that was removed while a [`File`]
//! is open lives until the handle is dropped. Every handle keeps the file system in memory, too.
//!
//! A path begins at the directory it is given to; a leading `/` stands for the root of the file system, and `..` never leads
//! out of it. Symbolic links are followed within the file system, at most 40 of them; operations on names (remove, rename,
//! link) work on the link itself. Permissions are not checked: a program that has the [`Fs`](crate::Fs) may do everything.

mod dir;
mod entries;
mod file;
mod inode;
mod walk;

pub use dir::Dir;
pub use entries::Entries;
pub use file::{File, OpenOptions};
