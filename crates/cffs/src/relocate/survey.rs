//! What a walk has found to be moved, and what that costs.

use super::cost::PARTS;

/// Bytes that are moved for each byte that has a better place, in parts of ten, where areas are emptied.
const COST_TENTHS: u64 = 16;

/// What there is to be moved, in bytes, by the bytes that have to be moved for each request that it saves.
pub(super) struct Survey {
    /// By the logarithm of the price.
    bytes: [u64; 64],
    /// In parts of a request.
    pub saved: u64,
}

impl Default for Survey {
    fn default() -> Survey {
        Survey { bytes: [0; 64], saved: 0 }
    }
}

impl Survey {
    /// So many bytes save so many parts of a request.
    pub fn note(&mut self, bytes: u64, saved: u64) {
        self.bytes[price(bytes, saved).max(1).ilog2() as usize] += bytes;
        self.saved += saved;
    }

    /// Bytes in all.
    pub fn total(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// What costs more than this for each request that it saves is not moved.
    pub fn leave_dearer(&mut self, price: u64) {
        for (log, bytes) in self.bytes.iter_mut().enumerate() {
            if 1_u64 << log > price {
                *bytes = 0;
            }
        }
    }

    /// Bytes that are moved for all of it, with what has to go out of the way.
    pub fn bytes_to_move(&self) -> u64 {
        self.total().saturating_mul(COST_TENTHS) / 10
    }

    /// Prices from the lowest on at which there is something to be moved.
    pub fn prices(&self) -> Vec<u64> {
        let used = self.bytes.iter().enumerate().filter(|(_, bytes)| **bytes > 0);
        used.map(|(log, _)| Survey::highest(log)).collect()
    }

    /// The lowest price at which there is enough to be moved for a budget.
    pub fn price_within(&self, budget: u64) -> u64 {
        let mut sum = 0_u64;
        let enough = self.bytes.iter().position(|bytes| {
            sum = sum.saturating_add(*bytes);
            sum >= budget
        });
        enough.map_or(u64::MAX, Survey::highest)
    }

    /// The highest price with such a logarithm.
    fn highest(log: usize) -> u64 {
        (2_u64 << log).saturating_sub(1)
    }
}

/// Bytes to be moved for each request that is saved.
pub(super) fn price(bytes: u64, saved: u64) -> u64 {
    bytes.saturating_mul(PARTS) / saved.max(1)
}
