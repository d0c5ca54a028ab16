//! Volumes: a file system on several simulated devices, of which one may be gone for a while.

use crate::disk::{Image, Trace};
use cffs::device::{Device, Observed};
use cffs_volume::{
    BLOCK_BYTES, Candidate, CreateOptions, DATA_OFFSET, Kind, MemberState, OpenOptions, Volume, VolumeError,
};
use fastrand::Rng;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Operations between two pieces of background work.
const WORKS_EVERY: u64 = 4;

/// A volume below the file system.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct VolumeLayout {
    /// How the members make a volume.
    pub kind: Kind,
    /// Number of members.
    pub members: usize,
    /// Bytes of a stripe unit, 0 where there is none.
    pub unit: u64,
    /// A member that fails every request from one write or flush of the sequence on until another one: number, first, end.
    pub gone: Option<(usize, usize, usize)>,
    /// The only member that is there.
    pub only: Option<usize>,
}

impl fmt::Debug for VolumeLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} members, unit {}, gone {:?}", self.kind, self.members, self.unit, self.gone)
    }
}

impl VolumeLayout {
    /// One of those that tests use, for groups of so many bytes: most are mirrors, of which most lose a member somewhere.
    pub fn numbered(n: u64, group: u32) -> VolumeLayout {
        let mut rng = Rng::with_seed(n ^ 0x7601);
        let kind = [Kind::Mirror, Kind::Mirror, Kind::Mirror, Kind::Mirror, Kind::Stripe, Kind::Concat][rng.usize(..6)];
        let members = if rng.u8(..3) == 0 { 3 } else { 2 };
        let unit = if kind == Kind::Stripe { u64::from(group) << rng.u32(..3) } else { 0 };
        let first = rng.usize(..600);
        let end = if rng.bool() { usize::MAX } else { first + rng.usize(1..400) };
        let gone = (kind == Kind::Mirror && rng.u8(..4) > 0).then(|| (rng.usize(..members), first, end));
        VolumeLayout { kind, members, unit, gone, only: None }
    }

    /// The same, of which nothing is gone.
    pub fn whole(self) -> VolumeLayout {
        VolumeLayout { gone: None, ..self }
    }

    /// Devices of zeros for a file system of `bytes` bytes.
    pub fn blank(self, bytes: u64) -> Vec<Image> {
        let each = match self.kind {
            Kind::Mirror => bytes,
            _ => bytes.div_ceil(self.members as u64).next_multiple_of(self.unit.max(BLOCK_BYTES as u64)),
        };
        (0..self.members).map(|_| Image::new(DATA_OFFSET + each)).collect()
    }

    fn member(trace: &Trace, number: usize) -> Candidate {
        Candidate::new(format!("member {number}"), trace.device(number))
    }

    /// Makes the volume on the devices of a trace.
    pub fn make_on(self, trace: &Trace) -> io::Result<Arc<Volume>> {
        let all: Vec<Candidate> = (0..self.members).map(|n| Self::member(trace, n)).collect();
        let options = CreateOptions { stripe_unit: self.unit, overwrite: true, ..CreateOptions::new(self.kind) };
        cffs_volume::create(&all, &options)?;
        Ok(Arc::new(cffs_volume::open(&all, &options_of(false))?))
    }

    /// Opens it, with all members that are not gone.
    pub fn open(self, trace: &Trace, read_only: bool, observed: &Observed) -> io::Result<Arc<Volume>> {
        if !read_only && let Some(gone) = self.gone {
            trace.lose(gone);
        }
        let there = || (0..self.members).filter(|n| !trace.is_gone(*n) && self.only.is_none_or(|only| only == *n));
        let options = || OpenOptions { observed: observed.clone(), ..options_of(read_only) };
        let first = open_some(trace, there(), options());
        match first {
            // A member that fails at this moment is told; then it is tried again, without that member if it is gone.
            Err(_) if trace.faults().is_some_and(|plan| plan.hit().is_some()) => open_some(trace, there(), options()),
            first => first,
        }
    }

    /// Background work after the `nth` operation: a member that is there again is given back, and a resync goes on a little.
    ///
    /// # Errors
    /// Those of the mirror.
    pub fn work(self, trace: &Trace, volume: &Volume, nth: u64) -> io::Result<()> {
        let Some(mirror) = volume.mirror().filter(|_| nth.is_multiple_of(WORKS_EVERY)) else { return Ok(()) };
        let status = mirror.status();
        for (number, m) in status.members.iter().enumerate() {
            if m.state == MemberState::Absent && !trace.is_gone(number) {
                match mirror.add(Self::member(trace, number), false) {
                    // It may be gone again at this moment.
                    Ok(_) | Err(VolumeError::Io { .. }) => {}
                    Err(e) => return Err(e.into()),
                }
            }
        }
        let mut left = nth / WORKS_EVERY % 3 * 4;
        let resynced = mirror.resync(None, &mut |_| {
            left = left.saturating_sub(1);
            left > 0
        });
        resynced.map(drop)
    }
}

fn options_of(read_only: bool) -> OpenOptions {
    OpenOptions { degraded: true, read_only, depth: 1, ..OpenOptions::default() }
}

fn open_some(trace: &Trace, numbers: impl Iterator<Item = usize>, options: OpenOptions) -> io::Result<Arc<Volume>> {
    let given: Vec<Candidate> = numbers.map(|n| VolumeLayout::member(trace, n)).collect();
    Ok(Arc::new(cffs_volume::open(&given, &options)?))
}

/// Whether the first device of a trace is a member of a volume.
pub fn is_volume(trace: &Trace) -> bool {
    trace.images().iter().any(|image| {
        let mut bytes = [0; 8];
        [0, 64 << 10].into_iter().any(|at| {
            image.read(at, &mut bytes);
            cffs_volume::begins_as_member(&bytes)
        })
    })
}

/// Opens the volume of a trace for a check, with all that are members.
///
/// # Errors
/// What is wrong.
pub fn open_to_check(trace: &Trace) -> Result<Arc<Volume>, String> {
    let is_member = |n: &usize| matches!(cffs_volume::probe(&*trace.device(*n)), Ok(Some(_)));
    let there: Vec<usize> = (0..trace.images().len()).filter(is_member).collect();
    open_some(trace, there.into_iter(), options_of(true)).map_err(|e| format!("the volume cannot be opened: {e}"))
}

/// The members of a mirror that have, each alone, everything that was promised, by what their superblocks say. Empty if it is no mirror.
pub fn complete_members(trace: &Trace) -> Vec<usize> {
    let labels: Vec<_> =
        (0..trace.images().len()).map(|n| cffs_volume::probe(&*trace.device(n)).ok().flatten()).collect();
    let newest = labels.iter().flatten().map(|l| l.generation).max().unwrap_or(0);
    let complete = |n: &usize| {
        // Until a change has its third generation, nothing was promised that depends on it.
        labels[*n].as_ref().is_some_and(|l| l.kind == Kind::Mirror && l.in_sync && l.generation + 2 >= newest)
    };
    (0..labels.len()).filter(complete).collect()
}

/// The contents of a mirror that has lost all members but one, as images: the others are without anything.
pub fn alone(images: &[Image], member: usize) -> Vec<Image> {
    let blank = |n: usize| if n == member { images[n].clone() } else { Image::new(images[n].size()) };
    (0..images.len()).map(blank).collect()
}

/// Brings all members of a mirror up to date, and ends it. Says whether it is a mirror. What was discarded may differ, so with `discards`
/// members are not compared. With `scrubs` the mirror compares them too, which reads all of them.
///
/// # Errors
/// Those of the mirror; and that members are not equal then.
pub fn bring_together(trace: &Trace, layout: VolumeLayout, discards: bool, scrubs: bool) -> Result<bool, String> {
    let volume = layout
        .open(trace, false, &Observed::default())
        .map_err(|e| format!("the volume cannot be opened again: {e}"))?;
    let Some(mirror) = volume.mirror() else { return Ok(false) };
    if !mirror.resync(None, &mut |_| true).map_err(|e| format!("resync: {e}"))? {
        return Err("the resync was not complete".into());
    }
    if let Some(m) = mirror.status().members.iter().find(|m| m.state != MemberState::InSync) {
        return Err(format!("{} is {:?} after a resync", m.name, m.state));
    }
    let images = trace.images();
    let differs = images.iter().skip(1).find_map(|other| images[0].differs_from(other, DATA_OFFSET));
    if let Some(at) = differs.filter(|_| !discards) {
        return Err(format!("members differ at byte {at} after a resync"));
    }
    if scrubs {
        let mut told = None;
        let unknown = &mut |d: &cffs_volume::Difference<'_>| {
            told.get_or_insert(d.offset);
            cffs_volume::Verdict::Unknown
        };
        mirror.scrub(None, unknown, &mut |_| true).map_err(|e| format!("scrub: {e}"))?;
        if let Some(at) = told.filter(|_| differs.is_none()) {
            return Err(format!("members are equal, and a scrub tells a difference at byte {at}"));
        }
        if differs.is_some() && told.is_none() {
            return Err("members differ, and a scrub tells nothing".into());
        }
    }
    volume.finish().map_err(|e| format!("end of the volume: {e}"))?;
    Ok(true)
}
