//! The load: each writer works in a directory of its own, asks for promises in
//! every way there is, and keeps its oracle.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::random::Random;

use super::oracle::{DurabilityOracle, REGION, Thing};

/// Directories that a writer works in from the beginning.
const DIRS: u64 = 6;
/// Above this many files they are only removed, and above so many directories none are made.
const FILES: usize = 120;
const MADE_DIRS: usize = 10;

/// One writer; its oracle outlives the power.
pub struct Writer {
    /// Its directory below the mount.
    home: PathBuf,
    root: PathBuf,
    random: Random,
    /// What it may find again.
    pub oracle: DurabilityOracle,
    next: u32,
    /// Whether it syncs its files and directories.
    syncs: bool,
}

/// What an operation works on.
struct Chosen {
    path: PathBuf,
    id: u32,
}

impl Writer {
    /// Writer `number` of the mount at `root`, with its directories: made, and
    /// durable when the caller has unmounted.
    ///
    /// # Errors
    /// When they cannot be made.
    pub fn prepare(root: &Path, number: u32, seed: u64) -> io::Result<Writer> {
        let home = PathBuf::from(format!("w{number}"));
        for dir in 0..DIRS {
            fs::create_dir_all(root.join(&home).join(format!("d{dir}")))?;
        }
        Ok(Writer {
            home,
            root: root.to_path_buf(),
            random: Random::new(seed),
            oracle: DurabilityOracle::default(),
            next: 1,
            syncs: true,
        })
    }

    /// It syncs nothing from now on: whoever does that for all of it calls [`DurabilityOracle::promise_all`].
    pub fn leave_syncs_to_others(&mut self) {
        self.syncs = false;
    }

    /// The directory it works in, below the mount.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Whether it made this directory before the first round.
    pub fn is_own_dir(&self, path: &Path) -> bool {
        path == self.home
            || (path.parent() == Some(&self.home)
                && path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with('d')))
    }

    /// One operation, with or without a promise.
    ///
    /// # Errors
    /// Whatever the mount says; the oracle allows for an operation that was cut short.
    pub fn step(&mut self) -> io::Result<()> {
        let dirs = self.oracle.present().filter(|(_, thing)| *thing == Thing::Dir).count();
        let crowded = self.oracle.present().count() - dirs > FILES;
        match self.random.below(100) {
            _ if crowded => self.remove(),
            0..26 => self.create(),
            26..36 => self.append(),
            36..46 => self.overwrite(),
            46..54 => self.written_through(),
            54..62 => self.rename(),
            62..72 => self.replace(),
            72..80 => self.remove(),
            80..84 => self.truncate(),
            84..92 => self.without_promise(),
            92..96 if dirs < MADE_DIRS => self.make_dir(),
            _ => self.remove_dir(),
        }
    }

    fn dir(&mut self) -> PathBuf {
        let made: Vec<PathBuf> = self
            .oracle
            .present()
            .filter(|(_, thing)| *thing == Thing::Dir)
            .map(|(path, _)| path.to_path_buf())
            .collect();
        let n = self.random.below(DIRS + made.len() as u64);
        match made.get((n.saturating_sub(DIRS)) as usize) {
            Some(dir) if n >= DIRS => dir.clone(),
            _ => self.home.join(format!("d{n}")),
        }
    }

    fn fresh(&mut self) -> Chosen {
        let id = self.next;
        self.next += 1;
        let dir = self.dir();
        Chosen { path: dir.join(format!("f{id}")), id }
    }

    /// A file of its own that is still what it was written to be.
    fn some_file(&mut self, sound: bool) -> Option<Chosen> {
        let files: Vec<Chosen> = self
            .oracle
            .present()
            .filter_map(|(path, thing)| match thing {
                Thing::File(id) => Some(Chosen { path: path.to_path_buf(), id }),
                _ => None,
            })
            .filter(|file| !sound || self.oracle.content(file.id).is_some_and(|content| !content.spoiled))
            .collect();
        if files.is_empty() {
            return None;
        }
        let n = self.random.below(files.len() as u64) as usize;
        files.into_iter().nth(n)
    }

    /// Mostly small, of any length.
    fn length(&mut self) -> usize {
        let most = match self.random.below(24) {
            0 => 300 << 10,
            1..4 => 70 << 10,
            4..8 => 9000,
            _ => 3000,
        };
        self.random.below(most) as usize + 1
    }

    fn full(&self, path: &Path) -> PathBuf {
        self.root.join(path)
    }

    /// fsync, or fdatasync: both promise the content, and with it the file itself.
    fn sync(&mut self, file: &File, chosen: &Chosen) -> io::Result<()> {
        if !self.syncs {
            return Ok(());
        }
        if self.random.below(3) == 0 {
            file.sync_data()?
        } else {
            file.sync_all()?
        }
        self.oracle.promise_content(chosen.id);
        self.oracle.promise_name(&chosen.path);
        Ok(())
    }

    fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        if !self.syncs {
            return Ok(());
        }
        File::open(self.full(dir))?.sync_all()?;
        self.oracle.promise_dir(dir);
        Ok(())
    }

    fn sync_parent(&mut self, path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(dir) => self.sync_dir(dir),
            None => Ok(()),
        }
    }

    /// Writes on at the end, in some pieces.
    fn extend(&mut self, file: &File, id: u32, len: usize) -> io::Result<()> {
        let mut left = len;
        while left > 0 {
            let part = if self.random.below(3) == 0 { self.random.below(left as u64) as usize + 1 } else { left };
            // Whole records, or the next piece would begin within one.
            let part = if part < left { part.next_multiple_of(super::oracle::RECORD).min(left) } else { part };
            let at = self.oracle.content(id).map_or(0, |content| content.len);
            let bytes = self.oracle.will_write(id, at, part);
            file.write_all_at(&bytes, at as u64)?;
            left -= part;
        }
        Ok(())
    }

    fn create(&mut self) -> io::Result<()> {
        let chosen = self.fresh();
        self.oracle.will_be(&chosen.path, Thing::File(chosen.id));
        let file = File::create_new(self.full(&chosen.path))?;
        let len = self.length();
        self.extend(&file, chosen.id, len)?;
        self.sync(&file, &chosen)
    }

    fn append(&mut self) -> io::Result<()> {
        let Some(chosen) = self.some_file(true) else { return Ok(()) };
        // What was written ends within a record perhaps; only whole ones can be gone on from.
        let whole = self
            .oracle
            .content(chosen.id)
            .is_some_and(|content| content.len.is_multiple_of(super::oracle::RECORD) && content.len < 1 << 20);
        if !whole {
            return Ok(());
        }
        let file = OpenOptions::new().write(true).open(self.full(&chosen.path))?;
        let len = self.length();
        self.extend(&file, chosen.id, len)?;
        self.sync(&file, &chosen)
    }

    fn overwrite(&mut self) -> io::Result<()> {
        let Some(chosen) = self.some_file(true) else { return Ok(()) };
        let Some(len) = self.oracle.content(chosen.id).map(|content| content.len).filter(|len| *len > 0) else {
            return Ok(());
        };
        let file = OpenOptions::new().write(true).open(self.full(&chosen.path))?;
        for _ in 0..=self.random.below(3) {
            let regions = len.div_ceil(REGION) as u64;
            let first = self.random.below(regions);
            let end = first + 1 + self.random.below((regions - first).min(8));
            let (at, end) = (first as usize * REGION, (end as usize * REGION).min(len));
            let bytes = self.oracle.will_write(chosen.id, at, end - at);
            file.write_all_at(&bytes, at as u64)?;
        }
        self.sync(&file, &chosen)
    }

    /// O_DSYNC or O_SYNC: each write is a promise when it returns.
    fn written_through(&mut self) -> io::Result<()> {
        if !self.syncs {
            return self.create();
        }
        let chosen = self.fresh();
        self.oracle.will_be(&chosen.path, Thing::File(chosen.id));
        let flag = if self.random.below(2) == 0 { OFlags::DSYNC } else { OFlags::SYNC };
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .custom_flags(flag.bits() as i32)
            .open(self.full(&chosen.path))?;
        self.sync_parent(&chosen.path)?;
        for _ in 0..=self.random.below(4) {
            let at = self.oracle.content(chosen.id).map_or(0, |content| content.len);
            let len = self.length().next_multiple_of(super::oracle::RECORD);
            let bytes = self.oracle.will_write(chosen.id, at, len);
            file.write_all_at(&bytes, at as u64)?;
            self.oracle.promise_content(chosen.id);
        }
        Ok(())
    }

    fn rename(&mut self) -> io::Result<()> {
        let Some(chosen) = self.some_file(false) else { return Ok(()) };
        let to = self.fresh().path;
        self.oracle.will_move(&chosen.path, &to, chosen.id);
        fs::rename(self.full(&chosen.path), self.full(&to))?;
        if self.random.below(3) > 0 {
            self.sync_parent(&chosen.path)?;
            self.sync_parent(&to)?;
        }
        Ok(())
    }

    /// The way editors and databases replace a file: a new one under another
    /// name, fsync, rename over the old one.
    fn replace(&mut self) -> io::Result<()> {
        let Some(target) = self.some_file(false) else { return Ok(()) };
        let new = self.fresh();
        self.oracle.will_be(&new.path, Thing::File(new.id));
        let mut file = File::create_new(self.full(&new.path))?;
        let len = self.length();
        let bytes = self.oracle.will_write(new.id, 0, len);
        file.write_all(&bytes)?;
        self.sync(&file, &new)?;
        self.oracle.will_move(&new.path, &target.path, new.id);
        fs::rename(self.full(&new.path), self.full(&target.path))?;
        if self.random.below(3) > 0 {
            self.sync_parent(&target.path)?;
            self.sync_parent(&new.path)?;
        }
        Ok(())
    }

    fn remove(&mut self) -> io::Result<()> {
        for _ in 0..=self.random.below(4) {
            let Some(chosen) = self.some_file(false) else { return Ok(()) };
            self.oracle.will_be(&chosen.path, Thing::Nothing);
            fs::remove_file(self.full(&chosen.path))?;
            if self.random.below(3) == 0 {
                self.sync_parent(&chosen.path)?;
            }
        }
        Ok(())
    }

    fn truncate(&mut self) -> io::Result<()> {
        let Some(chosen) = self.some_file(true) else { return Ok(()) };
        self.oracle.will_cut(chosen.id);
        let file = OpenOptions::new().write(true).truncate(true).open(self.full(&chosen.path))?;
        let len = self.length();
        self.extend(&file, chosen.id, len)?;
        self.sync(&file, &chosen)
    }

    /// Work that nobody asked to be kept; it may come back in part, but never
    /// with bytes of others.
    fn without_promise(&mut self) -> io::Result<()> {
        let chosen = self.fresh();
        self.oracle.will_be(&chosen.path, Thing::File(chosen.id));
        let file = File::create_new(self.full(&chosen.path))?;
        let len = self.length();
        self.extend(&file, chosen.id, len)
    }

    fn make_dir(&mut self) -> io::Result<()> {
        let id = self.next;
        self.next += 1;
        let path = self.home.join(format!("n{id}"));
        self.oracle.will_be(&path, Thing::Dir);
        fs::create_dir(self.full(&path))?;
        self.sync_parent(&path)
    }

    /// A directory with all that is in it; nothing is durable before the last step.
    fn remove_dir(&mut self) -> io::Result<()> {
        let made: Vec<PathBuf> = self
            .oracle
            .present()
            .filter(|(_, thing)| *thing == Thing::Dir)
            .map(|(path, _)| path.to_path_buf())
            .collect();
        if made.is_empty() {
            return Ok(());
        }
        let dir = &made[self.random.below(made.len() as u64) as usize];
        let inside: Vec<PathBuf> = self
            .oracle
            .present()
            .map(|(path, _)| path)
            .filter(|path| path.parent() == Some(dir))
            .map(Path::to_path_buf)
            .collect();
        for path in inside {
            self.oracle.will_be(&path, Thing::Nothing);
            fs::remove_file(self.full(&path))?;
        }
        self.oracle.will_be(dir, Thing::Nothing);
        fs::remove_dir(self.full(dir))?;
        self.sync_parent(dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::powercut::look_at;

    #[test]
    fn the_load_keeps_its_oracle_on_the_host_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::prepare(dir.path(), 0, 42).unwrap();
        for _ in 0..5 {
            for _ in 0..150 {
                writer.step().unwrap();
            }
            // Nothing was lost, so nothing may be missing, promised or not.
            let now: Vec<(PathBuf, Thing)> =
                writer.oracle.present().map(|(path, thing)| (path.to_path_buf(), thing)).collect();
            let found = look_at(dir.path(), &writer).unwrap();
            assert_eq!(now.len(), found.len());
            writer.oracle.compare(&found).unwrap();
            let after: Vec<(PathBuf, Thing)> =
                writer.oracle.present().map(|(path, thing)| (path.to_path_buf(), thing)).collect();
            assert_eq!(now, after);
        }
        assert!(writer.oracle.promises().0 > 30);
        // A promised file that loses a byte is noticed.
        let (path, _) = writer
            .oracle
            .present()
            .find(|(_, thing)| matches!(thing, Thing::File(id) if writer.oracle.content(*id).is_some_and(|c| c.promised > 0)))
            .unwrap();
        let full = dir.path().join(path);
        let len = fs::metadata(&full).unwrap().len();
        OpenOptions::new().write(true).open(&full).unwrap().set_len(len - 1).unwrap();
        let found = look_at(dir.path(), &writer).unwrap();
        assert!(writer.oracle.compare(&found).is_err());
    }
}
