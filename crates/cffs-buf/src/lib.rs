//! cffs-buf
