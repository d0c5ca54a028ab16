//! The volume that a file system is on: what its members are and do, and what is done with them while it is mounted.

use crate::background::{Background, Work};
use cffs::device::{Device, FileDevice, OpenMode};
use cffs::{Error, Fs, Result};
use cffs_logdisk::LogDisk;
use cffs_volume::{Candidate, Difference, MemberState, MemberStatus, Mirror, Uuid, Verdict, Volume, VolumeError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Bytes a second at which members are brought up to date after the mount, unless somebody asks for another rate.
const RATE: u64 = 100 << 20;
/// Differences that are logged one by one.
const LOGGED_MAX: u64 = 20;

/// What a volume is, and what has happened to it since it was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// Its identity.
    pub uuid: String,
    /// `mirror`, `stripe` or `concatenation`.
    pub kind: String,
    /// Bytes of a stripe unit, 0 where there is none.
    pub stripe_unit: u64,
    /// Bytes of the volume.
    pub bytes: u64,
    /// The members; the place in the list is the number of a member.
    pub members: Vec<MemberReport>,
    /// Of a mirror.
    pub mirror: Option<MirrorReport>,
    /// What is done with the members, or was done last, since the mount.
    pub work: Option<WorkReport>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Its identity.
    pub uuid: String,
    /// What it was called when it was given; empty for one that was never there.
    pub name: String,
    /// What it is at the moment.
    pub state: State,
    /// Another one is put in its place: it goes when that has everything.
    #[serde(default)]
    pub outgoing: bool,
    /// Bytes that are still to be copied to it.
    pub lacks_bytes: u64,
    /// The number of its disk in counters and traces, if it is there.
    #[serde(default)]
    pub disk: Option<usize>,
}

/// What a member is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It has everything.
    InSync,
    /// It has everything that was promised; after a crash some regions are still to be made equal.
    Resyncing,
    /// It is being filled, and not read.
    Filling,
    /// It is not there.
    Absent,
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            State::InSync => "in sync",
            State::Resyncing => "in sync, compared after a crash",
            State::Filling => "being filled",
            State::Absent => "missing",
        })
    }
}

/// Counters of a mirror since it was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorReport {
    /// Rises with every change of who belongs to it.
    pub generation: u64,
    /// Bytes of a region of the bitmap.
    pub region_bytes: u64,
    /// Regions in which members may differ after a crash.
    pub dirty_regions: u32,
    /// Nothing can be recorded any more: every write fails.
    pub failed: bool,
    /// Members that are missing, out of date or were dropped.
    pub missing: u64,
    /// Reads that a member failed.
    pub read_errors: u64,
    /// Reads that were answered by another member than the one that was asked first.
    pub reads_redirected: u64,
    /// Ranges written back to a member that could not read them.
    pub rewritten: u64,
    /// Copies that were wrong and were made equal to a right one.
    pub repaired: u64,
    /// Members that were dropped because they failed.
    pub dropped: u64,
    /// Bytes copied to members that lacked them.
    pub resynced_bytes: u64,
    /// Ranges that a read brought to all members after a crash.
    pub synced_reads: u64,
    /// Times that the bitmap was written.
    pub bitmap_writes: u64,
}

/// How far work on the members is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkReport {
    /// `resync`, `replace` or `compare`.
    pub what: String,
    /// Bytes that are done.
    pub done: u64,
    /// Bytes in all, as far as that is known.
    pub total: u64,
    /// Tenths of a second since it began, or that it took.
    pub deciseconds: u64,
    /// How it ended; nothing while it goes on.
    pub outcome: Option<WorkOutcome>,
    /// What a comparison has found.
    pub compared: Option<CompareReport>,
}

/// How work ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkOutcome {
    /// It did everything.
    Complete,
    /// Somebody has stopped it.
    Stopped,
    /// Why it could not go on.
    Failed(String),
}

/// What a comparison of the members has found, in blocks of 4096 bytes (or sectors, if these are longer).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompareReport {
    /// Bytes that were compared.
    pub bytes: u64,
    /// Blocks that differed.
    pub differences: u64,
    /// Blocks that a member could not read.
    pub unreadable: u64,
    /// Blocks that were written to a member.
    pub repaired: u64,
    /// Blocks in use that differ, and nobody can say which is right.
    pub unknown: u64,
    /// Blocks that no member can read.
    pub lost: u64,
    /// Bytes that were left out because they are still to be copied.
    pub skipped: u64,
    /// Members that are missing or do not have everything yet, and were not compared.
    #[serde(default)]
    pub away: u64,
}

impl VolumeReport {
    /// What a volume is now.
    pub fn of(volume: &Volume) -> VolumeReport {
        let member = |m: MemberStatus| MemberReport {
            uuid: m.uuid.to_string(),
            name: m.name,
            state: match m.state {
                MemberState::InSync => State::InSync,
                MemberState::Resyncing => State::Resyncing,
                MemberState::Filling => State::Filling,
                MemberState::Absent => State::Absent,
            },
            outgoing: m.outgoing,
            lacks_bytes: m.lacks,
            disk: m.disk,
        };
        let members: Vec<MemberReport> = volume.members().into_iter().map(member).collect();
        let missing = members.iter().filter(|m| matches!(m.state, State::Filling | State::Absent)).count() as u64;
        let mirror = volume.mirror().map(|mirror| {
            let (status, stats) = (mirror.status(), mirror.stats());
            MirrorReport {
                generation: status.generation,
                region_bytes: status.region,
                dirty_regions: status.dirty_regions,
                failed: status.failed,
                missing,
                read_errors: stats.read_errors,
                reads_redirected: stats.reads_redirected,
                rewritten: stats.rewritten,
                repaired: stats.repaired,
                dropped: stats.dropped,
                resynced_bytes: stats.resynced_bytes,
                synced_reads: stats.synced_reads,
                bitmap_writes: stats.bitmap_writes,
            }
        });
        VolumeReport {
            uuid: volume.uuid().to_string(),
            kind: volume.kind().to_string(),
            stripe_unit: volume.stripe_unit(),
            bytes: volume.len(),
            members,
            mirror,
            work: None,
        }
    }
}

/// Work on the members, while it goes on and afterwards.
pub(crate) struct MemberWork {
    report: Mutex<WorkReport>,
    done: AtomicU64,
    total: AtomicU64,
    stop: AtomicBool,
    began: Instant,
}

impl Default for MemberWork {
    fn default() -> Self {
        MemberWork {
            report: Mutex::default(),
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            began: Instant::now(),
        }
    }
}

impl MemberWork {
    fn begin(&self, what: &str) {
        self.report.lock().what = what.into();
    }

    /// Notes how far it is. Says whether to go on.
    fn go_on(&self, progress: cffs_volume::Progress) -> bool {
        self.done.store(progress.done, Ordering::Relaxed);
        self.total.store(progress.total, Ordering::Relaxed);
        !self.stop.load(Ordering::Relaxed)
    }

    fn end(&self, outcome: WorkOutcome) {
        let mut report = self.report.lock();
        report.deciseconds = self.began.elapsed().as_millis() as u64 / 100;
        report.outcome.get_or_insert(outcome);
    }

    fn end_if(&self, complete: bool) {
        self.end(if complete { WorkOutcome::Complete } else { WorkOutcome::Stopped });
    }
}

impl Work for MemberWork {
    const NAME: &'static str = "resync";
    type Status = WorkReport;

    fn status(&self) -> WorkReport {
        let mut report = self.report.lock().clone();
        report.done = self.done.load(Ordering::Relaxed);
        report.total = self.total.load(Ordering::Relaxed);
        if report.outcome.is_none() {
            report.deciseconds = self.began.elapsed().as_millis() as u64 / 100;
        }
        report
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn fail(&self, why: String) {
        self.end(WorkOutcome::Failed(why));
    }

    fn is_over(&self) -> bool {
        self.report.lock().outcome.is_some()
    }
}

/// The volume below a mount, and work on it.
pub(crate) struct Members {
    volume: Option<Arc<Volume>>,
    work: Background<MemberWork>,
}

/// What was wrong, as an error of a request.
fn refusal(e: VolumeError) -> Error {
    match e {
        VolumeError::Io { .. } => Error::Io(e.into()),
        other => Error::Invalid(other.to_string()),
    }
}

impl Members {
    pub(crate) fn new(volume: Option<Arc<Volume>>) -> Members {
        Members { volume, work: Background::default() }
    }

    /// The state of the volume; nothing if there is none.
    pub(crate) fn report(&self) -> Option<VolumeReport> {
        let volume = self.volume.as_ref()?;
        Some(VolumeReport { work: self.work.status(), ..VolumeReport::of(volume) })
    }

    fn mirror(&self) -> Result<Arc<Mirror>> {
        let Some(volume) = &self.volume else {
            return Err(Error::Invalid("the file system is on a single device, not on a volume".into()));
        };
        let Some(mirror) = volume.mirror() else {
            let text = format!("a {} has its members for good: only those of a mirror change", volume.kind());
            return Err(Error::Invalid(text));
        };
        if volume.read_only() {
            return Err(Error::ReadOnly);
        }
        Ok(mirror.clone())
    }

    /// Begins to bring members up to date, if one lacks something.
    pub(crate) fn start(&self) {
        let Ok(mirror) = self.mirror() else { return };
        if mirror.needs_resync()
            && let Err(error) = self.resync(Some(RATE))
        {
            tracing::warn!(%error, "members are not brought up to date: use cffs volume DIR resync");
        }
    }

    /// Brings members up to date, in a thread of its own, with at most so many bytes a second.
    pub(crate) fn resync(&self, rate: Option<u64>) -> Result<()> {
        let mirror = self.mirror()?;
        check_rate(rate)?;
        self.work.start(move |work| {
            work.begin("resync");
            let complete = mirror.resync(rate, &mut |p| work.go_on(p)).map_err(Error::Io)?;
            work.end_if(complete);
            Ok(())
        })
    }

    fn device(&self, path: &Path) -> Result<Candidate> {
        if !path.is_absolute() {
            return Error::invalid(format!("{}: name it by an absolute path", path.display()));
        }
        let file = FileDevice::open(path, OpenMode::READ_WRITE).map_err(Error::Io)?;
        if self.volume.as_ref().is_some_and(|v| file.sector_size() > v.sector_size()) {
            file.use_buffered().map_err(Error::Io)?;
        }
        Ok(Candidate::new(path.display().to_string(), Arc::new(file)))
    }

    /// Adds a device, which is filled in the background. Returns the identity of the member.
    pub(crate) fn add(&self, path: &Path, overwrite: bool, rate: Option<u64>) -> Result<String> {
        let mirror = self.mirror()?;
        check_rate(rate)?;
        let runs = self.work.status().filter(|w| w.outcome.is_none());
        if let Some(work) = runs.filter(|w| w.what == "compare") {
            return Err(Error::Busy(format!("a {} of members runs: wait for its end, or stop it", work.what)));
        }
        let uuid = mirror.add(self.device(path)?, overwrite).map_err(refusal)?;
        match self.resync(rate.or(Some(RATE))) {
            // The one that runs fills it too.
            Ok(()) | Err(Error::Busy(_)) => Ok(uuid.to_string()),
            Err(e) => Err(e),
        }
    }

    /// Removes a member.
    pub(crate) fn remove(&self, member: &str) -> Result<()> {
        let uuid: Uuid = member.parse().map_err(Error::Invalid)?;
        self.mirror()?.remove(uuid).map_err(refusal)
    }

    /// Puts a device in the place of a member, in a thread of its own.
    pub(crate) fn replace(&self, old: &str, path: &Path, overwrite: bool, rate: Option<u64>) -> Result<()> {
        let mirror = self.mirror()?;
        check_rate(rate)?;
        let old: Uuid = old.parse().map_err(Error::Invalid)?;
        if mirror.status().members.iter().all(|m| m.uuid != old) {
            return Error::invalid(format!("the volume has no member {old}"));
        }
        let new = self.device(path)?;
        mirror.check_new(&new, overwrite).map_err(refusal)?;
        self.work.start(move |work| {
            work.begin("replace");
            let complete = mirror.replace(old, new, overwrite, rate, &mut |p| work.go_on(p)).map_err(refusal)?;
            work.end_if(complete);
            Ok(())
        })
    }

    /// Compares all members, in a thread of its own. What differs in free space is made equal, and in the log; of what is in use the majority counts, if
    /// there is one.
    pub(crate) fn compare(&self, fs: Arc<Fs>, rate: Option<u64>, log_disk: Option<Arc<LogDisk>>) -> Result<()> {
        let mirror = self.mirror()?;
        check_rate(rate)?;
        self.work.start(move |work| {
            work.begin("compare");
            let mut logged = 0;
            let mut verdict = |d: &Difference<'_>| {
                if let Some(copy) = majority(d) {
                    return Verdict::Copy(copy);
                }
                let judged = match &log_disk {
                    Some(disk) => Ok(disk.judge_copies(d.offset, d.copies)),
                    None => fs.judge_copies(d.offset, d.copies),
                };
                if let Ok(Some(copy)) = judged {
                    return Verdict::Copy(copy);
                }
                logged += 1;
                if logged <= LOGGED_MAX {
                    tracing::warn!(
                        offset = d.offset,
                        "members differ in a block in use, and nobody can say which one is right"
                    );
                }
                Verdict::Unknown
            };
            let mut complete = true;
            let found = mirror.scrub(rate, &mut verdict, &mut |p| {
                complete = work.go_on(p);
                complete
            });
            let r = found.map_err(Error::Io)?;
            let away = mirror.status().members.iter().filter(|m| !counts(m.state)).count() as u64;
            work.report.lock().compared = Some(CompareReport {
                bytes: r.bytes,
                differences: r.differences,
                unreadable: r.unreadable,
                repaired: r.repaired,
                unknown: r.unknown,
                lost: r.lost,
                skipped: r.skipped,
                away,
            });
            work.end_if(complete);
            Ok(())
        })
    }

    /// Stops what is done with the members, and waits for its end.
    pub(crate) fn stop(&self) -> Option<WorkReport> {
        self.work.stop()
    }
}

fn check_rate(rate: Option<u64>) -> Result<()> {
    if rate == Some(0) {
        return Error::invalid("a rate of 0 bytes in a second: nothing would ever be copied");
    }
    Ok(())
}

/// Whether a member has everything.
fn counts(state: MemberState) -> bool {
    matches!(state, MemberState::InSync | MemberState::Resyncing)
}

/// The copy that more than half of the members have.
fn majority(d: &Difference<'_>) -> Option<usize> {
    let votes = |bytes: &[u8]| d.copies.iter().filter(|(_, other)| *other == bytes).count();
    d.copies.iter().find(|(_, bytes)| votes(bytes) * 2 > d.copies.len()).map(|(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_half_is_a_majority() {
        let (a, b): (&[u8], &[u8]) = (&[1; 8], &[2; 8]);
        let verdict = |copies: &[(usize, &[u8])]| majority(&Difference { offset: 0, copies });
        assert_eq!(verdict(&[(0, a), (1, b)]), None);
        assert_eq!(verdict(&[(0, a), (2, b), (3, b)]), Some(2));
        assert_eq!(verdict(&[(0, a), (1, a), (2, b), (3, b)]), None);
    }
}
