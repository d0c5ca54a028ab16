//! A disk whose free space is scattered: it is filled to the brim and thinned out again, in random order, until no free run is
//! long. The contents of all files are known, so that it can be seen whether they survive.

use anyhow::{Result, ensure};
use cffs::{Caller, Error, FreeRuns, Fs, Ino, ROOT_INO, Regroup, RegroupOptions, RegroupOutcome, RegroupStatus};

use super::aging;
use super::harness::{make_dir, with};
use crate::random::Random;

/// One file in so many is of medium size; the others have the distribution of figure 7.
const MEDIUM_EVERY: u64 = 200;
/// Bytes of a medium file: from, and fewer than.
const MEDIUM: [u64; 2] = [512 << 10, 2 << 20];
/// Files that are made or removed before what was done is written.
const AT_ONCE: u64 = 50;
/// Times that it is filled and thinned out, at least: then files lie in gaps that others left.
const ROUNDS_MIN: u64 = 3;
/// At most.
const ROUNDS_MAX: u64 = 20;

/// Bytes that tell one file, and one place in it, from another.
pub struct Contents(Vec<u8>);

impl Contents {
    /// No file is longer than that, or it has them piece by piece.
    const LONGEST: usize = 2 << 20;
    /// Two files begin so many bytes apart, at least: no divisor of `LONGEST`, so that no two begin at the same.
    const STEP: u64 = 4099;

    /// The same on every machine.
    pub fn new() -> Contents {
        let mut random = Random::new(85);
        Contents((0..2 * Self::LONGEST / 8).flat_map(|_| random.next().to_le_bytes()).collect())
    }

    /// Those of a file, or of a piece of one, with this number.
    pub fn of(&self, number: u64, len: usize) -> &[u8] {
        let from = (number.wrapping_mul(Self::STEP) % Self::LONGEST as u64) as usize;
        &self.0[from..from + len.min(Self::LONGEST)]
    }
}

struct File {
    dir: u64,
    number: u64,
    bytes: usize,
}

impl File {
    fn name(&self) -> String {
        format!("f{}", self.number)
    }
}

/// The files, and how they came there.
pub struct Scattered {
    files: Vec<File>,
    made: u64,
    dirs: u64,
    random: Random,
    /// Times that it was filled.
    pub rounds: u64,
    /// How free space lies.
    pub free: FreeRuns,
}

impl Scattered {
    /// Fills the file system with files in so many directories, and removes files until `level` of the space is in use; again and
    /// again, until the longest free run has fewer than `longest` bytes.
    ///
    /// # Errors
    /// Those of the engine; when free runs stay long.
    pub fn new(fs: &Fs, contents: &Contents, dirs: u64, level: f64, longest: u64) -> Result<Scattered> {
        let number = dirs;
        let dirs = (0..number).map(|n| make_dir(fs, &dir_name(n))).collect::<Result<Vec<Ino>>>()?;
        let random = Random::new(1985);
        let mut all = Scattered {
            files: Vec::new(),
            made: 0,
            dirs: number,
            random,
            rounds: 0,
            free: FreeRuns { longest: u64::MAX, for_tenth: 0 },
        };
        while all.rounds < ROUNDS_MIN || all.free.longest >= longest {
            ensure!(
                all.rounds < ROUNDS_MAX,
                "filled and thinned out {ROUNDS_MAX} times, and the longest free run still has {} bytes: {longest} are too many",
                all.free.longest
            );
            all.rounds += 1;
            while all.add(fs, contents, &dirs)? {}
            all.thin_out(fs, level, &dirs)?;
            all.free = free_runs(&free_space(fs, true)?)?;
        }
        dirs.into_iter().for_each(|ino| fs.forget(ino, 1));
        Ok(all)
    }

    /// One more file. False when there is no space for it.
    fn add(&mut self, fs: &Fs, contents: &Contents, dirs: &[Ino]) -> Result<bool> {
        let bytes = match self.random.below(MEDIUM_EVERY) {
            0 => (MEDIUM[0] + self.random.below(MEDIUM[1] - MEDIUM[0])) as usize,
            _ => aging::size(&mut self.random),
        };
        let file = File { dir: self.random.below(self.dirs), number: self.made, bytes };
        let (dir, name) = (dirs[file.dir as usize], file.name());
        self.made += 1;
        let ino = match fs.create(Caller::ROOT, dir, name.as_bytes(), 0o644) {
            Ok(attr) => attr.ino,
            Err(Error::NoSpace) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let written = fs.write(Caller::ROOT, ino, 0, contents.of(file.number, bytes));
        fs.forget(ino, 1);
        match written {
            Ok(n) if n == bytes => self.files.push(file),
            Ok(_) | Err(Error::NoSpace) => {
                fs.unlink(dir, name.as_bytes())?;
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
        if self.made.is_multiple_of(AT_ONCE) {
            fs.sync()?;
        }
        Ok(true)
    }

    fn thin_out(&mut self, fs: &Fs, level: f64, dirs: &[Ino]) -> Result<()> {
        fs.sync()?;
        let mut removed = 0u64;
        while used(fs) > level && !self.files.is_empty() {
            let file = self.files.swap_remove(self.random.below(self.files.len() as u64) as usize);
            fs.unlink(dirs[file.dir as usize], file.name().as_bytes())?;
            removed += 1;
            if removed.is_multiple_of(AT_ONCE) {
                fs.sync()?;
            }
        }
        Ok(fs.sync()?)
    }

    /// How many files there are.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Reads all files, directory by directory, and compares them with what was written.
    ///
    /// # Errors
    /// Those of the engine; when a file is not what it was.
    pub fn compare(&self, fs: &Fs, contents: &Contents) -> Result<()> {
        let mut in_order: Vec<&File> = self.files.iter().collect();
        in_order.sort_by_key(|f| (f.dir, f.number));
        let mut found = vec![0; Contents::LONGEST + 1];
        for of_dir in in_order.chunk_by(|a, b| a.dir == b.dir) {
            let dir = fs.lookup(ROOT_INO, dir_name(of_dir[0].dir).as_bytes())?.ino;
            for file in of_dir {
                let n = with(fs, dir, &file.name(), |ino| fs.read(ino, 0, &mut found))?;
                let same = n == file.bytes && found[..n] == *contents.of(file.number, n);
                ensure!(same, "{}/{} is not what was written", dir_name(file.dir), file.name());
            }
            fs.forget(dir, 1);
        }
        Ok(())
    }
}

fn dir_name(n: u64) -> String {
    format!("d{n}")
}

/// The share of the space that is in use.
pub fn used(fs: &Fs) -> f64 {
    let s = fs.statfs();
    1.0 - s.free as f64 / s.total as f64
}

/// Brings free space together, or says what that would do.
///
/// # Errors
/// When it does not come to its end.
pub fn free_space(fs: &Fs, dry_run: bool) -> Result<RegroupStatus> {
    let handle = Regroup::new();
    fs.regroup(&RegroupOptions::default().free_space(true).dry_run(dry_run), &handle)?;
    let status = handle.status();
    ensure!(status.outcome == Some(RegroupOutcome::Complete), "a regroup ended with {:?}", status.outcome);
    Ok(status)
}

fn free_runs(status: &RegroupStatus) -> Result<FreeRuns> {
    let runs = status.free_runs;
    Ok(runs.ok_or_else(|| anyhow::anyhow!("a regroup of free space does not say how that lies"))?.before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::harness::{Harness, Setup};

    #[test]
    fn free_runs_become_short_and_every_change_of_contents_is_found() {
        let mut harness = Harness::new(&Setup { bytes: 64 << 20, ..Setup::today("volume-1ms") }).unwrap();
        let contents = Contents::new();
        harness
            .phase(|fs| {
                let aged = Scattered::new(fs, &contents, 20, 0.85, 1 << 20)?;
                assert!(aged.free.longest < 1 << 20 && aged.files() > 500 && (0.84..0.86).contains(&used(fs)));
                aged.compare(fs, &contents)?;
                let changed = &aged.files[aged.files() / 2];
                let dir = fs.lookup(ROOT_INO, dir_name(changed.dir).as_bytes())?.ino;
                let other = !contents.of(changed.number, changed.bytes)[changed.bytes - 1];
                with(fs, dir, &changed.name(), |ino| fs.write(Caller::ROOT, ino, changed.bytes as u64 - 1, &[other]))?;
                let error = aged.compare(fs, &contents).unwrap_err().to_string();
                assert!(error.contains(&changed.name()), "{error}");
                Ok(())
            })
            .unwrap();
        // No run has fewer bytes than none.
        let mut never = Harness::new(&Setup { bytes: 16 << 20, ..Setup::today("volume-1ms") }).unwrap();
        let error = never.phase(|fs| Scattered::new(fs, &contents, 20, 0.85, 0).map(drop)).unwrap_err().to_string();
        assert!(error.contains("longest free run still has"), "{error}");
    }
}
