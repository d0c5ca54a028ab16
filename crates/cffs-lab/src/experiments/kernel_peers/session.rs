//! A file system on an image on a timed disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cffs::device::{Direct, FileDevice, Lock, OpenMode};
use cffs::{Fs, MountOptions};
use cffs_disk::{Counters, profiles};

use crate::cache_check;
use crate::layout::{Layout, of_mount};
use crate::mount_table::is_mounted;
pub use crate::mounted::{Kind, LIMIT};
use crate::mounted::{Loop, Mounted};
use crate::process::find_program;
use crate::served::{Medium, Served, Sparse, TimedDisk};

/// One file system on its disk.
pub struct Session {
    // Dropped in this order: mount, loop device, disk.
    mount: Option<Mounted>,
    over: Loop,
    served: Served,
    medium: Arc<TimedDisk>,
    kind: Kind,
    program: PathBuf,
    image: PathBuf,
    root: PathBuf,
    at: PathBuf,
}

impl Session {
    /// Serves `image` as the disk `profile`. With words for `cffs mkfs` the image is made, of so many bytes,
    /// and formatted first.
    ///
    /// # Errors
    /// When a program fails.
    pub fn new(
        kind: Kind,
        program: &Path,
        dir: &Path,
        image: &Path,
        profile: &str,
        format: Option<(&[String], u64)>,
    ) -> Result<Session> {
        let profile = profiles::find(profile).with_context(|| format!("no disk is called {profile}"))?;
        let contents = match format {
            Some((_, bytes)) => Sparse::create(image, bytes)?,
            None => Sparse::open(image)?,
        };
        let medium = Arc::new(TimedDisk::new(contents, profile.model(), false));
        let (at, root) = (dir.join("disk"), dir.join("mnt"));
        std::fs::create_dir_all(&at)?;
        std::fs::create_dir_all(&root)?;
        let served = Served::start(medium.clone(), &at)?;
        let over = Loop::attach(&served.file())?;
        over.set_rotational(profile.model().has_arm())?;
        if let Some((words, _)) = format {
            kind.format(program, words, over.device())?;
        }
        let (program, image) = (program.to_path_buf(), image.to_path_buf());
        Ok(Session { mount: None, over, served, medium, kind, program, image, root, at })
    }

    /// Where it is mounted.
    pub fn root(&self) -> PathBuf {
        self.root.clone()
    }

    /// What the disk was asked until now, with everything in its write cache on the medium.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn flushed(&self) -> Result<Counters> {
        // fuse2fs writes through the page cache of the device, and its fsync leaves it there.
        if self.kind == Kind::Fuse2fs {
            std::fs::File::open(self.over.device())?.sync_all()?;
        }
        self.medium.flush()?;
        Ok(self.medium.counters())
    }

    /// Mounts it; nothing of it is in memory, as far as that can be brought about.
    ///
    /// # Errors
    /// When mounting fails.
    pub fn mount(&mut self) -> Result<()> {
        cache_check::cool(self.over.device())?;
        self.mount = Some(self.kind.mount(&self.program, "", self.over.device(), &self.root)?);
        Ok(())
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// When that fails.
    pub fn unmount(&mut self) -> Result<()> {
        self.mount.take().map_or(Ok(()), Mounted::unmount)
    }

    /// How the files of the unmounted file system lie.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn layout(&mut self) -> Result<Option<Layout>> {
        if self.kind == Kind::Cffs {
            let mode = OpenMode { read_only: true, direct: Direct::Never, lock: Lock::Auto };
            let device = Arc::new(FileDevice::open(&self.image, mode)?);
            let options = MountOptions::default().read_only(true).background(false);
            let fs = Fs::open(device, None, options)?;
            let layout = Layout::of(&fs);
            fs.close()?;
            return Ok(Some(layout?));
        }
        // fuse2fs has no FIEMAP, and on a log disk the file system does not know where anything is. The addresses of btrfs are those of its own space, in which chunks of the disk follow each other.
        if matches!(self.kind, Kind::Fuse2fs | Kind::CffsLog) || find_program("filefrag").is_none() {
            return Ok(None);
        }
        self.mount()?;
        let layout = of_mount(&self.root);
        self.unmount()?;
        layout.map(Some)
    }

    /// Brings the files of the mounted file system together.
    ///
    /// # Errors
    /// When its program fails.
    pub fn defragment(&self) -> Result<()> {
        self.kind.defragment(&self.program, &self.root)
    }

    /// Checks the unmounted file system, if it is ours.
    ///
    /// # Errors
    /// When something is wrong with it.
    pub fn check(&self) -> Result<()> {
        if self.kind.is_ours() { self.kind.check(&self.program, self.over.device()) } else { Ok(()) }
    }

    /// Takes everything down.
    ///
    /// # Errors
    /// When something would not go.
    pub fn close(mut self) -> Result<()> {
        self.unmount()?;
        self.over.detach()?;
        self.served.stop()?;
        ensure!(!is_mounted(&self.at), "{} is still mounted", self.at.display());
        Ok(())
    }
}
