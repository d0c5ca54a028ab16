//! `cffs grow`: makes a file system larger, mounted or not.

use crate::image::{EngineResultExt, Image, LogArgs};
use crate::mount_or_image::{MountOrImage, engine};
use crate::size::{human, parse_size};
use crate::text::print_json;
use anyhow::{Context, bail};
use cffs::Grown;
use cffs_fuse::control::Request;
use clap::Args;
use std::path::PathBuf;

/// Make a file system larger, also while it is mounted
///
/// Takes up what its device or image has become larger by. An image in a file is made longer itself with --size. Nothing
/// is ever made smaller. An image with the log layout stores more then, and the file system on it keeps its size. A rest too small for the header of an allocation group stays unused.
#[derive(Args, Debug)]
pub struct GrowArgs {
    /// Size of the file system: an image in a file is made that long; a device must have as much
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Directory of a mount, or image
    #[arg(value_name = "DIR|IMAGE")]
    path: PathBuf,
}

fn grow_file_system(image: Image, size: Option<u64>, name: &str) -> anyhow::Result<Grown> {
    let fs = engine(image)?;
    let grown = fs.grow(size).about(|| name);
    let closed = fs.close().context(name.to_owned());
    let grown = grown?;
    closed?;
    Ok(grown)
}

/// Runs the subcommand.
pub fn run(args: &GrowArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    let name = args.path.display().to_string();
    let grown: Grown = match MountOrImage::open(&args.path, &args.log)? {
        MountOrImage::Mounted(control) => control.call(&Request::Grow { size: args.size })?,
        MountOrImage::Image(image) if image.volume.is_some() => {
            bail!("{name}: the members of a volume keep their size: make a new one of larger ones, and copy the files")
        }
        MountOrImage::Image(image) => match &image.log_disk {
            Some(disk) => cffs_fuse::grow_log_disk(disk, args.size).about(|| &name)?,
            None => grow_file_system(*image, args.size, &name)?,
        },
    };
    if args.json {
        print_json(&serde_json::to_value(grown)?)?;
    } else if grown.from == grown.to {
        println!("{name}: has {} already; nothing to gain", human(grown.to));
    } else {
        println!("{name}: {} (was {})", human(grown.to), human(grown.from));
    }
    Ok(0)
}
