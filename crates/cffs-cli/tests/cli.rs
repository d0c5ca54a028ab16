//! The program as a user sees it: the real binary, its output, its exit codes.

#[path = "cli/changing.rs"]
mod changing;
#[path = "cli/formatting.rs"]
mod formatting;
#[path = "cli/looking.rs"]
mod looking;
#[path = "cli/mounting.rs"]
mod mounting;
#[path = "cli/quota.rs"]
mod quota;
#[path = "cli/service.rs"]
mod service;
#[path = "cli/tools.rs"]
mod tools;
#[path = "cli/transfer.rs"]
mod transfer;
#[path = "cli/wrong_input.rs"]
mod wrong_input;
