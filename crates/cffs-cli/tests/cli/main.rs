//! The program as a user sees it: the real binary, its output, its exit codes.

mod block;
mod changing;
mod colocate;
mod convert;
mod formatting;
mod guide;
mod layout;
mod log_fsck;
mod log_layout;
mod looking;
mod mounting;
mod perfetto;
mod places;
mod quota;
mod regroup;
mod scrape;
mod sending;
mod service;
mod signatures;
mod snapshots;
mod tools;
mod top;
mod trace;
mod transfer;
mod volume;
mod wrong_input;
