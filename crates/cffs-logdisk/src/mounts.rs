//! With which numbers mounts have begun.
//!
//! A mount that follows a crash rejects what it finds behind the end of the log, and uses the numbers of that again. What it rejected stays where it is,
//! perhaps for longer than all that the mount has written itself. Recovery begins at the root and never sees it; who finds batches without
//! a root has to know it.

use crate::codec::{Fields, PutFields};
use std::collections::BTreeMap;
use std::io;

/// Most mounts that are known. What older ones have rejected has most likely been overwritten since.
pub(crate) const MOUNTS_MAX: usize = 32;

/// Mounts that have followed a crash, and rebuildings: the first number of each epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mounts(BTreeMap<u64, u64>);

impl Mounts {
    /// Bytes on the store, at most.
    pub(crate) const BYTES_MAX: u64 = 4 + 16 * MOUNTS_MAX as u64;

    /// A mount whose batches have this epoch began with this number, after all mounts that are known.
    pub(crate) fn add(&mut self, epoch: u64, first: u64) {
        // One that began with this number or a higher one says nothing that this one does not say.
        self.0.retain(|_, known| *known < first);
        self.0.insert(epoch, first);
        self.forget_oldest();
    }

    fn forget_oldest(&mut self) {
        while self.0.len() > MOUNTS_MAX {
            self.0.pop_first();
        }
    }

    /// Learns what others know.
    pub(crate) fn merge(&mut self, others: &Mounts) {
        for (epoch, first) in &others.0 {
            let known = self.0.entry(*epoch).or_insert(*first);
            *known = (*known).min(*first);
        }
    }

    /// The number from which on batches of an epoch do not count, as far as it is known.
    pub(crate) fn end_of(&self, epoch: u64) -> Option<u64> {
        self.0.range(epoch.saturating_add(1)..).map(|(_, first)| *first).min()
    }

    /// Epochs and numbers, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(epoch, first)| (*epoch, *first))
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.0.len() as u32);
        for (epoch, first) in self.iter() {
            out.put_u64(epoch);
            out.put_u64(first);
        }
    }

    pub(crate) fn decode(f: &mut Fields<'_>) -> io::Result<Self> {
        let n = f.count(16)?;
        let mut mounts = Mounts((0..n).map(|_| Ok((f.u64()?, f.u64()?))).collect::<io::Result<_>>()?);
        // Others may keep more. Each checkpoint has room for so many.
        mounts.forget_oldest();
        Ok(mounts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_end_where_the_first_later_mount_began() {
        let mut mounts = Mounts::default();
        mounts.add(9, 97);
        mounts.add(11, 102);
        assert_eq!([8, 9, 10, 11].map(|epoch| mounts.end_of(epoch)), [Some(97), Some(102), Some(102), None]);
        // What it found was less than what the one before had found: that one has written nothing that counts.
        mounts.add(12, 99);
        assert_eq!([8, 9, 11, 12].map(|epoch| mounts.end_of(epoch)), [Some(97), Some(99), Some(99), None]);
    }

    #[test]
    fn bytes_and_back_and_never_more_than_can_be() {
        let mut mounts = Mounts::default();
        for i in 1..100 {
            mounts.add(i, 10 * i);
        }
        let mut bytes = Vec::new();
        mounts.encode(&mut bytes);
        assert_eq!(bytes.len() as u64, Mounts::BYTES_MAX);
        assert_eq!(Mounts::decode(&mut Fields::new(&bytes)).unwrap(), mounts);
        assert_eq!(mounts.end_of(0), Some(680));
        assert!(Mounts::decode(&mut Fields::new(&bytes[..bytes.len() - 1])).is_err());
        let many = Mounts((0..100).map(|i| (i, i)).collect());
        bytes.clear();
        many.encode(&mut bytes);
        let fewer = Mounts::decode(&mut Fields::new(&bytes)).unwrap();
        assert!(fewer.iter().eq((68..100).map(|i| (i, i))));
        let mut others = Mounts::default();
        others.add(50, 3);
        others.merge(&mounts);
        assert_eq!((others.end_of(49), others.end_of(50)), (Some(3), Some(680)));
    }
}
