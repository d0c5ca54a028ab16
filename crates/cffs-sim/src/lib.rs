//! Proof for the engine: a reference model that random operation sequences are compared with, and a simulated device
//! on which every crash can be tried; and damaged images ([`fuzz`]).

pub mod aged;
pub mod bounded;
pub mod crash;
pub mod disk;
pub mod disk_image;
pub mod engine_driver;
pub mod faults;
pub mod formatting;
pub mod fuzz;
pub mod generate;
pub mod linear;
pub mod log_layout;
pub mod model;
pub mod model_driver;
pub mod ops;
pub mod pattern;
mod requests;
pub mod run;
pub mod scenarios;
pub mod setup;
pub mod shrink;
pub mod streams;
pub mod unjournaled;
pub mod volume;
pub mod walk;
