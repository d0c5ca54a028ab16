//! How files lie on a disk: of cffs as the library tells it, of the kernel's file systems through FIEMAP.

mod command;
pub mod map;

pub use cffs::Piece;
pub use cffs::layout::{Adjacency, CLASSES, Layout};
pub use command::{Args as LayoutArgs, run as run_layout};

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use cffs::layout::{Listed, Placed};

use crate::process::run_command;

/// Files of a mounted file system of the kernel, by `filefrag` (FIEMAP).
///
/// # Errors
/// When that program fails.
pub fn of_mount(root: &Path) -> Result<Layout> {
    let mut layout = Layout::default();
    let mut open = vec![root.to_path_buf()];
    while let Some(dir) = open.pop() {
        let mut paths = Vec::new();
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))?.flatten() {
            let kind = entry.file_type()?;
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_file() {
                use std::os::unix::ffi::OsStringExt;
                files.push((entry.file_name().into_vec(), entry.metadata()?.len()));
                paths.push(entry.path());
            }
        }
        let below = dir.strip_prefix(root).unwrap_or(&dir).to_string_lossy();
        let mut listed = Listed { path: format!("/{below}"), ..Listed::default() };
        for (paths, files) in paths.chunks(200).zip(files.chunks(200)) {
            let mut command = Command::new("filefrag");
            command.arg("-v").arg("-b512").args(paths);
            let out = run_command(command, Duration::from_secs(120))?;
            for ((name, size), pieces) in files.iter().zip(parse_filefrag(&out)) {
                listed.files.push(Placed { name: name.clone(), size: *size, pieces });
            }
        }
        layout.dirs.push(listed);
    }
    Ok(layout)
}

/// Pieces of each file in the output of `filefrag -v -b512`.
fn parse_filefrag(out: &str) -> Vec<Vec<Piece>> {
    let mut files: Vec<Vec<Piece>> = Vec::new();
    for line in out.lines() {
        if line.starts_with("File size of ") {
            files.push(Vec::new());
            continue;
        }
        // `   0:        0..       7:      34816..     34823:      8:             last,eof`
        let parts: Vec<&str> = line.split(':').collect();
        if parts.len() < 4 || parts[0].trim().parse::<u64>().is_err() || line.contains("inline") {
            continue;
        }
        let start = parts[2].split("..").next().and_then(|s| s.trim().parse::<u64>().ok());
        let len = parts[3].trim().parse::<u64>().ok();
        if let (Some(start), Some(len), Some(file)) = (start, len, files.last_mut()) {
            file.push(Piece { start: start * 512, len: len * 512 });
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filefrag_is_understood() {
        let out = "Filesystem type is: ef53\nFile size of a is 12 (8 blocks of 512 bytes)\n \
                   ext:     logical_offset:        physical_offset: length:   expected: flags:\n   \
                   0:        0..       7:      34816..     34823:      8:             last,eof\na: 1 extent found\n\
                   File size of b is 0 (0 blocks of 512 bytes)\nb: 0 extents found\n";
        let files = parse_filefrag(out);
        assert_eq!(files, [vec![Piece { start: 34816 * 512, len: 4096 }], vec![]]);
    }
}
