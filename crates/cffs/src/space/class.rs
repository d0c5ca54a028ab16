//! Allocation classes.

use crate::reservation::Reservation;

/// What space is allocated for, and on whose account.
#[derive(Clone, Copy)]
pub(super) enum AllocationClass<'a> {
    /// For data, to which fragments were promised: any of them, as long as promised blocks stay whole. The promise ends with
    /// the taking.
    Data,
    /// Whole blocks for metadata, out of a reservation first.
    Meta(&'a Reservation),
}
