//! cffs-sim
