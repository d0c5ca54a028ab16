//! A run of fragments on the device.

use super::types::FragAddr;
use std::fmt;

/// Neighbouring fragments on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run {
    /// First fragment.
    pub start: FragAddr,
    /// Number of fragments.
    pub len: u64,
}

impl Run {
    /// First fragment after the run. Runs taken from a device are checked against its size before this is asked.
    #[inline]
    pub fn end(&self) -> FragAddr {
        self.start + self.len
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fragments {} to {}", self.start, self.start.saturating_add(self.len.saturating_sub(1)))
    }
}
