//! Quota files: for each user, group or project a record of what it uses and what it may use.
//!
//! The record of an id stands at a place that follows from the id, so the file is sparse. The record of id 0, whose
//! limits are never enforced, holds the grace periods of the kind in its deadline fields.

use super::features::{RO_COMPAT_GROUP_QUOTA, RO_COMPAT_PROJECT_QUOTA, RO_COMPAT_USER_QUOTA};
use super::{GROUP_QUOTA_INO, Ino, META_HEADER_SIZE, META_SPECIFIC, PROJECT_QUOTA_INO, USER_QUOTA_INO};
use super::{get_u64, put_u64};
use serde::{Deserialize, Serialize};

/// Bytes of a record.
pub const QUOTA_RECORD_SIZE: usize = 64;
/// Offset of the block's number within its file.
pub const QUOTA_LBLOCK: usize = META_SPECIFIC;
/// Grace period where none was set: a week, in nanoseconds.
pub const QUOTA_GRACE_DEFAULT: i64 = 7 * 24 * 3600 * 1_000_000_000;

/// What a quota is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaKind {
    /// The owner of a file.
    User,
    /// The group of a file.
    Group,
    /// The project of a file.
    Project,
}

impl QuotaKind {
    /// All kinds.
    pub const ALL: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

    /// Number of the kind, 0 to 2.
    pub fn index(self) -> usize {
        self as usize
    }

    /// Inode of its file.
    pub fn ino(self) -> Ino {
        [USER_QUOTA_INO, GROUP_QUOTA_INO, PROJECT_QUOTA_INO][self.index()]
    }

    /// Feature bit (read-only compatible) that says that quotas of this kind are kept.
    pub fn feature(self) -> u64 {
        [RO_COMPAT_USER_QUOTA, RO_COMPAT_GROUP_QUOTA, RO_COMPAT_PROJECT_QUOTA][self.index()]
    }

    /// The name used in messages and on the command line.
    pub fn name(self) -> &'static str {
        ["user", "group", "project"][self.index()]
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<QuotaKind> {
        Self::ALL.into_iter().find(|k| k.name() == name)
    }
}

/// A record. A limit of 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaRecord {
    /// Fragments in use.
    pub frags: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Fragments that may be used for the grace period at most to exceed.
    pub soft_frags: u64,
    /// Fragments that are never exceeded.
    pub hard_frags: u64,
    /// The same for inodes.
    pub soft_inodes: u64,
    /// The same for inodes.
    pub hard_inodes: u64,
    /// When the grace period for space ends, nanoseconds since 1970; 0 while the soft limit is kept. Of id 0: the
    /// length of grace periods in nanoseconds, 0 for [`QUOTA_GRACE_DEFAULT`].
    pub frags_deadline: i64,
    /// The same for inodes.
    pub inodes_deadline: i64,
}

impl QuotaRecord {
    /// The bytes of the record.
    pub fn encode(&self) -> [u8; QUOTA_RECORD_SIZE] {
        let mut b = [0; QUOTA_RECORD_SIZE];
        let words = [
            self.frags,
            self.inodes,
            self.soft_frags,
            self.hard_frags,
            self.soft_inodes,
            self.hard_inodes,
            self.frags_deadline as u64,
            self.inodes_deadline as u64,
        ];
        for (i, w) in words.into_iter().enumerate() {
            put_u64(&mut b, i * 8, w);
        }
        b
    }

    /// Decodes the first [`QUOTA_RECORD_SIZE`] bytes of `b`; every value is possible.
    pub fn decode(b: &[u8]) -> QuotaRecord {
        let w = |i: usize| get_u64(b, i * 8);
        QuotaRecord {
            frags: w(0),
            inodes: w(1),
            soft_frags: w(2),
            hard_frags: w(3),
            soft_inodes: w(4),
            hard_inodes: w(5),
            frags_deadline: w(6) as i64,
            inodes_deadline: w(7) as i64,
        }
    }

    /// Whether the record says nothing.
    pub fn is_empty(&self) -> bool {
        *self == QuotaRecord::default()
    }
}

/// Records in a block.
pub fn records_per_block(block_size: usize) -> u64 {
    ((block_size - META_HEADER_SIZE) / QUOTA_RECORD_SIZE) as u64
}

/// Block within the file, and byte offset in it, of the record of an id.
pub fn place(block_size: usize, id: u32) -> (u64, usize) {
    let per = records_per_block(block_size);
    let (block, slot) = (u64::from(id) / per, u64::from(id) % per);
    (block, META_HEADER_SIZE + slot as usize * QUOTA_RECORD_SIZE)
}

/// The records of a block with their ids, those that say nothing left out.
pub fn records(block: &[u8], lblock: u64) -> impl Iterator<Item = (u32, QuotaRecord)> + '_ {
    let per = records_per_block(block.len());
    (0..per).filter_map(move |slot| {
        let id = u32::try_from(lblock.checked_mul(per)?.checked_add(slot)?).ok()?;
        let record = QuotaRecord::decode(&block[META_HEADER_SIZE + slot as usize * QUOTA_RECORD_SIZE..]);
        (!record.is_empty()).then_some((id, record))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_stand_where_their_id_says() {
        for bs in [512, 4096, 65536] {
            let per = records_per_block(bs);
            for id in [0, 1, per as u32 - 1, per as u32, 1000, u32::MAX] {
                let (lblock, offset) = place(bs, id);
                assert!(offset + QUOTA_RECORD_SIZE <= bs);
                let mut block = vec![0; bs];
                let r = QuotaRecord {
                    frags: 1,
                    inodes: 2,
                    soft_frags: 3,
                    hard_frags: 4,
                    soft_inodes: 5,
                    hard_inodes: 6,
                    frags_deadline: -7,
                    inodes_deadline: 8,
                };
                block[offset..offset + QUOTA_RECORD_SIZE].copy_from_slice(&r.encode());
                assert_eq!(records(&block, lblock).collect::<Vec<_>>(), [(id, r)]);
            }
        }
        // Slots behind the last id hold nothing.
        let (last, _) = place(4096, u32::MAX);
        assert_eq!(records(&[1; 4096], last).count(), (u64::from(u32::MAX) % 63 + 1) as usize);
        assert_eq!(records(&[1; 4096], u64::MAX).count(), 0);
    }
}
