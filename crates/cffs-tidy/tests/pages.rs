//! The pages of the project name files that are there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn files(dir: &Path, out: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().map(|e| e.unwrap()) {
        let name = entry.file_name();
        if entry.file_type().unwrap().is_dir() {
            if name != "target" && name != ".git" {
                files(&entry.path(), out);
            }
        } else {
            out.insert(entry.path());
        }
    }
}

/// Source files in backquotes: from the root of the project, or the end of a path with or without `src/`.
fn sources(page: &str) -> impl Iterator<Item = &str> {
    let is_path = |w: &&str| w.ends_with(".rs") && w.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b));
    page.split('`').filter(is_path)
}

/// Targets of links to files.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let ends = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    ends.map(|link| link.split('#').next().unwrap_or(link)).filter(|link| !link.is_empty() && !link.contains("://"))
}

#[test]
fn pages_name_files_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut all = BTreeSet::new();
    files(&root, &mut all);
    let relative: Vec<String> =
        all.iter().map(|f| format!("/{}", f.strip_prefix(&root).unwrap().to_str().unwrap())).collect();
    let known = |name: &str| {
        let end = format!("/{name}");
        relative.iter().any(|path| path.ends_with(&end) || path.replacen("/src/", "/", 1).ends_with(&end))
    };
    let mut wrong = Vec::new();
    // The changelog tells of files that are gone.
    let pages = all.iter().filter(|f| f.extension().is_some_and(|e| e == "md") && !f.ends_with("CHANGELOG.md"));
    for page in pages {
        let text = std::fs::read_to_string(page).unwrap();
        wrong.extend(sources(&text).filter(|name| !known(name)).map(|name| (page, name.to_owned())));
        let missing = |link: &&str| !page.with_file_name(link).exists();
        wrong.extend(links(&text).filter(missing).map(|link| (page, link.to_owned())));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
