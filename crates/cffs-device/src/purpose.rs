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
    /// What was committed is written in place: metadata, data that went through the log, the superblock; and who belongs to a volume.
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
    static CAUSE: Cell<[u64; 2]> = const { Cell::new([0; 2]) };
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

/// On whose behalf a thread makes requests: their purpose, and what caused them. A thread that makes requests for another one takes it over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnBehalf {
    /// Their purpose.
    pub purpose: Purpose,
    /// What caused them, as an observer notes it; zeros are nothing.
    pub cause: [u64; 2],
}

impl OnBehalf {
    /// Of what this thread does now.
    pub fn current() -> OnBehalf {
        OnBehalf { purpose: Purpose::current(), cause: OnBehalf::cause() }
    }

    /// The cause alone.
    pub fn cause() -> [u64; 2] {
        CAUSE.get()
    }

    /// Sets the cause of what this thread does from now on. Returns the one before.
    pub fn replace_cause(cause: [u64; 2]) -> [u64; 2] {
        CAUSE.replace(cause)
    }

    /// Does something in this thread on that behalf.
    pub fn run<T>(self, f: impl FnOnce() -> T) -> T {
        /// Puts the cause back, also when `f` panics.
        struct Before([u64; 2]);
        impl Drop for Before {
            fn drop(&mut self) {
                CAUSE.set(self.0);
            }
        }
        let _purpose = self.purpose.scope();
        let _before = Before(CAUSE.replace(self.cause));
        f()
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
    fn another_thread_takes_over_on_whose_behalf_it_works() {
        let _log = Purpose::Log.scope();
        let before = OnBehalf::replace_cause([7, 8]);
        let behalf = OnBehalf::current();
        let other = std::thread::spawn(move || (behalf.run(OnBehalf::current), OnBehalf::current()));
        let (there, afterwards) = other.join().unwrap();
        assert_eq!(there, OnBehalf { purpose: Purpose::Log, cause: [7, 8] });
        assert_eq!((afterwards, before), (OnBehalf::default(), [0; 2]));
        OnBehalf::replace_cause(before);
    }

    #[test]
    fn the_index_is_the_position() {
        assert!(Purpose::ALL.iter().enumerate().all(|(i, p)| p.index() == i));
    }
}
