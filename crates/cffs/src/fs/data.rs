//! Reading and writing file contents, and making them durable.

use super::api::DirectWrite;
use super::traced::note_caller;
use super::{Caller, Fs, flags, now};
use crate::error::{Error, Result};
use crate::file::{self, writeback};
use crate::format::inode::{FLAG_APPEND, FLAG_IMMUTABLE, FLAG_SYNC};
use crate::format::{FILE_SIZE_MAX, FileType, Ino, ROOT_INO};
use crate::node::{Node, NodeState};
use crate::trace::Kind;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Dirty data up to this many bytes goes through the log at fsync.
const FSYNC_LOG_MAX: usize = 64 << 10;
/// Bytes fetched ahead of a sequential reader of a large file.
const READ_AHEAD: u64 = 2 << 20;
/// Shortest read of which two at a time keep a device busy, in bytes.
const LONG_READ: usize = 512 << 10;
/// Shortest write that counts as part of a stream, in bytes.
const STREAM_WRITE: usize = 256 << 10;

/// Fails if the file cannot be written from this offset on.
fn may_write(st: &NodeState, offset: u64) -> Result<()> {
    match st.inode.file_type() {
        FileType::Regular => {}
        FileType::Directory => return Err(Error::IsDir),
        _ => return Error::invalid("not a regular file"),
    }
    if st.freed {
        return Err(Error::Stale);
    }
    flags::forbid(st, FLAG_IMMUTABLE)?;
    if offset != st.inode.size { flags::forbid(st, FLAG_APPEND) } else { Ok(()) }
}

impl Fs {
    /// Reads from a file; returns the number of bytes, 0 at its end.
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.op(Kind::Read, [ino, offset, buf.len() as u64], |_| {}, || self.read_data(ino, offset, buf))
    }

    fn read_data(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let node = self.node(ino)?;
        let st = node.state.read();
        match st.inode.file_type() {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsDir),
            _ => return Error::invalid("not a regular file"),
        }
        let sequential =
            offset != 0 && node.last_read.load(Ordering::Relaxed) == offset || offset == 0 && buf.len() >= 65536;
        let len = (buf.len() as u64).min(st.inode.size.saturating_sub(offset));
        let looks_ahead = self.cache.looks_ahead();
        // What is mostly read in parts is not read on from one of them.
        let is_part = self.bring_parts(&st, offset..offset + len);
        if looks_ahead && len > 0 && !is_part {
            let ahead = node.readers.note(offset, len, self.cache.readahead_file_max());
            self.read_ahead(&st, ahead);
        }
        let reads_on = sequential && !looks_ahead && !is_part;
        let ahead = if reads_on && !self.cache.reads_direct(st.inode.size, len as usize) { READ_AHEAD } else { 0 };
        node.reads.fetch_add(1, Ordering::Relaxed);
        let n = file::read(&self.file_cx(), &st, offset, buf);
        let alone = node.reads.fetch_sub(1, Ordering::Relaxed) == 1;
        let n = n?;
        // Where a kernel has the next long read under way, it reads ahead by itself. The thread would overtake that read.
        if alone || n < LONG_READ {
            self.read_ahead(&st, offset + n as u64..offset + n as u64 + ahead);
        }
        node.last_read.store(offset + n as u64, Ordering::Relaxed);
        self.note_access(&node, &st);
        Ok(n)
    }

    /// Writes to a file; returns the number of bytes taken.
    pub fn write(&self, c: Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.op(
            Kind::Write,
            [ino, offset, data.len() as u64],
            |d| {
                note_caller(d, c);
            },
            || self.write_data(c, ino, offset, data),
        )
    }

    fn write_data(&self, c: Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.writable()?;
        let node = self.node(ino)?;
        self.throttle(data.len())?;
        let mut n = 0;
        // What found no space after a part was taken may find it when that is written back.
        loop {
            let taken = match self.write_some(c, &node, offset + n as u64, &data[n..]) {
                Err(_) if n > 0 => break,
                outcome => outcome?,
            };
            n += taken;
            if taken == 0 || n == data.len() {
                break;
            }
        }
        if !node.on_dirty_list.load(Ordering::Acquire) {
            let parent = node.state.read().inode.parent;
            self.track_path(parent);
        }
        self.list_again(&node);
        self.start_writeback(&node, n);
        if n > 0 && node.state.read().inode.flags & FLAG_SYNC != 0 {
            self.fsync(ino, true)?;
        }
        Ok(n)
    }

    /// Writes what there is space for; an error if that is nothing.
    fn write_some(&self, c: Caller, node: &Arc<Node>, offset: u64, data: &[u8]) -> Result<usize> {
        let attempt = || self.with_space(|| self.write_once(c, node, offset, data));
        match attempt() {
            Err(Error::NoSpace) if self.write_zeros_around(node, offset, data.len())? => attempt(),
            outcome => outcome,
        }
    }

    /// After a write that found no space: makes the space written that was allocated ahead for its range, so that the write
    /// needs nothing for the extent tree. False if there is no such space.
    fn write_zeros_around(&self, node: &Arc<Node>, offset: u64, len: usize) -> Result<bool> {
        let _write_lock = self.lock_for_change(node)?;
        let end = self.geo.frags_for(offset.saturating_add(len as u64));
        file::write_zeros(&self.file_cx(), node, offset >> self.geo.frag_shift..end)
    }

    /// After a write of `len` bytes: starts writeback of a file with long writes while the program produces more,
    /// instead of waiting until memory is full. If the device lags, dirty pages accumulate and get longer batches.
    fn start_writeback(&self, node: &Arc<Node>, len: usize) {
        if len < STREAM_WRITE {
            return;
        }
        let Some(streams) = &self.streams else { return };
        let (least, most) = streams.batch_bytes(self.opts.cache_bytes, self.cache.max_request());
        let dirty = node.state.read().data.waiting_pages() << self.geo.block_shift;
        if dirty < least {
            return;
        }
        // Whole stripes, of which each device has as much to write.
        let stripe = (self.cache.device().stripe() as usize).clamp(1, most.max(1));
        let most = most - most % stripe;
        let unwritten = streams.start(node.ino, dirty, || {
            let begun = writeback::begin_beside(&self.file_cx(), node, most >> self.geo.block_shift);
            // Whoever can make room for it, or keeps the error for fsync, tries again.
            begun.inspect_err(|_| self.wake_background()).ok().flatten()
        });
        if let Some(batch) = unwritten {
            writeback::write_beside(&self.file_cx(), batch);
        }
    }

    /// Writes back a file whose pages were changed when there was too little space to reserve blocks for its extent tree.
    /// [`Node::write_lock`] is held, the node is not locked.
    pub(super) fn flush_if_needed(&self, node: &Arc<Node>) {
        let must_flush = { std::mem::take(&mut node.state.write().data.must_flush) };
        if must_flush {
            self.list_dirty(node);
            // An error is kept for fsync.
            let _ = writeback::write_back(&self.file_cx(), vec![node.clone()]);
        }
    }

    fn write_once(&self, c: Caller, node: &Arc<Node>, offset: u64, data: &[u8]) -> Result<usize> {
        let _write_lock = node.write_lock.lock();
        if self.direct_write(c, node, offset, data)? {
            return Ok(data.len());
        }
        file::flush_deferred(&self.file_cx(), node)?;
        self.write_pages(c, node, offset, data)
    }

    /// Keeps writes and truncation away from a file while its space, or the room in its inode, changes. The file has no
    /// deferred extents then: its data is in pages or mapped.
    pub(super) fn lock_for_change<'a>(&self, node: &'a Arc<Node>) -> Result<MutexGuard<'a, ()>> {
        let guard = node.write_lock.lock();
        file::flush_deferred(&self.file_cx(), node)?;
        Ok(guard)
    }

    /// Makes a direct write if that is possible and better; false if it is not.
    fn direct_write(&self, c: Caller, node: &Arc<Node>, offset: u64, data: &[u8]) -> Result<bool> {
        let long = || {
            let end = offset.saturating_add(data.len() as u64);
            data.len() >= STREAM_WRITE && self.cache.is_long(end.max(node.state.read().inode.size))
        };
        let wanted = match self.opts.direct_write {
            DirectWrite::Off => false,
            DirectWrite::Fast => self.opts.background && long() && self.cache.favours_direct_writes(),
            DirectWrite::Always => true,
        };
        let possible = || offset.checked_add(data.len() as u64).is_some_and(|end| end <= FILE_SIZE_MAX);
        if !wanted || data.is_empty() || !possible() || !self.cache.takes(data) {
            return Ok(false);
        }
        may_write(&node.state.read(), offset)?;
        let written = file::direct::write(&self.file_cx(), node, offset, data, c.privileged(), now());
        if written {
            self.list_dirty(node);
        }
        Ok(written)
    }

    /// Writes bytes into pages. [`Node::write_lock`] is held.
    fn write_pages(&self, c: Caller, node: &Arc<Node>, offset: u64, data: &[u8]) -> Result<usize> {
        let (written, must_flush) = {
            let mut st = node.state.write();
            if data.is_empty() {
                return may_write(&st, st.inode.size).map(|()| 0);
            }
            may_write(&st, offset)?;
            let written = file::write(&self.file_cx(), &mut st, offset, data, c.privileged());
            // Even after an error there may be new zeros behind the old end.
            self.list_again(node);
            if written.is_ok() {
                let now = now();
                (st.inode.mtime, st.inode.ctime) = (now, now);
            }
            (written, st.data.must_flush)
        };
        if must_flush {
            self.flush_if_needed(node);
        }
        written
    }

    /// Bounds dirty data by its share of the cache: above a quarter the background thread starts writeback, above half
    /// the writer writes back itself. Where a commit goes in place, names are committed with the data then, and both when many names wait.
    fn throttle(&self, more: usize) -> Result<()> {
        if let Some(streams) = &self.streams {
            // What is on its way makes room.
            streams.wait_while(|| self.cache.dirty_data() + more > self.opts.cache_bytes / 2);
        }
        let dirty = self.cache.dirty_data() + more;
        if dirty > self.opts.cache_bytes / 2 || self.journal.is_crowded() && !self.writing_back.is_locked() {
            let seq = self.journal.running_seq();
            // An error is reported by fsync of the files concerned. Here it counts only if memory stays full.
            if let Err(e) = self.write_back_all(self.opts.lazytime)
                && self.cache.dirty_data() + more > self.opts.cache_bytes / 2
            {
                return Err(e);
            }
            if self.journal.is_atomic() {
                self.journal.commit_waiting(seq)?;
            }
        } else if self.opts.background
            && dirty.saturating_sub(self.streams.as_ref().map_or(0, |s| s.bytes())) > self.opts.cache_bytes / 4
        {
            self.wake_background();
        }
        Ok(())
    }

    /// Makes a file durable: contents, attributes, names. For a directory this includes its names, and for the root the
    /// whole file system (Linux passes sync(2) on to some FUSE mounts only). With `data_only`, attributes
    /// that are not needed to read the contents could be left out; they are not.
    pub fn fsync(&self, ino: Ino, _data_only: bool) -> Result<()> {
        self.op(Kind::Fsync, [ino, 0, 0], |_| {}, || self.make_durable(ino))
    }

    fn make_durable(&self, ino: Ino) -> Result<()> {
        self.journal.check_not_shut_down()?;
        if self.opts.read_only {
            return Ok(());
        }
        if ino == ROOT_INO {
            return self.sync();
        }
        let node = self.node(ino)?;
        let flushed = self.flush_node(&node);
        // An error is returned once; what could not be written stays dirty.
        let earlier = node.state.write().data.error.take();
        flushed?;
        self.journal.commit()?;
        earlier.map_or(Ok(()), Err)
    }

    /// Writes a file's dirty data so that the next commit makes it durable.
    pub(super) fn flush_node(&self, node: &Arc<Node>) -> Result<()> {
        let small = {
            let st = node.state.read();
            if st.data.is_mapped() && !st.dirty {
                drop(st);
                // The data may be in writeback already.
                node.wait_writeback();
                return Ok(());
            }
            file::fits_log(&st, FSYNC_LOG_MAX)
        };
        let cx = self.file_cx();
        if small && self.opts.fsync_in_log && self.journal.has_log() {
            file::write_through_journal(&cx, node)
        } else {
            writeback::write_back(&cx, vec![node.clone()])
        }
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<()> {
        self.op(Kind::Sync, [0; 3], |_| {}, || self.sync_all())
    }

    fn sync_all(&self) -> Result<()> {
        self.journal.check_not_shut_down()?;
        if self.opts.read_only {
            return Ok(());
        }
        self.journal.check()?;
        // An error of one file must not keep the others' changes from becoming durable.
        let written = self.write_back_all(false);
        self.journal.commit()?;
        written
    }

    /// First position of data at or after `offset`.
    pub fn seek_data(&self, ino: Ino, offset: u64) -> Result<u64> {
        self.op(Kind::Seek, [ino, offset, 0], |d| d.add_number(0), || self.seek(ino, offset, true))
    }

    /// First position of a hole at or after `offset`; the end of the file counts as one.
    pub fn seek_hole(&self, ino: Ino, offset: u64) -> Result<u64> {
        self.op(Kind::Seek, [ino, offset, 0], |d| d.add_number(1), || self.seek(ino, offset, false))
    }

    fn seek(&self, ino: Ino, offset: u64, want_data: bool) -> Result<u64> {
        let node = self.node(ino)?;
        let st = node.state.read();
        let size = st.inode.size;
        if offset >= size {
            return Err(Error::NoDataBeyond);
        }
        let mut at = offset;
        while at < size {
            let (data, end) = file::seek(&self.file_cx(), &st, at)?;
            if data == want_data {
                return Ok(at);
            }
            at = end;
        }
        if want_data { Err(Error::NoDataBeyond) } else { Ok(size) }
    }

    /// Stores placement hints of directories that changed while the directory itself was not written.
    pub(super) fn store_hints(&self) -> Result<()> {
        for node in self.inodes.all() {
            let hint = self.placement.hint(node.ino);
            let wanted = {
                let st = node.state.read();
                st.inode.is_dir() && !st.orphan && !st.freed && hint != 0 && st.inode.hint != hint
            };
            if wanted {
                let txn = self.journal.begin(1024)?;
                let mut st = node.state.write();
                st.inode.hint = hint;
                crate::node::store(&txn, &mut st)?;
            }
        }
        Ok(())
    }
}
