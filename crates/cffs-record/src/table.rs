//! The text of the table: a row takes the place of the one with the same campaign, and rows keep a fixed order.

use super::section;
use anyhow::{Result, bail};

/// Of the section with the table.
const NAME: &str = "campaigns";
const HEADER: &str = "| campaign | command | date | commit | done | failures |";
const RULE: &str = "| --- | --- | --- | --- | --- | --- |";

/// How the names of campaigns begin, in the order of their rows. Rows of one kind are in the order of their names.
const KINDS: [&str; 8] =
    ["random sequences", "device faults", "all short sequences", "fuzzing", "shuttle", "kills", "quotas", "power cuts"];

/// A line of the table.
pub fn row(cells: &[&str; 6]) -> String {
    let cells: Vec<String> = cells.iter().map(|c| c.replace('|', "\\|").replace('\n', " ")).collect();
    format!("| {} |", cells.join(" | "))
}

/// Counts with their units.
pub fn counts(done: &[(u64, &str)]) -> String {
    let counts: Vec<String> = done.iter().map(|(n, unit)| format!("{} {unit}", grouped(*n))).collect();
    counts.join(", ")
}

/// 0, or how many and how to repeat each.
pub fn failures(failures: &[String]) -> String {
    match failures {
        [] => "0".into(),
        all => format!("{}: `{}`", all.len(), all.join("`, `")),
    }
}

/// The text with the row of `campaign` in its place. An empty row takes the campaign out of the table.
///
/// # Errors
/// A text without both markers, or with something else than the table between them.
pub fn put_row(text: &str, campaign: &str, row: &str) -> Result<String> {
    section::put(text, NAME, |old| {
        let inside = old.iter().filter(|line| !line.is_empty() && **line != HEADER && **line != RULE);
        let mut rows: Vec<&str> = inside.copied().collect();
        if let Some(line) = rows.iter().find(|line| !line.starts_with("| ")) {
            let [begin, end] = section::markers(NAME);
            bail!("only rows of the table may stand between {begin} and {end}, not: {line}");
        }
        rows.retain(|line| name(line) != campaign);
        rows.extend((!row.is_empty()).then_some(row));
        rows.sort_by_key(|line| (kind(name(line)), name(line)));
        Ok([HEADER, RULE].into_iter().chain(rows).map(str::to_string).collect())
    })
}

/// The first cell of a row.
fn name(row: &str) -> &str {
    row.trim_start_matches("| ").split(" |").next().unwrap_or_default()
}

/// Place of a campaign's kind in the table; unknown ones come last.
fn kind(campaign: &str) -> usize {
    KINDS.iter().position(|kind| campaign.starts_with(kind)).unwrap_or(KINDS.len())
}

/// A number with commas between thousands.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or_default()).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: &str = "<!-- campaigns: begin -->";
    const END: &str = "<!-- campaigns: end -->";

    fn page(rows: &[&str]) -> String {
        let rows: String = rows.iter().map(|row| format!("{row}\n")).collect();
        format!("text\n\n{BEGIN}\n{HEADER}\n{RULE}\n{rows}{END}\n\nmore\n")
    }

    #[test]
    fn a_new_row_goes_to_its_place() {
        let rows = ["| random sequences | a |", "| random sequences, streams | b |", "| kills | c |", "| other | d |"];
        let empty = format!("text\n\n{BEGIN}\n{END}\n\nmore\n");
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
            let all = order.iter().fold(empty.clone(), |text, i| put_row(&text, name(rows[*i]), rows[*i]).unwrap());
            assert_eq!(all, page(&rows), "{order:?}");
        }
    }

    #[test]
    fn a_row_replaces_the_one_of_the_same_campaign_only() {
        let text = page(&["| fuzzing | a |", "| fuzzing, only log | b |", "| kills | c |"]);
        let text = put_row(&text, "fuzzing", "| fuzzing | new |").unwrap();
        assert_eq!(text, page(&["| fuzzing | new |", "| fuzzing, only log | b |", "| kills | c |"]));
    }

    #[test]
    fn failures_are_listed() {
        assert_eq!(failures(&[]), "0");
        assert_eq!(failures(&["--seed 7".into(), "--seed 9".into()]), "2: `--seed 7`, `--seed 9`");
    }

    #[test]
    fn counts_have_units_and_cells_no_bars() {
        let done = counts(&[(7, "kills"), (1_234_567, "operations"), (1_000, "files")]);
        assert_eq!(
            row(&["a", "b|c", "d", "e", &done, "f"]),
            "| a | b\\|c | d | e | 7 kills, 1,234,567 operations, 1,000 files | f |"
        );
    }

    #[test]
    fn a_text_without_the_markers_is_refused() {
        for text in ["", "text\n", BEGIN, END, &format!("{END}\n{BEGIN}\n"), &format!("{BEGIN}\nwords\n{END}\n")] {
            let error = put_row(text, "kills", "").unwrap_err().to_string();
            assert!(error.contains(BEGIN) && error.contains(END), "{text:?}: {error}");
        }
    }
}
