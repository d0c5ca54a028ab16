//! `cffs trim`: tells the device what is free.

use crate::image::{EngineResultExt, LogArgs};
use crate::mount_or_image::{MountOrImage, engine};
use crate::size::{human, parse_size};
use crate::text::print_json;
use anyhow::Context;
use cffs::TrimRange;
use cffs_fuse::control::Request;
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// Give free space back to the device: to a thin volume, an SSD, or the disk that holds the image
///
/// An image in a file gets holes where nothing is stored. `fstrim DIR` does the same for a mount.
#[derive(Args, Debug)]
pub struct TrimArgs {
    /// Pass over free runs that are shorter
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    min_len: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Directory of a mount, or image
    #[arg(value_name = "DIR|IMAGE")]
    path: PathBuf,
}

/// Runs the subcommand.
pub fn run(args: &TrimArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    let name = args.path.display().to_string();
    let range = TrimRange { min_len: args.min_len, ..TrimRange::default() };
    let bytes: u64 = match MountOrImage::open(&args.path, &args.log)? {
        MountOrImage::Mounted(control) => control.call(&Request::Trim(range))?,
        MountOrImage::Image(image) => {
            let fs = engine(*image)?;
            let bytes = fs.trim(range).about(|| &name);
            let closed = fs.close().context(name.clone());
            let bytes = bytes?;
            closed?;
            bytes
        }
    };
    if args.json {
        print_json(&json!({ "bytes": bytes }))?;
    } else {
        println!("{name}: {} of free space given back", human(bytes));
    }
    Ok(0)
}
