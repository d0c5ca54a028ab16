//! The test suites that come from crates.io: where they are, which version.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::check::missing;
use crate::process::find_program;

/// Where `scripts/setup.sh conformance` puts them.
pub struct Tools {
    bin: PathBuf,
}

impl Tools {
    /// Below this directory, or anywhere on the path.
    pub fn new(root: &Path) -> Result<Tools> {
        Ok(Tools { bin: std::path::absolute(root)?.join("bin") })
    }

    /// The program called `name`.
    pub fn find(&self, name: &str) -> Result<String> {
        let own = self.bin.join(name);
        let found = if own.is_file() { Some(own) } else { find_program(name) };
        match found {
            Some(path) => Ok(path.to_string_lossy().into_owned()),
            None => missing(format!("{name} is not installed: scripts/setup.sh conformance")),
        }
    }
}
