//! Free space that is kept from everybody while a part of the device is being emptied.
//!
//! What is free there is taken out of the free extents, as when it is discarded, so nobody allocates it. The accounting is not
//! changed: for it, the space is free all the time. So an allocation that finds no other space gets it back.

use super::aside::Aside;
use super::free_space::Space;
use crate::error::{Error, Result};
use crate::format::FragAddr;
use std::ops::Range;

/// Keeps parts of the device free while it lives.
pub struct SetAside<'a> {
    space: &'a Space,
    parts: Vec<Range<FragAddr>>,
}

impl Space {
    /// Keeps what is free in these parts from everybody, and with [`SetAside::renew`] what becomes free there. There is one at a time:
    /// a second one keeps nothing.
    pub fn hold(&self, parts: Vec<Range<FragAddr>>) -> SetAside<'_> {
        let mut held = self.aside.lock();
        let parts = if held.is_some() { Vec::new() } else { parts };
        if !parts.is_empty() {
            *held = Some(Aside::default());
        }
        SetAside { space: self, parts }
    }

    /// Gives back what is kept, because somebody needs it.
    pub(super) fn release_held(&self) {
        if let Some(held) = &mut *self.aside.lock() {
            held.given_back = true;
            self.put_back(held);
        }
    }

    fn put_back(&self, held: &mut Aside) {
        let mut blocks = 0;
        for run in std::mem::take(&mut held.runs) {
            let back = self.alloc_group_of(run).and_then(|group| {
                self.with_free_set(&group, |set| set.insert((run.start - group.start()) as u32, run.len as u32))
            });
            match back {
                Ok(Some(n)) => blocks += u64::from(n),
                Ok(None) => tracing::error!("{run} kept free: at least one is free already"),
                Err(e) => tracing::error!("{run} kept free: {e}"),
            }
        }
        let accounting = &mut *self.accounting.lock();
        // A block that was free in part, and became free while the rest was kept, counts only now.
        accounting.free_blocks += blocks.saturating_sub(std::mem::take(&mut held.blocks));
        accounting.epoch += 1;
    }

    fn take_out(&self, held: &mut Aside, part: &Range<FragAddr>) -> Result<()> {
        let first = self.g.ag_of(self.g.block_of_frag(part.start));
        let last = self.g.ag_of(self.g.block_of_frag(part.end.saturating_sub(1)));
        // Allocation groups that were never used stay so: nobody allocates there while others have space.
        let used = self.counters().ags;
        for ag in (first..=last).take_while(|ag| *ag < used) {
            let group = self.alloc_group(ag);
            let clip = group.clip(part);
            let taken = self.with_free_set(&group, |set| {
                let mut at = clip.start;
                while let Some((start, end)) = set.next_extent(at).filter(|(start, _)| *start < clip.end) {
                    let len = end.min(clip.end) - start;
                    let blocks = set.blocks_lost(start, len);
                    if !set.take(start, len) {
                        break;
                    }
                    held.blocks += u64::from(blocks);
                    held.runs.push(self.run_at(ag, start, len));
                    at = start + len;
                }
            });
            match taken {
                // Damaged allocation groups are not used.
                Ok(()) | Err(Error::Corrupt(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

impl SetAside<'_> {
    /// Keeps what has become free since.
    ///
    /// # Errors
    /// Those of reading a bitmap.
    pub fn renew(&self) -> Result<()> {
        let Some(held) = &mut *self.space.aside.lock() else { return Ok(()) };
        if !held.given_back {
            for part in &self.parts {
                self.space.take_out(held, part)?;
            }
        }
        Ok(())
    }
}

impl Drop for SetAside<'_> {
    fn drop(&mut self) {
        if !self.parts.is_empty()
            && let Some(mut held) = self.space.aside.lock().take()
        {
            self.space.put_back(&mut held);
        }
    }
}
