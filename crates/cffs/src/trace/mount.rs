//! The trace of a mount, which begins before there is a file system.

use super::classes::Classes;
use super::device::{DeviceTracer, Place};
use super::kind::Kind;
use super::tracer::{Span, Tracer};
use cffs_device::Observer;
use std::sync::Arc;

/// The trace of a file system that is about to be mounted. Whoever assembles a log disk or a volume gives these an observer of it, so that
/// what they read and recover is in the trace as well; then [`Fs::open_traced`](crate::Fs::open_traced) goes on with it.
///
/// ```
/// # use cffs::device::{IoKind, MemoryDevice};
/// # use cffs::{Fs, MkfsOptions, MountOptions};
/// use cffs::trace::{Classes, MountTrace};
/// # let device = std::sync::Arc::new(MemoryDevice::new(16 << 20));
/// # cffs::mkfs(&*device, None, &MkfsOptions::default())?;
/// let trace = MountTrace::new(Classes::ALL);
/// let mounting = trace.mounting();
/// // Here a log disk or a volume is opened with `trace.observer()`.
/// let fs = Fs::open_traced(device, None, MountOptions::default(), &trace)?;
/// drop(mounting);
/// assert_eq!(fs.tracer().since_mount(), Classes::ALL);
/// # Ok::<(), cffs::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MountTrace {
    tracer: Arc<Tracer>,
}

impl MountTrace {
    /// Records these classes from now on.
    pub fn new(classes: Classes) -> MountTrace {
        let trace = MountTrace { tracer: Arc::default() };
        trace.set_classes(classes);
        trace
    }

    /// Records other classes from now on: what is to be traced may stand in the file system.
    pub fn set_classes(&self, classes: Classes) {
        self.tracer.record_from_the_beginning(classes);
    }

    /// Who learns of the requests of disks.
    pub fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(DeviceTracer::new(self.tracer.clone(), Place::Disk))
    }

    /// The cause of what this thread does until it is dropped: somebody mounts.
    pub fn mounting(&self) -> Span<'_> {
        self.tracer.span(Kind::Mount, [0; 3])
    }

    pub(crate) fn tracer(&self) -> &Arc<Tracer> {
        &self.tracer
    }
}
