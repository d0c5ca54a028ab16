//! A log disk and what it must be.

use crate::crash_device::CrashDevice;
use cffs_device::{Device, IoKind, WriteRequest};
use cffs_logdisk::{BLOCK_BYTES, CleanPolicy, Compression, ImageOptions, ImageStore, LogDisk, LogOptions, MAIN_BRANCH};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::Arc;

pub const SECTOR: usize = 512;
const SECTORS_PER_BLOCK: usize = BLOCK_BYTES / SECTOR;

/// What a branch or snapshot has: a tag for each sector, 0 for zeros.
pub type Tags = Arc<Vec<u32>>;

/// All that a disk must have.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Model {
    pub branches: BTreeMap<u32, Tags>,
    pub snapshots: BTreeMap<u64, Tags>,
}

/// The bytes of a sector with a tag. Odd tags compress well, even ones do not.
pub fn sector(tag: u32) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    if tag == 0 {
        return bytes;
    }
    let mut x = u64::from(tag);
    for (i, b) in bytes.chunks_mut(4).enumerate() {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let word = if tag.is_multiple_of(2) && i > 0 { (x >> 32) as u32 } else { tag };
        b.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

pub struct Config {
    pub slots: u64,
    pub slot_bytes: u64,
    pub blocks: u64,
    pub options: LogOptions,
}

impl Config {
    pub fn random(rng: &mut fastrand::Rng) -> Self {
        let options = LogOptions {
            cache_nodes: rng.usize(16..200),
            batch_bytes: rng.usize(1..40) * BLOCK_BYTES,
            checkpoint_bytes: rng.u64(1..64) * 32 * 1024,
            compression: *rng
                .choice(&[Compression::None, Compression::None, Compression::Lz4, Compression::Zstd(1)])
                .unwrap(),
            policy: *rng.choice(&[CleanPolicy::Greedy, CleanPolicy::CostBenefit, CleanPolicy::Generations]).unwrap(),
            ..LogOptions::default()
        };
        let slot_bytes = *rng.choice(&[64 << 10, 128 << 10]).unwrap();
        Config { slots: rng.u64(40..90), slot_bytes, blocks: rng.u64(100..600), options }
    }
}

pub struct Driver {
    pub config: Config,
    pub device: Arc<CrashDevice>,
    pub disk: LogDisk,
    pub model: Model,
    /// What the disk may be after a crash; the last is `model`.
    pub possible: Vec<Model>,
    pub rng: fastrand::Rng,
    next_tag: u32,
    /// Bytes that the cleaner has copied, forwards, and patches, of the disks that were closed.
    pub seen: [u64; 3],
    /// What the last operation would have made of the disk, as a whole and in parts.
    pub attempted: Vec<Model>,
    /// The last operation.
    pub last: u32,
    /// Whether some writes are not atomic, and some change nothing.
    pub plain: bool,
}

impl Driver {
    pub fn new(config: Config, rng: fastrand::Rng) -> Self {
        let device = Arc::new(CrashDevice::new(config.slots * config.slot_bytes + (1 << 20)));
        let image = ImageOptions { uuid: [7; 16], slot_bytes: config.slot_bytes };
        let store = Arc::new(ImageStore::format(device.clone(), &image).unwrap());
        let disk = LogDisk::format(store, config.blocks * BLOCK_BYTES as u64, &config.options).unwrap();
        disk.note_group(config.slot_bytes / 4);
        let mut model = Model::default();
        model.branches.insert(MAIN_BRANCH, Arc::new(vec![0; config.blocks as usize * SECTORS_PER_BLOCK]));
        Driver {
            config,
            device,
            disk,
            possible: vec![model.clone()],
            model,
            rng,
            next_tag: 1,
            last: 0,
            seen: [0; 3],
            attempted: Vec::new(),
            plain: false,
        }
    }

    fn sectors(&self) -> usize {
        self.config.blocks as usize * SECTORS_PER_BLOCK
    }

    pub fn tag(&mut self) -> u32 {
        self.next_tag += 1;
        self.next_tag
    }

    fn changed(&mut self) {
        self.possible.push(self.model.clone());
    }

    pub fn device_of(&self, branch: u32) -> cffs_logdisk::BranchDevice {
        self.disk.branch(branch).unwrap()
    }

    /// Sectors to write or read: mostly few, mostly whole blocks.
    fn range(&mut self) -> (usize, usize) {
        let all = self.sectors();
        let hot = self.rng.u32(0..3) == 0;
        let start = if hot { self.rng.usize(0..all / 8) } else { self.rng.usize(0..all) };
        let n = match self.rng.u32(0..6) {
            0 => self.rng.usize(1..8),
            1 => self.rng.usize(1..400),
            _ => 8 * self.rng.usize(1..8),
        };
        let start = if self.rng.u32(0..4) > 0 { start / 8 * 8 } else { start };
        (start, n.min(all - start).max(1))
    }

    /// Writes as a file system writes data: after a crash it may be there up to any block.
    fn write_plainly(&mut self, branch: u32, (start, n): (usize, usize), tag: u32) -> io::Result<()> {
        let mut tags = self.model.branches[&branch].clone();
        let mut parts = Vec::new();
        for i in start..start + n {
            Arc::make_mut(&mut tags)[i] = tag;
            if i + 1 == start + n || (i + 1) % SECTORS_PER_BLOCK == 0 {
                let mut part = self.model.clone();
                part.branches.insert(branch, tags.clone());
                parts.push(part);
            }
        }
        self.attempted = parts.clone();
        let device = self.device_of(branch);
        let written = device.write_at(IoKind::Data, (start * SECTOR) as u64, &sector(tag).repeat(n));
        match &written {
            Ok(()) => {}
            // A part of it is there.
            Err(e) if e.kind() == io::ErrorKind::StorageFull => {
                let mut data = vec![0; n * SECTOR];
                device.read_at(IoKind::Data, (start * SECTOR) as u64, &mut data)?;
                let there = data.chunks(SECTOR).take_while(|bytes| **bytes == sector(tag)).count();
                parts.retain(|part| part.branches[&branch][start..].iter().take_while(|t| **t == tag).count() <= there);
            }
            Err(_) => return written,
        }
        self.model = parts.last().unwrap_or(&self.model).clone();
        self.possible.append(&mut parts);
        written
    }

    /// Writes what is there.
    fn write_again(&mut self, branch: u32, (start, n): (usize, usize)) -> io::Result<()> {
        let data: Vec<u8> =
            self.model.branches[&branch][start..start + n].iter().flat_map(|tag| sector(*tag)).collect();
        let request =
            WriteRequest { kind: IoKind::Meta, offset: (start * SECTOR) as u64, bufs: vec![IoSlice::new(&data)] };
        self.attempted = vec![self.model.clone()];
        self.device_of(branch).write_atomic(&[request])
    }

    fn write_to(&mut self, branch: u32, ranges: &[(usize, usize)]) -> io::Result<()> {
        let tag = self.tag();
        match tag % 4 {
            0 if self.plain => return self.write_plainly(branch, ranges[0], tag),
            1 if self.plain => return self.write_again(branch, ranges[0]),
            _ => {}
        }
        let one = sector(tag);
        let mut tags = self.model.branches[&branch].clone();
        let data: Vec<Vec<u8>> = ranges.iter().map(|(_, n)| one.repeat(*n)).collect();
        let requests: Vec<WriteRequest<'_>> = ranges
            .iter()
            .zip(&data)
            .map(|((start, _), d)| {
                let offset = (start * SECTOR) as u64;
                WriteRequest { kind: IoKind::Data, offset, bufs: d.chunks(1000).map(IoSlice::new).collect() }
            })
            .collect();
        for (start, n) in ranges {
            Arc::make_mut(&mut tags)[*start..start + n].fill(tag);
        }
        let mut attempted = self.model.clone();
        attempted.branches.insert(branch, tags.clone());
        self.attempted = vec![attempted];
        self.device_of(branch).write_atomic(&requests)?;
        self.model.branches.insert(branch, tags);
        self.changed();
        Ok(())
    }

    /// What the run has exercised.
    pub fn note(&mut self) {
        let s = self.disk.stats();
        self.seen = [self.seen[0] + s.cleaned, self.seen[1] + s.forwards, self.seen[2] + s.patches];
    }

    fn any_branch(&mut self) -> u32 {
        let all: Vec<u32> = self.model.branches.keys().copied().collect();
        if self.rng.bool() { MAIN_BRANCH } else { *self.rng.choice(&all).unwrap() }
    }

    fn any_snapshot(&mut self) -> Option<u64> {
        let all: Vec<u64> = self.model.snapshots.keys().copied().collect();
        self.rng.choice(&all).copied()
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.disk.flush()?;
        self.possible = vec![self.model.clone()];
        Ok(())
    }

    /// One operation. A full disk is no error.
    pub fn step(&mut self) -> io::Result<()> {
        match self.try_step() {
            Err(e) if e.kind() == io::ErrorKind::StorageFull => Ok(()),
            r => r,
        }
    }

    fn try_step(&mut self) -> io::Result<()> {
        self.last = self.rng.u32(0..100);
        self.attempted.clear();
        match self.last {
            0..45 => {
                let branch = self.any_branch();
                let n = if self.rng.u32(0..8) == 0 { self.rng.usize(2..5) } else { 1 };
                let ranges: Vec<_> = (0..n).map(|_| self.range()).collect();
                self.write_to(branch, &ranges)?;
            }
            45..60 => self.flush()?,
            60..70 => {
                let branch = self.any_branch();
                let (start, n) = self.range();
                let n = if self.rng.u32(0..10) == 0 { self.sectors() } else { n };
                let (offset, len) = ((start * SECTOR) as u64, (n * SECTOR) as u64);
                let first = start.div_ceil(SECTORS_PER_BLOCK) * SECTORS_PER_BLOCK;
                let end = (start + n).min(self.sectors()) / SECTORS_PER_BLOCK * SECTORS_PER_BLOCK;
                // Of a long one a part from its beginning may be there after a crash.
                let mut parts = Vec::new();
                let mut tags = self.model.branches[&branch].clone();
                for block in (first..end).step_by(SECTORS_PER_BLOCK) {
                    let range = block..block + SECTORS_PER_BLOCK;
                    if tags[range.clone()].iter().any(|t| *t != 0) {
                        Arc::make_mut(&mut tags)[range].fill(0);
                        let mut part = self.model.clone();
                        part.branches.insert(branch, tags.clone());
                        parts.push(part);
                    }
                }
                self.attempted = parts;
                self.device_of(branch).discard(offset, len)?;
                self.model.branches.insert(branch, tags);
                self.possible.append(&mut self.attempted);
                self.changed();
            }
            70..78 => {
                let (start, n) = self.range();
                let branch = self.any_branch();
                self.check_range(&self.device_of(branch), &self.model.branches[&branch].clone(), start, n);
                if let Some(id) = self.any_snapshot() {
                    let tags = self.model.snapshots[&id].clone();
                    self.check_range(&self.disk.open_snapshot(id).unwrap(), &tags, start, n);
                }
            }
            78..82 => {
                self.disk.clean_step(self.config.slot_bytes * self.rng.u64(1..5))?;
            }
            82..84 => self.disk.checkpoint()?,
            // Its owner goes on all the same.
            84 => self.disk.finish()?,
            85..90 if self.model.snapshots.len() < 8 => {
                let branch = self.any_branch();
                let id = self.disk.snapshot(branch, "one")?;
                self.model.snapshots.insert(id, self.model.branches[&branch].clone());
                self.changed();
            }
            90..93 => {
                if let Some(id) = self.any_snapshot() {
                    match self.disk.delete_snapshot(id) {
                        Ok(()) => {
                            self.model.snapshots.remove(&id);
                            self.changed();
                        }
                        Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {}
                        Err(e) => return Err(e),
                    }
                }
            }
            93 if self.model.branches.len() < 4 => {
                if self.rng.u32(0..3) == 0 {
                    let branch = self.disk.new_branch("empty")?;
                    self.model.branches.insert(branch, Arc::new(vec![0; self.sectors()]));
                    self.changed();
                } else if let Some(id) = self.any_snapshot() {
                    let branch = self.disk.clone_snapshot(id, "two")?;
                    self.model.branches.insert(branch, self.model.snapshots[&id].clone());
                    self.changed();
                }
            }
            94 => {
                let branch = self.any_branch();
                match self.disk.delete_branch(branch) {
                    Ok(()) => {
                        self.model.branches.remove(&branch);
                        self.changed();
                    }
                    Err(e) if matches!(e.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::InvalidInput) => {}
                    Err(e) => return Err(e),
                }
            }
            95..98 => {
                self.disk.delete_step(self.rng.usize(1..100))?;
            }
            _ => {
                if let Some(id) = self.any_snapshot() {
                    self.check_diff(id)?;
                }
            }
        }
        Ok(())
    }

    /// Brings a few ranges together, which changes nothing. Returns the bytes that were copied.
    pub fn bring_together(&mut self) -> io::Result<u64> {
        let branch = self.any_branch();
        let ranges: Vec<_> = (0..self.rng.usize(1..6)).map(|_| self.range()).collect();
        let bytes = |(start, n): &(usize, usize)| (start * SECTOR) as u64..((start + n) * SECTOR) as u64;
        let mut ranges: Vec<_> = ranges.iter().map(bytes).collect();
        ranges.sort_by_key(|r| r.start);
        let mut end = 0;
        // No block twice.
        ranges.retain(|r| {
            let apart = r.start >= end;
            end = if apart { r.end.next_multiple_of(BLOCK_BYTES as u64) } else { end };
            apart
        });
        self.attempted = vec![self.model.clone()];
        self.device_of(branch).bring_together(&ranges)
    }

    /// Where a branch differs from a snapshot of it must be reported; equal blocks may be.
    fn check_diff(&mut self, id: u64) -> io::Result<()> {
        let info = self.disk.snapshots().into_iter().find(|s| s.id == id).unwrap();
        let ranges = self.disk.diff(id, None)?;
        let max = self.rng.usize(1..6);
        let mut at = Some(0);
        let mut pages: Vec<(u64, u64)> = Vec::new();
        while let Some(from) = at {
            let (page, next) = self.disk.diff_from(Some(id), None, from, max)?;
            assert!(page.len() <= max && next.is_none_or(|n| n > from || !page.is_empty()));
            pages.extend(page);
            at = next;
        }
        assert!(pages == ranges, "in pages of {max} the difference is another");
        let (a, b) = (&self.model.snapshots[&id], &self.model.branches[&info.branch]);
        for (i, (x, y)) in a.iter().zip(b.iter()).enumerate() {
            let at = (i * SECTOR) as u64;
            let said = ranges.iter().any(|(start, len)| (*start..start + len).contains(&at));
            assert!(x == y || said, "sector {i} differs and is not in the difference");
        }
        Ok(())
    }

    pub fn check_range(&self, device: &dyn Device, tags: &Tags, start: usize, n: usize) {
        let mut data = vec![1; n * SECTOR];
        device.read_at(IoKind::Data, (start * SECTOR) as u64, &mut data).unwrap();
        for (i, bytes) in data.chunks(SECTOR).enumerate() {
            let tag = tags[start + i];
            assert!(bytes == sector(tag), "sector {} is not what was written, tag {tag}: {:?}", start + i, &bytes[..4]);
        }
    }

    /// All that the disk has.
    pub fn contents(&self, disk: &LogDisk) -> Model {
        let read = |device: &dyn Device| {
            let mut data = vec![1; self.sectors() * SECTOR];
            device.read_at(IoKind::Data, 0, &mut data).unwrap();
            let tags = data.chunks(SECTOR).map(|bytes| {
                let tag = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                assert!(bytes == sector(tag), "a sector is none that was written");
                tag
            });
            Arc::new(tags.collect::<Vec<u32>>())
        };
        let mut all = Model::default();
        for b in disk.branches() {
            all.branches.insert(b.branch, read(&disk.branch(b.branch).unwrap()));
        }
        for s in disk.snapshots() {
            all.snapshots.insert(s.id, read(&disk.open_snapshot(s.id).unwrap()));
        }
        all
    }

    pub fn check_all(&self) {
        assert!(self.contents(&self.disk) == self.model, "the disk is not what it must be");
        let problems = self.disk.check(true).unwrap();
        assert!(problems.is_empty(), "{problems:#?}");
        assert_eq!(self.disk.stats().damaged_segments, 0, "the cleaner has found damage where there is none");
    }

    fn open(&self, device: &Arc<CrashDevice>, options: &LogOptions) -> LogDisk {
        let store = Arc::new(ImageStore::open(device.clone()).unwrap());
        let disk = LogDisk::open(store, options).unwrap();
        disk.note_group(self.config.slot_bytes / 4);
        disk
    }

    /// A crash, perhaps several during recovery, and what is found then.
    pub fn crash(&mut self) {
        self.note();
        let mut device = Arc::new(self.device.crash(&mut self.rng));
        let read_only = LogOptions { read_only: true, ..self.config.options.clone() };
        let before = self.contents(&self.open(&device, &read_only));
        if !self.possible.contains(&before) {
            let differ: Vec<String> = self.possible.iter().map(|p| difference(p, &before)).collect();
            panic!("after the crash the disk is none of {} states: {differ:#?}", self.possible.len());
        }
        while self.rng.u32(0..3) == 0 {
            device.requests_left.store(self.rng.u64(0..12), std::sync::atomic::Ordering::Relaxed);
            let opened =
                ImageStore::open(device.clone()).and_then(|s| LogDisk::open(Arc::new(s), &self.config.options));
            drop(opened);
            device = Arc::new(device.crash(&mut self.rng));
        }
        self.disk = self.open(&device, &self.config.options);
        self.device = device;
        let after = self.contents(&self.disk);
        assert!(after == before, "a crash during recovery has changed the disk: {}", difference(&before, &after));
        self.model = after;
        self.possible = vec![self.model.clone()];
        self.check_all();
    }

    /// A crash after an error: operations that failed may be there.
    pub fn crash_after_failure(&mut self) {
        let device = Arc::new(self.device.crash(&mut self.rng));
        self.disk = self.open(&device, &self.config.options);
        let found = self.contents(&self.disk);
        self.device = device;
        let known = self.possible.contains(&found);
        let attempted = self.attempted.contains(&found);
        assert!(known || attempted, "after an error the disk is none of {} states", self.possible.len());
        self.model = found;
        self.check_all();
    }

    /// Closes and opens again.
    pub fn reopen(&mut self) {
        if self.rng.bool() {
            self.disk.checkpoint().unwrap();
        } else {
            self.disk.flush().unwrap();
        }
        self.possible = vec![self.model.clone()];
        self.note();
        self.disk = self.open(&self.device.clone(), &self.config.options);
        self.check_all();
    }
}

/// What differs between what a disk may be and what it is, for a message.
fn difference(model: &Model, found: &Model) -> String {
    let ids =
        |m: &Model| (m.branches.keys().copied().collect::<Vec<_>>(), m.snapshots.keys().copied().collect::<Vec<_>>());
    if ids(model) != ids(found) {
        return format!("{:?} instead of {:?}", ids(found), ids(model));
    }
    let branches = model.branches.iter().map(|(id, t)| (format!("branch {id}"), t, &found.branches[id]));
    let snapshots = model.snapshots.iter().map(|(id, t)| (format!("snapshot {id}"), t, &found.snapshots[id]));
    let differ = |(name, a, b): (String, &Tags, &Tags)| {
        let sectors: Vec<usize> = (0..a.len()).filter(|&i| a[i] != b[i]).collect();
        let first = sectors.first().map(|&i| (i, a[i], b[i]));
        (!sectors.is_empty()).then(|| format!("{name}: {} sectors, the first {first:?}", sectors.len()))
    };
    branches.chain(snapshots).filter_map(differ).collect::<Vec<_>>().join("; ")
}
