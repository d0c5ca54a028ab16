//! Stopping a mounted file system at once: `FS_IOC_SHUTDOWN`.

use super::{Fs, Shutdown};
use crate::error::Result;
use crate::format::Ino;
use crate::trace::Kind;

impl Fs {
    /// Makes durable what `how` asks for, and stops: from then on every operation that reads or writes fails with
    /// [`crate::Error::ShutDown`], nothing reaches the device, and [`Fs::failure`] says why. [`Fs::close`] writes nothing
    /// either, so that the next mount recovers as after a crash. A second call does nothing.
    ///
    /// # Errors
    /// What could not be made durable; the file system is shut down all the same.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        let _span = self.span(Kind::Sync, [0; 3]);
        if self.journal.check_not_shut_down().is_err() {
            return Ok(());
        }
        let outcome = match how {
            _ if self.opts.read_only => Ok(()),
            Shutdown::Flush => self.sync(),
            Shutdown::LogFlush => self.journal.commit(),
            Shutdown::NoLogFlush => Ok(()),
        };
        // Operations under way fail at their next step, and then nothing of them passes the devices.
        self.journal.shut_down();
        for dev in std::iter::once(&self.dev).chain(&self.log_dev) {
            dev.inner().stop();
        }
        outcome
    }

    /// Numbers of the inodes that callers have references to, in no order.
    pub fn referenced_inodes(&self) -> Vec<Ino> {
        self.inodes.referenced()
    }
}
