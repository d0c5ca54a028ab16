//! Proof for the engine: a reference model that random operation sequences are compared with, and a simulated device
//! on which every crash can be tried; and damaged images ([`fuzz`]).

pub mod aged;
pub mod bounded;
pub mod crash;
pub mod disk;
pub mod engine;
pub mod faults;
pub mod formatting;
pub mod fuzz;
pub mod generate;
pub mod intents;
pub mod linear;
pub mod model;
pub mod ops;
pub mod pattern;
pub mod run;
pub mod setup;
pub mod shrink;
pub mod state;
pub mod streams;
pub mod unjournaled;
pub mod walk;
