//! What the mount tells from time to time.

use super::costs::{Cost, Costs, NO_DIRECTORY, OTHERS};
use crate::disks_below::volume_of;
use crate::text::printable;
use anyhow::Context;
use cffs::stats::FsStats;
use cffs::trace::{Classes, Item, Kind, Reader, frame};
use cffs_fuse::control::{Control, ControlError, Request, TRACE_READ_BYTES};
use cffs_fuse::volume::VolumeReport;
use rustix::io::Errno;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

/// Inodes whose directories are asked for at once.
const ASKED_MAX: usize = 1000;
/// Questions for directories in one round.
const QUESTIONS: usize = 8;

/// The mount, and what it has told.
pub struct Source {
    control: Control,
    /// The recording, while we have one.
    recording: Option<u64>,
    /// Why there is none.
    pub without_trace: Option<String>,
    costs: Costs,
    /// The image.
    pub image: String,
}

/// The state of a mount at a moment.
pub struct Sample {
    /// When it was taken.
    pub at: Instant,
    /// Counters.
    pub stats: FsStats,
    /// Messages of the kernel by kind.
    pub messages: BTreeMap<String, u64>,
    /// The image.
    pub image: String,
    /// The volume below, if there is one.
    pub volume: Option<VolumeReport>,
    /// The log disk below, if there is one.
    pub log_disk: Value,
    /// A scrub, a regroup: what they say.
    pub scrub: Value,
    /// See `scrub`.
    pub regroup: Value,
    /// Nothing can be written; an error is why.
    pub read_only: bool,
    /// See `read_only`.
    pub failed: bool,
    /// By operation, since the beginning.
    pub operations: HashMap<Option<Kind>, Cost>,
    /// By directory, since the beginning.
    pub directories: HashMap<u64, Cost>,
}

impl Source {
    /// Begins; without a trace where somebody else records one, or if that is asked.
    pub fn open(dir: &Path, with_trace: bool) -> anyhow::Result<Source> {
        let control = Control::open(dir)?;
        let image = printable(control.info()?.image.as_bytes());
        let classes = Classes::OP.with(Classes::DEVICE).to_string();
        let request = Request::TraceStart { classes, scramble: false, yields: true };
        let begun = with_trace.then(|| control.call(&request));
        let (recording, without_trace) = match begun.transpose() {
            Ok(None) => (None, Some("not recorded (--no-trace)".to_owned())),
            Ok(number) => (number, None),
            Err(ControlError::Refused { refusal, .. }) => (None, Some(refusal.message)),
            Err(other) => return Err(other.into()),
        };
        Ok(Source { control, recording, without_trace, costs: Costs::default(), image })
    }

    /// The state now.
    pub fn sample(&mut self) -> anyhow::Result<Sample> {
        self.read_trace()?;
        let value: Value = self.control.stats()?;
        let messages = value["fuse"].as_object().into_iter().flatten();
        let messages = messages.filter_map(|(kind, n)| Some((kind.clone(), n.as_u64()?))).collect();
        let status = |request| self.control.call(&request).unwrap_or(Value::Null);
        Ok(Sample {
            at: Instant::now(),
            messages,
            image: self.image.clone(),
            volume: volume_of(&value),
            log_disk: value["log_disk"].clone(),
            read_only: value["read_only"] == true,
            failed: value["failed"] == true,
            scrub: status(Request::ScrubStatus),
            regroup: status(Request::RegroupStatus),
            stats: serde_json::from_value(value).context("the mount is of another version")?,
            operations: self.costs.operations.clone(),
            directories: self.costs.directories.clone(),
        })
    }

    /// The path of a directory.
    pub fn path(&self, directory: u64) -> &str {
        match directory {
            NO_DIRECTORY => "(no directory)",
            OTHERS => "(others: work for more than it names)",
            _ => self.costs.paths.get(&directory).map_or("?", String::as_str),
        }
    }

    fn read_trace(&mut self) -> anyhow::Result<()> {
        let Some(recording) = self.recording else { return Ok(()) };
        loop {
            let frames = match self.control.call::<String>(&Request::TraceRead { recording }) {
                Ok(text) => crate::text::bytes_of(&text).context("the mount has sent something else than a trace")?,
                Err(ControlError::Refused { refusal, .. }) if refusal.errno == Errno::BUSY.raw_os_error() => {
                    self.recording = None;
                    self.without_trace = Some(refusal.message);
                    return Ok(());
                }
                Err(other) => return Err(other.into()),
            };
            let file = [&frame::HEADER[..], &frames].concat();
            let mut reader = Reader::new(&file[..])?;
            let mut records = Vec::new();
            while let Some(item) = reader.next_item()? {
                if let Item::Span(record) = item {
                    records.push(record);
                }
            }
            self.costs.take(&records);
            if frames.len() < TRACE_READ_BYTES {
                break;
            }
        }
        for _ in 0..QUESTIONS {
            let asked = self.costs.unknown(ASKED_MAX);
            if asked.is_empty() {
                break;
            }
            let places: Vec<(u64, u64, String)> = self.control.call(&Request::Places { inodes: asked.clone() })?;
            // A name is what somebody chose, and may drive a terminal.
            let shown = |(inode, directory, path): (u64, u64, String)| (inode, directory, printable(path.as_bytes()));
            self.costs.learn(&asked, &places.into_iter().map(shown).collect::<Vec<_>>());
        }
        Ok(())
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some(recording) = self.recording {
            let classes = Classes::NONE.to_string();
            // If it fails the mount is gone, or somebody else records.
            let _ = self.control.call::<()>(&Request::TraceClasses { recording, classes, cold: false });
        }
    }
}

/// Two samples: what was between them.
pub struct Between<'a> {
    /// The earlier one.
    pub before: &'a Sample,
    /// The later one.
    pub now: &'a Sample,
}

impl Between<'_> {
    /// Seconds between them.
    pub fn seconds(&self) -> f64 {
        self.now.at.duration_since(self.before.at).max(Duration::from_millis(1)).as_secs_f64()
    }

    /// How much a counter has grown in a second.
    pub fn rate(&self, counter: impl Fn(&Sample) -> u64) -> f64 {
        counter(self.now).saturating_sub(counter(self.before)) as f64 / self.seconds()
    }

    /// How much a counter has grown.
    pub fn grown(&self, counter: impl Fn(&Sample) -> u64) -> u64 {
        counter(self.now).saturating_sub(counter(self.before))
    }
}
