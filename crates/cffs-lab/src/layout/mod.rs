//! How files lie on a disk: layout score by file size, adjacency, and a map. For cffs from its own structures, for the
//! kernel's file systems through FIEMAP.

mod command;
pub mod map;

pub use command::{Args as LayoutArgs, run as run_layout};

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use cffs::device::Device;
use cffs::dump::{Dumper, Value, Which};
use cffs::{FileType, Fs, Ino, ROOT_INO};

use crate::process::run_command;

/// Unit of the layout score, as in the papers a block, here of 4 KiB.
const BLOCK: u64 = 4096;
/// Classes of file sizes in blocks: at most so many.
pub const CLASSES: [u64; 7] = [2, 4, 8, 16, 64, 256, u64::MAX];

/// A directory and the names and numbers of its regular files, in its own order.
pub type Names = (Ino, Vec<(Vec<u8>, Ino)>);

/// A piece of a file on the disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub start: u64,
    /// How long it is.
    pub len: u64,
}

/// A file, where it lies.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Its name.
    pub name: Vec<u8>,
    /// Its size in bytes.
    pub size: u64,
    /// Its pieces in the order of the file; none when the contents are in the inode.
    pub pieces: Vec<Piece>,
}

/// A directory with its files, in the order in which it lists them.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// Where it lies itself.
    pub pieces: Vec<Piece>,
    /// Its regular files.
    pub files: Vec<Placed>,
}

/// What lies where.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// All directories.
    pub dirs: Vec<Listed>,
}

/// Shares that follow another; `None` where there is nothing to follow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Adjacency {
    /// Files that begin where the file listed before them ends, in %.
    pub listed: f64,
    /// The same in alphabetical order.
    pub alphabetical: f64,
    /// In the order of addresses: the best that any order could have.
    pub best: f64,
    /// Directories that the first of their files follows.
    pub directory: f64,
}

impl Layout {
    /// Files of an image of cffs; `fs` is used for the names and closed by the caller before `device` is read.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub fn names(fs: &Fs) -> Result<Vec<Names>> {
        let mut found = Vec::new();
        let mut open = vec![ROOT_INO];
        while let Some(dir) = open.pop() {
            let (mut files, mut below) = (Vec::new(), Vec::new());
            fs.readdir(dir, 0, false, &mut |entry| {
                match entry.file_type {
                    FileType::Regular => files.push((entry.name, entry.ino)),
                    FileType::Directory if entry.name != b"." && entry.name != b".." => below.push(entry.ino),
                    _ => {}
                }
                true
            })?;
            found.push((dir, files));
            open.extend(below.into_iter().rev());
        }
        Ok(found)
    }

    /// Where the files of these names lie.
    ///
    /// # Errors
    /// When the image cannot be read.
    pub fn of_image(device: &dyn Device, names: &[Names]) -> Result<Layout> {
        let dumper = Dumper::open(device, None)?;
        let unit = dumper.geometry().frag_size() as u64;
        let pieces = |ino: Ino| -> Result<(u64, Vec<Piece>)> {
            let value = dumper.extents(&Which::Number(ino))?;
            let mut pieces = Vec::new();
            collect(&value, unit, &mut pieces);
            Ok((number(&value, "size"), pieces))
        };
        let mut layout = Layout::default();
        for (dir, files) in names {
            let mut listed = Listed { pieces: pieces(*dir)?.1, files: Vec::new() };
            for (name, ino) in files {
                let (size, pieces) = pieces(*ino)?;
                listed.files.push(Placed { name: name.clone(), size, pieces });
            }
            layout.dirs.push(listed);
        }
        Ok(layout)
    }

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
            let mut listed = Listed::default();
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

    /// Layout score by class of sizes ([`CLASSES`]) and of all, in %: the share of blocks that follow their predecessor, and
    /// how many blocks have one.
    pub fn score(&self) -> Vec<(f64, u64)> {
        let mut counts = vec![(0u64, 0u64); CLASSES.len() + 1];
        for file in self.files() {
            let blocks = file.size.div_ceil(BLOCK);
            let (Some(class), true) = (CLASSES.iter().position(|most| blocks <= *most), blocks > 1) else { continue };
            let (following, contiguous) = follow(&file.pieces);
            for at in [class, CLASSES.len()] {
                counts[at].0 += contiguous;
                counts[at].1 += following;
            }
        }
        counts.into_iter().map(|(good, all)| (good as f64 / all.max(1) as f64 * 100.0, all)).collect()
    }

    /// Which share of files follows the one before it.
    pub fn adjacency(&self) -> Adjacency {
        let share = |pairs: (u64, u64)| pairs.0 as f64 / pairs.1.max(1) as f64 * 100.0;
        let (mut listed, mut alphabetical, mut best, mut directory) = ((0, 0), (0, 0), (0, 0), (0, 0));
        for dir in &self.dirs {
            let mut files: Vec<&Placed> = dir.files.iter().filter(|f| !f.pieces.is_empty()).collect();
            if let (Some(first), Some(last)) = (files.first(), dir.pieces.last()) {
                directory.0 += u64::from(first.pieces[0].start == last.start + last.len);
                directory.1 += 1;
            }
            count_pairs(&files, &mut listed);
            files.sort_by(|a, b| a.name.cmp(&b.name));
            count_pairs(&files, &mut alphabetical);
            files.sort_by_key(|f| f.pieces[0].start);
            count_pairs(&files, &mut best);
        }
        Adjacency {
            listed: share(listed),
            alphabetical: share(alphabetical),
            best: share(best),
            directory: share(directory),
        }
    }

    /// For each of `cells` parts of a disk of `bytes`: 0 when no file lies there, 1 when files of several directories, else
    /// the number of the directory, from 2 on.
    pub fn map(&self, bytes: u64, cells: u64) -> (u64, Vec<u32>) {
        let cell = bytes.div_ceil(cells).max(1);
        let mut owners = vec![0u32; bytes.div_ceil(cell) as usize];
        for (n, dir) in self.dirs.iter().enumerate() {
            let me = n as u32 + 2;
            for piece in dir.files.iter().flat_map(|f| &f.pieces) {
                for at in piece.start / cell..(piece.start + piece.len).div_ceil(cell) {
                    if let Some(owner) = owners.get_mut(at as usize) {
                        *owner = if *owner == 0 || *owner == me { me } else { 1 };
                    }
                }
            }
        }
        (cell, owners)
    }

    fn files(&self) -> impl Iterator<Item = &Placed> {
        self.dirs.iter().flat_map(|dir| &dir.files)
    }
}

/// Blocks of a file with a predecessor, and those that follow it.
fn follow(pieces: &[Piece]) -> (u64, u64) {
    let blocks: u64 = pieces.iter().map(|p| p.len.div_ceil(BLOCK)).sum();
    let inside: u64 = pieces.iter().map(|p| p.len.div_ceil(BLOCK).saturating_sub(1)).sum();
    let joined = pieces.windows(2).filter(|w| w[0].start + w[0].len == w[1].start).count() as u64;
    (blocks.saturating_sub(1), inside + joined)
}

fn count_pairs(files: &[&Placed], counts: &mut (u64, u64)) {
    for pair in files.windows(2) {
        let last = pair[0].pieces[pair[0].pieces.len() - 1];
        counts.0 += u64::from(last.start + last.len == pair[1].pieces[0].start);
        counts.1 += 1;
    }
}

fn number(value: &Value, name: &str) -> u64 {
    match value.at(name) {
        Some(Value::Number(n)) => *n,
        _ => 0,
    }
}

/// Extents of the inode, and of all leaves of its tree.
fn collect(value: &Value, unit: u64, pieces: &mut Vec<Piece>) {
    if let Some(Value::List(extents)) = value.at("extents") {
        for e in extents {
            pieces.push(Piece { start: number(e, "first") * unit, len: number(e, "fragments") * unit });
        }
    }
    if let Some(Value::List(nodes)) = value.at("nodes") {
        nodes.iter().for_each(|node| collect(node, unit, pieces));
    }
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

    fn file(name: &str, pieces: &[(u64, u64)]) -> Placed {
        let pieces: Vec<Piece> =
            pieces.iter().map(|(start, len)| Piece { start: start * BLOCK, len: len * BLOCK }).collect();
        Placed { name: name.into(), size: pieces.iter().map(|p| p.len).sum(), pieces }
    }

    #[test]
    fn scores_and_adjacency_are_what_the_papers_say() {
        let dir = Listed {
            pieces: vec![Piece { start: 9 * BLOCK, len: BLOCK }],
            // b follows a, c lies elsewhere in two pieces.
            files: vec![file("a", &[(10, 2)]), file("c", &[(50, 4), (60, 4)]), file("b", &[(12, 1)])],
        };
        let layout = Layout { dirs: vec![dir] };
        let score = layout.score();
        assert_eq!(score[0], (100.0, 1), "two blocks in one piece");
        assert_eq!(score[2], (6.0 / 7.0 * 100.0, 7), "eight blocks in two pieces");
        let adjacency = layout.adjacency();
        assert_eq!((adjacency.listed, adjacency.alphabetical, adjacency.best), (0.0, 50.0, 50.0));
        assert_eq!(adjacency.directory, 100.0);
        let (cell, owners) = layout.map(100 * BLOCK, 10);
        assert_eq!(cell, 10 * BLOCK);
        assert_eq!(owners, [0, 2, 0, 0, 0, 2, 2, 0, 0, 0]);
    }

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
