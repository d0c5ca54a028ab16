//! What a walk comes to next: where the files of directories lie whose blocks were read along, or ahead.
//!
//! Who goes through directories in order mostly reads the files of those that follow too. Embedded inodes say where these are, without a request. So a
//! reader of several devices knows how far its tree goes on ([`super::prefetch`]), and need not find out by reading on behind its end.

use crate::format::BlockAddr;
use std::ops::Range;

/// Stretches that are remembered, the last ones.
const STRETCHES_MAX: usize = 64;
/// Most groups between two files of one stretch.
const GAP_GROUPS: u64 = 8;

/// Groups with files of directories that were read along.
#[derive(Default)]
pub(super) struct Outlook(Vec<Range<BlockAddr>>);

impl Outlook {
    /// There are files in this group.
    pub(super) fn note(&mut self, group: BlockAddr, group_blocks: u64) {
        let end = group + group_blocks;
        let near = |r: &&mut Range<BlockAddr>| r.start <= group && group <= r.end + GAP_GROUPS * group_blocks;
        match self.0.iter_mut().rev().find(near) {
            Some(r) => r.end = r.end.max(end),
            None => {
                let excess = (self.0.len() + 1).saturating_sub(STRETCHES_MAX);
                self.0.drain(..excess);
                self.0.push(group..end);
            }
        }
    }

    /// How many groups the tree goes on for from `from` on. `None` if nothing is known of what is before that.
    pub(super) fn goes_on(&self, from: BlockAddr, group_blocks: u64) -> Option<u64> {
        let mut end = from;
        let mut known = false;
        while let Some(r) = self.0.iter().find(|r| {
            let touches =
                if known { r.start <= end + GAP_GROUPS * group_blocks } else { r.start < end && end <= r.end };
            touches && (r.end > end || !known)
        }) {
            (end, known) = (end.max(r.end), true);
        }
        known.then_some((end - from) / group_blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_goes_on_as_far_as_its_directories_say() {
        let mut outlook = Outlook::default();
        assert_eq!(outlook.goes_on(160, 16), None);
        (10..20).for_each(|group| outlook.note(group * 16, 16));
        assert_eq!(outlook.goes_on(160, 16), None, "nothing is known of what is before it");
        assert_eq!(outlook.goes_on(176, 16), Some(9));
        assert_eq!(outlook.goes_on(320, 16), Some(0));
        assert_eq!(outlook.goes_on(336, 16), None);
        // Another directory, a little further, and one far away.
        outlook.note(25 * 16, 16);
        outlook.note(1000 * 16, 16);
        assert_eq!(outlook.goes_on(176, 16), Some(15));
    }

    #[test]
    fn stretches_join_in_whatever_order_they_become_known() {
        let mut outlook = Outlook::default();
        for from in [40, 20, 30, 10] {
            (from..from + 9).for_each(|group| outlook.note(group * 16, 16));
        }
        assert_eq!(outlook.goes_on(11 * 16, 16), Some(38));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut outlook = Outlook::default();
        (0..1000).for_each(|n| outlook.note(n * 16_000, 16));
        assert_eq!(outlook.0.len(), STRETCHES_MAX);
        assert_eq!(outlook.goes_on(16, 16), None);
        assert_eq!(outlook.goes_on(999 * 16_000 + 16, 16), Some(0));
    }
}
