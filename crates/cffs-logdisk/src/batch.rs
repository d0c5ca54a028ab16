//! A batch as bytes: a summary that describes itself, and data behind it.
//!
//! `docs/format-log.md` has every field.

use crate::codec::{Fields, PutFields, corrupt, counter, crc32c, varint_bytes};
use crate::extent::{BLOCK_BYTES, Birth, Codec, check_shape};
use crate::patch::Patch;
use crate::store::SegmentId;
use crate::tree::{NODE_BYTES, NodeHead};
use std::fmt;
use std::io;
use std::ops::RangeInclusive;

const MAGIC: u32 = 0x3142_4c43; // "CLB1"
const VERSION: u16 = 1;
const HEAD_BYTES: usize = 112;
/// Appendable places that a summary announces.
pub(crate) const STREAMS: usize = 4;
const STREAM_BYTES: usize = 16;
/// Bytes of a summary without entries.
pub(crate) const SUMMARY_BYTES: usize = HEAD_BYTES + STREAMS * STREAM_BYTES;
/// Most bytes of a batch: where one was lost, the next one is not further away, and no batch takes more memory.
pub(crate) const BATCH_BYTES_MAX: u64 = 4 << 20;
/// Longest name of a snapshot or branch in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Numbers of the kinds of entries.
const KINDS: RangeInclusive<u8> = 1..=12;
/// The batch counts only if the one after it does.
pub(crate) const CONTINUES: u16 = 1;

/// Where the next batch of a stream would begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamEnd {
    pub(crate) segment: SegmentId,
    pub(crate) offset: u32,
    pub(crate) ordinal: u32,
}

/// Logical blocks of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Logical {
    pub(crate) branch: u32,
    pub(crate) block: u64,
}

/// Lengths and checksums of blocks that a batch carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Payload {
    pub(crate) codec: Codec,
    pub(crate) blocks: u32,
    pub(crate) stored: u32,
    pub(crate) crcs: Vec<u32>,
}

/// One thing that a batch says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Blocks that were written.
    Write { at: Logical, version: u64, data: Payload },
    /// Blocks that the cleaner moved, which only the branch refers to; they were at `source`. A compressed unit is copied with what is dead
    /// of it: the branch has the blocks whose bit in `mapped` is set, of a plain extent all.
    Remap { at: Logical, version: u64, source: Birth, mapped: u16, data: Payload },
    /// Blocks that the cleaner moved, which snapshots refer to by `birth`. `at` tells what they once were, `bytes` what they took
    /// where they were.
    Forward { at: Logical, version: u64, birth: Birth, bytes: u32, data: Payload },
    /// A node.
    Node { head: NodeHead, crc: u32 },
    /// A node that the cleaner moved, which snapshots refer to by `birth`.
    ForwardNode { head: NodeHead, birth: Birth, crc: u32 },
    /// A checkpoint.
    Record { stored: u32, crc: u32 },
    /// Blocks that are no longer used.
    Discard { at: Logical, blocks: u64 },
    /// A snapshot of a branch: it has all with at most this version.
    Snapshot { id: u64, branch: u32, version: u64, name: Vec<u8> },
    /// A writable branch that begins as the snapshot.
    Clone { branch: u32, snapshot: u64, name: Vec<u8> },
    /// A snapshot or branch goes.
    Delete { id: u64 },
    /// What has changed of a block; the entry has the bytes itself.
    Patch { at: Logical, patch: Patch },
}

impl Entry {
    /// Bytes of data that belong to the entry.
    pub(crate) fn stored(&self) -> u32 {
        match self {
            Entry::Write { data, .. } | Entry::Remap { data, .. } | Entry::Forward { data, .. } => data.stored,
            Entry::Node { .. } | Entry::ForwardNode { .. } => NODE_BYTES as u32,
            Entry::Record { stored, .. } => *stored,
            _ => 0,
        }
    }

    /// Whether it is of the log disk's own making, and no part of what was written.
    pub(crate) fn is_made(&self) -> bool {
        matches!(self, Entry::Node { .. } | Entry::ForwardNode { .. } | Entry::Record { .. })
    }

    /// Ordinals that the entry takes.
    pub(crate) fn ordinals(&self) -> u32 {
        match self {
            Entry::Write { data, .. } | Entry::Remap { data, .. } | Entry::Forward { data, .. } => data.blocks,
            Entry::Node { .. } | Entry::ForwardNode { .. } | Entry::Record { .. } => 1,
            _ => 0,
        }
    }

    /// Bytes of the entry in the summary.
    pub(crate) fn encoded_bytes(&self) -> usize {
        match self {
            Entry::Write { data, .. } => 30 + 4 * data.crcs.len(),
            Entry::Remap { data, .. } => 44 + 4 * data.crcs.len(),
            Entry::Forward { data, .. } => 46 + 4 * data.crcs.len(),
            Entry::Node { .. } => 43,
            Entry::ForwardNode { .. } => 55,
            Entry::Record { .. } => 9,
            Entry::Discard { .. } => 21,
            Entry::Snapshot { name, .. } => 22 + name.len(),
            Entry::Clone { name, .. } => 14 + name.len(),
            Entry::Delete { .. } => 9,
            Entry::Patch { at, patch } => 1 + varint_bytes(at.branch.into()) + varint_bytes(at.block) + patch.bytes(),
        }
    }

    /// Whether the data has the checksums that the entry says.
    pub(crate) fn verify(&self, data: &[u8]) -> bool {
        match self {
            Entry::Write { data: p, .. } | Entry::Remap { data: p, .. } | Entry::Forward { data: p, .. } => {
                verify_payload(p.codec, &p.crcs, data)
            }
            Entry::Node { crc, .. } | Entry::ForwardNode { crc, .. } | Entry::Record { crc, .. } => {
                crc32c(data) == *crc
            }
            _ => true,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let logical = |out: &mut Vec<u8>, at: &Logical| {
            out.put_u32(at.branch);
            out.put_u64(at.block);
        };
        let birth = |out: &mut Vec<u8>, b: &Birth| {
            out.put_u64(b.segment);
            out.put_u32(b.ordinal);
        };
        let payload = |out: &mut Vec<u8>, p: &Payload| {
            out.put_u8(p.codec as u8);
            out.put_u32(p.blocks);
            out.put_u32(p.stored);
            p.crcs.iter().for_each(|&c| out.put_u32(c));
        };
        let head = |out: &mut Vec<u8>, h: &NodeHead| {
            out.put_u8(h.tree);
            out.put_u8(h.level);
            out.put_u64(h.version);
            out.extend_from_slice(&h.key);
        };
        match self {
            Entry::Write { at, version, data } => {
                out.put_u8(1);
                logical(out, at);
                out.put_u64(*version);
                payload(out, data);
            }
            Entry::Remap { at, version, source, mapped, data } => {
                out.put_u8(2);
                logical(out, at);
                out.put_u64(*version);
                birth(out, source);
                out.put_u16(*mapped);
                payload(out, data);
            }
            Entry::Forward { at, version, birth: b, bytes, data } => {
                out.put_u8(3);
                logical(out, at);
                out.put_u64(*version);
                birth(out, b);
                out.put_u32(*bytes);
                payload(out, data);
            }
            Entry::Node { head: h, crc } => {
                out.put_u8(4);
                head(out, h);
                out.put_u32(*crc);
            }
            Entry::ForwardNode { head: h, birth: b, crc } => {
                out.put_u8(5);
                head(out, h);
                birth(out, b);
                out.put_u32(*crc);
            }
            Entry::Record { stored, crc } => {
                out.put_u8(6);
                out.put_u32(*stored);
                out.put_u32(*crc);
            }
            Entry::Discard { at, blocks } => {
                out.put_u8(7);
                logical(out, at);
                out.put_u64(*blocks);
            }
            Entry::Snapshot { id, branch, version, name } => {
                out.put_u8(8);
                out.put_u64(*id);
                out.put_u32(*branch);
                out.put_u64(*version);
                out.put_u8(name.len() as u8);
                out.extend_from_slice(name);
            }
            Entry::Clone { branch, snapshot, name } => {
                out.put_u8(9);
                out.put_u32(*branch);
                out.put_u64(*snapshot);
                out.put_u8(name.len() as u8);
                out.extend_from_slice(name);
            }
            Entry::Delete { id } => {
                out.put_u8(10);
                out.put_u64(*id);
            }
            Entry::Patch { at, patch } => {
                out.put_u8(12);
                out.put_varint(at.branch.into());
                out.put_varint(at.block);
                patch.encode(out);
            }
        }
    }

    /// Decodes what follows the number of a kind, one of [`KINDS`].
    fn decode(kind: u8, f: &mut Fields<'_>) -> io::Result<Self> {
        fn logical(f: &mut Fields<'_>) -> io::Result<Logical> {
            Ok(Logical { branch: f.u32()?, block: f.u64()? })
        }
        fn birth(f: &mut Fields<'_>) -> io::Result<Birth> {
            Ok(Birth { segment: f.u64()?, ordinal: f.u32()? })
        }
        fn payload(f: &mut Fields<'_>) -> io::Result<Payload> {
            let codec = Codec::from_byte(f.u8()?)?;
            let (blocks, stored) = (f.u32()?, f.u32()?);
            check_shape(codec, blocks.min(256), stored, blocks.min(256), 0)?;
            let n = if codec == Codec::Plain { blocks } else { 1 };
            Ok(Payload { codec, blocks, stored, crcs: (0..n).map(|_| f.u32()).collect::<io::Result<_>>()? })
        }
        fn head(f: &mut Fields<'_>) -> io::Result<NodeHead> {
            Ok(NodeHead { tree: f.u8()?, level: f.u8()?, version: f.u64()?, key: f.array()? })
        }
        fn name(f: &mut Fields<'_>) -> io::Result<Vec<u8>> {
            let n = usize::from(f.u8()?);
            Ok(f.bytes(n)?.to_vec())
        }
        Ok(match kind {
            1 => Entry::Write { at: logical(f)?, version: f.u64()?, data: payload(f)? },
            2 => Entry::Remap {
                at: logical(f)?,
                version: f.u64()?,
                source: birth(f)?,
                mapped: f.u16()?,
                data: payload(f)?,
            },
            3 => Entry::Forward {
                at: logical(f)?,
                version: f.u64()?,
                birth: birth(f)?,
                bytes: f.u32()?,
                data: payload(f)?,
            },
            4 => Entry::Node { head: head(f)?, crc: f.u32()? },
            5 => Entry::ForwardNode { head: head(f)?, birth: birth(f)?, crc: f.u32()? },
            6 => Entry::Record { stored: f.u32()?, crc: f.u32()? },
            7 => Entry::Discard { at: logical(f)?, blocks: f.u64()? },
            8 => Entry::Snapshot {
                id: counter(f.u64()?)?,
                branch: f.u32()?,
                version: counter(f.u64()?)?,
                name: name(f)?,
            },
            9 => Entry::Clone { branch: f.u32()?, snapshot: f.u64()?, name: name(f)? },
            10 => Entry::Delete { id: f.u64()? },
            11 => {
                let at = logical(f)?;
                Entry::Patch { at, patch: Patch::decode_fixed(f)? }
            }
            12 => {
                let branch = u32::try_from(f.varint()?).map_err(|_| corrupt("a patch is of no branch"))?;
                Entry::Patch { at: Logical { branch, block: f.varint()? }, patch: Patch::decode(f)? }
            }
            _ => return Err(corrupt(format!("a summary has an entry of kind {kind}"))),
        })
    }
}

/// Whether stored bytes have their checksums.
pub(crate) fn verify_payload(codec: Codec, crcs: &[u32], data: &[u8]) -> bool {
    match codec {
        Codec::Plain => {
            data.len() == crcs.len() * BLOCK_BYTES
                && data.chunks(BLOCK_BYTES).zip(crcs).all(|(block, &crc)| crc32c(block) == crc)
        }
        _ => crcs.len() == 1 && crc32c(data) == crcs[0],
    }
}

/// A batch has an entry that this version does not know. Its checksum is right, so a newer version has written it.
#[derive(Debug)]
pub struct NewerVersion {
    /// The number of the batch.
    sequence: u64,
    segment: SegmentId,
    offset: u32,
    kind: u8,
}

impl NewerVersion {
    /// Whether that is what an error says.
    pub fn is(e: &io::Error) -> bool {
        e.get_ref().is_some_and(|e| e.is::<NewerVersion>())
    }
}

impl fmt::Display for NewerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NewerVersion { sequence, segment, offset, kind } = self;
        write!(
            f,
            "batch {sequence} of the log, in segment {segment:#x} at {offset}, has an entry of kind {kind}: \
             a newer version of cffs has written it, which this one cannot read"
        )
    }
}

impl std::error::Error for NewerVersion {}

/// The summary of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) uuid: [u8; 16],
    /// The mount that wrote it.
    pub(crate) epoch: u64,
    /// The number of the first batch of this mount: what earlier mounts have written under it or a higher one does not count. 0 if it is not
    /// known.
    pub(crate) first: u64,
    pub(crate) sequence: u64,
    /// All batches up to this one were durable when this one was written.
    pub(crate) durable: u64,
    pub(crate) segment: SegmentId,
    /// Where the batch begins in its segment.
    pub(crate) offset: u32,
    /// Bytes from the beginning of the batch to its data.
    pub(crate) data_start: u32,
    /// Bytes from the beginning of the batch to its end.
    pub(crate) length: u32,
    pub(crate) first_ordinal: u32,
    pub(crate) flags: u16,
    pub(crate) stream: u8,
    /// When its data was written: the number of a batch, on average. For what programs write that of this batch.
    pub(crate) age: u64,
    /// The segment that is begun next.
    pub(crate) next_segment: SegmentId,
    /// Where each stream goes on after this batch.
    pub(crate) streams: [StreamEnd; STREAMS],
    pub(crate) entries: Vec<Entry>,
    /// The kind of the entry behind them, if this version does not know it.
    pub(crate) unknown: Option<u8>,
}

impl Summary {
    /// Refuses a batch with an entry that this version does not know: without it others would be taken for all that there is.
    ///
    /// # Errors
    /// `Unsupported`, with [`NewerVersion`].
    pub(crate) fn must_be_known(&self) -> io::Result<()> {
        let Some(kind) = self.unknown else { return Ok(()) };
        let Summary { sequence, segment, offset, .. } = self;
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            NewerVersion { sequence: *sequence, segment: *segment, offset: *offset, kind },
        ))
    }

    /// Whether it has nothing but what a checkpoint stores.
    pub(crate) fn is_of_checkpoint(&self) -> bool {
        self.unknown.is_none() && self.entries.iter().all(|e| matches!(e, Entry::Node { .. } | Entry::Record { .. }))
    }

    pub(crate) fn encoded_bytes(&self) -> usize {
        SUMMARY_BYTES + self.entries.iter().map(Entry::encoded_bytes).sum::<usize>()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(self.data_start as usize);
        b.put_u32(MAGIC);
        b.put_u32(0); // checksum, below
        b.put_u32(self.encoded_bytes() as u32);
        b.put_u16(VERSION);
        b.put_u16(self.flags);
        b.extend_from_slice(&self.uuid);
        b.put_u64(self.epoch);
        b.put_u64(self.sequence);
        b.put_u64(self.durable);
        b.put_u64(self.segment);
        b.put_u32(self.offset);
        b.put_u32(self.data_start);
        b.put_u32(self.length);
        b.put_u32(self.first_ordinal);
        b.put_u64(self.next_segment);
        b.put_u32(u32::from(self.stream));
        b.put_u32(self.entries.len() as u32);
        b.put_u64(self.age);
        b.put_u64(self.first);
        debug_assert_eq!(b.len(), HEAD_BYTES);
        for s in &self.streams {
            b.put_u64(s.segment);
            b.put_u32(s.offset);
            b.put_u32(s.ordinal);
        }
        self.entries.iter().for_each(|e| e.encode(&mut b));
        let crc = crc32c(&b);
        b[4..8].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Bytes of a summary, from its first bytes (at least [`SUMMARY_BYTES`]).
    pub(crate) fn length_of(first: &[u8]) -> io::Result<usize> {
        let mut f = Fields::new(first);
        if f.u32()? != MAGIC {
            return Err(corrupt("no summary of a batch"));
        }
        f.u32()?;
        let n = f.u32()? as usize;
        if n < SUMMARY_BYTES { Err(corrupt("a summary is too short")) } else { Ok(n) }
    }

    /// Decodes the bytes of a summary, as long as [`Summary::length_of`] says.
    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Self> {
        if Self::length_of(bytes)? != bytes.len() {
            return Err(corrupt("a summary is cut off"));
        }
        let mut copy = bytes.to_vec();
        copy[4..8].fill(0);
        let mut f = Fields::new(bytes);
        f.u32()?;
        if crc32c(&copy) != f.u32()? {
            return Err(corrupt("the checksum of a summary is wrong"));
        }
        f.u32()?;
        let version = f.u16()?;
        if version != VERSION {
            return Err(corrupt(format!("a batch has version {version}, this program knows {VERSION}")));
        }
        let flags = f.u16()?;
        let uuid = f.uuid()?;
        let (epoch, sequence, durable, segment) = (f.u64()?, counter(f.u64()?)?, f.u64()?, f.u64()?);
        let (offset, data_start, length, first_ordinal) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
        let next_segment = f.u64()?;
        let stream = f.u32()?;
        let n = f.u32()? as usize;
        let (age, first) = (f.u64()?, f.u64()?);
        let mut streams = [StreamEnd { segment: 0, offset: 0, ordinal: 0 }; STREAMS];
        for s in &mut streams {
            *s = StreamEnd { segment: f.u64()?, offset: f.u32()?, ordinal: f.u32()? };
        }
        let mut entries = Vec::new();
        let mut unknown = None;
        for _ in 0..n {
            let kind = f.u8()?;
            if !KINDS.contains(&kind) {
                unknown = Some(kind);
                break;
            }
            entries.push(Entry::decode(kind, &mut f)?);
        }
        let stored: u64 = entries.iter().map(|e| u64::from(e.stored())).sum();
        let ordinals: u64 = entries.iter().map(|e| u64::from(e.ordinals())).sum();
        // Sixteen blocks take 35 bytes at least, so a segment has fewer ordinals than half of its bytes.
        if (data_start as usize) < bytes.len()
            || u64::from(data_start) + stored > u64::from(length)
            || offset.checked_add(length).is_none()
            || u64::from(first_ordinal) + ordinals > u64::from(offset + length) / 2
            || streams.iter().any(|s| s.ordinal > s.offset / 2)
            || stream as usize >= STREAMS
            || u64::from(length) > BATCH_BYTES_MAX
            || first > sequence
        {
            return Err(corrupt("the lengths in a summary contradict each other"));
        }
        Ok(Summary {
            uuid,
            epoch,
            first,
            sequence,
            durable,
            segment,
            offset,
            data_start,
            length,
            first_ordinal,
            flags,
            stream: stream as u8,
            age,
            next_segment,
            streams,
            entries,
            unknown,
        })
    }

    /// Place in the order in which batches were written: first the mount, then the number.
    pub(crate) fn order(&self) -> (u64, u64) {
        (self.epoch, self.sequence)
    }

    /// Each entry with the ordinal of its first block and the byte of its data within the segment.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (&Entry, u32, u32)> {
        let mut ordinal = self.first_ordinal;
        let mut at = self.offset + self.data_start;
        self.entries.iter().map(move |e| {
            let here = (e, ordinal, at);
            ordinal += e.ordinals();
            at += e.stored();
            here
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Summary {
        let at = Logical { branch: 2, block: 77 };
        let plain = Payload { codec: Codec::Plain, blocks: 2, stored: 8192, crcs: vec![1, 2] };
        let packed = Payload { codec: Codec::Zstd, blocks: 16, stored: 999, crcs: vec![3] };
        let birth = Birth { segment: 4, ordinal: 5 };
        let head = NodeHead { tree: 1, level: 2, version: 3, key: [9; 28] };
        Summary {
            uuid: [1; 16],
            epoch: 2,
            first: 2,
            sequence: 3,
            durable: 1,
            segment: 5,
            offset: 512,
            data_start: 1024,
            length: 65536,
            first_ordinal: 8,
            flags: CONTINUES,
            stream: 1,
            age: 2,
            next_segment: 6,
            streams: [StreamEnd { segment: 1, offset: 6, ordinal: 3 }; STREAMS],
            entries: vec![
                Entry::Write { at, version: 1, data: plain.clone() },
                Entry::Remap { at, version: 1, source: birth, mapped: 0x8001, data: packed.clone() },
                Entry::Forward { at, version: 1, birth, bytes: 1234, data: packed },
                Entry::Node { head: head.clone(), crc: 6 },
                Entry::ForwardNode { head, birth, crc: 7 },
                Entry::Record { stored: 100, crc: 8 },
                Entry::Discard { at, blocks: u64::MAX },
                Entry::Snapshot { id: 1, branch: 2, version: 3, name: b"one".to_vec() },
                Entry::Clone { branch: 7, snapshot: 1, name: b"two".to_vec() },
                Entry::Delete { id: 9 },
                Entry::Patch { at, patch: Patch { crc: 5, parts: vec![(0, vec![1, 2]), (4095, vec![3])] } },
            ],
            unknown: None,
        }
    }

    #[test]
    fn bytes_and_back() {
        let s = sample();
        let bytes = s.encode();
        assert_eq!(bytes.len(), s.encoded_bytes());
        assert_eq!(Summary::length_of(&bytes).unwrap(), bytes.len());
        assert_eq!(Summary::decode(&bytes).unwrap(), s);
    }

    #[test]
    fn more_ordinals_than_fit_the_segment_are_an_error() {
        let good = sample();
        let bad = Summary { first_ordinal: u32::MAX / 2, ..good.clone() };
        assert!(Summary::decode(&bad.encode()).is_err());
        let mut bad = good;
        bad.streams[2].ordinal = u32::MAX / 2;
        assert!(Summary::decode(&bad.encode()).is_err());
    }

    #[test]
    fn any_changed_byte_is_an_error() {
        let bytes = sample().encode();
        for i in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut bad = bytes.clone();
                bad[i] ^= flip;
                assert!(Summary::decode(&bad).is_err(), "byte {i}");
            }
        }
    }

    #[test]
    fn any_bytes_with_a_good_checksum_do_no_harm() {
        let good = sample().encode();
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..200_000 {
            let mut bad = good.clone();
            for _ in 0..rng.usize(1..6) {
                let i = rng.usize(8..bad.len());
                bad[i] = *rng.choice(&[0, 1, 0x7f, 0xff, rng.clone().u8(..)]).unwrap_or(&0);
            }
            bad[4..8].fill(0);
            let crc = crc32c(&bad);
            bad[4..8].copy_from_slice(&crc.to_le_bytes());
            if let Ok(s) = Summary::decode(&bad) {
                assert_eq!(s.placed().count(), s.entries.len());
            }
        }
    }
}
