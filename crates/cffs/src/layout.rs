//! How files lie on a device: where each one is, layout score by file size, adjacency, and a map.

use crate::error::{Error, Result};
use crate::format::{FileType, Ino, ROOT_INO};
use crate::fs::{Fs, Piece};
use serde::{Deserialize, Serialize};

/// Unit of the layout score, as in the papers a block, here of 4 KiB.
const BLOCK: u64 = 4096;
/// Classes of file sizes in blocks: at most so many.
pub const CLASSES: [u64; 7] = [2, 4, 8, 16, 64, 256, u64::MAX];

/// A file, where it lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// Its name.
    pub name: Vec<u8>,
    /// Its size in bytes.
    pub size: u64,
    /// Its pieces in the order of the file; none when the contents are in the inode.
    pub pieces: Vec<Piece>,
}

/// A directory with its files, in the order in which it lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its path; empty where it is not known.
    pub path: String,
    /// Where it lies itself.
    pub pieces: Vec<Piece>,
    /// Its regular files.
    pub files: Vec<Placed>,
    /// Its directories.
    pub below: Vec<(Vec<u8>, Ino)>,
}

impl Listed {
    /// A directory of a file system. What is not written back yet has no place.
    ///
    /// # Errors
    /// [`Error::NotDir`], and those of reading directories and extents.
    pub fn of(fs: &Fs, directory: Ino, path: &str) -> Result<Listed> {
        let mut listed = Listed { path: path.to_owned(), pieces: fs.pieces(directory)?, ..Listed::default() };
        let mut files = Vec::new();
        fs.readdir(directory, 0, true, &mut |entry| {
            let Some(attr) = entry.attr else { return true };
            match entry.file_type {
                FileType::Regular => files.push((entry.name, attr)),
                FileType::Directory => listed.below.push((entry.name, entry.ino)),
                _ => {}
            }
            // The pieces are read before anybody removes it, or there are none.
            if entry.file_type != FileType::Regular {
                fs.forget(entry.ino, 1);
            }
            true
        })?;
        for (name, attr) in files {
            let pieces = fs.pieces(attr.ino);
            fs.forget(attr.ino, 1);
            match pieces {
                Ok(pieces) => listed.files.push(Placed { name, size: attr.size, pieces }),
                Err(Error::Stale) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(listed)
    }

    /// The path of a directory in it.
    pub fn path_below(&self, name: &[u8]) -> String {
        format!("{}/{}", self.path.trim_end_matches('/'), String::from_utf8_lossy(name))
    }
}

/// What lies where.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// All directories, each before those below it.
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
    /// All files of a file system. What is not written back yet has no place.
    ///
    /// # Errors
    /// Those of reading directories and extents.
    pub fn of(fs: &Fs) -> Result<Layout> {
        Layout::walk(|directory, path| Listed::of(fs, directory, path))
    }

    /// All files of a file system, whose directories `list` reads: by their number, with their path.
    ///
    /// # Errors
    /// Those of `list`.
    pub fn walk<E>(
        mut list: impl FnMut(Ino, &str) -> std::result::Result<Listed, E>,
    ) -> std::result::Result<Layout, E> {
        let mut layout = Layout::default();
        let mut open = vec![(ROOT_INO, "/".to_owned())];
        while let Some((directory, path)) = open.pop() {
            let listed = list(directory, &path)?;
            open.extend(listed.below.iter().rev().map(|(name, ino)| (*ino, listed.path_below(name))));
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
            ..Listed::default()
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
}
