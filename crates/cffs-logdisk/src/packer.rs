//! Packs blocks into batches.

use crate::batch::{BATCH_BYTES_MAX, CONTINUES, Entry, Payload, SUMMARY_BYTES};
use crate::codec::crc32c;
use crate::compress::compress;
use crate::extent::{BLOCK_BYTES, Codec, EXTENT_BLOCKS_MAX, UNIT_BLOCKS_MAX};
use crate::log::{Log, NewBatch};
use crate::options::Compression;
use crate::state::State;
use std::io;

/// Collects entries for batches of one stream. Several batches of one packer count together or not at all.
pub(crate) struct Packer {
    stream: u8,
    age: Option<u64>,
    entries: Vec<Entry>,
    data: Vec<u8>,
    summary: usize,
    room: u64,
    /// Bytes of a segment that are worth a batch.
    least: u64,
}

/// The end of a segment that is shorter than this part of it is not worth a request of its own where so large a part of one is written.
const SHORT_END: u64 = 128;
const MANY: u64 = 8;

impl Packer {
    /// `age` is the number of the batch in which the data was written, if that is long ago.
    pub(crate) fn new(stream: u8, age: Option<u64>) -> Self {
        Packer { stream, age, entries: Vec::new(), data: Vec::new(), summary: SUMMARY_BYTES, room: 0, least: 0 }
    }

    /// The same for so many bytes of data in all. If they are many, no few of them go to the short end of a segment.
    pub(crate) fn of_bytes(bytes: u64, stream: u8, age: Option<u64>, segment: u64) -> Self {
        let least = if bytes >= segment / MANY { segment / SHORT_END } else { 0 };
        Packer { least, ..Packer::new(stream, age) }
    }

    /// Blocks in so many runs that fill so many bytes of a segment, with what a summary says of them.
    pub(crate) fn blocks_in(bytes: u64, runs: usize, align: u32) -> usize {
        // A checksum for each, and an entry for each run; a long one has several. Some runs more may come with the last blocks.
        const SPARE_ENTRIES: u64 = 24;
        const ENTRY: u64 = 32;
        let summary = SUMMARY_BYTES as u64 + (runs as u64 + SPARE_ENTRIES) * ENTRY + u64::from(align);
        (bytes.saturating_sub(summary) / (BLOCK_BYTES as u64 + 4)) as usize
    }

    /// Whether the open batch has room for an entry and its data.
    fn fits(&self, entry: usize, stored: usize, align: u32) -> bool {
        let start = Log::data_start(self.summary + entry, align) as usize;
        ((start + self.data.len() + stored).next_multiple_of(align as usize) as u64) <= self.room
    }

    /// Adds an entry that fits any batch.
    pub(crate) fn add(&mut self, state: &mut State, entry: Entry, data: &[u8]) -> io::Result<()> {
        let align = state.store.alignment();
        let bytes = entry.encoded_bytes();
        if self.room == 0 || !self.fits(bytes, data.len(), align) {
            self.end(state, CONTINUES)?;
            let need = u64::from(Log::data_start(SUMMARY_BYTES + bytes, align)) + data.len() as u64 + u64::from(align);
            self.room = state.log.begin(self.stream, need.max(self.least), &*state.store)?.min(BATCH_BYTES_MAX);
        }
        self.summary += bytes;
        self.entries.push(entry);
        self.data.extend_from_slice(data);
        Ok(())
    }

    /// Adds blocks that are neighbours; `entry` makes the entry for some of them: first block, payload.
    pub(crate) fn add_blocks(
        &mut self,
        state: &mut State,
        data: &[u8],
        entry: &dyn Fn(u32, Payload) -> Entry,
    ) -> io::Result<()> {
        self.add_runs(state, data, state.options.compression, entry)
    }

    /// The same without compression.
    pub(crate) fn add_plain(
        &mut self,
        state: &mut State,
        data: &[u8],
        entry: &dyn Fn(u32, Payload) -> Entry,
    ) -> io::Result<()> {
        self.add_runs(state, data, Compression::None, entry)
    }

    fn add_runs(
        &mut self,
        state: &mut State,
        data: &[u8],
        compression: Compression,
        entry: &dyn Fn(u32, Payload) -> Entry,
    ) -> io::Result<()> {
        let total = (data.len() / BLOCK_BYTES) as u32;
        let align = state.store.alignment();
        // An extent takes at most an eighth of a segment, so that the end of a segment is not wasted.
        let longest =
            (state.store.segment_bytes() / 8 / BLOCK_BYTES as u64).clamp(1, u64::from(EXTENT_BLOCKS_MAX)) as u32;
        let mut first = 0;
        while first < total {
            let rest = &data[first as usize * BLOCK_BYTES..];
            let unit = (total - first).min(UNIT_BLOCKS_MAX).min(longest);
            if let Some((codec, packed)) = compress(compression, &rest[..unit as usize * BLOCK_BYTES]) {
                let payload = Payload { codec, blocks: unit, stored: packed.len() as u32, crcs: vec![crc32c(&packed)] };
                self.add(state, entry(first, payload), &packed)?;
                first += unit;
                continue;
            }
            let mut n = if compression == Compression::None { longest } else { unit };
            n = n.min(total - first);
            let bytes_of = |blocks: u32| {
                let crcs = vec![0; blocks as usize];
                let stored = blocks * BLOCK_BYTES as u32;
                entry(first, Payload { codec: Codec::Plain, blocks, stored, crcs }).encoded_bytes()
            };
            // Fill the segment: what does not fit whole goes in parts.
            while n > 1 && self.room > 0 && !self.fits(bytes_of(n), n as usize * BLOCK_BYTES, align) {
                n /= 2;
            }
            let part = &rest[..n as usize * BLOCK_BYTES];
            self.add(state, entry(first, plain(part)), part)?;
            first += n;
        }
        Ok(())
    }

    /// Writes the open batch and applies it.
    fn end(&mut self, state: &mut State, flags: u16) -> io::Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        let entries = std::mem::take(&mut self.entries);
        let batch = NewBatch { stream: self.stream, flags, entries, data: &self.data, age: self.age, reserved: 0 };
        let summary = state.log.write(batch, &*state.store, &mut state.usage)?;
        self.data.clear();
        self.summary = SUMMARY_BYTES;
        self.room = 0;
        state.apply(&summary, false)
    }

    /// Writes what is left; all batches of the packer count with the last one.
    pub(crate) fn finish(mut self, state: &mut State) -> io::Result<()> {
        self.end(state, 0)
    }
}

/// Blocks as they are.
pub(crate) fn plain(data: &[u8]) -> Payload {
    let crcs: Vec<u32> = data.chunks(BLOCK_BYTES).map(crc32c).collect();
    Payload { codec: Codec::Plain, blocks: crcs.len() as u32, stored: data.len() as u32, crcs }
}
