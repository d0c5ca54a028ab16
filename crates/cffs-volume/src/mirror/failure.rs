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
    /// Takes the members that have failed out of the mirror, and records it on the others. The last one stays, whatever it says.
    pub(super) fn drop_members(&self, state: &mut State, mut failed: Vec<(Uuid, io::Error)>) {
        while !failed.is_empty() {
            let has_failed = |m: &Member| failed.iter().any(|(uuid, _)| *uuid == m.uuid);
            let serving = state.serving();
            let stays = match serving.iter().find(|m| !has_failed(m)) {
                Some(_) => None,
                None => serving.first().map(|m| m.uuid),
            };
            let generation = state.generation;
            let mut dropped = false;
            for m in &mut state.members {
                let Some((_, error)) = failed.iter().find(|(uuid, _)| *uuid == m.uuid) else { continue };
                if m.device.is_none() || Some(m.uuid) == stays {
                    continue;
                }
                m.device = None;
                if m.in_sync {
                    (m.in_sync, m.last_generation, dropped) = (false, generation, true);
                    add(&self.counters.dropped, 1);
                    tracing::error!(volume = %self.volume, member = %m.name, %error, "a member of the mirror failed and is no longer used");
                } else {
                    tracing::error!(volume = %self.volume, member = %m.name, %error, "a member failed before it was filled");
                }
            }
            if !dropped {
                return;
            }
            choose_source(state);
            failed = self.persist(state, None);
            let recorded = state.serving().iter().any(|m| failed.iter().all(|(uuid, _)| *uuid != m.uuid));
            if !recorded {
                state.failed = true;
                tracing::error!(volume = %self.volume, "no member could record that another one was dropped: the mirror has failed");
                return;
            }
        }
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
        self.drop_members(&mut state, failed);
        state.check()?;
        if state.serving().iter().any(|m| succeeded.contains(&m.uuid)) { Ok(()) } else { Err(first) }
    }
}
