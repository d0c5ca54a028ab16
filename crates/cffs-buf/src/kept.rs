//! Memory of buffers that were freed, kept for the next ones of the same size.
//!
//! A file that is written passes through memory: one thread fills buffers, another frees them when they are on the device.
//! The allocator brings memory that another thread freed back late, and returns to the kernel what is not used at once; so
//! each block of a long file came from the kernel anew, which clears it first, and that took longer than the copy. Here it
//! goes from one to the other directly.

use parking_lot::Mutex;
use std::alloc::Layout;
use std::ptr::NonNull;

/// Smallest and largest size that is kept: the sizes of blocks. Powers of two.
const SMALLEST: usize = 4096;
const LARGEST: usize = 64 << 10;
const SIZES: usize = (LARGEST / SMALLEST).trailing_zeros() as usize + 1;
/// Most bytes kept of one size; a file system has one size of blocks.
const BYTES_MAX: usize = 32 << 20;

/// Allocations of one layout that nobody uses.
struct Kept(Vec<NonNull<u8>>);

// SAFETY: the pointers are allocations that only the list owns; which thread frees or uses them does not matter.
unsafe impl Send for Kept {}

static KEPT: [Mutex<Kept>; SIZES] = [const { Mutex::new(Kept(Vec::new())) }; SIZES];

/// The list for a layout; the size alone decides, since buffers of at least [`SMALLEST`] bytes have one alignment.
fn list(layout: Layout) -> Option<&'static Mutex<Kept>> {
    let size = layout.size();
    let fits = size.is_power_of_two() && (SMALLEST..=LARGEST).contains(&size);
    fits.then(|| &KEPT[(size / SMALLEST).trailing_zeros() as usize])
}

/// An allocation of this layout, with any bytes in it, if one is kept.
pub(crate) fn take(layout: Layout) -> Option<NonNull<u8>> {
    list(layout)?.lock().0.pop()
}

/// Keeps an allocation of this layout, which its owner gives up with the call; false if it is to be freed instead.
pub(crate) fn keep(ptr: NonNull<u8>, layout: Layout) -> bool {
    let Some(list) = list(layout) else { return false };
    let mut list = list.lock();
    let room = list.0.len() < BYTES_MAX / layout.size();
    if room {
        list.0.push(ptr);
    }
    room
}
