//! Whether a device has a log disk whose superblocks are lost, as far as a short look tells.

use crate::batch::{BATCH_BYTES_MAX, Summary};
use cffs_device::{Device, IoKind};
use std::io;

/// Bytes from the beginning that are looked at as a whole: the lowest slots are given out first.
const BEGINNING: u64 = 64 << 20;
/// Places behind that, spread over the device, where a slot of the usual size and place begins.
const PLACES: u64 = 256;
const SLOT: u64 = 4 << 20;
const FIRST_SLOT: u64 = 1 << 20;

/// Whether a batch of a log disk is among what is at the beginning of a device, or at one of some hundred other places. What [`crate::recover_image`] finds by reading
/// everything may be missed. What cannot be read has none.
pub fn has_remains(device: &dyn Device) -> bool {
    let step = device.sector_size() as usize;
    let mut bytes = vec![0; (1 << 20) / step * step];
    let mut at = 0;
    while at < device.len().min(BEGINNING) {
        let n = bytes.len().min((device.len() - at) as usize) / step * step;
        if n == 0 {
            break;
        }
        let is_read = device.read_at(IoKind::Data, at, &mut bytes[..n]).is_ok();
        let places = (0..n).step_by(step).filter(|i| is_read && Summary::length_of(&bytes[*i..n]).is_ok());
        if places.map(|i| at + i as u64).any(|place| summary_at(device, place).is_some()) {
            return true;
        }
        at += n as u64;
    }
    let slots = device.len() / SLOT;
    let spread = (0..PLACES).map(|i| FIRST_SLOT + i * slots / PLACES * SLOT);
    slots > 0 && spread.filter(|at| *at >= BEGINNING).any(|at| summary_at(device, at).is_some())
}

/// Reads bytes of a device from an offset on.
pub(crate) type ReadBytes<'a> = &'a dyn Fn(u64, &mut [u8]) -> io::Result<()>;

fn summary_at(device: &dyn Device, at: u64) -> Option<Summary> {
    summary_by(device.sector_size() as usize, &|at, buf| device.read_at(IoKind::Data, at, buf), at)
}

/// The summary of a batch at a byte of a device with such sectors, if it is whole.
pub(crate) fn summary_by(sector: usize, read: ReadBytes<'_>, at: u64) -> Option<Summary> {
    let mut bytes = vec![0; sector];
    read(at, &mut bytes).ok()?;
    let length = Summary::length_of(&bytes).ok()?;
    if length as u64 > BATCH_BYTES_MAX {
        return None;
    }
    bytes.resize(length.next_multiple_of(sector), 0);
    if bytes.len() > sector {
        read(at + sector as u64, &mut bytes[sector..]).ok()?;
    }
    Summary::decode(bytes.get(..length)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::LogDisk;
    use crate::options::LogOptions;
    use crate::store::{ImageOptions, ImageStore};
    use cffs_device::MemoryDevice;
    use std::sync::Arc;

    #[test]
    fn a_batch_tells_a_log_disk() {
        for (len, slot_bytes) in [(16 << 20, 64 << 10), (1 << 40, 0)] {
            let device = Arc::new(MemoryDevice::new(len));
            assert!(!has_remains(&*device));
            let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [1; 16], slot_bytes }).unwrap();
            drop(LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap());
            for at in [0, 64 << 10] {
                device.write_at(IoKind::Super, at, &[0; 4096]).unwrap();
            }
            assert!(has_remains(&*device));
        }
    }
}
