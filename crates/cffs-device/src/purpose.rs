//! Why a request is made: noted for the thread that makes it, read by whoever counts or traces requests.
//!
//! The layer that knows the purpose is far above the device, and what lies between (the cache, wrappers) makes requests for
//! many purposes. So the purpose is a state of the thread, set for a scope. Each request has exactly one: that of the thread
//! that hands it to the device.

use std::cell::Cell;
use std::marker::PhantomData;

/// Why a request is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// An operation needs what is read, and waits for it; with what the same request brings besides. What is not made for
    /// another purpose, too.
    #[default]
    Demand,
    /// Nobody has asked for what is read yet.
    Prefetch,
    /// File data goes to its place, direct writes included; and what that needs.
    Writeback,
    /// What was committed is written in place: metadata, data that went through the log, the superblock.
    Checkpoint,
    /// The log: its blocks, its header, the flushes that a commit waits for, its recovery.
    Log,
    /// Data and directories move to a better place.
    Regroup,
    /// Space becomes usable again: discards, and below a log disk what it reads and writes for its cleaner.
    Clean,
    /// Verifying what is stored, and making a wrong copy of a mirror right.
    Scrub,
}

thread_local! {
    static CURRENT: Cell<Purpose> = const { Cell::new(Purpose::Demand) };
}

impl Purpose {
    /// All purposes.
    pub const ALL: [Purpose; 8] = [
        Purpose::Demand,
        Purpose::Prefetch,
        Purpose::Writeback,
        Purpose::Checkpoint,
        Purpose::Log,
        Purpose::Regroup,
        Purpose::Clean,
        Purpose::Scrub,
    ];

    /// The purpose in one lower-case word, for tables.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Demand => "demand",
            Purpose::Prefetch => "prefetch",
            Purpose::Writeback => "writeback",
            Purpose::Checkpoint => "checkpoint",
            Purpose::Log => "log",
            Purpose::Regroup => "regroup",
            Purpose::Clean => "clean",
            Purpose::Scrub => "scrub",
        }
    }

    /// Position in [`Purpose::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Of the requests that this thread makes now.
    pub fn current() -> Purpose {
        CURRENT.get()
    }

    /// The requests of this thread have this purpose until the scope is dropped.
    pub fn scope(self) -> PurposeScope {
        PurposeScope { before: CURRENT.replace(self), _thread: PhantomData }
    }

    /// The same, unless a purpose other than [`Purpose::Demand`] is set already.
    pub fn scope_if_none(self) -> PurposeScope {
        match Purpose::current() {
            Purpose::Demand => self.scope(),
            other => other.scope(),
        }
    }
}

/// While it lives, the requests of this thread have a certain purpose; then the one from before again.
#[must_use = "the purpose ends where this is dropped"]
pub struct PurposeScope {
    before: Purpose,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Drop for PurposeScope {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_nest_and_belong_to_their_thread() {
        assert_eq!(Purpose::current(), Purpose::Demand);
        {
            let _regroup = Purpose::Regroup.scope();
            {
                let _log = Purpose::Log.scope();
                assert_eq!(Purpose::current(), Purpose::Log);
            }
            let _kept = Purpose::Writeback.scope_if_none();
            assert_eq!(Purpose::current(), Purpose::Regroup);
            let other = std::thread::spawn(Purpose::current).join().unwrap();
            assert_eq!(other, Purpose::Demand);
        }
        let _set = Purpose::Writeback.scope_if_none();
        assert_eq!(Purpose::current(), Purpose::Writeback);
    }

    #[test]
    fn the_index_is_the_position() {
        assert!(Purpose::ALL.iter().enumerate().all(|(i, p)| p.index() == i));
    }
}
