//! What a regroup came to, for people and as JSON.

use crate::size::human;
use crate::text::print_json;
use cffs::{RegroupChange, RegroupGain, RegroupOutcome, RegroupStatus};
use serde_json::json;
use std::io::{self, Write};

/// How to print.
#[derive(Clone, Copy)]
pub(super) struct Format<'a> {
    /// The mount or the image.
    pub(super) name: &'a str,
    /// As JSON.
    pub(super) json: bool,
}

impl Format<'_> {
    /// Prints a status on standard output.
    pub(super) fn print(self, status: &RegroupStatus) -> anyhow::Result<()> {
        if self.json {
            let mut value = serde_json::to_value(status)?;
            if let Some(object) = value.as_object_mut() {
                object.insert("target".into(), json!(self.name));
                object.insert("running".into(), json!(status.outcome.is_none()));
            }
            print_json(&value)?;
            return Ok(());
        }
        let mut out = io::stdout().lock();
        for line in lines(status) {
            writeln!(out, "{}: {line}", self.name)?;
        }
        out.flush()?;
        Ok(())
    }
}

/// The lines of a report.
fn lines(s: &RegroupStatus) -> Vec<String> {
    let how = match &s.outcome {
        None => "runs".into(),
        Some(RegroupOutcome::Complete) => "complete".into(),
        Some(RegroupOutcome::Stopped) => "stopped".into(),
        Some(RegroupOutcome::Failed(why)) => format!("failed: {why}"),
    };
    let what = if s.dry_run { "would move" } else { "moved" };
    let mut lines = vec![
        format!("regroup {how}: {} directories and {} files in {:.1} s", s.directories, s.files, s.seconds),
        match s.dry_run {
            // Nothing is moved, so what would be is counted in bytes only.
            true => format!("{what} {}", human(s.bytes_moved)),
            false => format!(
                "{what} {}: {} files and {} directory blocks",
                human(s.bytes_moved),
                s.files_moved,
                s.blocks_moved
            ),
        },
    ];
    if s.bytes_kept > 0 {
        let why = "that had changed meanwhile, could not be read, or had no block for its extents";
        lines.push(format!("left {} {why}", human(s.bytes_kept)));
    }
    if s.bytes_waiting > 0 {
        lines.push(format!("left {} for which no better place is free", human(s.bytes_waiting)));
    }
    if let Some(RegroupChange { before, after }) = s.free_runs {
        lines.push(format!("longest free run: {} before, {} after", human(before.longest), human(after.longest)));
        lines.push(format!(
            "free runs for a tenth of the device: {} before, {} after",
            runs(before.for_tenth),
            runs(after.for_tenth)
        ));
    }
    if let Some(RegroupChange { before, after }) = s.pieces {
        lines.push(format!("pieces of large files: {before} before, {after} after"));
    }
    if s.free_runs.is_none() && s.pieces.is_none() {
        lines.push(format!("requests to read all small files: {}", gain(s.read)));
        lines.push(format!("requests to read all names and inodes: {}", gain(s.walk)));
    }
    lines
}

/// How many runs, if they suffice.
fn runs(n: u64) -> String {
    if n == 0 { "not enough".into() } else { n.to_string() }
}

/// Before, after, and how much less that is.
fn gain(g: RegroupGain) -> String {
    let less = if g.before > 0.0 { (1.0 - g.after / g.before) * 100.0 } else { 0.0 };
    format!("{:.0} before, {:.0} after ({less:.0}% less)", g.before, g.after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_tells_a_dry_run_from_a_regroup() {
        let gain = RegroupGain { before: 200.0, after: 50.0 };
        let mut s = RegroupStatus {
            directories: 3,
            files: 9,
            files_moved: 7,
            blocks_moved: 2,
            bytes_moved: 3 << 20,
            read: gain,
            outcome: Some(RegroupOutcome::Complete),
            ..RegroupStatus::default()
        };
        let text = lines(&s).join("\n");
        assert!(text.contains("moved 3 MiB: 7 files and 2 directory blocks"), "{text}");
        assert!(text.contains("all small files: 200 before, 50 after (75% less)"), "{text}");
        assert!(text.contains("names and inodes: 0 before, 0 after (0% less)"), "{text}");
        s.dry_run = true;
        let text = lines(&s).join("\n");
        assert!(text.contains("would move 3 MiB") && !text.contains("moved"), "{text}");
        s.outcome = Some(RegroupOutcome::Failed("no reason".into()));
        assert!(lines(&s)[0].starts_with("regroup failed: no reason"));
    }
}
