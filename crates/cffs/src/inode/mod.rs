//! Inodes on the device: where one stands (embedded in a directory entry, in the external inode table or in the system
//! area), the tables that say so, and how one is read and written. What is kept of an inode in memory is in
//! [`crate::node`].

mod free_slots;
mod image;
pub mod locality;
mod location;
mod stored;
pub mod table;

pub use image::{read_inode, write_inode};
pub use location::{InodeLocation, location_record};
pub use stored::{load_at, store};
