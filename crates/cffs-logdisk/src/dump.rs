//! What is on a log disk, field by field, for people and as JSON. The names are those of `docs/format-log.md`, where it has them.
//!
//! Superblocks, the checkpoint and the batches of a segment are shown as they stand there, also of a disk that cannot be opened. The table of segments,
//! branches and maps are those of an open disk: as they are after the next mount.

use crate::batch::{CONTINUES, Entry, Logical, Payload, STREAMS, Summary};
use crate::catalog::DeadList;
use crate::disk::LogDisk;
use crate::extent::{BLOCK_BYTES, Birth, Codec, Extent};
use crate::layouts::MapLayout;
use crate::record::Record;
use crate::root::{CLOSED_EPOCH, RootRecord};
use crate::scan::{next_batch, patience, summary_at};
use crate::store::{ImageStore, NO_SEGMENT, SUPERBLOCK_OFFSETS, SegmentId, SegmentStore, read_superblock};
use crate::tree::{Layout, NodeHead, Root, lookup_extents};
use cffs_device::Device;
use cffs_values::{Fields, Value, hex};
use std::io;
use std::sync::Arc;

/// Digits of the id of a segment.
const ID_DIGITS: usize = 16;

fn id(segment: SegmentId) -> Value {
    if segment == NO_SEGMENT { "none".into() } else { Value::hex(segment, ID_DIGITS) }
}

/// Both superblocks of the log disk on a device, with their roots, and the checkpoint of the newer one. What cannot be read or decoded is told under
/// `problems`.
pub fn superblocks(device: &Arc<dyn Device>) -> Value {
    let mut f = Fields::new();
    f.put_list("superblocks", SUPERBLOCK_OFFSETS, |f, at| {
        f.put("at", at);
        match read_superblock(&**device, at) {
            Ok(sb) => drop(f.append(sb.fields()).put("root", root_fields(sb.root()))),
            Err(e) => f.problems([e.to_string()]),
        }
    });
    let mut checkpoint = Fields::new();
    if let Err(e) = put_checkpoint(&mut checkpoint, device) {
        checkpoint.problems([e.to_string()]);
    }
    f.put("checkpoint", checkpoint);
    f.into()
}

fn root_fields(bytes: &[u8]) -> Fields {
    let mut f = Fields::new();
    match RootRecord::decode(bytes) {
        Ok(root) => {
            f.put("segment", id(root.segment)).put("offset", root.offset).put("epoch", root.epoch);
            f.put("closed", root.epoch == CLOSED_EPOCH);
        }
        Err(e) => f.problems([e.to_string()]),
    }
    f
}

fn put_checkpoint(f: &mut Fields, device: &Arc<dyn Device>) -> io::Result<()> {
    let store = Arc::new(ImageStore::open(device.clone())?);
    let root = RootRecord::decode(&store.root()?.bytes)?;
    let (summary, bytes, record) = Record::read(&*store, root.segment, root.offset)?;
    let (fields, trees) = (record.fields, record.trees);
    f.put("sequence", summary.sequence).put("epoch", summary.epoch).put("bytes", bytes);
    f.put("unmarked", fields.unmarked).put("logical_bytes", fields.logical_bytes).put("version", fields.version);
    f.put("next_id", fields.next_id).put("next_dead_list", fields.next_list);
    f.put("forwards", tree(&trees.forward)).put("dead_lists", tree(&trees.dead_lists));
    f.put("catalog", tree(&trees.catalog)).put("segments", tree(&trees.segments));
    f.put("dead_blocks", tree(&trees.dead));
    f.put("newer_segments", record.table.len()).put("newly_dead", record.newly_dead.len());
    f.put_list("mounts_after_crashes", record.mounts.iter(), |f, (epoch, first)| {
        f.put("epoch", epoch).put("first", first);
    });
    f.put("next_segment", id(summary.next_segment)).append(streams(&summary));
    Ok(())
}

/// Where a tree begins.
fn tree<L: Layout>(root: &Root<L>) -> Value {
    match root.stored() {
        Some(r) => format!("{:#018x} at {}, level {}", r.segment, r.offset, root.level()).into(),
        None if root.is_empty() => "empty".into(),
        None => "not stored yet".into(),
    }
}

/// Where each stream goes on behind a batch.
fn streams(s: &Summary) -> Fields {
    const NAMES: [&str; STREAMS] = ["stream_0", "stream_1", "stream_2", "stream_3"];
    let open = NAMES.iter().zip(s.streams).filter(|(_, end)| end.segment != NO_SEGMENT);
    Fields(open.map(|(name, end)| (*name, format!("{:#018x} at {}", end.segment, end.offset).into())).collect())
}

/// All batches of a segment of the log disk on a device, with their entries. What has no batch between two others is told under `problems`.
///
/// # Errors
/// Those of [`ImageStore::open`]; `NotFound` if no batch of such a segment is there.
pub fn segment(device: &Arc<dyn Device>, segment: SegmentId) -> io::Result<Value> {
    let store = ImageStore::open(device.clone())?;
    let uuid = store.uuid();
    let range = store.range_of(segment).ok_or_else(|| none_of_this(segment))?;
    let wanted = |s: &Summary| s.uuid == uuid && s.segment == segment;
    let (mut at, mut left) = (0, patience(store.segment_bytes()));
    let (mut batches, mut problems) = (Vec::new(), Vec::new());
    while let Some(s) = next_batch(&store, segment, at, &mut left, &wanted)? {
        if s.offset > at {
            problems.push(format!("bytes {at} to {} have no batch of the segment", s.offset));
        }
        at = s.offset + s.length;
        batches.push(batch(&s));
        if u64::from(at) >= store.segment_bytes() {
            break;
        }
    }
    if batches.is_empty() {
        let there = match summary_at(&store, segment, 0) {
            Ok(s) if s.uuid == uuid => format!(", but of segment {:#x}", s.segment),
            _ => String::new(),
        };
        let what = format!("no batch of segment {segment:#x} is in its slot{there}");
        return Err(io::Error::new(io::ErrorKind::NotFound, what));
    }
    let mut f = Fields::of("segment", id(segment));
    f.put("byte", range.start).put("written", at).put("batches", batches);
    f.problems(problems);
    Ok(f.into())
}

fn none_of_this(segment: SegmentId) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("segment {segment:#x} is none of this image"))
}

fn batch(s: &Summary) -> Fields {
    let mut f = Fields::of("sequence", s.sequence);
    f.put("epoch", s.epoch)
        .put("first", s.first)
        .put("durable", s.durable)
        .put("offset", s.offset)
        .put("data_start", s.data_start);
    f.put("length", s.length).put("first_ordinal", s.first_ordinal).put("stream", s.stream).put("age", s.age);
    if s.flags & CONTINUES != 0 {
        f.put("continues", true);
    }
    f.put("next_segment", id(s.next_segment)).append(streams(s));
    f.put_list("entries", s.placed(), |f, (e, ordinal, at)| entry(f, e, ordinal, at));
    f.problems(s.must_be_known().err().map(|e| e.to_string()));
    f
}

fn entry(f: &mut Fields, entry: &Entry, ordinal: u32, at: u32) {
    match entry {
        Entry::Write { at, version, data } => {
            logical(f.put("entry", "write"), at);
            payload(f.put("version", *version), data);
        }
        Entry::Remap { at, version, source, mapped, data } => {
            logical(f.put("entry", "copy"), at);
            f.put("version", *version).put("source", birth(source));
            if data.codec != Codec::Plain {
                f.put("mapped", Value::hex(*mapped, 4));
            }
            payload(f, data);
        }
        Entry::Forward { at, version, birth: b, bytes, data } => {
            logical(f.put("entry", "copy for snapshots"), at);
            f.put("version", *version).put("birth", birth(b)).put("bytes_there", *bytes);
            payload(f, data);
        }
        Entry::Node { head, crc } => {
            node(f.put("entry", "node"), head);
            f.put("checksum", Value::hex(*crc, 8));
        }
        Entry::ForwardNode { head, birth: b, crc } => {
            node(f.put("entry", "copy of a node for snapshots"), head);
            f.put("birth", birth(b)).put("checksum", Value::hex(*crc, 8));
        }
        Entry::Record { stored, crc } => {
            f.put("entry", "checkpoint").put("stored", *stored).put("checksum", Value::hex(*crc, 8));
        }
        Entry::Discard { at, blocks } => {
            logical(f.put("entry", "discard"), at);
            f.put("blocks", *blocks);
        }
        Entry::Snapshot { id, branch, version, name } => {
            f.put("entry", "snapshot").put("id", *id).put("branch", *branch).put("version", *version);
            f.put("name", Value::Bytes(name.clone()));
        }
        Entry::Clone { branch, snapshot, name } => {
            f.put("entry", "clone").put("branch", *branch).put("snapshot", *snapshot);
            f.put("name", Value::Bytes(name.clone()));
        }
        Entry::Delete { id } => drop(f.put("entry", "delete").put("id", *id)),
        Entry::Patch { at, patch } => {
            logical(f.put("entry", "patch"), at);
            let parts: Vec<String> = patch.parts.iter().map(|(at, bytes)| format!("{at}+{}", bytes.len())).collect();
            f.put("ranges", parts.join(" ")).put("checksum", Value::hex(patch.crc, 8));
        }
    }
    if entry.ordinals() > 0 {
        f.put("ordinal", ordinal).put("byte", at);
    }
}

fn logical(f: &mut Fields, at: &Logical) {
    f.put("branch", at.branch).put("block", at.block);
}

fn birth(b: &Birth) -> String {
    format!("{:#018x}:{}", b.segment, b.ordinal)
}

fn codec(c: Codec) -> &'static str {
    match c {
        Codec::Plain => "plain",
        Codec::Lz4 => "lz4",
        Codec::Zstd => "zstd",
    }
}

fn payload(f: &mut Fields, p: &Payload) {
    f.put("blocks", p.blocks).put("codec", codec(p.codec)).put("stored", p.stored);
}

fn node(f: &mut Fields, head: &NodeHead) {
    f.put("tree", head.tree).put("level", head.level).put("version", head.version).put("key", hex(&head.key));
}

fn dead_list(f: &mut Fields, list: DeadList) {
    f.put("dead_list", list.id).put("dead_list_entries", list.entries);
}

impl LogDisk {
    /// The table of segments: what each has, and what of it lives.
    pub fn dump_segments(&self) -> Value {
        let state = self.lock();
        let table = &state.usage.table;
        let used: u64 = table.values().map(|info| u64::from(info.used)).sum();
        let mut f = Fields::of("segments", table.len());
        f.put("used_bytes", used).put("live_bytes", state.usage.live);
        f.put_list("list", table, |f, (&segment, info)| {
            f.put("segment", id(segment));
            f.put_some("byte", state.store.range_of(segment).map(|range| range.start));
            f.put("used", info.used).put("live", info.live).put("ordinals", info.ordinals).put("age", info.age);
            f.put("stream", info.stream).put("forwarded", info.forwarded).put("open", state.log.is_open(segment));
            if state.damaged.contains(&segment) {
                f.problems(["something in it cannot be read or verified".into()]);
            }
        });
        f.into()
    }

    /// All branches and snapshots, also those that are being deleted, and where their maps begin.
    pub fn dump_branches(&self) -> Value {
        let state = self.lock();
        let mut f = Fields::new();
        f.put_list("branches", &state.catalog.branches, |f, (&branch, b)| {
            f.put("branch", branch).put("name", Value::Bytes(b.name.clone())).put_some("origin", b.origin);
            dead_list(f.put("deleting", b.deleting).put("map", tree(&b.root)), b.list);
        });
        f.put_list("snapshots", &state.catalog.snapshots, |f, (&snapshot, s)| {
            f.put("id", snapshot).put("branch", s.branch).put("version", s.version);
            f.put("name", Value::Bytes(s.name.clone()));
            dead_list(f.put("deleting", s.deleting).put("map", tree(&s.root)), s.list);
        });
        f.into()
    }

    /// Where blocks of a branch or snapshot are: what its map says, and where the cleaner has moved that for snapshots. What is left out reads as zeros.
    ///
    /// # Errors
    /// `NotFound` if there is no such branch or snapshot, `InvalidInput` if the blocks are not within the disk, `InvalidData` if the map cannot be read.
    pub fn dump_map(&self, of: u64, block: u64, blocks: u64) -> io::Result<Value> {
        let state = self.lock();
        let snapshot = state.catalog.snapshots.get(&of).map(|s| &s.root);
        let branch = || u32::try_from(of).ok().and_then(|id| state.catalog.branches.get(&id)).map(|b| &b.root);
        let root: &Root<MapLayout> = snapshot.or_else(branch).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("there is no branch or snapshot with the id {of}"))
        })?;
        let end = state.logical_bytes / BLOCK_BYTES as u64;
        if block.checked_add(blocks).is_none_or(|last| last > end) {
            let what = format!("{blocks} blocks from {block} on are outside of the log disk, which has {end}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut list = Vec::new();
        for (at, extent) in lookup_extents(root, &state.nodes(), block, blocks)? {
            let was = extent.place.birth();
            for (skip, now) in state.locate(extent)? {
                let was = Birth { ordinal: was.ordinal + skip, ..was };
                list.push(extent_fields(&*state.store, at + u64::from(skip), was, &now));
            }
        }
        let mut f = Fields::of("of", of);
        f.put("extents", list);
        Ok(f.into())
    }
}

/// Where an extent is that was written at `was`.
fn extent_fields(store: &dyn SegmentStore, block: u64, was: Birth, extent: &Extent) -> Fields {
    let p = &extent.place;
    let mut f = Fields::of("block", block);
    f.put("blocks", extent.blocks).put("segment", id(p.segment)).put("ordinal", p.ordinal).put("offset", p.offset);
    f.put_some("byte", store.range_of(p.segment).map(|range| range.start + u64::from(p.offset)));
    f.put("codec", codec(p.codec)).put("stored", p.stored).put("version", extent.version);
    if p.codec != Codec::Plain {
        f.put("unit_blocks", p.unit_blocks).put("index", p.index);
    }
    if p.birth() != was {
        f.put("birth", birth(&was));
    }
    f
}
