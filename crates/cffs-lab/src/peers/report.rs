//! Tables of what was measured, and how it stands to what was promised.

use std::fmt::Write;

use serde::Serialize;

use super::disk::Counters;
use super::peer::Peer;
use super::work::{Row, Workload};

/// Everything a run found out, as `--json` writes it.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The disk's delay.
    pub delay: String,
    /// Bytes in the real tree's files.
    pub tree_bytes: u64,
    /// One row for each peer and workload.
    pub rows: Vec<Row>,
    /// Targets for cffs.
    pub verdicts: Vec<Verdict>,
    /// Peers left out, and why.
    pub skipped: Vec<(Peer, String)>,
    /// Peak memory of the cffs mount process.
    pub cffs_peak_memory: Option<u64>,
}

/// A promised figure and the measured one.
#[derive(Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// What was promised.
    pub target: String,
    /// What was measured; `None` when its workloads or peers did not run.
    pub measured: Option<f64>,
    /// Whether it holds.
    pub held: Option<bool>,
}

fn per_thousand(requests: u64, row: &Row) -> f64 {
    requests as f64 * 1000.0 / row.files as f64
}

fn find(rows: &[Row], peer: Peer, workload: Workload) -> Option<&Row> {
    rows.iter().find(|row| row.peer == peer && row.workload == workload && !row.warm)
}

/// The kernel file system with the most files per second; none while one of them has no figure.
fn best_kernel(rows: &[Row], workload: Workload) -> Option<&Row> {
    if rows.iter().any(|row| row.workload == workload && row.peer.is_kernel() && row.warm) {
        return None;
    }
    rows.iter()
        .filter(|row| row.workload == workload && row.peer.is_kernel())
        .max_by(|a, b| a.rate().total_cmp(&b.rate()))
}

/// Puts in place of each row the one in the middle of it and its repetitions, by time.
pub fn take_medians(rows: &mut [Row], repetitions: Vec<Row>) {
    for row in rows {
        let same = |r: &&Row| (r.peer, r.workload) == (row.peer, row.workload);
        let mut all: Vec<Row> = repetitions.iter().filter(same).cloned().collect();
        all.push(row.clone());
        all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        *row = all.swap_remove(all.len() / 2);
    }
}

/// The tables, one for each workload.
pub fn tables(rows: &[Row], plan: &[Workload]) -> String {
    let mut out = String::new();
    for &workload in plan {
        let of_this: Vec<&Row> = rows.iter().filter(|r| r.workload == workload).collect();
        let Some(first) = of_this.first() else {
            continue;
        };
        let _ = writeln!(
            out,
            "\n{} ({} {})",
            workload.title(),
            first.files,
            if workload.of_tree() { "entries" } else { "files" }
        );
        let _ = writeln!(
            out,
            "  {:6}{:>9}{:>10}{:>11}{:>11}{:>9}{:>10}{:>10}{:>10}{:>11}{:>8}{:>8}",
            "",
            "seconds",
            "files/s",
            "reads/1000",
            "wrts/1000",
            "flushes",
            "KB read",
            "KB wrtn",
            "wrtn/data",
            "+at umount",
            "x ext4",
            "x best"
        );
        let ext4 = find(rows, Peer::Ext4, workload);
        let best = best_kernel(rows, workload);
        for row in of_this {
            let ratio =
                |other: Option<&Row>| other.map_or("-".to_string(), |o| format!("{:.2}", row.rate() / o.rate()));
            let amplification = if row.data_bytes > 0 && row.disk.write_bytes > 0 {
                format!("{:.2}", row.disk.write_bytes as f64 / row.data_bytes as f64)
            } else {
                "-".into()
            };
            let _ = writeln!(
                out,
                "  {:6}{:>9.2}{:>10.0}{:>11.1}{:>11.1}{:>9}{:>10}{:>10}{:>10}{:>11}{:>8}{:>8}",
                row.peer.to_string(),
                row.seconds,
                row.rate(),
                per_thousand(row.disk.reads, row),
                per_thousand(row.disk.writes, row),
                row.disk.flushes,
                row.disk.read_bytes / 1024,
                row.disk.write_bytes / 1024,
                amplification,
                row.at_unmount.writes,
                ratio(ext4),
                ratio(best),
            );
            if row.warm {
                let _ = writeln!(out, "  {:6}  WARM, not counted: the disk gave less than was returned", "");
            }
        }
    }
    out
}

/// What cffs has to show on this benchmark.
pub fn verdicts(rows: &[Row]) -> Vec<Verdict> {
    use Workload::{Create, Find, Fsync, GitStatus, Grep, Overwrite, Read};
    let cffs = |w| find(rows, Peer::Cffs, w);
    let against = |w, other: Option<&Row>| Some(cffs(w)?.rate() / other?.rate());
    let ext4 = |w| find(rows, Peer::Ext4, w);
    let xfs = |w| find(rows, Peer::Xfs, w);
    let at_most = |target: &str, limit: f64, measured: Option<f64>| Verdict {
        target: target.into(),
        measured,
        held: measured.map(|m| m <= limit),
    };
    let at_least = |target: &str, limit: f64, measured: Option<f64>| Verdict {
        target: target.into(),
        measured,
        held: measured.map(|m| m >= limit),
    };
    vec![
        at_most(
            "cold read: at most 15 read requests per 1,000 files",
            15.0,
            cffs(Read).map(|r| per_thousand(r.disk.reads, r)),
        ),
        at_least("cold read: at least 25 times ext4", 25.0, against(Read, ext4(Read))),
        at_most(
            "create + sync: at most 10 write requests per 1,000 files",
            10.0,
            cffs(Create).map(|r| per_thousand(r.disk.writes, r)),
        ),
        at_most(
            "create + sync: at most 1.6 bytes written per byte",
            1.6,
            cffs(Create).map(|r| r.disk.write_bytes as f64 / r.data_bytes as f64),
        ),
        at_least("overwrite + sync: at least 20 times ext4", 20.0, against(Overwrite, ext4(Overwrite))),
        at_least(
            "create + fsync of each: at least 2 times the best kernel peer",
            2.0,
            against(Fsync, best_kernel(rows, Fsync)),
        ),
        at_least("grep -r: at least 6 times the best kernel peer", 6.0, against(Grep, best_kernel(rows, Grep))),
        at_least("find: no slower than xfs", 1.0, against(Find, xfs(Find))),
        at_least("git status: no slower than xfs", 1.0, against(GitStatus, xfs(GitStatus))),
    ]
}

/// The verdicts as a table.
pub fn verdict_table(verdicts: &[Verdict]) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "\n{:64}{:>10}  held", "target (cffs)", "measured");
    for verdict in verdicts {
        let measured = verdict.measured.map_or("-".to_string(), |m| format!("{m:.2}"));
        let held = match verdict.held {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "not measured",
        };
        let _ = writeln!(out, "{:64}{measured:>10}  {held}", verdict.target);
    }
    out
}

/// The requests of the traces beside those of the disk, and whether they are the same; nothing where nothing was recorded.
pub fn traced(rows: &[Row]) -> (String, bool) {
    let recorded: Vec<(&Row, [Counters; 2])> = rows.iter().filter_map(|r| Some((r, r.traced?))).collect();
    if recorded.is_empty() {
        return (String::new(), true);
    }
    let mut text = format!(
        "\nrequests of cffs in the trace, and at the disk (the kernel divides long ones on the way)\n{:32} {:>14} {:>14} {:>14} {:>22}\n",
        "", "reads", "writes", "flushes", "KB"
    );
    let mut all_same = true;
    for (row, [trace, disk]) in recorded {
        let bytes = |c: &Counters| c.read_bytes + c.write_bytes;
        let pairs = [(trace.reads, disk.reads), (trace.writes, disk.writes), (trace.flushes, disk.flushes)];
        let bytes = (bytes(&trace), bytes(&disk));
        // What the kernel cannot hand over at once, because it is too long or in too many places of memory, are several requests
        // for the disk.
        let same = trace.reads <= disk.reads
            && trace.writes <= disk.writes
            && trace.flushes == disk.flushes
            && (trace.read_bytes, trace.write_bytes) == (disk.read_bytes, disk.write_bytes);
        all_same &= same;
        let cells: String = pairs.iter().map(|(a, b)| format!(" {:>14}", format!("{a} {b}"))).collect();
        let kb = format!("{} {}", bytes.0 / 1000, bytes.1 / 1000);
        text.push_str(&format!(
            "{:32}{cells} {kb:>22}{}\n",
            row.workload.title(),
            match (same, (trace.reads, trace.writes) == (disk.reads, disk.writes)) {
                (true, true) => "",
                (true, false) => "  divided",
                (false, _) => "  NOT THE SAME",
            }
        ));
    }
    (text, all_same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::disk::Counters;

    fn row(peer: Peer, workload: Workload, seconds: f64, reads: u64, written: u64) -> Row {
        Row {
            peer,
            workload,
            files: 1000,
            data_bytes: 1000 * 1024,
            seconds,
            disk: Counters { reads, writes: written / 4096, write_bytes: written, ..Counters::default() },
            at_mount: Counters::default(),
            at_unmount: Counters::default(),
            warm: false,
            traced: None,
        }
    }

    #[test]
    fn verdicts_compare_with_the_right_peer() {
        let rows = [
            row(Peer::Cffs, Workload::Read, 0.04, 15, 0),
            row(Peer::Ext4, Workload::Read, 1.0, 1000, 0),
            row(Peer::Cffs, Workload::Fsync, 1.0, 0, 0),
            row(Peer::Ext4, Workload::Fsync, 9.0, 0, 0),
            row(Peer::Xfs, Workload::Fsync, 1.9, 0, 0),
            row(Peer::Cffs, Workload::Create, 1.0, 0, 4096 * 500),
        ];
        let found = verdicts(&rows);
        let held: Vec<Option<bool>> = found.iter().map(|v| v.held).collect();
        assert_eq!(held, [Some(true), Some(true), Some(false), Some(false), None, Some(false), None, None, None]);
        assert_eq!(found[3].measured, Some(2.0));
        let mut warm = rows.clone();
        warm[1].warm = true;
        warm[4].warm = true;
        let held: Vec<Option<bool>> = verdicts(&warm).iter().map(|v| v.held).collect();
        assert_eq!(held[..6], [Some(true), None, Some(false), Some(false), None, None], "no verdict on what was warm");
        assert!(tables(&warm, &[Workload::Read]).contains("WARM"));
        let table = verdict_table(&found);
        assert!(table.contains("NO") && table.contains("not measured"));
    }

    #[test]
    fn the_row_in_the_middle_counts() {
        let fsync = |peer, seconds| row(peer, Workload::Fsync, seconds, 0, 0);
        let mut rows = vec![fsync(Peer::Cffs, 9.0), fsync(Peer::Xfs, 2.0), row(Peer::Cffs, Workload::Read, 7.0, 0, 0)];
        let again = vec![fsync(Peer::Cffs, 1.0), fsync(Peer::Xfs, 3.0), fsync(Peer::Cffs, 1.5), fsync(Peer::Xfs, 2.5)];
        take_medians(&mut rows, again);
        assert_eq!(rows.iter().map(|r| r.seconds).collect::<Vec<_>>(), [1.5, 2.5, 7.0]);
        assert_eq!(rows.iter().map(|r| r.peer).collect::<Vec<_>>(), [Peer::Cffs, Peer::Xfs, Peer::Cffs]);
    }

    #[test]
    fn tables_have_every_peer_and_the_ratios() {
        let rows = [
            row(Peer::Ext4, Workload::Read, 1.0, 1000, 0),
            row(Peer::Btrfs, Workload::Read, 0.5, 100, 0),
            row(Peer::Cffs, Workload::Read, 0.1, 10, 0),
        ];
        let text = tables(&rows, &[Workload::Read]);
        let cffs = text.lines().find(|l| l.contains("cffs")).unwrap();
        assert!(cffs.ends_with("10.00    5.00"), "{cffs}");
    }
}
