//! What a layer above, which knows checksums, asks for: a certain copy, and that the others become like it.

use super::state::{Member, Mirror, add};
use cffs_device::{Device, IoKind};
use std::io;

impl Mirror {
    pub(super) fn read_one(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let state = self.state.read();
        let member = state.members.get(copy).filter(|m| m.serves());
        let Some((m, device)) = member.and_then(|m| Some((m, m.device.as_ref()?))) else {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("copy {copy} is missing or out of date")));
        };
        device.read_at(kind, m.data_offset + offset, buf)?;
        self.shadow.apply(m.uuid, offset, buf);
        Ok(())
    }

    /// Writes `good` to all members that have something else in this range, given that one member has it.
    pub(super) fn repair_others(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8]) -> io::Result<bool> {
        if self.read_only {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the mirror was opened for reading only"));
        }
        // From here to the end nobody else writes there. What a write before has changed makes the copy differ.
        let _alone = self.ranges.lock(&[(offset, offset + good.len() as u64)]);
        let mut found = vec![0; good.len()];
        self.read_one(kind, copy, offset, &mut found)?;
        if found != good {
            return Ok(false);
        }
        let outcome = {
            let state = self.state.read();
            state.check()?;
            let mut targets = Vec::new();
            // The copy itself too: what is right there may only be kept in memory.
            for (number, m) in state.members.iter().enumerate() {
                let Some(device) = &m.device else { continue };
                if device.read_at(kind, m.data_offset + offset, &mut found).is_err() || found != good {
                    tracing::warn!(volume = %self.volume, member = %m.name, copy = number, offset, len = good.len(), "a wrong copy is written anew");
                    targets.push(m);
                }
            }
            let write = |m: &Member, device: &dyn Device| device.write_at(kind, m.data_offset + offset, good);
            self.each(&targets, &write)
        };
        self.shadow.forget((offset, offset + good.len() as u64));
        add(&self.counters.repaired, outcome.succeeded.len() as u64);
        if !outcome.failed.is_empty() {
            let concluded = self.conclude(outcome);
            self.state.read().check().and(concluded.or(Ok(())))?;
        }
        Ok(true)
    }
}
