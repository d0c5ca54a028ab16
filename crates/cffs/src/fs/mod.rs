//! POSIX operations: namespace, data, attributes.

pub mod api;
