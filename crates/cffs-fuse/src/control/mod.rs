//! The control channel of a mounted file system: an `ioctl` on its root directory, or on any directory or file in it.
//!
//! Requests ([`Request`]) and answers are JSON. Both travel in the buffer of one `ioctl` number
//! ([`cffs_buf::CONTROL_IOCTL`]) behind a header of 32 bytes, little-endian:
//!
//! | offset | type | request | reply |
//! | --- | --- | --- | --- |
//! | 0 | u32 | magic: `cffc` | the same |
//! | 4 | u32 | version of the protocol, 1 | the same |
//! | 8 | u32 | length of the JSON that follows | the same |
//! | 16 | u64 | 0, or the ticket of an answer to go on with | ticket, if the answer goes on |
//! | 24 | u64 | 0, or where to go on | length of the whole answer |
//!
//! An answer longer than the buffer waits in the server under a *ticket*, and the client fetches the rest piece by
//! piece. Answers that are not fetched are dropped for newer ones. So an answer is of one moment, whatever its length.
//!
//! The answer is `{"ok": …}` with what the request's documentation says, or `{"error": {"errno": …, "message": …}}`.
//! The `ioctl` itself fails only if nobody understands it: `ENOTTY` if this is no cffs, `EINVAL` if the buffer is no
//! request.
//!
//! Anybody who can open the directory may send requests. Changes ([`Request::changes`]) are for root and the user whose
//! process serves the mount.
//!
//! Programs send requests with [`Control`]; the server side is `Answers` and the module `service`.

mod client;
mod quota;
mod service;

pub use client::{Control, ControlError};
pub(crate) use service::{Asker, answer};

use cffs::{QuotaGrace, QuotaKind, QuotaLimits, ScrubOptions, TrimRange, Tune};
use cffs_buf::CONTROL_LEN;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;

const MAGIC: u32 = u32::from_le_bytes(*b"cffc");
const VERSION: u32 = 1;
const HEADER: usize = 32;
/// Most bytes of JSON in one buffer.
const BODY_MAX: usize = CONTROL_LEN - HEADER;
/// Long answers that wait to be fetched, at most.
const ANSWERS_MAX: usize = 16;

/// A request to a mounted file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The counters, as an object: those of the engine ([`cffs::stats::FsStats`]), and under `fuse` the process that serves
    /// the mount and the messages it got, by kind.
    Stats,
    /// What is mounted and how: a [`MountInfo`].
    Info,
    /// Makes everything durable, as syncfs(2) does for other file systems; Linux does not pass syncfs(2) on to a FUSE
    /// server.
    Sync,
    /// The kinds of quota that the file system keeps: a list of [`QuotaKind`].
    QuotaKinds,
    /// Usage and limits of one user, group or project, or of all: a list of [`cffs::QuotaStatus`]. A caller who may not
    /// change the file system gets the caller's own only.
    QuotaReport {
        /// User, group or project.
        kind: QuotaKind,
        /// Its number; all if it is missing.
        id: Option<u32>,
    },
    /// Sets limits; the answer is a [`cffs::QuotaStatus`].
    QuotaSet {
        /// User, group or project.
        kind: QuotaKind,
        /// Which one; not 0.
        id: u32,
        /// The new limits, all of them.
        limits: QuotaLimits,
    },
    /// The lengths of grace periods, a [`QuotaGrace`]. Sets them first, if given.
    QuotaGrace {
        /// User, group or project.
        kind: QuotaKind,
        /// New lengths.
        set: Option<QuotaGrace>,
    },
    /// Assigns files to a project. The answer is the number of files that still existed.
    QuotaProject {
        /// The project.
        project: u32,
        /// Inode numbers, and for each whether it is a directory whose new files inherit the project.
        files: Vec<(u64, bool)>,
    },
    /// Changes settings in the superblock, as [`cffs::Fs::tune`]. The answer is a [`Tuned`].
    Tune(Tune),
    /// Makes the file system larger, as [`cffs::Fs::grow`]: to `size` bytes, or to the present size of the device. The
    /// answer is a [`cffs::Grown`].
    Grow {
        /// Size in bytes.
        size: Option<u64>,
    },
    /// Discards free space on the device, as [`cffs::Fs::trim`]. The answer is the number of bytes.
    Trim(TrimRange),
    /// Begins to read and verify all metadata, and data that has checksums, in the background, as [`cffs::Fs::scrub`]; one at a time.
    ScrubStart(ScrubOptions),
    /// The progress of the running scrub, or the result of the last one: a [`cffs::ScrubStatus`], null if there was
    /// none since the mount.
    ScrubStatus,
    /// Stops the running scrub. The answer is that of [`Request::ScrubStatus`].
    ScrubStop,
}

impl Request {
    /// Whether only root and the user who mounted may send it.
    pub fn changes(&self) -> bool {
        match self {
            Request::Stats | Request::Info | Request::Sync | Request::ScrubStatus => false,
            Request::QuotaKinds | Request::QuotaReport { .. } => false,
            Request::QuotaGrace { set, .. } => set.is_some(),
            Request::QuotaSet { .. } | Request::QuotaProject { .. } => true,
            Request::Tune(_) | Request::Grow { .. } | Request::Trim(_) => true,
            Request::ScrubStart(_) | Request::ScrubStop => true,
        }
    }
}

/// The superblock before and after a change, encoded as on the device ([`cffs::Superblock::decode`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuned {
    /// Before.
    pub before: Vec<u8>,
    /// After.
    pub after: Vec<u8>,
}

/// What is mounted and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MountInfo {
    /// Version of the program that serves the mount.
    pub program: String,
    /// The process that serves it.
    pub pid: i32,
    /// The user it belongs to.
    pub uid: u32,
    /// The image or device.
    pub image: String,
    /// The superblock as it is in memory now, encoded as on the device ([`cffs::Superblock::decode`]).
    pub superblock: Vec<u8>,
    /// Whether nothing can be written.
    pub read_only: bool,
    /// Why it became read-only, if that was an error.
    pub failure: Option<String>,
    /// Space in bytes, as in statvfs(3).
    pub total_bytes: u64,
    /// Free bytes, those for privileged users included.
    pub free_bytes: u64,
    /// Free bytes for everybody.
    pub available_bytes: u64,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// As errno(3).
    pub errno: i32,
    /// What was wrong and what to do, for people.
    pub message: String,
}

/// The content of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reply {
    /// Done.
    Ok(Value),
    /// Not done.
    Error(Refusal),
}

/// The contents of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame<'a> {
    ticket: u64,
    /// The position to continue from; in a reply the length of the whole answer.
    position: u64,
    body: &'a [u8],
}

impl Frame<'_> {
    /// `None` if the body does not fit.
    fn encode(&self) -> Option<Box<[u8; CONTROL_LEN]>> {
        let mut b = Box::new([0; CONTROL_LEN]);
        b[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        b[4..8].copy_from_slice(&VERSION.to_le_bytes());
        b[8..12].copy_from_slice(&u32::try_from(self.body.len()).ok()?.to_le_bytes());
        b[16..24].copy_from_slice(&self.ticket.to_le_bytes());
        b[24..32].copy_from_slice(&self.position.to_le_bytes());
        b.get_mut(HEADER..HEADER + self.body.len())?.copy_from_slice(self.body);
        Some(b)
    }

    /// `None` if this is not one.
    fn decode(b: &[u8]) -> Option<Frame<'_>> {
        let u32_at = |at: usize| Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(b.get(at..at + 8)?.try_into().ok()?));
        if u32_at(0)? != MAGIC || u32_at(4)? != VERSION {
            return None;
        }
        let len = u32_at(8)? as usize;
        Some(Frame { ticket: u64_at(16)?, position: u64_at(24)?, body: b.get(HEADER..)?.get(..len)? })
    }
}

/// Answers too long for one buffer, until they are fetched.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<(u64, VecDeque<Waiting>)>);

#[derive(Clone, Debug)]
struct Waiting {
    ticket: u64,
    /// The user who asked. Nobody else gets the answer by guessing its ticket.
    uid: u32,
    text: Arc<[u8]>,
}

impl Answers {
    /// The first buffer of an answer.
    fn first(&self, uid: u32, text: Vec<u8>) -> Option<Box<[u8; CONTROL_LEN]>> {
        let position = text.len() as u64;
        if text.len() <= BODY_MAX {
            return Frame { ticket: 0, position, body: &text }.encode();
        }
        let text: Arc<[u8]> = text.into();
        let ticket = {
            let (last, waiting) = &mut *self.0.lock();
            *last += 1;
            waiting.push_back(Waiting { ticket: *last, uid, text: text.clone() });
            if waiting.len() > ANSWERS_MAX {
                waiting.pop_front();
            }
            *last
        };
        Frame { ticket, position, body: &text[..BODY_MAX] }.encode()
    }

    /// A later buffer. `None` if there is no such answer, or if it was dropped.
    fn next(&self, uid: u32, ticket: u64, from: u64) -> Option<Box<[u8; CONTROL_LEN]>> {
        let (_, waiting) = &mut *self.0.lock();
        let place = waiting.iter().position(|w| w.ticket == ticket && w.uid == uid)?;
        let text = waiting[place].text.clone();
        let rest = text.get(usize::try_from(from).ok()?..)?;
        if rest.len() <= BODY_MAX {
            waiting.remove(place);
        }
        Frame { ticket, position: text.len() as u64, body: &rest[..rest.len().min(BODY_MAX)] }.encode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_readable_json() {
        let json = |r: &Request| serde_json::to_string(r).unwrap();
        assert_eq!(json(&Request::Stats), r#"{"op":"stats"}"#);
        assert_eq!(serde_json::from_str::<Request>(r#"{"op":"sync"}"#).unwrap(), Request::Sync);
        assert!(serde_json::from_str::<Request>(r#"{"op":"nosuch"}"#).is_err());
        let grow = Request::Grow { size: Some(5) };
        assert_eq!(json(&grow), r#"{"op":"grow","size":5}"#);
        assert_eq!(serde_json::from_str::<Request>(r#"{"op":"grow"}"#).unwrap(), Request::Grow { size: None });
        let trim = Request::Trim(TrimRange { start: 1, len: u64::MAX, min_len: 2 });
        assert_eq!(serde_json::from_str::<Request>(&json(&trim)).unwrap(), trim);
        let tune = Request::Tune(Tune::default().uuid(Some([7; 16])).label(Some("x".into())));
        assert_eq!(serde_json::from_str::<Request>(&json(&tune)).unwrap(), tune);
        let scrub = Request::ScrubStart(ScrubOptions::default().rate(Some(7)).metadata_only(true));
        assert_eq!(json(&scrub), r#"{"op":"scrub-start","rate":7,"metadata_only":true}"#);
        assert_eq!(serde_json::from_str::<Request>(&json(&scrub)).unwrap(), scrub);
        assert!(scrub.changes() && !Request::ScrubStatus.changes());
        assert!([grow, trim, tune].iter().all(Request::changes) && !Request::Info.changes());
    }

    #[test]
    fn frames_come_back_and_others_are_refused() {
        let frame = Frame { ticket: 3, position: 1 << 40, body: b"{}" };
        let bytes = frame.encode().unwrap();
        assert_eq!(Frame::decode(&bytes[..]), Some(frame));
        assert_eq!(Frame::decode(&bytes[..33]), None, "cut off");
        assert_eq!(Frame::decode(&[]), None);
        for at in [0, 4, 11] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x40;
            assert_eq!(Frame::decode(&wrong[..]), None, "byte {at}");
        }
        assert!(Frame { ticket: 0, position: 0, body: &[0; BODY_MAX] }.encode().is_some());
        assert!(Frame { ticket: 0, position: 0, body: &[0; BODY_MAX + 1] }.encode().is_none());
    }

    #[test]
    fn long_answers_are_fetched_in_pieces_by_their_owner_alone() {
        let answers = Answers::default();
        let text: Vec<u8> = (0..2 * BODY_MAX + 5).map(|i| i as u8).collect();
        let first = answers.first(7, text.clone()).unwrap();
        let first = Frame::decode(&first[..]).unwrap();
        assert_eq!((first.position, first.body), (text.len() as u64, &text[..BODY_MAX]));
        assert!(answers.next(8, first.ticket, BODY_MAX as u64).is_none(), "somebody else");
        assert!(answers.next(7, first.ticket, 1 << 40).is_none(), "behind the end");
        let second = answers.next(7, first.ticket, BODY_MAX as u64).unwrap();
        assert_eq!(Frame::decode(&second[..]).unwrap().body, &text[BODY_MAX..2 * BODY_MAX]);
        let third = answers.next(7, first.ticket, 2 * BODY_MAX as u64).unwrap();
        assert_eq!(Frame::decode(&third[..]).unwrap().body, &text[2 * BODY_MAX..]);
        assert!(answers.next(7, first.ticket, 0).is_none(), "fetched");
    }

    #[test]
    fn what_nobody_fetches_makes_way() {
        let answers = Answers::default();
        let tickets: Vec<u64> = (0..ANSWERS_MAX + 1)
            .map(|_| Frame::decode(&answers.first(1, vec![0; BODY_MAX + 1]).unwrap()[..]).unwrap().ticket)
            .collect();
        assert!(answers.next(1, tickets[0], BODY_MAX as u64).is_none());
        assert!(answers.next(1, tickets[1], BODY_MAX as u64).is_some());
    }
}
