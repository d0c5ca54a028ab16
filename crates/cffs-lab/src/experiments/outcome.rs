//! What an experiment found: claims of a paper beside our figures, tables and charts. Plain data, kept as JSON.

use cffs_disk::Counters;
use serde::{Deserialize, Serialize};

/// A claim of a paper (or a target of ours), and our figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// What is claimed.
    pub text: String,
    /// The figure, in the claim's own unit.
    pub paper: f64,
    /// Ours.
    pub ours: f64,
    /// Whether a smaller figure is the better one.
    pub smaller: bool,
    /// Where it is not confirmed: the cause, with measurements.
    #[serde(default)]
    pub why: Option<String>,
}

impl Claim {
    /// Ours must be at least the paper's.
    pub fn at_least(text: impl Into<String>, paper: f64, ours: f64) -> Claim {
        Claim { text: text.into(), paper, ours, smaller: false, why: None }
    }

    /// Ours must be at most the paper's.
    pub fn at_most(text: impl Into<String>, paper: f64, ours: f64) -> Claim {
        Claim { text: text.into(), paper, ours, smaller: true, why: None }
    }

    /// Keeps the cause, if it is not confirmed.
    #[must_use]
    pub fn because(mut self, why: impl FnOnce() -> String) -> Claim {
        if !self.holds() {
            self.why = Some(why());
        }
        self
    }

    /// Whether our run confirms it.
    pub fn holds(&self) -> bool {
        if self.smaller { self.ours <= self.paper } else { self.ours >= self.paper }
    }

    /// Our figure divided by the paper's; nothing where that says nothing.
    pub fn ratio(&self) -> String {
        if self.paper > 0.0 && self.ours >= 0.0 { shown(self.ours / self.paper) } else { String::new() }
    }
}

/// A table of figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Heads of the columns; the first is that of the rows' names.
    pub columns: Vec<String>,
    /// Rows: name and figures.
    #[serde(deserialize_with = "with_gaps")]
    pub rows: Vec<(String, Vec<f64>)>,
}

/// A figure: bars in clusters, or lines over a logarithmic axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// Unit of the values.
    pub unit: String,
    /// Lines over numbers, not bars over names.
    pub lines: bool,
    /// Names of the clusters, or the numbers on the axis.
    pub at: Vec<String>,
    /// Name and values, one for each of `at`.
    #[serde(deserialize_with = "with_gaps")]
    pub series: Vec<(String, Vec<f64>)>,
}

/// One experiment's result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the experiment.
    pub name: String,
    /// Claims with verdicts.
    pub claims: Vec<Claim>,
    /// Figures.
    pub tables: Vec<Table>,
    /// Pictures of them.
    pub charts: Vec<Chart>,
    /// What has to be known to read them.
    pub notes: Vec<String>,
    /// Claims that cannot be tested here, and why.
    #[serde(default)]
    pub untested: Vec<(String, String)>,
    /// Maps of disks.
    #[serde(default)]
    pub maps: Vec<DiskMap>,
}

impl Outcome {
    /// Nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.tables.is_empty() && self.charts.is_empty()
    }

    /// A table, and the chart of the same figures.
    pub fn add(
        &mut self,
        title: &str,
        unit: &str,
        rows_are: &str,
        at: &[String],
        rows: Vec<(String, Vec<f64>)>,
        lines: bool,
    ) {
        self.charts.push(Chart {
            title: title.to_string(),
            unit: unit.to_string(),
            lines,
            at: at.to_vec(),
            series: rows.clone(),
        });
        self.table(format!("{title} ({unit})"), rows_are, at, rows);
    }

    /// A table alone.
    pub fn table(&mut self, title: impl Into<String>, rows_are: &str, at: &[String], rows: Vec<(String, Vec<f64>)>) {
        let columns = std::iter::once(rows_are.to_string()).chain(at.iter().cloned()).collect();
        self.tables.push(Table { title: title.into(), columns, rows });
    }
}

/// Which directory owns which part of a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskMap {
    /// What it shows.
    pub title: String,
    /// Bytes of a cell.
    pub cell: u64,
    /// For each cell: 0 nothing of files, 1 files of several directories, from 2 on the number of the only directory there.
    pub owners: Vec<u32>,
}

/// What a disk was asked, in words.
pub fn asked(c: &Counters) -> String {
    let kind = |n: u64, bytes: u64, what: &str| match n {
        0 => None,
        1 => Some(format!("1 {what} of {} KB", shown(bytes as f64 / 1e3))),
        _ => Some(format!("{n} {what}s of {} KB", shown(bytes as f64 / n as f64 / 1e3))),
    };
    let parts: Vec<String> =
        [kind(c.reads, c.read_bytes, "read"), kind(c.writes, c.written_bytes, "write")].into_iter().flatten().collect();
    let each = c.seconds() * 1e3 / c.requests().max(1) as f64;
    match parts.is_empty() {
        true => "no request".into(),
        false => format!("{}, {} ms for each", parts.join(" and "), shown(each)),
    }
}

/// Where a disk's time went, in words.
pub fn went(c: &Counters) -> String {
    let ms = |ns: u64| shown(ns as f64 / 1e6);
    let s = &c.breakdown;
    format!(
        "{} ms: {} under the head, {} on the way of the arm, {} waiting for the sector, {} for commands and the bus",
        ms(c.time),
        ms(s.transfer),
        ms(s.seek),
        ms(s.rotation),
        ms(s.command)
    )
}

/// Three significant digits.
pub fn shown(value: f64) -> String {
    match value.abs() {
        v if v.is_nan() => "-".into(),
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 => format!("{value:.2}"),
        v if v < 0.00005 => "0".into(),
        _ => format!("{value:.4}"),
    }
}

/// Rows in which a figure may be missing: JSON has no way to write that it is not a number.
fn with_gaps<'de, D: serde::Deserializer<'de>>(rows: D) -> std::result::Result<Vec<(String, Vec<f64>)>, D::Error> {
    let rows = Vec::<(String, Vec<Option<f64>>)>::deserialize(rows)?;
    let filled = |figures: Vec<Option<f64>>| figures.into_iter().map(|f| f.unwrap_or(f64::NAN)).collect();
    Ok(rows.into_iter().map(|(name, figures)| (name, filled(figures))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_is_missing_is_missing_when_read_again() {
        let mut outcome = Outcome::default();
        outcome.add("t", "s", "rows", &["a".into(), "b".into()], vec![("one".into(), vec![f64::NAN, 2.0])], true);
        let read: Outcome = serde_json::from_slice(&serde_json::to_vec(&outcome).unwrap()).unwrap();
        let figures = &read.tables[0].rows[0].1;
        assert!(figures[0].is_nan() && figures[1] == 2.0);
        assert!(read.charts[0].series[0].1[0].is_nan());
        assert_eq!(shown(figures[0]), "-");
    }

    #[test]
    fn a_result_of_an_older_version_is_still_read() {
        let old: Outcome =
            serde_json::from_str(r#"{"name":"x","claims":[],"tables":[],"charts":[],"notes":[]}"#).unwrap();
        assert!(old.untested.is_empty() && old.maps.is_empty());
    }

    #[test]
    fn a_claim_holds_in_its_own_direction() {
        assert!(Claim::at_least("", 7.0, 7.5).holds() && !Claim::at_least("", 7.0, 6.9).holds());
        assert!(Claim::at_most("", 15.0, 3.0).holds() && !Claim::at_most("", 15.0, 16.0).holds());
        assert_eq!([1234.5, 12.34, 1.234, 0.01234, 0.00001].map(shown), ["1234", "12.3", "1.23", "0.0123", "0"]);
    }
}
