//! Real programs with the checks they bring.

use anyhow::Result;

use super::Check;

/// Arguments of `cffs-lab conformance programs`.
#[derive(clap::Args)]
pub struct Args {
    /// Only these; without a name, all
    names: Vec<String>,
}

/// The checks that were asked for.
pub fn checks(_args: &Args) -> Result<Vec<Check<'_>>> {
    Ok(Vec::new())
}
