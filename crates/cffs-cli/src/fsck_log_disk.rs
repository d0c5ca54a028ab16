//! `cffs fsck` of the log layout: the log disk, before the file system on it.
//!
//! The log disk is opened for reading, whatever may be written later: one that is damaged must not be written by who opens it. What the
//! root leads to is counted and compared. If that is wrong or cannot be read, the disk is rebuilt from its segments, each batch of which
//! describes itself; nothing is overwritten before the new root is written.

use crate::device::open_device;
use crate::disk::{Below, below};
use crate::exit::{self, ExitCodeExt, with_code};
use crate::log_args::LogArgs;
use crate::progress::Steps;
use crate::signature::{self, Ours};
use anyhow::{Context, anyhow};
use cffs::check::repair::has_superblock;
use cffs::device::{Device, FileDevice, OpenMode};
use cffs::{Error, Fs, MountOptions, TrimRange};
use cffs_logdisk::{ImageStore, LogDisk, LogOptions, RebuildReport, rebuild, recover_image};
use serde_json::{Value, json};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Bytes that are verified between two looks at the progress.
const STEP: u64 = 16 << 20;
/// Most lines about damaged data.
const DAMAGE_MAX: usize = 100;

/// What was found of the log disk of an image, and done.
#[derive(Default)]
pub struct LogDiskOutcome {
    /// What is wrong and was not put right.
    pub problems: Vec<String>,
    /// Stored data that is not what was written.
    pub damage: Vec<String>,
    /// It was rebuilt.
    pub rebuilt: Option<RebuildReport>,
}

impl LogDiskOutcome {
    /// Whether anything is wrong with it as it is now.
    pub fn is_damaged(&self) -> bool {
        !self.problems.is_empty() || !self.damage.is_empty()
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
        json!({ "problems": self.problems, "damage": self.damage, "rebuilt": rebuilt })
    }

    /// For people, one line for each thing.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.problems.iter().chain(&self.damage).cloned().collect();
        if let Some(r) = &self.rebuilt {
            lines.push(match (r.from_checkpoint, r.recounted) {
                (true, false) => {
                    "REBUILT: an earlier checkpoint and what was written since are whole: nothing is lost".into()
                }
                (true, true) => "REBUILT: the use of segments was counted anew: nothing is lost".into(),
                (false, _) => {
                    format!("REBUILT: the map was made from {} batches; snapshots and clones are lost", r.batches)
                }
            });
            lines.extend(r.lost.iter().cloned());
        }
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
}

/// Looks at the log disk of an image, if it is one; with `wanted.rebuild` and a yes to the question, it is rebuilt if anything is wrong.
pub fn check(
    path: &Path,
    parts: &LogArgs,
    mode: OpenMode,
    wanted: Wanted,
    question: &mut dyn FnMut(&[String]) -> bool,
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
    outcome.problems = look(&dev, wanted.data, &mut outcome.damage).exit_code(exit::fsck::OPERATIONAL)?;
    if outcome.problems.is_empty() || !wanted.rebuild || !question(&outcome.problems) {
        return Ok(Some(outcome));
    }
    let steps = Steps::new();
    steps.show("rebuilding the log disk", 0, 1);
    let store = recover_image(dev.clone()).with_context(|| name.clone()).exit_code(exit::fsck::OPERATIONAL)?;
    let report = rebuild(Arc::new(store), &LogOptions::default()).map_err(|e| {
        if e.kind() == io::ErrorKind::Unsupported {
            return with_code(
                exit::fsck::ERRORS_LEFT,
                anyhow!("{name}: the log disk is left as it is: {e}: copy them with `cffs convert --layout=log {name} NEW`, or `cffs export`"),
            );
        }
        let advice = match e.kind() {
            io::ErrorKind::StorageFull => ": make the image longer with `truncate -s`, and try again",
            _ => "",
        };
        with_code(exit::fsck::OPERATIONAL, anyhow!("{name}: the log disk cannot be rebuilt: {e}{advice}"))
    })?;
    drop(steps);
    outcome.damage.clear();
    outcome.problems = look(&dev, wanted.data, &mut outcome.damage).exit_code(exit::fsck::OPERATIONAL)?;
    outcome.rebuilt = Some(report);
    Ok(Some(outcome))
}

/// Whether a device without superblocks has a log disk. That takes reading all of it, so what it may be otherwise is looked for first: a file system in
/// the plain layout whose copies of the superblock are good, or something that others have made.
fn may_be_lost(file: &FileDevice, dev: &Arc<dyn Device>) -> bool {
    let is_other = has_superblock(&**dev, None) || matches!(signature::detect(file), Ok(Some(_)));
    !is_other && recover_image(dev.clone()).is_ok()
}

/// What is wrong with the log disk on a device.
fn look(dev: &Arc<dyn Device>, data: bool, damage: &mut Vec<String>) -> anyhow::Result<Vec<String>> {
    let options = LogOptions { read_only: true, ..LogOptions::default() };
    let store = ImageStore::open(dev.clone());
    let disk = match store.and_then(|store| LogDisk::open(Arc::new(store), &options)) {
        Ok(disk) => disk,
        Err(e) if is_damage(&e) => return Ok(vec![e.to_string()]),
        Err(e) => return Err(e.into()),
    };
    let problems = match disk.check(false) {
        Ok(problems) => problems,
        Err(e) if is_damage(&e) => return Ok(vec![e.to_string()]),
        Err(e) => return Err(e.into()),
    };
    if data && problems.is_empty() {
        verify(&disk, damage)?;
    }
    Ok(problems)
}

fn is_damage(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// Reads and verifies all that lives.
fn verify(disk: &LogDisk, damage: &mut Vec<String>) -> anyhow::Result<()> {
    let steps = Steps::new();
    let (live, mut done, mut at) = (disk.stats().live, 0, Some(0));
    while let Some(from) = at {
        let step = disk.scrub_step(from, STEP)?;
        done += step.bytes;
        steps.show("data on the log disk", done, live.max(done));
        let room = DAMAGE_MAX.saturating_sub(damage.len());
        damage.extend(step.problems.into_iter().take(room));
        at = step.next;
    }
    Ok(())
}

/// Gives back the room of what a crash has left on a log disk and no file has. A mount does that when nobody uses it, but it is not told of the crash
/// when the file system has been put in order here.
pub fn discard_left_over(dev: &Arc<dyn Device>) -> cffs::Result<()> {
    let fs = Fs::open(dev.clone(), None, MountOptions::default().background(false))?;
    let trimmed = fs.trim(TrimRange::default());
    fs.close()?;
    match trimmed {
        // Without room there is none to note what is free. The next `cffs trim` may do it.
        Ok(_) | Err(Error::NoSpace | Error::Unsupported) => Ok(()),
        Err(e) => Err(e),
    }
}
