//! What commands work on that take a mounted file system as well as an image.

use crate::image::{Image, LogArgs};
use anyhow::anyhow;
use cffs::Fs;
use cffs::device::OpenMode;
use cffs_fuse::control::Control;
use std::path::Path;
use std::sync::Arc;

/// A file system to change.
pub enum MountOrImage {
    /// Mounted: the process that serves it does the work.
    Mounted(Control),
    /// Not mounted.
    Image(Box<Image>),
}

impl MountOrImage {
    /// A directory is that of a mount, anything else an image.
    pub fn open(path: &Path, log: &LogArgs) -> anyhow::Result<MountOrImage> {
        Self::open_as(path, log, OpenMode::READ_WRITE)
    }

    /// The same, for what may only look into an image.
    pub fn open_as(path: &Path, log: &LogArgs, mode: OpenMode) -> anyhow::Result<MountOrImage> {
        if path.is_dir() {
            return Ok(MountOrImage::Mounted(Control::open(path)?));
        }
        let opened = Image::open(path, log, mode);
        opened.map(|image| MountOrImage::Image(Box::new(image))).map_err(|e| {
            let text = e.to_string();
            if text.contains("it is mounted on") {
                anyhow!("{e:#}, or name that directory instead of the image")
            } else if text.contains("of it is mounted on") {
                e
            } else if text.contains("in use") {
                anyhow!("{e:#}; if it is mounted, name the directory that it is mounted on")
            } else {
                e
            }
        })
    }
}

/// Opens the file system of an image for something that is not a mount, alone.
pub fn engine(image: Image) -> anyhow::Result<Arc<Fs>> {
    image.mount(cffs::MountOptions::default().background(false))
}
