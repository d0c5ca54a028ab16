//! Making an image of the log layout: a log disk, and a file system on it.

use crate::compression::compression_name;
use crate::signature::{LOG_DISK_SUPERBLOCKS, Ours, begins_as};
use anyhow::{Context, anyhow};
use cffs::device::{Device, IoKind};
use cffs::{Superblock, Tune};
use cffs_logdisk::{Compression, ImageOptions, ImageStore, LogDisk, LogOptions};
use std::sync::Arc;

/// The file system on a log disk is by default so many times as large as the image. So its free space stays in one piece: of the places
/// at most a sixteenth is in use when the image is full, and less than a half when everything compresses to a seventh. More would make
/// allocation groups and their headers larger for nothing.
const THIN_FACTOR: u64 = 16;
/// Bytes of the smallest image, for a file system with blocks of so many. In a smaller one a commit of many threads at once may not
/// find room when it is full, and there would have to be one after every few operations.
pub fn image_min(block_size: u32) -> u64 {
    (32 << 20).max(u64::from(block_size) << 12)
}

/// Images from this size on leave the size of segments to the log disk.
const LARGE: u64 = 2 << 30;
/// Segments of a smaller image, at most.
const SEGMENTS: u64 = 512;
/// Their smallest size.
const SEGMENT_MIN: u64 = 128 << 10;

/// Bytes of the file system on a log disk in an image of `len` bytes, unless they are given.
pub fn default_bytes(len: u64) -> u64 {
    len.saturating_mul(THIN_FACTOR).min(cffs_logdisk::LOGICAL_BYTES_MAX) / 4096 * 4096
}

/// A new log disk.
pub struct LogLayout {
    /// It.
    pub disk: Arc<LogDisk>,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes that it can store.
    pub usable: u64,
    compression: Compression,
}

impl LogLayout {
    /// Makes the image a log disk of so many bytes. What it had is lost.
    pub fn make(
        image: Arc<dyn Device>,
        uuid: [u8; 16],
        bytes: u64,
        compression: Compression,
    ) -> anyhow::Result<LogLayout> {
        let len = image.len();
        let slot_bytes = if len >= LARGE { 0 } else { (len / SEGMENTS).next_power_of_two().max(SEGMENT_MIN) };
        let advice = "take a larger image";
        let store = ImageStore::format(image, &ImageOptions { uuid, slot_bytes });
        let store = Arc::new(store.map_err(|e| anyhow!("{e}: {advice}"))?);
        let segment_bytes = cffs_logdisk::SegmentStore::segment_bytes(&*store);
        let options = LogOptions { compression, ..LogOptions::default() };
        let disk = LogDisk::format(store, bytes, &options).map_err(|e| anyhow!("{e}: {advice}"))?;
        let usable = disk.space().usable;
        Ok(LogLayout { disk: Arc::new(disk), segment_bytes, usable, compression })
    }

    /// The file system is made: notes in it how to compress. Returns its superblock.
    pub fn finish(&self, sb: Superblock) -> anyhow::Result<Superblock> {
        let mut sb = sb;
        if self.compression != Compression::None {
            let options = format!("compress={}", compression_name(self.compression));
            (_, sb) = cffs::tune(&*self.disk, &Tune::default().mount_options(Some(options)))?;
        }
        self.disk.finish().context("cannot end the log disk")?;
        Ok(sb)
    }
}

/// An image must not look like a log disk, or a member of a volume, whose first superblock is lost.
pub fn forget(image: &dyn Device) -> anyhow::Result<()> {
    let zeros = vec![0; 4096.max(image.sector_size() as usize)];
    let [_, second] = LOG_DISK_SUPERBLOCKS;
    if matches!(begins_as(image)?, Some(Ours::LogDisk | Ours::Member)) && second + zeros.len() as u64 <= image.len() {
        image.write_at(IoKind::Super, second, &zeros)?;
        image.flush()?;
    }
    Ok(())
}
