//! A disk with a volatile write cache, whose power can go.
//!
//! A write is answered when it is in the cache; a flush makes durable what was
//! answered before. When the power goes, each sector of what lies in the cache
//! has reached the medium or has not. From then on every request fails, until
//! the power comes back.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::io::Errno;

use crate::random::Random;
use crate::served::Medium;

/// What a disk writes whole or not at all, in bytes.
pub const SECTOR: usize = 512;

/// A disk that forgets.
#[derive(Debug)]
pub struct VolatileCacheDisk {
    len: u64,
    /// What a read finds: cache over medium.
    seen: File,
    /// What is on the medium.
    durable: File,
    /// A flush is answered and does nothing.
    lies: bool,
    state: Mutex<State>,
    went: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Writes in the cache, oldest first.
    pending: Vec<(u64, Vec<u8>)>,
    off: bool,
    /// Requests until the power goes by itself.
    fuse: Option<u64>,
}

/// What the cache held when the power came back, and how much of it had reached the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aftermath {
    /// Writes in the cache.
    pub writes: u64,
    /// Sectors of them.
    pub sectors: u64,
    /// Sectors that were lost.
    pub lost: u64,
}

/// Which of the cached sectors reach the medium.
#[derive(Clone, Copy, Debug)]
enum LossPattern {
    Nothing,
    Everything,
    /// The oldest writes, the last of them in part.
    Prefix,
    /// Each write by itself.
    SomeWrites,
    /// Each sector by itself.
    SomeSectors,
    /// Everything but one write.
    AllButOne,
    /// The newest ones only.
    Suffix,
}

impl VolatileCacheDisk {
    /// A new disk of `len` bytes, its two states kept in files in `dir`.
    ///
    /// # Errors
    /// When the files cannot be made.
    pub fn create(dir: &Path, len: u64, lies: bool) -> Result<Self> {
        let make = |name: &str| -> Result<File> {
            let path = dir.join(name);
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&path)
                .with_context(|| format!("cannot make {}", path.display()))?;
            file.set_len(len)?;
            Ok(file)
        };
        Ok(VolatileCacheDisk {
            len,
            seen: make("seen")?,
            durable: make("durable")?,
            lies,
            state: Mutex::default(),
            went: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// The power goes with the `n`th write or flush from now on (1 is the next).
    pub fn cut_after(&self, n: u64) {
        self.lock().fuse = Some(n);
    }

    /// The power goes now.
    pub fn cut(&self) {
        self.lock().off = true;
        self.went.notify_all();
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.lock().off
    }

    /// Waits for the power to go, at most `limit`; whether it went.
    pub fn wait_for_cut(&self, limit: Duration) -> bool {
        let (state, _) = self
            .went
            .wait_timeout_while(self.lock(), limit, |state| !state.off)
            .unwrap_or_else(|poison| poison.into_inner());
        state.off
    }

    /// Everything in the cache reaches the medium; the power stays.
    ///
    /// # Errors
    /// When the files below fail.
    pub fn write_out(&self) -> io::Result<()> {
        let mut state = self.lock();
        self.apply(&state.pending)?;
        state.pending.clear();
        state.fuse = None;
        Ok(())
    }

    /// The power comes back, with what `random` lets survive.
    ///
    /// # Errors
    /// When the files below fail.
    pub fn power_on(&self, random: &mut Random) -> io::Result<Aftermath> {
        let mut state = self.lock();
        // A disk that lies and keeps the order shows an older state of itself, which any recovery takes for whole: what is
        // lost then are promises.
        let pattern = match random.below(8) {
            _ if self.lies => LossPattern::Prefix,
            0 => LossPattern::Nothing,
            1 => LossPattern::Everything,
            2 => LossPattern::Prefix,
            3 => LossPattern::SomeWrites,
            4 => LossPattern::AllButOne,
            5 => LossPattern::Suffix,
            _ => LossPattern::SomeSectors,
        };
        let writes = state.pending.len() as u64;
        let chosen = random.below(writes.max(1));
        let mut after = Aftermath { writes, ..Aftermath::default() };
        for (i, (offset, data)) in state.pending.iter().enumerate() {
            let i = i as u64;
            let whole = random.below(2) == 0;
            for (n, sector) in data.chunks(SECTOR).enumerate() {
                let survives = match pattern {
                    LossPattern::Nothing => false,
                    LossPattern::Everything => true,
                    LossPattern::Prefix => i < chosen || (i == chosen && random.below(2) == 0),
                    LossPattern::SomeWrites => whole,
                    LossPattern::SomeSectors => random.below(2) == 0,
                    LossPattern::AllButOne => i != chosen,
                    LossPattern::Suffix => i >= chosen,
                };
                after.sectors += 1;
                if survives {
                    self.durable.write_all_at(sector, offset + (n * SECTOR) as u64)?;
                } else {
                    after.lost += 1;
                }
            }
        }
        // Only there can the two files differ.
        for (offset, data) in &state.pending {
            let mut bytes = vec![0; data.len()];
            self.durable.read_exact_at(&mut bytes, *offset)?;
            self.seen.write_all_at(&bytes, *offset)?;
        }
        *state = State::default();
        Ok(after)
    }

    fn apply(&self, writes: &[(u64, Vec<u8>)]) -> io::Result<()> {
        for (offset, data) in writes {
            self.durable.write_all_at(data, *offset)?;
        }
        Ok(())
    }

    /// Counts down; true if the power goes with it.
    fn burns(&self, state: &mut State) -> bool {
        match &mut state.fuse {
            Some(n) if *n <= 1 => {
                state.off = true;
                self.went.notify_all();
                true
            }
            Some(n) => {
                *n -= 1;
                false
            }
            None => false,
        }
    }
}

fn no_power() -> io::Error {
    Errno::IO.into()
}

impl Medium for VolatileCacheDisk {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let state = self.lock();
        if state.off {
            return Err(no_power());
        }
        self.seen.read_exact_at(buf, offset)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        if state.off {
            return Err(no_power());
        }
        // Also the write that the power goes with may arrive, in part.
        state.pending.push((offset, data.to_vec()));
        if self.burns(&mut state) {
            return Err(no_power());
        }
        self.seen.write_all_at(data, offset)
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = self.lock();
        if state.off || self.burns(&mut state) {
            return Err(no_power());
        }
        if !self.lies {
            self.apply(&state.pending)?;
            state.pending.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(disk: &VolatileCacheDisk, n: u64) -> u8 {
        let mut bytes = [0; SECTOR];
        disk.read(n * SECTOR as u64, &mut bytes).unwrap();
        assert!(bytes.iter().all(|b| *b == bytes[0]), "a sector is never torn");
        bytes[0]
    }

    #[test]
    fn what_was_flushed_stays_and_what_was_not_is_any_subset() {
        let mut random = Random::new(1);
        let (mut kept, mut torn, mut lost) = (0, 0, 0);
        for _ in 0..200 {
            let dir = tempfile::tempdir().unwrap();
            let disk = VolatileCacheDisk::create(dir.path(), 64 << 10, false).unwrap();
            disk.write(0, &[1; 4 * SECTOR]).unwrap();
            disk.flush().unwrap();
            disk.write(2 * SECTOR as u64, &[2; 8 * SECTOR]).unwrap();
            assert_eq!(sector(&disk, 5), 2, "a read sees the cache");
            disk.cut();
            assert!(
                disk.read(0, &mut [0; SECTOR]).is_err()
                    && disk.flush().is_err()
                    && disk.write(0, &[9; SECTOR]).is_err()
            );
            let after = disk.power_on(&mut random).unwrap();
            assert_eq!((after.writes, after.sectors), (1, 8), "a refused write leaves nothing");
            assert_eq!((sector(&disk, 0), sector(&disk, 1)), (1, 1), "flushed, and not written again");
            let new = (2..10).filter(|n| sector(&disk, *n) == 2).count() as u64;
            for n in 2..10 {
                assert!([if n < 4 { 1 } else { 0 }, 2].contains(&sector(&disk, n)), "old or new");
            }
            assert_eq!(8 - new, after.lost);
            match new {
                0 => lost += 1,
                8 => kept += 1,
                _ => torn += 1,
            }
        }
        assert!(kept > 10 && torn > 10 && lost > 10, "{kept} {torn} {lost}");
    }

    #[test]
    fn the_power_goes_with_the_request_that_was_named() {
        let dir = tempfile::tempdir().unwrap();
        let disk = VolatileCacheDisk::create(dir.path(), 64 << 10, false).unwrap();
        disk.cut_after(3);
        disk.write(0, &[1; SECTOR]).unwrap();
        disk.write(512, &[1; SECTOR]).unwrap();
        assert!(!disk.wait_for_cut(Duration::ZERO));
        assert!(disk.flush().is_err(), "a flush that the power goes with promises nothing");
        assert!(disk.wait_for_cut(Duration::ZERO) && disk.is_off());
        let after = disk.power_on(&mut Random::new(7)).unwrap();
        assert_eq!(after.writes, 2);
        assert!(!disk.is_off());
    }

    #[test]
    fn a_disk_that_ignores_flushes_keeps_everything_in_its_cache() {
        let dir = tempfile::tempdir().unwrap();
        let disk = VolatileCacheDisk::create(dir.path(), 64 << 10, true).unwrap();
        for n in 0..5 {
            disk.write(n * 512, &[1; SECTOR]).unwrap();
            disk.flush().unwrap();
        }
        disk.cut();
        assert_eq!(disk.power_on(&mut Random::new(1)).unwrap().writes, 5);
    }
}
