//! The device as it is after recovery, and what is wrong with the log.

use super::findings::Problems;
use super::report::Class;
use crate::error::{Error, Result};
use crate::format::superblock::{INCOMPAT_EXTERNAL_LOG, State};
use crate::format::{Geometry, Superblock};
use crate::journal::recovery::replay;
use crate::journal::{current_header, read_headers};
use cffs_device::{Device, OverlayDevice};
use std::sync::Arc;

/// The device as it is after recovery, and the number of transactions replayed in memory.
pub(super) fn replayed_view(
    problems: &mut Problems,
    sb: &Superblock,
    g: &Geometry,
    dev: &Arc<dyn Device>,
    log_dev: Option<&Arc<dyn Device>>,
) -> Result<(Arc<dyn Device>, u64)> {
    let external = sb.incompat & INCOMPAT_EXTERNAL_LOG != 0;
    let clean = sb.state == State::Clean;
    let log = match log_dev {
        Some(log) if external => log,
        _ if !external => dev,
        _ if clean => return Ok((dev.clone(), 0)),
        _ => return Error::invalid("not unmounted, and its log is on another device, which was not given"),
    };
    if let Err(e) = current_header(&**log, sb) {
        problems.add(Class::LogHeader, "log", e);
        return Ok((dev.clone(), 0));
    }
    // While mounted one of the two may be half written.
    if clean && let Some(what) = lost_header(&**log, sb)? {
        problems.add(Class::LogHeader, "log", what);
    }
    let view: Arc<dyn Device> = Arc::new(OverlayDevice::new(dev.clone()));
    let log_view = external.then(|| OverlayDevice::new(log.clone()));
    let summary = replay(&*view, log_view.as_ref().map(|d| d as &dyn Device), sb, g)?;
    if clean && summary.transactions > 0 {
        let what = format_args!("{} transactions although the file system was unmounted", summary.transactions);
        problems.add(Class::LogHeader, "log", what);
    }
    Ok((view, summary.transactions))
}

/// What is wrong with one of the two log headers, if something is.
pub(super) fn lost_header(log: &dyn Device, sb: &Superblock) -> Result<Option<String>> {
    let lost = read_headers(log, sb)?.into_iter().find_map(Result::err);
    Ok(lost.map(|e| format!("one of its two headers: {e}")))
}
