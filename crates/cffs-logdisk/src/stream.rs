//! Snapshots through a pipe: what one has, or what differs from an earlier one.
//!
//! A stream is a sequence of frames, each with its length and checksum:
//!
//! | bytes | field |
//! | --- | --- |
//! | 4 | magic `CLS1` |
//! | 1 | kind |
//! | 4 | bytes of the contents, at most 1 MiB and 64 |
//! | n | contents |
//! | 4 | CRC32C of all before |
//!
//! | kind | contents |
//! | --- | --- |
//! | 1 begin | u32 version 1; UUID of the sender's store; u64 snapshot; u8 1 and u64 the earlier snapshot, or u8 0 and u64 0; u64 bytes of the disk; u64 where this stream begins; u8 bytes of the name, name |
//! | 2 data | u64 offset, bytes |
//! | 3 zeros | u64 offset, u64 length |
//! | 4 sum | u64 offset, u64 length, u64 CRC-64 of these bytes |
//! | 5 end | u64 number of sums |
//!
//! Ranges ascend. All data comes before the sums, which are of all ranges of the whole difference, also of what an interrupted stream before has
//! brought: the receiver reads back what it has and compares. A stream that ended early goes on where the receiver says.

use crate::batch::NAME_BYTES_MAX;
use crate::codec::{Fields, PutFields, corrupt, crc32c, crc64};
use crate::disk::{LogDisk, SnapshotInfo};
use crate::extent::BLOCK_BYTES;
use cffs_device::{Device, IoKind};
use std::io::{self, Read, Write};

const MAGIC: u32 = 0x3153_4c43; // "CLS1"
const VERSION: u32 = 1;
const BEGIN: u8 = 1;
const DATA: u8 = 2;
const ZEROS: u8 = 3;
const SUM: u8 = 4;
const END: u8 = 5;
/// Most bytes of data in a frame.
const PIECE_BYTES: u64 = 1 << 20;
const CONTENTS_MAX: usize = PIECE_BYTES as usize + 64;
/// Ranges that are asked for at once.
const RANGES: usize = 256;
/// Bytes after which the receiver makes durable what it has.
const DURABLE_BYTES: u64 = 16 << 20;

/// Names a snapshot among all disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotKey {
    /// The UUID of the store that it was made on.
    pub store: [u8; 16],
    /// Its id there.
    pub id: u64,
}

/// What is to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// An earlier snapshot of the same branch, which the receiver has; `None` sends all.
    pub from: Option<u64>,
    /// The snapshot.
    pub to: u64,
    /// What it is called, at most [`NAME_BYTES_MAX`] bytes.
    pub name: &'a str,
    /// What a receiver has of it.
    pub resume: Option<&'a Progress>,
}

/// How a stream begins: what it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamHeader {
    /// The snapshot that is sent.
    pub to: SnapshotKey,
    /// The id of the earlier one, in the same store.
    pub from: Option<u64>,
    /// Bytes of the disk.
    pub bytes: u64,
    /// The byte of the disk at which this stream begins: what comes before, the receiver has.
    pub start: u64,
    /// What the snapshot is called.
    pub name: String,
}

impl StreamHeader {
    /// Reads the first frame of a stream.
    ///
    /// # Errors
    /// `InvalidData` if it is none, `UnexpectedEof` if the stream ends before; those of `input`.
    pub fn read(input: &mut dyn Read) -> io::Result<Self> {
        let (kind, contents) = read_frame(input)?;
        if kind != BEGIN {
            return Err(corrupt("a stream does not begin with its beginning"));
        }
        let mut f = Fields::new(&contents);
        let version = f.u32()?;
        if version != VERSION {
            return Err(corrupt(format!("the stream has version {version}, this program knows {VERSION}")));
        }
        let (to, from) = get_key(&mut f)?;
        let (bytes, start) = (f.u64()?, f.u64()?);
        let n = usize::from(f.u8()?);
        let name = std::str::from_utf8(f.bytes(n)?).map_err(|_| corrupt("the name of a snapshot is not UTF-8"))?;
        Ok(StreamHeader { to, from, bytes, start, name: name.to_owned() })
    }
}

/// How much of a stream a receiver has made durable. As bytes it can be kept, so that a stream can go on after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The snapshot that is on its way.
    pub to: SnapshotKey,
    /// The id of the earlier one, in the same store.
    pub from: Option<u64>,
    /// All that differs before this byte of the disk is there.
    pub offset: u64,
}

impl Progress {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_key(&mut out, &self.to, self.from);
        out.put_u64(self.offset);
        let crc = crc32c(&out);
        out.put_u32(crc);
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// `InvalidData` if they are none.
    pub fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut f = Fields::new(bytes);
        let (to, from) = get_key(&mut f)?;
        let offset = f.u64()?;
        let crc = f.u32()?;
        if bytes.get(..bytes.len().saturating_sub(4)).is_none_or(|b| crc32c(b) != crc) {
            return Err(corrupt("the checksum of a receiver's progress is wrong"));
        }
        Ok(Progress { to, from, offset })
    }
}

fn put_key(out: &mut Vec<u8>, to: &SnapshotKey, from: Option<u64>) {
    out.extend_from_slice(&to.store);
    out.put_u64(to.id);
    out.put_u8(u8::from(from.is_some()));
    out.put_u64(from.unwrap_or(0));
}

fn get_key(f: &mut Fields<'_>) -> io::Result<(SnapshotKey, Option<u64>)> {
    let to = SnapshotKey { store: f.uuid()?, id: f.u64()? };
    let (is_from, from) = (f.u8()?, f.u64()?);
    Ok((to, (is_from != 0).then_some(from)))
}

/// Called with a piece: offset and contents.
type EachPiece<'p, 's> = &'p mut dyn FnMut(&mut Sender<'s>, u64, &[u8]) -> io::Result<()>;

/// What was sent, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendReport {
    /// Of data.
    pub data: u64,
    /// Of the stream, with everything.
    pub stream: u64,
    /// Of ranges that are zeros.
    pub zeros: u64,
}

/// What was received, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveReport {
    /// The snapshot that the device has now.
    pub has: SnapshotKey,
    /// Bytes of data.
    pub data: u64,
    /// Bytes that were read back and compared.
    pub verified: u64,
}

struct Sender<'a> {
    disk: &'a LogDisk,
    device: &'a dyn Device,
    from: Option<u64>,
    to: u64,
    out: &'a mut dyn Write,
    report: SendReport,
}

impl<'a> Sender<'a> {
    fn frame(&mut self, kind: u8, contents: &[u8]) -> io::Result<()> {
        let mut frame = Vec::with_capacity(contents.len() + 13);
        frame.put_u32(MAGIC);
        frame.put_u8(kind);
        frame.put_u32(contents.len() as u32);
        frame.extend_from_slice(contents);
        let crc = crc32c(&frame);
        frame.put_u32(crc);
        self.report.stream += frame.len() as u64;
        self.out.write_all(&frame)
    }

    /// Calls `each` with the pieces that differ from a byte on: offset and contents.
    fn pieces(&mut self, start: u64, each: EachPiece<'_, 'a>) -> io::Result<()> {
        let mut at = Some(start);
        let mut data = Vec::new();
        while let Some(offset) = at {
            let (ranges, next) = self.disk.diff_from(self.from, Some(self.to), offset, RANGES)?;
            for (first, length) in ranges {
                let end = first.saturating_add(length).min(self.device.len());
                let mut piece = first;
                while piece < end {
                    data.resize((end - piece).min(PIECE_BYTES) as usize, 0);
                    self.device.read_at(IoKind::Data, piece, &mut data)?;
                    each(self, piece, &data)?;
                    piece += data.len() as u64;
                }
            }
            at = next;
        }
        Ok(())
    }

    fn data(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let block = |at: usize| &data[at..(at + BLOCK_BYTES).min(data.len())];
        let is_zero = |at: usize| block(at).iter().all(|b| *b == 0);
        let mut at = 0;
        while at < data.len() {
            let zero = is_zero(at);
            let end = (at..data.len()).step_by(BLOCK_BYTES).find(|&n| is_zero(n) != zero).unwrap_or(data.len());
            let mut contents = Vec::with_capacity(end - at + 8);
            contents.put_u64(offset + at as u64);
            if zero {
                contents.put_u64((end - at) as u64);
                self.report.zeros += (end - at) as u64;
            } else {
                contents.extend_from_slice(&data[at..end]);
                self.report.data += (end - at) as u64;
            }
            self.frame(if zero { ZEROS } else { DATA }, &contents)?;
            at = end;
        }
        Ok(())
    }
}

/// Sends a snapshot, or how it differs from an earlier one of the same branch. With the progress of a receiver, only what it does not have yet.
///
/// # Errors
/// `NotFound` if there is no such snapshot, `InvalidInput` if the progress is that of another stream; those of the store and of `out`.
pub fn send(disk: &LogDisk, what: &Outgoing<'_>, out: &mut dyn Write) -> io::Result<SendReport> {
    let Outgoing { from, to, name, resume } = *what;
    let invalid = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    if name.len() > NAME_BYTES_MAX {
        return invalid("the name of the snapshot is too long");
    }
    let key = SnapshotKey { store: disk.uuid(), id: to };
    let start = match resume {
        Some(p) if p.to == key && p.from == from => p.offset,
        Some(_) => return invalid("the receiver waits for another stream"),
        None => 0,
    };
    // Held open, neither of them is deleted meanwhile.
    let device = disk.open_snapshot(to)?;
    let _earlier = from.map(|id| disk.open_snapshot(id)).transpose()?;
    if !is_earlier(&disk.snapshots(), from, to) {
        return invalid("the first of the two snapshots is not an earlier one of the same file system");
    }
    let mut sender = Sender { disk, device: &device, from, to, out, report: SendReport::default() };
    let mut begin = Vec::new();
    begin.put_u32(VERSION);
    put_key(&mut begin, &key, from);
    begin.put_u64(device.len());
    begin.put_u64(start);
    begin.put_u8(name.len() as u8);
    begin.extend_from_slice(name.as_bytes());
    sender.frame(BEGIN, &begin)?;
    sender.pieces(start, &mut |s, offset, data| s.data(offset, data))?;
    let mut sums = 0u64;
    sender.pieces(0, &mut |s, offset, data| {
        let mut contents = Vec::new();
        contents.put_u64(offset);
        contents.put_u64(data.len() as u64);
        contents.put_u64(crc64(data));
        sums += 1;
        s.frame(SUM, &contents)
    })?;
    sender.frame(END, &sums.to_le_bytes())?;
    sender.out.flush()?;
    Ok(sender.report)
}

/// Whether one snapshot was made before another, of the same branch. Nothing is before all.
fn is_earlier(all: &[SnapshotInfo], from: Option<u64>, to: u64) -> bool {
    let find = |id: u64| all.iter().find(|s| s.id == id);
    let Some(from) = from else { return true };
    find(from).zip(find(to)).is_some_and(|(a, b)| a.branch == b.branch && a.version < b.version)
}

/// Takes streams in, on a device that nobody else writes to, and whose discarded blocks read as zeros: that of a branch, or a log disk.
pub struct Receiver<'a> {
    device: &'a dyn Device,
    has: Option<SnapshotKey>,
    progress: Option<Progress>,
    differs: bool,
}

impl<'a> Receiver<'a> {
    /// `has` is the snapshot that the device is equal to, as the last [`ReceiveReport`] said; `None` for a device that reads as zeros. `progress` is that of
    /// an interrupted stream. Who did not keep it can have the same stream sent again from its beginning.
    pub fn new(device: &'a dyn Device, has: Option<SnapshotKey>, progress: Option<Progress>) -> Self {
        Receiver { device, has, progress, differs: false }
    }

    /// How much of a stream is there, if one was interrupted.
    pub fn progress(&self) -> Option<Progress> {
        self.progress
    }

    /// Whether the device was found to have something else than was sent. Then the stream has to come again from its beginning, on
    /// a device that is as before it.
    pub fn differs(&self) -> bool {
        self.differs
    }

    /// Takes a stream in to its end, and verifies all that it was about.
    ///
    /// # Errors
    /// `UnexpectedEof` if the stream ends early: [`Receiver::progress`] says where to go on. `InvalidInput` if it does not fit what the
    /// device has, `InvalidData` if it is damaged or the device does not have what it should; those of the device and of `input`.
    pub fn receive(&mut self, input: &mut dyn Read) -> io::Result<ReceiveReport> {
        let header = StreamHeader::read(input)?;
        self.receive_behind(&header, input)
    }

    /// The same, of a stream whose header was read already.
    ///
    /// # Errors
    /// Those of [`Receiver::receive`].
    pub fn receive_behind(&mut self, header: &StreamHeader, input: &mut dyn Read) -> io::Result<ReceiveReport> {
        let mut progress = self.begin(header)?;
        self.progress = Some(progress);
        let mut report = ReceiveReport { has: progress.to, data: 0, verified: 0 };
        let (mut volatile, mut sums, mut last) = (0, 0u64, progress.offset);
        let mut buf = Vec::new();
        let mut is_data = true;
        loop {
            let (kind, contents) = read_frame(input)?;
            let mut f = Fields::new(&contents);
            if matches!(kind, DATA | ZEROS) {
                let offset = f.u64()?;
                let length = if kind == ZEROS { f.u64()? } else { contents.len() as u64 - 8 };
                let end = offset.checked_add(length).filter(|&end| end <= self.device.len());
                let end = end.filter(|_| is_data && offset >= last && length > 0);
                let end = end.ok_or_else(|| corrupt("the ranges of a stream are not in order"))?;
                if kind == DATA {
                    self.device.write_at(IoKind::Data, offset, &contents[8..])?;
                } else {
                    self.zero(offset, end)?;
                }
                report.data += if kind == DATA { length } else { 0 };
                volatile += if kind == DATA { length } else { 0 };
                last = end;
                if volatile >= DURABLE_BYTES {
                    self.device.flush()?;
                    volatile = 0;
                    progress.offset = last;
                    self.progress = Some(progress);
                }
                continue;
            }
            if is_data {
                self.device.flush()?;
                progress.offset = self.device.len();
                self.progress = Some(progress);
                is_data = false;
            }
            match kind {
                SUM => {
                    let (offset, length, sum) = (f.u64()?, f.u64()?, f.u64()?);
                    let fits = offset.checked_add(length).is_some_and(|end| end <= self.device.len());
                    if !fits || length > PIECE_BYTES {
                        return Err(corrupt("a sum of a stream is of an impossible range"));
                    }
                    buf.resize(length as usize, 0);
                    self.device.read_at(IoKind::Data, offset, &mut buf)?;
                    if crc64(&buf) != sum {
                        // Nothing of it is believed any more.
                        self.differs = true;
                        self.progress = Some(Progress { offset: 0, ..progress });
                        return Err(corrupt(format!("{length} bytes at {offset} are not what was sent")));
                    }
                    report.verified += length;
                    sums += 1;
                }
                END if f.u64()? == sums => {
                    self.has = Some(progress.to);
                    self.progress = None;
                    return Ok(report);
                }
                _ => return Err(corrupt("a stream has a frame that does not belong there")),
            }
        }
    }

    /// Whether the stream fits what is there.
    fn begin(&self, header: &StreamHeader) -> io::Result<Progress> {
        let StreamHeader { to, from, bytes, start, .. } = *header;
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        if bytes > self.device.len() {
            return Err(invalid("the device is shorter than the disk that is sent"));
        }
        match self.progress {
            Some(p) if p.to == to && p.from == from && start <= p.offset => return Ok(Progress { offset: start, ..p }),
            Some(_) => return Err(invalid("another stream was begun and not finished, or this one goes on too late")),
            None => {}
        }
        let before = from.map(|id| SnapshotKey { store: to.store, id });
        if start > 0 || before != self.has {
            return Err(invalid("the device does not have the snapshot that the stream builds on"));
        }
        Ok(Progress { to, from, offset: 0 })
    }

    /// Makes a range zeros, also on a device that keeps what is discarded.
    fn zero(&self, offset: u64, end: u64) -> io::Result<()> {
        // Whole blocks read as zeros from then on, whatever their number is; the ends are parts of blocks.
        self.device.discard(offset, end - offset)?;
        let block = BLOCK_BYTES as u64;
        let head = end.min(offset.next_multiple_of(block));
        let tail = head.max(end / block * block);
        for range in [offset..head, tail..end] {
            if !range.is_empty() {
                self.device.write_at(IoKind::Data, range.start, &vec![0; (range.end - range.start) as usize])?;
            }
        }
        Ok(())
    }
}

/// Kind and contents of the next frame.
fn read_frame(input: &mut dyn Read) -> io::Result<(u8, Vec<u8>)> {
    let mut frame = vec![0; 9];
    input.read_exact(&mut frame)?;
    let mut f = Fields::new(&frame);
    let (magic, kind, n) = (f.u32()?, f.u8()?, f.u32()? as usize);
    if magic != MAGIC || n > CONTENTS_MAX {
        return Err(corrupt("a stream has bytes that are no frame"));
    }
    frame.resize(9 + n, 0);
    input.read_exact(&mut frame[9..])?;
    let mut crc = [0; 4];
    input.read_exact(&mut crc)?;
    if crc32c(&frame) != u32::from_le_bytes(crc) {
        return Err(corrupt("the checksum of a frame of a stream is wrong"));
    }
    if kind == DATA && n < 8 {
        return Err(corrupt("a frame of a stream is too short"));
    }
    Ok((kind, frame.split_off(9)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::LogOptions;
    use crate::store::MemoryStore;
    use std::sync::Arc;

    /// A short frame may be about all of a disk that is far longer than its store.
    #[test]
    fn zeros_take_no_longer_the_more_they_are() {
        let store = Arc::new(MemoryStore::new(64 << 20, 256 << 10, true));
        let disk = LogDisk::format(store, 1 << 59, &LogOptions::default()).unwrap();
        let branch = disk.branch(disk.new_branch("in").unwrap()).unwrap();
        let end = branch.len() - 512;
        for at in [0, 512, 1 << 40, end] {
            branch.write_at(IoKind::Data, at, &[7; 512]).unwrap();
        }
        let receiver = Receiver::new(&branch, None, None);
        receiver.zero(512, end).unwrap();
        receiver.zero(513, 514).unwrap_err();
        let mut sector = [1; 512];
        for (at, byte) in [(0, 7), (512, 0), (1 << 40, 0), (end, 7)] {
            branch.read_at(IoKind::Data, at, &mut sector).unwrap();
            assert_eq!(sector, [byte; 512], "byte {at}");
        }
    }
}
