//! Maintenance: what programs have written is brought together while nobody uses the file system.
//!
//! Each byte that programs write earns a *credit* of bytes that may be moved. So the
//! device never writes much more for maintenance than for programs, and a file system that nobody writes to is left alone.
//! Only directories that got something new are looked at, which placement remembers; where moves leave room, everything is.
//!
//! A step brings strays back first: files that were written anew go to where their neighbours are, which left a gap there. That
//! costs about a byte for each byte written. Where moves leave room, directories that were made later go there too. What is left comes together
//! when half of the requests can be saved, or a third where room is left, and
//! the credit suffices for all of it. To move a part of it was measured: with areas that are emptied into gaps for
//! it, more requests are left than there were, and without them most are left. With the credit that is left then, free space is
//! brought together, so that what is written next finds long free runs; but not where what is moved leaves room, because that would fill it.

use super::credit::{Credit, Usage};
use super::regroup::{Regroup, RegroupStatus, Running};
use super::{Fs, MetadataMode};
use crate::error::Result;
use crate::format::{Ino, ROOT_INO};
use crate::relocate::{self, Gaps, Outlook};
use crate::stats::MaintenanceStats;
use crate::trace::Kind;
use cffs_device::Purpose;
use parking_lot::MutexGuard;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Maintenance waits until it may move so many groups, or this part of what is in use: less is not worth reading the directories
/// for.
const STEP_GROUPS: u64 = 32;
const STEP_DIVISOR: u64 = 128;
/// After a step that has moved less than this part of that it waits so many times as long.
const SMALL_STEP_DIVISOR: u64 = 16;
const SMALL_STEP_WAITS: u64 = 4;
/// All that is not a stray is moved if that saves at least one in so many parts of the requests; where moves leave room, what comes
/// later has a place among it, so it pays earlier.
const GAIN_DIVISOR: u64 = 2;
const GAIN_WITH_ROOM_DIVISOR: u64 = 3;
/// With more directories to look at, all that is below their common ancestor is looked at, in one order.
const ROOTS_MAX: usize = 8;

impl Fs {
    /// Whether somebody has used the file system since the last call.
    pub fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// A step of maintenance in the directories that were written to since all of them were in order, or in all where moves leave room: strays come back, and if that leaves
    /// much to be gained, everything there is regrouped. With the credit that is left, free space is brought together, unless room is left among what is moved. While somebody uses the
    /// file system that is left out, and it works a tenth of the time. `regroup` stops it, and so does `may`, which is asked every second. `None` if nothing
    /// was moved. At most 1.5 bytes are moved for each byte that was allocated. Without [`MetadataMode::Journal`] nothing is.
    ///
    /// # Errors
    /// After [`Fs::shutdown`], and whatever happens before something was moved. Later it is the outcome in the status.
    pub fn maintain(&self, usage: Usage, may: &dyn Fn() -> bool, regroup: &Regroup) -> Result<Option<RegroupStatus>> {
        self.journal.check_not_shut_down()?;
        if self.opts.metadata != MetadataMode::Journal || self.is_read_only() {
            return Ok(None);
        }
        let step = (STEP_GROUPS * self.geo.group_size() as u64).max(self.used_bytes() / STEP_DIVISOR);
        let (dirs, credit) = {
            let mut c = self.earn();
            let credit = if usage == Usage::InUse { c.bytes / 2 } else { c.bytes };
            if !c.is_due(usage) || credit < step {
                return Ok(None);
            }
            (std::mem::take(&mut c.dirs), credit)
        };
        let _purpose = Purpose::Regroup.scope();
        let _span = self.span(Kind::Regroup, [0; 3]);
        let leaves_room = self.placement.leaves_room();
        // A directory may lie in the room of what comes before it, and is read with that: alone it would seem to have come apart.
        let roots = if leaves_room { vec![ROOT_INO] } else { self.roots_of(&dirs) };
        let running = Running::new(self, regroup, None).yielding(may);
        let learned = self.learned_chains();
        let cx = self.move_cx(&learned);
        let divisor = if leaves_room { GAIN_WITH_ROOM_DIVISOR } else { GAIN_DIVISOR };
        let is_worth_it =
            |o: &Outlook| o.saved > 0 && o.saved >= o.cost / divisor && o.moved.saturating_add(o.bytes) <= credit;
        let mut progress = relocate::Progress::default();
        let limits = relocate::Limits { budget: credit, dry_run: false, always: false };
        let complete = relocate::run_by_need(&cx, &roots, limits, is_worth_it, &running, &mut progress);
        // That takes a walk through everything, which is not for those who wait. And what it moves goes into the room that was left.
        let complete = match complete {
            Ok(complete) if usage != Usage::InUse && !leaves_room => {
                relocate::bring_free_space_together(&cx, limits, Gaps::BestFit, &running, &mut progress)
                    .map(|()| complete)
            }
            complete => complete,
        };
        let complete = match complete {
            Ok(complete) if usage != Usage::InUse => {
                let worth = relocate::MUCH_APART;
                relocate::bring_parts_together(&cx, &roots, worth, limits, &running, &mut progress)
                    .map(|done| complete && done.is_none_or(|(_, left)| !left))
            }
            complete => complete,
        };
        let status = regroup.status();
        let (worked, stopped) = (status.bytes_moved + status.bytes_kept, running.stopped());
        let (complete, outcome) = match complete {
            Ok(complete) if worked > 0 => (complete, self.store_learned().and_then(|()| self.journal.commit())),
            Ok(complete) => (complete, Ok(())),
            Err(e) => (false, Err(e)),
        };
        let mut c = self.credit.lock();
        if !stopped {
            // What fails is not tried again either before there is more to do, and what gains little is tried less often.
            c.wait_for(if worked < step / SMALL_STEP_DIVISOR { SMALL_STEP_WAITS * step } else { step }, usage);
        }
        if !complete || outcome.is_err() || usage == Usage::InUse {
            // An idle step does more. Others may have been noted meanwhile.
            c.earn(dirs.into_iter().collect(), 0, self.used_bytes());
        }
        if worked == 0 {
            return if stopped { Ok(None) } else { outcome.map(|()| None) };
        }
        running.end(&outcome);
        c.charge(status.bytes_moved, status.bytes_kept);
        Ok(Some(regroup.status()))
    }

    /// The credit, with what was allocated since the last call.
    fn earn(&self) -> MutexGuard<'_, Credit> {
        let (dirs, allocated) = self.placement.take_decay();
        let mut credit = self.credit.lock();
        credit.earn(dirs, allocated, self.used_bytes());
        credit
    }

    /// Bytes that may be moved.
    pub(super) fn maintenance_credit(&self) -> u64 {
        self.earn().bytes
    }

    fn used_bytes(&self) -> u64 {
        (self.geo.total_frags() - self.space.free_frags()) << self.geo.frag_shift
    }

    pub(super) fn maintenance_stats(&self) -> MaintenanceStats {
        let c = self.earn();
        MaintenanceStats { runs: c.runs, bytes_moved: c.moved, credit: c.bytes }
    }

    /// Where to begin: at each of a few directories, or at the common ancestor of many or of those that lie below each other. Those that
    /// were removed need nothing.
    fn roots_of(&self, dirs: &BTreeSet<Ino>) -> Vec<Ino> {
        let exists = |dir: &Ino| self.inodes.get(&self.cache, *dir).is_ok_and(|n| n.state.read().dir.is_some());
        let dirs: Vec<Ino> = dirs.iter().copied().filter(exists).collect();
        if dirs.len() < 2 {
            return dirs;
        }
        let mut paths = Vec::new();
        let mut common = self.path_from_root(dirs[0]);
        for dir in &dirs {
            let path = self.path_from_root(*dir);
            common.truncate(common.iter().zip(&path).take_while(|(a, b)| a == b).count());
            if common.len() <= 1 && dirs.len() > ROOTS_MAX {
                return vec![ROOT_INO];
            }
            paths.push(path);
        }
        let nested =
            || paths.iter().any(|path| path.iter().rev().skip(1).any(|above| dirs.binary_search(above).is_ok()));
        if dirs.len() > ROOTS_MAX || nested() {
            return vec![common.last().copied().unwrap_or(ROOT_INO)];
        }
        dirs
    }

    /// The directories from the root to this one.
    fn path_from_root(&self, dir: Ino) -> Vec<Ino> {
        let mut path = vec![dir];
        while let Some(at) = path.last().copied().filter(|at| *at != ROOT_INO && path.len() < relocate::DEPTH_MAX) {
            match self.inodes.get(&self.cache, at) {
                Ok(node) => path.push(node.state.read().inode.parent),
                Err(_) => path.push(ROOT_INO),
            }
        }
        path.reverse();
        path
    }
}
