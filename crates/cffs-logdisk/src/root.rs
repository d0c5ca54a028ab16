//! The root of the store: where the last checkpoint is, and under which number the log goes on behind it.

use crate::codec::{Fields, PutFields, corrupt};
use crate::store::{NO_SEGMENT, SegmentId, SegmentStore};
use std::io;

const ROOT_MAGIC: u32 = 0x3154_4c43; // "CLT1"

/// The epoch that no batch has. Under a root with it none follows the checkpoint, so none has to be looked for.
pub(crate) const CLOSED_EPOCH: u64 = 0;

/// What the root of the store says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RootRecord {
    /// The batch with the checkpoint.
    pub(crate) segment: SegmentId,
    pub(crate) offset: u32,
    /// Batches behind it count if they have this epoch.
    pub(crate) epoch: u64,
}

impl RootRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32(ROOT_MAGIC);
        out.put_u32(1);
        out.put_u64(self.segment);
        out.put_u32(self.offset);
        out.put_u64(self.epoch);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut f = Fields::new(bytes);
        if f.u32()? != ROOT_MAGIC || f.u32()? != 1 {
            return Err(corrupt("the root of the store is none of a log disk"));
        }
        Ok(RootRecord { segment: f.u64()?, offset: f.u32()?, epoch: f.u64()? })
    }
}

/// The root that the store has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredRoot {
    pub(crate) sequence: u64,
    pub(crate) record: RootRecord,
}

impl StoredRoot {
    /// One without a checkpoint.
    pub(crate) fn none(sequence: u64) -> Self {
        StoredRoot { sequence, record: RootRecord { segment: NO_SEGMENT, offset: 0, epoch: sequence + 1 } }
    }

    /// Makes what was written durable, and then the store have another root.
    pub(crate) fn replace(&mut self, store: &dyn SegmentStore, record: RootRecord) -> io::Result<()> {
        self.sequence = store.replace_root(self.sequence, &record.encode())?;
        self.record = record;
        Ok(())
    }
}
