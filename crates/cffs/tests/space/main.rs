//! Space: who has it, who is refused, how it grows; quotas and settings.

#[path = "../common/mod.rs"]
mod common;

mod accounts;
mod full;
mod grow;
mod long_runs;
mod making_room;
mod preallocated;
mod quota;
mod quota_errors;
mod tune;
