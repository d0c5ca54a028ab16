//! Free lists: memory of freed buffers, for the next ones of the same size.
//!
//! A file that is written passes through memory: one thread fills buffers, another frees them when they are on the device.
//! The allocator reuses memory that another thread freed late, and returns unused memory to the kernel; so
//! the kernel supplied and cleared memory for each block of a long file anew, and that took longer than the copy. Through
//! these lists a buffer goes from one thread to the other directly.
//!
//! Beyond [`BYTES_MAX`] buffers are decommitted: the kernel gets the memory back, the list keeps the addresses. Freed to the
//! allocator the memory would stay with the thread that once asked for it, and each thread that answers messages would hold what it needed at its
//! busiest: a cache of 256 MiB took 100 MiB more.

use parking_lot::Mutex;
use rustix::mm::{Advice, madvise};
use std::alloc::Layout;
use std::ptr::NonNull;

/// Smallest and largest size with a list: the sizes of blocks. Powers of two.
const SMALLEST: usize = 4096;
const LARGEST: usize = 64 << 10;
const SIZES: usize = (LARGEST / SMALLEST).trailing_zeros() as usize + 1;
/// Most bytes of one size that are not decommitted; a file system has one size of blocks.
const BYTES_MAX: usize = 16 << 20;

/// Allocations of one layout that nobody uses.
struct FreeList {
    ready: Vec<NonNull<u8>>,
    /// Those whose memory the kernel has taken back: they read as zeros.
    decommitted: Vec<NonNull<u8>>,
}

// SAFETY: the pointers are allocations that only the lists own; which thread frees or uses them does not matter.
unsafe impl Send for FreeList {}

static FREE_LISTS: [Mutex<FreeList>; SIZES] =
    [const { Mutex::new(FreeList { ready: Vec::new(), decommitted: Vec::new() }) }; SIZES];

/// The list for a layout; the size alone decides, since buffers of at least [`SMALLEST`] bytes have one alignment.
fn list(layout: Layout) -> Option<&'static Mutex<FreeList>> {
    let size = layout.size();
    let fits = size.is_power_of_two() && (SMALLEST..=LARGEST).contains(&size);
    fits.then(|| &FREE_LISTS[(size / SMALLEST).trailing_zeros() as usize])
}

/// A free allocation of this layout, if there is one, and whether it is zeroed; otherwise it has any bytes.
pub(crate) fn take(layout: Layout) -> Option<(NonNull<u8>, bool)> {
    let mut list = list(layout)?.lock();
    list.ready.pop().map(|ptr| (ptr, false)).or_else(|| list.decommitted.pop().map(|ptr| (ptr, true)))
}

/// Takes over an allocation of this layout; false if the owner is to free it instead.
pub(crate) fn put(ptr: NonNull<u8>, layout: Layout) -> bool {
    let Some(list) = list(layout) else { return false };
    {
        let mut list = list.lock();
        if list.ready.len() < BYTES_MAX / layout.size() {
            list.ready.push(ptr);
            return true;
        }
    }
    // SAFETY: the bytes are nobody's but ours, and these sizes are whole pages at the beginning of one wherever pages have the
    // smallest of them; elsewhere the call fails and changes nothing.
    let gone = unsafe { madvise(ptr.as_ptr().cast(), layout.size(), Advice::LinuxDontNeed) }.is_ok();
    if gone {
        list.lock().decommitted.push(ptr);
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuf;

    /// A size that no other test uses.
    const SIZE: usize = 32 << 10;

    fn lengths() -> (usize, usize) {
        let list = list(Layout::from_size_align(SIZE, 4096).unwrap()).unwrap().lock();
        (list.ready.len(), list.decommitted.len())
    }

    #[test]
    fn buffers_freed_beyond_the_limit_are_decommitted() {
        let full = || -> Vec<AlignedBuf> { (0..1024).map(|_| AlignedBuf::from_slice(&vec![0xa5; SIZE])).collect() };
        let ready = BYTES_MAX / SIZE;
        let all = full();
        assert_eq!(lengths(), (0, 0));
        drop(all);
        assert_eq!(lengths(), (ready, 1024 - ready));
        // Had the kernel not taken the memory back, the old bytes would be there: nobody clears them.
        let again: Vec<AlignedBuf> = (0..1024).map(|_| AlignedBuf::zeroed(SIZE)).collect();
        assert_eq!(lengths(), (0, 0));
        assert!(again.iter().all(|b| b.iter().all(|b| *b == 0)));
        drop(again);
        let all = full();
        assert_eq!(lengths(), (0, 0), "addresses are used again");
        assert!(all.iter().all(|b| b.iter().all(|b| *b == 0xa5)));
    }
}
