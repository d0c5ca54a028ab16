//! The engine on a simulated disk, and phases of work on it, each measured cold.

use std::sync::Arc;

use anyhow::{Context, Result};
use cffs::format::{Ino, ROOT_INO};
use cffs::fs::Fs;
use cffs::fs::api::{AtimeMode, Caller, MetadataMode, MountOptions};
use cffs::mkfs::{MkfsOptions, mkfs};
use cffs_disk::{Clock, Counters, SimDevice, profiles};

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
}

impl Setup {
    /// That of the 1997 paper: 4 KiB blocks without fragments, groups of 64 KiB, a machine with 32 MiB.
    pub fn ganger(variant: Variant, metadata: MetadataMode) -> Setup {
        Setup {
            profile: "st31200",
            bytes: 1_000_000_000 / 4096 * 4096,
            variant,
            metadata,
            block: 4096,
            fragment: 4096,
            group: 64 << 10,
            cache: 16 << 20,
            scatter: true,
        }
    }

    /// That of the 1998 thesis: 8 KiB blocks with 1 KiB fragments, a buffer cache of 17 MB.
    pub fn sapuntzakis(variant: Variant) -> Setup {
        Setup {
            profile: "atlas2",
            bytes: 2 << 30,
            variant,
            metadata: MetadataMode::Sync,
            block: 8192,
            fragment: 1024,
            group: 64 << 10,
            cache: 17 << 20,
            scatter: false,
        }
    }
}

/// A file system on its disk.
pub struct Rig {
    device: Arc<SimDevice>,
    options: MountOptions,
    fs: Option<Arc<Fs>>,
}

impl Rig {
    /// Makes the file system; it is not mounted.
    ///
    /// # Errors
    /// When the setup is impossible.
    pub fn new(setup: &Setup) -> Result<Rig> {
        let profile = profiles::find(setup.profile).with_context(|| format!("no disk is called {}", setup.profile))?;
        let device = Arc::new(SimDevice::new(profile.model(), setup.bytes, Arc::new(Clock::default())));
        let made = MkfsOptions {
            block_size: setup.block,
            frag_size: Some(setup.fragment),
            group_size: setup.group,
            uuid: Some([9; 16]),
            hash_seed: Some([3, 4]),
            now_ns: Some(1_000_000_000),
            no_embed: !setup.variant.embed,
            no_group: !setup.variant.group,
            ..MkfsOptions::default()
        };
        mkfs(&*device, None, &made)?;
        // The papers' file systems wrote times with the inode's next change, and no access times for each file read.
        let options = MountOptions {
            background: false,
            atime: AtimeMode::Noatime,
            lazytime: true,
            cache_bytes: setup.cache,
            metadata: setup.metadata,
            scatter: (setup.scatter && !setup.variant.group).then_some(1997),
            ..MountOptions::default()
        };
        Ok(Rig { device, options, fs: None })
    }

    /// Mounts with a cold cache, works, and writes everything back; what the disk was asked from the mount's end on.
    ///
    /// # Errors
    /// Those of the work and of the engine.
    pub fn phase(&mut self, work: impl FnOnce(&Fs) -> Result<()>) -> Result<Counters> {
        let fs = Fs::open(self.device.clone(), None, self.options.clone())?;
        let before = self.device.counters();
        let fs = &**self.fs.insert(fs);
        work(fs)?;
        fs.sync()?;
        fs.close()?;
        self.fs = None;
        Ok(self.device.counters() - before)
    }

    /// Checks it, unmounted.
    ///
    /// # Errors
    /// When something is wrong with it.
    pub fn check(&self) -> Result<()> {
        let report = cffs::check::check(self.device.clone(), None, &Default::default(), &|_, _, _| {})?;
        anyhow::ensure!(report.is_clean(), "the file system is damaged after the experiment: {:?}", report.problems);
        Ok(())
    }
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
pub fn with<T>(fs: &Fs, dir: Ino, name: &str, work: impl FnOnce(Ino) -> cffs::error::Result<T>) -> Result<T> {
    let ino = fs.lookup(dir, name.as_bytes())?.ino;
    let result = work(ino);
    fs.forget(ino, 1);
    Ok(result?)
}
