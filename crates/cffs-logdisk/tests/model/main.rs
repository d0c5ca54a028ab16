//! Random operations on a log disk, compared with plain memory; crashes at any point.

mod apart;
mod broken;
mod cleaning;
mod copies;
mod crash_device;
mod deleting;
mod driver;
mod full;
mod limits;
mod marking;
mod mend;
mod patches;
mod random;
mod reading;
mod rebuild;
mod refill;
mod reserve;
mod scale;
mod stream;
mod unfinished;
mod upkeep;
mod waiting;
