//! Looking for the members of a volume. Nothing is opened for longer than a look.

use anyhow::{Context, bail};
use cffs::device::{FileDevice, OpenMode};
use cffs_fuse::{Place, places_of};
use cffs_volume::{BLOCK_BYTES, DATA_OFFSET, SUPERBLOCK_OFFSETS, Uuid, volume_of_block};
use rustix::fs::OFlags;
use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What a file is, whatever its path: device and inode, or the number of a block device.
type Identity = (bool, u64, u64);

fn identity(meta: &Metadata) -> Identity {
    if meta.file_type().is_block_device() { (true, meta.rdev(), 0) } else { (false, meta.dev(), meta.ino()) }
}

/// The volume that a file or block device is a member of, as far as a look at its superblocks tells. It may be in use.
fn volume_of(path: &Path) -> Option<Uuid> {
    let meta = fs::metadata(path).ok()?;
    let kind = meta.file_type();
    if !(kind.is_block_device() || kind.is_file() && meta.len() > DATA_OFFSET) {
        return None;
    }
    // A device without a medium is not waited for.
    let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let mut block = vec![0; BLOCK_BYTES];
    SUPERBLOCK_OFFSETS.iter().find_map(|at| {
        file.read_exact_at(&mut block, *at).ok()?;
        volume_of_block(&block)
    })
}

/// All block devices of the machine.
fn block_devices() -> Vec<PathBuf> {
    let Ok(all) = fs::read_dir("/sys/class/block") else { return Vec::new() };
    let mut found: Vec<PathBuf> = all
        .flatten()
        .filter(|entry| fs::read_to_string(entry.path().join("size")).is_ok_and(|n| n.trim() != "0"))
        // In names of devices the kernel has an exclamation mark for a slash.
        .map(|entry| Path::new("/dev").join(entry.file_name().to_string_lossy().replace('!', "/")))
        .collect();
    found.sort();
    found
}

fn files_in(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    found.sort();
    Ok(found)
}

/// Where the other members were looked for.
pub struct Search {
    /// Members, and whether each was named and not found.
    pub found: Vec<(PathBuf, bool)>,
    /// For messages.
    pub places: String,
}

/// Looks for the members of a volume: in `places` (files and directories), or else in the directory of `named`, and if that is a block device
/// among all of them.
pub fn search(named: &Path, volume: Uuid, places: &[PathBuf]) -> anyhow::Result<Search> {
    let mut seen: HashSet<Identity> = HashSet::new();
    let mut found = vec![(named.to_owned(), true)];
    let meta = fs::metadata(named).with_context(|| named.display().to_string())?;
    seen.insert(identity(&meta));
    let mut add = |path: PathBuf, is_named: bool| {
        let Ok(meta) = fs::metadata(&path) else { return };
        if seen.insert(identity(&meta)) && (is_named || volume_of(&path) == Some(volume)) {
            found.push((path, is_named));
        }
    };
    if !places.is_empty() {
        for place in places {
            let meta = fs::metadata(place).with_context(|| format!("{}: cannot look for members", place.display()))?;
            if meta.is_dir() {
                files_in(place).with_context(|| place.display().to_string())?.into_iter().for_each(|p| add(p, false));
            } else {
                add(place.clone(), true);
            }
        }
        let list: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        return Ok(Search { found, places: list.join(", ") });
    }
    if meta.file_type().is_block_device() {
        block_devices().into_iter().for_each(|p| add(p, false));
        return Ok(Search { found, places: "all block devices".into() });
    }
    let path = named.canonicalize().with_context(|| named.display().to_string())?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    // A directory that may not be listed may be searched by names only.
    files_in(dir).unwrap_or_default().into_iter().for_each(|p| add(p, false));
    Ok(Search { found, places: dir.display().to_string() })
}

/// What may be members, where they were looked for, that are damaged: files that begin as one, and those that are as long as the one that is
/// named and are none.
pub fn damaged(named: &Path, places: &str) -> Vec<String> {
    let Ok(own) = fs::metadata(named) else { return Vec::new() };
    let dir = Path::new(places);
    let look = if own.file_type().is_block_device() { block_devices() } else { files_in(dir).unwrap_or_default() };
    let mut found = Vec::new();
    for path in look {
        let Ok(meta) = fs::metadata(&path) else { continue };
        let kind = meta.file_type();
        if identity(&meta) == identity(&own) || !(kind.is_file() || kind.is_block_device()) {
            continue;
        }
        let Ok(file) = FileDevice::open(&path, OpenMode::READ_ONLY) else { continue };
        match cffs_volume::probe(&file) {
            Err(e) => found.push(format!("{} looks like a damaged member: {e}", path.display())),
            Ok(None) if kind.is_file() && meta.len() == own.len() => found.push(format!(
                "{} is as long as a member and has no superblock of one: it may be a damaged one",
                path.display()
            )),
            Ok(_) => {}
        }
    }
    found
}

/// Where the volume is mounted of which this is a member, under whichever name; or the image itself, if it is no member.
pub fn places(image: &Path) -> Vec<Place> {
    let own = places_of(image).unwrap_or_default();
    if !own.is_empty() {
        return own;
    }
    let Some(volume) = volume_of(image) else { return own };
    let Ok(all) = search(image, volume, &[]) else { return own };
    all.found.iter().map(|(path, _)| places_of(path).unwrap_or_default()).find(|p| !p.is_empty()).unwrap_or_default()
}

/// Refuses members that are the same file or device under several names.
pub fn refuse_same(paths: &[PathBuf]) -> anyhow::Result<()> {
    let mut seen: Vec<(Identity, &Path)> = Vec::new();
    for path in paths {
        // One that does not exist yet has only its name.
        let Ok(meta) = fs::metadata(path) else {
            if paths.iter().filter(|p| *p == path).count() > 1 {
                bail!("{}: given twice: give each member once", path.display());
            }
            continue;
        };
        let id = identity(&meta);
        if let Some((_, first)) = seen.iter().find(|(other, _)| *other == id) {
            bail!("{} and {} are the same: give each member once", first.display(), path.display());
        }
        seen.push((id, path));
    }
    Ok(())
}
