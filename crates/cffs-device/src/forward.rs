//! [`Device`] for pointers to devices, so that a wrapper can hold `Arc<dyn Device>` or a device itself.

use crate::device::{Device, IoKind, ReadRequest, WriteRequest};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

macro_rules! forward {
    ($pointer:ty) => {
        impl<D: Device + ?Sized> Device for $pointer {
            fn len(&self) -> u64 {
                (**self).len()
            }
            fn sector_size(&self) -> u32 {
                (**self).sector_size()
            }
            fn max_request(&self) -> usize {
                (**self).max_request()
            }
            fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
                (**self).read_vectored(kind, offset, bufs)
            }
            fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
                (**self).write_vectored(kind, offset, bufs)
            }
            fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
                (**self).write_batch(requests)
            }
            fn takes(&self, memory: &[u8]) -> bool {
                (**self).takes(memory)
            }
            fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
                (**self).read_batch(requests)
            }
            fn together(&self, offset: u64, range: Range<u64>) -> Range<u64> {
                (**self).together(offset, range)
            }
            fn copies(&self) -> usize {
                (**self).copies()
            }
            fn read_copy(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
                (**self).read_copy(kind, copy, offset, buf)
            }
            fn repair(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8]) -> io::Result<bool> {
                (**self).repair(kind, copy, offset, good)
            }
            fn flush(&self) -> io::Result<()> {
                (**self).flush()
            }
            fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
                (**self).discard(offset, len)
            }
            fn can_discard(&self) -> bool {
                (**self).can_discard()
            }
            fn grow(&self, len: Option<u64>) -> io::Result<u64> {
                (**self).grow(len)
            }
            fn read_only(&self) -> bool {
                (**self).read_only()
            }
            fn read_at(&self, kind: IoKind, offset: u64, buf: &mut [u8]) -> io::Result<()> {
                (**self).read_at(kind, offset, buf)
            }
            fn write_at(&self, kind: IoKind, offset: u64, buf: &[u8]) -> io::Result<()> {
                (**self).write_at(kind, offset, buf)
            }
        }
    };
}

forward!(Arc<D>);
forward!(Box<D>);
forward!(&D);
