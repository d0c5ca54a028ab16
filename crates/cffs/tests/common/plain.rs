//! File systems in memory: made, mounted without a background thread, checked.

use cffs::device::{Device, MemoryDevice};
use cffs::{Fs, MkfsOptions, MountOptions, mkfs};
use std::sync::Arc;

/// Mounts a file system.
pub fn mount<D: Device + 'static>(dev: &Arc<D>) -> Arc<Fs> {
    let options = MountOptions::default().background(false);
    Fs::open(dev.clone() as Arc<dyn Device>, None, options).unwrap()
}

/// Makes a file system.
pub fn fresh(size: u64, options: &MkfsOptions) -> Arc<MemoryDevice> {
    let dev = Arc::new(MemoryDevice::new(size));
    mkfs(&*dev, None, options).unwrap();
    dev
}

/// Asserts that a check finds nothing wrong.
#[track_caller]
pub fn clean<D: Device + 'static>(dev: &Arc<D>, what: &str) {
    let report = cffs::check::check(dev.clone(), None, &Default::default(), &|_, _, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{what}: {:#?}", report.problems);
}
