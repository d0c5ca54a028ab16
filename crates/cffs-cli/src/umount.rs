//! `cffs umount`: unmounts, and returns when everything is on the image.
//!
//! umount(2) alone comes back from a mount of type `fuse` while the process that served it still writes; only for type
//! `fuseblk` it waits. As `umount.fuse.cffs` beside mount(8)'s helpers this is also what umount(8) calls when it looks the
//! mount up by its type; for an absolute path it may not, and then who opens the image next waits (see
//! [`crate::unmount_wait`]).

use crate::exit::{self, ExitCodeExt, with_code};
use anyhow::{Context, anyhow};
use cffs_fuse::control::{Control, Request};
use clap::Args;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Unmount a cffs, and return when everything is on the image
#[derive(Args, Debug)]
pub struct UmountArgs {
    /// Directory that it is mounted on
    dir: PathBuf,
    /// End the mount even if the process that serves it does not answer
    #[arg(short)]
    force: bool,
    /// Take it out of the directory tree now, end it when it is no longer in use; does not wait
    #[arg(short)]
    lazy: bool,
    /// Do not write to /etc/mtab; nothing does
    #[arg(short, hide = true)]
    no_mtab: bool,
    /// Mount read-only if it cannot be unmounted
    #[arg(short, hide = true)]
    read_only: bool,
    /// Say more
    #[arg(short, hide = true)]
    verbose: bool,
    /// Mount namespace
    #[arg(short = 'N', value_name = "NS", hide = true)]
    namespace: Option<OsString>,
    /// Type of the file system
    #[arg(short = 't', value_name = "TYPE", hide = true)]
    fstype: Option<String>,
}

/// Runs the subcommand.
pub fn run(args: &UmountArgs) -> anyhow::Result<u8> {
    crate::log::start(u8::from(args.verbose));
    let name = args.dir.display();
    if let Some(namespace) = &args.namespace {
        crate::mount::enter_namespace(namespace).exit_code(exit::mount::SYSTEM)?;
    }
    if args.force || args.lazy || args.read_only {
        return by_umount(args);
    }
    let failure = write_out(&args.dir)?;
    match cffs_fuse::unmount(&args.dir) {
        Ok(()) => match failure {
            None => Ok(0),
            Some(failure) => Err(with_code(
                exit::mount::FAILED,
                anyhow!(
                    "{name}: unmounted, but it had failed before, and what was not synced until then is lost: {failure}"
                ),
            )),
        },
        Err(e) => {
            let advice = match e.kind() {
                ErrorKind::ResourceBusy => ": a program uses it; `fuser -m` or `lsof` on the directory shows which",
                ErrorKind::NotConnected => ": the process that served it is gone: remove the mount with -l",
                _ => "",
            };
            let code = if e.kind() == ErrorKind::PermissionDenied { exit::mount::USAGE } else { exit::mount::FAILED };
            Err(with_code(code, anyhow!("{name}: cannot unmount: {e}{advice}")))
        }
    }
}

/// Has everything written while there is somebody to tell that it cannot be: nobody hears of it from umount(2). An error
/// means that it should stay mounted, since something can still be done; if it has failed for good, returns why.
fn write_out(dir: &Path) -> anyhow::Result<Option<String>> {
    // Whatever else is wrong, unmounting finds it out.
    let Ok(control) = Control::open(dir) else { return Ok(None) };
    let Err(error) = control.call::<()>(&Request::Sync) else { return Ok(None) };
    match control.info() {
        Ok(info) if info.failure.is_some() || info.read_only => Ok(info.failure),
        _ => Err(with_code(
            exit::mount::FAILED,
            anyhow!(
                "{error}: it stays mounted; try again after the cause is removed, or give up what is not written with -f"
            ),
        )),
    }
}

/// What asks for no waiting is done by umount(8) itself, which `-i` keeps from coming back to this helper.
fn by_umount(args: &UmountArgs) -> anyhow::Result<u8> {
    let mut command = Command::new("umount");
    command.arg("-i");
    for (set, flag) in [(args.force, "-f"), (args.lazy, "-l"), (args.read_only, "-r")] {
        if set {
            command.arg(flag);
        }
    }
    let status = command.arg("--").arg(&args.dir).status().context("umount").exit_code(exit::mount::SYSTEM)?;
    Ok(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(exit::mount::SYSTEM))
}
