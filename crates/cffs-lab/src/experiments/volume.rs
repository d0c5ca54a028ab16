//! What is between the engine and a simulated disk: nothing, a log disk, or a volume of several disks. Experiments set these up here and nowhere else.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cffs::device::{CountingDevice, Device, IoKind};
use cffs_disk::{Clock, Counters, SimDevice, profiles};
use cffs_logdisk::{CleanPolicy, Compression, ImageOptions, ImageStore, LogDisk, LogOptions, LogStats};

use super::members::{Members, open_members};

/// Bytes before the first slot of an image, at most and at least (docs/format-log.md).
const FIRST_SLOT: [u64; 2] = [128 << 10, 1 << 20];

/// Disks below this size have segments of this size, as those of the time when disks were so small: there are hundreds of them, and
/// the few that the cleaner keeps free are a small part.
const SMALL: u64 = 1 << 30;
/// See [`SMALL`].
const SMALL_SEGMENT: u64 = 1 << 20;

/// How the engine's blocks get to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each block has its place.
    InPlace,
    /// Through a log disk.
    Log(LogSetup),
    /// To several disks.
    Several(Members),
}

impl Layout {
    /// A log disk as it is by default.
    pub fn log() -> Layout {
        Layout::Log(LogSetup::default())
    }

    /// In place, and a log disk as it is by default.
    pub fn both() -> [Layout; 2] {
        [Layout::InPlace, Layout::log()]
    }

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Layout::InPlace => "in place",
            Layout::Log(_) => "log",
            Layout::Several(_) => "several disks",
        }
    }
}

/// Settings of a log disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSetup {
    /// How the cleaner chooses.
    pub policy: CleanPolicy,
    /// Bytes of a segment; 0 leaves the choice to the store. On a medium that is rewritten in units it is a unit.
    pub segment: u64,
    /// Bytes that end a batch without a flush.
    pub batch: usize,
    /// Clean nodes of the map in memory.
    pub cache_nodes: usize,
    /// How what is written is compressed.
    pub compression: Compression,
}

impl Default for LogSetup {
    fn default() -> LogSetup {
        let LogOptions { policy, batch_bytes, cache_nodes, compression, .. } = LogOptions::default();
        LogSetup { policy, segment: 0, batch: batch_bytes, cache_nodes, compression }
    }
}

impl LogSetup {
    /// As the log disk takes them.
    pub fn options(&self) -> LogOptions {
        LogOptions {
            policy: self.policy,
            batch_bytes: self.batch,
            cache_nodes: self.cache_nodes,
            compression: self.compression,
            ..LogOptions::default()
        }
    }
}

/// A disk, and how blocks get there.
pub struct Volume {
    clock: Arc<Clock>,
    /// The disk, or the members in their order.
    disks: Vec<Arc<SimDevice>>,
    log: Option<LogSetup>,
}

/// A volume in use, whose disk counts requests by purpose.
pub struct CountedVolume {
    /// What the engine sees.
    pub device: Arc<dyn Device>,
    /// The disk.
    pub counted: Arc<CountingDevice<Arc<SimDevice>>>,
    log: Option<Arc<LogDisk>>,
}

/// A volume in use, with nothing in memory at first.
pub struct OpenVolume {
    /// What the engine sees.
    pub device: Arc<dyn Device>,
    /// The log disk, if there is one.
    pub log: Option<Arc<LogDisk>>,
}

impl Volume {
    /// So many bytes of an idle disk. A log disk has as many logical bytes as the disk has.
    ///
    /// # Errors
    /// When no disk has this name, or a log disk does not fit.
    pub fn make(profile: &str, bytes: u64, layout: Layout) -> Result<Volume> {
        let model = profiles::find(profile).with_context(|| format!("no disk is called {profile}"))?.model();
        let clock = Arc::new(Clock::default());
        let mut setup = match layout {
            Layout::InPlace => {
                let disks = vec![Arc::new(SimDevice::new(model, bytes, clock.clone()))];
                return Ok(Volume { clock, disks, log: None });
            }
            Layout::Several(members) => {
                let disks = members.make(&model, bytes, &clock)?;
                return Ok(Volume { clock, disks, log: None });
            }
            Layout::Log(setup) => setup,
        };
        if setup.segment == 0 && bytes < SMALL {
            setup.segment = SMALL_SEGMENT;
        }
        let mut start = 0;
        if let Some(units) = model.units() {
            // A segment is a unit, and the first one begins with a unit.
            setup.segment = units.unit;
            start = units.plain - setup.segment.clamp(FIRST_SLOT[0], FIRST_SLOT[1]);
        }
        let disk = Arc::new(SimDevice::partition(model, start, bytes, clock.clone()));
        let options = ImageOptions { uuid: [9; 16], slot_bytes: setup.segment };
        let store = Arc::new(ImageStore::format(disk.clone(), &options)?);
        LogDisk::format(store, bytes, &setup.options())?.finish()?;
        Ok(Volume { clock, disks: vec![disk], log: Some(setup) })
    }

    /// A disk with the contents of an image, which may be in the log layout.
    ///
    /// # Errors
    /// When no disk has this name, it is smaller than the image, or the image cannot be read.
    pub fn of_image(profile: &str, image: &Path) -> Result<Volume> {
        let model = profiles::find(profile).with_context(|| format!("no disk is called {profile}"))?.model();
        let file = File::open(image).with_context(|| image.display().to_string())?;
        let bytes = file.metadata()?.len() / 4096 * 4096;
        ensure!(bytes <= model.capacity(), "{} is larger than a disk of {} bytes", image.display(), model.capacity());
        let clock = Arc::new(Clock::default());
        let disk = Arc::new(SimDevice::new(model, bytes, clock.clone()));
        let mut piece = vec![0; 1 << 20];
        let mut at = 0;
        while at < bytes {
            let n = (bytes - at).min(piece.len() as u64) as usize;
            file.read_exact_at(&mut piece[..n], at)?;
            if piece[..n].iter().any(|b| *b != 0) {
                disk.contents().write_at(IoKind::Data, at, &piece[..n])?;
            }
            at += n as u64;
        }
        let log = ImageStore::open(disk.clone()).is_ok().then(LogSetup::default);
        Ok(Volume { clock, disks: vec![disk], log })
    }

    /// Opens it.
    ///
    /// # Errors
    /// Those of a log disk.
    pub fn open(&self) -> Result<OpenVolume> {
        if self.disks.len() > 1 {
            return Ok(OpenVolume { device: open_members(&self.disks, &self.clock)?, log: None });
        }
        self.open_on(self.disks[0].clone())
    }

    /// Opens it, and counts by purpose what is asked of the disk from now on.
    ///
    /// # Errors
    /// Those of a log disk.
    pub fn open_counted(&self) -> Result<CountedVolume> {
        let counted = Arc::new(CountingDevice::new(self.disk().clone()));
        let OpenVolume { device, log } = self.open_on(counted.clone())?;
        Ok(CountedVolume { device, counted, log })
    }

    fn open_on(&self, disk: Arc<dyn Device>) -> Result<OpenVolume> {
        let Some(setup) = &self.log else { return Ok(OpenVolume { device: disk, log: None }) };
        let log = Arc::new(LogDisk::open(Arc::new(ImageStore::open(disk)?), &setup.options())?);
        Ok(OpenVolume { device: log.clone(), log: Some(log) })
    }

    /// The disk, of several the first one.
    pub fn disk(&self) -> &Arc<SimDevice> {
        &self.disks[0]
    }

    /// The clock of all disks.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// What all disks were asked since the beginning, and the time by their clock.
    pub fn counters(&self) -> Counters {
        self.disks.iter().map(|d| d.counters()).fold(Counters::default(), |all, one| all + one)
    }

    /// Whether there is a log disk.
    pub fn is_log(&self) -> bool {
        self.log.is_some()
    }
}

impl CountedVolume {
    /// As [`OpenVolume::close`].
    ///
    /// # Errors
    /// Those of a log disk.
    pub fn close(self) -> Result<()> {
        OpenVolume { device: self.device, log: self.log }.close().map(drop)
    }
}

impl OpenVolume {
    /// Ends the use: the next one has nothing to recover. Returns what a log disk has done.
    ///
    /// # Errors
    /// Those of a log disk.
    pub fn close(self) -> Result<LogStats> {
        let Some(log) = self.log else { return Ok(LogStats::default()) };
        log.finish()?;
        Ok(log.stats())
    }
}
