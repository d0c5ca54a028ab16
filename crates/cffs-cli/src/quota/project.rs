//! `cffs quota project`: a tree becomes a project's.

use crate::image::{EngineResultExt, ImagePath, LogArgs, open_read_write};
use anyhow::Context;
use cffs::path::resolve;
use cffs::{Caller, FileType, Fs};
use cffs_fuse::control::{Control, Request};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Files in one request to a mount.
const BATCH: usize = 400;

pub fn run(project: u32, path: &Path, log: &LogArgs) -> anyhow::Result<u8> {
    if path.is_dir() {
        return on_mount(project, path);
    }
    let at = ImagePath::parse(path.as_os_str());
    let fs = open_read_write(&at.image, log)?;
    let result = in_image(&fs, project, &at);
    fs.close().about(|| at.image.display().to_string())?;
    result?;
    Ok(0)
}

fn on_mount(project: u32, top: &Path) -> anyhow::Result<u8> {
    let control = Control::open(top)?;
    let device = std::fs::metadata(top).with_context(|| top.display().to_string())?.dev();
    let mut batch = Vec::new();
    // Directories first of what is in them: what is made meanwhile belongs to the project already.
    let mut todo = vec![top.to_owned()];
    let send = |batch: &mut Vec<(u64, bool)>| -> anyhow::Result<()> {
        let files = std::mem::take(batch);
        control.call::<usize>(&Request::QuotaProject { project, files })?;
        Ok(())
    };
    while let Some(dir) = todo.pop() {
        let about = || dir.display().to_string();
        let meta = std::fs::symlink_metadata(&dir).with_context(about)?;
        if meta.dev() != device {
            continue; // another file system is mounted here
        }
        batch.push((meta.ino(), project != 0));
        send(&mut batch)?;
        for entry in std::fs::read_dir(&dir).with_context(about)? {
            let entry = entry.with_context(about)?;
            if entry.file_type().with_context(about)?.is_dir() {
                todo.push(entry.path());
            } else {
                batch.push((entry.metadata().with_context(about)?.ino(), false));
            }
            if batch.len() >= BATCH {
                send(&mut batch)?;
            }
        }
        send(&mut batch)?;
    }
    Ok(0)
}

fn in_image(fs: &Fs, project: u32, at: &ImagePath) -> anyhow::Result<()> {
    let top = resolve(fs, &at.path).about(|| at.display())?;
    let mut todo = vec![(top.ino, top.file_type)];
    while let Some((ino, file_type)) = todo.pop() {
        let is_dir = file_type == FileType::Directory;
        fs.set_project(Caller::ROOT, ino, project, is_dir && project != 0).about(|| at.display())?;
        if is_dir {
            fs.readdir(ino, 0, false, &mut |e| {
                todo.push((e.ino, e.file_type));
                true
            })
            .about(|| at.display())?;
        }
    }
    fs.forget(top.ino, 1);
    Ok(())
}
