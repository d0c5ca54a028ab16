//! Devices that are, or are to become, members.

use crate::error::VolumeError;
use crate::label::{Label, SECTOR_MAX, read_label};
use crate::superblock::{COUNTER_MAX, DATA_OFFSET, Uuid};
use cffs_device::Device;
use std::io;
use std::sync::Arc;

/// A device, and what to call it in messages.
#[derive(Clone)]
pub struct Candidate {
    /// Its path, or another name.
    pub name: String,
    /// The device.
    pub device: Arc<dyn Device>,
}

impl Candidate {
    /// A device with a name.
    pub fn new(name: impl Into<String>, device: Arc<dyn Device>) -> Self {
        Candidate { name: name.into(), device }
    }

    pub(crate) fn io(&self, error: io::Error) -> VolumeError {
        VolumeError::Io { name: self.name.clone(), error }
    }

    /// The superblock of a member.
    pub(crate) fn label(&self) -> Result<Label, VolumeError> {
        let why = match read_label(&self.device) {
            Ok(Some(label)) => {
                let sb = &label.superblock;
                let need = sb.data_offset.saturating_add(sb.own().data_len);
                if self.device.len() < need {
                    return Err(VolumeError::TooSmall { name: self.name.clone(), have: self.device.len(), need });
                }
                return Ok(label);
            }
            Ok(None) => "it has no superblock of one".to_owned(),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => e.to_string(),
            Err(e) => return Err(self.io(e)),
        };
        Err(VolumeError::NotAMember { name: self.name.clone(), why })
    }

    /// Bytes that it has for data as a new member with at least `need` of them.
    pub(crate) fn room(&self, need: u64) -> Result<u64, VolumeError> {
        let (have, need) = (self.device.len().min(COUNTER_MAX - 1), DATA_OFFSET.saturating_add(need));
        if self.device.sector_size() > SECTOR_MAX {
            return Err(VolumeError::Invalid(format!(
                "{}: sectors of {} bytes are too long for a member",
                self.name,
                self.device.sector_size()
            )));
        }
        if self.device.read_only() {
            return Err(VolumeError::Invalid(format!("{}: it cannot be written", self.name)));
        }
        if have < need {
            return Err(VolumeError::TooSmall { name: self.name.clone(), have, need });
        }
        Ok(have - DATA_OFFSET)
    }

    /// Refuses a device that is a member, unless it may be overwritten.
    pub(crate) fn refuse_member(&self, overwrite: bool) -> Result<(), VolumeError> {
        match read_label(&self.device) {
            _ if overwrite => Ok(()),
            Ok(None) => Ok(()),
            Ok(Some(label)) => Err(VolumeError::InUse { name: self.name.clone(), volume: label.superblock.volume }),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(VolumeError::Invalid(format!(
                "{}: it looks like a damaged member of a volume ({e}); it is overwritten only if that is asked for",
                self.name
            ))),
            Err(e) => Err(self.io(e)),
        }
    }
}

/// A new identity.
pub(crate) fn new_uuid() -> Result<Uuid, VolumeError> {
    let mut bytes = [0; 16];
    let mut done = 0;
    while done < bytes.len() {
        let n = rustix::rand::getrandom(&mut bytes[done..], rustix::rand::GetRandomFlags::empty());
        done += n.map_err(|e| VolumeError::Io { name: "random numbers".into(), error: e.into() })?;
    }
    // Version 4, variant 1.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(Uuid(bytes))
}
