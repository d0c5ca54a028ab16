//! cffs-fuse
