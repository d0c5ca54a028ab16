//! The load: each client makes its part of the tree, and keeps handle and contents of every file.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use nfs3_client::nfs3_types::nfs3::nfs_fh3;

use crate::random::Random;

use super::client::Client;

/// Files of a directory.
const FILES_PER_DIR: usize = 100;

/// A file that lives: its contents follow from its id and generation.
struct Known {
    dir: usize,
    name: String,
    handle: nfs_fh3,
    id: u64,
    generation: u64,
}

/// One client and what it knows.
pub struct Worker {
    client: Client,
    number: usize,
    random: Random,
    root: nfs_fh3,
    dirs: Vec<nfs_fh3>,
    files: Vec<Known>,
    made: usize,
}

/// What all workers share.
#[derive(Default)]
pub struct Progress {
    /// Operations that were answered.
    pub operations: AtomicU64,
    /// A worker has failed: the others stop.
    pub failed: AtomicBool,
}

fn length(id: u64, generation: u64) -> usize {
    let mut random = Random::new(id * 1000 + generation);
    let most = match random.below(40) {
        0 => 200_000,
        1..8 => 20_000,
        _ => 4000,
    };
    random.below(most) as usize
}

fn contents(id: u64, generation: u64) -> Vec<u8> {
    let mut random = Random::new(id << 20 ^ generation);
    let len = length(id, generation);
    let words = std::iter::repeat_with(|| random.next().to_le_bytes()).take(len.div_ceil(8));
    let mut bytes: Vec<u8> = words.flatten().collect();
    bytes.truncate(len);
    bytes
}

impl Worker {
    /// Worker `number` of the export whose root has this handle.
    pub fn new(client: Client, number: usize, root: nfs_fh3, seed: u64) -> Worker {
        Worker { client, number, random: Random::new(seed), root, dirs: Vec::new(), files: Vec::new(), made: 0 }
    }

    /// How often the server was away.
    pub fn interruptions(&self) -> u64 {
        self.client.interruptions
    }

    /// Files that live.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Makes `count` files, and between them reads, rewrites and removes earlier ones.
    ///
    /// # Errors
    /// What is not as it was left, and what the server says.
    pub fn work(&mut self, count: usize, progress: &Progress) -> Result<()> {
        while self.made < count && !progress.failed.load(Ordering::Relaxed) {
            self.create()?;
            match self.random.below(8) {
                0..3 => self.read_one()?,
                3 => self.look_up_one()?,
                4 => self.rewrite_one()?,
                5 if self.random.below(4) == 0 => self.remove_one()?,
                _ => {}
            }
            progress.operations.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn create(&mut self) -> Result<()> {
        if self.made.is_multiple_of(FILES_PER_DIR) {
            let name = self.dir_name(self.dirs.len());
            // Half of them within the one before, so that handles of deep directories are used too.
            let parent = match self.dirs.last() {
                Some(last) if !self.dirs.len().is_multiple_of(4) => last.clone(),
                _ => self.root.clone(),
            };
            let handle = self.client.make_dir(&parent, &name)?;
            self.dirs.push(handle);
        }
        let id = (self.number as u64) << 32 | self.made as u64;
        let (dir, name) = (self.dirs.len() - 1, format!("f{}", self.made));
        let handle = self.client.create(&self.dirs[dir], &name)?;
        self.client.write(&handle, &contents(id, 0)).context(name.clone())?;
        self.files.push(Known { dir, name, handle, id, generation: 0 });
        self.made += 1;
        Ok(())
    }

    fn dir_name(&self, n: usize) -> String {
        format!("w{}d{n}", self.number)
    }

    fn some(&mut self) -> usize {
        self.random.below(self.files.len() as u64) as usize
    }

    /// Reads a file by its handle, and compares.
    fn read_one(&mut self) -> Result<()> {
        let n = self.some();
        self.check(n)
    }

    fn check(&mut self, n: usize) -> Result<()> {
        let file = &self.files[n];
        let wanted = contents(file.id, file.generation);
        let found = self.client.read(&file.handle, wanted.len()).with_context(|| file.name.clone())?;
        ensure!(found == wanted, "{} has other contents than were written", file.name);
        Ok(())
    }

    /// A name leads to the handle that its file had from the beginning.
    fn look_up_one(&mut self) -> Result<()> {
        let n = self.some();
        self.check_name(n)
    }

    fn check_name(&mut self, n: usize) -> Result<()> {
        let file = &self.files[n];
        let found = self.client.lookup(&self.dirs[file.dir], &file.name)?;
        let found = found.with_context(|| format!("{} is not there", file.name))?;
        ensure!(found.data.as_ref() == file.handle.data.as_ref(), "{} has another handle than before", file.name);
        Ok(())
    }

    fn rewrite_one(&mut self) -> Result<()> {
        let n = self.some();
        let (id, generation) = (self.files[n].id, self.files[n].generation + 1);
        // Never shorter than before, because WRITE does not cut.
        if length(id, generation) >= length(id, generation - 1) {
            self.client.write(&self.files[n].handle, &contents(id, generation)).context(self.files[n].name.clone())?;
            self.files[n].generation = generation;
        }
        Ok(())
    }

    fn remove_one(&mut self) -> Result<()> {
        let n = self.some();
        let file = self.files.swap_remove(n);
        self.client.remove(&self.dirs[file.dir], &file.name)
    }

    /// Looks at everything: each file by its handle, each name, and that no directory has others.
    ///
    /// # Errors
    /// What is not as it was left, and what the server says.
    pub fn check_all(&mut self) -> Result<()> {
        for n in 0..self.files.len() {
            self.check(n)?;
            self.check_name(n)?;
        }
        for dir in 0..self.dirs.len() {
            let found: BTreeSet<String> = self.client.names(&self.dirs[dir])?.into_iter().collect();
            let mut wanted: BTreeSet<String> =
                self.files.iter().filter(|f| f.dir == dir).map(|f| f.name.clone()).collect();
            let next = dir + 1;
            if next < self.dirs.len() && !next.is_multiple_of(4) {
                wanted.insert(self.dir_name(next));
            }
            let wrong: Vec<&String> = found.symmetric_difference(&wanted).take(5).collect();
            ensure!(wrong.is_empty(), "{}: these names are missing or too many: {wrong:?}", self.dir_name(dir));
        }
        Ok(())
    }
}
