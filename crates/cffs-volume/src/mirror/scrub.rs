//! Comparing the copies.

use super::resync::{CHUNK, Pacer, Progress};
use super::state::{Member, Mirror};
use cffs_device::{Device, IoKind, Purpose, Work};
use std::io;

/// A block of 4096 bytes, or of a sector if that is longer, that the members do not agree about.
pub struct Difference<'a> {
    /// Byte on the volume.
    pub offset: u64,
    /// What each member that can read the block has, with the number of its copy.
    pub copies: &'a [(usize, &'a [u8])],
}

/// What is right of a [`Difference`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This copy.
    Copy(usize),
    /// Nobody can say. All stay as they are.
    Unknown,
}

/// What a scrub has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Bytes compared.
    pub bytes: u64,
    /// Blocks of 4096 bytes that the members did not agree about.
    pub differences: u64,
    /// Blocks that a member could not read, by member.
    pub unreadable: u64,
    /// Blocks that were written to a member because they were wrong or unreadable there.
    pub repaired: u64,
    /// Blocks that still differ, because nobody could say what is right.
    pub unknown: u64,
    /// Blocks that nobody can read.
    pub lost: u64,
    /// Bytes that were left out because a resync is still to copy them.
    pub skipped: u64,
}

/// What a member has of a chunk: bytes, and which blocks of it are good.
struct Copy {
    number: usize,
    bytes: Vec<u8>,
    readable: Vec<bool>,
}

fn read_copy(number: usize, m: &Member, device: &dyn Device, (start, end): (u64, u64), unit: usize) -> Copy {
    let mut bytes = vec![0; (end - start) as usize];
    let at = m.data_offset + start;
    let whole = device.read_at(IoKind::Data, at, &mut bytes).is_ok();
    let mut readable = vec![whole; bytes.len().div_ceil(unit)];
    if !whole {
        for (i, block) in bytes.chunks_mut(unit).enumerate() {
            readable[i] = device.read_at(IoKind::Data, at + (i * unit) as u64, block).is_ok();
        }
    }
    Copy { number, bytes, readable }
}

impl Mirror {
    /// Compares all members, and brings those that are wrong to what is right. A block that a member cannot read comes from another one;
    /// where two disagree, `verdict` decides. It may read from the volume. `rate` limits the
    /// bytes a second that are compared. `go_on` is asked often and ends the scrub with false.
    ///
    /// # Errors
    /// If a member that was dropped could not be recorded. Unreadable blocks are no error.
    pub fn scrub(
        &self,
        rate: Option<u64>,
        verdict: &mut dyn FnMut(&Difference<'_>) -> Verdict,
        go_on: &mut dyn FnMut(Progress) -> bool,
    ) -> io::Result<ScrubReport> {
        let _purpose = Purpose::Scrub.scope();
        let observed = self.observed.read().clone();
        let _scrub = observed.work_for_all(Work::Scrub);
        let mut report = ScrubReport::default();
        let mut pacer = Pacer::new(rate);
        // A region has a whole number of chunks, or is shorter than one.
        let step = CHUNK.min(self.region);
        let mut at = 0;
        while at < self.len {
            let chunk = (at, self.len.min(at + step));
            self.scrub_chunk(chunk, verdict, &mut report)?;
            at = chunk.1;
            let progress = Progress { done: at, total: self.len };
            if !pacer.wait(chunk.1 - chunk.0, &mut || go_on(progress)) {
                break;
            }
        }
        Ok(report)
    }

    fn scrub_chunk(
        &self,
        (start, end): (u64, u64),
        verdict: &mut dyn FnMut(&Difference<'_>) -> Verdict,
        report: &mut ScrubReport,
    ) -> io::Result<()> {
        let unit = self.unit() as usize;
        let copies: Vec<Copy> = {
            // Nobody writes there meanwhile. Later somebody may: a read that the verdict needs may itself have to write a block anew.
            let _alone = self.ranges.lock(&[(start, end)]);
            let state = self.state.read();
            state.check()?;
            let regions = self.regions_of((start, end));
            if state.members.iter().any(|m| m.serves() && m.stale.touches(regions.clone())) {
                report.skipped += end - start;
                return Ok(());
            }
            let serving = state.members.iter().enumerate().filter(|(_, m)| m.serves());
            serving.filter_map(|(n, m)| Some(read_copy(n, m, m.device.as_ref()?, (start, end), unit))).collect()
        };
        report.bytes += end - start;
        for (i, at) in (start..end).step_by(unit).enumerate() {
            let block = i * unit..((i + 1) * unit).min((end - start) as usize);
            let good: Vec<(usize, &[u8])> =
                copies.iter().filter(|c| c.readable[i]).map(|c| (c.number, &c.bytes[block.clone()])).collect();
            let unreadable = copies.len() - good.len();
            report.unreadable += unreadable as u64;
            let Some(first) = good.first() else {
                report.lost += u64::from(!copies.is_empty());
                continue;
            };
            let agreed = good.iter().all(|(_, bytes)| *bytes == first.1);
            if agreed && unreadable == 0 {
                continue;
            }
            let mut right = Some(*first);
            if !agreed {
                right = match verdict(&Difference { offset: at, copies: &good }) {
                    Verdict::Copy(number) => good.iter().find(|(n, _)| *n == number).copied(),
                    Verdict::Unknown => None,
                };
            }
            let Some((number, right)) = right else {
                report.differences += 1;
                report.unknown += 1;
                continue;
            };
            if self.read_only {
                report.differences += u64::from(!agreed);
                continue;
            }
            match self.repair_counted(IoKind::Data, number, at, right) {
                Ok(Some(written)) => {
                    report.differences += u64::from(!agreed);
                    report.repaired += written;
                }
                // It was written anew meanwhile, on all members.
                Ok(None) => {}
                // The copy was dropped, or cannot be read any more.
                Err(_) => {
                    self.state.read().check()?;
                    report.differences += u64::from(!agreed);
                    report.unknown += 1;
                }
            }
        }
        Ok(())
    }
}
