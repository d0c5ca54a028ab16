//! Preallocating, punching holes, zeroing, collapsing and inserting ranges: fallocate(2).

use super::traced::note_caller;
use super::{Caller, Fs, flags, now};
use crate::error::{Error, Result};
use crate::extent;
use crate::file::preallocate::{self, Exclusive};
use crate::file::{self, Reclaim, writeback};
use crate::format::extent::LOGICAL_END;
use crate::format::inode::{FLAG_APPEND, FLAG_IMMUTABLE, INLINE_MAX, INODE_CORE_SIZE};
use crate::format::{FILE_SIZE_MAX, FileType, Ino, InodeFormat};
use crate::node::Node;
use crate::reservation::Reservation;
use crate::trace::Kind;
use std::ops::Range;
use std::sync::Arc;

/// What [`Fs::fallocate`] does with its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Allocates space for the whole range, so that a write there finds space. New parts read as zeros.
    Allocate {
        /// The file's size stays, even if the range goes beyond it.
        keep_size: bool,
    },
    /// Frees the space of the range, which then reads as zeros. The size stays.
    PunchHole,
    /// Makes the range read as zeros, and keeps or allocates its space.
    Zero {
        /// The file's size stays, even if the range goes beyond it.
        keep_size: bool,
    },
    /// Removes the range from the file: the bytes behind it move towards the start. Offset and length are multiples of
    /// the block size, and the range ends before the file does.
    Collapse,
    /// Inserts a hole of this length: the bytes behind it move away from the start. Offset and length are multiples of
    /// the block size, and the offset lies in the file.
    Insert,
}

impl Fallocate {
    /// Its number in a trace.
    fn number(self) -> u64 {
        match self {
            Fallocate::Allocate { keep_size } => u64::from(keep_size),
            Fallocate::PunchHole => 2,
            Fallocate::Zero { keep_size } => 3 + u64::from(keep_size),
            Fallocate::Collapse => 5,
            Fallocate::Insert => 6,
        }
    }

    /// The one with a number in a trace.
    pub fn from_number(n: u64) -> Option<Fallocate> {
        Some(match n {
            0 | 1 => Fallocate::Allocate { keep_size: n == 1 },
            2 => Fallocate::PunchHole,
            3 | 4 => Fallocate::Zero { keep_size: n == 4 },
            5 => Fallocate::Collapse,
            6 => Fallocate::Insert,
            _ => return None,
        })
    }
}

impl Fs {
    /// The ranges of a file (offset, length in bytes) that are allocated and were never written, in order, also behind its end. What was
    /// written and is still in memory counts as never written.
    ///
    /// # Errors
    /// [`Error::Corrupt`] and [`Error::Io`].
    pub fn preallocated(&self, ino: Ino) -> Result<Vec<(u64, u64)>> {
        let node = self.node(ino)?;
        let st = node.state.read();
        if st.inode.file_type() != FileType::Regular {
            return Ok(Vec::new());
        }
        let shift = self.geo.frag_shift;
        let mut all: Vec<(u64, u64)> = Vec::new();
        extent::for_each(&self.cache, &st.inode, 0..LOGICAL_END, |e| {
            let (start, len) = (e.logical << shift, e.len << shift);
            match all.last_mut() {
                _ if !e.unwritten => {}
                Some((first, n)) if *first + *n == start => *n += len,
                _ => all.push((start, len)),
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Changes the space of a range of a regular file (bytes).
    ///
    /// [`Error::NoSpace`] when there is not enough for all of it (for [`Fallocate::Allocate`] and [`Fallocate::Zero`] a
    /// part may be allocated then); [`Error::FileTooLarge`] beyond the largest file; [`Error::Invalid`] for an empty
    /// range, or one that cannot be collapsed or inserted.
    pub fn fallocate(&self, c: Caller, ino: Ino, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.op(
            Kind::Fallocate,
            [ino, offset, len],
            |d| {
                d.add_number(what.number());
                note_caller(d, c);
            },
            || self.change_space(c, ino, what, offset, len),
        )
    }

    fn change_space(&self, c: Caller, ino: Ino, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.writable()?;
        let node = self.node(ino)?;
        let _write_lock = self.lock_for_change(&node)?;
        {
            let st = node.state.read();
            match st.inode.file_type() {
                FileType::Regular => {}
                FileType::Directory => return Err(Error::IsDir),
                _ => return Error::invalid("only regular files have space to allocate"),
            }
            if st.freed {
                return Err(Error::Stale);
            }
            let fixed = if matches!(what, Fallocate::Allocate { .. }) { 0 } else { FLAG_APPEND };
            flags::forbid(&st, FLAG_IMMUTABLE | fixed)?;
        }
        if len == 0 {
            return Error::invalid("an empty range");
        }
        let end = offset.checked_add(len).filter(|e| *e <= FILE_SIZE_MAX).ok_or(Error::FileTooLarge)?;
        let bytes = offset..end;
        let outcome = match what {
            // A second attempt repeats finished parts of these without harm.
            Fallocate::Allocate { keep_size } => self.with_space(|| self.allocate(c, &node, bytes.clone(), keep_size)),
            Fallocate::PunchHole => self.with_space(|| self.punch(c, &node, bytes.clone())),
            Fallocate::Zero { keep_size } => self.with_space(|| self.zero_range(c, &node, bytes.clone(), keep_size)),
            Fallocate::Collapse => self.collapse(c, &node, bytes),
            Fallocate::Insert => self.insert_range(c, &node, bytes),
        };
        // After an error the finished parts may have left dirty pages.
        self.list_dirty(&node);
        self.flush_if_needed(&node);
        outcome?;
        {
            let mut st = node.state.write();
            let now = now();
            (st.inode.mtime, st.inode.ctime) = (now, now);
            st.dirty = true;
        }
        self.list_dirty(&node);
        if matches!(what, Fallocate::Collapse | Fallocate::Insert) {
            // The contents stay where they are on the device, but now belong to other offsets of the file. Commit,
            // because a crash must not show later overwrites at the old offsets.
            self.journal.commit()?;
        }
        Ok(())
    }

    fn frag_range(&self, bytes: &Range<u64>) -> Range<u64> {
        bytes.start >> self.geo.frag_shift..self.geo.frags_for(bytes.end)
    }

    fn allocate(&self, c: Caller, node: &Arc<Node>, bytes: Range<u64>, keep_size: bool) -> Result<()> {
        let cx = self.file_cx();
        // Pages in the range have reserved their own space, so they are written back first.
        self.flush_range(node, &bytes)?;
        let _exclusive = Exclusive::new(node);
        self.leave_inode(c, node)?;
        let frags = self.space.with_whole_units(self.frag_range(&bytes));
        let reservation = preallocate::reserve_for_range(&cx, node, frags.clone(), c.privileged())?;
        preallocate::allocate(&cx, node, frags, &reservation)?;
        drop(reservation);
        self.extend_to(c, node, if keep_size { 0 } else { bytes.end })
    }

    fn extend_to(&self, c: Caller, node: &Arc<Node>, size: u64) -> Result<()> {
        let mut st = node.state.write();
        if size > st.inode.size { file::extend(&self.file_cx(), &mut st, size, c.privileged()) } else { Ok(()) }
    }

    /// Writes back all pages in the range, so that after an error the file has its latest contents and not older ones
    /// of the device. New pages are made only with [`Node::write_lock`], which the caller holds.
    fn flush_range(&self, node: &Arc<Node>, bytes: &Range<u64>) -> Result<()> {
        let cx = self.file_cx();
        let has_pages = || preallocate::has_pages(&cx, &node.state.read(), bytes);
        if has_pages() {
            writeback::write_back(&cx, vec![node.clone()])?;
            // Pages remain only if the file has no name and no references, until it is freed.
            if has_pages() {
                return Err(Error::Stale);
            }
        }
        Ok(())
    }

    fn punch(&self, c: Caller, node: &Arc<Node>, bytes: Range<u64>) -> Result<()> {
        let cx = self.file_cx();
        // Reservations that can fail come first.
        let nodes = preallocate::reserve_for_cut(&cx, node)?;
        self.flush_range(node, &bytes)?;
        let _exclusive = Exclusive::new(node);
        let too_long = {
            let st = node.state.read();
            st.inode.size > st.inode.data_room() as u64
        };
        if too_long {
            // Pages outside the range will replace the inline contents, before or after the range is cut.
            self.leave_inode(c, node)?;
        }
        let inside = {
            let mut st = node.state.write();
            if let InodeFormat::Inline(d) = &st.inode.format {
                let end = bytes.end.min(d.len() as u64);
                if bytes.start < end {
                    let zeros = vec![0; (end - bytes.start) as usize];
                    file::write(&cx, &mut st, bytes.start, &zeros, c.privileged())?;
                }
                return Ok(());
            }
            preallocate::zero_edges(&cx, &mut st, &bytes, c.privileged())?
        };
        preallocate::remove(&cx, node, inside, &nodes)
    }

    fn zero_range(&self, c: Caller, node: &Arc<Node>, bytes: Range<u64>, keep_size: bool) -> Result<()> {
        if self.space.is_thin() {
            return self.zero_anew(c, node, bytes, keep_size);
        }
        let cx = self.file_cx();
        let frags = self.frag_range(&bytes);
        // Reservations that can fail come first.
        let reservation = {
            let _exclusive = Exclusive::new(node);
            self.leave_inode(c, node)?;
            preallocate::reserve_for_range(&cx, node, frags.clone(), c.privileged())?
        };
        self.flush_range(node, &bytes)?;
        let _exclusive = Exclusive::new(node);
        self.leave_inode(c, node)?;
        let inside = preallocate::zero_edges(&cx, &mut node.state.write(), &bytes, c.privileged())?;
        preallocate::make_unwritten(&cx, node, inside, &reservation)?;
        preallocate::allocate(&cx, node, frags, &reservation)?;
        drop(reservation);
        self.extend_to(c, node, if keep_size { 0 } else { bytes.end })
    }

    /// On a thin device: what is there would be stored on, and have room kept for it besides. So it is given back, and the range
    /// allocated anew; the space for that is reserved before anything is lost.
    fn zero_anew(&self, c: Caller, node: &Arc<Node>, bytes: Range<u64>, keep_size: bool) -> Result<()> {
        let cx = self.file_cx();
        let frags = self.space.with_whole_units(self.frag_range(&bytes));
        // What is dirty has no place yet, and would count as new.
        self.flush_range(node, &bytes)?;
        let reservation = {
            let _exclusive = Exclusive::new(node);
            self.leave_inode(c, node)?;
            preallocate::reserve_for_all(&cx, node, frags.clone(), c.privileged())?
        };
        self.punch(c, node, bytes.clone())?;
        let _exclusive = Exclusive::new(node);
        // What was dirty may have been written into the inode.
        self.leave_inode(c, node)?;
        preallocate::allocate(&cx, node, frags, &reservation)?;
        drop(reservation);
        self.extend_to(c, node, if keep_size { 0 } else { bytes.end })
    }

    /// Writes back the whole file before its extents are shifted. Returns the range in fragments.
    fn flush_for_shift(&self, node: &Arc<Node>, bytes: &Range<u64>, what: &str) -> Result<Range<u64>> {
        let bs = self.geo.block_size() as u64;
        if !bytes.start.is_multiple_of(bs) || !bytes.end.is_multiple_of(bs) {
            return Error::invalid(format!("a range to {what} that does not consist of whole blocks of {bs} bytes"));
        }
        let dirty = {
            let st = node.state.read();
            st.dirty || !st.data.pages.is_empty()
        };
        if dirty {
            writeback::write_back(&self.file_cx(), vec![node.clone()])?;
        }
        Ok(bytes.start >> self.geo.frag_shift..bytes.end >> self.geo.frag_shift)
    }

    /// Moves the contents out of the inode, and reserves space for the tree of extents. Dirty data of other files counts at its
    /// worst, so it is written back if that leaves nothing for either.
    fn ready_for_shift(&self, c: Caller, node: &Arc<Node>) -> Result<Reservation> {
        self.with_space(|| {
            let exclusive = Exclusive::new(node);
            self.leave_inode(c, node)?;
            drop(exclusive);
            preallocate::reserve_for_cut(&self.file_cx(), node)
        })
    }

    fn collapse(&self, c: Caller, node: &Arc<Node>, bytes: Range<u64>) -> Result<()> {
        let cx = self.file_cx();
        if bytes.end >= node.state.read().inode.size {
            return Error::invalid("a range to collapse that reaches the end of the file");
        }
        let frags = self.flush_for_shift(node, &bytes, "collapse")?;
        let nodes = self.ready_for_shift(c, node)?;
        let _exclusive = Exclusive::new(node);
        preallocate::remove(&cx, node, frags.clone(), &nodes)?;
        preallocate::shift_down(&cx, node, frags.end, frags.end - frags.start)
    }

    fn insert_range(&self, c: Caller, node: &Arc<Node>, bytes: Range<u64>) -> Result<()> {
        let size = node.state.read().inode.size;
        if bytes.start >= size {
            return Error::invalid("a gap to insert at the end of the file or behind it");
        }
        size.checked_add(bytes.end - bytes.start).filter(|s| *s <= FILE_SIZE_MAX).ok_or(Error::FileTooLarge)?;
        let frags = self.flush_for_shift(node, &bytes, "insert")?;
        drop(self.ready_for_shift(c, node)?);
        let _exclusive = Exclusive::new(node);
        preallocate::shift_up(&self.file_cx(), node, frags.start, frags.end - frags.start)
    }

    /// Moves inline contents to space of their own, through the log.
    fn leave_inode(&self, c: Caller, node: &Arc<Node>) -> Result<()> {
        let (dir, data) = {
            let st = node.state.read();
            match &st.inode.format {
                InodeFormat::Inline(data) => (st.inode.parent, data.clone()),
                _ => return Ok(()),
            }
        };
        let inode_bytes = INODE_CORE_SIZE + INLINE_MAX + 64;
        if data.is_empty() {
            let txn = self.journal.begin(inode_bytes)?;
            let mut st = node.state.write();
            st.inode.format = InodeFormat::Extents(Vec::new());
            return crate::node::store(&txn, &mut st);
        }
        let cx = self.file_cx();
        // Writeback is kept away from the file, so its reservations must be released by the caller.
        file::with_space(&cx, Reclaim::Commit, || {
            let reservation = node.state.read().data.new_reservation(cx.space, c.privileged());
            let contents = self.allocate_contents(&reservation, dir, &data)?;
            let log_bytes = self.log_bytes_contents(&contents) + self.space.log_bytes_for_init() + inode_bytes;
            let txn = self.journal.begin(log_bytes)?;
            let mut st = node.state.write();
            txn.begin_critical();
            let size = st.inode.size;
            reservation.charge(reservation.uncharged());
            let outcome = self.log_contents(&txn, &mut st.inode, &contents);
            st.inode.size = size;
            outcome?;
            crate::node::store(&txn, &mut st)?;
            txn.end_critical();
            Ok(())
        })
    }
}
