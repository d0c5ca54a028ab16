//! How files lie after aging: layout score by file size, adjacency, fill of groups, and maps.

use anyhow::Result;

use super::aging;
use super::harness::{Harness, Setup, Variant};
use super::outcome::{Chart, Claim, DiskMap, Outcome, shown};
use super::source::Tree;
use crate::layout::{CLASSES, Layout};

/// The disk, as large as that of the 1997 paper's aging.
const BYTES: u64 = 128 << 20;
/// Groups as in an image, of which timing says nothing.
const GROUP: u32 = cffs::device::FALLBACK_GROUP_SIZE;
/// Creations and deletions.
const OPERATIONS: u64 = 20_000;
/// Parts of a map.
const CELLS: u64 = 4096;
/// Groups by how full they are.
const FILL: [&str; 6] = ["empty", "to 25%", "to 50%", "to 75%", "below 100%", "full"];

/// Ages to a level, unpacks a tree, and looks where everything lies.
///
/// # Errors
/// Those of the engine.
fn aged(variant: Variant, level: f64, scale: u64) -> Result<(Layout, cffs::check::Layout)> {
    let mut harness = Harness::new(&Setup { bytes: BYTES, variant, group: GROUP, ..Setup::today("hdd-2026") })?;
    let tree = Tree::new(400 / scale, (40 / scale).max(2), 11);
    harness.phase(|fs| if level > 0.0 { aging::age(fs, level, OPERATIONS / scale) } else { Ok(()) })?;
    harness.phase(|fs| tree.unpack(fs, "tree"))?;
    let mut layout = Layout::default();
    harness.phase(|fs| {
        layout = Layout::of(fs)?;
        Ok(())
    })?;
    Ok((layout, harness.layout()?))
}

/// Seltzer et al. 1995, section 4 and figure 5; Ganger and Kaashoek 1997, section 2.2.
///
/// # Errors
/// Those of the engine.
pub fn layout(scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let (mut scores, mut adjacent, mut fills) = (Vec::<(String, Vec<f64>)>::new(), Vec::new(), Vec::new());
    // Sizes that there are files of in each state.
    let mut there = [true; CLASSES.len()];
    let mut worst: Option<(Vec<f64>, crate::layout::Adjacency, f64)> = None;
    for (variant, name) in [(Variant::NEITHER, "conventional"), (Variant::BOTH, "cffs")] {
        for (level, state) in [(0.0, "fresh"), (0.7, "70%"), (0.9, "90%")] {
            let (found, checked) = aged(variant, level, scale)?;
            let title = format!("{name}, {state}");
            there.iter_mut().zip(found.score()).for_each(|(there, (_, blocks))| *there &= blocks > 0);
            let score: Vec<f64> = found.score().into_iter().map(|(share, _)| share / 100.0).collect();
            let a = found.adjacency();
            scores.push((title.clone(), score.clone()));
            let together = checked.co_location().unwrap_or(0.0) * 100.0;
            adjacent.push((title.clone(), vec![a.listed, a.alphabetical, a.best, a.directory, together]));
            fills.push((title.clone(), checked.group_fill.iter().map(|n| *n as f64).collect()));
            let (cell, owners) = found.map(BYTES, CELLS);
            outcome.maps.push(DiskMap { title, cell, owners });
            if variant == Variant::BOTH && level == 0.9 {
                worst = Some((score, a, together));
            }
        }
    }
    if let Some((score, adjacency, together)) = worst {
        outcome.claims = claims(&score, &adjacency, together);
    }
    let at = size_classes();
    let title = "Layout score by file size in blocks of 4 KiB";
    let drawn = |values: &[String]| -> Vec<String> {
        values.iter().zip(there).filter(|(_, t)| *t).map(|(v, _)| v.clone()).collect()
    };
    outcome.charts.push(Chart {
        title: title.into(),
        unit: "share".into(),
        lines: true,
        at: drawn(&at),
        series: scores
            .iter()
            .map(|(name, v)| (name.clone(), v.iter().zip(there).filter(|(_, t)| *t).map(|(v, _)| *v).collect()))
            .collect(),
    });
    outcome.table(format!("{title} (share)"), "state", &at, scores);
    let columns =
        ["as listed", "alphabetical", "by address", "directory to first file", "in one group with a neighbour"];
    outcome.table(
        "Files that begin where the one before them ends (%)",
        "state",
        &columns.map(str::to_string),
        adjacent,
    );
    outcome.table("Groups by how full they are", "state", &FILL.map(str::to_string), fills);
    outcome.untested = vec![(
        "30% of directories adjacent to their first file (1997)".into(),
        "directories have blocks of their own here, apart from data, so that a walk reads them in few requests; the table has the share"
            .into(),
    )];
    outcome.notes = vec![
        format!(
            "128 MiB, aged by {OPERATIONS} creations and deletions in 50 directories around the level, then a tree of 400 files in 40 \
             directories. Write-ahead log, blocks of 4 KiB with fragments of 1 KiB."
        ),
        "A class without files has the score 0. In the maps, a colour is a directory, black several of them, white no file.".into(),
    ];
    Ok(outcome)
}

fn claims(score: &[f64], adjacency: &crate::layout::Adjacency, together: f64) -> Vec<Claim> {
    let why = || {
        format!(
            "The unit is the group, not the neighbour: {}% of small files share a group with a neighbour in their directory, and come with it in one \
             request. Within a group files fill holes in the order in which they are written, so that only {}% begin exactly where the one listed \
             before ends.",
            shown(together),
            shown(adjacency.listed)
        )
    };
    vec![
        Claim::at_least("90% full: layout score of two-block files (1995)", 0.37, score[0]),
        Claim::at_least("90% full: layout score of files of five to eight blocks (1995)", 0.74, score[2]),
        Claim::at_least(
            "90% full: files that follow the file listed before them, in % (1997: fewer than 45)",
            45.0,
            adjacency.listed,
        )
        .because(why),
        Claim::at_least("90% full: the same in alphabetical order (1997: 30)", 30.0, adjacency.alphabetical)
            .because(why),
        Claim::at_least("90% full: the same in the best order (1997: 64)", 64.0, adjacency.best).because(why),
    ]
}

/// The classes of file sizes, in blocks, and all of them.
fn size_classes() -> Vec<String> {
    let mut at: Vec<String> = Vec::new();
    let mut from = 2;
    for most in CLASSES {
        at.push(match most {
            2 => "2".into(),
            u64::MAX => format!("{from} and more"),
            _ => format!("{from} to {most}"),
        });
        from = most.saturating_add(1);
    }
    at.push("all".into());
    at
}
