//! Random operations on a log disk, compared with plain memory; crashes at any point.

mod broken;
mod cleaning;
mod crash_device;
mod driver;
mod full;
mod limits;
mod random;
mod refill;
mod reserve;
mod scale;
mod stream;
mod upkeep;
