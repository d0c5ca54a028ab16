//! The log before a repair: replayed, or emptied if it cannot be replayed.

use super::session::Session;
use super::start;
use crate::check::Class;
use crate::check::recovered::lost_header;
use crate::error::{Error, Result};
use crate::format::log::LogHeader;
use crate::format::superblock::{INCOMPAT_EXTERNAL_LOG, State};
use crate::format::{Geometry, Superblock};
use crate::journal::recovery::replay;
use crate::journal::{log_extent, reset_headers};
use crate::superblocks::write_superblock;
use cffs_buf::AlignedBuf;
use cffs_device::{Device, IoKind, OverlayDevice};
use std::sync::Arc;

/// Replays the log and marks the file system as clean. That is all that is necessary if a check has found nothing
/// wrong, or after a crash of a mount with a journal. Returns the number of transactions replayed.
///
/// # Errors
///
/// There is no good superblock, the log cannot be replayed or is on a device that was not given, or a device fails.
pub fn recover_log(dev: &dyn Device, log_dev: Option<&dyn Device>) -> Result<u64> {
    let mut sb = crate::superblocks::read_superblock(dev)?;
    start::writable(&sb)?;
    let g = Geometry::new(&sb)?;
    if (sb.incompat & INCOMPAT_EXTERNAL_LOG != 0) != log_dev.is_some() {
        return Error::invalid("the log device is missing, or one was given for a file system with its log inside");
    }
    let summary = replay(dev, log_dev, &sb, &g)?;
    let state = if summary.damaged.is_empty() { State::Clean } else { State::Error };
    if sb.state != state {
        dev.flush()?;
        sb.state = state;
        write_superblock(dev, &g, &sb)?;
        dev.flush()?;
    }
    match summary.damaged.first() {
        None => Ok(summary.transactions),
        Some(block) => {
            let n = summary.damaged.len();
            Err(crate::format::Corrupt(format!(
                "{n} blocks that the log has changes of are damaged, block {block} the first"
            ))
            .into())
        }
    }
}

/// Replays the log, or makes it empty if it cannot be replayed.
pub(super) fn empty_log(
    session: &mut Session<'_>,
    dev: &Arc<dyn Device>,
    external: Option<&Arc<dyn Device>>,
    sb: &Superblock,
    g: &Geometry,
    now: i64,
) -> Result<(LogHeader, u64)> {
    let log: &dyn Device = external.map_or(&**dev, |l| &**l);
    if sb.state == State::Clean
        && start::log_header(log, sb).is_ok()
        && let Some(what) = lost_header(log, sb)?
    {
        // Replaying does so.
        session.must(Class::LogHeader, "log", what, "write it anew")?;
    }
    let mut unreadable = false;
    let what = match start::log_header(log, sb) {
        Err(what) => what,
        Ok(_) => match replay(&**dev, external.map(|l| &**l), sb, g) {
            Ok(summary) => return Ok((summary.header, summary.transactions)),
            Err(Error::Corrupt(c)) => c.0,
            // A temporary error must not cost the contents of the log, so it is read again. What cannot be read then is
            // lost.
            Err(Error::Io(_)) => match replay_in_memory(dev, external, sb, g) {
                Err(e @ (Error::Io(_) | Error::Corrupt(_))) => {
                    unreadable = true;
                    e.to_string()
                }
                Err(e) => return Err(e),
                Ok(()) => {
                    return Err(Error::Io(std::io::Error::other(
                        "the device failed while the log was replayed: try again",
                    )));
                }
            },
            Err(e) => return Err(e),
        },
    };
    session.must(Class::LogHeader, "log", what, "make it empty; changes that are in it alone are lost")?;
    if unreadable {
        // Writing gives a device the chance to remap bad sectors. The next mount reads the log.
        let (at, len) = log_extent(sb);
        let zeros = AlignedBuf::zeroed(1 << 20);
        for from in (0..len).step_by(zeros.len()) {
            let n = (len - from).min(zeros.len() as u64) as usize;
            log.write_at(IoKind::Log, at + from, &zeros[..n])?;
        }
        log.flush()?;
    }
    Ok((reset_headers(log, sb, 0, (now / 1000).max(1) as u64)?, 0))
}

/// Whether the log, and all that it changes, can be read.
fn replay_in_memory(
    dev: &Arc<dyn Device>,
    external: Option<&Arc<dyn Device>>,
    sb: &Superblock,
    g: &Geometry,
) -> Result<()> {
    let over = OverlayDevice::new(dev.clone());
    let log = external.map(|log| OverlayDevice::new(log.clone()));
    replay(&over, log.as_ref().map(|l| l as &dyn Device), sb, g).map(drop)
}
