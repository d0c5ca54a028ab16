//! The load: threads that read, create, overwrite, fsync and stat, and how long each operation took.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::random::Random;

/// What an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Opens a file that was not read since the mount, and reads it.
    Read,
    /// Asks for the attributes of a file.
    Stat,
    /// Makes a file and writes it.
    Create,
    /// Writes over the contents of a file.
    Overwrite,
    /// Makes a file, writes it and fsyncs it.
    Fsync,
}

/// All of them. Of ten operations, four read, three ask for attributes, and one is of each other kind.
pub const KINDS: [Kind; 5] = [Kind::Read, Kind::Stat, Kind::Create, Kind::Overwrite, Kind::Fsync];
const MIX: [Kind; 10] = [
    Kind::Read,
    Kind::Read,
    Kind::Read,
    Kind::Read,
    Kind::Stat,
    Kind::Stat,
    Kind::Stat,
    Kind::Create,
    Kind::Overwrite,
    Kind::Fsync,
];
/// Bytes of a file that is made.
const BYTES: usize = 4096;
/// Files in a directory that a thread makes.
const PER_DIR: u64 = 100;

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Stat => "stat",
            Kind::Create => "create",
            Kind::Overwrite => "overwrite",
            Kind::Fsync => "fsync",
        }
    }
}

/// How long each operation took.
#[derive(Debug, Default)]
pub struct Samples(Vec<(Kind, Duration)>);

impl Samples {
    /// The times of one kind, or of all.
    pub fn of(&self, kind: Option<Kind>) -> Vec<Duration> {
        self.0.iter().filter(|(k, _)| kind.is_none_or(|kind| kind == *k)).map(|(_, time)| *time).collect()
    }
}

/// What a turn works on.
pub struct Inputs {
    /// The directories whose files are read, written over, and asked for their attributes.
    pub dirs: Vec<PathBuf>,
    /// A directory for the new files.
    pub made: PathBuf,
    /// Operations of each thread.
    pub operations: u64,
    /// Between two operations of a thread.
    pub pause: Duration,
    /// Starts the random choices.
    pub seed: u64,
}

impl Inputs {
    /// Works with so many threads.
    ///
    /// # Errors
    /// When an operation fails.
    pub fn run(&self, threads: u64, samples: &mut Samples) -> Result<()> {
        let mut files = Vec::new();
        for dir in &self.dirs {
            for entry in fs::read_dir(dir)? {
                files.push(entry?.path());
            }
        }
        // The order of a listing would bring the next files along.
        files.sort();
        let mut random = Random::new(self.seed);
        for n in (1..files.len()).rev() {
            files.swap(n, random.below(n as u64 + 1) as usize);
        }
        ensure!(
            files.len() as u64 >= threads * self.operations,
            "{} files are too few: each is used once",
            files.len()
        );
        let own = files.len() / threads as usize;
        fs::create_dir(&self.made)?;
        let done: Vec<Result<Samples>> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .zip(files.chunks(own))
                .map(|(number, files)| scope.spawn(move || self.thread(number, files)))
                .collect();
            running
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
                .collect()
        });
        for of_thread in done {
            samples.0.extend(of_thread?.0);
        }
        Ok(())
    }

    fn thread(&self, number: u64, files: &[PathBuf]) -> Result<Samples> {
        let mut random = Random::new(self.seed.wrapping_mul(100).wrapping_add(number));
        let mut samples = Samples::default();
        let mut buffer = Vec::new();
        for (n, file) in (0..self.operations).zip(files) {
            let kind = MIX[random.below(MIX.len() as u64) as usize];
            let dir = self.made.join(format!("d{number}-{}", n / PER_DIR));
            if n.is_multiple_of(PER_DIR) {
                fs::create_dir(&dir)?;
            }
            let new = dir.join(format!("f{n}"));
            let clock = Instant::now();
            operate(kind, file, &new, &mut buffer).with_context(|| format!("{} of {}", kind.name(), file.display()))?;
            samples.0.push((kind, clock.elapsed()));
            std::thread::sleep(self.pause);
        }
        Ok(samples)
    }
}

fn operate(kind: Kind, file: &Path, new: &Path, buffer: &mut Vec<u8>) -> Result<()> {
    match kind {
        Kind::Read => {
            buffer.clear();
            File::open(file)?.read_to_end(buffer)?;
        }
        Kind::Stat => {
            fs::symlink_metadata(file)?;
        }
        Kind::Create => File::create_new(new)?.write_all(&[0x5a; BYTES])?,
        Kind::Overwrite => {
            let mut opened = OpenOptions::new().write(true).open(file)?;
            let len = opened.metadata()?.len().min(BYTES as u64) as usize;
            opened.write_all(&[0xa5; BYTES][..len])?;
        }
        Kind::Fsync => {
            let mut made = File::create_new(new)?;
            made.write_all(&[0x5a; BYTES])?;
            made.sync_all()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_done_and_every_file_is_used_once() {
        let temp = tempfile::tempdir().unwrap();
        let old = temp.path().join("old");
        fs::create_dir(&old).unwrap();
        for n in 0..200 {
            fs::write(old.join(format!("f{n}")), [1; 10]).unwrap();
        }
        let inputs = Inputs {
            dirs: vec![old.clone()],
            made: temp.path().join("made"),
            operations: 100,
            pause: Duration::ZERO,
            seed: 3,
        };
        let mut samples = Samples::default();
        inputs.run(2, &mut samples).unwrap();
        assert_eq!(samples.of(None).len(), 200);
        let numbers = KINDS.map(|kind| samples.of(Some(kind)).len());
        assert!(numbers.iter().all(|n| *n > 0), "{numbers:?}");
        assert_eq!(numbers.iter().sum::<usize>(), 200);
        let overwritten =
            fs::read_dir(&old).unwrap().filter(|e| fs::read(e.as_ref().unwrap().path()).unwrap() == [0xa5; 10]);
        assert_eq!(overwritten.count(), numbers[3]);
        let mut more = Inputs { operations: 101, ..inputs };
        more.made = temp.path().join("more");
        assert!(more.run(2, &mut samples).unwrap_err().to_string().contains("too few"));
    }
}
