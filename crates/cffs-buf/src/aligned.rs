//! A heap buffer whose address suits direct I/O.
//!
//! The memory comes from mimalloc, whatever the program's allocator is. The C library's puts a header before each
//! allocation, so that two aligned ones never lie next to each other: a buffer of 4 KiB takes 8 KiB, one of 1 KiB nearly
//! two, and a cache of them twice the memory it was allowed. mimalloc packs them without a gap and is 2 to 4 times faster.

use crate::free_list;
use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Smallest alignment of a buffer: the smallest sector of any device.
const MIN_ALIGN: usize = 512;
/// Largest alignment of a buffer: a page, which satisfies every direct I/O implementation.
const MAX_ALIGN: usize = 4096;

/// Bytes on the heap, aligned for direct I/O, with a length that is exact and fixed at creation.
///
/// The alignment follows the length (its next power of two, at least 512 and at most 4096), so that a buffer of one
/// 1 KiB fragment does not cost a page. An empty buffer allocates nothing.
pub struct AlignedBuf {
    /// Start of the allocation of `layout(len)`; dangling if `len` is 0.
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: an AlignedBuf owns its bytes alone, as a Box<[u8]> does, and lends them only through `&self` and `&mut self`.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; a shared reference gives only shared access to the bytes.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// The layout of a buffer of `len` bytes, `len` not 0. The same length always gives the same layout, so that the
    /// length is all that has to be remembered to free it. The size is rounded up to the alignment: the allocator has
    /// no smaller place at such an address anyway, and finds one for a power of two without a search.
    fn layout(len: usize) -> Layout {
        let align = if len >= MAX_ALIGN { MAX_ALIGN } else { len.next_power_of_two().max(MIN_ALIGN) };
        Layout::from_size_align(len, align).expect("a buffer is smaller than half of the address space").pad_to_align()
    }

    /// The empty buffer, without an allocation.
    pub const fn empty() -> Self {
        AlignedBuf { ptr: NonNull::dangling(), len: 0 }
    }

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self::empty();
        }
        let layout = Self::layout(len);
        if let Some((ptr, zeros)) = free_list::take(layout) {
            if !zeros {
                // SAFETY: `ptr` is an allocation of `layout`, which has `len` bytes at least, and nobody else's.
                unsafe { ptr.write_bytes(0, len) };
            }
            return AlignedBuf { ptr, len };
        }
        // SAFETY: `layout` has a size other than 0.
        let ptr = unsafe { MiMalloc.alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        AlignedBuf { ptr, len }
    }

    /// A buffer with the bytes of `src`; it is written once, not zeroed first.
    pub fn from_slice(src: &[u8]) -> Self {
        if src.is_empty() {
            return Self::empty();
        }
        let layout = Self::layout(src.len());
        let ptr = free_list::take(layout).map(|(ptr, _)| ptr).unwrap_or_else(|| {
            // SAFETY: `layout` has a size other than 0.
            let ptr = unsafe { MiMalloc.alloc(layout) };
            NonNull::new(ptr).unwrap_or_else(|| handle_alloc_error(layout))
        });
        // SAFETY: `ptr` is an allocation of `src.len()` bytes that is nobody else's, so it is valid for that many writes and does not
        // overlap `src`; after the copy every byte of it is initialised.
        unsafe { ptr.copy_from_nonoverlapping(NonNull::from(src).cast(), src.len()) };
        AlignedBuf { ptr, len: src.len() }
    }

    /// Changes the length: keeps the bytes that both lengths have and zeroes what is added. Moves the buffer.
    pub fn resize_zeroed(&mut self, new_len: usize) {
        if new_len == self.len {
            return;
        }
        if new_len < self.len {
            *self = Self::from_slice(&self[..new_len]);
            return;
        }
        let mut new = Self::zeroed(new_len);
        new[..self.len].copy_from_slice(self);
        *self = new;
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.len != 0 && !free_list::put(self.ptr, Self::layout(self.len)) {
            // SAFETY: a buffer of a length other than 0 was allocated with `layout(len)`, and `len` never changes. No
            // free list has taken it over.
            unsafe { MiMalloc.dealloc(self.ptr.as_ptr(), Self::layout(self.len)) };
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` points to `len` initialised bytes that live as long as self (or dangles, aligned, with `len` 0).
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for AlignedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl From<&[u8]> for AlignedBuf {
    fn from(src: &[u8]) -> Self {
        Self::from_slice(src)
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        Self::from_slice(self)
    }
}

impl Default for AlignedBuf {
    fn default() -> Self {
        Self::empty()
    }
}

impl PartialEq for AlignedBuf {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for AlignedBuf {}

impl fmt::Debug for AlignedBuf {
    /// Length and first bytes only: a block in an assertion message should stay readable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes:", self.len)?;
        for b in self.iter().take(8) {
            write!(f, " {b:02x}")?;
        }
        f.write_str(if self.len > 8 { " …)" } else { ")" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: &[usize] =
        &[1, 2, 511, 512, 513, 1000, 1023, 1024, 1025, 2048, 3000, 4095, 4096, 4097, 65535, 65536, 1 << 20];

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + i / 256) as u8).collect()
    }

    #[test]
    fn length_is_exact_and_address_aligned() {
        for &len in SIZES {
            let want = len.next_power_of_two().clamp(512, 4096);
            for buf in [AlignedBuf::zeroed(len), AlignedBuf::from_slice(&pattern(len))] {
                assert_eq!(buf.len(), len);
                assert_eq!(buf.as_ptr() as usize % want, 0, "length {len}");
            }
        }
    }

    #[test]
    fn zeroed_is_zero_also_in_reused_memory() {
        for &len in SIZES {
            let mut buf = AlignedBuf::zeroed(len);
            assert!(buf.iter().all(|&b| b == 0));
            buf.fill(0xa5);
            drop(buf);
            assert!(AlignedBuf::zeroed(len).iter().all(|&b| b == 0));
        }
    }

    #[test]
    fn from_slice_and_clone_copy() {
        for &len in SIZES {
            let src = pattern(len);
            let mut a = AlignedBuf::from_slice(&src);
            let b = a.clone();
            assert_eq!(&a[..], &src[..]);
            a[len - 1] ^= 0xff;
            assert_eq!(&b[..], &src[..], "a clone has bytes of its own");
            assert_ne!(a, b);
        }
    }

    #[test]
    fn empty_buffers() {
        for mut buf in [AlignedBuf::default(), AlignedBuf::zeroed(0), AlignedBuf::from_slice(&[])] {
            assert_eq!(buf.len(), 0);
            assert_eq!(&buf[..], &[] as &[u8]);
            assert_eq!(buf.clone(), buf);
            buf.resize_zeroed(600);
            assert_eq!(&buf[..], &[0; 600]);
        }
    }

    #[test]
    fn resize_keeps_the_common_part() {
        for &from in SIZES {
            for &to in SIZES {
                let src = pattern(from);
                let mut buf = AlignedBuf::from_slice(&src);
                buf.resize_zeroed(to);
                let common = from.min(to);
                assert_eq!(buf.len(), to);
                assert_eq!(&buf[..common], &src[..common]);
                assert!(buf[common..].iter().all(|&b| b == 0));
                assert_eq!(buf.as_ptr() as usize % to.next_power_of_two().clamp(512, 4096), 0);
            }
        }
        let mut buf = AlignedBuf::from_slice(b"abc");
        buf.resize_zeroed(0);
        assert!(buf.is_empty());
    }

    #[test]
    fn memory_that_was_used_before_is_zeroed_and_never_anybody_elses() {
        for round in 0..3 {
            // Freed by another thread than the one that made them.
            let dirty: Vec<AlignedBuf> = (0..64).map(|_| AlignedBuf::from_slice(&[0xff; 4096])).collect();
            std::thread::spawn(move || drop(dirty)).join().unwrap();
            let mut all: Vec<AlignedBuf> = (0..128).map(|_| AlignedBuf::zeroed(4000 + 96 * (round % 2))).collect();
            assert!(all.iter().all(|b| b.iter().all(|&byte| byte == 0)));
            all.iter_mut().enumerate().for_each(|(i, b)| b.fill(i as u8));
            assert!(all.iter().enumerate().all(|(i, b)| b.iter().all(|&byte| byte == i as u8)));
        }
    }

    #[test]
    fn debug_is_short() {
        assert_eq!(format!("{:?}", AlignedBuf::from_slice(b"ab")), "AlignedBuf(2 bytes: 61 62)");
        assert!(format!("{:?}", AlignedBuf::zeroed(65536)).len() < 60);
    }

    #[test]
    fn moves_between_threads() {
        let buf = AlignedBuf::from_slice(&pattern(5000));
        let buf = std::thread::spawn(move || buf).join().unwrap();
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| assert_eq!(&buf[..], &pattern(5000)[..]));
            }
        });
    }
}
