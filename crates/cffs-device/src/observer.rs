//! Who learns what a device does: a tracer of the layer above.
//!
//! A log disk and a volume make requests of their own to the disks below them, and do work that nobody waits for. They know nothing of
//! traces; they tell an [`Observer`] when they make requests, and when they work for many.

use crate::request::{IoKind, Operation};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A request as an observer learns of it: what it carries, where, and how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it carries; of a flush or a discard it says nothing.
    pub kind: IoKind,
    /// Byte offset on the device.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Work of a device that is not one request of its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A log disk writes what many have written, as one batch.
    Batch,
    /// A log disk is opened: its map is read, and what was written after its last checkpoint is recovered.
    Recover,
    /// A log disk stores its map.
    Checkpoint,
    /// A log disk makes space usable again.
    Clean,
    /// Somebody manages the device: snapshots, members, growth.
    Manage,
    /// What is stored is verified.
    Scrub,
    /// A member of a mirror gets what it lacks.
    Resync,
    /// Somebody else uses the disks: another file system on them, which has an observer of its own.
    Other,
}

/// For whom work is left to be done. What is in it is the observer's.
#[derive(Default)]
pub struct ForWhom(Option<Box<dyn Any + Send>>);

impl ForWhom {
    /// What the observer keeps in it, made if there is nothing of that type yet.
    pub fn list<T: Any + Send + Default>(&mut self) -> Option<&mut T> {
        if self.0.as_ref().is_none_or(|list| !list.is::<T>()) {
            self.0 = Some(Box::<T>::default());
        }
        self.0.as_mut()?.downcast_mut()
    }

    /// Takes it out.
    pub fn take<T: Any + Send>(&mut self) -> Option<Box<T>> {
        self.0.take()?.downcast().ok()
    }
}

impl fmt::Debug for ForWhom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ForWhom").field(&self.0.is_some()).finish()
    }
}

/// Work that goes on until this is dropped, in the thread in which it began.
pub trait WorkScope {}

/// Learns of requests, and of work for many. All calls are made by the thread that does it.
pub trait Observer: Send + Sync {
    /// Whether it wants to know of requests at this moment. Asked before each.
    fn is_on(&self) -> bool;
    /// Requests of the disk with this number that begin and end together: `make` makes them, and says whether they succeeded.
    fn request(&self, disk: usize, operation: Operation, parts: &[Part], make: &mut dyn FnMut() -> bool);
    /// What this thread does at this moment leaves work to be done, of so many bytes.
    fn note(&self, for_whom: &mut ForWhom, bytes: u64);
    /// Some work begins, for those who were noted; they are taken.
    fn work<'a>(&'a self, work: Work, for_whom: &mut ForWhom) -> Option<Box<dyn WorkScope + 'a>>;
}

/// The observer of a device, if it has one.
#[derive(Clone, Default)]
pub struct Observed(Option<Arc<dyn Observer>>);

impl Observed {
    /// By this one.
    pub fn by(observer: &Arc<dyn Observer>) -> Observed {
        Observed(Some(observer.clone()))
    }

    /// The observer itself.
    pub fn observer(&self) -> Option<&Arc<dyn Observer>> {
        self.0.as_ref()
    }

    /// See [`Observer::note`].
    #[inline]
    pub fn note(&self, for_whom: &mut ForWhom, bytes: u64) {
        if let Some(observer) = &self.0 {
            observer.note(for_whom, bytes);
        }
    }

    /// See [`Observer::work`].
    #[must_use = "the work ends where this is dropped"]
    pub fn work(&self, work: Work, for_whom: &mut ForWhom) -> Option<Box<dyn WorkScope + '_>> {
        self.0.as_ref()?.work(work, for_whom)
    }

    /// The same for work that is done for nobody in particular.
    #[must_use = "the work ends where this is dropped"]
    pub fn work_for_all(&self, work: Work) -> Option<Box<dyn WorkScope + '_>> {
        self.work(work, &mut ForWhom::default())
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observed").field(&self.0.is_some()).finish()
    }
}
