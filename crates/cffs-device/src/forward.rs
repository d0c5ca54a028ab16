//! [`Device`] for pointers to devices, so that a wrapper can hold `Arc<dyn Device>` or a device itself.

use crate::counters::DiskStats;
use crate::device::{Device, DeviceSpace, ReadRequest, WriteRequest};
use crate::observer::Observer;
use crate::request::IoKind;
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
            fn below(&self) -> Option<&dyn Device> {
                (**self).below()
            }
            fn max_request(&self) -> usize {
                (**self).max_request()
            }
            fn is_rotational(&self) -> bool {
                (**self).is_rotational()
            }
            fn stripe(&self) -> u64 {
                (**self).stripe()
            }
            fn width(&self) -> usize {
                (**self).width()
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
            fn bring_together(&self, ranges: &[Range<u64>]) -> io::Result<u64> {
                (**self).bring_together(ranges)
            }
            fn note_group(&self, bytes: u64) {
                (**self).note_group(bytes)
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
            fn space(&self) -> Option<DeviceSpace> {
                (**self).space()
            }
            fn reserve(&self, bytes: u64, or_less: bool) -> bool {
                (**self).reserve(bytes, or_less)
            }
            fn atomic_max(&self) -> usize {
                (**self).atomic_max()
            }
            fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
                (**self).write_atomic(requests)
            }
            fn finish(&self) -> io::Result<()> {
                (**self).finish()
            }
            fn grow(&self, len: Option<u64>) -> io::Result<u64> {
                (**self).grow(len)
            }
            fn observe(&self, observer: &Arc<dyn Observer>) -> bool {
                (**self).observe(observer)
            }
            fn disks(&self) -> Vec<DiskStats> {
                (**self).disks()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::Disk;
    use crate::{CountingDevice, FailingDevice, MemoryDevice, StoppableDevice};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Answers everything that can be asked otherwise than the trait does by itself.
    struct Odd(MemoryDevice, Arc<AtomicU64>);

    const SPACE: DeviceSpace =
        DeviceSpace { total: 9, free: 8, unit: 512, unit_cost: 513, keeps_old: true, keeps_room: false };

    impl Device for Odd {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn sector_size(&self) -> u32 {
            4096
        }
        fn max_request(&self) -> usize {
            4096
        }
        fn is_rotational(&self) -> bool {
            false
        }
        fn width(&self) -> usize {
            5
        }
        fn stripe(&self) -> u64 {
            6
        }
        fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
            self.0.read_vectored(kind, offset, bufs)
        }
        fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
            self.0.write_vectored(kind, offset, bufs)
        }
        fn takes(&self, _: &[u8]) -> bool {
            false
        }
        fn together(&self, offset: u64, _: Range<u64>) -> Range<u64> {
            offset..offset + 1
        }
        fn bring_together(&self, ranges: &[Range<u64>]) -> io::Result<u64> {
            Ok(ranges[0].end)
        }
        fn note_group(&self, bytes: u64) {
            self.1.store(bytes, Ordering::Relaxed);
        }
        fn copies(&self) -> usize {
            3
        }
        fn read_copy(&self, _: IoKind, copy: usize, _: u64, buf: &mut [u8]) -> io::Result<()> {
            buf.fill(copy as u8);
            Ok(())
        }
        fn repair(&self, _: IoKind, _: usize, _: u64, _: &[u8]) -> io::Result<bool> {
            Ok(false)
        }
        fn flush(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn discard(&self, _: u64, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::TimedOut.into())
        }
        fn can_discard(&self) -> bool {
            false
        }
        fn space(&self) -> Option<DeviceSpace> {
            Some(SPACE)
        }
        fn reserve(&self, bytes: u64, or_less: bool) -> bool {
            bytes == 10 && or_less
        }
        fn atomic_max(&self) -> usize {
            77
        }
        fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
            requests.iter().try_for_each(|r| self.0.write_vectored(r.kind, r.offset, &r.bufs))
        }
        fn finish(&self) -> io::Result<()> {
            Ok(())
        }
        fn grow(&self, _: Option<u64>) -> io::Result<u64> {
            Ok(5)
        }
        fn read_only(&self) -> bool {
            true
        }
    }

    /// A wrapper that forgets a question would give the answer of the trait, and nobody would notice.
    #[test]
    fn a_wrapper_answers_as_the_device_below() {
        let told = Arc::new(AtomicU64::new(0));
        let odd = || Odd(MemoryDevice::new(1 << 20), told.clone());
        let wrappers: [(&str, Box<dyn Device>); 6] = [
            ("the device itself", Box::new(odd())),
            ("a pointer", Box::new(Arc::new(odd()))),
            ("counting", Box::new(CountingDevice::new(odd()))),
            ("observed", Box::new(Disk::numbered(0, Arc::new(odd())))),
            ("stoppable", Box::new(StoppableDevice::new(odd()))),
            ("failing", Box::new(FailingDevice::new(Arc::new(odd())))),
        ];
        for (name, d) in wrappers {
            assert_eq!((d.len(), d.sector_size(), d.max_request(), d.width()), (1 << 20, 4096, 4096, 5), "{name}");
            assert!(!d.is_rotational(), "{name}");
            assert_eq!((d.takes(&[]), d.can_discard(), d.read_only(), d.stripe()), (false, false, true, 6), "{name}");
            assert_eq!((d.together(7, 0..99), d.space(), d.atomic_max()), (7..8, Some(SPACE), 77), "{name}");
            assert_eq!(d.bring_together(&[7..99, 8..9]).unwrap(), 99, "{name}");
            assert_eq!([(9, true), (10, true), (10, false)].map(|(n, less)| d.reserve(n, less)), [false, true, false]);
            told.store(0, Ordering::Relaxed);
            d.note_group(8);
            assert_eq!(told.load(Ordering::Relaxed), 8, "{name}");
            let mut buf = [9; 2];
            d.read_copy(IoKind::Data, 2, 0, &mut buf).unwrap();
            assert_eq!((d.copies(), buf, d.repair(IoKind::Data, 0, 0, &[]).unwrap()), (3, [2; 2], false), "{name}");
            let request = WriteRequest { kind: IoKind::Data, offset: 0, bufs: vec![IoSlice::new(&[4; 512])] };
            d.write_atomic(&[request]).unwrap();
            assert!(d.finish().is_ok() && d.flush().is_err() && d.discard(0, 1).is_err(), "{name}");
            assert_eq!(d.grow(None).unwrap(), 5, "{name}");
        }
    }
}
