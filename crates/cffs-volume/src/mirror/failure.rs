//! A member that fails is dropped.

use super::state::{Member, Mirror, Outcome, State, add};
use crate::superblock::Uuid;
use std::io;

/// All others begin where the new source is: regions that may differ from it are to be copied.
fn choose_source(state: &mut State) {
    if state.members.iter().any(|m| m.serves() && m.stale.is_empty()) {
        return;
    }
    let Some(source) = state.members.iter().position(Member::serves) else { return };
    let stale = state.members[source].stale.clone();
    state.members.iter_mut().for_each(|m| m.stale.insert_all(&stale));
    state.members[source].stale.clear();
}

/// The error once more, with the number that the system gave it.
fn duplicate(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

impl Mirror {
    /// Takes members that have failed out of the mirror. Says whether one of them was in sync, so that this is to be recorded.
    pub(super) fn detach(&self, state: &mut State, failed: &[(Uuid, io::Error)]) -> bool {
        let mut dropped = false;
        for m in &mut state.members {
            let Some((_, error)) = failed.iter().find(|(uuid, _)| *uuid == m.uuid) else { continue };
            if m.device.take().is_none() {
                continue;
            }
            if m.in_sync {
                // Its superblock has the last generation that it took, or the one after it.
                (m.in_sync, dropped) = (false, true);
                add(&self.counters.dropped, 1);
                tracing::error!(volume = %self.volume, member = %m.name, %error, "a member of the mirror failed and is no longer used: replace it");
            } else {
                tracing::error!(volume = %self.volume, member = %m.name, %error, "a member failed before it was filled");
            }
        }
        if dropped {
            choose_source(state);
        }
        dropped
    }

    /// Takes the members that have failed a request out of the mirror, and records it on the others. The last one stays, whatever it says.
    pub(super) fn drop_members(&self, state: &mut State, mut failed: Vec<(Uuid, io::Error)>) -> io::Result<()> {
        let serving = state.serving();
        let has_failed = |m: &&Member| failed.iter().any(|(uuid, _)| *uuid == m.uuid);
        if serving.iter().all(has_failed)
            && let Some(stays) = serving.first().map(|m| m.uuid)
        {
            failed.retain(|(uuid, _)| *uuid != stays);
        }
        if self.detach(state, &failed) { self.record(state, None) } else { state.check() }
    }

    /// Drops who has failed. The request has succeeded if a member that still serves has performed it.
    pub(super) fn conclude(&self, outcome: Outcome) -> io::Result<()> {
        let Outcome { succeeded, failed } = outcome;
        if failed.is_empty() {
            let none = || io::Error::other("no member of the mirror is there");
            return if succeeded.is_empty() { Err(none()) } else { Ok(()) };
        }
        let first = duplicate(&failed[0].1);
        let mut state = self.state.write();
        self.drop_members(&mut state, failed)?;
        if state.serving().iter().any(|m| succeeded.contains(&m.uuid)) { Ok(()) } else { Err(first) }
    }
}
