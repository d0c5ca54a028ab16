//! Allocation classes.

use crate::reservation::Reservation;

/// What space is allocated for.
#[derive(Clone, Copy)]
pub(super) enum AllocationClass<'a> {
    /// Reserved data: any fragments, as long as enough free blocks stay whole for the reserved ones. Allocating ends
    /// the reservation.
    Data,
    /// Whole blocks for metadata, from a reservation first.
    Meta(&'a Reservation),
}
