//! Random histories of a mirror: crashes of the machine and of single disks, members that fail, are absent, come back, are replaced.

use crate::disk::{Disk, Power, SECTOR};
use crate::oracle::{Oracle, Tag, fill};
use cffs_device::{Device, IoKind, ReadRequest, WriteRequest};
use cffs_volume::{
    Candidate, CreateOptions, Kind, MemberState, OpenOptions, Verdict, Volume, VolumeError, create, open,
};
use std::io::IoSlice;
use std::sync::Arc;

const REGIONS: u64 = 6;
const REGION: u64 = 1 << 20;
const BYTES: u64 = REGIONS * REGION;
/// Sectors at the start of each region that are used: few, so that they are written often.
const USED: u64 = 160;

struct Named {
    name: String,
    disk: Arc<Disk>,
    /// It is being made a member, or removed: it may or may not be one.
    uncertain: bool,
    /// It had everything when that was last known.
    complete: bool,
}

struct Run {
    seed: u64,
    rng: fastrand::Rng,
    power: Power,
    disks: Vec<Named>,
    names: usize,
    /// The disk that has been told to fail.
    failing: Option<String>,
    volume: Option<Volume>,
    oracle: Oracle,
    next: Tag,
    counts: Counts,
}

#[derive(Default, Debug)]
struct Counts {
    crashes: u64,
    power_cuts: u64,
    drops: u64,
    returns: u64,
    replaced: u64,
    degraded: u64,
    resyncs: u64,
    synced_reads: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut run = Run {
            seed,
            rng: fastrand::Rng::with_seed(seed),
            power: Power::new(),
            disks: Vec::new(),
            names: 0,
            failing: None,
            volume: None,
            oracle: Oracle::new(BYTES),
            next: 1,
            counts: Counts::default(),
        };
        let n = run.rng.usize(2..4);
        (0..n).for_each(|_| run.new_disk());
        let all: Vec<Candidate> = run.disks.iter().map(candidate).collect();
        create(&all, &CreateOptions::new(Kind::Mirror)).unwrap();
        run.disks.iter_mut().for_each(|d| d.complete = true);
        run.reopen();
        run
    }

    fn new_disk(&mut self) {
        self.names += 1;
        let disk = Disk::new((1 << 20) + BYTES, &self.power);
        self.disks.push(Named { name: format!("disk{}", self.names), disk, uncertain: false, complete: false });
    }

    fn volume(&self) -> &Volume {
        self.volume.as_ref().unwrap()
    }

    fn find(&mut self, name: &str) -> &mut Named {
        self.disks.iter_mut().find(|d| d.name == name).unwrap()
    }

    fn state(&self, name: &str) -> Option<MemberState> {
        let status = self.volume.as_ref()?.mirror()?.status();
        status.members.iter().find(|m| m.name == name).map(|m| m.state)
    }

    /// Names of the members in these states.
    fn members(&self, states: &[MemberState]) -> Vec<String> {
        let status = self.volume().mirror().unwrap().status();
        status.members.into_iter().filter(|m| states.contains(&m.state)).map(|m| m.name).collect()
    }

    fn serving(&self) -> Vec<String> {
        self.members(&[MemberState::InSync, MemberState::Resyncing])
    }

    fn note_complete(&mut self) {
        let serving = self.serving();
        self.disks.iter_mut().for_each(|d| d.complete = serving.contains(&d.name));
    }

    /// Whether an operation that did not succeed had the right to.
    fn power_is_off(&self) -> bool {
        self.power.is_off()
    }

    fn range(&mut self) -> (u64, usize) {
        let first = self.rng.u64(..USED);
        let n = self.rng.u64(1..=(USED - first).min(40));
        (self.rng.u64(..REGIONS) * REGION + first * SECTOR, n as usize)
    }

    fn tags(&mut self, n: usize) -> (Vec<Tag>, Vec<u8>) {
        let tags: Vec<Tag> = (self.next..).take(n).collect();
        self.next += n as u64;
        let mut bytes = vec![0; n * SECTOR as usize];
        bytes.chunks_mut(SECTOR as usize).zip(&tags).for_each(|(s, t)| fill(s, *t));
        (tags, bytes)
    }

    fn write(&mut self) {
        let count = if self.rng.u8(..4) == 0 { self.rng.usize(1..5) } else { 1 };
        let mut parts: Vec<(u64, Vec<Tag>, Vec<u8>)> = Vec::new();
        for _ in 0..count {
            let (at, n) = self.range();
            let apart = |(o, t, _): &(u64, Vec<Tag>, Vec<u8>)| {
                at >= o + t.len() as u64 * SECTOR || at + n as u64 * SECTOR <= *o
            };
            if parts.iter().all(apart) {
                let (tags, bytes) = self.tags(n);
                parts.push((at, tags, bytes));
            }
        }
        let request =
            |(at, _, bytes): &'_ (u64, Vec<Tag>, Vec<u8>)| (*at, bytes.len() / 2 / SECTOR as usize * SECTOR as usize);
        let batch: Vec<WriteRequest<'_>> = parts
            .iter()
            .map(|p| {
                let (offset, half) = request(p);
                let bufs = [&p.2[..half], &p.2[half..]].map(IoSlice::new).to_vec();
                WriteRequest { kind: IoKind::Data, offset, bufs }
            })
            .collect();
        let result = match &batch[..] {
            [one] => self.volume().write_vectored(one.kind, one.offset, &one.bufs),
            all => self.volume().write_batch(all),
        };
        assert!(result.is_ok() || self.power_is_off(), "seed {}: {result:?}", self.seed);
        drop(batch);
        for (at, tags, _) in parts {
            self.oracle.written((at / SECTOR) as usize, &tags, result.is_ok());
        }
    }

    fn read(&mut self) {
        let ranges: Vec<(u64, usize)> = (0..self.rng.usize(1..4)).map(|_| self.range()).collect();
        let mut bufs: Vec<Vec<u8>> = ranges.iter().map(|(_, n)| vec![0; n * SECTOR as usize]).collect();
        let mut batch: Vec<ReadRequest<'_>> = ranges
            .iter()
            .zip(&mut bufs)
            .map(|((offset, _), buf)| ReadRequest { kind: IoKind::Data, offset: *offset, buf })
            .collect();
        let result = match &mut batch[..] {
            [one] => self.volume().read_at(one.kind, one.offset, one.buf),
            all => self.volume().read_batch(all),
        };
        assert!(result.is_ok() || self.power_is_off(), "seed {}: {result:?}", self.seed);
        if result.is_ok() {
            for ((at, _), buf) in ranges.iter().zip(&bufs) {
                self.oracle.read((at / SECTOR) as usize, buf);
            }
        }
    }

    fn flush(&mut self) {
        let result = self.volume().flush();
        assert!(result.is_ok() || self.power_is_off(), "seed {}: {result:?}", self.seed);
        if result.is_ok() {
            self.oracle.flushed();
        }
    }

    fn resync(&mut self) {
        let names = |history: &Self| {
            let status = history.volume().mirror().unwrap().status();
            status.members.into_iter().map(|m| m.name).collect::<Vec<_>>()
        };
        let before = names(self);
        let mut left = if self.rng.bool() { u32::MAX } else { self.rng.u32(..4) };
        let result = self.volume().mirror().unwrap().resync(None, &mut |_| {
            left = left.saturating_sub(1);
            left > 0
        });
        assert!(result.is_ok() || self.power_is_off(), "seed {}: {result:?}", self.seed);
        self.counts.resyncs += u64::from(result.is_ok_and(|complete| complete));
        // It goes on with a replacement that the power has ended.
        let after = names(self);
        if !self.power_is_off() {
            self.disks.retain(|d| !before.contains(&d.name) || after.contains(&d.name));
        }
    }

    /// All that are in sync are equal, where the bitmap does not say that they may differ.
    fn compare(&mut self) {
        let seed = self.seed;
        let mut differs = |d: &cffs_volume::Difference<'_>| -> Verdict {
            let copies: Vec<_> = d.copies.iter().map(|(n, b)| (*n, b[0], b[512], b[1024])).collect();
            panic!("seed {seed}: copies differ at {}: {copies:?}", d.offset)
        };
        let result = self.volume().mirror().unwrap().scrub(None, &mut differs, &mut |_| true);
        assert!(result.is_ok() || self.power_is_off(), "seed {}: {result:?}", self.seed);
    }

    /// A disk fails from some request on, if the others can do without it.
    fn fail(&mut self) {
        let serving = self.serving();
        if self.failing.is_some() || serving.len() < 2 {
            return;
        }
        let name = self.rng.choice(&serving).unwrap().clone();
        let n = self.rng.u64(..12);
        self.find(&name).disk.fail_after(n);
        self.failing = Some(name);
        self.counts.drops += 1;
    }

    /// The disk works again, without what it had not made durable, and is given back if it was dropped.
    fn mend(&mut self) {
        let Some(name) = self.failing.take() else { return };
        if self.state(&name) != Some(MemberState::Absent) {
            self.find(&name).disk.fail_after(u64::MAX);
            return;
        }
        let (power, mut rng) = (self.power.clone(), self.rng.fork());
        let d = self.find(&name);
        d.disk = d.disk.crash(&mut rng, &power);
        self.give_back();
    }

    fn give_back(&mut self) {
        let absent = self.members(&[MemberState::Absent]);
        // One that was never given has no name.
        let known: Vec<String> = self.disks.iter().map(|d| d.name.clone()).collect();
        let status = self.volume().mirror().unwrap().status();
        let there: Vec<String> = status.members.iter().map(|m| m.name.clone()).collect();
        let all = known.into_iter().filter(|n| absent.contains(n) || !there.contains(n));
        let all: Vec<String> = all.filter(|n| Some(n) != self.failing.as_ref()).collect();
        let Some(name) = self.rng.choice(&all).cloned() else { return };
        let given = candidate(self.find(&name));
        let result = self.volume().mirror().unwrap().add(given, false);
        assert!(result.is_ok() || self.power_is_off(), "seed {}: {result:?}", self.seed);
        self.counts.returns += 1;
    }

    fn replace(&mut self) {
        let members = self.serving();
        if self.failing.is_some() || members.len() < 2 || !self.members(&[MemberState::Filling]).is_empty() {
            return;
        }
        let old = self.rng.choice(&members).unwrap().clone();
        self.new_disk();
        let new = self.disks.last_mut().unwrap();
        (0..REGIONS).for_each(|r| new.disk.overwrite((1 << 20) + r * REGION, &[0xee; 65536]));
        new.uncertain = true;
        let given = candidate(new);
        self.find(&old).uncertain = true;
        let mirror = self.volume().mirror().unwrap();
        let uuid = mirror.status().members.iter().find(|m| m.name == old).unwrap().uuid;
        let result = mirror.replace(uuid, given, false, None, &mut |_| true);
        assert!(matches!(result, Ok(true)) || self.power_is_off(), "seed {}: {result:?}", self.seed);
        if result.is_ok() {
            self.disks.retain(|d| d.name != old);
            self.disks.iter_mut().for_each(|d| d.uncertain = false);
            self.counts.replaced += 1;
        }
    }

    /// Power off, for all at once: each disk keeps some of what was not durable.
    fn crash(&mut self) {
        if let Some(volume) = self.volume.take() {
            self.counts.synced_reads += volume.mirror().unwrap().stats().synced_reads;
        }
        self.power = Power::new();
        for d in &mut self.disks {
            d.disk = d.disk.crash(&mut self.rng, &self.power);
        }
        self.failing = None;
        self.oracle.crashed();
        self.counts.crashes += 1;
    }

    /// Opens with some of the members, one that is complete among them.
    fn reopen(&mut self) {
        self.failing = None;
        self.disks.iter().for_each(|d| d.disk.fail_after(u64::MAX));
        let certain = self.disks.iter().all(|d| !d.uncertain);
        loop {
            let all = !certain || self.rng.u8(..3) > 0;
            let given: Vec<usize> = (0..self.disks.len()).filter(|_| all || self.rng.bool()).collect();
            if !certain || given.iter().any(|i| self.disks[*i].complete) {
                match self.try_open(&given) {
                    Ok(()) => return,
                    Err(name) => self.disks.retain(|d| d.name != name),
                }
            }
        }
    }

    /// The error names a disk that is no member after all.
    fn try_open(&mut self, given: &[usize]) -> Result<(), String> {
        if self.rng.u8(..6) == 0 {
            self.power.fail_after(self.rng.u64(..30));
        }
        let candidates: Vec<Candidate> = given.iter().map(|i| candidate(&self.disks[*i])).collect();
        let degraded = given.len() < self.disks.len() || self.rng.bool() || self.disks.iter().any(|d| d.uncertain);
        let result = open(&candidates, &OpenOptions { degraded, depth: 1, ..OpenOptions::default() });
        if result.is_ok() || self.power_is_off() {
            // Who was given may be in use by now, the others may be behind.
            (0..self.disks.len()).filter(|i| !given.contains(i)).for_each(|i| self.disks[i].complete = false);
        }
        match result {
            Ok(volume) => {
                self.volume = Some(volume);
                self.counts.degraded += u64::from(given.len() < self.disks.len());
                // Who belongs to it is recorded, whatever the power did with the last request.
                self.note_complete();
                if !self.power_is_off() {
                    self.disks.iter_mut().for_each(|d| d.uncertain = false);
                }
            }
            Err(VolumeError::NotAMember { name, .. } | VolumeError::Removed { name })
                if self.disks.iter().any(|d| d.uncertain && d.name == name) =>
            {
                return Err(name);
            }
            Err(e) => {
                assert!(self.power_is_off(), "seed {}: {e}", self.seed);
                self.crash();
                self.counts.power_cuts += 1;
                let again: Vec<usize> = given.to_vec();
                return self.try_open(&again);
            }
        }
        Ok(())
    }

    fn step(&mut self) {
        match self.rng.u32(..100) {
            0..34 => self.write(),
            34..60 => self.read(),
            60..72 => self.flush(),
            72..76 => self.resync(),
            76..79 => self.compare(),
            79..83 => self.fail(),
            83..87 => self.mend(),
            87..90 => self.give_back(),
            90..91 => self.replace(),
            91..93 => {
                let result = self.volume().close();
                assert!(result.is_ok() || self.power_is_off(), "seed {}: {result:?}", self.seed);
                if result.is_ok() {
                    self.oracle.flushed();
                    // A member may have been dropped just now.
                    self.note_complete();
                    self.volume = None;
                    self.reopen();
                }
            }
            93..95 => self.power.fail_after(self.rng.u64(..40)),
            95..97 => {
                self.crash();
                self.reopen();
            }
            _ => {}
        }
        if self.power_is_off() {
            // What became of a change of membership under way is not known: all are given.
            let serving = self.serving();
            if self.failing.is_some() || self.disks.iter().any(|d| d.complete != serving.contains(&d.name)) {
                self.disks.iter_mut().for_each(|d| d.uncertain = true);
            }
            self.crash();
            self.counts.power_cuts += 1;
            self.reopen();
        } else if self.volume.is_some() {
            self.note_complete();
        }
    }

    /// Every member has everything in the end, each for itself.
    fn end(mut self) -> Counts {
        self.power.fail_after(u64::MAX);
        self.failing = None;
        if let Some(volume) = self.volume.take() {
            self.counts.synced_reads += volume.mirror().unwrap().stats().synced_reads;
        }
        let power = self.power.clone();
        for d in &mut self.disks {
            // Nothing that a disk was given is lost when only the program ends.
            d.disk = d.disk.duplicate(&power);
        }
        let all: Vec<Candidate> = self.disks.iter().map(candidate).collect();
        let volume = open(&all, &OpenOptions { degraded: true, depth: 1, ..OpenOptions::default() }).unwrap();
        let mirror = volume.mirror().unwrap();
        let names = || mirror.status().members.into_iter().map(|m| m.name).collect::<Vec<_>>();
        let before = names();
        assert!(mirror.resync(None, &mut |_| true).unwrap());
        // In whose place another one was to come, that goes.
        let after = names();
        self.disks.retain(|d| !before.contains(&d.name) || after.contains(&d.name));
        // The power failed while it was being added, before it knew.
        let absent = |m: &&cffs_volume::MemberStatus| m.state == MemberState::Absent;
        mirror.status().members.iter().filter(absent).for_each(|m| mirror.remove(m.uuid).unwrap());
        let mut read_all = |volume: &Volume, all: bool| {
            let mut bytes = vec![0; REGION as usize];
            for r in 0..REGIONS {
                volume.read_at(IoKind::Data, r * REGION, &mut bytes).unwrap();
                let n = if all { bytes.len() } else { (USED * SECTOR) as usize };
                self.oracle.read((r * REGION / SECTOR) as usize, &bytes[..n]);
            }
        };
        read_all(&volume, self.counts.replaced == 0);
        let report = mirror.scrub(None, &mut |_| panic!("they differ"), &mut |_| true).unwrap();
        assert_eq!((report.bytes, report.skipped), (BYTES, 0));
        volume.close().unwrap();
        assert_eq!(mirror.status().dirty_regions, 0, "seed {}", self.seed);
        drop(volume);
        let alone = OpenOptions { degraded: true, read_only: true, depth: 1, ..OpenOptions::default() };
        for d in all.iter().filter(|c| self.disks.iter().any(|d| d.name == c.name)) {
            read_all(&open(std::slice::from_ref(d), &alone).unwrap(), false);
        }
        assert_eq!(self.oracle.sectors() as u64 * SECTOR, BYTES);
        self.counts
    }
}

fn candidate(d: &Named) -> Candidate {
    Candidate::new(d.name.clone(), d.disk.clone())
}

#[test]
fn promises_are_kept_whatever_fails() {
    let mut sum = Counts::default();
    for seed in crate::seeds(50) {
        let mut run = Run::new(seed);
        for _ in 0..run.rng.usize(20..300) {
            run.step();
        }
        let c = run.end();
        sum.crashes += c.crashes;
        sum.power_cuts += c.power_cuts;
        sum.drops += c.drops;
        sum.returns += c.returns;
        sum.replaced += c.replaced;
        sum.degraded += c.degraded;
        sum.resyncs += c.resyncs;
        sum.synced_reads += c.synced_reads;
    }
    println!("{sum:?}");
    assert!(sum.crashes > 0 && sum.power_cuts > 0 && sum.drops > 0 && sum.returns > 0 && sum.replaced > 0);
    assert!(sum.degraded > 0 && sum.resyncs > 0 && sum.synced_reads > 0);
}

/// The first writes to clean regions, cut off by a loss of power in which each disk loses something else.
#[test]
fn a_write_to_a_clean_region_is_in_the_bitmap_before_it_is_on_a_disk() {
    let mut differed = 0;
    for seed in crate::seeds(300) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let power = Power::new();
        let disks: Vec<_> = (0..2).map(|_| Disk::new((1 << 20) + BYTES, &power)).collect();
        let given = |disks: &[Arc<Disk>]| -> Vec<Candidate> {
            disks.iter().enumerate().map(|(i, d)| Candidate::new(format!("disk{i}"), d.clone())).collect()
        };
        create(&given(&disks), &CreateOptions::new(Kind::Mirror)).unwrap();
        let options = OpenOptions { depth: 1, ..OpenOptions::default() };
        let volume = open(&given(&disks), &options).unwrap();
        for _ in 0..rng.usize(1..4) {
            let at = rng.u64(..REGIONS) * REGION;
            volume.write_at(IoKind::Data, at, &[1; 4096]).unwrap();
        }
        let power = Power::new();
        let after: Vec<_> = disks.iter().map(|d| d.crash(&mut rng, &power)).collect();
        differed += u32::from(after[0].peek(1 << 20, BYTES as usize) != after[1].peek(1 << 20, BYTES as usize));
        let volume = open(&given(&after), &options).unwrap();
        let mirror = volume.mirror().unwrap();
        assert!(mirror.resync(None, &mut |_| true).unwrap());
        mirror.scrub(None, &mut |d| panic!("seed {seed}: byte {} differs", d.offset), &mut |_| true).unwrap();
    }
    assert!(differed > 50, "{differed}");
}
