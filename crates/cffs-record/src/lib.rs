//! What programs write into pages: the table of the last test campaigns in `docs/testing.md`, which the campaigns write
//! themselves (`--record FILE`), and sections of other pages ([`write_section`]).
//!
//! A campaign opens its [`Recorder`] before it begins, so that a file without a table is an error at once and not after ten
//! minutes, and writes its row when it ends, with failures or without. A row replaces the one of the same campaign.

mod section;
mod table;

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The option `--record`, for programs that run campaigns.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct RecordOption {
    /// Write the outcome into the table of campaigns in this file (docs/testing.md)
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

impl RecordOption {
    /// Prepares the row of `campaign`. Without `--record` nothing will be written.
    ///
    /// # Errors
    /// A file that cannot be read or has no table.
    pub fn open(&self, campaign: impl Into<String>) -> Result<Recorder> {
        Ok(Recorder(self.record.as_deref().map(|file| Entry::open(file, campaign.into(), command_line())).transpose()?))
    }
}

/// Where the outcome of a campaign goes. The default writes nothing.
#[derive(Debug, Default)]
pub struct Recorder(Option<Entry>);

impl Recorder {
    /// Prepares the row of `campaign`, which was started by `command`, in `file`.
    ///
    /// # Errors
    /// A file that cannot be read or has no table.
    pub fn open(file: &Path, campaign: impl Into<String>, command: impl Into<String>) -> Result<Recorder> {
        Ok(Recorder(Some(Entry::open(file, campaign.into(), command.into())?)))
    }

    /// Writes the row: what was done, each count with its unit, and how each failure is repeated.
    ///
    /// # Errors
    /// A file that cannot be read or replaced, or has no table any more.
    pub fn write(&self, done: &[(u64, &str)], failures: &[String]) -> Result<()> {
        let Some(entry) = &self.0 else { return Ok(()) };
        entry.write(done, failures).with_context(|| format!("cannot record the outcome in {}", entry.file.display()))
    }
}

/// The columns of a row that are known when the campaign begins.
#[derive(Debug)]
struct Entry {
    file: PathBuf,
    campaign: String,
    command: String,
    /// Of the source tree at the beginning: it may change while the campaign runs.
    commit: String,
}

impl Entry {
    fn open(file: &Path, campaign: String, command: String) -> Result<Entry> {
        let name = file.display();
        let text = fs::read_to_string(file).with_context(|| format!("cannot record in {name}"))?;
        table::put_row(&text, &campaign, "").with_context(|| format!("cannot record in {name}"))?;
        let file = file.canonicalize()?;
        let commit = commit(Path::new("."), &file);
        Ok(Entry { file, campaign, command, commit })
    }

    fn write(&self, done: &[(u64, &str)], failures: &[String]) -> Result<()> {
        let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
        let row = table::row(&[
            &self.campaign,
            &format!("`{}`", self.command),
            &date,
            &self.commit,
            &table::counts(done),
            &table::failures(failures),
        ]);
        section::change(&self.file, |text| table::put_row(text, &self.campaign, &row))
    }
}

/// Replaces the lines between the markers of the section `name` of a page, `<!-- name: begin -->` and `<!-- name: end -->`.
///
/// # Errors
/// A file that cannot be read or replaced, or that has no such section.
pub fn write_section(file: &Path, name: &str, lines: &[String]) -> Result<()> {
    section::change(file, |text| section::put(text, name, |_| Ok(lines.to_vec())))
        .with_context(|| format!("cannot write into {}", file.display()))
}

/// The command line of this process, without `--record` and with the program's name instead of its path.
fn command_line() -> String {
    let mut words = std::env::args();
    let program = words.next().unwrap_or_default();
    let mut line = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    while let Some(word) = words.next() {
        if word == "--record" {
            words.next();
        } else if !word.starts_with("--record=") {
            line += &format!(" {word}");
        }
    }
    line
}

/// The commit of the source tree at `dir`, with "+" if files differ from it. `record` does not count, because campaigns change it.
fn commit(dir: &Path, record: &Path) -> String {
    let git = |args: &[&str]| {
        let out = Command::new("git").arg("-C").arg(dir).args(args).output().ok().filter(|o| o.status.success())?;
        Some(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    let Some(head) = git(&["rev-parse", "--short", "HEAD"]) else { return "unknown".into() };
    let status = ["status", "--porcelain", "--untracked-files=no"];
    let exclude = format!(":(exclude){}", record.display());
    let without_record = [&status[..], &["--", ":(top)", &exclude]].concat();
    // A record outside the tree cannot be excluded, and does not change the status.
    let changed = git(&without_record).or_else(|| git(&status));
    if changed.is_none_or(|files| files.is_empty()) { head } else { head + "+" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(dir: &Path, args: &[&str]) {
        let name = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"];
        let out = Command::new("git").arg("-C").arg(dir).args(name).args(args).output().unwrap();
        assert!(out.status.success(), "{out:?}");
    }

    #[test]
    fn a_row_is_written_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("page.md");
        fs::write(&file, "before\n<!-- campaigns: begin -->\n<!-- campaigns: end -->\nafter\n").unwrap();
        let recorder = Recorder::open(&file, "kills", "cffs-lab soak").unwrap();
        recorder.write(&[(3, "kills"), (12_345, "operations")], &["--seed 9".into()]).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("before\n<!-- campaigns: begin -->\n| campaign | "), "{text}");
        assert!(
            text.ends_with(" | 3 kills, 12,345 operations | 1: `--seed 9` |\n<!-- campaigns: end -->\nafter\n"),
            "{text}"
        );
        assert!(text.contains("\n| kills | `cffs-lab soak` | 2"), "{text}");
        recorder.write(&[(4, "kills")], &[]).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(text.matches("| kills |").count(), 1, "{text}");
        assert!(text.contains(" | 4 kills | 0 |\n"), "{text}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_without_the_table_is_refused_before_the_campaign() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("page.md");
        assert!(Recorder::open(&file, "kills", "").is_err());
        fs::write(&file, "no table\n").unwrap();
        let error = format!("{:#}", Recorder::open(&file, "kills", "").unwrap_err());
        assert!(error.contains("page.md") && error.contains("<!-- campaigns: begin -->"), "{error}");
    }

    #[test]
    fn without_a_file_nothing_is_written() {
        RecordOption::default().open("kills").unwrap().write(&[(1, "kill")], &[]).unwrap();
    }

    #[test]
    fn the_commit_is_marked_when_files_differ_from_it_but_for_the_record() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (record, other) = (dir.join("page.md"), dir.join("other"));
        git(&dir, &["init", "-q"]);
        for file in [&record, &other] {
            fs::write(file, "1").unwrap();
        }
        git(&dir, &["add", "."]);
        git(&dir, &["commit", "-q", "-m", "first"]);
        let clean = commit(&dir, &record);
        assert!(clean.len() >= 7 && clean.bytes().all(|b| b.is_ascii_hexdigit()), "{clean}");
        fs::write(&record, "2").unwrap();
        assert_eq!(commit(&dir, &record), clean);
        fs::write(&other, "2").unwrap();
        assert_eq!(commit(&dir, &record), clean.clone() + "+");
        assert_eq!(commit(&dir, Path::new("/dev/null")), clean + "+");
    }
}
