//! What a layer above, which knows checksums, asks for: a certain copy, and that the others become like it.

use super::state::{Member, Mirror, add};
use cffs_device::{Device, IoKind};
use std::io;

impl Mirror {
    /// Copies that can be asked for: one for each member and then, once something was overwritten after a crash, one more for each: the member with what it
    /// had before. Both may be the right one: what is on the members now, if what was overwritten was damaged, and the other way round.
    pub(super) fn count_copies(&self) -> usize {
        let members = self.state.read().members.len();
        if self.shadow.is_used() { members * 2 } else { members }
    }

    pub(super) fn read_one(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let not_found = |what| Err(io::Error::new(io::ErrorKind::NotFound, format!("copy {copy} {what}")));
        let state = self.state.read();
        let all = state.members.len();
        let (number, is_kept) = if copy < all { (copy, false) } else { (copy - all, true) };
        let member = state.members.get(number).filter(|m| m.serves());
        let Some((m, device)) = member.and_then(|m| Some((m, m.device.as_ref()?))) else {
            return not_found("is missing or out of date");
        };
        if is_kept && !self.shadow.has(m.uuid, (offset, offset + buf.len() as u64)) {
            return not_found("has nothing that was overwritten here");
        }
        device.read_at(kind, m.data_offset + offset, buf)?;
        if is_kept {
            self.shadow.apply(m.uuid, offset, buf);
        }
        Ok(())
    }

    /// Writes `good` to all members that have something else in this range, given that one member has it.
    pub(super) fn repair_others(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8]) -> io::Result<bool> {
        Ok(self.repair_counted(kind, copy, offset, good)?.is_some())
    }

    /// The same. Returns to how many members it was written.
    pub(super) fn repair_counted(
        &self,
        kind: IoKind,
        copy: usize,
        offset: u64,
        good: &[u8],
    ) -> io::Result<Option<u64>> {
        if self.read_only {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the mirror was opened for reading only"));
        }
        // From here to the end nobody else writes there. What a write before has changed makes the copy differ.
        let _alone = self.ranges.lock(&[(offset, offset + good.len() as u64)]);
        let mut found = vec![0; good.len()];
        self.read_one(kind, copy, offset, &mut found)?;
        if found != good {
            return Ok(None);
        }
        let outcome = {
            let state = self.state.read();
            state.check()?;
            let mut targets = Vec::new();
            // The copy itself too: what is right there may only be kept in memory.
            for (number, m) in state.members.iter().enumerate() {
                let Some(device) = &m.device else { continue };
                if device.read_at(kind, m.data_offset + offset, &mut found).is_err() || found != good {
                    if self.counters.may_log() {
                        tracing::warn!(volume = %self.volume, member = %m.name, copy = number, offset, len = good.len(), "a wrong copy is written anew");
                    }
                    targets.push(m);
                }
            }
            let write = |m: &Member, device: &dyn Device| device.write_at(kind, m.data_offset + offset, good);
            self.each(&targets, &write)
        };
        self.shadow.forget((offset, offset + good.len() as u64));
        let written = outcome.succeeded.len() as u64;
        add(&self.counters.repaired, written);
        if !outcome.failed.is_empty() {
            let concluded = self.conclude(outcome);
            self.state.read().check().and(concluded.or(Ok(())))?;
        }
        Ok(Some(written))
    }
}
