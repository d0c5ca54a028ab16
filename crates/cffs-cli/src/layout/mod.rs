//! `cffs layout`: where the files of each directory lie, as a page to look into.

mod page;

use crate::image::{Image, LogArgs};
use crate::text::print_json;
use anyhow::Context;
use cffs::MountOptions;
use cffs::device::OpenMode;
use cffs::layout::{Layout, Listed};
use cffs_fuse::control::{Control, ControlError, Request};
use clap::Args;
use rustix::io::Errno;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Show where the files of each directory lie
///
/// Writes a page for a browser: a map of the device, to zoom and look into, with a colour for each directory, and a table of the
/// directories with the number of runs in which their files lie. It needs no network. It has some 60 bytes for each file. Of a mount
/// it takes root, or the user who mounted.
#[derive(Args, Debug)]
pub struct LayoutArgs {
    /// Where the page goes; without it only the figures are printed
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Directory of a mount (any in it), or image
    #[arg(value_name = "DIR|IMAGE")]
    path: PathBuf,
}

/// Runs the subcommand.
pub fn run(args: &LayoutArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    let (title, bytes, layout) = if args.path.is_dir() { of_mount(&args.path)? } else { of_image(args)? };
    let files: usize = layout.dirs.iter().map(|dir| dir.files.len()).sum();
    let score = layout.score().last().map_or(0.0, |(share, _)| *share);
    let adjacency = layout.adjacency();
    if args.json {
        print_json(&json!({
            "files": files,
            "directories": layout.dirs.len(),
            "score": score,
            "adjacent_as_listed": adjacency.listed,
            "adjacent_by_address": adjacency.best,
        }))?;
    } else {
        println!("{files} files in {} directories", layout.dirs.len());
        println!("{score:.1}% of the blocks of files follow their predecessor");
        println!("{:.1}% of files begin where the one listed before them ends", adjacency.listed);
    }
    if let Some(path) = &args.output {
        std::fs::write(path, page::page(&title, bytes, &layout)).with_context(|| path.display().to_string())?;
    }
    Ok(0)
}

fn of_image(args: &LayoutArgs) -> anyhow::Result<(String, u64, Layout)> {
    let image = Image::open(&args.path, &args.log, OpenMode::READ_ONLY)?;
    let bytes = image.geometry.total_bytes();
    let fs = image.mount(MountOptions::default().read_only(true).background(false))?;
    let layout = Layout::of(&fs);
    fs.close()?;
    Ok((args.path.display().to_string(), bytes, layout?))
}

fn of_mount(dir: &Path) -> anyhow::Result<(String, u64, Layout)> {
    let control = Control::open(dir)?;
    // What is not written back has no place.
    control.call::<()>(&Request::Sync)?;
    let info = control.info()?;
    let superblock = cffs::Superblock::decode(&info.superblock)?;
    let layout = Layout::walk(|directory, path| {
        match control.call::<Listed>(&Request::Layout { directory, path: path.to_owned() }) {
            // It was removed meanwhile.
            Err(ControlError::Refused { refusal, .. }) if refusal.errno == Errno::STALE.raw_os_error() => {
                Ok(Listed { path: path.to_owned(), ..Listed::default() })
            }
            listed => listed,
        }
    })?;
    Ok((info.image, superblock.total_blocks << superblock.block_shift, layout))
}
