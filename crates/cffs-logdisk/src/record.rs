//! What a checkpoint stores beside nodes: all roots of trees, and what storing the usage has changed of the usage itself.

use crate::batch::{Entry, Summary};
use crate::codec::{Fields, PutFields, corrupt, counter};
use crate::copies::get_right;
use crate::extent::{Birth, EXTENT_BLOCKS_MAX};
use crate::layouts::{CatalogLayout, DeadLayout, DeadListLayout, ForwardLayout, SegmentInfo, SegmentsLayout};
use crate::mounts::Mounts;
use crate::scan::read_summary;
use crate::store::{SegmentId, SegmentStore};
use crate::tree::Root;
use std::io;

const MAGIC: u32 = 0x3152_4c43; // "CLR1"
/// Flag of a checkpoint: the map was made anew, and what is lost is not marked yet.
const UNMARKED: u16 = 1;

/// A checkpoint.
#[derive(Clone, Default)]
pub(crate) struct Record {
    pub(crate) fields: RecordFields,
    pub(crate) trees: Trees,
    /// Segments whose record in the tree is older.
    pub(crate) table: Vec<(SegmentId, SegmentInfo)>,
    /// Blocks whose bits are not set yet.
    pub(crate) newly_dead: Vec<(Birth, u32)>,
    pub(crate) mounts: Mounts,
}

/// Numbers of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordFields {
    pub(crate) unmarked: bool,
    pub(crate) logical_bytes: u64,
    pub(crate) version: u64,
    pub(crate) next_id: u64,
    pub(crate) next_list: u64,
}

/// All trees but the maps, whose roots are in the catalog.
#[derive(Clone, Default)]
pub(crate) struct Trees {
    pub(crate) forward: Root<ForwardLayout>,
    pub(crate) dead_lists: Root<DeadListLayout>,
    pub(crate) catalog: Root<CatalogLayout>,
    pub(crate) segments: Root<SegmentsLayout>,
    pub(crate) dead: Root<DeadLayout>,
}

impl Record {
    /// The checkpoint as bytes.
    ///
    /// # Errors
    /// A tree is not stored.
    pub(crate) fn encode(&self) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        let RecordFields { unmarked, logical_bytes, version, next_id, next_list } = self.fields;
        out.put_u32(MAGIC);
        out.put_u16(1);
        out.put_u16(if unmarked { UNMARKED } else { 0 });
        [logical_bytes, version, next_id, next_list].into_iter().for_each(|n| out.put_u64(n));
        let Trees { forward, dead_lists, catalog, segments, dead } = &self.trees;
        forward.encode(&mut out)?;
        dead_lists.encode(&mut out)?;
        catalog.encode(&mut out)?;
        segments.encode(&mut out)?;
        dead.encode(&mut out)?;
        out.put_u32(self.table.len() as u32);
        for (id, info) in &self.table {
            out.put_u64(*id);
            info.encode(&mut out);
        }
        out.put_u32(self.newly_dead.len() as u32);
        for (at, blocks) in &self.newly_dead {
            out.put_u64(at.segment);
            out.put_u32(at.ordinal);
            out.put_u32(*blocks);
        }
        self.mounts.encode(&mut out);
        Ok(out)
    }

    /// # Errors
    /// `InvalidData` if it is none.
    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut f = Fields::new(bytes);
        if f.u32()? != MAGIC || f.u16()? != 1 {
            return Err(corrupt("this is no checkpoint"));
        }
        let flags = f.u16()?;
        if flags & !UNMARKED != 0 {
            return Err(corrupt("a checkpoint has unknown flags"));
        }
        let fields = RecordFields {
            unmarked: flags & UNMARKED != 0,
            logical_bytes: f.u64()?,
            version: counter(f.u64()?)?,
            next_id: counter(f.u64()?)?,
            next_list: counter(f.u64()?)?,
        };
        let trees = Trees {
            forward: Root::decode(&mut f)?,
            dead_lists: Root::decode(&mut f)?,
            catalog: Root::decode(&mut f)?,
            segments: Root::decode(&mut f)?,
            dead: Root::decode(&mut f)?,
        };
        let n = f.count(8 + SegmentInfo::BYTES)?;
        let table = (0..n).map(|_| Ok((f.u64()?, SegmentInfo::decode(&mut f)?))).collect::<io::Result<_>>()?;
        let n = f.count(16)?;
        let newly_dead: Vec<(Birth, u32)> = (0..n)
            .map(|_| Ok((Birth { segment: f.u64()?, ordinal: f.u32()? }, f.u32()?)))
            .collect::<io::Result<_>>()?;
        if newly_dead.iter().any(|(at, n)| *n > EXTENT_BLOCKS_MAX || at.ordinal.checked_add(*n).is_none()) {
            return Err(corrupt("a dead extent has an impossible length"));
        }
        // Older programs end here.
        let mounts = if f.is_empty() { Mounts::default() } else { Mounts::decode(&mut f)? };
        Ok(Record { fields, trees, table, newly_dead, mounts })
    }

    /// Reads the checkpoint of a batch; returns its summary and bytes as well.
    ///
    /// # Errors
    /// `InvalidData` if none is there, or it is damaged; those of the store.
    pub(crate) fn read(store: &dyn SegmentStore, segment: SegmentId, offset: u32) -> io::Result<(Summary, u32, Self)> {
        let s = read_summary(store, store.uuid(), segment, offset)?;
        let [entry @ Entry::Record { stored, .. }] = &s.entries[..] else {
            return Err(corrupt("the root does not refer to a checkpoint"));
        };
        let mut bytes = vec![0; *stored as usize];
        let at = u64::from(s.offset + s.data_start);
        if !get_right(store, s.segment, at, &mut bytes, &mut |bytes| entry.verify(bytes))? {
            return Err(corrupt("the checksum of the checkpoint is wrong"));
        }
        let stored = *stored;
        Ok((s, stored, Self::decode(&bytes)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_an_older_program_has_no_mounts() {
        let fields = RecordFields { unmarked: true, logical_bytes: 4096, version: 3, next_id: 4, next_list: 5 };
        let newly_dead = vec![(Birth { segment: 1, ordinal: 2 }, 3)];
        let mut mounts = Mounts::default();
        mounts.add(7, 8);
        let table = vec![(1, SegmentInfo::default())];
        let record = Record { fields, table, newly_dead, mounts, ..Record::default() };
        let mut bytes = record.encode().unwrap();
        let again = Record::decode(&bytes).unwrap();
        assert_eq!((again.fields, &again.mounts), (record.fields, &record.mounts));
        assert_eq!((again.table, &again.newly_dead), (record.table, &record.newly_dead));
        bytes.truncate(bytes.len() - 20);
        let older = Record::decode(&bytes).unwrap();
        assert_eq!((older.newly_dead, older.mounts), (record.newly_dead, Mounts::default()));
        assert!(Record::decode(&bytes[..bytes.len() - 1]).is_err());
    }
}
