//! Checks of the source tree itself.
//!
//! [`Sources`] reads the files of a crate, [`arrows`] says which file uses which, [`circles`] finds those that use each
//! other, and [`upward`] those that use a layer above their own. [`wrong_in_page`] compares the page of dependencies with
//! the manifests. The tests in `tests/` hold the workspace to it.

mod dependencies;
mod graph;
mod layers;
mod sources;

pub use dependencies::{Users, external_dependencies, locked_packages, wrong_in_page};
pub use graph::{Arrow, arrows, circles};
pub use layers::{Layer, upward};
pub use sources::{Sources, crate_sources};
