//! Ganger and Kaashoek 1997, figure 2: what a request costs by its size.

use anyhow::{Result, bail};
use cffs_disk::Request;
use cffs_disk::profiles::{self, Kind, Sheet};

use super::outcome::{Chart, Claim, Outcome};
use crate::random::Random;

const SIZES: [u64; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
const REQUESTS: u64 = 2000;

/// Mean time in milliseconds of a read of so many KiB, with a seek of the given time before it; as in the paper without
/// overheads, in the outermost zone.
fn mean(sheet: &Sheet, seek: f64, kib: u64, zero_latency: bool) -> f64 {
    let plain = Sheet {
        seek: [seek; 3],
        track_shortest: sheet.track_longest,
        overhead: 0.0,
        buffer: 0,
        write_cache: 0,
        bus: 1_000_000,
        request_max: 1 << 20,
        ..sheet.clone()
    };
    let mut disk = plain.disk(zero_latency);
    let cylinder = sheet.surfaces * sheet.track_longest;
    let (mut random, mut now, mut total) = (Random::new(2), 0, 0);
    for i in 0..REQUESTS {
        let start = now + random.below(50_000_000);
        let sector = (1 + i % 2 * 100) * cylinder + random.below(sheet.track_longest);
        now = disk.serve(start, &[Request { write: false, start: sector, sectors: kib * 2 }]);
        total += now - start;
    }
    total as f64 / REQUESTS as f64 / 1e6
}

/// Figure 2.
///
/// # Errors
/// None but for a missing profile.
pub fn figure2() -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for name in ["hp-c3653a", "barracuda", "atlas2"] {
        let Some(Kind::Mechanical(sheet)) = profiles::find(name).map(|p| p.kind) else {
            bail!("no mechanical disk is called {name}");
        };
        let lines = [
            ("average seek", sheet.seek[1], false),
            ("average seek, immediate", sheet.seek[1], true),
            ("single-cylinder seek", sheet.seek[0], false),
            ("single-cylinder seek, immediate", sheet.seek[0], true),
        ];
        let series: Vec<(String, Vec<f64>)> = lines
            .iter()
            .map(|(line, seek, immediate)| {
                (line.to_string(), SIZES.iter().map(|kib| mean(&sheet, *seek, *kib, *immediate)).collect())
            })
            .collect();
        let at = |line: usize, kib: u64| SIZES.iter().position(|s| *s == kib).map_or(0.0, |i| series[line].1[i]);
        for line in [0, 2] {
            let text = format!("{name}, {}: 16 KB cost more than 8 KB, in %", lines[line].0);
            outcome.claims.push(Claim::at_most(text, 10.0, (at(line, 16) / at(line, 8) - 1.0) * 100.0));
            let text = format!("{name}, {}: 64 KB as many times as 8 KB", lines[line + 1].0);
            outcome.claims.push(Claim::at_most(text, 2.0, at(line + 1, 64) / at(line + 1, 8)));
        }
        outcome.charts.push(Chart {
            title: format!("Service time on {name}"),
            unit: "ms".to_string(),
            lines: true,
            at: SIZES.iter().map(|s| format!("{s} KB")).collect(),
            series,
        });
    }
    outcome.notes.push(
        "Computed from the disk model with the paper's table 1, read seeks, no overheads, outermost zone.".into(),
    );
    Ok(outcome)
}
