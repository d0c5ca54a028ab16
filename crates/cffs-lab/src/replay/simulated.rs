//! A replay with the engine on a simulated disk, in virtual time.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use cffs::device::CountingDevice;
use cffs::{Fs, MetadataMode, MkfsOptions, MountOptions, ROOT_INO, mkfs};
use cffs_disk::SimDevice;

use super::engine::{Engine, build};
use super::names::Names;
use super::outcome::{Differences, Predicted};
use super::settings::Settings;
use super::workload::{ByPurpose, Requests, Workload};
use crate::experiments::volume::{Layout, Volume};

/// Bytes of a disk, if nobody has said or recorded how many.
const BYTES: u64 = 1 << 30;
/// Most bytes that a simulated disk has: its contents are in memory, as far as they are written.
const BYTES_MAX: u64 = 1 << 40;
/// Most bytes of the tree that is made on it, for the same reason.
const TREE_MAX: u64 = 16 << 30;
/// How often the background thread writes back, if it was not recorded: nanoseconds.
const INTERVAL: u64 = 5_000_000_000;
/// Most times that it does so then: two months of recording; a damaged trace may say that it is longer.
const BACKGROUND_MAX: u64 = 1 << 20;
/// A cache, if nobody has said or recorded how large.
const CACHE: u64 = 256 << 20;

pub(super) fn options(s: &Settings, w: &Workload, is_log: bool) -> MountOptions {
    MountOptions::default()
        .background(false)
        .atime(s.atime)
        .metadata(if is_log { MetadataMode::Journal } else { s.metadata })
        .prefetch(s.prefetch)
        .cache_bytes(usize::try_from(s.of(s.cache, w, "cache", CACHE)).unwrap_or(usize::MAX))
        .discard(is_log)
}

/// Makes the file system and the tree of the beginning on it.
pub(super) fn made(s: &Settings, w: &Workload, is_log: bool) -> Result<Volume> {
    let layout = if is_log { Layout::log() } else { Layout::InPlace };
    let bytes = s.of(s.size, w, "size", BYTES);
    if bytes > BYTES_MAX {
        bail!("a simulated disk has at most {BYTES_MAX} bytes, this one were to have {bytes}: say size=");
    }
    let tree = w.tree.bytes();
    if tree > TREE_MAX {
        bail!(
            "the tree of the trace has {} GiB, and a simulated disk is in memory: replay it through a mount (fs=cffs)",
            tree >> 30
        );
    }
    let volume = Volume::make(s.disk, bytes, layout)?;
    let default = MkfsOptions::default();
    let made = MkfsOptions::default()
        .block_size(s.of(s.block, w, "block", u64::from(default.block_size)) as u32)
        .frag_size(s.fragment.or_else(|| w.setting("fragment")).map(|n| n as u32))
        .group_size(s.of(s.group, w, "group", u64::from(default.group_size)) as u32)
        .no_embed(!s.techniques.embed)
        .no_group(!s.techniques.group)
        .log_bytes(w.setting("log").filter(|_| !is_log))
        .uuid(Some([9; 16]))
        .hash_seed(Some([3, 4]))
        .now_ns(Some(1_000_000_000));
    let on = volume.open()?;
    mkfs(&*on.device, None, &made)?;
    on.close()?;
    let on = volume.open()?;
    let fs = Fs::open(on.device.clone(), None, options(s, w, is_log))?;
    if let Some(key) = &s.key {
        fs.set_colocation_key(cffs::Caller::ROOT, ROOT_INO, Some(key))?;
    }
    build(&fs, &w.tree).with_context(|| format!("{}: the tree of the trace does not fit", s.text))?;
    fs.close()?;
    on.close()?;
    Ok(volume)
}

/// What the workload costs there. With an image, it is what was there at the beginning.
///
/// # Errors
/// When the settings are impossible, or the tree does not fit.
pub fn predict(s: &Settings, w: &Workload, image: Option<&Path>) -> Result<Predicted> {
    let volume = match image {
        None => made(s, w, s.is_log(w))?,
        Some(_) if s.size.or(s.group).or(s.block).or(s.fragment).is_some() || s.log.is_some() || s.key.is_some() => {
            bail!("'{}': an image has its size, its layout and its keys already", s.text)
        }
        Some(image) => Volume::of_image(s.disk, image)?,
    };
    if let Some(bytes) = w.setting("request") {
        // The program and its kernel are the same on any disk.
        volume.disk().say_max_request(usize::try_from(bytes)?);
    }
    let on = volume.open_counted()?;
    let fs = Fs::open(on.device.clone(), None, options(s, w, volume.is_log()))?;
    if w.is_of_mount() {
        fs.queue_readahead();
    }
    if w.tree.is_whole {
        begin_as_recorded(&fs)?;
    }
    let disk = volume.disk();
    let (before, counted) = (disk.counters(), requests(&on.counted));
    let mut differences = Differences::default();
    let mut predicted = Predicted::default();
    predicted.by_operation = replay(&fs, disk, w, &mut differences, &mut predicted.busy);
    let after = disk.counters() - before;
    predicted.disk = after;
    predicted.disk.time = predicted.busy;
    predicted.purposes = Some(difference(&requests(&on.counted), &counted));
    predicted.differences = differences;
    let before = disk.counters();
    fs.sync()?;
    predicted.sync = Some(disk.counters() - before);
    fs.close()?;
    on.close()?;
    Ok(predicted)
}

/// Lists all directories and empties the cache, as a recording begins: so what the mount has read is not there, and what is known of
/// directories is.
fn begin_as_recorded(fs: &Fs) -> Result<()> {
    let mut left = vec![(ROOT_INO, 0)];
    while let Some((directory, from)) = left.pop() {
        let listing = fs.trace_listing(directory, from)?;
        left.extend(listing.entries.iter().filter(|e| e.is_dir()).map(|e| (e.inode, 0)));
        if listing.next != 0 {
            left.push((directory, listing.next));
        }
    }
    fs.readahead_step(usize::MAX);
    Ok(fs.cool()?)
}

/// What happens at a time.
enum Event {
    /// The operation at this position.
    Op(usize),
    /// The readahead thread begins what this operation has asked for.
    Ahead(Option<usize>),
    /// The background thread works.
    Background,
}

/// All that is repeated, with its time and in its order.
fn events(w: &Workload) -> Vec<(u64, Event)> {
    let ops = w.ops.iter().enumerate().map(|(n, op)| (op.start, Event::Op(n)));
    let ahead = w.ahead.iter().map(|(time, op)| (*time, Event::Ahead(*op)));
    let background = background_times(w).into_iter().map(|time| (time, Event::Background));
    let mut all: Vec<(u64, Event)> = background.chain(ops).chain(ahead).collect();
    all.sort_by_key(|(time, _)| *time);
    all
}

/// Repeats all operations at their times, and what the threads of the mount did at their own: until the readahead thread has come to
/// what an operation has asked for, the next ones have to read it themselves. What it did not do in the recording, because other
/// settings ask for more, it does at once when it has nothing else to do. Returns the time in which the disk was busy for each
/// operation; `busy` is that and the time for the threads.
fn replay(fs: &Arc<Fs>, disk: &SimDevice, w: &Workload, differences: &mut Differences, busy: &mut u64) -> Vec<u64> {
    let mut engine = Engine::new(fs, Names::new(&w.tree), w.longest());
    let clock = disk.clock();
    let began = clock.now();
    let mut by_operation = Vec::with_capacity(w.ops.len());
    let mut at = |time: u64, work: &mut dyn FnMut()| {
        clock.advance_to(began.saturating_add(time));
        let before = clock.now();
        work();
        *busy += clock.now() - before;
        clock.now() - before
    };
    let mut ahead_of: HashMap<usize, usize> = HashMap::new();
    w.ahead.iter().filter_map(|(_, op)| *op).for_each(|op| *ahead_of.entry(op).or_default() += 1);
    // Requests that the thread has been asked for and has not begun.
    let mut asked = 0;
    for (time, event) in events(w) {
        match event {
            Event::Op(n) => {
                let op = &w.ops[n];
                asked += ahead_of.get(&n).copied().unwrap_or(0);
                let mut repeat = || {
                    differences.compare(op, engine.repeat(op));
                    if asked == 0 {
                        fs.readahead_step(usize::MAX);
                    }
                };
                by_operation.push(at(time, &mut repeat));
            }
            Event::Ahead(op) => {
                asked -= usize::from(op.is_some());
                let _ = at(time, &mut || fs.readahead_step(1));
            }
            Event::Background => {
                let _ = at(time, &mut || fs.background_step());
            }
        }
    }
    fs.readahead_step(usize::MAX);
    engine.end();
    by_operation
}

/// When the background thread works: as recorded, or at its interval where the recording was of a mount that had one and does not say.
fn background_times(w: &Workload) -> Vec<u64> {
    let recorded = w.settings["classes"].as_str().is_some_and(|c| c.split(',').any(|c| c == "background"));
    if recorded || !w.background.is_empty() || w.settings.is_null() {
        return w.background.clone();
    }
    let end = w.ops.last().map_or(0, |op| op.start);
    (1..BACKGROUND_MAX).map(|n| n * INTERVAL).take_while(|time| *time < end).collect()
}

fn requests<D: cffs::device::Device>(counted: &CountingDevice<D>) -> ByPurpose {
    let all = cffs::stats::DeviceCounters::from(&counted.snapshot()).purposes;
    let of = |p: cffs::device::PurposeStats| Requests {
        reads: p.read_requests,
        writes: p.write_requests,
        bytes: p.read_bytes + p.write_bytes,
    };
    all.into_iter().map(|(name, p)| (name, of(p))).collect()
}

fn difference(after: &ByPurpose, before: &ByPurpose) -> ByPurpose {
    let of = |name: &String, a: &Requests| {
        let b = before.get(name).copied().unwrap_or_default();
        Requests { reads: a.reads - b.reads, writes: a.writes - b.writes, bytes: a.bytes - b.bytes }
    };
    after.iter().map(|(name, a)| (name.clone(), of(name, a))).collect()
}
