//! Exit codes: errors that carry one.

use std::fmt;

/// Exit codes of mount(8).
pub mod mount {
    /// Wrong invocation or missing permission.
    pub const USAGE: u8 = 1;
    /// The system could not start what was needed.
    pub const SYSTEM: u8 = 2;
    /// A bug.
    pub const INTERNAL: u8 = 4;
    /// Interrupted by the user.
    pub const INTERRUPTED: u8 = 8;
    /// The mount failed.
    pub const FAILED: u8 = 32;
}

/// Exit codes of fsck(8).
pub mod fsck {
    /// Something was put right.
    pub const CORRECTED: u8 = 1;
    /// Errors are left.
    pub const ERRORS_LEFT: u8 = 4;
    /// The check could not be done.
    pub const OPERATIONAL: u8 = 8;
    /// Wrong invocation.
    pub const USAGE: u8 = 16;
    /// Interrupted by the user.
    pub const CANCELLED: u8 = 32;
}

/// An error that says with which exit code the program ends.
#[derive(Debug)]
struct Coded {
    code: u8,
    error: anyhow::Error,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)
    }
}

impl std::error::Error for Coded {}

/// An error that ends the program with this exit code.
pub fn with_code(code: u8, error: impl Into<anyhow::Error>) -> anyhow::Error {
    let error = error.into();
    if code_of(&error).is_some() { error } else { Coded { code, error }.into() }
}

/// The exit code that an error carries.
pub fn code_of(error: &anyhow::Error) -> Option<u8> {
    error.chain().find_map(|e| e.downcast_ref::<Coded>()).map(|c| c.code)
}

/// Whether an error only says that nobody reads our output any more, as after `cffs ls … | head`.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|e| e.downcast_ref::<std::io::Error>()).any(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Gives errors of a result an exit code.
pub trait ExitCodeExt<T> {
    /// Ends the program with `code` if this is an error.
    fn exit_code(self, code: u8) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> ExitCodeExt<T> for Result<T, E> {
    fn exit_code(self, code: u8) -> anyhow::Result<T> {
        self.map_err(|e| with_code(code, e))
    }
}
