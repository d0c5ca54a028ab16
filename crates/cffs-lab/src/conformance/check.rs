//! A check: what its image needs, and what it does.

use anyhow::Result;

use super::job::Job;
use super::test_mount::TestMount;

/// How the image is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Format {
    /// As `cffs mkfs` does it
    Default,
    /// With `--no-embed --no-group`
    Conventional,
    /// With `--layout=log`
    Log,
    /// With `--layout=log --compress=zstd`
    LogZstd,
}

impl Format {
    /// Its name in titles and file names.
    pub fn name(self) -> &'static str {
        match self {
            Format::Default => "default",
            Format::Conventional => "conventional",
            Format::Log => "log",
            Format::LogZstd => "log-zstd",
        }
    }

    /// Options of `cffs mkfs`.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Format::Default => &[],
            Format::Conventional => &["--no-embed", "--no-group"],
            Format::Log => &["--layout=log"],
            Format::LogZstd => &["--layout=log", "--compress=zstd"],
        }
    }
}

/// One check: a name, what its image needs, and what it does.
pub struct Check<'a> {
    /// What it is called in the output, and its log.
    pub name: String,
    /// Size of the image, which is sparse.
    pub size: &'static str,
    /// What it is meant for.
    pub formats: Vec<Format>,
    /// What it does.
    pub run: Run<'a>,
}

/// Returns in a line what was done.
pub type Run<'a> = Box<dyn Fn(&Job, &mut TestMount) -> Result<String> + 'a>;

/// What a check that cannot run on this machine returns.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Missing(String);

/// Gives up a check for something that this machine does not have.
pub fn missing<T>(what: impl Into<String>) -> Result<T> {
    Err(Missing(what.into()).into())
}
