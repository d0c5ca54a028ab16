//! Volumes of several devices: one member is named, and the others are found.

use crate::device::open_device;
use crate::log_args::LogArgs;
use crate::member_search::{Search, damaged, search};
use anyhow::{Context, anyhow};
use cffs::Superblock;
use cffs::device::{Device, FileDevice, IoKind, OpenMode};
use cffs::format::superblock::SUPERBLOCK_SIZE;
use cffs_volume::{Candidate, Kind, MemberState, MemberStatus, OpenOptions, Volume, VolumeError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Opens the volume that `named`, which is open as `file`, is a member of.
pub fn open_volume(file: &Arc<FileDevice>, named: &Path, parts: &LogArgs) -> anyhow::Result<Arc<Volume>> {
    let name = named.display();
    let info = cffs_volume::probe(&**file).map_err(|e| anyhow!("{name}: a damaged member of a volume: {e}"))?;
    let info = info.with_context(|| format!("{name}: not a member of a volume"))?;
    let Search { mut found, places } = search(named, info.volume, &parts.members)?;
    let read_only = file.read_only();
    let mode = if read_only { OpenMode::READ_ONLY } else { OpenMode::READ_WRITE };
    let mut candidates = vec![Candidate::new(name.to_string(), file.clone())];
    let mut files = vec![file.clone()];
    for (path, is_named) in found.split_off(1) {
        let other = match open_device(&path, mode) {
            Ok(other) => Arc::new(other),
            Err(e) if parts.degraded => {
                eprintln!("cffs: warning: {e:#}: the mirror is used without it");
                continue;
            }
            Err(e) => return Err(e.context(format!("{name}: another member cannot be used{WITHOUT_IT}"))),
        };
        if !file.is_direct() {
            other.use_buffered()?;
        }
        candidates.push(Candidate::new(path.display().to_string(), other.clone()));
        files.push(other);
        found.push((path, is_named));
    }
    let look = OpenOptions { degraded: parts.degraded, read_only: true, close_on_drop: true, ..OpenOptions::default() };
    let wanted = OpenOptions { read_only, observed: parts.observed.clone(), ..look.clone() };
    // A look first: what is wrong is told before anything is changed.
    let volume = loop {
        match cffs_volume::open(&candidates, &look) {
            Ok(volume) => break volume,
            Err(e) if let Some(at) = to_leave_out(&e, &candidates, &found, parts.degraded) => {
                eprintln!("cffs: warning: {e}: it is left out");
                candidates.remove(at);
                found.remove(at);
                files.remove(at);
            }
            Err(e) => return Err(advise(e, named, &places)),
        }
    };
    use_sectors_of_the_format(&files, &volume)?;
    // The numbers of disks are those of members, as far as all are there.
    let order: Vec<String> = volume.members().into_iter().map(|m| m.name).collect();
    candidates.sort_by_key(|c| order.iter().position(|name| *name == c.name));
    drop(volume);
    cffs_volume::open(&candidates, &wanted).map(Arc::new).map_err(|e| advise(e, named, &places))
}

/// Which of the candidates an error is about, if the volume can do without it: it was once a member, and happens to lie where one is looked for; or
/// it was cut short, and the mirror is to be used without it.
fn to_leave_out(e: &VolumeError, candidates: &[Candidate], found: &[(PathBuf, bool)], degraded: bool) -> Option<usize> {
    let (name, may_be_named) = match e {
        VolumeError::Removed { name } => (name, false),
        VolumeError::TooSmall { name, .. } | VolumeError::NotAMember { name, .. } if degraded => (name, true),
        _ => return None,
    };
    let at = candidates.iter().position(|c| c.name == *name)?;
    (at > 0 && (may_be_named || !found[at].1)).then_some(at)
}

/// What helps where another member cannot be used.
const WITHOUT_IT: &str = " (with --degraded, mount: -o degraded, a mirror is used without it)";

/// An error of opening a volume, with what to do.
fn advise(e: VolumeError, named: &Path, places: &str) -> anyhow::Error {
    let name = named.display();
    let more = match &e {
        VolumeError::TooFew { mirror, .. } => {
            let damaged: Vec<String> = damaged(named, places).iter().map(|what| format!("; {what}")).collect();
            let degraded = if *mirror { "; with --degraded (mount: -o degraded) it is used without them" } else { "" };
            format!(
                ". Looked in {places}: name other places with --members PATH (mount: -o members=PATH){degraded}{}",
                damaged.concat()
            )
        }
        VolumeError::TooSmall { .. } | VolumeError::NotWritable { .. } => WITHOUT_IT.to_owned(),
        VolumeError::GivenTwice { .. } | VolumeError::TwoVolumes { .. } => {
            format!(
                ". Looked in {places}: move a copy elsewhere, or name the right files with --members FILE (mount: -o members=FILE)"
            )
        }
        VolumeError::UsedApart { .. } => {
            ". That is: move the wrong one elsewhere, mount with -o degraded, and use `cffs volume DIR add --force`, then `cffs volume \
             DIR remove` for what it was before"
                .into()
        }
        _ => String::new(),
    };
    anyhow!("{name}: {e}{more}")
}

/// As for a single image: direct I/O of whole sectors cannot transfer single fragments that are smaller.
fn use_sectors_of_the_format(files: &[Arc<FileDevice>], volume: &Volume) -> anyhow::Result<()> {
    let sector = volume.sector_size();
    let mut block = vec![0; (sector as usize).max(SUPERBLOCK_SIZE)];
    if volume.len() < block.len() as u64 || volume.read_at(IoKind::Super, 0, &mut block).is_err() {
        return Ok(());
    }
    let smaller = Superblock::decode(&block).is_ok_and(|sb| sector > 1 << sb.frag_shift.clamp(9, 16));
    if smaller {
        for file in files {
            file.use_buffered()?;
        }
    }
    Ok(())
}

/// What a user should know of a volume that is used: members that are missing or lack something.
pub fn warnings(volume: &Volume) -> Vec<String> {
    let what = |m: &MemberStatus| match m.state {
        MemberState::Absent => Some("is missing: the mirror is degraded"),
        MemberState::Filling => Some("is out of date: it is brought up to date in the background"),
        MemberState::InSync | MemberState::Resyncing => None,
    };
    let named =
        |m: &MemberStatus| if m.name.is_empty() { m.uuid.to_string() } else { format!("{} ({})", m.name, m.uuid) };
    volume.members().iter().filter_map(|m| Some(format!("member {} {}", named(m), what(m)?))).collect()
}

/// What a volume is, in a few words.
pub fn summary(volume: &Volume) -> String {
    let members = volume.members();
    let n = members.len();
    let unit = match volume.kind() {
        Kind::Stripe => format!(" in units of {}", crate::size::human(volume.stripe_unit())),
        _ => String::new(),
    };
    let absent = members.iter().filter(|m| m.state == MemberState::Absent).count();
    let degraded = if absent > 0 { format!(", {absent} of them missing: degraded") } else { String::new() };
    format!("{} of {n} members{unit}{degraded}", volume.kind())
}
