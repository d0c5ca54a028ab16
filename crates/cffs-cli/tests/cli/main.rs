//! The program as a user sees it: the real binary, its output, its exit codes.

mod changing;
mod formatting;
mod looking;
mod mounting;
mod quota;
mod service;
mod tools;
mod transfer;
mod wrong_input;
