//! Quotas as a table and as JSON.

use super::subject::names;
use crate::size::human;
use cffs::{QuotaKind, QuotaStatus};
use serde_json::{Value, json as value};
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// One line as JSON: bytes, numbers, and deadlines in seconds since 1970.
pub fn json(q: &QuotaStatus) -> Value {
    let seconds = |d: Option<i64>| d.map(|ns| ns as f64 / 1e9);
    value!({
        "id": q.id,
        "bytes": q.bytes,
        "soft_bytes": q.limits.soft_bytes,
        "hard_bytes": q.limits.hard_bytes,
        "bytes_deadline": seconds(q.bytes_deadline),
        "inodes": q.inodes,
        "soft_inodes": q.limits.soft_inodes,
        "hard_inodes": q.limits.hard_inodes,
        "inodes_deadline": seconds(q.inodes_deadline),
    })
}

/// A length of time in its largest unit that leaves nothing out, or in two.
pub fn duration(ns: i64) -> String {
    let s = ns / 1_000_000_000;
    match s {
        0 => format!("{ns} ns"),
        _ if s >= 86_400 && s % 86_400 == 0 => format!("{} d", s / 86_400),
        _ if s >= 86_400 => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
        _ if s >= 3600 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ if s >= 60 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{s} s"),
    }
}

/// What is left of a grace period.
fn grace(deadline: Option<i64>) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64);
    match deadline {
        None => String::new(),
        Some(d) if d <= now => "over".into(),
        Some(d) => duration(d - now),
    }
}

/// Prints the quotas of one kind.
pub fn print(out: &mut impl Write, kind: QuotaKind, list: &[QuotaStatus]) -> io::Result<()> {
    let names: HashMap<u32, String> = names(kind).into_iter().map(|(name, id)| (id, name)).collect();
    let size = |n: u64| if n == 0 { "-".to_owned() } else { human(n) };
    let count = |n: u64| if n == 0 { "-".to_owned() } else { n.to_string() };
    let head = [kind.name(), "space", "soft", "hard", "grace", "inodes", "soft", "hard", "grace"].map(str::to_owned);
    let mut rows = vec![head];
    for q in list {
        let l = &q.limits;
        rows.push([
            names.get(&q.id).cloned().unwrap_or_else(|| q.id.to_string()),
            human(q.bytes),
            size(l.soft_bytes),
            size(l.hard_bytes),
            grace(q.bytes_deadline),
            q.inodes.to_string(),
            count(l.soft_inodes),
            count(l.hard_inodes),
            grace(q.inodes_deadline),
        ]);
    }
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..9).map(width).collect();
    for row in &rows {
        let mut line = format!("{:<w$}", row[0], w = widths[0]);
        for (cell, w) in row.iter().zip(&widths).skip(1) {
            line.push_str(&format!("  {cell:>w$}"));
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        let s = 1_000_000_000;
        assert_eq!(duration(7 * 86_400 * s), "7 d");
        assert_eq!(duration((86_400 + 7200) * s), "1 d 2 h");
        assert_eq!(duration(3660 * s), "1 h 1 min");
        assert_eq!(duration(61 * s), "1 min 1 s");
        assert_eq!(duration(5 * s), "5 s");
        assert_eq!(duration(1), "1 ns");
        assert_eq!(grace(None), "");
        assert_eq!(grace(Some(1)), "over");
    }
}
