//! Operations as spans of the trace, with what their replay needs, and what a recording for a replay begins with.

use super::{Attr, Caller, Fs};
use crate::error::Result;
use crate::format::Ino;
use crate::metadump::Obfuscator;
use crate::mkfs::random_uuid;
use crate::trace::{Detail, Kind, Listed, Listing};

/// Names in one piece of a listing.
const LISTING_MAX: usize = 4096;

/// What of a result a replay needs.
pub(super) trait Outcome {
    /// Adds it.
    fn note(&self, _detail: &mut Detail) {}
}

impl Outcome for () {}
impl Outcome for bool {}
impl Outcome for u64 {}
impl Outcome for usize {}
impl Outcome for (u32, bool) {}
impl<T> Outcome for Vec<T> {}

impl Outcome for Attr {
    fn note(&self, detail: &mut Detail) {
        detail.inode = self.ino;
        detail.add_number(u64::from(mode(self)));
        detail.add_number(self.size);
    }
}

/// Type and permissions, as in stat(2).
fn mode(attr: &Attr) -> u32 {
    u32::from(attr.file_type.mode_bits() | attr.perm)
}

/// Adds a caller.
pub(super) fn note_caller(detail: &mut Detail, c: Caller) {
    detail.add_number(u64::from(c.uid));
    detail.add_number(u64::from(c.gid));
}

impl Fs {
    /// Does an operation as a span of the trace. `detail` adds what its replay needs, if that is recorded; what it has found or
    /// made follows by itself.
    pub(super) fn op<T: Outcome>(
        &self,
        kind: Kind,
        args: [u64; 3],
        detail: impl FnOnce(&mut Detail),
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let mut span = self.span(kind, args);
        if !span.wants_detail() {
            return work();
        }
        let result = work();
        let mut noted = Detail::default();
        detail(&mut noted);
        match &result {
            Ok(value) => value.note(&mut noted),
            Err(e) => noted.errno = e.errno().unsigned_abs().into(),
        }
        if let Some(obfuscator) = &*self.trace_obfuscator.read() {
            noted.names_mut().for_each(|name| obfuscate(obfuscator, kind, name));
        }
        span.set_detail(noted);
        result
    }

    /// From now on names in traces are obfuscated, under a new key that nobody learns, or stay what they are.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn obfuscate_trace(&self, obfuscate: bool) -> Result<()> {
        let obfuscator = if obfuscate { Some(Obfuscator::from_bytes(&random_uuid()?)) } else { None };
        *self.trace_obfuscator.write() = obfuscator;
        Ok(())
    }

    /// The names in a directory, for the beginning of a recording: a piece of them from behind `position` on (0: from the first).
    /// The names are obfuscated if those of the trace are.
    ///
    /// # Errors
    /// Those of [`Fs::readdir`].
    pub fn trace_listing(&self, directory: Ino, position: u64) -> Result<Listing> {
        let mut listing = Listing { directory, ..Listing::default() };
        let obfuscator = self.trace_obfuscator.read().clone();
        let (mut behind, mut more) = (position, false);
        let listed = self.readdir(directory, position, true, &mut |entry| {
            let Some(a) = entry.attr else { return true };
            more = listing.entries.len() == LISTING_MAX;
            if more {
                return false;
            }
            behind = entry.cookie;
            let mut name = entry.name;
            obfuscator.iter().for_each(|o| o.name(&mut name));
            listing.entries.push(Listed {
                inode: a.ino,
                mode: mode(&a),
                uid: a.uid,
                gid: a.gid,
                links: a.nlink,
                size: a.size,
                space: a.blocks.saturating_mul(512),
                name,
            });
            true
        });
        // What was not taken has no reference.
        listing.entries.iter().for_each(|e| self.forget(e.inode, 1));
        listed?;
        listing.next = if more { behind } else { 0 };
        Ok(listing)
    }

    /// Writes everything, and drops from memory what can be read again: what follows does not depend on what came before.
    ///
    /// # Errors
    /// Those of [`Fs::sync`].
    pub fn cool(&self) -> Result<()> {
        self.sync()?;
        self.drop_caches();
        Ok(())
    }
}

/// Obfuscates a name of a file, or what comes behind the namespace of an attribute, or behind `label:` in a key of co-location.
/// The attribute of co-location keeps its name, because it says where files lie.
fn obfuscate(obfuscator: &Obfuscator, kind: Kind, name: &mut [u8]) {
    let attribute = matches!(kind, Kind::Getxattr | Kind::Setxattr);
    let from = match name.iter().position(|b| matches!(b, b'.' | b':')) {
        _ if !attribute => 0,
        _ if name == super::COLOCATION_ATTRIBUTE.as_bytes() => name.len(),
        Some(at) => at + 1,
        // A key without a label.
        None => name.len(),
    };
    obfuscator.name(&mut name[from..]);
}
