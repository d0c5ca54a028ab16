//! Why a volume cannot be made or opened. Each message says what to do.

use crate::superblock::Uuid;
use std::io;

/// Why a volume cannot be made, opened or changed.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A device has no superblock of a volume, or none that is whole.
    #[error("{name}: not a member of a volume: {why}")]
    NotAMember {
        /// The device.
        name: String,
        /// What was found there.
        why: String,
    },
    /// Two devices belong to different volumes.
    #[error("{first} belongs to volume {volume}, {second} to volume {other}: give the members of one volume")]
    TwoVolumes {
        /// A device.
        first: String,
        /// Its volume.
        volume: Uuid,
        /// Another device.
        second: String,
        /// Its volume.
        other: Uuid,
    },
    /// Two devices are the same member.
    #[error(
        "{first} and {second} are both member {member}: it was given twice, or one is a copy of the other; give the one that was in \
         use last"
    )]
    GivenTwice {
        /// A device.
        first: String,
        /// Another one, or the same.
        second: String,
        /// The member that both are.
        member: Uuid,
    },
    /// Members are missing.
    #[error("{}", too_few(*.have, *.need, .missing, *.mirror))]
    TooFew {
        /// Members given that have all data.
        have: usize,
        /// Members that should be there.
        need: usize,
        /// Who is missing.
        missing: Vec<Uuid>,
        /// Whether the volume can be opened without them.
        mirror: bool,
    },
    /// Two members of a mirror were each used without the other.
    #[error(
        "{first} and {second} were each used without the other, and both have what the other has not. Nothing was changed. Decide which \
         one is right, open the volume with that one alone, and add the other one as a new member: what was written to it alone is lost \
         then"
    )]
    UsedApart {
        /// A member.
        first: String,
        /// Another one.
        second: String,
    },
    /// A device was a member once and is no more.
    #[error("{name} was removed from the volume: leave it out, or add it as a new member")]
    Removed {
        /// The device.
        name: String,
    },
    /// No device that was given has all data.
    #[error(
        "{name} is out of date: it missed writes to the volume, or was not yet filled. Give a member that is up to date"
    )]
    OutOfDate {
        /// One of the devices.
        name: String,
    },
    /// A member of a stripe or concatenation is from another time than the others.
    #[error(
        "{name} is at generation {found}, the volume at {newest}: it is a copy from an earlier time. Give the member that was in use \
         last"
    )]
    Outdated {
        /// The device.
        name: String,
        /// Its generation.
        found: u64,
        /// That of the volume.
        newest: u64,
    },
    /// A device is shorter than it must be.
    #[error("{name} has {have} bytes, {need} are needed: give a device that is at least as long")]
    TooSmall {
        /// The device.
        name: String,
        /// Its bytes.
        have: u64,
        /// The bytes it must have.
        need: u64,
    },
    /// A device that is to become a member is one already.
    #[error("{name} is a member of volume {volume}: it is overwritten only if that is asked for")]
    InUse {
        /// The device.
        name: String,
        /// The volume that it belongs to.
        volume: Uuid,
    },
    /// A member of a mirror that is in sync cannot be written.
    #[error(
        "{name}: it cannot be written ({error}): make it writable, or ask for the mirror to be opened degraded, without it"
    )]
    NotWritable {
        /// The device.
        name: String,
        /// What it said.
        error: io::Error,
    },
    /// What was asked for is not possible.
    #[error("{0}")]
    Invalid(String),
    /// An error of a device.
    #[error("{name}: {error}")]
    Io {
        /// The device.
        name: String,
        /// What it said.
        error: io::Error,
    },
}

fn too_few(have: usize, need: usize, missing: &[Uuid], mirror: bool) -> String {
    let list: Vec<String> = missing.iter().map(|m| m.to_string()).collect();
    let way_out = if mirror {
        "give them, or ask for the volume to be opened degraded; a member that comes back later is brought up to date"
    } else {
        "give them; without all members there is no volume"
    };
    format!("{have} of {need} members are there, missing are {}: {way_out}", list.join(", "))
}

impl From<VolumeError> for io::Error {
    fn from(e: VolumeError) -> Self {
        let kind = match &e {
            VolumeError::Io { error, .. } => error.kind(),
            VolumeError::NotAMember { .. } => io::ErrorKind::InvalidData,
            _ => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, e)
    }
}
