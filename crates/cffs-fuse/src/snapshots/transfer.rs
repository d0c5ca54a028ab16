//! Snapshots sent to other log disks, and received from them.
//!
//! What comes from one store goes to a branch of its own, which nobody else writes to and which is never shown. A stream becomes a snapshot of that branch
//! when all of it is there and verified; so what is seen is whole, and the file system of the receiving disk stays as it is.
//!
//! How far a stream is need not be noted. When one begins, a snapshot is made of what it builds on (the *mark*), and its ranges ascend; the log
//! keeps the order of writes. So after any end, also a crash, all that comes before the last difference between the mark and the branch is there.

use super::names::{FROM, Named, bytes_of, check_new, find, hexadecimal, naming, sources, visible};
use super::upkeep::{drop_unused, finish_deletions, make};
use cffs::device::{Device, IoKind};
use cffs::{Error, Fs, Result};
use cffs_logdisk::{
    LogDisk, Outgoing, Progress, ReceiveReport, Receiver, SendReport, SnapshotInfo, SnapshotKey, StreamHeader,
};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// Before the numbers of a stream, in the name of a mark.
const RECEIVING: &str = "/receiving ";
/// Most bytes of the name of a received snapshot: its number is behind it.
const NAME_MAX: usize = cffs_logdisk::NAME_BYTES_MAX - 21;
/// Bytes that are set back at once.
const CHUNK: usize = 1 << 20;
/// Ranges that are asked for at once.
const RANGES: usize = 256;

/// What was received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// What the snapshot is called here.
    pub name: String,
    /// Bytes of data that came.
    pub data: u64,
    /// Bytes that were read back and compared.
    pub verified: u64,
}

/// A stream that has begun to come and is not complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfinished {
    /// The UUID of the store that it comes from, in hexadecimal digits.
    pub store: String,
    /// The bytes of the disk before this one are here.
    pub offset: u64,
    /// Tells the sender where to go on.
    pub token: String,
}

/// What was sent, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Of data.
    pub data: u64,
    /// Of the stream, with everything.
    pub stream: u64,
}

impl From<SendReport> for Sent {
    fn from(r: SendReport) -> Sent {
        Sent { data: r.data, stream: r.stream }
    }
}

/// Sends a snapshot, or what differs from an earlier one. `token` is what a receiver that was interrupted has told.
///
/// # Errors
/// [`Error::Invalid`] if there is no such snapshot, they do not belong together, or the token is of another stream; those of the log disk and of `out`.
pub fn send(disk: &LogDisk, name: &str, from: Option<&str>, token: Option<&str>, out: &mut dyn Write) -> Result<Sent> {
    let id_of = |name: &str| match find(disk, name)? {
        Named::Snapshot(id) => Ok(id),
        Named::Clone(_) => Error::invalid(format!("'{name}' is a clone, and only snapshots are sent")),
    };
    let (to, earlier) = (id_of(name)?, from.map(id_of).transpose()?);
    let resume = token.map(progress_of).transpose()?;
    let what = Outgoing { from: earlier, to, name, resume: resume.as_ref() };
    match cffs_logdisk::send(disk, &what, out) {
        Err(e) if e.kind() == io::ErrorKind::InvalidInput && resume.is_some() => Error::invalid(format!(
            "{e}: give the snapshot, and --from, as when the stream began, or leave out --resume to send it from its beginning"
        )),
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
            Error::invalid(format!("{e}: '{}' must be an earlier snapshot than '{name}'", from.unwrap_or_default()))
        }
        other => Ok(other?.into()),
    }
}

/// Why a stream was not received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// It ended early; the text says how to go on.
    #[error("{0}")]
    Interrupted(String),
    /// It does not fit what is here, or is damaged; or the log disk or the input has failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<io::Error> for ReceiveError {
    fn from(e: io::Error) -> ReceiveError {
        match e.kind() {
            io::ErrorKind::UnexpectedEof => ReceiveError::Interrupted("the stream ended early: send it again".into()),
            io::ErrorKind::InvalidData => Error::Invalid(format!("{e}: send it again")).into(),
            _ => Error::from(e).into(),
        }
    }
}

/// Takes a stream in, to its end; the snapshot is there when this returns, and not before. `name` is what it is called here, if not as it is called
/// there. Of a stream that was begun and not completed it takes the rest. `fs` is the file system of the disk, if that is in use.
///
/// # Errors
/// [`ReceiveError::Interrupted`] if the stream ends early; others if it does not fit what is here, and those of the log disk and of `input`.
pub fn receive(
    disk: &LogDisk,
    fs: Option<&Fs>,
    name: Option<&str>,
    input: &mut dyn Read,
) -> std::result::Result<Received, ReceiveError> {
    let _one = one()?;
    let header = StreamHeader::read(input)?;
    let name = name.unwrap_or(&header.name);
    let Begun { branch, mark, progress } = begin(disk, fs, &header, name)?;
    let device = disk.branch(branch)?;
    let has = header.from.map(|id| SnapshotKey { store: header.to.store, id });
    let mut receiver = Receiver::new(&device, has, Some(progress));
    match receiver.receive_behind(&header, input) {
        Ok(report) => Ok(complete(disk, &header, name, branch, mark, report)?),
        Err(e) => {
            if receiver.differs() {
                // The next stream begins anew.
                disk.delete_snapshot(mark)?;
            }
            // What has come is kept, as far as that is possible.
            let _ = disk.make_durable();
            let rest = Progress { offset: come(disk, mark).unwrap_or(0), ..progress };
            if e.kind() == io::ErrorKind::UnexpectedEof && rest.offset > 0 {
                let token = hexadecimal(&rest.encode());
                return Err(ReceiveError::Interrupted(format!(
                    "the stream ended early; what came of it is kept: send the rest with `cffs snapshot send --resume {token}`"
                )));
            }
            Err(e.into())
        }
    }
}

/// Held by who changes what is being received.
fn one() -> Result<MutexGuard<'static, ()>> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.try_lock().ok_or_else(|| Error::Busy("a stream is being received".into()))
}

/// Streams that have begun to come and are not complete.
///
/// # Errors
/// Those of the log disk.
pub fn unfinished(disk: &LogDisk) -> Result<Vec<Unfinished>> {
    let mut all = Vec::new();
    for (branch, store) in sources(disk) {
        for (mark, to, from) in marks(disk, branch) {
            let offset = come(disk, mark)?;
            let progress = Progress { to: SnapshotKey { store, id: to }, from, offset };
            all.push(Unfinished { store: hexadecimal(&store), offset, token: hexadecimal(&progress.encode()) });
        }
    }
    Ok(all)
}

/// Forgets what has come of streams that are not complete. Returns how many there were. Their space comes back by [`LogDisk::delete_step`].
///
/// # Errors
/// Those of the log disk.
pub fn abandon(disk: &LogDisk) -> Result<usize> {
    let _one = one()?;
    let mut n = 0;
    for (branch, _) in sources(disk) {
        for (mark, _, _) in marks(disk, branch) {
            set_back(disk, branch, Some(mark))?;
            disk.delete_snapshot(mark)?;
            n += 1;
        }
        drop_unused(disk, branch)?;
    }
    disk.make_durable()?;
    Ok(n)
}

/// What [`begin`] has found or made.
struct Begun {
    branch: u32,
    mark: u64,
    progress: Progress,
}

/// Checks that a stream fits, and finds where to take it.
fn begin(disk: &LogDisk, fs: Option<&Fs>, header: &StreamHeader, name: &str) -> Result<Begun> {
    if name.len() > NAME_MAX {
        return Error::invalid(format!(
            "a received snapshot has a name of at most {NAME_MAX} bytes: give it another one"
        ));
    }
    if header.bytes > disk.len() {
        return Error::invalid(format!(
            "the file system that is sent has {} bytes, and the log disk in this image only {}: make one with `cffs mkfs --layout=log --thin={}`",
            header.bytes,
            disk.len(),
            header.bytes
        ));
    }
    let _naming = naming();
    let store = header.to.store;
    let branch = sources(disk).into_iter().find(|(_, s)| *s == store).map(|(branch, _)| branch);
    let there = branch.map_or(Vec::new(), |branch| received(disk, branch));
    if let Some((s, _)) = there.iter().find(|(_, id)| *id == header.to.id) {
        return Error::invalid(format!("this snapshot is here already: '{}'", visible(&s.name)));
    }
    check_new(disk, name).map_err(|e| Error::Invalid(format!("{e}; `--name` gives what is received another one")))?;
    let base = match header.from {
        None => None,
        Some(id) => match there.iter().find(|(_, i)| *i == id) {
            Some((s, _)) => Some(s.id),
            None => {
                return Error::invalid(
                    "the snapshot that the stream builds on is not here: send that one first, or this one without --from",
                );
            }
        },
    };
    let branch = match branch {
        Some(branch) => branch,
        None => disk.new_branch(&format!("{FROM}{}", hexadecimal(&store)))?,
    };
    let mut mark = None;
    for (id, to, from) in marks(disk, branch) {
        if (to, from) == (header.to.id, header.from) && mark.is_none() {
            mark = Some(id);
        } else {
            disk.delete_snapshot(id)?;
        }
    }
    let mark = match mark {
        Some(mark) => mark,
        None => {
            set_back(disk, branch, base)?;
            let from = header.from.map_or("-".to_owned(), |id| id.to_string());
            make(disk, fs, branch, &format!("{RECEIVING}{} {from}", header.to.id))?
        }
    };
    disk.make_durable()?;
    let offset = come(disk, mark)?;
    let progress = Progress { to: header.to, from: header.from, offset };
    if header.start > offset {
        return Error::invalid(format!(
            "the stream goes on where nothing has come yet: send the rest with `cffs snapshot send --resume {}`",
            hexadecimal(&progress.encode())
        ));
    }
    Ok(Begun { branch, mark, progress })
}

/// All is here and verified: it becomes a snapshot.
fn complete(
    disk: &LogDisk,
    header: &StreamHeader,
    name: &str,
    branch: u32,
    mark: u64,
    report: ReceiveReport,
) -> Result<Received> {
    let naming = naming();
    check_new(disk, name)?;
    disk.snapshot(branch, &format!("{name}/{}", header.to.id))?;
    disk.delete_snapshot(mark)?;
    disk.make_durable()?;
    drop(naming);
    finish_deletions(disk)?;
    Ok(Received { name: name.to_owned(), data: report.data, verified: report.verified })
}

/// How far the stream is that began at a mark: all that it is about before this byte is here.
fn come(disk: &LogDisk, mark: u64) -> Result<u64> {
    let (mut at, mut end) = (Some(0), 0);
    while let Some(offset) = at {
        let (ranges, next) = disk.diff_from(Some(mark), None, offset, RANGES)?;
        end = ranges.last().map_or(end, |(first, length)| first + length);
        at = next;
    }
    Ok(end)
}

/// Makes a branch equal to a snapshot of it, or empty.
fn set_back(disk: &LogDisk, branch: u32, to: Option<u64>) -> Result<()> {
    let device = disk.branch(branch)?;
    let Some(id) = to else { return Ok(device.discard(0, device.len())?) };
    let snapshot = disk.open_snapshot(id)?;
    let mut data = Vec::new();
    let mut at = Some(0);
    while let Some(offset) = at {
        let (ranges, next) = disk.diff_from(Some(id), None, offset, RANGES)?;
        for (first, length) in ranges {
            let end = first.saturating_add(length).min(device.len());
            for piece in (first..end).step_by(CHUNK) {
                data.resize(CHUNK.min((end - piece) as usize), 0);
                snapshot.read_at(IoKind::Data, piece, &mut data)?;
                if data.iter().all(|b| *b == 0) {
                    device.discard(piece, data.len() as u64)?;
                } else {
                    device.write_at(IoKind::Data, piece, &data)?;
                }
            }
        }
        at = next;
    }
    Ok(())
}

/// The received snapshots of a branch, with their numbers where they came from.
fn received(disk: &LogDisk, branch: u32) -> Vec<(SnapshotInfo, u64)> {
    let of_branch = disk.snapshots().into_iter().filter(|s| s.branch == branch);
    of_branch.filter_map(|s| Some((s.name.split_once('/')?.1.parse().ok()?, s)).map(|(id, s)| (s, id))).collect()
}

/// The marks of a branch: each with the numbers of the two snapshots in the store that they come from.
fn marks(disk: &LogDisk, branch: u32) -> Vec<(u64, u64, Option<u64>)> {
    let of_branch = disk.snapshots().into_iter().filter(|s| s.branch == branch);
    let numbers = |name: &str| {
        let (to, from) = name.strip_prefix(RECEIVING)?.split_once(' ')?;
        Some((to.parse().ok()?, from.parse().ok()))
    };
    of_branch.filter_map(|s| numbers(&s.name).map(|(to, from)| (s.id, to, from))).collect()
}

fn progress_of(token: &str) -> Result<Progress> {
    let progress = bytes_of(token.trim()).and_then(|bytes| Progress::decode(&bytes).ok());
    progress.ok_or_else(|| Error::Invalid(format!("'{token}' is not what `cffs snapshot receive --unfinished` tells")))
}

#[cfg(test)]
mod tests {
    use super::super::{create, list};
    use super::*;
    use cffs_logdisk::{LogOptions, MAIN_BRANCH, MemoryStore};
    use std::sync::Arc;

    const LEN: u64 = 64 << 20;

    /// Each store has a UUID of its own.
    fn disk() -> LogDisk {
        LogDisk::format(Arc::new(MemoryStore::new(64 << 20, 256 << 10, true)), LEN, &LogOptions::default()).unwrap()
    }

    fn stream(disk: &LogDisk, name: &str, from: Option<&str>, token: Option<&str>) -> Vec<u8> {
        let mut out = Vec::new();
        send(disk, name, from, token, &mut out).unwrap();
        out
    }

    fn contents(device: &dyn Device) -> Vec<u8> {
        let mut data = vec![0; 8 << 20];
        device.read_at(IoKind::Data, 0, &mut data).unwrap();
        data
    }

    /// The snapshot that was received last.
    fn newest(disk: &LogDisk) -> Vec<u8> {
        let id = list(disk).last().unwrap().id;
        contents(&disk.open_snapshot(id).unwrap())
    }

    #[test]
    fn what_is_not_what_was_sent_is_found_and_comes_again() {
        let (source, target) = (disk(), disk());
        let write = |at: u64, byte: u8| source.write_at(IoKind::Data, at << 20, &vec![byte; 1 << 20]).unwrap();
        (0..6).for_each(|n| write(n, n as u8 + 1));
        create(&source, None, "one").unwrap();
        receive(&target, None, None, &mut &stream(&source, "one", None, None)[..]).unwrap();
        (1..4).for_each(|n| write(n, n as u8 + 50));
        create(&source, None, "two").unwrap();
        let now = contents(&source);
        let step = stream(&source, "two", Some("one"), None);
        let half = receive(&target, None, None, &mut &step[..step.len() / 2]).unwrap_err();
        assert!(matches!(&half, ReceiveError::Interrupted(text) if text.contains("--resume")), "{half}");
        let [rest] = &unfinished(&target).unwrap()[..] else { panic!("one stream is not complete") };
        assert!(rest.offset > 1 << 20);
        // Somebody has changed what came.
        let (branch, _) = sources(&target)[0];
        target.branch(branch).unwrap().write_at(IoKind::Data, 1 << 20, &[0x77; 4096]).unwrap();
        let end = stream(&source, "two", Some("one"), Some(&rest.token));
        let error = receive(&target, None, None, &mut &end[..]).unwrap_err();
        assert!(error.to_string().contains("not what was sent"), "{error}");
        assert!(unfinished(&target).unwrap().is_empty() && list(&target).len() == 1);
        receive(&target, None, None, &mut &step[..]).unwrap();
        assert!(newest(&target) == now);
        // Another stream than the one that was begun: what that has brought goes.
        write(5, 99);
        create(&source, None, "three").unwrap();
        let step = stream(&source, "three", Some("one"), None);
        let _ = receive(&target, None, Some("half"), &mut &step[..step.len() / 3]).unwrap_err();
        receive(&target, None, None, &mut &stream(&source, "three", Some("two"), None)[..]).unwrap();
        assert!(newest(&target) == contents(&source));
        assert_eq!(target.check(true).unwrap(), Vec::<String>::new());
        assert!(contents(&target).iter().all(|b| *b == 0), "its own file system is as it was");
        assert_eq!(target.snapshots().iter().filter(|s| s.branch == MAIN_BRANCH).count(), 0);
    }
}
