//! `cffs dump`: prints structures of an image as they stand there.

mod print;

use crate::device::open_device;
use crate::disk::disk_of;
use crate::image::{LogArgs, engine_error};
use crate::text::print_json;
use anyhow::anyhow;
use cffs::device::{Device, OpenMode, OverlayDevice};
use cffs::dump::{Dumper, Value, Which, superblocks};
use cffs::format::BlockAddr;
use cffs::{Error, Ino, QuotaKind, Result};
use clap::{Args, Subcommand};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
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

fn dump(dumper: &Dumper<'_>, what: &What) -> Result<Value> {
    match what {
        What::Superblock { group: Some(group) } => dumper.superblock_of(*group),
        What::Superblock { group: None } => Error::invalid("superblocks need no other"),
        What::Counters => Ok(dumper.counters()),
        What::Group { group } => dumper.group(*group),
        What::Block { block } => dumper.block(*block),
        What::Dir { file } => dumper.directory(&which(file)?),
        What::Inode { file } => dumper.inode(&which(file)?),
        What::Extents { file } => dumper.extents(&which(file)?),
        What::Xattrs { file } => dumper.xattrs(&which(file)?),
        What::Locator { inode: None } => dumper.locator(),
        What::Locator { inode: Some(inode) } => dumper.locator_of(*inode),
        What::External => dumper.external(),
        What::Quota { kind } => dumper.quota(*kind),
        What::Log => dumper.log(),
    }
}

/// Runs the subcommand.
pub fn run(args: &DumpArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    let name = args.image.display().to_string();
    let open = |path: &std::path::Path| -> anyhow::Result<Arc<dyn Device>> {
        let file = open_device(path, OpenMode::READ_ONLY)?;
        // Whatever its blocks are, which may be all that is known of it.
        file.use_buffered()?;
        Ok(disk_of(file, path, &args.log)?.dev)
    };
    let mut dev = open(&args.image)?;
    let mut log_dev = args.log.log_device.as_deref().map(open).transpose()?;
    let value = if let What::Superblock { group: None } = args.what {
        Value::List(superblocks(&*dev))
    } else {
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
        dump(&dumper, &args.what).map_err(|e| anyhow!("{name}: {e}"))?
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
