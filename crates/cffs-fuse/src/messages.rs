//! Counts the messages of the kernel, by kind.

use crate::protocol::opcode::Opcode;
use serde_json::{Map, Value};
use std::sync::atomic::{AtomicU64, Ordering};

/// One more than the largest number of a kind.
const KINDS: usize = 64;

/// The number of messages of each kind.
#[derive(Debug)]
pub(crate) struct Messages {
    /// By [`Opcode`].
    counts: [AtomicU64; KINDS],
    unsupported: AtomicU64,
}

impl Default for Messages {
    fn default() -> Messages {
        Messages { counts: [const { AtomicU64::new(0) }; KINDS], unsupported: AtomicU64::new(0) }
    }
}

impl Messages {
    pub(crate) fn count(&self, op: Opcode) {
        self.counts[op as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a message that is not supported.
    pub(crate) fn count_unsupported(&self) {
        self.unsupported.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts at this moment, by name.
    pub(crate) fn counts(&self) -> Map<String, Value> {
        let mut all = Map::new();
        for op in Opcode::ALL {
            let n = self.counts[*op as usize].load(Ordering::Relaxed);
            let so_far = all.get(op.name()).and_then(Value::as_u64).unwrap_or(0);
            all.insert(op.name().to_owned(), (so_far + n).into());
        }
        all.insert("unsupported".to_owned(), self.unsupported.load(Ordering::Relaxed).into());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_kind() {
        let m = Messages::default();
        for op in [Opcode::Read, Opcode::Read, Opcode::Rename, Opcode::Rename2] {
            m.count(op);
        }
        m.count_unsupported();
        let c = m.counts();
        assert_eq!(
            (&c["read"], &c["rename"], &c["write"], &c["unsupported"]),
            (&2.into(), &2.into(), &0.into(), &1.into())
        );
        assert!(Opcode::ALL.iter().all(|op| (*op as usize) < KINDS));
    }
}
