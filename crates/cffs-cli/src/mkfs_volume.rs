//! Making a volume of several files or devices, for a file system on it.

use crate::device::open_device;
use crate::member_search::refuse_same;
use crate::overwrite::refuse_if_taken;
use crate::size::parse_size;
use anyhow::{Context, anyhow, bail};
use cffs::device::{Device, FileDevice, IoKind, MemoryDevice, OpenMode};
use cffs_volume::{Candidate, CreateOptions, Kind, OpenOptions, STRIPE_UNIT, Volume};
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

fn parse_unit(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("a stripe unit of 0 bytes is none: a multiple of the group, as 1M".into()),
        unit => Ok(unit),
    }
}

/// What mkfs makes a volume by.
#[derive(Args, Debug)]
pub struct VolumeArgs {
    /// Make a mirror: each of the images or devices has everything, and what one has lost comes from another one
    #[arg(long, group = "volume")]
    mirror: bool,
    /// Make a stripe: pieces of this size go to the images or devices by turns; a multiple of the group, as 1M. Without one of them all is lost
    #[arg(long, value_name = "UNIT", value_parser = parse_unit, group = "volume")]
    stripe: Option<u64>,
    /// Put the images or devices one behind the other. Without one of them all is lost
    #[arg(long, group = "volume")]
    concat: bool,
}

/// New image files that are removed again unless the file system in them gets finished.
#[derive(Default)]
pub struct Created(pub Vec<PathBuf>);

impl Drop for Created {
    fn drop(&mut self) {
        for path in &self.0 {
            // Best effort: the error that led here is what the user needs to see.
            let _ = fs::remove_file(path);
        }
    }
}

/// A member, before anything is written to it.
struct Planned {
    path: PathBuf,
    /// `None` for a file that does not exist yet.
    file: Option<FileDevice>,
    len: u64,
}

/// A volume that is to be made.
pub struct Plan {
    kind: Kind,
    unit: u64,
    members: Vec<Planned>,
    /// Bytes of the volume.
    pub len: u64,
    /// Has sectors as the volume will have.
    pub sectors: MemoryDevice,
}

impl VolumeArgs {
    /// The kind of the volume, if one is to be made.
    pub fn kind(&self) -> Option<Kind> {
        match (self.mirror, self.stripe, self.concat) {
            (true, ..) => Some(Kind::Mirror),
            (_, Some(_), _) => Some(Kind::Stripe),
            (.., true) => Some(Kind::Concat),
            _ => None,
        }
    }

    /// Refuses what the arguments say together, before anything is opened.
    pub fn check(&self, image: &Path, more: &[PathBuf], group: Option<u32>) -> anyhow::Result<()> {
        let name = image.display();
        let Some(kind) = self.kind() else {
            if let Some(second) = more.first() {
                bail!(
                    "{}: a second image: to make one file system of several, say how with --mirror, --stripe UNIT or --concat",
                    second.display()
                );
            }
            return Ok(());
        };
        if more.is_empty() {
            bail!("{name}: a {kind} of one member: name at least one more image or device");
        }
        let (Some(unit), Some(group)) = (self.stripe, group) else { return Ok(()) };
        if unit == 0 || !unit.is_multiple_of(group.into()) {
            bail!(
                "{name}: a stripe unit is a multiple of the group, {unit} is none of {group}: change --stripe or --group-size"
            );
        }
        Ok(())
    }

    /// Looks at all members, and refuses what cannot become one. Nothing is written.
    pub fn plan(
        &self,
        kind: Kind,
        image: &Path,
        more: &[PathBuf],
        size: Option<u64>,
        force: bool,
    ) -> anyhow::Result<Plan> {
        let paths: Vec<PathBuf> = std::iter::once(image.to_owned()).chain(more.iter().cloned()).collect();
        refuse_same(&paths)?;
        let mut members = Vec::new();
        for path in paths {
            members.push(planned(path, size, force)?);
        }
        let sector = members.iter().filter_map(|m| Some(m.file.as_ref()?.sector_size())).max().unwrap_or(512);
        let like = |m: &Planned| {
            Candidate::new(m.path.display().to_string(), Arc::new(MemoryDevice::with_sector_size(m.len, sector)))
        };
        let unit = self.stripe.unwrap_or(0);
        let options = CreateOptions { stripe_unit: unit, ..CreateOptions::new(kind) };
        let all: Vec<Candidate> = members.iter().map(like).collect();
        let len = cffs_volume::planned_len(&all, &options).map_err(|e| anyhow!("{e}"))?;
        Ok(Plan { kind, unit, members, len, sectors: MemoryDevice::with_sector_size(len, sector) })
    }
}

fn planned(path: PathBuf, size: Option<u64>, force: bool) -> anyhow::Result<Planned> {
    let name = path.display().to_string();
    if !path.try_exists().with_context(|| name.clone())? {
        let Some(len) = size else {
            bail!(
                "{name}: no such file or device: to make image files, say with --size how large each, as in --size 4G"
            );
        };
        return Ok(Planned { path, file: None, len });
    }
    let file = open_device(&path, OpenMode::READ_WRITE)?;
    refuse_if_taken(&path, &file, force)?;
    let len = size.unwrap_or(file.len());
    if len == 0 {
        bail!("{name}: the file is empty: say with --size how large each member is to be");
    }
    if file.is_block_device() && len > file.len() {
        bail!("{name}: the device has {} bytes, {len} do not fit: leave out --size", file.len());
    }
    Ok(Planned { path, file: Some(file), len })
}

impl Plan {
    /// The first member that exists, on which times can be measured.
    pub fn files(&self) -> impl Iterator<Item = &FileDevice> {
        self.members.iter().filter_map(|m| m.file.as_ref())
    }

    /// A group that is not longer than a stripe unit, and divides it.
    pub fn fitting_group(&self, group: u32) -> u32 {
        let unit = if self.kind == Kind::Stripe && self.unit == 0 { STRIPE_UNIT } else { self.unit };
        let mut group = group;
        while unit > 0 && group > 512 && !unit.is_multiple_of(group.into()) {
            group /= 2;
        }
        group
    }

    /// Makes the files that do not exist yet, and gives the others their length.
    pub fn make_files(&mut self, created: &mut Created) -> anyhow::Result<()> {
        for m in &mut self.members {
            match &m.file {
                Some(file) if file.len() != m.len => file.set_len(m.len)?,
                Some(_) => {}
                None => {
                    m.file = Some(FileDevice::create(&m.path, m.len, OpenMode::READ_WRITE)?);
                    created.0.push(m.path.clone());
                }
            }
        }
        Ok(())
    }

    /// Makes the volume. What the members contain is lost.
    pub fn make(self) -> anyhow::Result<Arc<Volume>> {
        for m in &self.members {
            // One that cannot be written must be known before anything is lost on the others.
            let Some(file) = &m.file else { continue };
            let mut first = vec![0; file.sector_size() as usize];
            file.read_at(IoKind::Super, 0, &mut first)
                .and_then(|()| file.write_at(IoKind::Super, 0, &first))
                .with_context(|| format!("{}: give a device that can be written", m.path.display()))?;
        }
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let options =
            CreateOptions { stripe_unit: self.unit, created, overwrite: true, ..CreateOptions::new(self.kind) };
        let candidates: Vec<Candidate> = self
            .members
            .into_iter()
            .filter_map(|m| Some(Candidate::new(m.path.display().to_string(), Arc::new(m.file?))))
            .collect();
        cffs_volume::create(&candidates, &options).map_err(|e| anyhow!("{e}"))?;
        let options = OpenOptions { close_on_drop: true, ..OpenOptions::default() };
        Ok(Arc::new(cffs_volume::open(&candidates, &options).map_err(|e| anyhow!("{e}"))?))
    }
}
