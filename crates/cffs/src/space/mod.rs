//! The space manager.
pub mod run;
