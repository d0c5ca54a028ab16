//! What several test programs share.
#![allow(dead_code, reason = "each program uses its part")]

pub mod large;
pub mod observed;
pub mod plain;
pub mod wide;
