//! Limits and errors.
