//! The engine on a simulated disk, and phases of work on it, each measured cold.

use std::sync::Arc;

use anyhow::{Result, ensure};
use cffs::{
    AtimeMode, Caller, DirectWrite, Fs, Ino, MetadataMode, MkfsOptions, MountOptions, PrefetchMode, ROOT_INO, Regroup,
    RegroupOptions, RegroupOutcome, RegroupStatus, Usage, mkfs,
};
use cffs_disk::{Counters, SimDevice};
use cffs_logdisk::{LogDisk, LogStats};

use super::volume::{Layout, Volume};

/// The four combinations of the two techniques.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Inodes in directories.
    pub embed: bool,
    /// Groups.
    pub group: bool,
}

impl Variant {
    /// In the order of the papers' figures.
    pub const ALL: [Variant; 4] = [
        Variant { embed: false, group: false },
        Variant { embed: true, group: false },
        Variant { embed: false, group: true },
        Variant { embed: true, group: true },
    ];
    /// The conventional file system.
    pub const NEITHER: Variant = Variant::ALL[0];
    /// Both techniques.
    pub const BOTH: Variant = Variant::ALL[3];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match (self.embed, self.group) {
            (false, false) => "neither",
            (true, false) => "embedding",
            (false, true) => "grouping",
            (true, true) => "both",
        }
    }
}

/// What an experiment runs on.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Name of the disk.
    pub profile: &'static str,
    /// Bytes of it that are used.
    pub bytes: u64,
    /// Techniques.
    pub variant: Variant,
    /// How metadata gets to the disk.
    pub metadata: MetadataMode,
    /// Block, fragment and group in bytes.
    pub block: u32,
    /// See `block`.
    pub fragment: u32,
    /// See `block`.
    pub group: u32,
    /// Memory for the cache in bytes.
    pub cache: usize,
    /// Whether the conventional placement spreads files as the 1997 measurements did.
    pub scatter: bool,
    /// Fetching of groups.
    pub prefetch: PrefetchMode,
    /// Whether fsync puts small files into the log.
    pub fsync_in_log: bool,
    /// Whether small directories share groups.
    pub subtrees: bool,
    /// Size of the engine's log in bytes; `None` for that of mkfs.
    pub log: Option<u64>,
    /// How blocks get to the disk.
    pub layout: Layout,
    /// When writes are direct writes.
    pub direct_write: DirectWrite,
}

impl Setup {
    /// What a user of today gets, with a cache that the experiments do not fit into.
    pub fn today(profile: &'static str) -> Setup {
        let defaults = MountOptions::default();
        Setup {
            profile,
            bytes: 1 << 30,
            variant: Variant::BOTH,
            metadata: defaults.metadata,
            block: 4096,
            fragment: 1024,
            // What `mkfs` chooses when it times such a disk.
            group: super::disks::probe(profile).map_or(MkfsOptions::default().group_size, |p| p.group_size),
            cache: 32 << 20,
            scatter: false,
            prefetch: defaults.prefetch,
            fsync_in_log: defaults.fsync_in_log,
            subtrees: defaults.subtrees,
            log: None,
            layout: Layout::InPlace,
            direct_write: defaults.direct_write,
        }
    }

    /// That of the measurements of 1995: 8 KiB blocks with 1 KiB fragments on a machine with 40 MB.
    pub fn seltzer(variant: Variant) -> Setup {
        Setup {
            bytes: 900_000_000 / 8192 * 8192,
            variant,
            block: 8192,
            group: 64 << 10,
            cache: 16 << 20,
            ..Setup::today("dsp3105")
        }
    }

    /// That of the 1997 paper: 4 KiB blocks without fragments, groups of 64 KiB, a machine with 32 MiB.
    pub fn ganger(variant: Variant, metadata: MetadataMode) -> Setup {
        Setup {
            bytes: 1_000_000_000 / 4096 * 4096,
            variant,
            metadata,
            block: 4096,
            fragment: 4096,
            group: 64 << 10,
            cache: 16 << 20,
            scatter: true,
            ..Setup::today("st31200")
        }
    }

    /// That of the 1998 thesis: 8 KiB blocks with 1 KiB fragments, a buffer cache of 17 MB.
    pub fn sapuntzakis(variant: Variant) -> Setup {
        Setup {
            bytes: 2 << 30,
            variant,
            metadata: MetadataMode::Sync,
            block: 8192,
            fragment: 1024,
            group: 64 << 10,
            cache: 17 << 20,
            ..Setup::today("atlas2")
        }
    }
}

/// A file system on its disk.
pub struct Harness {
    volume: Arc<Volume>,
    options: MountOptions,
    fs: Option<Arc<Fs>>,
    log_stats: LogStats,
}

impl Harness {
    /// Makes the file system; it is not mounted.
    ///
    /// # Errors
    /// When the setup is impossible.
    pub fn new(setup: &Setup) -> Result<Harness> {
        let volume = Volume::make(setup.profile, setup.bytes, setup.layout)?;
        let made = MkfsOptions::default()
            .block_size(setup.block)
            .frag_size(Some(setup.fragment))
            .group_size(setup.group)
            .log_bytes(setup.log)
            .uuid(Some([9; 16]))
            .hash_seed(Some([3, 4]))
            .now_ns(Some(1_000_000_000))
            .no_embed(!setup.variant.embed)
            .no_group(!setup.variant.group);
        let made_on = volume.open()?;
        mkfs(&*made_on.device, None, &made)?;
        made_on.close()?;
        // The papers' file systems wrote times with the inode's next change, and no access times for each file read.
        let options = MountOptions::default()
            .background(false)
            .atime(AtimeMode::Noatime)
            .lazytime(true)
            .cache_bytes(setup.cache)
            .metadata(setup.metadata)
            .prefetch(setup.prefetch)
            .fsync_in_log(setup.fsync_in_log)
            .subtrees(setup.subtrees)
            .direct_write(setup.direct_write)
            // What is dead has to be known to a log, and is of no use to a disk.
            .discard(volume.is_log())
            .scatter((setup.scatter && !setup.variant.group).then_some(1997));
        Ok(Harness { volume: Arc::new(volume), options, fs: None, log_stats: LogStats::default() })
    }

    /// Mounts with a cold cache, works, and writes everything back; what the disk was asked from the mount's end on.
    ///
    /// # Errors
    /// Those of the work and of the engine.
    pub fn phase(&mut self, work: impl FnOnce(&Fs) -> Result<()>) -> Result<Counters> {
        self.phase_on(|fs, _| work(fs))
    }

    /// The same; the work sees the log disk too, if there is one.
    ///
    /// # Errors
    /// Those of the work, the engine and the log disk.
    pub fn phase_on(&mut self, work: impl FnOnce(&Fs, Option<&LogDisk>) -> Result<()>) -> Result<Counters> {
        let volume = self.volume.open()?;
        let opened = self.volume.clock().watch(|| Fs::open(volume.device.clone(), None, self.options.clone()));
        let fs = opened?;
        let before = self.volume.counters();
        let fs = &**self.fs.insert(fs);
        work(fs, volume.log.as_deref())?;
        fs.sync()?;
        fs.close()?;
        self.fs = None;
        self.log_stats = volume.close()?;
        Ok(self.volume.counters() - before)
    }

    /// What the log disk did in the last phase.
    pub fn log_stats(&self) -> LogStats {
        self.log_stats
    }

    /// The next phases write metadata in another way.
    pub fn set_metadata(&mut self, metadata: MetadataMode) {
        self.options = std::mem::take(&mut self.options).metadata(metadata);
    }

    /// The next phases have the engine's threads, as in a mount, or have not. Their work then is to be in [`cffs_disk::Clock::threads`].
    pub fn set_background(&mut self, background: bool) {
        self.options = std::mem::take(&mut self.options).background(background);
    }

    /// Regroups everything.
    ///
    /// # Errors
    /// When that does not come to its end.
    pub fn regroup(&mut self) -> Result<RegroupStatus> {
        let handle = Regroup::new();
        self.phase(|fs| Ok(fs.regroup(&RegroupOptions::default(), &handle)?))?;
        let status = handle.status();
        ensure!(status.outcome == Some(RegroupOutcome::Complete), "a regroup ended with {:?}", status.outcome);
        Ok(status)
    }

    /// Works, and then everything in memory is lost. Returns what the work returns.
    ///
    /// # Errors
    /// Those of the work and of the engine.
    pub fn crash<T>(&mut self, work: impl FnOnce(&Fs) -> Result<T>) -> Result<T> {
        let fs = Fs::open(self.volume.open()?.device, None, self.options.clone())?;
        work(&fs)
    }

    /// Bytes that are in use.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn used_bytes(&self) -> Result<u64> {
        let fs = Fs::open(self.volume.open()?.device, None, self.options.clone().read_only(true))?;
        let s = fs.statfs();
        Ok((s.total - s.free) * u64::from(s.frag_size))
    }

    /// The disk. With a log disk on it, what it has is not the file system's.
    pub fn device(&self) -> &Arc<SimDevice> {
        self.volume.disk()
    }

    /// The disks, also for the work of a phase.
    pub fn volume(&self) -> Arc<Volume> {
        self.volume.clone()
    }

    fn report(&self) -> Result<cffs::check::Report> {
        let report = cffs::check::check(self.volume.open()?.device, None, &Default::default(), &|_, _, _| {})?;
        anyhow::ensure!(report.is_clean(), "the file system is damaged after the experiment: {:?}", report.problems);
        Ok(report)
    }

    /// What a check finds out about the layout, unmounted.
    ///
    /// # Errors
    /// When something is wrong with the file system.
    pub fn layout(&self) -> Result<cffs::check::Layout> {
        Ok(self.report()?.layout)
    }

    /// What a check counts, unmounted.
    ///
    /// # Errors
    /// When something is wrong with the file system.
    pub fn counts(&self) -> Result<cffs::check::Counts> {
        Ok(self.report()?.counts)
    }

    /// Checks it, unmounted.
    ///
    /// # Errors
    /// When something is wrong with it.
    pub fn check(&self) -> Result<()> {
        self.report().map(drop)
    }
}

/// A step of maintenance, as an idle mount takes it. Returns the bytes that it moved.
///
/// # Errors
/// When it does not come to its end.
pub fn maintain(fs: &Fs) -> Result<u64> {
    let Some(status) = fs.maintain(Usage::Idle, &|| true, &Regroup::new())? else { return Ok(0) };
    ensure!(status.outcome == Some(RegroupOutcome::Complete), "maintenance ended with {:?}", status.outcome);
    Ok(status.bytes_moved)
}

/// A file, or a directory, with the reference given back.
///
/// # Errors
/// Those of the engine.
pub fn create(fs: &Fs, dir: Ino, name: &str, content: &[u8]) -> Result<()> {
    let ino = fs.create(Caller::ROOT, dir, name.as_bytes(), 0o644)?.ino;
    let written = fs.write(Caller::ROOT, ino, 0, content);
    fs.forget(ino, 1);
    written?;
    Ok(())
}

/// A new directory in the root.
///
/// # Errors
/// Those of the engine.
pub fn make_dir(fs: &Fs, name: &str) -> Result<Ino> {
    let ino = fs.mkdir(Caller::ROOT, ROOT_INO, name.as_bytes(), 0o755)?.ino;
    Ok(ino)
}

/// Looks a name up and does something with what it stands for.
///
/// # Errors
/// Those of the engine.
pub fn with<T>(fs: &Fs, dir: Ino, name: &str, work: impl FnOnce(Ino) -> cffs::Result<T>) -> Result<T> {
    let ino = fs.lookup(dir, name.as_bytes())?.ino;
    let result = work(ino);
    fs.forget(ino, 1);
    Ok(result?)
}
