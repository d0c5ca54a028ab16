//! What the disks below a log disk or a volume get, and what the members of a volume are.

use super::sample::{Between, Sample};
use crate::disks_below::{DiskBelow, disks_below};
use cffs::device::PurposeStats;
use cffs::stats::DeviceCounters;
use cffs_fuse::volume::{MemberReport, State, VolumeReport, WorkReport};
use std::cmp::Ordering;

/// A row: what it is about, and its numbers.
pub type Row = (String, Vec<f64>);

/// Reads, writes, flushes, MB read, MB written.
pub fn numbers(p: &PurposeStats) -> [f64; 5] {
    let requests = [p.read_requests, p.write_requests, p.flushes].map(|n| n as f64);
    let [reads, writes, flushes] = requests;
    [reads, writes, flushes, p.read_bytes as f64 / 1e6, p.write_bytes as f64 / 1e6]
}

/// For the order of rows: the larger first, and of equal ones the first by name.
pub fn order(column: usize, a: &Row, b: &Row) -> Ordering {
    let by = |row: &Row| row.1.get(column).copied().unwrap_or(0.0);
    by(b).total_cmp(&by(a)).then_with(|| a.0.cmp(&b.0))
}

/// The disks of a sample.
fn disks(sample: &Sample) -> Vec<DiskBelow<'_>> {
    disks_below(&sample.stats, sample.volume.as_ref(), &sample.image)
}

/// A row for each disk, also one that does nothing or is missing, and below it one for each purpose. `per`: what numbers are divided by.
pub fn rows(b: &Between<'_>, column: usize, total: bool, per: f64) -> Vec<Row> {
    let before = disks(b.before);
    let mut all: Vec<(Row, Vec<Row>)> = Vec::new();
    for disk in disks(b.now) {
        let earlier = before.iter().filter(|_| !total).find(|d| d.number == disk.number).and_then(|d| d.counters);
        let mut purposes = disk.counters.map_or_else(Vec::new, |now| by_purpose(now, earlier, per));
        let sum = |i: usize| purposes.iter().map(|(_, n)| n[i]).sum();
        let row = (title(&disk), (0..5).map(sum).collect());
        purposes.retain(|(_, n)| n.iter().any(|n| *n > 0.0));
        purposes.sort_by(|a, b| order(column, a, b));
        all.push((row, purposes));
    }
    all.sort_by(|(a, _), (b, _)| order(column, a, b));
    all.into_iter().flat_map(|(disk, purposes)| std::iter::once(disk).chain(purposes)).collect()
}

fn by_purpose(now: &DeviceCounters, before: Option<&DeviceCounters>, per: f64) -> Vec<Row> {
    let row = |(name, p): (&String, &PurposeStats)| {
        let before = before.and_then(|d| d.purposes.get(name)).map_or([0.0; 5], numbers);
        let grown = numbers(p).into_iter().zip(before).map(|(now, before)| (now - before).max(0.0) / per);
        (format!("    {name}"), grown.collect())
    };
    now.purposes.iter().map(row).collect()
}

fn title(disk: &DiskBelow<'_>) -> String {
    let number = disk.number.map(|n| format!("disk {n}: "));
    let state = disk.member.map(|m| format!(" ({})", state(m)));
    format!("{}{}{}", number.unwrap_or_default(), disk.name, state.unwrap_or_default())
}

fn state(m: &MemberReport) -> String {
    let lacks = match m.state {
        State::Filling | State::Resyncing if m.lacks_bytes > 0 => {
            format!(", lacks {}", crate::size::human(m.lacks_bytes))
        }
        _ => String::new(),
    };
    let outgoing = if m.outgoing { ", another one comes in its place" } else { "" };
    format!("{}{lacks}{outgoing}", m.state)
}

/// What kind of volume it is, and how many of its members are as they should be.
pub fn summary(volume: &VolumeReport) -> String {
    let good = volume.members.iter().filter(|m| matches!(m.state, State::InSync | State::Resyncing)).count();
    let all = volume.members.len();
    let degraded = if good < all { "   DEGRADED: k shows the disks" } else { "" };
    format!("{} of {all} members, {good} of them in sync{degraded}", volume.kind)
}

/// What is done with the members at this moment, and how much of it is done.
pub fn work(volume: &VolumeReport) -> Option<(&str, u64, u64)> {
    let work: &WorkReport = volume.work.as_ref().filter(|w| w.outcome.is_none())?;
    Some((&work.what, work.done, work.total))
}
