//! File systems in memory: made, mounted without a background thread, checked.

use cffs::device::{Device, MemoryDevice};
use cffs::{Fs, MkfsOptions, MountOptions, mkfs};
use std::sync::Arc;

/// Mounts one.
pub fn mount(dev: &Arc<MemoryDevice>) -> Arc<Fs> {
    let options = MountOptions::default().background(false);
    Fs::open(dev.clone() as Arc<dyn Device>, None, options).unwrap()
}

/// Makes one.
pub fn fresh(size: u64, options: &MkfsOptions) -> Arc<MemoryDevice> {
    let dev = Arc::new(MemoryDevice::new(size));
    mkfs(&*dev, None, options).unwrap();
    dev
}

/// Nothing is wrong with it.
pub fn clean(dev: &Arc<MemoryDevice>, what: &str) {
    let report = cffs::check::check(dev.clone(), None, &Default::default(), &|_, _, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{what}: {:#?}", report.problems);
}
