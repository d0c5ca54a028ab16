//! Making a volume, and opening one: who belongs together, and whether that is enough.

use crate::candidate::{Candidate, new_uuid};
use crate::error::VolumeError;
use crate::label::{Label, erase_label, read_label, write_block};
use crate::layout::Layout;
use crate::mirror::{Member, MemberState, MemberStatus, Mirror, MirrorParts, read_bitmap, used_apart, what_it_lacks};
use crate::regions::{Regions, choose_region};
use crate::striped::{Part, Striped};
use crate::superblock::{
    BITMAP_OFFSETS, BLOCK_BYTES, DATA_OFFSET, Entry, Kind, MEMBERS_MAX, Superblock, UNIT_MAX, UNIT_STEP, Uuid,
    volume_len,
};
use cffs_buf::WorkerPool;
use cffs_device::{
    Device, DeviceSpace, Disk, DiskStats, IoKind, Observed, Observer, Purpose, ReadRequest, WriteRequest,
};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Deref;
use std::sync::Arc;

/// The stripe unit where none is chosen, in bytes.
pub const STRIPE_UNIT: u64 = 1 << 20;

/// The generation of a volume that is new.
const FIRST_GENERATION: u64 = 1;

/// How [`create`] makes a volume.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// How the members make a volume.
    pub kind: Kind,
    /// Bytes of a stripe unit: a multiple of 4096 up to 1 GiB, and best of the group of the file system. 0 chooses [`STRIPE_UNIT`].
    /// Only for a stripe.
    pub stripe_unit: u64,
    /// When the volume is made, in seconds since 1970.
    pub created: u64,
    /// Devices that are members of a volume are taken all the same.
    pub overwrite: bool,
}

impl CreateOptions {
    /// A volume of a kind, made from devices that are no members yet.
    pub fn new(kind: Kind) -> Self {
        CreateOptions { kind, stripe_unit: 0, created: 0, overwrite: false }
    }
}

/// How [`open`] opens a volume.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// A mirror is opened although members are missing that are in sync.
    pub degraded: bool,
    /// Nothing is written to any member.
    pub read_only: bool,
    /// Most requests to members at once for one request to the volume. With 1 everything happens in the thread of the caller, in the order
    /// of the members.
    pub depth: usize,
    /// The volume is closed ([`Volume::close`]) when it is dropped. An error is only logged then.
    pub close_on_drop: bool,
    /// Who learns of the requests to the members, also of those with which it is opened.
    pub observed: Observed,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            degraded: false,
            read_only: false,
            depth: 16,
            close_on_drop: false,
            observed: Observed::default(),
        }
    }
}

/// What the superblock of a member says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// The volume that it belongs to.
    pub volume: Uuid,
    /// Its own identity.
    pub member: Uuid,
    /// How the members make a volume.
    pub kind: Kind,
    /// Its number, from 0.
    pub index: usize,
    /// Number of members.
    pub members: usize,
    /// Rises whenever membership changes, and when the volume is opened for writing.
    pub generation: u64,
    /// Bytes of the volume.
    pub volume_len: u64,
    /// Bytes of a stripe unit, 0 for none.
    pub stripe_unit: u64,
    /// When the volume was made, in seconds since 1970.
    pub created: u64,
    /// Whether it has everything, as far as it knows.
    pub in_sync: bool,
}

/// What the superblock of a device says; `None` if it is no member of a volume.
///
/// # Errors
/// `InvalidData` if it has superblocks and neither is whole; those of the device.
pub fn probe(device: &dyn Device) -> io::Result<Option<MemberInfo>> {
    Ok(read_label(device)?.map(|label| {
        let sb = &label.superblock;
        MemberInfo {
            volume: sb.volume,
            member: sb.own().uuid,
            kind: sb.kind,
            index: sb.index,
            members: sb.members.len(),
            generation: sb.generation,
            volume_len: volume_len(sb.kind, sb.unit, sb.region, &sb.members).unwrap_or(0),
            stripe_unit: sb.unit,
            created: sb.created,
            in_sync: sb.own().in_sync,
        }
    }))
}

/// What members a volume is to be made of.
struct Plan {
    unit: u64,
    lens: Vec<u64>,
}

fn plan(devices: &[Candidate], options: &CreateOptions) -> Result<Plan, VolumeError> {
    let invalid = |what: String| Err(VolumeError::Invalid(what));
    if devices.is_empty() || devices.len() > MEMBERS_MAX {
        return invalid(format!("a volume has 1 to {MEMBERS_MAX} members, {} are given", devices.len()));
    }
    let unit = match (options.kind, options.stripe_unit) {
        (Kind::Stripe, 0) => STRIPE_UNIT,
        (Kind::Stripe, unit) if (UNIT_STEP..=UNIT_MAX).contains(&unit) && unit.is_multiple_of(UNIT_STEP) => unit,
        (Kind::Stripe, unit) => {
            return invalid(format!("a stripe unit is a multiple of {UNIT_STEP} up to {UNIT_MAX}, {unit} is none"));
        }
        (_, 0) => 0,
        (kind, _) => return invalid(format!("a {kind} has no stripe unit")),
    };
    // A length is one of whole sectors, whoever's.
    let sector = devices.iter().map(|d| u64::from(d.device.sector_size())).max().unwrap_or(512);
    let block = sector.max(BLOCK_BYTES as u64);
    let step = unit.max(block);
    if unit > 0 && !unit.is_multiple_of(block) {
        return invalid(format!(
            "a stripe unit is a multiple of a sector, and one of the devices has sectors of {sector} bytes"
        ));
    }
    let mut lens = Vec::new();
    for (i, d) in devices.iter().enumerate() {
        if let Some(other) = devices[..i].iter().find(|o| Arc::ptr_eq(&o.device, &d.device)) {
            return invalid(format!("{} and {} are the same device", other.name, d.name));
        }
        lens.push(d.room(step)? / step * step);
        d.refuse_member(options.overwrite)?;
    }
    if options.kind != Kind::Concat {
        let least = lens.iter().copied().min().unwrap_or(0);
        lens.fill(least);
    }
    Ok(Plan { unit, lens })
}

/// Bytes of the volume that [`create`] would make. Nothing is written.
///
/// # Errors
/// As [`create`] before it writes anything.
pub fn planned_len(devices: &[Candidate], options: &CreateOptions) -> Result<u64, VolumeError> {
    let Plan { lens, .. } = plan(devices, options)?;
    Ok(if options.kind == Kind::Mirror { lens[0] } else { lens.iter().sum() })
}

/// Makes a volume of these devices, in this order. What they contain is lost. The contents of the volume are undefined; a mirror
/// may have a different one in each copy until it is written.
///
/// # Errors
/// [`VolumeError::TooSmall`], [`VolumeError::InUse`], [`VolumeError::Invalid`] for impossible options, before anything is written;
/// [`VolumeError::Io`].
pub fn create(devices: &[Candidate], options: &CreateOptions) -> Result<Uuid, VolumeError> {
    let invalid = |what: String| Err(VolumeError::Invalid(what));
    let Plan { unit, lens } = plan(devices, options)?;
    let least = lens.iter().copied().min().unwrap_or(0);
    let region = if options.kind == Kind::Mirror { choose_region(least) } else { 0 };
    let entry = |data_len| {
        let uuid = new_uuid()?;
        let last_generation = if options.kind == Kind::Mirror { FIRST_GENERATION } else { 0 };
        Ok(Entry { uuid, data_len, in_sync: true, outgoing: false, last_generation })
    };
    let members: Vec<Entry> = lens.into_iter().map(entry).collect::<Result<_, VolumeError>>()?;
    if volume_len(options.kind, unit, region, &members).is_none() {
        return invalid("the devices are too long for a volume".into());
    }
    let volume = new_uuid()?;
    for d in devices {
        erase_label(&d.device).map_err(|e| d.io(e))?;
        if options.kind == Kind::Mirror {
            let empty = Regions::none(least.div_ceil(region) as u32).encode(volume, 1);
            for offset in BITMAP_OFFSETS {
                write_block(&d.device, offset, &empty).map_err(|e| d.io(e))?;
            }
        }
    }
    for (index, d) in devices.iter().enumerate() {
        let superblock = Superblock {
            volume,
            kind: options.kind,
            index,
            generation: FIRST_GENERATION,
            sequence: 0,
            data_offset: DATA_OFFSET,
            unit,
            region,
            created: options.created,
            members: members.clone(),
        };
        Label { superblock, next_copy: 0 }.write(&d.device, 2).map_err(|e| d.io(e))?;
    }
    // Two names of one device would have overwritten each other.
    for (d, entry) in devices.iter().zip(&members) {
        if d.label()?.superblock.own().uuid != entry.uuid {
            return invalid(format!("{} is given under another name too", d.name));
        }
    }
    Ok(volume)
}

/// Several devices as one.
pub struct Volume {
    kind: Kind,
    uuid: Uuid,
    stripe_unit: u64,
    created: u64,
    read_only: bool,
    close_on_drop: bool,
    /// In the order of the table, where all are there and in sync: of a stripe or concatenation.
    members: Vec<MemberStatus>,
    inner: Inner,
}

enum Inner {
    Striped(Striped),
    Mirror(Arc<Mirror>),
}

/// A member that was found, whose requests are counted and told.
type Found = (FoundDisk, Label);

/// See [`Found`].
struct FoundDisk {
    /// The device is the disk.
    at: Candidate,
    disk: Arc<Disk>,
}

impl Deref for FoundDisk {
    type Target = Candidate;
    fn deref(&self) -> &Candidate {
        &self.at
    }
}

impl FoundDisk {
    /// The disk with this number.
    fn new(number: usize, at: &Candidate, observed: &Observed) -> FoundDisk {
        let disk = Arc::new(Disk::numbered(number, at.device.clone()));
        disk.observed_by(observed);
        FoundDisk { at: Candidate::new(at.name.clone(), disk.clone()), disk }
    }
}

/// Opens the volume that these devices are the members of, in any order. In counters and traces the disks have the numbers of this order, from 0.
///
/// # Errors
/// Any [`VolumeError`]. Nothing is changed then, unless it is an error of a device.
pub fn open(devices: &[Candidate], options: &OpenOptions) -> Result<Volume, VolumeError> {
    // Whom these requests are for is known to nobody but who opens it; that a volume can be used again after a crash is what they are made for.
    let _purpose = Purpose::Log.scope();
    let mut found: Vec<Found> = Vec::new();
    for (number, d) in devices.iter().enumerate() {
        let d = FoundDisk::new(number, d, &options.observed);
        let label = d.label()?;
        let sb = &label.superblock;
        if let Some((first, other)) = found.first()
            && other.superblock.volume != sb.volume
        {
            return Err(VolumeError::TwoVolumes {
                first: first.name.clone(),
                volume: other.superblock.volume,
                second: d.name.clone(),
                other: sb.volume,
            });
        }
        if let Some((first, _)) = found.iter().find(|(_, l)| l.superblock.own().uuid == sb.own().uuid) {
            let (first, second) = (first.name.clone(), d.name.clone());
            return Err(VolumeError::GivenTwice { first, second, member: sb.own().uuid });
        }
        found.push((d, label));
    }
    // Of two with the same generation the one that is in sync knows better.
    let newest = |(_, l): &&Found| (l.superblock.generation, l.superblock.own().in_sync);
    let Some((_, newest)) = found.iter().max_by_key(newest) else {
        return Err(VolumeError::Invalid("no device is given".into()));
    };
    let newest = newest.superblock.clone();
    for (d, label) in &found {
        let sb = &label.superblock;
        let Some(entry) = newest.entry(sb.own().uuid) else {
            return Err(VolumeError::Removed { name: d.name.clone() });
        };
        if sb.kind != newest.kind
            || sb.unit != newest.unit
            || sb.region != newest.region
            || entry.data_len != sb.own().data_len
        {
            return Err(VolumeError::NotAMember {
                name: d.name.clone(),
                why: "its superblock contradicts another one".into(),
            });
        }
    }
    if newest.kind == Kind::Mirror && !options.read_only {
        leave_out_unwritable(&mut found, options.degraded)?;
    }
    let read_only = options.read_only || found.iter().any(|(d, _)| d.device.read_only());
    let sector = found.iter().map(|(d, _)| d.device.sector_size()).max().unwrap_or(512);
    let mut members: Vec<(usize, MemberStatus)> = found
        .iter()
        .map(|(d, l)| {
            let (uuid, name) = (l.superblock.own().uuid, d.name.clone());
            let (disk, state) = (Some(d.disk.number()), MemberState::InSync);
            (l.superblock.index, MemberStatus { uuid, name, state, outgoing: false, lacks: 0, disk })
        })
        .collect();
    members.sort_by_key(|(index, _)| *index);
    let inner = match newest.kind {
        Kind::Mirror => Inner::Mirror(Arc::new(open_mirror(found, &newest, options, (read_only, sector))?)),
        _ => Inner::Striped(open_striped(found, &newest, options, (read_only, sector))?),
    };
    Ok(Volume {
        kind: newest.kind,
        uuid: newest.volume,
        stripe_unit: newest.unit,
        created: newest.created,
        read_only,
        close_on_drop: options.close_on_drop,
        members: members.into_iter().map(|(_, member)| member).collect(),
        inner,
    })
}

/// Leaves out the members of a mirror that are open for reading only, if others are not. Who asks for a mirror that can be written is not to get
/// one that cannot without a word, and nobody has agreed to do without a member unless it is to be opened `degraded`.
fn leave_out_unwritable(found: &mut Vec<Found>, degraded: bool) -> Result<(), VolumeError> {
    let is_written = |(d, l): &Found| !d.device.read_only() && l.superblock.own().in_sync;
    if !found.iter().any(is_written) {
        return Ok(());
    }
    if let Some((d, _)) = found.iter().find(|(d, _)| d.device.read_only())
        && !degraded
    {
        let error = io::Error::new(io::ErrorKind::PermissionDenied, "it is open for reading only");
        return Err(VolumeError::NotWritable { name: d.name.clone(), error });
    }
    found.retain(|(d, label)| {
        let is_kept = !d.device.read_only();
        if !is_kept {
            tracing::error!(volume = %label.superblock.volume, member = %d.name, "a member of the mirror is open for reading only and is left out: make it writable");
        }
        is_kept
    });
    Ok(())
}

/// Who of the table was not found.
fn missing(table: &Superblock, found: &[Found], which: impl Fn(&Entry) -> bool) -> Vec<Uuid> {
    let is_there = |uuid| found.iter().any(|(_, l)| l.superblock.own().uuid == uuid);
    table.members.iter().filter(|m| which(m) && !is_there(m.uuid)).map(|m| m.uuid).collect()
}

fn open_striped(
    mut found: Vec<Found>,
    newest: &Superblock,
    options: &OpenOptions,
    (read_only, sector): (bool, u32),
) -> Result<Striped, VolumeError> {
    let need = newest.members.len();
    let missing = missing(newest, &found, |_| true);
    if !missing.is_empty() {
        return Err(VolumeError::TooFew { have: found.len(), need, missing, mirror: false });
    }
    for (d, label) in &found {
        if label.superblock.generation + 1 < newest.generation {
            return Err(VolumeError::Outdated {
                name: d.name.clone(),
                found: label.superblock.generation,
                newest: newest.generation,
            });
        }
    }
    found.sort_by_key(|(_, label)| label.superblock.index);
    if !read_only {
        // First those come up that an earlier crash has left behind, so that they are never two behind. Then all of them twice, so that whoever
        // missed one of the two in a crash is told from whoever missed a use of the volume.
        for round in 0..=2 {
            let generation = newest.generation + round;
            for (d, label) in found.iter_mut().filter(|(_, l)| l.superblock.generation < generation) {
                label.superblock.generation = generation;
                label.write(&d.device, 2).map_err(|e| d.io(e))?;
            }
        }
    }
    let mut end = 0;
    let ends = newest.members.iter().map(|m| {
        end += m.data_len;
        end
    });
    let layout = match newest.kind {
        Kind::Stripe => Layout::Stripe { unit: newest.unit, members: need as u64 },
        _ => Layout::Concat(ends.collect()),
    };
    let part = |(d, label): Found| Part { device: d.disk, data_offset: label.superblock.data_offset };
    Ok(Striped {
        layout,
        len: volume_len(newest.kind, newest.unit, newest.region, &newest.members).unwrap_or(0),
        sector,
        read_only,
        parts: found.into_iter().map(part).collect(),
        pool: WorkerPool::new("cffs-stripe", options.depth.max(1)),
    })
}

fn open_mirror(
    found: Vec<Found>,
    newest: &Superblock,
    options: &OpenOptions,
    (read_only, sector): (bool, u32),
) -> Result<Mirror, VolumeError> {
    let len = newest.members[0].data_len;
    let count = len.div_ceil(newest.region) as u32;
    let mut members: Vec<Member> = Vec::new();
    for entry in &newest.members {
        let mut member = Member::new(entry.uuid, String::new(), entry.in_sync, entry.last_generation, count);
        member.outgoing = entry.outgoing;
        if let Some((d, label)) = found.iter().find(|(_, l)| l.superblock.own().uuid == entry.uuid) {
            let sb = &label.superblock;
            if used_apart(&member, label) {
                let newest = found.iter().find(|(_, l)| l.superblock == *newest);
                let first = newest.map_or(String::new(), |(d, _)| d.name.clone());
                return Err(VolumeError::UsedApart { first, second: d.name.clone() });
            }
            if member.in_sync && sb.generation < member.last_generation {
                tracing::warn!(member = %d.name, generation = sb.generation, newest = newest.generation, "a member is a copy from an earlier time and is filled anew");
                (member.in_sync, member.last_generation) = (false, 0);
            } else if member.in_sync {
                member.last_generation = sb.generation;
            }
            (member.name, member.device) = (d.name.clone(), Some(d.disk.clone()));
            (member.data_offset, member.sequence, member.next_copy) = (sb.data_offset, sb.sequence, label.next_copy);
        }
        members.push(member);
    }
    let serving = |m: &Member| m.in_sync && m.device.is_some();
    let have = members.iter().filter(|m| serving(m)).count();
    if have == 0 {
        let name = found.first().map_or(String::new(), |(d, _)| d.name.clone());
        return Err(VolumeError::OutOfDate { name });
    }
    let missing = missing(newest, &found, |m| m.in_sync);
    if !missing.is_empty() && !options.degraded {
        return Err(VolumeError::TooFew { have, need: have + missing.len(), missing, mirror: true });
    }
    let mut dirty = Regions::none(count);
    let (mut any, mut bitmap_sequence) = (false, 0);
    for m in members.iter_mut().filter(|m| serving(m)) {
        let Some(device) = &m.device else { continue };
        if let Some((set, sequence, other)) = read_bitmap(device, newest.volume, count) {
            dirty.insert_all(&set);
            (any, m.bitmap_copy) = (true, other);
            bitmap_sequence = sequence.max(bitmap_sequence);
        }
    }
    if !any {
        tracing::warn!(volume = %newest.volume, "no member has a bitmap that is whole: everything is compared anew");
        dirty = Regions::all(count);
    }
    let labels: Vec<Option<&Label>> = newest
        .members
        .iter()
        .map(|e| found.iter().find(|(_, l)| l.superblock.own().uuid == e.uuid).map(|(_, l)| l))
        .collect();
    // The one whose superblock is the newest is the source: it may know of a change that the others missed.
    let generation = |i: usize| labels[i].map_or(0, |l| l.superblock.generation);
    let source =
        (0..members.len()).filter(|i| serving(&members[*i])).max_by_key(|i| (generation(*i), members.len() - i));
    let in_sync: Vec<Uuid> = members.iter().filter(|m| m.in_sync).map(|m| m.uuid).collect();
    for (i, m) in members.iter_mut().enumerate() {
        match labels[i] {
            Some(_) if m.in_sync && Some(i) != source => m.stale = dirty.clone(),
            Some(label) if !m.in_sync => {
                if let Some(device) = &m.device {
                    let now = (newest.generation, &in_sync[..]);
                    (m.stale, m.bitmap_copy) = what_it_lacks(m, label, device, &dirty, now);
                }
            }
            Some(_) => {}
            None if m.in_sync && !read_only => m.in_sync = false,
            None => {}
        }
    }
    let mirror = Mirror::new(MirrorParts {
        volume: newest.volume,
        created: newest.created,
        len,
        region: newest.region,
        sector,
        read_only,
        generation: newest.generation,
        members,
        dirty,
        bitmap_sequence,
        depth: options.depth.max(1),
        observed: options.observed.clone(),
    });
    if !read_only {
        if !options.degraded {
            mirror.check_writes()?;
        }
        mirror.begin().map_err(|error| VolumeError::Io { name: "the mirror".into(), error })?;
    }
    Ok(mirror)
}

impl Volume {
    /// How the members make the volume.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Identity of the volume.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Bytes of a stripe unit, 0 where there is none.
    pub fn stripe_unit(&self) -> u64 {
        self.stripe_unit
    }

    /// When the volume was made, in seconds since 1970.
    pub fn created(&self) -> u64 {
        self.created
    }

    /// The members, in the order of the table.
    pub fn members(&self) -> Vec<MemberStatus> {
        match &self.inner {
            Inner::Striped(_) => self.members.clone(),
            Inner::Mirror(mirror) => mirror.status().members,
        }
    }

    /// The mirror, if it is one. A thread that resyncs keeps one of its own.
    pub fn mirror(&self) -> Option<&Arc<Mirror>> {
        match &self.inner {
            Inner::Mirror(mirror) => Some(mirror),
            Inner::Striped(_) => None,
        }
    }

    /// Makes everything durable, and a mirror such that the next opening has nothing to copy.
    ///
    /// # Errors
    /// As [`Device::flush`].
    pub fn close(&self) -> io::Result<()> {
        match &self.inner {
            Inner::Striped(striped) => striped.flush(),
            Inner::Mirror(mirror) => mirror.close(),
        }
    }

    fn inner(&self) -> &dyn Device {
        match &self.inner {
            Inner::Striped(striped) => striped,
            Inner::Mirror(mirror) => &**mirror,
        }
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("kind", &self.kind).field("uuid", &self.uuid).finish_non_exhaustive()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.close_on_drop
            && !self.read_only
            && let Err(error) = self.close()
        {
            tracing::error!(volume = %self.uuid, %error, "the volume could not be closed: the next opening has more to compare");
        }
    }
}

impl Device for Volume {
    fn len(&self) -> u64 {
        self.inner().len()
    }
    fn sector_size(&self) -> u32 {
        self.inner().sector_size()
    }
    fn max_request(&self) -> usize {
        self.inner().max_request()
    }
    fn is_rotational(&self) -> bool {
        self.inner().is_rotational()
    }
    fn width(&self) -> usize {
        self.inner().width()
    }
    fn stripe(&self) -> u64 {
        self.inner().stripe()
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.inner().read_vectored(kind, offset, bufs)
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.inner().write_vectored(kind, offset, bufs)
    }
    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.inner().write_batch(requests)
    }
    fn takes(&self, memory: &[u8]) -> bool {
        self.inner().takes(memory)
    }
    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        self.inner().read_batch(requests)
    }
    fn copies(&self) -> usize {
        self.inner().copies()
    }
    fn read_copy(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner().read_copy(kind, copy, offset, buf)
    }
    fn repair(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8]) -> io::Result<bool> {
        self.inner().repair(kind, copy, offset, good)
    }
    fn flush(&self) -> io::Result<()> {
        self.inner().flush()
    }
    fn finish(&self) -> io::Result<()> {
        self.inner().finish()
    }
    fn space(&self) -> Option<DeviceSpace> {
        self.inner().space()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner().discard(offset, len)
    }
    fn can_discard(&self) -> bool {
        self.inner().can_discard()
    }
    fn observe(&self, observer: &Arc<dyn Observer>) -> bool {
        self.inner().observe(observer)
    }
    fn disks(&self) -> Vec<DiskStats> {
        self.inner().disks()
    }
    fn read_only(&self) -> bool {
        self.inner().read_only()
    }
}
