//! Requests, and the units of time and place that all models share.

/// Virtual time in nanoseconds.
pub type Ns = u64;

/// Bytes of a sector, the unit of all disks here.
pub const SECTOR: u64 = 512;

/// Milliseconds in virtual time.
pub fn ms(value: f64) -> Ns {
    (value * 1e6).round() as Ns
}

/// A request to a disk; whole sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whether it writes; it reads otherwise.
    pub write: bool,
    /// First sector.
    pub start: u64,
    /// Number of sectors, at least one.
    pub sectors: u64,
}

impl Request {
    /// A read of a byte range.
    pub fn read(offset: u64, len: u64) -> Request {
        Request::of(false, offset, len)
    }

    /// A write of a byte range.
    pub fn write(offset: u64, len: u64) -> Request {
        Request::of(true, offset, len)
    }

    fn of(write: bool, offset: u64, len: u64) -> Request {
        let (start, end) = (offset / SECTOR, (offset + len).div_ceil(SECTOR));
        Request { write, start, sectors: (end - start).max(1) }
    }

    /// The sector after the last one.
    pub fn end(&self) -> u64 {
        self.start + self.sectors
    }
}
