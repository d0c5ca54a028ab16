//! The file systems that sequences run on: formats, geometries, modes and cache sizes.

use crate::disk::{Image, Trace};
use crate::log_layout::{self, LogLayout};
use crate::volume::{self, VolumeLayout};
use cffs::check::{CheckOptions, Report};
use cffs::device::{Device, Observed};
use cffs::trace::{Classes, MountTrace};
use cffs::{AtimeMode, DirectWrite, Fs, MetadataMode, MkfsOptions, MountOptions, PrefetchMode, QuotaKind, mkfs};
use cffs_logdisk::LogDisk;
use cffs_volume::{DATA_OFFSET, Volume};
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A device, and that of an external log.
pub(crate) type Devices = (Arc<dyn Device>, Option<Arc<dyn Device>>);

/// A file system to make and to mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Size of the device in bytes.
    pub device: u64,
    /// Bytes of the device that mkfs uses; `None`: all.
    pub made: Option<u64>,
    /// Block, fragment and group size in bytes.
    pub sizes: (u32, u32, u32),
    /// Size of the log in bytes; `None` leaves it to mkfs.
    pub log: Option<u64>,
    /// The log stands on a device of its own.
    pub external_log: bool,
    /// Inodes outside the directories.
    pub no_embed: bool,
    /// Conventional placement.
    pub no_group: bool,
    /// Directory blocks among the data.
    pub dirs_with_data: bool,
    /// Way of metadata to the device.
    pub metadata: MetadataMode,
    /// Cache size in bytes.
    pub cache: usize,
    /// fsync through the log.
    pub fsync_in_log: bool,
    /// Prefetching.
    pub prefetch: PrefetchMode,
    /// The device is told about freed space.
    pub discard: bool,
    /// The device is so small that operations may run out of space.
    pub may_fill: bool,
    /// The device ignores flushes.
    pub ignores_flush: bool,
    /// Quotas of all kinds are kept.
    pub quota: bool,
    /// Data has checksums.
    pub data_sums: bool,
    /// Whole blocks go to the device while they are written, wherever that is possible.
    pub direct_write: bool,
    /// Now and then all that can be read again leaves memory, inodes that are held among it.
    pub forgetful: bool,
    /// The engine traces everything, and what it says is compared with what it counts.
    pub traced: bool,
    /// The file system is on a log disk.
    pub log_layout: Option<LogLayout>,
    /// The file system is on a volume, and not on a log disk.
    pub volume: Option<VolumeLayout>,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            device: 48 * MIB,
            made: None,
            sizes: (4096, 1024, 64 << 10),
            log: None,
            external_log: false,
            no_embed: false,
            no_group: false,
            dirs_with_data: false,
            metadata: MetadataMode::Journal,
            cache: 8 << 20,
            fsync_in_log: true,
            prefetch: PrefetchMode::Adaptive,
            discard: false,
            may_fill: false,
            ignores_flush: false,
            quota: false,
            data_sums: false,
            direct_write: false,
            forgetful: false,
            traced: false,
            log_layout: None,
            volume: None,
        }
    }
}

/// Block, fragment and group sizes that tests use.
pub const SIZES: [(u32, u32, u32); 5] = [
    (4096, 1024, 64 << 10),
    (512, 512, 16 << 10),
    (4096, 4096, 256 << 10),
    (65536, 8192, 256 << 10),
    (1024, 512, 16 << 10),
];

/// A log that is soon full, in bytes.
fn smallest_log(block_size: u32) -> u64 {
    2 * cffs::mkfs::log_bytes_min(block_size)
}

impl Setup {
    /// One of the combinations of formats, sizes, modes and small caches: each number gives another one, and the first
    /// few dozen cover every pair of choices that is thought to matter.
    pub fn numbered(n: u64) -> Setup {
        let mut rng = fastrand::Rng::with_seed(n);
        let mut pick = |n: usize| rng.usize(..n);
        let sizes = SIZES[pick(SIZES.len())];
        let device = if sizes.0 == 65536 { 256 * MIB } else { 48 * MIB };
        Setup {
            sizes,
            device,
            made: None,
            log: (pick(2) == 0).then(|| smallest_log(sizes.0)),
            external_log: pick(6) == 0,
            no_embed: n & 1 == 1,
            no_group: n & 2 == 2,
            dirs_with_data: pick(4) == 0,
            metadata: MetadataMode::Journal,
            cache: [256 << 10, 1 << 20, 8 << 20][pick(3)].max(16 * sizes.0 as usize),
            fsync_in_log: pick(4) != 0,
            prefetch: [PrefetchMode::Adaptive, PrefetchMode::Off, PrefetchMode::Always][pick(3)],
            discard: pick(5) == 0,
            may_fill: false,
            ignores_flush: false,
            quota: pick(2) == 0,
            data_sums: pick(2) == 0,
            direct_write: pick(2) == 0,
            forgetful: pick(3) == 0,
            traced: pick(2) == 0,
            log_layout: None,
            volume: None,
        }
    }

    /// The same with a device that soon is full.
    pub fn small(self) -> Setup {
        let log = smallest_log(self.sizes.0);
        let device = (4 * log).max(8 * MIB);
        Setup { device, made: None, log: Some(log), external_log: false, may_fill: true, ..self }
    }

    /// The same on a log disk, another one for each number. It has no log of its own, and the log disk has checksums of all data.
    pub fn on_log_disk(self, n: u64) -> Setup {
        let log_layout = Some(LogLayout::numbered(n, self.sizes.0));
        let metadata = MetadataMode::Journal;
        let log = Some(cffs::mkfs::log_bytes_min(self.sizes.0));
        // As small as `cffs mkfs` takes.
        let device = self.device.max((32 << 20).max(u64::from(self.sizes.0) << 12));
        Setup { device, log_layout, log, external_log: false, data_sums: false, metadata, made: None, ..self }
    }

    /// The same on a volume, another one for each number.
    pub fn on_volume(self, n: u64) -> Setup {
        let volume = Some(VolumeLayout::numbered(n, self.sizes.2));
        Setup { volume, log_layout: None, external_log: false, made: None, ..self }
    }

    /// The same on a device that mkfs takes only a part of, another one for each number, so that it can grow.
    pub fn growing(self, n: u64) -> Setup {
        let mut rng = fastrand::Rng::with_seed(n ^ 0x6b8);
        let device = self.device * 2;
        let made = self.device / 8 * rng.u64(4..=8) + if rng.bool() { 0 } else { rng.u64(..MIB) };
        Setup { device, made: Some(made.max(8 * MIB)), ..self }
    }

    /// The images of a new file system: device, and external log if there is one. A thread that asks for the same again
    /// gets copies.
    pub fn make(&self) -> Result<Vec<Image>, String> {
        thread_local! {
            static LAST: RefCell<Option<(Setup, Vec<Image>)>> = const { RefCell::new(None) };
        }
        LAST.with_borrow_mut(|last| match last {
            Some((setup, images)) if setup == self => Ok(images.clone()),
            _ => {
                let images = self.make_new()?;
                *last = Some((*self, images.clone()));
                Ok(images)
            }
        })
    }

    /// The same, made now.
    pub(crate) fn make_new(&self) -> Result<Vec<Image>, String> {
        let trace = Trace::new(self.blank());
        self.make_on(&trace, *b"cffs-sim uuid 01")?;
        Ok(trace.images())
    }

    /// Devices of zeros.
    pub fn blank(&self) -> Vec<Image> {
        if let Some(volume) = self.volume {
            return volume.blank(self.device);
        }
        let mut images = vec![Image::new(self.device)];
        if self.external_log {
            images.push(Image::new(self.log.unwrap_or(64 * MIB)));
        }
        images
    }

    /// Makes a file system on the devices of a trace.
    pub fn make_on(&self, trace: &Trace, uuid: [u8; 16]) -> Result<(), String> {
        let options = MkfsOptions::default()
            .block_size(self.sizes.0)
            .frag_size(Some(self.sizes.1))
            .group_size(self.sizes.2)
            .log_bytes(self.log)
            .size(self.made)
            .uuid(Some(uuid))
            .hash_seed(Some([1, 2]))
            .no_embed(self.no_embed)
            .no_group(self.no_group)
            .dirs_with_data(self.dirs_with_data)
            .data_sums(self.data_sums)
            .quota(if self.quota { QuotaKind::ALL.to_vec() } else { Vec::new() });
        let log = self.external_log.then(|| trace.device(1));
        let log = log.as_ref().map(|d| &**d as &dyn Device);
        let device: Arc<dyn Device> = match (self.log_layout, self.volume) {
            (Some(layout), _) => layout.make_on(trace, uuid).map_err(|e| format!("mkfs of the log disk: {e}"))?,
            (_, Some(volume)) => volume.make_on(trace).map_err(|e| format!("making the volume: {e}"))?,
            _ => trace.device(0),
        };
        mkfs(&*device, log, &options).map_err(|e| format!("mkfs: {e}"))?;
        device.finish().map_err(|e| format!("end of mkfs: {e}"))
    }

    /// What a repair works on: the device, and that of an external log. Writable.
    ///
    /// # Errors
    /// A volume or a log disk that cannot be opened.
    pub(crate) fn open_to_repair(&self, trace: &Trace) -> io::Result<Devices> {
        let log = self.external_log.then(|| trace.device(1) as Arc<dyn Device>);
        let device: Arc<dyn Device> = match (self.log_layout, self.volume) {
            (Some(layout), _) => layout.open(trace, false, &Observed::default())?,
            (_, Some(volume)) => volume.open(trace, false, &Observed::default())?,
            _ => trace.device(0),
        };
        Ok((device, log))
    }

    /// Whether there is a second copy of everything on another device.
    pub fn is_mirrored(&self) -> bool {
        self.volume.is_some_and(|v| v.kind == cffs_volume::Kind::Mirror)
    }

    /// Number of devices.
    pub fn devices(&self) -> usize {
        self.volume.map_or(1, |v| v.members) + usize::from(self.external_log)
    }

    /// Settings of the mount.
    pub fn options(&self) -> MountOptions {
        MountOptions::default()
            .cache_bytes(self.cache)
            .metadata(self.metadata)
            .atime(AtimeMode::Noatime)
            .commit_interval(Duration::from_secs(3600))
            .prefetch(self.prefetch)
            .discard(self.discard)
            .background(false)
            .fsync_in_log(self.fsync_in_log)
            .direct_write(if self.direct_write { DirectWrite::Always } else { DirectWrite::Off })
            .trace(if self.traced { Classes::ALL } else { Classes::NONE })
    }

    /// Mounts the devices of a trace.
    pub fn mount(&self, trace: &Trace) -> cffs::Result<Arc<Fs>> {
        self.mount_with(trace, self.options()).map(|mounted| mounted.fs)
    }

    /// The same, with what is below.
    pub fn mount_with_below(&self, trace: &Trace) -> cffs::Result<Mounted> {
        self.mount_with(trace, self.options())
    }

    /// Mounts without writing.
    pub fn mount_read_only(&self, trace: &Trace) -> cffs::Result<Arc<Fs>> {
        self.mount_with(trace, self.options().read_only(true)).map(|mounted| mounted.fs)
    }

    fn mount_with(&self, trace: &Trace, options: MountOptions) -> cffs::Result<Mounted> {
        if self.ignores_flush {
            trace.ignore_flushes();
        }
        let log = self.external_log.then(|| trace.device(1) as Arc<dyn Device>);
        let traced = MountTrace::new(options.trace);
        let _mounting = traced.mounting();
        let observed = Observed::by(&traced.observer());
        if let Some(layout) = self.volume {
            let volume = layout.open(trace, options.read_only, &observed)?;
            let fs = Fs::open_traced(volume.clone(), log, options, &traced)?;
            return Ok(Mounted { fs, log_disk: None, volume: Some(volume) });
        }
        let Some(layout) = self.log_layout else {
            return Fs::open_traced(trace.device(0), log, options, &traced).map(|fs| Mounted {
                fs,
                log_disk: None,
                volume: None,
            });
        };
        let disk = layout.open(trace, options.read_only, &observed)?;
        let fs = Fs::open_traced(disk.clone(), log, options, &traced)?;
        if !fs.is_read_only() {
            fs.trim_after_crash()?;
        }
        Ok(Mounted { fs, log_disk: Some(disk), volume: None })
    }
}

/// A mounted file system, and what is below it.
pub struct Mounted {
    /// The file system.
    pub fs: Arc<Fs>,
    /// The log disk.
    pub log_disk: Option<Arc<LogDisk>>,
    /// The volume.
    pub volume: Option<Arc<Volume>>,
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Where the log stands: the number of its device, and its bytes. On a mirror all members have it there.
pub(crate) fn log_range(images: &[Image]) -> (usize, std::ops::Range<u64>) {
    let trace = Trace::new(images.to_vec());
    if log_layout::is_log_disk(&trace) {
        return (0, 0..0);
    }
    let (device, begin): (Arc<dyn Device>, u64) = match volume::open_to_check(&trace) {
        Ok(mirror) if mirror.mirror().is_some() => (mirror, DATA_OFFSET),
        _ => (trace.device(0), 0),
    };
    let (at, len) = cffs::mkfs::read_superblock(&*device).map_or((0, 0), |sb| cffs::journal::log_extent(&sb));
    (if begin == 0 { images.len() - 1 } else { 0 }, begin + at..begin + at + len)
}

/// Checks images: of an unmounted file system, or of one that a crash has left. The text lists what is wrong.
pub fn check(images: &[Image]) -> Result<Report, String> {
    let trace = Trace::new(images.to_vec());
    let is_volume = volume::is_volume(&trace);
    let log = (images.len() > 1 && !is_volume).then(|| trace.device(1) as Arc<dyn Device>);
    let device: Arc<dyn Device> = if log_layout::is_log_disk(&trace) {
        log_layout::open_checked(&trace)?
    } else if is_volume {
        volume::open_to_check(&trace)?
    } else {
        trace.device(0)
    };
    let report =
        cffs::check::check(device, log, &CheckOptions::default().max_problems(10).data(true).jobs(1), &|_, _, _| {})
            .map_err(|e| format!("cannot be checked: {e}"))?;
    if !report.is_clean() {
        let lines: Vec<String> = report.problems.iter().map(|p| format!("\n  {p}")).collect();
        return Err(format!("{} problems:{}", report.problems_total, lines.concat()));
    }
    if !trace.is_empty() {
        return Err("the check has written to the device".into());
    }
    Ok(report)
}

/// Checks the images of an unmounted file system.
pub fn check_unmounted(images: &[Image]) -> Result<(), String> {
    let report = check(images)?;
    if report.state != "clean" || report.replayed != 0 || report.counts.orphans != 0 {
        let Report { state, replayed, counts, .. } = report;
        return Err(format!("state {state}, {replayed} transactions to replay, {} orphans", counts.orphans));
    }
    Ok(())
}
