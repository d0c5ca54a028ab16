//! A clone of a repository on a mount, in which real programs work.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::mounted::LIMIT;
use crate::process::run_command;

/// Bytes of the image.
pub const BYTES: u64 = 1 << 30;
/// Files up to this size are small.
pub const SMALL: u64 = 16 << 10;

/// Makes a clone of a repository on a mount.
///
/// # Errors
/// When git fails.
pub fn clone(from: &Path, root: &Path) -> Result<()> {
    let mut command = Command::new("git");
    command.args(["-c", "safe.directory=*", "clone", "-q", "--no-hardlinks"]).arg(from).arg(root.join("clone"));
    run_command(command, LIMIT)?;
    // The index has times that are finer than those of a file that was just written: the first look rewrites it.
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 1.1; git status"]).current_dir(root.join("clone"));
    run_command(command, LIMIT).map(drop)
}
