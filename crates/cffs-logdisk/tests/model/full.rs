//! Full disks.
