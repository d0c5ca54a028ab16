//! Simulated disks: what a request costs on a given disk, in virtual time.
//!
//! A [`Model`] answers one question: when do requests complete that are issued at a given time? It stores no contents.
//! [`SimDevice`] puts a model behind a [`cffs_device::Device`], so that the engine runs on it. The virtual clock
//! advances only with requests, so every run gives the same figures on any machine. [`profiles`] lists the disks.
//!
//! There are two kinds of disks. [`mechanical`] ones have an arm, rotation, zones, a track buffer and a write cache.
//! [`flat_cost`] ones have latency, bandwidth and requests per second. Either kind can have a medium that is rewritten in [`units`]:
//! shingled tracks, or flash behind a simple controller.
//!
//! Not modelled: errors, defects, recalibration, the processor. A virtual second contains disk time only.

mod clock;
mod device;
pub mod flat_cost;
pub mod layout;
pub mod measure;
pub mod mechanical;
mod model;
pub mod profiles;
mod request;
pub mod seek;
pub mod units;

pub use clock::Clock;
pub use device::{Counters, SimDevice};
pub use flat_cost::FlatCost;
pub use mechanical::{Mechanical, TimeBreakdown};
pub use model::Model;
pub use request::{Ns, Request, SECTOR, ms};
