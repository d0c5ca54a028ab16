//! `cffs-lab layout`: how the files of an image or of a mounted file system lie.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use cffs::device::{Device, Direct, FileDevice, Lock, OpenMode};
use cffs::{Fs, MountOptions};

use super::{CLASSES, Layout, map};

/// Arguments of `cffs-lab layout`.
#[derive(clap::Args)]
pub struct Args {
    /// A cffs image, or a directory of a mounted file system of the kernel (read through FIEMAP, with filefrag)
    path: PathBuf,
    /// Write a map of the disk as SVG to this file
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Parts of the map
    #[arg(long, default_value_t = 4096)]
    cells: u64,
}

/// Runs the subcommand.
///
/// # Errors
/// When the image or the directory cannot be read.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (layout, bytes) = if args.path.is_dir() { of_mount(&args.path)? } else { of_image(&args.path)? };
    let files: usize = layout.dirs.iter().map(|dir| dir.files.len()).sum();
    println!("{files} files in {} directories", layout.dirs.len());
    println!("layout score by file size in blocks of 4 KiB:");
    for (i, (share, blocks)) in layout.score().into_iter().enumerate() {
        let class = match CLASSES.get(i) {
            Some(&u64::MAX) => "more".to_string(),
            Some(most) => format!("to {most}"),
            None => "all".to_string(),
        };
        if blocks > 0 {
            println!("  {class:8} {share:5.1}% of {blocks} blocks follow their predecessor");
        }
    }
    let a = layout.adjacency();
    println!("files that begin where the one before them in their directory ends:");
    println!("  {:5.1}% as listed, {:.1}% in alphabetical order, {:.1}% by address", a.listed, a.alphabetical, a.best);
    println!("  {:5.1}% of directories are followed by the first file they list", a.directory);
    if let Some(path) = &args.svg {
        let (cell, owners) = layout.map(bytes, args.cells.max(1));
        let title = args.path.display().to_string();
        // A file of its own has to say what it is.
        let svg = map::svg(&title, cell, &owners).replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1);
        fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn of_image(path: &Path) -> Result<(Layout, u64)> {
    let mode = OpenMode { read_only: true, direct: Direct::Never, lock: Lock::Auto };
    let device = Arc::new(FileDevice::open(path, mode).with_context(|| format!("cannot open {}", path.display()))?);
    let fs = Fs::open(device.clone(), None, MountOptions::default().read_only(true).background(false))
        .with_context(|| format!("cannot read {}", path.display()))?;
    let layout = Layout::of(&fs);
    fs.close()?;
    Ok((layout?, device.len()))
}

fn of_mount(path: &Path) -> Result<(Layout, u64)> {
    let stat = rustix::fs::statvfs(path).with_context(|| format!("cannot use {}", path.display()))?;
    Ok((super::of_mount(path)?, stat.f_blocks * stat.f_frsize))
}
