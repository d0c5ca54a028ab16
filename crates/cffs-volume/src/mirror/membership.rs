//! Members come and go while the mirror is used.

use super::resync::Progress;
use super::state::{Member, Mirror, Outcome, State};
use crate::candidate::{Candidate, new_uuid};
use crate::error::VolumeError;
use crate::label::{Label, erase_label, read_block, read_label, write_block};
use crate::regions::Regions;
use crate::superblock::{BITMAP_OFFSETS, DATA_OFFSET, MEMBERS_MAX, SUPERBLOCK_OFFSETS, Uuid};
use cffs_device::{Device, Disk, Work};
use std::io;
use std::sync::Arc;

/// What a member is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has everything.
    InSync,
    /// It has everything that was promised; after a crash some regions are still to be made equal.
    Resyncing,
    /// It is being filled, and not read.
    Filling,
    /// It is not there.
    Absent,
}

/// A member of a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its identity.
    pub uuid: Uuid,
    /// What it was called when it was given; empty for one that was never there.
    pub name: String,
    /// What it is at the moment.
    pub state: MemberState,
    /// Another one is put in its place: it goes when that has everything.
    pub outgoing: bool,
    /// Bytes that are to be copied to it, in whole regions.
    pub lacks: u64,
    /// The number of its disk in counters and traces, if it is there.
    pub disk: Option<usize>,
}

/// The state of a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorStatus {
    /// Rises with every change of membership.
    pub generation: u64,
    /// The members; the number of one is the number of its copy.
    pub members: Vec<MemberStatus>,
    /// Bytes of a region of the bitmap.
    pub region: u64,
    /// Regions that the bitmap has.
    pub dirty_regions: u32,
    /// No change can be recorded any more: every write fails.
    pub failed: bool,
}

impl Mirror {
    /// The state of the mirror.
    pub fn status(&self) -> MirrorStatus {
        let state = self.state.read();
        let member = |m: &Member| MemberStatus {
            uuid: m.uuid,
            name: m.name.clone(),
            state: match (m.device.is_some(), m.in_sync, m.stale.is_empty()) {
                (false, ..) => MemberState::Absent,
                (true, true, true) => MemberState::InSync,
                (true, true, false) => MemberState::Resyncing,
                (true, false, _) => MemberState::Filling,
            },
            outgoing: m.outgoing,
            lacks: u64::from(m.stale.len()) * self.region,
            disk: m.disk(),
        };
        MirrorStatus {
            generation: state.generation,
            members: state.members.iter().map(member).collect(),
            region: self.region,
            dirty_regions: self.intent.lock().durable.len(),
            failed: state.failed,
        }
    }

    /// Sees to it that all members in sync can be written, by writing a superblock again as it is: a member that cannot would be dropped, and
    /// nobody has agreed to that.
    ///
    /// # Errors
    /// [`VolumeError::NotWritable`].
    pub(crate) fn check_writes(&self) -> Result<(), VolumeError> {
        let state = self.state.read();
        for m in state.serving() {
            let Some(device) = &m.device else { continue };
            // The copy that does not count.
            let offset = SUPERBLOCK_OFFSETS[m.next_copy];
            let again = read_block(device, offset).and_then(|block| write_block(device, offset, &block));
            if let Err(error) = again
                && matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
            {
                return Err(VolumeError::NotWritable { name: m.name.clone(), error });
            }
        }
        Ok(())
    }

    fn check_writable(&self) -> Result<(), VolumeError> {
        if self.read_only {
            return Err(VolumeError::Invalid("the mirror was opened for reading only".into()));
        }
        Ok(())
    }

    /// Records that the mirror is in use, and by whom, before anything is written to it.
    pub(crate) fn begin(&self) -> io::Result<()> {
        let mut state = self.state.write();
        let Outcome { succeeded, mut failed } = self.write_bitmap(&state.serving());
        if succeeded.is_empty() && !failed.is_empty() {
            return Err(failed.remove(0).1);
        }
        self.drop_members(&mut state, failed)?;
        self.record(&mut state, None)
    }

    fn check_device(&self, new: &Candidate) -> Result<(), VolumeError> {
        self.check_writable()?;
        new.room(self.len)?;
        if new.device.sector_size() > self.sector {
            return Err(VolumeError::Invalid(format!(
                "{}: it has sectors of {} bytes, the mirror has some of {}",
                new.name,
                new.device.sector_size(),
                self.sector
            )));
        }
        Ok(())
    }

    /// Whether a device can become a new member. Nothing is written.
    ///
    /// # Errors
    /// As [`Mirror::add`].
    pub fn check_new(&self, new: &Candidate, overwrite: bool) -> Result<(), VolumeError> {
        self.check_device(new)?;
        new.refuse_member(overwrite)
    }

    /// A device as a disk of the mirror.
    fn disk(&self, state: &mut State, of: &Candidate) -> Arc<Disk> {
        let disk = Disk::numbered(state.next_disk, of.device.clone());
        state.next_disk += 1;
        disk.observed_by(&self.observed.read());
        Arc::new(disk)
    }

    /// Adds a device: a member that was absent, or a new one. It gets all writes from now on; [`Mirror::resync`] copies what it lacks.
    /// A device that was a member of this or another volume becomes a new one only with `overwrite`.
    ///
    /// # Errors
    /// [`VolumeError::TooSmall`], [`VolumeError::InUse`], [`VolumeError::UsedApart`], [`VolumeError::GivenTwice`],
    /// [`VolumeError::Invalid`] for a device that cannot be a member, [`VolumeError::Io`].
    pub fn add(&self, new: Candidate, overwrite: bool) -> Result<Uuid, VolumeError> {
        let observed = self.observed.read().clone();
        let _work = observed.work_for_all(Work::Manage);
        self.check_device(&new)?;
        // A label that cannot be read is none to go by.
        let label = read_label(&new.device).ok().flatten().filter(|l| l.superblock.volume == self.volume);
        let mut state = self.state.write();
        state.check().map_err(|e| new.io(e))?;
        if let Some(label) = label {
            let uuid = label.superblock.own().uuid;
            match state.members.iter().position(|m| m.uuid == uuid) {
                Some(index) if state.members[index].device.is_some() => {
                    let first = state.members[index].name.clone();
                    return Err(VolumeError::GivenTwice { first, second: new.name, member: uuid });
                }
                Some(index) if !overwrite => return self.attach(&mut state, index, new, label),
                _ => {}
            }
        }
        new.refuse_member(overwrite)?;
        if state.members.len() >= MEMBERS_MAX {
            return Err(VolumeError::Invalid(format!("a volume has at most {MEMBERS_MAX} members")));
        }
        // Nothing of what stands there may be taken for ours.
        erase_label(&new.device).map_err(|e| new.io(e))?;
        let mut member = Member::new(new_uuid()?, new.name.clone(), false, 0, self.regions());
        member.stale = Regions::all(self.regions());
        member.data_offset = DATA_OFFSET;
        member.device = Some(self.disk(&mut state, &new));
        state.attachments += 1;
        member.attachment = state.attachments;
        let uuid = member.uuid;
        state.members.push(member);
        self.record(&mut state, Some(uuid)).map_err(|e| new.io(e))?;
        if state.members.iter().any(|m| m.uuid == uuid && m.device.is_none()) {
            state.members.retain(|m| m.uuid != uuid);
            self.record(&mut state, None).map_err(|e| new.io(e))?;
            return Err(new.io(io::Error::other("it could not be made a member; the log says why")));
        }
        Ok(uuid)
    }

    /// A member that was absent is there again. It lacks what was written meanwhile.
    fn attach(&self, state: &mut State, index: usize, found: Candidate, label: Label) -> Result<Uuid, VolumeError> {
        let member = &state.members[index];
        let sb = &label.superblock;
        if used_apart(member, &label) {
            let first = "the mirror in use".to_owned();
            return Err(VolumeError::UsedApart { first, second: found.name });
        }
        let durable = self.intent.lock().durable.clone();
        let in_sync: Vec<Uuid> = state.members.iter().filter(|m| m.in_sync).map(|m| m.uuid).collect();
        let (stale, bitmap_copy) = what_it_lacks(member, &label, &found.device, &durable, (state.generation, &in_sync));
        let disk = self.disk(state, &found);
        let member = &mut state.members[index];
        (member.stale, member.bitmap_copy) = (stale, bitmap_copy);
        (member.name, member.device) = (found.name.clone(), Some(disk));
        (member.data_offset, member.sequence, member.next_copy) = (sb.data_offset, sb.sequence, label.next_copy);
        state.attachments += 1;
        member.attachment = state.attachments;
        let uuid = member.uuid;
        self.record(state, Some(uuid)).map_err(|e| found.io(e))?;
        if state.members[index].device.is_none() {
            return Err(found.io(io::Error::other("it could not be made a member again; the log says why")));
        }
        Ok(uuid)
    }

    /// Removes a member for good; the others go on without it. Its superblock is erased if it is there, so that it is not found as a member
    /// any more.
    ///
    /// # Errors
    /// [`VolumeError::Invalid`] if there is no such member or the others do not have everything; [`VolumeError::Io`].
    pub fn remove(&self, uuid: Uuid) -> Result<(), VolumeError> {
        let observed = self.observed.read().clone();
        let _work = observed.work_for_all(Work::Manage);
        self.check_writable()?;
        let mut state = self.state.write();
        let Some(index) = state.members.iter().position(|m| m.uuid == uuid) else {
            return Err(VolumeError::Invalid(format!("the volume has no member {uuid}")));
        };
        let complete = |m: &Member| m.uuid != uuid && m.serves() && m.stale.is_empty();
        if !state.members.iter().any(complete) {
            return Err(VolumeError::Invalid(
                "no other member has everything: add one, and wait until the resync has ended".into(),
            ));
        }
        let removed = state.members.remove(index);
        if !removed.outgoing && !removed.in_sync {
            // It was to come in their place.
            state.members.iter_mut().for_each(|m| m.outgoing = false);
        }
        let io_error = |error| VolumeError::Io { name: removed.name.clone(), error };
        self.record(&mut state, None).map_err(io_error)?;
        if let Some(device) = &removed.device {
            erase_label(device).map_err(io_error)?;
        }
        Ok(())
    }

    /// Puts a new device in the place of a member: adds it, fills it, and removes the old one, which is read until then if it is there.
    /// `rate` and `go_on` as for [`Mirror::resync`]. Returns false if `go_on` ended it: then the new one is no member any more. After a crash a resync
    /// goes on with it.
    ///
    /// # Errors
    /// As [`Mirror::add`], [`Mirror::resync`] and [`Mirror::remove`].
    pub fn replace(
        &self,
        old: Uuid,
        new: Candidate,
        overwrite: bool,
        rate: Option<u64>,
        go_on: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<bool, VolumeError> {
        if self.state.read().members.iter().all(|m| m.uuid != old) {
            return Err(VolumeError::Invalid(format!("the volume has no member {old}")));
        }
        let name = new.name.clone();
        self.set_outgoing(old, true);
        let added = self.add(new, overwrite);
        if added.is_err() {
            self.set_outgoing(old, false);
        }
        let uuid = added?;
        let complete = self.resync(rate, go_on).map_err(|error| VolumeError::Io { name: name.clone(), error })?;
        if complete {
            if !self.state.read().members.iter().any(|m| m.uuid == uuid && m.serves()) {
                let error =
                    io::Error::other("it failed before it was filled, and the log says why; the old member stays");
                self.set_outgoing(old, false);
                return Err(VolumeError::Io { name, error });
            }
            // The resync has removed it, unless it could not.
            if self.state.read().members.iter().any(|m| m.uuid == old) {
                self.remove(old)?;
            }
            return Ok(true);
        }
        self.set_outgoing(old, false);
        self.remove(uuid)?;
        Ok(false)
    }

    /// Notes that another member is put in the place of this one, or not any more. It is recorded with the next change.
    fn set_outgoing(&self, uuid: Uuid, outgoing: bool) {
        self.state.write().members.iter_mut().filter(|m| m.uuid == uuid).for_each(|m| m.outgoing = outgoing);
    }

    /// Removes those in whose place another one has come by now, if everybody else has everything.
    pub(super) fn remove_replaced(&self) -> io::Result<()> {
        let next = {
            let state = self.state.read();
            let fills = state.members.iter().any(|m| !m.outgoing && !m.serves());
            state.members.iter().find(|m| m.outgoing && !fills).map(|m| m.uuid)
        };
        match next.map(|uuid| self.remove(uuid)) {
            None | Some(Ok(())) => Ok(()),
            Some(Err(VolumeError::Io { error, .. })) => Err(error),
            Some(Err(other)) => Err(io::Error::other(other.to_string())),
        }
    }
}

/// Whether a member that the others did without was itself used without them. It was left with the last generation that it is known to have
/// taken or, at rest and after a crash, with one of the two after it; a use raises that by three.
pub(crate) fn used_apart(member: &Member, label: &Label) -> bool {
    let sb = &label.superblock;
    !member.in_sync && sb.own().in_sync && sb.generation > member.last_generation + 2
}

/// The regions that a member lacks that is out of date, and which copy of its bitmap is to be written first. The bitmap has `durable`; the generation is
/// the newest, and these members are in sync.
pub(crate) fn what_it_lacks(
    member: &Member,
    label: &Label,
    device: &dyn cffs_device::Device,
    durable: &Regions,
    (generation, in_sync): (u64, &[Uuid]),
) -> (Regions, usize) {
    let sb = &label.superblock;
    // A copy of it from an earlier time lacks more than the bitmap says.
    let is_old = member.last_generation == 0 || sb.generation < member.last_generation;
    // It was being filled. What it got then is in no bitmap, so it counts only if it got that from those who are in sync now.
    let is_foreign = !sb.own().in_sync
        && (sb.generation + 1 < generation || sb.members.iter().any(|m| !m.in_sync && in_sync.contains(&m.uuid)));
    // While it was in sync it may have received writes that nobody else has: its own bitmap knows.
    match read_bitmap(device, sb.volume, durable.count()) {
        Some((own, _, other)) if !is_old && !is_foreign => {
            let mut lacks = durable.clone();
            lacks.insert_all(&own);
            (lacks, other)
        }
        found => (Regions::all(durable.count()), found.map_or(0, |(_, _, other)| other)),
    }
}

/// The copies of the bitmap of a member: the newest that is whole, its sequence number, and which copy is the other one.
pub(crate) fn read_bitmap(device: &dyn cffs_device::Device, volume: Uuid, count: u32) -> Option<(Regions, u64, usize)> {
    let read = |offset| Regions::decode(&crate::label::read_block(device, offset).ok()?, volume, count);
    let [first, second] = BITMAP_OFFSETS.map(read);
    match (first, second) {
        (Some((set, a)), Some((_, b))) if a >= b => Some((set, a, 1)),
        (_, Some((set, b))) => Some((set, b, 0)),
        (Some((set, a)), None) => Some((set, a, 1)),
        (None, None) => None,
    }
}
