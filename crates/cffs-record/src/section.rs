//! A section of a page that a program writes: the lines between two markers.

use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::path::Path;

/// The lines that mark the section `name`: its beginning and its end.
pub fn markers(name: &str) -> [String; 2] {
    ["begin", "end"].map(|which| format!("<!-- {name}: {which} -->"))
}

/// The text with other lines between the markers of the section `name`. `new` makes them of those that are there.
///
/// # Errors
/// A text without both markers; what `new` says.
pub fn put(text: &str, name: &str, new: impl FnOnce(&[&str]) -> Result<Vec<String>>) -> Result<String> {
    let lines: Vec<&str> = text.lines().collect();
    let [begin, end] = markers(name);
    let marker = |marker: &str| lines.iter().position(|line| line.trim() == marker);
    let (Some(from), Some(to)) = (marker(&begin), marker(&end)) else {
        bail!("there is no section of {name}: the lines {begin} and {end} mark its place");
    };
    if from > to {
        bail!("{end} stands before {begin}");
    }
    let new = new(&lines[from + 1..to])?;
    let new: Vec<&str> = new.iter().map(String::as_str).collect();
    Ok([&lines[..=from], &new, &lines[to..]].concat().join("\n") + "\n")
}

/// Changes a file as a whole: others see the old text or the new one, and two that change it at a time both count.
///
/// # Errors
/// A file that cannot be read or replaced; what `change` says.
pub fn change(file: &Path, change: impl FnOnce(&str) -> Result<String>) -> Result<()> {
    // Renaming onto a symbolic link would replace the link.
    let file = file.canonicalize()?;
    let dir = file.parent().context("a file without a directory")?;
    let lock = File::open(dir)?;
    lock.lock()?;
    let text = change(&fs::read_to_string(&file)?)?;
    let new = dir.join(format!(".record-{}", std::process::id()));
    fs::write(&new, text)?;
    Ok(fs::rename(&new, &file)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_section_changes() {
        let text = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\n<!-- y: begin -->\n<!-- y: end -->\nb\n";
        let new = |old: &[&str]| Ok(vec!["new".to_string(), old.len().to_string()]);
        assert_eq!(put(text, "x", new).unwrap(), text.replace("old", "new\n1"));
        assert_eq!(put(text, "y", |_| Ok(Vec::new())).unwrap(), text);
        assert!(put(text, "z", new).unwrap_err().to_string().contains("<!-- z: begin -->"));
    }
}
