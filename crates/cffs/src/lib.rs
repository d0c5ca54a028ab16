//! The cffs engine.
#![forbid(unsafe_code)]
pub mod device;
