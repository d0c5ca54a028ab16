//! Which files have data that a log disk has lost, or has and cannot verify.
//!
//! A log disk does not know files, and what it does not have reads as zeros. So after a new map was made of what was left, the extents of all files are
//! compared with what is there: data that was written and is not there is lost.

use crate::text::printable;
use cffs::device::{Device, IoKind};
use cffs::{FileType, Fs, Ino, MountOptions, ROOT_INO};
use cffs_logdisk::LogDisk;
use std::io;
use std::sync::Arc;

/// Most files that are named.
const FILES_MAX: usize = 100;
/// Ranges that are asked for at once.
const PAGE: usize = 4096;
const BLOCK: u64 = cffs_logdisk::BLOCK_BYTES as u64;

/// Ranges in order: start and end, or offset and length.
type Ranges = Vec<(u64, u64)>;

/// What was found.
#[derive(Default)]
pub struct LostFiles {
    /// The files, one line for each, the first hundred.
    pub lines: Vec<String>,
    /// Their number.
    pub total: usize,
    /// What files have written and the log disk has not: offset and length in bytes.
    pub missing: Ranges,
}

/// Looks for files with data that the log disk has not, or that is within one of the ranges of `damaged` and cannot be read.
pub fn lost_files(dev: Arc<dyn Device>, disk: &LogDisk, damaged: &[(u64, u64)]) -> anyhow::Result<LostFiles> {
    let there = mapped(disk)?;
    let mut unreadable = Vec::new();
    for (offset, len) in damaged {
        let mut block = [0; BLOCK as usize];
        let blocks = (*offset..offset.saturating_add(*len)).step_by(BLOCK as usize);
        unreadable
            .extend(blocks.filter(|at| disk.read_at(IoKind::Data, *at, &mut block).is_err()).map(|at| (at, BLOCK)));
    }
    unreadable.sort_unstable();
    let fs = Fs::open(dev, None, MountOptions::default().read_only(true).background(false))?;
    let mut found = LostFiles::default();
    let walked = walk(&fs, &mut |ino, path| {
        let (mut missing, mut damaged) = (Ranges::new(), Ranges::new());
        for (at, piece) in fs.written_pieces(ino)? {
            let in_file = |(start, end): (u64, u64)| (at + (start - piece.start), at + (end - piece.start));
            let range = (piece.start, piece.start + piece.len);
            for hole in holes(&there, range) {
                found.missing.push((hole.0, hole.1 - hole.0));
                join(&mut missing, in_file(hole));
            }
            within(&unreadable, range).for_each(|part| join(&mut damaged, in_file(part)));
        }
        for (ranges, what) in [(missing, "is lost"), (damaged, "is damaged")] {
            let Some((first, end)) = ranges.first() else { continue };
            found.total += 1;
            if found.lines.len() < FILES_MAX {
                let more =
                    if ranges.len() > 1 { format!(", and {} ranges more", ranges.len() - 1) } else { String::new() };
                found.lines.push(format!("{}: data {what} from byte {first} to {end}{more}", printable(path)));
            }
        }
        Ok(())
    });
    fs.close()?;
    walked?;
    Ok(found)
}

/// What the main branch has, in order: start and end.
fn mapped(disk: &LogDisk) -> io::Result<Ranges> {
    let (mut there, mut at) = (Ranges::new(), Some(0));
    while let Some(from) = at {
        let (page, next) = disk.diff_from(None, None, from, PAGE)?;
        page.into_iter().for_each(|(start, len)| join(&mut there, (start, start + len)));
        at = next;
    }
    Ok(there)
}

/// Adds a range that begins behind the others; one that touches the last becomes a part of it.
fn join(all: &mut Ranges, (start, end): (u64, u64)) {
    match all.last_mut() {
        Some(last) if last.0 <= start && start <= last.1 => last.1 = last.1.max(end),
        _ => all.push((start, end)),
    }
}

/// The parts of a range that none of the others has.
fn holes(there: &[(u64, u64)], (start, end): (u64, u64)) -> Ranges {
    let (mut at, mut holes) = (start, Vec::new());
    let first = there.partition_point(|(_, e)| *e <= start);
    for (s, e) in there[first..].iter().take_while(|(s, _)| *s < end) {
        holes.extend((*s > at).then_some((at, *s)));
        at = at.max(*e);
    }
    holes.extend((at < end).then_some((at, end)));
    holes
}

/// The parts of a range that are in one of some blocks.
fn within(blocks: &[(u64, u64)], (start, end): (u64, u64)) -> impl Iterator<Item = (u64, u64)> {
    let first = blocks.partition_point(|(s, len)| s + len <= start);
    blocks[first..].iter().take_while(move |(s, _)| *s < end).map(move |(s, len)| ((*s).max(start), (s + len).min(end)))
}

/// Calls `visit` with each regular file and one of its paths.
fn walk(fs: &Fs, visit: &mut dyn FnMut(Ino, &[u8]) -> cffs::Result<()>) -> cffs::Result<()> {
    let mut waiting: Vec<(Ino, Vec<u8>)> = vec![(ROOT_INO, Vec::new())];
    while let Some((dir, path)) = waiting.pop() {
        let mut names = Vec::new();
        fs.readdir(dir, 0, false, &mut |e| {
            names.push((e.name, e.ino, e.file_type));
            true
        })?;
        for (name, ino, file_type) in names.into_iter().filter(|(name, ..)| name != b"." && name != b"..") {
            let path = [&path[..], b"/", &name].concat();
            match file_type {
                FileType::Directory => waiting.push((ino, path)),
                FileType::Regular => visit(ino, &path)?,
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_found() {
        let there = [(10, 20), (30, 40), (40, 50)];
        assert_eq!(holes(&there, (0, 60)), [(0, 10), (20, 30), (50, 60)]);
        assert_eq!(holes(&there, (12, 18)), []);
        assert_eq!(holes(&there, (18, 35)), [(20, 30)]);
        assert_eq!(holes(&there, (50, 51)), [(50, 51)]);
        assert_eq!(holes(&[], (1, 2)), [(1, 2)]);
    }

    #[test]
    fn damaged_blocks_are_cut_to_the_extent() {
        let blocks = [(0, 4096), (8192, 4096), (12288, 4096)];
        assert_eq!(within(&blocks, (1024, 9000)).collect::<Vec<_>>(), [(1024, 4096), (8192, 9000)]);
        let mut joined = Vec::new();
        within(&blocks, (8192, 16384)).for_each(|part| join(&mut joined, part));
        assert_eq!(joined, [(8192, 16384)]);
    }
}
