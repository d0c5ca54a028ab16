//! `cffs fsck` of the log layout: the log disk, before the file system on it.
//!
//! The log disk is opened for reading, whatever may be written later: one that is damaged must not be written by who opens it. What the
//! root leads to is counted and compared. If that is wrong or cannot be read, the disk is rebuilt from its segments, each batch of which
//! describes itself; nothing is overwritten before the new root is written.

use crate::device::open_device;
use crate::disk::{Below, below};
use crate::exit::{self, ExitCodeExt, with_code};
use crate::log_args::LogArgs;
use crate::lost_files::lost_files;
use crate::progress::Steps;
use crate::signature::{self, Ours};
use crate::size::human;
use anyhow::{Context, anyhow};
use cffs::check::repair::has_superblock;
use cffs::device::{Device, FileDevice, IoKind, OpenMode};
use cffs::format::superblock::SUPERBLOCK_SIZE;
use cffs::format::{Geometry, Superblock};
use cffs::{Error, Fs, MountOptions, TrimRange};
use cffs_fuse::snapshots;
use cffs_logdisk::{
    BLOCK_BYTES, ImageStore, LogDisk, LogOptions, MendReport, NewerVersion, RebuildReport, UnreadableEnd, rebuild,
    recover_image,
};
use serde_json::{Value, json};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Bytes that are verified between two looks at the progress.
const STEP: u64 = 16 << 20;
/// Most lines about damaged data, and ranges of it.
const DAMAGE_MAX: usize = 100;
const RANGES_MAX: usize = 1 << 16;

/// What was found of the log disk of an image, and done.
#[derive(Default)]
pub struct LogDiskOutcome {
    /// What is wrong and was not put right.
    pub problems: Vec<String>,
    /// Stored data that is not what was written.
    pub damage: Vec<String>,
    /// Ranges of the main branch among that: offset and length in bytes.
    pub ranges: Vec<(u64, u64)>,
    /// Batches whose summary is damaged: what they have can be read.
    pub summaries: Vec<String>,
    /// What they have was moved.
    pub mended: Option<MendReport>,
    /// It was rebuilt.
    pub rebuilt: Option<RebuildReport>,
    /// What was written last may be where the image cannot be read; where.
    pub unreadable_end: Option<String>,
    /// It goes on without that.
    pub without_end: Option<String>,
    /// A new map has no lost data, and that would read as zeros.
    pub unmarked: bool,
    /// It was made as long as the file system on it, in bytes.
    pub lengthened: Option<u64>,
    /// It was made an error to read that.
    pub marked: bool,
    /// Files that have lost data, or whose data is damaged.
    pub files: Vec<String>,
}

impl LogDiskOutcome {
    /// Whether anything is wrong with it as it is now.
    pub fn is_damaged(&self) -> bool {
        !self.problems.is_empty() || !self.summaries.is_empty() || self.unmarked || self.lost_data()
    }

    /// Whether data of files is gone or damaged.
    pub fn lost_data(&self) -> bool {
        !self.damage.is_empty() || !self.files.is_empty()
    }

    /// Whether the image is another one than before.
    pub fn has_changed(&self) -> bool {
        self.rebuilt.is_some()
            || self.marked
            || self.lengthened.is_some()
            || self.without_end.is_some()
            || self.mended.as_ref().is_some_and(|m| m.copied > 0 || m.freed > 0)
    }

    /// For the JSON output.
    pub fn to_json(&self) -> Value {
        let rebuilt = self.rebuilt.as_ref().map(|r| {
            json!({
                "from_checkpoint": r.from_checkpoint,
                "recounted": r.recounted,
                "batches": r.batches,
                "bytes": r.mapped,
                "lost": r.lost,
            })
        });
        let mended = self.mended.as_ref().map(|m| json!({"segments": m.freed, "bytes": m.copied, "left": m.left}));
        json!({
            "problems": self.problems,
            "damage": self.damage,
            "damaged_summaries": self.summaries,
            "mended": mended,
            "rebuilt": rebuilt,
            "without_end": self.without_end,
            "unmarked": self.unmarked,
            "lengthened": self.lengthened,
            "files": self.files,
        })
    }

    /// For people, one line for each thing.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.problems.iter().chain(&self.summaries).chain(&self.damage).cloned().collect();
        if let Some(m) = &self.mended {
            let (bytes, n) = (human(m.copied), m.freed);
            lines.push(format!("MENDED: {bytes} moved out of segments with damaged summaries; {n} of them are free"));
            lines.extend(m.left.iter().map(|line| format!("not moved: {line}")));
        }
        if let Some(end) = &self.without_end {
            lines.push(format!("CUT: the log goes on without what was written last: {end}"));
        }
        if let Some(r) = &self.rebuilt {
            lines.push(match (r.from_checkpoint, r.recounted) {
                (true, false) if r.lost.is_empty() => {
                    "REBUILT: an earlier checkpoint and what was written since are whole: nothing is lost".into()
                }
                (true, false) => "REBUILT: an earlier checkpoint and what was written since have all files".into(),
                (true, true) => "REBUILT: the use of segments was counted anew: nothing is lost".into(),
                (false, _) => {
                    format!("REBUILT: the map was made from {} batches; snapshots and clones are lost", r.batches)
                }
            });
            lines.extend(r.lost.iter().cloned());
        }
        if let Some(bytes) = self.lengthened {
            lines.push(format!("LENGTHENED: the file system on it has {bytes} bytes, and so has the disk now"));
        }
        if self.unmarked {
            lines.push("its rebuilding has not come to its end: what files have lost reads as zeros".into());
        }
        lines.extend(self.files.iter().cloned());
        lines
    }
}

/// What may be done.
#[derive(Clone, Copy)]
pub struct Wanted {
    /// Verify all stored data as well.
    pub data: bool,
    /// It may be rebuilt, if `question` says so.
    pub rebuild: bool,
    /// What loses nothing may be done, if `question` says so.
    pub mend: bool,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Proposal {
    /// Move what batches with damaged summaries have.
    Mend,
    /// Go on without what was written last and cannot be read.
    LoseEnd,
    /// Rebuild the log disk.
    Rebuild,
}

/// Looks at the log disk of an image, if it is one. What `wanted` allows is done after a yes to the question.
pub fn check(
    path: &Path,
    parts: &LogArgs,
    mode: OpenMode,
    wanted: Wanted,
    question: &mut dyn FnMut(Proposal, &[String]) -> bool,
) -> anyhow::Result<Option<LogDiskOutcome>> {
    let name = path.display().to_string();
    let Below { file, dev, begins: known, .. } = below(open_device(path, mode)?, path, parts)?;
    if known == Some(Ours::FileSystem) {
        return Ok(None);
    }
    let mut outcome = LogDiskOutcome::default();
    if known.is_none() && !may_be_lost(&file, &dev) {
        // Nothing of a log disk: whoever opens the image says what is there.
        return Ok(None);
    }
    look(&dev, wanted.data, &mut outcome).with_context(|| name.clone()).exit_code(exit::fsck::OPERATIONAL)?;
    if outcome.problems.is_empty() {
        if wanted.rebuild {
            // Of a rebuilding that was interrupted.
            fit(&dev, &name, &mut outcome)?;
        }
        move_damaged(&dev, &name, wanted, &mut outcome, question)?;
        return Ok(Some(outcome));
    }
    if let Some(end) = outcome.unreadable_end.take() {
        if !wanted.rebuild || !question(Proposal::LoseEnd, &outcome.problems) {
            return Ok(Some(outcome));
        }
        go_on(&dev).map_err(|e| with_code(exit::fsck::OPERATIONAL, cannot(&name, "opened without its end", &e)))?;
        look(&dev, wanted.data, &mut outcome).exit_code(exit::fsck::OPERATIONAL)?;
        outcome.without_end = Some(end);
        return Ok(Some(outcome));
    }
    if !wanted.rebuild || !question(Proposal::Rebuild, &outcome.problems) {
        return Ok(Some(outcome));
    }
    let steps = Steps::new();
    steps.show("rebuilding the log disk", 0, 1);
    let store = recover_image(dev.clone()).with_context(|| name.clone()).exit_code(exit::fsck::OPERATIONAL)?;
    let report = rebuild(Arc::new(store), &LogOptions::default()).map_err(|e| {
        if e.kind() == io::ErrorKind::Unsupported && !NewerVersion::is(&e) {
            return with_code(
                exit::fsck::ERRORS_LEFT,
                anyhow!("{name}: the log disk is left as it is: {e}: copy them with `cffs convert --layout=log {name} NEW`, or `cffs export`"),
            );
        }
        with_code(exit::fsck::OPERATIONAL, cannot(&name, "rebuilt", &e))
    })?;
    drop(steps);
    look(&dev, wanted.data, &mut outcome).exit_code(exit::fsck::OPERATIONAL)?;
    fit(&dev, &name, &mut outcome)?;
    if outcome.problems.is_empty() {
        move_damaged(&dev, &name, wanted, &mut outcome, question)?;
    }
    outcome.rebuilt = Some(report);
    Ok(Some(outcome))
}

/// Moves what batches with damaged summaries have, if there are some.
fn move_damaged(
    dev: &Arc<dyn Device>,
    name: &str,
    wanted: Wanted,
    outcome: &mut LogDiskOutcome,
    question: &mut dyn FnMut(Proposal, &[String]) -> bool,
) -> anyhow::Result<()> {
    if outcome.summaries.is_empty() || !wanted.mend || !question(Proposal::Mend, &outcome.summaries) {
        return Ok(());
    }
    let steps = Steps::new();
    steps.show("moving what is in damaged segments", 0, 1);
    let mended = mend(dev).map_err(|e| with_code(exit::fsck::OPERATIONAL, cannot(name, "mended", &e)))?;
    drop(steps);
    let lengthened = outcome.lengthened;
    look(dev, wanted.data, outcome).exit_code(exit::fsck::OPERATIONAL)?;
    (outcome.mended, outcome.lengthened) = (Some(mended), lengthened);
    Ok(())
}

fn cannot(name: &str, what: &str, e: &io::Error) -> anyhow::Error {
    let advice = match e.kind() {
        io::ErrorKind::StorageFull => ": make the image longer with `truncate -s`, and try again",
        _ => "",
    };
    anyhow!("{name}: the log disk cannot be {what}: {e}{advice}")
}

/// A new map may be of a disk whose size is lost.
fn fit(dev: &Arc<dyn Device>, name: &str, outcome: &mut LogDiskOutcome) -> anyhow::Result<()> {
    if outcome.unmarked {
        let fitted = fit_file_system(dev).with_context(|| name.to_owned()).exit_code(exit::fsck::OPERATIONAL)?;
        outcome.lengthened = fitted;
    }
    Ok(())
}

/// Makes a log disk as long as the file system that begins on it, if it is shorter. Returns that length.
fn fit_file_system(dev: &Arc<dyn Device>) -> io::Result<Option<u64>> {
    let options = LogOptions { unmarked: true, ..LogOptions::default() };
    let disk = LogDisk::open(Arc::new(ImageStore::open(dev.clone())?), &options)?;
    let mut bytes = [0; SUPERBLOCK_SIZE];
    // What cannot be read says nothing.
    let read = disk.read_at(IoKind::Super, 0, &mut bytes);
    let known = read.ok().and_then(|()| Superblock::decode(&bytes).ok()).and_then(|sb| Geometry::new(&sb).ok());
    let longer = known.map(|g| g.total_bytes()).filter(|bytes| *bytes > disk.len());
    if let Some(bytes) = longer {
        disk.lengthen(bytes.next_multiple_of(BLOCK_BYTES as u64))?;
    }
    Ok(longer)
}

/// Moves what batches with damaged summaries have.
fn mend(dev: &Arc<dyn Device>) -> io::Result<MendReport> {
    let disk = LogDisk::open(
        Arc::new(ImageStore::open(dev.clone())?),
        &LogOptions { unmarked: true, ..LogOptions::default() },
    )?;
    disk.mend_summaries()
}

/// Makes the log end before what cannot be read.
fn go_on(dev: &Arc<dyn Device>) -> io::Result<()> {
    let options = LogOptions { lose_end: true, unmarked: true, ..LogOptions::default() };
    LogDisk::open(Arc::new(ImageStore::open(dev.clone())?), &options)?.finish()
}

/// Names the files that have lost data by a rebuild, and with `data` those whose data is damaged. What is lost becomes an error for who reads it, if
/// the image may be written.
pub fn look_at_files(
    outcome: &mut LogDiskOutcome,
    dev: &Arc<dyn Device>,
    disk: &LogDisk,
    data: bool,
) -> anyhow::Result<()> {
    if !data && !outcome.unmarked {
        return Ok(());
    }
    let found = lost_files(dev.clone(), disk, &outcome.ranges)?;
    let more = found.total - found.lines.len();
    outcome.files = found.lines;
    outcome.files.extend((more > 0).then(|| format!("and {more} files more")));
    if (outcome.unmarked || !found.missing.is_empty()) && !disk.read_only() {
        disk.mark_lost(&found.missing)?;
        (outcome.unmarked, outcome.marked) = (false, true);
    }
    Ok(())
}

/// Whether a device without superblocks has a log disk. That takes reading all of it, so what it may be otherwise is looked for first: a file system in
/// the plain layout whose copies of the superblock are good, or something that others have made.
fn may_be_lost(file: &FileDevice, dev: &Arc<dyn Device>) -> bool {
    let is_other = has_superblock(&**dev, None) || matches!(signature::detect(file), Ok(Some(_)));
    !is_other && recover_image(dev.clone()).is_ok()
}

/// Segments whose summaries are read between two looks at the progress.
const SEGMENTS: usize = 256;

/// What is wrong with the log disk on a device as it is now.
fn look(dev: &Arc<dyn Device>, data: bool, found: &mut LogDiskOutcome) -> anyhow::Result<()> {
    *found = LogDiskOutcome::default();
    let options = LogOptions { read_only: true, unmarked: true, ..LogOptions::default() };
    let opened = ImageStore::open(dev.clone()).and_then(|store| LogDisk::open(Arc::new(store), &options));
    let checked = opened.and_then(|disk| Ok((disk.check(false)?, disk)));
    let disk = match checked {
        Ok((problems, disk)) => {
            (found.problems, found.unmarked) = (problems, disk.is_unmarked());
            disk
        }
        Err(e) if is_damage(&e) => {
            let is_end = e.get_ref().is_some_and(|e| e.is::<UnreadableEnd>());
            found.unreadable_end = is_end.then(|| e.to_string());
            found.problems = vec![e.to_string()];
            return Ok(());
        }
        Err(e) => return Err(e.into()),
    };
    if found.problems.is_empty() {
        found.summaries = summaries(&disk);
        if data {
            verify(&disk, found)?;
        }
    }
    Ok(())
}

/// The summaries of batches that are damaged.
fn summaries(disk: &LogDisk) -> Vec<String> {
    let steps = Steps::new();
    let all = disk.stats().segments as u64;
    let (mut problems, mut done, mut at) = (Vec::new(), 0, Some(0));
    while let Some(from) = at {
        let step = disk.check_summaries(from, SEGMENTS);
        done += SEGMENTS as u64;
        steps.show("summaries of the log disk", done.min(all), all);
        problems.extend(step.problems);
        at = step.next;
    }
    problems
}

fn is_damage(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// Reads and verifies all that lives.
fn verify(disk: &LogDisk, found: &mut LogDiskOutcome) -> anyhow::Result<()> {
    let steps = Steps::new();
    let (live, mut done, mut at) = (disk.stats().live, 0, Some(0));
    while let Some(from) = at {
        let step = disk.scrub_step(from, STEP)?;
        done += step.bytes;
        steps.show("data on the log disk", done, live.max(done));
        let room = DAMAGE_MAX.saturating_sub(found.damage.len());
        found.damage.extend(step.problems.into_iter().take(room));
        let room = RANGES_MAX.saturating_sub(found.ranges.len());
        found.ranges.extend(step.damaged.into_iter().take(room));
        at = step.next;
    }
    Ok(())
}

/// Gives back the room of what a crash has left on a log disk and no file has, and of temporary snapshots. A mount does that when nobody uses it, but
/// it is not told of the crash when the file system has been put in order here.
pub fn discard_left_over(dev: &Arc<dyn Device>, disk: &LogDisk) -> cffs::Result<()> {
    let deleted = match snapshots::delete_left_over(disk)? {
        0 => Ok(()),
        _ => snapshots::finish_deletions(disk),
    };
    match deleted {
        // The next mount goes on with it.
        Err(Error::Io(e)) if e.kind() == io::ErrorKind::StorageFull => {}
        finished => finished?,
    }
    let fs = Fs::open(dev.clone(), None, MountOptions::default().background(false))?;
    let trimmed = fs.trim(TrimRange::default());
    fs.close()?;
    match trimmed {
        // Without room there is none to note what is free. The next `cffs trim` may do it.
        Ok(_) | Err(Error::NoSpace | Error::Unsupported) => Ok(()),
        Err(e) => Err(e),
    }
}
