//! The opening of the page, for somebody who has a minute: five pictures and a sentence below each.

use std::fmt::Write;

use super::chart::{THIRD, draw, escape};
use super::outcome::{Chart, shown};
use super::results::Results;

/// A picture and what it says, or the experiment that is missing.
type Found = Result<(Chart, String), &'static str>;

/// Looks a picture's figures up.
type Find = fn(Results<'_>) -> Found;

const PICTURES: [(&str, Find); 5] =
    [("Requests", requests), ("Aging", aging), ("fsync", fsync), ("Recovery", recovery), ("Size", size)];

/// Appends the pictures.
pub fn pictures(html: &mut String, results: Results<'_>) {
    html.push_str("<div class=\"opening\">\n");
    for (name, find) in PICTURES {
        let _ = writeln!(html, "<figure><figcaption><b>{name}.</b> ");
        match find(results) {
            Ok((chart, says)) => {
                let _ = writeln!(html, "{}</figcaption>", escape(&says));
                draw(html, &chart, THIRD);
            }
            Err(missing) => {
                let _ = writeln!(html, "No figures yet: <code>cffs-lab run {missing}</code>.</figcaption>");
            }
        }
        html.push_str("</figure>\n");
    }
    html.push_str("</div>\n");
}

fn chart(title: &str, unit: &str, lines: bool, at: &[String], series: Vec<(String, Vec<f64>)>) -> Chart {
    Chart { title: title.into(), unit: unit.into(), lines, at: at.to_vec(), series }
}

/// How many requests small files cost, with the techniques and without.
fn requests(r: Results<'_>) -> Found {
    const FIGURE: &str = "ganger97-fig5";
    let table = r.table(FIGURE, "Disk requests")?;
    let row = |name: &str| table.rows.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone()).ok_or(FIGURE);
    let (old, new) = (row("neither")?, row("both")?);
    let read = |variant| r.figure(FIGURE, "Disk requests", variant, "read");
    let says = format!(
        "A thousand cold files of 1 KB are read in {} requests, with conventional placement in {}.",
        shown(read("both")?),
        shown(read("neither")?)
    );
    let series = vec![("conventional placement".into(), old), ("cffs".into(), new)];
    Ok((chart("1,000 small files", "requests", false, &table.columns[1..], series), says))
}

/// What the same work loses on a disk that was used for long.
fn aging(r: Results<'_>) -> Found {
    const FIGURE: &str = "ganger97-fig7";
    let table = r.table(FIGURE, "Throughput after aging")?;
    let states: Vec<String> = table.rows.iter().map(|(state, _)| state.clone()).collect();
    let kept = |column: usize| -> Option<Vec<f64>> {
        let fresh = *table.rows.first()?.1.get(column)?;
        table.rows.iter().map(|(_, v)| v.get(column).map(|rate| rate / fresh * 100.0)).collect()
    };
    let mut series = Vec::new();
    for what in ["create", "read", "overwrite"] {
        let column = table.columns[1..].iter().position(|c| c == what).ok_or(FIGURE)?;
        series.push((what.to_string(), kept(column).ok_or(FIGURE)?));
    }
    let reads = &series[1].1;
    let last = |back: usize| reads.len().checked_sub(back).map_or(f64::NAN, |at| reads[at]);
    let says = format!(
        "After many creations and deletions, reads keep {}% of a fresh disk's speed where the disk is 70% full, {}% at 90%.",
        shown(last(2)),
        shown(last(1))
    );
    Ok((chart("Speed of small files", "% of the fresh disk's", false, &states, series), says))
}

/// Creating files and syncing each, beside the kernel's file systems.
fn fsync(r: Results<'_>) -> Found {
    const DISK: &str = "hdd-2026, fresh: disk time";
    let table = r.table("peers", DISK)?;
    let column = table.columns[1..].iter().position(|c| c == "create + fsync").ok_or("peers")?;
    let of = |(name, values): &(String, Vec<f64>)| Some((name.clone(), *values.get(column)?));
    let times: Vec<(String, f64)> = table.rows.iter().filter_map(of).collect();
    let ours = times.iter().find(|(name, _)| name == "cffs").ok_or("peers")?.1;
    let others = times.iter().filter(|(name, _)| name != "cffs");
    let (best, theirs) = others.min_by(|a, b| a.1.total_cmp(&b.1)).ok_or("peers")?;
    let says = format!(
        "Files that are created and synced one by one take {}% of the disk time that {best} takes, the best of the others.",
        shown(ours / theirs * 100.0)
    );
    let names: Vec<String> = times.iter().map(|(name, _)| name.clone()).collect();
    let series = vec![("a disk of 7200 rpm".to_string(), times.iter().map(|(_, time)| *time).collect())];
    Ok((chart("Create + fsync, 200 files", "s of disk time", false, &names, series), says))
}

/// How long a mount after a crash takes, by size of the file system.
fn recovery(r: Results<'_>) -> Found {
    const FIGURE: &str = "sweeney96-recovery";
    let table = r.table(FIGURE, "Mount after a crash")?;
    let sizes: Vec<String> = table.rows.iter().map(|(size, _)| size.clone()).collect();
    let log = |(i, name): (usize, &String)| {
        (name.clone(), table.rows.iter().map(|(_, v)| v.get(i).copied().unwrap_or(f64::NAN)).collect::<Vec<f64>>())
    };
    let series: Vec<(String, Vec<f64>)> = table.columns[1..].iter().enumerate().map(log).collect();
    let slowest = series.iter().flat_map(|(_, v)| v).copied().fold(0.0, f64::max);
    let largest = sizes.last().ok_or(FIGURE)?;
    let says = format!(
        "A mount after a crash takes {} s at most, on any size up to {largest}: the log says what to look at.",
        shown(slowest)
    );
    Ok((chart("Mount after a crash", "s", true, &sizes, series), says))
}

/// How fast files of every size are read.
fn size(r: Results<'_>) -> Found {
    const FIGURE: &str = "seltzer95-fig1-3";
    let table = r.table(FIGURE, "Figure 1: read")?;
    let row = |name: &str| table.rows.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone()).ok_or(FIGURE);
    let (ours, disk) = (row("both")?, row("the disk itself")?);
    let share = |at: usize| Some(ours.get(at)? / disk.get(at)? * 100.0);
    let says = format!(
        "Small files are read nearly as fast as large ones: files of 1 KB at {}% of the disk's bandwidth, files of 4 MB at {}%.",
        shown(share(0).ok_or(FIGURE)?),
        shown(share(ours.len().saturating_sub(1)).ok_or(FIGURE)?)
    );
    let every: Vec<usize> = (0..table.columns.len() - 1).step_by(2).collect();
    let pick = |values: &[f64]| every.iter().filter_map(|at| values.get(*at).copied()).collect();
    let at: Vec<String> = every.iter().map(|at| table.columns[at + 1].clone()).collect();
    let series = vec![("cffs".into(), pick(&ours)), ("the disk itself".into(), pick(&disk))];
    Ok((chart("Reading 32 MB of files by their size", "MB/s", true, &at, series), says))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::outcome::Outcome;

    #[test]
    fn each_picture_is_there_or_says_what_is_missing() {
        let mut outcome = Outcome { name: "sweeney96-recovery".into(), ..Outcome::default() };
        let columns = ["log 5% full", "log 35% full"].map(str::to_string);
        let rows = vec![("1 GiB".to_string(), vec![0.1, 0.4]), ("2048 GiB".to_string(), vec![0.1, 0.46])];
        outcome.table("Mount after a crash (s)", "file system", &columns, rows);
        let results = [("Recovery", outcome)];
        let mut html = String::new();
        pictures(&mut html, Results(&results));
        assert_eq!((html.matches("<figure>").count(), html.matches("<svg").count()), (5, 1));
        assert!(html.contains("0.46 s at most, on any size up to 2048 GiB"), "{html}");
        for missing in ["ganger97-fig5", "ganger97-fig7", "peers", "seltzer95-fig1-3"] {
            assert!(html.contains(&format!("cffs-lab run {missing}</code>")), "{missing}");
        }
    }
}
