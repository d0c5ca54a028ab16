//! What was overwritten on a member when the members were made equal after a crash.
//!
//! Where members may differ after a crash, one of them is taken as it is, because any of them is as good. But if that one is damaged
//! there, another one had the right contents. Whoever knows checksums finds out at once, and gets them from here.

use crate::superblock::Uuid;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// The unit that is kept, in bytes: what is the least that can be written anew.
const SECTOR_BYTES: usize = 512;
const SECTOR: u64 = SECTOR_BYTES as u64;
/// Most sectors that are kept (64 MiB). What does not fit is not kept.
const SECTORS_MAX: usize = 128 << 10;

/// By number of the sector, and member.
type Sectors = BTreeMap<(u64, [u8; 16]), Box<[u8]>>;

#[derive(Default)]
pub(super) struct Shadow {
    sectors: Mutex<Sectors>,
    /// Whether there ever was one, so that nobody takes the lock in vain.
    used: AtomicBool,
}

impl Shadow {
    /// Keeps the sectors of a member that are about to be overwritten by others. `start` is at a sector.
    pub(super) fn keep(&self, member: Uuid, start: u64, own: &[u8], new: &[u8]) {
        self.used.store(true, Ordering::Release);
        let mut sectors = self.sectors.lock();
        for (number, (own, new)) in (start / SECTOR..).zip(own.chunks(SECTOR_BYTES).zip(new.chunks(SECTOR_BYTES))) {
            if own != new && sectors.len() < SECTORS_MAX {
                sectors.entry((number, member.0)).or_insert_with(|| own.into());
            }
        }
    }

    /// Whether there ever was one.
    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Whether something is kept of a member in a range.
    pub(super) fn has(&self, member: Uuid, (start, end): (u64, u64)) -> bool {
        self.is_used()
            && (self.sectors.lock().range((start / SECTOR, [0; 16])..(end.div_ceil(SECTOR), [0; 16])))
                .any(|((_, of), _)| *of == member.0)
    }

    /// Puts what is kept of a member over what was read from it, in whole sectors.
    pub(super) fn apply(&self, member: Uuid, offset: u64, buf: &mut [u8]) {
        let sectors = self.sectors.lock();
        for (number, sector) in (offset / SECTOR..).zip(buf.chunks_mut(SECTOR_BYTES)) {
            if let Some(own) = sectors.get(&(number, member.0)).filter(|own| own.len() == sector.len()) {
                sector.copy_from_slice(own);
            }
        }
    }

    /// Drops what is kept of a range, of all members: it was written anew.
    pub(super) fn forget(&self, (start, end): (u64, u64)) {
        if self.is_used() {
            let mut sectors = self.sectors.lock();
            let mut gone = sectors.split_off(&(start / SECTOR, [0; 16]));
            sectors.append(&mut gone.split_off(&(end.div_ceil(SECTOR), [0; 16])));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_overwritten_is_found_until_it_is_written_anew() {
        let (shadow, a, b) = (Shadow::default(), Uuid([1; 16]), Uuid([2; 16]));
        let (own, mut new) = (vec![7; 3 * SECTOR_BYTES], vec![7; 3 * SECTOR_BYTES]);
        (new[0], new[SECTOR_BYTES]) = (8, 8);
        shadow.keep(a, 8 * SECTOR, &own, &new);
        let read = |member, sector, count| {
            let mut buf = vec![1; count * SECTOR_BYTES];
            shadow.apply(member, sector * SECTOR, &mut buf);
            buf.chunks(SECTOR_BYTES).map(|s| s[SECTOR_BYTES - 1]).collect::<Vec<u8>>()
        };
        assert_eq!(read(b, 8, 3), [1, 1, 1]);
        assert!(
            shadow.has(a, (8 * SECTOR, 9 * SECTOR))
                && !shadow.has(b, (0, 99 * SECTOR))
                && !shadow.has(a, (0, 8 * SECTOR))
        );
        assert_eq!(read(a, 7, 4), [1, 7, 7, 1]);
        shadow.forget((10 * SECTOR, 11 * SECTOR));
        assert_eq!(read(a, 8, 2), [7, 7]);
        shadow.forget((9 * SECTOR, 10 * SECTOR));
        assert_eq!(read(a, 8, 2), [7, 1]);
        shadow.forget((0, 100 * SECTOR));
        assert_eq!(read(a, 8, 2), [1, 1]);
    }
}
