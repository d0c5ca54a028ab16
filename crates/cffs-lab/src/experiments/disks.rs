//! The simulated disks against their data sheets, and the groups that `mkfs` would choose on them.

use std::time::Duration;

use anyhow::{Context, Result};
use cffs::device::{Probe, ProbeSample, choose_group_size};
use cffs_disk::measure::{
    medium, random_access, requests_per_second, rotation, scattered_read, sequential, service, service_by_data_sheet,
    without_overheads,
};
use cffs_disk::profiles::{self, DataSheet, Kind, Profile};
use cffs_disk::{Model, flat_cost};

use super::outcome::{Claim, Outcome};

/// Random requests of each measurement.
const REQUESTS: u64 = 20_000;
/// Requests issued at once, more than any queue takes.
const MANY: u64 = 2000;
/// Service times are compared for these sizes, in KiB.
const SIZES: [u64; 4] = [4, 8, 64, 256];

/// What `mkfs` finds when it times this disk.
///
/// # Errors
/// When there is no such disk.
pub fn probe(profile: &str) -> Result<Probe> {
    let mut model = profiles::find(profile).with_context(|| format!("no disk is called {profile}"))?.model();
    let samples = (12..=22)
        .map(|log| 1u64 << log)
        .map(|size| ProbeSample {
            size: size as usize,
            reads: 25,
            median: Duration::from_nanos(scattered_read(&mut model, size)),
        })
        .collect();
    Ok(choose_group_size(samples))
}

/// The largest deviation of what was measured from what was said, in %.
fn worst(pairs: &[(f64, f64)]) -> f64 {
    pairs.iter().map(|(said, seen)| (seen / said - 1.0).abs() * 100.0).fold(0.0, f64::max)
}

fn mechanical(name: &str, sheet: &DataSheet, rows: &mut [Vec<(String, Vec<f64>)>; 2]) -> [(String, f64, f64); 4] {
    let mut seen_access = Vec::new();
    for (write, settle) in [(false, 0.0), (true, sheet.write_settle)] {
        let said = sheet.seek[1] + settle + 30_000.0 / sheet.rpm as f64;
        seen_access.push((said, random_access(&mut without_overheads(sheet, false), write, REQUESTS)));
    }
    let turn = (60_000.0 / sheet.rpm as f64, rotation(&mut without_overheads(sheet, false)) as f64 / 1e6);
    let zones = [(0.0, sheet.track_longest), (0.999, sheet.track_shortest)].map(|(at, track)| {
        let mut model = Model::Mechanical(Box::new(sheet.disk(false)));
        let start = (model.capacity() as f64 * at) as u64 / 4096 * 4096;
        let bytes = (16 << 20).min((model.capacity() - start) / 65_536 * 65_536);
        (medium(sheet, track), sequential(&mut model, start, bytes, 65_536, false))
    });
    let sizes = SIZES.map(|kib| {
        let seek = sheet.seek[1];
        (service_by_data_sheet(sheet, kib, seek), service(sheet, kib, seek, false))
    });
    let all = [seen_access[0], seen_access[1], turn, zones[0], zones[1]];
    rows[0].push((format!("{name}: data sheet"), all.iter().map(|(said, _)| *said).collect()));
    rows[0].push((format!("{name}: measured"), all.iter().map(|(_, seen)| *seen).collect()));
    rows[1].push((format!("{name}: data sheet"), sizes.iter().map(|(said, _)| *said).collect()));
    rows[1].push((format!("{name}: measured"), sizes.iter().map(|(_, seen)| *seen).collect()));
    [
        ("average seek and half a rotation: deviation from the data sheet in %".into(), 7.0, worst(&seen_access)),
        ("rotation: deviation in %".into(), 0.1, worst(&[turn])),
        ("sequential bandwidth, outermost and innermost zone: deviation in %".into(), 7.0, worst(&zones)),
        // Large requests cross tracks, which the formula leaves out.
        (
            "service time of 4 and 8 KiB: deviation from seek, rotation and transfer in %".into(),
            7.0,
            worst(&sizes[..2]),
        ),
    ]
}

fn flat_cost_row(profile: &Profile, spec: &flat_cost::Spec) -> [(f64, f64); 4] {
    let run = |write, bytes, depth| requests_per_second(&mut profile.model(), write, bytes, depth);
    let limit = spec.requests_per_second as f64;
    let alone = |latency: u64, bandwidth: u64| 1.0 / (latency as f64 / 1e9 + 4096.0 / bandwidth as f64);
    // These writes are 64 times their length apart: flash makes room in another block after so many.
    let erasing = spec.blocks.as_ref().map_or(0, |b| b.erase * 64 * 4096 / b.units.unit.max(1));
    let (read, write) =
        (alone(spec.read_latency, spec.read_bandwidth), alone(spec.write_latency + erasing, spec.write_bandwidth));
    let together = |bytes: u64| {
        let of_queue = spec.queue_depth as f64 / (spec.read_latency as f64 / 1e9);
        of_queue.min(limit).min(spec.read_bandwidth as f64 / bytes as f64)
    };
    let large = spec.request_max.min(1 << 20);
    let in_turn = |bytes: u64| match spec.queue_depth {
        1 => 1.0 / (spec.read_latency as f64 / 1e9 + bytes as f64 / spec.read_bandwidth as f64),
        _ => together(bytes),
    };
    [
        (read.min(limit), run(false, 4096, 1)),
        (write.min(limit), run(true, 4096, 1)),
        (in_turn(4096), run(false, 4096, MANY)),
        (in_turn(large) * large as f64 / 1e6, run(false, large, MANY) * large as f64 / 1e6),
    ]
}

/// All disks.
///
/// # Errors
/// None but for a missing profile.
pub fn sheets(_scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut rows: [Vec<(String, Vec<f64>)>; 2] = Default::default();
    let (mut priced_rows, mut groups) = (Vec::new(), Vec::new());
    for profile in profiles::all() {
        let name = profile.name;
        match &profile.kind {
            Kind::Mechanical(sheet) => {
                for (text, most, seen) in mechanical(name, sheet, &mut rows) {
                    outcome.claims.push(Claim::at_most(format!("{name}: {text}"), most, seen));
                }
            }
            Kind::FlatCost(spec) => {
                let pairs = flat_cost_row(&profile, spec);
                priced_rows.push((format!("{name}: prices"), pairs.iter().map(|(said, _)| *said).collect()));
                priced_rows.push((format!("{name}: measured"), pairs.iter().map(|(_, seen)| *seen).collect()));
                let text = format!("{name}: requests per second and bandwidth: deviation from the prices in %");
                outcome.claims.push(Claim::at_most(text, 7.0, worst(&pairs)));
            }
        }
        let found = probe(name)?;
        let latency = found.latency.map_or(0.0, |l| l.as_secs_f64() * 1e3);
        let bandwidth = found.bandwidth.unwrap_or(0.0);
        let knee = latency / 1e3 * bandwidth / 1024.0;
        groups.push((name.to_string(), vec![latency, bandwidth / 1e6, knee, f64::from(found.group_size >> 10)]));
        outcome.notes.push(format!("{name}: {}. Figures: {}.", profile.about, profile.source.trim_end_matches('.')));
    }
    let columns = ["random read, ms", "random write, ms", "rotation, ms", "outermost zone, MB/s", "innermost, MB/s"];
    let [access, times] = rows;
    outcome.table("Mechanical disks", "disk", &columns.map(str::to_string), access);
    outcome.table("Service time with the average seek (ms)", "disk", &SIZES.map(|kib| format!("{kib} KiB")), times);
    let columns = ["4 KiB reads/s, one at a time", "4 KiB writes/s", "4 KiB reads/s, queue full", "reading, MB/s"];
    outcome.table("Disks with prices", "disk", &columns.map(str::to_string), priced_rows);
    let columns = ["fixed cost, ms", "transfer, MB/s", "knee, KiB", "group, KiB"];
    outcome.table("The group that mkfs chooses when it times the disk", "disk", &columns.map(str::to_string), groups);
    Ok(outcome)
}
