//! Where the parts of an image are: options of all commands that look into one.

use cffs::device::Observed;
use std::path::PathBuf;

/// Options of all commands that look into an image.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct LogArgs {
    /// File or device that holds the log of a file system made with --log-device
    #[arg(long, value_name = "FILE")]
    pub log_device: Option<PathBuf>,
    /// File, device or directory in which to look for the other members of a volume; can be given several times [default: the directory
    /// of the one that is named, or all block devices]
    #[arg(long, value_name = "PATH")]
    pub members: Vec<PathBuf>,
    /// Use a mirror though members are missing that are up to date
    #[arg(long)]
    pub degraded: bool,
    /// Open also a log disk that was rebuilt and whose lost blocks are not marked yet.
    #[arg(skip)]
    pub unmarked: bool,
    /// Who learns of the requests to the disks of a log disk or a volume, from the first one on
    #[arg(skip)]
    pub observed: Observed,
}
