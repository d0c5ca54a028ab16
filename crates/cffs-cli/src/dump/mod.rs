//! `cffs dump`: prints structures of an image as they stand there.

mod log_disk;
mod print;

use crate::device::open_device;
use crate::disk::disk_of;
use crate::image::{LogArgs, engine_error};
use crate::text::print_json;
use anyhow::anyhow;
use cffs::device::{Device, FileDevice, OpenMode, OverlayDevice};
use cffs::dump::{Dumper, Value, Which, superblocks};
use cffs::format::BlockAddr;
use cffs::{Error, Ino, QuotaKind, Result};
use clap::{Args, Subcommand};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Print structures of an image, field by field
///
/// Shows what is on the image, also where it is damaged: what decodes is printed, what does not is named under
/// "problems". Nothing is written. What is in the log only is not in its place yet: with --replay everything is shown as
/// it is after the next mount.
///
/// A FILE is an inode number, or a path that begins with a slash. Times are nanoseconds since 1970 in JSON; fragments and
/// blocks are counted from the start of the device.
#[derive(Args, Debug)]
pub struct DumpArgs {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    /// As it is after a replay of the log, which is done in memory
    #[arg(long)]
    replay: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Device or image file
    image: PathBuf,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    #[command(flatten)]
    FileSystem(OfFileSystem),
    #[command(flatten)]
    LogDisk(log_disk::What),
}

#[derive(Subcommand, Debug)]
enum OfFileSystem {
    /// The superblock and its copies
    Superblock {
        /// Only the one of this allocation group: 0 is the primary
        group: Option<u64>,
    },
    /// Counters of the file system
    Counters,
    /// Header and bitmap of an allocation group
    Group {
        /// Its number
        group: u64,
    },
    /// Whatever is at a block address
    Block {
        /// Address in blocks
        block: BlockAddr,
    },
    /// A directory: its blocks with entries and the inodes in them, its index
    #[command(visible_alias = "directory")]
    Dir {
        /// Inode number or path
        file: OsString,
    },
    /// An inode
    Inode {
        /// Inode number or path
        file: OsString,
    },
    /// The extents of a file, and the nodes of its extent tree
    Extents {
        /// Inode number or path
        file: OsString,
    },
    /// The extended attributes of a file, and the blocks that hold them
    Xattrs {
        /// Inode number or path
        file: OsString,
    },
    /// The inode locator table
    Locator {
        /// Only the record of this inode
        inode: Option<Ino>,
    },
    /// The external inode table
    External,
    /// A quota file and its records
    Quota {
        /// user, group or project
        #[arg(value_parser = crate::quota::parse_kind)]
        kind: QuotaKind,
    },
    /// The log: its headers, and the transactions that the next mount replays
    Log,
}

fn which(file: &OsStr) -> Result<Which> {
    match file.to_str().and_then(|t| t.parse().ok()) {
        Some(ino) => Ok(Which::Number(ino)),
        None if file.as_bytes().first() == Some(&b'/') => Ok(Which::Path(file.as_bytes().to_vec())),
        None => Error::invalid(format!(
            "{}: neither an inode number nor a path that begins with a slash",
            file.to_string_lossy()
        )),
    }
}

fn dump(dumper: &Dumper<'_>, what: &OfFileSystem) -> Result<Value> {
    match what {
        OfFileSystem::Superblock { group: Some(group) } => dumper.superblock_of(*group),
        OfFileSystem::Superblock { group: None } => Error::invalid("superblocks need no other"),
        OfFileSystem::Counters => Ok(dumper.counters()),
        OfFileSystem::Group { group } => dumper.group(*group),
        OfFileSystem::Block { block } => dumper.block(*block),
        OfFileSystem::Dir { file } => dumper.directory(&which(file)?),
        OfFileSystem::Inode { file } => dumper.inode(&which(file)?),
        OfFileSystem::Extents { file } => dumper.extents(&which(file)?),
        OfFileSystem::Xattrs { file } => dumper.xattrs(&which(file)?),
        OfFileSystem::Locator { inode: None } => dumper.locator(),
        OfFileSystem::Locator { inode: Some(inode) } => dumper.locator_of(*inode),
        OfFileSystem::External => dumper.external(),
        OfFileSystem::Quota { kind } => dumper.quota(*kind),
        OfFileSystem::Log => dumper.log(),
    }
}

/// What is of the file system on an image.
fn of_file_system(args: &DumpArgs, what: &OfFileSystem) -> anyhow::Result<Value> {
    let name = args.image.display().to_string();
    let open = |path: &Path| disk_of(file_of(path)?, path, &args.log).map(|disk| disk.dev);
    let mut dev = open(&args.image)?;
    let mut log_dev = args.log.log_device.as_deref().map(open).transpose()?;
    if let OfFileSystem::Superblock { group: None } = what {
        return Ok(Value::List(superblocks(&*dev)));
    }
    if args.replay {
        dev = Arc::new(OverlayDevice::new(dev));
        log_dev = log_dev.map(|d| Arc::new(OverlayDevice::new(d)) as Arc<dyn Device>);
    }
    let dumper = Dumper::open(&*dev, log_dev.as_deref())
        .map_err(|e| anyhow!("{}; `cffs dump {name} superblock` shows what is there", engine_error(e, &name)))?;
    if args.replay {
        dumper.replay().map_err(|e| anyhow!("{name}: {e}: the log cannot be replayed; leave out --replay"))?;
    }
    for note in dumper.notes() {
        eprintln!("cffs: {name}: {note}");
    }
    dump(&dumper, what).map_err(|e| anyhow!("{name}: {e}"))
}

fn file_of(path: &Path) -> anyhow::Result<FileDevice> {
    let file = open_device(path, OpenMode::READ_ONLY)?;
    // Whatever its blocks are, which may be all that is known of it.
    file.use_buffered()?;
    Ok(file)
}

/// Runs the subcommand.
pub fn run(args: &DumpArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    let value = match &args.what {
        What::FileSystem(what) => of_file_system(args, what)?,
        What::LogDisk(what) => log_disk::dump(file_of(&args.image)?, &args.image, &args.log, what)?,
    };
    if args.json {
        print_json(&json!(value))?;
    } else {
        let mut out = io::BufWriter::new(io::stdout().lock());
        print::print(&mut out, &value)?;
        out.flush()?;
    }
    Ok(0)
}
