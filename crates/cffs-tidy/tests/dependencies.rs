//! docs/dependencies.md has what the manifests and the lock file have.

use cffs_tidy::{external_dependencies, locked_packages, wrong_in_page};
use std::fs::{read_dir, read_to_string};
use std::path::Path;

#[test]
fn the_page_of_dependencies_has_each_direct_one_and_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = read_dir(root.join("crates")).unwrap().map(|e| e.unwrap().path().join("Cargo.toml"));
    let manifests: Vec<String> = folders.filter(|p| p.is_file()).map(|p| read_to_string(p).unwrap()).collect();
    let users = external_dependencies(&manifests).unwrap();
    assert!(users.len() > 20, "{users:?}");
    let packages = locked_packages(&read_to_string(root.join("Cargo.lock")).unwrap()).unwrap();
    let wrong = wrong_in_page(&read_to_string(root.join("docs/dependencies.md")).unwrap(), &users, packages);
    assert!(wrong.is_empty(), "docs/dependencies.md:\n  {}", wrong.join("\n  "));
}
