//! Dquots: what is known of one id, its record and what is reserved.

use crate::cache::BufRef;
use crate::error::{Error, Result};
use crate::format::{BlockAddr, QuotaKind, QuotaRecord};
use parking_lot::Mutex;
use std::fmt;

/// Whether the record is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Not read yet, or the device failed to.
    Unread,
    /// As on the device, with the changes since.
    Good,
    /// It cannot be read, has no place, or lacks something that was charged: nothing is refused, nothing is written.
    Damaged,
}

pub(super) struct Dquot {
    pub(super) kind: QuotaKind,
    pub(super) id: u32,
    pub(super) state: Mutex<DquotState>,
}

impl fmt::Display for Dquot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.id)
    }
}

pub(super) struct DquotState {
    pub(super) known: Known,
    pub(super) record: QuotaRecord,
    /// Block and offset of the record, once it has a place.
    pub(super) place: Option<(BlockAddr, usize)>,
    pub(super) reserved_frags: u64,
    pub(super) reserved_inodes: u64,
    /// On the list of what the next commit writes.
    pub(super) listed: bool,
    /// Listed outside of a transaction.
    pub(super) unreserved: bool,
    /// The block, held from the change to the commit.
    pub(super) held: Option<BufRef>,
}

/// Compares an amount with its limits.
struct Limits {
    soft: u64,
    hard: u64,
}

impl Limits {
    fn over_soft(&self, total: u64) -> bool {
        self.soft > 0 && total > self.soft
    }
    fn over_hard(&self, total: u64) -> bool {
        self.hard > 0 && total > self.hard
    }
}

impl Dquot {
    pub(super) fn new(kind: QuotaKind, id: u32) -> Dquot {
        let state = DquotState {
            known: Known::Unread,
            record: QuotaRecord::default(),
            place: None,
            reserved_frags: 0,
            reserved_inodes: 0,
            listed: false,
            unreserved: false,
            held: None,
        };
        Dquot { kind, id, state: Mutex::new(state) }
    }
}

impl DquotState {
    /// The record as programs see it: with what is reserved.
    pub(super) fn seen(&self) -> QuotaRecord {
        QuotaRecord {
            frags: self.record.frags.saturating_add(self.reserved_frags),
            inodes: self.record.inodes.saturating_add(self.reserved_inodes),
            ..self.record
        }
    }

    fn space_limits(&self) -> Limits {
        Limits { soft: self.record.soft_frags, hard: self.record.hard_frags }
    }

    fn inode_limits(&self) -> Limits {
        Limits { soft: self.record.soft_inodes, hard: self.record.hard_inodes }
    }

    /// Fragments left below the limits that count now. Id 0 has none.
    pub(super) fn room(&self, id: u32) -> u64 {
        if id == 0 || self.known != Known::Good {
            return u64::MAX;
        }
        let used = self.record.frags.saturating_add(self.reserved_frags);
        let left = |limit: u64| if limit == 0 { u64::MAX } else { limit.saturating_sub(used) };
        let expired = self.record.frags_deadline != 0 && now() > self.record.frags_deadline;
        left(self.record.hard_frags).min(if expired { left(self.record.soft_frags) } else { u64::MAX })
    }

    /// Reserves fragments and inodes.
    pub(super) fn reserve(
        &mut self,
        dquot: &Dquot,
        frags: u64,
        inodes: u64,
        grace: [i64; 2],
        privileged: bool,
    ) -> Result<()> {
        let space = self.record.frags.saturating_add(self.reserved_frags).saturating_add(frags);
        let count = self.record.inodes.saturating_add(self.reserved_inodes).saturating_add(inodes);
        if dquot.id != 0 && self.known == Known::Good {
            let (space_limits, inode_limits) = (self.space_limits(), self.inode_limits());
            let over_soft = [frags > 0 && space_limits.over_soft(space), inodes > 0 && inode_limits.over_soft(count)];
            let deadlines = [self.record.frags_deadline, self.record.inodes_deadline];
            if !privileged {
                let hard = frags > 0 && space_limits.over_hard(space) || inodes > 0 && inode_limits.over_hard(count);
                let late = |i: usize| over_soft[i] && deadlines[i] != 0 && now() > deadlines[i];
                if hard || late(0) || late(1) {
                    return Err(Error::Quota);
                }
            }
            if over_soft[0] && deadlines[0] == 0 {
                self.record.frags_deadline = warn_and_start(dquot, "space", grace[0]);
            }
            if over_soft[1] && deadlines[1] == 0 {
                self.record.inodes_deadline = warn_and_start(dquot, "inodes", grace[1]);
            }
        }
        self.reserved_frags += frags;
        self.reserved_inodes += inodes;
        Ok(())
    }

    /// Grace periods end when the soft limit is kept again. True if one did.
    pub(super) fn end_grace_periods(&mut self) -> bool {
        let seen = self.seen();
        let mut ended = false;
        if seen.frags_deadline != 0 && !self.space_limits().over_soft(seen.frags) {
            self.record.frags_deadline = 0;
            ended = true;
        }
        if seen.inodes_deadline != 0 && !self.inode_limits().over_soft(seen.inodes) {
            self.record.inodes_deadline = 0;
            ended = true;
        }
        ended
    }

    /// After limits changed: begins the grace periods of soft limits that are exceeded, ends the others.
    pub(super) fn start_grace_periods(&mut self, dquot: &Dquot, grace: [i64; 2]) {
        if dquot.id == 0 {
            return; // these are the periods themselves
        }
        self.end_grace_periods();
        let seen = self.seen();
        if seen.frags_deadline == 0 && self.space_limits().over_soft(seen.frags) {
            self.record.frags_deadline = warn_and_start(dquot, "space", grace[0]);
        }
        if seen.inodes_deadline == 0 && self.inode_limits().over_soft(seen.inodes) {
            self.record.inodes_deadline = warn_and_start(dquot, "inodes", grace[1]);
        }
    }
}

fn warn_and_start(dquot: &Dquot, what: &str, grace: i64) -> i64 {
    tracing::warn!("{dquot} is over its soft quota of {what}; {} s of grace begin", grace / 1_000_000_000);
    now().saturating_add(grace).max(1)
}

/// Nanoseconds since 1970.
pub(super) fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number can stand in a record on the device.
    #[test]
    fn what_no_file_system_can_hold_is_over_every_limit() {
        let dquot = Dquot::new(QuotaKind::User, 7);
        let mut st = dquot.state.lock();
        st.known = Known::Good;
        st.record = QuotaRecord {
            frags: u64::MAX,
            inodes: u64::MAX,
            soft_frags: 100,
            soft_inodes: 100,
            frags_deadline: i64::MAX,
            inodes_deadline: i64::MAX,
            ..QuotaRecord::default()
        };
        st.reserve(&dquot, 1, 1, [1, 1], false).unwrap();
        assert_eq!((st.seen().frags, st.seen().inodes), (u64::MAX, u64::MAX));
        assert!(!st.end_grace_periods(), "the soft limits are passed still");
        assert_eq!((st.record.frags_deadline, st.record.inodes_deadline), (i64::MAX, i64::MAX));
    }
}
