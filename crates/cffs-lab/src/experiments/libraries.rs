//! What a program reads of its libraries: parts of large files, here and there.

use anyhow::{Result, ensure};
use cffs::{Caller, ColocationKey, Fs, Ino, ROOT_INO, Regroup, RegroupOptions, RegroupOutcome};

use super::harness::{Harness, Setup};
use crate::random::Random;

/// Sizes of libraries: from one to seven times this.
const SIZE: u64 = 1 << 20;
/// What the engine learns of at a time.
const PART: u64 = 64 << 10;
/// Parts of a library that a program touches, and bytes of each that it reads.
const PARTS: u64 = 4;
const READ: u64 = 20_000;
/// Starts after which the order is known.
const STARTS: u32 = 2;

/// A library: its size, and where the program reads it.
struct Library {
    size: u64,
    parts: Vec<u64>,
}

/// Requests and times.
pub(super) struct Measured {
    /// Requests for the data of a start: before the regroup, after it, and the fewest possible.
    pub start: [f64; 3],
    /// Disk time to read all of the libraries, before and after.
    pub all: [f64; 2],
}

fn libraries(number: u64) -> Vec<Library> {
    let mut random = Random::new(11);
    let library = |_| {
        let size = SIZE + random.below(6 * SIZE);
        let mut parts: Vec<u64> = (1..PARTS).map(|_| random.below(size / PART) * PART).chain([0]).collect();
        parts.sort_unstable();
        parts.dedup();
        Library { size, parts }
    };
    (0..number).map(library).collect()
}

fn file_of(fs: &Fs, dir: Ino, n: usize) -> Result<Ino> {
    let ino = fs.lookup(dir, format!("lib{n:03}.so").as_bytes())?.ino;
    fs.forget(ino, 1);
    Ok(ino)
}

fn dir_of(fs: &Fs) -> Result<Ino> {
    let ino = fs.lookup(ROOT_INO, b"lib")?.ino;
    fs.forget(ino, 1);
    Ok(ino)
}

fn write(fs: &Fs, libraries: &[Library]) -> Result<()> {
    let content = vec![0x5a; 7 * SIZE as usize];
    let dir = fs.mkdir(Caller::ROOT, ROOT_INO, b"lib", 0o755)?.ino;
    fs.set_colocation_key(Caller::ROOT, dir, Some(&ColocationKey::Learned))?;
    for (n, library) in libraries.iter().enumerate() {
        let ino = fs.create(Caller::ROOT, dir, format!("lib{n:03}.so").as_bytes(), 0o755)?.ino;
        fs.write(Caller::ROOT, ino, 0, &content[..library.size as usize])?;
        fs.forget(ino, 1);
    }
    fs.forget(dir, 1);
    Ok(fs.sync()?)
}

/// A start of the program. The libraries ask for each other, so their order is not that of their names.
fn start(harness: &mut Harness, libraries: &[Library], process: u32) -> Result<f64> {
    let mut data = 0;
    harness.phase(|fs| {
        let dir = dir_of(fs)?;
        let mut order: Vec<usize> = (0..libraries.len()).collect();
        order.sort_by_key(|n| (n * 37 % libraries.len(), *n));
        let mut back = vec![0; READ as usize];
        for n in order {
            let ino = file_of(fs, dir, n)?;
            for at in &libraries[n].parts {
                fs.note_read(process, ino, *at, back.len());
                let expected = READ.min(libraries[n].size - at);
                ensure!(fs.read(ino, *at, &mut back)? as u64 == expected, "a library has lost bytes");
            }
        }
        data = fs.stats().device.kinds["data"].read_requests;
        Ok(())
    })?;
    Ok(data as f64)
}

/// Disk time to read all of them in the order of their names.
fn read_all(harness: &mut Harness) -> Result<f64> {
    let c = harness.phase(|fs| super::source::search(fs, ROOT_INO).map(drop))?;
    Ok(c.seconds())
}

/// A start and reading everything, before and after a regroup by what was learned, on a disk with groups of this size.
///
/// # Errors
/// Those of the engine.
pub(super) fn measure(disk: &'static str, group: u64, number: u64) -> Result<Measured> {
    let libraries = libraries(number);
    let mut harness = Harness::new(&Setup { group: group as u32, ..Setup::today(disk) })?;
    harness.phase(|fs| write(fs, &libraries))?;
    let all = read_all(&mut harness)?;
    let mut before = 0.0;
    for process in 0..STARTS {
        before = start(&mut harness, &libraries, 10 + process)?;
    }
    let handle = Regroup::new();
    harness.phase(|fs| Ok(fs.regroup(&RegroupOptions::default(), &handle)?))?;
    let outcome = handle.status().outcome;
    ensure!(outcome == Some(RegroupOutcome::Complete), "a regroup ended with {outcome:?}");
    let after = start(&mut harness, &libraries, 1)?;
    let all = [all, read_all(&mut harness)?];
    harness.check()?;
    let parts: u64 = libraries.iter().map(|l| l.parts.len() as u64).sum();
    Ok(Measured { start: [before, after, (parts * PART).div_ceil(group) as f64], all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_few_libraries_come_together() {
        let m = measure("hdd-2026", 1 << 20, 12).unwrap();
        assert!(m.start[1] < m.start[0] && m.start[1] <= 2.0 * m.start[2], "{:?}", m.start);
    }
}
