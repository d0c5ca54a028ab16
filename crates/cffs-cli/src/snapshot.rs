//! `cffs snapshot`: states of a file system that stay as they are, in the log layout.

use crate::exit::with_code;
use crate::image::{EngineResultExt, Image};
use crate::mount::{self, MountArgs};
use crate::mount_options::Options;
use crate::snapshot_target::{Of, Target, disk_of};
use crate::snapshot_transfer::{self, ReceiveArgs, SendArgs};
use crate::text::{print_json, printable};
use anyhow::{Context, anyhow};
use cffs_fuse::control::Request;
use cffs_fuse::snapshots::{self, Change, Difference, SnapshotEntry};
use clap::{Args, Subcommand, ValueHint};
use std::io::{self, Write};
use std::path::PathBuf;

/// Snapshots of a file system in the log layout, and writable clones of them
///
/// A snapshot is made at once whatever the size, and costs only what changes later. It cannot be changed. For file systems made with `cffs mkfs
/// --layout=log`.
#[derive(Args, Debug)]
pub struct SnapshotArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Make a snapshot
    ///
    /// Of a mount, with everything that was done before.
    Create {
        #[command(flatten)]
        of: Of,
        /// Name: 1 to 255 bytes without slash, comma and line break
        name: String,
    },
    /// Show all snapshots and clones
    List {
        #[command(flatten)]
        of: Of,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete snapshots and clones
    ///
    /// Their space comes back: of a mount in the background, of an image before the command ends.
    Delete {
        #[command(flatten)]
        of: Of,
        /// Names
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Make a writable clone of a snapshot
    Clone {
        #[command(flatten)]
        of: Of,
        /// Name of the snapshot
        name: String,
        /// Name of the clone
        clone: String,
    },
    /// Show what differs between a snapshot and another one, or now
    ///
    /// A line for each name: + added, - removed, M changed. Both trees are read as a whole.
    Diff {
        #[command(flatten)]
        of: Of,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
        /// Name of the earlier snapshot
        from: String,
        /// Name of the later snapshot or clone [default: now]
        to: Option<String>,
    },
    Send(SendArgs),
    Receive(ReceiveArgs),
    /// Mount a snapshot for reading, or a clone
    ///
    /// If the file system is mounted, the process that serves that serves this too, and unmounting that ends it. The same as `cffs mount -o snapshot=NAME IMAGE
    /// DIR`.
    Mount {
        /// Directory of a mount, or image
        #[arg(value_name = "DIR|IMAGE")]
        image: PathBuf,
        /// Name of the snapshot or clone
        name: String,
        /// Directory to mount it on
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// More mount options, separated by commas
        #[arg(short, value_name = "OPTIONS")]
        options: Vec<String>,
    },
}

/// Runs the subcommand.
pub fn run(args: &SnapshotArgs) -> anyhow::Result<u8> {
    match &args.command {
        Command::Create { of, name } => {
            let at = of.name();
            match of.open()? {
                Target::Mounted(control) => {
                    control.call::<u64>(&Request::SnapshotCreate { name: name.clone() })?;
                }
                Target::Image(image) => {
                    snapshots::create(disk_of(&image, &at)?, None, name).about(|| &at)?;
                }
            }
        }
        Command::List { of, json } => {
            let at = of.name();
            let all: Vec<SnapshotEntry> = match of.open_to_read()? {
                Target::Mounted(control) => control.call(&Request::SnapshotList)?,
                Target::Image(image) => snapshots::list(disk_of(&image, &at)?),
            };
            if *json {
                print_json(&serde_json::to_value(all)?)?;
            } else {
                let mut out = io::stdout().lock();
                for e in all {
                    let name = printable(e.name.as_bytes());
                    match e.clone_of {
                        Some(of) => writeln!(out, "{name} (clone of {})", printable(of.as_bytes()))?,
                        None if e.received => writeln!(out, "{name} (received)")?,
                        None => writeln!(out, "{name}")?,
                    }
                }
            }
        }
        Command::Delete { of, names } => {
            let at = of.name();
            match of.open()? {
                Target::Mounted(control) => {
                    for name in names {
                        control.call::<()>(&Request::SnapshotDelete { name: name.clone() })?;
                    }
                }
                Target::Image(image) => {
                    let disk = disk_of(&image, &at)?;
                    names.iter().try_for_each(|name| snapshots::delete(disk, name)).about(|| &at)?;
                    snapshots::finish_deletions(disk).about(|| &at)?;
                }
            }
        }
        Command::Clone { of, name, clone } => {
            let at = of.name();
            match of.open()? {
                Target::Mounted(control) => {
                    control.call::<u32>(&Request::SnapshotClone { name: name.clone(), clone: clone.clone() })?;
                }
                Target::Image(image) => {
                    snapshots::clone(disk_of(&image, &at)?, name, clone).about(|| &at)?;
                }
            }
        }
        Command::Diff { of, json, from, to } => {
            let at = of.name();
            let all: Vec<Difference> = match of.open_to_read()? {
                Target::Mounted(control) => {
                    control.call(&Request::SnapshotDiff { from: from.clone(), to: to.clone() })?
                }
                Target::Image(image) => diff(*image, &at, from, to.as_deref())?,
            };
            if *json {
                print_json(&serde_json::to_value(all)?)?;
            } else {
                print_differences(&all)?;
            }
        }
        Command::Send(args) => return snapshot_transfer::send(args),
        Command::Receive(args) => return snapshot_transfer::receive(args),
        Command::Mount { image, name, dir, options } => {
            if image.is_dir() {
                let parsed = Options::parse(options.iter().map(String::as_str), false);
                let parsed = parsed.map_err(|e| with_code(1, anyhow!("{}: {e}", image.display())))?;
                crate::beside::mount_beside(image, name, &mount::mount_point(dir)?, &parsed)?;
                return Ok(0);
            }
            let mut options = options.clone();
            options.push(format!("snapshot={name}"));
            return mount::run(&MountArgs::of(image, dir, options));
        }
    }
    Ok(0)
}

fn diff(image: Image, at: &str, from: &str, to: Option<&str>) -> anyhow::Result<Vec<Difference>> {
    disk_of(&image, at)?;
    let disk = image.log_disk.clone().context("it has the log layout")?;
    let from = snapshots::open(&disk, from).about(|| at)?;
    let to = match to {
        Some(to) => snapshots::open(&disk, to).about(|| at)?,
        None => image.mount(cffs::MountOptions::default().read_only(true).background(false))?,
    };
    let all = snapshots::differences(&from, &to).about(|| at);
    to.close().about(|| at)?;
    all
}

fn print_differences(all: &[Difference]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for d in all {
        let sign = match d.change {
            Change::Added => '+',
            Change::Removed => '-',
            Change::Changed => 'M',
        };
        writeln!(out, "{sign} {}", crate::text::printable(d.path.as_bytes()))?;
    }
    out.flush()
}
