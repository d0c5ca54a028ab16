//! Regular files and block devices.

use crate::device::{Device, ReadRequest, WriteRequest};
use crate::lock::{in_use, lock};
use crate::queue::{is_rotational, longest_request};
use crate::range::{check_read, check_write, clip_discard, total, total_mut};
use crate::request::IoKind;
use cffs_buf::{AlignedBuf, WorkerPool, discard_blocks};
use parking_lot::Mutex;
use rustix::fs::{
    Advice, AtFlags, FallocateFlags, OFlags, StatxFlags, fadvise, fallocate, fcntl_getfl, fcntl_setfl, fdatasync,
    ioctl_blksszget, statx,
};
use rustix::io::{Errno, pread, preadv, pwrite, pwritev, retry_on_intr};
use std::cell::RefCell;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Largest request, and the size of the buffer that unaligned memory goes through.
const MAX_REQUEST: usize = 1 << 20;
/// Requests of a batch that are in flight at once.
const QUEUE_DEPTH: usize = 16;
/// Sector size of buffered I/O, where the kernel's page cache does the rest.
const BUFFERED_SECTOR: u32 = 512;

/// Whether to go around the kernel's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// Direct I/O where the file and its file system can do it, buffered I/O otherwise.
    Auto,
    /// Buffered I/O.
    Never,
}

/// How to keep others from the image while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// A writer is alone; readers share the image with readers.
    Auto,
    /// Alone, also when only reading.
    Exclusive,
    /// No lock, for a look at an image that may be in use.
    None,
}

/// How to open an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMode {
    /// Open for reading only.
    pub read_only: bool,
    /// Direct or buffered I/O.
    pub direct: Direct,
    /// What to keep others from.
    pub lock: Lock,
}

impl OpenMode {
    /// For reading and writing, alone, direct where possible.
    pub const READ_WRITE: OpenMode = OpenMode { read_only: false, direct: Direct::Auto, lock: Lock::Auto };
    /// For reading, together with other readers, direct where possible.
    pub const READ_ONLY: OpenMode = OpenMode { read_only: true, direct: Direct::Auto, lock: Lock::Auto };
}

/// A regular file or a block device as a [`Device`].
///
/// The lock on the image lives as long as the `FileDevice`, also in a child after `fork`. The threads that perform
/// batches start with the first batch and do not survive a `fork`, so a process has to go to the background before it
/// writes.
pub struct FileDevice {
    file: File,
    /// Keeps a block device from being mounted, and from whoever else asks for it alone.
    claim: Mutex<Option<File>>,
    /// Whether it was opened with a claim.
    claimed: bool,
    path: PathBuf,
    read_only: bool,
    block_device: bool,
    len: AtomicU64,
    /// Whether O_DIRECT is set on `file`.
    direct: AtomicBool,
    sector: AtomicU32,
    max_request: usize,
    rotational: bool,
    /// What direct I/O demands of memory addresses.
    memory_align: usize,
    /// Cleared when the device or the file system below has said that it cannot discard.
    can_discard: AtomicBool,
    pool: WorkerPool,
}

/// Adds what was done where to an error, and keeps its kind.
fn explain(path: &Path, what: impl fmt::Display, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("{}: {what}: {error}", path.display()))
}

/// Claims a block device: fails if it is mounted, or claimed in this way by somebody else. The claim belongs to the open file,
/// apart from the one for I/O, because it can be given up alone. It is open for reading only: udev looks at a device anew
/// whenever a writer closes it.
fn claim_device(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::EXCL.bits() as i32).open(path).map_err(|e| {
        if e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) {
            in_use(path, ": it is mounted or held by another program")
        } else {
            explain(path, "cannot open the image", e)
        }
    })
}

/// An error of our own, with the path in front.
fn refusal(path: &Path, kind: io::ErrorKind, what: impl fmt::Display) -> io::Error {
    io::Error::new(kind, format!("{}: {what}", path.display()))
}

impl FileDevice {
    /// Opens an image that exists.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> io::Result<Self> {
        Self::open_or_create(path.as_ref(), mode, false)
    }

    /// Opens an image for writing, creates the file if it is missing, and gives it `len` bytes. A new file is sparse;
    /// what an existing one contains stays, as far as it fits. On a block device `len` must not be above its size, and
    /// the rest of it is left alone.
    pub fn create(path: impl AsRef<Path>, len: u64, mode: OpenMode) -> io::Result<Self> {
        let dev = Self::open_or_create(path.as_ref(), OpenMode { read_only: false, ..mode }, true)?;
        dev.set_len(len)?;
        Ok(dev)
    }

    fn open_or_create(path: &Path, mode: OpenMode, create: bool) -> io::Result<Self> {
        // Looked at before it is opened: to open a FIFO or a tape does things, and a block device is opened otherwise.
        let block_device = match std::fs::metadata(path) {
            Ok(meta) if meta.file_type().is_block_device() => true,
            Ok(meta) if meta.is_file() => false,
            Ok(_) => {
                let what = "neither a regular file nor a block device";
                return Err(refusal(path, io::ErrorKind::InvalidInput, what));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound && create => false,
            Err(e) => return Err(explain(path, "cannot open the image", e)),
        };
        let exclusive = mode.lock == Lock::Exclusive || (mode.lock == Lock::Auto && !mode.read_only);
        // The claim comes first: to open a device that is mounted for writing is no harmless thing.
        let claim = if block_device && exclusive { Some(claim_device(path)?) } else { None };
        let mut options = OpenOptions::new();
        options.read(true).write(!mode.read_only).create(create && !block_device);
        let file = options.open(path).map_err(|e| explain(path, "cannot open the image", e))?;
        if mode.lock != Lock::None {
            lock(&file, path, exclusive)?;
            if block_device && !exclusive {
                // Readers share, but not with a mounted file system. The lock comes first, so that this moment is
                // no obstacle to another reader's.
                drop(claim_device(path)?);
            }
        }
        let mut dev = FileDevice {
            file,
            claimed: claim.is_some(),
            claim: Mutex::new(claim),
            path: path.to_owned(),
            read_only: mode.read_only,
            block_device,
            len: AtomicU64::new(0),
            direct: AtomicBool::new(false),
            sector: AtomicU32::new(BUFFERED_SECTOR),
            max_request: MAX_REQUEST,
            rotational: true,
            memory_align: 1,
            can_discard: AtomicBool::new(true),
            pool: WorkerPool::new("cffs-io", QUEUE_DEPTH),
        };
        dev.rotational = is_rotational(&dev.file);
        dev.len = AtomicU64::new(dev.actual_len()?);
        if mode.direct == Direct::Auto {
            dev.try_direct();
        }
        if !dev.is_direct() {
            dev.stop_readahead();
        } else if block_device {
            dev.max_request = longest_request(&dev.file, MAX_REQUEST);
        }
        Ok(dev)
    }

    /// Gives up the claim on a block device, so that the kernel can claim it for a mount. The lock stays, which keeps other
    /// programs of cffs away; others may claim the device from now on, so nothing must be written to it before it is
    /// claimed again, by the mount or by [`FileDevice::reclaim`].
    pub fn release_claim(&self) {
        *self.claim.lock() = None;
    }

    /// Claims a block device again after [`FileDevice::release_claim`], if it had a claim at all. Fails with
    /// `ResourceBusy` if somebody else has claimed it meanwhile.
    pub fn reclaim(&self) -> io::Result<()> {
        let mut claim = self.claim.lock();
        if self.claimed && claim.is_none() {
            *claim = Some(claim_device(&self.path)?);
        }
        Ok(())
    }

    /// Path that the image was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a block device, not a regular file.
    pub fn is_block_device(&self) -> bool {
        self.block_device
    }

    /// Whether I/O goes around the kernel's page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// Switches from direct to buffered I/O, with sectors of 512 bytes; the lock stays. For a file system whose
    /// fragments are smaller than the sectors that direct I/O demands.
    pub fn use_buffered(&self) -> io::Result<()> {
        if self.is_direct() {
            let flags = fcntl_getfl(&self.file).map_err(|e| explain(&self.path, "cannot read the open flags", e))?;
            fcntl_setfl(&self.file, flags - OFlags::DIRECT)
                .map_err(|e| explain(&self.path, "cannot leave direct I/O", e))?;
            self.direct.store(false, Ordering::Relaxed);
            self.stop_readahead();
        }
        self.sector.store(BUFFERED_SECTOR, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the length of a regular file: what is added is a hole, what is cut off is gone. On a block device only
    /// checks that it has that many bytes, and uses no more.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        if self.block_device {
            let size = self.actual_len()?;
            if len > size {
                let what = format_args!("the device has {size} bytes, {len} do not fit");
                return Err(refusal(&self.path, io::ErrorKind::InvalidInput, what));
            }
        } else if let Err(e) = retry_on_intr(|| rustix::fs::ftruncate(&self.file, len)) {
            return Err(explain(&self.path, format_args!("cannot set the length to {len} bytes"), e));
        }
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    /// The size now, from the kernel.
    fn actual_len(&self) -> io::Result<u64> {
        // The size of a block device is not in its metadata, but seeking knows it.
        (&self.file).seek(SeekFrom::End(0)).map_err(|e| explain(&self.path, "cannot find out the size", e))
    }

    /// Requests are chosen by the file system; what the kernel reads beyond them is read for nothing.
    fn stop_readahead(&self) {
        // A hint, whose failure is not worth a word.
        let _ = fadvise(&self.file, 0, None, Advice::Random);
    }

    /// Turns direct I/O on if it works here.
    fn try_direct(&mut self) {
        let Some((memory_align, mut sector)) = self.direct_alignment() else { return };
        let Ok(flags) = fcntl_getfl(&self.file) else { return };
        if fcntl_setfl(&self.file, flags | OFlags::DIRECT).is_err() {
            return;
        }
        // What the kernel says is tried, because not every kernel and file system says it.
        let len = *self.len.get_mut();
        loop {
            let mut buf = AlignedBuf::zeroed(sector as usize);
            match retry_on_intr(|| pread(&self.file, &mut buf[..], 0)) {
                Err(Errno::INVAL) if sector < 4096 && len > 0 => sector = 4096,
                Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                    let _ = fcntl_setfl(&self.file, flags);
                    return;
                }
                // Any other error is the image's, and will be told when somebody needs those bytes.
                _ => break,
            }
        }
        self.memory_align = memory_align;
        *self.sector.get_mut() = sector;
        *self.direct.get_mut() = true;
    }

    /// The alignment that direct I/O demands of memory and of offsets; `None` where there is no direct I/O.
    fn direct_alignment(&self) -> Option<(usize, u32)> {
        let block_sector = if self.block_device { ioctl_blksszget(&self.file).ok() } else { None };
        let told = statx(&self.file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
            .ok()
            .filter(|s| s.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
        match told {
            Some(s) if s.stx_dio_offset_align == 0 => None,
            Some(s) => {
                let sector = s.stx_dio_offset_align.max(block_sector.unwrap_or(0)).max(512);
                sector.is_power_of_two().then(|| (s.stx_dio_mem_align.max(1) as usize, sector))
            }
            None => {
                let sector = block_sector.unwrap_or(512).max(512);
                Some((sector as usize, sector))
            }
        }
    }

    /// Whether direct I/O cannot use this memory.
    fn needs_bounce<'b>(&self, bufs: impl IntoIterator<Item = &'b [u8]>) -> bool {
        let length_mask = self.sector.load(Ordering::Relaxed) as usize - 1;
        self.is_direct()
            && bufs
                .into_iter()
                .any(|b| !(b.as_ptr() as usize).is_multiple_of(self.memory_align) || b.len() & length_mask != 0)
    }

    /// Direct I/O was refused in spite of all: goes on buffered. Another thread may have come to the same end before.
    fn direct_refused(&self) -> io::Result<()> {
        tracing::warn!(image = %self.path.display(), "direct I/O was refused; going on with buffered I/O");
        let sector = self.sector.load(Ordering::Relaxed);
        self.use_buffered()?;
        // Whoever asked for the sector size before goes on to rely on it.
        self.sector.store(sector, Ordering::Relaxed);
        Ok(())
    }

    /// Goes on after a transfer: how many of the `n` bytes count. Direct I/O can only go on at a sector.
    fn usable(&self, n: usize) -> usize {
        if self.is_direct() { n & !(self.sector.load(Ordering::Relaxed) as usize - 1) } else { n }
    }

    fn truncated(&self, offset: u64, len: usize) -> io::Error {
        let size = self.actual_len().map_or("?".to_owned(), |n| n.to_string());
        let what =
            format_args!("read of {len} bytes at offset {offset}, but the image ends at {size}: it is truncated");
        refusal(&self.path, io::ErrorKind::UnexpectedEof, what)
    }

    fn read_error(&self, offset: u64, len: usize, e: Errno) -> io::Error {
        explain(&self.path, format_args!("read of {len} bytes at offset {offset}"), e)
    }

    fn write_error(&self, offset: u64, len: usize, e: Errno) -> io::Error {
        let what = format_args!("write of {len} bytes at offset {offset}");
        if matches!(e, Errno::NOSPC | Errno::DQUOT) && !self.block_device {
            let error = explain(&self.path, what, e);
            let what = format!("{error}: the disk that holds the image is full; make room there");
            return io::Error::new(error.kind(), what);
        }
        explain(&self.path, what, e)
    }

    /// Fills memory that suits direct I/O, or any memory if I/O is buffered.
    fn pread_exact(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let direct = self.is_direct();
            match retry_on_intr(|| pread(&self.file, &mut buf[done..], offset + done as u64)) {
                Ok(n) if self.usable(n) == 0 => return Err(self.truncated(offset, buf.len())),
                Ok(n) => done += self.usable(n),
                Err(Errno::INVAL) if direct => self.direct_refused()?,
                Err(e) => return Err(self.read_error(offset, buf.len(), e)),
            }
        }
        Ok(())
    }

    /// Writes memory that suits direct I/O, or any memory if I/O is buffered.
    fn pwrite_all(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let direct = self.is_direct();
            match retry_on_intr(|| pwrite(&self.file, &buf[done..], offset + done as u64)) {
                Ok(n) if self.usable(n) == 0 => return Err(self.write_error(offset, buf.len(), Errno::IO)),
                Ok(n) => done += self.usable(n),
                Err(Errno::INVAL) if direct => self.direct_refused()?,
                Err(e) => return Err(self.write_error(offset, buf.len(), e)),
            }
        }
        Ok(())
    }

    /// A read into memory that direct I/O cannot use.
    fn read_bounced(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let len = total_mut(bufs);
        with_bounce(len, |bounce| {
            let mut targets = bufs.iter_mut().map(|b| &mut b[..]);
            let mut target: &mut [u8] = &mut [];
            let mut done = 0;
            while done < len {
                let part = (len - done).min(bounce.len());
                self.pread_exact(offset + done as u64, &mut bounce[..part])?;
                done += part;
                let mut source = &bounce[..part];
                while !source.is_empty() {
                    while target.is_empty() {
                        target = targets.next().expect("the buffers have the bytes that were counted");
                    }
                    let n = source.len().min(target.len());
                    let (head, tail) = std::mem::take(&mut target).split_at_mut(n);
                    head.copy_from_slice(&source[..n]);
                    target = tail;
                    source = &source[n..];
                }
            }
            Ok(())
        })
    }

    /// A write from memory that direct I/O cannot use.
    fn write_bounced(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let len = total(bufs);
        with_bounce(len, |bounce| {
            let mut sources = bufs.iter().map(|b| &b[..]);
            let mut source: &[u8] = &[];
            let mut done = 0;
            while done < len {
                let part = (len - done).min(bounce.len());
                let mut target = &mut bounce[..part];
                while !target.is_empty() {
                    while source.is_empty() {
                        source = sources.next().expect("the buffers have the bytes that were counted");
                    }
                    let n = source.len().min(target.len());
                    let (head, tail) = std::mem::take(&mut target).split_at_mut(n);
                    head.copy_from_slice(&source[..n]);
                    target = tail;
                    source = &source[n..];
                }
                self.pwrite_all(offset + done as u64, &bounce[..part])?;
                done += part;
            }
            Ok(())
        })
    }

    /// The rest of a read of which `done` bytes were read. Apart, because it is rare and has to copy the list of
    /// buffers to leave the caller's as it was.
    #[cold]
    fn read_rest(&self, offset: u64, bufs: &mut [IoSliceMut<'_>], mut done: usize) -> io::Result<()> {
        let len = total_mut(bufs);
        let mut list: Vec<IoSliceMut<'_>> = bufs.iter_mut().map(|b| IoSliceMut::new(b)).collect();
        let mut rest = &mut list[..];
        IoSliceMut::advance_slices(&mut rest, done);
        while done < len {
            let at = offset + done as u64;
            if self.needs_bounce(rest.iter().map(|b| &b[..])) {
                return self.read_bounced(at, rest);
            }
            let direct = self.is_direct();
            let n = match retry_on_intr(|| preadv(&self.file, rest, at)) {
                Ok(n) => self.usable(n),
                Err(Errno::INVAL) if direct => {
                    self.direct_refused()?;
                    continue;
                }
                Err(e) => return Err(self.read_error(offset, len, e)),
            };
            if n == 0 {
                return Err(self.truncated(offset, len));
            }
            IoSliceMut::advance_slices(&mut rest, n);
            done += n;
        }
        Ok(())
    }

    /// The rest of a write, as [`Self::read_rest`].
    #[cold]
    fn write_rest(&self, offset: u64, bufs: &[IoSlice<'_>], mut done: usize) -> io::Result<()> {
        let len = total(bufs);
        let mut list = bufs.to_vec();
        let mut rest = &mut list[..];
        IoSlice::advance_slices(&mut rest, done);
        while done < len {
            let at = offset + done as u64;
            if self.needs_bounce(rest.iter().map(|b| &b[..])) {
                return self.write_bounced(at, rest);
            }
            let direct = self.is_direct();
            let n = match retry_on_intr(|| pwritev(&self.file, rest, at)) {
                Ok(n) => self.usable(n),
                Err(Errno::INVAL) if direct => {
                    self.direct_refused()?;
                    continue;
                }
                Err(e) => return Err(self.write_error(offset, len, e)),
            };
            if n == 0 {
                return Err(self.write_error(offset, len, Errno::IO));
            }
            IoSlice::advance_slices(&mut rest, n);
            done += n;
        }
        Ok(())
    }

    fn refuse_if_read_only(&self) -> io::Result<()> {
        if self.read_only {
            let what = "the image was opened for reading only";
            return Err(refusal(&self.path, io::ErrorKind::ReadOnlyFilesystem, what));
        }
        Ok(())
    }
}

/// Gives `f` an aligned buffer of this thread, as long as `len` up to [`MAX_REQUEST`].
fn with_bounce<R>(len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    thread_local! {
        static BOUNCE: RefCell<AlignedBuf> = const { RefCell::new(AlignedBuf::empty()) };
    }
    // Always 4096-aligned and in whole sectors: at least 64 KiB, the largest sector there is.
    let want = len.min(MAX_REQUEST).next_power_of_two().max(64 << 10);
    BOUNCE.with_borrow_mut(|buf| {
        if buf.len() < want {
            *buf = AlignedBuf::zeroed(want);
        }
        f(&mut buf[..want])
    })
}

impl Device for FileDevice {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn sector_size(&self) -> u32 {
        self.sector.load(Ordering::Relaxed)
    }

    fn max_request(&self) -> usize {
        self.max_request
    }

    fn is_rotational(&self) -> bool {
        self.rotational
    }

    fn read_vectored(&self, _kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let len = total_mut(bufs);
        check_read(self.len(), self.sector_size(), offset, len).map_err(|e| refusal(&self.path, e.kind(), e))?;
        if len == 0 {
            return Ok(());
        }
        if self.needs_bounce(bufs.iter().map(|b| &b[..])) {
            return self.read_bounced(offset, bufs);
        }
        let direct = self.is_direct();
        match retry_on_intr(|| preadv(&self.file, bufs, offset)) {
            Ok(n) if n == len => Ok(()),
            Ok(0) => Err(self.truncated(offset, len)),
            Ok(n) => self.read_rest(offset, bufs, self.usable(n)),
            Err(Errno::INVAL) if direct => self.read_rest(offset, bufs, 0),
            Err(e) => Err(self.read_error(offset, len, e)),
        }
    }

    fn write_vectored(&self, _kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.refuse_if_read_only()?;
        let len = total(bufs);
        check_write(self.len(), self.sector_size(), offset, len).map_err(|e| refusal(&self.path, e.kind(), e))?;
        if len == 0 {
            return Ok(());
        }
        if self.needs_bounce(bufs.iter().map(|b| &b[..])) {
            return self.write_bounced(offset, bufs);
        }
        let direct = self.is_direct();
        match retry_on_intr(|| pwritev(&self.file, bufs, offset)) {
            Ok(n) if n == len => Ok(()),
            Ok(n) => self.write_rest(offset, bufs, self.usable(n)),
            Err(Errno::INVAL) if direct => self.write_rest(offset, bufs, 0),
            Err(e) => Err(self.write_error(offset, len, e)),
        }
    }

    fn takes(&self, memory: &[u8]) -> bool {
        !self.needs_bounce([memory])
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        let first_error: Mutex<Option<(usize, io::Error)>> = Mutex::new(None);
        let write = |i: usize| {
            let r = &requests[i];
            if let Err(e) = self.write_vectored(r.kind, r.offset, &r.bufs) {
                let mut first = first_error.lock();
                if first.as_ref().is_none_or(|(j, _)| i < *j) {
                    *first = Some((i, e));
                }
            }
        };
        if self.is_direct() {
            self.pool.run(requests.len(), &write);
        } else {
            // A buffered write copies into the page cache under a lock of the file: threads would only queue for it.
            (0..requests.len()).for_each(write);
        }
        first_error.into_inner().map_or(Ok(()), |(_, e)| Err(e))
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        let first_error: Mutex<Option<(u64, io::Error)>> = Mutex::new(None);
        // Each is taken by one thread; the lock only tells the compiler so.
        let each: Vec<Mutex<&mut ReadRequest<'_>>> = requests.iter_mut().map(Mutex::new).collect();
        let read = |i: usize| {
            let r = &mut *each[i].lock();
            if let Err(e) = self.read_at(r.kind, r.offset, r.buf) {
                let mut first = first_error.lock();
                if first.as_ref().is_none_or(|(at, _)| r.offset < *at) {
                    *first = Some((r.offset, e));
                }
            }
        };
        self.pool.run(each.len(), &read);
        first_error.into_inner().map_or(Ok(()), |(_, e)| Err(e))
    }

    fn flush(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        retry_on_intr(|| fdatasync(&self.file)).map_err(|e| explain(&self.path, "flush", e))
    }

    fn can_discard(&self) -> bool {
        !self.read_only && self.can_discard.load(Ordering::Relaxed)
    }

    fn grow(&self, len: Option<u64>) -> io::Result<u64> {
        if self.read_only {
            return Ok(self.len());
        }
        let (have, want) = (self.actual_len()?, len.unwrap_or(0));
        if want > have && self.block_device {
            let what = format_args!("the device has {have} bytes, {want} are not possible");
            return Err(refusal(&self.path, io::ErrorKind::InvalidInput, what));
        }
        if want > have {
            retry_on_intr(|| rustix::fs::ftruncate(&self.file, want))
                .map_err(|e| explain(&self.path, format_args!("cannot make it {want} bytes long"), e))?;
        }
        self.len.fetch_max(have.max(want), Ordering::AcqRel);
        Ok(self.len())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.read_only || !self.can_discard.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some((offset, len)) = clip_discard(self.len(), self.sector_size(), offset, len) else { return Ok(()) };
        let result = if self.block_device {
            discard_blocks(&self.file, offset, len)
        } else {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            retry_on_intr(|| fallocate(&self.file, punch, offset, len)).map_err(io::Error::from)
        };
        match result {
            Err(e) if unsupported(&e) => {
                self.can_discard.store(false, Ordering::Relaxed);
                Ok(())
            }
            result => result.map_err(|e| explain(&self.path, format_args!("discard of {len} bytes at {offset}"), e)),
        }
    }

    fn read_only(&self) -> bool {
        self.read_only
    }
}

/// Whether the error of a discard says that there is no such thing here.
fn unsupported(e: &io::Error) -> bool {
    [Errno::OPNOTSUPP, Errno::NOSYS, Errno::NOTTY, Errno::NODEV, Errno::INVAL]
        .iter()
        .any(|errno| e.raw_os_error() == Some(errno.raw_os_error()))
}

impl fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileDevice")
            .field("path", &self.path)
            .field("len", &self.len())
            .field("sector_size", &self.sector_size())
            .field("direct", &self.is_direct())
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
