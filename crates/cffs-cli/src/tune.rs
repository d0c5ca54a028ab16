//! `cffs tune`: changes settings in the superblock.

use crate::image::{EngineResultExt, LogArgs};
use crate::mkfs::{parse_reserve, parse_uuid};
use crate::mount_options::check_defaults;
use crate::mount_or_image::MountOrImage;
use crate::text::{print_json, printable};
use anyhow::Context;
use cffs::{Superblock, Tune};
use cffs_fuse::control::{Request, Tuned};
use clap::Args;
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// Change label, reserve, default mount options or uuid
///
/// All but the uuid also while the file system is mounted; a new reserve counts at once, new mount options from the next
/// mount on. Prints what has changed.
#[derive(Args, Debug)]
#[group(required = true, multiple = true, id = "settings", args = ["label", "reserve", "mount_options", "uuid"])]
pub struct TuneArgs {
    /// Name of the file system, at most 64 bytes; an empty one takes it away
    #[arg(short = 'L', long)]
    label: Option<String>,
    /// Share of the space that only root may use, in percent, at most 50
    #[arg(long, value_name = "PERCENT", value_parser = parse_reserve)]
    reserve: Option<u32>,
    /// Mount options that hold unless those of the mount say otherwise, such as noatime,commit=30; at most 128 bytes; empty for
    /// none
    #[arg(short = 'o', long, value_name = "OPTIONS", value_parser = check_defaults)]
    mount_options: Option<String>,
    /// Identity; "random" for a new one. Not while it is mounted
    #[arg(short = 'U', long, value_parser = parse_new_uuid)]
    uuid: Option<[u8; 16]>,
    /// Print the settings as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Image, or directory of a mount
    #[arg(value_name = "IMAGE|DIR")]
    path: PathBuf,
}

fn parse_new_uuid(text: &str) -> Result<[u8; 16], String> {
    if text != "random" {
        return parse_uuid(text);
    }
    cffs::mkfs::random_uuid().map_err(|e| e.to_string())
}

/// Runs the subcommand.
pub fn run(args: &TuneArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    let name = args.path.display().to_string();
    let change = Tune::default()
        .label(args.label.clone())
        .reserve_bp(args.reserve)
        .mount_options(args.mount_options.clone())
        .uuid(args.uuid);
    let (before, after) = match MountOrImage::open(&args.path, &args.log)? {
        MountOrImage::Mounted(control) => {
            let tuned: Tuned = control.call(&Request::Tune(change))?;
            let decode = |bytes: &[u8]| Superblock::decode(bytes).with_context(|| name.clone());
            (decode(&tuned.before)?, decode(&tuned.after)?)
        }
        MountOrImage::Image(image) => cffs::tune(&*image.dev, &change).about(|| &name)?,
    };
    let (before, after) = (settings(&before), settings(&after));
    if args.json {
        print_json(&after.into())?;
        return Ok(0);
    }
    let changed: Vec<_> = after.iter().filter(|(key, value)| before.get(*key) != Some(value)).collect();
    if changed.is_empty() {
        println!("{name}: nothing to change");
    }
    for (key, value) in changed {
        println!("{name}: {} {} (was {})", key.replace('_', " "), shown(value), shown(&before[key]));
    }
    Ok(0)
}

fn settings(sb: &Superblock) -> Map<String, Value> {
    let all = json!({
        "label": sb.label_str(),
        "reserve_percent": f64::from(sb.reserve_bp) / 100.0,
        "mount_options": sb.mount_options_str(),
        "uuid": sb.uuid_str(),
    });
    match all {
        Value::Object(all) => all,
        _ => Map::new(),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "none".into(),
        Value::String(text) => printable(text.as_bytes()),
        other => other.to_string(),
    }
}
