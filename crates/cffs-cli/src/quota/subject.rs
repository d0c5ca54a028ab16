//! Users, groups and projects by name, and times, on the command line.

use cffs::QuotaKind;

/// Whose quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    pub kind: QuotaKind,
    pub id: u32,
}

/// The file that names the ids of a kind: fields separated by colons, name first; and the field of the id.
fn names_of(kind: QuotaKind) -> (&'static str, usize) {
    match kind {
        QuotaKind::User => ("/etc/passwd", 2),
        QuotaKind::Group => ("/etc/group", 2),
        QuotaKind::Project => ("/etc/projid", 1),
    }
}

/// Names and ids of a kind, as far as the system's files have them.
pub fn names(kind: QuotaKind) -> Vec<(String, u32)> {
    let (file, field) = names_of(kind);
    parse_names(&std::fs::read_to_string(file).unwrap_or_default(), field)
}

fn parse_names(text: &str, field: usize) -> Vec<(String, u32)> {
    text.lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| {
            let fields: Vec<&str> = l.split(':').collect();
            Some(((*fields.first()?).to_owned(), fields.get(field)?.trim().parse().ok()?))
        })
        .collect()
}

fn id_of(kind: QuotaKind, text: &str) -> Result<u32, String> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let found = names(kind).into_iter().find(|(name, _)| name == text);
    let (file, _) = names_of(kind);
    found.map(|(_, id)| id).ok_or_else(|| format!("no {} '{text}' in {file}: write its number", kind.name()))
}

/// Parses `user:NAME` and the like.
pub fn parse_subject(text: &str) -> Result<Subject, String> {
    let parts = text.split_once(':').and_then(|(kind, id)| Some((QuotaKind::from_name(kind)?, id)));
    let Some((kind, id)) = parts else {
        return Err(format!("'{text}': write user:NAME, group:NAME or project:NAME, or a number instead of the name"));
    };
    Ok(Subject { kind, id: id_of(kind, id)? })
}

/// Parses a project's number or name.
pub fn parse_project(text: &str) -> Result<u32, String> {
    id_of(QuotaKind::Project, text)
}

/// Parses a time like `7d`, `12h`, `30m`, `45s` or `45`; returns nanoseconds.
pub fn parse_duration(text: &str) -> Result<i64, String> {
    let bad = || format!("'{text}' is not a time: write a number with d, h, m or s, as in 7d");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds: i64 = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return Err(bad()),
    };
    let n: i64 = digits.parse().map_err(|_| bad())?;
    let ns = n.checked_mul(seconds).and_then(|s| s.checked_mul(1_000_000_000));
    ns.filter(|ns| *ns > 0).ok_or_else(|| format!("'{text}' is not possible: from 1s to 200 years"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_have_a_kind_and_a_number_or_a_name() {
        assert_eq!(parse_subject("user:1000"), Ok(Subject { kind: QuotaKind::User, id: 1000 }));
        assert_eq!(parse_subject("user:root"), Ok(Subject { kind: QuotaKind::User, id: 0 }));
        assert_eq!(parse_subject("project:4294967295").map(|s| s.id), Ok(u32::MAX));
        for text in ["1000", "uid:1000", "user:", "user:no such user", "group:-1", "project:4294967296"] {
            assert!(parse_subject(text).is_err(), "{text}");
        }
        assert_eq!(parse_names("# x:1\na:x:5:y\nb:x\n", 2), [("a".to_owned(), 5)]);
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse_duration("7d"), Ok(7 * 86_400_000_000_000));
        assert_eq!(parse_duration("90"), Ok(90_000_000_000));
        assert_eq!(parse_duration("1h"), parse_duration("60m"));
        for text in ["", "d", "0", "-1h", "1y", "1 d", "99999999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
