//! What the commands for snapshots work on: a mount, or an image, with a log disk.

use crate::image::{Image, LogArgs};
use crate::mount_or_image::MountOrImage;
use anyhow::bail;
use cffs::device::OpenMode;
use cffs_logdisk::LogDisk;
use clap::Args;
use std::path::PathBuf;

/// What the command works on.
#[derive(Args, Debug)]
pub struct Of {
    /// Directory of a mount, or image
    #[arg(value_name = "DIR|IMAGE")]
    path: PathBuf,
}

/// A file system with snapshots.
pub enum Target {
    /// The process that serves the mount works on it.
    Mounted(cffs_fuse::control::Control),
    /// This process does.
    Image(Box<Image>),
}

impl Of {
    /// For messages.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// For changes.
    pub fn open(&self) -> anyhow::Result<Target> {
        self.open_as(OpenMode::READ_WRITE)
    }

    /// For looking: nothing is written to an image, and others may read it too.
    pub fn open_to_read(&self) -> anyhow::Result<Target> {
        self.open_as(OpenMode::READ_ONLY)
    }

    fn open_as(&self, mode: OpenMode) -> anyhow::Result<Target> {
        crate::log::start(0);
        Ok(match MountOrImage::open_as(&self.path, &LogArgs::default(), mode)? {
            MountOrImage::Mounted(control) => Target::Mounted(control),
            MountOrImage::Image(image) => Target::Image(image),
        })
    }
}

/// The log disk of an image, which must be there.
pub fn disk_of<'a>(image: &'a Image, name: &str) -> anyhow::Result<&'a LogDisk> {
    match &image.log_disk {
        Some(disk) => Ok(disk),
        None => {
            bail!("{name}: it has not the log layout, so it has no snapshots: make one with `cffs mkfs --layout=log`")
        }
    }
}
