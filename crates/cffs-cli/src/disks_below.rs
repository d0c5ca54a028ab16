//! The disks below a log disk or a volume, as a mount tells of them.

use cffs::stats::{DeviceCounters, FsStats};
use cffs_fuse::volume::{MemberReport, VolumeReport};

/// A disk that gets requests of a log disk or a volume, or a member of a volume that is not there.
pub struct DiskBelow<'a> {
    /// Its number in counters and traces; none for a member that is not there.
    pub number: Option<usize>,
    /// What it is called.
    pub name: &'a str,
    /// The member of a volume that it is.
    pub member: Option<&'a MemberReport>,
    /// What was requested of it.
    pub counters: Option<&'a DeviceCounters>,
}

/// The disks below the file system of an image, members of a volume in their order; none where it is on a single disk.
pub fn disks_below<'a>(stats: &'a FsStats, volume: Option<&'a VolumeReport>, image: &'a str) -> Vec<DiskBelow<'a>> {
    let counters = |n: usize| stats.disks.iter().find(|d| d.disk == n).map(|d| &d.counters);
    let Some(volume) = volume else {
        let of = |n: usize| DiskBelow { number: Some(n), name: image, member: None, counters: counters(n) };
        return stats.disks.iter().map(|d| of(d.disk)).collect();
    };
    let of = |m: &'a MemberReport| DiskBelow {
        number: m.disk,
        // One that was never there has no name.
        name: if m.name.is_empty() { &m.uuid } else { &m.name },
        member: Some(m),
        counters: m.disk.and_then(counters),
    };
    volume.members.iter().map(of).collect()
}

/// The volume in the counters of a mount, if there is one.
pub fn volume_of(counters: &serde_json::Value) -> Option<VolumeReport> {
    serde_json::from_value(counters["volume"].clone()).ok().flatten()
}
