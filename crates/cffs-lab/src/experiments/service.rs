//! Ganger and Kaashoek 1997, figure 2: what a request costs by its size.

use anyhow::{Result, bail};
use cffs_disk::measure::{service, service_by_data_sheet};
use cffs_disk::profiles::{self, Kind};

use super::outcome::{Claim, Outcome, shown};

const SIZES: [u64; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

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
                (line.to_string(), SIZES.iter().map(|kib| service(&sheet, *kib, *seek, *immediate)).collect())
            })
            .collect();
        let at = |line: usize, kib: u64| SIZES.iter().position(|s| *s == kib).map_or(0.0, |i| series[line].1[i]);
        for line in [0, 2] {
            let text = format!("{name}, {}: 16 KB cost more than 8 KB, in %", lines[line].0);
            let more = (at(line, 16) / at(line, 8) - 1.0) * 100.0;
            let by_sheet = |kib| service_by_data_sheet(&sheet, kib, lines[line].1);
            outcome.claims.push(Claim::at_most(text, 10.0, more).because(|| {
                format!(
                    "It follows from the paper's own table 1: by that, 8 KB take {} ms with this seek and 16 KB {} ms, {}% more. Its \"even \
                     assuming a minimal seek time\" does not hold for the disks it lists.",
                    shown(by_sheet(8)),
                    shown(by_sheet(16)),
                    shown((by_sheet(16) / by_sheet(8) - 1.0) * 100.0)
                )
            }));
            let text = format!("{name}, {}: 64 KB as many times as 8 KB", lines[line + 1].0);
            outcome.claims.push(Claim::at_most(text, 2.0, at(line + 1, 64) / at(line + 1, 8)));
        }
        let sizes = SIZES.map(|s| format!("{s} KB"));
        outcome.add(&format!("Service time on {name}"), "ms", "seek", &sizes, series, true);
    }
    outcome.notes.push(
        "Computed from the disk model with the paper's table 1, read seeks, no overheads, outermost zone.".into(),
    );
    Ok(outcome)
}
