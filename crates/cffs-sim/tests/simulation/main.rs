//! Short forms of the campaigns, alike in every run: the engine beside the reference model, crashes, faults, repairs.

mod bounded;
mod crash;
mod faults;
mod log_apart;
mod log_layout;
mod log_preallocated;
mod mirror_damage;
mod model;
mod modes;
mod repair;
mod requests;
mod volume;
