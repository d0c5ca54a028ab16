//! Comparing the copies.

use super::resync::{CHUNK, Pacer, Progress};
use super::state::{Member, Mirror, add};
use crate::superblock::{BLOCK_BYTES, Uuid};
use cffs_device::{Device, IoKind};
use std::io;

/// A block of 4096 bytes that the members do not agree about.
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
    uuid: Uuid,
    bytes: Vec<u8>,
    readable: Vec<bool>,
}

fn read_copy(number: usize, m: &Member, device: &dyn Device, (start, end): (u64, u64)) -> Copy {
    let mut bytes = vec![0; (end - start) as usize];
    let at = m.data_offset + start;
    let whole = device.read_at(IoKind::Data, at, &mut bytes).is_ok();
    let mut readable = vec![whole; bytes.len().div_ceil(BLOCK_BYTES)];
    if !whole {
        for (i, block) in bytes.chunks_mut(BLOCK_BYTES).enumerate() {
            readable[i] = device.read_at(IoKind::Data, at + (i * BLOCK_BYTES) as u64, block).is_ok();
        }
    }
    Copy { number, uuid: m.uuid, bytes, readable }
}

impl Mirror {
    /// Compares all members, and brings those that are wrong to what is right. A block that a member cannot read comes from another one;
    /// where two disagree, `verdict` decides. It may read from the volume and must not write to it. `rate` limits the
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
        let _alone = self.ranges.lock(&[(start, end)]);
        let copies: Vec<Copy> = {
            let state = self.state.read();
            state.check()?;
            let regions = self.regions_of((start, end));
            if state.members.iter().any(|m| m.serves() && m.stale.touches(regions.clone())) {
                report.skipped += end - start;
                return Ok(());
            }
            let serving = state.members.iter().enumerate().filter(|(_, m)| m.serves());
            serving.filter_map(|(n, m)| Some(read_copy(n, m, m.device.as_ref()?, (start, end)))).collect()
        };
        report.bytes += end - start;
        for (i, at) in (start..end).step_by(BLOCK_BYTES).enumerate() {
            let block = i * BLOCK_BYTES..((i + 1) * BLOCK_BYTES).min((end - start) as usize);
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
            let mut right = Some(first.1);
            if !agreed {
                report.differences += 1;
                right = match verdict(&Difference { offset: at, copies: &good }) {
                    Verdict::Copy(number) => good.iter().find(|(n, _)| *n == number).map(|(_, bytes)| *bytes),
                    Verdict::Unknown => None,
                };
            }
            let Some(right) = right else {
                report.unknown += 1;
                continue;
            };
            let wrong: Vec<Uuid> =
                copies.iter().filter(|c| !c.readable[i] || c.bytes[block.clone()] != *right).map(|c| c.uuid).collect();
            report.repaired += self.rewrite(at, right, &wrong)?;
        }
        Ok(())
    }

    /// Writes a block to these members. Returns to how many.
    fn rewrite(&self, at: u64, right: &[u8], wrong: &[Uuid]) -> io::Result<u64> {
        if self.read_only {
            return Ok(0);
        }
        let outcome = {
            let state = self.state.read();
            let mut targets = state.serving();
            targets.retain(|m| wrong.contains(&m.uuid));
            self.each(&targets, &|m, device| device.write_at(IoKind::Data, m.data_offset + at, right))
        };
        let written = outcome.succeeded.len() as u64;
        add(&self.counters.repaired, written);
        if !outcome.failed.is_empty() {
            let concluded = self.conclude(outcome);
            self.state.read().check().and(concluded.or(Ok(())))?;
        }
        Ok(written)
    }
}
