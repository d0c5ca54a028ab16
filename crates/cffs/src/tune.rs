//! Settings that can be changed after mkfs: fields of the superblock.
//!
//! [`tune`] is for a file system that is not mounted; [`crate::fs::Fs::tune`] does the same while it is in use.

use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::format::superblock::{INCOMPAT_METADATA_UUID, LABEL_MAX, MOUNT_OPTIONS_MAX, SUPERBLOCK_SIZE};
use crate::superblocks::read_superblock;
use cffs_buf::AlignedBuf;
use cffs_device::{Device, IoKind};

/// Most of the space that can be kept for privileged users, in 1/10,000.
pub const RESERVE_MAX: u32 = 5000;

/// What to change; `None` leaves a setting as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Tune {
    /// Name of the file system, at most 64 bytes.
    pub label: Option<String>,
    /// Share of the space kept for privileged users, in 1/10,000, at most a half.
    pub reserve_bp: Option<u32>,
    /// Mount options that hold unless the mount says otherwise, separated by commas, at most 128 bytes. What they mean is up
    /// to the program that mounts.
    pub mount_options: Option<String>,
    /// Identity; only while it is not mounted. Metadata keeps the identity it was made with.
    pub uuid: Option<[u8; 16]>,
}

setters!(Tune {
    label: Option<String>,
    reserve_bp: Option<u32>,
    mount_options: Option<String>,
    uuid: Option<[u8; 16]>,
});

impl Tune {
    /// Checks the settings by themselves.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(label) = self.label.as_ref().filter(|l| l.len() > LABEL_MAX || l.contains('\0')) {
            return Error::invalid(format!("label {label:?}: at most {LABEL_MAX} bytes, none of them zero"));
        }
        if let Some(bp) = self.reserve_bp.filter(|bp| *bp > RESERVE_MAX) {
            return Error::invalid(format!("reserve of {}%: at most half can be kept back", f64::from(bp) / 100.0));
        }
        if let Some(o) = self.mount_options.as_ref().filter(|o| o.len() > MOUNT_OPTIONS_MAX || o.contains('\0')) {
            return Error::invalid(format!(
                "mount options {o:?}: at most {MOUNT_OPTIONS_MAX} bytes, none of them zero"
            ));
        }
        if self.uuid == Some([0; 16]) {
            return Error::invalid("uuid of zeros: stands for no file system at all");
        }
        Ok(())
    }

    /// Makes the changes in a superblock.
    pub(crate) fn apply(&self, sb: &mut Superblock) {
        let padded = |text: &str, to: &mut [u8]| {
            to.fill(0);
            to[..text.len()].copy_from_slice(text.as_bytes());
        };
        if let Some(label) = &self.label {
            padded(label, &mut sb.label);
        }
        if let Some(options) = &self.mount_options {
            padded(options, &mut sb.mount_options);
        }
        sb.reserve_bp = self.reserve_bp.unwrap_or(sb.reserve_bp);
        if let Some(uuid) = self.uuid {
            // Metadata blocks keep the identity they were written with, because a crash must not interrupt rewriting them all.
            sb.metadata_fsid = sb.fsid();
            sb.uuid = uuid;
            sb.incompat |= INCOMPAT_METADATA_UUID;
            let by_uuid = Superblock { incompat: 0, ..sb.clone() };
            if by_uuid.fsid() == sb.metadata_fsid {
                // Back to the identity it was made with.
                sb.metadata_fsid = 0;
                sb.incompat &= !INCOMPAT_METADATA_UUID;
            }
        }
    }
}

/// Changes settings of a file system that is not mounted, and returns the superblock before and after. It need not have
/// been unmounted cleanly.
///
/// Fails with [`Error::Invalid`] for a value that is not possible; then nothing was changed.
pub fn tune(dev: &dyn Device, tune: &Tune) -> Result<(Superblock, Superblock)> {
    tune.check()?;
    let before = read_superblock(dev)?;
    if let Some(names) = before.unknown_ro_compat() {
        return Error::invalid(format!("unknown feature {names}: use a newer program to change the file system"));
    }
    let mut after = before.clone();
    tune.apply(&mut after);
    if after != before {
        let mut block = AlignedBuf::zeroed(4096.max(dev.sector_size() as usize));
        dev.read_at(IoKind::Super, 0, &mut block)?;
        block[..SUPERBLOCK_SIZE].copy_from_slice(&after.encode());
        dev.write_at(IoKind::Super, 0, &block)?;
        dev.flush()?;
    }
    Ok((before, after))
}
