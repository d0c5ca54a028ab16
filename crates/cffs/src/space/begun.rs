//! Where small data went a short time ago, on a device that stores whole units ([`super::units`]).

use crate::format::FragAddr;
use std::collections::VecDeque;
use std::ops::Range;

/// Units that are remembered. A log disk knows the last 128 blocks or more that were written in part, also those of metadata.
const BEGUN_MAX: usize = 128;

/// Ends of runs in units that were begun a short time ago, the last one behind the others.
#[derive(Default)]
pub(super) struct Begun(VecDeque<FragAddr>);

impl Begun {
    /// A run ends within a unit.
    pub(super) fn add(&mut self, end: FragAddr) {
        if self.0.len() >= BEGUN_MAX {
            self.0.pop_front();
        }
        self.0.push_back(end);
    }

    /// An end within a window that `fits`. It goes on from there.
    pub(super) fn take(
        &mut self,
        window: &Range<FragAddr>,
        mut fits: impl FnMut(FragAddr) -> bool,
    ) -> Option<FragAddr> {
        let at = self.0.iter().rposition(|end| window.contains(end) && fits(*end))?;
        self.0.remove(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut begun = Begun::default();
        (0..1000).for_each(|n| begun.add(4 * n + 1));
        assert_eq!(begun.0.len(), BEGUN_MAX);
        assert_eq!(begun.take(&(0..1000), |_| true), None);
        assert_eq!(begun.take(&(3990..4000), |end| end < 3997), Some(3993));
        assert_eq!(begun.take(&(3990..3997), |_| true), None);
    }
}
