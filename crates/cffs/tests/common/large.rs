//! What the tests of large files begin with and end with.

use cffs::check::{CheckOptions, check};
use cffs::device::MemoryDevice;
use cffs::{AtimeMode, Caller, Fs, Ino, MkfsOptions, MountOptions, ROOT_INO, mkfs};
use std::sync::Arc;

pub const ROOT: Caller = Caller::ROOT;
pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;

/// Files of more than 1 MiB are large, reads of 256 KiB long.
pub fn small_cache() -> MountOptions {
    MountOptions::default().background(false).atime(AtimeMode::Noatime).cache_bytes(8 << 20)
}

pub fn made(data_sums: bool) -> Arc<MemoryDevice> {
    let dev = Arc::new(MemoryDevice::new(96 << 20));
    mkfs(&*dev, None, &MkfsOptions::default().data_sums(data_sums)).unwrap();
    dev
}

/// Bytes that differ from place to place.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 0x5_1234_5677) >> 13) as u8).collect()
}

pub fn create(fs: &Fs, name: &str) -> Ino {
    fs.create(ROOT, ROOT_INO, name.as_bytes(), 0o644).unwrap().ino
}

pub fn assert_clean(dev: &Arc<MemoryDevice>) {
    let report = check(dev.clone(), None, &CheckOptions::default().data(true), &|_, _, _| {}).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}
