//! Limits: a device that fails after so many requests, and calls that turn a panic into a failure.

use super::outcome::Failure;
use cffs::device::{Device, IoKind};
use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device that counts requests and, beyond a limit, fails them all.
pub struct Limited {
    inner: Arc<dyn Device>,
    used: AtomicU64,
    limit: u64,
}

impl Limited {
    /// At most `limit` requests.
    pub fn new(inner: Arc<dyn Device>, limit: u64) -> Arc<Limited> {
        Arc::new(Limited { inner, used: AtomicU64::new(0), limit })
    }

    /// Requests so far.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether more were asked for than are allowed.
    pub fn exceeded(&self) -> bool {
        self.used() > self.limit
    }

    fn count(&self) -> io::Result<()> {
        if self.used.fetch_add(1, Ordering::Relaxed) >= self.limit {
            return Err(io::Error::other(format!("more than {} requests", self.limit)));
        }
        Ok(())
    }
}

impl Device for Limited {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn sector_size(&self) -> u32 {
        self.inner.sector_size()
    }
    fn max_request(&self) -> usize {
        self.inner.max_request()
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.count()?;
        self.inner.read_vectored(kind, offset, bufs)
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.count()?;
        self.inner.write_vectored(kind, offset, bufs)
    }
    fn flush(&self) -> io::Result<()> {
        self.count()?;
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.count()?;
        self.inner.discard(offset, len)
    }
}

thread_local! {
    static PANIC: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
    static CATCHING: RefCell<bool> = const { RefCell::new(false) };
}

fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !CATCHING.with(|c| *c.borrow()) {
                return before(info);
            }
            let place = info.location().map_or_else(String::new, |l| format!("{}:{}", l.file(), l.line()));
            let text = info.payload_as_str().unwrap_or("no message").to_string();
            let text = match std::env::var_os("CFFS_FUZZ_BACKTRACE") {
                Some(_) => format!("{text}\n{}", std::backtrace::Backtrace::force_capture()),
                None => text,
            };
            PANIC.with(|p| p.borrow_mut().get_or_insert((place, text)).clone());
        }));
    });
}

/// Calls `f`; a panic in it is a failure, told with its place. The panic is not printed.
pub fn no_panic<T>(stage: &str, f: impl FnOnce() -> T) -> Result<T, Failure> {
    install_hook();
    CATCHING.with(|c| *c.borrow_mut() = true);
    let outcome = catch_unwind(AssertUnwindSafe(f));
    CATCHING.with(|c| *c.borrow_mut() = false);
    let panic = PANIC.with(|p| p.borrow_mut().take());
    outcome.map_err(|_| {
        let (place, text) = panic.unwrap_or_default();
        Failure::new(format!("panic at {place}"), format!("{stage}: panic at {place}: {text}"))
    })
}

/// The most memory that this process has had since [`forget_peak`], in bytes; 0 where the kernel does not tell.
pub fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or(0) << 10
}

/// From now on [`peak_memory`] counts anew.
pub fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

#[cfg(test)]
mod tests {
    use super::*;
    use cffs::device::MemoryDevice;

    #[test]
    fn a_panic_is_a_failure_with_its_place_and_the_limit_is_kept() {
        let f = no_panic("stage", || panic!("on purpose")).unwrap_err();
        assert!(f.key.contains("limits.rs") && f.text.contains("on purpose"), "{f:?}");
        assert_eq!(no_panic("stage", || 5), Ok(5));
        let dev = Limited::new(Arc::new(MemoryDevice::new(4096)), 2);
        assert!(dev.flush().is_ok() && dev.flush().is_ok() && !dev.exceeded());
        assert!(dev.flush().is_err() && dev.exceeded());
    }
}
