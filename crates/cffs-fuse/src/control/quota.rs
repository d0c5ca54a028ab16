//! Requests about quotas.

use super::asker::Asker;
use super::request::Request;
use cffs::{Caller, Error, Fs, QuotaKind, Result};
use serde_json::Value;

fn json(value: impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::Io(e.into()))
}

/// Executes a request about quotas.
pub(super) fn carry_out(fs: &Fs, asker: Asker, request: &Request) -> Result<Value> {
    match request {
        Request::QuotaKinds => json(fs.quota_kinds()),
        Request::QuotaReport { kind, id } => report(fs, asker, *kind, *id),
        Request::QuotaSet { kind, id, limits } => fs.set_quota(*kind, *id, *limits).and_then(json),
        Request::QuotaGrace { kind, set } => {
            let outcome = set.map_or(Ok(()), |grace| fs.set_quota_grace(*kind, grace));
            outcome.and_then(|()| fs.quota_grace(*kind)).and_then(json)
        }
        Request::QuotaProject { project, files } => give(fs, *project, files).and_then(json),
        _ => Err(Error::Unsupported),
    }
}

fn report(fs: &Fs, asker: Asker, kind: QuotaKind, id: Option<u32>) -> Result<Value> {
    let id = match id {
        _ if asker.may_change() => id,
        None if kind == QuotaKind::User => Some(asker.uid),
        Some(id) if kind == QuotaKind::User && id == asker.uid => Some(id),
        _ => return Err(Error::NotPermitted),
    };
    match id {
        Some(id) => json([fs.quota(kind, id)?]),
        None => json(fs.quota_list(kind)?),
    }
}

fn give(fs: &Fs, project: u32, files: &[(u64, bool)]) -> Result<usize> {
    let mut given = 0;
    for (ino, inherit) in files {
        match fs.set_project(Caller::ROOT, *ino, project, *inherit) {
            Ok(()) => given += 1,
            Err(Error::Stale | Error::NotFound) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(given)
}
